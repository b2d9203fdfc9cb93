//! What a replica does whose disk is full.
//!
//! - While its log is short of room ([`Room`](weir_order::log::Room)) a leader takes no proposals: they are refused for certain, and reads are served. What it
//!   took before, a new leader's first entry, votes and changes of members go into the reserve.
//! - It gives its office to the next voter by number that hears it and is not far behind, once for each time that its disk fills: so the
//!   group goes on where another has room, and where none has, office goes round once and stays.
//! - Of a message that brings a new leader's first entry together with batches that it took at once, a follower takes the part before the first
//!   batch: so something of the leader's term is committed, and it can serve reads.
//! - A follower takes nothing that its leader has taken from others, and says why; it acknowledges signs of life, so reads go on. A leader that knows so of so many
//!   that no majority is left takes nothing new. What a new leader has from those before it is taken, from the reserve.
//! - One whose reserve is used up as well acknowledges nothing and stays; what it lacks comes when there is room. Where a majority is so and office
//!   changes hands, the new leader's first entry waits for room, and reads with it: raft serves none before.
//!
//! Nobody ends, and nobody needs to be told that there is room again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::sleep;

use super::{Inner, RaftOf, admin};

/// How often a replica looks whether it should go on leading.
const LOOK: Duration = Duration::from_millis(200);

pub(super) async fn watch(inner: Arc<Inner>, raft: RaftOf) {
    let mut given = false;
    loop {
        sleep(LOOK).await;
        let short = inner.log.room().is_short();
        if !short {
            given = false;
            continue;
        }
        if given || inner.leadership.borrow().leader != Some(inner.settings.id) {
            continue;
        }
        given = true;
        let Some(to) = next_voter(&inner, &raft) else { continue };
        match admin::transfer(&inner, &raft, Some(to)).await {
            Ok(()) => {
                inner.room_handovers.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(replica = inner.settings.id, to, "gave its office away: its disk is full");
            }
            Err(error) => {
                tracing::warn!(to, %error, "its disk is full, and its office could not be given away")
            }
        }
    }
}

/// The voter behind this one by number, the lowest behind the highest.
fn next_voter(inner: &Inner, raft: &RaftOf) -> Option<u64> {
    let own = inner.settings.id;
    let metrics = raft.server_metrics();
    let voters: Vec<u64> =
        metrics.borrow_watched().membership_config.voter_ids().filter(|id| *id != own).collect();
    voters.iter().copied().filter(|id| *id > own).min().or_else(|| voters.into_iter().min())
}
