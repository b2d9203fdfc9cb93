//! What others ask of a replica: proposals, barriers for reads, words to other members, and what it knows of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use weir_order::log::RoomCounters;
use weir_order::{Completion, Engine, Error, LogCounters, Position, SnapshotInfo, Status, Waiting};

use super::words::TELL_BYTES_MAX;
use super::{ChangeDone, Command, Replica, ReplicaCounters, ReplicaStatus};
use crate::core::Seen;
use crate::evidence::{Convicted, Evidence};
use crate::lock::locked;
use crate::members::{Approval, Change, Member, Roster};

/// Hears what those above the order of another member say.
pub type PeerSink = dyn Fn(u32, Bytes) + Send + Sync;

/// Hears of votes of a member that exclude each other, and whom they convict.
pub type EvidenceSink = dyn Fn(&Evidence, Convicted) + Send + Sync;

/// Hears that this replica begins to wait for something to order.
pub type WaitSink = dyn Fn() + Send + Sync;

/// A member that says nothing for so many times of [`crate::Timers::ask`] is taken for gone. It says its height after every second.
const SILENT_ASKS: u32 = 10;
/// Barriers that may wait.
const BARRIERS_MAX: u64 = 1 << 16;

fn refuse(done: Completion, error: Error) -> Result<(), Error> {
    done.disarm();
    Err(error)
}

impl Replica {
    /// Stops the replica. Its disk is whole at any time.
    pub fn stop(&self) {
        self.inner.stop.send_replace(true);
    }

    /// Everything that the replica knows of itself.
    pub fn replica_status(&self) -> ReplicaStatus {
        let full = self.no_room().map(|error| error.to_string());
        ReplicaStatus { full, ..locked(&self.inner.seen).status.clone() }
    }

    /// Why it takes nothing new, when there is no room on its disk for what is to come.
    fn no_room(&self) -> Option<Error> {
        self.inner.rooms.iter().find_map(|room| room.refusal())
    }

    /// What was counted of the room of its journal, and of that of its votes.
    pub fn room_counters(&self) -> [RoomCounters; 2] {
        [self.inner.rooms[0].counters(), self.inner.rooms[1].counters()]
    }

    /// What was counted.
    pub fn counters(&self) -> ReplicaCounters {
        let room_refusals = self.inner.room_refusals.load(Ordering::Relaxed);
        ReplicaCounters { room_refusals, ..locked(&self.inner.seen).counters }
    }

    /// Counts of the journal.
    pub fn log_counters(&self) -> LogCounters {
        self.inner.journal.counters()
    }

    /// The members that are there and serve, as far as this one knows; itself with them when it serves.
    pub fn live(&self) -> BTreeSet<u32> {
        let silent_ms = (SILENT_ASKS * self.inner.settings.timers.ask).as_millis() as u64;
        let status = self.replica_status();
        let is_there = |seen: &Seen| seen.serves && seen.silent_ms <= silent_ms;
        let others = status.others.iter().filter(|(_, seen)| is_there(seen)).map(|(id, _)| *id);
        let own = (status.fenced.is_none() && status.failure.is_none()).then_some(status.id);
        others.chain(own).filter(|id| status.roster.members.contains_key(id)).collect()
    }

    /// Why nothing is served, if so.
    fn refusal(&self) -> Option<Error> {
        let seen = locked(&self.inner.seen);
        if seen.status.failure.is_some() {
            return Some(Error::Stopped);
        }
        if !seen.status.member {
            return Some(Error::NotLeader { leader: None });
        }
        seen.status.fenced.clone().map(|what| Error::Fenced { what })
    }

    /// Calls `done` when the sink has seen all that was acknowledged before this call, by any member: an empty batch is
    /// ordered for all that wait. So what a read sees after it does not hang on what any other member says.
    pub fn barrier(&self, done: Completion) -> Result<(), Error> {
        if let Some(error) = self.refusal() {
            return refuse(done, error);
        }
        let waiting = self.inner.barriers.fetch_add(1, Ordering::Relaxed);
        if waiting >= BARRIERS_MAX {
            self.inner.barriers.fetch_sub(1, Ordering::Relaxed);
            return refuse(done, Error::Overloaded { what: "reads", waiting, limit: BARRIERS_MAX });
        }
        self.ask(Command::Barrier { done })
    }

    fn ask(&self, command: Command) -> Result<(), Error> {
        match self.commands.send(command) {
            Ok(()) => Ok(()),
            Err(refused) => match refused.0 {
                Command::Propose { done, .. } | Command::Barrier { done } => refuse(done, Error::Stopped),
                _ => Err(Error::Stopped),
            },
        }
    }

    /// Tells the digest of the application's state after the batch at `at`, to be compared with the others'. To be called after every
    /// [`Settings::digest_every`](crate::Settings)th batch, in order, and after a state was taken over.
    pub fn report_digest(&self, at: Position, digest: [u8; 32]) {
        // Lost when the replica is stopping.
        let _lost = self.ask(Command::Digest { index: at.index, digest });
    }

    /// Whether another member needs the state after the batch at `index`.
    pub fn wants_state(&self, index: u64) -> bool {
        locked(&self.inner.seen).wanted.contains(&index)
    }

    /// Says something to the upper half of another member; lost when that cannot be reached.
    ///
    /// # Panics
    /// For more than [`TELL_BYTES_MAX`] bytes.
    pub fn tell(&self, to: u32, bytes: Bytes) {
        assert!(bytes.len() <= TELL_BYTES_MAX, "a message of {} bytes", bytes.len());
        let _lost = self.ask(Command::Tell { to, bytes });
    }

