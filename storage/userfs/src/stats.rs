//! Counters of operations: how many, how many failed, how long they took.
//!
//! Of a mount with a keeper they are in memory that outlives the daemon, so that a daemon that takes another's place counts on.
#![allow(unsafe_code)]

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! operations {
    ($($variant:ident $name:literal,)*) => {
        /// An operation of a backend.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Operation { $($variant,)* }
        /// Names, in the order of [`Operation`].
        const NAMES: &[&str] = &[$($name,)*];
    };
}

operations! {
    Lookup "lookup", Attributes "attributes", Change "change", ReadLink "read_link", Make "make",
    MakeDirectory "make_directory", MakeLink "make_link", Link "link", Unlink "unlink",
    RemoveDirectory "remove_directory", Rename "rename", Read "read", Write "write", Sync "sync", List "list",
    Space "space", Seek "seek", Allocate "allocate", GetAttribute "get_attribute", SetAttribute "set_attribute",
    ListAttributes "list_attributes", RemoveAttribute "remove_attribute", Open "open", Close "close",
}

/// What is beside the operations: opens that the kernel serves by itself, as calls, and those that it would not take, as errors.
const BY_KERNEL: usize = NAMES.len();
/// How many there are.
const COUNTERS: usize = NAMES.len() + 1;
const BYTES: usize = COUNTERS * size_of::<Counter>();

#[derive(Debug, Default)]
#[repr(C)]
struct Counter {
    calls: AtomicU64,
    errors: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Memory that is kept by another process, too.
#[derive(Debug)]
struct Shared {
    start: NonNull<Counter>,
    memory: OwnedFd,
}

// SAFETY: it is a mapping of its own with atomics only, which every thread may read and write.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn map(memory: OwnedFd) -> std::io::Result<Shared> {
        // SAFETY: a new mapping, of a file that has these bytes and that nobody cuts.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &memory,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| std::io::Error::other("nothing was mapped"))?;
        Ok(Shared { start, memory })
    }

    fn counters(&self) -> &[Counter] {
        // SAFETY: the mapping has as many, which are valid whatever their bits, for as long as this lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), COUNTERS) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and nothing of it is borrowed any more.
        let gone = unsafe { munmap(self.start.as_ptr().cast(), BYTES) };
        debug_assert!(gone.is_ok(), "{gone:?}");
    }
}

#[derive(Debug)]
enum Place {
    Own(Vec<Counter>),
    Shared(Shared),
}

/// Counters of all operations of a mount.
#[derive(Debug)]
pub struct Stats {
    place: Place,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats { place: Place::Own((0..COUNTERS).map(|_| Counter::default()).collect()) }
    }
}

impl Stats {
    /// In memory that may outlive this process.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub(crate) fn kept() -> std::io::Result<Stats> {
        let memory = rustix::fs::memfd_create("weir-userfs-counts", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, BYTES as u64)?;
        Ok(Stats { place: Place::Shared(Shared::map(memory)?) })
    }

    /// Those of a daemon that died.
    ///
    /// # Errors
    /// It cannot be mapped, or is of another version.
    pub(crate) fn again(memory: OwnedFd) -> std::io::Result<Stats> {
        if rustix::fs::fstat(&memory)?.st_size != BYTES as i64 {
            return Err(std::io::Error::other("the counts are of another version"));
        }
        Ok(Stats { place: Place::Shared(Shared::map(memory)?) })
    }

    /// Where they are, if that may outlive this process.
    pub(crate) fn memory(&self) -> Option<&OwnedFd> {
        match &self.place {
            Place::Own(_) => None,
            Place::Shared(shared) => Some(&shared.memory),
        }
    }

    fn counters(&self) -> &[Counter] {
        match &self.place {
            Place::Own(counters) => counters,
            Place::Shared(shared) => shared.counters(),
        }
    }

    /// Counts an open that the kernel serves by itself, or one that it would not take.
    pub(crate) fn opened(&self, is_taken: bool) {
        let counter = &self.counters()[BY_KERNEL];
        let of = if is_taken { &counter.calls } else { &counter.errors };
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// Opens that the kernel serves by itself, and those that it would not take.
    pub(crate) fn by_kernel(&self) -> (u64, u64) {
        let counter = &self.counters()[BY_KERNEL];
        (counter.calls.load(Ordering::Relaxed), counter.errors.load(Ordering::Relaxed))
    }
}

/// What one operation counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// The operation.
    pub operation: String,
    /// Calls.
    pub calls: u64,
    /// Those that gave an error. "No such file" counts too.
    pub errors: u64,
    /// Mean time in the backend, microseconds.
    pub mean_us: f64,
}

impl Stats {
    /// Counts one call.
    pub fn count(&self, operation: Operation, failed: bool, took: Duration) {
        let counter = &self.counters()[operation as usize];
        counter.calls.fetch_add(1, Ordering::Relaxed);
        counter.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
        counter.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Operations that were called.
    pub fn counts(&self) -> Vec<Count> {
        let of = |(name, counter): (&&str, &Counter)| {
            let calls = counter.calls.load(Ordering::Relaxed);
            (calls > 0).then(|| Count {
                operation: (*name).to_owned(),
                calls,
                errors: counter.errors.load(Ordering::Relaxed),
                mean_us: counter.nanoseconds.load(Ordering::Relaxed) as f64 / calls as f64 / 1000.0,
            })
        };
        NAMES.iter().zip(self.counters()).filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_outlive_who_counted() {
        let first = Stats::kept().unwrap();
        first.count(Operation::Write, true, Duration::from_micros(6));
        first.opened(true);
        let memory = first.memory().unwrap().try_clone().unwrap();
        drop(first);
        let next = Stats::again(memory).unwrap();
        next.count(Operation::Write, false, Duration::from_micros(2));
        next.opened(false);
        let write = Count { operation: "write".into(), calls: 2, errors: 1, mean_us: 4.0 };
        assert_eq!((next.counts(), next.by_kernel()), (vec![write], (1, 1)));
        let short = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        assert!(Stats::again(short).unwrap_err().to_string().contains("another version"));
        assert!(Stats::default().memory().is_none());
    }
}
