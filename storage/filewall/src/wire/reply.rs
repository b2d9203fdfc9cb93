//! Results of NFSv3 calls: where attributes and handles are, so that they can be rewritten.

use super::name::{Use, check};
use super::nfs3::{
    ATTRIBUTES_BYTES, HANDLE_BYTES_MAX, HANDLE4_BYTES_MAX, NAME_BYTES_MAX, Op, PATH_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
};
use super::xdr::{Read, Reader, Span, Wrong, padded};

/// Most entries in one READDIR or READDIRPLUS reply. An entry has at least 28 bytes, so this is above what fits
/// into the largest record.
pub const ENTRIES_MAX: usize = 65_536;

/// Length of `wcc_attr`, bytes.
pub const BEFORE_BYTES: usize = 24;

/// Where a file's own attributes are: beginning of a `fattr3`.
pub type AttributesAt = usize;

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the entry begins: at the boolean that says that there is one.
    pub start: usize,
    /// End of the entry.
    pub end: usize,
    /// Its name.
    pub name: Span,
    /// Its attributes, if the server gave them.
    pub attributes: Option<AttributesAt>,
    /// Its handle, if the server gave it.
    pub handle: Option<Span>,
    /// The client gets neither: a policy hides them.
    pub hidden: bool,
}

/// Where the fields of a reply's results are. Reused from reply to reply, so that entries need no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Results {
    /// Says before reading that entries may have handles as long as those of NFSv4.
    pub long_handles: bool,
    /// `nfsstat3`.
    pub status: u32,
    /// All `fattr3`, in the order of the reply, without those of entries.
    pub attributes: Vec<AttributesAt>,
    /// All `wcc_attr`, which say how something was before, in the order of the reply.
    pub before: Vec<usize>,
    /// Attributes of the object that the reply is about: the file looked up, read or made.
    pub object: Option<AttributesAt>,
    /// Handle of the object looked up or made.
    pub handle: Option<Span>,
    /// Where the granted bits of ACCESS stand.
    pub access_at: Option<usize>,
    /// Where FSINFO's numbers begin (`rtmax`).
    pub fsinfo_at: Option<usize>,
    /// Entries of a directory.
    pub entries: Vec<Entry>,
    /// True for READDIRPLUS.
    pub plus: bool,
    /// Where the boolean behind the last entry stands; `eof` follows.
    pub entries_end_at: Option<usize>,
    /// Data of a READ.
    pub payload: Option<Span>,
    /// Target of a symbolic link.
    pub path: Option<Span>,
    /// Bytes read or written, as the server says.
    pub count: u32,
}

impl Results {
    /// Empties it, keeping its memory and what was said before reading.
    pub fn clear(&mut self) {
        let Results { attributes, before, entries, long_handles, .. } = self;
        attributes.clear();
        before.clear();
        entries.clear();
        let (attributes, before) = (std::mem::take(attributes), std::mem::take(before));
        let (entries, long_handles) = (std::mem::take(entries), *long_handles);
        *self = Results { attributes, before, entries, long_handles, ..Results::default() };
    }

    fn attributes(&mut self, reader: &mut Reader<'_>) -> Read<AttributesAt> {
        let at = reader.at();
        let kind = reader.u32()?;
        if !(1..=7).contains(&kind) {
            return Err(Wrong::Value { at, value: kind });
        }
        reader.take(ATTRIBUTES_BYTES - 4)?;
        self.attributes.push(at);
        Ok(at)
    }

    /// `post_op_attr`.
    fn after(&mut self, reader: &mut Reader<'_>) -> Read<Option<AttributesAt>> {
        if reader.bool()? { self.attributes(reader).map(Some) } else { Ok(None) }
    }

    /// `wcc_data`.
    fn change(&mut self, reader: &mut Reader<'_>) -> Read<Option<AttributesAt>> {
        if reader.bool()? {
            self.before.push(reader.at());
            reader.take(BEFORE_BYTES)?;
        }
        self.after(reader)
    }

