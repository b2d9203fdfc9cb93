//! Three domains under faults from a seed (row C6, decision 0028): real cores with the real fabric, two controllers each, and the
//! machines by which they ask each other. Controllers die and begin again from a snapshot and the order, or take over another's
//! state; messages are lost, doubled and late; domains cannot reach each other for a while, or for so long that one is told
//! everything anew; endpoints come, move and go; networks come to be shared and cease to be.
//!
//! The third domain lies, its whole group with it: under its own group's signature it tells of addresses of others, of places
//! that are not its own, of numbers that it skips or repeats, and says nothing.
//!
//! Checked after every step: a gateway has no location of another domain's address but one that domain had; an address of this
//! domain leads to its own hosts; all controllers of a domain are the same after the same batch; no number is taken twice. At the
//! end each honest domain's gateway has exactly what the other has.

use super::app::label;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_apps::fabric::domains as known;
use weir_apps::fabric::{self, Fabric, FabricSettings};
use weir_base::world::Rng;
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::{Core, CoreSettings, Input, Item, OutboxPage, Outcome, Output, SharedApp};
use weir_controller::domains::{Answer, Asker, Seen, Words};
use weir_model::domain::{
    DomainController, DomainEvent, DomainRecord, SignedFetch, Statement, StatementBody, statement_of,
};
use weir_model::entry::{LocationEntry, Vni};
use weir_model::event::{ActuatorFacts, Event, EventBody, Mutation, Role, SourceId, Transaction, Wanted};
use weir_model::resource::{Kind, ResourceId};
use weir_model::signed::SignedUpdates;
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_trust::batch::{GroupSigner, SingleSigner, sign_batch};
use weir_trust::identity::{KeyPair, sign_event, sign_fetch};

const DOMAINS: [&str; 3] = ["a", "b", "c"];
const LIAR: usize = 2;
const CONTROLLERS: u64 = 2;
const HOSTS: u8 = 2;
const ENDPOINTS: u64 = 4;
const VNI: Vni = Vni(7000);
const SEEDS: u64 = 24;
const STEPS: u64 = 2_500;
const SETTLE: u64 = 60_000;
const UNDER_WAY_MAX: usize = 24;

fn signer(domain: usize) -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1 + domain as u8; 32]))
}

fn identity(domain: usize, controller: u64) -> KeyPair {
    KeyPair::from_seed(&[100 + 10 * domain as u8 + controller as u8; 32])
}

fn source(controller: u64) -> SourceId {
    SourceId(format!("controller/controller-{controller}"))
}

fn new_core(domain: usize, controller: u64) -> Core {
    let fabric = FabricSettings {
        domain: Some(label(DOMAINS[domain])),
        statements_waiting_max: 12,
        begin_again_ms: 50,
        ..FabricSettings::default()
    };
    let keys = (1..=CONTROLLERS).map(|id| (source(id), identity(domain, id).public()));
    let settings = CoreSettings {
        domain: label(DOMAINS[domain]),
        epoch: 1,
        source: source(controller),
        keys: keys.collect(),
        scheduler: SchedulerSettings::default(),
    };
    let apps: Vec<SharedApp> = vec![Arc::new(Fabric::new(fabric))];
    Core::new(settings, Box::new(signer(domain)), apps)
}

/// The same names in all domains.
fn host(number: u8) -> Label {
    label(&format!("h{number}"))
}

fn underlay(domain: usize, number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2 + domain as u8, number])
}

fn address(domain: usize, endpoint: u64) -> IpAddr {
    IpAddr::from([10, domain as u8, 0, 10 + endpoint as u8])
}

fn list(domain: usize) -> Vec<DomainController> {
    let one = |id| DomainController {
        id,
        key: identity(domain, id).public(),
        api: format!("{}:{id}", DOMAINS[domain]),
    };
    (1..=CONTROLLERS).map(one).collect()
}

fn record(domain: usize) -> DomainRecord {
    DomainRecord {
        name: label(DOMAINS[domain]),
        group_key: signer(domain).group_key(),
        authority_pem: String::new(),
        controllers: list(domain),
        underlays: vec![format!("192.0.{}.0/24", 2 + domain).parse().unwrap()],
    }
}

