//! How often the loop looks: at its ordinary period while all is calm, ten times as often while there are signs of trouble.
//!
//! A step machine. Signs are a burst of forks while a policy is near its limit, memory that will be used up soon at its present slope,
//! a repair that is under way, and the loop's own lateness, which says that others hold the processor. A burst alone is no sign: each
//! build is one, and quick looks at it would cost more than all others together. A sign may last without being a fault (a machine
//! that is always busy), so quick looks have an allowance: [`QUICK_NS_MAX`] in a row, then [`REST_NS`] at the ordinary pace.
//! A repair under way is no such sign, because it ends by itself.

/// So many forks within [`FORKS_WINDOW_NS`] are a burst.
pub const BURST_FORKS: u64 = 8;
/// The window of a burst, ns.
pub const FORKS_WINDOW_NS: u64 = 10_000_000;
/// A policy is near its limit when it has counted one in so many of what it allows: a bomb that doubles has two doublings to go.
pub const NEAR: u64 = 4;
/// Memory that will be short this soon is a sign, ns.
pub const SOON_NS: u64 = 200_000_000;
/// A step that begins so late is a sign, ns.
pub const LATE_NS: u64 = 2_000_000;
/// Looks stay quick for so long after the last sign, ns.
pub const CALM_NS: u64 = 100_000_000;
/// Longest time of quick looks in a row, ns.
pub const QUICK_NS_MAX: u64 = 2_000_000_000;
/// Then the ordinary pace holds for so long, ns.
pub const REST_NS: u64 = 2_000_000_000;

/// What a step saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Processes forked since the start.
    pub forks: u64,
    /// Whether a policy on forks is near its limit ([`NEAR`]).
    pub near: bool,
    /// When memory will be short at its present slope, ns from now; nothing while it does not grow towards a limit.
    pub memory_short_in_ns: Option<u64>,
    /// How much too late the step began, ns.
    pub late_ns: u64,
    /// Whether what was killed is not gone yet.
    pub repairing: bool,
}

/// The pace.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    period_ns: u64,
    quick_ns: u64,
    window_ns: u64,
    window_forks: u64,
    /// Looks are quick until then.
    quick_until_ns: u64,
    /// Since when they are, without a break.
    quick_since_ns: Option<u64>,
    rest_until_ns: u64,
}

impl Pace {
    /// A pace of `period_ns`, and of `quick_ns` in trouble if that is shorter.
    pub fn new(period_ns: u64, quick_ns: u64) -> Pace {
        Pace {
            period_ns,
            quick_ns: quick_ns.min(period_ns),
            window_ns: 0,
            window_forks: 0,
            quick_until_ns: 0,
            quick_since_ns: None,
            rest_until_ns: 0,
        }
    }

    /// Takes what a step saw; says how long the next one is away, ns.
    pub fn look(&mut self, now_ns: u64, signs: Signs) -> u64 {
        if now_ns < self.rest_until_ns && !signs.repairing {
            self.burst(now_ns, signs.forks);
            return self.period_ns;
        }
        let trouble = (self.burst(now_ns, signs.forks) & signs.near)
            | signs.memory_short_in_ns.is_some_and(|short_in_ns| short_in_ns < SOON_NS)
            | (signs.late_ns >= LATE_NS)
            | signs.repairing;
        if trouble {
            self.quick_until_ns = now_ns.saturating_add(CALM_NS);
        }
        if now_ns >= self.quick_until_ns {
            self.quick_since_ns = None;
            return self.period_ns;
        }
        let since_ns = *self.quick_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) >= QUICK_NS_MAX && !signs.repairing {
            self.quick_since_ns = None;
            self.quick_until_ns = 0;
            self.rest_until_ns = now_ns.saturating_add(REST_NS);
            return self.period_ns;
        }
        self.quick_ns
    }

    /// Whether looks are quick now.
    pub fn is_quick(&self) -> bool {
        self.quick_since_ns.is_some() && self.quick_ns < self.period_ns
    }

    /// Whether the forks since the window began are a burst. A window is at least as long as [`FORKS_WINDOW_NS`], and a longer one
    /// allows as many more.
    fn burst(&mut self, now_ns: u64, forks: u64) -> bool {
        let (took_ns, found) =
            (now_ns.saturating_sub(self.window_ns), forks.saturating_sub(self.window_forks));
        let allowed = BURST_FORKS.saturating_mul(took_ns / FORKS_WINDOW_NS).max(BURST_FORKS);
        if took_ns >= FORKS_WINDOW_NS {
            (self.window_ns, self.window_forks) = (now_ns, forks);
        }
        found >= allowed
    }
}

#[cfg(test)]
mod tests;
