//! A durable log of entries in segment files. Bytes on disk: `docs/protocol/log.md`.
//!
//! Invariants
//! - When [`Log::sync`] returned Ok, every entry appended before survives a power cut at any later byte.
//! - After a failed sync nothing is acknowledged any more: the kernel may have dropped the pages and call the next
//!   sync good. The log must be opened anew, which writes the doubtful records again.
//! - A failed write leaves no trace: the bytes are zeroed and synced before anything else is written, so half a
//!   batch cannot come back behind a later one.
//! - Segments are zeroed and synced before they get their name, so a sync during appends changes no metadata, and
//!   a full disk shows when a segment is made and not in the midst of a record.
//! - A log that has less than it had is refused: `log.proof` beside it says what it had (see `proof`).
//! - Behind the last record there are only zeros, unless a crash tore a write. See `recover` for the torn tail.
//!
//! One thread owns a log. Segments are deleted and not reused, but where the disk is full ([`room`]): the zeros of the next one are made ahead of need.

mod create;
mod proof;
mod reader;
pub mod record;
mod recover;
mod replay;
pub mod room;
mod scan;
pub mod segment;
#[cfg(test)]
mod tests;
mod window;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use weir_base::world::{Disk, DiskFile};

pub use create::prepare_spare;
pub use proof::FILE as PROOF_FILE;
pub use replay::Replay;
pub use room::{Room, RoomCounters};

use crate::counters::LogCounters;
use crate::engine::Entry;
use crate::error::Error;
use crate::position::Position;
use create::{CreateError, create_segment, remove_leftovers, write_zeros};
use proof::{Proof, Said};
pub use reader::RecordReader;
use record::{Kind, RecordHeader, record_bytes};
use recover::{Found, recover};
pub use recover::{Place, Visit};
use segment::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// How a log is laid out.
#[derive(Debug, Clone, Copy)]
pub struct LogSettings {
    /// The size of new segment files; segments that exist keep theirs.
    pub segment_bytes: u64,
    /// The largest batch.
    pub batch_bytes_max: u64,
    /// What a new log is called in its checksums; any number that other logs do not have.
    pub log_id_if_new: u64,
}

impl Default for LogSettings {
    fn default() -> Self {
        let log_id_if_new = weir_base::world::random_u64();
        LogSettings { segment_bytes: 32 << 20, batch_bytes_max: 8 << 20, log_id_if_new }
    }
}

impl LogSettings {
    fn check(&self) -> Result<(), Error> {
        const BATCH_BYTES_LIMIT: u64 = 1 << 30;
        if self.batch_bytes_max > BATCH_BYTES_LIMIT {
            let right = format!("at most {BATCH_BYTES_LIMIT}");
            return Err(Error::Setting { name: "batch_bytes_max", value: self.batch_bytes_max, right });
        }
        let largest = record_bytes(self.batch_bytes_max as usize) + record_bytes(0);
        let least = (SEGMENT_HEADER_BYTES + largest) as u64;
        if self.segment_bytes < least || !self.segment_bytes.is_multiple_of(SEGMENT_HEADER_BYTES as u64) {
            let right =
                format!("a multiple of 4096 and at least {least}, to hold the largest batch and a mark");
            return Err(Error::Setting { name: "segment_bytes", value: self.segment_bytes, right });
        }
        Ok(())
    }
}

/// What opening a log found and did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segment files.
    pub segments: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes of writes that a crash tore, which were cut. Nothing in them was acknowledged.
    pub torn_bytes: u64,
    /// Record headers in those bytes.
    pub torn_records: u64,
    /// Whole records at the end that were written again, because no sync was known to have covered them.
    pub rewritten_records: u64,
}

struct Active {
    header: SegmentHeader,
    file: Arc<dyn DiskFile>,
    seed: u32,
    tail: u64,
}

impl Active {
    fn new(header: SegmentHeader, file: Arc<dyn DiskFile>, tail: u64) -> Active {
        Active { header, file, seed: record::seed(header.log_id, header.number), tail }
    }

    /// Room for entries: behind them a mark must always fit, or the last of them would stay in doubt.
    fn room_bytes(&self) -> u64 {
        (self.header.segment_bytes - self.tail).saturating_sub(record_bytes(0) as u64)
    }
}

/// An open log.
pub struct Log {
    disk: Arc<dyn Disk>,
    dir: String,
    settings: LogSettings,
    sealed: Vec<SegmentHeader>,
    active: Active,
    next_sequence: u64,
    /// The highest sequence that a completed sync covers.
    durable: u64,
    last: Position,
    last_is_mark: bool,
    /// Bytes a failed write may have left behind the tail.
    dirty: Option<(u64, u64)>,
    poison: Option<String>,
    proof: Proof,
    counters: LogCounters,
    scratch: Vec<u8>,
    room: Arc<Room>,
    /// Bytes at a segment's end that entries leave to everything else.
    kept_bytes: u64,
}

