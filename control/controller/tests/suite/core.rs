//! The core as a function of the order: replays, snapshots, and repairs.

use super::app::{self, TestApp, endpoint, event, facts, label, policy, transaction};
use std::sync::Arc;
use weir_controller::core::scheduler::SchedulerSettings;
use weir_controller::core::{Core, CoreSettings, Input, Item, Output, Signer};
use weir_model::event::{EventBody, Mutation, SourceId};
use weir_model::signed::SignedUpdates;
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_store::{Action, Batch, Condition, Operation, TableOptions, Write};
use weir_trust::batch::{GroupSigner, SingleSigner, Verifier, frames, sign_batch};
use weir_trust::gate::{Gate, take};
use weir_trust::identity::{KeyPair, sign_acks};

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

fn settings() -> CoreSettings {
    let scheduler = SchedulerSettings::default();
    let source = SourceId("controller/c1".into());
    CoreSettings { domain: label("d"), epoch: 1, source, keys: app::keys(), believes_one: true, scheduler }
}

fn core() -> Core {
    Core::new(settings(), Box::new(signer()), vec![Arc::new(TestApp)])
}

fn item(sequence: u64, body: EventBody) -> Item {
    Item::Event { now_ms: 1_000 * sequence, event: event("client", sequence, body) }
}

fn intent(sequence: u64, mutations: Vec<Mutation>) -> Item {
    item(sequence, EventBody::Intent(transaction(mutations)))
}

/// A few batches with joins, changes, duplicates and a repair.
fn batches() -> Vec<Vec<Item>> {
    let identity = KeyPair::from_seed(&[5; 32]).public();
    let join = |sequence, name: &str| item(sequence, EventBody::Joined(facts(name, identity)));
    vec![
        vec![join(1, "h1"), join(2, "h2"), join(3, "g1")],
        vec![intent(4, vec![endpoint("n1", "e1", "h1"), policy("n1", "deny")]), join(3, "g1")],
        vec![intent(5, vec![endpoint("n1", "e1", "h2")]), intent(6, vec![endpoint("n2", "e2", "h1")])],
        vec![
            Item::Repair {
                now_ms: 1,
                actuator: label("h1"),
                found: vec![
                    (Key::Gateways, Version(2)),
                    (Key::Policy { vni: app::vni(&label("n2")) }, Version(9)),
                ],
            },
            intent(7, vec![app::no_endpoint("n2", "e2")]),
        ],
        vec![item(8, EventBody::Removed { actuator: label("h2") })],
        vec![operations([create("t/a"), put("t/a", 500)]), item(9, EventBody::Joined(facts("h3", identity)))],
        vec![operations([put("t/a", 0)])],
        // The entry of before goes by the time of an event.
        vec![intent(10, vec![endpoint("n3", "e3", "h1")]), operations([])],
    ]
}

fn operations(operations: impl IntoIterator<Item = Operation>) -> Item {
    Item::Operations { now_ms: 1, origin: 7, ticket: 9, batch: Batch::once(operations) }
}

fn create(table: &str) -> Operation {
    Operation::CreateTable { table: table.into(), options: TableOptions::default() }
}

fn put(table: &str, ttl_ms: u64) -> Operation {
    let action = Action::Put { value: b"v".into(), ttl_ms };
    let key = ttl_ms.to_be_bytes().into();
    Operation::Write(Write { table: table.into(), key, condition: Condition::Always, action })
}

#[test]
fn operations_of_clients_have_their_places_among_events() {
    let mut core = core();
    let mut out = Vec::new();
    batches().into_iter().for_each(|batch| core.step(Input::Ordered(batch), &mut out));
    let mut versions = Vec::new();
    let mut answered = Vec::new();
    for output in out {
        match output {
            Output::Committed(change) => versions.push(change.version),
            Output::Applied { origin: 7, ticket: 9, outcomes } => answered.push(outcomes.len()),
            _ => {}
        }
    }
    assert!(versions.is_sorted() && versions.windows(2).all(|pair| pair[0] < pair[1]), "each its own");
    assert_eq!(answered, [2, 1, 0]);
    let keys: Vec<&[u8]> = core.store().scan("t/a", b"").map(|(key, _)| key).collect();
    assert_eq!(keys, [0_u64.to_be_bytes()], "the entry that was to last half a second is gone");
    assert_eq!(core.counters().operations, 3);
}

