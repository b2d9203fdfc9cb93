//! openraft's own tests of a log store, over ours. Its state machine is a plain one in memory.

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;

use futures_util::{Stream, StreamExt};
use openraft::storage::{
    EntryResponder, LogState, RaftLogReader, RaftSnapshotBuilder, RaftStateMachine, Snapshot,
};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{OptionalSend, StorageError};

use super::*;
use crate::types::{Placed, SnapshotMeta, StoredMembership, Types};

/// The suite writes logs that begin at 1; raft begins at 0. What is before counts as a hole.
#[derive(Clone)]
struct FromOne(LogStore);

impl RaftLogReader<Types> for FromOne {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        self.0.try_get_log_entries(range).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.0.read_vote().await
    }
}

impl RaftLogStorage<Types> for FromOne {
    type LogReader = FromOne;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        self.0.get_log_state().await
    }

    async fn get_log_reader(&mut self) -> FromOne {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.save_vote(vote).await
    }

    async fn append<I>(&mut self, entries: I, done: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        let first = entries.first().map_or(0, |entry| entry.log_id.index());
        let empty = self.0.shared().view().last().is_none();
        if empty && first > 0 {
            self.0.set_last(Some(log_id(0, first - 1))).await?;
        }
        self.0.append(entries, done).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        self.0.truncate_after(last).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.0.purge(upto).await
    }
}

#[derive(Default, Clone)]
struct Plain {
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<SnapshotMeta>,
}

impl RaftSnapshotBuilder<Types> for Plain {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<openraft::type_config::alias::SnapshotOf<Types, ()>> {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        Ok(Snapshot { meta, snapshot: () })
    }
}

impl RaftStateMachine<Types> for Plain {
    type SnapshotData = ();
    type SnapshotBuilder = Plain;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, answer) = item?;
            self.applied = Some(entry.log_id);
            if let Payload::Membership(membership) = entry.payload {
                self.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(answer) = answer {
                answer.send(Placed(None));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Plain {
        let snapshot = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        self.snapshot = Some(snapshot);
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, (): ()) -> io::Result<()> {
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<Option<openraft::type_config::alias::SnapshotOf<Types, ()>>> {
        Ok(self.snapshot.clone().map(|meta| Snapshot { meta, snapshot: () }))
    }
}

/// How many bytes stay in memory: everything, or nearly nothing, so that all is read back from disk.
struct Builder(u64);

impl StoreBuilder<Types, FromOne, Plain> for Builder {
    async fn build(&self) -> Result<((), FromOne, Plain), StorageError<Types>> {
        Ok(((), FromOne(open_running(&SimDisk::new(1), self.0)), Plain::default()))
    }
}

#[test]
fn openraft_finds_no_fault() {
    block_on(Suite::test_all(Builder(1 << 20))).unwrap();
}

/// As a follower that writes by itself.
struct Follower;

impl StoreBuilder<Types, FromOne, Plain> for Follower {
    async fn build(&self) -> Result<((), FromOne, Plain), StorageError<Types>> {
        let open = desk::open_with_desk(&SimDisk::new(2), weir_base::world::SimClock::new(0));
        open.store.shared().set_follows(true);
        let desk::Open { store, desk, mut writes, .. } = open;
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while writes.recv_many(&mut waiting, 64).await > 0 {
                desk.write_queued(&mut waiting);
            }
        });
        Ok(((), FromOne(store), Plain::default()))
    }
}

#[test]
fn openraft_finds_no_fault_in_a_follower_that_writes_by_itself() {
    block_on(Suite::test_all(Follower)).unwrap();
}

#[test]
fn openraft_finds_no_fault_when_nothing_stays_in_memory() {
    block_on(Suite::test_all(Builder(0))).unwrap();
}
