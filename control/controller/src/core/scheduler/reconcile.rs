//! Reconciling with an actuator that returns: by its digest when nothing differs, else by the
//! difference of states (row A6; pains 1, 2 and 4).
//!
//! - Its digest is that of everything desired: all is in force, nothing is sent.
//! - Its digest is that of what it had acked here: it is as it was, only what waits is sent.
//! - Else it is asked for its keys and versions. A key at the desired version is taken as acked. A key
//!   that is older or missing is sent, in the order of dependencies as any update. A key that
//!   nobody desires, or that is newer than desired, cannot be mended by sending: it is proposed
//!   to the order as a repair, and comes back as a signed update with a fresh version.
//! - Digests are of values, not of versions alone. An order that was restored from a backup and went on comes to the same versions with
//!   other values: an actuator whose keys and versions are as desired, and whose digest twice differs from what they would have in the
//!   same way, holds such values. All of it is decided anew, since a digest does not say which key it is. Where the digest
//!   cannot be told from the keys, because what was in force has been replaced since, or changed while it was asked, the session is closed once
//!   more when nothing is under way, and its next digest tells. Actuators of earlier releases tell digests of versions only.
//! - A key at a version that this order has not reached was decided by another order, or this one was restored from an old
//!   backup, or has lost what it had decided. It is counted, and when that is still so after [`BEYOND_MS`] (a replica may be
//!   behind) told, and repaired like the others: the order goes on above it
//!   (see [`continues_at`]), so that no later version is one that an actuator has with another content.

use super::Scheduler;
use super::held::{Held, Sums, pair_digest};
use super::slot::{Collecting, Doubt, Target};
use crate::core::Output;
use std::collections::BTreeMap;
use weir_model::session::StateDigest;
use weir_model::update::Refusal;
use weir_model::{Key, Label, Version};
use weir_trust::gate::{ENTRIES_MAX, TOMBSTONES_MAX};

/// How far above what was decided the order goes on for what an actuator holds. No order gets so far by deciding, and so an
/// actuator that says anything cannot use up the versions.
pub const CONTINUE_MAX: u64 = 1 << 32;

/// How long the order may take to reach a version that an actuator holds, before it goes on above it.
pub const BEYOND_MS: u64 = 10_000;

/// At which version an order that comes after `decided` decides keys anew that were found at these versions.
pub fn continues_at(decided: Version, found: impl Iterator<Item = Version>) -> Version {
    let highest = found.filter(|version| is_followed(decided, *version)).max().unwrap_or(Version::ZERO);
    Version(decided.0.max(highest.0) + 1)
}

/// Whether the order goes on above a version that was found.
pub fn is_followed(decided: Version, found: Version) -> bool {
    found.0.saturating_sub(decided.0) <= CONTINUE_MAX
}

/// An actuator whose digest is in doubt is asked again after so long, at first; twice as long each time.
const DOUBT_MIN_MS: u64 = 1_000;
/// And at most.
const DOUBT_MAX_MS: u64 = 64_000;

/// Most keys of one repair.
pub const REPAIR_KEYS_MAX: usize = 1024;
/// Most keys of a state: what a gate can hold.
pub(super) const STATE_KEYS_MAX: usize = ENTRIES_MAX + TOMBSTONES_MAX;

/// How far the digest of an actuator is from that of the keys and versions that were found there, and whether all of their values are
/// known here; nothing when it is the same, also by versions alone.
fn difference(target: &Target, found: &BTreeMap<Key, Version>) -> Option<(u128, bool)> {
    let (mut sums, mut all_known) = (Sums::default(), true);
    for (key, version) in found {
        let known = target.slots.get(key).and_then(|slot| slot.known_sums(*version));
        all_known &= known.is_some();
        sums.add(known.unwrap_or_else(|| Sums { versions: pair_digest(key, *version), contents: 0 }));
    }
    let difference = target.greeted.wrapping_sub(sums.contents);
    let same = target.greeted == sums.versions || (all_known && difference == 0);
    (!same).then_some((difference, all_known))
}

impl Scheduler {
    /// An actuator opened a session; a session with a lower number that it had is over.
    pub fn connected(&mut self, label: &Label, session: u64, digest: StateDigest, out: &mut Vec<Output>) {
        if let Some(old) = self.targets.get(label).and_then(|target| target.session) {
            if old > session {
                self.counters.stale_sessions += 1;
                return;
            }
            self.disconnected(label, old);
        }
        let now_ms = self.now_ms;
        let target = self.targets.entry(label.clone()).or_default();
        target.session = Some(session);
        target.greeted = digest.0;
        for key in std::mem::take(&mut target.refused) {
            if let Some(slot) = target.slots.get_mut(&key) {
                slot.refused = None;
            }
        }
        if target.desired_sums.is(digest.0) {
            target.doubt = None;
            self.counters.sessions_in_sync += 1;
            let behind: Vec<_> = target.behind.iter().cloned().collect();
            for (version, key) in behind {
                self.set_acked(label, &key, Some(version), out);
            }
            self.synced(label, out);
        } else if target.known && target.acked_sums.is(digest.0) {
            target.doubt = None;
            self.counters.sessions_as_left += 1;
            self.synced(label, out);
        } else {
            self.counters.sessions_compared += 1;
            target.collecting = Some(Collecting { entries: BTreeMap::new(), since_ms: now_ms });
            out.push(Output::AskState { target: label.clone(), session });
        }
    }

