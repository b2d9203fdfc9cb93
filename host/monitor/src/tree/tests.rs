use super::scope::Members;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn comm(name: &str) -> Comm {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name.as_bytes());
    comm
}

fn fork(time_ns: u64, parent: u32, process: u32) -> Event {
    Event { time_ns, what: What::Fork { parent }, process, user: 7, cgroup: 1, comm: comm("bomb") }
}

fn exit(process: u32) -> Event {
    Event { time_ns: 0, what: What::Exit { status: 0 }, process, user: 0, cgroup: 0, comm: [0; 16] }
}

/// init (1) with a shell (10) and a server (20) that has children of its own.
fn tree() -> ForkTree {
    let mut tree = ForkTree::new(4096);
    tree.define(0, Scope::new(Members::Host, 1_000_000));
    tree.seed(1, 0, comm("init"), 1, 0);
    tree.seed(10, 1, comm("sh"), 1, 0);
    tree.seed(20, 1, comm("server"), 1, 0);
    for worker in 21..25 {
        tree.seed(worker, 20, comm("worker"), 1, 0);
    }
    tree
}

fn young(since: u64) -> impl FnMut(Place, &Node) -> u32 {
    move |_, node| u32::from(node.alive && node.born_ns >= since)
}

/// Young processes are taken at once; those that are named never.
fn sparing(since: u64, never: &[u32]) -> impl FnMut(&Node) -> Choice {
    move |node| match () {
        () if never.contains(&node.process) => Choice::Never,
        () if node.born_ns >= since => Choice::AtOnce,
        () => Choice::IfNoneBelow,
    }
}

fn members(tree: &ForkTree, place: Place) -> Vec<u32> {
    let mut all = Vec::new();
    tree.below(place, |_, node| {
        if node.alive {
            all.push(node.process);
        }
    });
    all.sort_unstable();
    all
}

#[test]
fn what_is_followed_stays_until_the_last_of_it_has_ended() {
    let mut tree = tree();
    tree.apply(&fork(100, 10, 100));
    tree.apply(&fork(110, 100, 101));
    tree.apply(&fork(120, 101, 102));
    let culprit = tree.find(100).unwrap();
    tree.hold(culprit);
    let nodes = tree.counters.nodes;
    // The culprit ends first, and joins only one branch; in that a fork was under way.
    tree.apply(&exit(100));
    tree.apply(&fork(130, 102, 103));
    tree.apply(&exit(101));
    tree.apply(&exit(102));
    assert_eq!(members(&tree, culprit), [103]);
    tree.apply(&exit(103));
    assert_eq!((members(&tree, culprit), tree.get(culprit).is_some()), (vec![], true));
    tree.let_go(culprit);
    assert_eq!((tree.get(culprit).is_none(), tree.counters.nodes), (true, nodes - 3));

    // Two repairs follow one tree; the second lets go while a branch lives, which then hangs below the shell.
    tree.apply(&fork(200, 10, 200));
    tree.apply(&fork(210, 200, 201));
    let culprit = tree.find(200).unwrap();
    tree.hold(culprit);
    tree.hold(culprit);
    tree.apply(&exit(200));
    tree.let_go(culprit);
    assert_eq!(members(&tree, culprit), [201]);
    tree.let_go(culprit);
    assert!(tree.get(culprit).is_none());
    assert_eq!(tree.parent(tree.find(201).unwrap()), tree.find(10));
}

#[test]
fn a_bomb_whose_parents_die_hangs_together() {
    let mut tree = tree();
    tree.apply(&fork(100, 10, 100));
    // Each forks two and dies.
    for process in 100..140 {
        tree.apply(&fork(200, process, process * 2 - 99));
        tree.apply(&fork(200, process, process * 2 - 98));
        tree.apply(&exit(process));
    }
    let (place, weight) = tree.culprit(young(50), sparing(50, &[1])).unwrap();
    assert_eq!(weight, 41);
    let found = members(&tree, place);
    assert_eq!(found.len(), 41);
    assert!(found.iter().all(|process| *process > 100), "neither shell nor server: {found:?}");
}

