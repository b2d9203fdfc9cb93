//! A bounded ring of frames between two threads (row A23): one producer, one consumer, no lock, no
//! allocation. Frames lie in one byte area, each in one piece, so that a small frame costs little
//! room and a 64 KiB one is possible.
//!
//! Why the `unsafe` is sound: records `[tail, head)` belong to the consumer, the others to the
//! producer; the same holds for the bytes that they name. `head` is stored with release after the
//! record is written and loaded with acquire before it is read; `tail` the other way round.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Record<H> {
    header: Option<H>,
    start: usize,
    length: usize,
    /// Position in the endless stream of bytes behind this record.
    end: usize,
}

struct Ring<H> {
    records: Box<[UnsafeCell<Record<H>>]>,
    bytes: Box<[UnsafeCell<u8>]>,
    head: AtomicUsize,
    tail: AtomicUsize,
    bytes_tail: AtomicUsize,
}

// SAFETY: see the module's text; each cell has one owner at a time.
#[allow(unsafe_code)]
unsafe impl<H: Send> Sync for Ring<H> {}
// SAFETY: it owns all that it has.
#[allow(unsafe_code)]
unsafe impl<H: Send> Send for Ring<H> {}

/// Puts frames in.
pub struct FrameProducer<H> {
    ring: Arc<Ring<H>>,
    head: usize,
    bytes_head: usize,
}

/// Takes frames out.
pub struct FrameConsumer<H> {
    ring: Arc<Ring<H>>,
    tail: usize,
}

/// The ring had no room; the frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFull;

/// A ring for at most `records` frames of `bytes` in all.
pub fn frame_ring<H: Copy>(records: usize, bytes: usize) -> (FrameProducer<H>, FrameConsumer<H>) {
    let empty = || UnsafeCell::new(Record { header: None, start: 0, length: 0, end: 0 });
    let ring = Arc::new(Ring {
        records: (0..records).map(|_| empty()).collect(),
        bytes: (0..bytes).map(|_| UnsafeCell::new(0)).collect(),
        head: AtomicUsize::new(0),
        tail: AtomicUsize::new(0),
        bytes_tail: AtomicUsize::new(0),
    });
    let producer = FrameProducer { ring: Arc::clone(&ring), head: 0, bytes_head: 0 };
    (producer, FrameConsumer { ring, tail: 0 })
}

impl<H: Copy> FrameProducer<H> {
    /// Copies a frame, given in pieces, into the ring.
    ///
    /// # Errors
    /// [`RingFull`].
    pub fn push(&mut self, header: H, pieces: &[&[u8]]) -> Result<(), RingFull> {
        let ring = &*self.ring;
        if self.head - ring.tail.load(Ordering::Acquire) >= ring.records.len() {
            return Err(RingFull);
        }
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        let size = ring.bytes.len();
        let mut from = self.bytes_head;
        if from % size + length > size {
            from += size - from % size;
        }
        if from + length - ring.bytes_tail.load(Ordering::Acquire) > size {
            return Err(RingFull);
        }
        let start = from % size;
        let mut at = start;
        for piece in pieces {
            // SAFETY: `[start, start + length)` is inside the area (checked above) and behind the
            // consumer's tail, so only we touch it.
            #[allow(unsafe_code)]
            unsafe {
                let target = ring.bytes.as_ptr().add(at).cast_mut().cast::<u8>();
                std::ptr::copy_nonoverlapping(piece.as_ptr(), target, piece.len());
            }
            at += piece.len();
        }
        let record = Record { header: Some(header), start, length, end: from + length };
        // SAFETY: the record at `head` is not the consumer's until `head` is stored.
        #[allow(unsafe_code)]
        unsafe {
            *ring.records[self.head % ring.records.len()].get() = record;
        }
        self.bytes_head = from + length;
        self.head += 1;
        ring.head.store(self.head, Ordering::Release);
        Ok(())
    }
}

impl<H: Copy> FrameProducer<H> {
    /// Frames that were ever put in.
    #[inline]
    pub fn pushed(&self) -> usize {
        self.head
    }

    /// Frames that were not taken out yet.
    pub fn waiting(&self) -> usize {
        self.head - self.ring.tail.load(Ordering::Acquire)
    }

    /// Whether all were taken out.
    pub fn is_empty(&self) -> bool {
        self.waiting() == 0
    }
}

impl<H: Copy> FrameConsumer<H> {
    /// Frames that wait.
    pub fn waiting(&self) -> usize {
        self.ring.head.load(Ordering::Acquire) - self.tail
    }

    /// The oldest frame; it stays until [`FrameConsumer::pop`].
    pub fn peek(&self) -> Option<(H, &[u8])> {
        let ring = &*self.ring;
        if self.tail == ring.head.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the record is between tail and head, so it is ours, and so are its bytes. The
        // borrow of `self` keeps `pop`, which gives them back, away.
        #[allow(unsafe_code)]
        let (record, frame) = unsafe {
            let record = &*ring.records[self.tail % ring.records.len()].get();
            let first = ring.bytes.as_ptr().add(record.start).cast::<u8>();
            (record, std::slice::from_raw_parts(first, record.length))
        };
        record.header.map(|header| (header, frame))
    }

    /// Gives the oldest frame's room back.
    pub fn pop(&mut self) {
        let ring = &*self.ring;
        if self.tail == ring.head.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: as in `peek`.
        #[allow(unsafe_code)]
        let end = unsafe { (*ring.records[self.tail % ring.records.len()].get()).end };
        ring.bytes_tail.store(end, Ordering::Release);
        self.tail += 1;
        ring.tail.store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