struct Controller {
    core: Core,
    /// Batches decided.
    applied: usize,
    askers: BTreeMap<usize, Asker>,
    words: Words,
    /// The state after so many batches, on its disk.
    kept: Option<(usize, Vec<u8>)>,
}

impl Controller {
    fn new(domain: usize, id: u64) -> Controller {
        let (askers, words) = (Controller::askers(domain, id), Words::default());
        Controller { core: new_core(domain, id), applied: 0, askers, words, kept: None }
    }

    fn askers(domain: usize, id: u64) -> BTreeMap<usize, Asker> {
        let others = (0..DOMAINS.len()).filter(|other| *other != domain);
        others.map(|of| (of, Asker::new(label(DOMAINS[domain]), id, label(DOMAINS[of])))).collect()
    }
}

struct Domain {
    order: Vec<Vec<Item>>,
    digests: Vec<[u8; 32]>,
    proposals: Vec<Item>,
    controllers: Vec<Controller>,
    sequence: u64,
    /// Where its endpoints are placed.
    placed: BTreeMap<u64, u8>,
    /// Numbers that were taken, by origin.
    through: BTreeMap<usize, u64>,
}

enum Message {
    Ask { from: (usize, u64), to: (usize, u64), signed: SignedFetch },
    Answer { from: (usize, u64), to: (usize, u64), page: OutboxPage },
}

