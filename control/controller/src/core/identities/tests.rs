//! Keys change, are revoked and come back, as events of a core, and as that core reads them back from a snapshot.

use super::*;
use crate::core::dedup;
use crate::core::scheduler::SchedulerSettings;
use crate::core::{Core, CoreSettings, Input, Item, Outcome, Output};
use std::sync::Arc;
use weir_model::event::{Role, UsageReport};
use weir_model::identity::Rotation;
use weir_model::signed::Signature;
use weir_store::{App, Decision};
use weir_trust::batch::SingleSigner;
use weir_trust::identity::{KeyPair, sign_acks, sign_event, sign_rotation, sign_settled};

mod owners;

struct Nothing;

impl App for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn decide(&self, _: &mut View<'_>, _: Version, _: u64, _: &Event) -> Result<Decision, Rejection> {
        Ok(Decision::default())
    }
}

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key(number: u8) -> KeyPair {
    KeyPair::from_seed(&[number; 32])
}

fn controller(number: u8) -> SourceId {
    SourceId(format!("controller/controller-{number}"))
}

fn host() -> SourceId {
    SourceId::of_actuator(&label("h1"))
}

struct World {
    core: Core,
    sequence: u64,
    out: Vec<Output>,
}

fn settings(controllers: u8, believes_one: bool) -> CoreSettings {
    let keys = (1..=controllers).map(|number| (controller(number), key(number).public())).collect();
    let (source, scheduler) = (controller(1), SchedulerSettings::default());
    CoreSettings { domain: label("d"), epoch: 1, source, keys, believes_one, scheduler }
}

impl World {
    fn new(controllers: u8, believes_one: bool) -> World {
        let core = Core::new(
            settings(controllers, believes_one),
            Box::new(SingleSigner(key(99))),
            vec![Arc::new(Nothing)],
        );
        World { core, sequence: 0, out: Vec::new() }
    }

    fn says(&mut self, source: SourceId, by: &KeyPair, body: EventBody) -> Outcome {
        self.sequence += 1;
        let event = sign_event(by, &label("d"), Event { source, sequence: self.sequence, body }, None);
        let now_ms = 1_000 + self.sequence;
        self.out.clear();
        self.core.step(Input::Ordered(vec![Item::Event { now_ms, event }]), &mut self.out);
        let decided = self.out.iter().find_map(|output| match output {
            Output::Decided { outcome, .. } => Some(outcome.clone()),
            _ => None,
        });
        decided.unwrap()
    }

    /// What a controller says of identities.
    fn about(&mut self, by: u8, about: IdentityEvent) -> Outcome {
        self.says(controller(by), &key(by), EventBody::Identity(Box::new(about)))
    }

    fn decided(&mut self, by: u8, about: IdentityEvent) {
        let outcome = self.about(by, about);
        assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    }

