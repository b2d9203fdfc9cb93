//! A queue in which shares take turns (row A7): however many updates one share has waiting,
//! the next update of another goes after at most one update of each.

use std::collections::{BTreeMap, VecDeque};
use weir_model::Key;
use weir_model::edges::{self, Share};

/// Keys whose update may go, by share. Its length is bounded by the keys of its actuator: the
/// caller enters a key once.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    shares: BTreeMap<Share, VecDeque<Key>>,
    turns: VecDeque<Share>,
}

impl FairQueue {
    /// Enters a key at the end of its share's queue.
    pub fn push(&mut self, key: Key) {
        let share = edges::share(&key);
        let queue = self.shares.entry(share).or_default();
        if queue.is_empty() {
            self.turns.push_back(share);
        }
        queue.push_back(key);
    }

    /// Takes the next key of the share whose turn it is.
    pub fn pop(&mut self) -> Option<Key> {
        let share = self.turns.pop_front()?;
        let queue = self.shares.get_mut(&share)?;
        let key = queue.pop_front();
        if queue.is_empty() {
            self.shares.remove(&share);
        } else {
            self.turns.push_back(share);
        }
        key
    }

    /// Takes everything out.
    pub fn drain(&mut self) -> Vec<Key> {
        self.turns.clear();
        std::mem::take(&mut self.shares).into_values().flatten().collect()
    }

    /// Keys that wait.
    pub fn len(&self) -> usize {
        self.shares.values().map(VecDeque::len).sum()
    }
}