struct Simulation {
    rng: Rng,
    now_ms: u64,
    domains: Vec<Domain>,
    messages: Vec<Message>,
    apart: BTreeSet<(usize, usize)>,
    /// What was true at some time: domain, address, place, Ethernet address.
    truths: BTreeSet<(usize, IpAddr, IpAddr, [u8; 6])>,
    quiet: bool,
    lies: u64,
    crashes: u64,
    violations: Vec<String>,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let domain = |domain: usize| Domain {
            order: Vec::new(),
            digests: Vec::new(),
            proposals: Vec::new(),
            controllers: (1..=CONTROLLERS).map(|id| Controller::new(domain, id)).collect(),
            sequence: 0,
            placed: BTreeMap::new(),
            through: BTreeMap::new(),
        };
        let mut simulation = Simulation {
            rng: Rng::new(seed),
            now_ms: 1_000_000,
            domains: (0..DOMAINS.len()).map(domain).collect(),
            messages: Vec::new(),
            apart: BTreeSet::new(),
            truths: BTreeSet::new(),
            quiet: false,
            lies: 0,
            crashes: 0,
            violations: Vec::new(),
        };
        for domain in 0..DOMAINS.len() {
            simulation.found(domain);
        }
        simulation
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.rng.below(limit)
    }

    fn propose(&mut self, domain: usize, by: u64, body: EventBody) {
        let of = &mut self.domains[domain];
        of.sequence += 1;
        let event = Event { source: source(by), sequence: of.sequence, body };
        let event = sign_event(&identity(domain, by), &label(DOMAINS[domain]), event, None);
        of.proposals.push(Item::Event { now_ms: self.now_ms, event });
    }

    fn about(&mut self, domain: usize, by: u64, about: DomainEvent) {
        self.propose(domain, by, EventBody::Domain(Box::new(about)));
    }

    fn intent(&mut self, domain: usize, wanted: Vec<(ResourceId, Wanted)>) {
        let mutation = |(id, wanted)| Mutation { id, expected: None, wanted };
        let mutations = wanted.into_iter().map(mutation).collect();
        self.propose(domain, 1, EventBody::Intent(Transaction { mutations, replace_all: false }));
    }

    /// Hosts, a gateway, and the other domains; the shared network comes later.
    fn found(&mut self, domain: usize) {
        for number in 0..=HOSTS {
            let (name, role) =
                if number == 0 { (label("g1"), Role::Gateway) } else { (host(number), Role::Host) };
            let facts =
                ActuatorFacts { name, role, identity: [number; 32], underlay: underlay(domain, number) };
            self.propose(domain, 1, EventBody::Joined(facts));
        }
        for other in (0..DOMAINS.len()).filter(|other| *other != domain) {
            self.about(domain, 1, DomainEvent::Known(record(other)));
        }
        self.about(domain, 1, DomainEvent::Controllers(list(domain)));
        self.share(domain, true);
    }

    fn id(kind: Kind, name: &str) -> ResourceId {
        let network = (kind != Kind::Network).then(|| label("red"));
        ResourceId { kind, network, name: label(name) }
    }

    /// The network with the subnets of all domains, or without those of others.
    fn share(&mut self, domain: usize, shared: bool) {
        let text = |text: String| Wanted::Document(text);
        let network = r#"{"kind":"network","name":"red","encapsulation":"vxlan","vni":7000}"#.to_owned();
        let mut wanted = vec![(Self::id(Kind::Network, "red"), text(network))];
        for (of, name) in DOMAINS.iter().enumerate() {
            let id = Self::id(Kind::Subnet, name);
            let document = format!(
                r#"{{"kind":"subnet","network":"red","name":"{name}","v4":"10.{of}.0.0/24","domain":"{name}"}}"#
            );
            let here = shared || of == domain;
            wanted.push((id, if here { text(document) } else { Wanted::Absent }));
        }
        self.intent(domain, wanted);
    }

    fn place(&mut self, domain: usize, endpoint: u64, at: Option<u8>) {
        let name = format!("e{endpoint}");
        let id = Self::id(Kind::Endpoint, &name);
        let Some(number) = at else {
            self.domains[domain].placed.remove(&endpoint);
            return self.intent(domain, vec![(id, Wanted::Absent)]);
        };
        self.domains[domain].placed.insert(endpoint, number);
        let document = format!(
            r#"{{"kind":"endpoint","network":"red","name":"{name}","subnet":"{}","host":"{}","addresses":["{}"]}}"#,
            DOMAINS[domain],
            host(number),
            address(domain, endpoint),
        );
        self.intent(domain, vec![(id, Wanted::Document(document))]);
    }

    fn store(&self, domain: usize, id: u64) -> weir_store::Store {
        self.domains[domain].controllers[id as usize - 1].core.store().clone()
    }

    /// Some of the proposals become a batch.
    fn order(&mut self, domain: usize) {
        let count = self.domains[domain].proposals.len() as u64;
        if count == 0 {
            return;
        }
        let count = 1 + self.below(count.min(4)) as usize;
        let items: Vec<Item> = self.domains[domain].proposals.drain(..count).collect();
        self.domains[domain].order.push(items);
    }

    fn apply(&mut self, domain: usize, id: u64) {
        let at = id as usize - 1;
        let of = &mut self.domains[domain];
        let controller = &mut of.controllers[at];
        let Some(items) = of.order.get(controller.applied) else { return };
        let mut out = Vec::new();
        controller.core.step(Input::Ordered(items.clone()), &mut out);
        controller.applied += 1;
        for output in &out {
            let Output::Decided { event, outcome: Outcome::Rejected(_) } = output else { continue };
            // Who proposed hears that it cannot be.
            if let EventBody::Domain(about) = &event.event.body
                && let DomainEvent::Forwarded { origin, .. } = &**about
                && event.event.source == source(id)
                && let Some(of) = DOMAINS.iter().position(|name| label(name) == *origin)
                && let Some(asker) = controller.askers.get_mut(&of)
            {
                asker.lost();
            }
        }
        let digest = controller.core.replica_digest();
        match of.digests.get(controller.applied - 1) {
            None => {
                of.digests.push(digest);
                self.first_time(domain, id, &out);
            }
            Some(first) if *first == digest => {}
            Some(_) => self.violations.push(format!("{}: controllers differ", DOMAINS[domain])),
        }
    }

    /// The first controller has decided a batch.
    fn first_time(&mut self, domain: usize, id: u64, out: &[Output]) {
        for output in out {
            let Output::Decided { event, outcome: Outcome::Committed(_) } = output else { continue };
            if let EventBody::Domain(about) = &event.event.body
                && let DomainEvent::Known(_) | DomainEvent::Forgotten { .. } = &**about
            {
                self.domains[domain].through.clear();
            }
        }
        let store = self.store(domain, id);
        for other in (0..DOMAINS.len()).filter(|other| *other != domain) {
            let Some(status) = known::domain(&store, &label(DOMAINS[other])) else { continue };
            let before = self.domains[domain].through.insert(other, status.taken.through).unwrap_or(0);
            let taken = status.taken.taken + status.taken.refused.iter().sum::<u64>();
            if status.taken.through < before || taken > status.taken.through {
                let what =
                    format!("{} of {}: {:?} after {before}", DOMAINS[domain], DOMAINS[other], status.taken);
                self.violations.push(what);
            }
        }
        self.remember(domain, &store);
        self.check(domain, &store);
    }

    /// What is true now of this domain's addresses.
    fn remember(&mut self, domain: usize, store: &weir_store::Store) {
        for (key, at) in locations(store) {
            if owner(key) == Some(domain) {
                self.truths.insert((domain, key, at.underlay, at.mac.0));
            }
        }
    }

    fn check(&mut self, domain: usize, store: &weir_store::Store) {
        for (key, at) in locations(store) {
            let of = owner(key);
            let own = (1..=HOSTS).any(|number| underlay(domain, number) == at.underlay);
            let right = match of {
                Some(of) if of == domain => own,
                // What the liar tells of its own hosts and addresses is its own.
                Some(LIAR) => underlay(LIAR, 0).to_string()[..8] == at.underlay.to_string()[..8],
                Some(of) => self.truths.contains(&(of, key, at.underlay, at.mac.0)),
                None => false,
            };
            if !right {
                self.violations.push(format!("{} has {key} at {at:?}", DOMAINS[domain]));
            }
        }
    }

    fn crash(&mut self, domain: usize, id: u64) {
        self.crashes += 1;
        let controller = &mut self.domains[domain].controllers[id as usize - 1];
        controller.core = new_core(domain, id);
        controller.applied = 0;
        if let Some((applied, state)) = controller.kept.clone() {
            controller.core.install(&state).unwrap();
            controller.applied = applied;
        }
        controller.askers = Controller::askers(domain, id);
        controller.words = Words::default();
    }

    fn keep(&mut self, domain: usize, id: u64) {
        let controller = &mut self.domains[domain].controllers[id as usize - 1];
        controller.kept = Some((controller.applied, controller.core.agreed_snapshot().to_bytes()));
    }

    /// One controller looks at what it has to do with another domain.
    fn ask(&mut self, domain: usize, id: u64, of: usize) {
        // A controller waits for its answer.
        if self.messages.len() > UNDER_WAY_MAX {
            return;
        }
        let store = self.store(domain, id);
        let Some(status) = known::domain(&store, &label(DOMAINS[of])) else { return };
        let seen = seen(&status);
        let now_ms = self.now_ms;
        let controller = &mut self.domains[domain].controllers[id as usize - 1];
        let asker = controller.askers.get_mut(&of).unwrap();
        let first = id == 1;
        let due = asker.due(&seen, now_ms, |waits_ms| first || waits_ms >= 60);
        let asked = asker.ask(&seen, now_ms);
        let word = asker.word(&seen, now_ms);
        if let Some(event) = due {
            self.about(domain, id, event);
        }
        let key = identity(domain, id);
        if let Some((whom, fetch)) = asked {
            let signed = sign_fetch(&key, fetch);
            self.messages.push(Message::Ask { from: (domain, id), to: (of, whom.id), signed });
        }
        if let Some(word) = word {
            let signed = sign_fetch(&key, word);
            for to in 1..=CONTROLLERS {
                let signed = signed.clone();
                self.messages.push(Message::Ask { from: (domain, id), to: (of, to), signed });
            }
        }
        let lane = (status.told.acked, status.told.last, status.told.cut);
        let controller = &mut self.domains[domain].controllers[id as usize - 1];
        let due = controller.words.due(&label(DOMAINS[of]), &status.record.controllers, lane, now_ms);
        if let Some((event, _)) = due.filter(|(_, overdue)| first || *overdue >= 60) {
            controller.words.ordered(&label(DOMAINS[of]));
            self.about(domain, id, event);
        }
    }

    fn deliver(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let count = self.messages.len() as u64;
        let at = self.below(count) as usize;
        let message = self.messages.swap_remove(at);
        let (from, to) = match &message {
            Message::Ask { from, to, .. } | Message::Answer { from, to, .. } => (*from, *to),
        };
        let lost = !self.quiet && self.below(8) == 0;
        if lost || self.apart.contains(&pair(from.0, to.0)) {
            return;
        }
        if !self.quiet && self.below(8) == 0 {
            self.messages.push(match &message {
                Message::Ask { from, to, signed } => {
                    Message::Ask { from: *from, to: *to, signed: signed.clone() }
                }
                Message::Answer { from, to, page } => {
                    Message::Answer { from: *from, to: *to, page: page.clone() }
                }
            });
        }
        match message {
            Message::Ask { from, to, signed } => self.asked(from, to, &signed),
            Message::Answer { from, to, page } => self.answered(from, to, page),
        }
    }

    fn asked(&mut self, from: (usize, u64), to: (usize, u64), signed: &SignedFetch) {
        let store = self.store(to.0, to.1);
        let record = known::record(&store, &label(DOMAINS[from.0]));
        let controllers = record.as_ref().map(|record| &record.controllers[..]);
        let (own, now_ms) = (label(DOMAINS[to.0]), self.now_ms);
        let controller = &mut self.domains[to.0].controllers[to.1 as usize - 1];
        let heard = controller.words.hear(&own, controllers, signed, now_ms);
        if heard.is_err() {
            return;
        }
        let mut page = controller.core.outbox().page(&label(DOMAINS[from.0]), signed.fetch.through);
        if to.0 == LIAR && !self.quiet {
            page = self.lie(from.0, signed.fetch.through, page);
        }
        self.messages.push(Message::Answer { from: to, to: from, page });
    }

    /// What a domain whose whole group lies tells instead.
    fn lie(&mut self, to: usize, through: u64, page: OutboxPage) -> OutboxPage {
        self.lies += 1;
        let victim = self.below(3) as usize;
        let (endpoint, number) = (self.below(ENDPOINTS), 1 + self.below(2) as u8);
        let at = |place: IpAddr| {
            let mac = "02:00:00:00:00:66".parse().unwrap();
            Some(LocationEntry { endpoint: label("e0"), mac, host: label("h1"), underlay: place })
        };
        let location = |address, at| StatementBody::Location { network: label("red"), vni: VNI, address, at };
        let other = if to == 0 { 1 } else { 0 };
        let body = match self.below(9) {
            0 => return OutboxPage::default(),
            1 => return OutboxPage { statements: Vec::new(), behind: true },
            2 => return page,
            3 => location(address(victim, endpoint), at(underlay(LIAR, number))),
            4 => location(address(LIAR, endpoint), at(underlay(other, number))),
            5 => location(address(LIAR, endpoint), at(underlay(to, number))),
            6 => StatementBody::Controllers(Vec::new()),
            7 => StatementBody::Complete { since: through },
            _ => location(address(victim, endpoint), None),
        };
        // Mostly the next number, so that it is looked at; sometimes one again, or one too far.
        let sequence = match self.below(8) {
            0 => through.max(1),
            1 => through + 3,
            _ => through + 1,
        };
        let after = if self.below(4) == 0 { 0 } else { sequence - 1 };
        let statements = vec![certified((LIAR, LIAR), DOMAINS[to], sequence, Statement { after, body })];
        let statements = if self.below(8) == 0 { forge(statements) } else { statements };
        OutboxPage { statements, behind: false }
    }

    fn answered(&mut self, from: (usize, u64), to: (usize, u64), page: OutboxPage) {
        let store = self.store(to.0, to.1);
        let Some(status) = known::domain(&store, &label(DOMAINS[from.0])) else { return };
        let controller = &mut self.domains[to.0].controllers[to.1 as usize - 1];
        let (origin, statements) = (label(DOMAINS[from.0]), page.statements.clone());
        let about = EventBody::Domain(Box::new(DomainEvent::Forwarded { origin, statements }));
        let tried = Event { source: source(to.1), sequence: 0, body: about };
        let sound = page.statements.is_empty() || controller.core.dry_run(&tried).is_ok();
        let answer = if sound { Answer::Page(page) } else { Answer::Refused };
        let asker = controller.askers.get_mut(&from.0).unwrap();
        asker.answered(&seen(&status), answer, self.now_ms);
    }

    /// A controller of the liar orders what nobody told it, and shows its word for words of others.
    fn meddle(&mut self) {
        let to = self.below(2) as usize;
        let statement = StatementBody::Complete { since: u64::MAX };
        let of = if self.below(2) == 0 { LIAR } else { 1 - to };
        let statement = Statement { after: 0, body: statement };
        let statements = vec![certified((LIAR, of), DOMAINS[to], 1_000_000, statement)];
        // In the name of an honest domain: a controller of the receiver that lies would order it.
        let origin = label(DOMAINS[1 - to]);
        self.about(to, 2, DomainEvent::Forwarded { origin, statements });
        let signed = sign_fetch(
            &identity(LIAR, 1),
            weir_model::domain::Fetch {
                domain: label(DOMAINS[1 - to]),
                controller: 1,
                of: label(DOMAINS[to]),
                through: 0,
                begin: true,
                now_ms: self.now_ms,
            },
        );
        let words = vec![signed.clone(), signed];
        let domain = label(DOMAINS[1 - to]);
        self.about(to, 2, DomainEvent::Heard { domain, through: 0, begin: true, words });
    }

    fn step(&mut self) {
        self.now_ms += 1 + self.below(5);
        let domain = self.below(3) as usize;
        let id = 1 + self.below(CONTROLLERS);
        match self.below(64) {
            0..16 => self.order(domain),
            16..32 => self.apply(domain, id),
            32..44 => {
                let of = self.below(3) as usize;
                if of != domain {
                    self.ask(domain, id, of);
                }
            }
            44..58 => self.deliver(),
            _ if self.quiet => {}
            58 => {
                let (endpoint, number) = (self.below(ENDPOINTS), self.below(3) as u8);
                self.place(domain, endpoint, (number > 0).then_some(number));
            }
            59 => self.crash(domain, id),
            60 => self.keep(domain, id),
            61 => {
                let other = (domain + 1) % 3;
                if !self.apart.remove(&pair(domain, other)) {
                    self.apart.insert(pair(domain, other));
                }
            }
            62 => self.meddle(),
            _ => match self.below(4) {
                0 if domain != LIAR => {
                    let shared = self.below(2) == 0;
                    self.share(domain, shared);
                }
                1 => {
                    // The operator lets a domain be unknown and makes it known again.
                    let other = (domain + 1) % 3;
                    self.about(domain, 1, DomainEvent::Forgotten { domain: label(DOMAINS[other]) });
                    self.about(domain, 1, DomainEvent::Known(record(other)));
                }
                _ => self.now_ms += 200,
            },
        }
    }

    fn settle(&mut self) {
        self.quiet = true;
        self.apart.clear();
        for domain in 0..DOMAINS.len() {
            self.share(domain, true);
        }
        for step in 0..SETTLE {
            self.step();
            if step % 100 == 0 && self.is_settled() {
                return;
            }
        }
    }

    fn is_settled(&self) -> bool {
        let done = |of: &Domain| {
            of.proposals.is_empty() && of.controllers.iter().all(|one| one.applied == of.order.len())
        };
        self.domains.iter().all(done)
            && [(0, 1), (1, 0)].into_iter().all(|(one, other)| {
                let told = |domain: usize, of: usize| {
                    let store = self.store(domain, 1);
                    locations(&store).filter(|(key, _)| owner(*key) == Some(of)).collect::<BTreeMap<_, _>>()
                };
                let status = known::domain(&self.store(one, 1), &label(DOMAINS[other]));
                let taken = known::domain(&self.store(other, 1), &label(DOMAINS[one]));
                let (Some(status), Some(taken)) = (status, taken) else { return false };
                told(one, one) == told(other, one)
                    && status.told.last == taken.taken.through
                    && status.told.acked == status.told.last
                    && !status.told.cut
            })
    }
}

