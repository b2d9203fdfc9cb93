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
    /// An entry that ended the process whenever it was carried out.
    #[error(
        "the process ended {times} times while it carried out entry {index} of the order ({what}), so it is not tried again. \
         Where memory was short, give more, delete 'carrying' in {dir} and start again. Else let every controller of the domain \
         set it aside ('weir group set-aside --entry {index} --digest {digest}' on each, with its --state), and start them again: \
         then nothing of it is done anywhere"
    )]
    Poisoned {
        /// Its place in the order.
        index: u64,
        /// How often.
        times: u32,
        /// What is in it.
        what: String,
        /// SHA-256 of it, in hexadecimal digits.
        digest: String,
        /// Where the file is that says so.
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
        "'set-aside' in {dir} is damaged: each line is the place of an entry and its digest; make it anew with 'weir group set-aside'"
    )]
    SetAside {
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
