use super::*;
use crate::core::DecidedHeader;
use proptest::prelude::*;
use std::sync::Arc;
use weir_model::entry::Vni;
use weir_model::signed::{BatchHeader, GroupSignature, ProvenUpdate, Signature, SignedHeader, SignedUpdates};
use weir_model::update::Reason;
use weir_model::{Change, Entry, Update};
use weir_trust::gate::state_digest;

mod line;
mod planes;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key(network: u32, number: u8) -> Key {
    Key::Members { vni: Vni(network), tag: label("t"), bucket: number }
}

fn after(target: &str, key: Key, version: u64) -> Dependency {
    Dependency { target: label(target), key, version: Version(version), reason: Reason::PolicyBeforePort }
}

/// An update as the core would give it; the leaf is its place in its version.
fn held(target: &str, key: Key, version: u64, leaf: u32, delete: bool, after: Vec<Dependency>) -> Held {
    let header =
        BatchHeader { domain: label("domain"), epoch: 1, index: Version(version), count: 1, root: [0; 32] };
    let signature = GroupSignature::Single(Signature { r: [0; 32], s: [0; 32] });
    let change = if delete { Change::Delete } else { Change::Put(Entry::Members(Vec::new())) };
    let update =
        Update { target: label(target), key, version: Version(version), expected: Version::ZERO, change };
    Held {
        header: Arc::new(DecidedHeader::signed(SignedHeader { header, signature })),
        proven: Arc::new(ProvenUpdate { leaf, path: Vec::new(), update }),
        after: after.into(),
        bytes: 100,
    }
}

/// An actuator that applies what is newer, and what is in flight to it.
#[derive(Default)]
struct Actuator {
    in_force: BTreeMap<Key, Version>,
    inbox: Vec<SignedUpdates>,
    session: u64,
    /// Updates that came though the key had that version or a later one.
    repeated: usize,
}

struct World {
    scheduler: Scheduler,
    actuators: BTreeMap<Label, Actuator>,
    /// What every decided update waits for.
    after: BTreeMap<(Node, Version), Vec<Dependency>>,
    violations: Vec<String>,
    /// What came into force, everywhere, in the order in which it did.
    applied: Vec<(Version, Node)>,
    sends: Vec<Node>,
    finished: BTreeSet<Version>,
    repairs: Vec<(Label, Vec<(Key, Version)>)>,
    refused: Vec<(Key, Version)>,
    now_ms: u64,
}

impl World {
    fn new(settings: SchedulerSettings, actuators: &[&str]) -> World {
        let mut scheduler = Scheduler::new(settings);
        let actuators: BTreeMap<Label, Actuator> =
            actuators.iter().map(|name| (label(name), Actuator::default())).collect();
        actuators.keys().for_each(|name| scheduler.add_target(name));
        World {
            scheduler,
            actuators,
            after: BTreeMap::new(),
            violations: Vec::new(),
            applied: Vec::new(),
            sends: Vec::new(),
            finished: BTreeSet::new(),
            repairs: Vec::new(),
            refused: Vec::new(),
            now_ms: 0,
        }
    }

    fn with(mode: Mode, actuators: &[&str]) -> World {
        World::new(SchedulerSettings { mode, ..SchedulerSettings::default() }, actuators)
    }

    fn insert(&mut self, held: Held) {
        self.after.insert((held.node(), held.version()), held.after.to_vec());
        self.scheduler.decided(self.scheduler.decided.max(held.version()));
        let mut out = Vec::new();
        self.scheduler.insert(held, &mut out);
        self.carry(out);
    }

    fn pump(&mut self) {
        let mut out = Vec::new();
        self.scheduler.pump(&mut out);
        self.carry(out);
    }

