//! An order that ends, what goes on, and a key that takes the place of another.

use super::*;
use crate::core::keys::tests::{Secrets, identity, label, members, steps};
use crate::core::scheduler::SchedulerSettings;
use crate::core::{CoreSettings, Input, Item, Outcome};
use std::collections::BTreeMap;
use weir_model::event::{ActuatorFacts, Role, SourceId};
use weir_model::session::StateDigest;
use weir_model::signed::{BatchHeader, SignedHeader};
use weir_model::{Change, Entry, Key, Plan, PlannedUpdate};
use weir_store::{App, Batch, Decision};
use weir_trust::batch::{GroupSigner, SingleSigner, Verifier};
use weir_trust::identity::{KeyPair, sign_event};
use weir_trust::threshold::Round;

/// Whoever joins gets an entry.
struct One;

impl App for One {
    fn name(&self) -> &'static str {
        "one"
    }

    fn decide(
        &self,
        _: &mut View<'_>,
        version: Version,
        _: u64,
        event: &Event,
    ) -> Result<Decision, Rejection> {
        let mut plan = Plan::default();
        if let EventBody::Joined(facts) = &event.body {
            let (target, key, change) =
                (facts.name.clone(), Key::Gateways, Change::Put(Entry::Gateways(Vec::new())));
            let update = Update { target, key, version, expected: Version::ZERO, change };
            plan.updates.push(PlannedUpdate { update, after: Vec::new() });
        }
        Ok(Decision { plan })
    }
}

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[77; 32]))
}

fn settings(own: &str, others: &[&str], epoch: u64) -> CoreSettings {
    let named = |name: &&str| (SourceId::of_controller(&label(name)), identity(1).public());
    let keys = others.iter().chain([&own]).map(named).collect();
    let (source, scheduler) = (SourceId::of_controller(&label(own)), SchedulerSettings::default());
    CoreSettings { domain: label("d"), epoch, source, keys, believes_one: true, scheduler }
}

fn alone() -> Core {
    Core::new(settings("controller", &[], 1), Box::new(signer()), vec![Arc::new(One)])
}

fn member(name: &str) -> Core {
    let signer = Signer::SharesAfter(Box::new(signer()));
    Core::new(settings(name, &["c1", "c2", "c3"], 1), signer, vec![Arc::new(One)])
}

fn said(core: &Core, sequence: u64, body: EventBody) -> Item {
    let event = Event { source: core.source.clone(), sequence, body };
    Item::Event { now_ms: 1_000, event: sign_event(&identity(1), &label("d"), event, None) }
}

fn join(core: &Core, sequence: u64, name: &str) -> Item {
    let (name, role) = (label(name), Role::Host);
    let underlay = format!("192.0.2.{sequence}").parse().unwrap();
    said(core, sequence, EventBody::Joined(ActuatorFacts { name, role, identity: [9; 32], underlay }))
}

fn conversion() -> Conversion {
    Conversion { order: GroupOrder::Raft, member: 1, listen: "192.0.2.1:7445".into(), wide: false }
}

fn ends(core: &Core, sequence: u64) -> Item {
    said(core, sequence, EventBody::Converted(Box::new(conversion())))
}

fn order(core: &mut Core, items: Vec<Item>) -> Vec<Output> {
    let mut out = Vec::new();
    core.step(Input::Ordered(items), &mut out);
    out
}

fn outcomes(out: &[Output]) -> Vec<Outcome> {
    let decided = |output: &Output| match output {
        Output::Decided { outcome, .. } => Some(outcome.clone()),
        _ => None,
    };
    out.iter().filter_map(decided).collect()
}

fn desired(core: &Core) -> Vec<(Update, BatchHeader)> {
    core.scheduler
        .desired_held()
        .map(|held| (held.proven.update.clone(), held.header.header.clone()))
        .collect()
}

