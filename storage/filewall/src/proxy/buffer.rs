//! What a session has received and not yet sent.
//!
//! [`Input`] is a stretch of received bytes. [`Output`] is a list of parts to send: heads, which were written anew into its own
//! memory, and bodies, which stay where they were received. One system call sends many parts.
//!
//! Invariant: bytes of an input that an output refers to are not moved before they are sent.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::ops::Range;

/// Usual length of an input, bytes.
pub const INPUT_BYTES: usize = 256 << 10;
/// Most parts that one system call sends.
const PARTS_A_CALL: usize = 128;
/// Free space below which received bytes are moved to the front.
const SPACE_BYTES_MIN: usize = 64 << 10;

/// Received bytes.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// Bytes received and not yet consumed.
    pub fn available(&self) -> usize {
        self.end - self.start
    }

    /// Where the next byte is.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The bytes that were received.
    pub fn at_hand(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// All memory, for an output whose parts refer to it.
    pub fn memory(&self) -> &[u8] {
        &self.bytes
    }

    /// Steps over bytes that were dealt with.
    pub fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more consumed than received");
    }

    /// Where to receive into. Empty if there is no space: then `movable` was false, for an output refers to the bytes.
    pub fn space(&mut self, movable: bool) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = vec![0; INPUT_BYTES];
        }
        if movable {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
                if self.bytes.len() > INPUT_BYTES {
                    self.bytes = vec![0; INPUT_BYTES];
                }
            } else if self.bytes.len() - self.end < SPACE_BYTES_MIN {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
        }
        &mut self.bytes[self.end..]
    }

    /// True if [`Input::space`] would not be empty.
    pub fn has_space(&self, movable: bool) -> bool {
        self.bytes.is_empty() || movable || self.end < self.bytes.len()
    }

    /// Gives its memory back while nothing is in it; an output must not refer to it.
    pub fn rest(&mut self) {
        if self.start == self.end {
            *self = Input::default();
        }
    }

    /// Notes that so many bytes were received into [`Input::space`].
    pub fn received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.bytes.len(), "more received than there was space");
    }

    /// Makes room for a record of so many bytes that must be at hand as a whole.
    pub fn make_room(&mut self, bytes: usize) {
        let needed = self.start + bytes;
        if self.bytes.len() < needed {
            self.bytes.resize(needed.next_multiple_of(4096), 0);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Head(Range<usize>),
    Body(Range<usize>),
}

/// Parts to send.
#[derive(Debug, Default)]
pub struct Output {
    heads: Vec<u8>,
    parts: VecDeque<Part>,
    bytes: usize,
    bodies: usize,
}

impl Output {
    /// True if all was sent.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Bytes to send.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if a part refers to the input.
    pub fn pins_input(&self) -> bool {
        self.bodies > 0
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Output { heads: std::mem::take(&mut self.heads), ..Output::default() };
        self.heads.clear();
    }

    /// Queues what `write` appends.
    pub fn head<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.heads.len();
        let result = write(&mut self.heads);
        let end = self.heads.len();
        self.bytes += end - start;
        match self.parts.back_mut() {
            _ if start == end => {}
            Some(Part::Head(last)) if last.end == start => last.end = end,
            _ => self.parts.push_back(Part::Head(start..end)),
        }
        result
    }

    /// What was queued last by [`Output::head`], from `start` of its own memory on.
    pub fn heads_from(&self, start: usize) -> &[u8] {
        &self.heads[start..]
    }

    /// Length of its own memory now.
    pub fn heads_bytes(&self) -> usize {
        self.heads.len()
    }

    /// Queues bytes that stay in the input.
    pub fn body(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.bytes += range.len();
        match self.parts.back_mut() {
            Some(Part::Body(last)) if last.end == range.start => last.end = range.end,
            _ => {
                self.bodies += 1;
                self.parts.push_back(Part::Body(range));
            }
        }
    }

    /// Sends as much as `to` takes; true if all was sent.
    ///
    /// # Errors
    /// What `to` says, except that it would block.
    pub fn flush(&mut self, to: &mut impl Write, input: &[u8]) -> io::Result<bool> {
        while !self.parts.is_empty() {
            let mut slices = [IoSlice::new(&[]); PARTS_A_CALL];
            let mut count = 0;
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = IoSlice::new(match part {
                    Part::Head(range) => &self.heads[range.clone()],
                    Part::Body(range) => &input[range.clone()],
                });
                count += 1;
            }
            // One part alone is cheaper to send as such.
            let sent = if count == 1 { to.write(&slices[0]) } else { to.write_vectored(&slices[..count]) };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn sent(&mut self, mut sent: usize) {
        self.bytes -= sent;
        while let Some(part) = self.parts.front_mut() {
            let range = match part {
                Part::Head(range) | Part::Body(range) => range,
            };
            let here = range.len().min(sent);
            range.start += here;
            sent -= here;
            if range.start < range.end {
                break;
            }
            if matches!(self.parts.pop_front(), Some(Part::Body(_))) {
                self.bodies -= 1;
            }
        }
        if self.parts.is_empty() {
            self.heads.clear();
        }
    }
}

#[cfg(test)]
mod tests;
