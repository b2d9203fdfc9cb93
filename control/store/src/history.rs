//! The last changes, by version, so that a watcher resumes from the version that it saw last (pain 5).
//!
//! Bounded by number and bytes. Who asks for something older is told so, reads a snapshot, and goes on
//! from the snapshot's version. It is no part of the state: a replica that restarts begins with none.

use crate::Change;
use std::collections::VecDeque;
use std::sync::Arc;
use weir_model::Version;

/// Limits of a history.
#[derive(Clone, Copy, Debug)]
pub struct HistorySettings {
    /// Most changes kept.
    pub changes_max: usize,
    /// Most bytes of changes kept, unless the last alone is larger.
    pub bytes_max: usize,
}

impl Default for HistorySettings {
    fn default() -> HistorySettings {
        HistorySettings { changes_max: 65_536, bytes_max: 64 * 1024 * 1024 }
    }
}

/// Why a watcher cannot go on from a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// Changes after it are forgotten.
    #[error(
        "changes after {from} are not kept, only those after {oldest}: read the tables, and watch from the version of that read"
    )]
    TooOld {
        /// Asked for.
        from: Version,
        /// The oldest that can be resumed from.
        oldest: Version,
    },
    /// It was not reached yet.
    #[error(
        "version {from} is not reached here, the last is {last}: watch from a version that this domain gave"
    )]
    Ahead {
        /// Asked for.
        from: Version,
        /// The last.
        last: Version,
    },
}

/// See the module.
#[derive(Debug)]
pub struct History {
    settings: HistorySettings,
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// All changes after this are here.
    oldest: Version,
    last: Version,
    /// Changes that were dropped.
    pub dropped: u64,
}

impl History {
    /// A history of the changes after `start`.
    pub fn new(settings: HistorySettings, start: Version) -> History {
        History { settings, changes: VecDeque::new(), bytes: 0, oldest: start, last: start, dropped: 0 }
    }

    /// Adds the next change.
    pub fn push(&mut self, change: Arc<Change>) {
        self.last = self.last.max(change.version);
        self.bytes += change.bytes();
        self.changes.push_back(change);
        let HistorySettings { changes_max, bytes_max } = self.settings;
        while self.changes.len() > 1 && (self.changes.len() > changes_max || self.bytes > bytes_max) {
            let Some(old) = self.changes.pop_front() else { break };
            self.bytes -= old.bytes();
            self.oldest = old.version;
            self.dropped += 1;
        }
    }

    /// Version of the last change.
    pub fn last(&self) -> Version {
        self.last
    }

    /// At most `limit` changes after `from`, in order.
    ///
    /// # Errors
    /// [`HistoryError`].
    pub fn after(&self, from: Version, limit: usize) -> Result<Vec<Arc<Change>>, HistoryError> {
        if from < self.oldest {
            return Err(HistoryError::TooOld { from, oldest: self.oldest });
        }
        if from > self.last {
            return Err(HistoryError::Ahead { from, last: self.last });
        }
        let start = self.changes.partition_point(|change| change.version <= from);
        Ok(self.changes.range(start..).take(limit).cloned().collect())
    }
}
