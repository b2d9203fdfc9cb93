//! What the order carries, and the updates of one batch: merged, and sorted so that what must
//! come first is first.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_base::codec::decode;
use weir_model::event::Event;
use weir_model::{Key, Label, PlannedUpdate, Version};

/// One operation of a batch of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// An event to decide on.
    Event {
        /// The proposer's time, milliseconds of the Unix epoch.
        now_ms: u64,
        /// The event.
        event: Event,
    },
    /// Keys of an actuator to decide anew, because it holds what nobody desires.
    Repair {
        /// The proposer's time, milliseconds of the Unix epoch.
        now_ms: u64,
        /// The actuator.
        actuator: Label,
        /// Keys with the versions found there.
        found: Vec<(Key, Version)>,
    },
    /// Operations of a client of the store, on tables of clients.
    Operations {
        /// The proposer's time, milliseconds of the Unix epoch.
        now_ms: u64,
        /// Which process proposed it.
        origin: u64,
        /// Under which number it waits there for the outcomes.
        ticket: u64,
        /// The operations; none: only time passes.
        batch: weir_store::Batch,
    },
}

/// The operations of a batch of the order.
///
/// # Errors
/// [`Error::Order`] or [`Error::Operation`]: the batch is damaged, or was written by another release.
pub fn decode_batch(bytes: &[u8]) -> Result<Vec<Item>, Error> {
    let operations = weir_order::batcher::decode(bytes)?;
    let read = |(nth, operation)| {
        decode(operation).map_err(|source| Error::Operation { nth, source: Arc::new(source) })
    };
    operations.into_iter().enumerate().map(read).collect()
}

type Node = (Label, Key);

fn node(planned: &PlannedUpdate) -> Node {
    (planned.update.target.clone(), planned.update.key.clone())
}

/// Leaves at most one update for each actuator and key, the last: except where the last waits for
/// something, and another update of the batch waits for an earlier one. There both stay, because each
/// might wait for the other else.
pub(crate) fn merge(planned: Vec<PlannedUpdate>) -> Vec<PlannedUpdate> {
    let mut last: BTreeMap<Node, usize> = BTreeMap::new();
    for (at, planned) in planned.iter().enumerate() {
        last.insert(node(planned), at);
    }
    if last.len() == planned.len() {
        return planned;
    }
    let waited: BTreeSet<(Node, Version)> = planned
        .iter()
        .flat_map(|p| p.after.iter().map(|d| ((d.target.clone(), d.key.clone()), d.version)))
        .collect();
    let keep: Vec<bool> = planned
        .iter()
        .enumerate()
        .map(|(at, update)| {
            let node = node(update);
            let last = last[&node];
            let newer = planned[last].update.version > update.update.version;
            last == at
                || (newer
                    && !planned[last].after.is_empty()
                    && waited.contains(&(node, update.update.version)))
        })
        .collect();
    planned.into_iter().zip(keep).filter_map(|(planned, keep)| keep.then_some(planned)).collect()
}

/// Sorts updates by version, and within a version so that each comes after what it waits for.
/// Dependencies on a later version or in a circle are dropped; their number is returned.
pub(crate) fn sort(mut planned: Vec<PlannedUpdate>) -> (Vec<PlannedUpdate>, u64) {
    planned.sort_by_key(|planned| planned.update.version);
    let mut invalid = 0;
    for planned in &mut planned {
        let (version, before) = (planned.update.version, planned.after.len());
        planned.after.retain(|dependency| dependency.version <= version);
        invalid += (before - planned.after.len()) as u64;
    }
    let mut sorted = Vec::with_capacity(planned.len());
    for group in planned.chunk_by(|a, b| a.update.version == b.update.version) {
        invalid += sort_version(group, &mut sorted);
    }
    (sorted, invalid)
}

fn sort_version(group: &[PlannedUpdate], sorted: &mut Vec<PlannedUpdate>) -> u64 {
    let places: BTreeMap<Node, usize> = group.iter().enumerate().map(|(at, p)| (node(p), at)).collect();
    let version = group[0].update.version;
    let inner = |planned: &PlannedUpdate| -> Vec<usize> {
        let same = planned.after.iter().filter(|dependency| dependency.version == version);
        same.filter_map(|d| places.get(&(d.target.clone(), d.key.clone())).copied()).collect()
    };
    let mut missing: Vec<usize> = vec![0; group.len()];
    let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); group.len()];
    for (at, planned) in group.iter().enumerate() {
        for first in inner(planned) {
            missing[at] += 1;
            waiters[first].push(at);
        }
    }
    let mut ready: BTreeSet<usize> = (0..group.len()).filter(|at| missing[*at] == 0).collect();
    let mut done = vec![false; group.len()];
    let mut taken = 0;
    while let Some(at) = ready.pop_first() {
        done[at] = true;
        taken += 1;
        sorted.push(group[at].clone());
        for waiter in std::mem::take(&mut waiters[at]) {
            missing[waiter] -= 1;
            if missing[waiter] == 0 {
                ready.insert(waiter);
            }
        }
    }
    if taken == group.len() {
        return 0;
    }
    break_circle(group, &done, &places, sorted)
}

/// Takes the updates of a circle in the order given, without the dependencies that close it.
fn break_circle(
    group: &[PlannedUpdate],
    done: &[bool],
    places: &BTreeMap<Node, usize>,
    sorted: &mut Vec<PlannedUpdate>,
) -> u64 {
    let mut invalid = 0;
    let mut taken = done.to_vec();
    for (at, planned) in group.iter().enumerate().filter(|(at, _)| !done[*at]) {
        let mut planned = planned.clone();
        let before = planned.after.len();
        let version = planned.update.version;
        planned.after.retain(|d| {
            let place = places.get(&(d.target.clone(), d.key.clone()));
            d.version < version || place.is_none_or(|place| taken[*place])
        });
        invalid += (before - planned.after.len()) as u64;
        taken[at] = true;
        sorted.push(planned);
    }
    tracing::error!(%invalid, "a plan waits in a circle: dependencies were dropped");
    invalid
}
