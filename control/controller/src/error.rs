//! What can go wrong with a controller, in words that say how to mend it.

use crate::core::admission::Unauthentic;
use crate::driver::Ended;
use std::sync::Arc;
use weir_base::codec::CodecError;
use weir_model::{Label, Version};
use weir_store::{Rejection, SnapshotError};

/// See the module. Cheap to clone, because one failure may answer many proposals.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The apps rejected the event; nothing changed.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The event is not its source's; nothing changed.
    #[error("event {sequence} of '{sender}' is dropped: {reason}")]
    Unauthentic {
        /// Whose it says it is.
        sender: String,
        /// Its number.
        sequence: u64,
        /// What is wrong with it.
        reason: Unauthentic,
    },
    /// Nothing of a source is taken, or not what it showed.
    #[error("'{whose}' is refused: {reason}")]
    Identity {
        /// Whose it says it is.
        whose: String,
        /// What is wrong with it.
        reason: Unauthentic,
    },
    /// A queue is full; nothing was taken.
    #[error("overloaded: {limit} {what} wait already; try again later")]
    Overloaded {
        /// What waits.
        what: &'static str,
        /// How many may.
        limit: usize,
    },
    /// The order failed. [`weir_order::Error::is_definite`] says whether the event may still be decided.
    #[error(transparent)]
    Order(#[from] weir_order::Error),
    /// The event's number is so old that nobody knows whether it was decided.
    #[error("event {sequence} of '{sender}' is older than the numbers remembered; give it a new number")]
    NumberTooOld {
        /// Its source.
        sender: String,
        /// Its number.
        sequence: u64,
    },
    /// The clocks of too few members are known.
    #[error(
        "the clocks of too few controllers are known here to say what is right: look with 'weir group list' whether a majority of \
         them runs and is reached, and ask again"
    )]
    Clocks,
    /// The controller stops. A proposal may or may not have been decided: ask the next one with the same
    /// source and number.
    #[error("the controller has stopped before it answered; what was proposed may or may not be decided")]
    Stopped,
    /// A watcher asks for changes that are not kept.
    #[error(
        "changes after {from} are not kept any more, the oldest kept is after {oldest}: read everything \
         again and watch from the version that comes with it"
    )]
    WatchTooOld {
        /// Asked for changes after this.
        from: Version,
        /// Changes after this are there.
        oldest: Version,
    },
    /// A watcher asks for changes after a version that was never reached.
    #[error(
        "{from} is not reached yet, the last is {last}: read everything again; this controller may have \
         been restored from a backup"
    )]
    WatchAhead {
        /// Asked for changes after this.
        from: Version,
        /// The last version.
        last: Version,
    },
    /// A question to an actuator that has no session.
    #[error("actuator '{0}' is not connected")]
    NotConnected(Label),
    /// A question that was not answered in time.
    #[error("actuator '{actuator}' did not answer within {waited_ms} ms")]
    NoAnswer {
        /// The actuator.
        actuator: Label,
        /// How long was waited.
        waited_ms: u64,
    },
    /// An operation of the order that cannot be read.
    #[error(
        "operation {nth} of a batch cannot be read: {source}. If a newer release ordered it, upgrade this controller, which then goes on \
         from here"
    )]
    Operation {
        /// Which, from 0.
        nth: usize,
        /// What is wrong.
        source: Arc<CodecError>,
    },
    /// An operation that could not be read again, which is not proposed: it would end every controller that carries out the order.
    #[error(
        "this cannot be read again as it would be ordered, which is a fault of this controller: {source}. It is not ordered; please report it"
    )]
    Unreadable {
        /// What is wrong.
        source: Arc<CodecError>,
    },
    /// An entry that is not carried out: it ended the process whenever it was, or is to be set aside.
    #[error(transparent)]
    Poisoned(Arc<Poisoned>),
    /// The controller waits before an entry, and serves nothing until it is past it.
    #[error("{0}")]
    Held(Arc<String>),
    /// The log has lost entries that were decided.
    #[error(
        "the log in {dir} ends with entry {last}, and the audit proves that entries up to {audited} were decided and acknowledged: they are lost \
         here. Bring back the whole state directory from a copy that has them; or, when they may stay lost, move its folder 'audit' away and \
         say 'weir state accept --state DIR --yes': hosts that have later versions are told apart and decided anew"
    )]
    BehindAudit {
        /// Last entry of the log.
        last: u64,
        /// Last entry that the audit is complete to.
        audited: u64,
        /// Where the log is.
        dir: String,
    },
    /// The controller becomes a member of a group; nothing was taken.
    #[error(
        "this controller becomes a member of a group, which takes some moments: nothing was changed; ask again"
    )]
    Converts,
    /// The order of this controller has ended: it goes on as the first member of a group, with what is in here.
    #[error(
        "the order in {dir} has ended (a conversion was ordered): start this controller as before, and it goes on as controller {} of the group",
        .ended.conversion.member
    )]
    Ended {
        /// Where the order was.
        dir: String,
        /// What it has left.
        ended: Arc<Ended>,
    },
    /// What is set aside cannot be read.
    #[error(
        "'{what}' in {dir} is damaged: 'set-aside.wanted' can be deleted, and said again with 'weir group set-aside'; what else is there must be brought \
         back from a backup of the whole state directory"
    )]
    SetAside {
        /// Which file.
        what: &'static str,
        /// Where it is.
        dir: String,
    },
    /// A snapshot written by another release.
    #[error("snapshot format {found} is not known here: this release reads format {known}")]
    SnapshotFormat {
        /// Its format.
        found: u32,
        /// The format that can be read.
        known: u32,
    },
    /// A snapshot of another domain.
    #[error(
        "the snapshot is of domain '{found}', this controller is of '{wanted}': check the data directory"
    )]
    SnapshotDomain {
        /// Domain of the snapshot.
        found: Label,
        /// Domain of this controller.
        wanted: Label,
    },
    /// A snapshot that is cut or damaged.
    #[error("the snapshot is damaged: {0}")]
    SnapshotDamaged(String),
    /// The store in a snapshot.
    #[error("the snapshot's store cannot be read: {0}")]
    SnapshotStore(Arc<SnapshotError>),
    /// A frame of a session that cannot be read or written.
    #[error(transparent)]
    Frame(Arc<CodecError>),
    /// A peer that breaks the session's protocol.
    #[error("the peer was refused: {0}")]
    Peer(String),
    /// The system refused something.
    #[error("{action} failed: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's own error.
        source: Arc<std::io::Error>,
    },
}

