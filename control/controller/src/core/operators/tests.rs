//! Operators and their requests as events of a core: who is taken, for what, once, and for how long.

use super::*;
use crate::core::admission::UnauthenticCounters;
use crate::core::scheduler::SchedulerSettings;
use crate::core::{Core, CoreSettings, Input, Item, Outcome, Output, SharedApp, decode_batch};
use std::sync::Arc;
use weir_model::domain::DomainEvent;
use weir_model::event::{ActuatorFacts, Apply, Event, Role, SignedEvent, Transaction, UsageReport};
use weir_model::filewall::PolicyOrder;
use weir_model::health::RepairOrder;
use weir_model::identity::{TokenChange, TokenId};
use weir_model::plane::PlaneOrder;
use weir_model::said::{JoinedBy, OPERATOR_KEYS_MAX};
use weir_store::{App, Decision};
use weir_trust::batch::SingleSigner;
use weir_trust::identity::{KeyPair, sign_event};
use weir_trust::said::{sign_joined_by, sign_said};

mod waiting;

/// Notes who asked last; rejects what replaces all.
struct Notes;

impl App for Notes {
    fn name(&self) -> &'static str {
        "notes"
    }

    fn decide(&self, view: &mut View<'_>, _: Version, _: u64, event: &Event) -> Result<Decision, Rejection> {
        if matches!(&event.body, EventBody::Intent(transaction) if transaction.replace_all) {
            return Err(Rejection::limit("replace", 1, 0));
        }
        view.put("last", b"", encode(&(&event.source, event.sequence)))?;
        Ok(Decision::default())
    }
}

const START_MS: u64 = 1_000_000;
const TOKEN: TokenId = [7; 16];

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn controller(number: u8) -> SourceId {
    SourceId::of_controller(&label(&format!("c{number}")))
}

fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number; 32])
}

fn of(name: &str) -> SourceId {
    SourceId::of_operator(&label(name))
}

/// Keys 11 and up are those of operators.
fn facts(role: OperatorRole, keys: &[u8]) -> OperatorFacts {
    OperatorFacts { role, keys: keys.iter().map(|number| key(*number).public()).collect() }
}

fn founders() -> Founders {
    let (admin, operator) = (facts(OperatorRole::Admin, &[11]), facts(OperatorRole::Operator, &[12, 13]));
    [(label("anna"), admin), (label("olga"), operator)].into()
}

fn intent() -> EventBody {
    EventBody::Intent(Transaction::default())
}

fn bad_intent() -> EventBody {
    EventBody::Intent(Transaction { mutations: Vec::new(), replace_all: true })
}

fn about(about: IdentityEvent) -> EventBody {
    EventBody::Identity(Box::new(about))
}

fn change(name: &str, change: OperatorChange) -> EventBody {
    about(IdentityEvent::Operator { whose: of(name), change })
}

fn host(name: &str, identity: u8, address: &str) -> ActuatorFacts {
    let underlay = address.parse().unwrap();
    ActuatorFacts { name: label(name), role: Role::Host, identity: [identity; 32], underlay }
}

fn token(change: TokenChange) -> EventBody {
    about(IdentityEvent::Token { whose: SourceId::of_actuator(&label("h1")), id: TOKEN, change })
}

struct World {
    core: Core,
    log: Vec<Vec<u8>>,
    sequence: u64,
    now_ms: u64,
}

impl World {
    fn of(controllers: u8, believes_one: bool) -> World {
        World {
            core: Core::new(settings(controllers, believes_one), signer(), apps()),
            log: Vec::new(),
            sequence: 0,
            now_ms: START_MS,
        }
    }

    /// With anna, an admin, and olga, an operator.
    fn with_operators() -> World {
        let mut world = World::of(1, true);
        world.bare(about(founding(&founders()).unwrap())).unwrap();
        world
    }

    fn order(&mut self, event: SignedEvent) -> Outcome {
        let item = Item::Event { now_ms: self.now_ms, event };
        let batch = weir_order::batcher::encode(&[bytes::Bytes::from(encode(&item))]).to_vec();
        let outcome = step(&mut self.core, &batch);
        self.log.push(batch);
        outcome
    }

    fn by(&mut self, number: u8, body: EventBody) -> Outcome {
        self.sequence += 1;
        let event = Event { source: controller(number), sequence: self.sequence, body };
        self.order(sign_event(&key(number), &label("d"), event, None))
    }

