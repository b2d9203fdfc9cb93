//! A group whose members watch each other, in simulated time: words and approvals take their places in one order, which each member sees as far
//! as it has it. Liars say and approve what they like, machines die, flap, hang.

use super::*;
use crate::core::group::{Member, REPLACE_EACH_MS};
use weir_base::world::Rng;
use weir_model::group::Because;

/// Between two looks, milliseconds.
const STEP_MS: u64 = 500;
const AFTER_MS: u64 = 60_000;
const MINUTE: u64 = 60_000;
const NOBODY: [u64; 0] = [];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Honest,
    /// Suspects everybody, names spares that are none, says that members were replaced, approves of all.
    Accuses,
    /// Says nothing and approves nothing, and is heard.
    Silent,
    /// Suspects and trusts in turn.
    Wavers,
}

enum Entry {
    Word { by: u64, word: GroupWord, at_ms: u64 },
    Approve { by: u64, epoch: u64, out: u64, spare: Option<u64> },
}

/// What somebody knows of the order.
#[derive(Clone)]
struct View {
    words: Words,
    roster: Roster,
    epoch: u64,
    approvals: BTreeMap<u64, (u64, Option<u64>)>,
    taken: usize,
}

struct World {
    believes: bool,
    now_ms: u64,
    order: Vec<Entry>,
    all: View,
    views: BTreeMap<u64, View>,
    watches: BTreeMap<u64, Watch>,
    kinds: BTreeMap<u64, Kind>,
    /// Down, or cut off from all.
    down: BTreeSet<u64>,
    heard_ms: BTreeMap<(u64, u64), u64>,
    proofs: BTreeMap<u64, Vec<Proof>>,
    /// Whom the order replaced, when, by whom.
    changes: Vec<(u64, u64, Option<u64>)>,
    rng: Rng,
}

fn source(id: u64) -> SourceId {
    SourceId(format!("controller/controller-{id}"))
}

fn key(id: u64) -> [u8; 32] {
    [id as u8; 32]
}

fn member(id: u64) -> Member {
    Member { source: source(id), keys: [key(id)].into() }
}

fn roster(members: BTreeMap<u64, Member>, believes: bool) -> Roster {
    let count = members.len();
    let (decide, believed, least) = match believes {
        true => (count / 2 + 1, 1, 2),
        false => (count - (count - 1) / 3, (count - 1) / 3 + 1, 5),
    };
    Roster { members, decide, believed, least: least - 1 }
}

impl View {
    fn take(
        &mut self,
        order: &[Entry],
        upto: usize,
        believes: bool,
        changes: Option<&mut Vec<(u64, u64, Option<u64>)>>,
    ) {
        let mut done = Vec::new();
        for entry in &order[self.taken..upto] {
            match entry {
                Entry::Word { by, word, at_ms } => {
                    let _refused = self.words.hear(&source(*by), word, *at_ms);
                }
                Entry::Approve { by, epoch, out, spare } => {
                    let is_fit = *epoch == self.epoch
                        && self.roster.members.contains_key(by)
                        && self.roster.members.contains_key(out)
                        && spare.is_none_or(|spare| !self.roster.members.contains_key(&spare));
                    if !is_fit {
                        continue;
                    }
                    self.approvals.insert(*by, (*out, *spare));
                    let same = self.approvals.values().filter(|said| **said == (*out, *spare)).count();
                    if same >= self.roster.decide {
                        let mut members = self.roster.members.clone();
                        members.remove(out);
                        members.extend(spare.map(|spare| (spare, member(spare))));
                        self.roster = roster(members, believes);
                        self.epoch += 1;
                        self.approvals.clear();
                        done.push((self.words.at_ms(), *out, *spare));
                    }
                }
            }
        }
        self.taken = upto.max(self.taken);
        if let Some(changes) = changes {
            changes.extend(done);
        }
    }
}

