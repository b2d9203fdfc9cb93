//! Work in idle slots of the engine's processor (Orion's network-card context: Bohra, table 3.1; row O): when no packet waits, the
//! engine gives its thread to a reader for a moment.
//!
//! What that is the engine does not know: whoever starts the switch hands it over. Packets come first: a slot is given when a look
//! for packets found none, and, so that a processor that is never idle is not blind, once after a turn when [`LATE_PERIODS`] periods
//! have passed without one. An engine that sleeps wakes for the next slot.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A slot that is so many periods late is given though packets wait.
pub const LATE_PERIODS: u32 = 4;

/// Something to do in idle slots. It must not block, allocate or take long: packets wait meanwhile.
pub trait Idle: Send {
    /// Time between two slots.
    fn period(&self) -> Duration;
    /// A slot.
    fn slot(&mut self);
    /// A socket that may become readable, for as long as the engine lives.
    fn socket(&self) -> Option<BorrowedFd<'_>>;
    /// The socket is readable.
    fn readable(&mut self);
}

/// The engine's idle slots.
pub(super) struct Slots {
    work: Option<Box<dyn Idle>>,
    due: Instant,
}

impl Slots {
    pub(super) fn new(work: Option<Box<dyn Idle>>) -> Slots {
        Slots { work, due: Instant::now() }
    }

    /// How long the engine may sleep, in the terms of its poller; -1: for ever.
    pub(super) fn sleep_ms(&self) -> i32 {
        match &self.work {
            None => -1,
            Some(_) => {
                let left = self.due.saturating_duration_since(Instant::now());
                // Rounded up: to wake too early would only mean to sleep again.
                left.as_micros().div_ceil(1000).min(60_000) as i32
            }
        }
    }

    /// Nothing waits: gives a slot when it is due. Returns whether it did.
    pub(super) fn idle(&mut self) -> bool {
        let Some(work) = &mut self.work else { return false };
        let now = Instant::now();
        if now < self.due {
            return false;
        }
        self.due = now + work.period();
        work.slot();
        true
    }

    /// Something waited: gives a slot only when it is late.
    pub(super) fn busy(&mut self) -> bool {
        let late = self.work.as_ref().is_some_and(|work| {
            Instant::now().saturating_duration_since(self.due) >= work.period() * LATE_PERIODS
        });
        late && self.idle()
    }

    pub(super) fn readable(&mut self) {
        if let Some(work) = &mut self.work {
            work.readable();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Work(Arc<AtomicU32>, Duration);

    impl Idle for Work {
        fn period(&self) -> Duration {
            self.1
        }
        fn slot(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn socket(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn readable(&mut self) {}
    }

    #[test]
    fn without_work_the_engine_sleeps_as_long_as_it_likes() {
        let mut slots = Slots::new(None);
        assert_eq!(slots.sleep_ms(), -1);
        assert!(!slots.idle() && !slots.busy());
    }

    #[test]
    fn a_slot_comes_once_a_period_and_a_busy_engine_gives_it_late() {
        let count = Arc::new(AtomicU32::new(0));
        let mut slots = Slots::new(Some(Box::new(Work(count.clone(), Duration::from_secs(3600)))));
        assert!(!slots.busy(), "not late yet");
        assert!(slots.idle());
        assert!(!slots.idle(), "the next one is not due");
        assert_eq!((count.load(Ordering::Relaxed), slots.sleep_ms()), (1, 60_000));
        let mut slots = Slots::new(Some(Box::new(Work(count.clone(), Duration::ZERO))));
        assert!(slots.busy() && slots.idle());
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