/// The locations that the gateway shall have.
fn locations(store: &weir_store::Store) -> impl Iterator<Item = (IpAddr, LocationEntry)> + use<> {
    fabric::desired(store, &label("g1")).filter_map(|(key, _, entry)| match (key, entry) {
        (Key::Location { address, .. }, Some(Entry::Location(at))) => Some((address, at)),
        _ => None,
    })
}

/// The domain whose subnet has an address.
fn owner(address: IpAddr) -> Option<usize> {
    match address {
        IpAddr::V4(v4) if usize::from(v4.octets()[1]) < DOMAINS.len() => Some(usize::from(v4.octets()[1])),
        _ => None,
    }
}

fn seen(status: &known::DomainStatus) -> Seen<'_> {
    let (controllers, taken) = (&status.record.controllers[..], &status.taken);
    Seen { controllers, through: taken.through, anew: taken.anew }
}

/// A statement under the signature of a domain's group, perhaps in the name of another.
fn certified((domain, name): (usize, usize), to: &str, sequence: u64, statement: Statement) -> SignedUpdates {
    let update = Update {
        target: label(to),
        key: Key::Statement { to: label(to), sequence },
        version: Version(9),
        expected: Version::ZERO,
        change: Change::Put(Entry::Statement(Box::new(statement))),
    };
    let (header, updates) =
        sign_batch(&signer(domain), &label(DOMAINS[name]), 1, Version(9), vec![update]).unwrap();
    SignedUpdates { header, updates }
}

