//! The segment of a daemon that died: its memory outlives it.

use super::{Head, MAGIC, Segment};
use rustix::fs::SeekFrom;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

pub(super) fn map(memory: &File, bytes: usize) -> std::io::Result<*mut Head> {
    // SAFETY: a new shared mapping of a file that cannot shrink; unmapped only when `Segment` is dropped.
    let head = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            memory.as_raw_fd(),
            0,
        )
    };
    if head == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(head.cast()) }
}

impl Segment {
    /// One that [`Segment::create`] made in another process.
    pub fn join(memory: OwnedFd) -> std::io::Result<Segment> {
        let memory = File::from(memory);
        let bytes = memory.metadata()?.len() as usize;
        if bytes < super::HEAD_BYTES {
            return Err(std::io::Error::other("the memory is no segment"));
        }
        let segment = Segment { head: map(&memory, bytes)?, bytes, memory: memory.into() };
        let head = segment.head();
        if head.magic.load(Ordering::Relaxed) != MAGIC || head.bytes != bytes as u64 {
            let what = "the memory is no segment of this version: a mount is taken over by the version that made it only";
            return Err(std::io::Error::other(what));
        }
        Ok(segment)
    }

    /// Records that may have been used: memory that never was is not looked at, as it would be taken.
    pub fn used_records(&self) -> Vec<u64> {
        let bytes = size_of::<super::RawRecord>() as u64;
        let (begin, end) = (super::HEAD_BYTES as u64, super::HEAD_BYTES as u64 + self.records_max() * bytes);
        let mut used = Vec::new();
        let mut at = begin;
        // The position of a memory file is nobody's.
        while let Ok(data) = rustix::fs::seek(&self.memory, SeekFrom::Data(at)) {
            let hole = rustix::fs::seek(&self.memory, SeekFrom::Hole(data)).unwrap_or(end).min(end);
            if data >= end {
                break;
            }
            used.extend((data - begin) / bytes..(hole - begin).div_ceil(bytes));
            at = hole;
        }
        used
    }

    /// Records up to number `until` that are locked by threads that are no more are locked by nobody. Whoever waits for one finds that out by
    /// itself, unless the thread's number is another's by now.
    pub fn free_dead_locks(&self, until: u64) {
        for number in 0..until.min(self.records_max()) {
            let lock = &self.raw(number).lock;
            let holder = lock.load(Ordering::Relaxed);
            let own = holder == super::thread_id();
            if holder != 0 && (own || super::waited(holder) == 1) {
                // Another waiter may have found out too, and have it now.
                let _ = lock.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}
