//! How the engine shares its processor when it falls behind (row A19).
//!
//! Endpoints of a host often run on the engine's own processor. What one of them sends waits in its device until the engine has its
//! turn of the processor, and nothing tells the sender to stop: many connections fill the device with a super-frame or two of each.
//! They measure the wait as the network's delay, send less at a time for it, and each frame, small by now, costs what a large one does.
//! So an engine that leaves bulk behind in its devices turn after turn goes before the programs that make it, as the kernel's own
//! network work does; then what waits, waits in the programs.
//!
//! An engine that keeps up is as urgent as others are: to be woken for every frame costs more than to find some of them at once.
//! What waits in the underlay's socket does not make it urgent either: it is after the wait that senders should see, the socket holds
//! all that they may have under way, and an engine that goes before the receiving programs only keeps them from taking it.
//! Small frames do not make it urgent, so who sends a flood of them takes nobody's processor by it. The kernel's measure
//! is the nice level, which takes the processor from no program altogether.
//!
//! Invariant: the level is changed twice a [`HOLD`] at most.

use std::io;
use std::time::{Duration, Instant};

/// Average length of the frames that a device gave from which on they are bulk, bytes.
pub const BULK_FRAME_BYTES: u64 = 4096;
/// Turns in a row that leave bulk behind, after which the engine is urgent: the others may only have been read a little late.
const PATIENCE: u8 = 4;
/// How long it stays urgent after it was behind. It is not behind any more because it is urgent.
pub const HOLD: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Urgency {
    /// Nice level when urgent; `None`: it never is.
    urgent: Option<i32>,
    /// Turns in a row that left bulk behind.
    behind: u8,
    until: Option<Instant>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Take this nice level.
    Rise(i32),
    /// Take the old one back.
    Fall,
}

impl Urgency {
    /// With a nice level for when it is behind; one that is not below 0 is none.
    pub fn new(nice: i32) -> Urgency {
        Urgency { urgent: (nice < 0).then_some(nice), behind: 0, until: None }
    }

    /// A turn that had something to do is over at `now`, and left bulk behind or did not.
    #[inline]
    pub fn turned(&mut self, now: Instant, left_bulk: bool) -> Option<Change> {
        if !left_bulk {
            self.behind = 0;
            return match self.until {
                Some(until) if now >= until => {
                    self.until = None;
                    Some(Change::Fall)
                }
                _ => None,
            };
        }
        self.behind = self.behind.saturating_add(1);
        if self.behind < PATIENCE {
            return None;
        }
        let nice = self.urgent?;
        let was_urgent = self.until.replace(now + HOLD).is_some();
        (!was_urgent).then_some(Change::Rise(nice))
    }

    /// Whether it is urgent.
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// It may not be urgent: the kernel does not let it.
    #[cold]
    pub fn give_up(&mut self) {
        *self = Urgency::new(0);
    }
}

/// The nice level of a thread, to be changed and given back.
#[derive(Debug, Default)]
pub struct Level {
    before: Option<i32>,
}

impl Level {
    /// Makes a change for the calling thread. One that is more urgent already stays as it is.
    ///
    /// # Errors
    /// What the kernel says: without `CAP_SYS_NICE` and a limit that allows it a thread may not rise.
    #[cold]
    pub fn make(&mut self, change: Change) -> io::Result<()> {
        // Of a thread, on Linux: 0 is the calling one.
        match change {
            Change::Rise(nice) => {
                let before = rustix::process::getpriority_process(None)?;
                if nice < before {
                    rustix::process::setpriority_process(None, nice)?;
                    self.before = Some(before);
                }
            }
            Change::Fall => {
                if let Some(before) = self.before.take() {
                    rustix::process::setpriority_process(None, before)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
