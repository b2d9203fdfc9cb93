//! Watches whether this replica's state is that of the majority; fences and repairs it when it is not.
//!
//! A replica whose state differs serves nothing, gives leadership away, and asks those who have the majority's digest for
//! their newest snapshot. It takes that over, applies its own log behind it once more, and serves again. Its log is
//! sound all the while (entries have checksums and raft compares them), so it goes on voting and following.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use weir_order::digests::{Digests, Divergence};

use super::{Inner, RaftOf, admin, locked};
use crate::machine::SnapshotFile;
use crate::net::message::Request;
use crate::net::{Lane, Network, Notice, Service};
use crate::runtime::spawn;
use crate::types::Address;

/// Between two tries to get a state.
const REPAIR_EVERY: Duration = Duration::from_secs(1);
/// How long the application may take to digest a state that it was given.
const DIGEST_LIMIT: Duration = Duration::from_secs(10);
/// How long a digest, or a wish for a state, may take to be delivered.
const TELL_LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn watch_over(
    inner: Arc<Inner>,
    raft: RaftOf,
    network: Network,
    service: Arc<Service>,
    mut notices: mpsc::Receiver<Notice>,
    mut own_digests: mpsc::Receiver<(u64, [u8; 32])>,
) {
    let mut health = Health {
        digests: Digests::new(inner.settings.id),
        inner,
        raft,
        network,
        service,
        fenced: None,
        asked: 0,
        awaits: None,
    };
    let mut next_try = Instant::now();
    loop {
        tokio::select! {
            biased;
            // First, so that no flood of notices keeps it from its turn.
            () = sleep_until(next_try), if health.fenced.is_some() => {
                health.ask_for_state();
                next_try = Instant::now() + REPAIR_EVERY;
            }
            notice = notices.recv() => {
                let Some(notice) = notice else { return };
                health.notice(notice).await;
            }
            own = own_digests.recv() => {
                let Some((index, digest)) = own else { return };
                health.own(index, digest);
            }
        }
    }
}

struct Health {
    inner: Arc<Inner>,
    raft: RaftOf,
    network: Network,
    service: Arc<Service>,
    digests: Digests,
    fenced: Option<Divergence>,
    /// How often a state was asked for, so that each time another replica is asked.
    asked: usize,
    /// The place of the state that was taken over, and until when its digest is waited for: what the application says
    /// before is of the state that it had.
    awaits: Option<(u64, Instant)>,
}

impl Health {
    fn members(&self) -> BTreeMap<u64, Address> {
        let metrics = self.raft.server_metrics();
        let seen = metrics.borrow_watched();
        let others =
            seen.membership_config.membership().nodes().filter(|(id, _)| **id != self.inner.settings.id);
        others.map(|(id, address)| (*id, address.clone())).collect()
    }

    fn heard(&mut self, from: u64, index: u64, digest: [u8; 32]) {
        let voters: BTreeSet<u64> =
            self.raft.server_metrics().borrow_watched().membership_config.voter_ids().collect();
        let found = self.digests.heard(from, index, digest, (&voters, voters.len() / 2 + 1));
        self.inner.digests_agreed.store(self.digests.agreed, Ordering::Relaxed);
        if let Some(divergence) = found.filter(|_| self.fenced.is_none()) {
            self.fence(divergence);
        }
    }

    fn fence(&mut self, divergence: Divergence) {
        let what = format!(
            "its digest after batch {} is not the majority's; it waits for their state",
            divergence.index
        );
        tracing::error!(replica = self.inner.settings.id, what, "fenced");
        *locked(&self.inner.fence) = Some(what);
        self.inner.divergences.fetch_add(1, Ordering::Relaxed);
        self.fenced = Some(divergence);
        self.service.repairing.store(true, Ordering::Release);
    }

    fn own(&mut self, index: u64, digest: [u8; 32]) {
        match self.awaits {
            Some((at, until)) if index != at && Instant::now() < until => return,
            _ => self.awaits = None,
        }
        for (id, address) in self.members() {
            let client = self.network.client(id, &address, Lane::Control);
            spawn(async move {
                // Whoever does not hear it hears the next.
                let _unheard = client.ask(&Request::Digest { index, digest }, TELL_LIMIT).await;
            });
        }
        self.heard(self.inner.settings.id, index, digest);
    }

    async fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Digest { from, index, digest } => self.heard(from, index, digest),
            Notice::Repair { from } => self.send_state(from),
            Notice::State { data } => self.repair(data).await,
        }
    }

    fn ask_for_state(&mut self) {
        let Some(divergence) = self.fenced else { return };
        if self.inner.leadership.borrow().leader == Some(self.inner.settings.id) {
            let (inner, raft) = (Arc::clone(&self.inner), self.raft.clone());
            spawn(async move {
                if let Err(error) = admin::transfer(&inner, &raft, None).await {
                    tracing::warn!(%error, "fenced leader cannot transfer leadership yet");
                }
            });
        }
        let members = self.members();
        let holders = self.digests.holders(divergence.index, &divergence.majority);
        let holders: Vec<u64> = holders.into_iter().filter(|id| members.contains_key(id)).collect();
        let Some(id) = holders.get(self.asked % holders.len().max(1)).copied() else { return };
        self.asked += 1;
        let client = self.network.client(id, &members[&id], Lane::Control);
        spawn(async move {
            if let Err(error) = client.ask(&Request::Repair, TELL_LIMIT).await {
                tracing::warn!(id, %error, "cannot request a snapshot");
            }
        });
    }

    /// Sends this replica's newest snapshot, unless it is fenced itself.
    fn send_state(&self, to: u64) {
        let Some(address) = self.members().get(&to).cloned() else { return };
        let newest = self.inner.machine.newest_file();
        // A fresh one for the next time: there may be none, or one behind which the other's log does not reach.
        self.inner.state_wanted.store(true, Ordering::Release);
        let Some((meta, data)) = newest.filter(|_| self.fenced.is_none()) else {
            tracing::info!(to, "a snapshot was requested, and there is none yet");
            return;
        };
        let vote = self.raft.server_metrics().borrow_watched().vote;
        let client = self.network.client(to, &address, Lane::Snapshot);
        spawn(async move {
            if let Err(error) = client.send_repair(&meta, &data, vote).await {
                tracing::warn!(to, %error, "cannot send a snapshot");
            }
        });
    }

    async fn repair(&mut self, data: SnapshotFile) {
        if self.fenced.is_none() {
            return;
        }
        let (log, own) = (Arc::clone(&self.inner.log), self.inner.settings.id);
        let taken = data.info.at.index;
        let done = self.raft.with_state_machine(move |machine| {
            let result = machine.repair(&data, &log);
            Box::pin(std::future::ready(result))
        });
        match done.await {
            Ok(Ok(at)) => {
                tracing::warn!(
                    replica = own,
                    index = at.index,
                    "repaired: installed the majority's snapshot"
                );
                self.inner.repairs.fetch_add(1, Ordering::Relaxed);
                self.digests.forget_own();
                self.awaits = Some((taken, Instant::now() + DIGEST_LIMIT));
                self.fenced = None;
                self.service.repairing.store(false, Ordering::Release);
                *locked(&self.inner.fence) = None;
            }
            Ok(Err(error)) => {
                tracing::error!(replica = own, %error, "cannot install the received snapshot")
            }
            // openraft has ended, which is told elsewhere.
            Err(_) => {}
        }
    }
}