    fn carry(&mut self, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send { target, session, updates } => {
                    let sent = updates.updates.iter().map(|p| (target.clone(), p.update.key.clone()));
                    self.sends.extend(sent);
                    let actuator = self.actuators.get_mut(&target).unwrap();
                    assert_eq!(actuator.session, session);
                    actuator.inbox.push(updates);
                }
                Output::AskState { target, session } => {
                    let state = &self.actuators[&target].in_force;
                    let entries: Vec<_> = state.iter().map(|(k, v)| (k.clone(), *v)).collect();
                    let middle = entries.len() / 2;
                    let mut out = Vec::new();
                    let (first, rest) = entries.split_at(middle);
                    self.scheduler.state(&target, session, first.to_vec(), false, &mut out);
                    self.scheduler.state(&target, session, rest.to_vec(), true, &mut out);
                    self.carry(out);
                }
                Output::Finished(version) => assert!(self.finished.insert(version), "{version} ended twice"),
                Output::Repair { target, found } => self.repairs.push((target, found)),
                Output::Refused { key, version, .. } => self.refused.push((key, version)),
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    fn connect(&mut self, name: &str) {
        let name = label(name);
        let actuator = self.actuators.get_mut(&name).unwrap();
        actuator.session += 1;
        actuator.inbox.clear();
        let digest = state_digest(actuator.in_force.iter().map(|(k, v)| (k, *v)));
        let session = actuator.session;
        let mut out = Vec::new();
        self.scheduler.connected(&name, session, digest, &mut out);
        self.carry(out);
        self.pump();
    }

    fn disconnect(&mut self, name: &str) {
        let session = self.actuators[&label(name)].session;
        self.actuators.get_mut(&label(name)).unwrap().inbox.clear();
        self.scheduler.disconnected(&label(name), session);
    }

    fn connect_all(&mut self) {
        let names: Vec<Label> = self.actuators.keys().cloned().collect();
        names.iter().for_each(|name| self.connect(name.as_str()));
    }

    /// Applies and acks frame `number` of an actuator.
    fn deliver(&mut self, name: &Label, number: usize) {
        let actuator = self.actuators.get_mut(name).unwrap();
        let frame = actuator.inbox.remove(number);
        let session = actuator.session;
        let mut acks = Vec::new();
        for proven in &frame.updates {
            let update = &proven.update;
            self.check(name, update);
            let in_force =
                self.actuators.get_mut(name).unwrap().in_force.entry(update.key.clone()).or_default();
            let result =
                if *in_force > update.version { Err(Refusal::Stale { in_force: *in_force }) } else { Ok(()) };
            let repeated = usize::from(*in_force >= update.version);
            if *in_force < update.version {
                self.applied.push((update.version, (name.clone(), update.key.clone())));
            }
            *in_force = (*in_force).max(update.version);
            self.actuators.get_mut(name).unwrap().repeated += repeated;
            acks.push(Ack { key: update.key.clone(), version: update.version, result });
        }
        let mut out = Vec::new();
        self.scheduler.acks(name, session, &acks, &mut out);
        self.carry(out);
        self.pump();
    }

    fn check(&mut self, name: &Label, update: &Update) {
        let node = (name.clone(), update.key.clone());
        for dependency in &self.after[&(node, update.version)] {
            let there = self.actuators[&dependency.target].in_force.get(&dependency.key);
            if there.copied().unwrap_or_default() < dependency.version {
                self.violations.push(format!(
                    "{}@{} before {}@{}",
                    update.key, update.version, dependency.key, dependency.version
                ));
            }
        }
    }

    /// Delivers everything until nothing moves.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let next = self.actuators.iter().find(|(_, a)| !a.inbox.is_empty()).map(|(name, _)| name.clone());
            match next {
                Some(name) => self.deliver(&name, 0),
                None => return,
            }
        }
        panic!("it does not settle");
    }

    fn assert_converged(&self) {
        for (name, actuator) in &self.actuators {
            let target = &self.scheduler.targets[name];
            for (key, slot) in &target.slots {
                assert_eq!(
                    actuator.in_force.get(key),
                    Some(&slot.desired().version()),
                    "{name} {key}: {:?}",
                    self.scheduler.waiting(10)
                );
                assert_eq!(slot.held.len(), 1);
            }
            assert!(target.behind.is_empty() && target.in_flight.is_empty());
            assert_eq!((target.in_flight_bytes, target.queue.len()), (0, 0));
            assert_eq!(target.desired_sums, target.acked_sums);
        }
        assert!(self.scheduler.line.is_empty() && self.scheduler.waiting.is_empty());
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// One event's plan: (target, network, key, delete, dependency choices).
    Plan(Vec<(u8, u8, u8, bool, Vec<u16>)>),
    Deliver(u8, u8),
    Connect(u8),
    Disconnect(u8),
    Lose(u8),
    Tick,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let update = (0..3_u8, 0..2_u8, 0..4_u8, any::<bool>(), proptest::collection::vec(any::<u16>(), 0..4));
    let step = prop_oneof![
        4 => proptest::collection::vec(update, 1..6).prop_map(Step::Plan),
        6 => (0..3_u8, any::<u8>()).prop_map(|(a, b)| Step::Deliver(a, b)),
        1 => (0..3_u8).prop_map(Step::Connect),
        1 => (0..3_u8).prop_map(Step::Disconnect),
        1 => (0..3_u8).prop_map(Step::Lose),
        1 => Just(Step::Tick),
    ];
    proptest::collection::vec(step, 1..60)
}

