//! Signed batches: the shape of what `weir-trust` makes and verifies.
//!
//! One signature covers the Merkle root of all updates that one decided batch produced; each
//! actuator gets its updates with their paths. Domain, epoch and order index are under the
//! signature too, so that a batch cannot be replayed into another domain or a later epoch.

use crate::hex::{from_hex, to_hex};
use crate::update::{Ack, Update};
use crate::{Label, Version};
use serde::{Deserialize, Serialize};

/// Longest Merkle path: a batch has at most 2^20 updates.
pub const PATH_MAX: usize = 20;

/// A SHA-256 hash.
pub type Digest = [u8; 32];

/// An ed25519 signature, in two halves because serde derives arrays up to 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature {
    /// First half.
    pub r: [u8; 32],
    /// Second half.
    pub s: [u8; 32],
}

/// A BLS signature: a compressed point of BLS12-381's G1, 48 bytes in three parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlsSignature(pub [[u8; 16]; 3]);

/// A BLS public key: a compressed point of BLS12-381's G2, 96 bytes in three parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlsKey(pub [[u8; 32]; 3]);

/// Another key signs for the group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Succession {
    /// The domain.
    pub domain: Label,
    /// Number of the change of keys in this domain, from 1.
    pub number: u64,
    /// The first epoch that the new key signs.
    pub epoch: u64,
    /// The new key.
    pub key: BlsKey,
}

/// A signature under a key that another one named, with that one's word. It proves something to who trusts either.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Succeeded {
    /// The change of keys.
    pub succession: Succession,
    /// The signature of the key before over it.
    pub by: Signature,
    /// The new key's signature over the batch header.
    pub signature: BlsSignature,
}

/// A group's signature over a batch header.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupSignature {
    /// One controller's key stands for the group.
    Single(Signature),
    /// Enough controllers signed with shares of the group's key (row C3).
    Threshold(BlsSignature),
    /// Enough controllers endorsed it, each with its own key. It proves something only to who knows these keys from the
    /// group itself ([`crate::Key::Controllers`]).
    Members {
        /// The dealing of the group's key whose members they are.
        phase: u64,
        /// Their signatures; at most [`crate::session::CONTROLLERS_MAX`] count.
        signatures: Vec<MemberSignature>,
    },
    /// Enough controllers signed with shares of a key that the key before named: the domain had another one.
    Succeeded(Box<Succeeded>),
}

/// A controller's own signature over a batch header and a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberSignature {
    /// Whose it is.
    pub member: u32,
    /// The signature.
    pub signature: Signature,
}

/// A group's public key. It stays the same when controllers come and go; it changes when the domain's order does ([`crate::conversion`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GroupKey {
    /// One controller's key stands for the group.
    Single([u8; 32]),
    /// The controllers hold shares of the group's key (row C3).
    Threshold(BlsKey),
}

impl GroupKey {
    /// As lower-case hexadecimal digits: 64 for a single key, 192 for a threshold key.
    pub fn to_hex(&self) -> String {
        match self {
            GroupKey::Single(key) => to_hex(key),
            GroupKey::Threshold(key) => to_hex(&key.0.concat()),
        }
    }

    /// Reads what [`GroupKey::to_hex`] wrote; the number of digits tells the kind.
    pub fn from_hex(text: &str) -> Option<GroupKey> {
        if let Some(key) = from_hex::<32>(text) {
            return Some(GroupKey::Single(key));
        }
        let bytes = from_hex::<96>(text)?;
        let part = |at: usize| std::array::from_fn(|offset| bytes[at * 32 + offset]);
        Some(GroupKey::Threshold(BlsKey([part(0), part(1), part(2)])))
    }
}

/// What the group signs for one decided batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchHeader {
    /// The domain.
    pub domain: Label,
    /// Epoch of the group.
    pub epoch: u64,
    /// Version of the last event of the batch: no update of it has a higher one.
    pub index: Version,
    /// How many updates it has.
    pub count: u32,
    /// Merkle root over them.
    pub root: Digest,
}

/// A header with its signature.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SignedHeader {
    /// The header.
    pub header: BatchHeader,
    /// The group's signature over it.
    pub signature: GroupSignature,
}

/// One update with its place under the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenUpdate {
    /// Number of the leaf.
    pub leaf: u32,
    /// Hashes of the siblings from the leaf up; at most [`PATH_MAX`].
    pub path: Vec<Digest>,
    /// The update.
    pub update: Update,
}

/// What an actuator receives: a header and some of the updates under it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedUpdates {
    /// The header.
    pub header: SignedHeader,
    /// Updates under its root.
    pub updates: Vec<ProvenUpdate>,
}

/// Updates whose batch the group has signed in parts: the actuator puts the parts together (row C4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsignedUpdates {
    /// The header.
    pub header: BatchHeader,
    /// Updates under its root.
    pub updates: Vec<ProvenUpdate>,
}

/// A controller's share of the group's signature over a batch. Shares of one phase and threshold belong together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderShare {
    /// What is signed.
    pub header: BatchHeader,
    /// Which dealing of the key the share is of.
    pub phase: u64,
    /// How many shares make the signature.
    pub threshold: u32,
    /// Whose share it is.
    pub member: u32,
    /// The share.
    pub signature: BlsSignature,
}

/// A controller's own signature over a batch. How many prove it, who gets it knows from [`crate::Key::Controllers`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderEndorsement {
    /// What is signed.
    pub header: BatchHeader,
    /// Of which dealing of the group's key the controller is a member.
    pub phase: u64,
    /// Whose it is, and what it signed.
    pub by: MemberSignature,
}

/// Acks of one actuator, signed with its identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedAcks {
    /// The actuator.
    pub actuator: Label,
    /// Its answers.
    pub acks: Vec<Ack>,
    /// Signature over the two fields above.
    pub signature: Signature,
}

#[cfg(test)]
mod tests;
