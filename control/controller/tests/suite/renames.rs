//! Endpoints that take each other's names, addresses and devices, while hosts and gateways are away for a time: the real app, a
//! controller's core, actuators with real gates, and of a switch's tables what matters here: an address and a device are one
//! port's. One kind of switch lets a newer port take what an older one has, another refuses that.
//!
//! Nothing is tried again because time passed, so what is in force in the end came there by what the scheduler knows. At rest
//! everything desired is in force, and nothing that was deleted.

use super::app::{self, facts, label};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_apps::{Deciders, fabric};
use weir_base::codec::encode;
use weir_base::world::Rng;
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::{Core, CoreSettings, Input, Item, Outcome, Output, SharedApp, decode_batch};
use weir_model::entry::{PortEntry, Vni};
use weir_model::event::{EventBody, Mutation, SourceId, Transaction, Wanted};
use weir_model::resource::{Endpoint, Kind, Resource, ResourceId};
use weir_model::signed::SignedUpdates;
use weir_model::update::{Reason, Refusal};
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, Verifier};
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{KeyPair, sign_acks};

const HOSTS: [&str; 3] = ["h1", "h2", "h3"];
const ACTUATORS: [&str; 5] = ["h1", "h2", "h3", "g1", "g2"];
const NAMES: u64 = 6;
const ADDRESSES: u64 = 6;
const DEVICES: u64 = 3;
const VNI: Vni = Vni(1);

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

fn settings() -> CoreSettings {
    let scheduler = SchedulerSettings {
        window: 4,
        retry_ms: 1 << 40,
        resend_ms: 1 << 40,
        ..SchedulerSettings::default()
    };
    let source = SourceId("controller/c1".into());
    CoreSettings { domain: label("d"), epoch: 1, source, keys: app::keys(), believes_one: true, scheduler }
}

fn apps() -> Vec<SharedApp> {
    vec![Arc::new(Deciders::default())]
}

fn identity(number: usize) -> KeyPair {
    KeyPair::from_seed(&[100 + number as u8; 32])
}

/// Ports of a switch.
#[derive(Default)]
struct Ports {
    in_force: BTreeMap<Label, (Version, PortEntry)>,
    /// Whether a newer port takes what an older one has.
    takes: bool,
    taken: u64,
}

impl Ports {
    fn apply(&mut self, update: &Update) -> Result<(), Refusal> {
        let Key::Port { endpoint, .. } = &update.key else { return Ok(()) };
        let Change::Put(Entry::Port(port)) = &update.change else {
            self.in_force.remove(endpoint);
            return Ok(());
        };
        let shares = |other: &PortEntry| {
            other.device == port.device || other.addresses.iter().any(|one| port.addresses.contains(one))
        };
        let rivals = self.in_force.iter().filter(|(name, (_, other))| *name != endpoint && shares(other));
        let rivals: Vec<(Label, Version)> =
            rivals.map(|(name, (version, _))| (name.clone(), *version)).collect();
        if let Some((other, _)) = rivals.iter().find(|(_, version)| !self.takes || *version >= update.version)
        {
            return Err(Refusal::Failed(format!("port {endpoint} wants what {other} has")));
        }
        for (other, _) in rivals {
            self.in_force.remove(&other);
            self.taken += 1;
        }
        self.in_force.insert(endpoint.clone(), (update.version, port.clone()));
        Ok(())
    }
}

struct Actuator {
    name: Label,
    identity: KeyPair,
    gate: Gate,
    ports: Ports,
    session: Option<u64>,
    inbox: Vec<SignedUpdates>,
    asks_state: bool,
}

struct Simulation {
    rng: Rng,
    core: Core,
    actuators: Vec<Actuator>,
    proposals: Vec<Item>,
    sequence: u64,
    own_sequence: u64,
    sessions: u64,
    now_ms: u64,
    /// Changes that were decided.
    changes: u64,
    _dir: tempfile::TempDir,
}

fn endpoint_id(name: &str) -> ResourceId {
    ResourceId { kind: Kind::Endpoint, network: Some(label("red")), name: label(name) }
}

/// An endpoint as these tests want it: place, address, device.
#[derive(Clone, PartialEq)]
struct Wish {
    host: String,
    address: String,
    device: String,
}

