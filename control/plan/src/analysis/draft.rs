//! One flow's part of a plan, before the flows are put together.

use super::flow::FlowChange;
use crate::network::Switch;
use crate::plan::{After, FlowNote, Method, Operation, Reason, Step};
use std::collections::{BTreeMap, BTreeSet};

/// One flow's steps; places in `after` count from this flow's first step.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) steps: Vec<Step>,
    pub(super) note: FlowNote,
    /// Version in force when it is done.
    pub(super) version: u16,
    /// Steps that move packets, by switch: new rules where packets pass, or stamps.
    pub(super) movers: BTreeMap<Switch, usize>,
}

impl Draft {
    pub(super) fn new(change: &FlowChange<'_>, method: Method, why: Option<String>) -> Draft {
        let note = FlowNote { flow: change.flow, method, why };
        Draft { steps: Vec::new(), note, version: change.version, movers: BTreeMap::new() }
    }

    /// Adds a step; its place.
    pub(super) fn push(&mut self, operation: Operation, after: Vec<After>) -> usize {
        self.steps.push(Step { flow: self.note.flow, operation, after });
        self.steps.len() - 1
    }

    pub(super) fn wait(&mut self, step: usize, first: usize, reason: Reason) {
        let known = self.steps[step].after.iter().any(|after| after.step == first);
        if !known {
            self.steps[step].after.push(After { step: first, reason });
        }
    }

    /// Adds the end: when all of these steps are done and packets have drained, the rules of a version go.
    pub(super) fn remove(&mut self, firsts: &[usize], switches: &BTreeSet<Switch>, version: u16) {
        if switches.is_empty() {
            return;
        }
        let wait = |step: usize| After { step, reason: Reason::Unused };
        let after: Vec<After> = if firsts.is_empty() {
            Vec::new()
        } else {
            let drained = self.push(Operation::Drain, firsts.iter().copied().map(wait).collect());
            vec![After { step: drained, reason: Reason::InFlight }]
        };
        for switch in switches {
            self.push(Operation::Remove { switch: *switch, version }, after.clone());
        }
    }

    /// Whether `step` waits for `first`, directly or not, or is it.
    pub(super) fn reaches(&self, step: usize, first: usize) -> bool {
        let mut seen = vec![false; self.steps.len()];
        let mut open = vec![step];
        while let Some(at) = open.pop() {
            if at == first {
                return true;
            }
            if !std::mem::replace(&mut seen[at], true) {
                open.extend(self.steps[at].after.iter().map(|after| after.step));
            }
        }
        false
    }

    /// Steps among these that none other of these waits for, directly or not.
    pub(super) fn last_of(&self, steps: &[usize]) -> Vec<usize> {
        let mut waited = vec![false; self.steps.len()];
        let mut open: Vec<usize> = steps.to_vec();
        while let Some(at) = open.pop() {
            for after in &self.steps[at].after {
                if !std::mem::replace(&mut waited[after.step], true) {
                    open.push(after.step);
                }
            }
        }
        steps.iter().copied().filter(|step| !waited[*step]).collect()
    }
}