#[test]
fn a_replay_makes_the_same_bytes_from_any_snapshot() {
    let mut whole = core();
    let mut snapshots = vec![whole.snapshot().to_bytes()];
    for batch in batches() {
        whole.step(Input::Ordered(batch), &mut Vec::new());
        snapshots.push(whole.snapshot().to_bytes());
    }
    for (from, bytes) in snapshots.iter().enumerate() {
        let mut again =
            Core::from_snapshot(settings(), Box::new(signer()), vec![Arc::new(TestApp)], bytes).unwrap();
        for (batch, wanted) in batches()[from..].iter().zip(&snapshots[from + 1..]) {
            again.step(Input::Ordered(batch.clone()), &mut Vec::new());
            assert_eq!(&again.snapshot().to_bytes(), wanted, "from snapshot {from}");
        }
        assert_eq!(again.store().digest(), whole.store().digest());
    }
}

#[test]
fn replicas_agree_on_their_states_byte_for_byte_whoever_sends_and_signs() {
    let mut host = Host::new("h1");
    let (mut sends, mut follows) = (core(), Core::new(settings(), Signer::Shares, vec![Arc::new(TestApp)]));
    follows.step(Input::Lead(false), &mut Vec::new());
    let mut agreed = Vec::new();
    for batch in batches() {
        sends.step(Input::Ordered(batch.clone()), &mut Vec::new());
        host.reconcile(&mut sends);
        follows.step(Input::Ordered(batch), &mut Vec::new());
        agreed.push(sends.agreed_snapshot().to_bytes());
        assert_eq!(agreed.last(), Some(&follows.agreed_snapshot().to_bytes()));
    }
    assert_ne!(sends.snapshot().to_bytes(), follows.snapshot().to_bytes(), "what each has besides differs");
    // And one that takes such a state over goes on as they do.
    for (from, bytes) in agreed.iter().enumerate() {
        let mut again = Core::new(settings(), Signer::Shares, vec![Arc::new(TestApp)]);
        again.install(bytes).unwrap();
        for (batch, wanted) in batches()[from + 1..].iter().zip(&agreed[from + 1..]) {
            again.step(Input::Ordered(batch.clone()), &mut Vec::new());
            assert_eq!(&again.agreed_snapshot().to_bytes(), wanted, "from state {from}");
        }
        assert_eq!(again.replica_digest(), sends.replica_digest());
    }
}

struct Host {
    gate: Gate,
    identity: KeyPair,
    session: u64,
    _dir: tempfile::TempDir,
}

impl Host {
    fn new(name: &str) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let verifier = Verifier::new(label("d"), signer().group_key());
        let gate = Gate::open(label(name), verifier, &dir.path().join("gate")).unwrap();
        Host { gate, identity: KeyPair::from_seed(&[5; 32]), session: 0, _dir: dir }
    }

    fn name(&self) -> Label {
        self.gate.actuator().clone()
    }

    /// Connects and answers until the core is quiet; returns what it proposed.
    fn reconcile(&mut self, core: &mut Core) -> Vec<Item> {
        self.session += 1;
        let mut out = Vec::new();
        let (actuator, session, digest) = (self.name(), self.session, self.gate.digest());
        core.step(Input::Connected { actuator: actuator.clone(), session, digest }, &mut out);
        self.answer(core, out)
    }

    fn answer(&mut self, core: &mut Core, mut out: Vec<Output>) -> Vec<Item> {
        let (actuator, session) = (self.name(), self.session);
        let mut proposed = Vec::new();
        while !out.is_empty() {
            for output in std::mem::take(&mut out) {
                match output {
                    Output::AskState { .. } => {
                        let entries = self.gate.iter().map(|(key, found)| (key.clone(), found.version));
                        let (actuator, entries) = (actuator.clone(), entries.collect());
                        core.step(Input::State { actuator, session, entries, last: true }, &mut out);
                    }
                    Output::Send { target, updates, .. } if target == actuator => {
                        let acks = take(&mut self.gate, &updates, |_| Ok(())).unwrap();
                        let acks = sign_acks(&self.identity, &actuator, acks);
                        core.step(Input::Acks { session, acks }, &mut out);
                    }
                    Output::Repair { target, found } => {
                        proposed.push(Item::Repair { now_ms: 1, actuator: target, found });
                    }
                    _ => {}
                }
            }
        }
        proposed
    }
}