fn put(name: &str, wish: &Wish) -> Mutation {
    let Wish { host, address, device } = wish;
    let document = format!(
        r#"{{"kind":"endpoint","network":"red","name":"{name}","subnet":"main","host":"{host}","addresses":["{address}"],"attachment":{{"netns":"n","device":"{device}"}}}}"#
    );
    Mutation { id: endpoint_id(name), expected: None, wanted: Wanted::Document(document) }
}

fn absent(name: &str) -> Mutation {
    Mutation { id: endpoint_id(name), expected: None, wanted: Wanted::Absent }
}

fn address(number: u64) -> String {
    format!("10.0.0.{}", 10 + number)
}

impl Simulation {
    fn new(seed: u64, takes: bool) -> Simulation {
        let dir = tempfile::tempdir().unwrap();
        let actuators = ACTUATORS.iter().enumerate().map(|(number, name)| {
            let verifier = Verifier::new(label("d"), signer().group_key());
            let gate = Gate::open(label(name), verifier, &dir.path().join(name)).unwrap();
            let ports = Ports { takes, ..Ports::default() };
            let (identity, name) = (identity(number), label(name));
            Actuator { name, identity, gate, ports, session: None, inbox: Vec::new(), asks_state: false }
        });
        let mut simulation = Simulation {
            actuators: actuators.collect(),
            rng: Rng::new(seed),
            core: Core::new(settings(), Box::new(signer()), apps()),
            proposals: Vec::new(),
            sequence: 0,
            own_sequence: 0,
            sessions: 0,
            now_ms: 1_000,
            changes: 0,
            _dir: dir,
        };
        for number in 0..ACTUATORS.len() {
            let actuator = &simulation.actuators[number];
            let facts = facts(actuator.name.as_str(), actuator.identity.public());
            simulation.propose(EventBody::Joined(facts));
        }
        let network = r#"{"kind":"network","name":"red","ingress":"allow"}"#;
        let subnet = r#"{"kind":"subnet","network":"red","name":"main","v4":"10.0.0.0/24"}"#;
        let id = |kind, network: Option<&str>, name: &str| ResourceId {
            kind,
            network: network.map(label),
            name: label(name),
        };
        let document =
            |id, text: &str| Mutation { id, expected: None, wanted: Wanted::Document(text.into()) };
        simulation.change(vec![
            document(id(Kind::Network, None, "red"), network),
            document(id(Kind::Subnet, Some("red"), "main"), subnet),
        ]);
        simulation.order();
        simulation
    }

    fn propose(&mut self, body: EventBody) {
        self.sequence += 1;
        let event = app::event("client", self.sequence, body);
        self.proposals.push(Item::Event { now_ms: self.now_ms, event });
    }

    fn change(&mut self, mutations: Vec<Mutation>) {
        self.propose(EventBody::Intent(Transaction { mutations, replace_all: false }));
    }

    fn endpoints(&self) -> Vec<(String, Wish)> {
        let stored = fabric::resources(self.core.store(), Some(Kind::Endpoint), Some(&label("red")));
        let wish = |endpoint: &Endpoint, addresses: &[IpAddr]| Wish {
            host: endpoint.host.as_ref().unwrap().to_string(),
            address: addresses[0].to_string(),
            device: endpoint.attachment.as_ref().unwrap().device.clone(),
        };
        stored
            .filter_map(|stored| match &stored.resource {
                Resource::Endpoint(found) => {
                    Some((found.name.to_string(), wish(found, &stored.allocated.addresses)))
                }
                _ => None,
            })
            .collect()
    }

