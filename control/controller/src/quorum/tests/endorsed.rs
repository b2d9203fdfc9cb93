//! Members that endorse what they decided, over the same faults: a switch that knows the controllers of its phase takes what enough of
//! them endorsed, and everything gets the group's signature as well.

use super::*;
use weir_model::entry::ControllersEntry;
use weir_model::signed::HeaderEndorsement;
use weir_trust::endorsement::{endorse, verify, verify_one};

impl World {
    /// What a member sends to the actuators: honest ones send what they decided, and nothing that the key must prove.
    pub(super) fn take_endorsement(&mut self, id: u32, mut one: HeaderEndorsement) {
        let name = (one.header.index, one.header.root);
        let decided = &self.members[&id].decided[&name];
        assert!(!decided.by_key && decided.signature().is_none());
        assert_eq!(one.by.member, id);
        if self.traitors.get(&id) == Some(&Traitor::WrongEndorsements) {
            let other = BatchHeader { root: [99; 32], ..one.header.clone() };
            let identity = KeyPair::from_seed(&self.members[&id].identity);
            one.by.signature = endorse(&identity, one.phase, &other);
        }
        // What is lost here is lost: nobody sends it again.
        if !self.lost() {
            self.endorsed.push(one);
        }
    }

    fn controllers(&self) -> ControllersEntry {
        let latest = self.members.values().max_by_key(|member| member.keys.phase()).unwrap();
        latest.keys.controllers().expect("they endorse")
    }

    fn endorses(&self) -> bool {
        self.running()
            .all(|(_, member)| member.keys.controllers().is_some_and(|now| now.phase == self.phase()))
    }

    /// Whether the members whose endorsements of a batch are there, without these, prove it.
    fn proven(&self, known: &ControllersEntry, header: &BatchHeader, without: &[u32]) -> bool {
        let of_batch = self.endorsed.iter().filter(|one| one.header == *header && one.phase == known.phase);
        let by: BTreeMap<u32, _> =
            of_batch.map(|one| (one.by.member, one.by)).filter(|(id, _)| !without.contains(id)).collect();
        let signatures: Vec<_> = by.into_values().collect();
        verify(known, header, known.phase, &signatures).is_ok()
    }

    fn headers(&self) -> Vec<(BatchHeader, bool)> {
        let batches = self.order.iter().filter_map(|entry| match entry {
            Entry::Batch(header, by_key) => Some((header.clone(), *by_key)),
            Entry::Key(_) => None,
        });
        batches.collect()
    }

    /// A batch that says whose endorsements count.
    fn batch_by_key(&mut self) {
        self.batch();
        if let Some(Entry::Batch(_, by_key)) = self.order.last_mut() {
            *by_key = true;
        }
    }
}

#[test]
fn members_endorse_and_sign_whatever_is_lost_and_who_crashes() {
    for seed in 800..808 {
        let mut world = World::of(seed, 4, Way::Endorsed);
        world.loss = seed % 3 * 10;
        world.form();
        world.until("the order says that they endorse", World::endorses);
        let first = world.controllers();
        assert_eq!((first.threshold, first.members.len()), (3, 4));
        let before = world.endorsed.len();
        world.sign(5);
        world.batch_by_key();
        world.sign(5);
        if world.loss == 0 {
            assert_eq!(world.endorsed.len() - before, 40, "each by each, once");
            for (header, by_key) in world.headers() {
                assert_eq!(world.proven(&first, &header, &[4]), !by_key, "three are enough");
                assert!(!world.proven(&first, &header, &[3, 4]), "two are not");
            }
        }
        // New shares in the middle of changes, and one dies: what is on the way comes with the group's signature.
        let leader = world.leader;
        world.step(leader, Input::Refresh);
        for _ in 0..20 {
            world.batch();
            world.pass();
        }
        world.crash(3);
        world.until("new shares", |world| world.phase() > first.phase && world.endorses());
        world.start(3);
        world.form();
        world.sign(3);
        let second = world.controllers();
        let (last, _) = world.headers().pop().unwrap();
        assert!(second.phase > first.phase && !world.proven(&first, &last, &[]));
        if world.loss == 0 {
            assert!(world.proven(&second, &last, &[2]));
        }
        assert_eq!(world.named(), BTreeSet::new(), "nobody lied");
    }
}

#[test]
fn one_that_endorses_wrongly_proves_nothing_and_stops_nothing() {
    for (seed, liar) in [(820, 1), (821, 3)] {
        let mut world = World::of(seed, 4, Way::Endorsed);
        world.lead(2);
        world.traitors.insert(liar, Traitor::WrongEndorsements);
        world.form();
        world.until("the order says that they endorse", World::endorses);
        world.sign(10);
        let known = world.controllers();
        for one in &world.endorsed {
            let right = verify_one(&known.members[&one.by.member], one.phase, &one.header, &one.by.signature);
            assert_eq!(right.is_ok(), one.by.member != liar, "each is judged by itself");
        }
        for (header, _) in world.headers() {
            assert!(world.proven(&known, &header, &[liar]), "the others are enough");
            assert!(!world.proven(&known, &header, &[]), "and with the liar's it is no proof");
        }
        assert_eq!(world.named(), BTreeSet::new(), "who it is, agents find out");
    }
}

#[test]
fn the_order_decides_whether_members_endorse() {
    let mut world = World::of(830, 4, Way::Aggregated);
    world.form();
    world.sign(2);
    world.way = Way::Endorsed;
    for id in 1..=4 {
        world.crash(id);
        world.start(id);
    }
    world.sign(2);
    world.until("the order says that they endorse", World::endorses);
    let before = world.endorsed.len();
    world.sign(2);
    assert_eq!(world.endorsed.len() - before, 8);
    world.way = Way::Aggregated;
    for id in 1..=4 {
        world.crash(id);
        world.start(id);
    }
    world.until("the order says that they do not", |world| {
        world.running().all(|(_, member)| member.applied == world.order.len() && !member.keys.endorses())
    });
    let before = world.endorsed.len();
    world.sign(2);
    assert_eq!(world.endorsed.len(), before);
}
