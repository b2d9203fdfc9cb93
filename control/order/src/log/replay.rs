//! Reads entries back in order.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use weir_base::world::Disk;

use super::record::Kind;
use super::scan::Scanner;
use super::segment::{self, SegmentHeader};
use crate::engine::Entry;
use crate::error::Error;
use crate::position::Position;

/// The entries of a range of indices, in order, each checked as it is read. Ends after the first error.
pub struct Replay {
    disk: Arc<dyn Disk>,
    segments: VecDeque<SegmentHeader>,
    scanner: Option<(u64, Scanner)>,
    next_index: u64,
    last_index: u64,
}

impl Replay {
    /// `segments` are all of the log, oldest first, and hold `from_index` to `last_index`.
    pub(super) fn new(disk: Arc<dyn Disk>, segments: &[SegmentHeader], from: u64, last_index: u64) -> Replay {
        let skip = segments.iter().skip(1).take_while(|segment| segment.first_index <= from).count();
        let segments = segments.iter().skip(skip).copied().collect();
        Replay { disk, segments, scanner: None, next_index: from, last_index }
    }

    fn read(&mut self) -> Result<Entry, Error> {
        loop {
            let (number, mut scanner) = match self.scanner.take() {
                Some(open) => open,
                None => self.open_next()?,
            };
            let name = segment::file_name(number);
            let (offset, last_index) = (scanner.offset, scanner.last.index);
            let io = |error| Error::io("reading", &name, &self.disk.describe(), error);
            match scanner.next().map_err(io)? {
                Ok((header, body)) => {
                    let wanted = header.kind == Kind::Entry && header.index == self.next_index;
                    let position = Position { term: header.term, index: header.index };
                    let entry = wanted.then(|| Entry { position, batch: Bytes::copy_from_slice(body) });
                    self.scanner = Some((number, scanner));
                    if let Some(entry) = entry {
                        self.next_index += 1;
                        return Ok(entry);
                    }
                }
                // The rest of a segment; the next one must begin with the next index.
                Err(_) if self.segments.front().is_some_and(|next| next.first_index == last_index + 1) => {}
                Err(flaw) => {
                    let what = format!("{flaw}, where index {} belongs", last_index + 1);
                    let dir = self.disk.describe();
                    return Err(Error::Corrupt { file: name, dir, offset, index: last_index, what });
                }
            }
        }
    }

    fn open_next(&mut self) -> Result<(u64, Scanner), Error> {
        let Some(header) = self.segments.pop_front() else {
            let right = format!("the log's segments end before index {}", self.last_index);
            return Err(Error::Index { index: self.next_index, right });
        };
        let name = segment::file_name(header.number);
        let file = self
            .disk
            .open(&name)
            .map_err(|error| Error::io("opening", &name, &self.disk.describe(), error))?;
        Ok((header.number, Scanner::new(file, &header)))
    }
}

impl Iterator for Replay {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next_index > self.last_index {
            return None;
        }
        let result = self.read();
        if result.is_err() {
            self.next_index = u64::MAX;
            self.last_index = 0;
        }
        Some(result)
    }
}
