//! Following without leading: what a replica of a group does while another one sends (rows B1, R1).
//!
//! Actuators have sessions with every replica and answer all of them, so each replica knows what is acked. Only the
//! one that leads sends updates and proposes repairs. When that changes, the new leader sends what is desired and
//! not acked, and the gate of an actuator acks at once what it had already: nothing is programmed twice.
//!
//! A replica that is behind in the order hears of versions before it decides them. It keeps these ([`Target::ahead`]) and
//! counts them as acked when it comes to them. What is left when it begins to lead, with everything decided that ever was,
//! is what an actuator holds and nobody desires: that is repaired.

use super::slot::Target;
use super::{Node, Scheduler};
use crate::core::Output;
use weir_model::{Key, Label, Version};

/// Most keys of one actuator that are remembered ahead of the order. More are forgotten; a new leader sends them
/// once more.
const AHEAD_MAX: usize = 65_536;

impl Scheduler {
    /// Whether this replica leads; without a group it always does.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Begins or ceases to send. Whoever begins has decided all that was ever ordered.
    pub fn lead(&mut self, leads: bool, out: &mut Vec<Output>) {
        if self.leads == leads {
            return;
        }
        self.leads = leads;
        let labels: Vec<Label> = self.targets.keys().cloned().collect();
        for label in labels {
            if leads { self.begin_to_send(&label, out) } else { self.cease_to_send(&label) }
        }
    }

    fn begin_to_send(&mut self, label: &Label, out: &mut Vec<Output>) {
        let Some(target) = self.targets.get_mut(label) else { return };
        let left = std::mem::take(&mut target.ahead);
        self.dirty.insert(label.clone());
        self.mend(label, left.into_iter().collect(), out);
    }

    /// What was sent may or may not arrive; whoever leads next sends it again.
    fn cease_to_send(&mut self, label: &Label) {
        let Some(target) = self.targets.get_mut(label) else { return };
        target.repairing.clear();
        let sent: Vec<Key> = target.in_flight.iter().cloned().collect();
        for key in &sent {
            target.take_back(key);
        }
        for key in sent {
            self.evaluate(&(label.clone(), key));
        }
    }

    /// An ack for a version that is not desired here.
    pub(super) fn ack_ahead(&mut self, label: &Label, key: &Key, version: Version) {
        let Some(target) = self.targets.get_mut(label).filter(|_| !self.leads) else {
            self.counters.acks_unknown += 1;
            return;
        };
        if target.ahead.len() < AHEAD_MAX || target.ahead.contains_key(key) {
            self.counters.acks_ahead += 1;
            let known = target.ahead.entry(key.clone()).or_insert(version);
            *known = version.max(*known);
        }
    }

    /// A key has a new desired version: what was known ahead of it counts now.
    pub(super) fn take_ahead(&mut self, node: &Node, out: &mut Vec<Output>) {
        let Some(target) = self.targets.get_mut(&node.0) else { return };
        let Some(found) = ahead_of(target, &node.1) else { return };
        target.ahead.remove(&node.1);
        self.set_acked(&node.0, &node.1, Some(found), out);
    }
}

/// The version in force ahead, when the order has come to it.
fn ahead_of(target: &Target, key: &Key) -> Option<Version> {
    let found = *target.ahead.get(key)?;
    let desired = target.slots.get(key)?.desired().version();
    (found <= desired).then_some(found)
}

#[cfg(test)]
mod tests;
