//! Replacing a flow's rules in place.
//!
//! **Reverse path** (row C1): a switch where packets pass gets its new rule when every switch after it on the new way has it.
//! Then a packet that meets a new rule once meets only new ones: its way is a piece of the old way and the
//! rest of a new one. So it cannot loop, and is not lost. A switch that is on no old way meets a packet only behind one
//! that is, so it waits for nothing: a new flow's rules go to all its switches at once, and then to where it
//! begins. Departure from Cicero, which goes back switch by switch: a flow is set up in two rounds however long its way is.
//!
//! **Guards**: such a mixed way may still break the policy. Let `c1 … cm` be the switches with a new rule on
//! a source's old way. The way that turns at `ci` can happen only when none of `c1 … ci-1` turned the packet
//! before. If it is bad, `ci` waits until some `cj` before it has its new rule and the packets that passed
//! `cj` by its old rule have drained. The way that turns at `c1` is the new way itself, so it is never bad.
//!
//! When guards and reverse path wait for each other there is no such plan, and the caller goes on to
//! [`super::search`] or [`super::versions`].

use super::draft::Draft;
use super::flow::FlowChange;
use super::walk::{Walk, walk};
use crate::network::Switch;
use crate::plan::{After, Method, Operation, Reason};
use crate::policy::Action;
use std::collections::BTreeMap;

/// Why there is no order in place.
#[derive(Clone, Debug)]
pub(super) struct Conflict {
    /// Where the packets enter.
    pub(super) source: Switch,
    /// The switch whose new rule would send them a bad way.
    pub(super) switch: Switch,
}

/// The next switch on the new way that changes, after this one.
fn next_changed(change: &FlowChange<'_>, switch: Switch) -> Option<Switch> {
    let mut at = switch;
    while let Some(Action::Forward(next)) = change.new.rules.get(&at) {
        at = *next;
        if change.changed.contains(&at) {
            return Some(at);
        }
    }
    None
}

/// A draft with the reverse-path order alone; the place of each switch's step.
pub(super) fn reverse_path(change: &FlowChange<'_>) -> (Draft, BTreeMap<Switch, usize>) {
    let mut draft = Draft::new(change, Method::InOrder, None);
    let mut places = BTreeMap::new();
    for switch in &change.changed {
        // The new way ends at a switch that is not in `places`; new rules have no loop.
        let mut way = vec![*switch];
        while let Some(next) = way.last().and_then(|last| next_changed(change, *last)) {
            if places.contains_key(&next) {
                break;
            }
            way.push(next);
        }
        for at in way.into_iter().rev() {
            if !places.contains_key(&at) {
                places.insert(at, put(change, &mut draft, at, &places));
            }
        }
    }
    (draft, places)
}

fn put(
    change: &FlowChange<'_>,
    draft: &mut Draft,
    switch: Switch,
    places: &BTreeMap<Switch, usize>,
) -> usize {
    let mut after = Vec::new();
    let mut at = change.carries_old(switch).then_some(switch);
    // Down to the next one that itself waits for all behind it.
    while let Some(next) = at.and_then(|at| next_changed(change, at)) {
        let reason = if change.old.rules.contains_key(&next) { Reason::Loop } else { Reason::BlackHole };
        after.push(After { step: places[&next], reason });
        at = (!change.carries_old(next)).then_some(next);
    }
    let operation = Operation::Put { switch, version: change.version, action: change.new.rules[&switch] };
    let step = draft.push(operation, after);
    if change.carries_old(switch) {
        draft.movers.insert(switch, step);
    }
    step
}

/// Plans a flow in place.
///
/// # Errors
/// A [`Conflict`] when guards and reverse path wait for each other.
pub(super) fn in_place(change: &FlowChange<'_>) -> Result<Draft, Conflict> {
    let (mut draft, places) = reverse_path(change);
    let mut drains = BTreeMap::new();
    for source in change.sources.keys() {
        guard(change, &mut draft, &places, &mut drains, *source)?;
    }
    if !drains.is_empty() {
        draft.note.method = Method::InOrderWithDrains;
        let names: Vec<String> =
            drains.keys().map(|switch| change.network.name(*switch).to_string()).collect();
        draft.note.why =
            Some(format!("packets that passed {} by the old rules must not meet new ones", names.join(", ")));
    }
    finish(change, &mut draft, places.values().copied().collect());
    Ok(draft)
}

/// Adds the removals to a draft whose steps so far are these.
pub(super) fn finish(change: &FlowChange<'_>, draft: &mut Draft, puts: Vec<usize>) {
    let last = draft.last_of(&puts);
    draft.remove(&last, &change.removed, change.version);
}

/// The way of packets that follow old rules to this switch and new ones from it on.
fn turned_at(change: &FlowChange<'_>, old: &Walk, place: usize) -> Walk {
    let rest = walk(change.network, old.path[place], |at| change.new.rules.get(&at).copied());
    let path = old.path[..place].iter().copied().chain(rest.path).collect();
    Walk { path, fate: rest.fate }
}

fn guard(
    change: &FlowChange<'_>,
    draft: &mut Draft,
    places: &BTreeMap<Switch, usize>,
    drains: &mut BTreeMap<Switch, usize>,
    source: Switch,
) -> Result<(), Conflict> {
    let old = &change.old_walks[&source];
    let mut before: Vec<Switch> = Vec::new();
    for (place, switch) in old.path.iter().enumerate() {
        if !change.changed.contains(switch) {
            continue;
        }
        if !before.is_empty() && !change.allows(source, &turned_at(change, old, place)) {
            let step = places[switch];
            // A guard that the step waits for already costs only the drain; else the first that fits.
            let fits = |guard: &&Switch| !draft.reaches(places[guard], step);
            let waited = |guard: &&Switch| draft.reaches(step, places[guard]);
            let chosen = before.iter().find(|guard| fits(guard) && waited(guard));
            let chosen = chosen.or_else(|| before.iter().find(fits)).copied();
            let guard = chosen.ok_or(Conflict { source, switch: *switch })?;
            let first = After { step: places[&guard], reason: Reason::Breach { source } };
            let drain = *drains.entry(guard).or_insert_with(|| draft.push(Operation::Drain, vec![first]));
            draft.wait(step, drain, Reason::InFlight);
        }
        before.push(*switch);
    }
    Ok(())
}
