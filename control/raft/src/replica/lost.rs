//! A leader mends a replica that has lost its log, or a part of what it had acknowledged.
//!
//! It acknowledged what it has no more, so nothing that it says now may count: its answers are kept from raft ([`Contacts`](crate::net::Contacts)).
//! The leader takes its vote first, which the other voters must agree to, and fills it like any learner then; with its vote goes all that it
//! promised in its earlier life. When it has everything it gets a vote again. Where the others are too few to agree without it, nothing is done, and
//! what to do is told.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::ChangeMembers;
use tokio::time::{sleep, timeout};

use super::{Inner, RaftOf, admin};

/// How often a leader looks.
const LOOK: Duration = Duration::from_millis(250);
/// How long it waits after a try that came to nothing, at most; twice as long each time.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long the others may take to agree.
const AGREE_MAX: Duration = Duration::from_secs(10);

pub(super) async fn watch(inner: Arc<Inner>, raft: RaftOf) {
    let mut pause = LOOK;
    loop {
        sleep(pause).await;
        let own = inner.settings.id;
        let lost = inner.contacts.lost();
        let Some(id) = lost.first().copied().filter(|_| inner.leadership.borrow().leader == Some(own)) else {
            pause = LOOK;
            continue;
        };
        pause = match mend(&inner, &raft, id).await {
            Ok(()) => {
                tracing::warn!(replica = id, "it has lost its log, and gets all of it again before it votes");
                inner.mended.fetch_add(1, Ordering::Relaxed);
                LOOK
            }
            Err(why) => {
                tracing::error!(replica = id, why, "it has lost its log and cannot be mended now");
                (2 * pause).min(PAUSE_MAX)
            }
        };
    }
}

async fn mend(inner: &Inner, raft: &RaftOf, id: u64) -> Result<(), String> {
    let now = admin::members(raft);
    if now.voters.contains(&id) {
        let others =
            now.voters.iter().filter(|voter| **voter != id && !inner.contacts.lost().contains(voter));
        let heard =
            others.filter(|voter| **voter == inner.settings.id || now.lag.contains_key(voter)).count();
        if heard < now.voters.len() / 2 + 1 {
            return Err(format!(
                "{heard} of {} voters are there without it, and {} must agree",
                now.voters.len(),
                now.voters.len() / 2 + 1
            ));
        }
        let Some(_changing) = admin::Changing::begin(inner) else {
            return Err("another change of the group is under way".to_owned());
        };
        let demoted = raft.change_membership(ChangeMembers::RemoveVoters(BTreeSet::from([id])), true);
        match timeout(AGREE_MAX, demoted).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("too few others agreed in time".to_owned()),
        }
        super::locked(&inner.demoted).insert(id);
    }
    match raft.trigger().allow_next_revert(&id, true).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error.to_string()),
        Err(error) => return Err(error.to_string()),
    }
    // From now on it is heard, and begins with nothing.
    inner.contacts.begins(id);
    Ok(())
}
