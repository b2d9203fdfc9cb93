//! Whether there is room for the log to go on, and what to do until there is.
//!
//! A segment is made whole before it is used, so a full disk shows when the next one is to be made, which is tried when half of the
//! active one is used ([`Log::wants_spare`](super::Log::wants_spare)). From then on until a next one is there, the log is *short*: what is left of
//! the active segment is the reserve. Whoever takes proposals refuses them while the log is short, and the reserve is for what a protocol
//! itself must write: what is on its way, votes, a leader's first entry, changes of members. When the reserve is used up as well, a write *waits*:
//! it is left undone as a whole, and tried again.
//!
//! Invariants
//! - Being short is known before any write fails, as long as others leave the disk the reserve's bytes, which it has already.
//! - A write that waits was not acknowledged and is nowhere in the log.
//! - Tries are counted and farther and farther apart, from [`RETRY_MIN`] to [`RETRY_MAX`]; nobody has to say that there is room again.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use weir_base::world::Disk;

use super::create::prepare_spare;

/// Between two tries, at first.
pub const RETRY_MIN: Duration = Duration::from_millis(50);
/// Between two tries, at most.
pub const RETRY_MAX: Duration = Duration::from_secs(2);

/// Whether an error says that there is no room.
pub fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What one log knows of its room; shared by who writes, who makes spares and who refuses. See the module.
#[derive(Debug, Default)]
pub struct Room {
    dir: String,
    /// No next segment could be made.
    short: AtomicBool,
    /// A write waits.
    waits: AtomicBool,
    /// Tries without success since there was room.
    tries: AtomicU32,
    shortages: AtomicU64,
    waited: AtomicU64,
    tried: AtomicU64,
}

/// What was counted of a log's room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoomCounters {
    /// Times that no next segment could be made.
    pub shortages: u64,
    /// Times that a write had to wait.
    pub waited: u64,
    /// Tries that found no room.
    pub tried: u64,
}

impl Room {
    /// Of the log in `dir`, with room.
    pub fn new(dir: String) -> Room {
        Room { dir, ..Room::default() }
    }

    /// Makes a segment ahead of need ([`prepare_spare`]), and knows afterwards whether there is room. Any other failure than a full
    /// disk says nothing of room and is given back.
    ///
    /// # Errors
    /// The disk's own.
    pub fn prepare(&self, disk: &dyn Disk, segment_bytes: u64) -> io::Result<()> {
        match prepare_spare(disk, segment_bytes) {
            Ok(()) => self.found(),
            Err(error) if is_no_room(&error) => {
                self.missed();
                if !self.short.swap(true, Ordering::AcqRel) {
                    self.shortages.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(dir = self.dir, %error, "the disk is full: nothing new is taken until there is room for {segment_bytes} bytes");
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// A write found no room and waits.
    pub fn waits(&self) {
        self.missed();
        if !self.waits.swap(true, Ordering::AcqRel) {
            self.waited.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                dir = self.dir,
                "the disk is full and the reserve is used: what is to be written waits for room"
            );
        }
    }

    /// What waited is written.
    pub fn goes_on(&self) {
        if self.waits.swap(false, Ordering::AcqRel) {
            tracing::warn!(dir = self.dir, "what waited for room is written");
            self.tries.store(0, Ordering::Relaxed);
        }
    }

    /// There is a next segment.
    pub(super) fn found(&self) {
        if self.short.swap(false, Ordering::AcqRel) {
            tracing::warn!(dir = self.dir, "there is room again");
            self.tries.store(0, Ordering::Relaxed);
        }
    }

    fn missed(&self) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        self.tries.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether nothing new should be taken: there is no room for a next segment, or a write waits.
    pub fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire) || self.is_waiting()
    }

    /// Whether the last try to make a next segment found room.
    pub fn has_next(&self) -> bool {
        !self.short.load(Ordering::Acquire)
    }

    /// Whether a write waits.
    pub fn is_waiting(&self) -> bool {
        self.waits.load(Ordering::Acquire)
    }

    /// How long to wait before the next try.
    pub fn pause(&self) -> Duration {
        let doublings = self.tries.load(Ordering::Relaxed).saturating_sub(1).min(16);
        (RETRY_MIN * (1 << doublings)).min(RETRY_MAX)
    }

    /// Why something new is refused, if it is.
    pub fn refusal(&self) -> Option<crate::Error> {
        self.is_short().then(|| crate::Error::DiskFull {
            dir: self.dir.clone(),
            file: "the next part of the log".to_owned(),
        })
    }

    /// What was counted.
    pub fn counters(&self) -> RoomCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RoomCounters {
            shortages: read(&self.shortages),
            waited: read(&self.waited),
            tried: read(&self.tried),
        }
    }
}
