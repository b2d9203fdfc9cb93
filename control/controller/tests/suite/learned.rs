//! A learned network under faults from a seed: the real app, a controller's core, and hosts with real gates whose guests
//! send to each other. Questions and answers are lost, doubled, swapped and replayed; hosts lie about endpoints that
//! others have; endpoints move; sessions break; hosts and the controller die.
//!
//! Three of the endpoints serve a virtual address that all connect to (decision 0024).
//!
//! Checked after every step: a turn in force is of a client that was placed there, and leads to a member that is another; a location in force names a host that the endpoint was placed on and that told of it
//! itself, and what is forged or replayed changes nothing and is counted. At the end: whoever sends has, or is given,
//! the place of whom it sends to.

use super::app::{self, facts, label};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use weir_apps::{Deciders, fabric};
use weir_base::codec::encode;
use weir_base::world::Rng;
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::{Core, CoreSettings, Input, Item, Outcome, Output, SharedApp, decode_batch};
use weir_model::entry::{PortEntry, Vni};
use weir_model::event::{Event, EventBody, Mutation, SignedEvent, SourceId, Transaction, Wanted};
use weir_model::packet_in::{PacketIn, PacketInReport, Why};
use weir_model::resource::{Kind, ResourceId};
use weir_model::signed::SignedUpdates;
use weir_model::{Entry, Key, Label, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, Verifier};
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{KeyPair, sign_acks, sign_event};

const HOSTS: [&str; 3] = ["h1", "h2", "h3"];
const ENDPOINTS: usize = 5;
/// The first endpoints are the members of the virtual address.
const MEMBERS: u64 = 3;
const VIRTUAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 200));
const VNI: Vni = Vni(1);

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

fn new_core() -> Core {
    let scheduler = SchedulerSettings { window: 4, ..SchedulerSettings::default() };
    let source = SourceId("controller/c1".into());
    let settings = CoreSettings {
        domain: label("d"),
        epoch: 1,
        source,
        keys: app::keys(),
        believes_one: true,
        scheduler,
    };
    let apps: Vec<SharedApp> = vec![Arc::new(Deciders::default())];
    Core::new(settings, Box::new(signer()), apps)
}

fn identity(number: usize) -> KeyPair {
    KeyPair::from_seed(&[100 + number as u8; 32])
}

struct Host {
    name: Label,
    identity: KeyPair,
    path: std::path::PathBuf,
    gate: Gate,
    session: Option<u64>,
    inbox: Vec<SignedUpdates>,
    asks_state: bool,
    sequence: u64,
}

impl Host {
    fn open(name: &Label, path: &std::path::Path) -> Gate {
        Gate::open(name.clone(), Verifier::new(label("d"), signer().group_key()), path).unwrap()
    }

    fn ports(&self) -> Vec<(Label, PortEntry)> {
        let found = self.gate.iter().filter_map(|(key, found)| match (key, &found.entry) {
            (Key::Port { endpoint, .. }, Some(Entry::Port(port))) => Some((endpoint.clone(), port.clone())),
            _ => None,
        });
        found.collect()
    }

    fn has(&self, key: &Key) -> Option<&Entry> {
        self.gate.get(key)?.entry.as_ref()
    }

    fn sign(&mut self, key: &KeyPair, of: &Label, packets: Vec<PacketIn>) -> SignedEvent {
        self.sequence += 1;
        let report = PacketInReport { actuator: of.clone(), vni: VNI, packets };
        let source = SourceId::of_actuator(&self.name);
        let event = Event { source, sequence: self.sequence, body: EventBody::PacketIn(report) };
        sign_event(key, &label("d"), event, None)
    }
}

fn address(number: u64) -> IpAddr {
    IpAddr::from([10, 0, 0, 10 + number as u8])
}

fn endpoint(number: u64) -> Label {
    label(&format!("e{number}"))
}

fn packet(name: &Label, port: &PortEntry, why: Why, destination: Option<IpAddr>) -> PacketIn {
    PacketIn {
        endpoint: name.clone(),
        why,
        source_mac: port.mac,
        source: port.addresses.first().copied(),
        destination,
        protocol: 17,
        ports: (1, 2),
    }
}