/// The updates of one event: each may wait for earlier ones of the plan and for anything decided before.
fn plan(world: &World, version: u64, choices: &[(u8, u8, u8, bool, Vec<u16>)]) -> Vec<Held> {
    let mut plan: Vec<Held> = Vec::new();
    for (target, network, number, delete, picks) in choices {
        let (target, key) = (NAMES[usize::from(*target)], key(u32::from(*network) + 1, *number));
        if plan.iter().any(|held| held.node() == (label(target), key.clone())) {
            continue;
        }
        let before = plan.iter().map(|held| (held.node(), held.version()));
        let possible: Vec<(Node, Version)> = world.after.keys().cloned().chain(before).collect();
        let dependencies = picks.iter().filter(|_| !possible.is_empty()).map(|pick| {
            let ((target, key), version) = possible[usize::from(*pick) % possible.len()].clone();
            Dependency { target, key, version, reason: Reason::PolicyBeforePort }
        });
        plan.push(held(target, key, version, plan.len() as u32, *delete, dependencies.collect()));
    }
    plan
}

fn run(mode: Mode, steps: &[Step]) -> World {
    let settings = SchedulerSettings { mode, window: 3, resend_ms: 10, ..SchedulerSettings::default() };
    let mut world = World::new(settings, &NAMES);
    world.connect_all();
    let mut version = 0;
    for step in steps {
        match step {
            Step::Plan(choices) => {
                version += 1;
                for held in plan(&world, version, choices) {
                    world.insert(held);
                }
                world.pump();
            }
            Step::Deliver(name, number) => {
                let name = label(NAMES[usize::from(*name)]);
                let waiting = world.actuators[&name].inbox.len();
                if waiting > 0 {
                    world.deliver(&name, usize::from(*number) % waiting);
                }
            }
            Step::Connect(name) => world.connect(NAMES[usize::from(*name)]),
            Step::Disconnect(name) => world.disconnect(NAMES[usize::from(*name)]),
            Step::Lose(name) => {
                world.actuators.get_mut(&label(NAMES[usize::from(*name)])).unwrap().inbox.clear();
            }
            Step::Tick => {
                world.now_ms += 11;
                let mut out = Vec::new();
                world.scheduler.tick(world.now_ms, &mut out);
                world.carry(out);
                world.pump();
            }
        }
    }
    world.connect_all();
    world.settle();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_before_its_dependencies_and_always_in_the_end(steps in steps()) {
        for mode in [Mode::Dependent, Mode::Linear] {
            let world = run(mode, &steps);
            prop_assert_eq!(&world.violations, &Vec::<String>::new());
            world.assert_converged();
            if mode == Mode::Linear {
                prop_assert_eq!(world.not_whole(), None);
                prop_assert_eq!(world.scheduler.line_status(), None);
            }
            let decided: BTreeSet<Version> = world.after.keys().map(|(_, version)| *version).collect();
            prop_assert_eq!(&world.finished, &decided);
        }
    }
}