impl Log {
    /// Opens the log in `disk`, or makes one. `floor_index` is the index of the newest good snapshot, 0 without one:
    /// a log that ends before it has lost acknowledged entries. The caller holds the directory's lock.
    pub fn open(
        disk: Arc<dyn Disk>,
        settings: LogSettings,
        floor_index: u64,
    ) -> Result<(Log, Recovery), Error> {
        let mut plain = |header: &RecordHeader, _: Place, _: &[u8]| match (header.kind, header.tag) {
            (Kind::Entry, 0) | (Kind::Mark, _) => Ok(()),
            _ => Err("a record of a replicated engine's log, which this engine does not read".to_owned()),
        };
        Log::open_visited(disk, settings, floor_index, &mut plain)
    }

    /// As [`Log::open`], for an engine that keeps other records than batches: `visit` sees all that are there.
    pub fn open_visited(
        disk: Arc<dyn Disk>,
        settings: LogSettings,
        floor_index: u64,
        visit: Visit<'_>,
    ) -> Result<(Log, Recovery), Error> {
        settings.check()?;
        let dir = disk.describe();
        let proven = proof::read(&*disk)?;
        match recover(&*disk, floor_index, visit)? {
            Some(found) => {
                if let Some(proven) = &proven {
                    proof::check(&proven.said, &found, &dir)?;
                }
                let io = |error| Error::io("removing", "leftovers", &dir, error);
                remove_leftovers(&*disk).map_err(io)?;
                Log::resume(disk, dir, settings, found, proven)
            }
            None if floor_index > 0 => {
                let what = format!("the log is missing, but there is a snapshot of index {floor_index}");
                Err(Error::Corrupt { file: segment::file_name(1), dir, offset: 0, index: 0, what })
            }
            None => match proven {
                Some(proven) => Err(proof::missing(&proven.said, &dir)),
                None => {
                    let recovery = Recovery { segments: 1, ..Recovery::default() };
                    Ok((Log::create(disk, dir, settings)?, recovery))
                }
            },
        }
    }

    fn create(disk: Arc<dyn Disk>, dir: String, settings: LogSettings) -> Result<Log, Error> {
        remove_leftovers(&*disk).map_err(|error| Error::io("removing", "leftovers", &dir, error))?;
        let header = SegmentHeader {
            log_id: settings.log_id_if_new,
            number: 1,
            segment_bytes: settings.segment_bytes,
            first_sequence: 1,
            first_index: 1,
            term: 0,
        };
        let file = create_segment(&*disk, &header).map_err(|error| match error {
            CreateError::Before(action, error) => write_error(action, &segment::file_name(1), &dir, error),
            CreateError::Sync(error) => Error::io("syncing", &segment::file_name(1), &dir, error),
        })?;
        let active = Active::new(header, file, SEGMENT_HEADER_BYTES as u64);
        let proof = Proof::open(&*disk, None, Said { log_id: header.log_id, segment: 1, ..Said::default() });
        Ok(Log::new((disk, dir), settings, Vec::new(), active, proof))
    }

    fn new(
        (disk, dir): (Arc<dyn Disk>, String),
        settings: LogSettings,
        sealed: Vec<SegmentHeader>,
        active: Active,
        proof: Proof,
    ) -> Log {
        Log {
            room: Arc::new(Room::new(dir.clone())),
            kept_bytes: 0,
            disk,
            dir,
            settings,
            next_sequence: active.header.first_sequence,
            durable: active.header.first_sequence - 1,
            last: Position { term: active.header.term, index: active.header.first_index - 1 },
            sealed,
            active,
            last_is_mark: false,
            dirty: None,
            poison: None,
            proof,
            counters: LogCounters::default(),
            scratch: Vec::new(),
        }
    }