impl World {
    fn new(seed: u64, members: u64, spares: u64, believes: bool) -> World {
        let first = roster((1..=members).map(|id| (id, member(id))).collect(), believes);
        let view =
            View { words: Words::default(), roster: first, epoch: 1, approvals: BTreeMap::new(), taken: 0 };
        let named: BTreeMap<u64, Spare> = (members + 1..=members + spares)
            .map(|id| (id, Spare { key: Some(key(id)), address: format!("at {id}") }))
            .collect();
        let ids = 1..=members + spares;
        World {
            believes,
            now_ms: 1_000_000,
            order: Vec::new(),
            all: view.clone(),
            views: ids.clone().map(|id| (id, view.clone())).collect(),
            watches: ids
                .clone()
                .map(|id| (id, Watch::new(id, source(id), AFTER_MS, named.clone())))
                .collect(),
            kinds: ids.map(|id| (id, Kind::Honest)).collect(),
            down: BTreeSet::new(),
            heard_ms: BTreeMap::new(),
            proofs: BTreeMap::new(),
            changes: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    fn word(&mut self, by: u64, word: GroupWord) {
        self.order.push(Entry::Word { by, word, at_ms: self.now_ms });
    }

    fn lies(&mut self, id: u64, kind: Kind) {
        let others: Vec<u64> = self.all.roster.members.keys().copied().filter(|other| *other != id).collect();
        let whom = others[self.rng.below(others.len() as u64) as usize];
        let (epoch, even) = (self.all.epoch, self.now_ms / STEP_MS % 40 < 20);
        match kind {
            Kind::Honest | Kind::Silent => {}
            Kind::Wavers if even => self.word(id, GroupWord::Suspects { member: whom, after_ms: 1 }),
            Kind::Wavers => self.word(id, GroupWord::Trusts { member: whom }),
            Kind::Accuses => match self.rng.below(6) {
                0 => self.word(id, GroupWord::Spare { id: 99, key: Some(key(99)), address: "mine".into() }),
                1 => self.word(id, GroupWord::NoSpare { id: 8 }),
                2 => {
                    let who = vec![1, 2, 3];
                    let said =
                        Replaced { out: whom, by: Some(99), number: epoch, because: Because::Silent, who };
                    self.word(id, GroupWord::Replaced(said));
                }
                3 => self.word(id, GroupWord::Convicts { member: whom, key: key(whom), proof: vec![0] }),
                4 => self.order.push(Entry::Approve { by: id, epoch, out: whom, spare: Some(8) }),
                _ => self.word(id, GroupWord::Suspects { member: whom, after_ms: 1 }),
            },
        }
    }

    /// Half a second for everybody.
    fn step(&mut self) {
        self.now_ms += STEP_MS;
        let believes = self.believes;
        let up: Vec<u64> = self.views.keys().copied().filter(|id| !self.down.contains(id)).collect();
        for a in &up {
            for b in &up {
                self.heard_ms.insert((*a, *b), self.now_ms);
            }
        }
        // Without as many as decide nothing is ordered.
        let there = self.all.roster.members.keys().filter(|id| up.contains(id)).count();
        let orders = there >= self.all.roster.decide;
        for id in up {
            let kind = self.kinds[&id];
            if kind != Kind::Honest {
                if orders {
                    self.lies(id, kind);
                }
                continue;
            }
            let mut view = self.views.remove(&id).unwrap();
            // What it has of the order is now and then a little old.
            let behind = self.rng.below(4).saturating_sub(1) as usize;
            let upto = self.order.len().saturating_sub(behind).max(view.taken);
            view.take(&self.order, upto, believes, None);
            let silent = |other: &u64| {
                let heard_ms = self.heard_ms.get(&(id, *other)).copied().unwrap_or(1_000_000);
                (*other, self.now_ms - heard_ms)
            };
            let silent_ms: BTreeMap<u64, u64> =
                self.watches.keys().filter(|other| **other != id).map(silent).collect();
            let proofs = self.proofs.get(&id).cloned().unwrap_or_default();
            let look = Look {
                now_ms: self.now_ms,
                ordered_ms: self.now_ms,
                words: &view.words,
                roster: &view.roster,
                number: view.epoch,
                silent_ms: &silent_ms,
                proofs: &proofs,
                convicts: &|member, _, proof| proof == [member as u8],
            };
            let act = self.watches.get_mut(&id).unwrap().look(&look);
            if orders {
                act.say.into_iter().for_each(|word| self.word(id, word));
                if let Some(step) = act.step {
                    let spare = step.by.map(|(spare, _)| spare);
                    self.order.push(Entry::Approve { by: id, epoch: view.epoch, out: step.out, spare });
                }
            }
            self.views.insert(id, view);
        }
        let upto = self.order.len();
        self.all.take(&self.order, upto, believes, Some(&mut self.changes));
    }

    fn run(&mut self, ms: u64) {
        (0..ms / STEP_MS).for_each(|_| self.step());
    }

    fn outs(&self) -> Vec<u64> {
        self.changes.iter().map(|(_, out, _)| *out).collect()
    }
}

/// Both orders: of four of which one may lie, and of three of which one may crash.
fn both(check: impl Fn(u64, bool)) {
    (0..8).for_each(|seed| [false, true].into_iter().for_each(|believes| check(seed, believes)));
}

fn world(seed: u64, believes: bool) -> (World, u64) {
    let members = if believes { 3 } else { 4 };
    let mut world = World::new(seed, members, 2, believes);
    world.run(10 * 1_000);
    (world, members)
}

#[test]
fn one_that_is_gone_is_replaced_by_the_first_spare_and_the_next_one_an_hour_later() {
    both(|seed, believes| {
        let (mut world, members) = world(seed, believes);
        world.down.insert(members);
        world.run(AFTER_MS - 5_000);
        assert_eq!(world.outs(), NOBODY, "not before its time, {seed}");
        world.run(30_000);
        assert_eq!(
            world.changes.iter().map(|(_, out, by)| (*out, *by)).collect::<Vec<_>>(),
            [(members, Some(members + 1))]
        );
        // Another one dies: as many as decide are left, and it stays for the rest of the hour.
        world.down.insert(1);
        world.run(50 * MINUTE);
        assert_eq!(world.outs(), [members], "{seed}");
        world.run(20 * MINUTE);
        assert_eq!(world.outs(), [members, 1], "{seed}");
        let (first, second) = (world.changes[0].0, world.changes[1].0);
        assert!(second - first >= REPLACE_EACH_MS - 10_000, "{seed}: {first} {second}");
        // No spare is left: nobody goes.
        world.down.insert(2);
        world.run(2 * 60 * MINUTE);
        assert_eq!(world.outs(), [members, 1]);
        assert_eq!(world.all.roster.members.len() as u64, members);
    });
}

#[test]
fn one_that_flaps_for_hours_is_replaced_at_most_once_an_hour_and_not_at_all_when_it_is_back_in_time() {
    both(|seed, believes| {
        let (mut world, members) = world(seed, believes);
        // Away for less than is waited: never.
        for _ in 0..60 {
            world.down.insert(members);
            world.run(30_000);
            world.down.remove(&members);
            world.run(30_000);
        }
        assert_eq!(world.outs(), NOBODY, "{seed}");
        // For longer, and others in turn: one in the hour.
        let begun_ms = world.now_ms;
        let mut turn = 0;
        while world.now_ms < begun_ms + 59 * MINUTE {
            turn += 1;
            let whom = turn % members + 1;
            world.down.insert(whom);
            world.run(90_000);
            world.down.remove(&whom);
            world.run(20_000);
        }
        assert_eq!(world.changes.len(), 1, "{seed}: {:?}", world.changes);
    });
}

#[test]
fn one_liar_of_four_and_two_of_seven_have_no_honest_member_replaced_and_keep_no_dead_one() {
    for seed in 0..2 {
        for kind in [Kind::Accuses, Kind::Silent, Kind::Wavers] {
            let mut world = World::new(seed, 4, 2, false);
            world.kinds.insert(2, kind);
            world.run(90 * MINUTE);
            assert_eq!(world.outs(), NOBODY, "{seed}: {kind:?}");
            assert!(world.all.words.spares(&world.all.roster).keys().eq([5, 6].iter()), "{seed}: {kind:?}");
            let mut world = World::new(seed, 7, 1, false);
            [2, 6].into_iter().for_each(|liar| {
                let _before = world.kinds.insert(liar, kind);
            });
            world.run(90 * MINUTE);
            assert_eq!(world.outs(), NOBODY, "{seed}: {kind:?}");
            // One liar and one that is gone: five of seven are left that agree.
            world.kinds.insert(6, Kind::Honest);
            world.down.insert(4);
            world.run(70 * MINUTE);
            assert_eq!(world.outs(), [4], "{seed}: {kind:?}");
        }
    }
}

#[test]
fn one_that_is_proven_to_lie_goes_at_once_by_one_members_proof_and_is_no_voter_any_more() {
    both(|seed, believes| {
        let (mut world, members) = world(seed, believes);
        world.proofs.insert(1, vec![(members, key(members), vec![members as u8])]);
        world.run(20_000);
        assert_eq!(world.outs(), [members], "{seed}");
        assert!(world.all.roster.members.contains_key(&(members + 1)));
        // It does not come back by being a spare under its key.
        world.run(10_000);
        for id in 1..members {
            let word = GroupWord::Spare { id: members, key: Some(key(members)), address: "back".into() };
            world.word(id, word);
        }
        world.down.insert(members + 2);
        world.down.insert(1);
        world.run(30 * MINUTE);
        assert!(!world.all.roster.members.contains_key(&members), "{seed}");
    });
}

#[test]
fn a_convicted_member_without_a_spare_goes_where_enough_are_left_and_stays_where_not() {
    for (members, gone) in [(4, false), (5, true)] {
        let mut world = World::new(1, members, 0, false);
        world.proofs.insert(2, vec![(3, key(3), vec![3])]);
        world.run(60_000);
        assert_eq!(world.outs(), if gone { vec![3] } else { vec![] }, "{members}");
    }
    // Nobody is convicted by a proof that proves nothing, whoever says so.
    let mut world = World::new(1, 4, 1, false);
    world.kinds.insert(2, Kind::Accuses);
    world.run(60 * MINUTE);
    assert_eq!(world.outs(), NOBODY);
}

#[test]
fn a_spare_that_is_gone_takes_no_place() {
    both(|seed, believes| {
        let (mut world, members) = world(seed, believes);
        world.down.insert(members + 1);
        world.run(MINUTE);
        world.down.insert(members);
        world.run(3 * MINUTE);
        assert_eq!(
            world.changes.iter().map(|(_, out, by)| (*out, *by)).collect::<Vec<_>>(),
            [(members, Some(members + 2))],
            "{seed}"
        );
    });
}

#[test]
fn words_are_few() {
    both(|seed, believes| {
        let (mut world, members) = world(seed, believes);
        world.down.insert(members);
        world.down.insert(members + 1);
        world.down.insert(members + 2);
        let before = world.order.len();
        world.run(60 * MINUTE);
        // No spare is there, so nothing can be done: each says it once in a while, of three.
        let said = (world.order.len() - before) as u64;
        assert!(said <= members * 3 * (60 * MINUTE / RENEW_MS + 4), "{seed}: {said}");
    });
}
