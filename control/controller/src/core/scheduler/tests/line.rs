//! Linear mode: events are whole, one after the other; what holds the line is told, and lets go.

use super::*;
use weir_base::world::Rng;

impl World {
    /// The oracle: what came into force must be all updates of the first event, then all of the second, and so on, none left out.
    /// Gives what is not so.
    pub(super) fn not_whole(&self) -> Option<String> {
        let mut decided: BTreeMap<Version, BTreeSet<&Node>> = BTreeMap::new();
        for (node, version) in self.after.keys() {
            decided.entry(*version).or_default().insert(node);
        }
        let mut events = decided.into_iter();
        let mut left: (Version, BTreeSet<&Node>) = (Version::ZERO, BTreeSet::new());
        for (version, node) in &self.applied {
            if left.1.is_empty() {
                left = events.next()?;
            }
            if left.0 != *version || !left.1.remove(node) {
                return Some(format!("{node:?} at {version} while {} has {:?} to come", left.0, left.1));
            }
        }
        None
    }

    fn line(&self) -> (String, u64, usize) {
        let line = self.scheduler.line_status().unwrap();
        (line.target.to_string(), line.version.0, line.length)
    }

    /// An actuator refuses what was sent to it.
    fn refuse(&mut self, name: &str, key: &Key, version: u64) {
        let actuator = self.actuators.get_mut(&label(name)).unwrap();
        actuator.inbox.clear();
        let (session, result) = (actuator.session, Err(Refusal::Failed("no".into())));
        let ack = Ack { key: key.clone(), version: Version(version), result };
        let mut out = Vec::new();
        self.scheduler.acks(&label(name), session, &[ack], &mut out);
        self.carry(out);
        self.pump();
    }

    /// Another replica that decided the same takes the lead: it hears no more of what was acked than actuators tell.
    fn replaced(&mut self) {
        let settings = self.scheduler.settings;
        let mut held: Vec<Held> = self.scheduler.held().cloned().collect();
        let decided = self.scheduler.decided;
        let mut next = Scheduler::new(settings);
        self.actuators.keys().for_each(|name| next.add_target(name));
        held.sort_by_key(Held::place);
        held.into_iter().for_each(|held| next.restore(held));
        next.decided(decided);
        self.scheduler = next;
        self.finished.clear();
        for actuator in self.actuators.values_mut() {
            actuator.inbox.clear();
        }
    }
}

#[test]
fn one_update_is_under_way() {
    let mut world = World::with(Mode::Linear, &["a", "b"]);
    for version in 1..=20 {
        let name = NAMES[version as usize % 2];
        world.insert(held(name, key(1, version as u8), version, 0, false, vec![]));
    }
    world.connect_all();
    let mut order = Vec::new();
    for _ in 0..20 {
        let under_way: Vec<Label> =
            world.actuators.iter().filter(|(_, a)| !a.inbox.is_empty()).map(|(n, _)| n.clone()).collect();
        assert_eq!(under_way.len(), 1);
        order.push(world.actuators[&under_way[0]].inbox[0].updates[0].update.version.0);
        world.deliver(&under_way[0], 0);
    }
    assert_eq!(order, (1..=20).collect::<Vec<_>>());
}

