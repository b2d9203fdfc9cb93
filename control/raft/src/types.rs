//! What openraft is told of our types. Standard Raft: one leader a term, so a log id is a term and an index.

use std::fmt;

use bytes::Bytes;
use openraft::RaftTypeConfig;
use openraft::raft::responder::Responder;
use weir_order::Position;

use crate::runtime::Runtime;

/// One batch, opaque.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch(pub Bytes);

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch of {} bytes", self.0.len())
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What applying an entry answers: the place of a batch; nothing for entries that are raft's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed(pub Option<Position>);

/// Where a replica is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub String);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Hears the fate of a proposal.
pub struct Answer<T>(pub Box<dyn FnOnce(T) + Send>);

impl<T: Send + 'static> Responder<Types, T> for Answer<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

/// Our types.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Types;

impl RaftTypeConfig for Types {
    type D = Batch;
    type R = Placed;
    type NodeId = u64;
    type Node = Address;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Batch, u64, Address>;
    type Entry = openraft::Entry<<Self::LeaderId as openraft::vote::RaftLeaderId>::Committed, Self::Payload>;
    type Responder<T>
        = Answer<T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type AsyncRuntime = Runtime;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

pub type LogId = openraft::type_config::alias::LogIdOf<Types>;
pub type Vote = openraft::type_config::alias::VoteOf<Types>;
pub type RaftEntry = openraft::type_config::alias::EntryOf<Types>;
pub type Payload = openraft::EntryPayload<Batch, u64, Address>;
pub type Membership = openraft::Membership<u64, Address>;
pub type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;

/// The log id of a term and an index.
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

/// The term of a log id.
pub fn term_of(id: &LogId) -> u64 {
    id.committed_leader_id().term
}
