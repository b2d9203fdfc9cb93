//! The bytes of a record: changes of blobs, in order.
//!
//! A change is its kind (1 byte), the partition and the name of the blob (their lengths, 4 bytes each, and their bytes) and what the kind needs:
//! an offset (8) and bytes (4 and so many), or a length (8). Numbers are little-endian. `docs/protocol/bft.md` draws it.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use weir_order::log::record::Kind;

use crate::wire::{Malformed, Reader};

/// Bytes of a record, at most.
pub const RECORD_BYTES_MAX: usize = 64 << 10;
/// Bytes of a blob in one change: with a name it fits a record.
pub const PIECE_BYTES_MAX: usize = 16 << 10;
/// Bytes of a blob: far beyond what a view needs.
pub const BLOB_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a partition's or blob's name.
pub const NAME_BYTES_MAX: usize = 256;

/// A record is of changes.
pub const CHANGES: u8 = 0;
/// A record is part of all that is live, and more comes.
pub const LIVE: u8 = 1;
/// A record is the last part of all that is live: with it everything before is void.
pub const LIVE_END: u8 = 2;

/// A blob is known by its partition and its name.
pub type Key = (String, Vec<u8>);
/// All blobs.
pub type Contents = BTreeMap<Key, Vec<u8>>;

/// What happened to a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes were written; zeros fill what lies between the blob's end and `offset`. It is made when it was not there.
    Write {
        /// The blob.
        key: Key,
        /// Where.
        offset: u64,
        /// What.
        bytes: Bytes,
    },
    /// It has another length; new bytes are zeros. It is made when it was not there.
    Resize {
        /// The blob.
        key: Key,
        /// Its length, in bytes.
        length: u64,
    },
    /// It is gone.
    Remove {
        /// The blob.
        key: Key,
    },
}

impl Change {
    fn key(&self) -> &Key {
        match self {
            Change::Write { key, .. } | Change::Resize { key, .. } | Change::Remove { key } => key,
        }
    }

    /// Its bytes in a record.
    pub fn encoded_bytes(&self) -> usize {
        let (partition, name) = self.key();
        let rest = match self {
            Change::Write { bytes, .. } => 8 + 4 + bytes.len(),
            Change::Resize { .. } => 8,
            Change::Remove { .. } => 0,
        };
        1 + 4 + partition.len() + 4 + name.len() + rest
    }

    fn put(&self, out: &mut BytesMut) {
        let (partition, name) = self.key();
        out.put_u8(match self {
            Change::Write { .. } => 0,
            Change::Resize { .. } => 1,
            Change::Remove { .. } => 2,
        });
        for part in [partition.as_bytes(), name] {
            out.put_u32_le(part.len() as u32);
            out.put_slice(part);
        }
        match self {
            Change::Write { offset, bytes, .. } => {
                out.put_u64_le(*offset);
                out.put_u32_le(bytes.len() as u32);
                out.put_slice(bytes);
            }
            Change::Resize { length, .. } => out.put_u64_le(*length),
            Change::Remove { .. } => {}
        }
    }

    fn take(from: &mut Reader) -> Result<Change, Malformed> {
        let kind = from.u8()?;
        let mut part = || {
            let count = from.count(NAME_BYTES_MAX, "a name is too long")?;
            from.bytes(count)
        };
        let (partition, name) = (part()?, part()?);
        let partition =
            String::from_utf8(partition.to_vec()).map_err(|_| Malformed("a partition's name is no text"))?;
        let key = (partition, name.to_vec());
        match kind {
            0 => {
                let offset = from.u64()?;
                let count = from.count(PIECE_BYTES_MAX, "a piece of a blob is too long")?;
                let bytes = from.bytes(count)?;
                within(offset.saturating_add(bytes.len() as u64))?;
                Ok(Change::Write { key, offset, bytes })
            }
            1 => {
                let length = from.u64()?;
                within(length)?;
                Ok(Change::Resize { key, length })
            }
            2 => Ok(Change::Remove { key }),
            _ => Err(Malformed("a change of no kind that this program knows")),
        }
    }