    /// One change of a person: what cannot be is rejected, which changes nothing.
    fn think(&mut self, swaps: bool) {
        let there = self.endpoints();
        let name = format!("e{}", self.rng.below(NAMES));
        let host = HOSTS[self.rng.below(HOSTS.len() as u64) as usize].to_owned();
        let device = format!("d{}", self.rng.below(DEVICES));
        let fresh = Wish { host, address: address(self.rng.below(ADDRESSES)), device };
        if there.len() < 2 {
            return self.change(vec![put(&name, &fresh)]);
        }
        let (a, wish_a) = there[self.rng.below(there.len() as u64) as usize].clone();
        let (b, wish_b) = there[self.rng.below(there.len() as u64) as usize].clone();
        let mutations = match self.rng.below(if swaps { 9 } else { 6 }) {
            0 => vec![absent(&a)],
            // A rename.
            1 | 2 if name != a => vec![absent(&a), put(&name, &wish_a)],
            // One that is deleted leaves its address, its device or its place to another.
            3 if a != b => vec![absent(&a), put(&b, &Wish { address: wish_a.address, ..wish_b })],
            4 if a != b => vec![absent(&a), put(&b, &wish_a)],
            // A move, a resurrection, or another address.
            5 => vec![put(&name, &fresh)],
            6 => vec![put(&a, &Wish { host: fresh.host, ..wish_a })],
            7 if a != b => vec![
                put(&a, &Wish { address: wish_b.address.clone(), ..wish_a.clone() }),
                put(&b, &Wish { address: wish_a.address, ..wish_b }),
            ],
            8 if a != b => vec![put(&a, &wish_b), put(&b, &wish_a)],
            _ => vec![put(&name, &fresh)],
        };
        self.change(mutations);
    }

    fn step_core(&mut self, input: Input) {
        let mut out = Vec::new();
        self.core.step(input, &mut out);
        for output in out {
            match output {
                Output::Decided { outcome: Outcome::Committed(_), .. } => self.changes += 1,
                Output::Send { target, session, updates } => {
                    if let Some(actuator) = self.actuator(&target, session) {
                        actuator.inbox.push(updates);
                    }
                }
                Output::AskState { target, session } => {
                    if let Some(actuator) = self.actuator(&target, session) {
                        actuator.asks_state = true;
                    }
                }
                Output::Repair { target, found } => {
                    self.proposals.push(Item::Repair { now_ms: self.now_ms, actuator: target, found });
                }
                Output::Refused { target, key, version, refusal } => {
                    self.own_sequence = self.own_sequence.max(self.core.own_sequence()) + 1;
                    let body = EventBody::Refused { actuator: target, key, version, refusal };
                    let event = app::event("controller/c1", self.own_sequence, body);
                    self.proposals.push(Item::Event { now_ms: self.now_ms, event });
                }
                _ => {}
            }
        }
    }

    fn actuator(&mut self, name: &Label, session: u64) -> Option<&mut Actuator> {
        self.actuators.iter_mut().find(|one| one.name == *name && one.session == Some(session))
    }

    fn order(&mut self) {
        let items = std::mem::take(&mut self.proposals);
        if items.is_empty() {
            return;
        }
        let operations: Vec<_> = items.iter().map(|item| bytes::Bytes::from(encode(item))).collect();
        let batch = weir_order::batcher::encode(&operations).to_vec();
        self.step_core(Input::Ordered(decode_batch(&batch).unwrap()));
    }

    fn connect(&mut self, number: usize) {
        self.disconnect(number);
        self.sessions += 1;
        let actuator = &mut self.actuators[number];
        actuator.session = Some(self.sessions);
        let (actuator, digest) = (actuator.name.clone(), actuator.gate.digest());
        self.step_core(Input::Connected { actuator, session: self.sessions, digest });
    }

    fn disconnect(&mut self, number: usize) {
        let actuator = &mut self.actuators[number];
        actuator.inbox.clear();
        actuator.asks_state = false;
        if let Some(session) = actuator.session.take() {
            let actuator = actuator.name.clone();
            self.step_core(Input::Disconnected { actuator, session });
        }
    }

    /// An actuator answers the next thing; tells whether there was one.
    fn deliver(&mut self, number: usize) -> bool {
        let actuator = &mut self.actuators[number];
        let Some(session) = actuator.session else { return false };
        let name = actuator.name.clone();
        if std::mem::take(&mut actuator.asks_state) {
            let entries = actuator.gate.iter().map(|(key, found)| (key.clone(), found.version)).collect();
            self.step_core(Input::State { actuator: name, session, entries, last: true });
            return true;
        }
        if actuator.inbox.is_empty() {
            return false;
        }
        let frame = actuator.inbox.remove(0);
        let ports = &mut actuator.ports;
        let acks = take(&mut actuator.gate, &frame, |update| ports.apply(update)).unwrap();
        let acks = sign_acks(&actuator.identity, &name, acks);
        self.step_core(Input::Acks { session, acks });
        true
    }

