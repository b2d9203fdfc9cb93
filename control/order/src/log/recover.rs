//! Reads a log that was left in any way, and tells a torn tail from a damaged middle.
//!
//! **Why the two can be told apart.** A record carries in its header `durable`, the highest sequence that a
//! completed sync had covered when the record was written, and a segment is made only after all records before
//! it were synced. So where the scan stops for want of a good record of sequence `s`:
//!
//! - a later header in the segment with `durable >= s`, a later segment, or a snapshot of an index at or above
//!   the missing entry, proves that `s` had been durable: the disk lost it. Refused.
//! - without such a proof, every record that can be seen behind the bad one was written before `s` was known to be
//!   durable, so `s` and all behind it belong to writes that no completed sync covered: a tail that a power cut
//!   tore. Nothing of it was acknowledged, because acknowledging comes after the sync. Cut.
//!
//! "A good record behind a bad one" alone would not do: one write of many records may reach the disk in any order of
//! sectors, so a power cut may well keep the third record and lose the first.
//!
//! **What is left.** Damage to the records of the very last sync looks like a torn tail when nothing that was
//! written after it survived. A mark is therefore written as soon as the log is idle: it needs no sync of its own,
//! is there after a kill, and reaches the disk with the kernel's next write-back.
//!
//! **Why the tail is written again.** Records behind the last proof may be readable from memory without being on the disk
//! (a killed process, a failed sync). They are going to be treated as committed, so they are written and synced first.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use weir_base::world::{Disk, DiskFile};

use super::record::{Flaw, Kind, RecordHeader};
use super::scan::Scanner;
use super::segment::{self, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::error::Error;
use crate::position::Position;

/// The state of a whole log as it was found. Nothing has been changed on the disk yet.
pub struct Found {
    /// All segments, oldest first; the last is the active one.
    pub segments: Vec<SegmentHeader>,
    /// The active segment's file.
    pub file: Arc<dyn DiskFile>,
    /// Where the next record goes in the active segment.
    pub tail: u64,
    /// Where the records begin that no proof of durability covers; `tail` when there are none.
    pub unproven: u64,
    /// How many they are.
    pub unproven_records: u64,
    /// The sequence of the next record.
    pub next_sequence: u64,
    /// The last entry.
    pub last: Position,
    /// Whether the last record is a mark.
    pub last_is_mark: bool,
    /// Entries in all segments.
    pub entries: u64,
    /// Bytes behind the tail that a power cut left.
    pub torn_bytes: u64,
    /// Record headers among them.
    pub torn_records: u64,
}

/// Where a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// Where the record begins in the segment's file.
    pub offset: u64,
    /// Bytes of its body.
    pub length: u32,
}

/// Sees every good record once while a log is opened, in the order in which they were written. An error says why the
/// record cannot be one of this log.
pub type Visit<'a> = &'a mut dyn FnMut(&RecordHeader, Place, &[u8]) -> Result<(), String>;

struct Reader<'a, 'v> {
    disk: &'a dyn Disk,
    dir: String,
    visit: Visit<'v>,
}

/// Reads the log. `None` when there is no segment. `floor_index` is the index of the newest good snapshot.
pub fn recover(disk: &dyn Disk, floor_index: u64, visit: Visit<'_>) -> Result<Option<Found>, Error> {
    let mut reader = Reader { disk, dir: disk.describe(), visit };
    let names = disk.list().map_err(|error| Error::io("listing", "files", &reader.dir, error))?;
    let numbers: Vec<u64> = names.iter().filter_map(|name| segment::number_of(name)).collect();
    if numbers.is_empty() {
        return Ok(None);
    }
    let segments = reader.segments(&numbers)?;
    reader.records(segments, floor_index).map(Some)
}

impl Reader<'_, '_> {
    fn io(&self, action: &'static str, number: u64, error: io::Error) -> Error {
        Error::io(action, &segment::file_name(number), &self.dir, error)
    }

    fn corrupt(&self, number: u64, offset: u64, index: u64, what: String) -> Error {
        Error::Corrupt { file: segment::file_name(number), dir: self.dir.clone(), offset, index, what }
    }

    fn open(&self, number: u64) -> Result<Arc<dyn DiskFile>, Error> {
        self.disk.open(&segment::file_name(number)).map_err(|error| self.io("opening", number, error))
    }

    /// The first blocks, each checked against its name and the one before.
    fn segments(&self, numbers: &[u64]) -> Result<Vec<SegmentHeader>, Error> {
        let mut segments: Vec<SegmentHeader> = Vec::new();
        for &number in numbers {
            let index = segments.last().map_or(0, |before| before.first_index - 1);
            let header = self.header(number, index)?;
            let Some(before) = segments.last() else {
                segments.push(header);
                continue;
            };
            let what = if number != before.number + 1 {
                format!("segment {} is missing before it", before.number + 1)
            } else if header.log_id != before.log_id {
                "it belongs to another log than the segment before".to_owned()
            } else {
                segments.push(header);
                continue;
            };
            return Err(self.corrupt(number, 0, index, what));
        }
        Ok(segments)
    }

