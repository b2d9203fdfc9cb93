//! What a server may still do: calls that it was given and has not answered.
//!
//! A change that a replica leaves unanswered has one of three fates: it was carried out, it never will be, or it will be, later. A
//! comparison mends the first two. The third makes a replica differ that was compared and called live, and nobody sees it.
//!
//! What is known. The connection of an unanswered call is closed at once, and what FileWall sends later goes over other ones. A server drops what it
//! has not read of a connection that ends (Linux and Ganesha look before they take a call from it), and its calls are gone when it begins
//! anew. What it has read and is carrying out goes on: for as long as a disk, a lock or a scheduler holds it up.
//!
//! What cannot be known. In a system without bounds on time no number of equal comparisons says that a call is not carried out after the last one.
//! So there is a bound, by assumption: a server does not carry out a call later than [`SILENT_TIMES`] times the time in which it must
//! answer, counted from when it was given up; [`CLOSED`] where the server has closed the connection itself, for then it goes on with nothing
//! that it has not begun. A server that breaks the bound is found by the next change that it does otherwise than the others, no sooner; an
//! operator who knows of one that was stopped for longer (a machine that was suspended, a disk that hung for minutes) restarts
//! it, or takes it out of the policy and names it anew.
//!
//! Rules
//! - A replica that has left a change unanswered is compared at once, so that little is left to be done, and stays behind; where the
//!   bound is over in [`CLOSED`] at the latest, that is waited for, and one comparison is enough.
//! - It becomes live by a comparison that begins when the bound is over, for it and for the one that it is compared with: that one
//!   may be the last live one, and have left changes unanswered itself.
//! - What that comparison finds different, though nobody has changed it since the one before, was carried out late: the
//!   bound begins anew.
//! - A call that was never sent (no connection was made) leaves no doubt.
//! - What was unanswered when FileWall ended is so when it begins: it was killed in the middle of changes, or replicas were behind.

use std::io::{Error, ErrorKind};
use std::time::{Duration, Instant};

/// How often the time for an answer goes into the bound.
pub const SILENT_TIMES: u32 = 2;
/// The bound where the server has closed the connection.
pub const CLOSED: Duration = Duration::from_secs(1);

/// What is in doubt of one server.
#[derive(Debug)]
pub struct Doubt {
    silent: Duration,
    until: Option<Instant>,
    compared: bool,
    unanswered: u64,
    late: u64,
}

impl Doubt {
    /// Of a server that must answer within `timeout`.
    pub fn new(timeout: Duration) -> Doubt {
        Doubt {
            silent: timeout.saturating_mul(SILENT_TIMES),
            until: None,
            compared: false,
            unanswered: 0,
            late: 0,
        }
    }

    fn begins(&mut self, now: Instant, bound: Duration) {
        let until = now + bound;
        self.until = Some(self.until.map_or(until, |known| known.max(until)));
        self.compared = false;
    }

    /// A call was sent, and given up now for `error`.
    pub fn unanswered(&mut self, now: Instant, error: &Error) {
        self.unanswered += 1;
        let closed = matches!(
            error.kind(),
            ErrorKind::UnexpectedEof
                | ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
        );
        self.begins(now, if closed { CLOSED.min(self.silent) } else { self.silent });
    }

    /// Nobody knows what it was given before.
    pub fn unknown(&mut self, now: Instant) {
        self.begins(now, self.silent);
    }

    /// A whole comparison that began at `begun` has made it the same, and found `late` things that nobody has changed since the one
    /// before. True if it may be live now.
    pub fn compared(&mut self, begun: Instant, now: Instant, late: usize) -> bool {
        let before = std::mem::replace(&mut self.compared, true);
        let Some(until) = self.until else { return true };
        if before && late > 0 {
            self.late += late as u64;
            self.until = Some(now + self.silent);
            return false;
        }
        begun >= until
    }

    /// How long it is in doubt still.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// True if it was compared since the doubt began: before that is over nothing more can be done.
    pub fn is_compared(&self) -> bool {
        self.compared
    }

