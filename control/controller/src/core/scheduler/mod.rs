//! The update scheduler: what is desired of every actuator, what is acked, and when each update may
//! go (rows C1, C2, R1, R2, A6, A7; pains 1 and 2).
//!
//! It owns a slot for each (actuator, key) with the signed updates that are desired there. An update
//! is released when everything that it waits for is acked, the actuator is connected and its state
//! is known, and the actuator's window has room; shares ([`edges::share`]) take turns in the window (row A7).
//!
//! Invariants
//! - An update is never released before each of its dependencies is satisfied: the dependency's
//!   actuator acked the key at that version or a later one, or forgot the key, or was removed.
//! - The last update of a slot is what is desired, and stays when it is acked: it is what an
//!   actuator is compared with when it returns, and what it is sent again if it lost it.
//! - A newer update of a key replaces unsent older ones, except those that something waits for
//!   which the newer one itself waits for: dropping these would let the two wait for each other for
//!   ever. Since a dependency never points to a later version, the oldest waiting update can
//!   always go, so every update is released once all actuators are there. In linear mode nothing is replaced: see [`line`].
//! - Nothing here depends on time or on acks but the moment of sending: what is signed is decided
//!   by the order alone.
//! - What outlives something else ([`edges::outlives`]) is never deleted at an actuator before it, also when that delete was decided
//!   by an earlier event and still waits: the scheduler adds what the plan cannot know.
//! - Two keys do not have the same claim at an actuator at once: see [`claims`]. Updates that wait for each other are
//!   found, told and cut: see [`rings`].
//! - Nobody waits for what is futile: see [`edges::is_futile`].
//! - A replica that does not lead a group follows acks and states as the leader does, and sends and proposes
//!   nothing: see [`lead`].
//!
//! Tombstones: a deleted key stays as a `Delete` update, because actuators remember deleted keys
//! too and the digests must agree. One is forgotten when the actuator shows that it forgot it
//! after it had acked it, or when there are over twice [`SchedulerSettings::tombstones_max`] of
//! them: then all but the newest `tombstones_max` that are acked, or whose actuator is away. An
//! actuator that returns with a forgotten key gets a fresh `Delete` through the order (see
//! [`crate::core::Item::Repair`]), so forgetting costs work, never correctness.
//!
//! Departure: RoSCo and Cicero name switch order as the only reason to wait; ours are the plan's.

mod claims;
mod explain;
mod frames;
mod held;
mod lead;
mod line;
mod planes;
mod progress;
mod queue;
mod reconcile;
mod release;
mod rings;
mod signing;
mod slot;
#[cfg(test)]
mod tests;

pub use explain::{KeyStatus, TargetStatus, WaitState, Waiting};
pub use held::Held;
pub use line::LineStatus;
pub use progress::Reached;
pub(super) use reconcile::continues_at;
pub use rings::{Ring, Wait};

use crate::core::Output;
use line::Line;
use progress::Progress;
use rings::Rings;
use signing::Unsigned;
use slot::{Slot, Target};
use std::collections::{BTreeMap, BTreeSet};
use weir_model::update::Refusal;
use weir_model::{Ack, Dependency, Key, Label, Version, edges};

/// An actuator and one of its keys.
pub(crate) type Node = (Label, Key);

/// Most updates of one slot: the desired one and older ones that others wait for.
const HELD_PER_SLOT_MAX: usize = 16;
/// Most updates looked at to find out whether two updates would wait for each other.
const VISITED_MAX: usize = 1024;

/// Which consistency the scheduler keeps (DESIGN §3, row C2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Send everything at once, whatever it waits for (row R3, a baseline).
    None,
    /// One update at a time in the whole domain, in the order of decisions, none left out: see [`line`] (row R1).
    Linear,
    /// Each update when what it waits for is acked; all else in parallel (row R2).
    #[default]
    Dependent,
}

