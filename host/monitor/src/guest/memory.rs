//! A guest's memory: physical addresses in a file, virtual ones through the guest's page tables.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory above this address, in guests with more, begins at 4 GiB (QEMU's machines `pc` and `q35`).
const HOLE: u64 = 0x8000_0000;
const AFTER_HOLE: u64 = 0x1_0000_0000;
const PAGE: u64 = 4096;

/// The mapping of a guest's memory.
///
/// Invariant: `base` points to `words` words that stay mapped until this is dropped. The file belongs to QEMU, which does
/// not shrink it; the guest cannot.
#[derive(Debug)]
pub struct GuestMemory {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory is only read, by atomic loads, and unmapped by the owner alone.
unsafe impl Send for GuestMemory {}
// SAFETY: as above.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps the file of a `memory-backend-file` with `share=on`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Guest`].
    pub fn open(path: &Path) -> Result<GuestMemory> {
        let failed = |error| Error::io(format!("guest memory {}", path.display()), error);
        let file = std::fs::File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let words = usize::try_from(length / 8).unwrap_or(0);
        if words == 0 {
            return Err(Error::Guest(format!("{} is empty", path.display())));
        }
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        let base =
            unsafe { mmap(std::ptr::null_mut(), words * 8, ProtFlags::READ, MapFlags::SHARED, &file, 0) }
                .map_err(|error| Error::io(format!("mapping {}", path.display()), error))?;
        match NonNull::new(base.cast()) {
            Some(base) => Ok(GuestMemory { base, words }),
            None => Err(Error::io("mapping guest memory", std::io::ErrorKind::OutOfMemory)),
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.words as u64 * 8
    }

    fn load(&self, word: usize) -> u64 {
        assert!(word < self.words, "word {word} of {}", self.words);
        // SAFETY: the index is inside the mapping, which lives as long as `self` and begins at a page; an atomic load
        // tolerates the guest's writes.
        unsafe { self.base.add(word).as_ref() }.load(Ordering::Relaxed)
    }

    /// Where a physical address lies in the file.
    fn offset(&self, physical: u64) -> Option<u64> {
        let offset = match physical {
            _ if self.bytes() <= HOLE || physical < HOLE => physical,
            AFTER_HOLE.. => physical - AFTER_HOLE + HOLE,
            _ => return None,
        };
        (offset < self.bytes()).then_some(offset)
    }

    /// Reads at a physical address. Returns whether all of it is memory.
    pub(super) fn read_physical(&self, physical: u64, to: &mut [u8]) -> bool {
        let Some(offset) = self.offset(physical) else { return false };
        if offset.checked_add(to.len() as u64).is_none_or(|end| end > self.bytes()) {
            return false;
        }
        let (mut done, mut at) = (0, offset as usize);
        while done < to.len() {
            let bytes = self.load(at / 8).to_le_bytes();
            let part = &bytes[at % 8..];
            let length = part.len().min(to.len() - done);
            to[done..done + length].copy_from_slice(&part[..length]);
            done += length;
            at += length;
        }
        true
    }

    fn word_physical(&self, physical: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read_physical(physical, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// The physical address of a virtual one: by the direct map or the image's place where these hold, else by the page
    /// tables.
    pub(super) fn physical(&self, space: &Space, address: u64) -> Option<u64> {
        if space.direct_map != 0
            && let Some(physical) = address.checked_sub(space.direct_map)
            && self.offset(physical).is_some()
        {
            return Some(physical);
        }
        self.walk(space, address)
    }

    fn walk(&self, space: &Space, address: u64) -> Option<u64> {
        const PRESENT: u64 = 1;
        const LARGE: u64 = 1 << 7;
        const FRAME: u64 = 0x000f_ffff_ffff_f000;
        let mut table = space.page_tables;
        for level in (0..space.levels).rev() {
            let shift = 12 + 9 * level;
            let entry = self.word_physical(table + (address >> shift & 0x1ff) * 8)?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || (level <= 2 && entry & LARGE != 0) {
                let inside = (1_u64 << shift) - 1;
                return Some((entry & FRAME & !inside) | (address & inside));
            }
            table = entry & FRAME;
        }
        None
    }

    /// Reads at a virtual address, page by page. Returns whether all of it is memory.
    pub(super) fn read(&self, space: &Space, address: u64, to: &mut [u8]) -> bool {
        let mut done = 0;
        while done < to.len() {
            let at = address.wrapping_add(done as u64);
            let length = ((PAGE - at % PAGE) as usize).min(to.len() - done);
            let read = self
                .physical(space, at)
                .is_some_and(|physical| self.read_physical(physical, &mut to[done..done + length]));
            if !read {
                return false;
            }
            done += length;
        }
        true
    }

    /// A word at a virtual address.
    pub(super) fn word(&self, space: &Space, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(space, address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: exactly this range was mapped, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.words * 8) };
        debug_assert!(unmapped.is_ok(), "the range is the one that was mapped");
    }
}

/// How a guest's kernel translates addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    /// Physical address of the kernel's top page table.
    pub page_tables: u64,
    /// Levels of page tables: 4 or 5.
    pub levels: u32,
    /// Where all memory is mapped; 0 while that is not known.
    pub direct_map: u64,
}
