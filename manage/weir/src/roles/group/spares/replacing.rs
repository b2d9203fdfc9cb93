//! The loop of the watch over the other members, and how what it comes to is carried out.

use super::{Engine, Group, LOOK, SHARE, Watching, convicts, locked, source};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_controller::core::group::{Spare, Step};
use weir_controller::driver::ControllerHandle;
use weir_controller::quorum::ShareProof;
use weir_controller::watch::{Act, Look, Watch};
use weir_model::group::GroupWord;

/// A longer time between two looks means that this process was stopped.
const STOPPED: Duration = Duration::from_secs(2);
/// How long nobody is suspected then.
const AFTER_STOP: Duration = Duration::from_secs(5);
/// A change that did not come about is tried again after so long.
const AGAIN: Duration = Duration::from_secs(5);

/// The change that is under way.
struct Doing {
    number: u64,
    step: Step,
    tried: Instant,
    failed: Arc<OnceLock<()>>,
}

/// Lets the controller go when the watch is ended.
struct Ends<'w>(&'w Watching);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        *locked(&self.0.handle) = None;
    }
}

/// Watches over the other members. Never ends.
pub async fn watch(group: &Group, handle: &ControllerHandle) {
    *locked(&group.watching.handle) = Some(handle.clone());
    let _ends = Ends(&group.watching);
    let own = group.engine.id();
    let mut watch = Watch::new(own, source(own), group.watching.after_ms, group.watching.spares.clone());
    let (begun, mut looked, mut trusts_until) = (Instant::now(), Instant::now(), Instant::now() + AFTER_STOP);
    let mut doing: Option<Doing> = None;
    let mut added: BTreeMap<u64, Instant> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = Instant::now();
        if now.saturating_duration_since(looked) > STOPPED {
            locked(&group.watching.heard).clear();
            trusts_until = now + AFTER_STOP;
        }
        looked = now;
        let (words, (number, roster)) = (handle.group_words(), group.roster(handle));
        if roster.members.is_empty() {
            continue;
        }
        let spares = words.spares(&roster);
        group.keep_spares(handle, &spares);
        add_learners(group, handle, &spares, &mut added).await;
        let silent_ms = group.silent_ms(&spares, now);
        let proofs = found(group);
        let convicts = |member: u64, key: &[u8; 32], proof: &[u8]| convicts(handle, member, key, proof);
        let nobody = BTreeMap::new();
        let Act { say, step, done } = watch.look(&Look {
            now_ms: now.saturating_duration_since(begun).as_millis() as u64,
            ordered_ms: handle.published().now_ms.max(handle.time().ordered_ms()),
            words: &words,
            roster: &roster,
            number,
            silent_ms: if now < trusts_until { &nobody } else { &silent_ms },
            proofs: &proofs,
            convicts: &convicts,
        });
        for word in say {
            tell(&word);
            group.say(handle, word);
        }
        if let Some(done) = done {
            let (member, spare, because) = (done.out, done.by, done.because.as_str());
            tracing::warn!(member, spare, because, by = ?done.who, "a controller was replaced, or removed, by the word of others");
        }
        carry_out(group, handle, (number, step), &mut doing).await;
    }
}

fn tell(word: &GroupWord) {
    match word {
        GroupWord::Suspects { member, .. } => {
            tracing::warn!(member, "a controller is suspected: it is not heard")
        }
        GroupWord::Trusts { member } => tracing::info!(member, "a controller is heard again"),
        GroupWord::Convicts { member, .. } => tracing::warn!(member, "a controller is proven to have lied"),
        GroupWord::Spare { id, .. } => tracing::info!(id, "a controller is named as a spare"),
        GroupWord::NoSpare { id } => tracing::info!(id, "a controller is no spare any more"),
        GroupWord::Replaced(_) => {}
    }
}

/// Proofs that this member found itself.
fn found(group: &Group) -> Vec<(u64, [u8; 32], Vec<u8>)> {
    let mut proofs = locked(&group.watching.proofs).clone();
    if let (Some(members), Some(handle)) = (&group.members, group.handle()) {
        for proof in &members.status().proofs {
            let bytes = proof.encode();
            if let Some((member, key)) = ShareProof::convicts(&bytes, &handle.group_keys()) {
                proofs.push((u64::from(member), key, [&[SHARE], bytes.as_slice()].concat()));
            }
        }
    }
    proofs
}

