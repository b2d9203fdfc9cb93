//! Arguments of a COMPOUND: where the fields are that FileWall looks at.

use super::parts::{channel, implementation};
use super::results::Found;
use super::{
    ATTRIBUTE_SIZE, ATTRIBUTES_BYTES_MAX, ATTRIBUTES_LOCATIONS, NAME_BYTES_MAX, OPAQUE_BYTES_MAX, OPS_MAX,
    Op4, SESSION_BYTES, STATE_BYTES, TAG_BYTES_MAX, as_nfs3, bitmap, has, refusal_of, status,
};
use crate::wire::name::{self, Misnamed, Use};
use crate::wire::nfs3::{HANDLE4_BYTES_MAX, Op, PATH_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::wire::rpc::{AUTH_BYTES_MAX, GROUPS_MAX, MACHINE_BYTES_MAX};
use crate::wire::xdr::{Read, Reader, Span, Wrong};

/// Head of a COMPOUND: what stands before its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompoundHead {
    /// The tag, which the reply repeats.
    pub tag: Span,
    /// Minor version.
    pub minor: u32,
    /// Where the number of operations stands.
    pub count_at: usize,
    /// That number.
    pub count: usize,
}

/// Reads the head.
///
/// # Errors
/// [`Wrong`].
pub fn head(reader: &mut Reader<'_>) -> Read<CompoundHead> {
    let tag = reader.opaque(TAG_BYTES_MAX)?;
    let minor = reader.u32()?;
    let count_at = reader.at();
    let count = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
    Ok(CompoundHead { tag, minor, count_at, count })
}

/// What an OPEN says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenAt {
    /// Where the access stands that is wanted: 1 is reading, 2 is writing.
    pub access_at: usize,
    /// That access.
    pub access: u32,
    /// Its owner, a client's number and an opaque name.
    pub owner: Span,
    /// Where it stands how a file is made, if one is made.
    pub how_at: Option<usize>,
    /// How: 0 is as it comes, 1 only if there is none, 2 and 3 exclusively.
    pub how: u32,
    /// True if the length is set.
    pub sized: bool,
    /// Where the claim begins.
    pub claim_at: usize,
    /// The claim: 0 is a name, 1 and 4 are the current file.
    pub claim: u32,
}

impl OpenAt {
    /// Why an OPEN is refused whatever it is about, if it is. What is opened must be sure before the server says it: a name in the
    /// current folder, or the current file. Claims of delegations, which nobody has, name both, and servers differ in which of
    /// them is meant. A file that is there is not made: a length that such an OPEN brings would empty it.
    pub fn refusal(&self) -> Option<u32> {
        match self.claim {
            0 => None,
            1 | 4 if self.how_at.is_some() => Some(status::INVAL),
            1 | 4 => None,
            _ => Some(status::NOTSUPP),
        }
    }

    /// True if it may take a file that is there, and change it: as it comes, or exclusively, for whoever knows a file's times knows
    /// the verifier too by which servers tell that he has made it himself.
    pub fn takes(&self) -> bool {
        self.how_at.is_some() && self.how != 1
    }

    /// True if a file that is there may get another length by it.
    pub fn empties(&self) -> bool {
        self.sized && self.takes()
    }
}

/// One operation of a call. Fields that it does not have are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Which one.
    pub op: Op4,
    /// Where it begins: at its number.
    pub start: usize,
    /// Where the next one begins.
    pub end: usize,
    /// The operation of NFSv3 that rules speak of.
    pub rule: Option<Op>,
    /// Handle (PUTFH).
    pub handle: Option<Span>,
    /// Names in the order of the arguments: the first `name_count` are valid.
    pub names: [Span; 2],
    /// Number of names.
    pub name_count: usize,
    /// Why one of the names is none: such an operation is refused.
    pub misnamed: Option<Misnamed>,
    /// Offset of READ, WRITE and COMMIT, bytes.
    pub offset: u64,
    /// Count of READ, WRITE and COMMIT, and `maxcount` of READDIR, bytes.
    pub count: u32,
    /// Where the bits of ACCESS stand.
    pub access_at: Option<usize>,
    /// Where `maxcount` of READDIR stands; `dircount` stands before it.
    pub maxcount_at: Option<usize>,
    /// Cookie of READDIR.
    pub cookie: u64,
    /// What an OPEN says.
    pub open: Option<OpenAt>,
    /// The state that it is about.
    pub state: Option<Span>,
    /// Target of a symbolic link that is made.
    pub target: Option<Span>,
    /// The attributes that are set: where the words of the bitmap are.
    pub set: Option<Span>,
    /// The attributes that are asked for: where the words of the bitmap are.
    pub wanted: Option<Span>,
    /// Data of a WRITE.
    pub payload: Option<Span>,
    /// The handle among the attributes that are compared (VERIFY, NVERIFY).
    pub compared: Option<Found>,
    /// Where the longest request and reply of a new session stand, two words.
    pub sizes_at: Option<usize>,
    /// Where a word stands that opens a way from the server back to the client, past FileWall.
    pub callback_at: Option<usize>,
}

