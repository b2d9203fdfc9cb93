//! openraft's storage traits over the view and the writer's queue.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{OptionalSend, RaftTypeConfig};
use tokio::sync::{mpsc, oneshot};
use weir_order::log::record::RECORD_HEADER_BYTES;

use super::view::Found;
use super::writer::{Pending, Write};
use super::{Shared, position_of};
use crate::codec::{payload_of, payload_parts};
use crate::runtime::aside;
use crate::types::{LogId, RaftEntry, Types, Vote, log_id};

/// Bytes of entries in one message to a follower, about.
const READ_BYTES_MAX: u64 = 1 << 20;

/// So many entries, each of so few bytes, are given without letting other tasks go first.
const FEW: usize = 64;
const FEW_BYTES: usize = 64 << 10;

fn body_bytes(entry: &RaftEntry) -> usize {
    match &entry.payload {
        openraft::EntryPayload::Normal(batch) => batch.0.len(),
        _ => 0,
    }
}

/// The log as openraft uses it. Clones read and write the same log.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Write>,
}

fn gone() -> io::Error {
    io::Error::other("the log's writer has stopped")
}

impl LogStore {
    pub(super) fn new(shared: Arc<Shared>, queue: mpsc::Sender<Write>) -> LogStore {
        LogStore { shared, queue }
    }

    /// What readers and writer share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Entries from `start` on. Those that are not in memory are read beside the replica's tasks, and many of them let all others go first: who
    /// sends a whole log must not keep signs of life from going out.
    async fn read(&self, start: u64, end: u64, bytes_max: u64) -> io::Result<Vec<RaftEntry>> {
        let (found, old) = {
            let mut view = self.shared.view();
            (view.find(start..end, bytes_max), view.is_old(start))
        };
        let shared = Arc::clone(&self.shared);
        let entries = move || found.into_iter().map(|(index, item)| shared.entry(index, item)).collect();
        match old {
            true => aside(entries).await,
            false => {
                let entries: Vec<RaftEntry> = entries()?;
                if entries.len() > FEW || entries.iter().any(|entry| body_bytes(entry) > FEW_BYTES) {
                    tokio::task::yield_now().await;
                }
                Ok(entries)
            }
        }
    }

    async fn ask(&self, write: Write) -> io::Result<()> {
        let Some(desk) = self.shared.desk.get() else {
            return self.queue.send(write).await.map_err(|_| gone());
        };
        let Some(write) = desk.write(write) else { return Ok(()) };
        self.queue.send(write).await.map_err(|_| {
            desk.unqueued();
            gone()
        })
    }

    /// Makes `last` the last entry, whatever was there.
    pub(super) async fn set_last(&self, last: Option<LogId>) -> io::Result<()> {
        self.shared.view().set_last(last);
        self.ask(Write::Cut { last }).await
    }
}

impl Shared {
    /// Entries from `start` on, not much more than `bytes_max` of them.
    pub fn read(&self, start: u64, end: u64, bytes_max: u64) -> io::Result<Vec<RaftEntry>> {
        let found = self.view().find(start..end, bytes_max);
        found.into_iter().map(|(index, item)| self.entry(index, item)).collect()
    }

    fn entry(&self, index: u64, item: Found) -> io::Result<RaftEntry> {
        let place = match item {
            Found::Here(entry) => return Ok(entry),
            Found::At(place) => place,
        };
        let (header, body) = self.records.read(place).map_err(io::Error::other)?;
        if header.index != index + 1 {
            let what = format!("the record of entry {index} has index {}", header.index - 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let payload = payload_of(header.tag, body)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
        Ok(RaftEntry { log_id: log_id(header.term, index), payload })
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last + 1,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (start, end) = bounds(&range);
        self.read(start, end, u64::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<RaftEntry>> {
        self.read(start, end, READ_BYTES_MAX).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.shared.view().vote)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let view = self.shared.view();
        Ok(LogState { last_purged_log_id: view.purged, last_log_id: view.last() })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (done, outcome) = oneshot::channel();
        self.ask(Write::Vote { vote: *vote, done }).await?;
        outcome.await.map_err(|_| gone())??;
        self.shared.view().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, done: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = <Types as RaftTypeConfig>::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut pending = Vec::new();
        {
            let mut view = self.shared.view();
            for entry in entries {
                let (at, (tag, body)) = (position_of(Some(&entry.log_id)), payload_parts(&entry.payload));
                let stamp = view.push(entry, (body.len() + RECORD_HEADER_BYTES) as u64);
                pending.push(Pending { at, tag, body, stamp });
            }
        }
        self.ask(Write::Append { entries: pending, done }).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        if last.map_or(0, |id| id.index() + 1) >= self.shared.view().end() {
            return Ok(());
        }
        self.set_last(last).await
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.shared.view().purge(upto);
        self.ask(Write::Purge { upto }).await
    }
}
