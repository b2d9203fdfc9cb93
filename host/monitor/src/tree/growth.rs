//! How much a scope has grown: by how many processes more than the fewest of a long window.
//!
//! A bomb that forks twice a second, each child of which stays, passes no limit of a window of milliseconds. What it cannot hide is that
//! more and more processes live. A service that replaces its processes as fast does not grow.

/// Parts of a window.
const PARTS: u64 = 32;

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Counted from 1, so that an empty part is of no time.
    number: u64,
    fewest: u64,
}

/// The fewest processes of each part of the window.
#[derive(Clone, Debug)]
pub struct Growth {
    part_ns: u64,
    /// One part more than the window, because the newest is not full.
    parts: [Part; PARTS as usize + 1],
}

impl Growth {
    /// Over the last `window_ns`.
    pub fn new(window_ns: u64) -> Growth {
        Growth { part_ns: (window_ns / PARTS).max(1), parts: [Part::default(); PARTS as usize + 1] }
    }

    /// Takes how many live now.
    pub fn sample(&mut self, now_ns: u64, living: u64) {
        let number = now_ns / self.part_ns + 1;
        let slot = (number % self.parts.len() as u64) as usize;
        let part = &mut self.parts[slot];
        if part.number == number {
            part.fewest = part.fewest.min(living);
        } else {
            *part = Part { number, fewest: living };
        }
    }

    /// By how many processes `living` are more than the fewest of the window; nothing is known before the first sample.
    pub fn found(&self, now_ns: u64, living: u64) -> u64 {
        let newest = now_ns / self.part_ns + 1;
        let inside = |part: &&Part| part.number > 0 && part.number <= newest && part.number + PARTS >= newest;
        let fewest = self.parts.iter().filter(inside).map(|part| part.fewest).min();
        fewest.map_or(0, |fewest| living.saturating_sub(fewest))
    }

    /// What has grown up to now was dealt with: it counts from here on.
    pub fn forgive(&mut self, now_ns: u64, living: u64) {
        self.parts = [Part::default(); PARTS as usize + 1];
        self.sample(now_ns, living);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// Lets a scope live `seconds`, of which each begins with so many processes; gives the second in which it had grown by `limit`.
    fn noticed(window_s: u64, limit: u64, seconds: u64, living: impl Fn(u64) -> u64) -> Option<u64> {
        let mut growth = Growth::new(window_s * S);
        (0..seconds).find(|second| {
            let (now, living) = ((second + 1000) * S, living(*second));
            growth.sample(now, living);
            growth.found(now, living) >= limit
        })
    }

    #[test]
    fn two_forks_a_second_that_stay_are_noticed_within_the_window() {
        assert_eq!(noticed(600, 500, 3600, |second| 300 + 2 * second), Some(250));
        // One in two seconds, too, and one that is slower than the window allows is not.
        assert_eq!(noticed(600, 250, 3600, |second| 300 + second / 2), Some(500));
        assert_eq!(noticed(600, 500, 36_000, |second| 300 + second / 2), None);
    }

    #[test]
    fn what_does_not_grow_is_not_noticed() {
        assert_eq!(noticed(600, 20, 36_000, |second| 300 + second % 20), None);
        assert_eq!(noticed(600, 20, 36_000, |second| 40_000 - second), None);
    }

    #[test]
    fn what_falls_and_comes_back_counts_from_the_fewest() {
        // A service that restarts with as many as before has grown from its fewest: a limit allows for that.
        let restart = |second: u64| if (100..110).contains(&second) { 10 } else { 110 };
        assert_eq!(noticed(600, 101, 3600, restart), None);
        assert_eq!(noticed(600, 100, 3600, restart), Some(110));
    }

    #[test]
    fn what_was_dealt_with_counts_no_more() {
        let mut growth = Growth::new(600 * S);
        growth.sample(S, 10);
        assert_eq!(growth.found(2 * S, 110), 100);
        growth.forgive(2 * S, 110);
        assert_eq!(growth.found(3 * S, 115), 5);
        assert_eq!(growth.found(u64::MAX, 115), 0, "it is long ago");
        assert_eq!(Growth::new(0).found(5, 5), 0);
    }
}