    /// A controller says it by its own word.
    fn bare(&mut self, body: EventBody) -> Result<Version, String> {
        told(self.by(1, body))
    }

    fn request(&mut self, author: &str, number: u8, body: EventBody) -> Said {
        self.sequence += 1;
        let sequence = Said::number_at(self.now_ms) + self.sequence;
        let event = Event { source: of(author), sequence, body };
        sign_said(&key(number), &label("d"), event, (self.now_ms, self.now_ms + 60_000))
    }

    fn hand_on(&mut self, said: Said) -> Outcome {
        self.by(1, EventBody::Said(Box::new(said)))
    }

    fn asks(&mut self, author: &str, number: u8, body: EventBody) -> Result<Version, String> {
        let said = self.request(author, number, body);
        told(self.hand_on(said))
    }

    fn anna(&mut self, body: EventBody) -> Result<Version, String> {
        self.asks("anna", 11, body)
    }

    fn dropped(&self) -> UnauthenticCounters {
        self.core.counters().unauthentic
    }

    /// A replay, and a state that was taken over, are the same as what was decided.
    fn check(&self) {
        let mut again = Core::new(settings(1, true), signer(), apps());
        self.log.iter().for_each(|batch| drop(step(&mut again, batch)));
        let kept = self.core.snapshot().to_bytes();
        let taken = Core::from_snapshot(settings(1, true), signer(), apps(), &kept).unwrap();
        for other in [&again, &taken] {
            assert_eq!(other.replica_digest(), self.core.replica_digest());
            let rows = |core: &Core| core.operators().rows().map(|(_, row)| row.clone()).collect::<Vec<_>>();
            assert_eq!(rows(other), rows(&self.core));
            assert_eq!(other.operators().in_force(), self.core.operators().in_force());
        }
    }
}

fn settings(controllers: u8, believes_one: bool) -> CoreSettings {
    CoreSettings {
        domain: label("d"),
        epoch: 1,
        source: controller(1),
        keys: (1..=controllers).map(|number| (controller(number), key(number).public())).collect(),
        believes_one,
        scheduler: SchedulerSettings::default(),
    }
}

fn signer() -> Box<SingleSigner> {
    Box::new(SingleSigner(key(99)))
}

fn apps() -> Vec<SharedApp> {
    vec![Arc::new(Notes)]
}

fn step(core: &mut Core, batch: &[u8]) -> Outcome {
    let mut out = Vec::new();
    core.step(Input::Ordered(decode_batch(batch).unwrap()), &mut out);
    let decided = out.into_iter().find_map(|output| match output {
        Output::Decided { outcome, .. } => Some(outcome),
        _ => None,
    });
    decided.unwrap()
}

fn told(outcome: Outcome) -> Result<Version, String> {
    match outcome {
        Outcome::Committed(version) => Ok(version),
        Outcome::Rejected(rejection) => Err(rejection.to_string()),
        Outcome::Unauthentic(reason) => Err(format!("{reason:?}")),
        other => Err(format!("{other:?}")),
    }
}

