//! Every interleaving of one flow's steps with one packet.
//!
//! A state is: which steps are done, where the packet is and with which version, which of the switches
//! that the policies name it passed, and which drains it holds up. A drain cannot end while a packet is
//! there that entered before the drain could begin.

use super::model::{End, FlowModel, Order, end_of};
use super::{CheckSettings, Finding, Violation, judge};
use crate::network::Switch;
use crate::plan::Operation;
use crate::policy::Action;
use std::collections::{BTreeSet, HashSet};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    done: u64,
    at: Switch,
    version: u16,
    passed: u64,
    held: u64,
}

struct Explorer<'m, 'c> {
    model: &'m FlowModel<'c>,
    source: Switch,
    /// Predecessors of each step of the flow, as bits.
    before: &'m [u64],
    /// Switches that the policies name: bits of `passed`.
    named: &'m [Switch],
    seen: HashSet<State>,
    open: Vec<State>,
}

/// Explores a flow; the number of states, or nothing when there are too many.
pub(super) fn explore(
    model: &FlowModel<'_>,
    order: &Order,
    settings: &CheckSettings,
) -> Result<Option<u64>, Box<Finding>> {
    let steps: Vec<usize> = model.steps.iter().map(|(at, _)| *at).collect();
    let policies = [model.old, model.new];
    let named: BTreeSet<Switch> =
        policies.iter().flat_map(|policy| policy.waypoints.iter().chain(&policy.avoid)).copied().collect();
    if steps.len() > settings.steps_max.min(64) || named.len() > 64 {
        return Ok(None);
    }
    let before = order.among(&steps);
    let Some(sets) = reachable_sets(&before, settings.states_max) else { return Ok(None) };
    let named: Vec<Switch> = named.into_iter().collect();
    let mut states = 0;
    for source in model.sources() {
        let mut explorer = Explorer {
            model,
            source,
            before: &before,
            named: &named,
            seen: HashSet::new(),
            open: Vec::new(),
        };
        sets.iter().for_each(|done| explorer.enter(*done));
        if !explorer.run(settings.states_max)? {
            return Ok(None);
        }
        states += explorer.seen.len() as u64;
    }
    Ok(Some(states))
}

/// All sets of steps that can be done at some moment, in the order in which they are found, for what is explored first decides what a
/// limit leaves out; nothing when there are more than `most`.
pub(super) fn reachable_sets(before: &[u64], most: usize) -> Option<Vec<u64>> {
    let mut seen = HashSet::from([0_u64]);
    let mut found = vec![0_u64];
    let mut at = 0;
    while let Some(done) = found.get(at).copied() {
        at += 1;
        for (step, firsts) in before.iter().enumerate() {
            let next = done | 1 << step;
            if next != done && firsts & done == *firsts && seen.insert(next) {
                found.push(next);
            }
        }
        if found.len() > most {
            return None;
        }
    }
    Some(found)
}

impl Explorer<'_, '_> {
    fn steps_done(&self, bits: u64) -> impl Fn(usize) -> bool + '_ {
        let steps = &self.model.steps;
        move |step: usize| steps.iter().position(|(at, _)| *at == step).is_some_and(|at| bits & 1 << at != 0)
    }

    fn bit(&self, switch: Switch) -> u64 {
        self.named.iter().position(|named| *named == switch).map_or(0, |at| 1 << at)
    }

    fn push(&mut self, state: State) {
        if self.seen.insert(state) {
            self.open.push(state);
        }
    }

    /// A packet enters when these steps are done.
    fn enter(&mut self, done: u64) {
        let drains = self.model.steps.iter().enumerate().filter(|(_, (_, what))| *what == Operation::Drain);
        // It holds up the drains that have not begun.
        let held = drains.map(|(at, _)| at).filter(|at| self.before[*at] & done != self.before[*at]);
        let held = held.map(|at| 1 << at).sum();
        let version = self.model.stamp(self.source, &self.steps_done(done));
        self.push(State { done, at: self.source, version, passed: self.bit(self.source), held });
    }

    /// Whether all was explored.
    fn run(&mut self, most: usize) -> Result<bool, Box<Finding>> {
        while let Some(state) = self.open.pop() {
            self.hop(state)?;
            for (at, firsts) in self.before.iter().enumerate() {
                let bit = 1 << at;
                if state.done & bit == 0 && firsts & state.done == *firsts && state.held & bit == 0 {
                    self.push(State { done: state.done | bit, ..state });
                }
            }
            if self.seen.len() > most {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn hop(&mut self, state: State) -> Result<(), Box<Finding>> {
        let rule = |at| self.model.rule(at, state.version, &self.steps_done(state.done));
        if end_of(self.model.network, state.at, &rule).0 == End::Loop {
            return self.end(state, End::Loop);
        }
        match rule(state.at) {
            Some(Action::Deliver) => self.end(state, End::Delivered),
            Some(Action::Drop) => self.end(state, End::Dropped),
            Some(Action::Forward(next)) if self.model.network.carries(state.at, next) => {
                self.push(State { at: next, passed: state.passed | self.bit(next), ..state });
                Ok(())
            }
            _ => self.end(state, End::Lost),
        }
    }

    fn end(&self, state: State, end: End) -> Result<(), Box<Finding>> {
        let passed: Vec<Switch> =
            self.named.iter().copied().filter(|switch| state.passed & self.bit(*switch) != 0).collect();
        let found: Option<Violation> = judge(self.model, self.source, end, &passed);
        let done = self.steps_done(state.done);
        match found {
            None => Ok(()),
            Some(what) => Err(Box::new(Finding {
                what,
                flow: Some(self.model.flow),
                source: Some(self.source),
                link: None,
                done: self.model.steps.iter().map(|(at, _)| *at).filter(|at| done(*at)).collect(),
            })),
        }
    }
}
