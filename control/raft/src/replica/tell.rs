//! What those above the order say to each other, over the replicas' own authenticated links, on a lane of its own.
//!
//! Best effort: what cannot be delivered at once is lost and counted, and who says it says it again when it matters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::{Semaphore, mpsc};

use super::{Inner, RaftOf, Replica};
use crate::net::message::{Request, TELL_BYTES_MAX};
use crate::net::{Lane, Network, count};
use crate::runtime::spawn;
use crate::types::Address;

/// Messages that may wait to be sent.
pub(super) const WAITING_MAX: usize = 4096;
/// Messages to one replica that may be on their way.
const ON_THE_WAY_MAX: usize = 256;
/// How long one may take.
const LIMIT: Duration = Duration::from_secs(2);

/// A message and for whom it is.
pub(super) type Tell = (u64, Bytes);

fn address(raft: &RaftOf, to: u64) -> Option<Address> {
    let metrics = raft.server_metrics();
    let seen = metrics.borrow_watched();
    let mut nodes = seen.membership_config.membership().nodes();
    nodes.find(|(id, _)| **id == to).map(|(_, address)| address.clone())
}

/// Sends what comes. Messages may overtake each other.
pub(super) async fn tell_all(
    inner: Arc<Inner>,
    raft: RaftOf,
    network: Network,
    mut tells: mpsc::Receiver<Tell>,
) {
    let mut places: BTreeMap<u64, Arc<Semaphore>> = BTreeMap::new();
    while let Some((to, bytes)) = tells.recv().await {
        let place = places.entry(to).or_insert_with(|| Arc::new(Semaphore::new(ON_THE_WAY_MAX)));
        let place = Arc::clone(place).try_acquire_owned();
        let (Some(address), Ok(place)) = (address(&raft, to), place) else {
            count(&inner.counts.tells_lost, 1);
            continue;
        };
        let (inner, client) = (Arc::clone(&inner), network.client(to, &address, Lane::Peers));
        spawn(async move {
            if client.ask(&Request::Tell { bytes }, LIMIT).await.is_err() {
                count(&inner.counts.tells_lost, 1);
            }
            drop(place);
        });
    }
}

impl Replica {
    /// Says something to the upper half of another member; lost when that cannot be reached, or is not one.
    ///
    /// # Panics
    /// For more than [`TELL_BYTES_MAX`] bytes.
    pub fn tell(&self, to: u64, bytes: Bytes) {
        assert!(bytes.len() <= TELL_BYTES_MAX, "a message of {} bytes", bytes.len());
        if self.tells.try_send((to, bytes)).is_err() {
            count(&self.inner.counts.tells_lost, 1);
        }
    }

    /// Who hears what others say. To be set once, soon after the start: before, nothing is heard.
    pub fn listen(&self, hears: Box<crate::net::PeerSink>) {
        if self.inner.peers.set(hears).is_err() {
            tracing::warn!("a second listener to other replicas is not heard");
        }
    }
}
