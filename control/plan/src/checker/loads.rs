//! What links carry in the states that a plan's order allows.

use super::explore::reachable_sets;
use super::model::{FlowModel, Order};
use super::{CheckSettings, Finding, Violation};
use crate::network::{Link, Network};
use crate::plan::Operation;
use crate::policy::Flow;
use std::collections::BTreeMap;

pub(super) type Loads = BTreeMap<Link, u64>;

/// What a flow puts on each link when these steps are done, kbit/s.
pub(super) fn of_flow(model: &FlowModel<'_>, done: &dyn Fn(usize) -> bool) -> Loads {
    let mut loads = Loads::new();
    for source in model.sources() {
        let (_, passed) = model.walk(source, done);
        for pair in passed.windows(2) {
            *loads.entry(Link { from: pair[0], to: pair[1] }).or_insert(0) += model.rate_kbps(source);
        }
    }
    loads
}

/// The limit of each link that has one: its capacity, or what it carried before.
pub(super) fn limits(network: &Network, models: &BTreeMap<Flow, FlowModel<'_>>) -> Loads {
    let before = sum(models.values().map(|model| of_flow(model, &|_| false)));
    let limit = |capacity: u64, link: &Link| capacity.max(before.get(link).copied().unwrap_or(0));
    network
        .links()
        .filter_map(|(link, state)| state.capacity_kbps.map(|capacity| (link, limit(capacity, &link))))
        .collect()
}

fn sum(parts: impl Iterator<Item = Loads>) -> Loads {
    let mut total = Loads::new();
    for (link, load) in parts.flatten() {
        *total.entry(link).or_insert(0) += load;
    }
    total
}

/// The first link over its limit.
pub(super) fn overloaded(limits: &Loads, loads: &[&Loads]) -> Option<Link> {
    let total = sum(loads.iter().map(|loads| (*loads).clone()));
    total
        .into_iter()
        .find(|(link, load)| limits.get(link).is_some_and(|limit| load > limit))
        .map(|(link, _)| link)
}

pub(super) fn violation(link: Link, done: Vec<usize>) -> Box<Finding> {
    Box::new(Finding { what: Violation::Overload, flow: None, source: None, link: Some(link), done })
}

/// Adds up the loads in every state; the number of states, or nothing when there are too many.
pub(super) fn explore(
    models: &BTreeMap<Flow, FlowModel<'_>>,
    order: &Order,
    settings: &CheckSettings,
) -> Result<Option<u64>, Box<Finding>> {
    let Some(first) = models.values().next() else { return Ok(Some(0)) };
    let limits = limits(first.network, models);
    if limits.is_empty() {
        return Ok(Some(0));
    }
    let moving = |what: &Operation| *what != Operation::Drain;
    let all = models.values().flat_map(|model| &model.steps).filter(|(_, what)| moving(what));
    let steps: Vec<usize> = all.map(|(at, _)| *at).collect();
    if steps.len() > settings.steps_max.min(64) {
        return Ok(None);
    }
    let Some(sets) = reachable_sets(&order.among(&steps), settings.states_max) else { return Ok(None) };
    // A flow's loads depend on its own steps alone.
    let mut known: BTreeMap<(Flow, u64), Loads> = BTreeMap::new();
    let place = |step: usize| steps.iter().position(|known| *known == step);
    let own: BTreeMap<Flow, u64> = models
        .iter()
        .map(|(flow, model)| {
            (*flow, model.steps.iter().filter_map(|(at, _)| place(*at)).map(|at| 1_u64 << at).sum())
        })
        .collect();
    for done in &sets {
        let is_done = |step: usize| place(step).is_some_and(|at| done & 1 << at != 0);
        for (flow, model) in models {
            known.entry((*flow, done & own[flow])).or_insert_with(|| of_flow(model, &is_done));
        }
        let parts: Vec<&Loads> = own.iter().map(|(flow, bits)| &known[&(*flow, done & bits)]).collect();
        if let Some(link) = overloaded(&limits, &parts) {
            return Err(violation(link, steps.iter().copied().filter(|step| is_done(*step)).collect()));
        }
    }
    Ok(Some(sets.len() as u64))
}
