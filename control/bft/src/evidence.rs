//! Votes of one member that exclude each other, as bytes that convince anybody (row R12; both papers leave it as future work).
//!
//! A member that notarizes two proposals of one view, finalizes two, or finalizes one and gives up the view, has broken the protocol by
//! two signatures of its own. The evidence is those votes, and the members of their epoch, without whose keys they cannot be checked.
//!
//! - [`Evidence::convicts`] needs nothing but the bytes: no member is convicted by what it did not sign.
//! - Whether the members are those of the group is not in it: who reads it compares the key with what `weir group identity` prints on the
//!   member's machine. What an epoch's votes are bound to ([`Roster::namespace`]) is derived from its members and all before, so keys
//!   of another epoch or group check nothing.

use bytes::{BufMut, Bytes, BytesMut};
use commonware_codec::{Copying, DecodeExt, Encode};
use commonware_consensus::simplex::scheme::ed25519::Scheme;
use commonware_consensus::simplex::types::{
    Activity, Attributable, ConflictingFinalize, ConflictingNotarize, NullifyFinalize,
};
use commonware_consensus::{Epochable, Viewable};
use commonware_cryptography::ed25519::PublicKey;
use commonware_parallel::Sequential;
use commonware_utils::ordered::Set;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::group::Payload;
use crate::members::Roster;
use crate::wire::{Malformed, Reader};

/// Version of the bytes.
const VERSION: u8 = 1;
/// Largest name of a group, bytes.
const GROUP_BYTES_MAX: usize = 256;
/// Largest pair of votes, bytes.
const VOTES_BYTES_MAX: usize = 4_096;

/// How two votes exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// It notarized two proposals of one view.
    TwoNotarized,
    /// It finalized two proposals of one view.
    TwoFinalized,
    /// It finalized a proposal and gave up its view.
    FinalizedAndNullified,
}

impl Conflict {
    const ALL: [Conflict; 3] =
        [Conflict::TwoNotarized, Conflict::TwoFinalized, Conflict::FinalizedAndNullified];
}

/// Two votes, and the members of their epoch. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The group.
    pub group: String,
    /// The members.
    pub roster: Roster,
    /// How the votes exclude each other.
    pub conflict: Conflict,
    /// The votes, as consensus encodes them.
    pub votes: Bytes,
}

/// Who is convicted, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convicted {
    /// Number of the member.
    pub member: u32,
    /// Its key.
    pub key: [u8; 32],
    /// The epoch of the votes.
    pub epoch: u64,
    /// Their view.
    pub view: u64,
    /// What it did.
    pub conflict: Conflict,
}

/// What consensus reports as a conflict of votes; nothing for anything else.
pub(crate) fn conflict_of(activity: &Activity<Scheme, Payload>) -> Option<(Conflict, Bytes)> {
    match activity {
        Activity::ConflictingNotarize(votes) => Some((Conflict::TwoNotarized, votes.encode())),
        Activity::ConflictingFinalize(votes) => Some((Conflict::TwoFinalized, votes.encode())),
        Activity::NullifyFinalize(votes) => Some((Conflict::FinalizedAndNullified, votes.encode())),
        _ => None,
    }
}

impl Evidence {
    /// Whom it convicts; `None` when the votes are not what they are said to be, or not signed.
    pub fn convicts(&self) -> Option<Convicted> {
        let keys = self.roster.members.values();
        let keys =
            keys.map(|member| PublicKey::decode(Copying(&member.key)).ok()).collect::<Option<Vec<_>>>()?;
        let set = Set::from_iter_dedup(keys);
        let scheme = Scheme::verifier(&self.roster.namespace(&self.group), set.clone());
        // Weights of a check in batches; each of these signatures must verify by itself.
        let mut rng = ChaCha20Rng::from_seed([0; 32]);
        let votes = self.votes.clone();
        let (right, signer, epoch, view) = match self.conflict {
            Conflict::TwoNotarized => {
                let votes = ConflictingNotarize::<Scheme, Payload>::decode(votes).ok()?;
                (votes.verify(&mut rng, &scheme, &Sequential), votes.signer(), votes.epoch(), votes.view())
            }
            Conflict::TwoFinalized => {
                let votes = ConflictingFinalize::<Scheme, Payload>::decode(votes).ok()?;
                (votes.verify(&mut rng, &scheme, &Sequential), votes.signer(), votes.epoch(), votes.view())
            }
            Conflict::FinalizedAndNullified => {
                let votes = NullifyFinalize::<Scheme, Payload>::decode(votes).ok()?;
                (votes.verify(&mut rng, &scheme, &Sequential), votes.signer(), votes.epoch(), votes.view())
            }
        };
        if !right || epoch.get() != self.roster.epoch {
            return None;
        }
        let key: [u8; 32] = set.get(signer.get() as usize)?.as_ref().try_into().ok()?;
        let member = self.roster.members.iter().find(|(_, member)| member.key == key).map(|(id, _)| *id)?;
        Some(Convicted { member, key, epoch: epoch.get(), view: view.get(), conflict: self.conflict })
    }

    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        out.put_u8(self.conflict as u8);
        out.put_u32_le(self.group.len() as u32);
        out.put_slice(self.group.as_bytes());
        out.put_slice(&self.roster.encode());
        out.put_slice(&self.votes);
        out.freeze()
    }

    /// Reads what [`Evidence::encode`] wrote.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: Bytes) -> Result<Evidence, Malformed> {
        let mut from = Reader(bytes);
        if from.u8()? != VERSION {
            return Err(Malformed("evidence of a version that this program does not read"));
        }
        let kind = usize::from(from.u8()?);
        let conflict = *Conflict::ALL.get(kind).ok_or(Malformed("evidence of an unknown kind"))?;
        let length = from.count(GROUP_BYTES_MAX, "the group's name is too long")?;
        let group = String::from_utf8(from.bytes(length)?.to_vec());
        let group = group.map_err(|_| Malformed("the group's name is no text"))?;
        let roster = Roster::take(&mut from)?;
        if from.0.len() > VOTES_BYTES_MAX {
            return Err(Malformed("the votes are too long"));
        }
        Ok(Evidence { group, roster, conflict, votes: from.0 })
    }
}