    /// The controller's process ends; the next one starts from what was kept.
    fn restart_controller(&mut self) {
        let kept = self.core.snapshot().to_bytes();
        self.actuators.iter_mut().for_each(|actuator| {
            actuator.session = None;
            actuator.asks_state = false;
            actuator.inbox.clear();
        });
        self.proposals.clear();
        self.core = Core::from_snapshot(settings(), Box::new(signer()), apps(), &kept).unwrap();
    }

    fn step(&mut self, swaps: bool) {
        let number = self.rng.below(ACTUATORS.len() as u64) as usize;
        match self.rng.below(40) {
            0..4 => self.think(swaps),
            4..8 => self.order(),
            8..12 => self.connect(number),
            12..15 => self.disconnect(number),
            15 if self.rng.chance(1, 6) => self.restart_controller(),
            16..18 => self.pass(),
            _ => drop(self.deliver(number)),
        }
    }

    fn pass(&mut self) {
        self.now_ms += 1_000;
        self.step_core(Input::Tick { now_ms: self.now_ms });
    }

    fn settle(&mut self) {
        (0..ACTUATORS.len()).for_each(|number| self.connect(number));
        for _ in 0..40 {
            self.order();
            for number in 0..ACTUATORS.len() {
                while self.deliver(number) {}
            }
            self.pass();
        }
    }

    /// What is not as it should be.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for actuator in &self.actuators {
            let wanted = fabric::desired(self.core.store(), &actuator.name);
            let wanted: BTreeMap<Key, Version> = wanted
                .filter(|(.., entry)| entry.is_some())
                .map(|(key, version, _)| (key, version))
                .collect();
            let found = actuator.gate.iter().filter(|(_, found)| found.entry.is_some());
            let found: BTreeMap<Key, Version> =
                found.map(|(key, found)| (key.clone(), found.version)).collect();
            let differs = |(key, version): (&Key, &Version), other: &BTreeMap<Key, Version>| {
                (other.get(key) != Some(version)).then(|| format!("{} {key} @{version}", actuator.name))
            };
            let missing = wanted.iter().filter_map(|one| differs(one, &found));
            wrong.extend(missing.map(|text| format!("not in force: {text}")));
            let left = found.iter().filter_map(|one| differs(one, &wanted));
            wrong.extend(left.map(|text| format!("in force and not desired: {text}")));
            let port = |key: &Key| match key {
                Key::Port { endpoint, .. } => Some(endpoint.clone()),
                _ => None,
            };
            let ports: BTreeSet<Label> = wanted.keys().filter_map(port).collect();
            if ports != actuator.ports.in_force.keys().cloned().collect() {
                wrong.push(format!("the ports of {} are not those desired", actuator.name));
            }
        }
        if !wrong.is_empty() {
            wrong.push(format!("{:#?}", self.core.scheduler().waiting(8)));
        }
        wrong
    }

    fn run(&mut self, steps: usize, swaps: bool) -> Vec<String> {
        for _ in 0..4 {
            (0..steps).for_each(|_| self.step(swaps));
            self.settle();
            let wrong = self.wrong();
            if !wrong.is_empty() {
                return wrong;
            }
        }
        Vec::new()
    }

    /// One change after another, each carried out.
    fn do_now(&mut self, mutations: Vec<Mutation>) {
        self.change(mutations);
        self.order();
        for number in (0..ACTUATORS.len()).chain(0..ACTUATORS.len()).chain(0..ACTUATORS.len()) {
            while self.deliver(number) {}
        }
    }
}