/// Settings of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerSettings {
    /// Consistency.
    pub mode: Mode,
    /// Most updates sent to one actuator and not acked.
    pub window: usize,
    /// Most bytes of them, unless one alone is larger.
    pub window_bytes: usize,
    /// An update that is not acked for so long is sent again.
    pub resend_ms: u64,
    /// A refused update is tried again after so long.
    pub retry_ms: u64,
    /// A session that does not send its whole state for so long is closed.
    pub state_ms: u64,
    /// Deleted keys remembered for each actuator; see the module.
    pub tombstones_max: usize,
    /// Updates whose progress is followed by version.
    pub followed_max: usize,
    /// In linear mode, versions of keys that are kept though a newer one of the key is decided, at most.
    pub line_older_max: usize,
    /// Bytes of them, at most.
    pub line_older_bytes_max: usize,
    /// Send updates before their batch is signed: actuators put the signature together from shares (row C4).
    pub send_unsigned: bool,
}

impl Default for SchedulerSettings {
    fn default() -> SchedulerSettings {
        SchedulerSettings {
            mode: Mode::Dependent,
            window: 256,
            window_bytes: 8 * 1024 * 1024,
            resend_ms: 5_000,
            retry_ms: 30_000,
            state_ms: 30_000,
            tombstones_max: weir_trust::gate::TOMBSTONES_MAX,
            followed_max: 1_000_000,
            line_older_max: 65_536,
            line_older_bytes_max: 256 << 20,
            send_unsigned: false,
        }
    }
}

/// What the scheduler counted since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerCounters {
    /// Updates taken in.
    pub planned: u64,
    /// Updates replaced by a newer one before they were sent.
    pub superseded: u64,
    /// Older updates kept beside a newer one because others wait for them.
    pub kept_beside: u64,
    /// Older updates dropped although something may wait for them, because a slot was full.
    pub slots_cut: u64,
    /// In linear mode: updates that never go because their actuator refused them and a newer one of the key is decided.
    pub line_given_up: u64,
    /// In linear mode: updates that never go because too many older ones waited.
    pub line_cut: u64,
    /// Updates sent for the first time to a session.
    pub sent: u64,
    /// Updates sent again because no ack came.
    pub resent: u64,
    /// Updates acked.
    pub acked: u64,
    /// Acks for versions that were never decided.
    pub acks_unknown: u64,
    /// Acks for versions that another replica knows and this one does not yet.
    pub acks_ahead: u64,
    /// Acks and states of sessions that are over.
    pub stale_sessions: u64,
    /// Updates refused by actuators.
    pub refused: u64,
    /// Refused updates tried again.
    pub retried: u64,
    /// Rings of updates that waited for each other, cut.
    pub rings_cut: u64,
    /// Rings in which no update may go first.
    pub rings_kept: u64,
    /// Sessions whose digest was the desired one: nothing was sent.
    pub sessions_in_sync: u64,
    /// Sessions whose digest was that of the last acks: only what was waiting was sent.
    pub sessions_as_left: u64,
    /// Sessions that were asked for their state.
    pub sessions_compared: u64,
    /// Keys that were found as desired when states were compared: not sent.
    pub compared_same: u64,
    /// Keys that were found older or missing: sent.
    pub compared_different: u64,
    /// Keys that were found but are not desired, or newer than desired: repaired through the order.
    pub compared_unknown: u64,
    /// Keys found at a version that this order has not reached.
    pub compared_ahead: u64,
    /// Keys with another value than was decided at their version here.
    pub compared_forked: u64,
    /// Comparisons of keys and versions that did not explain an actuator's digest.
    pub sessions_doubted: u64,
    /// Sessions closed because their state did not come or was too large.
    pub states_failed: u64,
    /// Tombstones forgotten.
    pub tombstones_forgotten: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    settings: SchedulerSettings,
    targets: BTreeMap<Label, Target>,
    /// Who to look at again when a node's ack changes.
    waiting: BTreeMap<Node, BTreeSet<Node>>,
    /// All unacked updates in the order of decisions; only in linear mode.
    line: Line,
    progress: Progress,
    unsigned: Unsigned,
    /// Waiters of what was acked since the last [`Scheduler::pump`]: one that waits for many things of one frame is
    /// looked at once.
    woken: BTreeSet<Node>,
    /// Actuators that may have something to send.
    dirty: BTreeSet<Label>,
    rings: Rings,
    now_ms: u64,
    /// Version of the store: nothing above it was ever decided.
    decided: Version,
    /// Whether it may send and propose.
    leads: bool,
    /// Counters.
    pub counters: SchedulerCounters,
}

