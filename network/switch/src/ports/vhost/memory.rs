//! A guest's memory as it was lent: files, mapped here.
//!
//! Which files are taken says [`super::offered`], how much of them [`super::bounds`].
//!
//! Invariant: no reference to this memory is ever made, because the guest changes it at any time. It is read and written by
//! raw copies and single atomic loads and stores, inside of what [`Memory::at`] allows.

pub use super::bounds::Lent;

use super::bounds::{Budget, Share, apart, mapped};
use super::guard::Guarded;
use super::offered::{MemoryFile, wrong};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Most regions of one guest: what a message of the protocol holds.
pub const REGIONS_MAX: usize = 32;

/// Where a region is, for the guest and here.
#[derive(Clone, Copy, Debug)]
struct Window {
    guest: u64,
    length: u64,
    /// Where its first byte is here.
    host: usize,
}

impl Window {
    #[inline(always)]
    fn at(&self, guest: u64, length: u32) -> Option<(*mut u8, usize)> {
        let offset = guest.wrapping_sub(self.guest);
        if offset >= self.length {
            return None;
        }
        let there = u64::from(length).min(self.length - offset);
        Some(((self.host + offset as usize) as *mut u8, there as usize))
    }
}

#[derive(Debug)]
struct Region {
    window: Window,
    /// As it was lent, and the file: for a process that takes over.
    lent: Lent,
    file: MemoryFile,
    /// The mapping, of whole pages.
    mapping: usize,
    mapped: usize,
    guarded: Option<Guarded>,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.guarded = None;
        // SAFETY: mapped in `map`; whoever has pointers into it holds the memory.
        #[allow(unsafe_code)]
        unsafe {
            libc::munmap(self.mapping as *mut libc::c_void, self.mapped);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Memory {
    /// The largest region, in which nearly every address is: every descriptor is looked for here first.
    largest: Window,
    /// All of them, that one in front.
    regions: Vec<Region>,
    /// Its part of what all ports may lend; given back when the regions are unmapped.
    _share: Share,
    /// Bytes of the files that were there when they were lent.
    filled_first: u64,
}

impl Memory {
    /// Maps regions.
    ///
    /// # Errors
    /// What is wrong with one of them, in words; what the kernel says.
    pub fn map(lent: Vec<(Lent, OwnedFd)>) -> io::Result<Memory> {
        if lent.is_empty() || lent.len() > REGIONS_MAX {
            return Err(wrong(format!(
                "{} regions of memory are lent: 1 to {REGIONS_MAX} can be",
                lent.len()
            )));
        }
        let files = lent.into_iter().map(|(lent, file)| Ok((lent, MemoryFile::offered(file)?)));
        let files = files.collect::<io::Result<Vec<_>>>()?;
        let places = files.iter().map(|(lent, file)| mapped(lent, file.page_bytes, file.length));
        let places = places.collect::<io::Result<Vec<_>>>()?;
        apart(&files.iter().map(|(lent, _)| *lent).collect::<Vec<_>>())?;
        // Before anything is mapped, so that nobody takes more even for a moment.
        let share = Budget::process().take(places.iter().map(|(_, bytes)| bytes).sum())?;
        let mut regions = files
            .into_iter()
            .zip(places)
            .map(|((lent, file), place)| map(lent, file, place))
            .collect::<io::Result<Vec<_>>>()?;
        regions.sort_by_key(|region| std::cmp::Reverse(region.window.length));
        let filled_first = filled(&regions);
        Ok(Memory { largest: regions[0].window, regions, _share: share, filled_first })
    }

    /// The regions as they were lent, with descriptors of their own.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn lent(&self) -> io::Result<Vec<(Lent, OwnedFd)>> {
        self.regions.iter().map(|region| Ok((region.lent, region.file.file.try_clone()?))).collect()
    }

    /// Addresses of this process that it takes, bytes.
    pub fn mapped_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.mapped as u64).sum()
    }

    /// Bytes by which its files have grown since they were lent. Whoever touched those pages first is charged for them: the virtual machine,
    /// or this process.
    pub fn grown_bytes(&self) -> u64 {
        filled(&self.regions).saturating_sub(self.filled_first)
    }

    /// Which files it is of, and whether all of it was made before it was lent.
    pub fn files(&self) -> (BTreeSet<(u64, u64)>, bool) {
        let files: BTreeMap<_, _> = self.regions.iter().filter_map(|region| region.file.filled()).collect();
        let most =
            self.regions.iter().filter_map(|region| Some((region.file.filled()?.0, region.file.length)));
        let is_made =
            most.into_iter().all(|(file, length)| files.get(&file).is_some_and(|made| *made >= length));
        (files.into_keys().collect(), is_made)
    }

    /// Bytes of it that this process has touched and has still.
    pub fn used_bytes(&self) -> u64 {
        let of = |region: &Region| used(region.mapping, region.mapped);
        // Where the kernel does not say, all of it may be.
        self.regions.iter().map(|region| of(region).unwrap_or(region.mapped as u64)).sum()
    }

    /// Whether memory was taken away that is lent.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.guarded.as_ref().is_some_and(Guarded::is_lost))
    }

    /// Where a guest's address is here, and how many of the `length` bytes lie there in one piece. `None` if it was not lent.
    #[inline]
    pub fn at(&self, guest: u64, length: u32) -> Option<(*mut u8, usize)> {
        self.largest.at(guest, length).or_else(|| self.at_other(guest, length))
    }

    #[cold]
    #[inline(never)]
    fn at_other(&self, guest: u64, length: u32) -> Option<(*mut u8, usize)> {
        self.regions[1..].iter().find_map(|region| region.window.at(guest, length))
    }

    /// Where `length` bytes at a guest's address are here, if they lie in the largest region: the nearly certain case.
    #[inline(always)]
    pub fn whole(&self, guest: u64, length: u32) -> Option<*mut u8> {
        let offset = guest.wrapping_sub(self.largest.guest);
        let is_inside = offset < self.largest.length && u64::from(length) <= self.largest.length - offset;
        is_inside.then_some(self.largest.host.wrapping_add(offset as usize) as *mut u8)
    }

    /// Where `length` bytes at an address of the monitor are here, in one piece and aligned.
    pub fn user(&self, user: u64, length: usize, align: usize) -> Option<*mut u8> {
        self.regions.iter().find_map(|region| {
            let offset = user.wrapping_sub(region.lent.user);
            let fits = offset < region.lent.length && length as u64 <= region.lent.length - offset;
            let host = region.window.host + offset as usize * usize::from(fits);
            (fits && host.is_multiple_of(align)).then_some(host as *mut u8)
        })
    }
}

