//! What the machine must be asked for with bare hands: shared words, priority, a processor.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A writable mapping of words that the kernel reads too.
///
/// Invariant: `base` points to `words` words that stay mapped until this is dropped.
#[derive(Debug)]
pub(crate) struct SharedWords {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory is only touched by atomic operations, and unmapped by the owner alone.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `words` words of a file that is at least as long.
    pub(crate) fn map(file: &impl AsFd, words: usize) -> Result<SharedWords> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        let base = unsafe { mmap(std::ptr::null_mut(), words * 8, protection, MapFlags::SHARED, file, 0) }
            .map_err(|error| Error::io(format!("mapping {words} words"), error))?;
        match NonNull::new(base.cast()) {
            Some(base) => Ok(SharedWords { base, words }),
            None => Err(Error::io("mapping", std::io::ErrorKind::OutOfMemory)),
        }
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        // SAFETY: the index is inside the mapping, which lives as long as `self` and begins at a page; an atomic
        // tolerates any other writer.
        unsafe { self.base.add(index).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: exactly this range was mapped, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.words * 8) };
        debug_assert!(unmapped.is_ok(), "the range is the one that was mapped");
    }
}

/// Gives the calling thread the real-time policy FIFO.
pub(crate) fn real_time(priority: i32) -> Result<()> {
    // SAFETY: an all-zero sched_param is a valid value of that plain C structure.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: the structure lives for the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        let what = format!("real-time priority {priority} (run it as root, or give it CAP_SYS_NICE)");
        Err(Error::io(what, std::io::Error::last_os_error()))
    }
}

/// Pins the calling thread to a processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(Error::io(format!("processor {cpu}"), std::io::ErrorKind::InvalidInput));
    }
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| Error::io(format!("pinning to processor {cpu}"), error))
}
