//! The watch feed: the last committed changes by version, so that a watcher resumes from the version
//! that it saw last (pain 5).
//!
//! Three rings, each bounded by changes and by bytes: what changed tables that the settings name first, other tables of apps, and tables of
//! clients. So whoever watches the first loses no history to clients that write much, or to reports of hosts. A watcher that asks for something
//! older than its rings have is told to read everything again, which gives it a version to resume from.

use super::approvals::{APPROVALS_TABLE, WAITING_TABLE};
use super::clock::CLOCK_TABLE;
use super::dedup::DEDUP_TABLE;
use super::group::GROUP_TABLE;
use super::identities::IDENTITIES_TABLE;
use super::operators::{OPERATORS_TABLE, REQUESTS_TABLE};
use super::since::RULES_TABLE;
use super::tokens::{TOKEN_KEYS_TABLE, TOKENS_TABLE};
use crate::Error;
use std::collections::VecDeque;
use std::sync::Arc;
use weir_model::Version;
use weir_model::conversion::{CONVERSION_TABLE, SUCCESSION_TABLE};
use weir_store::Changed;
use weir_store::name::namespace_of;

/// What one event or operation changed in the store.
pub type CommittedChange = weir_store::Change;

/// The change of an event.
pub(crate) fn committed(version: Version, now_ms: u64, writes: &[Changed]) -> CommittedChange {
    let own = [
        DEDUP_TABLE,
        IDENTITIES_TABLE,
        CLOCK_TABLE,
        CONVERSION_TABLE,
        SUCCESSION_TABLE,
        TOKENS_TABLE,
        TOKEN_KEYS_TABLE,
        RULES_TABLE,
        OPERATORS_TABLE,
        REQUESTS_TABLE,
        APPROVALS_TABLE,
        WAITING_TABLE,
        GROUP_TABLE,
    ];
    let writes = writes.iter().filter(|write| !own.contains(&&*write.table)).cloned().collect();
    CommittedChange { version, now_ms, writes, dropped: None }
}

/// Limits of a feed.
#[derive(Clone, Copy, Debug)]
pub struct FeedSettings {
    /// Most changes kept in a ring.
    pub changes_max: usize,
    /// Most bytes of changes kept in a ring, unless the last alone is larger.
    pub bytes_max: usize,
    /// Tables whose changes have a ring of their own.
    pub first: &'static [&'static str],
}

impl Default for FeedSettings {
    fn default() -> FeedSettings {
        FeedSettings { changes_max: 65_536, bytes_max: 32 * 1024 * 1024, first: &[] }
    }
}

/// Which changes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those of the tables that the settings name first.
    First,
    /// All.
    All,
}

#[derive(Debug)]
struct Ring {
    changes: VecDeque<Arc<CommittedChange>>,
    bytes: usize,
    /// All changes after this that belong here are here.
    oldest: Version,
    dropped: u64,
}

impl Ring {
    fn new(start: Version) -> Ring {
        Ring { changes: VecDeque::new(), bytes: 0, oldest: start, dropped: 0 }
    }

    fn push(&mut self, settings: FeedSettings, change: Arc<CommittedChange>) {
        self.bytes += change.bytes();
        self.changes.push_back(change);
        while self.changes.len() > 1
            && (self.changes.len() > settings.changes_max || self.bytes > settings.bytes_max)
        {
            let Some(old) = self.changes.pop_front() else { break };
            self.bytes -= old.bytes();
            self.oldest = old.version;
            self.dropped += 1;
        }
    }

    fn after(&self, from: Version) -> impl Iterator<Item = &Arc<CommittedChange>> {
        let start = self.changes.partition_point(|change| change.version <= from);
        self.changes.range(start..)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Feed {
    settings: FeedSettings,
    first: Ring,
    others: Ring,
    clients: Ring,
    last: Version,
}

impl Feed {
    /// A feed of the changes after `start`.
    pub fn new(settings: FeedSettings, start: Version) -> Feed {
        let ring = || Ring::new(start);
        Feed { settings, first: ring(), others: ring(), clients: ring(), last: start }
    }

    /// Adds the next change.
    pub fn push(&mut self, change: Arc<CommittedChange>) {
        self.last = self.last.max(change.version);
        let tables = || change.writes.iter().map(|write| &*write.table);
        let ring = if tables().any(|table| self.settings.first.contains(&table)) {
            &mut self.first
        } else if change.dropped.is_some() || tables().any(|table| namespace_of(table).is_some()) {
            &mut self.clients
        } else {
            &mut self.others
        };
        ring.push(self.settings, change);
    }

    /// Bytes of the changes kept.
    pub fn bytes(&self) -> usize {
        self.first.bytes + self.others.bytes + self.clients.bytes
    }

    /// Changes that are not kept any more.
    pub fn dropped(&self) -> u64 {
        self.first.dropped + self.others.dropped + self.clients.dropped
    }

    /// The store is at this version, also if its last events changed nothing.
    pub fn reached(&mut self, version: Version) {
        self.last = self.last.max(version);
    }

    /// At most `limit` changes after `from`, in order.
    ///
    /// # Errors
    /// [`Error::WatchTooOld`] or [`Error::WatchAhead`].
    pub fn after(
        &self,
        from: Version,
        limit: usize,
        wanted: Wanted,
    ) -> Result<Vec<Arc<CommittedChange>>, Error> {
        let rings: &[&Ring] = match wanted {
            Wanted::First => &[&self.first],
            Wanted::All => &[&self.first, &self.others, &self.clients],
        };
        let oldest = rings.iter().map(|ring| ring.oldest).max().unwrap_or(Version::ZERO);
        if from < oldest {
            return Err(Error::WatchTooOld { from, oldest });
        }
        if from > self.last {
            return Err(Error::WatchAhead { from, last: self.last });
        }
        let mut after: Vec<_> = rings.iter().map(|ring| ring.after(from).peekable()).collect();
        let mut found = Vec::new();
        while found.len() < limit {
            let next = after.iter_mut().filter_map(|ring| Some((ring.peek()?.version, ring)));
            let Some((_, ring)) = next.min_by_key(|(version, _)| *version) else { break };
            found.extend(ring.next().cloned());
        }
        Ok(found)
    }
}
