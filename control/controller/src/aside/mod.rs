//! Setting an entry of the order aside, by the agreement of those who ordered it (rows B1, R1, R4).
//!
//! An entry that ends every process that carries it out cannot be taken out by another entry: such a one would stand behind it. So the
//! members of the group agree beside the order. An operator's word names the entry by its place and digest ([`Word`]). A member that is told stays before the
//! entry, promises for ever not to carry it out ([`Case`]), and goes on without it once it has the promises of as many members as decide:
//! of 2f+1 where some may lie, else of a majority. Whoever has these can show them to anybody: a member that nobody told is told by the
//! others.
//!
//! Who is told:
//! - Where operators sign, whoever has the word of an admin of the domain, as the state before the entry knows them; any member may
//!   have brought it.
//! - Where none do: the member at which an operator said so; where one member is believed, also whoever hears another one's promise.
//!
//! Invariants
//! - A place has one entry, and two quorums a member in common that does not lie. It promises or carries out, never both ([`Mark`]); so
//!   never has one quorum set aside what another one carried out.
//! - A promise is durable before it is signed: [`Aside::consider`] gives the case to keep, and nothing of it is told before
//!   [`Aside::keep`].
//! - Others' promises are kept with the own one, or when there are enough of them, and are else as good as what was heard: so a member that
//!   promises whatever it likes fills nobody's disk.
//! - Promises of those count who were members when the entry was ordered ([`Electorate`]).
//!
//! Here is no clock, disk or socket: see `driver::aside`.

mod mark;

pub use mark::{Carried, MARK_BYTES, Mark};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as BTreeEntry;
use weir_base::codec::{decode, encode};
use weir_model::Label;
use weir_model::event::SourceId;
use weir_model::signed::Signature;
use weir_trust::identity::{Context, KeyPair, verify};

/// Most entries that a controller ever sets aside.
pub const CASES_MAX: usize = 64;
/// Most promises of one case: as many as a group has members, by far.
pub const PROMISES_MAX: usize = 256;
/// Most bytes of the file of cases, and of a message.
pub const KEPT_BYTES_MAX: usize = CASES_MAX * PROMISES_MAX * 80;
/// Most bytes of a message.
pub const TELL_BYTES_MAX: usize = 32 * 1024;

const TELL_MAGIC: &[u8; 8] = b"\xc1aside\x00\x01";
const KEPT_MAGIC: &[u8; 8] = b"weirasd1";

/// An entry of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryName {
    /// Its place.
    pub index: u64,
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
}

/// An operator's word that an entry is to be set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// Who says so.
    pub operator: SourceId,
    /// When it was made by the operator's clock, milliseconds of the Unix epoch. It has no end: the entry waits for ever.
    pub made_ms: u64,
    /// Its signature.
    pub signature: Signature,
}

impl Word {
    fn statement(domain: &Label, entry: &EntryName, operator: &SourceId, made_ms: u64) -> Vec<u8> {
        encode(&(domain, entry, operator, made_ms))
    }

    /// Signs it.
    pub fn sign(key: &KeyPair, domain: &Label, entry: &EntryName, operator: SourceId, made_ms: u64) -> Word {
        let signature = key.sign(Context::SetAside, &Word::statement(domain, entry, &operator, made_ms));
        Word { operator, made_ms, signature }
    }

    /// Whether an admin of the domain says so.
    pub fn is_of(&self, admins: &Admins, domain: &Label, entry: &EntryName) -> bool {
        let statement = Word::statement(domain, entry, &self.operator, self.made_ms);
        let signed = |key| verify(key, Context::SetAside, &statement, &self.signature).is_ok();
        admins.get(&self.operator).is_some_and(|keys| keys.iter().any(signed))
    }
}

fn promise_of(domain: &Label, entry: &EntryName, member: u32) -> Vec<u8> {
    encode(&(domain, entry, member))
}

/// Whether a member with this key promised not to carry an entry out.
pub fn is_promise(
    key: &[u8; 32],
    domain: &Label,
    entry: &EntryName,
    member: u32,
    signature: &Signature,
) -> bool {
    verify(key, Context::AsidePromise, &promise_of(domain, entry, member), signature).is_ok()
}

/// Keys of the admins among a domain's operators.
pub type Admins = BTreeMap<SourceId, Vec<[u8; 32]>>;

/// What is known of an entry that is to be set aside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// The entry.
    pub entry: EntryName,
    /// The operator's word, where operators sign.
    pub word: Option<Word>,
    /// Promises by the members' numbers; the own one is on the disk before it is among them.
    pub promises: BTreeMap<u32, Signature>,
    /// There are enough of them: nothing of the entry is done.
    pub agreed: bool,
}

