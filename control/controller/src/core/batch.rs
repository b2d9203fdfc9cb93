//! What the order carries, and the updates of one batch: merged, and sorted so that what must
//! come first is first.

use super::keys::KeyStep;
use super::operators::awaited;
use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use weir_base::codec::decode;
use weir_model::event::{EventBody, SignedEvent};
use weir_model::{Dependency, Key, Label, PlannedUpdate, Version};

/// One operation of a batch of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// An event to decide on.
    Event {
        /// The proposer's time, milliseconds of the Unix epoch.
        now_ms: u64,
        /// The event, with its source's signature.
        event: SignedEvent,
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
    /// A step of the group's threshold key.
    Keys {
        /// The proposer's time, milliseconds of the Unix epoch.
        now_ms: u64,
        /// The step.
        step: KeyStep,
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

/// What an update changes, without a copy.
type NodeRef<'p> = (&'p Label, &'p Key);

fn node(planned: &PlannedUpdate) -> NodeRef<'_> {
    (&planned.update.target, &planned.update.key)
}

fn node_waited(dependency: &Dependency) -> NodeRef<'_> {
    (&dependency.target, &dependency.key)
}

/// Leaves at most one update for each actuator and key, the last: except where the last waits for
/// something, and another update of the batch waits for an earlier one. There both stay, because each
/// might wait for the other else.
pub(crate) fn merge(planned: Vec<PlannedUpdate>) -> Vec<PlannedUpdate> {
    let mut last: HashMap<NodeRef<'_>, usize> = HashMap::with_capacity(planned.len());
    for (at, planned) in planned.iter().enumerate() {
        last.insert(node(planned), at);
    }
    if last.len() == planned.len() {
        return planned;
    }
    let waited: HashSet<(NodeRef<'_>, Version)> =
        planned.iter().flat_map(|p| p.after.iter().map(|d| (node_waited(d), d.version))).collect();
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
    let mut rest = planned.into_iter().peekable();
    while let Some(first) = rest.next() {
        let version = first.update.version;
        let mut group = vec![first];
        while let Some(next) = rest.next_if(|next| next.update.version == version) {
            group.push(next);
        }
        invalid += sort_version(group, &mut sorted);
    }
    (sorted, invalid)
}

/// For each update of a version, which of the others it waits for.
fn waits(group: &[PlannedUpdate]) -> Vec<Vec<usize>> {
    let places: HashMap<NodeRef<'_>, usize> =
        group.iter().enumerate().map(|(at, planned)| (node(planned), at)).collect();
    let inner = |planned: &PlannedUpdate| {
        let version = planned.update.version;
        let same = planned.after.iter().filter(|dependency| dependency.version == version);
        same.filter_map(|dependency| places.get(&node_waited(dependency)).copied()).collect()
    };
    group.iter().map(inner).collect()
}

fn sort_version(group: Vec<PlannedUpdate>, sorted: &mut Vec<PlannedUpdate>) -> u64 {
    let waits = waits(&group);
    let mut missing: Vec<usize> = waits.iter().map(Vec::len).collect();
    let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); group.len()];
    for (at, firsts) in waits.iter().enumerate() {
        for first in firsts {
            waiters[*first].push(at);
        }
    }
    let mut ready: BTreeSet<usize> = (0..group.len()).filter(|at| missing[*at] == 0).collect();
    let mut order = Vec::with_capacity(group.len());
    while let Some(at) = ready.pop_first() {
        order.push(at);
        for waiter in std::mem::take(&mut waiters[at]) {
            missing[waiter] -= 1;
            if missing[waiter] == 0 {
                ready.insert(waiter);
            }
        }
    }
    let mut group: Vec<Option<PlannedUpdate>> = group.into_iter().map(Some).collect();
    sorted.extend(order.into_iter().filter_map(|at| group[at].take()));
    break_circle(group, &waits, sorted)
}

/// Takes the updates of a circle, those that are left, in the order given, without the dependencies that close it.
fn break_circle(
    group: Vec<Option<PlannedUpdate>>,
    waits: &[Vec<usize>],
    sorted: &mut Vec<PlannedUpdate>,
) -> u64 {
    let mut taken: Vec<bool> = group.iter().map(Option::is_none).collect();
    if taken.iter().all(|taken| *taken) {
        return 0;
    }
    let nodes: Vec<Option<(Label, Key)>> = group
        .iter()
        .map(|planned| planned.as_ref().map(|p| (p.update.target.clone(), p.update.key.clone())))
        .collect();
    let (mut invalid, mut of) = (0, Version::ZERO);
    for (at, planned) in group.into_iter().enumerate() {
        let Some(mut planned) = planned else { continue };
        let before = planned.after.len();
        let version = planned.update.version;
        of = version;
        let open: Vec<&(Label, Key)> = waits[at]
            .iter()
            .filter(|first| !taken[**first])
            .filter_map(|first| nodes[*first].as_ref())
            .collect();
        planned.after.retain(|d| {
            d.version < version || !open.iter().any(|(target, key)| (target, key) == node_waited(d))
        });
        invalid += (before - planned.after.len()) as u64;
        taken[at] = true;
        sorted.push(planned);
    }
    tracing::error!(version = %of, dropped = invalid, "dependency cycle in a plan: dropped the dependencies that close it");
    invalid
}

/// Whether a batch can be decided on and says no time after `latest_ms`: what a replica that believes no proposer would have
/// ordered. `is_right` says whether a correction, its wall time and its ordered time, is what clocks say; `awaits_operators`, whether
/// settings name operators and the order does not yet: then nothing that is an operator's to order comes before them.
pub fn is_reasonable(
    bytes: &[u8],
    latest_ms: u64,
    is_right: impl Fn(u64, u64) -> bool,
    awaits_operators: bool,
) -> bool {
    let reasonable = |item: &Item| match item {
        Item::Event { now_ms, event } => {
            let right = match event.event.body {
                EventBody::Clock { wall_ms } => is_right(wall_ms, *now_ms),
                _ => true,
            };
            right && *now_ms <= latest_ms && !(awaits_operators && awaited(&event.event.body))
        }
        Item::Repair { now_ms, .. } | Item::Operations { now_ms, .. } | Item::Keys { now_ms, .. } => {
            *now_ms <= latest_ms
        }
    };
    decode_batch(bytes).is_ok_and(|items| items.iter().all(reasonable))
}
