//! From a change to a plan.
//!
//! Flow by flow an order is looked for that keeps the flow's own promises: [`order`] replaces rules in
//! place, [`search`] tries every order of a small change, [`versions`] needs none. Then [`capacity`] has
//! flows wait for each other where links are short of room. Flows that share nothing that is short go in
//! parallel (Fig 3.4).

mod capacity;
mod draft;
mod flow;
mod order;
mod search;
mod versions;
mod walk;

use crate::Change;
use crate::network::Switch;
use crate::plan::{After, Plan, Step};
use crate::policy::{Flow, FlowPolicy};
use capacity::{Fit, Limits, Loads, changed_links, fit};
use draft::Draft;
use flow::FlowChange;
use std::collections::{BTreeMap, BTreeSet};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The new policy names a switch that is not there.
    #[error("flow {}: the new policy names switch {switch}, which is not in the network", flow.0)]
    NoSwitch {
        /// The flow.
        flow: Flow,
        /// The number.
        switch: u32,
    },
    /// The new policy sends packets over a link that is not there or has failed.
    #[error("flow {}: the new policy sends from {from} to {to}, where no link is up", flow.0)]
    NewNoLink {
        /// The flow.
        flow: Flow,
        /// Where packets come from.
        from: String,
        /// Where they shall go.
        to: String,
    },
    /// The new policy loops.
    #[error("flow {}: the new policy sends packets round a loop through {switch}", flow.0)]
    NewLoop {
        /// The flow.
        flow: Flow,
        /// A switch of the loop.
        switch: String,
    },
    /// The new policy sends packets to a switch without a rule.
    #[error("flow {}: the new policy sends packets to {switch}, which has no rule; say drop if that is meant", flow.0)]
    NewBlackHole {
        /// The flow.
        flow: Flow,
        /// The switch.
        switch: String,
    },
    /// The new policy breaks its own demands.
    #[error("flow {}: under the new policy packets from {entry} go around a waypoint or through a switch that they must avoid", flow.0)]
    NewBreach {
        /// The flow.
        flow: Flow,
        /// Where they enter.
        entry: String,
    },
    /// The new policy puts more on a link than it carries.
    #[error(
        "the new policy puts {load_kbps} kbit/s on the link {from} to {to}, which carries {capacity_kbps}"
    )]
    NewOverload {
        /// Where packets come from.
        from: String,
        /// Where they go.
        to: String,
        /// What it would carry, kbit/s.
        load_kbps: u64,
        /// What it can, kbit/s.
        capacity_kbps: u64,
    },
    /// No order was found, and versions are not allowed.
    #[error("flow {}: {why}; allow versions, or change less at once", flow.0)]
    NoOrder {
        /// The flow.
        flow: Flow,
        /// Why.
        why: String,
    },
    /// Flows wait for each other's room.
    #[error(
        "no order of moves was found that keeps the link {from} to {to} within its capacity: flows wait for each other's room; lower a rate or free the link first"
    )]
    NoRoom {
        /// Where packets come from.
        from: String,
        /// Where they go.
        to: String,
    },
}

/// What a planner may do.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most changed switches of a flow for which every order is tried; at most 16.
    pub search_switches_max: usize,
    /// Most states looked at while an order of moves within capacities is searched.
    pub capacity_states_max: usize,
    /// Most flows that are ordered by room as wholes.
    pub capacity_flows_max: usize,
    /// Most moves of single switches or sources that are ordered by room; above it no order is found.
    pub capacity_moves_max: usize,
    /// Whether packets can carry versions.
    pub versions: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            search_switches_max: 8,
            capacity_states_max: 20_000,
            capacity_flows_max: 1_024,
            capacity_moves_max: 128,
            versions: true,
        }
    }
}

/// Something that plans (row C2).
pub trait Planner {
    /// Plans a change.
    ///
    /// # Errors
    /// [`PlanError`].
    fn plan(&self, change: &Change) -> Result<Plan, PlanError>;
}

/// The analysis of this crate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Analysed(pub Settings);

