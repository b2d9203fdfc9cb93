//! The hub: what stands between the sessions and the actuators of this host beside the switch. A pure machine; [`driver`] finds the
//! sockets of the planes' processes and moves their frames.
//!
//! A host is one member with one session to each controller, and each controller compares one state and one digest. Here these
//! are joined: what the planes have in force is added to the switch's (digests are sums over keys, so they add), and
//! updates are split by plane. Each update has a Merkle path of its own, so a part of a frame is a frame.
//!
//! Invariants
//! - Nothing is verified here, and nothing is answered here but what no process takes: each process checks and acks what it takes.
//! - What a plane has in force counts while its process is there. When one comes or goes, the sessions are told its keys
//!   ([`weir_model::session::ToController::Plane`]), and none of them ends.
//! - An update for a process that is not there is kept, the newest of each key and at most [`HELD_MAX`], and given to it when it
//!   comes. When nobody came within [`GRACE_MS`], it is refused by name, so that it takes no place at the controllers from
//!   the switch's updates, and whoever waits for it is told; a withdrawal is acked, for what nobody has is gone. Controllers try again what was refused, and at once when
//!   the process comes.
//! - What single controllers endorsed, and the group did not sign, goes to the switch, which knows who they are, and to the processes that
//!   say that they know them too. Each is given the group's list of controllers as it came ([`Hub::proof`]), and verifies it. From others
//!   such updates are kept away, and controllers send them again with the group's signature.

pub mod driver;

use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::mpsc;
use weir_model::local::{PLANE_NAMES_MAX, ToSwitch};
use weir_model::session::StateDigest;
use weir_model::signed::{GroupSignature, ProvenUpdate, SignedHeader, SignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Ack, Change, Entry, Key, Label, Version};

/// Most updates that are kept for processes that are not there.
pub const HELD_MAX: usize = 1024;
/// Most processes beside the switch.
pub const LOCALS_MAX: usize = 32;
/// Most keys that one process may say it has.
pub const LOCAL_KEYS_MAX: usize = 131_072;
/// For so long after its start, or after a process went, the hub does not say that nobody is there, milliseconds.
pub const GRACE_MS: u64 = 10_000;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubCounters {
    /// Processes that came.
    pub came: u64,
    /// Processes that went.
    pub went: u64,
    /// Updates given to processes.
    pub given: u64,
    /// Updates refused because no process takes them.
    pub refused: u64,
    /// Updates dropped: kept ones for which there was no room, endorsed ones, and those that a process did not take in time.
    pub dropped: u64,
}

/// A process of a plane that is connected.
struct Local {
    plane: Label,
    names: Option<BTreeSet<String>>,
    sender: mpsc::Sender<ToSwitch>,
    /// Versions, and what each key adds to the digest.
    state: BTreeMap<Key, (Version, u128)>,
    /// Its state is known, so it counts.
    ready: bool,
    /// The dealing whose members' endorsements it takes, as it said.
    phase: Option<u64>,
}

struct Held {
    header: SignedHeader,
    update: ProvenUpdate,
    /// It was answered since it came.
    answered: bool,
}

/// What a plane has in force, for the sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaneState {
    /// The plane.
    pub plane: Label,
    /// Keys and versions; none when no process of it is there.
    pub entries: Option<Vec<(Key, Version)>>,
}

/// See the module.
#[derive(Default)]
pub struct Hub {
    locals: BTreeMap<u64, Local>,
    held: BTreeMap<Key, Held>,
    /// The newest list of controllers that came, as the group signed it.
    proof: Option<SignedUpdates>,
    /// When the last process of a plane went.
    went: BTreeMap<Label, u64>,
    /// How often the set of processes changed: two sessions that saw the same number know the same.
    pub changes: u64,
    /// Counters.
    pub counters: HubCounters,
}

impl Hub {
    /// Processes that are there.
    pub fn up(&self) -> usize {
        self.locals.values().filter(|local| local.ready).count()
    }