/// Another statement under the same signature.
fn forge(mut statements: Vec<SignedUpdates>) -> Vec<SignedUpdates> {
    if let Change::Put(Entry::Statement(statement)) = &mut statements[0].updates[0].update.change {
        statement.body = StatementBody::Complete { since: 3 };
    }
    statements
}

#[test]
fn domains_take_what_is_others_own_once_and_nothing_else() {
    let (mut lies, mut refused, mut begun, mut crashes) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut simulation = Simulation::new(seed);
        for _ in 0..STEPS {
            simulation.step();
            assert!(simulation.violations.is_empty(), "seed {seed}: {:?}", simulation.violations);
        }
        simulation.settle();
        assert!(simulation.violations.is_empty(), "seed {seed}: {:?}", simulation.violations);
        assert!(simulation.is_settled(), "seed {seed}: the honest domains do not know what the other has");
        for domain in 0..2 {
            for status in known::domains(&simulation.store(domain, 1)) {
                begun += status.told.begun;
                if status.record.name == label("c") {
                    refused += status.taken.refused.iter().sum::<u64>();
                }
            }
        }
        lies += simulation.lies;
        crashes += simulation.crashes;
    }
    println!("{SEEDS} seeds: {lies} lies, {refused} refused, {begun} beginnings, {crashes} crashes");
    assert!(lies > 100 && refused > 50 && crashes > 100, "{lies} {refused} {crashes}");
}