    /// A session is over. What was sent in it and not acked may or may not be in force.
    pub fn disconnected(&mut self, label: &Label, session: u64) {
        let Some(target) = self.targets.get_mut(label).filter(|target| target.session == Some(session))
        else {
            self.counters.stale_sessions += 1;
            return;
        };
        target.session = None;
        target.synced = false;
        target.collecting = None;
        target.plane_parts.clear();
        target.repairing.clear();
        target.ahead.clear();
        target.beyond.clear();
        for key in std::mem::take(&mut target.in_flight) {
            if let Some(slot) = target.slots.get_mut(&key) {
                slot.sent = None;
            }
        }
        target.in_flight_bytes = 0;
        for key in target.queue.drain() {
            if let Some(slot) = target.slots.get_mut(&key) {
                slot.queued = false;
            }
        }
        // Nobody waits for a receiver that is away.
        self.wake_all(label);
    }

    /// The session's state is known.
    fn synced(&mut self, label: &Label, out: &mut Vec<Output>) {
        let Some(target) = self.targets.get_mut(label) else { return };
        target.synced = true;
        target.known = true;
        let behind: Vec<Key> = target.behind.iter().map(|(_, key)| key.clone()).collect();
        for key in behind {
            self.evaluate(&(label.clone(), key));
        }
        self.wake_all(label);
        self.dirty.insert(label.clone());
        self.forget_tombstones(label, out);
    }

    /// Part of an actuator's state: keys with versions, tombstones included.
    pub fn state(
        &mut self,
        label: &Label,
        session: u64,
        entries: Vec<(Key, Version)>,
        last: bool,
        out: &mut Vec<Output>,
    ) {
        let Some(target) = self.targets.get_mut(label).filter(|target| target.session == Some(session))
        else {
            self.counters.stale_sessions += 1;
            return;
        };
        let Some(collecting) = target.collecting.as_mut() else { return };
        collecting.entries.extend(entries);
        if collecting.entries.len() > STATE_KEYS_MAX {
            self.counters.states_failed += 1;
            self.disconnected(label, session);
            let reason = format!("the state has more than {STATE_KEYS_MAX} keys");
            out.push(Output::Close { target: label.clone(), session, reason });
        } else if last && let Some(collected) = target.collecting.take() {
            self.compare(label, collected.entries, out);
            self.synced(label, out);
        }
    }

    fn compare(&mut self, label: &Label, mut found: BTreeMap<Key, Version>, out: &mut Vec<Output>) {
        let forked = self.doubt(label, &found);
        let Some(target) = self.targets.get(label) else { return };
        let mut repairs = Vec::new();
        let mut forgotten = Vec::new();
        let mut acked = Vec::new();
        for (key, slot) in &target.slots {
            let desired = slot.desired();
            match found.remove(key) {
                Some(version) if version > desired.version() || (forked && version == desired.version()) => {
                    repairs.push((key.clone(), version));
                    acked.push((key.clone(), None, false));
                }
                Some(version) => acked.push((key.clone(), Some(version), false)),
                None if desired.is_delete()
                    && slot.acked == Some(desired.version())
                    && !matches!(key, Key::Plane { .. }) =>
                {
                    forgotten.push(key.clone());
                }
                None => acked.push((key.clone(), None, true)),
            }
        }
        if forked {
            tracing::error!(actuator = %label, keys = repairs.len(),
                "the actuator holds other values at versions of this order: this controller was restored from a backup and went on, or lost \
                 what it had decided; all of that actuator is decided anew");
            self.counters.compared_forked += repairs.len() as u64;
        }
        repairs.extend(found);
        for (key, version, absent) in acked {
            self.found(label, &key, version, absent, out);
        }
        for key in forgotten {
            self.forget(label, &key, out);
        }
        self.counters.compared_unknown += repairs.len() as u64;
        if self.leads {
            self.mend(label, repairs, out);
        } else if let Some(target) = self.targets.get_mut(label) {
            target.ahead.extend(repairs);
        }
    }

    /// Looks whether an actuator's digest is that of what was found. True when it is certain that values differ at the same versions.
    fn doubt(&mut self, label: &Label, found: &BTreeMap<Key, Version>) -> bool {
        let now_ms = self.now_ms;
        let Some(target) = self.targets.get_mut(label) else { return false };
        let Some((difference, all_known)) = difference(target, found) else {
            target.doubt = None;
            return false;
        };
        let before = target.doubt.take();
        if all_known && before.is_some_and(|before| before.all_known && before.difference == difference) {
            return true;
        }
        self.counters.sessions_doubted += 1;
        let tries = before.map_or(0, |before| before.tries + 1);
        target.doubt = Some(Doubt { difference, all_known, since_ms: now_ms, tries });
        false
    }

