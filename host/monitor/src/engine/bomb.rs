//! Fork bombs (Bohra, 3.5.2: limits on the number, the depth and the breadth of the process hierarchy, and on the rate).

use super::{Armed, Engine};
use crate::incident::Reason;
use crate::pace::NEAR;
use crate::policy::Policy;
use crate::tree::scope::Scope;
use crate::tree::{ForkTree, Place};

impl Armed {
    /// Looks whether a new process makes a chain too long or a parent too broad.
    pub(super) fn mark(&mut self, scope: usize, tree: &ForkTree, child: Place) {
        let Policy::ForkBomb(bomb) = &self.policy else { return };
        let Some(node) = tree.get(child) else { return };
        if node.scopes >> scope & 1 == 0 {
            return;
        }
        let near = |found: u32, limit: u32| u64::from(found) * NEAR >= u64::from(limit);
        self.near |= bomb.when.depth.is_some_and(|limit| near(node.chain, limit));
        if let Some(limit) = bomb.when.depth
            && node.chain >= limit
        {
            // The chain counts those that ended, too: they are no danger.
            let found = tree.living_chain(child);
            if found >= limit {
                let reason = Reason::Depth { found: found.into(), limit: limit.into() };
                self.marked = Some((reason, child));
            }
        }
        if let Some(limit) = bomb.when.breadth
            && let Some(parent) = tree.parent(child)
            && let Some(above) = tree.get(parent)
        {
            self.near |= near(above.children, limit);
            if above.children >= limit {
                let reason = Reason::Breadth { found: above.children.into(), limit: limit.into() };
                self.marked = Some((reason, parent));
            }
        }
    }

    /// Whether so many processes live, were forked, or hang together, that a bomb would soon have reached a limit.
    pub(super) fn is_near(&self, scope: &Scope, now: u64) -> bool {
        let Policy::ForkBomb(bomb) = &self.policy else { return false };
        let near =
            |found: u64, limit: Option<u64>| limit.is_some_and(|limit| found.saturating_mul(NEAR) >= limit);
        self.near || near(scope.living(now), bomb.when.living) || near(scope.forks(now), bomb.when.forks)
    }
}

impl Engine {
    pub(super) fn judge_bomb(&mut self, at: usize, now: u64) {
        let armed = &mut self.armed[at];
        let marked = armed.marked.take();
        let Policy::ForkBomb(bomb) = &armed.policy else { return };
        let (bomb, all) = (bomb.when, self.tree.scope(at).all_living());
        let grown = armed.growth.as_mut().map_or(0, |growth| {
            growth.sample(now, all);
            growth.found(now, all)
        });
        if now < armed.quiet_until_ns || armed.following.is_some() {
            return;
        }
        let scope = self.tree.scope(at);
        let over = |found: u64, limit: Option<u64>| {
            limit.filter(|limit| found >= *limit).map(|limit| (found, limit))
        };
        if let Some((found, limit)) = over(scope.living(now), bomb.living) {
            self.repair(at, now, Reason::Living { found, limit }, None);
        } else if let Some((found, limit)) = over(scope.forks(now), bomb.forks) {
            self.repair(at, now, Reason::Forks { found, limit }, None);
        } else if let Some((reason, place)) = marked {
            self.repair(at, now, reason, Some(place));
        } else if let Some((found, limit)) = over(grown, bomb.growth) {
            self.repair(at, now, Reason::Growth { found, limit }, None);
            // What stays is dealt with: else it would be told again until the window has passed.
            let all = self.tree.scope(at).all_living();
            if let Some(growth) = &mut self.armed[at].growth {
                growth.forgive(now, all);
            }
        }
    }
}
