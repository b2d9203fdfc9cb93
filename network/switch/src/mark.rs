//! Which port was in hand when a process ended (row A30): a few words in a file of the run directory that the engine writes as memory,
//! so that they are there after any end.
//!
//! What waits in a device after a crash may be what ended the process, and would end the next one. So what waits in the
//! device that was in hand is dropped by the next process, once; what waits in all others is served. A port has one number in one
//! process and another in the next, so the file also holds a name's hash for each.
//!
//! The engine's part is two plain stores a look at a port. Without the file (a full disk) nothing is marked and nothing dropped.

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Name of the file in the run directory.
pub const MARK_FILE: &str = "switch.mark";
/// Number of the underlay among the places.
pub const UNDERLAY: usize = crate::engine::limits::EXTERNAL + 1;
/// Places: the ports, the outside, the underlay.
const PLACES: usize = UNDERLAY + 1;
/// The first word is the place in hand plus one; then come the names.
const WORDS: usize = 1 + PLACES;
const BYTES: usize = WORDS * size_of::<u64>();

/// What a process had in hand when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InHand {
    /// Datagrams of other switches.
    Underlay,
    /// Frames of the device with this name's hash.
    Device(u64),
}

/// The hash of a device's name, in its namespace.
pub fn name_of(netns: Option<&str>, device: &str) -> u64 {
    let mut hasher = siphasher::sip::SipHasher13::new();
    (netns, device).hash(&mut hasher);
    hasher.finish()
}

/// The words. See the module.
#[derive(Debug)]
pub struct Mark {
    /// `None`: nothing is marked.
    words: Option<NonNull<AtomicU64>>,
}

// SAFETY: the words are atomic and stay mapped as long as this lives.
#[allow(unsafe_code)]
unsafe impl Send for Mark {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Mark {}

impl Mark {
    /// One that marks nothing.
    pub fn none() -> Mark {
        Mark { words: None }
    }

    /// That of a run directory, with what the process before had in hand. Nothing is in hand from now on.
    ///
    /// # Errors
    /// The file cannot be made or mapped.
    pub fn open(run_dir: &Path) -> io::Result<(Mark, Option<InHand>)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(run_dir.join(MARK_FILE), flags, Mode::from_raw_mode(0o600))?;
        let is_new = rustix::fs::fstat(&file)?.st_size != BYTES as i64;
        if is_new {
            rustix::fs::ftruncate(&file, 0)?;
            // Room for all of it, so that no store meets a full disk.
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64)?;
        }
        // SAFETY: a new mapping of a file of that size, which nobody shortens: the run directory is ours alone.
        #[allow(unsafe_code)]
        let place = unsafe {
            mmap(std::ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)?
        };
        let mark = Mark { words: NonNull::new(place.cast()) };
        let found = mark.in_hand();
        for word in mark.words() {
            word.store(0, Relaxed);
        }
        Ok((mark, found))
    }

    fn words(&self) -> &[AtomicU64] {
        match self.words {
            // SAFETY: there are so many words of zeroes or stores, aligned as a mapping is, as long as `self` lives.
            #[allow(unsafe_code)]
            Some(words) => unsafe { std::slice::from_raw_parts(words.as_ptr(), WORDS) },
            None => &[],
        }
    }

    fn in_hand(&self) -> Option<InHand> {
        let words = self.words();
        let place = usize::try_from(words.first()?.load(Relaxed)).ok()?.checked_sub(1)?;
        if place == UNDERLAY {
            return Some(InHand::Underlay);
        }
        words.get(1 + place).map(|name| InHand::Device(name.load(Relaxed)))
    }

    /// A place has this device.
    pub fn name(&self, place: usize, name: u64) {
        if let Some(word) = self.words().get(1 + place) {
            word.store(name, Relaxed);
        }
    }

    /// A place is in hand.
    #[inline]
    pub fn take(&self, place: usize) {
        if let Some(word) = self.words().first() {
            word.store(place as u64 + 1, Relaxed);
        }
    }

    /// Nothing is.
    #[inline]
    pub fn put_down(&self) {
        if let Some(word) = self.words().first() {
            word.store(0, Relaxed);
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(words) = self.words.take() {
            // SAFETY: it was mapped with this length, and nothing refers to it any more.
            #[allow(unsafe_code)]
            let _ = unsafe { munmap(words.as_ptr().cast(), BYTES) };
        }
    }
}

#[cfg(test)]
mod tests;
