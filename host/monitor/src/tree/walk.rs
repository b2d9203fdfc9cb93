//! Walks over the tree: who is below whom, what a tree weighs, and who is behind it.

use super::{CHAIN_MAX, ForkTree, NONE, Node, Place, ROOT};

/// Whether a node may be the culprit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is protected, and so is what is above it.
    Never,
    /// If nothing below it is.
    IfNoneBelow,
    /// It is.
    AtOnce,
}

impl ForkTree {
    /// The node after `at` when the tree below `top` is walked children first.
    pub(super) fn after(&self, at: u32, top: u32) -> Option<u32> {
        if at == top {
            return None;
        }
        let Node { next, parent, .. } = *self.node(at);
        Some(if next == NONE { parent } else { self.lowest(next) })
    }

    pub(super) fn lowest(&self, mut at: u32) -> u32 {
        while self.node(at).first != NONE {
            at = self.node(at).first;
        }
        at
    }

    /// Calls `each` for every node below `place` and for it, children first.
    pub fn below(&self, place: Place, mut each: impl FnMut(Place, &Node)) {
        if self.get(place).is_none() {
            return;
        }
        let mut at = Some(self.lowest(place.at));
        while let Some(here) = at {
            let node = self.node(here);
            each(Place { at: here, serial: node.serial }, node);
            at = self.after(here, place.at);
        }
    }

    /// Whether `place` is `other` or below it.
    pub fn is_below(&self, place: Place, other: Place) -> bool {
        let mut at = place.at;
        while at != NONE && at != ROOT {
            if at == other.at {
                return true;
            }
            at = self.node(at).parent;
        }
        false
    }

    /// Finds who is behind a mass of processes: the paper's culprit, whose whole tree is to go.
    ///
    /// `weight` says how much a process, or a joint, counts by itself. From the root the walk goes down into the child that holds at
    /// least half of all weight, as long as there is one. `choose` says for each node on this way whether it is the
    /// culprit at once, or if nothing below it is, or never; what is never chosen protects what is above it too.
    pub fn culprit(
        &mut self,
        mut weight: impl FnMut(Place, &Node) -> u32,
        mut choose: impl FnMut(&Node) -> Choice,
    ) -> Option<(Place, u64)> {
        let all = self.weigh(&mut weight);
        if all == 0 {
            return None;
        }
        let half = all.div_ceil(2);
        let (mut found, mut here) = (None, ROOT);
        while let Some(next) = self.heavy_child(here, half) {
            match choose(self.node(next)) {
                Choice::Never => found = None,
                Choice::IfNoneBelow => found = Some(next),
                Choice::AtOnce => {
                    found = Some(next);
                    break;
                }
            }
            here = next;
        }
        let at = found?;
        Some((Place { at, serial: self.node(at).serial }, u64::from(self.weights[at as usize])))
    }

    /// Adds up the weights of each node's tree; returns the sum of all.
    fn weigh(&mut self, weight: &mut impl FnMut(Place, &Node) -> u32) -> u64 {
        self.weights.fill(0);
        let mut all = 0_u64;
        let mut at = Some(self.lowest(ROOT));
        while let Some(here) = at {
            let node = self.nodes[here as usize];
            let place = Place { at: here, serial: node.serial };
            let own = if here == ROOT { 0 } else { weight(place, &node) };
            all += u64::from(own);
            let sum = self.weights[here as usize].saturating_add(own);
            self.weights[here as usize] = sum;
            if here != ROOT {
                let above = &mut self.weights[node.parent as usize];
                *above = above.saturating_add(sum);
            }
            at = self.after(here, ROOT);
        }
        all
    }

    fn heavy_child(&self, at: u32, half: u64) -> Option<u32> {
        let mut child = self.node(at).first;
        while child != NONE {
            if u64::from(self.weights[child as usize]) >= half {
                return Some(child);
            }
            child = self.node(child).next;
        }
        None
    }

    /// Calls `each` for every living process.
    pub fn for_each_living(&self, mut each: impl FnMut(Place, &Node)) {
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            if node.alive {
                each(Place { at: at as u32, serial: node.serial }, node);
            }
        }
    }

    /// The first of the living processes that lead to `place`, each forked soon after the one before. It is not above one that
    /// may not be blamed.
    pub fn chain_start(&self, place: Place, may_be_blamed: impl Fn(&Node) -> bool) -> Place {
        let mut start = place;
        for _ in 0..CHAIN_MAX {
            match self.parent(start) {
                Some(above) if self.is_link(above.at, start.at) && may_be_blamed(self.node(above.at)) => {
                    start = above;
                }
                _ => break,
            }
        }
        start
    }

    /// The heaviest of a node's branches whose first process, or joint, fits, by the weights of the last [`ForkTree::culprit`].
    pub fn heaviest_branch(&self, place: Place, fits: impl Fn(&Node) -> bool) -> Option<(Place, u64)> {
        self.get(place)?;
        let mut heaviest: Option<(Place, u64)> = None;
        let mut child = self.node(place.at).first;
        while child != NONE {
            let (node, weight) = (self.node(child), u64::from(self.weights[child as usize]));
            if weight > heaviest.map_or(0, |(_, weight)| weight) && fits(node) {
                heaviest = Some((Place { at: child, serial: node.serial }, weight));
            }
            child = node.next;
        }
        heaviest
    }

    /// Calls `each` for the nodes right below one.
    pub fn children(&self, place: Place, mut each: impl FnMut(&Node)) {
        if self.get(place).is_none() {
            return;
        }
        let mut child = self.node(place.at).first;
        while child != NONE {
            each(self.node(child));
            child = self.node(child).next;
        }
    }
}
