//! A queue in which networks take turns (row A7): however many updates one network has waiting,
//! the next update of another goes after at most one update of each.

use std::collections::{BTreeMap, VecDeque};
use weir_model::Key;
use weir_model::entry::Vni;

/// Keys whose update may go, by network. Its length is bounded by the keys of its actuator: the
/// caller enters a key once.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    networks: BTreeMap<Option<Vni>, VecDeque<Key>>,
    turns: VecDeque<Option<Vni>>,
}

impl FairQueue {
    /// Enters a key at the end of its network's queue.
    pub fn push(&mut self, key: Key) {
        let network = key.vni();
        let queue = self.networks.entry(network).or_default();
        if queue.is_empty() {
            self.turns.push_back(network);
        }
        queue.push_back(key);
    }

    /// Takes the next key of the network whose turn it is.
    pub fn pop(&mut self) -> Option<Key> {
        let network = self.turns.pop_front()?;
        let queue = self.networks.get_mut(&network)?;
        let key = queue.pop_front();
        if queue.is_empty() {
            self.networks.remove(&network);
        } else {
            self.turns.push_back(network);
        }
        key
    }

    /// Takes everything out.
    pub fn drain(&mut self) -> Vec<Key> {
        self.turns.clear();
        std::mem::take(&mut self.networks).into_values().flatten().collect()
    }

    /// Keys that wait.
    pub fn len(&self) -> usize {
        self.networks.values().map(VecDeque::len).sum()
    }
}
