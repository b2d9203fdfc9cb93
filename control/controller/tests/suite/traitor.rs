//! Controllers that order in the names of others (rows R4, R12; the liar of 2.3.2, 2.6.5 and 3.3.2 of the papers): one of four, two of
//! seven. All replicas decide the same order; the traitors put into it whatever they can make: every kind of event by their own word,
//! requests that they kept, changed, cut and glued, late ones, others' numbers and names, joins of hosts of their own, certificates for
//! whomever they like. What people really asked for, and what they approve of what others asked for, they hand on late, twice, or never.
//!
//! Checked after every batch: every replica has the same; and what is there is what a domain has in which people order themselves and
//! nobody lies, so nothing wrong is in force. Whoever is told to have ordered what nobody signed is a traitor. A domain whose requests
//! are not signed must be caught.

use super::app::{self, ACTUATORS, ENDPOINTS, POLICIES, TestApp, label};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weir_base::codec::encode;
use weir_base::world::Rng;
use weir_controller::core::admission::{SourceKeys, Unauthentic};
use weir_controller::core::identities::Certified;
use weir_controller::core::operators::founding;
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::tokens::token;
use weir_controller::core::{Core, CoreSettings, Input, Item, Outcome, Output, decode_batch};
use weir_model::approval::{Approval, Need, Needs, RequestKind};
use weir_model::domain::DomainEvent;
use weir_model::event::{ActuatorFacts, Event, EventBody, NewRule, Role, SignedEvent, SourceId, UsageReport};
use weir_model::filewall::PolicyOrder;
use weir_model::health::RepairOrder;
use weir_model::identity::{IdentityEvent, TokenChange, TokenId};
use weir_model::operator::{Founders, OperatorChange, OperatorFacts, OperatorRole};
use weir_model::plane::PlaneOrder;
use weir_model::request::kinds_of;
use weir_model::said::{JoinedBy, Said};
use weir_store::Store;
use weir_trust::batch::SingleSigner;
use weir_trust::identity::{KeyPair, sign_event};
use weir_trust::owner::sign_owner;
use weir_trust::said::{digest, sign_joined_by, sign_said};

const START_MS: u64 = 1_700_000_000_000;
/// How long requests are good here.
const LIFE_MS: u64 = 60_000;
/// How long one waits for approval.
const WAIT_MS: u64 = 60_000;
const ADMIN: &str = "anna";
const OPERATOR: &str = "olga";
/// An admin who approves.
const SECOND: &str = "ada";
/// The traitors' own key, which nobody knows.
const EVE: u8 = 66;

fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number; 32])
}

fn controller(number: usize) -> SourceId {
    SourceId::of_controller(&label(&format!("c{number}")))
}

fn author_key(author: &str) -> KeyPair {
    key(match author {
        ADMIN => 101,
        OPERATOR => 102,
        _ => 103,
    })
}

fn founders() -> Founders {
    let facts = |role, author| OperatorFacts { role, keys: vec![author_key(author).public()] };
    let (admin, operator) = (facts(OperatorRole::Admin, ADMIN), facts(OperatorRole::Operator, OPERATOR));
    let second = facts(OperatorRole::Admin, SECOND);
    [(label(ADMIN), admin), (label(OPERATOR), operator), (label(SECOND), second)].into()
}

fn admin_of(role: OperatorRole) -> OperatorFacts {
    OperatorFacts { role, keys: vec![key(EVE).public()] }
}

fn about(about: IdentityEvent) -> EventBody {
    EventBody::Identity(Box::new(about))
}

fn host(name: &str, identity: u8) -> ActuatorFacts {
    let underlay = if name == "h1" { "192.0.2.1" } else { "192.0.2.2" };
    ActuatorFacts { underlay: underlay.parse().unwrap(), ..app::facts(name, key(identity).public()) }
}

/// What is in force, as far as people order it.
fn dump(store: &Store) -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let of =
        |table| store.scan(table, b"").map(move |(key, cell)| (table, key.to_vec(), cell.value.to_vec()));
    [ENDPOINTS, POLICIES, ACTUATORS].into_iter().flat_map(of).collect()
}

