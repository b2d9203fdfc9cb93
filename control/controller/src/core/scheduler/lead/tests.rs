//! Three replicas that decide the same at different times, and actuators that answer all of them; who leads changes, and
//! who led may not know it yet.

use super::super::{Held, Scheduler, SchedulerSettings};
use crate::core::DecidedHeader;
use crate::core::Output;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use weir_base::world::Rng;
use weir_model::entry::Vni;
use weir_model::signed::{BatchHeader, GroupSignature, ProvenUpdate, Signature, SignedHeader, SignedUpdates};
use weir_model::update::Reason;
use weir_model::{Ack, Change, Dependency, Entry, Key, Label, Update, Version};
use weir_trust::gate::state_digest;

const REPLICAS: usize = 3;
const ACTUATORS: [&str; 2] = ["a", "b"];

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn held(target: &str, number: u8, version: u64, after: Vec<Dependency>) -> Held {
    let header =
        BatchHeader { domain: label("domain"), epoch: 1, index: Version(version), count: 1, root: [0; 32] };
    let signature = GroupSignature::Single(Signature { r: [0; 32], s: [0; 32] });
    let key = Key::Members { vni: Vni(u32::from(number) % 3), tag: label("t"), bucket: number };
    let change = Change::Put(Entry::Members(Vec::new()));
    let update =
        Update { target: label(target), key, version: Version(version), expected: Version::ZERO, change };
    let proven = Arc::new(ProvenUpdate { leaf: 0, path: Vec::new(), update });
    Held {
        header: Arc::new(DecidedHeader::signed(SignedHeader { header, signature })),
        proven,
        after: after.into(),
        bytes: 100,
    }
}

struct Replica {
    scheduler: Scheduler,
    /// How many of the decided updates it has.
    has: usize,
    /// Acks on their way to it.
    acks: VecDeque<(Label, u64, Ack)>,
}

struct World {
    replicas: Vec<Replica>,
    leader: usize,
    decided: Vec<Held>,
    in_force: BTreeMap<Label, BTreeMap<Key, Version>>,
    sessions: BTreeMap<(usize, Label), u64>,
    next_session: u64,
    /// Frames on their way, and who sent them.
    frames: Vec<(usize, Label, SignedUpdates)>,
    repeated: usize,
}

impl World {
    fn new() -> World {
        let replica = |number: usize| {
            let mut scheduler = Scheduler::new(SchedulerSettings::default());
            ACTUATORS.iter().for_each(|name| scheduler.add_target(&label(name)));
            scheduler.lead(number == 0, &mut Vec::new());
            Replica { scheduler, has: 0, acks: VecDeque::new() }
        };
        let mut world = World {
            replicas: (0..REPLICAS).map(replica).collect(),
            leader: 0,
            decided: Vec::new(),
            in_force: ACTUATORS.iter().map(|name| (label(name), BTreeMap::new())).collect(),
            sessions: BTreeMap::new(),
            next_session: 0,
            frames: Vec::new(),
            repeated: 0,
        };
        for replica in 0..REPLICAS {
            ACTUATORS.iter().for_each(|name| world.connect(replica, name));
        }
        world
    }

    fn with(&mut self, at: usize, act: impl FnOnce(&mut Scheduler, &mut Vec<Output>)) {
        let mut out = Vec::new();
        act(&mut self.replicas[at].scheduler, &mut out);
        self.replicas[at].scheduler.pump(&mut out);
        self.carry(at, out);
    }