#[test]
fn the_checker_catches_a_scheduler_that_ignores_dependencies() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let caught = (0..50)
        .map(|_| steps().new_tree(&mut runner).unwrap().current())
        .filter(|steps| !run(Mode::None, steps).violations.is_empty())
        .count();
    assert!(caught > 10, "the checker saw only {caught} of 50 wrong runs");
}

#[test]
fn an_older_update_is_kept_when_dropping_it_would_let_two_wait_for_each_other() {
    let mut world = World::with(Mode::Dependent, &["a", "b"]);
    world.insert(held("a", key(1, 1), 1, 0, false, vec![]));
    world.insert(held("b", key(1, 2), 1, 1, false, vec![after("a", key(1, 1), 1)]));
    world.insert(held("a", key(1, 1), 2, 0, true, vec![after("b", key(1, 2), 1)]));
    assert_eq!((world.scheduler.counters.kept_beside, world.scheduler.counters.superseded), (1, 0));
    world.connect_all();
    world.settle();
    world.assert_converged();
    assert_eq!(world.sends.len(), 3);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn a_newer_update_replaces_unsent_older_ones() {
    let mut world = World::with(Mode::Dependent, &["a"]);
    for version in 1..=100 {
        world.insert(held("a", key(1, 1), version, 0, false, vec![]));
    }
    assert_eq!(world.scheduler.counters.superseded, 99);
    world.connect_all();
    world.settle();
    assert_eq!((world.sends.len(), world.finished.len()), (1, 100));
}

#[test]
fn networks_take_turns() {
    let mut world = World::with(Mode::Dependent, &["a"]);
    world.connect_all();
    for number in 0..10_000_u64 {
        let key = Key::Members { vni: Vni(1), tag: label(&format!("t{number}")), bucket: 0 };
        world.insert(held("a", key, number + 1, 0, false, vec![]));
    }
    world.pump();
    let window = world.scheduler.settings.window;
    assert_eq!(world.sends.len(), window, "the window bounds what is in flight");
    for number in 0..50 {
        world.insert(held("a", key(2, number), 10_001 + u64::from(number), 0, false, vec![]));
    }
    world.settle();
    let last = world.sends.iter().rposition(|(_, key)| key.vni() == Some(Vni(2))).unwrap();
    assert!(last < window + 2 * 50, "network 2 was held up until send {last}");
    world.assert_converged();
}

#[test]
fn an_absent_actuator_holds_up_only_what_waits_for_it() {
    let mut world = World::with(Mode::Dependent, &["a", "b"]);
    world.connect("a");
    world.insert(held("b", key(1, 1), 1, 0, false, vec![]));
    world.insert(held("a", key(1, 2), 1, 1, false, vec![after("b", key(1, 1), 1)]));
    world.insert(held("a", key(1, 3), 1, 2, false, vec![]));
    world.pump();
    world.settle();
    let waiting = world.scheduler.waiting(10);
    assert_eq!(waiting[0].state, WaitState::Dependencies(vec![after("b", key(1, 1), 1)]));
    assert_eq!(waiting[1].state, WaitState::Disconnected);
    assert_eq!(world.scheduler.waiting_of_each(1, 10), waiting);
    assert_eq!(world.scheduler.waiting_of_each(1, 1), waiting[..1]);
    assert_eq!(world.scheduler.reached(Version(1)), Reached::Waiting(2));
    let mut out = Vec::new();
    world.scheduler.remove_target(&label("b"), &mut out);
    world.actuators.remove(&label("b"));
    world.scheduler.pump(&mut out);
    let sent: usize = out.iter().filter(|output| matches!(output, Output::Send { .. })).count();
    assert_eq!(sent, 1, "what waits for a removed actuator goes");
}

#[test]
fn a_receiver_is_waited_for_as_long_as_it_has_a_session() {
    let mut world = World::with(Mode::Dependent, &["gateway", "host"]);
    world.connect_all();
    world.pump();
    let wait = Dependency { reason: Reason::ReceiverFirst, ..after("gateway", key(1, 0), 1) };
    world.insert(held("gateway", key(1, 0), 1, 0, false, Vec::new()));
    world.insert(held("host", key(1, 1), 1, 1, false, vec![wait.clone()]));
    world.pump();
    assert_eq!(world.sends, [(label("gateway"), key(1, 0))], "the receiver first");
    world.disconnect("gateway");
    world.pump();
    assert_eq!(world.sends.last(), Some(&(label("host"), key(1, 1))), "one that is gone is not waited for");
    world.deliver(&label("host"), 0);
    world.connect("gateway");
    world.pump();
    world.deliver(&label("gateway"), 0);
    // Another reason is waited for however long it takes.
    world.disconnect("gateway");
    world.insert(held("gateway", key(1, 2), 2, 0, false, Vec::new()));
    world.insert(held("host", key(1, 3), 2, 1, false, vec![after("gateway", key(1, 2), 2)]));
    world.pump();
    assert_ne!(world.sends.last(), Some(&(label("host"), key(1, 3))));
}

#[test]
fn nothing_is_sent_to_an_actuator_that_has_everything() {
    let mut world = World::with(Mode::Dependent, &["a"]);
    world.connect("a");
    for number in 0..100 {
        world.insert(held("a", key(1, number), 1, u32::from(number), number % 3 == 0, vec![]));
    }
    world.pump();
    world.settle();
    let sent = world.scheduler.counters.sent;
    for _ in 0..5 {
        world.connect("a");
    }
    assert_eq!((world.scheduler.counters.sent, world.scheduler.counters.sessions_in_sync), (sent, 6));
    let actuator = world.actuators.get_mut(&label("a")).unwrap();
    actuator.in_force.remove(&key(1, 7));
    actuator.in_force.insert(key(9, 9), Version(1));
    world.connect("a");
    world.settle();
    let counters = world.scheduler.counters;
    assert_eq!((counters.sent, counters.compared_same, counters.compared_different), (sent + 1, 99, 1));
    assert_eq!(world.repairs, [(label("a"), vec![(key(9, 9), Version(1))])]);
    assert_eq!(world.actuators[&label("a")].repeated, 0, "nothing that was in force was sent");
}

#[test]
fn a_key_of_another_order_is_counted_and_decided_anew_unless_it_is_out_of_reach() {
    let mut world = World::with(Mode::Dependent, &["a"]);
    let actuator = world.actuators.get_mut(&label("a")).unwrap();
    actuator.in_force.insert(key(9, 9), Version(1_000));
    actuator.in_force.insert(key(9, 8), Version(u64::MAX));
    world.connect("a");
    assert_eq!(world.scheduler.counters.compared_ahead, 2);
    assert!(world.repairs.is_empty(), "it may be behind");
    let mut out = Vec::new();
    world.scheduler.tick(world.now_ms + super::reconcile::BEYOND_MS, &mut out);
    world.carry(out);
    assert_eq!(world.repairs, [(label("a"), vec![(key(9, 9), Version(1_000))])]);
}

#[test]
fn tombstones_are_bounded_and_forgotten_ones_do_no_harm() {
    let settings = SchedulerSettings { tombstones_max: 10, ..SchedulerSettings::default() };
    let mut world = World::new(settings, &["a"]);
    world.connect("a");
    for version in 1..=100_u64 {
        world.insert(held("a", key(1, version as u8), version, 0, true, vec![]));
        world.pump();
        world.settle();
    }
    let status = world.scheduler.target_status(&label("a")).unwrap();
    assert!(status.tombstones <= 20, "{} tombstones", status.tombstones);
    // The actuator forgets all of its own: after the next comparison both agree.
    world.actuators.get_mut(&label("a")).unwrap().in_force.clear();
    world.connect("a");
    world.connect("a");
    assert_eq!(world.scheduler.counters.sessions_in_sync, 2);
    assert_eq!(world.scheduler.target_status(&label("a")).unwrap().tombstones, 0);
    assert_eq!(world.sends.len(), 100);
}

#[test]
fn a_delete_that_the_floor_of_an_actuator_covers_is_forgotten() {
    let mut world = World::with(Mode::Dependent, &["a"]);
    world.insert(held("a", key(1, 1), 5, 0, true, vec![]));
    world.scheduler.targets.get_mut(&label("a")).unwrap().slots.get_mut(&key(1, 1)).unwrap().absent = true;
    world.connect("a");
    let session = world.actuators[&label("a")].session;
    let refusal = Refusal::Stale { in_force: Version(5) };
    let ack = Ack { key: key(1, 1), version: Version(5), result: Err(refusal) };
    let mut out = Vec::new();
    world.scheduler.acks(&label("a"), session, &[ack], &mut out);
    assert_eq!(world.scheduler.target_status(&label("a")).unwrap().tombstones, 0);
    assert!(out.iter().all(|output| matches!(output, Output::Finished(_))), "{out:?}");
}

#[test]
fn a_refusal_is_reported_once_and_the_update_tried_again() {
    let mut world = World::with(Mode::Dependent, &["a"]);
    world.connect("a");
    world.insert(held("a", key(1, 1), 1, 0, false, vec![]));
    world.pump();
    let session = world.actuators[&label("a")].session;
    let ack = |result| Ack { key: key(1, 1), version: Version(1), result };
    for round in 1..=3 {
        let mut out = Vec::new();
        let refused = ack(Err(Refusal::Failed("no such device".into())));
        world.scheduler.acks(&label("a"), session, &[refused], &mut out);
        world.carry(out);
        assert_eq!(world.refused, [(key(1, 1), Version(1))]);
        assert!(matches!(world.scheduler.waiting(1)[0].state, WaitState::Refused(_)));
        let mut out = Vec::new();
        world.scheduler.tick(round * 31_000, &mut out);
        world.scheduler.pump(&mut out);
        world.carry(out);
        assert_eq!(world.sends.len(), 1 + round as usize);
    }
    let mut out = Vec::new();
    world.scheduler.acks(&label("a"), session, &[ack(Ok(()))], &mut out);
    assert_eq!(out, [Output::Finished(Version(1))]);
}

#[test]
fn acks_of_unknown_versions_and_old_sessions_change_nothing() {
    let mut world = World::with(Mode::Dependent, &["a"]);
    world.connect("a");
    world.insert(held("a", key(1, 1), 1, 0, false, vec![]));
    world.pump();
    let mut out = Vec::new();
    let ack = |version| Ack { key: key(1, 1), version: Version(version), result: Ok(()) };
    world.scheduler.acks(&label("a"), 1, &[ack(7)], &mut out);
    world.scheduler.acks(&label("a"), 77, &[ack(1)], &mut out);
    assert_eq!((world.scheduler.counters.acks_unknown, world.scheduler.counters.stale_sessions), (1, 1));
    assert_eq!(world.scheduler.reached(Version(1)), Reached::Waiting(1));
}

#[test]
fn only_so_many_updates_are_followed() {
    let settings = SchedulerSettings { followed_max: 10, ..SchedulerSettings::default() };
    let mut world = World::new(settings, &["a"]);
    for version in 1..=100_u64 {
        world.insert(held("a", key(1, version as u8 % 7), version, 0, false, vec![]));
    }
    assert_eq!(world.scheduler.reached(Version(5)), Reached::TooOld);
    assert_eq!(world.scheduler.reached(Version(100)), Reached::Waiting(1));
    assert_eq!(world.scheduler.reached(Version(101)), Reached::NotDecided);
    world.connect("a");
    world.settle();
    assert_eq!(world.scheduler.reached(Version(100)), Reached::All);
}
