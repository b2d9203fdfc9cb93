//! Finding a guest's kernel, and which of several it is.
//!
//! A reset clears no memory. So a guest that began anew holds the kernel that ran before, whole and readable, beside the
//! one that boots; only the latter moves. A guest that is watched from its start has one kernel, and is believed at once,
//! so that a hang is noticed in one that never moves; where there are several, or where it began anew under watch, the
//! kernel that steps forward is taken. Nothing stimulates it meanwhile: a key would stop its boot loader.

use super::Guest;
use crate::error::{Error, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks for a kernel.
const FIND_PAUSE: Duration = Duration::from_millis(200);
/// What was found is looked for anew if none of it moves for so long, ns.
const PROOF_NS_MAX: u64 = 5_000_000_000;
/// So many steps forward are a proof: what is written over a dead kernel may look like one.
const STEPS: u32 = 3;
/// The largest step, ticks and forks: minutes.
const STEP_MAX: u64 = 100_000;

/// The number of a file.
pub(super) fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|status| status.ino())
}

/// What looks for kernels, for as long as some are wanted: a thread of ordinary priority.
#[derive(Debug)]
pub(super) struct Finder {
    wanted: Arc<AtomicBool>,
    found: Receiver<(Vec<Guest>, u64)>,
}

impl Finder {
    pub(super) fn start(memory: PathBuf, stop: Arc<AtomicBool>) -> Result<(Finder, JoinHandle<()>)> {
        let wanted = Arc::new(AtomicBool::new(true));
        let (tell, found) = sync_channel(1);
        let asked = wanted.clone();
        let look = move || {
            while !stop.load(Ordering::Acquire) {
                let file = inode(&memory).filter(|_| asked.load(Ordering::Acquire));
                if let Some(file) = file
                    && let Ok(guests) = Guest::find_all(&memory)
                {
                    asked.store(false, Ordering::Release);
                    if tell.send((guests, file)).is_err() {
                        return;
                    }
                }
                std::thread::sleep(FIND_PAUSE);
            }
        };
        let thread = std::thread::Builder::new().name("monitor-finder".into()).spawn(look);
        let thread = thread.map_err(|error| Error::io("starting a finder of guests", error))?;
        Ok((Finder { wanted, found }, thread))
    }

    /// What was found, with the file.
    pub(super) fn take(&self) -> Option<(Vec<Guest>, u64)> {
        self.found.try_recv().ok()
    }

    /// What was found is of no use any more; what was found meanwhile may be as old.
    pub(super) fn look_again(&self) {
        while self.found.try_recv().is_ok() {}
        self.wanted.store(true, Ordering::Release);
    }
}

/// Kernels of which one runs, perhaps.
#[derive(Debug)]
pub(super) struct Candidates {
    /// With the progress of each at the last look, and its steps.
    guests: Vec<(Guest, Option<u64>, u32)>,
    file: u64,
    since_ns: u64,
}

impl Candidates {
    pub(super) fn new((guests, file): (Vec<Guest>, u64), now_ns: u64) -> Candidates {
        let guests = guests.into_iter().map(|guest| (guest, None, 0)).collect();
        Candidates { guests, file, since_ns: now_ns }
    }

    /// The one that runs, and its file. One alone is believed unless the guest began anew.
    pub(super) fn running(&mut self, anew: bool) -> Option<(Guest, u64)> {
        let alone = self.guests.len() == 1 && !anew;
        for (guest, before, steps) in &mut self.guests {
            let progress = guest.progress();
            if let (Some(old), Some(new)) = (std::mem::replace(before, progress), progress) {
                *steps = step(old, new, *steps);
            }
            // One that has panicked is the one that was reset: it may tick on until then.
            if guest.panicked() == Some(true) {
                *steps = 0;
            }
        }
        let proven = self.guests.iter().position(|(_, _, steps)| alone || *steps >= STEPS)?;
        Some((self.guests.swap_remove(proven).0, self.file))
    }

    /// Whether they have had their time.
    pub(super) fn expired(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= PROOF_NS_MAX
    }
}

/// How many steps forward there were, after another look: any other change begins anew.
fn step(old: u64, new: u64, steps: u32) -> u32 {
    match new.wrapping_sub(old) {
        0 => steps,
        1..=STEP_MAX => steps + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
