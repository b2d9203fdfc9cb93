//! One flow's change: what differs, where packets go before and after, and what may happen to them
//! meanwhile.

use super::PlanError;
use super::walk::{Fate, Walk, walk};
use crate::network::{Link, Network, Switch};
use crate::policy::{Action, Flow, FlowPolicy};
use std::collections::{BTreeMap, BTreeSet};

/// One flow's change.
pub(super) struct FlowChange<'c> {
    pub(super) network: &'c Network,
    pub(super) flow: Flow,
    pub(super) old: &'c FlowPolicy,
    pub(super) new: &'c FlowPolicy,
    /// The version that the old rules are in force under.
    pub(super) version: u16,
    /// Switches that get a new rule.
    pub(super) changed: BTreeSet<Switch>,
    /// Switches that lose their rule.
    pub(super) removed: BTreeSet<Switch>,
    /// Every source of either policy, at its higher rate, kbit/s.
    pub(super) sources: BTreeMap<Switch, u64>,
    pub(super) old_walks: BTreeMap<Switch, Walk>,
    pub(super) new_walks: BTreeMap<Switch, Walk>,
}

impl<'c> FlowChange<'c> {
    /// Compares the two policies.
    ///
    /// # Errors
    /// [`PlanError`] when the new policy itself is faulty.
    pub(super) fn new(
        network: &'c Network,
        flow: Flow,
        old: &'c FlowPolicy,
        new: &'c FlowPolicy,
        version: u16,
    ) -> Result<FlowChange<'c>, PlanError> {
        check_new(network, flow, new)?;
        let differs = |switch: &Switch| old.rules.get(switch) != new.rules.get(switch);
        let changed = new.rules.keys().copied().filter(differs).collect();
        let removed = old.rules.keys().copied().filter(|switch| !new.rules.contains_key(switch)).collect();
        let mut sources = old.sources.clone();
        for (source, rate) in &new.sources {
            let known = sources.entry(*source).or_default();
            *known = (*known).max(*rate);
        }
        let walks = |policy: &FlowPolicy| {
            let from =
                |source: &Switch| (*source, walk(network, *source, |at| policy.rules.get(&at).copied()));
            sources.keys().map(from).collect()
        };
        let (old_walks, new_walks) = (walks(old), walks(new));
        let change =
            FlowChange { network, flow, old, new, version, changed, removed, sources, old_walks, new_walks };
        change.check_end()?;
        Ok(change)
    }

    /// Whether nothing is to be done.
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    /// The walk of a source when these switches have their new rule and all others their old one.
    pub(super) fn mixed(&self, source: Switch, is_new: impl Fn(Switch) -> bool) -> Walk {
        walk(self.network, source, |at| {
            let rules = if is_new(at) { &self.new.rules } else { &self.old.rules };
            rules.get(&at).copied()
        })
    }

    /// Whether packets of the source may go this way.
    pub(super) fn allows(&self, source: Switch, way: &Walk) -> bool {
        let (old, new) = (&self.old_walks[&source], &self.new_walks[&source]);
        if old.fate == Fate::Looping {
            return true;
        }
        let served = old.fate == Fate::Delivered && new.fate == Fate::Delivered;
        match way.fate {
            Fate::Looping => false,
            Fate::Lost | Fate::Dropped if served => false,
            Fate::Delivered if old.fate != Fate::Delivered && new.fate != Fate::Delivered => false,
            _ => meets(self.old, way) || meets(self.new, way) || !meets(self.old, old),
        }
    }

    /// Whether packets of any source pass this switch under the old rules.
    pub(super) fn carries_old(&self, switch: Switch) -> bool {
        self.old_walks.values().any(|way| way.path.contains(&switch))
    }

    fn check_end(&self) -> Result<(), PlanError> {
        for (source, way) in &self.new_walks {
            if !self.new.sources.contains_key(source) {
                continue;
            }
            if !meets(self.new, way) {
                return Err(PlanError::NewBreach {
                    flow: self.flow,
                    entry: self.network.name(*source).to_string(),
                });
            }
        }
        Ok(())
    }

    /// What each link carries of the flow when its sources go these ways, kbit/s.
    pub(super) fn loads<'w>(&self, ways: impl Iterator<Item = (Switch, &'w Walk)>) -> BTreeMap<Link, u64> {
        let mut loads = BTreeMap::new();
        for (source, way) in ways {
            add_load(&mut loads, way, self.sources[&source]);
        }
        loads
    }
}

pub(super) fn add_load(loads: &mut BTreeMap<Link, u64>, way: &Walk, rate_kbps: u64) {
    for pair in way.path.windows(2) {
        let load = loads.entry(Link { from: pair[0], to: pair[1] }).or_insert(0);
        *load = load.saturating_add(rate_kbps);
    }
}

/// Whether a way is as the flow's policy demands.
pub(super) fn meets(policy: &FlowPolicy, way: &Walk) -> bool {
    let passes_all = || policy.waypoints.iter().all(|waypoint| way.path.contains(waypoint));
    way.path.iter().all(|switch| !policy.avoid.contains(switch))
        && (way.fate != Fate::Delivered || passes_all())
}

/// Checks that every rule of a new policy leads somewhere.
fn check_new(network: &Network, flow: Flow, new: &FlowPolicy) -> Result<(), PlanError> {
    let name = |switch: Switch| network.name(switch).to_string();
    for switch in new.rules.keys().chain(new.sources.keys()) {
        if !network.has(*switch) {
            return Err(PlanError::NoSwitch { flow, switch: switch.0 });
        }
    }
    // Switches whose way is known to end.
    let mut ends: BTreeSet<Switch> = BTreeSet::new();
    for start in new.rules.keys() {
        let (mut at, mut way) = (*start, Vec::new());
        loop {
            if ends.contains(&at) {
                break;
            }
            if way.contains(&at) {
                return Err(PlanError::NewLoop { flow, switch: name(at) });
            }
            way.push(at);
            match new.rules.get(&at) {
                None => return Err(PlanError::NewBlackHole { flow, switch: name(at) }),
                Some(Action::Deliver | Action::Drop) => break,
                Some(Action::Forward(next)) if network.carries(at, *next) => at = *next,
                Some(Action::Forward(next)) => {
                    return Err(PlanError::NewNoLink { flow, from: name(at), to: name(*next) });
                }
            }
        }
        ends.extend(way);
    }
    Ok(())
}
