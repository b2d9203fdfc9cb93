//! Where the log's writer is found: by the thread that writes what is queued, and by a follower that writes by itself.
//!
//! A follower has nothing to do before its entry is on disk, so handing the entry to another thread only costs two
//! wake-ups on the way of every commit. A leader never writes by itself: it has followers to send to meanwhile.
//!
//! Invariants
//! - Writes reach the disk in the order in which they were asked: who writes by itself does so only when nothing is queued.
//! - What waits for room on the disk is tried again by who makes spares, and nothing else is written before.
//! - A disk that was slow once ([`SLOW`]) is left to the thread for the next [`RESTS`] writes, so that a replica goes
//!   on talking while its disk does not.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_base::world::Clock;

use super::writer::{Write, Writer};

/// A write that takes longer is the thread's business.
const SLOW: Duration = Duration::from_millis(10);
/// So many writes are queued after a slow one.
const RESTS: u32 = 1_024;

/// See the module.
pub struct Desk {
    /// None when the log is closed.
    writer: Mutex<Option<Writer>>,
    clock: Box<dyn Clock>,
    /// Writes that were given to the thread and are not done.
    queued: AtomicUsize,
    follows: AtomicBool,
    rests: AtomicU32,
    /// Something was written behind the last mark.
    unmarked: AtomicBool,
    /// Writes so far: who waits for quiet compares.
    writes: AtomicUsize,
    /// Tells who waits for quiet that there is something to mark; none when the log is closed.
    unquiet: Mutex<Option<SyncSender<()>>>,
}

impl Desk {
    /// A desk with its writer. `unquiet` is told when something was written after a mark.
    pub fn new(writer: Writer, clock: Box<dyn Clock>, unquiet: SyncSender<()>) -> Desk {
        Desk {
            writer: Mutex::new(Some(writer)),
            clock,
            queued: AtomicUsize::new(0),
            follows: AtomicBool::new(false),
            rests: AtomicU32::new(0),
            unmarked: AtomicBool::new(false),
            writes: AtomicUsize::new(0),
            unquiet: Mutex::new(Some(unquiet)),
        }
    }

    /// Whether this replica is known to follow.
    pub fn set_follows(&self, follows: bool) {
        self.follows.store(follows, Ordering::Release);
    }

    fn locked(&self) -> MutexGuard<'_, Option<Writer>> {
        // A panic elsewhere leaves a writer that says itself whether it is healthy.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes here and now when that is right, and gives it back to be queued when it is not. Then it counts as queued.
    pub fn write(&self, write: Write) -> Option<Write> {
        let here = matches!(write, Write::Append { .. })
            && self.follows.load(Ordering::Acquire)
            && self.queued.load(Ordering::Acquire) == 0
            && !self.rests();
        if here
            && let Ok(mut writer) = self.writer.try_lock()
            && let Some(writer) = &mut *writer
            && !writer.is_waiting()
        {
            let before_ns = self.clock.now_ns();
            writer.drain(&mut vec![write]);
            if self.clock.now_ns().saturating_sub(before_ns) > SLOW.as_nanos() as u64 {
                self.rests.store(RESTS, Ordering::Relaxed);
            }
            self.wrote();
            return None;
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        Some(write)
    }

    fn rests(&self) -> bool {
        self.rests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Takes back that something counts as queued: nobody is there to write it.
    pub fn unqueued(&self) {
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }

    /// Writes all of `writes`, which were queued.
    pub fn write_queued(&self, writes: &mut Vec<Write>) {
        let count = writes.len();
        if let Some(writer) = &mut *self.locked() {
            writer.drain(writes);
        }
        self.queued.fetch_sub(count, Ordering::AcqRel);
        self.wrote();
    }

    fn wrote(&self) {
        self.writes.fetch_add(1, Ordering::Release);
        if !self.unmarked.swap(true, Ordering::AcqRel)
            && let Some(unquiet) = &*self.unquiet.lock().unwrap_or_else(PoisonError::into_inner)
        {
            // Full: it was told before and has not looked yet.
            let _told = unquiet.try_send(());
        }
    }

    /// How many times something was written.
    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::Acquire)
    }

    /// Whether what was asked waits for room on the disk.
    pub fn is_waiting(&self) -> bool {
        self.locked().as_ref().is_some_and(Writer::is_waiting)
    }

    /// Tries again what waits for room on the disk, if there is some now.
    pub fn try_again(&self) {
        if let Some(writer) = &mut *self.locked()
            && writer.is_waiting()
            && writer.room().has_next()
        {
            writer.drain(&mut Vec::new());
        }
    }

    /// Whether a spare segment should be made.
    pub fn wants_spare(&self) -> bool {
        self.locked().as_ref().is_some_and(Writer::wants_spare)
    }

    /// Nothing was written for a while: says in the log that all of it is durable.
    pub fn idle(&self) {
        // Before, so that what comes meanwhile is told again.
        self.unmarked.store(false, Ordering::Release);
        if let Some(writer) = &mut *self.locked() {
            writer.idle();
        }
    }

    /// Takes the writer, to close it. Nobody is told of anything any more.
    pub fn take(&self) -> Option<Writer> {
        *self.unquiet.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.locked().take()
    }
}