/// Events over few keys, so that most are decided anew before the last one is in force, while sessions break, acks are lost and another
/// replica takes the lead: the states are a prefix of whole events whenever something is acked.
#[test]
fn events_are_whole_whatever_happens() {
    for seed in 0..std::env::var("WEIR_SIM_SEEDS").map_or(200, |seeds| seeds.parse().unwrap()) {
        let mut rng = Rng::new(seed);
        let settings =
            SchedulerSettings { mode: Mode::Linear, resend_ms: 10, ..SchedulerSettings::default() };
        let mut world = World::new(settings, &NAMES);
        world.connect_all();
        let mut version = 0;
        for _ in 0..300 {
            let name = NAMES[rng.below(3) as usize];
            match rng.below(16) {
                0..5 => {
                    version += 1;
                    let mut event: Vec<Held> = Vec::new();
                    for leaf in 0..1 + rng.below(6) as u32 {
                        let (target, key) = (NAMES[rng.below(3) as usize], key(1, rng.below(3) as u8));
                        let node = (label(target), key.clone());
                        if event.iter().all(|held| held.node() != node) {
                            // By its plan, some of an event wait for those before them.
                            let before = event.last().filter(|_| rng.chance(1, 2)).map(Held::node);
                            let waits = before.map(|(target, key)| after(target.as_str(), key, version));
                            let waits = waits.into_iter().collect();
                            event.push(held(target, key, version, leaf, rng.chance(1, 4), waits));
                        }
                    }
                    event.into_iter().for_each(|held| world.insert(held));
                    world.pump();
                }
                5..13 if !world.actuators[&label(name)].inbox.is_empty() => world.deliver(&label(name), 0),
                13 => world.connect(name),
                14 if rng.chance(1, 3) => world.disconnect(name),
                14 => world.actuators.get_mut(&label(name)).unwrap().inbox.clear(),
                15 if rng.chance(1, 8) => world.replaced(),
                _ => {
                    world.now_ms += 11;
                    let mut out = Vec::new();
                    world.scheduler.tick(world.now_ms, &mut out);
                    world.carry(out);
                    world.pump();
                }
            }
            assert_eq!(world.not_whole(), None, "seed {seed}");
        }
        world.connect_all();
        world.settle();
        world.assert_converged();
        assert_eq!(world.not_whole(), None, "seed {seed}");
        assert_eq!(world.applied.len(), world.after.len(), "seed {seed}: an event was never whole");
        let counters = world.scheduler.counters;
        assert_eq!((counters.line_cut, counters.line_given_up), (0, 0));
    }
}

/// The oracle sees what other modes do.
#[test]
fn the_oracle_catches_events_that_are_not_whole() {
    for mode in [Mode::None, Mode::Dependent] {
        let mut world = World::with(mode, &["a", "b"]);
        world.connect("a");
        for version in 1..=2 {
            world.insert(held("a", key(1, 1), version, 0, false, vec![]));
            world.insert(held("b", key(1, 1), version, 1, false, vec![]));
        }
        world.pump();
        world.settle();
        assert!(world.not_whole().is_some(), "{mode:?}");
    }
}

#[test]
fn an_absent_actuator_holds_the_line_is_named_and_lets_go_when_it_is_forgotten() {
    let mut world = World::with(Mode::Linear, &["a", "b"]);
    world.connect("a");
    world.insert(held("a", key(1, 1), 1, 0, false, vec![]));
    for version in 2..=4 {
        world.insert(held("b", key(1, 1), version, 0, false, vec![]));
        world.insert(held("a", key(1, 1), version, 1, false, vec![]));
    }
    world.pump();
    world.settle();
    assert_eq!(world.line(), ("b".into(), 2, 6));
    let mut out = Vec::new();
    world.scheduler.tick(5_000, &mut out);
    let line = world.scheduler.line_status().unwrap();
    assert_eq!((line.state, line.for_ms, line.older), (WaitState::Disconnected, 5_000, 4));
    let mut out = Vec::new();
    world.scheduler.remove_target(&label("b"), &mut out);
    world.actuators.remove(&label("b"));
    world.carry(out);
    world.pump();
    world.settle();
    assert_eq!(world.scheduler.line_status(), None);
    let own: Vec<u64> = world.applied.iter().map(|(version, _)| version.0).collect();
    assert_eq!(own, [1, 2, 3, 4], "each version, in its turn");
    world.assert_converged();
}

#[test]
fn what_is_refused_holds_the_line_until_it_is_decided_anew() {
    let mut world = World::with(Mode::Linear, &["a", "b"]);
    world.connect_all();
    world.insert(held("a", key(1, 1), 1, 0, false, vec![]));
    world.insert(held("b", key(1, 1), 1, 1, false, vec![after("a", key(1, 1), 1)]));
    world.insert(held("b", key(1, 2), 2, 0, false, vec![]));
    world.pump();
    world.refuse("a", &key(1, 1), 1);
    assert_eq!((world.line(), world.sends.len()), (("a".into(), 1, 3), 1));
    assert!(matches!(world.scheduler.line_status().unwrap().state, WaitState::Refused(_)));
    // What mends it passes what waits for it; the rest of the event that it was of comes after it.
    world.insert(held("a", key(1, 1), 3, 0, false, vec![]));
    world.pump();
    world.settle();
    let applied: Vec<(u64, &str)> =
        world.applied.iter().map(|(version, (target, _))| (version.0, target.as_str())).collect();
    assert_eq!(applied, [(2, "b"), (3, "a"), (1, "b")]);
    assert_eq!((world.scheduler.counters.line_given_up, world.violations.len()), (1, 0));
    // One that is refused when its newer one is decided already is given up at once.
    world.insert(held("a", key(1, 1), 4, 0, false, vec![]));
    world.pump();
    world.insert(held("a", key(1, 1), 5, 0, false, vec![]));
    world.refuse("a", &key(1, 1), 4);
    world.settle();
    world.assert_converged();
    assert_eq!(world.scheduler.counters.line_given_up, 2);
}