    fn header(&self, number: u64, index: u64) -> Result<SegmentHeader, Error> {
        let file = self.open(number)?;
        let mut block = vec![0; SEGMENT_HEADER_BYTES];
        let count = file.read_at(0, &mut block).map_err(|error| self.io("reading", number, error))?;
        let length = file.len().map_err(|error| self.io("reading", number, error))?;
        let header = segment::decode(&block[..count])
            .map_err(|what| self.corrupt(number, 0, index, what.to_string()))?;
        let what = if header.number != number {
            format!("its first block says segment {}", header.number)
        } else if length != header.segment_bytes {
            format!("the file has {length} bytes instead of {}", header.segment_bytes)
        } else {
            return Ok(header);
        };
        Err(self.corrupt(number, 0, index, what))
    }

    fn records(&mut self, segments: Vec<SegmentHeader>, floor_index: u64) -> Result<Found, Error> {
        let mut entries = 0;
        for pair in segments.windows(2) {
            entries += self.sealed(&pair[0], &pair[1])?;
        }
        let active = segments[segments.len() - 1];
        let file = self.open(active.number)?;
        let mut scanner = Scanner::new(Arc::clone(&file), &active);
        // Records that nothing yet proves durable, as (sequence, offset).
        let mut unproven = VecDeque::new();
        let mut last_is_mark = false;
        let flaw = loop {
            let (offset, index) = (scanner.offset, scanner.last.index);
            match scanner.next().map_err(|error| self.io("reading", active.number, error))? {
                Ok((header, body)) => {
                    let place = Place { segment: active.number, offset, length: header.length };
                    let seen = (self.visit)(&header, place, body);
                    seen.map_err(|what| self.corrupt(active.number, offset, index, what))?;
                    entries += u64::from(header.kind == Kind::Entry);
                    while unproven.front().is_some_and(|(sequence, _)| *sequence <= header.durable) {
                        unproven.pop_front();
                    }
                    unproven.push_back((header.sequence, offset));
                    last_is_mark = header.kind == Kind::Mark;
                }
                Err(flaw) => break flaw,
            }
        };
        let remains = scanner.remains().map_err(|error| self.io("reading", active.number, error))?;
        self.judge(&active, &scanner, flaw, remains.proof, floor_index)?;
        Ok(Found {
            file,
            tail: scanner.offset,
            unproven: unproven.front().map_or(scanner.offset, |(_, offset)| *offset),
            unproven_records: unproven.len() as u64,
            next_sequence: scanner.next_sequence,
            last: scanner.last,
            last_is_mark,
            entries,
            torn_bytes: remains.bytes,
            torn_records: remains.headers,
            segments,
        })
    }

    /// Walks a segment that has a successor, and so was wholly durable. Gives its number of entries.
    fn sealed(&mut self, header: &SegmentHeader, next: &SegmentHeader) -> Result<u64, Error> {
        let mut scanner = Scanner::new(self.open(header.number)?, header);
        let mut entries = 0;
        let flaw = loop {
            let (offset, index) = (scanner.offset, scanner.last.index);
            match scanner.next().map_err(|error| self.io("reading", header.number, error))? {
                Ok((record, body)) => {
                    let place = Place { segment: header.number, offset, length: record.length };
                    let seen = (self.visit)(&record, place, body);
                    seen.map_err(|what| self.corrupt(header.number, offset, index, what))?;
                    entries += u64::from(record.kind == Kind::Entry);
                }
                Err(flaw) => break flaw,
            }
        };
        let last = scanner.last;
        let whole = scanner.next_sequence == next.first_sequence
            && last.index + 1 == next.first_index
            && last.term == next.term;
        if !whole {
            let what = format!(
                "{flaw}, where record {} belongs; segment {} says that records up to {} and index {} were durable",
                scanner.next_sequence,
                next.number,
                next.first_sequence - 1,
                next.first_index - 1
            );
            return Err(self.corrupt(header.number, scanner.offset, last.index, what));
        }
        Ok(entries)
    }

    /// Refuses an end of the active segment that cannot be a torn tail.
    fn judge(
        &self,
        active: &SegmentHeader,
        scanner: &Scanner,
        flaw: Flaw,
        proof: Option<(u64, u64)>,
        floor_index: u64,
    ) -> Result<(), Error> {
        let (sequence, last) = (scanner.next_sequence, scanner.last);
        let what = match proof {
            Some((durable, at)) if durable >= sequence => {
                format!(
                    "{flaw}, where record {sequence} belongs; the record at byte {at} proves that records up to \
                     {durable} were durable"
                )
            }
            _ if flaw == Flaw::Order => format!("{flaw}: record {sequence} belongs here"),
            _ if last.index < floor_index => {
                format!(
                    "{flaw}, where record {sequence} belongs; the snapshot of index {floor_index} proves that the \
                     entries up to it were durable"
                )
            }
            _ => return Ok(()),
        };
        Err(self.corrupt(active.number, scanner.offset, last.index, what))
    }
}