struct Simulation {
    rng: Rng,
    core: Core,
    log: Vec<Vec<u8>>,
    hosts: Vec<Host>,
    proposals: Vec<Item>,
    sent: Vec<SignedEvent>,
    /// Endpoint and host: told by the host itself.
    told: BTreeSet<(Label, Label)>,
    /// Endpoint and host: asked for by a document.
    placed: BTreeSet<(Label, Label)>,
    sequence: u64,
    own_sequence: u64,
    sessions: u64,
    now_ms: u64,
    healed: bool,
    refused: u64,
    violations: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let dir = tempfile::tempdir().unwrap();
        let hosts = HOSTS.iter().enumerate().map(|(number, name)| {
            let (path, name) = (dir.path().join(name), label(name));
            let gate = Host::open(&name, &path);
            let identity = identity(number);
            let (inbox, session) = (Vec::new(), None);
            Host { name, identity, path, gate, session, inbox, asks_state: false, sequence: 0 }
        });
        let mut simulation = Simulation {
            hosts: hosts.collect(),
            rng: Rng::new(seed),
            core: new_core(),
            log: Vec::new(),
            proposals: Vec::new(),
            sent: Vec::new(),
            told: BTreeSet::new(),
            placed: BTreeSet::new(),
            sequence: 0,
            own_sequence: 0,
            sessions: 0,
            now_ms: 1_000,
            healed: false,
            refused: 0,
            violations: Vec::new(),
            _dir: dir,
        };
        for number in 0..HOSTS.len() {
            let host = &simulation.hosts[number];
            let facts = facts(host.name.as_str(), host.identity.public());
            simulation.client(EventBody::Joined(facts));
        }
        let text = |text: &str| Wanted::Document(text.to_owned());
        let id = |kind, network: Option<&str>, name: &str| ResourceId {
            kind,
            network: network.map(label),
            name: label(name),
        };
        let network = text(r#"{"kind":"network","name":"blue","ingress":"allow","forwarding":"learned"}"#);
        let subnet = text(r#"{"kind":"subnet","network":"blue","name":"main","v4":"10.0.0.0/24"}"#);
        simulation.intent(vec![
            (id(Kind::Network, None, "blue"), network),
            (id(Kind::Subnet, Some("blue"), "main"), subnet),
        ]);
        (0..ENDPOINTS as u64).for_each(|number| simulation.place(number, number as usize % HOSTS.len()));
        let members: Vec<String> = (0..MEMBERS).map(|number| format!("\"{}\"", endpoint(number))).collect();
        let shop = format!(
            r#"{{"kind":"balancer","network":"blue","name":"shop","address":"{VIRTUAL}","services":[{{"protocol":"tcp","port":80}}],"members":[{}]}}"#,
            members.join(",")
        );
        simulation.intent(vec![(id(Kind::Balancer, Some("blue"), "shop"), Wanted::Document(shop))]);
        while !simulation.proposals.is_empty() {
            simulation.order();
        }
        simulation
    }

    fn client(&mut self, body: EventBody) {
        self.sequence += 1;
        let event = app::event("client", self.sequence, body);
        self.proposals.push(Item::Event { now_ms: self.now_ms, event });
    }

    fn intent(&mut self, wanted: Vec<(ResourceId, Wanted)>) {
        let mutation = |(id, wanted)| Mutation { id, expected: None, wanted };
        let mutations = wanted.into_iter().map(mutation).collect();
        self.client(EventBody::Intent(Transaction { mutations, replace_all: false }));
    }

    fn place(&mut self, number: u64, host: usize) {
        let (name, host) = (endpoint(number), HOSTS[host]);
        let document = format!(
            r#"{{"kind":"endpoint","network":"blue","name":"{name}","subnet":"main","host":"{host}","addresses":["{}"]}}"#,
            address(number)
        );
        let id = ResourceId { kind: Kind::Endpoint, network: Some(label("blue")), name: name.clone() };
        self.placed.insert((name, label(host)));
        self.intent(vec![(id, Wanted::Document(document))]);
    }

    fn step_core(&mut self, input: Input) {
        let mut out = Vec::new();
        self.core.step(input, &mut out);
        for output in out {
            match output {
                Output::Decided { outcome: Outcome::Rejected(_), .. } => self.refused += 1,
                Output::Send { target, session, updates } => {
                    if let Some(host) = self.host(&target, session) {
                        host.inbox.push(updates);
                    }
                }
                Output::AskState { target, session } => {
                    if let Some(host) = self.host(&target, session) {
                        host.asks_state = true;
                    }
                }
                Output::Close { target, session, .. } => {
                    if let Some(host) = self.host(&target, session) {
                        host.session = None;
                        host.inbox.clear();
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

    fn host(&mut self, name: &Label, session: u64) -> Option<&mut Host> {
        self.hosts.iter_mut().find(|host| host.name == *name && host.session == Some(session))
    }

    fn order(&mut self) {
        if self.proposals.is_empty() {
            return;
        }
        let count = 1 + self.rng.below(self.proposals.len() as u64) as usize;
        let items: Vec<Item> = self.proposals.drain(..count).collect();
        self.order_items(&items);
    }

    fn order_items(&mut self, items: &[Item]) {
        let operations: Vec<_> = items.iter().map(|item| bytes::Bytes::from(encode(item))).collect();
        let batch = weir_order::batcher::encode(&operations).to_vec();
        self.log.push(batch.clone());
        self.step_core(Input::Ordered(decode_batch(&batch).unwrap()));
    }

    /// What a host tells reaches the order once, twice, or is lost.
    fn tell(&mut self, number: usize, packets: Vec<PacketIn>) {
        let host = &mut self.hosts[number];
        for packet in &packets {
            self.told.insert((packet.endpoint.clone(), host.name.clone()));
        }
        let (key, name) = (identity(number), host.name.clone());
        let event = host.sign(&key, &name, packets);
        self.sent.push(event.clone());
        let copies = if self.healed { 1 } else { self.rng.below(3) };
        for _ in 0..copies {
            self.proposals.push(Item::Event { now_ms: self.now_ms, event: event.clone() });
        }
    }

    /// A guest of a host sends somewhere; returns whether its switch knows where that is.
    fn send(&mut self, number: usize, from: usize, to: u64) -> bool {
        let ports = self.hosts[number].ports();
        let Some((name, port)) = ports.get(from % ports.len().max(1)) else { return true };
        let to = address(to);
        let local = ports.iter().any(|(_, port)| port.addresses.contains(&to));
        if local || self.hosts[number].has(&Key::Location { vni: VNI, address: to }).is_some() {
            return true;
        }
        self.tell(number, vec![packet(name, port, Why::Unknown, Some(to))]);
        false
    }

    /// A guest of a host connects to the virtual address; returns whether its switch knows whose turn it is.
    fn connect_virtual(&mut self, number: usize, from: usize) -> bool {
        let ports = self.hosts[number].ports();
        let Some((name, port)) = ports.get(from % ports.len().max(1)) else { return true };
        let key = Key::Turn { vni: VNI, client: port.addresses[0], address: VIRTUAL };
        if self.hosts[number].has(&key).is_some() {
            return true;
        }
        self.tell(number, vec![packet(name, port, Why::Balanced, Some(VIRTUAL))]);
        false
    }

    fn answer_sought(&mut self, number: usize) {
        let host = &self.hosts[number];
        let ports = host.ports();
        let sought = host.gate.iter().filter_map(|(key, found)| match key {
            Key::Sought { address, .. } if found.entry.is_some() => Some(*address),
            _ => None,
        });
        let found: Vec<PacketIn> = sought
            .filter_map(|address| {
                let (name, port) = ports.iter().find(|(_, port)| port.addresses.contains(&address))?;
                Some(packet(name, port, Why::Sought, None))
            })
            .collect();
        if !found.is_empty() {
            self.tell(number, found);
        }
    }

    /// Somebody says what is not theirs to say, alone in its batch, so that whatever it changed would be seen.
    fn forge(&mut self, number: usize) {
        let other = (number + 1) % HOSTS.len();
        let Some((name, port)) = self.hosts[other].ports().into_iter().next() else { return };
        let of_other = packet(&name, &port, Why::Heard, None);
        let (own, others) = (identity(number), identity(other));
        let (me, them) = (self.hosts[number].name.clone(), self.hosts[other].name.clone());
        let host = &mut self.hosts[number];
        let kind = self.rng.below(4);
        let event = match kind {
            // With a key that is not its own; as if it were another host; and about what another host has.
            0 => host.sign(&others, &me, vec![of_other]),
            1 => host.sign(&own, &them, vec![of_other]),
            2 => host.sign(&own, &me, vec![of_other]),
            _ => match self.sent.last() {
                Some(event) => event.clone(),
                None => return,
            },
        };
        let placed_here = fabric::resource(
            self.core.store(),
            &ResourceId { kind: Kind::Endpoint, network: Some(label("blue")), name: name.clone() },
        )
        .is_some_and(|stored| {
            matches!(&stored.resource, weir_model::resource::Resource::Endpoint(e) if e.host.as_ref() == Some(&me))
        });
        if kind == 2 && placed_here {
            // It moved here meanwhile: then it is this host's to tell.
            return;
        }
        if kind == 3 {
            // The first time it is news, the second time it must not be.
            self.order_items(&[Item::Event { now_ms: self.now_ms, event: event.clone() }]);
        }
        let said = |core: &Core| {
            let (counters, unauthentic) = (core.counters(), core.counters().unauthentic);
            unauthentic.bad_signature + unauthentic.not_its_own + counters.rejected + counters.duplicates
        };
        let (digest, before) = (self.core.store().digest(), said(&self.core));
        self.order_items(&[Item::Event { now_ms: self.now_ms, event }]);
        if self.core.store().digest() != digest || said(&self.core) != before + 1 {
            self.violations.push(format!("what {me} forged ({kind}) changed something, or was not counted"));
        }
    }

    fn connect(&mut self, number: usize) {
        self.sessions += 1;
        let host = &mut self.hosts[number];
        host.session = Some(self.sessions);
        host.inbox.clear();
        let (actuator, digest) = (host.name.clone(), host.gate.digest());
        self.step_core(Input::Connected { actuator, session: self.sessions, digest });
    }

    fn disconnect(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        host.inbox.clear();
        if let Some(session) = host.session.take() {
            let actuator = host.name.clone();
            self.step_core(Input::Disconnected { actuator, session });
        }
    }

    fn deliver(&mut self, number: usize) {
        let lossy = !self.healed;
        let host = &mut self.hosts[number];
        let Some(session) = host.session else { return };
        if std::mem::take(&mut host.asks_state) {
            let entries = host.gate.iter().map(|(key, found)| (key.clone(), found.version)).collect();
            let actuator = host.name.clone();
            self.step_core(Input::State { actuator, session, entries, last: true });
            return;
        }
        if host.inbox.is_empty() {
            return;
        }
        let at = if lossy { self.rng.below(host.inbox.len() as u64) as usize } else { 0 };
        let frame = host.inbox.remove(at);
        if lossy && self.rng.chance(1, 8) {
            return;
        }
        if lossy && self.rng.chance(1, 8) {
            host.inbox.push(frame.clone());
        }
        let acks = take(&mut host.gate, &frame, |_| Ok(())).unwrap();
        let acks = sign_acks(&host.identity, &host.name, acks);
        self.check();
        if lossy && self.rng.chance(1, 8) {
            return;
        }
        self.step_core(Input::Acks { session, acks });
    }

    /// The controller's process ends; the next one starts from the log.
    fn crash_controller(&mut self) {
        let digest = self.core.store().digest();
        for host in &mut self.hosts {
            host.session = None;
            host.inbox.clear();
        }
        self.proposals.clear();
        self.core = new_core();
        for batch in self.log.clone() {
            self.step_core(Input::Ordered(decode_batch(&batch).unwrap()));
        }
        if self.core.store().digest() != digest {
            self.violations.push("the replayed store differs".into());
        }
    }

    fn check(&mut self) {
        for host in &self.hosts {
            for (key, found) in host.gate.iter() {
                if let (Key::Turn { client, .. }, Some(Entry::Turn(turn))) = (key, &found.entry) {
                    let mut members = (0..MEMBERS).map(|number| (endpoint(number), address(number)));
                    let serves = members.any(|member| member == (turn.endpoint.clone(), turn.member));
                    let owner =
                        (0..ENDPOINTS as u64).find(|number| address(*number) == *client).map(endpoint);
                    let here = owner.as_ref().is_some_and(|owner| {
                        *owner != turn.endpoint && self.placed.contains(&(owner.clone(), host.name.clone()))
                    });
                    if !serves || !here {
                        self.violations.push(format!("{} has {key} of {}", host.name, turn.endpoint));
                    }
                }
                let Some(Entry::Location(location)) = &found.entry else { continue };
                let of = (location.endpoint.clone(), location.host.clone());
                if !self.told.contains(&of) || !self.placed.contains(&of) {
                    self.violations.push(format!("{} has {key} at {}, who never told", host.name, of.1));
                }
            }
        }
    }

    fn step(&mut self) {
        let number = self.rng.below(HOSTS.len() as u64) as usize;
        match self.rng.below(64) {
            0..4 => {
                let from = self.rng.below(8) as usize;
                self.connect_virtual(number, from);
            }
            4..16 => {
                let (from, to) = (self.rng.below(8) as usize, self.rng.below(ENDPOINTS as u64));
                self.send(number, from, to);
            }
            16..22 => self.answer_sought(number),
            22..32 => self.order(),
            32..52 => self.deliver(number),
            52..55 => self.connect(number),
            55 => self.disconnect(number),
            56 => {
                self.disconnect(number);
                let host = &mut self.hosts[number];
                host.gate = Host::open(&host.name, &host.path);
            }
            57 if self.rng.chance(1, 4) => self.crash_controller(),
            58 => {
                let (which, at) = (self.rng.below(ENDPOINTS as u64), self.rng.below(HOSTS.len() as u64));
                self.place(which, at as usize);
            }
            59 | 60 => self.forge(number),
            61 if !self.sent.is_empty() => {
                let again = self.rng.below(self.sent.len() as u64) as usize;
                let event = self.sent[again].clone();
                self.proposals.push(Item::Event { now_ms: self.now_ms, event });
            }
            _ => self.pass(2_000),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.step_core(Input::Tick { now_ms: self.now_ms });
    }

    fn settle(&mut self) {
        for _ in 0..40 {
            while !self.proposals.is_empty() {
                self.order();
            }
            for number in 0..HOSTS.len() {
                // Whoever's session was closed comes back.
                if self.hosts[number].session.is_none() {
                    self.connect(number);
                }
                while self.hosts[number].session.is_some()
                    && (self.hosts[number].asks_state || !self.hosts[number].inbox.is_empty())
                {
                    self.deliver(number);
                }
            }
            self.pass(500);
        }
    }

    /// Whoever sends learns the place within a few tries.
    fn check_reachable(&mut self) {
        for (number, host) in HOSTS.iter().enumerate() {
            for to in 0..ENDPOINTS as u64 {
                let mut reached = false;
                for _ in 0..5 {
                    reached = self.send(number, 0, to);
                    if reached {
                        break;
                    }
                    self.settle();
                    (0..HOSTS.len()).for_each(|number| self.answer_sought(number));
                    self.settle();
                }
                if !reached {
                    let waiting = self.core.scheduler().waiting(5);
                    let said = format!("{} never learned of {}: {waiting:?}", host, address(to));
                    self.violations.push(said);
                }
            }
        }
    }

    /// Whoever connects to the virtual address is given a member.
    fn check_turns(&mut self) {
        for (number, host) in HOSTS.iter().enumerate() {
            for from in 0..self.hosts[number].ports().len() {
                let mut served = false;
                for _ in 0..5 {
                    served = served || self.connect_virtual(number, from);
                    self.settle();
                }
                if !served {
                    let waiting = self.core.scheduler().waiting(5);
                    self.violations.push(format!("client {from} of {host} was never served: {waiting:?}"));
                }
            }
        }
    }

    fn run(mut self, steps: usize) -> (Vec<String>, u64) {
        (0..steps).for_each(|_| self.step());
        self.healed = true;
        (0..HOSTS.len()).for_each(|number| self.connect(number));
        self.settle();
        self.check_reachable();
        self.check_turns();
        self.check();
        (self.violations, self.refused)
    }
}

#[test]
fn faults_and_lies_of_many_seeds_mislead_nobody() {
    let seeds = std::env::var("WEIR_SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    let mut refused = 0;
    for seed in 0..seeds {
        let (violations, counted) = Simulation::new(seed).run(400);
        assert!(violations.is_empty(), "seed {seed}: {:#?}", &violations[..violations.len().min(5)]);
        refused += counted;
    }
    assert!(refused > seeds, "lying hosts were refused {refused} times only: the simulation does not try");
}

#[test]
fn nothing_is_learned_from_documents_alone() {
    let mut simulation = Simulation::new(1);
    simulation.healed = true;
    (0..HOSTS.len()).for_each(|number| simulation.connect(number));
    simulation.settle();
    let located = simulation.hosts.iter().flat_map(|host| host.gate.iter().map(|(key, _)| key.clone()));
    assert_eq!(located.filter(|key| matches!(key, Key::Location { .. })).count(), 0);
    assert!(simulation.hosts.iter().all(|host| !host.ports().is_empty()));
    assert!(simulation.core.store().version() > Version::ZERO);
}
