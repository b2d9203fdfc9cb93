//! Time: monotonic for timers, wall time for people.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Nanoseconds since a fixed but unnamed moment; never goes back.
    fn now_ns(&self) -> u64;
    /// Milliseconds since 1970 in UTC; may jump. For people only, never for a protocol decision.
    fn wall_ms(&self) -> u64;
}

/// The machine's clocks.
#[derive(Debug, Clone)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock whose `now_ns` starts at 0 now.
    pub fn new() -> RealClock {
        RealClock { start: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that moves only when told to. Clones share one time.
#[derive(Debug, Clone, Default)]
pub struct SimClock {
    now_ns: Arc<AtomicU64>,
    wall_start_ms: u64,
}

impl SimClock {
    /// A clock at 0 ns whose wall time starts at `wall_start_ms`.
    pub fn new(wall_start_ms: u64) -> SimClock {
        SimClock { now_ns: Arc::default(), wall_start_ms }
    }

    /// Moves the time on by `ns`, stopping at the largest representable time.
    pub fn advance_ns(&self, ns: u64) {
        let add = |now: u64| Some(now.saturating_add(ns));
        // The closure always returns Some, so both outcomes carry the time before.
        let (Ok(_) | Err(_)) = self.now_ns.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn wall_ms(&self) -> u64 {
        self.wall_start_ms.saturating_add(self.now_ns() / 1_000_000)
    }
}