    /// Makes a log that was read usable: cuts the torn tail and makes sure of the records before it.
    fn resume(
        disk: Arc<dyn Disk>,
        dir: String,
        settings: LogSettings,
        mut found: Found,
        proven: Option<proof::Found>,
    ) -> Result<(Log, Recovery), Error> {
        let recovery = Recovery {
            segments: found.segments.len() as u64,
            entries: found.entries,
            torn_bytes: found.torn_bytes,
            torn_records: found.torn_records,
            rewritten_records: found.unproven_records,
        };
        let Some(header) = found.segments.pop() else {
            unreachable!("recovery finds at least one segment");
        };
        let name = segment::file_name(header.number);
        if found.torn_bytes > 0 {
            tracing::warn!(
                dir,
                file = name,
                offset = found.tail,
                bytes = found.torn_bytes,
                records = found.torn_records,
                last_index = found.last.index,
                "cut a torn tail; nothing in the log or beside it says that any of it was acknowledged"
            );
        }
        settle_tail(&found).map_err(|error| Error::io("settling the tail of", &name, &dir, error))?;
        let active = Active::new(header, Arc::clone(&found.file), found.tail);
        let (sequence, index) = (found.next_sequence - 1, found.last.index);
        let said = Said { log_id: header.log_id, segment: header.number, sequence, index };
        let proof = Proof::open(&*disk, proven, said);
        let mut log = Log::new((disk, dir), settings, found.segments, active, proof);
        log.next_sequence = found.next_sequence;
        log.durable = found.next_sequence - 1;
        log.last = found.last;
        log.last_is_mark = found.last_is_mark;
        log.counters.torn_bytes_cut = found.torn_bytes;
        log.counters.torn_records_cut = found.torn_records;
        log.mark();
        Ok((log, recovery))
    }

    /// The last entry; index 0 when there never was one.
    pub fn last(&self) -> Position {
        self.last
    }

    /// The lowest index the log holds, or will hold when it is empty.
    pub fn first_index(&self) -> u64 {
        self.sealed.first().unwrap_or(&self.active.header).first_index
    }

    /// The first index of every segment, oldest first.
    pub fn segment_starts(&self) -> Vec<u64> {
        self.sealed.iter().chain([&self.active.header]).map(|segment| segment.first_index).collect()
    }

    /// What was counted since the log was opened.
    pub fn counters(&self) -> LogCounters {
        self.counters
    }

    /// False after a failed sync.
    pub fn is_healthy(&self) -> bool {
        self.poison.is_none()
    }

    /// Whether there is room for more, as far as is known: for who makes spares, refuses proposals, or waits.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Makes a segment ahead of need, or finds that there is no room for one; for who writes without a thread that does it.
    pub fn prepare_next(&self) {
        // Another failure than a full disk costs only time: the log makes the segment itself when it needs it.
        if let Err(error) = self.room.prepare(&*self.disk, self.settings.segment_bytes) {
            tracing::warn!(%error, "could not make a spare segment ahead of need");
        }
    }

    /// From now on entries leave so many bytes at the end of each segment, so that the engine's notes and cuts find some room when there is
    /// none for a next one.
    pub fn keep_for_notes(&mut self, bytes: u64) {
        self.kept_bytes = bytes.min(self.settings.segment_bytes / 8);
    }

    /// Whether more than half of the active segment is used: time to prepare a spare.
    pub fn wants_spare(&self) -> bool {
        self.active.tail > self.active.header.segment_bytes / 2
    }

    /// The entries from `from_index` to the last of now. They are durable when they are read back.
    pub fn replay(&self, from_index: u64) -> Result<Replay, Error> {
        if from_index < self.first_index() || from_index > self.last.index + 1 {
            let right = format!("the log holds {} to {}", self.first_index(), self.last.index);
            return Err(Error::Index { index: from_index, right });
        }
        let mut segments = self.sealed.clone();
        segments.push(self.active.header);
        Ok(Replay::new(Arc::clone(&self.disk), &segments, from_index, self.last.index))
    }

    /// Writes entries from the front of `entries`, at least one, all in one segment, with one write. Gives how many.
    /// They are durable only after [`Log::sync`]. After an error none of these is in the log, for certain when the
    /// error is definite. The indices must follow the log's last and the batches keep to the limit.
    pub fn append(&mut self, entries: &[Entry]) -> Result<usize, Error> {
        let tagged = entries.iter().map(|entry| (entry.position, 0, &entry.batch));
        self.append_tagged(tagged, &mut |_| ())
    }