/// The operations of a call, and what stands behind them that cannot be served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compound {
    /// In their order.
    pub ops: Vec<Argument>,
    /// Number and status of the first operation that is not served, and where it begins.
    pub refused: Option<(u32, u32, usize)>,
}

/// Reads the operations behind a head.
///
/// # Errors
/// [`Wrong`].
pub fn operations(reader: &mut Reader<'_>, head: &CompoundHead, found: &mut Compound) -> Read<()> {
    found.ops.clear();
    found.refused = None;
    for _ in 0..head.count {
        let start = reader.at();
        let number = reader.u32()?;
        let op = Op4::from_number(number);
        let op = op.filter(|op| op.minor_first() <= head.minor && !(op.only_first() && head.minor > 0));
        let Some(op) = op else {
            found.refused = Some((number, refusal_of(number), start));
            return Ok(());
        };
        if found.ops.len() == OPS_MAX {
            found.refused = Some((number, status::RESOURCE, start));
            return Ok(());
        }
        let mut argument = Argument::new(op, start);
        argument.read(reader)?;
        argument.end = reader.at();
        found.ops.push(argument);
    }
    reader.end()
}

impl Argument {
    fn new(op: Op4, start: usize) -> Self {
        Self {
            op,
            start,
            end: start,
            rule: as_nfs3(op),
            handle: None,
            names: [Span::default(); 2],
            name_count: 0,
            misnamed: None,
            offset: 0,
            count: 0,
            access_at: None,
            maxcount_at: None,
            cookie: 0,
            open: None,
            state: None,
            target: None,
            set: None,
            wanted: None,
            payload: None,
            compared: None,
            sizes_at: None,
            callback_at: None,
        }
    }

    fn name(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        let span = reader.opaque(NAME_BYTES_MAX)?;
        self.misnamed = self.misnamed.or(name::check(reader.slice(span), Use::Change).err());
        self.names[self.name_count] = span;
        self.name_count += 1;
        Ok(())
    }

    fn read(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        match self.op {
            Op4::GetFh
            | Op4::LookupParent
            | Op4::PutPubFh
            | Op4::PutRootFh
            | Op4::ReadLink
            | Op4::RestoreFh
            | Op4::SaveFh => Ok(()),
            Op4::PutFh => {
                self.handle = Some(reader.opaque(HANDLE4_BYTES_MAX)?);
                Ok(())
            }
            Op4::Lookup | Op4::Remove | Op4::SecInfo | Op4::Link => self.name(reader),
            Op4::Rename => {
                self.name(reader)?;
                self.name(reader)
            }
            Op4::Access | Op4::Commit | Op4::GetAttr | Op4::Read | Op4::ReadDir | Op4::Write => {
                self.data(reader)
            }
            Op4::Create => self.create(reader),
            Op4::Open => self.open(reader),
            Op4::NVerify | Op4::Verify => {
                self.compared = super::results::attributes(reader, false)?.found;
                Ok(())
            }
            Op4::SetAttr => {
                self.state(reader)?;
                self.set = Some(attributes(reader)?);
                Ok(())
            }
            Op4::Close => {
                reader.u32()?;
                self.state(reader)
            }
            Op4::Lock | Op4::LockTest | Op4::Unlock => lock(self.op, reader),
            Op4::SetClientId | Op4::ExchangeId | Op4::CreateSession | Op4::BindConnection => {
                self.client(reader)
            }
            _ => fixed(self.op, reader),
        }
    }

