//! Results of a COMPOUND: where handles and entries are.

use super::parts::{channel, implementation};
use super::{
    ATTRIBUTE_FILEID, ATTRIBUTE_FSID, ATTRIBUTE_GROUP, ATTRIBUTE_HANDLE, ATTRIBUTE_KIND, ATTRIBUTE_MODE,
    ATTRIBUTE_OWNER, ATTRIBUTE_SIZE, ATTRIBUTES_BYTES_MAX, ATTRIBUTES_LIMITS, BITMAP_WORDS_MAX,
    NAME_BYTES_MAX, OPAQUE_BYTES_MAX, OPS_MAX, Op4, SESSION_BYTES, STATE_BYTES, TAG_BYTES_MAX, bitmap, has,
    status,
};
use crate::wire::nfs3::{HANDLE4_BYTES_MAX, PATH_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::wire::reply::ENTRIES_MAX;
use crate::wire::xdr::{Read, Reader, Span, Wrong, padded};

/// A handle in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The handle.
    pub handle: Span,
    /// Where the length of the attributes stands that it is one of, if it is: it must change with the handle's.
    pub length_at: Option<usize>,
}

/// What a server says of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// `nfs_ftype4`, which has the numbers of `ftype3`.
    pub kind: u32,
    /// Permission bits.
    pub mode: u32,
    /// Length, bytes.
    pub size: u64,
    /// File system.
    pub fsid: (u64, u64),
    /// Number.
    pub fileid: u64,
    /// Owner, as text.
    pub owner: Span,
    /// Group, as text.
    pub group: Span,
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry4 {
    /// Where the entry begins: at the boolean that says that there is one.
    pub start: usize,
    /// Its end.
    pub end: usize,
    /// Its name.
    pub name: Span,
    /// Its handle, if it was asked for.
    pub found: Option<Found>,
    /// What is said of it, if [`Results4::objects`] asks for that.
    pub known: Option<Known>,
}

/// One result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome4 {
    /// The operation.
    pub op: Op4,
    /// Where it begins: at its number.
    pub start: usize,
    /// Where the next one begins.
    pub end: usize,
    /// What GETATTR says, if [`Results4::objects`] asks for that.
    pub known: Option<Known>,
    /// Status.
    pub status: u32,
    /// The handle that it brings.
    pub found: Option<Found>,
    /// Entries: the first and one behind the last of [`Results4::entries`].
    pub entries: (usize, usize),
    /// Where the boolean behind the last entry stands.
    pub entries_end_at: usize,
    /// Bytes read or written.
    pub count: u32,
    /// Where the flags of SEQUENCE or EXCHANGE_ID stand.
    pub flags_at: Option<usize>,
    /// Where the longest READ and WRITE stand, hyper integers (GETATTR).
    pub limits_at: [Option<usize>; 2],
}

/// What is looked for among attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) found: Option<Found>,
    limits_at: [Option<usize>; 2],
    known: Option<Known>,
}

/// The results of a COMPOUND. Reused from reply to reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results4 {
    /// Says before reading whether owners and modes are looked for.
    pub objects: bool,
    /// Where the status of the whole stands, which is that of the last operation.
    pub status_at: usize,
    /// That status.
    pub status: u32,
    /// Where the number of results stands.
    pub count_at: usize,
    /// Results.
    pub outcomes: Vec<Outcome4>,
    /// Entries of all of them.
    pub entries: Vec<Entry4>,
}

/// Reads the results; the reader stands behind the head of the reply.
///
/// # Errors
/// [`Wrong`].
pub fn results(reader: &mut Reader<'_>, found: &mut Results4) -> Read<()> {
    found.outcomes.clear();
    found.entries.clear();
    found.status_at = reader.at();
    found.status = reader.u32()?;
    reader.opaque(TAG_BYTES_MAX)?;
    found.count_at = reader.at();
    for _ in 0..reader.length(OPS_MAX)? {
        let start = reader.at();
        let number = reader.u32()?;
        let op = Op4::from_number(number).ok_or(Wrong::Value { at: start, value: number })?;
        let status = reader.u32()?;
        let mut outcome = Outcome4 {
            op,
            start,
            end: 0,
            known: None,
            status,
            found: None,
            entries: (0, 0),
            entries_end_at: 0,
            count: 0,
            flags_at: None,
            limits_at: [None; 2],
        };
        if status == status::OK {
            outcome.done(reader, &mut found.entries, found.objects)?;
        } else {
            failed(op, status, reader)?;
        }
        outcome.end = reader.at();
        found.outcomes.push(outcome);
    }
    reader.end()
}

