//! A controller's core and actuators with real gates, under faults from a seed: updates and acks are lost,
//! doubled and swapped, sessions break, the controller starts again from snapshot and log, actuators
//! die between applying and acking, and somebody forges and replays: batches, acks and events.
//!
//! Checked after every step: what is in force never goes back, no port is in force before its network
//! and policy, no gateway knows an endpoint before its host does. At the end: all is as decided, and a
//! return reprograms nothing. A scheduler that ignores dependencies must be caught.

use super::app::{self, ACTUATORS, TestApp, entries, event, facts, label};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_base::codec::{decode, encode};
use weir_base::seeds::Seeds;
use weir_base::world::Rng;
use weir_controller::core::scheduler::{Mode, SchedulerSettings};
use weir_controller::core::{APART, Core, CoreSettings, Input, Item, Outcome, Output, decode_batch, marker};
use weir_model::event::{ActuatorFacts, Event, EventBody, SignedEvent, SourceId, UsageReport};
use weir_model::identity::IdentityEvent;
use weir_model::signed::{SignedAcks, SignedUpdates};
use weir_model::update::Refusal;
use weir_model::{Ack, Change, Entry, Key, Label, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, Verifier, sign_batch};
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{KeyPair, sign_acks, sign_event, sign_rotation, sign_settled};

mod whole;

const ACTUATOR_NAMES: [&str; 4] = ["h1", "h2", "g1", "g2"];
const STATE_CHUNK: usize = 3;

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

fn settings(mode: Mode) -> CoreSettings {
    let scheduler = SchedulerSettings { mode, window: 4, ..SchedulerSettings::default() };
    let source = SourceId("controller/c1".into());
    CoreSettings { domain: label("d"), epoch: 1, source, keys: app::keys(), believes_one: true, scheduler }
}

enum ToActuator {
    Updates(SignedUpdates),
    SendState,
}

enum ToController {
    Acks(SignedAcks),
    State(Vec<(Key, Version)>),
}

struct Actuator {
    name: Label,
    identity: KeyPair,
    /// The key that comes: made, and kept over crashes, until the old one is dropped.
    next: Option<KeyPair>,
    /// Whether `identity` is the new key already; then `next` holds the old one.
    changed: bool,
    /// Keys that were dropped.
    dropped: Vec<KeyPair>,
    path: std::path::PathBuf,
    gate: Gate,
    session: Option<u64>,
    inbox: Vec<ToActuator>,
    outbox: Vec<ToController>,
    seen: Vec<SignedUpdates>,
    highest: BTreeMap<Key, Version>,
    applied: u64,
}

fn open_gate(name: &Label, path: &std::path::Path) -> Gate {
    Gate::open(name.clone(), Verifier::new(label("d"), signer().group_key()), path).unwrap()
}

impl Actuator {
    fn new(name: &str, number: u8, dir: &std::path::Path) -> Actuator {
        let path = dir.join(name);
        let name = label(name);
        let gate = open_gate(&name, &path);
        let identity = KeyPair::from_seed(&[100 + number; 32]);
        Actuator {
            name,
            identity,
            next: None,
            changed: false,
            dropped: Vec::new(),
            path,
            gate,
            session: None,
            inbox: Vec::new(),
            outbox: Vec::new(),
            seen: Vec::new(),
            highest: BTreeMap::new(),
            applied: 0,
        }
    }

    fn take(&mut self, frame: &SignedUpdates, mut fails: impl FnMut() -> bool) -> Vec<Ack> {
        let acks = take(&mut self.gate, frame, |_| {
            if fails() { Err(Refusal::Failed("no such device".into())) } else { Ok(()) }
        });
        self.applied += self.gate.counters.applied;
        self.gate.counters.applied = 0;
        acks.unwrap()
    }

    fn source(&self) -> SourceId {
        SourceId::of_actuator(&self.name)
    }

    fn break_session(&mut self) {
        self.session = None;
        self.inbox.clear();
        self.outbox.clear();
    }
}