    /// Updates that wait for a process.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// A process came. It counts when its state is known, which it is asked for. False: there is no room for it.
    pub fn came(
        &mut self,
        id: u64,
        (plane, names): (Label, Option<Vec<String>>),
        sender: mpsc::Sender<ToSwitch>,
    ) -> bool {
        let too_many = names.as_ref().is_some_and(|names| names.len() > PLANE_NAMES_MAX);
        if self.locals.len() >= LOCALS_MAX || too_many || sender.try_send(ToSwitch::SendState).is_err() {
            return false;
        }
        let names = names.map(|names| names.into_iter().collect());
        self.locals
            .insert(id, Local { plane, names, sender, state: BTreeMap::new(), ready: false, phase: None });
        true
    }

    /// With the list of controllers that was kept when the agent ran last.
    pub fn with_proof(proof: Option<SignedUpdates>) -> Hub {
        Hub { proof, ..Hub::default() }
    }

    /// The newest list of controllers that came.
    pub fn proof(&self) -> Option<&SignedUpdates> {
        self.proof.as_ref()
    }

    /// A process says whose endorsements it takes.
    pub fn knows(&mut self, id: u64, controllers: Option<&Entry>) {
        if let Some(local) = self.locals.get_mut(&id) {
            local.phase = match controllers {
                Some(Entry::Controllers(controllers)) => Some(controllers.phase),
                _ => None,
            };
        }
    }

    /// Keeps the list of controllers of a frame, where it is newer, and gives it to every process. An order that was restored goes on
    /// in a higher epoch, and may be at a lower version.
    fn take_proof(&mut self, frame: &SignedUpdates) {
        let list = frame.updates.iter().find(|proven| proven.update.key == Key::Controllers);
        let Some(list) = list.filter(|_| !is_endorsed(&frame.header)) else { return };
        let age = |header: &SignedHeader, list: &ProvenUpdate| (header.header.epoch, list.update.version);
        let known = self.proof.as_ref().and_then(|proof| Some(age(&proof.header, proof.updates.first()?)));
        if known >= Some(age(&frame.header, list)) {
            return;
        }
        let proof = SignedUpdates { header: frame.header.clone(), updates: vec![list.clone()] };
        for local in self.locals.values().filter(|local| local.ready) {
            let taken = local.sender.try_send(ToSwitch::Updates(proof.clone())).is_ok();
            self.counters.dropped += u64::from(!taken);
        }
        self.proof = Some(proof);
    }

    /// Part of a process's state, or of what it changed. The last part of its state makes it count: then its plane's state is for the
    /// sessions, and what was kept for it is given to it. An error ends the connection.
    ///
    /// # Errors
    /// What is wrong with the state.
    pub fn state(
        &mut self,
        id: u64,
        entries: Vec<(Key, Version, u128)>,
        last: bool,
    ) -> Result<Option<PlaneState>, String> {
        let Some(local) = self.locals.get_mut(&id) else { return Ok(None) };
        let plane = local.plane.clone();
        if let Some((key, ..)) = entries.iter().find(|(key, ..)| !is_of(key, &plane)) {
            return Err(format!("it says that it has {key}, and is of plane {plane}"));
        }
        for (key, version, content) in entries {
            match version {
                Version::ZERO => drop(local.state.remove(&key)),
                version => drop(local.state.insert(key, (version, content))),
            }
        }
        if local.state.len() > LOCAL_KEYS_MAX {
            return Err(format!("it has more than {LOCAL_KEYS_MAX} keys"));
        }
        if !last || local.ready {
            return Ok(None);
        }
        local.ready = true;
        if let Some(proof) = &self.proof {
            let taken = local.sender.try_send(ToSwitch::Updates(proof.clone())).is_ok();
            self.counters.dropped += u64::from(!taken);
        }
        self.changes += 1;
        self.counters.came += 1;
        self.went.remove(&plane);
        self.give_held(&plane);
        Ok(Some(self.state_of(&plane)))
    }

    /// A process went; the state that its plane has now, if it counted.
    pub fn went(&mut self, id: u64, now_ms: u64) -> Option<PlaneState> {
        let local = self.locals.remove(&id).filter(|local| local.ready)?;
        self.changes += 1;
        self.counters.went += 1;
        if self.went.len() >= LOCALS_MAX {
            // Names that planes had once; then the grace is that of the start.
            self.went.clear();
        }
        self.went.insert(local.plane.clone(), now_ms);
        Some(self.state_of(&local.plane))
    }

