//! The fork tree: who made whom, kept beside the target from the kernel's events (Bohra, 3.4.2: dependency graphs, 3.5.2:
//! the shadow process hierarchy; row O).
//!
//! A process that ended stays as a joint while two or more of its branches live, so that a bomb whose parents die still
//! hangs together; with fewer it is taken out, so there are never more joints than living processes and repairs under way, each of which
//! holds its culprit's. A child stays below the process that forked it, whoever adopts it.
//!
//! Invariants
//! - All memory is made by [`ForkTree::new`]; no event allocates. A process beyond the capacity is not kept, and counted;
//!   its children then hang below the root.
//! - An event costs a number of steps that does not depend on the size of the tree. Finding a culprit visits each node
//!   once, and happens only after an alarm.
//!
//! [`scope`] counts, for each policy, the living processes that were born lately; [`growth`] how many more there are than there were;
//! [`walk`] finds culprits.

pub mod growth;
mod index;
pub mod scope;
mod walk;

pub use walk::Choice;

use crate::kernel::{Comm, Event, What};
use crate::resident::present;
use index::Index;
use scope::{SCOPES_MAX, Scope};

/// Most processes and joints.
pub const NODES_MAX: usize = 1 << 16;
/// A process is a link of a young chain for so long after its birth, ns.
pub const YOUNG_NS: u64 = 10_000_000_000;
/// What a process has forked counts half after so long, ns: a burst weighs more than a long life.
const FORKS_HALVED_NS: u64 = 10_000_000_000;
/// Longest chain that is followed upwards.
const CHAIN_MAX: u32 = 4096;
/// A process that was sent SIGKILL.
pub const KILLED: u8 = 1;
/// A process that was sent SIGSTOP.
pub const STOPPED: u8 = 2;
/// A process that was doomed ([`crate::kernel::Kernel::doom`]).
pub const DOOMED: u8 = 4;
/// No node.
const NONE: u32 = u32::MAX;
/// The node above all others; it stands for no process.
const ROOT: u32 = 0;

/// A process, or a joint.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The process.
    pub process: u32,
    /// Its program.
    pub comm: Comm,
    /// Its user; that of whoever forked it.
    pub user: u32,
    /// Its cgroup, 0 if it is not known.
    pub cgroup: u64,
    /// When it was forked, ns; 0 if it was there before the monitor.
    pub born_ns: u64,
    /// Whether it lives.
    pub alive: bool,
    /// Living children.
    pub children: u32,
    /// Length of the chain of young processes that ends in it.
    pub chain: u32,
    /// Its forks, and those of processes below it that have ended; halved each [`FORKS_HALVED_NS`].
    pub forks: u32,
    /// Of these, the forks of others.
    pub inherited: u32,
    /// Signals that it was sent, one bit each: [`KILLED`], [`STOPPED`], [`DOOMED`].
    pub signals: u8,
    /// When it forked last, ns; 0 if never.
    pub forked_ns: u64,
    halved_ns: u64,
    /// The scopes that it belongs to, one bit each.
    pub scopes: u16,
    /// Different for every process that the tree ever held.
    pub serial: u64,
    /// So many repairs follow what is below it: it stays in the tree although it may have ended.
    followed: u8,
    parent: u32,
    first: u32,
    next: u32,
    before: u32,
}

const EMPTY: Node = Node {
    process: 0,
    comm: [0; 16],
    user: 0,
    cgroup: 0,
    born_ns: 0,
    alive: false,
    children: 0,
    chain: 0,
    forks: 0,
    inherited: 0,
    signals: 0,
    forked_ns: 0,
    halved_ns: 0,
    scopes: 0,
    serial: 0,
    followed: 0,
    parent: NONE,
    first: NONE,
    next: NONE,
    before: NONE,
};

impl Node {
    fn forked(&mut self, now_ns: u64) {
        let halvings = now_ns.saturating_sub(self.halved_ns) / FORKS_HALVED_NS;
        if halvings > 0 {
            let halve =
                |number: u32| number.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0);
            (self.forks, self.inherited) = (halve(self.forks), halve(self.inherited));
            self.halved_ns = now_ns;
        }
        self.forks = self.forks.saturating_add(1);
        self.forked_ns = now_ns;
    }

    fn inherit(&mut self, from: &Node) {
        if from.forks > 0 {
            self.forks = self.forks.saturating_add(from.forks);
            self.inherited = self.inherited.saturating_add(from.forks);
            self.forked_ns = self.forked_ns.max(from.forked_ns);
            self.halved_ns = self.halved_ns.max(from.halved_ns);
        }
    }
}

