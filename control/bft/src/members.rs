//! Who is a member, epoch by epoch (rows B1, C5).
//!
//! A [`Roster`] is the members of one epoch. A [`Change`] makes the next: one member more, one less, or one in another's place. Whoever is
//! allowed to want it tells each member, and each orders its [`Approval`], a batch like any other; the one that makes them
//! as many as finalize a block ends its block and the epoch. That block names the next members, so the certificate over it is the old
//! members' word for the new ones: a [`Link`]. From the founders a chain of links leads to any epoch, and needs belief in nobody.
//!
//! Invariants
//! - Members alone approve, each once at a time in an epoch; f liars cannot bring a change about, nor keep the others from one.
//! - The last block of an epoch has no child there. The first of the next has the next epoch's genesis as its parent, which is a hash
//!   over group, epoch, that last block and the members; votes are signed in a namespace with the genesis in it. So no vote of one epoch,
//!   or of another history, counts in another.
//! - A group has [`MEMBERS_MIN`] members at least: fewer survive no lie.
//!
//! Departures from Cicero: it announces a change by the bootstrap controller and has its peers agree; here every member is asked by itself, as none is
//! to be believed.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use commonware_codec::{Copying, DecodeExt};
use commonware_cryptography::ed25519::PublicKey;
use sha2::{Digest as _, Sha256};

use crate::codec::{Digest, Malformed, Reader};
use crate::group::{Members, namespace};
use crate::member::{put_member, put_members, take_member, take_members};
use crate::wire::Block;

pub use crate::member::{ADDRESS_BYTES_MAX, MEMBERS_MAX, Member};
pub use crate::wire::Link;

/// The first epoch of a group.
pub const FIRST_EPOCH: u64 = 1;
/// Members of a group, at least.
pub const MEMBERS_MIN: usize = 4;
/// Members that a group may ever have had.
pub const MEMBERS_EVER_MAX: usize = 4096;
/// Spares of a group, at most: they are linked with and follow, and have no vote.
pub const SPARES_MAX: usize = 4;
/// Epochs of a group.
const EPOCHS_MAX: u64 = 1 << 20;
/// What the body of an approval begins with, and nothing else that is ordered.
const MARK: &[u8; 16] = b"weir bft change\0";

/// The members of an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roster {
    /// The epoch.
    pub epoch: u64,
    /// The parent of its first block.
    pub genesis: Digest,
    /// The members.
    pub members: BTreeMap<u32, Member>,
}

/// A change of members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// One more.
    Add {
        /// Its number.
        id: u32,
        /// Who it is.
        member: Member,
    },
    /// One less.
    Remove {
        /// Its number.
        id: u32,
    },
    /// One in another's place.
    Replace {
        /// Who goes.
        out: u32,
        /// The number of who comes.
        id: u32,
        /// Who comes.
        member: Member,
    },
}

/// Why a change cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The number is taken.
    #[error(
        "controller {id} is in the group already: give the new one a number of its own, or remove that one first"
    )]
    Taken {
        /// The number.
        id: u32,
    },
    /// The key is taken.
    #[error("controller {id} has this key already: each controller makes its own ('weir group identity')")]
    SameKey {
        /// Who has it.
        id: u32,
    },
    /// There is no such member.
    #[error("controller {id} is not in the group: 'weir group list' shows who is")]
    Missing {
        /// The number.
        id: u32,
    },
    /// Too few would be left.
    #[error(
        "{left} controllers would be left, and fewer than {MEMBERS_MIN} survive no lie: add another one first, or replace this one"
    )]
    TooFew {
        /// How many.
        left: usize,
    },
    /// There are too many.
    #[error("the group has {MEMBERS_MAX} controllers, which is the limit: remove one first")]
    TooMany,
    /// The new member cannot be one.
    #[error("the new controller's {what} is not allowed: {right}")]
    Member {
        /// What of it.
        what: &'static str,
        /// What would be right.
        right: &'static str,
    },
    /// No more epochs.
    #[error("the group had {EPOCHS_MAX} changes of members, which is the limit: found a new one")]
    Epochs,
}

fn key_of(member: &Member) -> Option<PublicKey> {
    PublicKey::decode(Copying(&member.key)).ok()
}

fn genesis(group: &[u8], epoch: u64, before: &Digest, members: &BTreeMap<u32, Member>) -> Digest {
    let (namespace, mut bytes) = (namespace_of(group), BytesMut::new());
    put_members(&mut bytes, members);
    let mut hash = Sha256::new();
    hash.update(b"weir bft genesis\0");
    hash.update((namespace.len() as u64).to_le_bytes());
    hash.update(&namespace);
    hash.update(epoch.to_le_bytes());
    hash.update(before);
    hash.update(bytes);
    hash.finalize().into()
}

fn namespace_of(group: &[u8]) -> Vec<u8> {
    [&b"weir bft "[..], group].concat()
}

impl Roster {
    /// The first epoch's. Addresses of founders are in the settings of all, and so need no agreement.
    pub fn founding(group: &str, founders: &Members) -> Roster {
        let of = |(id, key): (&u32, &[u8; 32])| (*id, Member { key: *key, address: String::new() });
        let members = founders.0.iter().map(of).collect();
        let genesis = genesis(group.as_bytes(), FIRST_EPOCH, &[0; 32], &members);
        Roster { epoch: FIRST_EPOCH, genesis, members }
    }

