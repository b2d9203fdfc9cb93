//! Rings: updates that wait for each other. No plan has one, but what is decided later can close one over what still waits,
//! most of all when keys of several actuators take each other's claims.
//!
//! Now and then the updates that wait are looked through, with all that they wait for. What cannot go though every
//! actuator were there and obeyed is a ring, or waits for one. A ring is told (a line in the log, a counter, the last ones
//! in [`Scheduler::rings`]), and cut at the wait whose breach costs least: see [`edges::CUTS`].
//!
//! The same look finds what could go since an actuator went away, whose updates are not waited for then.

use super::slot::Slot;
use super::{Mode, Node, Scheduler};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use weir_model::{Dependency, Key, Label, Version, edges};

/// So long after a look comes the next, milliseconds, and longer the more was looked at.
const LOOK_MS: u64 = 500;
/// So many updates more are looked at for one more [`LOOK_MS`] without a look.
const NODES_PER_LOOK_MS: u64 = 1_000;
/// Most updates looked at at once.
const NODES_MAX: usize = 65_536;
/// Most waits of one update looked at.
const WAITS_MAX: usize = 1_024;
/// Most rings cut in one look.
const RINGS_MAX: usize = 64;
/// Most rings remembered for people to see.
const TOLD_MAX: usize = 8;

/// Updates that waited for each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ring {
    /// Each waits for the next, the last for the first.
    pub waits: Vec<Wait>,
    /// Which of them does not wait any more; none when all of them must.
    pub cut: Option<usize>,
}

/// One update of a ring and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The actuator.
    pub target: Label,
    /// The key.
    pub key: Key,
    /// The version.
    pub version: Version,
    /// What it waits for.
    pub after: Dependency,
}

/// A wait that does not count any more.
pub(super) type Cut = (Node, Version, Node);

/// The ways in which a node could go on: for each, what it waits for.
type Ways = Vec<(Version, Vec<Dependency>)>;

/// What waits, with its ways. What is not in it is taken to go by itself.
type Graph = BTreeMap<Node, Ways>;

#[derive(Debug, Default)]
pub(super) struct Rings {
    next_ms: u64,
    /// Where the next look begins, when the last one did not see all.
    cursor: Option<Node>,
    pub(super) cut: BTreeSet<Cut>,
    told: Vec<Ring>,
}

impl Scheduler {
    /// The last rings that were found, newest last.
    pub fn rings(&self) -> &[Ring] {
        &self.rings.told
    }

    /// See the module.
    pub(super) fn look_for_rings(&mut self) {
        if self.settings.mode != Mode::Dependent || !self.leads || self.now_ms < self.rings.next_ms {
            return;
        }
        self.forget_cuts();
        let (waiters, looked) = self.some_waiters();
        let free = waiters.iter().filter(|node| self.candidate(node).is_ok()).cloned();
        let free: Vec<Node> = free.collect();
        self.woken.extend(free);
        let mut graph = self.graph(waiters);
        let looked = looked.max(graph.len()) as u64;
        self.rings.next_ms = self.now_ms + LOOK_MS * (1 + looked / NODES_PER_LOOK_MS);
        for _ in 0..RINGS_MAX {
            keep_stuck(&mut graph);
            let Some(waits) = ring_of(&graph) else { return };
            let cut = cheapest(&waits);
            for way in cut.and_then(|at| graph.get_mut(&waiter(&waits[at]))).into_iter().flatten() {
                if let Some(wait) = cut.map(|at| &waits[at]).filter(|wait| wait.version == way.0) {
                    way.1.retain(|dependency| node_of(dependency) != node_of(&wait.after));
                }
            }
            if cut.is_none() {
                // It stays: the rest of the graph is looked at without it.
                graph.remove(&waiter(&waits[0]));
            }
            self.tell(Ring { waits, cut });
        }
    }

    fn tell(&mut self, ring: Ring) {
        let text = |wait: &Wait| format!("{} at {} ({})", wait.key, wait.target, wait.after.reason);
        let waits: Vec<String> = ring.waits.iter().map(text).collect();
        match ring.cut.map(|at| &ring.waits[at]) {
            Some(wait) => {
                tracing::warn!(ring = waits.join(" -> "), cut = %wait.key, at = %wait.target, "updates wait for each other: one goes first");
                self.counters.rings_cut += 1;
                self.rings.cut.insert((waiter(wait), wait.version, node_of(&wait.after)));
                self.woken.insert(waiter(wait));
            }
            None if self.rings.told.contains(&ring) => return,
            None => {
                tracing::error!(
                    ring = waits.join(" -> "),
                    "updates wait for each other, and none may go first"
                );
                self.counters.rings_kept += 1;
            }
        }
        self.rings.told.push(ring);
        if self.rings.told.len() > TOLD_MAX {
            self.rings.told.remove(0);
        }
    }