#[test]
fn the_check_sees_an_operator_who_gives_a_liar_another_s_subnet() {
    // In domain a the operator's document says that b's subnet is c's.
    let seen = (0..SEEDS).any(|seed| {
        let mut simulation = Simulation::new(seed);
        let text = r#"{"kind":"subnet","network":"red","name":"b","v4":"10.1.0.0/24","domain":"c"}"#;
        simulation.intent(0, vec![(Simulation::id(Kind::Subnet, "b"), Wanted::Document(text.to_owned()))]);
        (0..STEPS).any(|_| {
            simulation.step();
            !simulation.violations.is_empty()
        })
    });
    assert!(seen, "a check that sees nothing proves nothing");
}

#[test]
fn statements_are_handed_over_in_order_and_those_of_a_batch_under_one_signature() {
    let mut simulation = Simulation::new(1);
    while !simulation.domains[0].proposals.is_empty() {
        simulation.order(0);
    }
    (0..ENDPOINTS).for_each(|endpoint| simulation.place(0, endpoint, Some(1)));
    simulation.order(0);
    while simulation.domains[0].controllers[0].applied < simulation.domains[0].order.len() {
        simulation.apply(0, 1);
    }
    let outbox = simulation.domains[0].controllers[0].core.outbox();
    let page = outbox.page(&label("b"), 0);
    let numbers = |page: &OutboxPage| -> Vec<u64> {
        let updates = page.statements.iter().flat_map(|batch| &batch.updates);
        updates.map(|proven| statement_of(&proven.update).unwrap().1).collect()
    };
    assert!(numbers(&page).is_sorted() && numbers(&page)[0] == 1, "{:?}", numbers(&page));
    assert_eq!(numbers(&outbox.page(&label("b"), 2))[0], 3);
    assert!(outbox.page(&label("d"), 0) == OutboxPage::default());
}
