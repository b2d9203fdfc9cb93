//! Files that are stored as they are, with a checksum.
//!
//! Nothing of one is given before all of it was run through once: what does not have the checksum that the archive says is an error, wherever it
//! is read.

use super::source::{Source, damaged, read_all};
use std::io::Result;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes that are run through at once.
const PIECE_BYTES: u64 = 256 * 1024;
const UNKNOWN: u8 = 0;
const RIGHT: u8 = 1;
const WRONG: u8 = 2;

/// A file in one piece of the archive.
#[derive(Debug)]
pub(super) struct Checked {
    start: u64,
    bytes: u64,
    checksum: u32,
    state: AtomicU8,
}

impl Checked {
    pub(super) fn new(start: u64, bytes: u64, checksum: u32) -> Checked {
        Checked { start, bytes, checksum, state: AtomicU8::new(UNKNOWN) }
    }

    /// Two who read it first at the same time both run through it.
    fn is_right(&self, from: &dyn Source) -> Result<bool> {
        match self.state.load(Ordering::Acquire) {
            UNKNOWN => {}
            known => return Ok(known == RIGHT),
        }
        let mut sum = crc32fast::Hasher::new();
        let mut piece = vec![0; self.bytes.min(PIECE_BYTES) as usize];
        let mut at = 0;
        while at < self.bytes {
            let part = (self.bytes - at).min(PIECE_BYTES);
            read_all(from, self.start.saturating_add(at), &mut piece[..part as usize])?;
            sum.update(&piece[..part as usize]);
            at += part;
        }
        let right = sum.finalize() == self.checksum;
        self.state.store(if right { RIGHT } else { WRONG }, Ordering::Release);
        Ok(right)
    }

    /// As [`Source::read_at`].
    pub(super) fn read_at(&self, from: &dyn Source, offset: u64, to: &mut [u8]) -> Result<usize> {
        if !self.is_right(from)? {
            return Err(damaged(format!("a stored member does not have the checksum {:08x}", self.checksum)));
        }
        from.read_at(self.start.saturating_add(offset), to)
    }
}