/// The few operations that say more than a status when they fail.
fn failed(op: Op4, status: u32, reader: &mut Reader<'_>) -> Read<()> {
    match (op, status) {
        (Op4::SetAttr, _) => bitmap(reader).map(|_| ()),
        (Op4::Lock | Op4::LockTest, status::DENIED) => {
            reader.take(28)?;
            reader.opaque(OPAQUE_BYTES_MAX).map(|_| ())
        }
        (Op4::SetClientId, status::CLIENT_IN_USE) => {
            reader.opaque(OPAQUE_BYTES_MAX)?;
            reader.opaque(OPAQUE_BYTES_MAX).map(|_| ())
        }
        _ => Ok(()),
    }
}

impl Outcome4 {
    fn done(&mut self, reader: &mut Reader<'_>, entries: &mut Vec<Entry4>, objects: bool) -> Read<()> {
        match self.op {
            Op4::GetAttr => {
                let read = attributes(reader, objects)?;
                (self.found, self.limits_at, self.known) = (read.found, read.limits_at, read.known);
            }
            Op4::GetFh => {
                self.found = Some(Found { handle: reader.opaque(HANDLE4_BYTES_MAX)?, length_at: None })
            }
            Op4::Read => {
                reader.bool()?;
                let payload = reader.opaque(PAYLOAD_BYTES_MAX)?;
                self.count = u32::try_from(payload.bytes).unwrap_or(u32::MAX);
            }
            Op4::Write => {
                self.count = reader.u32()?;
                reader.take(12)?;
            }
            Op4::ReadDir => self.directory(reader, entries, objects)?,
            Op4::ReadLink => reader.opaque(PATH_BYTES_MAX).map(|_| ())?,
            Op4::Open => open(reader)?,
            Op4::Create => {
                reader.take(20)?;
                bitmap(reader)?;
            }
            Op4::SetAttr => bitmap(reader).map(|_| ())?,
            Op4::Sequence => {
                reader.take(SESSION_BYTES + 16)?;
                self.flags_at = Some(reader.at());
                reader.u32()?;
            }
            Op4::ExchangeId => {
                reader.take(12)?;
                self.flags_at = Some(reader.at());
                exchange_id(reader)?;
            }
            Op4::SecInfo | Op4::SecInfoNoName => security(reader)?,
            Op4::CreateSession => {
                reader.take(SESSION_BYTES + 8)?;
                channel(reader)?;
                channel(reader)?;
            }
            Op4::TestState => {
                let codes = reader.length(OPAQUE_BYTES_MAX)?;
                reader.take(4 * codes)?;
            }
            op => reader.take(fixed_bytes(op)).map(|_| ())?,
        }
        Ok(())
    }

    fn directory(&mut self, reader: &mut Reader<'_>, entries: &mut Vec<Entry4>, objects: bool) -> Read<()> {
        reader.take(8)?;
        self.entries.0 = entries.len();
        loop {
            let start = reader.at();
            if !reader.bool()? {
                self.entries.1 = entries.len();
                self.entries_end_at = start;
                return reader.bool().map(|_| ());
            }
            if entries.len() == ENTRIES_MAX {
                return Err(Wrong::Many { limit: ENTRIES_MAX });
            }
            reader.u64()?;
            let name = reader.entry_name(NAME_BYTES_MAX)?;
            let Attributes { found, known, .. } = attributes(reader, objects)?;
            entries.push(Entry4 { start, end: reader.at(), name, found, known });
        }
    }
}

/// Length of results that nobody looks at.
fn fixed_bytes(op: Op4) -> usize {
    match op {
        Op4::Access | Op4::Commit => 8,
        Op4::Close | Op4::Lock | Op4::Unlock | Op4::OpenConfirm | Op4::OpenDowngrade => STATE_BYTES,
        Op4::Link | Op4::Remove => 20,
        Op4::Rename => 40,
        Op4::SetClientId => 16,
        Op4::BindConnection => SESSION_BYTES + 8,
        _ => 0,
    }
}

fn open(reader: &mut Reader<'_>) -> Read<()> {
    reader.take(STATE_BYTES + 20 + 4)?;
    bitmap(reader)?;
    match reader.one_of(3)? {
        0 => Ok(()),
        1 => {
            reader.take(STATE_BYTES + 4)?;
            access_entry(reader)
        }
        2 => {
            reader.take(STATE_BYTES + 4 + 4 + 8)?;
            access_entry(reader)
        }
        _ => match reader.u32()? {
            1 | 2 => reader.bool().map(|_| ()),
            _ => Ok(()),
        },
    }
}

