//! Carrying plans out, step by step, several changes after one another (rows R1, R2, C1).
//!
//! A pure step machine: the caller hands in plans, acknowledgements and time, and gets the steps that may
//! go. A step goes when all that it waits for is acknowledged. Across plans each switch is in order (a
//! step waits for the last step of an earlier plan at the same switch), and so is each flow (a flow's
//! steps wait until the earlier change of that flow is whole). A plan counts on the room that earlier ones
//! leave on links, so it waits for those that change the load of a link that it changes too. Under
//! [`Mode::Linear`] an earlier plan is whole before the next begins.
//!
//! A drain is over when [`RolloutSettings::drain_ms`] have passed since all that it waits for was
//! acknowledged: the longest that a packet can be under way in the network.

use crate::network::{Link, Switch};
use crate::plan::{Mode, Operation, Plan, Step};
use crate::policy::Flow;
use std::collections::{BTreeMap, BTreeSet};

/// Settings of a rollout.
#[derive(Clone, Copy, Debug)]
pub struct RolloutSettings {
    /// How much of the plans' order is kept.
    pub mode: Mode,
    /// How long a packet can be under way, ms.
    pub drain_ms: u64,
    /// Most steps that are not done; a plan that would pass it is refused.
    pub steps_max: usize,
}

impl Default for RolloutSettings {
    fn default() -> RolloutSettings {
        RolloutSettings { mode: Mode::Dependent, drain_ms: 1_000, steps_max: 1_000_000 }
    }
}

/// A step that may go now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// Its number, to acknowledge it by.
    pub number: u64,
    /// The flow.
    pub flow: Flow,
    /// What to do.
    pub operation: Operation,
}

#[derive(Debug)]
struct Waiting {
    step: Step,
    missing: usize,
    waiters: Vec<u64>,
    /// Whether it was released, or for a drain: is running.
    released: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Rollout {
    settings: RolloutSettings,
    next: u64,
    steps: BTreeMap<u64, Waiting>,
    /// The last step of each switch, and all steps of each flow's last change, that are not done.
    last_at: BTreeMap<Switch, u64>,
    of_flow: BTreeMap<Flow, BTreeSet<u64>>,
    drains: BTreeSet<(u64, u64)>,
    /// Plans that are not done, by the number of their first step: the steps behind it, and their links.
    plans: BTreeMap<u64, (u64, BTreeSet<Link>)>,
    /// Plans refused because too many steps were waiting.
    pub refused: u64,
}

impl Rollout {
    /// With nothing to do.
    pub fn new(settings: RolloutSettings) -> Rollout {
        Rollout {
            settings,
            next: 0,
            steps: BTreeMap::new(),
            last_at: BTreeMap::new(),
            of_flow: BTreeMap::new(),
            drains: BTreeSet::new(),
            plans: BTreeMap::new(),
            refused: 0,
        }
    }

    /// How many steps are not done.
    pub fn open(&self) -> usize {
        self.steps.len()
    }

    /// Adds a plan behind those before; what may go at once. Nothing, and the plan is refused and counted,
    /// when too many steps are open.
    pub fn add(&mut self, plan: Plan, now_ms: u64) -> Option<Vec<Released>> {
        if self.steps.len() + plan.steps.len() > self.settings.steps_max {
            self.refused += 1;
            return None;
        }
        let plan = plan.with_mode(self.settings.mode);
        let first = self.next;
        let earlier: Vec<u64> = match self.settings.mode {
            Mode::None => Vec::new(),
            Mode::Linear => self.steps.keys().copied().collect(),
            Mode::Dependent => self.in_the_way(&plan.links),
        };
        if !plan.steps.is_empty() {
            self.plans.insert(first, (first + plan.steps.len() as u64, plan.links));
        }
        let before = (self.last_at.clone(), self.of_flow.clone());
        for (at, step) in plan.steps.into_iter().enumerate() {
            let number = first + at as u64;
            let mut waits: BTreeSet<u64> = step.after.iter().map(|after| first + after.step as u64).collect();
            waits.extend(&earlier);
            if self.settings.mode == Mode::Dependent {
                waits.extend(step.operation.switch().and_then(|switch| before.0.get(&switch)));
                waits.extend(before.1.get(&step.flow).into_iter().flatten());
            }
            self.put(number, step, waits);
        }
        let ready = (first..self.next).filter(|number| self.steps[number].missing == 0).collect();
        Some(self.release(ready, now_ms))
    }