#[test]
fn nothing_behind_the_last_entry_is_carried_out_and_the_state_goes_on_one_epoch_later() {
    let mut core = alone();
    let (joins, last) = (join(&core, 1, "h1"), ends(&core, 2));
    let behind = vec![
        join(&core, 3, "h2"),
        Item::Repair { now_ms: 9_000, actuator: label("h1"), found: vec![(Key::Gateways, Version(5))] },
        Item::Operations {
            now_ms: 9_000,
            origin: 1,
            ticket: 1,
            batch: Batch { client: 1, principal: 0, settled_below: 0, requests: Vec::new() },
        },
    ];
    order(&mut core, vec![joins]);
    let out = order(&mut core, [vec![last], behind.clone()].concat());
    assert_eq!(outcomes(&out).len(), 1, "who stands behind hears nothing");
    assert_eq!(core.ended(), Some(&conversion()));
    let (digest, version) = (core.store().digest(), core.store().version());
    let out = order(&mut core, behind);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!((core.counters().behind_the_end, core.now_ms()), (6, 1_000));
    assert_eq!((core.store().digest(), core.store().version()), (digest, version));

    let before = desired(&core);
    assert_eq!(core.convert(), Some(conversion()));
    assert_eq!((core.epoch(), core.ended()), (2, None));
    assert_eq!(core.store().digest(), digest);
    let mut verifier = Verifier::new(label("d"), signer().group_key());
    for ((update, old), (again, header)) in before.iter().zip(desired(&core)) {
        assert_eq!((update, old.epoch, header.epoch), (&again, 1, 2));
    }
    for held in core.scheduler.held() {
        verifier.verify_header(&held.header.to_signed().unwrap()).unwrap();
        verifier.verify_path(&held.header.header, &held.proven).unwrap();
    }
    assert_eq!(core.convert(), None, "it ends once");

    // A member takes the state, and goes on; the name under which it speaks is another one.
    let mut first = member("c1");
    first.install(&core.snapshot().to_bytes()).unwrap();
    assert_eq!((first.epoch(), first.ended(), first.store().digest()), (2, None, digest));
    let joins = join(&first, 4, "h2");
    assert!(matches!(outcomes(&order(&mut first, vec![joins]))[..], [Outcome::Committed(_)]));
    let old = first.scheduler.held().all(|held| held.is_signed() && held.header.header.epoch == 2);
    assert!(old, "the key from before signs until there is another");
}

#[test]
fn the_end_is_taken_back_by_the_same_order_and_only_when_there_is_one() {
    let nothing = Conversion { order: GroupOrder::Alone, member: 0, listen: String::new(), wide: false };
    let back = |core: &Core, sequence| said(core, sequence, EventBody::Converted(Box::new(nothing.clone())));
    let mut core = alone();
    let (joins, early, last) = (join(&core, 1, "h1"), back(&core, 2), ends(&core, 3));
    let out = order(&mut core, vec![joins, early]);
    assert!(matches!(outcomes(&out)[..], [Outcome::Committed(_), Outcome::Rejected(_)]), "{out:?}");
    order(&mut core, vec![last]);
    let (lost, taken, late) = (join(&core, 4, "h2"), back(&core, 5), join(&core, 6, "h3"));
    let entries = vec![lost, taken, late];
    let out = order(&mut core, entries);
    assert!(matches!(outcomes(&out)[..], [Outcome::Committed(_), Outcome::Committed(_)]), "{out:?}");
    assert_eq!(
        (core.epoch(), core.ended().cloned(), core.convert()),
        (3, None, None),
        "above what the group may have sent"
    );
    assert_eq!(core.joined().keys().map(Label::to_string).collect::<Vec<_>>(), ["h1", "h3"]);
    assert!(desired(&core).iter().all(|(_, header)| header.epoch == 3));
    let again = alone_of(&core.snapshot().to_bytes());
    assert_eq!((again.epoch(), again.ended(), again.replica_digest()), (3, None, core.replica_digest()));
    // And it may end again.
    let last = ends(&core, 7);
    order(&mut core, vec![last]);
    assert_eq!((core.convert(), core.epoch()), (Some(conversion()), 4));
}

fn alone_of(state: &[u8]) -> Core {
    let mut core = alone();
    core.install(state).unwrap();
    core
}

#[test]
fn only_the_order_of_a_controller_that_is_alone_ends() {
    for (mut core, what) in [
        (member("c1"), "a group's"),
        (
            Core::new(settings("c1", &["c2"], 1), Box::new(signer()), vec![Arc::new(One)]),
            "of two with one key",
        ),
        (
            Core::new(
                CoreSettings { believes_one: false, ..settings("c1", &[], 1) },
                Box::new(signer()),
                vec![Arc::new(One)],
            ),
            "where none is believed",
        ),
    ] {
        let last = ends(&core, 1);
        assert!(matches!(outcomes(&order(&mut core, vec![last]))[..], [Outcome::Rejected(_)]), "{what}");
        assert_eq!(core.ended(), None);
    }
    let mut core = alone();
    for wrong in [
        Conversion { order: GroupOrder::Bft, ..conversion() },
        Conversion { member: 0, ..conversion() },
        Conversion { listen: "x".repeat(LISTEN_BYTES_MAX + 1), ..conversion() },
    ] {
        let last = said(&core, 1, EventBody::Converted(Box::new(wrong)));
        assert!(matches!(outcomes(&order(&mut core, vec![last]))[..], [Outcome::Rejected(_)]));
    }
    assert_eq!(core.ended(), None);
}