    fn state(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        self.state = Some(Span { start: reader.at(), bytes: STATE_BYTES });
        reader.take(STATE_BYTES).map(|_| ())
    }

    fn data(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        match self.op {
            Op4::Access => {
                self.access_at = Some(reader.at());
                reader.u32()?;
            }
            Op4::Commit => (self.offset, self.count) = (reader.u64()?, reader.u32()?),
            Op4::GetAttr => self.wanted = Some(bitmap(reader)?),
            Op4::Read => {
                self.state(reader)?;
                (self.offset, self.count) = (reader.u64()?, reader.u32()?);
            }
            Op4::ReadDir => {
                self.cookie = reader.u64()?;
                reader.take(12)?;
                self.maxcount_at = Some(reader.at());
                self.count = reader.u32()?;
                self.wanted = Some(bitmap(reader)?);
            }
            _ => {
                self.state(reader)?;
                self.offset = reader.u64()?;
                reader.one_of(2)?;
                let payload = reader.opaque(PAYLOAD_BYTES_MAX)?;
                self.count = u32::try_from(payload.bytes).unwrap_or(u32::MAX);
                self.payload = Some(payload);
            }
        }
        Ok(())
    }

    fn create(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        self.rule = Some(match reader.u32()? {
            2 => Op::Mkdir,
            5 => {
                self.target = Some(reader.opaque(PATH_BYTES_MAX)?);
                Op::Symlink
            }
            3 | 4 => {
                reader.take(8)?;
                Op::Mknod
            }
            _ => Op::Mknod,
        });
        self.name(reader)?;
        self.set = Some(attributes(reader)?);
        Ok(())
    }

    /// An OPEN is to rules what it is for: making a file, writing it, or looking it up.
    fn open(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        reader.u32()?;
        let access_at = reader.at();
        let access = reader.u32()?;
        let writes = access & 2 != 0;
        reader.u32()?;
        let owner_at = reader.at();
        owner(reader)?;
        let owner = Span { start: owner_at, bytes: reader.at() - owner_at };
        let makes = reader.bool()?;
        let mut how_at = None;
        let mut how = 0;
        if makes {
            how_at = Some(reader.at());
            how = reader.one_of(3)?;
            match how {
                0 | 1 => self.set = Some(attributes(reader)?),
                2 => reader.take(8).map(|_| ())?,
                _ => {
                    reader.take(8)?;
                    self.set = Some(attributes(reader)?);
                }
            }
        }
        let sized = self.set.is_some_and(|set| has(reader, set, ATTRIBUTE_SIZE));
        let claim_at = reader.at();
        let claim = reader.one_of(6)?;
        self.open = Some(OpenAt { access_at, access, owner, how_at, how, sized, claim_at, claim });
        match claim {
            0 | 3 => self.name(reader)?,
            1 => reader.u32().map(|_| ())?,
            2 => {
                reader.take(STATE_BYTES)?;
                self.name(reader)?;
            }
            5 => reader.take(STATE_BYTES).map(|_| ())?,
            _ => {}
        }
        self.rule = Some(match (makes, writes, self.name_count) {
            (true, ..) => Op::Create,
            (false, true, _) => Op::Write,
            (false, false, 0) => Op::Getattr,
            (false, false, _) => Op::Lookup,
        });
        Ok(())
    }

    /// Operations by which a client makes itself known.
    fn client(&mut self, reader: &mut Reader<'_>) -> Read<()> {
        match self.op {
            Op4::SetClientId => {
                reader.take(8)?;
                reader.opaque(OPAQUE_BYTES_MAX)?;
                self.callback_at = Some(reader.at());
                reader.u32()?;
                reader.opaque(OPAQUE_BYTES_MAX)?;
                reader.opaque(OPAQUE_BYTES_MAX)?;
                reader.u32()?;
            }
            Op4::ExchangeId => {
                reader.take(8)?;
                reader.opaque(OPAQUE_BYTES_MAX)?;
                reader.u32()?;
                if reader.one_of(1)? == 1 {
                    bitmap(reader)?;
                    bitmap(reader)?;
                }
                implementation(reader)?;
            }
            Op4::BindConnection => {
                reader.take(SESSION_BYTES)?;
                self.callback_at = Some(reader.at());
                reader.u32()?;
                reader.bool()?;
            }
            _ => {
                reader.take(12)?;
                self.callback_at = Some(reader.at());
                reader.u32()?;
                self.sizes_at = Some(reader.at() + 4);
                channel(reader)?;
                channel(reader)?;
                reader.u32()?;
                for _ in 0..reader.length(OPS_MAX)? {
                    callback_security(reader)?;
                }
            }
        }
        Ok(())
    }