/// With `raft`, the one that leads takes spares into the order's list, without a vote.
async fn add_learners(
    group: &Group,
    handle: &ControllerHandle,
    spares: &BTreeMap<u64, Spare>,
    added: &mut BTreeMap<u64, Instant>,
) {
    let Engine::Raft(order) = &group.engine else { return };
    added.retain(|id, _| spares.contains_key(id));
    if !handle.leads() || group.is_free_to_change().is_err() {
        return;
    }
    let (status, leaving) = (order.engine().replica_status(), locked(&group.watching.leaving).clone());
    for (id, spare) in spares {
        let is_in = status.learners.get(id) == Some(&spare.address) || status.voters.contains_key(id);
        let is_early = added.get(id).is_some_and(|tried| tried.elapsed() < AGAIN);
        if is_in || is_early || leaving.contains(id) {
            continue;
        }
        added.insert(*id, Instant::now());
        let (id, address) = (*id, spare.address.clone());
        let moved = status.learners.contains_key(&id);
        let change = match moved {
            true => weir_raft::Change::Remove { id },
            false => weir_raft::Change::AddLearner { id, address },
        };
        if let Err(error) = order.engine().change(change).await {
            tracing::warn!(id, %error, "a spare is not taken into the group yet");
        }
    }
}

/// Does what this member agrees to.
async fn carry_out(
    group: &Group,
    handle: &ControllerHandle,
    (number, step): (u64, Option<Step>),
    doing: &mut Option<Doing>,
) {
    let Some(step) = step else {
        if let (Some(_), Engine::Bft(order)) = (doing.take(), &group.engine) {
            order.give_up_change();
        }
        return;
    };
    // Whose promises count must not change while an entry is waited for.
    if group.is_free_to_change().is_err() {
        return;
    }
    let is_same =
        |doing: &Doing| doing.number == number && doing.step.out == step.out && doing.step.by == step.by;
    let is_open = |doing: &Doing| doing.failed.get().is_none() || doing.tried.elapsed() < AGAIN;
    let known = doing.as_ref().is_some_and(is_same);
    if known && doing.as_ref().is_some_and(is_open) {
        return;
    }
    if !known {
        let (member, spare, because) = (step.out, step.by.as_ref().map(|(id, _)| *id), step.because.as_str());
        tracing::warn!(member, spare, because, by = ?step.who, "a controller is to be replaced, or removed, by the word of others");
    }
    let failed: Arc<OnceLock<()>> = Arc::default();
    *doing = Some(Doing { number, step: step.clone(), tried: Instant::now(), failed: failed.clone() });
    match &group.engine {
        Engine::Bft(order) => {
            let id_of = |id: u64| u32::try_from(id).ok();
            let change = match &step.by {
                None => id_of(step.out).map(|id| weir_bft::Change::Remove { id }),
                Some((id, spare)) => (|| {
                    let (key, address) = (spare.key?, spare.address.clone());
                    let member = weir_bft::Member { key, address };
                    Some(weir_bft::Change::Replace { out: id_of(step.out)?, id: id_of(*id)?, member })
                })(),
            };
            let Some(change) = change else { return };
            let done = Box::new(move |result: Result<(), weir_bft::Error>| {
                if let Err(error) = result {
                    tracing::warn!(%error, "a controller is not replaced yet");
                    // Set once.
                    let _first = failed.set(());
                }
            });
            order.engine().change(change, done);
        }
        Engine::Raft(order) => {
            // Tried again until it is so, by whoever leads.
            let _open = failed.set(());
            if !handle.leads() {
                return;
            }
            let change = match step.by {
                Some((id, _)) => weir_raft::Change::Replace { out: step.out, id },
                None => weir_raft::Change::Remove { id: step.out },
            };
            if let Err(error) = order.engine().change(change).await {
                tracing::warn!(%error, "a controller is not replaced yet");
            }
        }
    }
}