fn seeds() -> u64 {
    std::env::var("WEIR_SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(60)
}

fn wish(host: &str, number: u64, device: &str) -> Wish {
    Wish { host: host.into(), address: address(number), device: device.into() }
}

#[test]
fn whatever_is_renamed_swapped_or_moved_ends_as_desired() {
    let (mut changes, mut taken, mut rings) = (0, 0, 0);
    for seed in 0..seeds() {
        let mut simulation = Simulation::new(seed, true);
        let wrong = simulation.run(150, true);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
        changes += simulation.changes;
        taken += simulation.actuators.iter().map(|actuator| actuator.ports.taken).sum::<u64>();
        rings += simulation.core.scheduler().counters.rings_cut;
    }
    // The generator must make enough of what is hard, or the test says little.
    assert!(changes > 20 * seeds() && taken > seeds() / 4 && rings > 0, "{changes} {taken} {rings}");
}

#[test]
fn renames_and_heirs_end_as_desired_where_nothing_is_taken() {
    for seed in 0..seeds() {
        let mut simulation = Simulation::new(1_000 + seed, false);
        let wrong = simulation.run(150, false);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}

#[test]
fn a_rename_needs_no_second_try() {
    let mut simulation = Simulation::new(1, false);
    simulation.settle();
    simulation.do_now(vec![put("e0", &wish("h1", 0, "d0"))]);
    assert!(simulation.wrong().is_empty(), "{:#?}", simulation.wrong());
    // A gateway is away meanwhile.
    simulation.disconnect(4);
    simulation.do_now(vec![absent("e0"), put("e1", &wish("h1", 0, "d0"))]);
    let waiting = simulation.core.scheduler().waiting(8);
    assert!(waiting.iter().all(|one| one.target == label("g2")), "{waiting:#?}");
    assert_eq!(simulation.core.scheduler().counters.refused, 0);
    simulation.settle();
    assert!(simulation.wrong().is_empty(), "{:#?}", simulation.wrong());
}

#[test]
fn a_ring_over_two_hosts_is_told_and_cut() {
    let mut simulation = Simulation::new(1, false);
    simulation.settle();
    simulation.do_now(vec![put("e0", &wish("h1", 0, "d0")), put("e1", &wish("h2", 1, "d0"))]);
    // Each takes the other's place, where the other has the device until its address is known elsewhere.
    simulation.do_now(vec![put("e0", &wish("h2", 0, "d0")), put("e1", &wish("h1", 1, "d0"))]);
    let waits = |reason: Reason| {
        let all = simulation.core.scheduler().waiting(20);
        all.iter().any(|one| match &one.state {
            weir_controller::core::scheduler::WaitState::Dependencies(after) => {
                after.iter().any(|dependency| dependency.reason == reason)
            }
            _ => false,
        })
    };
    assert!(waits(Reason::PortLetsGo), "the wait for the other port is shown");
    assert!(simulation.core.scheduler().rings().is_empty());
    simulation.settle();
    let rings = simulation.core.scheduler().rings();
    // One by each gateway, at least.
    assert!(rings.len() >= 2, "{rings:#?}");
    for ring in rings {
        assert_eq!(ring.waits[ring.cut.unwrap()].after.reason, Reason::LocationGoneBeforePort);
        assert_eq!(ring.waits.len(), 6, "{ring:#?}");
        assert!(ring.waits.iter().any(|wait| wait.key == Key::Port { vni: VNI, endpoint: label("e0") }));
    }
    assert_eq!(simulation.core.scheduler().counters.refused, 0);
    assert!(simulation.wrong().is_empty(), "{:#?}", simulation.wrong());
}

#[test]
fn a_refusal_is_tried_again_when_the_port_that_it_named_changes() {
    let mut simulation = Simulation::new(1, false);
    simulation.settle();
    simulation.do_now(vec![put("e0", &wish("h1", 0, "d0"))]);
    // Nobody here knows that the port is there: only its switch does.
    let stray = PortEntry { addresses: vec![address(5).parse().unwrap()], ..simulation.port("h1", "e0") };
    let h1 = &mut simulation.actuators[0].ports.in_force;
    h1.get_mut(&label("e0")).unwrap().1 = stray;
    simulation.do_now(vec![put("e1", &wish("h1", 5, "d1"))]);
    assert_eq!(simulation.core.scheduler().counters.refused, 1);
    simulation.do_now(vec![put("e0", &wish("h1", 3, "d0"))]);
    assert_eq!(simulation.core.scheduler().counters.retried, 1);
    assert!(simulation.wrong().is_empty(), "{:#?}", simulation.wrong());
}

impl Simulation {
    fn port(&self, host: &str, name: &str) -> PortEntry {
        let actuator = self.actuators.iter().find(|one| one.name == label(host)).unwrap();
        actuator.ports.in_force[&label(name)].1.clone()
    }
}