/// A port that is to be gone and is not, since its delete, or that of the location before it, was refused and is decided anew: the network
/// that was deleted after it stays until the port is as it was decided last.
#[test]
fn nothing_goes_before_a_part_of_it_whose_delete_was_given_up() {
    let (network, policy) = (Key::Network { vni: Vni(1) }, Key::Policy { vni: Vni(1) });
    let port = Key::Port { vni: Vni(1), endpoint: label("e") };
    let location = Key::Location { vni: Vni(1), address: "10.0.0.1".parse().unwrap() };
    for (refused, restarts) in [(&port, false), (&port, true), (&location, false), (&location, true)] {
        let mut world = World::with(Mode::Linear, &["a", "b"]);
        world.connect_all();
        let up = |world: &mut World, version| {
            let waits = vec![after("a", network.clone(), version), after("a", policy.clone(), version)];
            world.insert(held("a", network.clone(), version, 0, false, vec![]));
            world.insert(held("a", policy.clone(), version, 1, false, vec![]));
            world.insert(held("a", port.clone(), version, 2, false, waits));
            let waits = vec![after("a", port.clone(), version)];
            world.insert(held("b", location.clone(), version, 3, false, waits));
        };
        up(&mut world, 1);
        world.pump();
        world.settle();
        world.insert(held("b", location.clone(), 2, 0, true, vec![]));
        world.insert(held("a", port.clone(), 2, 1, true, vec![after("b", location.clone(), 2)]));
        // The plans of these say nothing of the port: it is not desired any more.
        world.insert(held("a", network.clone(), 3, 0, true, vec![]));
        world.insert(held("a", policy.clone(), 4, 0, true, vec![]));
        world.pump();
        if *refused == port {
            world.deliver(&label("b"), 0);
        }
        world.refuse(if *refused == port { "a" } else { "b" }, refused, 2);
        let before = world.applied.len();
        up(&mut world, 5);
        assert_eq!(world.scheduler.counters.line_given_up, 1);
        if restarts {
            world.replaced();
            world.connect_all();
        }
        world.pump();
        world.settle();
        world.assert_converged();
        let since: Vec<(u64, &Key)> =
            world.applied[before..].iter().map(|(version, (_, key))| (version.0, key)).collect();
        let mut wanted = vec![(5, &network), (5, &policy), (5, &port), (5, &location)];
        if restarts && *refused == port {
            // What was refused is tried once more, and goes: so nothing is left out.
            wanted.splice(0..0, [(2, &port), (3, &network), (4, &policy)]);
        }
        assert_eq!((since, world.violations), (wanted, vec![]), "{refused} {restarts}");
    }
}

#[test]
fn what_waits_is_bounded_and_told() {
    let settings =
        SchedulerSettings { mode: Mode::Linear, line_older_max: 10, ..SchedulerSettings::default() };
    let mut world = World::new(settings, &["a", "b"]);
    world.connect("a");
    let mut long_at = None;
    for version in 1..=40 {
        world.insert(held("b", key(1, version as u8 % 4), version, 0, false, vec![]));
        if world.scheduler.line_is_long() {
            long_at.get_or_insert(version);
        }
    }
    assert_eq!(long_at, Some(9), "half of it: four are the last ones of their keys");
    let line = world.scheduler.line_status().unwrap();
    assert!(line.older <= 11, "{line:?}");
    assert!(world.scheduler.counters.line_cut > 20);
    world.connect("b");
    world.settle();
    world.assert_converged();
    assert_eq!(
        (world.finished.len(), world.scheduler.line.older, world.scheduler.line.older_bytes),
        (40, 0, 0)
    );
}