impl Planner for Analysed {
    fn plan(&self, change: &Change) -> Result<Plan, PlanError> {
        plan(change, &self.0)
    }
}

/// Cicero's scheduler (row C1): each flow's new way from its end to its start, and nothing else. It keeps
/// loops and black holes away, but knows neither policy nor capacities, and removes rules at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReversePath;

impl Planner for ReversePath {
    fn plan(&self, change: &Change) -> Result<Plan, PlanError> {
        let empty = FlowPolicy::default();
        let changes = flow_changes(change, &empty)?;
        let drafts = changes.iter().map(|change| {
            let (mut draft, places) = order::reverse_path(change);
            order::finish(change, &mut draft, places.into_values().collect());
            draft
        });
        Ok(sorted(join(drafts.collect(), change)))
    }
}

/// Plans a change; see the crate.
///
/// # Errors
/// [`PlanError`]: the new policy is faulty in itself, or there is no safe way to it.
pub fn plan(change: &Change, settings: &Settings) -> Result<Plan, PlanError> {
    let empty = FlowPolicy::default();
    let changes = flow_changes(change, &empty)?;
    let mut drafts: Vec<Draft> =
        changes.iter().map(|change| draft(change, settings)).collect::<Result<_, _>>()?;
    let limits = limits(change, &changes)?;
    let name = |switch| change.network.name(switch).to_string();
    loop {
        match fit(&changes, &drafts, &limits, settings) {
            Fit::Waits(waits) => {
                let starts = starts(&drafts);
                let both = changes.iter().zip(&drafts);
                let links = both.flat_map(|(change, draft)| changed_links(change, draft, &limits)).collect();
                let mut plan = Plan { links, ..join(drafts, change) };
                for wait in waits {
                    let after = After { step: starts[wait.first_flow] + wait.first, reason: wait.reason };
                    add_after(&mut plan.steps[starts[wait.flow] + wait.step], after);
                }
                return Ok(sorted(plan));
            }
            Fit::Versions(flows, link) => {
                let link = format!("{} to {}", name(link.from), name(link.to));
                for flow in flows {
                    let why = format!("no order in place keeps the link {link} within its capacity");
                    drafts[flow] = versions::two_phase(&changes[flow], why);
                }
            }
            Fit::NoRoom(link) => return Err(PlanError::NoRoom { from: name(link.from), to: name(link.to) }),
        }
    }
}

fn add_after(step: &mut Step, after: After) {
    if step.after.iter().all(|known| known.step != after.step) {
        step.after.push(after);
    }
}

/// The flows that differ. `empty` stands for a flow that one of the policies does not have.
fn flow_changes<'c>(change: &'c Change, empty: &'c FlowPolicy) -> Result<Vec<FlowChange<'c>>, PlanError> {
    let flows: BTreeSet<Flow> = change.old.flows.keys().chain(change.new.flows.keys()).copied().collect();
    let mut changes = Vec::new();
    for flow in flows {
        let old = change.old.flows.get(&flow).unwrap_or(empty);
        let new = change.new.flows.get(&flow).unwrap_or(empty);
        let version = change.versions.get(&flow).copied().unwrap_or(0);
        let one = FlowChange::new(&change.network, flow, old, new, version)?;
        if !one.is_empty() {
            changes.push(one);
        }
    }
    Ok(changes)
}

fn draft(change: &FlowChange<'_>, settings: &Settings) -> Result<Draft, PlanError> {
    let conflict = match order::in_place(change) {
        Ok(draft) => return Ok(draft),
        Err(conflict) => conflict,
    };
    let name = |switch| change.network.name(switch).to_string();
    let (source, switch) = (name(conflict.source), name(conflict.switch));
    let why = format!(
        "the new rule of {switch} would turn packets from {source} that came the old way against the policy"
    );
    let why = match search::search(change, settings.search_switches_max) {
        search::Found::Order(order) => {
            let why = format!("{why}, and only an order one by one avoids it");
            return Ok(search::one_by_one(change, &order, why));
        }
        search::Found::Nothing => {
            format!("{why}, and none of the orders of its {} switches avoids it", change.changed.len())
        }
        search::Found::TooMany => format!("{why}, and no switch before it can go first"),
    };
    if settings.versions {
        Ok(versions::two_phase(change, why))
    } else {
        Err(PlanError::NoOrder { flow: change.flow, why })
    }
}