    /// Who hears what others say. To be set once, soon after the start: before, nothing is heard.
    pub fn listen(&self, hears: Box<PeerSink>) {
        if self.inner.peers.set(hears).is_err() {
            tracing::warn!("ignoring a second subscriber to the other controllers' messages");
        }
    }

    /// Who hears of members that are convicted by their own votes, also of those until now. To be set once, soon after the start.
    pub fn on_evidence(&self, hears: Box<EvidenceSink>) {
        if self.inner.evidence.set(hears).is_err() {
            tracing::warn!("ignoring a second subscriber to evidence");
            return;
        }
        // One that comes meanwhile may be told twice.
        let until_now = self.evidence();
        if let Some(hears) = self.inner.evidence.get() {
            for evidence in &until_now {
                evidence.convicts().into_iter().for_each(|convicted| hears(evidence, convicted));
            }
        }
    }

    /// Who leads and waits for something to order, as far as this replica knows. What the leader itself proposes need not travel to it.
    pub fn waiting(&self) -> Waiting {
        locked(&self.inner.seen).waiting
    }

    /// Who hears when this replica begins to wait ([`Waiting::Own`]); all that was committed before went to the sink before. To be set once; it must not
    /// wait for anything, for consensus does.
    pub fn on_waiting(&self, hears: Box<WaitSink>) {
        if self.inner.waits.set(hears).is_err() {
            tracing::warn!("ignoring a second subscriber to leader timeouts");
        }
    }

    /// Votes of members that exclude each other: the first ones of each member, epoch and kind.
    pub fn evidence(&self) -> Vec<Evidence> {
        locked(&self.inner.seen).evidence.values().cloned().collect()
    }

    /// Wants a change of members, and is done when it is in force here: this replica waits until a new member has caught up, orders its
    /// own word for the change, and waits until enough others have done so, each asked by whom it obeys. Another change that is asked for takes
    /// its place.
    pub fn change(&self, change: Change, done: ChangeDone) {
        if let Err(refused) = self.commands.send(Command::Change { change, done })
            && let Command::Change { done, .. } = refused.0
        {
            done(Err(crate::Error::Order(Error::Stopped)));
        }
    }

    /// Takes back a change that was asked for here, unless this replica's word for it was ordered.
    pub fn give_up_change(&self) {
        // One that ends wants nothing any more.
        let _ends = self.commands.send(Command::GiveUpChange);
    }

    /// The members of the epoch that ordered the batch at a place which the sink saw; none: it cannot be told.
    pub fn roster_at(&self, index: u64) -> Option<Roster> {
        let kept = self.inner.journal.roster_at(index, self.replica_status().epoch);
        let kept =
            kept.inspect_err(|error| tracing::warn!(%error, "the links between epochs cannot be read"));
        kept.ok().flatten()
    }

    /// Who is kept as a spare, instead of those of before: linked with, and told all that is ordered, without a vote. Members beside the first
    /// [`SPARES_MAX`](crate::SPARES_MAX) by number are left out. To be told anew after a start.
    pub fn set_spares(&self, spares: BTreeMap<u32, Member>) {
        // One that ends needs none any more.
        let _ends = self.commands.send(Command::Spares { spares });
    }

    /// What is known of the other members.
    pub fn others(&self) -> BTreeMap<u32, Seen> {
        self.replica_status().others
    }
}

impl Engine for Replica {
    fn propose(&self, batch: Bytes, done: Completion) -> Result<(), Error> {
        let (bytes, limit_bytes) = (batch.len() as u64, self.inner.settings.proposal_bytes_max());
        if bytes > limit_bytes {
            return refuse(done, Error::TooLarge { what: "the batch", bytes, limit_bytes });
        }
        if let Some(error) = self.refusal() {
            return refuse(done, error);
        }
        if Approval::is_one(&batch) {
            return refuse(
                done,
                Error::Batch { what: "a change of members is not asked for by an operation" },
            );
        }
        // Reads and whatever the protocol itself needs go on, as far as the reserve goes.
        if let Some(error) = self.no_room() {
            self.inner.room_refusals.fetch_add(1, Ordering::Relaxed);
            return refuse(done, error);
        }
        let limit = self.inner.settings.proposals_max as u64;
        let waiting = self.inner.open.fetch_add(1, Ordering::Relaxed);
        if waiting >= limit {
            self.inner.open.fetch_sub(1, Ordering::Relaxed);
            return refuse(done, Error::Overloaded { what: "batches", waiting, limit });
        }
        self.ask(Command::Propose { batch, done })
    }

    /// Every replica takes proposals, so each says that it leads.
    fn status(&self) -> Status {
        let seen = locked(&self.inner.seen);
        Status {
            committed: seen.status.applied,
            leader: Some(u64::from(self.inner.id)),
            healthy: seen.status.failure.is_none(),
        }
    }

    /// [`Error::Overloaded`] when records that the state covers are still on their way to the disk; nothing was read then.
    fn save_snapshot(&self, at: Position, state: &mut dyn Read) -> Result<SnapshotInfo, Error> {
        match self.refusal() {
            // One that follows keeps its state as members do.
            None | Some(Error::NotLeader { .. }) => {}
            Some(error) => return Err(error),
        }
        let committed = self.status().committed.index;
        if at.index > committed {
            let right = format!("at most {committed}, which is committed");
            return Err(Error::Index { index: at.index, right });
        }
        let info = self.inner.journal.save(at, state)?;
        // A replica that ends has nothing to forget.
        let _unheard = self.commands.send(Command::Saved);
        Ok(info)
    }
}
