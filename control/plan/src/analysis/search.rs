//! Looking for any order at all, where the reverse path gives none: switch by switch, packets draining in
//! between, every state judged by itself. Small changes only; what it finds is the evidence for, or
//! against, "no order exists".

use super::draft::Draft;
use super::flow::FlowChange;
use super::order::finish;
use crate::network::Switch;
use crate::plan::{After, Method, Operation, Reason};
use std::collections::BTreeSet;

/// What came of a search.
pub(super) enum Found {
    /// An order in which every state is good.
    Order(Vec<Switch>),
    /// There is none.
    Nothing,
    /// There are too many switches to look.
    TooMany,
}

/// Looks through all orders of at most `switches_max` changed switches.
pub(super) fn search(change: &FlowChange<'_>, switches_max: usize) -> Found {
    let switches: Vec<Switch> = change.changed.iter().copied().collect();
    if switches.len() > switches_max.min(16) {
        return Found::TooMany;
    }
    let mut dead = BTreeSet::new();
    let mut order = Vec::new();
    if extend(change, &switches, 0, &mut order, &mut dead) { Found::Order(order) } else { Found::Nothing }
}

fn extend(
    change: &FlowChange<'_>,
    switches: &[Switch],
    done: u32,
    order: &mut Vec<Switch>,
    dead: &mut BTreeSet<u32>,
) -> bool {
    if order.len() == switches.len() {
        return true;
    }
    for (at, switch) in switches.iter().enumerate() {
        let next = done | 1 << at;
        if next == done || dead.contains(&next) {
            continue;
        }
        if is_good(change, switches, next) {
            order.push(*switch);
            if extend(change, switches, next, order, dead) {
                return true;
            }
            order.pop();
        }
        dead.insert(next);
    }
    false
}

fn is_good(change: &FlowChange<'_>, switches: &[Switch], done: u32) -> bool {
    let is_new = |at: Switch| {
        let place = switches.binary_search(&at);
        // Switches that keep or lose their rule have the old one until the end.
        place.is_ok_and(|place| done & 1 << place != 0)
    };
    change.sources.keys().all(|source| change.allows(*source, &change.mixed(*source, is_new)))
}

/// The plan of an order that was found.
pub(super) fn one_by_one(change: &FlowChange<'_>, order: &[Switch], why: String) -> Draft {
    let mut draft = Draft::new(change, Method::OneByOne, Some(why));
    let mut last = None;
    for switch in order {
        let after = last.map(|step| After { step, reason: Reason::OneByOne });
        let drained = after.map(|after| draft.push(Operation::Drain, vec![after]));
        let after = drained.map(|step| After { step, reason: Reason::InFlight });
        let operation =
            Operation::Put { switch: *switch, version: change.version, action: change.new.rules[switch] };
        let step = draft.push(operation, after.into_iter().collect());
        if change.carries_old(*switch) {
            draft.movers.insert(*switch, step);
        }
        last = Some(step);
    }
    finish(change, &mut draft, last.into_iter().collect());
    draft
}