    /// As [`Log::append`], of entries that say by a tag what their body is; `placed` is told where each will stand.
    pub fn append_tagged<'e>(
        &mut self,
        entries: impl Iterator<Item = (Position, u8, &'e Bytes)>,
        placed: &mut dyn FnMut(Place),
    ) -> Result<usize, Error> {
        self.ready()?;
        let mut entries = entries.peekable();
        let first_bytes = record_bytes(entries.peek().map_or(0, |(_, _, body)| body.len())) as u64;
        let fresh = self.active.tail == SEGMENT_HEADER_BYTES as u64;
        if first_bytes > self.entries_room_bytes() && !(fresh && first_bytes <= self.active.room_bytes()) {
            self.roll()?;
        }
        // The first of a new segment always fits.
        let room_bytes = self.entries_room_bytes().max(first_bytes.min(self.active.room_bytes()));
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let mut count = 0;
        let mut last = self.last;
        for (position, tag, body) in entries {
            assert!(body.len() as u64 <= self.settings.batch_bytes_max, "the core limits batches");
            assert_eq!(position.index, last.index + 1, "indices follow each other");
            assert!(position.term >= last.term, "terms do not go back");
            if (bytes.len() + record_bytes(body.len())) as u64 > room_bytes {
                break;
            }
            last = position;
            let (segment, offset) = (self.active.header.number, self.active.tail + bytes.len() as u64);
            placed(Place { segment, offset, length: body.len() as u32 });
            self.encode(Kind::Entry, tag, count as u64, last, body, &mut bytes);
            count += 1;
        }
        let result = self.write(&bytes);
        let written = bytes.len() as u64;
        self.scratch = bytes;
        result?;
        self.next_sequence += count as u64;
        self.last = last;
        self.last_is_mark = false;
        self.counters.appends += count as u64;
        self.counters.appended_bytes += written;
        Ok(count)
    }

    /// Makes `last` the last entry: cuts what is above it off, or leaves a hole up to it that a snapshot fills. Durable
    /// only after [`Log::sync`], and written in order with everything else.
    pub fn set_last(&mut self, last: Position) -> Result<(), Error> {
        self.append_other(Kind::Last, last, &Bytes::new())
    }

    /// Writes a note of the engine to itself. Durable only after [`Log::sync`].
    pub fn note(&mut self, body: &Bytes) -> Result<(), Error> {
        self.append_other(Kind::Note, self.last, body)
    }

    fn append_other(&mut self, kind: Kind, at: Position, body: &Bytes) -> Result<(), Error> {
        self.ready()?;
        self.make_room(body.len())?;
        let mut bytes = Vec::with_capacity(record_bytes(body.len()));
        self.encode(kind, 0, 0, at, body, &mut bytes);
        self.write(&bytes)?;
        self.next_sequence += 1;
        self.last = at;
        self.last_is_mark = false;
        Ok(())
    }

    fn entries_room_bytes(&self) -> u64 {
        self.active.room_bytes().saturating_sub(self.kept_bytes)
    }

    fn make_room(&mut self, body_bytes: usize) -> Result<(), Error> {
        if record_bytes(body_bytes) as u64 > self.active.room_bytes() {
            self.roll()?;
        }
        Ok(())
    }

    /// The number of the segment that is written to.
    pub fn active_segment(&self) -> u64 {
        self.active.header.number
    }

    /// Reads records by their place, beside whoever writes the log.
    pub fn reader(&self) -> RecordReader {
        RecordReader::new(Arc::clone(&self.disk), self.active.header.log_id)
    }

    fn encode(&self, kind: Kind, tag: u8, nth: u64, at: Position, body: &Bytes, out: &mut Vec<u8>) {
        let header = RecordHeader {
            kind,
            tag,
            length: body.len() as u32,
            sequence: self.next_sequence + nth,
            durable: self.durable,
            index: at.index,
            term: at.term,
        };
        record::encode(&header, body, self.active.seed, out);
    }

