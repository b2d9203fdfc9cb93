//! Memory for frames: aligned to a huge page, and of huge pages where the kernel has them to give.
//!
//! The kernel copies every byte of a frame into or out of these buffers. It copies faster to where a cache line begins, and
//! touches one entry of the translation buffer and not sixteen for a super-frame.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size and alignment of a huge page, bytes.
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// A buffer of fixed length, zero at first.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: it owns its memory alone, as a boxed slice does.
#[allow(unsafe_code)]
unsafe impl Send for Buffer {}

impl Buffer {
    /// A buffer of `length` bytes.
    pub fn new(length: usize) -> Buffer {
        assert!(length > 0);
        let size = length.next_multiple_of(HUGE_PAGE_BYTES);
        let layout = match Layout::from_size_align(size, HUGE_PAGE_BYTES) {
            Ok(layout) => layout,
            Err(_) => unreachable!("{length} bytes are no size of a buffer"),
        };
        // SAFETY: the size is not zero. The memory is ours, and is written in full before anybody reads it.
        #[allow(unsafe_code)]
        unsafe {
            let Some(start) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            // Without huge pages the buffer is of small ones.
            libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE);
            start.as_ptr().write_bytes(0, length);
            Buffer { start, length, layout }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        #[allow(unsafe_code)]
        unsafe {
            dealloc(self.start.as_ptr(), self.layout);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes from `start` are ours and were written in `new`.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.length)
        }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the buffer is borrowed alone.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length)
        }
    }
}