#[test]
fn a_parent_that_forks_all_itself_is_the_culprit() {
    let mut tree = tree();
    tree.apply(&fork(100, 10, 50));
    for process in 200..300 {
        tree.apply(&fork(200_000_000_000, 50, process));
    }
    let (place, _) = tree.culprit(young(1000), sparing(1000, &[1])).unwrap();
    assert_eq!(tree.get(place).unwrap().process, 50);
}

#[test]
fn a_chain_is_taken_from_its_first_link() {
    let mut tree = tree();
    let mut last = None;
    for process in 1000..1100 {
        last = tree.apply(&fork(u64::from(process), if process == 1000 { 10 } else { process - 1 }, process));
    }
    assert_eq!(tree.living_chain(last.unwrap()), 100);
    assert_eq!(tree.get(last.unwrap()).unwrap().chain, 100);
    let (place, _) = tree.culprit(young(1), sparing(1, &[1])).unwrap();
    assert_eq!(tree.get(place).unwrap().process, 1000);
    tree.apply(&exit(1098));
    assert_eq!(tree.living_chain(tree.find(1099).unwrap()), 99, "the joint was taken out");
}

#[test]
fn who_may_not_be_chosen_is_passed_over() {
    let mut tree = tree();
    for process in 200..300 {
        tree.apply(&fork(2000, 20, process));
        tree.apply(&fork(2000, process, process + 1000));
    }
    let (place, _) = tree.culprit(young(1000), sparing(1000, &[])).unwrap();
    assert_eq!(tree.get(place).unwrap().process, 20);
    assert_eq!(tree.culprit(young(1000), sparing(1000, &[20])), None);
    assert_eq!(tree.culprit(young(u64::MAX), sparing(1000, &[])), None);
}

#[test]
fn who_forks_one_after_the_other_is_blamed_and_no_innocent_of_the_same_age() {
    let mut tree = tree();
    let forked = |tree: &mut ForkTree| tree.culprit(|_, node| node.forks, sparing(1000, &[1, 10]));
    // A worker below a master, and an innocent as young, all by the same shell.
    for (parent, process) in [(10, 100), (100, 101), (10, 300)] {
        tree.apply(&fork(2000, parent, process));
    }
    for _ in 0..50 {
        tree.apply(&fork(2000, 101, 102));
        tree.apply(&exit(102));
    }
    let (place, weight) = forked(&mut tree).unwrap();
    assert_eq!((tree.get(place).unwrap().process, weight), (100, 51));
    // A chain in which each ends after its fork: the last one stands for all.
    for process in 400..450 {
        tree.apply(&fork(2000, if process == 400 { 10 } else { process - 1 }, process));
        if process > 400 {
            tree.apply(&exit(process - 1));
        }
    }
    assert!(tree.get(tree.find(449).unwrap()).unwrap().forks >= 48);
    // It is dealt with: its end makes nobody else guilty.
    tree.forgive(0, place);
    for process in [101, 100] {
        tree.apply(&exit(process));
    }
    tree.forgive(0, tree.find(449).unwrap());
    assert!(tree.get(tree.find(10).unwrap()).unwrap().forks < 10);
    // Of a long life only the last counts.
    for second in 0..100 {
        tree.apply(&fork(1_000_000_000 * second, 300, 500));
        tree.apply(&exit(500));
    }
    assert!(tree.get(tree.find(300).unwrap()).unwrap().forks < 30);
}

#[test]
fn scopes_count_living_and_forks_of_their_window() {
    let mut tree = tree();
    tree.define(1, Scope::new(Members::Cgroups(vec![5, 3]), 8_000));
    let in_five = |time_ns, process| Event { cgroup: 5, ..fork(time_ns, 10, process) };
    for process in 100..110 {
        tree.apply(&in_five(10_000, process));
    }
    tree.apply(&exit(100));
    // The shell was seen to act in cgroup 5: it belongs to it now, but is old.
    assert_eq!((tree.scope(1).living(10_500), tree.scope(1).forks(10_500)), (9, 10));
    assert_eq!(tree.scope(1).living(17_000), 9);
    assert_eq!(tree.scope(1).living(19_000), 0, "they are old by then");
    tree.apply(&exit(101));
    assert_eq!(tree.scope(0).living(19_000), 8);
    tree.redefine(1, &[3]);
    assert_eq!(tree.scope(1).living(10_500), 0);
}