/// The steps by which three members make the group's key, and what they have then.
fn first_key() -> (Vec<Item>, Secrets) {
    let round = Round::fresh(label("d"), 1, members(1..=3)).unwrap();
    let (steps, _, secrets) = steps(&round, &BTreeMap::new());
    (steps.into_iter().map(|step| Item::Keys { now_ms: 2_000, step }).collect(), secrets)
}

#[test]
fn the_groups_own_key_takes_over_at_one_place_at_every_member() {
    let mut core = alone();
    let (joins, last) = (join(&core, 1, "h1"), ends(&core, 2));
    order(&mut core, vec![joins, last]);
    core.convert();
    let state = core.snapshot().to_bytes();
    let (mut one, mut two) = (member("c1"), member("c2"));
    one.install(&state).unwrap();
    two.install(&state).unwrap();
    two.step(Input::Lead(false), &mut Vec::new());
    let mut out = Vec::new();
    let digest = StateDigest::default();
    one.step(Input::Connected { actuator: label("h1"), session: 1, digest }, &mut out);
    let (items, secrets) = first_key();
    let (out_one, out_two) = (order(&mut one, items.clone()), order(&mut two, items));
    assert_eq!((one.epoch(), two.epoch()), (3, 3));
    assert_eq!(one.replica_digest(), two.replica_digest());
    assert_eq!(one.agreed_snapshot().to_bytes(), two.agreed_snapshot().to_bytes());
    assert_eq!(desired(&one), desired(&two));
    assert!(out_one.iter().any(|output| matches!(output, Output::Close { .. })), "actuators tell anew");
    let headers = |out: &[Output]| -> Vec<Arc<crate::core::DecidedHeader>> {
        let asked = out.iter().filter_map(|output| match output {
            Output::Sign(header) => Some(header.clone()),
            _ => None,
        });
        asked.collect()
    };
    let (asked, also) = (headers(&out_one), headers(&out_two));
    assert_eq!(
        asked.iter().map(|h| h.name()).collect::<Vec<_>>(),
        also.iter().map(|h| h.name()).collect::<Vec<_>>()
    );
    assert_eq!(asked.len(), 1);
    assert!(desired(&one).iter().all(|(_, header)| header.epoch == 3));

    // Its signature carries the word of the key before: who was given that one takes it.
    let message = encode(&asked[0].header);
    let shares: Vec<_> = secrets
        .values()
        .map(|secret| secret.sign(weir_trust::identity::Context::Batch, &message).unwrap())
        .collect();
    let signature = GroupSignature::Threshold(weir_trust::threshold::combine(&shares[..2]).unwrap());
    let signed = SignedHeader { header: asked[0].header.clone(), signature: one.proven(signature.clone()) };
    Verifier::new(label("d"), signer().group_key()).verify_header(&signed).unwrap();
    Verifier::new(label("d"), one.group_keys().key().unwrap()).verify_header(&signed).unwrap();
    one.step(Input::Signed { batch: asked[0].name(), signature }, &mut Vec::new());
    assert!(one.scheduler.held().all(|held| held.header.signature() == Some(&signed.signature)));

    // Also one that comes later and gets the state knows it.
    let mut three = member("c3");
    three.install(&one.snapshot().to_bytes()).unwrap();
    assert_eq!((three.epoch(), three.signs_as_before()), (3, false));
    assert_eq!(three.replica_digest(), one.replica_digest());
    let other = three
        .proven(one.proven(GroupSignature::Threshold(weir_trust::threshold::combine(&shares[1..]).unwrap())));
    assert_eq!(other, signed.signature, "whichever shares it is put together from");
}

#[test]
fn a_group_that_was_founded_as_one_has_nothing_of_this() {
    let mut core = member("c1");
    let joins = join(&core, 1, "h1");
    order(&mut core, vec![joins]);
    assert!(core.scheduler.held().all(|held| !held.is_signed()), "nobody signs before there is a key");
    order(&mut core, first_key().0);
    assert_eq!((core.epoch(), core.named.is_some()), (1, false));
}
