//! The switches as a plan changes them: which rule a packet meets when which steps are done.

use crate::Change;
use crate::network::{Network, Switch};
use crate::plan::{Operation, Plan};
use crate::policy::{Action, Flow, FlowPolicy};
use std::collections::{BTreeMap, BTreeSet};

/// How a packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Delivered,
    Dropped,
    Lost,
    Loop,
}

/// The order of a plan's steps.
pub(super) struct Order {
    /// What each step waits for directly.
    pub(super) after: Vec<Vec<usize>>,
}

impl Order {
    /// Nothing when steps wait in a circle or for none.
    pub(super) fn new(plan: &Plan) -> Option<Order> {
        let after: Vec<Vec<usize>> =
            plan.steps.iter().map(|step| step.after.iter().map(|after| after.step).collect()).collect();
        let count = after.len();
        if after.iter().flatten().any(|first| *first >= count) {
            return None;
        }
        let order = Order { after };
        let mut done = vec![false; count];
        let mut left = count;
        while left > 0 {
            let ready: Vec<usize> = (0..count)
                .filter(|at| !done[*at] && order.after[*at].iter().all(|first| done[*first]))
                .collect();
            if ready.is_empty() {
                return None;
            }
            left -= ready.len();
            ready.into_iter().for_each(|at| done[at] = true);
        }
        Some(order)
    }

    /// All steps that a step waits for, also through others.
    pub(super) fn behind(&self, step: usize) -> BTreeSet<usize> {
        let mut all = BTreeSet::new();
        let mut open = self.after[step].clone();
        while let Some(at) = open.pop() {
            if all.insert(at) {
                open.extend(&self.after[at]);
            }
        }
        all
    }

    /// The order among some steps alone: for each its predecessors among them, as bits by place.
    pub(super) fn among(&self, steps: &[usize]) -> Vec<u64> {
        let bits = |step: &usize| {
            let behind = self.behind(*step);
            steps.iter().enumerate().filter(|(_, other)| behind.contains(other)).map(|(at, _)| 1 << at).sum()
        };
        steps.iter().map(bits).collect()
    }
}

/// A step that sets a rule, or removes it.
type Touch = (usize, Option<Action>);

/// One flow: its rules before, the steps that change them, and both policies.
pub(super) struct FlowModel<'c> {
    pub(super) network: &'c Network,
    pub(super) flow: Flow,
    pub(super) old: &'c FlowPolicy,
    pub(super) new: &'c FlowPolicy,
    pub(super) version: u16,
    /// The flow's steps, by place in the plan.
    pub(super) steps: Vec<(usize, Operation)>,
    /// Which steps touch a rule, by switch and version, in the plan's order, and to what they set it.
    touches: BTreeMap<(Switch, u16), Vec<Touch>>,
    stamps: BTreeMap<Switch, Vec<(usize, u16)>>,
    sources: BTreeMap<Switch, u64>,
    ends: BTreeMap<Switch, [(End, Vec<Switch>); 2]>,
}

impl<'c> FlowModel<'c> {
    pub(super) fn new(change: &'c Change, plan: &Plan, flow: Flow, empty: &'c FlowPolicy) -> FlowModel<'c> {
        let old = change.old.flows.get(&flow).unwrap_or(empty);
        let new = change.new.flows.get(&flow).unwrap_or(empty);
        let mut model = FlowModel {
            network: &change.network,
            flow,
            old,
            new,
            version: change.versions.get(&flow).copied().unwrap_or(0),
            steps: Vec::new(),
            touches: BTreeMap::new(),
            stamps: BTreeMap::new(),
            sources: BTreeMap::new(),
            ends: BTreeMap::new(),
        };
        for (source, rate) in old.sources.iter().chain(&new.sources) {
            let known = model.sources.entry(*source).or_insert(0);
            *known = (*known).max(*rate);
        }
        for (at, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.flow == flow) {
            model.steps.push((at, step.operation));
            match step.operation {
                Operation::Put { switch, version, action } => {
                    model.touches.entry((switch, version)).or_default().push((at, Some(action)));
                }
                Operation::Remove { switch, version } => {
                    model.touches.entry((switch, version)).or_default().push((at, None));
                }
                Operation::Stamp { switch, version } => {
                    model.stamps.entry(switch).or_default().push((at, version));
                }
                Operation::Drain => {}
            }
        }
        let fixed = |policy: &FlowPolicy, source: Switch| {
            end_of(&change.network, source, &|at| policy.rules.get(&at).copied())
        };
        model.ends = model
            .sources
            .keys()
            .map(|source| (*source, [fixed(old, *source), fixed(new, *source)]))
            .collect();
        model
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = Switch> {
        self.sources.keys().copied()
    }

    pub(super) fn rate_kbps(&self, source: Switch) -> u64 {
        self.sources[&source]
    }

    pub(super) fn old_end(&self, source: Switch) -> &(End, Vec<Switch>) {
        &self.ends[&source][0]
    }

    pub(super) fn new_end(&self, source: Switch) -> &(End, Vec<Switch>) {
        &self.ends[&source][1]
    }

    /// The rule that a packet of a version meets when these steps of the plan are done.
    pub(super) fn rule(&self, switch: Switch, version: u16, done: &dyn Fn(usize) -> bool) -> Option<Action> {
        let touches = self.touches.get(&(switch, version)).map_or(&[][..], Vec::as_slice);
        match touches.iter().rev().find(|(step, _)| done(*step)) {
            Some((_, action)) => *action,
            None if version == self.version => self.old.rules.get(&switch).copied(),
            None => None,
        }
    }

    /// The version that packets get which enter at a source.
    pub(super) fn stamp(&self, source: Switch, done: &dyn Fn(usize) -> bool) -> u16 {
        let stamps = self.stamps.get(&source).map_or(&[][..], Vec::as_slice);
        stamps.iter().rev().find(|(step, _)| done(*step)).map_or(self.version, |(_, version)| *version)
    }

    /// Every rule that was or is somewhere, as it is when these steps are done.
    pub(super) fn rules_in(&self, done: impl Fn(usize) -> bool) -> Vec<((Switch, u16), Option<Action>)> {
        let old = self.old.rules.keys().map(|switch| (*switch, self.version));
        let all: BTreeSet<(Switch, u16)> = old.chain(self.touches.keys().copied()).collect();
        all.into_iter().map(|at| (at, self.rule(at.0, at.1, &done))).collect()
    }

    /// The way of packets that enter at a source while these steps are done and no others.
    pub(super) fn walk(&self, source: Switch, done: &dyn Fn(usize) -> bool) -> (End, Vec<Switch>) {
        let version = self.stamp(source, done);
        end_of(self.network, source, &|at| self.rule(at, version, done))
    }
}

/// Where fixed rules lead, and past which switches.
pub(super) fn end_of(
    network: &Network,
    start: Switch,
    rule: &dyn Fn(Switch) -> Option<Action>,
) -> (End, Vec<Switch>) {
    let mut passed = vec![start];
    let mut seen = BTreeSet::from([start]);
    let mut at = start;
    loop {
        match rule(at) {
            Some(Action::Deliver) => return (End::Delivered, passed),
            Some(Action::Drop) => return (End::Dropped, passed),
            Some(Action::Forward(next)) if network.carries(at, next) => {
                if !seen.insert(next) {
                    return (End::Loop, passed);
                }
                passed.push(next);
                at = next;
            }
            _ => return (End::Lost, passed),
        }
    }
}
