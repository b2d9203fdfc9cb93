//! What the log must have at least, beside the log: so that a segment that is missing, or one that is older than it was, shows.
//!
//! A log that has lost its newest segments, or all of them, looks like one that never had them, and one whose tail was
//! lost like one that a power cut tore. The file `log.proof` says which log it is, which segment was the newest, and up to which
//! sequence and index its records were durable, as of some moment. A log that has less has lost acknowledged records.
//!
//! It has two slots that are written in turn and synced, when the log is opened, begins a segment and is closed; each has its own
//! checksum and count, so that a torn write leaves the other. A third one is written without a sync when the log is idle, and may be
//! torn at any time: it only says more. What any of them says was durable before, so an old one says less and nothing wrong.
//!
//! A log without the file is one of an earlier release and gets it when it is opened.
//!
//! Slot: `weirprf1`, count, id of the log, number of the newest segment, sequence, index as u64, CRC-32C of these 48 bytes as u32;
//! little-endian.

use super::{recover, segment};
use crate::error::Error;
use std::io;
use std::sync::Arc;
use weir_base::world::{Disk, DiskFile};

/// The file.
pub const FILE: &str = "log.proof";
const FILE_NEW: &str = "log.proof.new";
const MAGIC: &[u8; 8] = b"weirprf1";
const SLOT_BYTES: usize = 52;
/// The slots that are synced. Apart, so that one bad sector spoils one.
const SLOT_AT: [u64; 2] = [0, 4_096];
/// The one that is not.
const NOTE_AT: u64 = 8_192;

/// What a log had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Which log.
    pub log_id: u64,
    /// Number of the newest segment.
    pub segment: u64,
    /// The highest sequence that was durable.
    pub sequence: u64,
    /// The last index then; where the log was cut meanwhile, it may be lower now.
    pub index: u64,
}

/// The file, open.
pub struct Proof {
    /// None where it cannot be written, or after a failure: what is on the disk is not known then.
    file: Option<Arc<dyn DiskFile>>,
    count: u64,
    /// The slot of the next synced write.
    next: usize,
    said: Said,
}

/// What was found in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it says.
    pub said: Said,
    count: u64,
    /// The slot that was synced last, and what is in it.
    synced: Option<(usize, [u8; SLOT_BYTES])>,
}

/// What the file says; nothing when it is not there.
pub fn read(disk: &dyn Disk) -> Result<Option<Found>, Error> {
    let dir = disk.describe();
    let file = match disk.open(FILE) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("opening", FILE, &dir, error)),
    };
    let slot = |at: u64| -> Result<Option<(u64, Said, [u8; SLOT_BYTES])>, Error> {
        let mut bytes = [0; SLOT_BYTES];
        let read = file.read_at(at, &mut bytes).map_err(|error| Error::io("reading", FILE, &dir, error))?;
        let found = if read == SLOT_BYTES { decode(&bytes) } else { None };
        Ok(found.map(|(count, said)| (count, said, bytes)))
    };
    let mut found: Option<Found> = None;
    for (nth, at) in SLOT_AT.into_iter().enumerate() {
        if let Some((count, said, bytes)) = slot(at)?
            && found.is_none_or(|found| found.count < count)
        {
            found = Some(Found { said, count, synced: Some((nth, bytes)) });
        }
    }
    if let Some((count, said, _)) = slot(NOTE_AT)?
        && found.is_none_or(|found| found.count < count)
    {
        let synced = found.and_then(|found| found.synced);
        found = Some(Found { said, count, synced });
    }
    let what = "both of its copies are damaged, so nobody can tell whether the log beside it is whole";
    let damaged = || Error::Corrupt {
        file: FILE.to_owned(),
        dir: dir.clone(),
        offset: 0,
        index: 0,
        what: what.to_owned(),
    };
    found.map(Some).ok_or_else(damaged)
}

/// Refuses a log that has less than it had.
pub fn check(said: &Said, found: &recover::Found, dir: &str) -> Result<(), Error> {
    let corrupt = |number: u64, offset: u64, what: String| {
        let (file, dir) = (segment::file_name(number), dir.to_owned());
        Err(Error::Corrupt { file, dir, offset, index: found.last.index, what })
    };
    let Some(newest) = found.segments.last() else { return Err(missing(said, dir)) };
    if newest.log_id != said.log_id {
        return corrupt(newest.number, 0, format!("it belongs to another log than {FILE}"));
    }
    if newest.number < said.segment {
        return corrupt(said.segment, 0, format!("it is missing: {FILE} says that it was there"));
    }
    let sequence = found.next_sequence - 1;
    if sequence < said.sequence {
        let what = format!(
            "the log ends with record {sequence}; {FILE} proves that records up to {} (index {}) were durable",
            said.sequence, said.index
        );
        return corrupt(newest.number, found.tail, what);
    }
    Ok(())
}

