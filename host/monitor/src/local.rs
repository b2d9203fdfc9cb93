//! The local context (Bohra, table 3.1): a thread of the target's own machine, which a target that is short of processor
//! time or memory cannot starve: pinned to a processor, of real-time priority, with its memory locked.
//!
//! Each of the three can be switched off, to see what it is worth (`weir bench monitor` does).

use crate::engine::Engine;
use crate::error::Result;
use crate::pace::Pace;
use crate::resident::{self, Faults};
use crate::sys;
use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_sensor::now_ns;

/// How the loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two steps, ns; at least [`PERIOD_NS_MIN`].
    pub period_ns: u64,
    /// Time between two steps while there are signs of trouble, ns ([`crate::pace`]).
    pub quick_period_ns: u64,
    /// The processor that it is pinned to.
    pub cpu: Option<usize>,
    /// Its real-time priority, 1 to 99.
    pub priority: Option<i32>,
    /// Whether memory is locked.
    pub lock_memory: bool,
}

/// Shortest period, ns.
pub const PERIOD_NS_MIN: u64 = 100_000;

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            period_ns: 10_000_000,
            quick_period_ns: 1_000_000,
            cpu: None,
            priority: Some(50),
            lock_memory: true,
        }
    }
}

/// Upper bounds of the classes of lateness, us; one more class is for what is later.
pub const LATE_BOUNDS_US: [u64; 12] =
    [50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

/// How punctual the loop is.
#[derive(Debug, Default)]
pub struct Punctuality {
    /// Longest time that a step began after it should have, ns.
    pub late_ns_max: AtomicU64,
    /// All lateness together, ns.
    pub late_ns: AtomicU64,
    /// Steps by their lateness: [`LATE_BOUNDS_US`].
    pub late: [AtomicU64; LATE_BOUNDS_US.len() + 1],
    /// Periods that were skipped because a step began or ended too late.
    pub skipped: AtomicU64,
    /// Steps after which the next was due at the quick pace.
    pub quick: AtomicU64,
    /// Page faults of the loop that took no reading from a disk.
    pub faults_minor: AtomicU64,
    /// Page faults of the loop that did.
    pub faults_major: AtomicU64,
}

impl Punctuality {
    /// Notes that a step began so late.
    pub fn began(&self, late_ns: u64) {
        self.late_ns_max.fetch_max(late_ns, Ordering::Relaxed);
        self.late_ns.fetch_add(late_ns, Ordering::Relaxed);
        let class = LATE_BOUNDS_US.partition_point(|bound_us| bound_us * 1000 < late_ns);
        self.late[class].fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes the calling thread what the settings say.
///
/// # Errors
/// [`crate::Error::Io`] with what the machine refuses.
pub fn settle(settings: &Settings) -> Result<()> {
    if settings.lock_memory {
        resident::lock()?;
        resident::present_stack();
    }
    if let Some(cpu) = settings.cpu {
        sys::pin(cpu)?;
    }
    settings.priority.map_or(Ok(()), sys::real_time)
}

/// Whether the machine grants the settings, found out in a thread that ends again.
///
/// # Errors
/// As [`settle`].
pub fn try_settings(settings: &Settings) -> Result<()> {
    let settings = *settings;
    let thread = std::thread::Builder::new().name("monitor-try".into()).spawn(move || settle(&settings));
    let tried = thread.map_err(|error| crate::Error::io("starting a thread", error))?.join();
    tried.unwrap_or_else(|_| Err(crate::Error::io("trying the settings", std::io::ErrorKind::Other)))
}

/// Runs the loop in the calling thread until `stop`. After each step `after` is called.
pub fn run(
    engine: &mut Engine,
    settings: &Settings,
    stop: &AtomicBool,
    punctuality: &Arc<Punctuality>,
    mut after: impl FnMut(&mut Engine, u64),
) {
    let longest_ns = settings.period_ns.max(PERIOD_NS_MIN);
    let mut pace = Pace::new(longest_ns, settings.quick_period_ns.max(PERIOD_NS_MIN));
    let mut due = now_ns();
    let before = Faults::of_thread();
    while !stop.load(Ordering::Acquire) {
        let now = now_ns();
        let late_ns = now.saturating_sub(due);
        punctuality.began(late_ns);
        engine.step(now);
        after(engine, now);
        let period_ns = pace.look(now, engine.signs(now, late_ns));
        punctuality.quick.fetch_add(u64::from(pace.is_quick()), Ordering::Relaxed);
        due += period_ns;
        let behind = now_ns().saturating_sub(due) / period_ns;
        if behind > 0 {
            punctuality.skipped.fetch_add(behind, Ordering::Relaxed);
            due += behind * period_ns;
        }
        let faults = Faults::of_thread().since(before);
        punctuality.faults_minor.store(faults.minor, Ordering::Relaxed);
        punctuality.faults_major.store(faults.major, Ordering::Relaxed);
        let until = Timespec { tv_sec: (due / 1_000_000_000) as i64, tv_nsec: (due % 1_000_000_000) as i64 };
        // A signal wakes it early; the next step is then early too, and harmless.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_sorted_into_its_class() {
        let punctuality = Punctuality::default();
        for late_us in [0, 50, 51, 1_000_000, 1_000_001] {
            punctuality.began(late_us * 1000);
        }
        let found: Vec<u64> = punctuality.late.iter().map(|class| class.load(Ordering::Relaxed)).collect();
        assert_eq!(found, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(punctuality.late_ns_max.load(Ordering::Relaxed), 1_000_001_000);
        assert_eq!(punctuality.late_ns.load(Ordering::Relaxed), 2_000_102_000);
    }
}