    /// Where the words of the wanted attributes stand that would lead to another server, and their bits.
    pub fn locations(&self) -> impl Iterator<Item = (usize, u32)> {
        let wanted = self.wanted.unwrap_or_default();
        ATTRIBUTES_LOCATIONS.into_iter().filter_map(move |attribute| {
            let at = 4 * (attribute / 32) as usize;
            (at + 4 <= wanted.bytes).then(|| (wanted.start + at, 1 << (attribute % 32)))
        })
    }
}

/// Operations whose arguments nobody looks at and which have a fixed length, or nearly.
fn fixed(op: Op4, reader: &mut Reader<'_>) -> Read<()> {
    let bytes = match op {
        Op4::DelegPurge | Op4::Renew | Op4::DestroyClientId => 8,
        Op4::DelegReturn | Op4::FreeState => STATE_BYTES,
        Op4::OpenConfirm => STATE_BYTES + 4,
        Op4::OpenDowngrade => STATE_BYTES + 12,
        Op4::SetClientIdConfirm => 16,
        Op4::DestroySession => SESSION_BYTES,
        Op4::SecInfoNoName => 4,
        Op4::Sequence => {
            reader.take(SESSION_BYTES + 12)?;
            return reader.bool().map(|_| ());
        }
        Op4::ReclaimComplete => return reader.bool().map(|_| ()),
        Op4::ReleaseLockOwner => return owner(reader),
        Op4::TestState => STATE_BYTES * reader.length(OPAQUE_BYTES_MAX)?,
        _ => 0,
    };
    reader.take(bytes).map(|_| ())
}

fn lock(op: Op4, reader: &mut Reader<'_>) -> Read<()> {
    let at = reader.at();
    let kind = reader.u32()?;
    if !(1..=4).contains(&kind) {
        return Err(Wrong::Value { at, value: kind });
    }
    match op {
        Op4::LockTest => {
            reader.take(16)?;
            owner(reader)
        }
        Op4::Unlock => reader.take(4 + STATE_BYTES + 16).map(|_| ()),
        _ => {
            reader.bool()?;
            reader.take(16)?;
            if reader.bool()? {
                reader.take(4 + STATE_BYTES + 4)?;
                owner(reader)
            } else {
                reader.take(STATE_BYTES + 4).map(|_| ())
            }
        }
    }
}

/// `open_owner4`, `lock_owner4`.
fn owner(reader: &mut Reader<'_>) -> Read<()> {
    reader.u64()?;
    reader.opaque(OPAQUE_BYTES_MAX).map(|_| ())
}

/// `fattr4` whose values nobody looks at; which ones they are.
fn attributes(reader: &mut Reader<'_>) -> Read<Span> {
    let bits = bitmap(reader)?;
    reader.opaque(ATTRIBUTES_BYTES_MAX)?;
    Ok(bits)
}

fn callback_security(reader: &mut Reader<'_>) -> Read<()> {
    let at = reader.at();
    match reader.u32()? {
        0 => Ok(()),
        1 => {
            reader.u32()?;
            reader.opaque(MACHINE_BYTES_MAX)?;
            reader.take(8)?;
            let groups = reader.length(GROUPS_MAX)?;
            reader.take(4 * groups).map(|_| ())
        }
        6 => {
            reader.u32()?;
            reader.opaque(AUTH_BYTES_MAX)?;
            reader.opaque(AUTH_BYTES_MAX).map(|_| ())
        }
        value => Err(Wrong::Value { at, value }),
    }
}
