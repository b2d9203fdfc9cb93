//! What others' clocks say, so that nothing of theirs can be sent again later.
//!
//! Each packet bears its sender's clock. How far that is from our own the answer to a probe shows, which bears a number that was never used
//! before. What a host says of its own accord is taken only near to what its clock must be now, and only once: a copy of it is of no use
//! after some periods, and a host that began anew with a younger clock is understood as soon as it has answered. One whose clock is not
//! known, or is another than was thought, is probed.
//!
//! Pure: times come in.

use crate::ring::Host;
use std::collections::BTreeMap;

/// A clock of a host.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// Its time less ours.
    ahead_ns: i128,
}

/// See the module.
#[derive(Debug)]
pub struct Clocks {
    /// So far a packet's time may be from what it must be.
    window_ns: u64,
    clocks: BTreeMap<Host, Clock>,
    /// Newest time of each host and matter that was taken.
    taken: BTreeMap<(Host, Host), u64>,
    /// When each was last asked because of its clock.
    asked: BTreeMap<Host, u64>,
}

impl Clocks {
    /// No clock is known.
    pub fn new(window_ns: u64) -> Clocks {
        Clocks { window_ns, clocks: BTreeMap::new(), taken: BTreeMap::new(), asked: BTreeMap::new() }
    }

    /// A host answered a probe that was sent at `sent_ns`, with its time.
    pub fn answered(&mut self, now_ns: u64, sent_ns: u64, host: Host, time_ns: u64) {
        if now_ns.saturating_sub(sent_ns) > self.window_ns {
            // It waited somewhere: what its clock is now it does not show.
            return;
        }
        let clock = Clock { ahead_ns: i128::from(time_ns) - i128::from(now_ns) };
        let before = self.clocks.insert(host, clock);
        let is_other =
            |before: Clock| (clock.ahead_ns - before.ahead_ns).unsigned_abs() > u128::from(self.window_ns);
        if before.is_some_and(is_other) {
            // It began anew.
            self.taken.retain(|(from, _), _| *from != host);
        }
    }

    /// Whether what a host says of its own accord, about a matter, was said just now and for the first time.
    pub fn is_new(&mut self, now_ns: u64, from: Host, about: Host, time_ns: u64) -> bool {
        let Some(clock) = self.clocks.get(&from) else { return false };
        let expected = i128::from(now_ns) + clock.ahead_ns;
        if (i128::from(time_ns) - expected).unsigned_abs() > u128::from(self.window_ns) {
            return false;
        }
        let newest = self.taken.entry((from, about)).or_insert(0);
        let is_new = time_ns > *newest;
        *newest = time_ns.max(*newest);
        is_new
    }

    /// Whether a host is to be asked for its clock: once a window.
    pub fn asks(&mut self, now_ns: u64, host: Host) -> bool {
        let due = self.asked.get(&host).is_none_or(|last| now_ns.saturating_sub(*last) >= self.window_ns);
        if due {
            self.asked.insert(host, now_ns);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 200;

    #[test]
    fn what_is_said_counts_once_and_near_its_time() {
        let mut clocks = Clocks::new(WINDOW);
        assert!(!clocks.is_new(1000, 1, 2, 70_000), "its clock is not known");
        clocks.answered(1000, 990, 1, 70_000);
        assert!(clocks.is_new(1010, 1, 2, 70_010));
        assert!(!clocks.is_new(1020, 1, 2, 70_010), "it is a copy");
        assert!(!clocks.is_new(1020, 1, 2, 70_009), "it is older than what came");
        assert!(clocks.is_new(1020, 1, 3, 70_010), "that is another matter");
        assert!(!clocks.is_new(1400, 1, 2, 70_020), "it was said long ago");
        assert!(!clocks.is_new(1400, 1, 2, 90_000), "that is a time that is still to come");
    }

    #[test]
    fn a_host_that_begins_anew_with_a_young_clock_is_understood_and_its_old_words_are_not() {
        let mut clocks = Clocks::new(WINDOW);
        clocks.answered(1000, 990, 1, 70_000);
        assert!(clocks.is_new(1100, 1, 2, 70_100));
        assert!(!clocks.is_new(2000, 1, 2, 60), "until it has answered it may be anybody's copy");
        assert!(clocks.asks(2000, 1) && !clocks.asks(2100, 1) && clocks.asks(2200, 1));
        clocks.answered(2010, 2005, 1, 70);
        assert!(clocks.is_new(2020, 1, 2, 80));
        assert!(!clocks.is_new(2020, 1, 2, 70_101), "its life before is over");
    }

    #[test]
    fn an_answer_that_waited_says_nothing_of_a_clock() {
        let mut clocks = Clocks::new(WINDOW);
        clocks.answered(1000, 990, 1, 70_000);
        clocks.answered(5000, 1010, 1, 70_020);
        assert!(clocks.is_new(5000, 1, 2, 74_000));
    }
}
