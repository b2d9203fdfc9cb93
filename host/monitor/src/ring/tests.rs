mod simulation;

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const MS: u64 = 1_000_000;
const PERIOD: u64 = 20 * MS;
const HOSTS: Host = 7;

/// A small linear generator: which messages are lost.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }

    fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }
}

/// Hosts whose messages take no time and are lost now and then.
struct World {
    rings: Vec<Ring>,
    down: BTreeSet<Host>,
    /// Hosts that are cut off from all others.
    cut: BTreeSet<Host>,
    loss: u64,
    dice: Dice,
    now: u64,
    declared: Vec<(Host, Output)>,
    fences: Vec<(Host, Host)>,
}

impl World {
    fn new(k: usize, loss: u64, seed: u64) -> World {
        let settings = Settings { period_ns: PERIOD, periods: 3, watch_ns: 0 };
        World {
            rings: (0..HOSTS).map(|own| Ring::new(own, 0..HOSTS, k, settings)).collect(),
            down: BTreeSet::new(),
            cut: BTreeSet::new(),
            loss,
            dice: Dice(seed),
            now: MS,
            declared: Vec::new(),
            fences: Vec::new(),
        }
    }

    fn run(&mut self, periods: u64) {
        for _ in 0..periods {
            self.now += PERIOD;
            for host in 0..HOSTS {
                self.give(host, Input::Tick);
            }
        }
    }

    fn arrives(&mut self, from: Host, to: Host) -> bool {
        let whole = !self.down.contains(&to) && !self.cut.contains(&to) && !self.cut.contains(&from);
        whole && !self.dice.percent(self.loss)
    }

    /// Gives a host an input, and then all that follows from it, in the order in which it was sent.
    fn give(&mut self, host: Host, input: Input) {
        let mut under_way = VecDeque::from([(host, input)]);
        while let Some((host, input)) = under_way.pop_front() {
            if self.down.contains(&host) {
                continue;
            }
            let mut out = Vec::new();
            self.rings[usize::from(host)].step(self.now, input, &mut out);
            for output in out {
                match output {
                    Output::Probe(to) if self.arrives(host, to) => {
                        under_way.push_back((to, Input::Heard(host)));
                        if self.arrives(to, host) {
                            under_way.push_back((host, Input::Answer { host: to, progress: self.now }));
                        }
                    }
                    Output::Probe(_) => {}
                    Output::TellFenced { to, about, done } if self.arrives(host, to) => {
                        under_way.push_back((to, Input::Fenced { from: host, about, done }));
                    }
                    Output::TellFenced { .. } => {}
                    Output::Fence(about) => {
                        self.fences.push((host, about));
                        under_way.push_back((host, Input::Fenced { from: host, about, done: true }));
                    }
                    Output::Tell { to, about, suspects } if self.arrives(host, to) => {
                        under_way.push_back((to, Input::Opinion { from: host, about, suspects }));
                    }
                    Output::Tell { .. } => {}
                    other => self.declared.push((host, other)),
                }
            }
        }
    }

    fn living(&self) -> impl Iterator<Item = Host> {
        (0..HOSTS).filter(|host| !self.down.contains(host) && !self.cut.contains(host))
    }
}

#[test]
fn each_watches_its_next_hosts_and_the_ring_closes() {
    let mut world = World::new(1, 0, 1);
    let watched = |world: &World, host: Host| -> Vec<Host> {
        world.rings[usize::from(host)].watched(0).into_iter().map(|(host, _)| host).collect()
    };
    assert_eq!((watched(&world, 0), watched(&world, 6)), (vec![1, 2], vec![0, 1]));
    world.run(20);
    world.down.insert(1);
    world.run(10);
    // The failed one is still asked, so that it can come back.
    assert_eq!(watched(&world, 0), [1, 2, 3]);
    for host in world.living() {
        assert_eq!(
            world.rings[usize::from(host)].failed().iter().copied().collect::<Vec<_>>(),
            [1],
            "{host}"
        );
    }
    world.down.clear();
    world.run(10);
    assert!(world.rings.iter().skip(2).all(|ring| ring.failed().is_empty()));
    assert_eq!(watched(&world, 0), [1, 2]);
}

#[test]
fn a_failure_is_declared_once_by_each_within_some_periods() {
    let mut world = World::new(2, 0, 1);
    world.run(20);
    world.down.insert(3);
    world.run(6);
    let declared: Vec<Host> = world.declared.iter().map(|(host, _)| *host).collect();
    assert_eq!(world.declared.len(), 6, "{:?}", world.declared);
    assert!(world.declared.iter().all(|(_, output)| *output == Output::Failed(3)));
    assert_eq!(declared.iter().collect::<BTreeSet<_>>().len(), 6);
    world.run(200);
    assert_eq!(world.declared.len(), 6);
    assert_eq!(world.fences, [(2, 3)], "the one before it fences it, once");
}

