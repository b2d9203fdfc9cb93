//! Linearizable reads without a write to disk: all that wait share one check.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{Semaphore, mpsc};
use weir_order::{Completion, Error, Position};

use super::{Inner, RaftOf};
use crate::runtime::spawn;
use crate::types::Types;

/// Reads that share one check, at most.
const SHARE_MAX: usize = 4096;

/// How a barrier makes sure that this replica still leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadKind {
    /// Asks a majority.
    Index,
    /// Trusts the lease that a majority gave by answering signs of life, where the settings allow it; else asks.
    Lease,
}

/// A read that waits.
pub(super) struct Waiting {
    pub kind: ReadKind,
    pub done: Completion,
}

pub(super) async fn answer_all(inner: Arc<Inner>, raft: RaftOf, mut reads: mpsc::Receiver<Waiting>) {
    let places = Arc::new(Semaphore::new(inner.settings.read_checks_max));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        // Taken after a place is free, so that everything that came meanwhile shares the check.
        let mut group = Vec::new();
        if reads.recv_many(&mut group, SHARE_MAX).await == 0 {
            return;
        }
        let (inner, raft) = (Arc::clone(&inner), raft.clone());
        spawn(async move {
            let lease = group.iter().all(|waiting: &Waiting| waiting.kind == ReadKind::Lease);
            let result = check(&inner, &raft, lease).await;
            drop(place);
            inner.reads.fetch_add(group.len() as u64, Ordering::Relaxed);
            for waiting in group {
                waiting.done.finish(result.clone());
            }
        });
    }
}

async fn check(inner: &Inner, raft: &RaftOf, lease: bool) -> Result<Position, Error> {
    inner.read_checks.fetch_add(1, Ordering::Relaxed);
    let lease = inner.settings.lease_reads && lease;
    let mut checked = Err(None);
    if lease {
        checked = raft.ensure_linearizable(ReadPolicy::LeaseRead).await.map_err(Some);
    }
    if checked.is_err() {
        checked = raft.ensure_linearizable(ReadPolicy::ReadIndex).await.map_err(Some);
    }
    if let Err(error) = checked {
        return Err(error.map_or(Error::Stopped, |error| what(inner, error)));
    }
    // Fenced meanwhile: what was applied is not what it should be.
    inner.refusal().map_or(Ok(inner.machine.applied()), Err)
}

fn what(inner: &Inner, error: RaftError<Types, LinearizableReadError<Types>>) -> Error {
    match error {
        RaftError::APIError(LinearizableReadError::ForwardToLeader(to)) => {
            Error::NotLeader { leader: to.leader_id.filter(|id| *id != inner.settings.id) }
        }
        RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)) => Error::NoQuorum,
        RaftError::Fatal(_) => Error::Stopped,
    }
}
