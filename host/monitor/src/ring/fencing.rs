//! How many may be declared failed at once, and who fences.
//!
//! A ring promises to find k failures at once. More than that is the network's doing far more often than theirs, and then a fence does
//! harm; so more than k that look failed at the same time are declared by nobody until there are fewer, nor is ever a majority of the ring
//! taken for failed.
//!
//! A failure is fenced once: by the nearest living host before it. The next one does it when that one says that it cannot, or says nothing
//! for [`TURN_PERIODS`].
//!
//! Pure: times come in.

use super::Host;
use std::collections::{BTreeMap, BTreeSet};

/// Failures within so many periods are at once.
const AT_ONCE_PERIODS: u64 = 25;
/// So many periods each host before the failed one has for fencing it: seconds, as a power switch takes.
const TURN_PERIODS: u64 = 500;

/// A host that was declared failed and is not fenced yet.
#[derive(Clone, Debug, Default)]
struct Open {
    since_ns: u64,
    /// Who said that it cannot.
    passed: BTreeSet<Host>,
    /// Whether this host has been told to.
    asked: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Fencing {
    period_ns: u64,
    open: BTreeMap<Host, Open>,
    /// When hosts were declared failed that still are.
    declared: BTreeMap<Host, u64>,
}

impl Fencing {
    /// Nobody failed yet.
    pub fn new(period_ns: u64) -> Fencing {
        Fencing { period_ns: period_ns.max(1), open: BTreeMap::new(), declared: BTreeMap::new() }
    }

    /// Whether one more may be declared failed, of `hosts` in all, where `down` look failed now and are not declared.
    pub fn may_declare(&self, now_ns: u64, hosts: usize, k: usize, down: usize) -> bool {
        let at_once = self.period_ns.saturating_mul(AT_ONCE_PERIODS);
        let of_late = self.declared.values().filter(|when| now_ns.saturating_sub(**when) < at_once).count();
        of_late + down <= k.max(1) && (self.declared.len() + down) * 2 < hosts
    }

    /// It is declared failed.
    pub fn declared(&mut self, now_ns: u64, host: Host) {
        self.declared.insert(host, now_ns);
        self.open.insert(host, Open { since_ns: now_ns, ..Open::default() });
    }

    /// It is back.
    pub fn recovered(&mut self, host: Host) {
        self.declared.remove(&host);
        self.open.remove(&host);
    }

    /// A host has fenced another, or cannot.
    pub fn heard(&mut self, from: Host, about: Host, done: bool) {
        if done {
            self.open.remove(&about);
        } else if let Some(open) = self.open.get_mut(&about) {
            open.passed.insert(from);
        }
    }

    /// Whom `own` has to fence now: told once for each. `before` are the living hosts before one, the nearest first.
    pub fn turns(&mut self, now_ns: u64, own: Host, before: impl Fn(Host) -> Vec<Host>) -> Vec<Host> {
        let turn = self.period_ns.saturating_mul(TURN_PERIODS);
        let is_turn = |(about, open): (&Host, &mut Open)| {
            let order = before(*about);
            let place =
                order.iter().filter(|host| !open.passed.contains(host)).position(|host| *host == own)?;
            let waits = turn.saturating_mul(place as u64);
            let due = !open.asked && now_ns.saturating_sub(open.since_ns) >= waits;
            open.asked |= due;
            due.then_some(*about)
        };
        self.open.iter_mut().filter_map(is_turn).collect()
    }
}