/// An entry before which a controller waits, or at which one that is alone does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// Its place in the order.
    pub index: u64,
    /// How often the process ended at it.
    pub times: u32,
    /// What is in it.
    pub what: String,
    /// SHA-256 of it, in hexadecimal digits.
    pub digest: String,
    /// Where the file is that says so.
    pub dir: String,
    /// Why it waits.
    pub waits: String,
}

impl std::error::Error for Poisoned {}

impl std::fmt::Display for Poisoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Poisoned { index, times, what, digest, dir, waits } = self;
        match times {
            0 => {
                write!(f, "entry {index} of the order ({what}) is to be set aside, and is not yet: {waits}")?
            }
            _ => write!(
                f,
                "the process ended {times} times while it carried out entry {index} of the order ({what}), so it is not tried again. Where memory was \
                 short, give more, delete 'carrying' in {dir} and start again. Else set it aside: {waits}"
            )?,
        }
        write!(
            f,
            ". The command: 'weir group set-aside --state DIRECTORY --entry {index} --digest {digest}', on this machine with its state directory"
        )
    }
}

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::System { action, source: Arc::new(source) }
    }
}

impl From<CodecError> for Error {
    fn from(error: CodecError) -> Error {
        Error::Frame(Arc::new(error))
    }
}

impl From<SnapshotError> for Error {
    fn from(error: SnapshotError) -> Error {
        Error::SnapshotStore(Arc::new(error))
    }
}