    /// Does it.
    pub fn apply(&self, contents: &mut Contents) {
        match self {
            Change::Write { key, offset, bytes } => {
                let blob = contents.entry(key.clone()).or_default();
                write(blob, *offset as usize, bytes);
            }
            Change::Resize { key, length } => {
                contents.entry(key.clone()).or_default().resize(*length as usize, 0);
            }
            Change::Remove { key } => {
                contents.remove(key);
            }
        }
    }
}

fn within(length: u64) -> Result<(), Malformed> {
    if length > BLOB_BYTES_MAX { Err(Malformed("a blob is too long")) } else { Ok(()) }
}

/// Writes into a blob, which grows when it must.
pub(super) fn write(blob: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if end > blob.len() {
        blob.resize(end, 0);
    }
    blob[offset..end].copy_from_slice(bytes);
}

/// The record of these changes.
pub fn encode(changes: &[Change]) -> Bytes {
    let mut out = BytesMut::with_capacity(changes.iter().map(Change::encoded_bytes).sum());
    changes.iter().for_each(|change| change.put(&mut out));
    out.freeze()
}

/// The changes of a record.
pub fn decode(bytes: Bytes) -> Result<Vec<Change>, Malformed> {
    let (mut from, mut changes) = (Reader(bytes), Vec::new());
    while !from.0.is_empty() {
        changes.push(Change::take(&mut from)?);
    }
    Ok(changes)
}

/// Records of `changes`, each as long as may be.
pub fn records(changes: Vec<Change>) -> Vec<Bytes> {
    let (mut records, mut of_one, mut bytes) = (Vec::new(), Vec::new(), 0);
    for change in changes {
        let more = change.encoded_bytes();
        if bytes + more > RECORD_BYTES_MAX {
            records.push(encode(&of_one));
            of_one.clear();
            bytes = 0;
        }
        bytes += more;
        of_one.push(change);
    }
    if !of_one.is_empty() {
        records.push(encode(&of_one));
    }
    records
}

/// Changes that make `blob` out of nothing.
pub fn whole(key: &Key, blob: &[u8]) -> Vec<Change> {
    let mut changes = vec![Change::Resize { key: key.clone(), length: blob.len() as u64 }];
    let mut offset = 0;
    for piece in blob.chunks(PIECE_BYTES_MAX) {
        let bytes = Bytes::copy_from_slice(piece);
        changes.push(Change::Write { key: key.clone(), offset, bytes });
        offset += piece.len() as u64;
    }
    changes
}

/// Why a record is none of votes.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is of another log.
    #[error("a record of an engine's log, and not of votes")]
    Engine,
    /// Its bytes are none of changes.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A later release wrote it.
    #[error("a record of kind {0}, which this program does not read")]
    Unknown(u8),
}

/// Reads the records of a log, in order.
#[derive(Debug, Default)]
pub struct Reading {
    contents: Contents,
    live: Contents,
}

impl Reading {
    /// The next record.
    ///
    /// # Errors
    /// It is none of votes.
    pub fn record(&mut self, kind: Kind, tag: u8, body: &[u8]) -> Result<(), RecordError> {
        match kind {
            Kind::Mark => return Ok(()),
            Kind::Entry => {}
            _ => return Err(RecordError::Engine),
        }
        let changes = decode(Bytes::copy_from_slice(body))?;
        match tag {
            CHANGES => {
                // All that is live was being written, and a crash came between.
                self.live.clear();
                changes.iter().for_each(|change| change.apply(&mut self.contents));
            }
            LIVE => changes.iter().for_each(|change| change.apply(&mut self.live)),
            LIVE_END => {
                changes.iter().for_each(|change| change.apply(&mut self.live));
                self.contents = std::mem::take(&mut self.live);
            }
            other => return Err(RecordError::Unknown(other)),
        }
        Ok(())
    }

    /// The blobs after the last record.
    pub fn finish(self) -> Contents {
        self.contents
    }
}