    /// The roster that follows on the last block of an epoch; none behind any other block.
    pub fn behind(group: &[u8], block: &Block) -> Option<Roster> {
        let members = block.next.clone()?;
        let epoch = block.epoch + 1;
        Some(Roster { epoch, genesis: genesis(group, epoch, &block.digest(), &members), members })
    }

    /// The members' numbers.
    pub fn ids(&self) -> Vec<u32> {
        self.members.keys().copied().collect()
    }

    /// How many may lie.
    pub fn faulty_max(&self) -> usize {
        (self.members.len().max(1) - 1) / 3
    }

    /// How many decide.
    pub fn quorum(&self) -> usize {
        self.members.len() - self.faulty_max()
    }

    /// What votes of this epoch are bound to.
    pub fn namespace(&self, group: &str) -> Vec<u8> {
        [&namespace(group)[..], &b" votes\0"[..], &self.genesis[..]].concat()
    }

    /// The members after a change.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn after(&self, change: &Change) -> Result<BTreeMap<u32, Member>, Refused> {
        let mut members = self.members.clone();
        let mut take = |id: u32| match members.remove(&id) {
            Some(_) => Ok(()),
            None => Err(Refused::Missing { id }),
        };
        let added = match change {
            Change::Add { id, member } => Some((*id, member)),
            Change::Remove { id } => take(*id).map(|()| None)?,
            Change::Replace { out, id, member } => take(*out).map(|()| Some((*id, member)))?,
        };
        if let Some((id, member)) = added {
            let refuse = |what, right| Err(Refused::Member { what, right });
            if id == 0 {
                return refuse("number", "1 or more");
            }
            if members.contains_key(&id) {
                return Err(Refused::Taken { id });
            }
            if let Some((id, _)) = self.members.iter().find(|(_, known)| known.key == member.key) {
                return Err(Refused::SameKey { id: *id });
            }
            if key_of(member).is_none() {
                return refuse("key", "an ed25519 key, as 'weir group identity' prints it");
            }
            if member.address.is_empty() || member.address.len() > ADDRESS_BYTES_MAX {
                return refuse("address", "1 to 512 bytes");
            }
            members.insert(id, member.clone());
        }
        match members.len() {
            _ if self.epoch >= EPOCHS_MAX => Err(Refused::Epochs),
            left if left < MEMBERS_MIN => Err(Refused::TooFew { left }),
            count if count > MEMBERS_MAX => Err(Refused::TooMany),
            _ => Ok(members),
        }
    }

    /// Whether these members are what a change wants.
    pub fn has(&self, change: &Change) -> bool {
        let is_in = |id: &u32, member: &Member| {
            self.members
                .get(id)
                .is_some_and(|known| known.key == member.key && known.address == member.address)
        };
        match change {
            Change::Add { id, member } => is_in(id, member),
            Change::Remove { id } => !self.members.contains_key(id),
            Change::Replace { out, id, member } => {
                is_in(id, member) && (out == id || !self.members.contains_key(out))
            }
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(self.epoch);
        out.put_slice(&self.genesis);
        put_members(&mut out, &self.members);
        out.freeze()
    }

    /// Reads what [`Roster::encode`] wrote from the front.
    pub fn take(from: &mut Reader) -> Result<Roster, Malformed> {
        let (epoch, genesis) = (from.u64()?, from.array()?);
        let members = take_members(from)?;
        if !(FIRST_EPOCH..=EPOCHS_MAX).contains(&epoch) {
            return Err(Malformed("an epoch that cannot be"));
        }
        Ok(Roster { epoch, genesis, members })
    }
}

/// A member's word for a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The epoch that it would end.
    pub epoch: u64,
    /// What is wanted.
    pub change: Change,
}

impl Approval {
    /// Whether the body of a batch is meant as one.
    pub fn is_one(body: &[u8]) -> bool {
        body.starts_with(MARK)
    }

    /// The body of its batch.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(MARK);
        out.put_u64_le(self.epoch);
        match &self.change {
            Change::Add { id, member } => {
                out.put_u8(0);
                put_member(&mut out, *id, member);
            }
            Change::Remove { id } => {
                out.put_u8(1);
                out.put_u32_le(*id);
            }
            Change::Replace { out: old, id, member } => {
                out.put_u8(2);
                out.put_u32_le(*old);
                put_member(&mut out, *id, member);
            }
        }
        out.freeze()
    }

    /// Reads what [`Approval::encode`] wrote.
    pub fn decode(body: Bytes) -> Result<Approval, Malformed> {
        let mut from = Reader(body);
        if from.array::<16>()? != *MARK {
            return Err(Malformed("it is no approval"));
        }
        let epoch = from.u64()?;
        let change = match from.u8()? {
            0 => take_member(&mut from).map(|(id, member)| Change::Add { id, member })?,
            1 => Change::Remove { id: from.u32()? },
            2 => {
                let out = from.u32()?;
                take_member(&mut from).map(|(id, member)| Change::Replace { out, id, member })?
            }
            _ => return Err(Malformed("a change of an unknown kind")),
        };
        from.end()?;
        Ok(Approval { epoch, change })
    }
}

#[cfg(test)]
mod tests;