fn new_core(own: usize, keys: SourceKeys, believes_one: bool) -> Core {
    let settings = CoreSettings {
        domain: label("d"),
        epoch: 1,
        source: controller(own),
        keys,
        believes_one,
        scheduler: SchedulerSettings::default(),
    };
    Core::new(settings, Box::new(SingleSigner(key(1))), vec![Arc::new(TestApp)])
}

struct Simulation {
    seed: u64,
    rng: Rng,
    controllers: usize,
    /// The first so many lie.
    traitors: usize,
    cores: Vec<Core>,
    /// Decides what people ordered, and nothing else.
    truth: Core,
    now_ms: u64,
    sequences: BTreeMap<usize, u64>,
    asked: u64,
    /// Requests that people made, and those that were decided.
    made: Vec<Said>,
    decided: BTreeSet<Vec<u8>>,
    /// Joins by who has a token, in the same way.
    joins: Vec<JoinedBy>,
    /// What traitors were given to hand on, and did not.
    held: Vec<Said>,
    /// What waits for approval, by digest, and until when.
    waiting: BTreeMap<[u8; 32], (Said, u64)>,
    /// How many requests were done by the word of two.
    approved: u64,
    /// With which identity each host has joined.
    identities: BTreeMap<&'static str, u8>,
    tokens: u8,
    named: BTreeSet<SourceId>,
    lies: u64,
    violations: Vec<String>,
}

