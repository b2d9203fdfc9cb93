//! When the engine looks for packets again and again before it sleeps (row A19).
//!
//! A wake-up costs more than most packets do, so where an answer comes soon after what it answers, looking for it is
//! cheaper for everybody than sleeping. The engine looks only while that is so: the gaps of the last few times say
//! whether the next packet is likely to come in time, whether they were spent looking or asleep. It does not look while there
//! are super-frames: then what the endpoints on the same processors do with their time says how much gets through.
//!
//! On a processor of its own it always looks.

use std::time::{Duration, Instant};

/// Gaps that were too long, one after the other, after which looking ends.
const PATIENCE: u8 = 4;
/// Bytes of one turn from which on it carried bulk.
pub const BULK_BYTES: u64 = 8 * 1024;
/// How long bulk forbids to look: longer than a processor's other programs keep the engine waiting, or it would look between two
/// turns of one stream.
const BULK_HOLD: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub struct Polling {
    /// The longest look; zero: never.
    longest: Duration,
    always: bool,
    last_work: Instant,
    last_bulk: Option<Instant>,
    patience: u8,
}

impl Polling {
    /// Looks for at most `longest`; never if that is zero.
    pub fn new(longest: Duration, now: Instant) -> Polling {
        Polling { longest, always: false, last_work: now, last_bulk: None, patience: 0 }
    }

    /// Looks always, and never sleeps.
    pub fn always(now: Instant) -> Polling {
        Polling { always: true, ..Polling::new(Duration::ZERO, now) }
    }

    /// Whether the processor is the engine's alone: then there is nobody to let run.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.always
    }

    /// Whether to look again at `now`, and not to sleep.
    #[inline]
    pub fn looks(&self, now: Instant) -> bool {
        self.always
            || self.patience > 0
                && now.duration_since(self.last_work) < self.longest
                && self.last_bulk.is_none_or(|bulk| now.duration_since(bulk) >= BULK_HOLD)
    }

    /// A turn with work began at `now`.
    #[inline]
    pub fn found(&mut self, now: Instant) {
        if now.duration_since(self.last_work) < self.longest {
            self.patience = PATIENCE;
        } else {
            self.patience = self.patience.saturating_sub(1);
        }
    }

    /// The turn was over at `now`, and carried so many bytes.
    #[inline]
    pub fn worked(&mut self, now: Instant, bytes: u64) {
        self.last_work = now;
        if bytes >= BULK_BYTES {
            self.last_bulk = Some(now);
        }
    }
}

#[cfg(test)]
mod tests;
