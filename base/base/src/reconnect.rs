//! When to try again to reach a peer: pauses that double up to a limit, with jitter, counted and told.
//!
//! Every loop that connects, and connects again, asks one [`Reconnect`] for each peer. So a peer that refuses costs next to nothing, many
//! peers do not come back in step, a log has a line at the first failure and one a minute after it, and a status can say why and since when
//! a peer is not reached.
//!
//! A step machine: time comes in as milliseconds of a clock that does not go back.

use crate::world::{Rng, random_u64};
use std::collections::BTreeMap;

/// At most one line of a log in so long about one peer.
pub const TELL_MS: u64 = 60_000;
/// Characters of a problem that are kept.
const PROBLEM_CHARS_MAX: usize = 300;

/// The pauses between tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// After the first failure.
    pub min_ms: u64,
    /// At most.
    pub max_ms: u64,
}

/// What a log is to say of a peer that is not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Tries that failed since it was reached last.
    pub failures: u64,
    /// Time until the next try, milliseconds.
    pub pause_ms: u64,
    /// Why the last failed.
    pub problem: String,
}

/// One peer. See the module.
#[derive(Clone, Debug)]
pub struct Reconnect {
    pauses: Pauses,
    rng: Rng,
    failures: u64,
    failures_total: u64,
    since_ms: u64,
    next_ms: u64,
    told_ms: Option<u64>,
    problem: String,
}

impl Reconnect {
    /// A peer that was not tried yet.
    pub fn new(pauses: Pauses) -> Reconnect {
        Reconnect::seeded(pauses, random_u64())
    }

    /// The same, with jitter from a seed.
    pub fn seeded(pauses: Pauses, seed: u64) -> Reconnect {
        Reconnect {
            pauses,
            rng: Rng::new(seed),
            failures: 0,
            failures_total: 0,
            since_ms: 0,
            next_ms: 0,
            told_ms: None,
            problem: String::new(),
        }
    }

    /// How long to wait before the next try; 0: it may be made now.
    pub fn wait_ms(&self, now_ms: u64) -> u64 {
        if self.failures == 0 { 0 } else { self.next_ms.saturating_sub(now_ms) }
    }

    /// A try failed. Gives what a log is to say, when it is time to say it.
    pub fn failed(&mut self, now_ms: u64, problem: impl Into<String>) -> Option<Line> {
        if self.failures == 0 {
            self.since_ms = now_ms;
        }
        let doublings = self.failures.min(32) as u32;
        self.failures += 1;
        self.failures_total += 1;
        let whole_ms =
            self.pauses.min_ms.max(1).saturating_mul(1 << doublings).min(self.pauses.max_ms.max(1));
        // Half of it at least, so that it is a pause; the rest keeps peers from trying in step.
        let pause_ms = whole_ms / 2 + self.rng.below(whole_ms / 2 + 1);
        self.next_ms = now_ms.saturating_add(pause_ms.max(1));
        self.problem = problem.into();
        if let Some((at, _)) = self.problem.char_indices().nth(PROBLEM_CHARS_MAX) {
            self.problem.truncate(at);
        }
        let tells = self.told_ms.is_none_or(|told_ms| now_ms.saturating_sub(told_ms) >= TELL_MS);
        tells.then(|| {
            self.told_ms = Some(now_ms);
            Line { failures: self.failures, pause_ms, problem: self.problem.clone() }
        })
    }

    /// It was reached. Gives after how many failures, when there were some that were told.
    pub fn reached(&mut self) -> Option<u64> {
        let told = self.told_ms.is_some() && self.failures > 0;
        let failures = std::mem::take(&mut self.failures);
        // A peer that comes and goes is told once a minute too.
        told.then_some(failures)
    }

    /// Tries that failed, of all time.
    pub fn failures_total(&self) -> u64 {
        self.failures_total
    }

    /// Why and since when it is not reached; nothing when it was reached last, or not tried.
    pub fn status(&self, now_ms: u64) -> Option<String> {
        (self.failures > 0).then(|| {
            let seconds = now_ms.saturating_sub(self.since_ms) / 1_000;
            format!("not reached for {seconds} s, {} tries: {}", self.failures, self.problem)
        })
    }
}

/// Peers by name, at most so many: whoever was tried longest ago makes room.
#[derive(Debug)]
pub struct Reconnects<K> {
    pauses: Pauses,
    peers_max: usize,
    peers: BTreeMap<K, (Reconnect, u64)>,
    rng: Rng,
    failures_total: u64,
}

impl<K: Ord + Clone> Reconnects<K> {
    /// No peer yet.
    pub fn new(pauses: Pauses, peers_max: usize) -> Reconnects<K> {
        Reconnects::seeded(pauses, peers_max, random_u64())
    }

