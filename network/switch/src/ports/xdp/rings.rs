//! The rings that we share with the kernel, and the memory that frames are exchanged in (linux/if_xdp.h).
//!
//! A ring has one writer and one reader, of which we are one: both count up without end, and whoever reads waits for nobody. The
//! kernel is believed in what it puts into rings, but for places and lengths, which are checked before anything is read there.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory that is unmapped when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its mapping alone.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}

impl Mapping {
    /// A part of what a descriptor stands for, all of it there at once.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn shared(fd: BorrowedFd<'_>, bytes: usize, offset: libc::off_t) -> io::Result<Mapping> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at a place of the kernel's choice.
        #[allow(unsafe_code)]
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_raw_fd(), offset) };
        match NonNull::new(start.cast::<u8>()) {
            Some(at) if start != libc::MAP_FAILED => Ok(Mapping { start: at, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where it begins.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a pointer into it any more.
        #[allow(unsafe_code)]
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
        }
    }
}

/// A ring of `T`, of which we write the producer's or the consumer's side.
pub struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    entries: usize,
    flags: usize,
    size: u32,
    /// Our own side's next place.
    next: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries, a power of two, that was made before.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn map(
        socket: BorrowedFd<'_>,
        size: u32,
        offsets: &libc::xdp_ring_offset,
        page_offset: libc::off_t,
    ) -> io::Result<Ring<T>> {
        assert!(size.is_power_of_two());
        let (producer, consumer) = (offsets.producer as usize, offsets.consumer as usize);
        let (entries, flags) = (offsets.desc as usize, offsets.flags as usize);
        let bytes = entries + size as usize * size_of::<T>();
        let mapping = Mapping::shared(socket, bytes, page_offset)?;
        let fits = [producer, consumer, flags].iter().all(|at| at + 4 <= bytes);
        assert!(fits && entries.is_multiple_of(align_of::<T>()), "the kernel's own offsets");
        Ok(Ring {
            mapping,
            producer,
            consumer,
            entries,
            flags,
            size,
            next: 0,
            kind: std::marker::PhantomData,
        })
    }

    #[inline]
    fn index(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside of the mapping and aligned, asserted when it was mapped.
        #[allow(unsafe_code)]
        unsafe {
            AtomicU32::from_ptr(self.mapping.start().add(at).cast())
        }
    }

    #[inline]
    fn entry(&self, number: u32) -> *mut T {
        let at = (number & (self.size - 1)) as usize;
        // The mapping has `size` entries from there.
        self.mapping.start().wrapping_add(self.entries).cast::<T>().wrapping_add(at)
    }

    /// Of a ring that we write: how many more fit.
    #[inline]
    pub fn room(&self) -> u32 {
        let taken = self.index(self.consumer).load(Ordering::Acquire);
        self.size - self.next.wrapping_sub(taken).min(self.size)
    }

    /// Writes an entry, for which there is room. Nobody sees it before [`Ring::publish`].
    #[inline]
    pub fn put(&mut self, entry: T) {
        // SAFETY: an entry of the mapping that the kernel does not read now.
        #[allow(unsafe_code)]
        unsafe {
            self.entry(self.next).write(entry);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Shows what was put.
    #[inline]
    pub fn publish(&self) {
        self.index(self.producer).store(self.next, Ordering::Release);
    }

    /// Of a ring that we write: whether the device stands still until it is woken, as one that writes into our memory itself may.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.index(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Of a ring that we write: entries that are shown and not taken yet.
    #[inline]
    pub fn untaken(&self) -> u32 {
        self.next.wrapping_sub(self.index(self.consumer).load(Ordering::Acquire))
    }

    /// Of a ring that we read: how many entries wait.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.index(self.producer).load(Ordering::Acquire).wrapping_sub(self.next).min(self.size)
    }

    /// The entry `ahead` of the next; there must be so many.
    #[inline]
    pub fn peek(&self, ahead: u32) -> T {
        // SAFETY: an entry of the mapping that the kernel does not write now.
        #[allow(unsafe_code)]
        unsafe {
            self.entry(self.next.wrapping_add(ahead)).read()
        }
    }

    /// Of a ring that we write: the entry `ahead` of those that are shown and not taken yet; there must be so many.
    pub fn shown(&self, ahead: u32) -> T {
        let first = self.index(self.consumer).load(Ordering::Acquire);
        // SAFETY: an entry of the mapping, of which the kernel writes none in such a ring.
        #[allow(unsafe_code)]
        unsafe {
            self.entry(first.wrapping_add(ahead)).read()
        }
    }

    /// Of a ring that we write: goes on where it was shown last, by whatever process.
    pub fn go_on_writing(&mut self) {
        self.next = self.index(self.producer).load(Ordering::Acquire);
    }

    /// Of a ring that we read: goes on where it was read last.
    pub fn go_on_reading(&mut self) {
        self.next = self.index(self.consumer).load(Ordering::Acquire);
    }

    /// How many entries the kernel has taken out of a ring that we write, ever.
    pub fn taken(&self) -> u32 {
        self.index(self.consumer).load(Ordering::Acquire)
    }

    /// How many entries the kernel has put into a ring that we read, ever.
    pub fn given(&self) -> u32 {
        self.index(self.producer).load(Ordering::Acquire)
    }

    /// Is done with entries.
    #[inline]
    pub fn take(&mut self, count: u32) {
        self.next = self.next.wrapping_add(count);
        self.index(self.consumer).store(self.next, Ordering::Release);
    }
}
