//! Arguments of NFSv3 calls: where their fields are.

use super::name::{self, Misnamed, Use};
use super::nfs3::{HANDLE_BYTES_MAX, Op, PATH_BYTES_MAX, PAYLOAD_BYTES_MAX};
use super::xdr::{Read, Reader, Span, Wrong};

/// Where the settable attributes are that a policy may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetSpans {
    /// Where the mode stands, if it is set.
    pub mode_at: Option<usize>,
    /// Where the owner stands, if it is set.
    pub uid_at: Option<usize>,
    /// Where the group stands, if it is set.
    pub gid_at: Option<usize>,
    /// The length, if it is set, bytes.
    pub size: Option<u64>,
}

/// Where the fields of a call's arguments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Which call.
    pub op: Op,
    /// Handles in the order of the arguments: the first `handle_count` are valid.
    pub handles: [Span; 2],
    /// Number of handles.
    pub handle_count: usize,
    /// Names in the order of the arguments: the first `name_count` are valid.
    pub names: [Span; 2],
    /// Number of names.
    pub name_count: usize,
    /// Why one of the names is none: such a call goes nowhere.
    pub misnamed: Option<Misnamed>,
    /// Attributes that are set.
    pub set: SetSpans,
    /// True for a CREATE that takes a file that is there, or an OPEN that does so: as it comes, or exclusively, for whoever knows a file's times
    /// knows the verifier too by which servers tell that he has made it himself.
    pub takes: bool,
    /// What it does besides, as bits, where its other arguments do not say it ([`crate::policy::does`]).
    pub also: u32,
    /// Target of a SYMLINK.
    pub target: Option<Span>,
    /// Where the bits of ACCESS stand.
    pub access_at: Option<usize>,
    /// Where `maxcount` of READDIRPLUS stands.
    pub maxcount_at: Option<usize>,
    /// Offset of READ, WRITE and COMMIT, bytes.
    pub offset: u64,
    /// Count of READ, WRITE, COMMIT, READDIR (`count`) and READDIRPLUS (`maxcount`), bytes.
    pub count: u32,
    /// Data of a WRITE.
    pub payload: Option<Span>,
}

impl Arguments {
    /// Arguments of which nothing is known yet.
    pub fn new(op: Op) -> Self {
        Self {
            op,
            handles: [Span::default(); 2],
            handle_count: 0,
            names: [Span::default(); 2],
            name_count: 0,
            misnamed: None,
            set: SetSpans::default(),
            takes: false,
            also: 0,
            target: None,
            access_at: None,
            maxcount_at: None,
            offset: 0,
            count: 0,
            payload: None,
        }
    }

    fn handle(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        self.handles[self.handle_count] = reader.opaque(HANDLE_BYTES_MAX)?;
        self.handle_count += 1;
        Ok(())
    }

    fn name(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        // One that is too long is answered, not taken for garbage.
        let span = reader.opaque(PATH_BYTES_MAX)?;
        let what = if self.op == Op::Lookup { Use::Look } else { Use::Change };
        self.misnamed = self.misnamed.or(name::check(reader.slice(span), what).err());
        self.names[self.name_count] = span;
        self.name_count += 1;
        Ok(())
    }

    fn place(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        self.handle(reader)?;
        self.name(reader)
    }

    fn set(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        let word = |reader: &mut Reader<'_>| -> Read<Option<usize>> {
            if !reader.bool()? {
                return Ok(None);
            }
            let at = reader.at();
            reader.u32()?;
            Ok(Some(at))
        };
        self.set =
            SetSpans { mode_at: word(reader)?, uid_at: word(reader)?, gid_at: word(reader)?, size: None };
        if reader.bool()? {
            self.set.size = Some(reader.u64()?);
        }
        for _time in 0..2 {
            if reader.one_of(2)? == 2 {
                reader.take(8)?;
            }
        }
        Ok(())
    }
}

/// Reads the arguments of `op`; the reader stands behind the head of the call. For a WRITE, the payload need not
/// be at hand.
///
/// # Errors
/// [`Wrong`].
pub fn arguments(reader: &mut Reader<'_>, op: Op) -> Read<Arguments> {
    let mut found = Arguments::new(op);
    match op {
        Op::Null => {}
        Op::Getattr | Op::Readlink | Op::Fsstat | Op::Fsinfo | Op::Pathconf => found.handle(reader)?,
        Op::Setattr => {
            found.handle(reader)?;
            found.set(reader)?;
            if reader.bool()? {
                reader.take(8)?;
            }
        }
        Op::Lookup | Op::Remove | Op::Rmdir => found.place(reader)?,
        Op::Access => {
            found.handle(reader)?;
            found.access_at = Some(reader.at());
            reader.u32()?;
        }
        Op::Read | Op::Commit => {
            found.handle(reader)?;
            found.offset = reader.u64()?;
            found.count = reader.u32()?;
        }
        Op::Write => write(&mut found, reader)?,
        Op::Create => create(&mut found, reader)?,
        Op::Mkdir => {
            found.place(reader)?;
            found.set(reader)?;
        }
        Op::Symlink => {
            found.place(reader)?;
            found.set(reader)?;
            found.target = Some(reader.opaque(PATH_BYTES_MAX)?);
        }
        Op::Mknod => mknod(&mut found, reader)?,
        Op::Rename => {
            found.place(reader)?;
            found.place(reader)?;
        }
        Op::Link => {
            found.handle(reader)?;
            found.place(reader)?;
        }
        Op::Readdir => {
            found.handle(reader)?;
            reader.take(16)?;
            found.count = reader.u32()?;
        }
        Op::Readdirplus => {
            found.handle(reader)?;
            reader.take(20)?;
            found.maxcount_at = Some(reader.at());
            found.count = reader.u32()?;
        }
    }
    reader.end()?;
    Ok(found)
}

fn write(found: &mut Arguments, reader: &mut Reader<'_>) -> Read<()> {
    found.handle(reader)?;
    found.offset = reader.u64()?;
    let count_at = reader.at();
    found.count = reader.u32()?;
    let _stable = reader.one_of(2)?;
    let payload = reader.last_opaque(PAYLOAD_BYTES_MAX)?;
    if usize::try_from(found.count) != Ok(payload.bytes) {
        return Err(Wrong::Value { at: count_at, value: found.count });
    }
    found.payload = Some(payload);
    Ok(())
}

fn create(found: &mut Arguments, reader: &mut Reader<'_>) -> Read<()> {
    found.place(reader)?;
    let how = reader.one_of(2)?;
    found.takes = how != 1;
    match how {
        2 => reader.take(8).map(|_| ()),
        _ => found.set(reader),
    }
}

fn mknod(found: &mut Arguments, reader: &mut Reader<'_>) -> Read<()> {
    found.place(reader)?;
    match reader.one_of(7)? {
        3 | 4 => {
            found.set(reader)?;
            reader.take(8).map(|_| ())
        }
        6 | 7 => found.set(reader),
        _ => Ok(()),
    }
}