    /// Open steps of plans that change the load of one of these links; plans that are done are forgotten.
    fn in_the_way(&mut self, links: &BTreeSet<Link>) -> Vec<u64> {
        let steps = &self.steps;
        self.plans.retain(|first, (end, _)| steps.range(*first..*end).next().is_some());
        let shared = self.plans.iter().filter(|(_, (_, theirs))| !theirs.is_disjoint(links));
        shared.flat_map(|(first, (end, _))| steps.range(*first..*end).map(|(number, _)| *number)).collect()
    }

    fn put(&mut self, number: u64, step: Step, waits: BTreeSet<u64>) {
        let mut missing = 0;
        for wait in waits {
            // What is not there any more is done.
            if let Some(first) = self.steps.get_mut(&wait) {
                first.waiters.push(number);
                missing += 1;
            }
        }
        if let Some(switch) = step.operation.switch() {
            self.last_at.insert(switch, number);
        }
        self.of_flow.entry(step.flow).or_default().insert(number);
        self.steps.insert(number, Waiting { step, missing, waiters: Vec::new(), released: false });
        self.next = number + 1;
    }

    fn release(&mut self, ready: Vec<u64>, now_ms: u64) -> Vec<Released> {
        let mut released = Vec::new();
        for number in ready {
            let Some(waiting) = self.steps.get_mut(&number) else { continue };
            waiting.released = true;
            match waiting.step.operation {
                Operation::Drain => {
                    self.drains.insert((now_ms.saturating_add(self.settings.drain_ms), number));
                }
                operation => released.push(Released { number, flow: waiting.step.flow, operation }),
            }
        }
        released
    }

    /// A step was acknowledged by its switch; what may go now. Unknown numbers, repeated ones and those of
    /// steps that were not released change nothing.
    pub fn acknowledge(&mut self, number: u64, now_ms: u64) -> Vec<Released> {
        let known = self.steps.get(&number);
        if !known.is_some_and(|known| known.released && known.step.operation != Operation::Drain) {
            return Vec::new();
        }
        self.done(number, now_ms)
    }

    /// Time passed; what may go now that drains are over.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Released> {
        let mut released = Vec::new();
        while let Some((due_ms, number)) =
            self.drains.first().copied().filter(|(due_ms, _)| *due_ms <= now_ms)
        {
            self.drains.remove(&(due_ms, number));
            released.extend(self.done(number, now_ms));
        }
        released
    }

    /// When the next drain is over, ms; nothing when none runs.
    pub fn due_ms(&self) -> Option<u64> {
        self.drains.first().map(|(due_ms, _)| *due_ms)
    }

    fn done(&mut self, number: u64, now_ms: u64) -> Vec<Released> {
        let Some(done) = self.steps.remove(&number) else { return Vec::new() };
        if let Some(switch) = done.step.operation.switch().filter(|at| self.last_at.get(at) == Some(&number))
        {
            self.last_at.remove(&switch);
        }
        if let Some(steps) = self.of_flow.get_mut(&done.step.flow) {
            steps.remove(&number);
            if steps.is_empty() {
                self.of_flow.remove(&done.step.flow);
            }
        }
        let mut ready = Vec::new();
        for waiter in done.waiters {
            if let Some(waiting) = self.steps.get_mut(&waiter) {
                waiting.missing -= 1;
                if waiting.missing == 0 {
                    ready.push(waiter);
                }
            }
        }
        self.release(ready, now_ms)
    }
}

#[cfg(test)]
mod tests;