struct Simulation {
    seed: u64,
    mode: Mode,
    rng: Rng,
    core: Core,
    log: Vec<Vec<u8>>,
    snapshot: Option<(usize, Vec<u8>)>,
    actuators: Vec<Actuator>,
    proposals: Vec<Item>,
    sent_events: Vec<SignedEvent>,
    decided: BTreeMap<(SourceId, u64), Version>,
    sequence: u64,
    own_sequence: u64,
    sessions: u64,
    now_ms: u64,
    healed: bool,
    /// Whether actuators now and then refuse what they are sent.
    refuses: bool,
    whole: Option<whole::Whole>,
    violations: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Simulation {
    fn new(seed: u64, mode: Mode) -> Simulation {
        let dir = tempfile::tempdir().unwrap();
        let actuators: Vec<Actuator> = ACTUATOR_NAMES
            .iter()
            .enumerate()
            .map(|(number, name)| Actuator::new(name, number as u8, dir.path()))
            .collect();
        let mut simulation = Simulation {
            seed,
            mode,
            rng: Rng::new(seed),
            core: Core::new(settings(mode), Box::new(signer()), vec![Arc::new(TestApp)]),
            log: Vec::new(),
            snapshot: None,
            actuators,
            proposals: Vec::new(),
            sent_events: Vec::new(),
            decided: BTreeMap::new(),
            sequence: 0,
            own_sequence: 0,
            sessions: 0,
            now_ms: 1_000,
            healed: false,
            refuses: true,
            whole: None,
            violations: Vec::new(),
            _dir: dir,
        };
        if mode == Mode::Linear {
            simulation.proposals.push(marker(simulation.now_ms, APART));
        }
        for number in 0..ACTUATOR_NAMES.len() {
            simulation.join(number);
        }
        simulation
    }

    fn join(&mut self, number: usize) {
        let actuator = &self.actuators[number];
        let facts = facts(actuator.name.as_str(), actuator.identity.public());
        self.client(EventBody::Joined(facts));
    }

    fn client(&mut self, body: EventBody) {
        self.sequence += 1;
        let event = event("client", self.sequence, body);
        self.sent_events.push(event.clone());
        self.proposals.push(Item::Event { now_ms: self.now_ms, event });
    }

    /// A usage report of an actuator: `honest` tells whether it is signed with its key and of itself.
    fn report(&mut self, number: usize, sequence: u64, honest: bool) -> SignedEvent {
        let (own, other) = (&self.actuators[number], &self.actuators[(number + 1) % ACTUATOR_NAMES.len()]);
        let lie = self.rng.below(3);
        let of = if honest || lie != 0 { &own.name } else { &other.name };
        let key = if honest || lie != 1 { &own.identity } else { &other.identity };
        let domain = if honest || lie != 2 { "d" } else { "elsewhere" };
        let (through_gateway, direct) = (Vec::new(), Vec::new());
        let report =
            UsageReport { actuator: of.clone(), window_ms: 1, through_gateway, direct, turns: Vec::new() };
        let source = SourceId::of_actuator(&own.name);
        sign_event(key, &label(domain), Event { source, sequence, body: EventBody::Usage(report) }, None)
    }

    /// An actuator tells of itself; what it says reaches the order once, twice, or is lost.
    fn observe(&mut self, number: usize) {
        self.sequence += 1;
        let event = self.report(number, self.sequence, true);
        self.sent_events.push(event.clone());
        for _ in 0..self.rng.below(3) {
            self.proposals.push(Item::Event { now_ms: self.now_ms, event: event.clone() });
        }
    }

    /// A replica that lies proposes what nobody said: a forged report, one of another actuator or domain, or a real
    /// event with another number or content.
    fn forge(&mut self, number: usize) {
        let event = if self.rng.chance(1, 2) {
            self.report(number, self.sequence + 1_000, false)
        } else {
            let at = self.rng.below(self.sent_events.len() as u64) as usize;
            let mut event = self.sent_events[at].clone();
            match self.rng.below(3) {
                0 => event.event.sequence += 1_000,
                1 => event.subject = Some("somebody".into()),
                _ => event.event.body = EventBody::Removed { actuator: self.actuators[number].name.clone() },
            }
            event
        };
        let (digest, dropped) = (self.core.store().digest(), self.dropped());
        // Alone in its batch, so that whatever it changed would be seen.
        let operation = bytes::Bytes::from(encode(&Item::Event { now_ms: self.now_ms, event }));
        let batch = weir_order::batcher::encode(&[operation]).to_vec();
        let items = decode_batch(&batch).unwrap();
        self.log.push(batch);
        self.step_core(Input::Ordered(items));
        if self.core.store().digest() != digest || self.dropped() != dropped + 1 {
            self.violations.push("a forged event changed something, or was not counted".into());
        }
    }

    fn dropped(&self) -> u64 {
        let counted = self.core.counters().unauthentic;
        counted.bad_signature + counted.unknown_source + counted.not_its_own + counted.revoked
    }

    fn step_core(&mut self, input: Input) {
        let mut out = Vec::new();
        self.core.step(input, &mut out);
        self.carry(out);
    }

    fn carry(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Decided { event, outcome } => {
                    self.decided(event.event.source, event.event.sequence, outcome);
                }
                Output::Send { target, session, updates } => {
                    self.post(&target, session, ToActuator::Updates(updates));
                }
                Output::AskState { target, session } => {
                    self.post(&target, session, ToActuator::SendState);
                }
                Output::Close { target, session, .. } => {
                    let found = self.actuators.iter_mut().find(|a| a.name == target);
                    found
                        .filter(|a| a.session == Some(session))
                        .into_iter()
                        .for_each(Actuator::break_session);
                }
                Output::Repair { target, found } => {
                    self.proposals.push(Item::Repair { now_ms: self.now_ms, actuator: target, found });
                }
                Output::Refused { target, key, version, refusal } => {
                    self.own_sequence = self.own_sequence.max(self.core.own_sequence()) + 1;
                    let body = EventBody::Refused { actuator: target, key, version, refusal };
                    let event = event("controller/c1", self.own_sequence, body);
                    self.proposals.push(Item::Event { now_ms: self.now_ms, event });
                }
                Output::Prepared { updates, .. } => {
                    self.whole.iter_mut().for_each(|whole| whole.decide(&updates));
                }
                Output::Committed(_)
                | Output::Applied { .. }
                | Output::Finished(_)
                | Output::Sign(_)
                | Output::Repaired { .. }
                | Output::Acked(_)
                | Output::Forged { .. }
                | Output::SendUnsigned { .. }
                | Output::KeysChanged => {}
            }
        }
    }

    /// The same event must always get the same answer, also from a replay.
    fn decided(&mut self, source: SourceId, sequence: u64, outcome: Outcome) {
        if let Outcome::Committed(version) | Outcome::Duplicate(version) = outcome {
            let first = *self.decided.entry((source.clone(), sequence)).or_insert(version);
            if first != version {
                self.violations
                    .push(format!("event {sequence} of {source:?} is at {first} and at {version}"));
            }
        }
    }

    fn post(&mut self, target: &Label, session: u64, message: ToActuator) {
        let actuator = self.actuators.iter_mut().find(|a| a.name == *target).unwrap();
        if actuator.session == Some(session) {
            actuator.inbox.push(message);
        }
    }

    fn order(&mut self) {
        if self.proposals.is_empty() {
            return;
        }
        let count = 1 + self.rng.below(self.proposals.len() as u64) as usize;
        let rules = marker(self.now_ms, APART);
        let tells = self.mode == Mode::Linear && self.core.rules() < APART;
        let items = tells.then_some(rules).into_iter().chain(self.proposals.drain(..count));
        let operations: Vec<_> = items.map(|item| bytes::Bytes::from(encode(&item))).collect();
        let batch = weir_order::batcher::encode(&operations).to_vec();
        let items = decode_batch(&batch).unwrap();
        self.log.push(batch);
        self.step_core(Input::Ordered(items));
    }

    fn connect(&mut self, number: usize) {
        // What the driver asks of whoever opens a session.
        if self.keys(number).is_none_or(|keys| !keys.contains(&self.actuators[number].identity.public())) {
            return;
        }
        self.sessions += 1;
        let actuator = &mut self.actuators[number];
        actuator.break_session();
        actuator.session = Some(self.sessions);
        let digest = actuator.gate.digest();
        let input = Input::Connected { actuator: actuator.name.clone(), session: self.sessions, digest };
        self.step_core(input);
    }

    /// The keys that are taken of an actuator; none when it has not joined, or is revoked.
    fn keys(&self, number: usize) -> Option<Vec<[u8; 32]>> {
        let actuator = &self.actuators[number];
        let row = self.core.identities().row(&actuator.source());
        let before = row.and_then(|row| row.previous);
        let now = self.core.joined().get(&actuator.name)?.identity;
        let taken = row.is_none_or(|row| row.revoked.is_none());
        taken.then(|| std::iter::once(now).chain(before).collect())
    }

    fn fresh_key(&mut self) -> KeyPair {
        let mut seed = [0; 32];
        seed.iter_mut().for_each(|byte| *byte = self.rng.below(256) as u8);
        KeyPair::from_seed(&seed)
    }

    /// The next step of a change of an actuator's key, from where the last one left it: what was ordered may have been lost.
    fn rotate(&mut self, number: usize) {
        let Some(keys) = self.keys(number) else { return self.join_anew(number) };
        let fresh = self.fresh_key();
        let actuator = &mut self.actuators[number];
        let (source, domain) = (actuator.source(), label("d"));
        match (&actuator.next, actuator.changed) {
            (None, _) => actuator.next = Some(fresh),
            (Some(next), false) if keys.contains(&next.public()) => {
                let next = actuator.next.take().unwrap();
                actuator.next = Some(std::mem::replace(&mut actuator.identity, next));
                actuator.changed = true;
            }
            (Some(next), false) => {
                let rotation = sign_rotation(&domain, source, &actuator.identity, next);
                self.about(IdentityEvent::Rotated(rotation));
            }
            (Some(old), true) if !keys.contains(&old.public()) => {
                let old = actuator.next.take().unwrap();
                actuator.dropped.push(old);
                actuator.changed = false;
            }
            // Nothing that the old key signed is on its way any more.
            (Some(_), true) if actuator.outbox.is_empty() => {
                let by_key = sign_settled(&domain, &source, &actuator.identity);
                let key = actuator.identity.public();
                self.about(IdentityEvent::Settled { whose: source, key, by_key });
            }
            (Some(_), true) => {}
        }
    }

    fn about(&mut self, about: IdentityEvent) {
        self.client(EventBody::Identity(Box::new(about)));
    }

    /// Somebody revokes an actuator. It comes back with other keys, later.
    fn revoke(&mut self, number: usize) {
        let whose = self.actuators[number].source();
        self.about(IdentityEvent::Revoked { whose, reason: "a test".into() });
    }

    fn join_anew(&mut self, number: usize) {
        let actuator = &self.actuators[number];
        let row = self.core.identities().row(&actuator.source());
        let Some(row) = row.filter(|row| row.revoked.is_some()) else { return };
        if row.refused.contains(&actuator.identity.public()) {
            let fresh = self.fresh_key();
            let actuator = &mut self.actuators[number];
            let old = std::mem::replace(&mut actuator.identity, fresh);
            actuator.dropped.push(old);
            actuator.dropped.extend(actuator.next.take());
            actuator.changed = false;
            actuator.outbox.clear();
        }
        self.join(number);
    }

    fn disconnect(&mut self, number: usize) {
        let actuator = &mut self.actuators[number];
        if let Some(session) = actuator.session {
            actuator.break_session();
            let actuator = actuator.name.clone();
            self.step_core(Input::Disconnected { actuator, session });
        }
    }

    /// An actuator's process ends, perhaps after it applied and before it acked.
    fn crash_actuator(&mut self, number: usize) {
        let actuator = &mut self.actuators[number];
        if let Some(ToActuator::Updates(frame)) = actuator.inbox.first() {
            let frame = frame.clone();
            actuator.take(&frame, || false);
        }
        self.disconnect(number);
        let actuator = &mut self.actuators[number];
        actuator.gate = open_gate(&actuator.name, &actuator.path);
        self.check();
    }

    /// The controller's process ends; the next one starts from the snapshot and the log.
    fn crash_controller(&mut self) {
        let digest = self.core.store().digest();
        self.actuators.iter_mut().for_each(Actuator::break_session);
        // What was not ordered is lost, and may be proposed again by the client.
        self.proposals.clear();
        let (signer, apps) = (Box::new(signer()), vec![Arc::new(TestApp) as _]);
        let (from, mut core) = match &self.snapshot {
            None => (0, Core::new(settings(self.mode), signer, apps)),
            Some((at, bytes)) => {
                (*at, Core::from_snapshot(settings(self.mode), signer, apps, bytes).unwrap())
            }
        };
        let mut out = Vec::new();
        for batch in &self.log[from..] {
            core.step(Input::Ordered(decode_batch(batch).unwrap()), &mut out);
        }
        self.core = core;
        self.carry(out);
        if self.core.store().digest() != digest {
            self.violations.push("the replayed store differs".into());
        }
        self.sessions += 1;
    }

    fn deliver_to_actuator(&mut self, number: usize) {
        let waiting = self.actuators[number].inbox.len() as u64;
        if waiting == 0 {
            return;
        }
        let at = if self.healed { 0 } else { self.rng.below(waiting) as usize };
        let message = self.actuators[number].inbox.remove(at);
        let ToActuator::Updates(frame) = message else {
            let actuator = &mut self.actuators[number];
            let state = actuator.gate.iter().map(|(key, in_force)| (key.clone(), in_force.version)).collect();
            actuator.outbox.push(ToController::State(state));
            return;
        };
        if !self.healed && self.rng.chance(1, 8) {
            return;
        }
        if !self.healed && self.rng.chance(1, 8) {
            self.actuators[number].inbox.push(ToActuator::Updates(frame.clone()));
        }
        let fails = self.refuses && !self.healed && self.rng.chance(1, 16);
        let actuator = &mut self.actuators[number];
        actuator.seen.push(frame.clone());
        let acks = actuator.take(&frame, || fails);
        let acks = sign_acks(&actuator.identity, &actuator.name, acks);
        actuator.outbox.push(ToController::Acks(acks));
        self.check();
    }

    fn deliver_to_controller(&mut self, number: usize) {
        let waiting = self.actuators[number].outbox.len() as u64;
        let Some(session) = self.actuators[number].session.filter(|_| waiting > 0) else { return };
        let at = if self.healed { 0 } else { self.rng.below(waiting) as usize };
        let name = self.actuators[number].name.clone();
        match self.actuators[number].outbox.remove(at) {
            ToController::State(state) => {
                let chunks: Vec<Vec<_>> = state.chunks(STATE_CHUNK).map(<[_]>::to_vec).collect();
                for entries in chunks {
                    self.step_core(Input::State { actuator: name.clone(), session, entries, last: false });
                }
                self.step_core(Input::State { actuator: name, session, entries: Vec::new(), last: true });
            }
            ToController::Acks(acks) => {
                if !self.healed && self.rng.chance(1, 8) {
                    return;
                }
                let refused = |s: &Simulation| s.core.counters().acks_forged + s.core.counters().acks_revoked;
                let before = refused(self);
                if !self.healed && self.rng.chance(1, 8) {
                    self.step_core(Input::Acks { session, acks: acks.clone() });
                }
                self.step_core(Input::Acks { session, acks });
                if refused(self) != before {
                    self.violations.push(format!("acks of {name} were lost: its session is open"));
                }
            }
        }
    }

    /// Somebody on the network forges a batch, replays an old one, and forges acks.
    fn attack(&mut self, number: usize) {
        let version = Version(self.core.store().version().0 + 1_000);
        let actuator = &mut self.actuators[number];
        let update = weir_model::Update {
            target: actuator.name.clone(),
            key: Key::Gateways,
            version,
            expected: Version::ZERO,
            change: Change::Put(Entry::Gateways(Vec::new())),
        };
        let liar = SingleSigner(KeyPair::from_seed(&[9; 32]));
        let (header, updates) = sign_batch(&liar, &label("d"), 1, version, vec![update]).unwrap();
        let applied = actuator.applied;
        actuator.take(&SignedUpdates { header, updates }, || false);
        let old = self.rng.below(actuator.seen.len().max(1) as u64) as usize;
        let unchanged = actuator.gate.digest();
        if let Some(frame) = actuator.seen.get(old).cloned() {
            // A frame that was lost as a whole may be new to the gate; one that it took is not.
            let taken = frame.updates.iter().all(|p| {
                actuator.highest.get(&p.update.key).is_some_and(|highest| *highest >= p.update.version)
            });
            if taken {
                actuator.take(&frame, || false);
            }
        }
        if actuator.applied != applied || actuator.gate.digest() != unchanged {
            self.violations.push("a forged or replayed batch was applied".into());
        }
        let name = actuator.name.clone();
        if let Some(session) = actuator.session {
            let ack = Ack { key: Key::Gateways, version, result: Ok(()) };
            // Somebody else's key, or one of its own that was dropped.
            let dropped = &self.actuators[number].dropped;
            let by = dropped.last().filter(|_| self.rng.chance(1, 2)).unwrap_or(&liar.0);
            let acks = sign_acks(by, &name, vec![ack]);
            let forged = self.core.counters().acks_forged;
            self.step_core(Input::Acks { session, acks });
            if self.core.counters().acks_forged != forged + 1 {
                self.violations.push("forged acks were taken".into());
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let (mut wrong, mut applied) = (Vec::new(), Vec::new());
        for actuator in &mut self.actuators {
            for (key, in_force) in actuator.gate.iter() {
                let highest = actuator.highest.entry(key.clone()).or_default();
                if in_force.version > *highest {
                    applied.push((in_force.version, (actuator.name.clone(), key.clone())));
                }
                if in_force.version < *highest {
                    wrong.push(format!("{} {key} went back to {}", actuator.name, in_force.version));
                }
                *highest = (*highest).max(in_force.version);
            }
        }
        wrong.extend(self.whole.iter_mut().flat_map(|whole| whole.apply(std::mem::take(&mut applied))));
        let in_force = |name: &Label, key: &Key| {
            let actuator = self.actuators.iter().find(|a| a.name == *name)?;
            actuator.gate.get(key).filter(|found| found.entry.is_some()).map(|found| found.version)
        };
        for actuator in &self.actuators {
            for (key, found) in actuator.gate.iter() {
                match (&found.entry, key) {
                    (Some(Entry::Port(port)), Key::Port { vni, .. }) => {
                        let network = in_force(&actuator.name, &Key::Network { vni: *vni });
                        let policy = in_force(&actuator.name, &Key::Policy { vni: *vni });
                        if network.is_none() || policy < Some(port.policy_min) {
                            wrong.push(format!("{} {key} is in force before its policy", actuator.name));
                        }
                    }
                    (Some(Entry::Location(location)), Key::Location { vni, .. }) => {
                        let port = Key::Port { vni: *vni, endpoint: location.endpoint.clone() };
                        if in_force(&location.host, &port).is_none() {
                            wrong.push(format!("{} {key} points to nobody", actuator.name));
                        }
                    }
                    _ => {}
                }
            }
        }
        self.violations.append(&mut wrong);
    }

    fn random_intent(&mut self) {
        let mutations = (0..1 + self.rng.below(3))
            .map(|_| {
                let network = ["n1", "n2"][self.rng.below(2) as usize];
                let name = format!("e{}", 1 + self.rng.below(4));
                match self.rng.below(8) {
                    0 => app::policy(network, ["allow", "deny"][self.rng.below(2) as usize]),
                    1 | 2 => app::no_endpoint(network, &name),
                    _ => app::endpoint(network, &name, ["h1", "h2"][self.rng.below(2) as usize]),
                }
            })
            .collect();
        self.client(EventBody::Intent(app::transaction(mutations)));
    }

    fn step(&mut self) {
        let number = self.rng.below(ACTUATOR_NAMES.len() as u64) as usize;
        match self.rng.below(64) {
            0..8 => self.random_intent(),
            8..18 => self.order(),
            18..36 => self.deliver_to_actuator(number),
            36..52 => self.deliver_to_controller(number),
            52..56 => self.connect(number),
            56 => self.disconnect(number),
            57 => self.crash_actuator(number),
            58 if self.rng.chance(1, 2) => self.crash_controller(),
            58 | 59 => self.snapshot = Some((self.log.len(), self.core.snapshot().to_bytes())),
            60 => self.attack(number),
            61 if self.rng.chance(1, 2) => self.observe(number),
            63 if self.rng.chance(1, 24) => self.revoke(number),
            63 if self.rng.chance(4, 5) => self.rotate(number),
            62 => self.forge(number),
            61 => {
                let again = self.rng.below(self.sent_events.len() as u64) as usize;
                let event = self.sent_events[again].clone();
                self.proposals.push(Item::Event { now_ms: self.now_ms, event });
            }
            _ => self.tick(6_000),
        }
    }

    fn tick(&mut self, by_ms: u64) {
        self.now_ms += by_ms;
        self.step_core(Input::Tick { now_ms: self.now_ms });
    }

    fn heal(&mut self) {
        self.healed = true;
        for event in self.sent_events.clone() {
            self.proposals.push(Item::Event { now_ms: self.now_ms, event });
        }
        while !self.proposals.is_empty() {
            self.order();
        }
        // Whoever was revoked joins with other keys, and changes of keys end.
        for _ in 0..8 {
            for number in 0..self.actuators.len() {
                let under_way = self.actuators[number].next.is_some() || self.keys(number).is_none();
                if under_way {
                    self.actuators[number].outbox.clear();
                    self.rotate(number);
                }
            }
            while !self.proposals.is_empty() {
                self.order();
            }
        }
        (0..self.actuators.len()).for_each(|number| self.connect(number));
        for _ in 0..50 {
            // One ack may let another actuator's update go: until nothing moves.
            while self.moves() {}
            while !self.proposals.is_empty() {
                self.order();
            }
            self.tick(40_000);
        }
    }

    /// Delivers all that is on its way now; tells whether something was.
    fn moves(&mut self) -> bool {
        let mut moved = false;
        for number in 0..self.actuators.len() {
            while self.actuators[number].session.is_some()
                && (!self.actuators[number].inbox.is_empty() || !self.actuators[number].outbox.is_empty())
            {
                moved = true;
                self.deliver_to_actuator(number);
                self.deliver_to_controller(number);
            }
        }
        moved
    }

    fn check_converged(&mut self) {
        let wanted = entries(self.core.store());
        for number in 0..self.actuators.len() {
            let own = self.actuators[number].identity.public();
            if self.keys(number) != Some(vec![own]) || self.actuators[number].next.is_some() {
                self.violations.push(format!("the key of {} is not settled", self.actuators[number].name));
            }
        }
        for actuator in &self.actuators {
            let found: BTreeMap<Key, (Version, Entry)> = actuator
                .gate
                .iter()
                .filter_map(|(key, found)| Some((key.clone(), (found.version, found.entry.clone()?))))
                .collect();
            let wanted: BTreeMap<Key, (Version, Entry)> = wanted
                .iter()
                .filter(|((target, _), _)| *target == actuator.name)
                .map(|((_, key), value)| (key.clone(), value.clone()))
                .collect();
            if found != wanted {
                let waiting = self.core.scheduler().waiting(5);
                self.violations.push(format!("{} did not converge; waiting: {waiting:?}", actuator.name));
            }
        }
    }

    /// Everybody returns, and so does the controller: nothing may be sent or applied.
    fn check_returns(&mut self) {
        let applied =
            |s: &Simulation| s.actuators.iter().map(|a| a.applied + a.gate.counters.repeated).sum::<u64>();
        let before = applied(self);
        self.crash_controller();
        (0..self.actuators.len()).for_each(|number| self.connect(number));
        let counters = self.core.scheduler().counters;
        let quiet = self.actuators.iter().all(|a| a.inbox.is_empty());
        if counters.sent != 0 || counters.sessions_in_sync != self.actuators.len() as u64 || !quiet {
            self.violations.push(format!("something was reprogrammed on return: {counters:?}"));
        }
        if applied(self) != before {
            self.violations.push("an actuator applied something on return".into());
        }
    }

    fn run(mut self, steps: usize) -> Vec<String> {
        for _ in 0..steps {
            self.step();
        }
        self.heal();
        self.check_converged();
        self.check_returns();
        let seed = self.seed;
        self.violations.iter().map(|violation| format!("seed {seed}: {violation}")).collect()
    }
}

#[test]
fn faults_of_many_seeds_break_nothing() {
    for mode in [Mode::Dependent, Mode::Linear] {
        let name = format!("faults-{mode:?}").to_lowercase();
        Seeds::of(env!("CARGO_MANIFEST_DIR"), &name, "WEIR_SIM", 120).each(|seed| {
            let violations = Simulation::new(seed, mode).run(400);
            assert!(violations.is_empty(), "{mode:?}: {:#?}", &violations[..violations.len().min(5)]);
        });
    }
}

#[test]
fn a_scheduler_that_ignores_dependencies_is_caught() {
    let caught = (0..20).filter(|seed| {
        let violations = Simulation::new(*seed, Mode::None).run(400);
        violations.iter().any(|v| v.contains("before its policy") || v.contains("points to nobody"))
    });
    assert!(caught.count() > 10, "the checker misses a wrong scheduler");
}

#[test]
fn actuators_of_the_store_are_those_of_the_core() {
    let mut simulation = Simulation::new(7, Mode::Dependent);
    while !simulation.proposals.is_empty() {
        simulation.order();
    }
    let stored: Vec<ActuatorFacts> =
        simulation.core.store().scan(ACTUATORS, b"").map(|(_, cell)| decode(&cell.value).unwrap()).collect();
    let joined: Vec<ActuatorFacts> = simulation.core.joined().values().cloned().collect();
    assert_eq!(stored, joined);
}
