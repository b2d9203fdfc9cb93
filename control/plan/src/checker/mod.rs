//! Finds out whether a plan keeps its promises, without knowing how it was made: it shares no code with
//! the planner but the types of the change and of the plan.
//!
//! For each flow [`explore`] follows a packet from every source through every interleaving of the flow's
//! steps and the packet's hops, as far as the plan's order and the drains allow them, when there are not
//! too many; [`sample`] plays random interleavings of a large plan. [`loads`] adds up what links carry in
//! every state that the order allows, or in the sampled ones.

mod explore;
mod loads;
mod model;
mod sample;

use crate::Change;
use crate::network::{Link, Network, Switch};
use crate::plan::Plan;
use crate::policy::{Flow, FlowPolicy};
use model::{End, FlowModel, Order};
use std::collections::BTreeMap;

/// How hard to look.
#[derive(Clone, Copy, Debug)]
pub struct CheckSettings {
    /// Most states that are explored for one flow, or for all links; above it samples are played.
    pub states_max: usize,
    /// Most steps of a part that is explored; at most 64.
    pub steps_max: usize,
    /// Random interleavings played of a plan that is too large to explore.
    pub samples: usize,
    /// Packets under way at once in a sample.
    pub packets: usize,
    /// Seed of the samples.
    pub seed: u64,
}

impl Default for CheckSettings {
    fn default() -> CheckSettings {
        CheckSettings { states_max: 200_000, steps_max: 40, samples: 20, packets: 50, seed: 1 }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Violation {
    /// Packets go round.
    Loop,
    /// Packets of a source that is served before and after are lost or dropped.
    BlackHole,
    /// Packets go around a waypoint, or through a switch that they must avoid.
    Breach,
    /// Packets are delivered that neither policy delivers.
    Leak,
    /// A link carries more than it can, and than it did before.
    Overload,
    /// When all is done the switches do not hold the new policy.
    WrongEnd,
    /// The steps wait in a circle, or for steps that are not there.
    NoOrder,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub what: Violation,
    /// The flow, where it is one flow's.
    pub flow: Option<Flow>,
    /// The source, where it is one source's.
    pub source: Option<Switch>,
    /// The link, for an overload.
    pub link: Option<Link>,
    /// Steps of the plan that are done when it happens.
    pub done: Vec<usize>,
}

impl Finding {
    /// The finding in words.
    pub fn describe(&self, network: &Network) -> String {
        let mut text = format!("{:?}", self.what);
        if let Some(flow) = self.flow {
            text += &format!(", flow {}", flow.0);
        }
        if let Some(source) = self.source {
            text += &format!(", from {}", network.name(source));
        }
        if let Some(link) = self.link {
            text += &format!(", on the link {} to {}", network.name(link.from), network.name(link.to));
        }
        let done: Vec<String> = self.done.iter().map(|step| (step + 1).to_string()).collect();
        text + &format!(", when these steps are done: [{}]", done.join(", "))
    }
}

/// What was looked at when nothing was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Flows explored in full.
    pub flows_explored: usize,
    /// Whether all states of the links were explored.
    pub loads_explored: bool,
    /// Flows that were only sampled.
    pub flows_sampled: usize,
    /// States looked at.
    pub states: u64,
}

impl Checked {
    /// Whether nothing was left to chance.
    pub fn is_complete(&self) -> bool {
        self.flows_sampled == 0 && self.loads_explored
    }
}

/// Checks a plan of a change.
///
/// # Errors
/// The first violation found.
pub fn check(change: &Change, plan: &Plan, settings: &CheckSettings) -> Result<Checked, Box<Finding>> {
    let order = Order::new(plan).ok_or_else(|| finding(Violation::NoOrder))?;
    let empty = FlowPolicy::default();
    let models = models(change, plan, &empty);
    for model in models.values() {
        check_end(model, plan)?;
    }
    let mut checked = Checked::default();
    let mut sampled = Vec::new();
    for model in models.values().filter(|model| !model.steps.is_empty()) {
        match explore::explore(model, &order, settings)? {
            Some(states) => {
                checked.states += states;
                checked.flows_explored += 1;
            }
            None => sampled.push(model.flow),
        }
    }
    checked.flows_sampled = sampled.len();
    if let Some(states) = loads::explore(&models, &order, settings)? {
        checked.states += states;
        checked.loads_explored = true;
    }
    if !checked.is_complete() {
        checked.states += sample::play(&models, plan, &order, settings)?;
    }
    Ok(checked)
}

fn finding(what: Violation) -> Box<Finding> {
    Box::new(Finding { what, flow: None, source: None, link: None, done: Vec::new() })
}

fn models<'c>(change: &'c Change, plan: &Plan, empty: &'c FlowPolicy) -> BTreeMap<Flow, FlowModel<'c>> {
    let flows = change.old.flows.keys().chain(change.new.flows.keys()).copied();
    flows.map(|flow| (flow, FlowModel::new(change, plan, flow, empty))).collect()
}

/// Whether the switches hold the new policy, and nothing else of the flow, when all steps are done.
fn check_end(model: &FlowModel<'_>, plan: &Plan) -> Result<(), Box<Finding>> {
    let wrong = || Box::new(Finding { flow: Some(model.flow), ..*finding(Violation::WrongEnd) });
    let version = plan.versions.get(&model.flow).copied().unwrap_or(model.version);
    let all = |_| true;
    for ((switch, of), rule) in model.rules_in(all) {
        let wanted = if of == version { model.new.rules.get(&switch).copied() } else { None };
        if rule != wanted {
            return Err(wrong());
        }
    }
    let complete = model.new.rules.keys().all(|switch| model.rule(*switch, version, &all).is_some());
    let stamped = model.sources().all(|source| model.stamp(source, &all) == version);
    if complete && stamped { Ok(()) } else { Err(wrong()) }
}

/// Judges what became of a packet of a source.
fn judge(model: &FlowModel<'_>, source: Switch, end: End, passed: &[Switch]) -> Option<Violation> {
    let (old, new) = (model.old_end(source), model.new_end(source));
    if old.0 == End::Loop {
        return None;
    }
    let served = old.0 == End::Delivered && new.0 == End::Delivered;
    match end {
        End::Loop => return Some(Violation::Loop),
        End::Lost | End::Dropped if served => return Some(Violation::BlackHole),
        End::Delivered if old.0 != End::Delivered && new.0 != End::Delivered => return Some(Violation::Leak),
        _ => {}
    }
    let fits = |policy: &FlowPolicy, end: End, passed: &[Switch]| {
        let through = policy.waypoints.iter().all(|waypoint| passed.contains(waypoint));
        let around = passed.iter().all(|switch| !policy.avoid.contains(switch));
        around && (through || end != End::Delivered)
    };
    let good = fits(model.old, end, passed) || fits(model.new, end, passed);
    (!good && fits(model.old, old.0, &old.1)).then_some(Violation::Breach)
}

#[cfg(test)]
mod tests;
