//! Gives learners that have caught up a vote, also when whoever asked for it has gone, or the leader has changed since: whoever is in the
//! group without a vote is there to get one ([`Settings::promotes`](crate::Settings)). So does one whose vote this leader took ([`super::lost`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{Inner, RaftOf, admin};

/// How often a leader looks.
const LOOK: Duration = Duration::from_millis(250);
/// How long it waits after a promotion that did not come about, at most; twice as long each time.
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub(super) async fn watch(inner: Arc<Inner>, raft: RaftOf) {
    let mut pause = LOOK;
    loop {
        sleep(pause).await;
        match admin::promote_ready(&inner, &raft).await {
            Ok(promoted) => {
                pause = LOOK;
                if let Some(id) = promoted {
                    tracing::info!(replica = id, "replica caught up: promoted to voter");
                }
            }
            Err(error) => {
                pause = (2 * pause).min(PAUSE_MAX);
                tracing::warn!(%error, "cannot promote a replica that caught up yet");
            }
        }
    }
}