    fn rejected(&mut self, by: u8, about: IdentityEvent, why: &str) {
        let digest = self.core.store().digest();
        match self.about(by, about) {
            Outcome::Rejected(rejection) => assert!(rejection.to_string().contains(why), "{rejection}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(self.core.store().digest(), digest, "a rejection leaves no trace");
    }

    fn joins(&mut self, by: &KeyPair) -> Outcome {
        let underlay = "192.0.2.1".parse().unwrap();
        let facts = ActuatorFacts { name: label("h1"), role: Role::Host, identity: by.public(), underlay };
        self.says(controller(1), &key(1), EventBody::Joined(facts))
    }

    /// A report of the host, signed with a key.
    fn reports(&mut self, by: &KeyPair) -> Result<(), Unauthentic> {
        let (through_gateway, direct, turns) = (Vec::new(), Vec::new(), Vec::new());
        let report = UsageReport { actuator: label("h1"), window_ms: 1, through_gateway, direct, turns };
        match self.says(host(), by, EventBody::Usage(report)) {
            Outcome::Committed(_) => Ok(()),
            Outcome::Unauthentic(reason) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    /// Acks of the host, signed with a key: whether they count.
    fn acks(&mut self, by: &KeyPair) -> Result<(), Unauthentic> {
        self.out.clear();
        let acks = sign_acks(by, &label("h1"), Vec::new());
        self.core.step(Input::Acks { session: 1, acks }, &mut self.out);
        match &self.out[..] {
            [Output::Acked(_)] => Ok(()),
            [Output::Forged { reason, .. }] => Err(*reason),
            other => panic!("{other:?}"),
        }
    }

    fn row(&self) -> &Row {
        self.core.identities().row(&host()).unwrap()
    }

    /// The same core from its snapshot; what it knows must be the same.
    fn again(&mut self, controllers: u8, believes_one: bool) {
        let bytes = self.core.snapshot().to_bytes();
        let (settings, signer) = (settings(controllers, believes_one), Box::new(SingleSigner(key(99))));
        let core = Core::from_snapshot(settings, signer, vec![Arc::new(Nothing)], &bytes).unwrap();
        let rows = |core: &Core| {
            core.identities().rows().map(|(source, row)| (source.clone(), row.clone())).collect::<Vec<_>>()
        };
        assert_eq!(rows(&core), rows(&self.core));
        self.core = core;
    }
}

fn rotation(old: &KeyPair, new: &KeyPair) -> IdentityEvent {
    IdentityEvent::Rotated(sign_rotation(&label("d"), host(), old, new))
}

fn settled(by: &KeyPair) -> IdentityEvent {
    let by_key = sign_settled(&label("d"), &host(), by);
    IdentityEvent::Settled { whose: host(), key: by.public(), by_key }
}

fn certified(number: u8, until_s: u64) -> IdentityEvent {
    IdentityEvent::Certified { whose: host(), key: [number; 32], until_s }
}

fn revoked(whose: SourceId) -> IdentityEvent {
    IdentityEvent::Revoked { whose, reason: "stolen".into() }
}

#[test]
fn both_keys_are_taken_until_the_new_one_says_that_it_is_the_only_one() {
    let mut world = World::new(1, true);
    let (old, new) = (key(50), key(51));
    world.joins(&old);
    world.decided(1, certified(1, 100));
    assert_eq!(world.reports(&new), Err(Unauthentic::BadSignature), "it is not ordered yet");
    world.decided(1, rotation(&old, &new));
    world.decided(1, certified(2, 200));
    for by in [&old, &new] {
        assert_eq!((world.reports(by), world.acks(by)), (Ok(()), Ok(())));
    }
    assert_eq!(world.core.joined()[&label("h1")].identity, new.public());
    // The same again, by whoever lost the answer.
    world.decided(1, rotation(&old, &new));
    world.again(1, true);
    assert_eq!(world.reports(&old), Ok(()));
    for certificate in [1, 2] {
        assert_eq!(world.core.identities().takes_told_certificate(&host(), &[certificate; 32]), Ok(()));
    }
    world.decided(1, settled(&new));
    assert_eq!((world.reports(&new), world.acks(&new)), (Ok(()), Ok(())));
    assert_eq!(world.reports(&old), Err(Unauthentic::BadSignature));
    assert_eq!(world.acks(&old), Err(Unauthentic::BadSignature));
    let takes =
        |world: &World, number: u8| world.core.identities().takes_told_certificate(&host(), &[number; 32]);
    assert_eq!((takes(&world, 1), takes(&world, 2)), (Err(Unauthentic::Replaced), Ok(())));
    world.again(1, true);
    assert_eq!(world.acks(&old), Err(Unauthentic::BadSignature));
    assert_eq!(world.core.counters().acks_forged, 1, "of this core's life");
}

#[test]
fn nobody_changes_the_key_of_another() {
    let mut world = World::new(1, true);
    let (old, new, thief) = (key(50), key(51), key(52));
    world.joins(&old);
    let IdentityEvent::Rotated(good) = rotation(&old, &new) else { unreachable!() };
    let wrong = [
        Rotation { new: thief.public(), ..good.clone() },
        Rotation { by_old: good.by_new, ..good.clone() },
        Rotation { by_new: good.by_old, ..good.clone() },
        Rotation { whose: SourceId::of_actuator(&label("h2")), ..good.clone() },
        sign_rotation(&label("elsewhere"), host(), &old, &new),
    ];
    for wrong in wrong {
        world.rejected(1, IdentityEvent::Rotated(wrong), "signed by both keys");
    }
    world.rejected(1, rotation(&thief, &new), "not the one in use");
    world.rejected(1, settled(&new), "not the one in use");
    let unsigned = Signature { r: [0; 32], s: [0; 32] };
    let forged = IdentityEvent::Settled { whose: host(), key: old.public(), by_key: unsigned };
    world.rejected(1, forged, "not signed by the key");
    // By joining neither, not even with the key before.
    assert!(matches!(world.joins(&thief), Outcome::Rejected(_)));
    world.decided(1, rotation(&old, &new));
    assert!(matches!(world.joins(&old), Outcome::Rejected(_)));
    // An old change does not come back.
    world.decided(1, settled(&new));
    world.rejected(1, rotation(&old, &new), "not the one in use");
    // A host says nothing of identities, not even of its own.
    let about = EventBody::Identity(Box::new(rotation(&new, &thief)));
    assert_eq!(world.says(host(), &new, about), Outcome::Unauthentic(Unauthentic::NotItsOwn));
}

#[test]
fn who_is_revoked_is_refused_whole_and_comes_back_with_other_keys_only() {
    let mut world = World::new(1, true);
    let (old, new, fresh) = (key(50), key(51), key(52));
    world.joins(&old);
    world.decided(1, certified(1, 100));
    world.decided(1, rotation(&old, &new));
    world.core.step(
        Input::Connected { actuator: label("h1"), session: 1, digest: Default::default() },
        &mut Vec::new(),
    );
    world.decided(1, revoked(host()));
    assert!(
        world.out.iter().any(|output| matches!(output, Output::Close { session: 1, .. })),
        "{:?}",
        world.out
    );
    for _ in 0..2 {
        for by in [&old, &new] {
            assert_eq!(world.reports(by), Err(Unauthentic::Revoked));
            assert_eq!(world.acks(by), Err(Unauthentic::Revoked));
        }
        let takes = |number: u8| world.core.identities().takes_told_certificate(&host(), &[number; 32]);
        assert_eq!((takes(1), takes(9)), (Err(Unauthentic::Revoked), Err(Unauthentic::Revoked)));
        world.again(1, true);
    }
    assert_eq!(world.row().revoked.as_ref().unwrap().reason, "stolen");
    world.rejected(1, certified(3, 100), "revoked");
    world.rejected(1, rotation(&new, &fresh), "revoked");
    assert!(matches!(world.joins(&old), Outcome::Rejected(_)));
    assert!(matches!(world.joins(&new), Outcome::Rejected(_)));

    // Another machine takes its place. No certificate counts that the order does not know.
    assert!(matches!(world.joins(&fresh), Outcome::Committed(_)));
    let takes =
        |world: &World, number: u8| world.core.identities().takes_told_certificate(&host(), &[number; 32]);
    assert_eq!(takes(&world, 1), Err(Unauthentic::Revoked));
    assert_eq!(takes(&world, 9), Err(Unauthentic::Replaced));
    world.decided(1, certified(3, 100));
    assert_eq!((takes(&world, 3), world.reports(&fresh)), (Ok(()), Ok(())));
    world.rejected(1, certified(1, 100), "revoked");

    // Forgotten, it leaves only what is never taken again.
    world.says(controller(1), &key(1), EventBody::Removed { actuator: label("h1") });
    assert!(matches!(world.joins(&old), Outcome::Rejected(_)));
    assert_eq!(world.row().refused.len(), 3);
    // Under whatever name it is shown, it is known whose it was.
    for _ in 0..2 {
        let of = |by: &KeyPair| world.core.identities().refused_of(&by.public()).cloned();
        assert_eq!((of(&old), of(&new), of(&fresh)), (Some(host()), Some(host()), None));
        world.again(1, true);
    }
}

#[test]
fn one_controller_that_lies_neither_revokes_another_nor_brings_one_in() {
    let mut world = World::new(4, false);
    let five = controller(5);
    let introduced = IdentityEvent::Introduced { whose: five.clone(), key: key(5).public() };
    for _ in 0..3 {
        world.decided(4, revoked(controller(1)));
        world.decided(4, introduced.clone());
    }
    world.decided(1, certified(1, 100));
    assert_eq!(world.about(5, certified(2, 100)), Outcome::Unauthentic(Unauthentic::UnknownSource));
    // Another key than the others say.
    world.decided(3, IdentityEvent::Introduced { whose: five.clone(), key: key(6).public() });
    assert_eq!(world.about(5, certified(2, 100)), Outcome::Unauthentic(Unauthentic::UnknownSource));
    world.again(4, false);
    world.decided(1, introduced);
    world.decided(5, certified(2, 100));

    // Two of five, as one may lie; what one says many times is said once.
    world.decided(2, revoked(controller(4)));
    world.decided(2, revoked(controller(4)));
    world.decided(4, certified(3, 100));
    world.decided(3, revoked(controller(4)));
    assert_eq!(world.about(4, certified(3, 100)), Outcome::Unauthentic(Unauthentic::Revoked));
    // Not even by those who brought it in does it come back.
    let back = IdentityEvent::Introduced { whose: controller(4), key: key(44).public() };
    world.rejected(1, back, "revoked");
    world.again(4, false);
    assert_eq!(world.about(4, certified(3, 100)), Outcome::Unauthentic(Unauthentic::Revoked));
}

#[test]
fn a_controller_changes_its_own_key() {
    let mut world = World::new(2, true);
    let (whose, new) = (controller(2), key(22));
    let rotation = sign_rotation(&label("d"), whose.clone(), &key(2), &new);
    // Another one may order it: it carries its owner's word.
    world.decided(1, IdentityEvent::Rotated(rotation));
    let says = |world: &mut World, by: &KeyPair| {
        world.says(controller(2), by, EventBody::Identity(Box::new(certified(1, 100))))
    };
    for by in [&key(2), &new] {
        assert!(matches!(says(&mut world, by), Outcome::Committed(_)));
    }
    let by_key = sign_settled(&label("d"), &whose, &new);
    world.decided(1, IdentityEvent::Settled { whose, key: new.public(), by_key });
    world.again(2, true);
    assert_eq!(says(&mut world, &key(2)), Outcome::Unauthentic(Unauthentic::BadSignature));
    assert!(matches!(says(&mut world, &new), Outcome::Committed(_)));
    world.decided(1, revoked(controller(2)));
    world.rejected(1, revoked(controller(1)), "only controller");
    assert_eq!(world.core.identities().refused_of(&new.public()), Some(&controller(2)));
}

impl World {
    /// With the rules of this release, or as a log of an earlier one is carried out.
    fn under(rules: u64) -> World {
        let mut world = World::new(2, true);
        let Item::Operations { now_ms, origin, ticket, batch } = crate::core::marker(1, crate::core::RULES)
        else {
            unreachable!()
        };
        let batch = weir_store::Batch { settled_below: rules, ..batch };
        let marker = Item::Operations { now_ms, origin, ticket, batch };
        world.core.step(Input::Ordered(vec![marker]), &mut Vec::new());
        assert_eq!(u64::from(world.core.rules()), rules);
        world
    }

    fn joins_as(&mut self, name: &str, last: u8, by: &KeyPair) -> Outcome {
        let underlay = std::net::Ipv4Addr::new(192, 0, 2, last).into();
        let facts = ActuatorFacts { name: label(name), role: Role::Host, identity: by.public(), underlay };
        self.says(controller(1), &key(1), EventBody::Joined(facts))
    }

    /// What becomes of the host's report under a number, signed with a key.
    fn numbered(&mut self, sequence: u64, by: &KeyPair) -> Outcome {
        let kept = std::mem::replace(&mut self.sequence, sequence - 1);
        let (through_gateway, direct, turns) = (Vec::new(), Vec::new(), Vec::new());
        let report = UsageReport { actuator: label("h1"), window_ms: 1, through_gateway, direct, turns };
        let outcome = self.says(host(), by, EventBody::Usage(report));
        self.sequence = kept;
        outcome
    }
}

#[test]
fn who_comes_back_with_another_key_begins_with_an_empty_window() {
    for rules in [1, u64::from(crate::core::RULES)] {
        let mut world = World::under(rules);
        let (old, fresh) = (key(50), key(52));
        world.joins(&old);
        for sequence in 1_000..1_000 + dedup::WINDOW {
            assert!(matches!(world.numbered(sequence, &old), Outcome::Committed(_)));
        }
        world.decided(1, revoked(host()));
        world.joins(&fresh);
        // The clock of the new machine is behind the old one's, so its numbers are.
        let found = world.numbered(7, &fresh);
        match rules {
            1 => assert_eq!(found, Outcome::TooOld, "a log of an earlier release is decided as it was"),
            _ => assert!(matches!(found, Outcome::Committed(_)), "{found:?}"),
        }
        if rules == 1 {
            continue;
        }
        assert!(matches!(world.numbered(7, &fresh), Outcome::Duplicate(_)), "once");
        for sequence in [1_000, 1_255, 1_256] {
            let replayed = world.numbered(sequence, &old);
            assert_eq!(replayed, Outcome::Unauthentic(Unauthentic::BadSignature), "{sequence}");
        }
        world.again(2, true);
        assert!(matches!(world.numbered(8, &fresh), Outcome::Committed(_)));
        assert!(matches!(world.numbered(7, &fresh), Outcome::Duplicate(_)));
    }
}

#[test]
fn a_key_that_was_revoked_is_taken_of_nobody() {
    let introduced = |by: &KeyPair| IdentityEvent::Introduced { whose: controller(3), key: by.public() };
    let certified = |whose: &str, key: [u8; 32]| {
        let whose = SourceId::of_actuator(&label(whose));
        IdentityEvent::Certified { whose, key, until_s: 100 }
    };
    let (lost, other) = (key(50), key(51));
    let prepared = |rules: u64| {
        let mut world = World::under(rules);
        world.joins_as("h1", 1, &lost);
        world.decided(1, certified("h1", [7; 32]));
        world.joins_as("h2", 2, &other);
        world.decided(1, revoked(host()));
        world
    };
    let rotated = sign_rotation(&label("d"), SourceId::of_actuator(&label("h2")), &other, &lost);
    let mut world = prepared(crate::core::RULES.into());
    let why = "was revoked as that of actuator/h1";
    match world.joins_as("h3", 3, &lost) {
        Outcome::Rejected(rejection) => assert!(rejection.to_string().contains(why), "{rejection}"),
        other => panic!("{other:?}"),
    }
    world.rejected(1, introduced(&lost), why);
    world.rejected(1, IdentityEvent::Rotated(rotated.clone()), why);
    world.rejected(1, certified("h2", [7; 32]), why);
    world.decided(1, introduced(&key(53)));
    assert!(matches!(world.joins_as("h3", 3, &key(54)), Outcome::Committed(_)));
    // What an earlier release ordered stays as it was decided.
    let mut world = prepared(1);
    assert!(matches!(world.joins_as("h3", 3, &lost), Outcome::Committed(_)));
    world.decided(1, introduced(&lost));
    world.decided(1, IdentityEvent::Rotated(rotated));
    world.decided(1, certified("h2", [7; 32]));
}