    fn carry(&mut self, at: usize, out: Vec<Output>) {
        for output in out {
            match output {
                Output::Send { target, updates, .. } => {
                    assert!(self.replicas[at].scheduler.leads(), "a replica that follows sends nothing");
                    self.frames.push((at, target, updates));
                }
                Output::AskState { target, session } => {
                    let entries = self.in_force[&target].iter().map(|(key, version)| (key.clone(), *version));
                    let entries: Vec<_> = entries.collect();
                    let mut out = Vec::new();
                    let scheduler = &mut self.replicas[at].scheduler;
                    scheduler.state(&target, session, entries, true, &mut out);
                    scheduler.pump(&mut out);
                    self.carry(at, out);
                }
                // Who leads no more may be behind an actuator; nothing that it proposes is ordered.
                Output::Repair { .. } => assert_ne!(at, self.leader, "nothing needs a repair"),
                Output::Finished(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    fn connect(&mut self, replica: usize, name: &str) {
        self.next_session += 1;
        let session = self.next_session;
        self.sessions.insert((replica, label(name)), session);
        let entries = self.in_force[&label(name)].iter().map(|(key, version)| (key, *version));
        let digest = state_digest(entries);
        self.replicas[replica].acks.retain(|(target, ..)| *target != label(name));
        self.with(replica, |scheduler, out| scheduler.connected(&label(name), session, digest, out));
    }

    fn decide(&mut self, rng: &mut Rng) {
        let version = self.decided.len() as u64 + 1;
        let earlier = self.decided.iter().rev().take(4).filter(|_| rng.chance(1, 3));
        let after = earlier.map(|held| Dependency {
            target: held.node().0,
            key: held.node().1,
            version: held.version(),
            reason: Reason::PolicyBeforePort,
        });
        let after: Vec<Dependency> = after.collect();
        let name = ACTUATORS[rng.below(2) as usize];
        let number = rng.below(6) as u8;
        // An update that waits for its own key would wait for ever.
        let node = held(name, number, version, Vec::new()).node();
        let after = after.into_iter().filter(|one| (one.target.clone(), one.key.clone()) != node).collect();
        self.decided.push(held(name, number, version, after));
    }

    fn apply(&mut self, replica: usize) {
        let Some(held) = self.decided.get(self.replicas[replica].has).cloned() else { return };
        self.replicas[replica].has += 1;
        self.with(replica, |scheduler, out| {
            scheduler.decided(held.version());
            scheduler.insert(held, out);
        });
    }

    fn apply_all(&mut self, replica: usize) {
        while self.replicas[replica].has < self.decided.len() {
            self.apply(replica);
        }
    }

    /// A frame arrives; whoever has a session hears the answer.
    fn deliver(&mut self, number: usize) {
        let (_, target, updates) = self.frames.swap_remove(number);
        for proven in &updates.updates {
            let update = &proven.update;
            let found = self.in_force[&target].get(&update.key).copied();
            if found > Some(update.version) {
                // The gate refuses it; whoever sent it leads no more or hears the later ack.
                continue;
            }
            self.repeated += usize::from(found == Some(update.version));
            let held = &self.decided[update.version.0 as usize - 1];
            for after in held.after.iter() {
                let reached = self.in_force[&after.target].get(&after.key) >= Some(&after.version);
                assert!(
                    reached,
                    "{} {} is in force before {} {}",
                    update.key, update.version, after.key, after.version
                );
            }
            self.in_force.get_mut(&target).unwrap().insert(update.key.clone(), update.version);
            let ack = Ack { key: update.key.clone(), version: update.version, result: Ok(()) };
            for replica in 0..REPLICAS {
                let session = self.sessions[&(replica, target.clone())];
                self.replicas[replica].acks.push_back((target.clone(), session, ack.clone()));
            }
        }
    }

    fn hear(&mut self, replica: usize) {
        let Some((target, session, ack)) = self.replicas[replica].acks.pop_front() else { return };
        self.with(replica, |scheduler, out| scheduler.acks(&target, session, &[ack], out));
    }

    /// Another replica leads; who led hears of it now or later.
    fn elect(&mut self, replica: usize, heard: bool) {
        let before = std::mem::replace(&mut self.leader, replica);
        self.apply_all(replica);
        if heard && before != replica {
            self.with(before, |scheduler, out| scheduler.lead(false, out));
        }
        self.with(replica, |scheduler, out| scheduler.lead(true, out));
    }

    fn settle(&mut self) {
        for replica in 0..REPLICAS {
            self.apply_all(replica);
            let leads = replica == self.leader;
            self.with(replica, |scheduler, out| scheduler.lead(leads, out));
        }
        loop {
            while !self.frames.is_empty() {
                self.deliver(0);
            }
            let waiting: Vec<usize> =
                (0..REPLICAS).filter(|replica| !self.replicas[*replica].acks.is_empty()).collect();
            if waiting.is_empty() {
                return;
            }
            waiting.into_iter().for_each(|replica| self.hear(replica));
        }
    }

    /// All is in force, and a replica knows it.
    fn check_settled(&self, replica: usize) {
        for (target, in_force) in &self.in_force {
            let state = &self.replicas[replica].scheduler.targets[target];
            assert!(state.behind.is_empty(), "replica {replica} knows that all of {target} is acked");
            assert!(state.ahead.is_empty());
            let desired = state.slots.iter().map(|(key, slot)| (key.clone(), slot.desired().version()));
            assert_eq!(&desired.collect::<BTreeMap<_, _>>(), in_force);
        }
    }
}

#[test]
fn a_new_leader_sends_what_is_not_acked_and_nothing_else() {
    let mut world = World::new();
    for version in 1..=3 {
        world.decided.push(held("a", version as u8, version, Vec::new()));
    }
    world.apply_all(0);
    // The second replica hears of an ack before it decides the update.
    world.deliver(0);
    world.hear(1);
    assert_eq!(world.replicas[1].scheduler.counters.acks_ahead, 1);
    world.frames.clear();
    world.elect(1, true);
    let sent: Vec<Version> = world
        .frames
        .iter()
        .flat_map(|(.., updates)| updates.updates.iter().map(|one| one.update.version))
        .collect();
    let acked = world.in_force[&label("a")].values().copied().max().unwrap();
    assert_eq!(sent.len(), 2, "what the first leader's frame did not carry");
    assert!(!sent.contains(&acked));
    world.settle();
    (0..REPLICAS).for_each(|replica| world.check_settled(replica));
    assert_eq!(world.repeated, 0);
}

#[test]
fn what_nobody_desires_is_repaired_by_whoever_leads() {
    let mut scheduler = Scheduler::new(SchedulerSettings::default());
    scheduler.add_target(&label("a"));
    let mut out = Vec::new();
    scheduler.lead(false, &mut out);
    let unknown = held("a", 1, 1, Vec::new()).node().1;
    scheduler.decided(Version(5));
    let digest = state_digest(std::iter::once((&unknown, Version(3))));
    scheduler.connected(&label("a"), 1, digest, &mut out);
    scheduler.state(&label("a"), 1, vec![(unknown.clone(), Version(3))], true, &mut out);
    assert_eq!(out, [Output::AskState { target: label("a"), session: 1 }]);
    out.clear();
    scheduler.lead(true, &mut out);
    assert_eq!(out, [Output::Repair { target: label("a"), found: vec![(unknown, Version(3))] }]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn whoever_leads_all_is_in_force_once_in_the_order_of_dependencies(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
        for _ in 0..300 {
            let replica = rng.below(REPLICAS as u64) as usize;
            match rng.below(20) {
                0..=3 if world.decided.len() < 60 => world.decide(&mut rng),
                0..=8 => world.apply(replica),
                9..=12 if !world.frames.is_empty() => {
                    let number = rng.below(world.frames.len() as u64) as usize;
                    world.deliver(number);
                }
                9..=16 => world.hear(replica),
                17 => world.connect(replica, ACTUATORS[rng.below(2) as usize]),
                18 => world.elect(replica, rng.chance(1, 2)),
                // A stale leader hears of it.
                _ if replica != world.leader => world.with(replica, |scheduler, out| scheduler.lead(false, out)),
                _ => {}
            }
        }
        world.settle();
        world.check_settled(world.leader);
        // One that took itself for the leader may have missed something; it finds out when it leads.
        for replica in 0..REPLICAS {
            world.elect(replica, true);
            world.settle();
            world.check_settled(replica);
        }
    }
}
