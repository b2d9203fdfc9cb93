//! How long updates wait at this host for a quorum of controllers: from the first that comes of a batch until enough have vouched for it
//! and it goes to the switch (row R10, RoSCo's quorum time; Lembke, Table 2.3).
//!
//! | signatures | the first | the quorum |
//! |---|---|---|
//! | shares-at-switches | an update without a signature | as many shares as must sign |
//! | endorsed | an update without a signature | as many endorsements |
//! | shares, shared-key, one controller | an update | the same: it bears the signature, and waits for nothing here |
//!
//! A batch counts once. Bounded: when more are under way, the oldest is not counted.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use weir_model::Version;
use weir_model::signed::BatchHeader;

/// Batches remembered, at most: those that wait, and those that were counted, which may come once more.
const BATCHES_MAX: usize = 1_024;

type Name = (Version, [u8; 32]);

/// See the module.
#[derive(Debug, Default)]
pub struct Quorum {
    /// Since when a batch waits; nothing when it was counted.
    begun: HashMap<Name, Option<Instant>>,
    order: VecDeque<Name>,
}

impl Quorum {
    /// An update of a batch came without a signature.
    pub fn began(&mut self, header: &BatchHeader, now: Instant) {
        self.remember(header, Some(now));
    }

    /// Updates of a batch go to the switch with what proves them; how long the first one waited, when it is the first time.
    pub fn whole(&mut self, header: &BatchHeader, now: Instant) -> Option<Duration> {
        match self.begun.get_mut(&(header.index, header.root)) {
            Some(begun) => Some(now.saturating_duration_since(begun.take()?)),
            None => {
                self.remember(header, None);
                Some(Duration::ZERO)
            }
        }
    }

    fn remember(&mut self, header: &BatchHeader, begun: Option<Instant>) {
        let name = (header.index, header.root);
        if self.begun.contains_key(&name) {
            return;
        }
        if self.order.len() >= BATCHES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.begun.remove(&oldest);
        }
        self.order.push_back(name);
        self.begun.insert(name, begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Label;

    fn header(index: u64) -> BatchHeader {
        let domain = Label::new("d").unwrap();
        BatchHeader { domain, epoch: 1, index: Version(index), count: 1, root: [index as u8; 32] }
    }

    #[test]
    fn a_batch_waits_from_its_first_update_to_its_proof_and_counts_once() {
        let (mut quorum, begin) = (Quorum::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        quorum.began(&header(1), at(0));
        quorum.began(&header(1), at(2));
        assert_eq!(quorum.whole(&header(1), at(5)), Some(Duration::from_millis(5)));
        assert_eq!(quorum.whole(&header(1), at(9)), None, "the group's signature comes later");
        quorum.began(&header(1), at(10));
        assert_eq!(quorum.whole(&header(1), at(11)), None);
        assert_eq!(quorum.whole(&header(2), at(5)), Some(Duration::ZERO), "it came with its signature");
        assert_eq!(quorum.whole(&header(2), at(6)), None);
        for index in 3..3 + 2 * BATCHES_MAX as u64 {
            quorum.began(&header(index), at(0));
        }
        assert_eq!((quorum.begun.len(), quorum.order.len()), (BATCHES_MAX, BATCHES_MAX));
    }
}
