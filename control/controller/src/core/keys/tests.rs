//! Whose endorsements count: a list that follows the group in force, at every actuator.

use super::*;
use crate::core::scheduler::SchedulerSettings;
use crate::core::{Core, CoreSettings, Input, Item, Output, Signer};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_model::event::{ActuatorFacts, Event, EventBody, Role, SourceId};
use weir_model::session::StateDigest;
use weir_model::{Change, Entry, Key, Version};
use weir_store::{App, Decision, Rejection, View};
use weir_trust::identity::{KeyPair, sign_event};
use weir_trust::threshold::{Dealer, MemberSecret, Members, Player};

/// Plans nothing.
struct Idle;

impl App for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn decide(&self, _: &mut View<'_>, _: Version, _: u64, _: &Event) -> Result<Decision, Rejection> {
        Ok(Decision::default())
    }
}

pub(in crate::core) fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

pub(in crate::core) fn identity(member: u32) -> KeyPair {
    KeyPair::from_seed(&[member as u8; 32])
}

pub(in crate::core) fn members(ids: impl IntoIterator<Item = u32>) -> Members {
    ids.into_iter().map(|id| (id, identity(id).public())).collect()
}

pub(in crate::core) type Secrets = BTreeMap<u32, MemberSecret>;

/// The steps of a whole round, and what its players have afterwards.
pub(in crate::core) fn steps(round: &Round, shares: &Secrets) -> (Vec<KeyStep>, GroupPublic, Secrets) {
    let mut players: BTreeMap<u32, Player> =
        round.players().keys().map(|id| (*id, Player::new(round.clone(), *id).unwrap())).collect();
    let (mut steps, mut ledger) = (vec![KeyStep::Begin(round.clone())], Ledger::new(round.clone()));
    for id in round.dealers().keys() {
        let mut rng = weir_base::world::Rng::new(round.phase() * 100 + u64::from(*id));
        let mut randomness = |bytes: &mut [u8]| rng.fill(bytes);
        let mut dealer = Dealer::new(round.clone(), *id, shares.get(id), &mut randomness).unwrap();
        for (player, state) in &mut players {
            dealer
                .take_ack(&state.take(&dealer.deal(*player).unwrap(), &identity(*player)).unwrap())
                .unwrap();
        }
        let log = dealer.log(&identity(*id)).unwrap();
        ledger.add(&log).unwrap();
        steps.push(KeyStep::Log(log));
    }
    let secrets = players.iter().map(|(id, player)| (*id, player.finish(&ledger).unwrap().1)).collect();
    (steps, ledger.outcome().unwrap(), secrets)
}

fn settings() -> CoreSettings {
    let source = SourceId::of_controller(&label("c1"));
    let keys = [(source.clone(), identity(1).public())].into();
    let scheduler = SchedulerSettings { send_unsigned: true, ..SchedulerSettings::default() };
    CoreSettings { domain: label("d"), epoch: 1, source, keys, believes_one: true, scheduler }
}

fn core() -> Core {
    Core::new(settings(), Signer::Shares, vec![Arc::new(Idle)])
}

fn ordered(core: &mut Core, items: Vec<Item>) -> Vec<Output> {
    let mut out = Vec::new();
    core.step(Input::Ordered(items), &mut out);
    out
}

fn order_keys(core: &mut Core, steps: Vec<KeyStep>) -> Vec<Output> {
    ordered(core, steps.into_iter().map(|step| Item::Keys { now_ms: 1, step }).collect())
}

fn join(sequence: u64, name: &str) -> Item {
    let facts = ActuatorFacts {
        name: label(name),
        role: Role::Host,
        identity: [9; 32],
        underlay: "192.0.2.1".parse().unwrap(),
    };
    let event =
        Event { source: SourceId::of_controller(&label("c1")), sequence, body: EventBody::Joined(facts) };
    Item::Event { now_ms: 1, event: sign_event(&identity(1), &label("d"), event, None) }
}

/// Who is told what by these outputs, at which version; every batch with such an update is proven by the key only.
fn told(out: &[Output]) -> Vec<(String, u64, Option<ControllersEntry>)> {
    let mut told = Vec::new();
    for output in out {
        let Output::Prepared { header, updates } = output else { continue };
        for update in updates.iter().map(|proven| &proven.update).filter(|u| u.key == Key::Controllers) {
            assert!(header.by_key && header.signature().is_none());
            let entry = match &update.change {
                Change::Put(Entry::Controllers(entry)) => Some(entry.clone()),
                Change::Put(other) => panic!("{other:?}"),
                Change::Delete => None,
            };
            told.push((update.target.to_string(), update.version.0, entry));
        }
        let updates = out.iter().filter(|output| matches!(output, Output::SendUnsigned { .. }));
        assert_eq!(updates.count(), 0, "the group's signature is waited for");
    }
    told
}

#[test]
fn every_actuator_is_told_whose_endorsements_count_when_that_changes() {
    let mut core = core();
    let (first, group, secrets) =
        steps(&Round::fresh(label("d"), 1, members(1..=4)).unwrap(), &Secrets::new());
    assert_eq!(told(&order_keys(&mut core, first)), [], "nobody endorses yet");
    ordered(&mut core, vec![join(1, "h1")]);
    let digest = StateDigest::default();
    core.step(Input::Connected { actuator: label("h1"), session: 1, digest }, &mut Vec::new());

    let of = |phase, count| ControllersEntry { phase, threshold: 3, members: members(1..=count) };
    let out = order_keys(&mut core, vec![KeyStep::Endorse(true)]);
    assert_eq!(told(&out), [("h1".into(), 2, Some(of(1, 4)))]);
    assert_eq!(told(&order_keys(&mut core, vec![KeyStep::Endorse(true)])), [], "that is so already");

    // Who joins is told with what it gets first; who joins again knows it.
    assert_eq!(told(&ordered(&mut core, vec![join(2, "h2")])), [("h2".into(), 3, Some(of(1, 4)))]);
    assert_eq!(told(&ordered(&mut core, vec![join(3, "h2")])), []);

    // One member more: the list changes when the round is complete, and a state that is taken over knows it.
    let round = Round::reshare(label("d"), 2, group, members(1..=4), members(1..=5)).unwrap();
    let (mut again, ..) = steps(&round, &secrets);
    let rest = again.split_off(1);
    assert_eq!(told(&order_keys(&mut core, again)), []);
    let mut other = Core::new(settings(), Signer::Shares, vec![Arc::new(Idle)]);
    other.install(&core.snapshot().to_bytes()).unwrap();
    let wanted = [("h1".into(), 5, Some(of(2, 5))), ("h2".into(), 5, Some(of(2, 5)))];
    for core in [&mut core, &mut other] {
        assert_eq!(told(&order_keys(core, rest.clone())), wanted);
    }
    assert_eq!(core.replica_digest(), other.replica_digest());

    let out = order_keys(&mut core, vec![KeyStep::Endorse(false)]);
    assert_eq!(told(&out), [("h1".into(), 6, None), ("h2".into(), 6, None)]);
    assert_eq!(core.group_keys().controllers(), None);
}