    /// Cuts of what is not held any more.
    fn forget_cuts(&mut self) {
        let targets = &self.targets;
        self.rings.cut.retain(|((label, key), version, _)| {
            let slot = targets.get(label).and_then(|target| target.slots.get(key));
            slot.is_some_and(|slot| {
                slot.acked < Some(*version) && slot.held.iter().any(|held| held.version() == *version)
            })
        });
    }

    /// Some of those who wait, from where the last look ended, and how many waits were gone through for them.
    fn some_waiters(&mut self) -> (BTreeSet<Node>, usize) {
        let from = self.rings.cursor.take().map_or(Bound::Unbounded, Bound::Excluded);
        let (mut found, mut looked) = (BTreeSet::new(), 0);
        for (node, waiters) in self.waiting.range((from, Bound::Unbounded)) {
            looked += waiters.len();
            found.extend(waiters.iter().cloned());
            if looked >= NODES_MAX {
                self.rings.cursor = Some(node.clone());
                break;
            }
        }
        (found, looked)
    }

    /// What waits and all that it waits for, over any number of steps.
    fn graph(&self, waiters: BTreeSet<Node>) -> Graph {
        let mut graph = Graph::new();
        let mut stack: Vec<Node> = Vec::new();
        for node in waiters {
            stack.push(node);
            while let Some(node) = stack.pop() {
                if graph.len() >= NODES_MAX {
                    return graph;
                }
                if graph.contains_key(&node) {
                    continue;
                }
                let Some(ways) = self.ways(&node) else { continue };
                stack.extend(ways.iter().flat_map(|(_, after)| after.iter().map(node_of)));
                graph.insert(node, ways);
            }
        }
        graph
    }

    /// How a node could go on; nothing when it does by itself, or an answer is awaited.
    fn ways(&self, node: &Node) -> Option<Ways> {
        let target = self.targets.get(&node.0)?;
        let slot = target.slots.get(&node.1).filter(|slot| slot.sent.is_none())?;
        let refused = slot.refused.as_ref().map(|(version, ..)| *version);
        let unacked = slot.held.iter().filter(|held| Some(held.version()) > slot.acked);
        let ways: Ways = unacked
            .map(|held| {
                // What is left out is taken to come: then a ring by it is not found.
                let mut after: Vec<Dependency> = self.missing(held).take(WAITS_MAX).collect();
                if refused == Some(held.version()) {
                    let named = self.refused_for(node, slot);
                    after.extend(named.filter(|dependency| !self.is_cut(held, dependency)));
                }
                (held.version(), after)
            })
            .collect();
        let stands = !ways.is_empty() && ways.iter().all(|(_, after)| !after.is_empty());
        stands.then_some(ways)
    }

    /// The keys that a refusal named, as what it waits for.
    fn refused_for<'a>(&'a self, node: &'a Node, slot: &'a Slot) -> impl Iterator<Item = Dependency> + 'a {
        let target = self.targets.get(&node.0);
        let named =
            target.into_iter().flat_map(|target| target.named.iter().map(move |named| (target, named)));
        named.filter(|(_, (_, refused))| refused.contains(&node.1)).filter_map(|(target, (key, _))| {
            let other = target.slots.get(key)?;
            let version = other.desired().version();
            let lets_go = other.acked < Some(version) && version <= slot.desired().version();
            let (target, key, reason) = (node.0.clone(), key.clone(), edges::LETS_GO);
            lets_go.then_some(Dependency { target, key, version, reason })
        })
    }
}

fn node_of(dependency: &Dependency) -> Node {
    (dependency.target.clone(), dependency.key.clone())
}

fn waiter(wait: &Wait) -> Node {
    (wait.target.clone(), wait.key.clone())
}

/// Leaves what cannot go though all else did.
fn keep_stuck(graph: &mut Graph) {
    loop {
        let goes = |ways: &Ways| {
            ways.iter().any(|(_, after)| after.iter().all(|one| !graph.contains_key(&node_of(one))))
        };
        let going: Vec<Node> =
            graph.iter().filter(|(_, ways)| goes(ways)).map(|(node, _)| node.clone()).collect();
        if going.is_empty() {
            return;
        }
        going.iter().for_each(|node| drop(graph.remove(node)));
    }
}

/// A ring among what is stuck: every stuck node waits for another one.
fn ring_of(graph: &Graph) -> Option<Vec<Wait>> {
    let mut walk: Vec<Wait> = Vec::new();
    let mut node = graph.keys().next()?.clone();
    loop {
        if let Some(at) = walk.iter().position(|wait| waiter(wait) == node) {
            return Some(walk.split_off(at));
        }
        let (version, after) = graph.get(&node)?.last()?;
        let next = after.iter().find(|one| graph.contains_key(&node_of(one)))?;
        walk.push(Wait { target: node.0, key: node.1, version: *version, after: next.clone() });
        node = node_of(next);
    }
}

/// Where a ring is cut.
fn cheapest(waits: &[Wait]) -> Option<usize> {
    edges::CUTS.iter().find_map(|reason| waits.iter().position(|wait| wait.after.reason == *reason))
}
