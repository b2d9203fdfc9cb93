//! Linear mode (row R1): all updates that are decided and not acked stand in one line, in the order of decisions, and go one at a
//! time in the whole domain. So the switches' states are at every ack those after some whole events and a part of the next one.
//!
//! Invariants
//! - Nothing is left out: a newer update of a key replaces no older one, so each event is whole at some time.
//! - An update goes only when every update of every earlier event is acked; within an event they go as its plan says. Where updates
//!   of one event wait for each other by what they claim, and not by the plan, the plan's order counts.
//! - Versions that are kept though a newer one of their key is decided are bounded by number and bytes
//!   ([`SchedulerSettings::line_older_max`](super::SchedulerSettings)). Changes of people are refused at the door at half of it
//!   ([`Scheduler::line_is_long`]); what the order brings beyond it replaces what is older, is told and counted (`line_cut`).
//! - Whatever an actuator does not ack holds the line: that is the price (Theorem 2.4.1). Who does is told
//!   ([`Scheduler::line_status`]); it lets go when the actuator is forgotten ([`Scheduler::remove_target`]).
//! - What its actuator refuses holds the line until the key is decided anew; then it is given up, and counted (`line_given_up`): a
//!   change that mends it must be able to pass. What waits for it by its plan lets others pass until the new one is acked.
//! - Of a part ([`edges::whole`](weir_model::edges::whole)) whose delete was given up, something is in force still, and what it is a part of
//!   must not go before it: so the delete stays in its slot, out of the line, until a later version is acked.
//!
//! Of a state that was taken over from other replicas, or of one's own snapshot in a Byzantine group, only the last version of each key
//! is known: what was not acked by then goes in its order, but not each version of it.

use super::explain::WaitState;
use super::held::{Held, Place};
use super::{Mode, Node, Scheduler};
use crate::core::Output;
use serde::Serialize;
use std::collections::BTreeMap;
use weir_model::{Dependency, Key, Label, Version, edges};

/// A place in the line.
#[derive(Debug)]
struct Standing {
    node: Node,
    /// Its bytes, when a newer update of the key is decided.
    older: Option<usize>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Line {
    places: BTreeMap<Place, Standing>,
    pub older: usize,
    pub older_bytes: usize,
    /// The first place, and since when it is that.
    head: Option<(Place, u64)>,
}

impl Line {
    /// Enters an update; one that is there is told anew whether it is an older one of its key.
    pub fn add(&mut self, held: &Held, is_older: bool) {
        self.take(&held.place());
        let older = is_older.then_some(held.bytes);
        self.older += usize::from(is_older);
        self.older_bytes += older.unwrap_or(0);
        self.places.insert(held.place(), Standing { node: held.node(), older });
    }

    /// Whether an update stands in it.
    pub fn has(&self, place: &Place) -> bool {
        self.places.contains_key(place)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Takes an update out.
    pub fn take(&mut self, place: &Place) {
        if let Some(bytes) = self.places.remove(place).and_then(|standing| standing.older) {
            self.older -= 1;
            self.older_bytes -= bytes;
        }
    }
}

/// The line, and what holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineStatus {
    /// The actuator of the first update.
    pub target: Label,
    /// Its key.
    pub key: Key,
    /// Its version.
    pub version: Version,
    /// Why it is not acked.
    pub state: WaitState,
    /// For how long it has been the first, milliseconds.
    pub for_ms: u64,
    /// Updates in the line.
    pub length: usize,
    /// Of these, older ones of keys that were decided anew since.
    pub older: usize,
}

impl Scheduler {
    pub(super) fn is_linear(&self) -> bool {
        self.settings.mode == Mode::Linear
    }

    /// Whether so much waits that no more should be asked for.
    pub fn line_is_long(&self) -> bool {
        self.line.older >= self.settings.line_older_max / 2
            || self.line.older_bytes >= self.settings.line_older_bytes_max / 2
    }

    /// Enters an update that is to be put; gives how many older ones of its key stay.
    pub(super) fn enter_line(&mut self, held: &Held) -> usize {
        let (label, key) = held.node();
        let slot = self.targets.get(&label).and_then(|target| target.slots.get(&key));
        if let Some(slot) = slot
            && slot.acked < Some(slot.desired().version())
        {
            self.line.add(slot.desired(), true);
        }
        self.line.add(held, false);
        let is_full = self.line.older > self.settings.line_older_max
            || self.line.older_bytes > self.settings.line_older_bytes_max;
        if is_full { 0 } else { usize::MAX }
    }

    /// So many updates never go because the line was full.
    pub(super) fn cut_line(&mut self, many: u64) {
        if many > 0 && self.counters.line_cut == 0 {
            let limit = self.settings.line_older_max;
            tracing::error!(
                limit,
                "too many updates wait for one that is not acked: older ones of the same keys are left out from now on, and events need \
                 not be whole; 'weir status' names what holds the line"
            );
        }
        self.counters.line_cut += many;
    }