impl Simulation {
    fn new(seed: u64, controllers: usize, traitors: usize) -> Simulation {
        let public = |number: usize| (controller(number), key(number as u8).public());
        let keys: SourceKeys = (1..=controllers).map(public).collect();
        let people = [(SourceId("people".into()), key(100).public())].into();
        Simulation {
            seed,
            rng: Rng::new(seed),
            controllers,
            traitors,
            cores: (1..=controllers).map(|own| new_core(own, keys.clone(), false)).collect(),
            truth: new_core(1, people, true),
            now_ms: START_MS,
            sequences: BTreeMap::new(),
            asked: 0,
            made: Vec::new(),
            decided: BTreeSet::new(),
            joins: Vec::new(),
            held: Vec::new(),
            waiting: BTreeMap::new(),
            approved: 0,
            identities: BTreeMap::new(),
            tokens: 0,
            named: BTreeSet::new(),
            lies: 0,
            violations: Vec::new(),
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        self.rng.below(count as u64) as usize
    }

    fn one_of(&mut self, two: [&'static str; 2]) -> &'static str {
        two[self.pick(2)]
    }

    /// A request that people made.
    fn some_made(&mut self) -> Said {
        let at = self.pick(self.made.len());
        self.made[at].clone()
    }

    /// An event of a controller.
    fn by(&mut self, number: usize, body: EventBody) -> SignedEvent {
        let sequence = self.sequences.entry(number).or_default();
        *sequence += 1;
        let event = Event { source: controller(number), sequence: *sequence, body };
        sign_event(&key(number as u8), &label("d"), event, None)
    }

    /// Every replica decides on an event, with the proposer's time.
    fn order(&mut self, now_ms: u64, event: SignedEvent) -> Outcome {
        let batch = weir_order::batcher::encode(&[encode(&Item::Event { now_ms, event }).into()]).to_vec();
        let mut outcomes = Vec::new();
        for core in &mut self.cores {
            let mut out = Vec::new();
            core.step(Input::Ordered(decode_batch(&batch).unwrap()), &mut out);
            for output in out {
                let Output::Decided { event, outcome } = output else { continue };
                if matches!(outcome, Outcome::Unauthentic(Unauthentic::Unsigned | Unauthentic::Forged)) {
                    self.named.insert(event.event.source.clone());
                }
                outcomes.push(outcome);
            }
        }
        let digests: BTreeSet<[u8; 32]> = self.cores.iter().map(Core::replica_digest).collect();
        if digests.len() > 1 || outcomes.len() != self.controllers {
            self.violations.push("replicas differ".into());
        }
        outcomes.swap_remove(0)
    }

    /// What people ordered is in force in the truth.
    fn comes_true(&mut self, body: EventBody) {
        let sequence = self.truth.store().version().0 + 1;
        let event = Event { source: SourceId("people".into()), sequence, body };
        let event = sign_event(&key(100), &label("d"), event, None);
        self.truth.step(Input::Ordered(vec![Item::Event { now_ms: self.now_ms, event }]), &mut Vec::new());
    }

    fn check(&mut self, what: &str) {
        let (found, wanted) = (dump(self.cores[0].store()), dump(self.truth.store()));
        let joined = self.cores[0].joined() == self.truth.joined();
        let operators = self.cores[0].operators();
        let names: Vec<&str> = operators.rows().map(|(source, _)| source.short()).collect();
        if found != wanted || !joined || operators.in_force() && names != [SECOND, ADMIN, OPERATOR] {
            self.violations.push(format!("{what}: something is in force that nobody ordered"));
        }
        for (name, identity) in &self.identities {
            let facts = self.truth.joined().get(&label(name));
            if facts.is_none_or(|facts| facts.identity != key(*identity).public()) {
                continue;
            }
            let source = SourceId::of_actuator(&label(name));
            let takes = |by: Option<KeyPair>| {
                let owner = by.map(|by| sign_owner(&by, &label("d"), &source, &[*identity; 32]));
                let shown = Certified { key: [*identity; 32], until_s: 1, owner };
                self.cores[0].registered().takes_certificate(&label("d"), &source, &shown).is_ok()
            };
            if operators.in_force() && (!takes(Some(key(*identity))) || takes(None) || takes(Some(key(EVE))))
            {
                self.violations
                    .push(format!("{what}: a certificate counts by another word than its owner's"));
            }
        }
    }

    /// Somebody orders a copy of a request, some controller, at some time.
    fn hand_on(&mut self, number: usize, said: Said) {
        let event = self.by(number, EventBody::Said(Box::new(said.clone())));
        let outcome = self.order(self.now_ms, event);
        let bytes = encode(&said);
        let is_new = self.now_ms <= said.until_ms && !self.decided.contains(&bytes);
        if is_new && self.made.contains(&said) {
            self.decided.insert(bytes);
            match (self.means(&said), matches!(outcome, Outcome::Committed(_))) {
                (Some(comes_true), true) => comes_true.into_iter().for_each(|body| self.comes_true(body)),
                (None, false) => {}
                (Some(_), false) => {
                    self.violations.push(format!("an honest request was not decided: {outcome:?}"));
                }
                (None, true) => self.violations.push("a word counts that is over".into()),
            }
        }
        self.check("a request");
    }

    /// What a request makes true, if it says anything at all.
    fn means(&mut self, said: &Said) -> Option<Option<EventBody>> {
        let EventBody::Approval(about) = said.body() else {
            if !kinds_of(said.body()).contains(&RequestKind::Delete) || !self.cores[0].operators().in_force()
            {
                return Some(Some(said.body().clone()));
            }
            self.waiting.insert(digest(&label("d"), said), (said.clone(), self.now_ms + WAIT_MS));
            return Some(None);
        };
        match &**about {
            Approval::Needed(_) => Some(None),
            Approval::Given(of) => {
                let (waiting, until_ms) = self.waiting.get(of)?;
                if waiting.author() == said.author() || self.now_ms > *until_ms {
                    return None;
                }
                self.approved += 1;
                self.waiting.remove(of).map(|(waiting, _)| Some(waiting.event.body))
            }
            Approval::Refused(of) => {
                self.waiting.get(of).filter(|(_, until_ms)| self.now_ms <= *until_ms)?;
                self.waiting.remove(of).map(|_| None)
            }
        }
    }

    /// Somebody looks at what waits, and says something of it: sometimes of what the same person asked for, or of what is over.
    fn approve(&mut self) {
        let all: Vec<[u8; 32]> = self.waiting.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let of = all[self.pick(all.len())];
        let author = [ADMIN, OPERATOR, SECOND][self.pick(3)];
        let said = if self.rng.chance(1, 6) { Approval::Refused(of) } else { Approval::Given(of) };
        self.ask(author, EventBody::Approval(Box::new(said)));
    }

    /// A person asks, and hands it to some controller; when that is silent, to another one, in the same words.
    fn ask(&mut self, author: &str, body: EventBody) {
        self.asked += 1;
        let sequence = Said::number_at(self.now_ms) + self.asked % 1_024;
        let event = Event { source: SourceId::of_operator(&label(author)), sequence, body };
        let times = (self.now_ms, self.now_ms + LIFE_MS);
        let said = sign_said(&author_key(author), &label("d"), event, times);
        self.made.push(said.clone());
        let number = 1 + self.pick(self.controllers);
        if number <= self.traitors {
            self.held.push(said.clone());
            if self.rng.chance(1, 2) {
                return;
            }
        }
        let honest = 1 + self.traitors + self.pick(self.controllers - self.traitors);
        self.hand_on(honest, said);
    }

    fn honest(&mut self) {
        let network = self.one_of(["n1", "n2"]);
        let name = format!("e{}", 1 + self.pick(4));
        let mutation = match self.rng.below(8) {
            0 => app::policy(network, self.one_of(["allow", "deny"])),
            1 | 2 => app::no_endpoint(network, &name),
            _ => app::endpoint(network, &name, self.one_of(["h1", "h2"])),
        };
        let author = self.one_of([ADMIN, OPERATOR]);
        self.ask(author, EventBody::Intent(app::transaction(vec![mutation])));
    }

    fn token_key(id: TokenId) -> KeyPair {
        key(150 + id[0])
    }

    /// A host joins with a token that the admin makes, unless it has joined; or is forgotten.
    fn membership(&mut self) {
        let name = self.one_of(["h1", "h2"]);
        if self.truth.joined().contains_key(&label(name)) {
            self.ask(ADMIN, EventBody::Removed { actuator: label(name) });
            if !self.truth.joined().contains_key(&label(name)) {
                self.identities.remove(name);
            }
            return;
        }
        if self.tokens >= 90 {
            return;
        }
        self.tokens += 1;
        let id = [self.tokens; 16];
        let (until_s, key) = (self.now_ms / 1_000 + 3_600, Self::token_key(id).public());
        let change = TokenChange::MadeWithKey { role: Role::Host, until_s, underlay: None, key };
        let whose = SourceId::of_actuator(&label(name));
        self.ask(ADMIN, about(IdentityEvent::Token { whose, id, change }));
        // Where a traitor kept the request there is no token, and an honest controller sees that.
        if token(self.cores[0].store(), &id).is_none() {
            return;
        }
        let facts = host(name, self.tokens);
        let by = sign_joined_by(&Self::token_key(id), &label("d"), id, [5; 32], facts.clone());
        let event = self.by(self.controllers, EventBody::JoinedBy(Box::new(by.clone())));
        if matches!(self.order(self.now_ms, event), Outcome::Committed(_)) {
            self.identities.insert(name, self.tokens);
            self.joins.push(by);
            self.comes_true(EventBody::Joined(facts));
        }
        self.check("a join");
    }

    /// What a traitor says by its own word.
    fn own_word(&mut self) -> EventBody {
        let h = label(self.one_of(["h1", "h2"]));
        let whose = SourceId::of_actuator(&h);
        let id = [1 + self.pick(3) as u8; 16];
        let of_token = |change| about(IdentityEvent::Token { whose: whose.clone(), id, change });
        let key = key(EVE).public();
        let usage = UsageReport {
            actuator: h.clone(),
            window_ms: 1,
            through_gateway: Vec::new(),
            direct: Vec::new(),
            turns: Vec::new(),
        };
        let order = PlaneOrder { plane: label("echo"), actuator: h.clone(), name: "n".into(), spec: None };
        let eve =
            |change| about(IdentityEvent::Operator { whose: SourceId::of_operator(&label("eve")), change });
        let bodies = [
            EventBody::Intent(app::transaction(vec![app::policy("n1", "allow")])),
            EventBody::Intent(app::transaction(vec![app::no_endpoint("n1", "e1")])),
            EventBody::Apply(weir_model::event::Apply::default()),
            EventBody::Order(order),
            EventBody::Removed { actuator: h.clone() },
            EventBody::Joined(host(h.as_str(), EVE)),
            EventBody::Joined(host("h9", EVE)),
            EventBody::Repair(RepairOrder { actuator: h.clone(), cgroup: "g".into(), action: None }),
            EventBody::FileWall(PolicyOrder { actuator: h.clone(), wall: label("w"), files: None }),
            EventBody::Domain(Box::new(DomainEvent::Forgotten { domain: label("east") })),
            about(IdentityEvent::Revoked { whose: whose.clone(), reason: "so".into() }),
            about(IdentityEvent::Introduced { whose: controller(9), key }),
            of_token(TokenChange::Made { role: Role::Host, until_s: u64::MAX, underlay: None }),
            of_token(TokenChange::MadeWithKey { role: Role::Host, until_s: u64::MAX, underlay: None, key }),
            of_token(TokenChange::Used { key }),
            of_token(TokenChange::Voided),
            eve(OperatorChange::Added(admin_of(OperatorRole::Admin))),
            about(IdentityEvent::Operator {
                whose: SourceId::of_operator(&label(ADMIN)),
                change: OperatorChange::Removed,
            }),
            about(founding(&[(label("eve"), admin_of(OperatorRole::Admin))].into()).unwrap()),
            EventBody::Usage(usage),
            about(IdentityEvent::Certified { whose: whose.clone(), key: [EVE; 32], until_s: u64::MAX }),
            about(IdentityEvent::Certified {
                whose: SourceId::of_actuator(&label(&format!("x{}", self.rng.below(1_000)))),
                key: [EVE; 32],
                until_s: u64::MAX,
            }),
            EventBody::Approval(Box::new(Approval::Given(self.some_waiting()))),
            EventBody::Approval(Box::new(Approval::Refused(self.some_waiting()))),
            EventBody::Approval(Box::new(Approval::Needed(Needs::default()))),
        ];
        let at = self.pick(bodies.len());
        bodies[at].clone()
    }

    /// What waits, if anything does.
    fn some_waiting(&mut self) -> [u8; 32] {
        let all: Vec<[u8; 32]> = self.waiting.keys().copied().collect();
        if all.is_empty() { [EVE; 32] } else { all[self.pick(all.len())] }
    }

    /// A request that nobody made, from those that people made.
    fn forged(&mut self) -> Said {
        let (mut said, other) = (self.some_made(), self.some_made());
        let own = EventBody::Intent(app::transaction(vec![app::policy("n1", "allow")]));
        let signed = |said: &Said, author: &str| {
            let event = Event { source: SourceId::of_operator(&label(author)), ..said.event.clone() };
            sign_said(&key(EVE), &label("d"), event, (said.made_ms, said.until_ms))
        };
        match self.rng.below(12) {
            10 => said.event.body = EventBody::Approval(Box::new(Approval::Given(self.some_waiting()))),
            11 => {
                said.event.body = EventBody::Approval(Box::new(Approval::Given(self.some_waiting())));
                said = signed(&said, SECOND);
            }
            0 => said.event.sequence -= 1,
            1 => said.event.sequence = other.event.sequence,
            2 => said.until_ms = self.now_ms + LIFE_MS,
            3 => (said.made_ms, said.until_ms) = (self.now_ms, self.now_ms + LIFE_MS),
            4 => said.event.source = SourceId::of_operator(&label(ADMIN)),
            5 => said.event.body = own,
            6 => said.event.body = other.event.body,
            7 => said.signature = other.signature,
            8 => said = signed(&said, ADMIN),
            _ => said = signed(&said, "eve"),
        }
        said
    }

    fn forged_join(&mut self) -> JoinedBy {
        let at = self.pick(self.joins.len().max(1));
        let Some(mut by) = self.joins.get(at).cloned() else {
            return sign_joined_by(&key(EVE), &label("d"), [1; 16], [5; 32], host("h1", EVE));
        };
        match self.rng.below(4) {
            0 => by.facts.identity = [EVE; 32],
            1 => by.facts.name = label("h9"),
            2 => by.facts.underlay = "192.0.2.66".parse().unwrap(),
            _ => by.token = [1; 16],
        }
        by
    }

    /// A traitor orders something that nobody wants.
    fn lie(&mut self) {
        self.lies += 1;
        let number = 1 + self.pick(self.traitors);
        let body = match self.rng.below(6) {
            _ if self.made.is_empty() => self.own_word(),
            0 | 1 => self.own_word(),
            2 | 3 => {
                let said = self.forged();
                if self.made.contains(&said) {
                    return;
                }
                EventBody::Said(Box::new(said))
            }
            4 => {
                let by = self.forged_join();
                if self.joins.contains(&by) {
                    return;
                }
                EventBody::JoinedBy(Box::new(by))
            }
            _ => return self.stolen(number),
        };
        let mut event = self.by(number, body);
        if self.rng.chance(1, 8) {
            // In the name of another controller.
            event.event.source = controller(self.controllers);
        }
        // Its clock is wrong as it likes; where ordered time is, it stays.
        let now_ms = self.now_ms - self.rng.below(1_000_000);
        let before = self.cores[0].store().digest();
        let outcome = self.order(now_ms, event.clone());
        if matches!(outcome, Outcome::Committed(_)) || self.cores[0].store().digest() != before {
            self.violations.push(format!("a lie was decided: {event:?}"));
        }
        self.check("a lie");
    }

    /// A copy of a request or a join, late or early, by a traitor.
    fn stolen(&mut self, number: usize) {
        let held = !self.held.is_empty() && self.rng.chance(1, 2);
        if held {
            let at = self.pick(self.held.len());
            let said = self.held.swap_remove(at);
            return self.hand_on(number, said);
        }
        if !self.joins.is_empty() && self.rng.chance(1, 4) {
            let at = self.pick(self.joins.len());
            let by = self.joins[at].clone();
            let event = self.by(number, EventBody::JoinedBy(Box::new(by)));
            self.order(self.now_ms, event);
            return self.check("a stolen join");
        }
        let said = self.some_made();
        self.hand_on(number, said);
    }

    /// The traitors name operators of their own before the others have spoken.
    fn found(&mut self) {
        let own: Founders = [(label("eve"), admin_of(OperatorRole::Admin))].into();
        let honest = founding(&founders()).unwrap();
        for number in 1..=self.controllers {
            let said = if number <= self.traitors { founding(&own).unwrap() } else { honest.clone() };
            let event = self.by(number, about(said));
            self.order(self.now_ms, event);
        }
        let operators = self.cores[0].operators();
        let admin = operators.row(&SourceId::of_operator(&label(ADMIN)));
        if admin.is_none() || operators.rows().count() != founders().len() {
            self.violations.push("the traitors said who the operators are".into());
        }
        let rule = self.by(self.controllers, EventBody::Rule(NewRule::OwnersCertificates));
        self.order(self.now_ms, rule);
        let kinds = [(RequestKind::Delete, Need { approvals: 2, role: OperatorRole::Operator })];
        let needs = Needs { kinds: kinds.into(), wait_s: (WAIT_MS / 1_000) as u32 };
        self.ask(ADMIN, EventBody::Approval(Box::new(Approval::Needed(needs.clone()))));
        while weir_controller::core::approvals::needs(self.cores[0].store()) != needs {
            // A traitor kept it: it is asked again.
            self.ask(ADMIN, EventBody::Approval(Box::new(Approval::Needed(needs.clone()))));
        }
    }

    fn run(mut self, steps: usize) -> (Vec<String>, u64, u64) {
        self.found();
        self.go(steps)
    }

    fn go(mut self, steps: usize) -> (Vec<String>, u64, u64) {
        for _ in 0..steps {
            match self.rng.below(18) {
                0..5 => self.honest(),
                5 => self.membership(),
                6..8 => self.approve(),
                8..16 => self.lie(),
                _ => self.now_ms += self.rng.below(20_000),
            }
        }
        let traitors: BTreeSet<SourceId> = (1..=self.traitors).map(controller).collect();
        if self.named != traitors {
            self.violations.push(format!("named are {:?}", self.named));
        }
        let seed = self.seed;
        let violations =
            self.violations.iter().map(|violation| format!("seed {seed}: {violation}")).collect();
        (violations, self.lies, self.approved)
    }
}

fn seeds(default: u64) -> u64 {
    std::env::var("WEIR_SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

#[test]
fn traitors_that_order_have_nothing_in_force_and_are_named() {
    for (controllers, traitors) in [(4, 1), (7, 2)] {
        let mut approved = 0;
        for seed in 0..seeds(12) {
            let (violations, lies, by_two) = Simulation::new(seed, controllers, traitors).run(300);
            let shown = &violations[..violations.len().min(5)];
            assert!(violations.is_empty(), "{traitors} of {controllers}: {shown:#?}");
            assert!(lies > 50, "{lies}");
            approved += by_two;
        }
        assert!(approved > 20, "{approved}");
    }
}

#[test]
fn a_domain_whose_requests_are_not_signed_is_caught() {
    for seed in 0..4 {
        let (violations, ..) = Simulation::new(seed, 4, 1).go(300);
        assert!(violations.iter().any(|violation| violation.contains("a lie was decided")), "{violations:?}");
    }
}