    /// It is live: what was in doubt is so no more.
    pub fn is_over(&mut self) {
        (self.until, self.compared) = (None, false);
    }

    /// Calls that were given up, and things that were found to have been done late.
    pub fn counts(&self) -> (u64, u64) {
        (self.unanswered, self.late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: Duration = Duration::from_secs(5);
    const BOUND: Duration = Duration::from_secs(10);

    fn silent() -> Error {
        ErrorKind::TimedOut.into()
    }

    #[test]
    fn without_doubt_one_comparison_is_enough() {
        let now = Instant::now();
        let mut doubt = Doubt::new(ANSWER);
        assert!(doubt.left(now).is_none());
        assert!(doubt.compared(now, now, 7), "what it has missed is not late");
    }

    #[test]
    fn only_a_comparison_that_begins_behind_the_bound_ends_it() {
        let begin = Instant::now();
        let mut doubt = Doubt::new(ANSWER);
        doubt.unanswered(begin, &silent());
        assert_eq!(doubt.left(begin), Some(BOUND));
        assert!(!doubt.compared(begin, begin + BOUND, 3), "it began before");
        assert!(doubt.is_compared());
        // Another call is given up meanwhile, and one that the server has hung up on does not make it shorter.
        doubt.unanswered(begin + ANSWER, &silent());
        doubt.unanswered(begin + ANSWER, &ErrorKind::UnexpectedEof.into());
        assert!(!doubt.is_compared());
        assert!(!doubt.compared(begin + BOUND, begin + BOUND, 0));
        assert!(doubt.compared(begin + ANSWER + BOUND, begin + ANSWER + BOUND, 0));
        doubt.is_over();
        assert!(doubt.left(begin).is_none() && !doubt.is_compared());
        assert_eq!(doubt.counts(), (3, 0));
    }

    #[test]
    fn what_was_done_late_begins_it_anew() {
        let begin = Instant::now();
        let mut doubt = Doubt::new(ANSWER);
        doubt.unanswered(begin, &silent());
        let mut at = begin;
        doubt.compared(at, at, 9);
        for round in 1..5 {
            at += BOUND;
            assert!(!doubt.compared(at, at, 1), "round {round}");
            assert_eq!(doubt.left(at), Some(BOUND));
        }
        at += BOUND;
        assert!(doubt.compared(at, at, 0));
        assert_eq!(doubt.counts(), (1, 4));
    }

    #[test]
    fn a_server_that_hangs_up_goes_on_with_little() {
        let begin = Instant::now();
        let mut doubt = Doubt::new(ANSWER);
        doubt.unanswered(begin, &ErrorKind::ConnectionReset.into());
        assert_eq!(doubt.left(begin), Some(CLOSED));
        doubt.unknown(begin);
        assert_eq!(doubt.left(begin), Some(BOUND));
    }

    /// A server carries calls out at any time within the bound, comparisons come at any time: once it is live nothing is carried out.
    #[test]
    fn nothing_is_carried_out_when_it_is_live() {
        let begin = Instant::now();
        let ms = Duration::from_millis;
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % limit
        };
        for _ in 0..2000 {
            let mut doubt = Doubt::new(ANSWER);
            let mut executed: Vec<(u64, bool)> = Vec::new();
            let mut now = 0;
            for _ in 0..1 + below(4) {
                now += below(3000);
                doubt.unanswered(begin + ms(now), &silent());
                executed.push((now + below(10_000), false));
            }
            let live = loop {
                let begun = now;
                now += 1 + below(2000);
                // Whatever was carried out before its name was looked at is found.
                let looked = begun + below(now - begun);
                let late = executed.iter_mut().filter(|(at, seen)| *at <= looked && !*seen);
                let late = late.map(|(_, seen)| *seen = true).count();
                if doubt.compared(begin + ms(begun), begin + ms(now), late) {
                    break looked;
                }
            };
            assert!(executed.iter().all(|(at, seen)| *seen && *at <= live), "{executed:?} {live}");
        }
    }
}