#[test]
fn a_full_tree_refuses_and_counts() {
    let mut tree = ForkTree::new(4);
    for process in 1..10 {
        tree.apply(&fork(1, 0, process));
    }
    assert_eq!((tree.counters.living, tree.counters.refused), (3, 6));
    tree.apply(&exit(2));
    assert!(tree.apply(&fork(1, 1, 12)).is_some());
}

/// A plain model: who lives, and the living ancestor-or-joint relation by full parent chains.
#[derive(Default)]
struct Model {
    parent: BTreeMap<u32, u32>,
    alive: BTreeMap<u32, bool>,
}

impl Model {
    fn below(&self, mut process: u32, other: u32) -> bool {
        loop {
            if process == other {
                return true;
            }
            match self.parent.get(&process) {
                Some(parent) => process = *parent,
                None => return false,
            }
        }
    }
}

proptest! {
    #[test]
    fn descendants_are_those_of_a_plain_model(steps in prop::collection::vec((0_usize..64, any::<bool>()), 1..300)) {
        let mut tree = ForkTree::new(1024);
        let mut model = Model::default();
        let mut next = 2;
        tree.seed(1, 0, comm("init"), 1, 0);
        model.alive.insert(1, true);
        for (which, ends) in steps {
            let living: Vec<u32> = model.alive.iter().filter(|(_, alive)| **alive).map(|(pid, _)| *pid).collect();
            let chosen = living[which % living.len()];
            if ends && chosen != 1 {
                tree.apply(&exit(chosen));
                model.alive.insert(chosen, false);
            } else {
                tree.apply(&fork(u64::from(next), chosen, next));
                model.parent.insert(next, chosen);
                model.alive.insert(next, true);
                next += 1;
            }
        }
        let living: Vec<u32> = model.alive.iter().filter(|(_, alive)| **alive).map(|(pid, _)| *pid).collect();
        prop_assert_eq!(tree.counters.living as usize, living.len());
        prop_assert!(tree.counters.nodes as usize <= 2 * living.len());
        for process in &living {
            let place = tree.find(*process).unwrap();
            let wanted: Vec<u32> = living.iter().copied().filter(|other| model.below(*other, *process)).collect();
            prop_assert_eq!(members(&tree, place), wanted);
            let children = living.iter().filter(|other| tree.find(**other).and_then(|at| tree.parent(at)) == Some(place));
            prop_assert_eq!(tree.get(place).unwrap().children as usize, children.count());
        }
    }

    #[test]
    fn any_events_leave_a_sound_tree(events in prop::collection::vec((0_u32..40, 0_u32..40, 0_u8..4), 0..400)) {
        let mut tree = ForkTree::new(24);
        tree.define(0, Scope::new(Members::Host, 100));
        for (time, (a, b, what)) in events.into_iter().enumerate() {
            let what = match what { 0 | 1 => What::Fork { parent: a }, 2 => What::Exit { status: 0 }, _ => What::Exec };
            tree.apply(&Event { time_ns: time as u64 + 1, what, process: b, user: 0, cgroup: u64::from(a), comm: [0; 16] });
            let mut seen = 0;
            let mut at = Some(tree.lowest(ROOT));
            while let Some(here) = at {
                seen += u64::from(here != ROOT);
                at = tree.after(here, ROOT);
            }
            prop_assert_eq!(seen, tree.counters.nodes);
        }
        tree.culprit(|_, _| 1, |_| Choice::IfNoneBelow);
        tree.retain(|_| false);
        prop_assert_eq!((tree.counters.living, tree.counters.nodes, tree.scope(0).living(500)), (0, 0, 0));
    }
}