    /// The same, with jitter from a seed.
    pub fn seeded(pauses: Pauses, peers_max: usize, seed: u64) -> Reconnects<K> {
        let (peers_max, rng) = (peers_max.max(1), Rng::new(seed));
        Reconnects { pauses, peers_max, peers: BTreeMap::new(), rng, failures_total: 0 }
    }

    /// How long to wait before the next try of a peer.
    pub fn wait_ms(&self, peer: &K, now_ms: u64) -> u64 {
        self.peers.get(peer).map_or(0, |(known, _)| known.wait_ms(now_ms))
    }

    /// A try failed: see [`Reconnect::failed`].
    pub fn failed(&mut self, peer: &K, now_ms: u64, problem: impl Into<String>) -> Option<Line> {
        if !self.peers.contains_key(peer) && self.peers.len() >= self.peers_max {
            let oldest =
                self.peers.iter().min_by_key(|(_, (_, tried_ms))| *tried_ms).map(|(peer, _)| peer.clone());
            oldest.into_iter().for_each(|oldest| drop(self.peers.remove(&oldest)));
        }
        self.failures_total += 1;
        let (pauses, seed) = (self.pauses, self.rng.next_u64());
        let known =
            self.peers.entry(peer.clone()).or_insert_with(|| (Reconnect::seeded(pauses, seed), now_ms));
        known.1 = now_ms;
        known.0.failed(now_ms, problem)
    }

    /// It was reached: see [`Reconnect::reached`].
    pub fn reached(&mut self, peer: &K) -> Option<u64> {
        self.peers.get_mut(peer)?.0.reached()
    }

    /// It is a peer no more.
    pub fn retain(&mut self, is_peer: impl Fn(&K) -> bool) {
        self.peers.retain(|peer, _| is_peer(peer));
    }

    /// Tries that failed, of all peers and all time.
    pub fn failures_total(&self) -> u64 {
        self.failures_total
    }

    /// Those that are not reached, and why.
    pub fn unreached(&self, now_ms: u64) -> BTreeMap<K, String> {
        let status =
            |(peer, (known, _)): (&K, &(Reconnect, u64))| Some((peer.clone(), known.status(now_ms)?));
        self.peers.iter().filter_map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Pauses = Pauses { min_ms: 100, max_ms: 5_000 };

    #[test]
    fn a_peer_that_refuses_is_tried_less_and_less_and_told_of_once_a_minute() {
        let mut peer = Reconnect::seeded(PAUSES, 1);
        let (mut now_ms, mut tries, mut lines) = (0, 0, 0);
        while now_ms < 600_000 {
            assert_eq!(peer.wait_ms(now_ms), 0);
            tries += 1;
            lines += u64::from(peer.failed(now_ms, "connection refused").is_some());
            let pause_ms = peer.wait_ms(now_ms);
            assert!((50..=5_000).contains(&pause_ms), "{pause_ms}");
            now_ms += pause_ms;
        }
        assert!(tries < 300, "{tries} tries in ten minutes");
        assert!((9..=11).contains(&lines), "{lines} lines in ten minutes");
        assert_eq!(peer.failures_total(), tries);
        assert!(peer.status(now_ms).is_some_and(|text| text.ends_with("connection refused")));
    }

    #[test]
    fn a_peer_that_was_reached_begins_anew() {
        let mut peer = Reconnect::seeded(PAUSES, 1);
        (0..20).for_each(|_| drop(peer.failed(0, "x")));
        assert!(peer.wait_ms(0) > 2_000);
        assert_eq!((peer.reached(), peer.status(0)), (Some(20), None));
        assert_eq!(peer.wait_ms(0), 0);
        peer.failed(0, "x");
        assert!(peer.wait_ms(0) <= 100);
    }

    #[test]
    fn two_peers_do_not_come_back_in_step() {
        let waits = |seed| {
            let mut peer = Reconnect::seeded(PAUSES, seed);
            (0..16)
                .map(|_| {
                    peer.failed(0, "x");
                    peer.wait_ms(0)
                })
                .collect::<Vec<_>>()
        };
        assert_ne!(waits(1), waits(2));
        assert_eq!(waits(3), waits(3));
    }

    #[test]
    fn peers_and_problems_are_bounded() {
        let mut peers = Reconnects::new(PAUSES, 3);
        (0..100u64).for_each(|peer| drop(peers.failed(&peer, peer, "é".repeat(1_000))));
        let unreached = peers.unreached(200);
        assert_eq!(unreached.keys().copied().collect::<Vec<_>>(), [97, 98, 99]);
        assert!(unreached.values().all(|text| text.len() < 1_000));
        assert_eq!(peers.failures_total(), 100);
        assert_eq!((peers.wait_ms(&1, 200), peers.reached(&1)), (0, None));
    }
}
