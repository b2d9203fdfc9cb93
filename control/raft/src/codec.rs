//! The bytes of what is ours on the wire and in the log: memberships, votes, log ids and entries.
//! `docs/protocol/raft.md` draws them. They do not depend on openraft's types, so its next alpha reads them too.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use openraft::impls::leader_id_std::LeaderId;
use openraft::vote::RaftLeaderId;
use serde::{Deserialize, Serialize};

use crate::types::{
    Address, Batch, LogId, Membership, Payload, RaftEntry, StoredMembership, Vote, log_id, term_of,
};

/// Replicas in a membership, at most, learners included.
pub const REPLICAS_MAX: usize = 64;
/// Bytes of an address, at most.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// The tag of a record whose body is a batch.
pub const TAG_BATCH: u8 = 0;
/// The tag of a record whose body is empty: a leader's first entry.
pub const TAG_BLANK: u8 = 1;
/// The tag of a record whose body is a membership.
pub const TAG_MEMBERSHIP: u8 = 2;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

#[derive(Serialize, Deserialize)]
struct Members {
    configs: Vec<BTreeSet<u64>>,
    nodes: BTreeMap<u64, String>,
}

/// The bytes of a membership.
pub fn encode_membership(membership: &Membership) -> Bytes {
    let nodes = membership.nodes().map(|(id, address)| (*id, address.0.clone())).collect();
    let members = Members { configs: membership.get_joint_config().clone(), nodes };
    Bytes::from(weir_base::codec::encode(&members))
}

/// Reads a membership.
pub fn decode_membership(bytes: &[u8]) -> Result<Membership, Malformed> {
    let members: Members =
        weir_base::codec::decode(bytes).map_err(|_| Malformed("a membership cannot be decoded"))?;
    if members.nodes.len() > REPLICAS_MAX || members.configs.len() > 2 {
        return Err(Malformed("a membership has too many replicas"));
    }
    if members.nodes.values().any(|address| address.len() > ADDRESS_BYTES_MAX) {
        return Err(Malformed("an address is too long"));
    }
    if members.configs.is_empty() && members.nodes.is_empty() {
        return Ok(Membership::default());
    }
    let nodes: BTreeMap<u64, Address> =
        members.nodes.into_iter().map(|(id, address)| (id, Address(address))).collect();
    Membership::new(members.configs, nodes).map_err(|_| Malformed("a membership contradicts itself"))
}

/// The tag and the body of an entry's payload.
pub fn payload_parts(payload: &Payload) -> (u8, Bytes) {
    match payload {
        Payload::Normal(batch) => (TAG_BATCH, batch.0.clone()),
        Payload::Blank => (TAG_BLANK, Bytes::new()),
        Payload::Membership(membership) => (TAG_MEMBERSHIP, encode_membership(membership)),
    }
}

/// The payload of a tag and a body.
pub fn payload_of(tag: u8, body: Bytes) -> Result<Payload, Malformed> {
    match tag {
        TAG_BATCH => Ok(Payload::Normal(Batch(body))),
        TAG_BLANK if body.is_empty() => Ok(Payload::Blank),
        TAG_MEMBERSHIP => decode_membership(&body).map(Payload::Membership),
        _ => Err(Malformed("an entry has an unknown tag")),
    }
}

/// Reads pieces from the front of a buffer.
pub struct Reader(pub Bytes);

impl Reader {
    /// The next `count` bytes, without copying.
    pub fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if count > self.0.len() {
            return Err(Malformed("the bytes end too early"));
        }
        Ok(self.0.split_to(count))
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// A yes or no.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a yes or no is neither")),
        }
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(self.take(4)?.get_u32_le())
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(self.take(8)?.get_u64_le())
    }

    /// Bytes behind their length.
    pub fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    /// A log id or none.
    pub fn log_id(&mut self) -> Result<Option<LogId>, Malformed> {
        if !self.bool()? {
            return Ok(None);
        }
        let (term, index) = (self.u64()?, self.u64()?);
        if index >= weir_order::log::record::NUMBER_LIMIT - 1 {
            return Err(Malformed("an index is impossible"));
        }
        Ok(Some(log_id(term, index)))
    }

    /// A vote.
    pub fn vote(&mut self) -> Result<Vote, Malformed> {
        let (term, voted_for) = (self.u64()?, self.u64()?);
        Ok(Vote { leader_id: LeaderId::new(term, voted_for), committed: self.bool()? })
    }

    /// An entry.
    pub fn entry(&mut self) -> Result<RaftEntry, Malformed> {
        let id = self.log_id()?.ok_or(Malformed("an entry has no place"))?;
        let tag = self.u8()?;
        Ok(RaftEntry { log_id: id, payload: payload_of(tag, self.bytes()?)? })
    }

    /// A membership and its place.
    pub fn stored_membership(&mut self) -> Result<StoredMembership, Malformed> {
        let at = self.log_id()?;
        Ok(StoredMembership::new(at, decode_membership(&self.bytes()?)?))
    }

    /// Nothing is left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes follow that do not belong there")) }
    }
}

/// Writes pieces.
pub trait Put {
    /// Bytes behind their length.
    fn put_bytes_of(&mut self, bytes: &[u8]);
    /// A log id or none.
    fn put_log_id(&mut self, id: Option<&LogId>);
    /// A vote.
    fn put_vote(&mut self, vote: &Vote);
    /// An entry.
    fn put_entry(&mut self, entry: &RaftEntry);
    /// A membership and its place.
    fn put_stored_membership(&mut self, membership: &StoredMembership);
}

impl Put for BytesMut {
    fn put_bytes_of(&mut self, bytes: &[u8]) {
        self.put_u32_le(bytes.len() as u32);
        self.put_slice(bytes);
    }

    fn put_log_id(&mut self, id: Option<&LogId>) {
        self.put_u8(u8::from(id.is_some()));
        if let Some(id) = id {
            self.put_u64_le(term_of(id));
            self.put_u64_le(id.index());
        }
    }

    fn put_vote(&mut self, vote: &Vote) {
        self.put_u64_le(vote.leader_id.term);
        self.put_u64_le(vote.leader_id.voted_for);
        self.put_u8(u8::from(vote.committed));
    }

    fn put_entry(&mut self, entry: &RaftEntry) {
        self.put_log_id(Some(&entry.log_id));
        let (tag, body) = payload_parts(&entry.payload);
        self.put_u8(tag);
        self.put_bytes_of(&body);
    }

    fn put_stored_membership(&mut self, membership: &StoredMembership) {
        self.put_log_id(membership.log_id().as_ref());
        self.put_bytes_of(&encode_membership(membership.membership()));
    }
}
