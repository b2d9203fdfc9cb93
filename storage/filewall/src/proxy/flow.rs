//! One direction of a session: records come in, heads and bodies go out.

use super::buffer::{Input, Output};
use crate::wire::nfs3::PAYLOAD_BYTES_MAX;
use crate::wire::rpc::record_mark;
use crate::wire::xdr::get_u32;
use std::io::{self, Read, Write};

/// Longest record, bytes: the longest payload and a head.
pub const RECORD_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + (64 << 10);
/// Most fragments of a record: enough for the longest one in pieces of 2 KB, as some clients send it.
pub const FRAGMENTS_MAX: usize = 1024;
/// Bytes waiting to be sent above which a session stops reading.
pub const BACKLOG_BYTES_MAX: usize = 512 << 10;

/// Where the next record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the input, behind its mark; perhaps only its beginning.
    Input {
        /// Its full length, bytes.
        bytes: usize,
    },
    /// Put together from fragments.
    Gathered,
}

/// A record that breaks the rules: the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord;

/// One direction.
#[derive(Debug, Default)]
pub struct Flow {
    /// Received.
    pub input: Input,
    /// To be sent.
    pub output: Output,
    /// Bytes of the record in hand whose head was dealt with.
    body_left: usize,
    /// Whether they go out.
    body_forward: bool,
    gathered: Vec<u8>,
    fragments: usize,
    gathering_done: bool,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// Bytes.
    Bytes,
    /// Nothing now.
    Nothing,
    /// The end.
    End,
}

impl Flow {
    /// True if there is space to receive into.
    pub fn can_read(&mut self) -> bool {
        let movable = !self.output.pins_input();
        self.output.bytes() < BACKLOG_BYTES_MAX
            && (self.input.has_space(false) || movable && !self.input.space(movable).is_empty())
    }

    /// Gives the memory of its input back, as long as nothing is in it.
    pub fn rest(&mut self) {
        if !self.output.pins_input() && self.gathered.is_empty() {
            self.input.rest();
        }
    }

    /// Reads once; the caller has seen that there is space.
    ///
    /// # Errors
    /// What `from` says, except that it would block.
    pub fn read(&mut self, from: &mut impl Read) -> io::Result<Came> {
        let movable = !self.output.pins_input();
        match from.read(self.input.space(movable)) {
            Ok(0) => Ok(Came::End),
            Ok(bytes) => {
                self.input.received(bytes);
                Ok(Came::Bytes)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Came::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends what can be sent; true if all was.
    ///
    /// # Errors
    /// What `to` says, except that it would block.
    pub fn flush(&mut self, to: &mut impl Write) -> io::Result<bool> {
        self.output.flush(to, self.input.memory())
    }

    /// Passes on, or skips, what is at hand of the body; true if the whole body is through.
    pub fn pass_body(&mut self) -> bool {
        let bytes = self.body_left.min(self.input.available());
        if bytes > 0 {
            if self.body_forward {
                let start = self.input.start();
                self.output.body(start..start + bytes);
            }
            self.input.consume(bytes);
            self.body_left -= bytes;
        }
        self.body_left == 0
    }

    /// True between two records, when something else may be put in between.
    pub fn at_boundary(&self) -> bool {
        self.body_left == 0 || !self.body_forward
    }

    /// Forgets what was received and not yet dealt with: its sender is gone.
    pub fn abandon_input(&mut self) {
        self.input.consume(self.input.available());
        self.gathered = Vec::new();
        self.fragments = 0;
        self.gathering_done = false;
    }

    /// Finds the next record, gathering fragments. `None` if more must be received first.
    ///
    /// # Errors
    /// [`BadRecord`] if it is longer than [`RECORD_BYTES_MAX`] or has more than [`FRAGMENTS_MAX`] fragments.
    pub fn next_record(&mut self) -> Result<Option<Source>, BadRecord> {
        loop {
            if self.gathering_done {
                return Ok(Some(Source::Gathered));
            }
            let available = self.input.available();
            if available < 4 {
                return Ok(None);
            }
            let (bytes, last) = record_mark(get_u32(self.input.at_hand(), 0));
            if self.gathered.len() + bytes > RECORD_BYTES_MAX {
                return Err(BadRecord);
            }
            if last && self.fragments == 0 {
                return Ok(Some(Source::Input { bytes }));
            }
            if available < 4 + bytes {
                self.input.make_room(4 + bytes);
                return Ok(None);
            }
            self.fragments += 1;
            if self.fragments > FRAGMENTS_MAX {
                return Err(BadRecord);
            }
            self.gathered.extend_from_slice(&self.input.at_hand()[4..4 + bytes]);
            self.input.consume(4 + bytes);
            self.gathering_done = last;
        }
    }

    /// The record that [`Flow::next_record`] has found, as far as it is at hand, and its full length; and where to queue
    /// what goes out.
    pub fn record(&mut self, source: Source) -> (&mut [u8], usize, &mut Output) {
        match source {
            Source::Gathered => {
                let bytes = self.gathered.len();
                (&mut self.gathered, bytes, &mut self.output)
            }
            Source::Input { bytes } => {
                let at_hand = &mut self.input.at_hand()[4..];
                let here = at_hand.len().min(bytes);
                (&mut at_hand[..here], bytes, &mut self.output)
            }
        }
    }

    /// More of the record is needed before its head can be read.
    pub fn want_more(&mut self, source: Source) {
        if let Source::Input { bytes } = source {
            self.input.make_room(4 + bytes);
        }
    }

    /// True if the whole record is at hand.
    pub fn is_whole(&self, source: Source) -> bool {
        match source {
            Source::Gathered => true,
            Source::Input { bytes } => self.input.available() >= 4 + bytes,
        }
    }

    /// The head of the record was dealt with, up to `head_end`; the rest goes out, or is skipped.
    pub fn done(&mut self, source: Source, head_end: usize, forward: bool) {
        match source {
            Source::Input { bytes } => {
                let here = (4 + head_end).min(self.input.available());
                self.input.consume(here);
                self.body_left = 4 + bytes - here;
                self.body_forward = forward;
            }
            Source::Gathered => {
                if forward {
                    let rest = &self.gathered[head_end..];
                    self.output.head(|out| out.extend_from_slice(rest));
                }
                self.gathered = Vec::new();
                self.fragments = 0;
                self.gathering_done = false;
            }
        }
    }
}

#[cfg(test)]
mod tests;