    /// Closes the session of an actuator whose digest is in doubt, when nothing is under way: its next one tells.
    pub(super) fn ask_again(&mut self, label: &Label, out: &mut Vec<Output>) {
        let Some(target) = self.targets.get(label) else { return };
        let (Some(doubt), Some(session)) = (target.doubt, target.session) else { return };
        let at_rest = target.synced
            && target.in_flight.is_empty()
            && target.repairing.is_empty()
            && target.beyond.is_empty()
            && (doubt.all_known || target.behind.is_empty());
        let pause_ms = (DOUBT_MIN_MS << doubt.tries.min(16)).min(DOUBT_MAX_MS);
        if !at_rest || self.now_ms.saturating_sub(doubt.since_ms) < pause_ms {
            return;
        }
        self.disconnected(label, session);
        let reason = "its digest is not that of its keys and versions: it is compared once more".to_string();
        out.push(Output::Close { target: label.clone(), session, reason });
    }

    /// Proposes what sending cannot mend.
    pub(super) fn mend(&mut self, label: &Label, found: Vec<(Key, Version)>, out: &mut Vec<Output>) {
        for (key, in_force) in &found {
            // Sending what is desired would be refused: wait for the repair.
            let desired = self.desired(label, key).map(Held::version);
            if let Some(desired) = desired {
                self.mark_refused(label, key, desired, &Refusal::Stale { in_force: *in_force });
            }
        }
        self.repair(label, found, out);
    }

    pub(super) fn found(
        &mut self,
        label: &Label,
        key: &Key,
        version: Option<Version>,
        absent: bool,
        out: &mut Vec<Output>,
    ) {
        let Some(slot) = self.targets.get_mut(label).and_then(|target| target.slots.get_mut(key)) else {
            return;
        };
        slot.absent = absent;
        let same = version == Some(slot.desired().version());
        self.counters.compared_same += u64::from(same);
        self.counters.compared_different += u64::from(!same);
        if slot.acked != version {
            self.set_acked(label, key, version, out);
        }
    }

    /// Proposes to the order that keys be decided anew, unless that was proposed already.
    pub(super) fn repair(&mut self, label: &Label, found: Vec<(Key, Version)>, out: &mut Vec<Output>) {
        let (now_ms, decided) = (self.now_ms, self.decided);
        let Some(target) = self.targets.get_mut(label) else { return };
        let mut wanted = Vec::new();
        for (key, version) in found {
            if version > decided {
                self.counters.compared_ahead += 1;
                if target.beyond.len() < STATE_KEYS_MAX {
                    target.beyond.insert(key, (version, now_ms));
                }
            } else if target.repairing.insert(key.clone(), (version, now_ms)).is_none() {
                wanted.push((key, version));
            }
        }
        for found in wanted.chunks(REPAIR_KEYS_MAX) {
            out.push(Output::Repair { target: label.clone(), found: found.to_vec() });
        }
    }

    /// Proposes to go on above versions that the order still has not reached after a while.
    pub(super) fn go_beyond(&mut self, label: &Label, out: &mut Vec<Output>) {
        let (now_ms, decided) = (self.now_ms, self.decided);
        let Some(target) = self.targets.get_mut(label) else { return };
        let is_due = |since_ms: u64| now_ms.saturating_sub(since_ms) >= BEYOND_MS;
        if !target.beyond.values().any(|(_, since_ms)| is_due(*since_ms)) {
            return;
        }
        let mut wanted = Vec::new();
        for (key, (version, _)) in std::mem::take(&mut target.beyond) {
            if version <= decided {
                // It was behind; what differs still is found out when the session is opened again.
            } else if !is_followed(decided, version) {
                tracing::error!(actuator = %label, %key, %version, %decided,
                    "the actuator holds a version that is out of all reach: nothing is done about it");
            } else if target.repairing.insert(key.clone(), (version, now_ms)).is_none() {
                tracing::error!(actuator = %label, %key, %version, %decided,
                    "the actuator holds a version that this order has not reached: this controller was restored from an old \
                     backup, or has lost what it had decided; it goes on above that version, and decides the key anew");
                wanted.push((key, version));
            }
        }
        for found in wanted.chunks(REPAIR_KEYS_MAX) {
            out.push(Output::Repair { target: label.clone(), found: found.to_vec() });
        }
    }

    /// A repair was ordered and decided.
    pub fn repaired(&mut self, label: &Label, keys: &[(Key, Version)]) {
        if let Some(target) = self.targets.get_mut(label) {
            for (key, _) in keys {
                target.repairing.remove(key);
            }
        }
    }
}