    /// A process answered: what was kept for it is not needed any more. What is in force there it has said before.
    pub fn acked(&mut self, id: u64, acks: &[Ack]) {
        let Some(local) = self.locals.get(&id) else { return };
        for ack in acks.iter().filter(|ack| ack.result.is_ok() && is_of(&ack.key, &local.plane)) {
            if self.held.get(&ack.key).is_some_and(|held| held.update.update.version <= ack.version) {
                self.held.remove(&ack.key);
            }
        }
    }

    /// What the processes of a plane have, each key once: who came last counts.
    fn joined(&self, plane: &Label) -> BTreeMap<&Key, (Version, u128)> {
        let ready = self.locals.values().filter(|local| local.ready && local.plane == *plane);
        ready.flat_map(|local| local.state.iter().map(|(key, known)| (key, *known))).collect()
    }

    fn state_of(&self, plane: &Label) -> PlaneState {
        let is_there = self.locals.values().any(|local| local.ready && local.plane == *plane);
        let entries =
            self.joined(plane).into_iter().map(|(key, (version, _))| (key.clone(), version)).collect();
        PlaneState { plane: plane.clone(), entries: is_there.then_some(entries) }
    }

    /// What all planes have, for a session that began before one of them came or went.
    pub fn states(&self) -> Vec<PlaneState> {
        let there = self.locals.values().filter(|local| local.ready).map(|local| &local.plane);
        let planes: BTreeSet<&Label> = there.chain(self.went.keys()).collect();
        planes.into_iter().map(|plane| self.state_of(plane)).collect()
    }

    /// Keys and versions of all planes, to be joined to the switch's, in the order of the keys.
    pub fn entries(&self) -> Vec<(Key, Version)> {
        self.states().into_iter().filter_map(|state| state.entries).flatten().collect()
    }

    /// The switch's digest with that of all planes.
    pub fn digest(&self, switch: StateDigest) -> StateDigest {
        let ready = self.locals.values().filter(|local| local.ready).map(|local| &local.plane);
        let planes: BTreeSet<&Label> = ready.collect();
        let contents = planes.into_iter().flat_map(|plane| self.joined(plane).into_values());
        StateDigest(contents.fold(switch.0, |sum, (_, content)| sum.wrapping_add(content)))
    }

    /// Whose a key is: who names it before who takes every name.
    fn taker(&self, plane: &Label, name: &str) -> Option<&Local> {
        let ready = || self.locals.values().filter(|local| local.ready && local.plane == *plane);
        let named = ready().find(|local| local.names.as_ref().is_some_and(|names| names.contains(name)));
        named.or_else(|| ready().find(|local| local.names.is_none()))
    }

    /// Gives a plane's updates of a frame to its processes; gives back the switch's, and refusals of those that nobody takes. A frame
    /// without updates is the switch's.
    pub fn route(&mut self, frame: SignedUpdates) -> (Option<SignedUpdates>, Vec<Ack>) {
        self.take_proof(&frame);
        if !frame.updates.iter().any(|proven| matches!(proven.update.key, Key::Plane { .. })) {
            return (Some(frame), Vec::new());
        }
        let SignedUpdates { header, updates } = frame;
        let (planes, switch): (Vec<ProvenUpdate>, Vec<ProvenUpdate>) =
            updates.into_iter().partition(|proven| matches!(proven.update.key, Key::Plane { .. }));
        let switch = (!switch.is_empty()).then(|| SignedUpdates { header: header.clone(), updates: switch });
        let mut refusals = Vec::new();
        for proven in planes {
            if is_endorsed(&header) && !self.takes(&header, &proven.update.key) {
                self.counters.dropped += 1;
                continue;
            }
            refusals.extend(self.give(&header, proven));
        }
        (switch, refusals)
    }

