//! Releasing: which update may go, what is sent, what is sent again.

use super::frames::Packed;
use super::held::Held;
use super::slot::Sent;
use super::{Mode, Node, Scheduler, frames};
use crate::core::Output;
use std::collections::BTreeSet;
use weir_model::signed::{SignedUpdates, UnsignedUpdates};
use weir_model::{Dependency, Key, Label, edges};

/// An update that was sent without a signature is sent with it after so long, milliseconds.
const UNSIGNED_RESEND_MS: u64 = 200;

impl Scheduler {
    /// Looks whether an update of a node may go: enters it into its actuator's queue, or waits for
    /// the first thing that is missing.
    pub(super) fn evaluate(&mut self, node: &Node) {
        self.dirty.insert(node.0.clone());
        if self.is_linear() {
            return;
        }
        match self.candidate(node) {
            Ok(_) => {
                let Some(target) = self.targets.get_mut(&node.0) else { return };
                let Some(slot) = target.slots.get_mut(&node.1).filter(|slot| !slot.queued) else { return };
                slot.queued = true;
                target.queue.push(node.1.clone());
            }
            Err(missing) => {
                for dependency in missing {
                    let other = (dependency.target, dependency.key);
                    self.waiting.entry(other).or_default().insert(node.clone());
                }
            }
        }
    }

    /// Whether its signature is there, or is not waited for.
    pub(super) fn may_go(&self, held: &Held) -> bool {
        held.is_signed() || (self.settings.send_unsigned && !held.header.by_key)
    }

    /// The newest update of a node that may go, as its index in the slot; else, for each that could
    /// go, the first dependency that is missing.
    pub(super) fn candidate(&self, node: &Node) -> Result<usize, Vec<Dependency>> {
        let Some(slot) = self.targets.get(&node.0).and_then(|target| target.slots.get(&node.1)) else {
            return Err(Vec::new());
        };
        let floor = slot.acked.max(slot.sent_version());
        let refused = slot.refused.as_ref().map(|(version, ..)| *version);
        let mut missing = Vec::new();
        for (at, held) in slot.held.iter().enumerate().rev() {
            if Some(held.version()) <= floor {
                break;
            }
            if Some(held.version()) == refused || !self.may_go(held) {
                continue;
            }
            match self.first_missing(held) {
                None => return Ok(at),
                Some(dependency) => missing.push(dependency),
            }
        }
        Err(missing)
    }

    fn first_missing(&self, held: &Held) -> Option<Dependency> {
        match self.settings.mode {
            Mode::None => None,
            Mode::Linear | Mode::Dependent => self.missing(held).next(),
        }
    }

