//! Slots and targets: the data that the scheduler keeps for each key and each actuator.

use super::claims::Claims;
use super::held::{Held, Sums, pair_digest};
use super::queue::FairQueue;
use std::collections::{BTreeMap, BTreeSet};
use weir_model::update::Refusal;
use weir_model::{Key, Label, Version, edges};

/// An update that was sent and not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub version: Version,
    pub at_ms: u64,
    pub bytes: usize,
    /// Whether the group's signature went with it.
    pub signed: bool,
}

/// One key of one actuator.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Never empty; versions ascend; the last is desired, the others are waited for.
    pub held: Vec<Held>,
    pub acked: Option<Version>,
    /// What it adds to the target's [`Target::acked_sums`], and whether that is of a known value.
    acked_sums: Sums,
    acked_known: bool,
    /// What was sent last, over all sessions: it may be in force.
    last_sent: Option<(Version, Sums)>,
    /// What it adds to the target's [`Target::desired_sums`].
    pub desired_sums: Sums,
    pub sent: Option<Sent>,
    /// The version that was refused, why, and when.
    pub refused: Option<(Version, Refusal, u64)>,
    /// Whether a refusal of this version was reported.
    pub repeat_refusal: bool,
    /// Whether it is in the target's queue.
    pub queued: bool,
    /// The actuator's last state did not have the key.
    pub absent: bool,
    /// Versions that are followed and not acked here, ascending.
    pub open: Vec<Version>,
}

impl Slot {
    pub fn desired(&self) -> &Held {
        match self.held.last() {
            Some(held) => held,
            None => unreachable!("a slot holds at least one update"),
        }
    }

    pub fn sent_version(&self) -> Option<Version> {
        self.sent.map(|sent| sent.version)
    }

    /// What the slot's key adds at a version, if the value is known.
    pub fn known_sums(&self, version: Version) -> Option<Sums> {
        if self.desired().version() == version {
            return Some(self.desired_sums);
        }
        if self.acked_known && self.acked == Some(version) {
            return Some(self.acked_sums);
        }
        let sent = self.last_sent.filter(|(sent, _)| *sent == version).map(|(_, sums)| sums);
        sent.or_else(|| self.held.iter().find(|held| held.version() == version).map(Held::sums))
    }

    /// Remembers what is sent.
    pub fn sends(&mut self, sent: Sent) {
        self.last_sent = self.known_sums(sent.version).map(|sums| (sent.version, sums));
        self.sent = Some(sent);
    }

    fn set_acked(&mut self, key: &Key, acked: Option<Version>) {
        let known = acked.and_then(|version| self.known_sums(version));
        // Of an unknown value: a digest of contents that no actuator has.
        let of_versions = |version| {
            let versions = pair_digest(key, version);
            Sums { versions, contents: versions }
        };
        self.acked_sums = known.or_else(|| acked.map(of_versions)).unwrap_or_default();
        self.acked_known = known.is_some();
        self.acked = acked;
    }
}

/// The state that an actuator is sending.
#[derive(Debug)]
pub(crate) struct Collecting {
    pub entries: BTreeMap<Key, Version>,
    pub since_ms: u64,
}

/// One actuator.
#[derive(Debug, Default)]
pub(crate) struct Target {
    pub slots: BTreeMap<Key, Slot>,
    pub session: Option<u64>,
    /// The session's state is known, so that it may be sent updates.
    pub synced: bool,
    /// Its state was known at some time since this scheduler began.
    pub known: bool,
    pub collecting: Option<Collecting>,
    /// What planes whose processes came or went are sending of their state.
    pub plane_parts: BTreeMap<Label, BTreeMap<Key, Version>>,
    pub desired_sums: Sums,
    pub acked_sums: Sums,
    /// What its digest said when its session was opened.
    pub greeted: u128,
    /// What is known of whether it holds other contents at the same versions.
    pub doubt: Option<Doubt>,
    pub desired_max: Version,
    /// Slots whose desired version is not the acked one, by desired version.
    pub behind: BTreeSet<(Version, Key)>,
    /// Slots whose desired update is a delete.
    pub tombstones: BTreeSet<(Version, Key)>,
    pub refused: BTreeSet<Key>,
    /// Ports that refusals named, with those that were refused.
    pub named: BTreeMap<Key, BTreeSet<Key>>,
    /// What its keys claim.
    pub claims: Claims,
    pub queue: FairQueue,
    /// Keys with a sent update.
    pub in_flight: BTreeSet<Key>,
    pub in_flight_bytes: usize,
    /// Keys whose repair was proposed in this session: the version found, and when it was proposed.
    pub repairing: BTreeMap<Key, (Version, u64)>,
    /// Keys in force there at a version that is not decided here yet, or that nobody desires here; only while
    /// another replica leads.
    pub ahead: BTreeMap<Key, Version>,
    /// Keys in force there at versions that the order has not reached, and since when, while this replica leads: it may only be
    /// behind.
    pub beyond: BTreeMap<Key, (Version, u64)>,
}

