//! What goes into a step of the machine, and what comes out of it.

use super::told::Ended;
use weir_model::local::{FromSwitch, ToSwitch};
use weir_model::session::{ToActuator, ToController};
use weir_model::signed::{HeaderEndorsement, HeaderShare, UnsignedUpdates};

/// What happens to the machine.
#[derive(Clone, Debug)]
pub enum Input {
    /// The switch's socket is connected.
    SwitchUp,
    /// The switch's socket is gone.
    SwitchDown,
    /// A frame of the switch.
    FromSwitch(FromSwitch),
    /// The stream asked for by [`Output::Connect`] is there.
    Connected,
    /// The stream could not be made, or ended, and why.
    Closed(String),
    /// The stream ended because what came on it is no frame, and why.
    Garbage(String),
    /// A frame of the controller.
    FromController(ToActuator),
    /// Something that came on this session is forged: updates by the switch's word, or a share or endorsement of a signature.
    Forged,
    /// Say this to the controller, when there is a session.
    Say(Box<ToController>),
    /// Time has passed.
    Tick,
}

/// What the driver shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Make a stream to this controller; answered by `Connected` or `Closed`.
    Connect(String),
    /// End the stream, or give up making it. No `Closed` follows.
    Close,
    /// Send a frame to the controller.
    ToController(ToController),
    /// Send a frame to the switch.
    ToSwitch(ToSwitch),
    /// These updates go to the switch when shares of their batch's signature, or endorsements, are there.
    Unsigned(UnsignedUpdates),
    /// The controller's share of the signature of a batch.
    Share(HeaderShare),
    /// The controller's own signature over a batch.
    Endorsement(HeaderEndorsement),
    /// Keep this certificate (PEM): the controller signed it for us.
    Certificate(String),
    /// The controller says this of a change of our keys.
    Keys(ToActuator),
    /// The controllers of the group are here; of two lists the one with the higher number counts.
    Controllers {
        /// Number of the list.
        number: u64,
        /// Session addresses.
        sessions: Vec<String>,
    },
    /// End the connection to the switch and make a new one; `SwitchDown` follows.
    ResetSwitch,
    /// The session ended for what came on it.
    BadConduct(Ended),
    /// Something that a person should read.
    Report(Report),
}

/// What a person should read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Report {
    /// A session is there.
    #[error("session with {controller} established in epoch {epoch}")]
    Established {
        /// The controller's address.
        controller: String,
        /// Its group's epoch.
        epoch: u64,
    },
    /// A session ended, or did not come about.
    #[error(
        "no session with {controller}: {reason}; next attempt in {wait_ms} ms; the switch keeps its state"
    )]
    Lost {
        /// The controller's address.
        controller: String,
        /// Why.
        reason: String,
        /// Wait until the next attempt, milliseconds.
        wait_ms: u64,
    },
    /// The controller does not renew our certificate.
    #[error("the certificate is not renewed: {reason}; it is asked for again later")]
    NotRenewed {
        /// Why.
        reason: String,
    },
}