    /// What an update waits for.
    pub(super) fn missing<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = Dependency> + 'a {
        let added =
            self.survived_in_the_way(held).chain(std::iter::once(held).flat_map(|held| self.rivals(held)));
        self.planned_missing(held).chain(added.filter(|dependency| !self.is_cut(held, dependency)))
    }

    /// What an update waits for by its plan.
    pub(super) fn planned_missing<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = Dependency> + 'a {
        let counts = |dependency: &&Dependency| {
            !self.is_satisfied(dependency)
                && !self.is_futile(held, dependency)
                && !self.is_away(dependency)
                && !self.is_cut(held, dependency)
        };
        held.after.iter().filter(counts).cloned()
    }

    /// Gives out everything that may go now.
    pub fn pump(&mut self, out: &mut Vec<Output>) {
        for node in std::mem::take(&mut self.woken) {
            self.evaluate(&node);
        }
        if self.is_linear() {
            self.look_at_line();
        }
        if !self.leads {
            return;
        }
        let dirty = std::mem::take(&mut self.dirty);
        match self.settings.mode {
            Mode::Linear => self.pump_line(out),
            Mode::None | Mode::Dependent => {
                for label in dirty {
                    self.pump_target(&label, out);
                }
            }
        }
    }

    fn pump_target(&mut self, label: &Label, out: &mut Vec<Output>) {
        let (window, window_bytes) = (self.settings.window, self.settings.window_bytes);
        let mut released = Vec::new();
        loop {
            let Some(target) = self.targets.get_mut(label).filter(|target| target.is_ready()) else { return };
            if target.in_flight.len() >= window || target.in_flight_bytes >= window_bytes {
                break;
            }
            let Some(key) = target.queue.pop() else { break };
            if let Some(slot) = target.slots.get_mut(&key) {
                slot.queued = false;
            }
            let node = (label.clone(), key);
            match self.candidate(&node) {
                Ok(at) => released.extend(self.release(&node, at)),
                Err(_) => self.evaluate(&node),
            }
        }
        self.counters.sent += released.len() as u64;
        self.emit(label, released, out);
    }

    /// Marks an update as sent and drops the older ones of its slot.
    pub(super) fn release(&mut self, node: &Node, at: usize) -> Option<Held> {
        let now_ms = self.now_ms;
        let target = self.targets.get_mut(&node.0)?;
        target.take_back(&node.1);
        let slot = target.slots.get_mut(&node.1)?;
        let held = slot.held.get(at)?.clone();
        target.claims.add(&node.1, edges::claims(&held.proven.update));
        // In linear mode, what does not stand in the line was given up, and stays known until a later one is acked.
        let (line, is_linear) = (&self.line, self.settings.mode == Mode::Linear);
        let is_superseded =
            |older: &mut Held| older.version() < held.version() && (!is_linear || line.has(&older.place()));
        let superseded: Vec<Held> = slot.held.extract_if(.., is_superseded).collect();
        let (version, signed, bytes) = (held.version(), held.is_signed(), held.bytes);
        slot.sends(Sent { version, at_ms: now_ms, bytes, signed });
        target.in_flight.insert(node.1.clone());
        target.in_flight_bytes += held.bytes;
        for old in &superseded {
            self.line.take(&old.place());
        }
        if is_linear {
            self.counters.line_given_up += superseded.len() as u64;
        }
        Some(held)
    }

    pub(super) fn emit(&self, label: &Label, released: Vec<Held>, out: &mut Vec<Output>) {
        let Some(session) = self.targets.get(label).and_then(|target| target.session) else { return };
        for Packed { header, updates } in frames::pack(released) {
            let target = label.clone();
            out.push(match header.to_signed() {
                Some(header) => Output::Send { target, session, updates: SignedUpdates { header, updates } },
                None => {
                    let updates = UnsignedUpdates { header: header.header.clone(), updates };
                    Output::SendUnsigned { target, session, updates }
                }
            });
        }
    }

    /// Time passed (any clock that does not go back): sends again what was not answered, tries again
    /// what was refused, closes sessions that do not send their state.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.now_ms = self.now_ms.max(now_ms);
        let connected: Vec<Label> = self
            .targets
            .iter()
            .filter(|(_, target)| target.session.is_some())
            .map(|(label, _)| label.clone())
            .collect();
        for label in connected {
            self.close_if_silent(&label, out);
            self.ask_again(&label, out);
            if self.leads {
                self.resend(&label, out);
                self.retry(&label, out);
                self.go_beyond(&label, out);
            }
        }
        self.look_for_rings();
    }

    fn close_if_silent(&mut self, label: &Label, out: &mut Vec<Output>) {
        let (now_ms, state_ms) = (self.now_ms, self.settings.state_ms);
        let Some(target) = self.targets.get(label) else { return };
        let (Some(collecting), Some(session)) = (&target.collecting, target.session) else { return };
        if now_ms - collecting.since_ms > state_ms {
            self.counters.states_failed += 1;
            let reason = format!("the state was not sent within {state_ms} ms");
            self.disconnected(label, session);
            out.push(Output::Close { target: label.clone(), session, reason });
        }
    }

    fn resend(&mut self, label: &Label, out: &mut Vec<Output>) {
        let (now_ms, resend_ms) = (self.now_ms, self.settings.resend_ms);
        let Some(target) = self.targets.get_mut(label) else { return };
        let mut again = Vec::new();
        let mut replaced = BTreeSet::new();
        for key in &target.in_flight {
            let Some(slot) = target.slots.get_mut(key) else { continue };
            let Some(sent) = slot.sent.as_mut() else { continue };
            let held = slot.held.iter().find(|held| held.version() == sent.version);
            // Shares are sent once: with the whole signature there is no need to wait for them.
            let whole = !sent.signed && held.is_some_and(Held::is_signed);
            let patience_ms = if whole { resend_ms.min(UNSIGNED_RESEND_MS) } else { resend_ms };
            if now_ms - sent.at_ms <= patience_ms {
                continue;
            }
            match held {
                Some(held) => {
                    (sent.at_ms, sent.signed) = (now_ms, held.is_signed());
                    again.push(held.clone());
                }
                None => drop(replaced.insert(key.clone())),
            }
        }
        replaced.iter().for_each(|key| target.take_back(key));
        self.counters.resent += again.len() as u64;
        self.emit(label, again, out);
        for key in replaced {
            self.evaluate(&(label.clone(), key));
        }
    }

    fn retry(&mut self, label: &Label, out: &mut Vec<Output>) {
        let (now_ms, retry_ms) = (self.now_ms, self.settings.retry_ms);
        let Some(target) = self.targets.get_mut(label) else { return };
        let due: Vec<Key> = target
            .refused
            .iter()
            .filter(|key| {
                let since_ms = target.slots[*key].refused.as_ref().map_or(0, |(.., at_ms)| *at_ms);
                now_ms - since_ms > retry_ms
            })
            .cloned()
            .collect();
        for key in &due {
            target.refused.remove(key);
            target.repairing.remove(key);
            if let Some(slot) = target.slots.get_mut(key) {
                slot.refused = None;
            }
        }
        let lost: Vec<_> = target
            .repairing
            .iter()
            .filter(|(_, (_, at_ms))| now_ms - at_ms > retry_ms)
            .map(|(key, (found, _))| (key.clone(), *found))
            .collect();
        target.repairing.retain(|_, (_, at_ms)| now_ms - *at_ms <= retry_ms);
        self.counters.retried += due.len() as u64;
        for key in due {
            self.evaluate(&(label.clone(), key));
        }
        self.repair(label, lost, out);
    }
}
