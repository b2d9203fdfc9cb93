//! The replicated order as the controller wants it.

use super::MemberAddress;
use bytes::Bytes;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use weir_controller::driver::Order;
use weir_order::{Completion, Engine, Error, Position, SnapshotInfo, Status};
use weir_raft::ReadKind;
use weir_raft::driver::{RaftEngine, TlsTransport};
use weir_raft::net::{Lane, Link, Transport};

/// After how many batches the replicas compare the digests of their states.
pub const DIGEST_EVERY: u64 = 64;

/// See the module.
pub struct Replicated(pub RaftEngine);

impl Replicated {
    /// The engine.
    pub fn engine(&self) -> &RaftEngine {
        &self.0
    }
}

impl Engine for Replicated {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        self.0.propose(batch, done)
    }

    fn status(&self) -> Status {
        Engine::status(&self.0)
    }

    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        self.0.save_snapshot(at, state)
    }
}

impl Order for Replicated {
    fn barrier(&self, done: Completion) -> Result<(), Error> {
        self.0.read_barrier(ReadKind::Index, done)
    }

    fn digest_every(&self) -> u64 {
        DIGEST_EVERY
    }

    fn report_digest(&self, at: Position, digest: [u8; 32]) {
        self.0.report_digest(at, digest);
    }

    fn wants_state(&self, index: u64) -> bool {
        self.0.wants_state(index)
    }

    fn fenced(&self) -> Option<String> {
        self.0.replica_status().fenced
    }

    fn full(&self) -> Option<String> {
        self.0.replica_status().full
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let (replica, log) = (self.0.counters(), self.0.log_counters());
        vec![
            ("batches", replica.committed),
            ("failed", replica.failed),
            ("appended_bytes", log.appended_bytes),
            ("syncs", log.syncs),
            ("failed_writes", log.failed_writes),
            ("overloads", replica.overloads),
            ("reads", replica.reads),
            ("read_checks", replica.read_checks),
            ("digests_agreed", replica.digests_agreed),
            ("divergences", replica.divergences),
            ("repairs", replica.repairs),
            ("mended", replica.mended),
            ("room_refusals", replica.room_refusals),
            ("room_handovers", replica.room_handovers),
            ("room_tries", replica.room.tried),
            ("room_waits", replica.room.waited),
            ("links_failed", replica.network.links_failed),
            ("links_refused", replica.network.links_refused),
        ]
    }
}

/// Reaches members by the first part of their addresses.
pub struct ByReplicaAddress(pub TlsTransport);

impl Transport for ByReplicaAddress {
    fn connect(
        &self,
        to: u64,
        address: String,
        lane: Lane,
    ) -> Pin<Box<dyn Future<Output = std::io::Result<Link>> + Send>> {
        self.0.connect(to, MemberAddress::replica_of(&address).to_string(), lane)
    }
}
