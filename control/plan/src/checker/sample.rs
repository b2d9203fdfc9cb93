//! Random interleavings of a whole plan with packets under way, for plans too large to explore.

use super::loads::{Loads, limits, of_flow, overloaded, violation};
use super::model::{End, FlowModel, Order};
use super::{CheckSettings, Finding, judge};
use crate::network::Switch;
use crate::plan::{Operation, Plan};
use crate::policy::{Action, Flow};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::world::Rng;

/// A packet under way.
struct Packet {
    flow: Flow,
    source: Switch,
    version: u16,
    /// How many steps were done when it entered.
    entered: usize,
    path: Vec<Switch>,
    /// Where it was since the last step was done.
    since: BTreeSet<Switch>,
}

struct Player<'p, 'c> {
    models: &'p BTreeMap<Flow, FlowModel<'c>>,
    plan: &'p Plan,
    order: &'p Order,
    limits: &'p Loads,
    rng: Rng,
    done: Vec<bool>,
    /// For each step, how many were done when all that it waits for were.
    ready_at: BTreeMap<usize, usize>,
    sequence: Vec<usize>,
    packets: Vec<Packet>,
    loads: BTreeMap<Flow, Loads>,
    hops: u64,
}

/// Plays samples; the number of hops and states looked at.
pub(super) fn play(
    models: &BTreeMap<Flow, FlowModel<'_>>,
    plan: &Plan,
    order: &Order,
    settings: &CheckSettings,
) -> Result<u64, Box<Finding>> {
    let Some(first) = models.values().next() else { return Ok(0) };
    let limits = limits(first.network, models);
    let before: BTreeMap<Flow, Loads> =
        models.iter().map(|(flow, model)| (*flow, of_flow(model, &|_| false))).collect();
    let mut states = 0;
    for nth in 0..settings.samples as u64 {
        let mut player = Player {
            models,
            plan,
            order,
            limits: &limits,
            rng: Rng::new(settings.seed.wrapping_mul(1_000_003).wrapping_add(nth)),
            done: vec![false; plan.steps.len()],
            ready_at: BTreeMap::new(),
            sequence: Vec::new(),
            packets: Vec::new(),
            loads: before.clone(),
            hops: 0,
        };
        player.run(settings.packets)?;
        states += player.hops + player.sequence.len() as u64;
    }
    Ok(states)
}

impl Player<'_, '_> {
    fn run(&mut self, packets: usize) -> Result<(), Box<Finding>> {
        let mut missing: Vec<usize> = self.order.after.iter().map(Vec::len).collect();
        let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); missing.len()];
        for (at, after) in self.order.after.iter().enumerate() {
            after.iter().for_each(|first| waiters[*first].push(at));
        }
        let mut ready: Vec<usize> = (0..missing.len()).filter(|at| missing[*at] == 0).collect();
        self.ready_at.extend(ready.iter().map(|step| (*step, 0)));
        while !ready.is_empty() {
            for _ in 0..self.rng.below(2 * packets as u64) {
                self.tick(packets)?;
            }
            let step = ready.swap_remove(self.rng.below(ready.len() as u64) as usize);
            self.apply(step)?;
            for waiter in &waiters[step] {
                missing[*waiter] -= 1;
                if missing[*waiter] == 0 {
                    self.ready_at.insert(*waiter, self.sequence.len());
                    ready.push(*waiter);
                }
            }
        }
        while !self.packets.is_empty() {
            self.hop(0)?;
        }
        Ok(())
    }

    /// A packet enters, or one hops.
    fn tick(&mut self, packets: usize) -> Result<(), Box<Finding>> {
        if self.packets.len() < packets && self.rng.chance(1, 3) {
            self.enter();
            Ok(())
        } else if self.packets.is_empty() {
            Ok(())
        } else {
            let at = self.rng.below(self.packets.len() as u64) as usize;
            self.hop(at)
        }
    }

    fn enter(&mut self) {
        let changing: Vec<&FlowModel<'_>> =
            self.models.values().filter(|model| !model.steps.is_empty()).collect();
        if changing.is_empty() {
            return;
        }
        let model = changing[self.rng.below(changing.len() as u64) as usize];
        let sources: Vec<Switch> = model.sources().collect();
        if sources.is_empty() {
            return;
        }
        let source = sources[self.rng.below(sources.len() as u64) as usize];
        let version = model.stamp(source, &|step| self.done[step]);
        self.packets.push(Packet {
            flow: model.flow,
            source,
            version,
            entered: self.sequence.len(),
            path: vec![source],
            since: BTreeSet::from([source]),
        });
    }

    fn hop(&mut self, at: usize) -> Result<(), Box<Finding>> {
        self.hops += 1;
        let packet = &mut self.packets[at];
        let model = &self.models[&packet.flow];
        let here = packet.path[packet.path.len() - 1];
        let done = &self.done;
        let end = match model.rule(here, packet.version, &|step| done[step]) {
            Some(Action::Deliver) => End::Delivered,
            Some(Action::Drop) => End::Dropped,
            Some(Action::Forward(next)) if model.network.carries(here, next) => {
                packet.path.push(next);
                if packet.since.insert(next) {
                    return Ok(());
                }
                End::Loop
            }
            _ => End::Lost,
        };
        let packet = self.packets.swap_remove(at);
        match judge(model, packet.source, end, &packet.path) {
            None => Ok(()),
            Some(what) => Err(Box::new(Finding {
                what,
                flow: Some(packet.flow),
                source: Some(packet.source),
                link: None,
                done: self.sequence.clone(),
            })),
        }
    }

    fn apply(&mut self, step: usize) -> Result<(), Box<Finding>> {
        let (flow, operation) = (self.plan.steps[step].flow, self.plan.steps[step].operation);
        if operation == Operation::Drain {
            let began = self.ready_at[&step];
            while let Some(at) = self.packets.iter().position(|p| p.flow == flow && p.entered < began) {
                self.hop(at)?;
            }
        }
        self.done[step] = true;
        self.sequence.push(step);
        if operation == Operation::Drain {
            return Ok(());
        }
        for packet in self.packets.iter_mut().filter(|packet| packet.flow == flow) {
            packet.since = packet.path.last().copied().into_iter().collect();
        }
        if self.limits.is_empty() {
            return Ok(());
        }
        let done = &self.done;
        self.loads.insert(flow, of_flow(&self.models[&flow], &|step| done[step]));
        let parts: Vec<&Loads> = self.loads.values().collect();
        match overloaded(self.limits, &parts) {
            None => Ok(()),
            Some(link) => Err(violation(link, self.sequence.clone())),
        }
    }
}
