//! Where the time of a change goes at this controller: the rows of RoSCo's Table 2.3 (row R10), counted all the time.
//!
//! | step | from | to |
//! |---|---|---|
//! | `order` | an event is proposed here | the order has it and it is decided here |
//! | `decide` | the core takes a batch of the order | its updates are planned |
//! | `sign` | a batch is decided here, and this controller sends it | the group's signature over it is here |
//! | `ack` | a frame of updates is sent | the ack of its last one is here |
//!
//! Each step keeps a bounded number of beginnings; what finds no room, or never ends, is not counted.

use crate::core::BatchName;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use weir_model::event::SourceId;
use weir_model::{Label, Version};

/// Most beginnings of a step that are kept.
const BEGUN_MAX: usize = 4_096;
/// A beginning that is older has no end any more, ns.
const OLD_NS: u64 = 60_000_000_000;

/// Source and number of an event.
pub(super) type EventName = (SourceId, u64);

/// Upper ends of the histogram's parts but the last, seconds.
pub(super) const BOUNDS_S: [f64; 9] = [0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0];

/// How often a step took how long: not more than each bound, and not at most the one before; the last is of those above all.
type Counts = [u64; BOUNDS_S.len() + 1];

/// How often a step was made, and how long that took.
#[derive(Debug, Default)]
pub(super) struct Spent {
    counts: [AtomicU64; BOUNDS_S.len() + 1],
    total_ns: AtomicU64,
}

impl Spent {
    /// One more that took so long, nanoseconds.
    pub fn took(&self, ns: u64) {
        let part = BOUNDS_S.partition_point(|bound| *bound < ns as f64 / 1e9);
        self.counts[part].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// A step that begins and ends at different places.
#[derive(Debug)]
struct Step<K> {
    begun: Mutex<HashMap<K, u64>>,
    spent: Spent,
}

impl<K> Default for Step<K> {
    fn default() -> Step<K> {
        Step { begun: Mutex::new(HashMap::new()), spent: Spent::default() }
    }
}

impl<K: Eq + Hash> Step<K> {
    fn begin(&self, key: K, now_ns: u64) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.len() >= BEGUN_MAX {
            begun.retain(|_, since_ns| now_ns.saturating_sub(*since_ns) < OLD_NS);
        }
        // The first time counts: what is said again waits from there on.
        if begun.len() < BEGUN_MAX {
            begun.entry(key).or_insert(now_ns);
        }
    }

    fn end(&self, key: &K, now_ns: u64) {
        let since_ns = self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        if let Some(since_ns) = since_ns {
            self.spent.took(now_ns.saturating_sub(since_ns));
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Steps {
    order: Step<EventName>,
    /// Batches of the order that were decided.
    pub decide: Spent,
    sign: Step<BatchName>,
    ack: Step<(Label, Version)>,
}

impl Steps {
    /// An event is proposed.
    pub fn proposed(&self, event: EventName, now_ns: u64) {
        self.order.begin(event, now_ns);
    }

    /// An event was decided.
    pub fn decided(&self, event: &EventName, now_ns: u64) {
        self.order.end(event, now_ns);
    }

    /// A batch waits for the group's signature.
    pub fn unsigned(&self, batch: BatchName, now_ns: u64) {
        self.sign.begin(batch, now_ns);
    }

    /// It has it.
    pub fn signed(&self, batch: &BatchName, now_ns: u64) {
        self.sign.end(batch, now_ns);
    }

    /// Updates were sent, the last one of this version.
    pub fn sent(&self, target: &Label, last: Option<Version>, now_ns: u64) {
        if let Some(version) = last {
            self.ack.begin((target.clone(), version), now_ns);
        }
    }

    /// An update was acked.
    pub fn acked(&self, target: &Label, version: Version, now_ns: u64) {
        self.ack.end(&(target.clone(), version), now_ns);
    }

    /// Name of each step, how often it took how long, and the time of all together, nanoseconds.
    pub fn read(&self) -> [(&'static str, Counts, u64); 4] {
        let read = |name, spent: &Spent| {
            let counts = std::array::from_fn(|part| spent.counts[part].load(Ordering::Relaxed));
            (name, counts, spent.total_ns.load(Ordering::Relaxed))
        };
        [
            read("order", &self.order.spent),
            read("decide", &self.decide),
            read("sign", &self.sign.spent),
            read("ack", &self.ack.spent),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counts_from_its_first_beginning_to_its_end_and_forgets_what_never_ends() {
        let steps = Steps::default();
        let target = Label::new("h1").unwrap();
        steps.sent(&target, Some(Version(1)), 1_000);
        steps.sent(&target, Some(Version(1)), 5_000);
        steps.sent(&target, None, 5_000);
        steps.acked(&target, Version(1), 9_000);
        steps.acked(&target, Version(1), 20_000);
        steps.decide.took(3_000);
        let read = |step: usize| {
            let (name, counts, total_ns) = steps.read()[step];
            (name, counts.iter().sum::<u64>(), total_ns)
        };
        assert_eq!(read(1), ("decide", 1, 3_000));
        assert_eq!(read(3), ("ack", 1, 8_000));
        for version in 0..2 * BEGUN_MAX as u64 {
            steps.sent(&target, Some(Version(version)), 10_000);
        }
        assert_eq!(steps.ack.begun.lock().unwrap().len(), BEGUN_MAX);
        steps.sent(&target, Some(Version(u64::MAX)), OLD_NS + 10_000);
        steps.acked(&target, Version(u64::MAX), OLD_NS + 11_000);
        assert_eq!(read(3), ("ack", 2, 9_000));
        for ns in [100_000, 100_001, 20_000_000_000] {
            steps.decide.took(ns);
        }
        assert_eq!(steps.read()[1].1, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