impl Case {
    fn new(entry: EntryName) -> Case {
        Case { entry, word: None, promises: BTreeMap::new(), agreed: false }
    }
}

/// What a member tells another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tell {
    /// What it knows. Nothing of it is believed.
    pub case: Case,
    /// It waits, and wants to hear what the other knows.
    pub asks: bool,
}

impl Tell {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        [&TELL_MAGIC[..], &encode(self)].concat()
    }

    /// Whether a message between members is one.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(TELL_MAGIC)
    }

    /// Reads one; none: it is no message of this kind, or not a right one.
    pub fn decode(bytes: &[u8]) -> Option<Tell> {
        let rest = bytes.strip_prefix(TELL_MAGIC).filter(|rest| rest.len() <= TELL_BYTES_MAX)?;
        decode::<Tell>(rest).ok().filter(|tell| tell.case.promises.len() <= PROMISES_MAX)
    }
}

/// Who orders an entry: the members of its epoch, by their keys, and how many of them decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Electorate {
    /// The members.
    pub members: BTreeMap<u32, [u8; 32]>,
    /// How many decide.
    pub quorum: usize,
    /// Whether one member's word about what an operator told it is enough.
    pub believes: bool,
}

/// What an operator wants, told at this controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The entry.
    pub entry: EntryName,
    /// The word, where the operator has a key.
    pub word: Option<Word>,
    /// The operator says that this controller has not carried the entry out, where that is not known.
    pub not_carried_out: bool,
}

/// Why a controller waits before an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Waits {
    /// Nobody said what to do.
    #[error("no operator has said that it is to be set aside")]
    Untold,
    /// Told by somebody who may not say so.
    #[error(
        "operators sign in this domain, and no admin's word for it is here: give the command an operator's key (--operator)"
    )]
    Unsigned,
    /// Told of another entry at this place.
    #[error(
        "this controller was told to set aside another entry at this place ({0}): say it again with this one's digest, or take it back \
         (--take-back)"
    )]
    Other(String),
    /// It was carried out here.
    #[error(
        "this controller has carried it out before, and promises nothing: hosts may have what it decided. It goes on when the others have agreed \
         without it; or give it the memory that it wants, or the release with which it could"
    )]
    Carried,
    /// Nobody knows.
    #[error(
        "it is not known whether this controller has carried it out: its machine went down without a word, or an earlier release wrote here. Who \
         knows that it has not says so (--not-carried-out)"
    )]
    Unknown,
    /// It was no member then.
    #[error("this controller was no member of the group when it was ordered")]
    NoMember,
    /// It promised.
    #[error("{have} of {need} controllers have promised")]
    Few {
        /// How many.
        have: usize,
        /// How many must.
        need: usize,
    },
    /// There are too many cases.
    #[error("{CASES_MAX} entries are set aside, which is the limit")]
    TooMany,
}

/// What became of looking at an entry before which a controller waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Considered {
    /// What is known now.
    pub case: Case,
    /// Whether that is more than is kept, and is to be.
    pub changed: bool,
    /// Why it still waits; none: it is agreed.
    pub waits: Option<Waits>,
}

/// What a member knows of entries that are set aside. See the module.
#[derive(Clone, Debug, Default)]
pub struct Aside {
    cases: BTreeMap<u64, Case>,
    /// What each member said last of an entry that is not agreed on here. Not checked.
    heard: BTreeMap<u32, Case>,
}

impl Aside {
    /// What was kept.
    ///
    /// # Errors
    /// None for bytes that are damaged.
    pub fn open(bytes: &[u8]) -> Option<Aside> {
        let (rest, crc) = bytes.split_last_chunk::<4>()?;
        let whole = u32::from_le_bytes(*crc) == crc32c::crc32c(rest);
        let cases = rest.strip_prefix(KEPT_MAGIC).filter(|_| whole)?;
        let cases: Vec<Case> = decode(cases).ok()?;
        let cases = cases.into_iter().map(|case| (case.entry.index, case)).collect();
        Some(Aside { cases, heard: BTreeMap::new() })
    }