#[test]
fn who_cannot_fence_passes_it_on_and_who_says_nothing_is_not_waited_for_long() {
    use fencing::Fencing;
    let before = |_: Host| vec![2, 1, 0];
    let turns = |fencing: &mut Fencing, now: u64| -> Vec<Host> {
        (0..3).filter(|own| !fencing.turns(now, *own, before).is_empty()).collect()
    };
    // Each has a state of its own; here one stands for all, so a turn is asked of one at a time.
    let fencing = || {
        let mut fencing = Fencing::new(PERIOD);
        fencing.declared(0, 3);
        fencing
    };
    assert_eq!(turns(&mut fencing(), PERIOD), [2]);
    let mut passed = fencing();
    passed.heard(2, 3, false);
    assert_eq!(turns(&mut passed, PERIOD), [1]);
    let mut done = fencing();
    done.heard(2, 3, true);
    assert_eq!(turns(&mut done, u64::MAX), [] as [Host; 0]);
    let mut late = fencing();
    assert!(late.turns(100 * PERIOD, 1, before).is_empty(), "it is the other's turn");
    assert_eq!(late.turns(500 * PERIOD, 1, before), [3]);
    assert!(late.turns(900 * PERIOD, 1, before).is_empty(), "it is told once");
}

#[test]
fn never_more_than_k_at_once_nor_a_majority_is_declared() {
    use fencing::Fencing;
    let mut fencing = Fencing::new(PERIOD);
    assert!(fencing.may_declare(0, 7, 1, 1) && !fencing.may_declare(0, 7, 1, 2));
    fencing.declared(0, 3);
    assert!(!fencing.may_declare(PERIOD, 7, 1, 1), "that is at once");
    assert!(fencing.may_declare(100 * PERIOD, 7, 1, 1));
    fencing.declared(100 * PERIOD, 4);
    fencing.declared(200 * PERIOD, 5);
    assert!(!fencing.may_declare(900 * PERIOD, 7, 1, 1), "four of seven are a majority");
    fencing.recovered(4);
    assert!(fencing.may_declare(900 * PERIOD, 7, 1, 1));
}

#[test]
fn one_watcher_with_a_broken_link_declares_nobody_and_is_declared() {
    let mut world = World::new(2, 0, 1);
    world.run(20);
    world.cut.insert(2);
    world.run(20);
    let by_others: BTreeSet<_> =
        world.declared.iter().filter(|(host, _)| *host != 2).map(|(_, what)| *what).collect();
    assert_eq!(by_others, BTreeSet::from([Output::Failed(2)]));
    assert!(
        world.declared.iter().all(|(host, _)| *host != 2),
        "alone it has no majority: {:?}",
        world.declared
    );
}

impl PartialOrd for Output {
    fn partial_cmp(&self, other: &Output) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Output {
    fn cmp(&self, other: &Output) -> std::cmp::Ordering {
        format!("{self:?}").cmp(&format!("{other:?}"))
    }
}

/// Hosts fail while messages are lost, then all are there and nothing is lost: who of the living did not know the dead, and
/// who is still taken for failed in the end.
fn after_loss(k: usize, seed: u64, dead: &BTreeSet<Host>) -> (Vec<Host>, BTreeSet<Host>) {
    let mut world = World::new(k, 5, seed);
    world.run(20);
    world.down = dead.clone();
    world.run(60);
    let knows = |host: &Host| dead.is_subset(world.rings[usize::from(*host)].failed());
    let unknown = world.living().filter(|host| !knows(host)).collect();
    world.down.clear();
    world.loss = 0;
    world.run(100);
    (unknown, world.rings.iter().flat_map(|ring| ring.failed().iter().copied()).collect())
}

/// Its only accusers are declared failed themselves: seeds with which that left it failed for ever.
#[test]
fn who_lost_all_its_accusers_is_taken_back() {
    assert_eq!(after_loss(2, 6_168_951_212_045_522_904, &BTreeSet::from([3])), Default::default());
}

proptest! {
    #[test]
    fn with_loss_the_dead_are_found_and_the_living_spared(seed: u64, k in 1_usize..3, dead in prop::collection::btree_set(0..HOSTS, 0..3)) {
        let dead: BTreeSet<Host> = dead.into_iter().take(k).collect();
        let (unknown, forgotten) = after_loss(k, seed, &dead);
        prop_assert!(unknown.is_empty(), "these do not know the dead {dead:?}: {unknown:?}");
        prop_assert!(forgotten.is_empty(), "taken for failed for ever: {forgotten:?}");
    }

    #[test]
    fn any_inputs_are_taken(inputs in prop::collection::vec((0_u8..5, any::<u16>(), any::<u16>(), any::<bool>()), 0..200)) {
        let settings = Settings { period_ns: 1, periods: 1, watch_ns: 0 };
        let mut ring = Ring::new(3, 0..10, 1, settings);
        for (now, (kind, a, b, suspects)) in inputs.into_iter().enumerate() {
            let input = match kind {
                0 => Input::Tick,
                3 => Input::Heard(a % 12),
                4 => Input::Fenced { from: a % 12, about: b % 12, done: suspects },
                1 => Input::Answer { host: a % 12, progress: b.into() },
                _ => Input::Opinion { from: a % 12, about: b % 12, suspects },
            };
            let mut out = Vec::new();
            ring.step(now as u64, input, &mut out);
            prop_assert!(!ring.failed().contains(&3));
            prop_assert!(ring.watched(now as u64).len() <= 10);
        }
    }
}
