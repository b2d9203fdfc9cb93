//! Memory of removed files, given back to the system.
//!
//! A block is taken out of the free list before its memory goes, so nobody uses it meanwhile; afterwards it is in the list of those that have none, which are
//! taken last. A daemon that dies in between leaves at most [`AT_ONCE`] blocks to nobody.

use super::{BLOCK_BYTES, Head, Segment};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Blocks that are nobody's at once.
const AT_ONCE: usize = 1024;

unsafe extern "C" {
    fn segment_take_free(segment: *mut Head, blocks: *mut u32, most: u64) -> u64;
    fn segment_bare(segment: *mut Head, block: u32);
    fn segment_free(segment: *mut Head, block: u32);
}

impl Segment {
    /// Free blocks that have memory.
    pub fn blocks_idle(&self) -> u64 {
        let head = self.head();
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        // One that is just taken may be counted twice.
        (of(&head.next_block) - 1).saturating_sub(of(&head.blocks_used) + of(&head.bare_count))
    }

    /// Gives memory of free blocks back, but for `kept` of them; how many blocks it was.
    ///
    /// # Errors
    /// What the system says; then the rest stays.
    pub fn give_back(&self, kept: u64) -> std::io::Result<u64> {
        let mut done = 0;
        let mut blocks = vec![0u32; AT_ONCE];
        loop {
            let wanted = self.blocks_idle().saturating_sub(kept).min(AT_ONCE as u64);
            // SAFETY: the segment is mapped, and there is room for so many.
            let count = unsafe { segment_take_free(self.head, blocks.as_mut_ptr(), wanted) } as usize;
            if count == 0 {
                return Ok(done);
            }
            let some = &mut blocks[..count];
            some.sort_unstable();
            let mut failed = None;
            for run in some.chunk_by(|one, next| one + 1 == *next) {
                if failed.is_none() {
                    failed = self.punch_out(run[0], run.len() as u64).err();
                }
                for block in run {
                    let give = if failed.is_none() { segment_bare } else { segment_free };
                    // SAFETY: taken above, so it is nobody's, and it is given once.
                    unsafe { give(self.head, *block) };
                }
            }
            match failed {
                Some(error) => return Err(error),
                None => done += count as u64,
            }
        }
    }

    fn punch_out(&self, first: u32, count: u64) -> std::io::Result<()> {
        let begin = self.head().blocks_offset + u64::from(first) * BLOCK_BYTES;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let bytes = count * BLOCK_BYTES;
        // SAFETY: plain numbers, on our own descriptor; nobody uses what lies there.
        let punched = unsafe { libc::fallocate(self.memory.as_raw_fd(), mode, begin as i64, bytes as i64) };
        if punched == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}