    /// Results of the calls that make an object.
    fn made(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        if reader.bool()? {
            self.handle = Some(reader.opaque(HANDLE_BYTES_MAX)?);
        }
        self.object = self.after(reader)?;
        self.change(reader).map(|_| ())
    }

    fn entry(&mut self, reader: &mut Reader<'_>, start: usize, plus: bool) -> Read<()> {
        let limit = if self.long_handles { HANDLE4_BYTES_MAX } else { HANDLE_BYTES_MAX };
        if plus && let Some(entry) = usual_entry(reader, start, limit) {
            self.entries.push(entry);
            return Ok(());
        }
        reader.u64()?;
        let name = reader.entry_name(NAME_BYTES_MAX)?;
        reader.u64()?;
        let mut entry = Entry { start, end: 0, name, attributes: None, handle: None, hidden: false };
        if plus {
            if reader.bool()? {
                let at = reader.at();
                reader.take(ATTRIBUTES_BYTES)?;
                entry.attributes = Some(at);
            }
            if reader.bool()? {
                entry.handle = Some(reader.opaque(limit)?);
            }
        }
        entry.end = reader.at();
        self.entries.push(entry);
        Ok(())
    }

    fn directory(&mut self, reader: &mut Reader<'_>, plus: bool) -> Read<()> {
        self.object = self.after(reader)?;
        self.plus = plus;
        reader.take(8)?;
        loop {
            let start = reader.at();
            if !reader.bool()? {
                self.entries_end_at = Some(start);
                reader.bool()?;
                return Ok(());
            }
            if self.entries.len() == ENTRIES_MAX {
                return Err(Wrong::Many { limit: ENTRIES_MAX });
            }
            self.entry(reader, start, plus)?;
        }
    }
}

/// An entry of READDIRPLUS as most are, with attributes and a handle and the next boolean at hand: its lengths are looked at once. The
/// reader stays where it is if the entry is another one, or none.
fn usual_entry(reader: &mut Reader<'_>, start: usize, limit: usize) -> Option<Entry> {
    let at = reader.at();
    let rest = reader.rest();
    let word =
        |at: usize| rest.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) as usize);
    let clean =
        |from: usize, bytes: usize| rest.get(from..from + bytes)?.iter().all(|byte| *byte == 0).then_some(());
    // fileid, name, cookie, attributes, handle.
    let name = Span { start: at + 12, bytes: word(8).filter(|bytes| *bytes <= NAME_BYTES_MAX)? };
    // What is no name is told with its reason on the other way.
    check(rest.get(12..12 + name.bytes)?, Use::Look).ok()?;
    let behind = 12 + padded(name.bytes);
    clean(12 + name.bytes, padded(name.bytes) - name.bytes)?;
    let attributes = behind + 12;
    let handle = attributes + ATTRIBUTES_BYTES + 8;
    if word(behind + 8)? != 1 || word(handle - 8)? != 1 {
        return None;
    }
    let bytes = word(handle - 4).filter(|bytes| *bytes <= limit)?;
    let end = handle + padded(bytes);
    clean(handle + bytes, padded(bytes) - bytes)?;
    reader.take(end).ok()?;
    let (attributes, handle) = (Some(at + attributes), Some(Span { start: at + handle, bytes }));
    Some(Entry { start, end: at + end, name, attributes, handle, hidden: false })
}

/// Reads the results of `op` into `found`; the reader stands behind the head of the reply. For a READ, the payload
/// need not be at hand.
///
/// # Errors
/// [`Wrong`].
pub fn results(reader: &mut Reader<'_>, op: Op, found: &mut Results) -> Read<()> {
    found.clear();
    if op == Op::Null {
        return reader.end();
    }
    found.status = reader.u32()?;
    if found.status == 0 {
        success(reader, op, found)?
    } else {
        failure(reader, op, found)?
    }
    reader.end()
}

