//! Follows how many updates of each version are not acked yet, for those who wait for a version.
//!
//! Bounded by the number of updates followed: beyond, the oldest version is not followed any more
//! and asking for it says so.

use std::collections::BTreeMap;
use weir_model::Version;

/// How far the updates of one version are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The version was not decided yet.
    NotDecided,
    /// So many of its updates are not acked.
    Waiting(usize),
    /// All its updates are acked (or it had none).
    All,
    /// Too long ago: it is not followed any more.
    TooOld,
}

#[derive(Debug)]
pub(crate) struct Progress {
    open: BTreeMap<Version, usize>,
    updates: usize,
    updates_max: usize,
    /// Versions at or below are not followed.
    floor: Version,
}

impl Progress {
    pub fn new(updates_max: usize) -> Progress {
        Progress { open: BTreeMap::new(), updates: 0, updates_max, floor: Version::ZERO }
    }

    /// Follows one more update of a version; `slot` lists those of its key.
    pub fn begin(&mut self, version: Version, slot: &mut Vec<Version>) {
        let floor = self.floor;
        slot.retain(|open| *open > floor);
        slot.push(version);
        *self.open.entry(version).or_default() += 1;
        self.updates += 1;
        while self.updates > self.updates_max {
            let Some((oldest, count)) = self.open.pop_first() else { break };
            self.updates -= count;
            self.floor = oldest;
        }
    }

    /// One update of each of these versions is acked.
    pub fn settle(&mut self, versions: Vec<Version>, finished: &mut dyn FnMut(Version)) {
        for version in versions {
            let Some(count) = self.open.get_mut(&version) else { continue };
            *count -= 1;
            self.updates -= 1;
            if *count == 0 {
                self.open.remove(&version);
                finished(version);
            }
        }
    }

    pub fn reached(&self, version: Version, decided: Version) -> Reached {
        match self.open.get(&version) {
            _ if version > decided => Reached::NotDecided,
            Some(count) => Reached::Waiting(*count),
            None if version <= self.floor => Reached::TooOld,
            None => Reached::All,
        }
    }
}