/// An actuator's digest was none that this order knows, and its keys and versions do not say why: either what it replaced since was
/// of an unknown value, or it changed while it was asked, or it holds other values at the same versions. Its digest tells, the next time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    /// How far its digest was from that of the values known here.
    pub difference: u128,
    /// Every key that it has is at a version whose value is known here, so another digest means another value.
    pub all_known: bool,
    /// Since when.
    pub since_ms: u64,
    /// How many times it was asked again.
    pub tries: u32,
}

impl Target {
    /// Adds an update as the desired one; returns the older ones that it replaces: those for which there is no room beside it.
    pub fn put(&mut self, held: Held, room: usize) -> Vec<Held> {
        let (_, key) = held.node();
        let version = held.version();
        let slot = self.slots.entry(key.clone()).or_default();
        if let Some(old) = slot.held.last() {
            let old_version = old.version();
            assert!(version > old_version, "{key} is desired at {old_version}, {version} is not newer");
            self.behind.remove(&(old_version, key.clone()));
            self.tombstones.remove(&(old_version, key.clone()));
            self.desired_sums.take(slot.desired_sums);
        }
        let acked = slot.acked;
        let surplus = slot.held.len().saturating_sub(room);
        let dropped: Vec<Held> =
            slot.held.drain(..surplus).filter(|old| Some(old.version()) > acked).collect();
        slot.held.retain(|old| Some(old.version()) > acked);
        if held.is_delete() {
            self.tombstones.insert((version, key.clone()));
        }
        slot.desired_sums = held.sums();
        self.desired_sums.add(slot.desired_sums);
        slot.held.push(held);
        slot.refused = None;
        slot.repeat_refusal = false;
        slot.absent = false;
        self.refused.remove(&key);
        self.repairing.remove(&key);
        if edges::can_claim(&key) {
            self.claims.add(&key, Vec::new());
        }
        self.desired_max = self.desired_max.max(version);
        self.behind.insert((version, key));
        dropped
    }

    /// Sets what is acked of a slot; returns the updates that this makes superfluous.
    pub fn set_acked(&mut self, key: &Key, acked: Option<Version>) -> Vec<Held> {
        let Some(slot) = self.slots.get_mut(key) else { return Vec::new() };
        self.acked_sums.take(slot.acked_sums);
        slot.set_acked(key, acked);
        self.acked_sums.add(slot.acked_sums);
        if edges::can_claim(key) {
            match slot.held.iter().find(|held| Some(held.version()) == acked) {
                Some(held) => self.claims.set(key, edges::claims(&held.proven.update)),
                None if acked.is_none() => self.claims.set(key, Vec::new()),
                None => {}
            }
        }
        let desired = slot.desired().version();
        match acked == Some(desired) {
            true => self.behind.remove(&(desired, key.clone())),
            false => self.behind.insert((desired, key.clone())),
        };
        if acked >= Some(desired) {
            slot.refused = None;
            self.refused.remove(key);
        }
        let done = |held: &Held| Some(held.version()) <= acked && held.version() != desired;
        let dropped = slot.held.iter().filter(|held| done(held)).cloned().collect();
        slot.held.retain(|held| !done(held));
        dropped
    }

    /// Forgets that an update was sent.
    pub fn take_back(&mut self, key: &Key) {
        if let Some(sent) = self.slots.get_mut(key).and_then(|slot| slot.sent.take()) {
            self.in_flight.remove(key);
            self.in_flight_bytes -= sent.bytes;
        }
    }

    /// Drops a slot.
    pub fn forget(&mut self, key: &Key) -> Option<Slot> {
        self.take_back(key);
        let slot = self.slots.remove(key)?;
        let desired = slot.desired().version();
        self.desired_sums.take(slot.desired_sums);
        self.acked_sums.take(slot.acked_sums);
        self.behind.remove(&(desired, key.clone()));
        self.tombstones.remove(&(desired, key.clone()));
        self.refused.remove(key);
        self.claims.forget(key);
        Some(slot)
    }

    /// Whether it may be sent updates.
    pub fn is_ready(&self) -> bool {
        self.session.is_some() && self.synced
    }

    /// Highest version up to which everything desired is acked.
    pub fn acked_through(&self) -> Version {
        match self.behind.first() {
            Some((version, _)) => Version(version.0 - 1).min(self.desired_max),
            None => self.desired_max,
        }
    }
}