/// An update that the group signed once, but that this order does not know.
fn signed(name: &str, key: Key, version: u64, change: Change) -> SignedUpdates {
    let version = Version(version);
    let update = Update { target: label(name), key, version, expected: Version::ZERO, change };
    let (header, updates) = sign_batch(&signer(), &label("d"), 1, version, vec![update]).unwrap();
    frames(updates.into_iter().map(|update| (header.clone(), update)), 10).remove(0)
}

#[test]
fn what_nobody_desires_is_repaired_through_the_order() {
    let mut core = core();
    let mut out = Vec::new();
    for batch in batches().into_iter().take(3) {
        core.step(Input::Ordered(batch), &mut out);
    }
    let mut host = Host::new("h1");
    let proposed = host.reconcile(&mut core);
    assert!(proposed.is_empty());
    let policy = Key::Policy { vni: app::vni(&label("n2")) };
    let in_force = host.gate.get(&policy).unwrap().clone();

    // A key that nobody desires, and a newer value of one that is desired.
    let orphan = signed("h1", Key::Gateways, 2, Change::Put(Entry::Gateways(Vec::new())));
    take(&mut host.gate, &orphan, |_| Ok(())).unwrap();
    let strange = signed("h1", policy.clone(), in_force.version.0 + 1, Change::Delete);
    take(&mut host.gate, &strange, |_| Ok(())).unwrap();
    // Let the order pass the strange version, so that it can be repaired.
    core.step(Input::Ordered(vec![intent(20, vec![]), intent(21, vec![])]), &mut Vec::new());
    let (sent, signatures) = (core.scheduler().counters.sent, core.counters().signatures);
    let proposed = host.reconcile(&mut core);
    assert_eq!(proposed.len(), 1);
    assert_eq!(
        (core.scheduler().counters.sent, core.counters().signatures),
        (sent, signatures),
        "only the order signs"
    );

    let mut out = Vec::new();
    core.step(Input::Ordered(proposed), &mut out);
    assert!(host.answer(&mut core, out).is_empty());
    assert_eq!(host.gate.get(&Key::Gateways).unwrap().entry, None);
    assert_eq!(host.gate.get(&policy).unwrap().entry, in_force.entry);
    assert_eq!(core.counters().repairs, 2);

    let applied = host.gate.counters;
    let sent = core.scheduler().counters.sent;
    assert!(host.reconcile(&mut core).is_empty());
    // The delete of a port still waits for the gateway, so the host is as it was left.
    let counters = core.scheduler().counters;
    assert_eq!((host.gate.counters, counters.sent, counters.sessions_as_left), (applied, sent, 1));
}

#[test]
fn a_removed_actuator_is_forgotten_and_holds_up_nobody() {
    let mut core = core();
    let mut out = Vec::new();
    batches().into_iter().take(3).for_each(|batch| core.step(Input::Ordered(batch), &mut out));
    // The gateway's entry waits for the port on h2, which is not there.
    let mut gateway = Host::new("g1");
    gateway.reconcile(&mut core);
    let location = Key::Location { vni: app::vni(&label("n1")), address: app::address(&label("e1")) };
    assert_eq!(gateway.gate.get(&location), None);
    let mut out = Vec::new();
    let removed = item(8, EventBody::Removed { actuator: label("h2") });
    core.step(Input::Ordered(vec![removed]), &mut out);
    gateway.answer(&mut core, out);
    assert!(!core.scheduler().has_target(&label("h2")) && !core.joined().contains_key(&label("h2")));
    assert_eq!(core.scheduler().target_status(&label("g1")).unwrap().lag, 1, "e2 still waits for h1");
}

/// A core that was restored from a backup.
fn restored() -> Core {
    let mut core = core();
    let identity = KeyPair::from_seed(&[5; 32]).public();
    let batches = [
        item(1, EventBody::Joined(facts("h1", identity))),
        intent(4, vec![endpoint("n2", "e2", "h1")]),
        intent(19, vec![policy("n2", "deny")]),
    ];
    batches.into_iter().for_each(|item| core.step(Input::Ordered(vec![item]), &mut Vec::new()));
    core
}

