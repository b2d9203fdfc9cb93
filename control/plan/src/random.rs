//! Random networks and changes, for tests and benches: from a seed, the same everywhere.

use crate::Change;
use crate::network::{Network, Switch};
use crate::policy::{Action, Flow, FlowPolicy, Policy, Versions};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::world::Rng;

/// What random flows are like.
#[derive(Clone, Copy, Debug)]
pub struct FlowSettings {
    /// Most sources of a flow.
    pub sources_max: u64,
    /// Its rate at each source, kbit/s.
    pub rate_kbps: u64,
}

/// A connected random network; links have this capacity, if any.
pub fn network(rng: &mut Rng, switches: u32, more_links: u64, capacity_kbps: Option<u64>) -> Network {
    let mut network = Network::default();
    let all: Vec<Switch> = (0..switches).map(|at| network.add_switch(format!("s{at}"))).collect();
    for at in 1..all.len() {
        let other = all[rng.below(at as u64) as usize];
        network.add_link(all[at], other, capacity_kbps);
    }
    for _ in 0..more_links {
        let pick = |rng: &mut Rng| all[rng.below(u64::from(switches)) as usize];
        let (one, other) = (pick(rng), pick(rng));
        if one != other {
            network.add_link(one, other, capacity_kbps);
        }
    }
    network
}

/// A random tree of rules that leads every switch to a destination.
fn tree(rng: &mut Rng, network: &Network, destination: Switch) -> BTreeMap<Switch, Action> {
    let mut rules = BTreeMap::from([(destination, Action::Deliver)]);
    let mut edge: Vec<(Switch, Switch)> =
        network.neighbours(destination).map(|at| (at, destination)).collect();
    while !edge.is_empty() {
        let (from, to) = edge.swap_remove(rng.below(edge.len() as u64) as usize);
        if rules.contains_key(&from) {
            continue;
        }
        rules.insert(from, Action::Forward(to));
        edge.extend(network.neighbours(from).map(|at| (at, from)));
    }
    rules
}

/// The rules that packets from these sources meet.
fn used(rules: &BTreeMap<Switch, Action>, sources: impl Iterator<Item = Switch>) -> BTreeMap<Switch, Action> {
    let mut used = BTreeMap::new();
    for mut at in sources {
        while let Some(action) = rules.get(&at) {
            used.insert(at, *action);
            match action {
                Action::Forward(next) => at = *next,
                _ => break,
            }
        }
    }
    used
}

fn path(rules: &BTreeMap<Switch, Action>, mut at: Switch) -> Vec<Switch> {
    let mut path = vec![at];
    while let Some(Action::Forward(next)) = rules.get(&at) {
        at = *next;
        path.push(at);
    }
    path
}

/// A random flow to a random destination before and after, with demands that each policy meets.
pub fn flow(rng: &mut Rng, network: &Network, settings: &FlowSettings) -> (FlowPolicy, FlowPolicy) {
    let all: Vec<Switch> = network.switches().collect();
    let pick = |rng: &mut Rng| all[rng.below(all.len() as u64) as usize];
    let destination = pick(rng);
    let count = if rng.chance(1, 2) { 1 } else { 1 + rng.below(settings.sources_max) };
    let sources: BTreeMap<Switch, u64> = (0..count).map(|_| (pick(rng), settings.rate_kbps)).collect();
    let make = |rng: &mut Rng| {
        let mut rules = tree(rng, network, destination);
        if rng.chance(1, 8) {
            // Somebody on the way is denied.
            rules.insert(pick(rng), Action::Drop);
        }
        if rng.chance(1, 2) {
            rules = used(&rules, sources.keys().copied());
        }
        FlowPolicy { rules, sources: sources.clone(), ..FlowPolicy::default() }
    };
    let (mut old, mut new) = (make(rng), make(rng));
    // Waypoints are on all ways, or on all of each policy's own; what must be avoided is on none.
    let ways = |policy: &FlowPolicy| -> Vec<Vec<Switch>> {
        sources.keys().map(|source| path(&policy.rules, *source)).collect()
    };
    let (old_ways, new_ways) = (ways(&old), ways(&new));
    let both: Vec<&Vec<Switch>> = old_ways.iter().chain(&new_ways).collect();
    let own = rng.chance(3, 4);
    for (policy, own_ways) in [(&mut old, &old_ways), (&mut new, &new_ways)] {
        let of_own = |at: &Switch| own_ways.iter().all(|way| way.contains(at));
        let of_all = |at: &Switch| if own { of_own(at) } else { both.iter().all(|way| way.contains(at)) };
        let of_none = |at: &Switch| both.iter().all(|way| !way.contains(at));
        let waypoints: BTreeSet<Switch> = all.iter().copied().filter(of_all).collect();
        let avoid: BTreeSet<Switch> = all.iter().copied().filter(of_none).take(2).collect();
        policy.waypoints = waypoints;
        policy.avoid = avoid;
    }
    (old, new)
}

/// A random change of some flows on a network.
pub fn change_on(rng: &mut Rng, network: Network, flows: u64, settings: &FlowSettings) -> Change {
    let (mut old, mut new) = (Policy::default(), Policy::default());
    for at in 0..flows {
        let (before, after) = flow(rng, &network, settings);
        if !rng.chance(1, 10) {
            old.flows.insert(Flow(at as u32), before);
        }
        if !rng.chance(1, 10) {
            new.flows.insert(Flow(at as u32), after);
        }
    }
    let mut change = Change { network, old, new, versions: Versions::new() };
    if rng.chance(1, 4) {
        fail_a_link(rng, &mut change);
    }
    change
}

/// Fails a link that the new policy does not use.
fn fail_a_link(rng: &mut Rng, change: &mut Change) {
    let used = |from: Switch, to: Switch| {
        change.new.flows.values().any(|flow| flow.rules.get(&from) == Some(&Action::Forward(to)))
    };
    let links = change.network.links().map(|(link, _)| link);
    let free: Vec<_> = links.filter(|link| !used(link.from, link.to) && !used(link.to, link.from)).collect();
    if !free.is_empty() {
        let link = free[rng.below(free.len() as u64) as usize];
        change.network.fail_link(link.from, link.to);
    }
}

/// A small random change: 4 to 8 switches, 1 to 3 flows.
pub fn change(seed: u64) -> Change {
    let mut rng = Rng::new(seed);
    let switches = 4 + rng.below(5) as u32;
    let capacity_kbps = rng.chance(1, 2).then_some(10);
    let more = rng.below(3 * u64::from(switches));
    let network = network(&mut rng, switches, more, capacity_kbps);
    let flows = 1 + rng.below(3);
    let settings = FlowSettings { sources_max: 3, rate_kbps: 1 + rng.below(6) };
    change_on(&mut rng, network, flows, &settings)
}
