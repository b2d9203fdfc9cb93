//! Who leads, and what follows from it.

use super::order::Replicated;
use super::{Engine, Group, clocks, spares, turns};
use crate::failure::Failure;
use crate::roles::names::member_name;
use crate::roles::state::State;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use weir_controller::driver::{ControllerHandle, Order as _};
use weir_order::{Completion, Error};

/// Between two tries of a barrier.
const BARRIER_PAUSE: Duration = Duration::from_millis(10);
/// How often members and health are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Tells the controller when it leads, and everybody who the members are. Ends when the replica cannot go on.
///
/// # Errors
/// Why the replica has stopped.
pub async fn watch(
    group: Group,
    handle: ControllerHandle,
    state: Arc<State>,
    context: PathBuf,
) -> Result<(), Failure> {
    let led = async {
        match &group.engine {
            Engine::Raft(order) => follow_leadership(order, &group, &handle).await,
            Engine::Bft(order) => turns::follow(order, &handle, || group.tell_members()).await,
        }
    };
    tokio::select! {
        () = led => Ok(()),
        () = clocks::tell(&group, handle.time()) => Ok(()),
        () = spares::watch(&group, &handle) => Ok(()),
        stopped = follow_members(&group, &handle, &state, &context) => stopped,
    }
}

async fn follow_leadership(order: &Replicated, group: &Group, handle: &ControllerHandle) {
    let mut leadership = order.engine().leader();
    let own = order.engine().replica_status().id;
    loop {
        let now = *leadership.borrow_and_update();
        group.tell_members();
        let leads = now.leader == Some(own);
        if leads && !handle.leads() {
            match barrier(order).await {
                Ok(()) if !leadership.has_changed().unwrap_or(true) => {
                    tracing::info!(term = now.term, "this controller leads");
                    // Fails only when the controller stops.
                    let _ = handle.lead(true).await;
                }
                // Another leads, or none yet: the next look says.
                _ => {
                    tokio::time::sleep(BARRIER_PAUSE).await;
                    continue;
                }
            }
        } else if !leads && handle.leads() {
            tracing::info!(term = now.term, leader = now.leader, "this controller follows");
            let _ = handle.lead(false).await;
        }
        if leadership.changed().await.is_err() {
            // The replica has ended; why is told elsewhere.
            let _ = handle.lead(false).await;
            return std::future::pending().await;
        }
    }
}

/// Ends when all that was acknowledged before is in the controller's queue.
async fn barrier(order: &Replicated) -> Result<(), Error> {
    let (reply, passed) = oneshot::channel();
    order.barrier(Completion::new(move |result| drop(reply.send(result))))?;
    passed.await.map_err(|_| Error::Stopped)?.map(drop)
}

async fn follow_members(
    group: &Group,
    handle: &ControllerHandle,
    state: &State,
    context: &std::path::Path,
) -> Result<(), Failure> {
    let (mut written, mut told) = (Vec::new(), BTreeSet::new());
    loop {
        for id in group.engine.cut_off() {
            if told.insert(id) {
                handle.note_cut_off(&member_name(id));
            }
        }
        group.tell_members();
        if let Some(failure) = group.engine.failure() {
            return Err(Failure::Input(format!("the replica has stopped: {failure}")));
        }
        let number = match &group.engine {
            Engine::Raft(order) => order.engine().replica_status().membership_log_index,
            Engine::Bft(order) => Some(order.members().0),
        };
        if let Some(number) = number {
            let sessions = group.engine.members().into_iter().map(|(.., address)| address.session).collect();
            handle.set_controllers(number, sessions);
        }
        let apis = group.apis();
        if apis != written {
            match state.write_context(context, &apis) {
                Ok(()) => written = apis,
                Err(error) => tracing::warn!(%error, "the context could not be written"),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}
