//! Frames between an actuator's agent and the controller, on one mutually authenticated stream.
//!
//! The agent opens the stream and says `Hello` with the digest of what is in force. When it equals
//! what the controller expects, nothing is sent; else the controller asks for the state and sends
//! only the differences (row A6). Frames are postcard (`weir_base::codec`).

use crate::entry::Key;
use crate::event::SignedEvent;
use crate::identity::Rotation;
use crate::local::{Answer, Question};
use crate::signed::{HeaderEndorsement, HeaderShare, Signature, SignedAcks, SignedUpdates, UnsignedUpdates};
use crate::source::Role;
use crate::{Label, Version};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

pub use crate::protocol::{
    PLANES_SINCE, PROTOCOL, PROTOCOL_MIN, SUCCESSIONS_SINCE, SWITCHES_SINCE, StateDigest,
};

/// Most controllers of a group.
pub const CONTROLLERS_MAX: usize = 16;
/// Longest certificate request, bytes.
pub const REQUEST_BYTES_MAX: usize = 16 * 1024;
/// Most keys in one `State` frame.
pub const STATE_CHUNK_KEYS: usize = 4096;

/// From the agent to the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToController {
    /// First frame.
    Hello {
        /// [`PROTOCOL`], or another from [`PROTOCOL_MIN`] on.
        protocol: u32,
        /// Name of the actuator; must be the name in its certificate.
        actuator: Label,
        /// What it is.
        role: Role,
        /// Release of the software.
        software: String,
        /// Public key that signs its acks.
        identity: [u8; 32],
        /// Address on the underlay.
        underlay: IpAddr,
        /// What is in force.
        digest: StateDigest,
    },
    /// Part of the state in force, after [`ToActuator::SendState`].
    State {
        /// Keys with their versions; deleted keys whose version is remembered are included.
        entries: Vec<(Key, Version)>,
        /// Whether this is the last part.
        last: bool,
    },
    /// Answers to updates.
    Acks(SignedAcks),
    /// An event of the actuator, such as what was sent to whom, signed with its identity.
    Event(SignedEvent),
    /// Answer to a question.
    Answer {
        /// The question's number.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// Answer to a ping.
    Pong {
        /// The ping's number.
        id: u64,
    },
    /// Sign a new certificate for this actuator; answered by [`ToActuator::Renewed`] or
    /// [`ToActuator::NotRenewed`].
    Renew {
        /// PKCS#10 request, PEM; at most [`REQUEST_BYTES_MAX`]. Only its key is taken.
        csr_pem: String,
    },
    /// Make another key of this actuator known, and sign a certificate for another key; answered by [`ToActuator::Rotated`] or
    /// [`ToActuator::NotRotated`]. Saying it again changes nothing.
    Rotate {
        /// The change, with both keys' signatures.
        rotation: Rotation,
        /// PKCS#10 request, PEM; at most [`REQUEST_BYTES_MAX`]. Only its key is taken.
        csr_pem: String,
    },
    /// The key before is not used any more; answered by [`ToActuator::Settled`] or [`ToActuator::NotRotated`].
    Settle {
        /// The key that is used.
        key: [u8; 32],
        /// Its signature.
        by_key: Signature,
    },
    /// What a plane beside the switch has in force, when its process came or went while the session lasts.
    Plane {
        /// The plane.
        plane: Label,
        /// Keys of it with their versions, deleted keys whose version is remembered included; none when its process is away.
        entries: Option<Vec<(Key, Version)>>,
        /// Whether this is the last part.
        last: bool,
    },
}

/// From the controller to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToActuator {
    /// Answer to `Hello`.
    Welcome {
        /// That of `Hello`.
        protocol: u32,
        /// Epoch in force.
        epoch: u64,
    },
    /// The stream is refused; the text says why and what would be right.
    Refused(String),
    /// Send the state in force.
    SendState,
    /// Updates to apply.
    Updates(SignedUpdates),
    /// A question to the switch.
    Ask {
        /// Number of the question.
        id: u64,
        /// The question.
        question: Question,
    },
    /// Are you there?
    Ping {
        /// Number of the ping.
        id: u64,
    },
    /// The new certificate.
    Renewed {
        /// Certificate, PEM.
        certificate_pem: String,
    },
    /// There is no new certificate; the text says why and what would be right.
    NotRenewed(String),
    /// Where the controllers of the group are: the agent has a session with each.
    Controllers {
        /// Of two lists the one with the higher number counts.
        number: u64,
        /// Session addresses, `host:port`; at most [`CONTROLLERS_MAX`].
        sessions: Vec<String>,
    },
    /// Updates to apply as soon as enough shares of the group's signature over their batch, or endorsements of it, have come.
    Unsigned(UnsignedUpdates),
    /// This controller's share of the group's signature over a batch.
    Share(HeaderShare),
    /// Change your keys and your certificate: somebody wants it.
    RotateKeys,
    /// The new key is known everywhere that the order reaches; this is its certificate.
    Rotated {
        /// The key that is known.
        key: [u8; 32],
        /// Certificate, PEM.
        certificate_pem: String,
    },
    /// Only this key is taken now.
    Settled {
        /// The key.
        key: [u8; 32],
    },
    /// A change of keys goes no further here; the text says why.
    NotRotated(String),
    /// This controller's own signature over a batch.
    Endorsement(HeaderEndorsement),
}