/// What the restored order decides: at the version of what was lost, the other value.
fn other_history() -> Vec<Item> {
    vec![intent(30, vec![]), intent(31, vec![policy("n2", "allow")])]
}

fn policy_of(host: &Host) -> Option<Entry> {
    host.gate.get(&Key::Policy { vni: app::vni(&label("n2")) }).unwrap().entry.clone()
}

fn is_in_sync(core: &Core) -> bool {
    let status = core.scheduler().target_status(&label("h1")).unwrap();
    status.synced && status.lag == 0
}

/// The policy of a backup's time, of what followed and was lost, and of what the restored order decided at the same version.
fn forked(host: &mut Host) -> (Core, Option<Entry>) {
    let mut before = restored();
    host.reconcile(&mut before);
    let mut out = Vec::new();
    let lost = vec![intent(20, vec![policy("n2", "allow")]), intent(21, vec![policy("n2", "deny")])];
    before.step(Input::Ordered(lost), &mut out);
    host.answer(&mut before, out);
    let revoked = policy_of(host);
    let at = |core: &Core| {
        core.scheduler()
            .desired(&label("h1"), &Key::Policy { vni: app::vni(&label("n2")) })
            .unwrap()
            .version()
    };
    assert!(revoked.is_some() && is_in_sync(&before));
    let mut other = restored();
    other.step(Input::Ordered(other_history()), &mut Vec::new());
    assert_eq!(at(&before), at(&other), "the same version");
    (restored(), revoked)
}

#[test]
fn other_values_at_the_same_versions_are_found_told_and_decided_anew() {
    let mut host = Host::new("h1");
    let (mut core, revoked) = forked(&mut host);
    core.step(Input::Ordered(other_history()), &mut Vec::new());
    let version = core.store().version();
    assert!(host.reconcile(&mut core).is_empty(), "nothing is certain yet");
    assert!(!is_in_sync(&core) && policy_of(&host) == revoked);
    // It is asked again, so that a host that changed in the midst of it does no harm.
    let mut out = Vec::new();
    core.step(Input::Tick { now_ms: 999 }, &mut out);
    assert!(out.is_empty());
    core.step(Input::Tick { now_ms: 1_000 }, &mut out);
    assert!(matches!(&out[..], [Output::Close { .. }]), "{out:?}");
    let proposed = host.reconcile(&mut core);
    assert_eq!(proposed.len(), 1);
    assert!(!is_in_sync(&core));
    let counters = core.scheduler().counters;
    assert!(counters.compared_forked > 0 && counters.sessions_doubted == 1, "{counters:?}");
    let mut out = Vec::new();
    core.step(Input::Ordered(proposed), &mut out);
    assert!(core.store().version() > version);
    assert!(host.answer(&mut core, out).is_empty());
    assert!(is_in_sync(&core) && policy_of(&host).is_some() && policy_of(&host) != revoked);
    // And that is all: it has what is desired, by its digest.
    let in_sync = core.scheduler().counters.sessions_in_sync;
    assert!(host.reconcile(&mut core).is_empty());
    assert_eq!(core.scheduler().counters.sessions_in_sync, in_sync + 1);
}

#[test]
fn another_value_at_a_version_that_is_sent_is_no_ack_for_it() {
    let mut host = Host::new("h1");
    let (mut core, revoked) = forked(&mut host);
    assert!(host.reconcile(&mut core).is_empty(), "the order may only be behind");
    let mut out = Vec::new();
    core.step(Input::Ordered(other_history()), &mut out);
    let proposed = host.answer(&mut core, out);
    assert_eq!(proposed.len(), 1);
    assert!(!is_in_sync(&core) && policy_of(&host) == revoked);
    assert_eq!(core.scheduler().counters.compared_forked, 1);
    let mut out = Vec::new();
    core.step(Input::Ordered(proposed), &mut out);
    assert!(host.answer(&mut core, out).is_empty());
    assert!(is_in_sync(&core) && policy_of(&host) != revoked);
}