impl Scheduler {
    /// An empty one.
    pub fn new(settings: SchedulerSettings) -> Scheduler {
        Scheduler {
            settings,
            targets: BTreeMap::new(),
            waiting: BTreeMap::new(),
            line: Line::default(),
            progress: Progress::new(settings.followed_max),
            unsigned: Unsigned::default(),
            woken: BTreeSet::new(),
            dirty: BTreeSet::new(),
            rings: Rings::default(),
            now_ms: 0,
            decided: Version::ZERO,
            leads: true,
            counters: SchedulerCounters::default(),
        }
    }

    /// Its settings.
    pub fn settings(&self) -> SchedulerSettings {
        self.settings
    }

    /// Remembers how far the order is.
    pub fn decided(&mut self, version: Version) {
        self.decided = version;
    }

    /// Makes an actuator known, so that what depends on it waits for it.
    pub fn add_target(&mut self, target: &Label) {
        if !self.targets.contains_key(target) {
            self.targets.insert(target.clone(), Target::default());
        }
    }

    /// What is desired of a key, tombstones included.
    pub fn desired(&self, target: &Label, key: &Key) -> Option<&Held> {
        self.targets.get(target)?.slots.get(key).map(Slot::desired)
    }

    /// All updates held, in order of actuators, keys and versions: what a snapshot keeps.
    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.targets.values().flat_map(|target| target.slots.values()).flat_map(|slot| &slot.held)
    }

    /// The update of each key that is desired, the last.
    pub fn desired_held(&self) -> impl Iterator<Item = &Held> {
        self.targets.values().flat_map(|target| target.slots.values()).map(Slot::desired)
    }

    /// Names of all actuators that are known.
    pub fn target_names(&self) -> impl Iterator<Item = &Label> {
        self.targets.keys()
    }

    /// Whether an actuator is known.
    pub fn has_target(&self, target: &Label) -> bool {
        self.targets.contains_key(target)
    }

    /// Takes in a decided update.
    ///
    /// # Panics
    /// When it is not newer than what is desired of its key: the order gives each event a new version.
    pub fn insert(&mut self, held: Held, out: &mut Vec<Output>) {
        let node = held.node();
        let replaces = self.targets.get(&node.0).is_some_and(|target| target.slots.contains_key(&node.1));
        let keep = replaces && !self.is_linear() && self.reaches(&held, &node);
        self.put(held, keep);
        self.take_ahead(&node, out);
        self.evaluate(&node);
        self.forget_tombstones(&node.0, out);
    }

    /// Takes in an update of a snapshot: they come in the order of [`Scheduler::held`].
    pub fn restore(&mut self, held: Held) {
        let node = held.node();
        self.put(held, true);
        self.evaluate(&node);
    }

    fn put(&mut self, held: Held, keep: bool) {
        let (label, key) = held.node();
        let version = held.version();
        self.counters.planned += 1;
        self.unsigned.add(&held);
        let room = match self.is_linear() {
            true => self.enter_line(&held),
            false if keep => HELD_PER_SLOT_MAX - 1,
            false => 0,
        };
        let target = self.targets.entry(label.clone()).or_default();
        let refused = target.slots.get(&key).and_then(|slot| Some(slot.refused.as_ref()?.0));
        let dropped = target.put(held, room);
        self.counters.kept_beside += u64::from(room > 0 && target.slots[&key].held.len() > 1);
        if room > 0 && !dropped.is_empty() {
            self.counters.slots_cut += dropped.len() as u64;
        }
        let mut superseded = 0;
        for old in &dropped {
            self.line.take(&old.place());
            let unsent = target.slots[&key].sent_version() < Some(old.version())
                && target.slots[&key].acked < Some(old.version());
            superseded += u64::from(unsent);
        }
        self.counters.superseded += superseded;
        if let Some(slot) = target.slots.get_mut(&key) {
            self.progress.begin(version, &mut slot.open);
        }
        if self.is_linear() {
            self.cut_line(superseded);
            refused.into_iter().for_each(|version| self.give_up(&label, &key, version));
        }
    }

    /// What a delete waits for beside its plan: keys that it outlives ([`edges::outlives`]) of which a delete was decided no later and
    /// is not acked. An app cannot name these, it knows no acks. Where nothing is left out, such a key may be desired anew since.
    fn survived_in_the_way<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = Dependency> + 'a {
        let update = &held.proven.update;
        let may = held.is_delete() && edges::may_outlive(&update.key);
        let target = self.targets.get(&update.target).filter(|_| may);
        let all = self.is_linear();
        let slots = target.into_iter().flat_map(move |target| {
            let decided =
                target.behind.iter().take_while(move |(desired, _)| all || *desired <= update.version);
            decided.filter_map(move |(_, key)| Some((key, target.slots.get(key)?)))
        });
        slots.filter(|(key, _)| edges::outlives(&update.key, key)).filter_map(move |(key, slot)| {
            let mut candidates = slot.held.iter().rev();
            let gone = match all {
                true => candidates.find(|other| other.version() <= update.version && other.is_delete()),
                false => candidates.next().filter(|desired| desired.is_delete()),
            };
            let version = gone.map(Held::version).filter(|version| slot.acked < Some(*version))?;
            let (target, key) = (update.target.clone(), key.clone());
            Some(Dependency { target, key, version, reason: edges::PART_GONE })
        })
    }

    /// Whether an update would wait, over any number of steps, for `node`.
    fn reaches(&self, held: &Held, node: &Node) -> bool {
        if self.settings.mode == Mode::None {
            return false;
        }
        let mut visited: BTreeSet<Node> = BTreeSet::new();
        let mut stack: Vec<Dependency> = self.missing(held).collect();
        while let Some(dependency) = stack.pop() {
            let next = (dependency.target.clone(), dependency.key.clone());
            if next == *node || visited.len() > VISITED_MAX {
                return true;
            }
            if visited.contains(&next) {
                continue;
            }
            if let Some(slot) = self.targets.get(&next.0).and_then(|target| target.slots.get(&next.1)) {
                for held in slot.held.iter().filter(|held| Some(held.version()) > slot.acked) {
                    stack.extend(self.missing(held));
                }
            }
            visited.insert(next);
        }
        false
    }

    pub(super) fn is_satisfied(&self, dependency: &Dependency) -> bool {
        let Some(target) = self.targets.get(&dependency.target) else { return true };
        match target.slots.get(&dependency.key) {
            Some(slot) => slot.acked >= Some(dependency.version),
            // A key that is not desired any more: gone, once the actuator's state is known.
            None => target.known,
        }
    }

    /// Whether a wait is for nothing: see [`edges::is_futile`].
    pub(super) fn is_futile(&self, held: &Held, dependency: &Dependency) -> bool {
        let desired = || {
            let desired = self.desired(&dependency.target, &dependency.key)?;
            Some(&desired.proven.update.change)
        };
        edges::is_futile(&held.proven.update, dependency.reason, desired)
    }

    /// Whether a wait is for an actuator that has no session, and does not count then: see [`edges::only_of_connected`].
    pub(super) fn is_away(&self, dependency: &Dependency) -> bool {
        let is_ready = |label: &Label| self.targets.get(label).is_some_and(|target| target.session.is_some());
        edges::only_of_connected(dependency.reason) && !is_ready(&dependency.target)
    }

    pub(super) fn is_cut(&self, held: &Held, dependency: &Dependency) -> bool {
        if self.rings.cut.is_empty() {
            return false;
        }
        let waited = (dependency.target.clone(), dependency.key.clone());
        self.rings.cut.contains(&(held.node(), held.version(), waited))
    }

    /// Forgets an actuator and everything desired of it (it was removed through the order).
    pub fn remove_target(&mut self, label: &Label, out: &mut Vec<Output>) {
        let Some(target) = self.targets.remove(label) else { return };
        if let Some(session) = target.session {
            let reason = format!("actuator '{label}' was removed from the domain");
            out.push(Output::Close { target: label.clone(), session, reason });
        }
        for slot in target.slots.into_values() {
            slot.held.iter().for_each(|held| self.line.take(&held.place()));
            self.progress.settle(slot.open, &mut |version| out.push(Output::Finished(version)));
        }
        self.wake_all(label);
    }

    /// Ends the session of an actuator that stays a target.
    pub fn close(&mut self, label: &Label, reason: &str, out: &mut Vec<Output>) {
        let Some(session) = self.targets.get(label).and_then(|target| target.session) else { return };
        out.push(Output::Close { target: label.clone(), session, reason: reason.to_owned() });
        self.disconnected(label, session);
    }

    /// Takes in the verified acks of a session.
    pub fn acks(&mut self, label: &Label, session: u64, acks: &[Ack], out: &mut Vec<Output>) {
        let current = self.targets.get(label).and_then(|target| target.session);
        if current != Some(session) {
            self.counters.stale_sessions += 1;
            return;
        }
        for ack in acks {
            match &ack.result {
                Ok(()) => self.ack(label, &ack.key, ack.version, out),
                Err(refusal) => self.refused(label, &ack.key, ack.version, refusal, out),
            }
        }
        self.dirty.insert(label.clone());
    }

    fn ack(&mut self, label: &Label, key: &Key, version: Version, out: &mut Vec<Output>) {
        let Some(target) = self.targets.get_mut(label) else { return };
        let Some(slot) = target.slots.get_mut(key).filter(|slot| slot.desired().version() >= version) else {
            self.ack_ahead(label, key, version);
            return;
        };
        slot.repeat_refusal = false;
        let newer = slot.acked < Some(version);
        let is_last = slot.desired().version() == version;
        if slot.sent_version() <= Some(version) {
            target.take_back(key);
        }
        if newer {
            self.counters.acked += 1;
            self.set_acked(label, key, Some(version), out);
        }
        if !is_last {
            self.evaluate(&(label.clone(), key.clone()));
        }
    }

    fn refused(
        &mut self,
        label: &Label,
        key: &Key,
        version: Version,
        refusal: &Refusal,
        out: &mut Vec<Output>,
    ) {
        let Some(target) = self.targets.get_mut(label) else { return };
        let Some(slot) = target.slots.get_mut(key) else { return };
        // A late answer to something that was acked or replaced since says nothing new.
        if slot.sent_version() != Some(version) || slot.acked >= Some(version) {
            return;
        }
        let desired = slot.desired();
        let is_desired = desired.version() == version;
        let is_delete = desired.is_delete();
        target.take_back(key);
        self.counters.refused += 1;
        if let Refusal::Stale { in_force } = refusal
            && is_desired
        {
            if is_delete && target.slots[key].absent {
                // The actuator dropped the tombstone, and its floor guards the key.
                self.forget(label, key, out);
            } else {
                if *in_force == version {
                    self.counters.compared_forked += 1;
                    tracing::error!(actuator = %label, %key, %version,
                        "the actuator has another value at the version that this order decided: this controller was restored from a \
                         backup, or has lost what it had decided; the key is decided anew");
                }
                self.mark_refused(label, key, version, refusal);
                self.repair(label, vec![(key.clone(), *in_force)], out);
            }
            return;
        }
        if self.is_linear() && !is_desired && matches!(refusal, Refusal::Stale { .. }) {
            // Another replica led meanwhile, and was further.
            self.give_up(label, key, version);
            return;
        }
        let first = self.mark_refused(label, key, version, refusal);
        if let Refusal::Failed(reason) = refusal {
            self.note_named(label, key, reason);
        }
        if first {
            let refusal = refusal.clone();
            out.push(Output::Refused { target: label.clone(), key: key.clone(), version, refusal });
        }
        if self.is_linear() && !is_desired {
            self.give_up(label, key, version);
        }
    }

    /// Remembers a refusal until a retry; tells whether it is new.
    fn mark_refused(&mut self, label: &Label, key: &Key, version: Version, refusal: &Refusal) -> bool {
        let now_ms = self.now_ms;
        let Some(target) = self.targets.get_mut(label) else { return false };
        let Some(slot) = target.slots.get_mut(key) else { return false };
        let first = !slot.repeat_refusal;
        slot.refused = Some((version, refusal.clone(), now_ms));
        slot.repeat_refusal = true;
        target.refused.insert(key.clone());
        first
    }

    /// Sets what is acked of a slot and does all that follows.
    fn set_acked(&mut self, label: &Label, key: &Key, acked: Option<Version>, out: &mut Vec<Output>) {
        let linear = self.is_linear();
        let Some(target) = self.targets.get_mut(label) else { return };
        let dropped = target.set_acked(key, acked);
        let Some(slot) = target.slots.get_mut(key) else { return };
        if linear {
            let desired = slot.desired().version();
            for held in dropped.iter().chain(&slot.held) {
                match Some(held.version()) > acked {
                    true => self.line.add(held, held.version() != desired),
                    false => self.line.take(&held.place()),
                }
            }
        }
        let settled = slot.open.partition_point(|version| Some(*version) <= acked);
        let settled: Vec<Version> = slot.open.drain(..settled).collect();
        self.progress.settle(settled, &mut |version| out.push(Output::Finished(version)));
        self.wake(&(label.clone(), key.clone()));
        self.retry_named(&(label.clone(), key.clone()));
    }

    /// Looks again at everything that waits for a node, before anything is given out.
    fn wake(&mut self, node: &Node) {
        self.woken.append(&mut self.waiting.remove(node).unwrap_or_default());
    }

    /// Looks again at everything that waits for any key of an actuator.
    fn wake_all(&mut self, label: &Label) {
        let first = (label.clone(), edges::FIRST);
        let nodes: Vec<Node> = self
            .waiting
            .range(first..)
            .take_while(|((target, _), _)| target == label)
            .map(|(node, _)| node.clone())
            .collect();
        for node in nodes {
            self.wake(&node);
        }
    }

    /// Drops a slot: a tombstone that its actuator forgot.
    fn forget(&mut self, label: &Label, key: &Key, out: &mut Vec<Output>) {
        let Some(target) = self.targets.get_mut(label) else { return };
        let Some(slot) = target.forget(key) else { return };
        self.counters.tombstones_forgotten += 1;
        slot.held.iter().for_each(|held| self.line.take(&held.place()));
        self.progress.settle(slot.open, &mut |version| out.push(Output::Finished(version)));
        self.wake(&(label.clone(), key.clone()));
        self.retry_named(&(label.clone(), key.clone()));
    }

    /// Bounds the tombstones of an actuator: see the module.
    fn forget_tombstones(&mut self, label: &Label, out: &mut Vec<Output>) {
        let newest = self.settings.tombstones_max;
        let Some(target) = self.targets.get(label) else { return };
        if target.tombstones.len() <= 2 * newest {
            return;
        }
        let away = target.session.is_none();
        let surplus = target.tombstones.len() - newest;
        let gone: Vec<Key> = target
            .tombstones
            .iter()
            .take(surplus)
            .filter(|(version, key)| away || target.slots[key].acked == Some(*version))
            .map(|(_, key)| key.clone())
            .collect();
        for key in gone {
            self.forget(label, &key, out);
        }
    }
}