fn wrong<T: std::fmt::Debug>(result: Result<T, String>, part: &str) {
    let error = result.unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn the_rule_is_in_force_behind_the_event_that_names_the_first_operators() {
    let mut world = World::of(1, true);
    world.bare(intent()).unwrap();
    wrong(world.anna(intent()), "NoOperator");
    wrong(
        world.bare(change("anna", OperatorChange::Added(facts(OperatorRole::Admin, &[11])))),
        "no operators",
    );
    assert!(!world.core.operators().in_force());
    world.bare(about(founding(&founders()).unwrap())).unwrap();
    assert!(world.core.operators().in_force());
    wrong(world.bare(intent()), "Unsigned");
    assert_eq!(world.dropped().unsigned, 1);
    wrong(world.bare(about(founding(&founders()).unwrap())), "the first operators are known");
    let version = world.anna(intent()).unwrap();
    let last = world.core.store().get("last", b"").unwrap();
    assert_eq!(last.version, version);
    let (author, _): (SourceId, u64) = decode(&last.value).unwrap();
    assert_eq!(author, of("anna"), "apps decide on what the author said");
    assert_eq!(world.core.counters().requests, 1);
    world.check();
}

#[test]
fn what_the_first_operators_must_be() {
    let none = [(label("olga"), facts(OperatorRole::Operator, &[12]))];
    assert!(problem(&none.clone().into()).unwrap().contains("admin"));
    assert_eq!(founding(&none.into()), None);
    let admins = |of: &[(&str, &[u8])]| -> Founders {
        of.iter().map(|(name, keys)| (label(name), facts(OperatorRole::Admin, keys))).collect()
    };
    for (founders, part) in [
        (admins(&[("anna", &[])]), "no key"),
        (admins(&[("anna", &[11, 11])]), "named twice"),
        (admins(&[("anna", &[11, 12, 13, 14, 15])]), "more than 4"),
        (admins(&[("anna", &[11]), ("olga", &[11])]), "one operator's"),
        (Founders::new(), "admin"),
    ] {
        assert!(problem(&founders).unwrap().contains(part), "{:?}", problem(&founders));
        if let Some(named) = founding(&founders) {
            wrong(World::of(1, true).bare(about(named)), part);
        }
    }
    let weak = OperatorFacts { role: OperatorRole::Admin, keys: vec![[0; 32]] };
    assert!(problem(&[(label("anna"), weak)].into()).unwrap().contains("ed25519"));
    let many =
        (0..=OPERATORS_MAX).map(|number| (label(&format!("o{number}")), facts(OperatorRole::Admin, &[11])));
    assert!(problem(&many.collect()).unwrap().contains("at most 64"));
    let other = OperatorChange::Founded(founders());
    for name in ["olga", "eve"] {
        wrong(World::of(1, true).bare(change(name, other.clone())), "not an admin among");
    }
    assert_eq!(problem(&founders()), None);
}

#[test]
fn one_of_four_that_may_lie_does_not_say_who_the_first_operators_are() {
    let mut world = World::of(4, false);
    let named = |founders: &Founders| about(founding(founders).unwrap());
    let own: Founders = [(label("eve"), facts(OperatorRole::Admin, &[66]))].into();
    let awaits = |world: &World, number| awaits_word(world.core.store(), &controller(number), &founders());
    assert!(awaits(&world, 1));
    for founders in [&own, &own, &founders(), &own] {
        assert!(matches!(world.by(4, named(founders)), Outcome::Committed(_)));
        assert!(!world.core.operators().in_force());
    }
    world.by(1, named(&founders()));
    assert!(!world.core.operators().in_force());
    assert!(!awaits(&world, 1) && awaits(&world, 2));
    world.by(2, named(&founders()));
    assert!(world.core.operators().in_force() && !awaits(&world, 3));
    assert_eq!(world.core.operators().rows().count(), 2);
    assert!(world.core.store().get(OPERATORS_TABLE, VOICES).is_none());
    assert!(matches!(world.by(4, named(&own)), Outcome::Rejected(_)));
    assert_eq!(world.core.operators().rows().count(), 2);
}

/// The table of `weir_model::said`, by a controller's own word.
#[test]
fn a_controllers_own_word_orders_nothing_of_an_operator() {
    let mut world = World::with_operators();
    let h1 = label("h1");
    let whose = SourceId::of_actuator(&h1);
    let order = PlaneOrder { plane: label("echo"), actuator: h1.clone(), name: "n".into(), spec: None };
    let unsigned = [
        intent(),
        EventBody::Apply(Apply::default()),
        EventBody::Removed { actuator: h1.clone() },
        EventBody::Repair(RepairOrder { actuator: h1.clone(), cgroup: "g".into(), action: None }),
        EventBody::FileWall(PolicyOrder { actuator: h1.clone(), wall: label("w"), files: None }),
        EventBody::Order(order),
        EventBody::Domain(Box::new(DomainEvent::Forgotten { domain: h1.clone() })),
        EventBody::Joined(host("h1", 3, "192.0.2.1")),
        about(IdentityEvent::Revoked { whose: whose.clone(), reason: String::new() }),
        about(IdentityEvent::Introduced { whose: controller(9), key: [9; 32] }),
        change("eve", OperatorChange::Added(facts(OperatorRole::Admin, &[66]))),
        change("anna", OperatorChange::Removed),
        token(TokenChange::Made { role: Role::Host, until_s: 1, underlay: None }),
        token(TokenChange::MadeWithKey { role: Role::Host, until_s: 1, underlay: None, key: [1; 32] }),
        token(TokenChange::Used { key: [1; 32] }),
        token(TokenChange::Voided),
    ];
    let digest = world.core.store().digest();
    let count = unsigned.len() as u64;
    for body in unsigned {
        assert_eq!(told(world.by(1, body.clone())), Err("Unsigned".into()), "{body:?}");
    }
    assert_eq!(world.dropped().unsigned, count);
    let report = UsageReport {
        actuator: h1.clone(),
        window_ms: 1,
        through_gateway: Vec::new(),
        direct: Vec::new(),
        turns: Vec::new(),
    };
    wrong(world.bare(EventBody::Usage(report)), "NotItsOwn");
    assert_eq!(world.core.store().digest(), digest, "nothing of it left a trace");
    world.bare(EventBody::Speaks { name: h1, protocol: 11 }).unwrap();
    world.bare(EventBody::Clock { wall_ms: START_MS }).unwrap();
    world.check();
}

#[test]
fn a_request_is_decided_once_and_whoever_keeps_a_copy_has_nothing() {
    let mut world = World::with_operators();
    let said = world.request("olga", 12, intent());
    let Outcome::Committed(version) = world.hand_on(said.clone()) else { panic!("it is decided") };
    assert_eq!(world.hand_on(said.clone()), Outcome::Duplicate(version));
    assert_eq!(world.core.counters().requests_again, 1);
    // Another request under its number: the author's programs took it twice.
    let event = Event { body: bad_intent(), ..said.event.clone() };
    let other = sign_said(&key(13), &label("d"), event, (said.made_ms, said.until_ms));
    assert_eq!(told(world.hand_on(other)), Err("NumberUsed".into()));
    // What is rejected has used up its number.
    let rejected = world.request("olga", 12, bad_intent());
    assert!(matches!(world.hand_on(rejected.clone()), Outcome::Rejected(_)));
    assert_eq!(told(world.hand_on(rejected)), Err("NumberUsed".into()));
    // What comes behind its time is over, whenever it was made.
    let held = world.request("olga", 12, intent());
    world.now_ms = held.until_ms;
    assert!(told(world.hand_on(held)).is_ok());
    let held = world.request("olga", 12, intent());
    world.now_ms = held.until_ms + 1;
    assert_eq!(told(world.hand_on(held)), Err("NotInTime".into()));
    assert_eq!(told(world.hand_on(said)), Err("NotInTime".into()));
    // A number so old that nobody knows.
    let old = world.request("olga", 12, intent());
    for step in 1..=2 {
        let event = Event { sequence: old.number() + step * WINDOW, ..old.event.clone() };
        let newer = sign_said(&key(12), &label("d"), event, (world.now_ms, world.now_ms + 1));
        assert!(told(world.hand_on(newer)).is_ok());
    }
    assert_eq!(told(world.hand_on(old)), Err("NumberUsed".into()));
    assert_eq!((world.dropped().number_used, world.dropped().not_in_time), (3, 2));
    world.check();
}

#[test]
fn a_changed_request_is_nobodys() {
    let mut world = World::with_operators();
    let digest = world.core.store().digest();
    let said = world.request("olga", 12, intent());
    let mut forged = Vec::new();
    for change in 0..6 {
        let mut said = said.clone();
        match change {
            0 => said.event.source = of("anna"),
            1 => said.event.sequence -= 1,
            2 => said.made_ms += 1,
            3 => said.until_ms += 1,
            4 => said.event.body = bad_intent(),
            _ => said.signature.r[0] ^= 1,
        }
        forged.push(said);
    }
    // Of another domain, and by a controller's key.
    forged.push(sign_said(&key(12), &label("e"), said.event.clone(), (said.made_ms, said.until_ms)));
    forged.push(sign_said(&key(1), &label("d"), said.event.clone(), (said.made_ms, said.until_ms)));
    let count = forged.len() as u64;
    for (number, said) in forged.into_iter().enumerate() {
        assert_eq!(told(world.hand_on(said)), Err("Forged".into()), "{number}");
    }
    assert_eq!(world.dropped().forged, count);
    let mut strange = said.clone();
    strange.event.source = of("eve");
    assert_eq!(told(world.hand_on(strange)), Err("NoOperator".into()));
    let mut strange = said.clone();
    strange.event.source = controller(1);
    assert_eq!(told(world.hand_on(strange)), Err("NoOperator".into()));
    assert_eq!(world.core.store().digest(), digest);
    assert!(told(world.hand_on(said)).is_ok(), "nobody has used its number");
    world.check();
}

#[test]
fn an_operator_orders_no_more_than_the_role_allows() {
    let mut world = World::with_operators();
    wrong(world.asks("olga", 12, EventBody::Removed { actuator: label("h1") }), "BeyondRole");
    wrong(world.asks("olga", 12, change("olga", OperatorChange::Removed)), "BeyondRole");
    wrong(world.anna(token(TokenChange::Used { key: [1; 32] })), "BeyondRole");
    wrong(world.anna(EventBody::Speaks { name: label("h1"), protocol: 1 }), "BeyondRole");
    assert_eq!(world.dropped().beyond_role, 4);
    let raised = OperatorChange::Changed(facts(OperatorRole::Admin, &[12]));
    world.anna(change("olga", raised)).unwrap();
    world.asks("olga", 12, EventBody::Removed { actuator: label("h1") }).unwrap();
    wrong(world.asks("olga", 13, intent()), "Forged");
    world.check();
}

#[test]
fn operators_come_and_go_and_there_is_an_admin_always() {
    let mut world = World::with_operators();
    let admin = |keys: &[u8]| facts(OperatorRole::Admin, keys);
    wrong(world.anna(change("anna", OperatorChange::Removed)), "the last admin");
    let less = OperatorChange::Changed(facts(OperatorRole::Operator, &[11]));
    wrong(world.anna(change("anna", less)), "the last admin");
    wrong(world.anna(change("olga", OperatorChange::Added(admin(&[14])))), "already");
    wrong(world.anna(change("ivan", OperatorChange::Removed)), "no such operator");
    wrong(world.anna(change("ivan", OperatorChange::Added(admin(&[13])))), "that of operator/olga");
    wrong(world.anna(change("ivan", OperatorChange::Added(admin(&[])))), "no key");
    let five: Vec<u8> = (20..21 + OPERATOR_KEYS_MAX as u8).collect();
    wrong(world.anna(change("ivan", OperatorChange::Added(admin(&five)))), "more than 4");
    let whose = SourceId::of_actuator(&label("h1"));
    let nobody = IdentityEvent::Operator { whose, change: OperatorChange::Removed };
    wrong(world.anna(about(nobody)), "no operator's name");
    world.anna(change("ivan", OperatorChange::Added(admin(&[14])))).unwrap();
    let said = world.request("anna", 11, intent());
    world.asks("ivan", 14, change("anna", OperatorChange::Removed)).unwrap();
    assert_eq!(told(world.hand_on(said)), Err("NoOperator".into()));
    wrong(world.asks("ivan", 14, change("ivan", OperatorChange::Removed)), "the last admin");
    // A key that is free again may be another's.
    world
        .asks("ivan", 14, change("anna", OperatorChange::Added(facts(OperatorRole::Operator, &[15]))))
        .unwrap();
    world.check();
}

#[test]
fn removed_operators_make_room_when_none_of_their_requests_is_in_time() {
    let mut world = World::with_operators();
    let added = |number: usize| OperatorChange::Added(facts(OperatorRole::Operator, &[100 + number as u8]));
    for number in 2..OPERATORS_MAX {
        world.anna(change(&format!("o{number}"), added(number))).unwrap();
    }
    wrong(world.anna(change("more", added(100))), "operators");
    let said = world.request("olga", 12, intent());
    assert!(told(world.hand_on(said)).is_ok());
    let slots = |world: &World| {
        let slots = world.core.store().range(REQUESTS_TABLE, b"");
        slots.filter(|(slot, _)| decode::<(SourceId, u64)>(slot).unwrap().0 == of("olga")).count()
    };
    world.anna(change("olga", OperatorChange::Removed)).unwrap();
    wrong(world.anna(change("more", added(100))), "operators");
    assert_eq!(slots(&world), 1);
    world.now_ms += LIFE_MAX_MS + AHEAD_MAX_MS + 1;
    world.anna(change("more", added(100))).unwrap();
    assert_eq!((slots(&world), world.core.operators().rows().count()), (0, OPERATORS_MAX));
    world.check();
}

fn made(world: &mut World, id: TokenId, until_s: u64) {
    let underlay = Some("192.0.2.0/24".parse().unwrap());
    let change = TokenChange::MadeWithKey { role: Role::Host, until_s, underlay, key: key(50).public() };
    let whose = SourceId::of_actuator(&label("h1"));
    world.anna(about(IdentityEvent::Token { whose, id, change })).unwrap();
}

fn join(world: &mut World, by: JoinedBy) -> Result<Version, String> {
    world.bare(EventBody::JoinedBy(Box::new(by)))
}

fn joins(id: TokenId, facts: ActuatorFacts) -> JoinedBy {
    sign_joined_by(&key(50), &label("d"), id, [5; 32], facts)
}

#[test]
fn who_joins_has_the_word_of_who_made_the_token() {
    let mut world = World::with_operators();
    let until_s = START_MS / 1_000 + 3_600;
    let facts = || host("h1", 3, "192.0.2.1");
    wrong(join(&mut world, joins(TOKEN, facts())), "Forged");
    wrong(world.anna(token(TokenChange::Made { role: Role::Host, until_s, underlay: None })), "has a key");
    let no_key = TokenChange::MadeWithKey { role: Role::Host, until_s, underlay: None, key: [0; 32] };
    wrong(world.anna(token(no_key)), "ed25519");
    made(&mut world, TOKEN, until_s);
    // A controller lets a host of its own join, or this one elsewhere.
    for forged in 0..4 {
        let mut by = joins(TOKEN, facts());
        match forged {
            0 => by.facts.identity = [9; 32],
            1 => by.facts.underlay = "192.0.2.9".parse().unwrap(),
            2 => by.token = [8; 16],
            _ => by.signature = sign_joined_by(&key(1), &label("d"), TOKEN, [5; 32], facts()).signature,
        }
        wrong(join(&mut world, by), "Forged");
    }
    assert_eq!(world.dropped().forged, 5);
    // The bearer says more than the token allows.
    wrong(join(&mut world, joins(TOKEN, host("h2", 3, "192.0.2.1"))), "another name");
    let role = ActuatorFacts { role: Role::Gateway, ..facts() };
    wrong(join(&mut world, joins(TOKEN, role)), "other role");
    wrong(join(&mut world, joins(TOKEN, host("h1", 3, "198.51.100.1"))), "does not allow this address");
    assert!(world.core.joined().is_empty());
    join(&mut world, joins(TOKEN, facts())).unwrap();
    assert_eq!(world.core.joined()[&label("h1")], facts());
    // It serves the same key again, for the same facts, and nothing else.
    join(&mut world, joins(TOKEN, facts())).unwrap();
    wrong(join(&mut world, joins(TOKEN, host("h1", 3, "192.0.2.7"))), "used already");
    wrong(join(&mut world, joins(TOKEN, host("h1", 4, "192.0.2.1"))), "used already");
    // As it is known it may be said again.
    world.bare(EventBody::Joined(facts())).unwrap();
    wrong(world.bare(EventBody::Joined(host("h1", 3, "192.0.2.7"))), "Unsigned");
    // With another token it moves, and nobody moves it back with the old join.
    made(&mut world, [8; 16], until_s);
    join(&mut world, joins([8; 16], host("h1", 3, "192.0.2.7"))).unwrap();
    wrong(join(&mut world, joins(TOKEN, facts())), "used already");
    assert_eq!(world.core.joined()[&label("h1")].underlay, "192.0.2.7".parse::<std::net::IpAddr>().unwrap());
    // Who was forgotten does not come back by a copy.
    world.anna(EventBody::Removed { actuator: label("h1") }).unwrap();
    wrong(join(&mut world, joins([8; 16], host("h1", 3, "192.0.2.7"))), "voided");
    made(&mut world, [9; 16], until_s);
    world.now_ms = (until_s + 1) * 1_000;
    wrong(join(&mut world, joins([9; 16], facts())), "over");
    world.check();
}

#[test]
fn nothing_of_an_operator_is_voted_for_before_the_order_names_operators() {
    let batch = |body: EventBody| {
        let event = Event { source: controller(4), sequence: 1, body };
        let event = sign_event(&key(4), &label("d"), event, None);
        let item = Item::Event { now_ms: 1, event };
        weir_order::batcher::encode(&[bytes::Bytes::from(encode(&item))]).to_vec()
    };
    let votes = |body, awaits| crate::core::is_reasonable(&batch(body), 1, |_, _| true, awaits);
    let founded = about(founding(&founders()).unwrap());
    for body in [intent(), EventBody::Joined(host("h1", 3, "192.0.2.1")), token(TokenChange::Voided)] {
        assert!(votes(body.clone(), false) && !votes(body, true));
    }
    for body in [founded, EventBody::Speaks { name: label("h1"), protocol: 1 }] {
        assert!(votes(body, true));
    }
}
