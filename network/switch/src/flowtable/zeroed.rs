//! Large arrays of zeros, in huge pages where the kernel has them to give.
//!
//! Address space is taken at once, memory when it is first touched: an array for the most flows that there may be costs what the
//! flows that there are need. A look-up at random places then touches one entry of the translation buffer a line, and
//! not four levels of a page table.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size and alignment of a huge page, bytes.
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// What may consist of zero bytes.
///
/// # Safety
/// All zeros is a valid value, and dropping it does nothing.
#[allow(unsafe_code)]
pub unsafe trait Zeroable {}

/// See the module.
pub struct Zeroed<T: Zeroable> {
    start: NonNull<T>,
    length: usize,
    /// The whole mapping, which begins in front of the aligned start.
    mapping: (usize, usize),
}

// SAFETY: it owns its memory alone, as a boxed slice does.
#[allow(unsafe_code)]
unsafe impl<T: Zeroable + Send> Send for Zeroed<T> {}
// SAFETY: shared access is that of a slice.
#[allow(unsafe_code)]
unsafe impl<T: Zeroable + Sync> Sync for Zeroed<T> {}

impl<T: Zeroable> Zeroed<T> {
    /// An array of so many zeros.
    pub fn new(length: usize) -> Zeroed<T> {
        let bytes = length * size_of::<T>();
        let is_large = bytes >= HUGE_PAGE_BYTES;
        assert!(bytes > 0 && align_of::<T>() <= 4096);
        let mapped = if is_large { bytes.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES } else { bytes };
        // SAFETY: a new private mapping; the advice concerns no memory but it. Alignment stays inside of it, because a
        // large one has a huge page to spare and a small one needs none.
        #[allow(unsafe_code)]
        unsafe {
            let mapping = libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            assert!(mapping != libc::MAP_FAILED, "the kernel gives no address space for {bytes} bytes");
            let mut start = mapping as usize;
            if is_large {
                start = start.next_multiple_of(HUGE_PAGE_BYTES);
                // Without huge pages it is of small ones.
                libc::madvise(start as *mut libc::c_void, mapped - HUGE_PAGE_BYTES, libc::MADV_HUGEPAGE);
            }
            let start = NonNull::new_unchecked(start as *mut T);
            Zeroed { start, length, mapping: (mapping as usize, mapped) }
        }
    }
}

impl<T: Zeroable> Drop for Zeroed<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; its elements need no dropping.
        #[allow(unsafe_code)]
        unsafe {
            libc::munmap(self.mapping.0 as *mut libc::c_void, self.mapping.1);
        }
    }
}

impl<T: Zeroable> Deref for Zeroed<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `length` elements from `start` are ours, and valid from the beginning.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.length)
        }
    }
}

impl<T: Zeroable> DerefMut for Zeroed<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; the array is borrowed alone.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length)
        }
    }
}

/// Has the line that something begins in fetched.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; any address will do.
    #[allow(unsafe_code)]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Has the line that something begins in fetched to be written: no other processor has it then.
#[inline(always)]
pub fn prefetch_to_write<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; any address will do. Processors that do not know it take it for no instruction. The compiler's own form of it
    // is made only for processors that are said to know it.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    prefetch(at);
}