/// Bytes of the regions' files that are there, each file once.
fn filled(regions: &[Region]) -> u64 {
    let files: BTreeMap<_, _> = regions.iter().filter_map(|region| region.file.filled()).collect();
    files.values().sum()
}

/// Bytes of a mapping that have a place in this process's page tables, or had one and are swapped out.
fn used(mapping: usize, bytes: usize) -> io::Result<u64> {
    /// Of an entry of the table (the kernel's documentation, pagemap).
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    const ENTRY_BYTES: usize = 8;
    let page_bytes = rustix::param::page_size();
    let table = std::fs::File::open("/proc/self/pagemap")?;
    let (mut entries, mut used) = (vec![0_u8; 64 * 1024], 0);
    let (mut at, end) = (mapping / page_bytes * ENTRY_BYTES, (mapping + bytes) / page_bytes * ENTRY_BYTES);
    while at < end {
        let now = entries.len().min(end - at);
        table.read_exact_at(&mut entries[..now], at as u64)?;
        let is_used = |entry: &&[u8; ENTRY_BYTES]| u64::from_ne_bytes(**entry) & PRESENT_OR_SWAPPED != 0;
        used += entries[..now].as_chunks().0.iter().filter(is_used).count();
        at += now;
    }
    Ok((used * page_bytes) as u64)
}

fn map(lent: Lent, file: MemoryFile, (start, bytes): (u64, u64)) -> io::Result<Region> {
    let too_much = |_| wrong(format!("a region of lent memory is too large: {lent:?}"));
    let mapped = usize::try_from(bytes).map_err(too_much)?;
    let start = libc::off_t::try_from(start).map_err(too_much)?;
    // SAFETY: a new mapping of a live descriptor; nothing else is touched.
    #[allow(unsafe_code)]
    let mapping = unsafe {
        let mapping = libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.file.as_raw_fd(),
            start,
        );
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A guest's memory has no place in a core file of ours.
        libc::madvise(mapping, mapped, libc::MADV_DONTDUMP);
        mapping as usize
    };
    let into = lent.offset % file.page_bytes;
    let mut region = Region {
        window: Window { guest: lent.guest, length: lent.length, host: mapping + into as usize },
        lent,
        file,
        mapping,
        mapped,
        guarded: None,
    };
    region.guarded = Some(Guarded::new(mapping, mapped)?);
    Ok(region)
}