    /// Whether a process is there that takes a key and what is endorsed so.
    fn takes(&self, header: &SignedHeader, key: &Key) -> bool {
        let Key::Plane { plane, name } = key else { return false };
        let known = self.taker(plane, name).and_then(|local| local.phase);
        matches!(&header.signature, GroupSignature::Members { phase, .. } if known == Some(*phase))
    }

    fn give(&mut self, header: &SignedHeader, proven: ProvenUpdate) -> Option<Ack> {
        let Key::Plane { plane, name } = &proven.update.key else { return None };
        if let Some(local) = self.taker(plane, name) {
            let frame = SignedUpdates { header: header.clone(), updates: vec![proven] };
            // A process that does not take it now is sent it again by the controllers.
            let taken = local.sender.try_send(ToSwitch::Updates(frame)).is_ok();
            self.counters.given += u64::from(taken);
            self.counters.dropped += u64::from(!taken);
            return None;
        }
        let key = proven.update.key.clone();
        let known = self.held.get(&key).map(|held| held.update.update.version);
        if known.is_none_or(|known| known < proven.update.version) {
            if known.is_none() && self.held.len() >= HELD_MAX {
                self.counters.dropped += 1;
                return self.answer(&key, proven.update.version, proven.update.change == Change::Delete);
            }
            let header = header.clone();
            self.held.insert(key, Held { header, update: proven, answered: false });
        } else if let Some(held) = self.held.get_mut(&key) {
            // It came again, and is to be answered again.
            held.answered = false;
        }
        None
    }

    fn give_held(&mut self, plane: &Label) {
        let all = std::mem::take(&mut self.held);
        for (key, held) in all {
            let taker = match &key {
                Key::Plane { plane: of, name } if of == plane => self.taker(plane, name),
                _ => None,
            };
            let Some(local) = taker else {
                self.held.insert(key, held);
                continue;
            };
            let frame = SignedUpdates { header: held.header, updates: vec![held.update] };
            let taken = local.sender.try_send(ToSwitch::Updates(frame)).is_ok();
            self.counters.given += u64::from(taken);
            self.counters.dropped += u64::from(!taken);
        }
    }

    /// What is said of an update that nobody takes. What nobody has is gone: so a withdrawal is done. Whoever comes with it after all
    /// says that it has it, and is told.
    fn answer(&mut self, key: &Key, version: Version, is_delete: bool) -> Option<Ack> {
        let Key::Plane { plane, name } = key else { return None };
        if is_delete {
            return Some(Ack { key: key.clone(), version, result: Ok(()) });
        }
        self.counters.refused += 1;
        let there: Vec<String> = self
            .locals
            .values()
            .filter(|local| local.ready && local.plane == *plane)
            .flat_map(|local| local.names.iter().flatten().cloned())
            .collect();
        let why = match there.is_empty() {
            true => format!("no process of plane {plane} is on this host: start it there"),
            false => format!(
                "no process of plane {plane} on this host takes '{name}', there are: {}",
                there.join(", ")
            ),
        };
        Some(Ack { key: key.clone(), version, result: Err(Refusal::Failed(why)) })
    }

    /// Answers to what nobody came for in time, and what was not answered since it came. Time is that since the hub's start.
    pub fn due(&mut self, now_ms: u64) -> Vec<Ack> {
        let mut late = Vec::new();
        for (key, held) in self.held.iter_mut().filter(|(_, held)| !held.answered) {
            let Key::Plane { plane, .. } = key else { continue };
            if now_ms >= self.went.get(plane).copied().unwrap_or(0) + GRACE_MS {
                held.answered = true;
                let update = &held.update.update;
                late.push((key.clone(), update.version, update.change == Change::Delete));
            }
        }
        // What is withdrawn is done with.
        self.held.retain(|_, held| !held.answered || held.update.update.change != Change::Delete);
        late.into_iter()
            .filter_map(|(key, version, is_delete)| self.answer(&key, version, is_delete))
            .collect()
    }
}

fn is_endorsed(header: &SignedHeader) -> bool {
    matches!(header.signature, GroupSignature::Members { .. })
}

fn is_of(key: &Key, plane: &Label) -> bool {
    matches!(key, Key::Plane { plane: of, .. } if of == plane)
}

#[cfg(test)]
mod tests;
