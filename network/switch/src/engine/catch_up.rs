//! Catching up: how an engine begins that has no flows while others go on (row A30).
//!
//! After a hand-over or a restart everything that has come meanwhile misses at once: a single message of the underlay may be 64
//! datagrams of one stream. The slow path has little room for each port and sender, and would drop what is over it. So for a
//! while the engine reads only as much as the slow path has room for, and the rest waits where it is: in the queues of devices and
//! sockets and in the rings of virtual machines.
//!
//! Reading waits for misses alone: traffic whose flows are known again is as fast as ever. It ends after [`CATCH_UP`], so that
//! whoever sends what never has a flow cannot keep others waiting for longer. Only time in which the slow path takes something counts: on a
//! machine with more to do than it has processors the slow path's thread may not run for as long as that, and what waits would be read at
//! once and dropped. It ends after [`CATCH_UP_MOST`] whatever happens.

use super::{Engine, Inject, sys};
use std::io;
use std::time::{Duration, Instant};

/// How long an engine catches up, without the time in which the slow path does nothing.
pub const CATCH_UP: Duration = Duration::from_millis(100);
/// And with it: a slow path that hangs keeps nobody waiting for longer.
pub const CATCH_UP_MOST: Duration = Duration::from_secs(2);
/// Frames on their way to the slow path and back from which on nothing is read. With what one read may add, 64
/// super-frames, they are fewer than a class may have waiting, and fit in the rings.
const FRAMES: usize = 32;
/// How long the engine waits for the slow path at once.
const WAIT_MS: i32 = 1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    until: Option<Instant>,
    /// The latest that it may be put off to.
    until_most: Option<Instant>,
    /// When was looked last, and how many frames the slow path had taken by then.
    looked: Option<(Instant, usize)>,
    turns: usize,
}

impl CatchUp {
    /// Begins.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        (self.until, self.until_most) = (Some(now + CATCH_UP), Some(now + CATCH_UP_MOST));
    }

    /// Puts the end off by the time since the last look, if the slow path did nothing in it: it has `taken` so many frames so far, and others
    /// wait.
    fn put_off(&mut self, now: Instant, taken: usize, waits: bool) {
        if let (Some((then, before)), Some(until), Some(most)) = (self.looked, self.until, self.until_most)
            && waits
            && taken == before
        {
            self.until = Some((until + now.saturating_duration_since(then)).min(most));
        }
        self.looked = Some((now, taken));
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Whose turn it is to be read first, of all that have something: the first are read until there is no more room.
    #[inline]
    pub(super) fn first(&self) -> usize {
        self.turns
    }
}

impl Engine {
    /// Says how many frames may miss in this turn, which begins at `now`; false when nothing may be read.
    #[cold]
    pub(super) fn may_read(&mut self, now: Instant) -> bool {
        let waiting = self.channels.misses.waiting();
        self.catch_up.put_off(now, self.channels.misses.pushed() - waiting, waiting > 0);
        if self.catch_up.until.is_none_or(|until| now >= until) {
            self.catch_up = CatchUp::default();
            self.path.misses_until = usize::MAX;
            return true;
        }
        let (misses, injects) = (&self.channels.misses, &self.channels.injects);
        let room = FRAMES.saturating_sub(misses.waiting() + injects.waiting());
        self.path.misses_until = misses.pushed() + room;
        self.catch_up.turns += 1;
        room > 0
    }

    /// A turn in which nothing is read.
    #[cold]
    pub(super) fn wait_for_slow_path(&mut self) -> io::Result<()> {
        let wait_ms = if self.has_inject() { 0 } else { WAIT_MS };
        sys::wait_readable(self.shared.engine_wake.fd(), wait_ms);
        self.shared.engine_wake.clear();
        self.work_for_slow_path();
        Ok(())
    }

    /// Whether there is a frame of the slow path that can be taken now.
    fn has_inject(&self) -> bool {
        self.channels.injects.peek().is_some_and(|(inject, _)| match inject {
            Inject::Again { generation, .. } => generation <= self.path.generation(),
            Inject::Port(_) | Inject::Underlay(_) => true,
        })
    }
}

#[cfg(test)]
mod tests;
