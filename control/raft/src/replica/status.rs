//! What a replica says of itself.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, ServerState};
use weir_order::Position;

use super::{Replica, locked};
use crate::net::NetworkCounters;

/// A replica that has not answered for so long is taken for gone.
const SILENT_MS: u64 = 2_000;

/// Who leads, as one replica knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
}

/// What a replica is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Role {
    /// It orders.
    Leader,
    /// It votes and follows.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It follows without a vote.
    Learner,
    /// It has stopped, or has not begun.
    #[default]
    Stopped,
}

/// How far another replica is, as the leader knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// Entries it is behind the leader's log.
    pub entries: u64,
    /// Whether it has answered this leader of late.
    pub heard: bool,
    /// For how long it has not, milliseconds; none: never.
    pub silent_ms: Option<u64>,
}

/// A replica's state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// This replica.
    pub id: u64,
    /// What it is.
    pub role: Role,
    /// The term.
    pub term: u64,
    /// Who leads, when known.
    pub leader: Option<u64>,
    /// The last entry in its log (raft's counting, from 0).
    pub last_log_index: Option<u64>,
    /// The last entry that it knows to be committed (raft's counting).
    pub committed_log_index: Option<u64>,
    /// The last batch that its sink saw.
    pub applied: Position,
    /// The newest snapshot's last batch.
    pub snapshot: Option<Position>,
    /// The last entry that was purged (raft's counting).
    pub purged_log_index: Option<u64>,
    /// Voters and where they are reached.
    pub voters: BTreeMap<u64, String>,
    /// Learners and where they are reached.
    pub learners: BTreeMap<u64, String>,
    /// Where the members in force stand in the log (raft's counting); absent before the group is founded.
    pub membership_log_index: Option<u64>,
    /// How far the others are; only on the leader.
    pub lag: BTreeMap<u64, Lag>,
    /// Members to which this replica sends a state: bytes that are there, and all.
    pub sending: BTreeMap<u64, (u64, u64)>,
    /// Members that this replica does not reach, and why.
    pub unreached: BTreeMap<u64, String>,
    /// For how long the leader has not heard of a majority, milliseconds; only on the leader.
    pub quorum_silent_ms: Option<u64>,
    /// Whether everything that its log had when it started is applied again; before, a stale read may go back in time.
    pub recovered: bool,
    /// Why it serves nothing, when its state differs from the majority's.
    pub fenced: Option<String>,
    /// Why it takes nothing new, when its disk is full.
    pub full: Option<String>,
    /// Why it has stopped, when it could not go on.
    pub failure: Option<String>,
}

/// Counts of a replica since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaCounters {
    /// Proposals committed.
    pub committed: u64,
    /// Proposals that failed after they were taken.
    pub failed: u64,
    /// Proposals and reads refused because a queue was full.
    pub overloads: u64,
    /// Reads answered.
    pub reads: u64,
    /// Checks for them.
    pub read_checks: u64,
    /// Digests that agreed with a majority.
    pub digests_agreed: u64,
    /// Times this replica's state differed from the majority's.
    pub divergences: u64,
    /// Times it was repaired.
    pub repairs: u64,
    /// Replicas that had lost their log and got it again from this one.
    pub mended: u64,
    /// Proposals refused because its disk was full.
    pub room_refusals: u64,
    /// Times that it gave its office away because its disk was full.
    pub room_handovers: u64,
    /// Its disk's room.
    pub room: weir_order::log::RoomCounters,
    /// Its network's counts.
    pub network: NetworkCounters,
}

impl Replica {
    /// Everything that the replica knows of itself.
    pub fn replica_status(&self) -> ReplicaStatus {
        let inner = &self.inner;
        let mut status = ReplicaStatus {
            id: inner.settings.id,
            applied: inner.machine.applied(),
            snapshot: inner.machine.newest().map(|meta| meta.position),
            fenced: locked(&inner.fence).clone(),
            failure: locked(&inner.failure).clone(),
            full: self.no_room().map(|error| error.to_string()),
            ..ReplicaStatus::default()
        };
        let Some(raft) = inner.raft.get() else { return status };
        let metrics = raft.metrics().borrow_watched().clone();
        status.term = metrics.current_term;
        status.leader = metrics.current_leader;
        status.last_log_index = metrics.last_log_index;
        status.committed_log_index = metrics.local_committed.map(|id| id.index());
        status.purged_log_index = metrics.purged.map(|id| id.index());
        status.role = match metrics.state {
            _ if metrics.running_state.is_err() => Role::Stopped,
            ServerState::Leader => Role::Leader,
            ServerState::Follower => Role::Follower,
            ServerState::Candidate => Role::Candidate,
            ServerState::Learner => Role::Learner,
            ServerState::Shutdown => Role::Stopped,
        };
        status.membership_log_index = metrics.membership_config.log_id().as_ref().map(|id| id.index());
        let membership = metrics.membership_config.membership();
        let voters: Vec<u64> = membership.voter_ids().collect();
        for (id, address) in membership.nodes() {
            let into = if voters.contains(id) { &mut status.voters } else { &mut status.learners };
            into.insert(*id, address.0.clone());
        }
        let end = metrics.last_log_index.map_or(0, |index| index + 1);
        let silence_ms = SILENT_MS.max(4 * inner.settings.timers.election_max_ms);
        for (id, matched) in metrics.replication.iter().flatten().filter(|(id, _)| **id != status.id) {
            let entries = end.saturating_sub(matched.map_or(0, |id| id.index() + 1));
            let acked = metrics.heartbeat.as_ref().and_then(|acked| acked.get(id)?.as_ref());
            let silent_ms = acked.map(|acked| acked.elapsed().as_millis() as u64);
            let heard = matched.is_some() && silent_ms.is_some_and(|silent_ms| silent_ms <= silence_ms);
            status.lag.insert(*id, Lag { entries, heard, silent_ms });
        }
        status.sending = inner.contacts.on_the_way();
        status.unreached = inner.contacts.unreached();
        status.unreached.retain(|id, _| status.voters.contains_key(id) || status.learners.contains_key(id));
        status.quorum_silent_ms = metrics.last_quorum_acked.map(|acked| acked.elapsed().as_millis() as u64);
        let applied = metrics.last_applied.map(|id| id.index());
        status.recovered =
            inner.start_log_index.is_none_or(|start| applied.is_some_and(|applied| applied >= start));
        status
    }

    /// What was counted.
    pub fn counters(&self) -> ReplicaCounters {
        let inner = &self.inner;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        ReplicaCounters {
            committed: read(&inner.committed),
            failed: read(&inner.failed),
            overloads: read(&inner.overloads),
            reads: read(&inner.reads),
            read_checks: read(&inner.read_checks),
            digests_agreed: read(&inner.digests_agreed),
            divergences: read(&inner.divergences),
            repairs: read(&inner.repairs),
            mended: read(&inner.mended),
            room_refusals: read(&inner.room_refusals),
            room_handovers: read(&inner.room_handovers),
            room: inner.log.room().counters(),
            network: inner.counts.now(),
        }
    }
}
