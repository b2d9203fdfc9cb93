//! What a monitor offers: the one place where its descriptors and numbers become ours.
//!
//! A descriptor of a monitor is an open file that it goes on having: it may change the file's flags, its length, and what is in it at any
//! time. So what kind of file it is, which cannot change, is checked, and nothing else about it is believed: an [`Event`] is watched or
//! signalled (`calls`), never read or written; a memory file is mapped, guarded (`guard`) and never read or written by a call.

use super::QUEUE_SIZE_MAX;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

const TMPFS: libc::c_long = 0x0102_1994;
const HUGETLBFS: libc::c_long = 0x9584_58f6;

/// An eventfd of a monitor's. It has no way to be read or written, both of which could wait for ever.
#[derive(Clone, Debug)]
pub struct Event(Arc<OwnedFd>);

impl Event {
    /// One that was offered.
    ///
    /// # Errors
    /// It is no eventfd, and what it is.
    pub fn offered(file: OwnedFd) -> io::Result<Event> {
        let what = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if what.as_os_str() != "anon_inode:[eventfd]" {
            return Err(wrong(format!("a queue's event is '{}': it must be an eventfd", what.display())));
        }
        Ok(Event(Arc::new(file)))
    }

    /// The same event, for another process.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A memory file of a monitor's.
#[derive(Debug)]
pub struct MemoryFile {
    /// The file.
    pub file: OwnedFd,
    /// Bytes of its pages; a power of two.
    pub page_bytes: u64,
    /// Its length when it was offered. It may be another by now, which is what `guard` is for.
    pub length: u64,
}

impl MemoryFile {
    /// One that was offered.
    ///
    /// # Errors
    /// It is no file in memory: a page of another file system may keep whoever touches it waiting for as long as its owner likes.
    pub fn offered(file: OwnedFd) -> io::Result<MemoryFile> {
        let status = rustix::fs::fstatfs(file.as_fd())?;
        if !matches!(status.f_type as libc::c_long, TMPFS | HUGETLBFS) {
            let text = "the lent memory is no memory file: use a memfd, or a file on tmpfs or hugetlbfs, and share it";
            return Err(wrong(text.into()));
        }
        let length = u64::try_from(rustix::fs::fstat(file.as_fd())?.st_size).unwrap_or(0);
        // Of huge pages the length is a multiple; of small ones too.
        let page_bytes = u64::try_from(status.f_bsize).unwrap_or(0).max(4096).next_power_of_two();
        Ok(MemoryFile { file, page_bytes, length })
    }

    /// Which file it is, and bytes of it that are there, in the whole file.
    pub fn filled(&self) -> Option<((u64, u64), u64)> {
        let status = rustix::fs::fstat(self.file.as_fd()).ok()?;
        Some(((status.st_dev, status.st_ino), u64::try_from(status.st_blocks).ok()?.saturating_mul(512)))
    }
}

/// An event that was offered, or none.
///
/// # Errors
/// As [`Event::offered`].
pub fn event(file: Option<File>) -> io::Result<Option<Event>> {
    file.map(|file| Event::offered(file.into())).transpose()
}

/// A number that is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// A queue has a length that none can have.
    #[error("queue {index} has {size} descriptors: a power of two up to {QUEUE_SIZE_MAX} is right")]
    QueueSize {
        /// The queue.
        index: u32,
        /// Its length.
        size: u32,
    },
    /// There is no such queue.
    #[error("there are {count} queues, and {index} is not one of them")]
    NoQueue {
        /// The queue.
        index: u32,
        /// How many there are.
        count: usize,
    },
    /// Features are wanted that were not offered.
    #[error("features {unknown:#x} are wanted that were not offered")]
    Features {
        /// Those, as bits.
        unknown: u64,
    },
}

/// Number of descriptors of a queue.
///
/// # Errors
/// [`OfferError::QueueSize`].
pub fn queue_size(index: u32, size: u32) -> Result<u16, OfferError> {
    let right = u16::try_from(size).ok().filter(|size| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX);
    right.ok_or(OfferError::QueueSize { index, size })
}

/// Number of a queue, of so many.
///
/// # Errors
/// [`OfferError::NoQueue`].
pub fn queue_index(index: u32, count: usize) -> Result<usize, OfferError> {
    let right = usize::try_from(index).ok().filter(|index| *index < count);
    right.ok_or(OfferError::NoQueue { index, count })
}

/// Features that are wanted, of those that were offered.
///
/// # Errors
/// [`OfferError::Features`].
pub fn features(wanted: u64, offered: u64) -> Result<u64, OfferError> {
    match wanted & !offered {
        0 => Ok(wanted),
        unknown => Err(OfferError::Features { unknown }),
    }
}

pub(super) fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
