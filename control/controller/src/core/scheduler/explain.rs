//! What the scheduler can say about itself: state of actuators and keys, and why an update waits.

use super::held::Held;
use super::progress::Reached;
use super::slot::{Slot, Target};
use super::{Mode, Scheduler};
use serde::Serialize;
use weir_model::update::Refusal;
use weir_model::{Dependency, Key, Label, Version};

/// Why an update is not acked yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum WaitState {
    /// It waits for these.
    Dependencies(Vec<Dependency>),
    /// Its actuator is not connected.
    Disconnected,
    /// Its actuator has not told its state yet.
    Comparing,
    /// The group has not signed its batch yet.
    Unsigned,
    /// It may go; its actuator's window is full, or, in linear mode, it is not its turn.
    Queued,
    /// It was sent and not answered.
    Sent {
        /// For how long, milliseconds.
        for_ms: u64,
    },
    /// The actuator refused it; it is tried again.
    Refused(Refusal),
}

/// An update that is not acked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The actuator.
    pub target: Label,
    /// The key.
    pub key: Key,
    /// The version.
    pub version: Version,
    /// Why.
    pub state: WaitState,
}

/// How an actuator is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TargetStatus {
    /// Its name.
    pub target: Label,
    /// Whether it has a session.
    pub connected: bool,
    /// Whether its state is known, so that updates can go.
    pub synced: bool,
    /// Keys desired, tombstones not counted.
    pub keys: usize,
    /// Deleted keys remembered.
    pub tombstones: usize,
    /// Highest version desired.
    pub desired: Version,
    /// Everything desired up to here is acked, so in force.
    pub acked: Version,
    /// Keys whose desired version is not in force.
    pub lag: usize,
    /// Of these, sent and not answered.
    pub in_flight: usize,
    /// Of these, ready to be sent.
    pub queued: usize,
    /// Of these, refused.
    pub refused: usize,
}

/// How a key of an actuator is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyStatus {
    /// The key.
    pub key: Key,
    /// Version desired.
    pub desired: Version,
    /// Whether it is desired to be gone.
    pub deleted: bool,
    /// Version acked, so in force; `None` when unknown or absent.
    pub acked: Option<Version>,
}

impl Scheduler {
    /// How an actuator is.
    pub fn target_status(&self, label: &Label) -> Option<TargetStatus> {
        let target = self.targets.get(label)?;
        Some(TargetStatus {
            target: label.clone(),
            connected: target.session.is_some(),
            // Whether it holds other values at the same versions is not known yet.
            synced: target.synced && !target.doubt.is_some_and(|doubt| doubt.all_known),
            keys: target.slots.len() - target.tombstones.len(),
            tombstones: target.tombstones.len(),
            desired: target.desired_max,
            acked: target.acked_through(),
            lag: target.behind.len(),
            in_flight: target.in_flight.len(),
            queued: target.queue.len(),
            refused: target.refused.len(),
        })
    }

    /// Keys of an actuator behind `after`, at most `limit`.
    pub fn key_status(&self, label: &Label, after: Option<&Key>, limit: usize) -> Vec<KeyStatus> {
        use std::ops::Bound::{Excluded, Unbounded};
        let Some(target) = self.targets.get(label) else { return Vec::new() };
        let from = after.map_or(Unbounded, Excluded);
        let slots = target.slots.range((from, Unbounded)).take(limit);
        slots
            .map(|(key, slot)| KeyStatus {
                key: key.clone(),
                desired: slot.desired().version(),
                deleted: slot.desired().is_delete(),
                acked: slot.acked,
            })
            .collect()
    }

    /// Updates that are not acked and why, oldest decisions first for each actuator, at most `limit`.
    pub fn waiting(&self, limit: usize) -> Vec<Waiting> {
        self.waiting_of_each(limit, limit)
    }

    /// The same, at most `each` of an actuator, so that no actuator hides another and a look costs little
    /// however much waits.
    pub fn waiting_of_each(&self, each: usize, limit: usize) -> Vec<Waiting> {
        let all = self.targets.iter().flat_map(|(label, target)| {
            target.behind.iter().take(each).map(move |(version, key)| (label, target, *version, key))
        });
        all.take(limit)
            .map(|(label, target, version, key)| Waiting {
                target: label.clone(),
                key: key.clone(),
                version,
                state: self.wait_state(target, &target.slots[key], target.slots[key].desired()),
            })
            .collect()
    }

    /// Why one of a slot's updates is not acked.
    pub(super) fn wait_state(&self, target: &Target, slot: &Slot, held: &Held) -> WaitState {
        if let Some((_, refusal, _)) = &slot.refused {
            return WaitState::Refused(refusal.clone());
        }
        if let Some(sent) = &slot.sent {
            return WaitState::Sent { for_ms: self.now_ms - sent.at_ms };
        }
        let missing: Vec<Dependency> = match self.settings.mode {
            Mode::None => Vec::new(),
            Mode::Linear | Mode::Dependent => self.missing(held).collect(),
        };
        match (target.session, target.synced) {
            _ if !missing.is_empty() => WaitState::Dependencies(missing),
            (None, _) => WaitState::Disconnected,
            (Some(_), false) => WaitState::Comparing,
            (Some(_), true) if !held.is_signed() => WaitState::Unsigned,
            (Some(_), true) => WaitState::Queued,
        }
    }

    /// How far the updates of a version are.
    pub fn reached(&self, version: Version) -> Reached {
        self.progress.reached(version, self.decided)
    }
}
