//! What readers of the log see: an index of all entries and the newest entries themselves.

use std::collections::VecDeque;
use std::ops::Range;

use weir_order::log::Place;

use crate::types::{LogId, RaftEntry, Vote, log_id, term_of};

/// Counts of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Entries that were read from memory.
    pub hits: u64,
    /// Entries that were read from disk.
    pub misses: u64,
    /// Entries that left the memory.
    pub evicted: u64,
}

/// Entries that must be there, and are not: from the first to the last, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("entries {first} to {last} are missing")]
pub struct Missing {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

struct Slot {
    term: u64,
    /// Which append this is: an index is written again after a cut.
    stamp: u64,
    /// None until it is written.
    place: Option<Place>,
    entry: Option<RaftEntry>,
    bytes: u64,
}

/// Where to get an entry from.
pub enum Found {
    /// From memory.
    Here(RaftEntry),
    /// From disk.
    At(Place),
}

/// The log as its readers see it.
pub struct View {
    /// The index of the first slot.
    first: u64,
    slots: VecDeque<Slot>,
    /// The last purged entry.
    pub purged: Option<LogId>,
    /// The newest vote.
    pub vote: Option<Vote>,
    cached_bytes: u64,
    cache_bytes_max: u64,
    /// No entry below this index is in memory.
    cached_from: u64,
    next_stamp: u64,
    /// Counts of the cache.
    pub counters: CacheCounters,
}

impl View {
    /// An empty log.
    pub fn new(cache_bytes_max: u64) -> View {
        View {
            first: 0,
            slots: VecDeque::new(),
            purged: None,
            vote: None,
            cached_bytes: 0,
            cache_bytes_max,
            cached_from: 0,
            next_stamp: 0,
            counters: CacheCounters::default(),
        }
    }

    /// The index after the last entry.
    pub fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Bytes of the entries in memory.
    pub fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// The last entry, or the last purged one.
    pub fn last(&self) -> Option<LogId> {
        match self.slots.back() {
            Some(slot) => Some(log_id(slot.term, self.end() - 1)),
            None => self.purged,
        }
    }

    /// An entry found at opening.
    pub fn found(&mut self, index: u64, term: u64, place: Place) {
        if self.slots.is_empty() {
            self.first = index;
        }
        assert_eq!(index, self.end(), "the log's scan gives entries without gaps");
        self.slots.push_back(Slot { term, stamp: 0, place: Some(place), entry: None, bytes: 0 });
    }

    /// Makes `last` the last entry, whatever was there.
    pub fn set_last(&mut self, last: Option<LogId>) {
        let end = last.map_or(0, |id| id.index() + 1);
        if end > self.end() {
            self.forget(0..self.slots.len());
            self.first = end;
        } else {
            let keep = end.saturating_sub(self.first) as usize;
            self.forget(keep..self.slots.len());
            if keep == 0 {
                self.first = end;
            }
        }
        self.cached_from = self.cached_from.min(self.end());
    }

    fn forget(&mut self, range: Range<usize>) {
        for slot in self.slots.drain(range) {
            if slot.entry.is_some() {
                self.cached_bytes -= slot.bytes;
            }
        }
    }

    /// Ends the opening: forgets what was purged.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn finish(&mut self, purged: Option<LogId>) -> Result<(), Missing> {
        let next = purged.map_or(0, |id| id.index() + 1);
        if !self.slots.is_empty() && self.first > next {
            return Err(Missing { first: next + 1, last: self.first });
        }
        self.purged = purged;
        self.drop_below(next);
        if self.slots.is_empty() {
            self.first = next;
        }
        self.cached_from = self.end();
        Ok(())
    }

    fn drop_below(&mut self, next: u64) {
        let drop = next.saturating_sub(self.first).min(self.slots.len() as u64);
        self.forget(0..drop as usize);
        self.first += drop;
    }

    /// Adds an entry at the end and gives its stamp.
    pub fn push(&mut self, entry: RaftEntry, bytes: u64) -> u64 {
        if self.slots.is_empty() {
            self.first = entry.log_id.index();
        }
        assert_eq!(entry.log_id.index(), self.end(), "openraft appends without gaps");
        self.next_stamp += 1;
        let term = term_of(&entry.log_id);
        let slot = Slot { term, stamp: self.next_stamp, place: None, entry: Some(entry), bytes };
        self.slots.push_back(slot);
        self.cached_bytes += bytes;
        self.next_stamp
    }

    /// The entry at `index` of append `stamp` stands at `place` now.
    pub fn placed(&mut self, index: u64, stamp: u64, place: Place) {
        let Some(nth) = index.checked_sub(self.first) else { return };
        if let Some(slot) = self.slots.get_mut(nth as usize).filter(|slot| slot.stamp == stamp) {
            slot.place = Some(place);
        }
    }

    /// Lets the oldest entries leave the memory until the limit is kept; those not yet written stay.
    pub fn evict(&mut self) {
        self.cached_from = self.cached_from.max(self.first);
        while self.cached_bytes > self.cache_bytes_max && self.cached_from < self.end() {
            let slot = &mut self.slots[(self.cached_from - self.first) as usize];
            if slot.place.is_none() {
                break;
            }
            if slot.entry.take().is_some() {
                self.cached_bytes -= slot.bytes;
                self.counters.evicted += 1;
            }
            self.cached_from += 1;
        }
    }

    /// Forgets entries up to `upto`.
    pub fn purge(&mut self, upto: LogId) {
        if self.purged.is_some_and(|purged| purged.index() >= upto.index()) {
            return;
        }
        if upto.index() >= self.end() {
            self.set_last(Some(upto));
        }
        self.drop_below(upto.index() + 1);
        self.purged = Some(upto);
        self.cached_from = self.cached_from.max(self.first);
    }

    /// The log id of an entry that is there.
    pub fn log_id(&self, index: u64) -> Option<LogId> {
        let slot = self.slots.get(index.checked_sub(self.first)? as usize)?;
        Some(log_id(slot.term, index))
    }

    /// Whether the entry at `index` is there and not in memory.
    pub fn is_old(&self, index: u64) -> bool {
        let slot = index.checked_sub(self.first).and_then(|nth| self.slots.get(nth as usize));
        slot.is_some_and(|slot| slot.entry.is_none())
    }

    /// Where the entries of `range` are, as many as there are; not more than about `bytes_max`, but at least one.
    pub fn find(&mut self, range: Range<u64>, bytes_max: u64) -> Vec<(u64, Found)> {
        let (start, end) = (range.start.max(self.first), range.end.min(self.end()));
        let mut found = Vec::with_capacity(end.saturating_sub(start) as usize);
        let mut bytes = 0;
        for index in start..end {
            let slot = &self.slots[(index - self.first) as usize];
            bytes += slot.place.map_or(slot.bytes, |place| u64::from(place.length));
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            let item = match (&slot.entry, slot.place) {
                (Some(entry), _) => {
                    self.counters.hits += 1;
                    Found::Here(entry.clone())
                }
                (None, Some(place)) => {
                    self.counters.misses += 1;
                    Found::At(place)
                }
                (None, None) => unreachable!("an entry stays in memory until it is written"),
            };
            found.push((index, item));
        }
        found
    }
}
