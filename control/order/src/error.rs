//! What can go wrong with an order, in words that say how to mend it.

use std::io;
use std::sync::Arc;

/// A failure of the order. Cheap to clone, because one failed write fails many proposals.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The disk refused an operation.
    #[error("{action} {file} in {dir} failed: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file's name.
        file: String,
        /// The log directory.
        dir: String,
        /// The disk's own error.
        source: Arc<io::Error>,
    },
    /// Another process has the log open.
    #[error(
        "the log in {dir} is open in another process ({holder}): stop that process, or give this one its \
         own directory"
    )]
    Locked {
        /// The log directory.
        dir: String,
        /// What the holder wrote of itself, usually `pid <n>`.
        holder: String,
    },
    /// Something that was durable is damaged. Never repaired by cutting.
    #[error(
        "{file} in {dir} is damaged at byte {offset} (record after index {index}): {what}. Acknowledged records \
         would be lost by cutting it, so it is left as it is: restore the directory from a backup, or move it aside and let \
         this replica rejoin from the others; and check the disk"
    )]
    Corrupt {
        /// The damaged or missing file.
        file: String,
        /// The log directory.
        dir: String,
        /// Where in the file, in bytes.
        offset: u64,
        /// The last index before the damage that is whole.
        index: u64,
        /// What was found and what belongs there.
        what: String,
    },
    /// The disk has no room. The batch is not in the log; the log goes on when there is room.
    #[error("no space in {dir} for {file}: free some, then propose again (the log itself is whole)")]
    DiskFull {
        /// The log directory.
        dir: String,
        /// What was to be written.
        file: String,
    },
    /// A sync failed, so nobody knows what is on the disk.
    #[error(
        "the log in {dir} has stopped: {reason}. What was proposed since may or may not be in it: check the \
         disk, then restart"
    )]
    Poisoned {
        /// The log directory.
        dir: String,
        /// The failure that stopped it.
        reason: String,
    },
    /// A batch or an operation is over the limit.
    #[error("{what} has {bytes} bytes and the limit is {limit_bytes}: split it")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A queue is full. Nothing was taken; try again later.
    #[error("overloaded: {waiting} {what} wait already and the limit is {limit}; try again later")]
    Overloaded {
        /// What waits.
        what: &'static str,
        /// How many wait.
        waiting: u64,
        /// How many may.
        limit: u64,
    },
    /// This replica does not lead.
    #[error("this replica does not lead the order; the leader is {}", replica(*leader))]
    NotLeader {
        /// The leader, when known.
        leader: Option<u64>,
    },
    /// The leader was lost after it had taken the batch.
    #[error(
        "the leader was lost before the batch was known to be committed: it may or may not be in the order; ask, or          propose it again under the same identity"
    )]
    LeaderLost,
    /// Too few replicas answered in time.
    #[error(
        "too few replicas answered in time: it may or may not come into the order; ask, or propose it again under the same \
         identity"
    )]
    Unanswered,
    /// Too few of the replicas answered: fewer than a majority, or than 2f+1 where f may lie.
    #[error("too few of the replicas answered in time; nothing was done, try again later")]
    NoQuorum,
    /// This replica's state is not that of the majority.
    #[error(
        "this replica serves nothing, because its state differs from that of a quorum of the others: {what}"
    )]
    Fenced {
        /// Where it differs, and what is being done.
        what: String,
    },
    /// The engine has stopped, or stops before it knew.
    #[error("the order has stopped before it answered; what was proposed may or may not be in it")]
    Stopped,
    /// A setting does not make sense.
    #[error("setting {name} is {value}: {right}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What it is.
        value: u64,
        /// What would be right.
        right: String,
    },
    /// A snapshot or a replay was asked for at an index that does not fit.
    #[error("index {index} does not fit: {right}")]
    Index {
        /// The index that was given.
        index: u64,
        /// What would be right.
        right: String,
    },
    /// Bytes that are no batch.
    #[error("not a batch: {what}")]
    Batch {
        /// What is wrong with them.
        what: &'static str,
    },
    /// What a replicated engine was asked to order holds an event that was ordered already.
    #[error("an event in the batch was ordered already: propose what is left of it")]
    Stale,
    /// The state to snapshot could not be read.
    #[error("reading the state to snapshot failed: {source}")]
    SnapshotSource {
        /// The reader's own error.
        source: Arc<io::Error>,
    },
}

fn replica(id: Option<u64>) -> String {
    id.map_or("not known yet".to_owned(), |id| format!("replica {id}"))
}

impl Error {
    /// Whether what was proposed is for certain not in the log and never will be. When false it may appear
    /// later, so the proposer must ask, or propose again under the same identity.
    pub fn is_definite(&self) -> bool {
        !matches!(
            self,
            Error::Poisoned { .. }
                | Error::Stopped
                | Error::LeaderLost
                | Error::Unanswered
                | Error::Io { .. }
                | Error::Corrupt { .. }
        )
    }

    /// Whether the disk has no room: what was to be written can be tried again as it is.
    pub fn is_no_room(&self) -> bool {
        match self {
            Error::DiskFull { .. } => true,
            Error::Io { source, .. } => crate::log::room::is_no_room(source),
            _ => false,
        }
    }

    pub(crate) fn io(action: &'static str, file: &str, dir: &str, source: io::Error) -> Error {
        Error::Io { action, file: file.to_owned(), dir: dir.to_owned(), source: Arc::new(source) }
    }
}
