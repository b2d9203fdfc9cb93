//! A shared mapping that is read and written word by word, atomically, within its bounds.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::fd::AsFd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that other processes, or the kernel, change at any time.
///
/// Invariant: `base` points to `bytes` bytes that stay mapped until this is dropped; `bytes` is a multiple of 8.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the memory is only touched by atomic operations, and unmapped by the owner alone.
unsafe impl Send for Memory {}
// SAFETY: as above; all access through a shared reference is atomic.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps `bytes` bytes of a file from `offset` on. The file must be as long, and stay so: the caller checks that.
    pub(crate) fn map(fd: impl AsFd, offset: u64, bytes: usize, writable: bool) -> Result<Memory> {
        assert!(bytes > 0 && bytes.is_multiple_of(8), "a mapping is made of words");
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, offset) }
            .map_err(|error| Error::io(format!("mapping {bytes} bytes of a sensor box"), error))?;
        let Some(base) = NonNull::new(base.cast()) else {
            return Err(Error::io("mapping a sensor box", std::io::ErrorKind::OutOfMemory));
        };
        Ok(Memory { base, bytes, writable })
    }

    /// Makes its pages present for reading, where the kernel can (Linux 5.14); else each is made at its first touch.
    pub(crate) fn populate(&self) {
        // SAFETY: exactly this range was mapped by `map`; the advice changes no content.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxPopulateRead) };
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "word at {at} of {} bytes", self.bytes);
        // SAFETY: the address is inside the mapping and aligned, as was just checked; the mapping lives as long as
        // `self`; an atomic tolerates any other writer, and every bit pattern is a value.
        unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU64>() }
    }

    pub(crate) fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    /// A word that may be written.
    pub(crate) fn cell(&self, at: usize) -> &AtomicU64 {
        assert!(self.writable, "a mapping for reading is not written");
        self.word(at)
    }

    /// Reads zero-padded text of `N` words.
    pub(crate) fn text(&self, at: usize, words: usize) -> String {
        let mut bytes = Vec::with_capacity(words * 8);
        for index in 0..words {
            bytes.extend_from_slice(&self.load(at + index * 8, Ordering::Relaxed).to_ne_bytes());
        }
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let printable = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' };
        bytes[..end].iter().map(printable).collect()
    }

    /// Whether `words` words hold this text and nothing more.
    pub(crate) fn is_text(&self, at: usize, words: usize, text: &str) -> bool {
        let mut wanted = text.bytes();
        for index in 0..words {
            let found = self.load(at + index * 8, Ordering::Relaxed).to_ne_bytes();
            for byte in found {
                match wanted.next() {
                    None => return byte == 0,
                    Some(other) if other != byte => return false,
                    Some(_) => {}
                }
            }
        }
        wanted.next().is_none()
    }

    /// Writes zero-padded text into `words` words.
    pub(crate) fn set_text(&self, at: usize, words: usize, text: &str) {
        let mut bytes = text.bytes();
        for index in 0..words {
            let mut word = [0_u8; 8];
            for byte in &mut word {
                *byte = bytes.next().unwrap_or(0);
            }
            self.cell(at + index * 8).store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly this range was mapped by `map`, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "the range is the one that was mapped");
    }
}