fn success(reader: &mut Reader<'_>, op: Op, found: &mut Results) -> Read<()> {
    match op {
        Op::Null => {}
        Op::Getattr => found.object = Some(found.attributes(reader)?),
        Op::Setattr | Op::Remove | Op::Rmdir => found.object = found.change(reader)?,
        Op::Lookup => {
            found.handle = Some(reader.opaque(HANDLE_BYTES_MAX)?);
            found.object = found.after(reader)?;
            found.after(reader)?;
        }
        Op::Access => {
            found.object = found.after(reader)?;
            found.access_at = Some(reader.at());
            reader.u32()?;
        }
        Op::Readlink => {
            found.object = found.after(reader)?;
            found.path = Some(reader.opaque(PATH_BYTES_MAX)?);
        }
        Op::Read => read(reader, found)?,
        Op::Write => {
            found.object = found.change(reader)?;
            found.count = reader.u32()?;
            reader.one_of(2)?;
            reader.take(8)?;
        }
        Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod => found.made(reader)?,
        Op::Rename => {
            found.change(reader)?;
            found.change(reader)?;
        }
        Op::Link => {
            found.object = found.after(reader)?;
            found.change(reader)?;
        }
        Op::Readdir => found.directory(reader, false)?,
        Op::Readdirplus => found.directory(reader, true)?,
        Op::Fsstat => {
            found.object = found.after(reader)?;
            reader.take(52)?;
        }
        Op::Fsinfo => {
            found.object = found.after(reader)?;
            found.fsinfo_at = Some(reader.at());
            reader.take(48)?;
        }
        Op::Pathconf => {
            found.object = found.after(reader)?;
            reader.take(8)?;
            for _ in 0..4 {
                reader.bool()?;
            }
        }
        Op::Commit => {
            found.object = found.change(reader)?;
            reader.take(8)?;
        }
    }
    Ok(())
}

fn read(reader: &mut Reader<'_>, found: &mut Results) -> Read<()> {
    found.object = found.after(reader)?;
    let count_at = reader.at();
    found.count = reader.u32()?;
    reader.bool()?;
    let payload = reader.last_opaque(PAYLOAD_BYTES_MAX)?;
    if usize::try_from(found.count) != Ok(payload.bytes) {
        return Err(Wrong::Value { at: count_at, value: found.count });
    }
    found.payload = Some(payload);
    Ok(())
}

fn failure(reader: &mut Reader<'_>, op: Op, found: &mut Results) -> Read<()> {
    match shape(op) {
        Failure::Nothing => {}
        Failure::After => found.object = found.after(reader)?,
        Failure::Change => found.object = found.change(reader)?,
        Failure::TwoChanges => {
            found.change(reader)?;
            found.change(reader)?;
        }
        Failure::AfterAndChange => {
            found.object = found.after(reader)?;
            found.change(reader)?;
        }
    }
    Ok(())
}

/// What follows the status of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing.
    Nothing,
    /// Attributes, perhaps.
    After,
    /// Attributes before and after, perhaps.
    Change,
    /// The same for two directories.
    TwoChanges,
    /// Attributes of the file, then those of the directory before and after.
    AfterAndChange,
}

/// The shape of a failed call's results.
pub fn shape(op: Op) -> Failure {
    match op {
        Op::Null | Op::Getattr => Failure::Nothing,
        Op::Lookup
        | Op::Access
        | Op::Readlink
        | Op::Read
        | Op::Readdir
        | Op::Readdirplus
        | Op::Fsstat
        | Op::Fsinfo
        | Op::Pathconf => Failure::After,
        Op::Setattr
        | Op::Write
        | Op::Create
        | Op::Mkdir
        | Op::Symlink
        | Op::Mknod
        | Op::Remove
        | Op::Rmdir
        | Op::Commit => Failure::Change,
        Op::Rename => Failure::TwoChanges,
        Op::Link => Failure::AfterAndChange,
    }
}