/// `nfsace4`.
fn access_entry(reader: &mut Reader<'_>) -> Read<()> {
    reader.take(12)?;
    reader.opaque(OPAQUE_BYTES_MAX).map(|_| ())
}

fn exchange_id(reader: &mut Reader<'_>) -> Read<()> {
    reader.u32()?;
    if reader.one_of(1)? == 1 {
        bitmap(reader)?;
        bitmap(reader)?;
    }
    reader.u64()?;
    reader.opaque(OPAQUE_BYTES_MAX)?;
    reader.opaque(OPAQUE_BYTES_MAX)?;
    implementation(reader)
}

fn security(reader: &mut Reader<'_>) -> Read<()> {
    for _ in 0..reader.length(OPS_MAX)? {
        if reader.u32()? == 6 {
            reader.opaque(OPAQUE_BYTES_MAX)?;
            reader.take(8)?;
        }
    }
    Ok(())
}

/// `fattr4`; what of it is looked for.
pub(super) fn attributes(reader: &mut Reader<'_>, objects: bool) -> Read<Attributes> {
    let bits = bitmap(reader)?;
    let length_at = reader.at();
    let bytes = reader.length(ATTRIBUTES_BYTES_MAX)?;
    let start = reader.at();
    let mut read = Attributes::default();
    let objects = objects
        && [ATTRIBUTE_KIND, ATTRIBUTE_MODE, ATTRIBUTE_OWNER, ATTRIBUTE_GROUP]
            .into_iter()
            .all(|attribute| has(reader, bits, attribute));
    let mut known = Known::default();
    let group = objects.then_some(ATTRIBUTE_GROUP);
    let wanted = ATTRIBUTES_LIMITS.into_iter().chain([ATTRIBUTE_HANDLE]).chain(group);
    let last = wanted.filter(|attribute| has(reader, bits, *attribute)).max();
    for attribute in last.map_or(0..0, |last| 0..last + 1) {
        if !has(reader, bits, attribute) {
            continue;
        }
        match attribute {
            ATTRIBUTE_HANDLE => {
                let handle = reader.opaque(HANDLE4_BYTES_MAX)?;
                read.found = Some(Found { handle, length_at: Some(length_at) });
            }
            ATTRIBUTE_KIND if objects => known.kind = reader.u32()?,
            ATTRIBUTE_SIZE if objects => known.size = reader.u64()?,
            ATTRIBUTE_FSID if objects => known.fsid = (reader.u64()?, reader.u64()?),
            ATTRIBUTE_FILEID if objects => known.fileid = reader.u64()?,
            ATTRIBUTE_MODE if objects => known.mode = reader.u32()?,
            ATTRIBUTE_OWNER if objects => known.owner = reader.opaque(OPAQUE_BYTES_MAX)?,
            ATTRIBUTE_GROUP if objects => known.group = reader.opaque(OPAQUE_BYTES_MAX)?,
            _ => {
                if let Some(number) = ATTRIBUTES_LIMITS.iter().position(|limit| *limit == attribute) {
                    read.limits_at[number] = Some(reader.at());
                }
                skip(reader, attribute)?;
            }
        }
    }
    let done = reader.at() - start;
    let rest = padded(bytes).checked_sub(done).ok_or(Wrong::Long { at: start, bytes: done, limit: bytes })?;
    reader.take(rest)?;
    read.known = objects.then_some(known);
    Ok(read)
}

/// Steps over the value of an attribute that stands before one of those.
fn skip(reader: &mut Reader<'_>, attribute: u32) -> Read<()> {
    let bytes = match attribute {
        0 => {
            let words = reader.length(BITMAP_WORDS_MAX)?;
            4 * words
        }
        3 | 4 | 20..=23 | 27 | 30 | 31 => 8,
        8 => 16,
        32 => {
            reader.opaque(OPAQUE_BYTES_MAX)?;
            0
        }
        12 => {
            for _ in 0..reader.length(OPAQUE_BYTES_MAX)? {
                access_entry(reader)?;
            }
            0
        }
        24 => {
            path(reader)?;
            for _ in 0..reader.length(OPAQUE_BYTES_MAX)? {
                path(reader)?;
                path(reader)?;
            }
            0
        }
        _ => 4,
    };
    reader.take(bytes).map(|_| ())
}

/// `pathname4`, and other lists of texts.
fn path(reader: &mut Reader<'_>) -> Read<()> {
    for _ in 0..reader.length(OPAQUE_BYTES_MAX)? {
        reader.opaque(OPAQUE_BYTES_MAX)?;
    }
    Ok(())
}