/// A node of one tree: stale once its process and all descendants ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of the tree's nodes: less than its capacity.
    pub at: u32,
    serial: u64,
}

/// What the tree has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processes forked.
    pub forks: u64,
    /// Processes that ended.
    pub exits: u64,
    /// Programs started.
    pub execs: u64,
    /// Victims of the out-of-memory killer.
    pub victims: u64,
    /// Processes that live.
    pub living: u64,
    /// Processes and joints.
    pub nodes: u64,
    /// Processes that found no room.
    pub refused: u64,
}

/// The tree.
#[derive(Debug)]
pub struct ForkTree {
    nodes: Box<[Node]>,
    /// First free node; free nodes are linked by `next`.
    free: u32,
    index: Index,
    weights: Box<[u32]>,
    scopes: [Scope; SCOPES_MAX],
    serial: u64,
    /// What it has counted.
    pub counters: Counters,
}

impl ForkTree {
    /// A tree for `capacity` processes and joints, from 2 to [`NODES_MAX`].
    pub fn new(capacity: usize) -> ForkTree {
        let capacity = capacity.clamp(2, NODES_MAX);
        let mut nodes = vec![EMPTY; capacity].into_boxed_slice();
        for (at, node) in nodes.iter_mut().enumerate().skip(1) {
            node.next = if at + 1 < capacity { at as u32 + 1 } else { NONE };
        }
        ForkTree {
            nodes,
            free: 1,
            index: Index::new(capacity),
            weights: present(vec![0; capacity]).into_boxed_slice(),
            scopes: std::array::from_fn(|_| Scope::default()),
            serial: 0,
            counters: Counters::default(),
        }
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn node_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// Defines a scope. It counts processes that are forked from now on.
    pub fn define(&mut self, scope: usize, to: Scope) {
        self.scopes[scope] = to;
        for at in 1..self.nodes.len() as u32 {
            if self.node(at).alive {
                self.rescope(at);
            }
        }
    }

    /// A scope, to be read.
    pub fn scope(&self, scope: usize) -> &Scope {
        &self.scopes[scope]
    }

    /// Replaces the cgroups of a scope; living processes are sorted anew.
    pub fn redefine(&mut self, scope: usize, cgroups: &[u64]) {
        if self.scopes[scope].set_cgroups(cgroups) {
            for at in 1..self.nodes.len() as u32 {
                if self.node(at).alive {
                    self.rescope(at);
                }
            }
        }
    }

    fn rescope(&mut self, at: u32) {
        let node = *self.node(at);
        let mut now = 0;
        for (bit, scope) in self.scopes.iter().enumerate() {
            if scope.holds(node.cgroup) {
                now |= 1 << bit;
            }
        }
        for (bit, scope) in self.scopes.iter_mut().enumerate() {
            match (node.scopes >> bit & 1, now >> bit & 1) {
                (0, 1) => scope.born(node.born_ns),
                (1, 0) => scope.gone(node.born_ns),
                _ => {}
            }
        }
        self.node_mut(at).scopes = now;
    }

    /// Where a living process is.
    pub fn find(&self, process: u32) -> Option<Place> {
        let at = self.index.get(process)?;
        Some(Place { at, serial: self.node(at).serial })
    }

    /// A node, as long as it is in the tree.
    pub fn get(&self, place: Place) -> Option<&Node> {
        let node = self.nodes.get(place.at as usize)?;
        (place.at != ROOT && node.serial == place.serial).then_some(node)
    }

    /// The process that forked it, or a joint.
    pub fn parent(&self, place: Place) -> Option<Place> {
        let at = self.get(place)?.parent;
        (at != ROOT && at != NONE).then(|| Place { at, serial: self.node(at).serial })
    }

    /// Adds a process that was there before the monitor, or that was missed.
    pub fn seed(&mut self, process: u32, parent: u32, comm: Comm, cgroup: u64, born_ns: u64) {
        if self.index.get(process).is_none() {
            self.add(process, parent, comm, 0, cgroup, born_ns);
        }
    }

    /// Applies an event. For a fork it returns the child's place, if there was room for it.
    pub fn apply(&mut self, event: &Event) -> Option<Place> {
        match event.what {
            What::Fork { parent } => {
                self.counters.forks += 1;
                // An exit that was missed must not leave two processes of one number.
                self.end(event.process);
                let mut cgroup = event.cgroup;
                if let Some(at) = self.index.get(parent) {
                    self.node_mut(at).forked(event.time_ns);
                    if cgroup == 0 {
                        cgroup = self.node(at).cgroup;
                    } else {
                        self.moved(at, cgroup);
                    }
                }
                self.add(event.process, parent, event.comm, event.user, cgroup, event.time_ns)
            }
            What::Exec => {
                self.counters.execs += 1;
                let at = self.index.get(event.process)?;
                // The kernel has pardoned it.
                self.node_mut(at).signals &= !DOOMED;
                if event.comm[0] != 0 {
                    self.node_mut(at).comm = event.comm;
                }
                if event.cgroup != 0 {
                    self.moved(at, event.cgroup);
                }
                None
            }
            What::Exit { .. } => {
                self.counters.exits += 1;
                self.end(event.process);
                None
            }
            What::Victim => {
                self.counters.victims += 1;
                None
            }
        }
    }

    /// Says which program a process is.
    pub fn rename(&mut self, process: u32, comm: Comm) {
        if let Some(at) = self.index.get(process) {
            self.node_mut(at).comm = comm;
        }
    }

    /// Says in which cgroup a process is.
    pub fn place_in(&mut self, process: u32, cgroup: u64) {
        if let Some(at) = self.index.get(process) {
            self.moved(at, cgroup);
        }
    }

    fn moved(&mut self, at: u32, cgroup: u64) {
        if self.node(at).cgroup != cgroup {
            self.node_mut(at).cgroup = cgroup;
            self.rescope(at);
        }
    }

    fn add(
        &mut self,
        process: u32,
        parent: u32,
        comm: Comm,
        user: u32,
        cgroup: u64,
        born_ns: u64,
    ) -> Option<Place> {
        let at = self.free;
        if at == NONE || !self.index.put(process, at) {
            self.counters.refused += 1;
            return None;
        }
        self.free = self.node(at).next;
        self.serial += 1;
        let above = self.index.get(parent).filter(|above| *above != at).unwrap_or(ROOT);
        let over = *self.node(above);
        let young = born_ns != 0 && over.born_ns != 0 && born_ns.saturating_sub(over.born_ns) < YOUNG_NS;
        let comm = if comm[0] == 0 { over.comm } else { comm };
        let cgroup = if cgroup == 0 { over.cgroup } else { cgroup };
        let chain = if young { over.chain.saturating_add(1) } else { u32::from(born_ns != 0) };
        let serial = self.serial;
        *self.node_mut(at) =
            Node { process, comm, user, cgroup, born_ns, alive: true, chain, serial, ..EMPTY };
        self.hang(at, above);
        self.node_mut(above).children += 1;
        self.counters.living += 1;
        self.counters.nodes += 1;
        self.rescope(at);
        Some(Place { at, serial })
    }

    fn hang(&mut self, at: u32, above: u32) {
        let first = self.node(above).first;
        let node = self.node_mut(at);
        (node.parent, node.next, node.before) = (above, first, NONE);
        if first != NONE {
            self.node_mut(first).before = at;
        }
        self.node_mut(above).first = at;
    }

    fn unhang(&mut self, at: u32) {
        let Node { parent, next, before, .. } = *self.node(at);
        if before == NONE {
            self.node_mut(parent).first = next;
        } else {
            self.node_mut(before).next = next;
        }
        if next != NONE {
            self.node_mut(next).before = before;
        }
    }

    /// Ends a process.
    fn end(&mut self, process: u32) {
        let Some(at) = self.index.remove(process) else { return };
        let node = *self.node(at);
        debug_assert!(node.alive, "only living processes are indexed");
        for (bit, scope) in self.scopes.iter_mut().enumerate() {
            if node.scopes >> bit & 1 == 1 {
                scope.gone(node.born_ns);
            }
        }
        self.node_mut(at).alive = false;
        self.node_mut(node.parent).children -= 1;
        self.counters.living -= 1;
        self.tidy(at);
    }

    /// Takes out a joint that joins nothing, and then perhaps the one above it.
    fn tidy(&mut self, mut at: u32) {
        while at != ROOT && !self.node(at).alive && self.node(at).followed == 0 {
            let node = *self.node(at);
            let Node { parent, first, .. } = node;
            // What it forked is not forgotten with it: it goes to the branch's last survivor, or else to who is above.
            if first == NONE {
                self.node_mut(parent).inherit(&node);
                self.unhang(at);
                self.release(at);
                at = parent;
            } else if self.node(first).next == NONE {
                self.node_mut(first).inherit(&node);
                self.unhang(at);
                self.hang(first, parent);
                let living = u32::from(self.node(first).alive);
                self.node_mut(parent).children += living;
                self.release(at);
                return;
            } else {
                return;
            }
        }
    }

    fn release(&mut self, at: u32) {
        self.nodes[at as usize] = Node { next: self.free, ..EMPTY };
        self.free = at;
        self.counters.nodes -= 1;
    }

    /// Whether a node was forked so soon after the one above it that both are links of one chain.
    fn is_link(&self, above: u32, at: u32) -> bool {
        let (over, node) = (self.node(above), self.node(at));
        above != ROOT
            && over.alive
            && over.born_ns != 0
            && node.born_ns.saturating_sub(over.born_ns) < YOUNG_NS
    }

    /// Living processes above and including this one, each forked soon after the one before.
    pub fn living_chain(&self, place: Place) -> u32 {
        let (mut length, mut at) = (0, place.at);
        if at == ROOT || !self.node(at).alive || self.node(at).born_ns == 0 {
            return 0;
        }
        while length < CHAIN_MAX {
            length += 1;
            let above = self.node(at).parent;
            if above == NONE || !self.is_link(above, at) {
                break;
            }
            at = above;
        }
        length
    }

    /// What was forked up to now counts no more against a tree, nor in a policy's scope: it was dealt with.
    pub fn forgive(&mut self, policy: usize, place: Place) {
        if let Some(scope) = self.scopes.get_mut(policy) {
            scope.forgive();
        }
        if self.get(place).is_none() {
            return;
        }
        let mut at = Some(self.lowest(place.at));
        while let Some(here) = at {
            self.node_mut(here).forks = 0;
            at = self.after(here, place.at);
        }
    }

    /// Keeps a node in the tree, as a joint if its process ends, until it is let go as often: else whoever is killed first would take
    /// its node along, and what is still below it, or is born there yet, would be nobody's.
    pub fn hold(&mut self, place: Place) {
        if self.get(place).is_some() {
            let followed = &mut self.node_mut(place.at).followed;
            *followed = followed.saturating_add(1);
        }
    }

    /// Takes back a [`ForkTree::hold`].
    pub fn let_go(&mut self, place: Place) {
        if self.get(place).is_some() {
            let followed = &mut self.node_mut(place.at).followed;
            *followed = followed.saturating_sub(1);
            self.tidy(place.at);
        }
    }

    /// Notes that a process was sent a signal, or takes that back.
    pub fn mark(&mut self, place: Place, signal: u8, sent: bool) {
        if self.get(place).is_some() {
            let signals = &mut self.node_mut(place.at).signals;
            *signals = if sent { *signals | signal } else { *signals & !signal };
        }
    }

    /// Takes back for every living process that it was sent a signal; calls `each` for those that had been.
    pub fn unmark_all(&mut self, signal: u8, mut each: impl FnMut(&Node)) {
        for node in self.nodes.iter_mut().skip(1).filter(|node| node.alive && node.signals & signal != 0) {
            each(node);
            node.signals &= !signal;
        }
    }

    /// Compares with what really lives and mends: `lives` is asked for every process of the tree.
    pub fn retain(&mut self, mut lives: impl FnMut(&Node) -> bool) {
        for at in 1..self.nodes.len() {
            let node = self.nodes[at];
            if node.alive && !lives(&node) {
                self.end(node.process);
            }
        }
    }
}

#[cfg(test)]
mod tests;
