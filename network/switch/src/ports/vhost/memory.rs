//! A guest's memory as it was lent: files, mapped here.
//!
//! Only files in memory are taken (`memfd`, hugetlbfs, tmpfs): a page of another file system may keep whoever touches it waiting for
//! as long as its owner likes.
//!
//! Invariant: no reference to this memory is ever made, because the guest changes it at any time. It is read and written by
//! raw copies and single atomic loads and stores, inside of what [`Memory::at`] allows.

use super::guard::Guarded;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Most regions of one guest: what a message of the protocol holds.
pub const REGIONS_MAX: usize = 32;

const TMPFS: libc::c_long = 0x0102_1994;
const HUGETLBFS: libc::c_long = 0x9584_58f6;

/// A region as the virtual machine monitor describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Address in the guest.
    pub guest: u64,
    /// Address in the monitor, by which it tells where queues are.
    pub user: u64,
    /// Bytes.
    pub length: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

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
    file: OwnedFd,
    /// The mapping, which begins with the file.
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
}

fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
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
        let mut regions =
            lent.into_iter().map(|(lent, file)| map(lent, file)).collect::<io::Result<Vec<_>>>()?;
        regions.sort_by_key(|region| std::cmp::Reverse(region.window.length));
        Ok(Memory { largest: regions[0].window, regions })
    }

    /// The regions as they were lent, with descriptors of their own.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn lent(&self) -> io::Result<Vec<(Lent, OwnedFd)>> {
        self.regions.iter().map(|region| Ok((region.lent, region.file.try_clone()?))).collect()
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

fn map(lent: Lent, file: OwnedFd) -> io::Result<Region> {
    let status = rustix::fs::fstatfs(file.as_fd())?;
    if !matches!(status.f_type as libc::c_long, TMPFS | HUGETLBFS) {
        return Err(wrong(
            "the lent memory is no memory file: use a memfd, or a file on tmpfs or hugetlbfs, and share it"
                .into(),
        ));
    }
    let whole = lent.offset.checked_add(lent.length).filter(|end| *end <= isize::MAX as u64 / 2);
    let ends = [lent.guest, lent.user].map(|start| start.checked_add(lent.length));
    let (Some(whole), [Some(_), Some(_)], true) = (whole, ends, lent.length > 0) else {
        return Err(wrong(format!("a region of lent memory has no proper bounds: {lent:?}")));
    };
    let file_bytes = rustix::fs::fstat(file.as_fd())?.st_size as u64;
    if whole > file_bytes {
        return Err(wrong(format!("{whole} bytes of a memory file are lent that has {file_bytes}")));
    }
    // Of huge pages the length is a multiple; of small ones too.
    let page = (status.f_bsize as u64).max(4096);
    let mapped =
        usize::try_from(whole.next_multiple_of(page)).map_err(|_| wrong("too much memory".into()))?;
    // SAFETY: a new mapping of a live descriptor; nothing else is touched.
    #[allow(unsafe_code)]
    let mapping = unsafe {
        let mapping = libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        );
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A guest's memory has no place in a core file of ours.
        libc::madvise(mapping, mapped, libc::MADV_DONTDUMP);
        mapping as usize
    };
    let mut region = Region {
        window: Window { guest: lent.guest, length: lent.length, host: mapping + lent.offset as usize },
        lent,
        file,
        mapping,
        mapped,
        guarded: None,
    };
    region.guarded = Some(Guarded::new(mapping, mapped)?);
    Ok(region)
}