    /// The bytes to keep, with this case.
    pub fn with(&self, case: &Case) -> Vec<u8> {
        let others = self.cases.values().filter(|known| known.entry.index != case.entry.index);
        let cases: Vec<&Case> = others.chain([case]).collect();
        let mut bytes = [&KEPT_MAGIC[..], &encode(&cases)].concat();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// A case is on the disk.
    pub fn keep(&mut self, case: Case) {
        if case.agreed {
            self.heard.retain(|_, heard| heard.entry != case.entry);
        }
        self.cases.insert(case.entry.index, case);
    }

    /// What is kept of an entry.
    pub fn case(&self, entry: &EntryName) -> Option<&Case> {
        self.cases.get(&entry.index).filter(|case| case.entry == *entry)
    }

    /// Whether something is kept of an entry at a place, or was heard of it: then it is worth a look at its digest.
    pub fn knows_of(&self, index: u64) -> bool {
        self.cases.contains_key(&index) || self.heard.values().any(|case| case.entry.index == index)
    }

    /// Another member says something. Gives the answer, if there is one.
    pub fn hear(&mut self, from: u32, tell: Tell) -> Option<Tell> {
        let known = self.case(&tell.case.entry);
        if let Some(agreed) = known.filter(|case| case.agreed) {
            return tell.asks.then(|| Tell { case: agreed.clone(), asks: false });
        }
        if self.heard.len() < PROMISES_MAX || self.heard.contains_key(&from) {
            self.heard.insert(from, tell.case);
        }
        None
    }

    /// Looks at an entry before which this member, `me`, waits. `mark`: whether it has carried it out; `admins`: where operators sign.
    pub fn consider(
        &self,
        (me, key): (u32, &KeyPair),
        (domain, entry): (&Label, EntryName),
        who: &Electorate,
        wish: Option<&Wish>,
        (mark, admins): (Carried, Option<&Admins>),
    ) -> Considered {
        let before = self.case(&entry);
        let mut case = before.cloned().unwrap_or_else(|| Case::new(entry));
        if case.agreed {
            return Considered { case, changed: false, waits: None };
        }
        if let Some(other) = wish.filter(|wish| wish.entry != entry) {
            let waits = Some(Waits::Other(weir_model::join::to_hex(&other.entry.sha256)));
            return Considered { case, changed: false, waits };
        }
        let said = self.heard.values().filter(|heard| heard.entry == entry);
        for (member, signature) in said.clone().flat_map(|heard| &heard.promises) {
            let known = who.members.get(member).filter(|_| *member != me);
            if !case.promises.contains_key(member)
                && known.is_some_and(|key| is_promise(key, domain, &entry, *member, signature))
            {
                case.promises.insert(*member, *signature);
            }
        }
        let mut words = wish
            .iter()
            .filter_map(|wish| wish.word.as_ref())
            .chain(said.filter_map(|heard| heard.word.as_ref()));
        if let Some(admins) = admins
            && case.word.is_none()
        {
            case.word = words.find(|word| word.is_of(admins, domain, &entry)).cloned();
        }
        let told = match admins {
            Some(_) => case.word.is_some(),
            None => wish.is_some() || who.believes && !case.promises.is_empty(),
        };
        let mut problem = None;
        if let BTreeEntry::Vacant(own) = case.promises.entry(me) {
            problem = self.obstacle(
                me,
                who,
                (told, wish.is_some()),
                mark,
                wish.is_some_and(|wish| wish.not_carried_out),
            );
            if problem.is_none() {
                let signature = key.sign(Context::AsidePromise, &promise_of(domain, &entry, me));
                own.insert(signature);
            }
        }
        let have = case.promises.keys().filter(|member| who.members.contains_key(member)).count();
        case.agreed = have >= who.quorum;
        let few = Waits::Few { have, need: who.quorum };
        let waits = (!case.agreed).then(|| problem.unwrap_or(few));
        let is_to_keep = case.agreed || case.promises.contains_key(&me);
        Considered { changed: is_to_keep && before != Some(&case), case, waits }
    }

    /// Why this member does not promise, if so.
    fn obstacle(
        &self,
        me: u32,
        who: &Electorate,
        (told, wished): (bool, bool),
        mark: Carried,
        not_carried_out: bool,
    ) -> Option<Waits> {
        let alone = who.members.len() == 1;
        match mark {
            _ if !told && wished => Some(Waits::Unsigned),
            _ if !told => Some(Waits::Untold),
            _ if !who.members.contains_key(&me) => Some(Waits::NoMember),
            _ if self.cases.len() >= CASES_MAX => Some(Waits::TooMany),
            // Nobody else can have carried it out, and hosts that have what it decided are found and told.
            _ if alone => None,
            Carried::Yes => Some(Waits::Carried),
            Carried::Unknown if !not_carried_out => Some(Waits::Unknown),
            Carried::Unknown | Carried::No => None,
        }
    }
}

#[cfg(test)]
mod tests;