/// There is no segment at all.
pub fn missing(said: &Said, dir: &str) -> Error {
    let (file, dir) = (segment::file_name(said.segment), dir.to_owned());
    let what = format!(
        "it is missing: {FILE} says that it was there, and that records up to {} (index {}) were durable",
        said.sequence, said.index
    );
    Error::Corrupt { file, dir, offset: 0, index: 0, what }
}

impl Proof {
    /// Says what the log has now, which is durable; makes the file where there is none.
    pub fn open(disk: &dyn Disk, before: Option<Found>, said: Said) -> Proof {
        let count = before.map_or(1, |found| found.count);
        let opened = match before {
            Some(found) => disk.open(FILE).and_then(|file| {
                // It may be readable without being on the disk: the other one is written when it is.
                if let Some((slot, bytes)) = found.synced {
                    file.write_at(SLOT_AT[slot], &bytes)?;
                    file.sync_data()?;
                }
                Ok((file, found.synced.map_or(0, |(slot, _)| 1 - slot)))
            }),
            None => make(disk, &said).map(|file| (file, 0)),
        };
        match opened {
            Ok((file, next)) => {
                let mut proof = Proof { file: Some(file), count, next, said };
                if before.is_some() {
                    proof.sync();
                }
                proof
            }
            // A full disk, mostly: the log is as good as without.
            Err(error) => {
                tracing::warn!(%error, dir = disk.describe(), "{FILE} cannot be written");
                Proof { file: None, count, next: 0, said }
            }
        }
    }

    /// More is durable. Without a sync.
    pub fn note(&mut self, sequence: u64, index: u64) {
        if sequence > self.said.sequence {
            (self.said.sequence, self.said.index) = (sequence, index);
            self.write(NOTE_AT, false);
        }
    }

    /// A segment begins, and all before it is durable.
    pub fn segment(&mut self, number: u64, sequence: u64, index: u64) {
        self.said = Said { segment: number, sequence: sequence.max(self.said.sequence), index, ..self.said };
        self.sync();
    }

    /// The log is closed.
    pub fn close(&mut self, sequence: u64, index: u64) {
        (self.said.sequence, self.said.index) = (sequence.max(self.said.sequence), index);
        self.sync();
    }

    fn sync(&mut self) {
        self.write(SLOT_AT[self.next], true);
        self.next = 1 - self.next;
    }

    fn write(&mut self, at: u64, sync: bool) {
        let Some(file) = &self.file else { return };
        self.count += 1;
        let written = file.write_at(at, &encode(self.count, &self.said));
        let synced = written.and_then(|()| if sync { file.sync_data() } else { Ok(()) });
        if let Err(error) = synced {
            // What it said before is less, and true. The other slot must not be written before this one is known to be good.
            tracing::warn!(%error, "{FILE} was not written, and is not until the log is opened again");
            self.file = None;
        }
    }
}

fn make(disk: &dyn Disk, said: &Said) -> io::Result<Arc<dyn DiskFile>> {
    match disk.remove(FILE_NEW) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let made = disk.create(FILE_NEW).and_then(|file| {
        // All of it, so that no later write needs room.
        for at in SLOT_AT.into_iter().chain([NOTE_AT]) {
            file.write_at(at, &encode(1, said))?;
        }
        file.sync_data()?;
        disk.rename(FILE_NEW, FILE)?;
        disk.sync_dir()?;
        Ok(file)
    });
    if made.is_err() {
        // Gives the space back; the failure to tell is the first one.
        let _freed = disk.remove(FILE_NEW);
    }
    made
}

fn encode(count: u64, said: &Said) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    for (nth, number) in [count, said.log_id, said.segment, said.sequence, said.index].into_iter().enumerate()
    {
        bytes[8 + 8 * nth..16 + 8 * nth].copy_from_slice(&number.to_le_bytes());
    }
    let crc = crc32c::crc32c(&bytes[..SLOT_BYTES - 4]);
    bytes[SLOT_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; SLOT_BYTES]) -> Option<(u64, Said)> {
    let number = |nth: usize| Some(u64::from_le_bytes(bytes[8 + 8 * nth..16 + 8 * nth].try_into().ok()?));
    let said = Said { log_id: number(1)?, segment: number(2)?, sequence: number(3)?, index: number(4)? };
    let count = number(0)?;
    (encode(count, &said) == *bytes).then_some((count, said))
}

#[cfg(test)]
mod tests;