    /// Makes everything appended durable.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.healthy()?;
        self.counters.syncs += 1;
        if let Err(error) = self.active.file.sync_data() {
            return Err(self.poison("syncing", error));
        }
        self.durable = self.next_sequence - 1;
        Ok(())
    }

    /// Notes in the log that all of it is durable, when it is and the note is not there yet. Not synced, and a
    /// failure is left to the next append: a mark only narrows what recovery must doubt.
    pub fn mark(&mut self) {
        if self.poison.is_none() {
            self.proof.note(self.durable, self.last.index);
        }
        let wanted = self.durable == self.next_sequence - 1 && self.durable > 0 && !self.last_is_mark;
        if !wanted || self.dirty.is_some() || self.poison.is_some() {
            return;
        }
        let mut bytes = Vec::new();
        self.encode(Kind::Mark, 0, 0, self.last, &Bytes::new(), &mut bytes);
        let fits = bytes.len() as u64 <= self.active.header.segment_bytes - self.active.tail;
        if fits && self.write(&bytes).is_ok() {
            self.next_sequence += 1;
            self.last_is_mark = true;
            self.counters.marks += 1;
        }
    }

    /// Leaves nothing in doubt: syncs, marks, and syncs the mark.
    pub fn close(&mut self) -> Result<(), Error> {
        if self.durable < self.next_sequence - 1 && !self.last_is_mark {
            self.sync()?;
        }
        self.mark();
        self.sync()?;
        self.proof.close(self.durable, self.last.index);
        Ok(())
    }

    /// Removes segments whose entries are all at or below `index`.
    pub fn truncate_below(&mut self, index: u64) -> Result<(), Error> {
        while let Some(oldest) = self.sealed.first() {
            let next = self.sealed.get(1).unwrap_or(&self.active.header);
            if next.first_index > index + 1 {
                break;
            }
            let name = segment::file_name(oldest.number);
            // Each removal is made durable before the next, or a power cut could leave a gap.
            let spares = self.room.is_short() && oldest.segment_bytes == self.settings.segment_bytes;
            let removed = match spares {
                true => create::make_spare_of(&*self.disk, &name, oldest.segment_bytes),
                false => self.disk.remove(&name).and_then(|()| self.disk.sync_dir()),
            };
            removed.map_err(|error| Error::io("removing", &name, &self.dir, error))?;
            self.sealed.remove(0);
            self.counters.segments_removed += 1;
            if spares {
                self.prepare_next();
            }
        }
        Ok(())
    }

    fn healthy(&self) -> Result<(), Error> {
        match &self.poison {
            Some(reason) => Err(Error::Poisoned { dir: self.dir.clone(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn ready(&mut self) -> Result<(), Error> {
        self.healthy()?;
        self.heal()
    }

    fn poison(&mut self, action: &str, error: io::Error) -> Error {
        let reason = format!("{action} {} failed: {error}", segment::file_name(self.active.header.number));
        tracing::error!(dir = self.dir, reason, "the log stops");
        self.poison = Some(reason.clone());
        Error::Poisoned { dir: self.dir.clone(), reason }
    }

    /// Writes at the tail and moves it.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Err(error) = self.active.file.write_at(self.active.tail, bytes) else {
            self.active.tail += bytes.len() as u64;
            return Ok(());
        };
        self.counters.failed_writes += 1;
        self.dirty = Some((self.active.tail, bytes.len() as u64));
        let name = segment::file_name(self.active.header.number);
        match self.heal() {
            Ok(()) => Err(write_error("writing", &name, &self.dir, error)),
            Err(_) => Err(Error::io("writing", &name, &self.dir, error)),
        }
    }

    /// Wipes what a failed write left.
    fn heal(&mut self) -> Result<(), Error> {
        let Some((offset, length)) = self.dirty else { return Ok(()) };
        let name = segment::file_name(self.active.header.number);
        write_zeros(&*self.active.file, offset, length)
            .map_err(|error| Error::io("wiping a failed write from", &name, &self.dir, error))?;
        self.sync()?;
        self.dirty = None;
        Ok(())
    }

    /// Begins the next segment.
    fn roll(&mut self) -> Result<(), Error> {
        if self.durable < self.next_sequence - 1 {
            self.sync()?;
        }
        let header = SegmentHeader {
            log_id: self.active.header.log_id,
            number: self.active.header.number + 1,
            segment_bytes: self.settings.segment_bytes,
            first_sequence: self.next_sequence,
            first_index: self.last.index + 1,
            term: self.last.term,
        };
        let file = match create_segment(&*self.disk, &header) {
            Ok(file) => file,
            Err(CreateError::Sync(error)) => return Err(self.poison("syncing the segment after", error)),
            Err(CreateError::Before(action, error)) => {
                self.counters.failed_writes += 1;
                return Err(write_error(action, &segment::file_name(header.number), &self.dir, error));
            }
        };
        let next = Active::new(header, file, SEGMENT_HEADER_BYTES as u64);
        self.sealed.push(std::mem::replace(&mut self.active, next).header);
        self.counters.segments_created += 1;
        self.room.found();
        self.proof.segment(header.number, self.durable, self.last.index);
        Ok(())
    }
}

/// Cuts the torn bytes and writes the doubtful records again, then syncs both.
fn settle_tail(found: &Found) -> io::Result<()> {
    if found.torn_bytes == 0 && found.unproven == found.tail {
        return Ok(());
    }
    let mut doubtful = vec![0; (found.tail - found.unproven) as usize];
    let count = found.file.read_at(found.unproven, &mut doubtful)?;
    found.file.write_at(found.unproven, &doubtful[..count])?;
    write_zeros(&*found.file, found.tail, found.torn_bytes)?;
    found.file.sync_data()
}

fn write_error(action: &'static str, file: &str, dir: &str, error: io::Error) -> Error {
    match room::is_no_room(&error) {
        true => Error::DiskFull { dir: dir.to_owned(), file: file.to_owned() },
        false => Error::io(action, file, dir, error),
    }
}
