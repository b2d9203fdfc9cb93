//! How many answers of a kind are given.

/// ICMP errors that one port, one network from the underlay, or the outside is sent a second.
pub const ICMP_ERRORS_PER_S: u32 = 200;

/// A budget of answers: so many at once, and so many a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    spent: u32,
    since_ms: u64,
}

impl Bucket {
    /// Whether there is one more answer in it.
    pub fn has(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) >= 1000 || self.spent < ICMP_ERRORS_PER_S
    }

    /// Takes one answer out.
    pub fn take(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.since_ms) >= 1000 {
            (self.spent, self.since_ms) = (0, now_ms);
        }
        self.spent += 1;
    }
}
