//! The watch feed: the last committed changes by version, so that a watcher resumes from the version
//! that it saw last (pain 5).
//!
//! Bounded by changes and by bytes. A watcher that asks for something older is told to read everything
//! again, which gives it a version to resume from.

use super::clock::CLOCK_TABLE;
use super::dedup::DEDUP_TABLE;
use super::identities::IDENTITIES_TABLE;
use crate::Error;
use std::collections::VecDeque;
use std::sync::Arc;
use weir_model::Version;
use weir_store::Changed;

/// What one event or operation changed in the store.
pub type CommittedChange = weir_store::Change;

/// The change of an event.
pub(crate) fn committed(version: Version, now_ms: u64, writes: &[Changed]) -> CommittedChange {
    let own = [DEDUP_TABLE, IDENTITIES_TABLE, CLOCK_TABLE];
    let writes = writes.iter().filter(|write| !own.contains(&&*write.table)).cloned().collect();
    CommittedChange { version, now_ms, writes, dropped: None }
}

/// Limits of a feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedSettings {
    /// Most changes kept.
    pub changes_max: usize,
    /// Most bytes of changes kept, unless the last alone is larger.
    pub bytes_max: usize,
}

impl Default for FeedSettings {
    fn default() -> FeedSettings {
        FeedSettings { changes_max: 65_536, bytes_max: 64 * 1024 * 1024 }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Feed {
    settings: FeedSettings,
    changes: VecDeque<Arc<CommittedChange>>,
    bytes: usize,
    /// All changes after this are here.
    oldest: Version,
    last: Version,
    /// Changes that were dropped.
    pub dropped: u64,
}

impl Feed {
    /// A feed of the changes after `start`.
    pub fn new(settings: FeedSettings, start: Version) -> Feed {
        Feed { settings, changes: VecDeque::new(), bytes: 0, oldest: start, last: start, dropped: 0 }
    }

    /// Adds the next change.
    pub fn push(&mut self, change: Arc<CommittedChange>) {
        self.last = self.last.max(change.version);
        self.bytes += change.bytes();
        self.changes.push_back(change);
        let settings = self.settings;
        while self.changes.len() > 1
            && (self.changes.len() > settings.changes_max || self.bytes > settings.bytes_max)
        {
            let Some(old) = self.changes.pop_front() else { break };
            self.bytes -= old.bytes();
            self.oldest = old.version;
            self.dropped += 1;
        }
    }

    /// Bytes of the changes kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The store is at this version, also if its last events changed nothing.
    pub fn reached(&mut self, version: Version) {
        self.last = self.last.max(version);
    }

    /// At most `limit` changes after `from`, in order.
    ///
    /// # Errors
    /// [`Error::WatchTooOld`] or [`Error::WatchAhead`].
    pub fn after(&self, from: Version, limit: usize) -> Result<Vec<Arc<CommittedChange>>, Error> {
        if from < self.oldest {
            return Err(Error::WatchTooOld { from, oldest: self.oldest });
        }
        if from > self.last {
            return Err(Error::WatchAhead { from, last: self.last });
        }
        let start = self.changes.partition_point(|change| change.version <= from);
        Ok(self.changes.range(start..).take(limit).cloned().collect())
    }
}