/// What links may carry: from all flows, also those that do not change.
fn limits(change: &Change, changes: &[FlowChange<'_>]) -> Result<Limits, PlanError> {
    let (mut before, mut after) = (Loads::new(), Loads::new());
    let changing: BTreeSet<Flow> = changes.iter().map(|change| change.flow).collect();
    for (flow, old) in change.old.flows.iter().filter(|(flow, _)| !changing.contains(flow)) {
        let sources = steady_sources(old, change.new.flows.get(flow));
        for (source, rate) in sources {
            let way = walk::walk(&change.network, source, |at| old.rules.get(&at).copied());
            flow::add_load(&mut before, &way, rate);
            flow::add_load(&mut after, &way, rate);
        }
    }
    for one in changes {
        for (source, rate) in &one.sources {
            flow::add_load(&mut before, &one.old_walks[source], *rate);
            flow::add_load(&mut after, &one.new_walks[source], *rate);
        }
    }
    Limits::new(&change.network, before, &after)
}

fn steady_sources(old: &FlowPolicy, new: Option<&FlowPolicy>) -> BTreeMap<Switch, u64> {
    let mut sources = old.sources.clone();
    for (source, rate) in new.into_iter().flat_map(|new| &new.sources) {
        let known = sources.entry(*source).or_insert(0);
        *known = (*known).max(*rate);
    }
    sources
}

fn starts(drafts: &[Draft]) -> Vec<usize> {
    let mut next = 0;
    let mut starts = Vec::with_capacity(drafts.len());
    for draft in drafts {
        starts.push(next);
        next += draft.steps.len();
    }
    starts
}

/// The drafts one after the other.
fn join(drafts: Vec<Draft>, change: &Change) -> Plan {
    let starts = starts(&drafts);
    let mut plan = Plan { versions: change.versions.clone(), ..Plan::default() };
    for (draft, start) in drafts.into_iter().zip(starts) {
        plan.versions.insert(draft.note.flow, draft.version);
        plan.notes.push(draft.note);
        plan.steps.extend(draft.steps.into_iter().map(|mut step| {
            step.after.iter_mut().for_each(|after| after.step += start);
            step
        }));
    }
    plan
}

/// The same plan with each step after all that it waits for.
///
/// # Panics
/// When steps wait in a circle: drafts have none, and waits between moves follow an order.
fn sorted(plan: Plan) -> Plan {
    let mut missing: Vec<usize> = plan.steps.iter().map(|step| step.after.len()).collect();
    let mut waiters: Vec<Vec<usize>> = vec![Vec::new(); plan.steps.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        for after in &step.after {
            waiters[after.step].push(at);
        }
    }
    let mut ready: BTreeSet<usize> = (0..missing.len()).filter(|at| missing[*at] == 0).collect();
    let mut order = Vec::with_capacity(missing.len());
    let mut places = vec![0; missing.len()];
    while let Some(at) = ready.pop_first() {
        places[at] = order.len();
        order.push(at);
        for waiter in &waiters[at] {
            missing[*waiter] -= 1;
            if missing[*waiter] == 0 {
                ready.insert(*waiter);
            }
        }
    }
    assert_eq!(order.len(), plan.steps.len(), "steps wait in a circle");
    let mut steps: Vec<Option<Step>> = plan.steps.into_iter().map(Some).collect();
    let take = |at: usize| {
        let mut step = steps[at].take()?;
        step.after.iter_mut().for_each(|after| after.step = places[after.step]);
        step.after.sort();
        Some(step)
    };
    Plan { steps: order.into_iter().filter_map(take).collect(), ..plan }
}

#[cfg(test)]
mod tests;