    /// An update that was refused never goes, when a newer one of its key is there. One delete stays known: see the module.
    pub(super) fn give_up(&mut self, label: &Label, key: &Key, version: Version) {
        let Some(target) = self.targets.get_mut(label) else { return };
        let Some(slot) = target.slots.get_mut(key).filter(|slot| slot.desired().version() > version) else {
            return;
        };
        let Some(at) = slot.held.iter().position(|held| held.version() == version) else { return };
        let line = &mut self.line;
        line.take(&slot.held[at].place());
        let is_known = slot.held[..at].iter().any(|older| !line.has(&older.place()));
        if is_known || !slot.held[at].is_delete() || edges::whole(key).is_none() {
            slot.held.remove(at);
        }
        if slot.refused.as_ref().is_some_and(|(refused, ..)| *refused == version) {
            slot.refused = None;
            slot.repeat_refusal = false;
            target.refused.remove(key);
        }
        if slot.sent_version() == Some(version) {
            target.take_back(key);
        }
        self.counters.line_given_up += 1;
    }

    /// Sends the first update of the line, when none is under way.
    pub(super) fn pump_line(&mut self, out: &mut Vec<Output>) {
        if self.line.is_empty() || self.targets.values().any(|target| !target.in_flight.is_empty()) {
            return;
        }
        let Some((node, at)) = self.next_in_line() else { return };
        let target = &self.targets[&node.0];
        let slot = &target.slots[&node.1];
        if !target.is_ready() || slot.refused.is_some() || !self.may_go(&slot.held[at]) {
            return;
        }
        let released = self.release(&node, at);
        self.counters.sent += 1;
        self.emit(&node.0, released.into_iter().collect(), out);
    }

    /// Remembers since when the first update is the first.
    pub(super) fn look_at_line(&mut self) {
        let first = self.line.places.keys().next().copied();
        if self.line.head.map(|(place, _)| place) != first {
            self.line.head = first.map(|place| (place, self.now_ms));
        }
    }

    /// Where an update of the line is in its slot.
    fn stands_at(&self, node: &Node, place: Place) -> Option<(&Held, usize)> {
        let slot = self.targets.get(&node.0)?.slots.get(&node.1)?;
        let at = slot.held.iter().position(|held| held.place() == place)?;
        Some((&slot.held[at], at))
    }

    /// The update that goes next: one of the first event. That is passed over only while something of it waits for what was given up, and
    /// so is what waits for an event that was passed over.
    fn next_in_line(&self) -> Option<(Node, usize)> {
        let mut places = self.line.places.iter().peekable();
        let mut passed = false;
        while let Some(((version, _), _)) = places.peek().copied() {
            let (mut by_claim, mut passes) = (None, false);
            while let Some((place, standing)) = places.next_if(|((of, _), _)| of == version) {
                let Some((held, at)) = self.stands_at(&standing.node, *place) else { continue };
                let missing: Vec<Dependency> = self.missing(held).collect();
                if missing.is_empty() {
                    return Some((standing.node.clone(), at));
                }
                let is_claim = |one: &Dependency| one.reason == edges::LETS_GO && one.version == *version;
                if by_claim.is_none() && missing.iter().all(is_claim) {
                    by_claim = Some((standing.node.clone(), at));
                }
                let is_passed = |one: &Dependency| passed && one.version < *version;
                passes |= missing.iter().any(|one| is_passed(one) || self.was_given_up(held, one));
            }
            if by_claim.is_some() || !passes {
                return by_claim;
            }
            passed = true;
        }
        None
    }

    /// Whether what an update waits for does not stand in the line any more, nor is in force. Of an actuator that was not heard since this scheduler
    /// began, nobody knows what is in force.
    fn was_given_up(&self, held: &Held, dependency: &Dependency) -> bool {
        let target = self.targets.get(&dependency.target).filter(|target| target.known);
        let slot = target.and_then(|target| target.slots.get(&dependency.key));
        let may_come = dependency.version..=held.version();
        slot.is_some_and(|slot| {
            let comes = |other: &Held| may_come.contains(&other.version()) && self.line.has(&other.place());
            slot.acked < Some(dependency.version) && !slot.held.iter().any(comes)
        })
    }

    /// What holds the line; nothing when nothing waits, or in another mode.
    pub fn line_status(&self) -> Option<LineStatus> {
        let (first, standing) = self.line.places.first_key_value()?;
        let under_way = self.targets.iter().find_map(|(label, target)| {
            let key = target.in_flight.first()?;
            let version = target.slots.get(key)?.sent_version()?;
            let held = &target.slots[key].held;
            let at = held.iter().position(|held| held.version() == version)?;
            Some(((label.clone(), key.clone()), at))
        });
        let next = under_way.or_else(|| self.next_in_line());
        let (node, at) =
            next.or_else(|| Some((standing.node.clone(), self.stands_at(&standing.node, *first)?.1)))?;
        let target = self.targets.get(&node.0)?;
        let slot = target.slots.get(&node.1)?;
        let held = slot.held.get(at)?;
        let since_ms = self.line.head.map_or(self.now_ms, |(_, since_ms)| since_ms);
        Some(LineStatus {
            version: held.version(),
            state: self.wait_state(target, slot, held),
            target: node.0,
            key: node.1,
            for_ms: self.now_ms.saturating_sub(since_ms),
            length: self.line.places.len(),
            older: self.line.older,
        })
    }
}
