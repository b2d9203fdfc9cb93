//! Groups of members from a seed: messages are lost, doubled and late, members crash at any change of their disks and
//! come back, one lies. Checked all the time: a signature that a member hands to its core is the group's, over a
//! batch that it decided; the group's key never changes. At the end: every batch is signed at every member that runs, and who
//! lied, and nobody else, is named.

use super::*;
use crate::audit::record::statement;
use std::collections::{BTreeMap, BTreeSet};
use weir_base::codec::encode;
use weir_base::world::{Disk, Rng, SimDisk};
use weir_model::Version;
use weir_model::signed::{BatchHeader, BlsKey, GroupKey, GroupSignature, Signature};
use weir_trust::identity::Context;
use weir_trust::threshold::{FaultKind, ShareSignature, combine, verify_group};

mod endorsed;
mod seven;

const STEP_MS: u64 = 5;
const TICK_MS: u64 = 20;

fn domain() -> Label {
    Label::new("d").unwrap()
}

/// What a member does that lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traitor {
    /// Signs something else under the header's name.
    WrongShares,
    /// Sends signatures that are none.
    LyingAggregator,
    /// Takes shares and says nothing.
    SilentAggregator,
    /// Sends shares of batches that nobody decided, again and again.
    Forger,
    /// Deals wrong shares.
    WrongDeals,
    /// Endorses something else under the header's name.
    WrongEndorsements,
}

/// An entry of the order.
#[derive(Clone, Debug)]
enum Entry {
    Key(KeyStep),
    /// And whether only the key can prove it.
    Batch(BatchHeader, bool),
}

struct Member {
    disk: SimDisk,
    identity: [u8; 32],
    quorum: Option<Quorum>,
    keys: GroupKeys,
    applied: usize,
    decided: BTreeMap<BatchName, Arc<DecidedHeader>>,
}

impl Member {
    fn new(seed: u64, identity: [u8; 32]) -> Member {
        Member {
            disk: SimDisk::new(seed),
            identity,
            quorum: None,
            keys: GroupKeys::default(),
            applied: 0,
            decided: BTreeMap::new(),
        }
    }

    fn share_phase(&self) -> u64 {
        self.quorum.as_ref().map_or(0, |quorum| quorum.status().share_phase)
    }

    fn unsigned(&self) -> usize {
        self.decided.values().filter(|header| header.signature().is_none()).count()
    }
}

struct World {
    rng: Rng,
    now_ms: u64,
    members: BTreeMap<u32, Member>,
    traitors: BTreeMap<u32, Traitor>,
    order: Vec<Entry>,
    network: Vec<(u64, u32, u32, Vec<u8>)>,
    voters: BTreeSet<u32>,
    leader: u32,
    /// One message of so many is lost, and one doubled; 0: none.
    loss: u64,
    key: Option<BlsKey>,
    batches: u64,
    /// Faults that were told with a proof.
    proofs: u64,
    way: Way,
    /// What members sent to actuators.
    endorsed: Vec<weir_model::signed::HeaderEndorsement>,
}

impl World {
    fn new(seed: u64, count: u32) -> World {
        World::of(seed, count, Way::Aggregated)
    }

    fn of(seed: u64, count: u32, way: Way) -> World {
        let mut world = World {
            rng: Rng::new(seed),
            now_ms: 1_000,
            members: BTreeMap::new(),
            traitors: BTreeMap::new(),
            order: Vec::new(),
            network: Vec::new(),
            voters: (1..=count).collect(),
            leader: 1,
            loss: 0,
            key: None,
            batches: 0,
            proofs: 0,
            way,
            endorsed: Vec::new(),
        };
        (1..=count).for_each(|id| world.add(id));
        world
    }

    /// A member that begins with an empty disk.
    fn add(&mut self, id: u32) {
        let mut identity = [0; 32];
        self.rng.fill(&mut identity);
        self.members.insert(id, Member::new(self.rng.next_u64(), identity));
        self.start(id);
    }

    /// Starts a member, which replays the order.
    fn start(&mut self, id: u32) {
        let mut rng = Rng::new(self.rng.next_u64());
        let member = self.members.get_mut(&id).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(member.disk.clone());
        let me = Me { domain: domain(), id, identity: KeyPair::from_seed(&member.identity), way: self.way };
        let randomness = Box::new(move |bytes: &mut [u8]| rng.fill(bytes));
        member.quorum = Some(Quorum::new(me, Kept::new(disk), randomness));
        (member.keys, member.applied) = (GroupKeys::default(), 0);
        member.decided.clear();
        self.tell_group(id);
    }

    fn crash(&mut self, id: u32) {
        let member = self.members.get_mut(&id).unwrap();
        member.quorum = None;
        member.disk.cut_power();
        member.disk = member.disk.restart();
    }

    fn lead(&mut self, id: u32) {
        self.leader = id;
        self.members.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.tell_group(id));
    }

    fn tell_group(&mut self, id: u32) {
        let input = Input::Group { leader: Some(self.leader), voters: self.voters.clone() };
        self.step(id, input);
    }

    fn step(&mut self, id: u32, input: Input) {
        let member = self.members.get_mut(&id).unwrap();
        let Some(quorum) = &mut member.quorum else { return };
        let mut out = Vec::new();
        if quorum.step(input, &mut out).is_err() {
            assert!(member.disk.is_dead(), "only a crash ends a member");
            self.crash(id);
            return;
        }
        for output in out {
            match output {
                Output::Tell { to, message } => self.tell(id, to, message),
                Output::Signed { batch, signature } => self.signed(id, batch, signature),
                // A proposal may be lost with its leader.
                Output::Propose(step) if id == self.leader && !self.lost() => {
                    self.order.push(Entry::Key(step))
                }
                Output::FoundOut(fault) => self.found_out(&fault),
                Output::Contradicted(votes) => panic!("nobody said so: {votes:?}"),
                Output::Endorsement { endorsement, .. } => self.take_endorsement(id, *endorsement),
                Output::Propose(_) | Output::Share { .. } => {}
            }
        }
    }

    /// What convinces others is true: its member is a traitor.
    fn found_out(&mut self, fault: &SeenFault) {
        let Some(proof) = &fault.proof else { return };
        assert!(self.traitors.contains_key(&fault.member), "an honest member was proven to lie: {fault:?}");
        assert_eq!(proof.share.member, fault.member);
        self.proofs += 1;
    }

    fn lost(&mut self) -> bool {
        self.loss > 0 && self.rng.chance(1, self.loss)
    }

    fn signed(&mut self, id: u32, batch: BatchName, signature: BlsSignature) {
        let header = self.members[&id].decided.get(&batch).expect("it signs what it decided");
        let key = self.key.expect("there is a key before a signature");
        assert_eq!(verify_group(&key, Context::Batch, &encode(&header.header), &signature), Ok(()));
        header.set_signature(GroupSignature::Threshold(signature));
    }

    fn tell(&mut self, from: u32, to: u32, message: PeerMessage) {
        let Some(message) = self.corrupt(from, message) else { return };
        let copies = if self.lost() { self.rng.below(2) * 2 } else { 1 };
        for _ in 0..copies {
            let at_ms = self.now_ms + 1 + self.rng.below(2 * STEP_MS);
            self.network.push((at_ms, from, to, encode(&message)));
        }
    }

    fn corrupt(&mut self, from: u32, message: PeerMessage) -> Option<PeerMessage> {
        match (self.traitors.get(&from), message) {
            (Some(Traitor::WrongShares), PeerMessage::Share { phase, header, mut share, .. }) => {
                share.signature = self.garbage(share.signature);
                let statement = self.stated(from, phase, &header, &share);
                Some(PeerMessage::Share { phase, header, share, statement })
            }
            (Some(Traitor::LyingAggregator), PeerMessage::Signature { batch, signature }) => {
                Some(PeerMessage::Signature { batch, signature: self.garbage(signature) })
            }
            (Some(Traitor::SilentAggregator), PeerMessage::Signature { .. }) => None,
            (Some(Traitor::WrongDeals), PeerMessage::Deal(deal)) => {
                let mut bytes = encode(&*deal);
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                decode(&bytes).ok().map(|deal| PeerMessage::Deal(Box::new(deal)))
            }
            (_, message) => Some(message),
        }
    }

    /// A signature over something else: the group's over another batch when there is one, else no point at all.
    fn garbage(&self, signature: BlsSignature) -> BlsSignature {
        let signatures = self.members.values().flat_map(|member| member.decided.values());
        let other = signatures.filter_map(|header| match header.signature() {
            Some(GroupSignature::Threshold(other)) if *other != signature => Some(*other),
            _ => None,
        });
        other.into_iter().next().unwrap_or(BlsSignature([[7; 16]; 3]))
    }

    fn batch(&mut self) {
        self.batches += 1;
        let header = BatchHeader {
            domain: domain(),
            epoch: 1,
            index: Version(self.batches),
            count: 1,
            root: [self.batches as u8; 32],
        };
        self.order.push(Entry::Batch(header, false));
    }

    /// What a member says of its share.
    fn stated(&self, from: u32, phase: u64, header: &BatchHeader, share: &ShareSignature) -> Signature {
        let identity = KeyPair::from_seed(&self.members[&from].identity);
        identity.sign(Context::Share, &statement(phase, header, share))
    }

    /// A forger sends a share of a batch that nobody decided.
    fn forge(&mut self, from: u32) {
        let group = self.members[&from].keys.clone();
        let number = 1_000_000 + self.rng.below(1_000_000);
        let header =
            BatchHeader { domain: domain(), epoch: 1, index: Version(number), count: 1, root: [9; 32] };
        let quorum = self.members[&from].quorum.as_ref();
        let Some(share) = quorum.and_then(|quorum| quorum.dealing.share()) else { return };
        let share = share.1.sign(Context::Batch, &encode(&header)).unwrap();
        let statement = self.stated(from, group.phase(), &header, &share);
        let message = PeerMessage::Share { phase: group.phase(), header, share, statement };
        for to in self.voters.clone() {
            self.network.push((self.now_ms + 1, from, to, encode(&message)));
        }
    }

    fn apply(&mut self, id: u32) {
        let member = self.members.get_mut(&id).unwrap();
        if member.quorum.is_none() || member.applied >= self.order.len() || self.rng.chance(1, 3) {
            return;
        }
        let entry = self.order[member.applied].clone();
        member.applied += 1;
        match entry {
            Entry::Key(step) => {
                if member.keys.step(&domain(), step) {
                    if let Some(GroupKey::Threshold(key)) = member.keys.key() {
                        assert_eq!(*self.key.get_or_insert(key), key, "the group's key never changes");
                    }
                    let keys = Arc::new(member.keys.clone());
                    self.step(id, Input::Keys(keys));
                }
            }
            Entry::Batch(header, by_key) => {
                let targets =
                    if self.way == Way::Aggregated { vec![] } else { vec![Label::new("h1").unwrap()] };
                let mut header = DecidedHeader::unsigned(header, targets);
                header.by_key = by_key;
                let header = Arc::new(header);
                member.decided.insert(header.name(), header.clone());
                self.step(id, Input::Sign(Arc::downgrade(&header)));
            }
        }
    }

    fn pass(&mut self) {
        self.now_ms += STEP_MS;
        let now_ms = self.now_ms;
        let due: Vec<_> = self.network.extract_if(.., |(at_ms, ..)| *at_ms <= now_ms).collect();
        for (_, from, to, bytes) in due {
            if self.members.contains_key(&to) {
                self.step(to, Input::Peer { from, bytes });
            }
        }
        for id in self.members.keys().copied().collect::<Vec<_>>() {
            self.apply(id);
            if now_ms.is_multiple_of(TICK_MS) {
                self.step(id, Input::Tick { now_ms });
            }
        }
        let forgers: Vec<u32> =
            self.traitors.iter().filter(|(_, what)| **what == Traitor::Forger).map(|(id, _)| *id).collect();
        forgers.into_iter().for_each(|id| self.forge(id));
    }

    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let limit_ms = self.now_ms + 120_000;
        while !done(self) {
            assert!(self.now_ms < limit_ms, "{what}: {:?}", self.statuses());
            self.pass();
        }
    }

    fn statuses(&self) -> Vec<(u32, QuorumStatus)> {
        let running = self.members.iter();
        running.filter_map(|(id, member)| Some((*id, member.quorum.as_ref()?.status()))).collect()
    }

    fn running(&self) -> impl Iterator<Item = (&u32, &Member)> {
        self.members.iter().filter(|(id, member)| member.quorum.is_some() && self.voters.contains(id))
    }

    /// Every member that runs has a share of one phase, of which exactly the voters have one.
    fn dealt(&self) -> bool {
        let phase = self.running().map(|(_, member)| member.keys.phase()).max().unwrap_or(0);
        self.running().all(|(_, member)| {
            phase > 0
                && member.keys.phase() == phase
                && member.keys.members() == self.voters
                && member.share_phase() == phase
        })
    }

    fn all_signed(&self) -> bool {
        self.running().all(|(_, member)| member.applied == self.order.len() && member.unsigned() == 0)
    }

    fn form(&mut self) {
        self.until("every member has a share", World::dealt);
    }

    fn sign(&mut self, count: u64) {
        for _ in 0..count {
            self.batch();
            for _ in 0..self.rng.below(8) {
                self.pass();
            }
        }
        self.until("every batch is signed everywhere", World::all_signed);
    }

    /// Who was named, by whom.
    fn named(&self) -> BTreeSet<(u32, FaultKind)> {
        let honest = self.members.iter().filter(|(id, _)| !self.traitors.contains_key(id));
        let statuses = honest.filter_map(|(_, member)| {
            let in_order = member.keys.faults().iter().map(|(_, fault)| (fault.member, fault.what));
            let here = member.quorum.as_ref()?.status().faults;
            Some(
                in_order
                    .chain(here.into_iter().map(|(_, fault)| (fault.member, fault.what)))
                    .collect::<Vec<_>>(),
            )
        });
        statuses.flatten().collect()
    }

    fn phase(&self) -> u64 {
        self.members.values().map(|member| member.keys.phase()).max().unwrap_or(0)
    }
}

#[test]
fn members_make_a_key_and_sign_with_it() {
    for (seed, count) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 7)] {
        let mut world = World::new(seed, count);
        world.loss = if count > 1 { 10 } else { 0 };
        world.batch();
        world.form();
        world.sign(20);
        assert_eq!(world.named(), BTreeSet::new(), "nobody lied");
        let signatures = |id: u32| -> Vec<_> {
            world.members[&id].decided.values().map(|header| header.signature().cloned()).collect()
        };
        assert!((1..=count).all(|id| signatures(id) == signatures(1)), "the same bytes everywhere");
    }
}

#[test]
fn who_lies_is_named_and_stops_nothing() {
    use Traitor::*;
    for (number, traitor) in
        [WrongShares, LyingAggregator, SilentAggregator, Forger, WrongDeals].into_iter().enumerate()
    {
        for liar in [1, 3] {
            let mut world = World::new(100 + number as u64, 4);
            // Before it lies about signatures it must have a share, as a wrong dealer need not.
            if traitor == WrongDeals {
                world.traitors.insert(liar, traitor);
            }
            world.lead(2);
            world.form();
            world.sign(2);
            world.traitors.insert(liar, traitor);
            world.sign(10);
            let named = world.named();
            assert!(named.iter().all(|(member, _)| *member == liar), "{traitor:?}: {named:?}");
            let expected = match traitor {
                // Its own share it does not send when it is the aggregator.
                WrongShares if liar != 1 => Some(FaultKind::BadSignatureShare),
                LyingAggregator if liar == 1 => Some(FaultKind::BadGroupSignature),
                WrongDeals => Some(FaultKind::BadShare),
                _ => None,
            };
            if let Some(expected) = expected {
                assert!(named.contains(&(liar, expected)), "{traitor:?} by {liar}: {named:?}");
            }
            if expected == Some(FaultKind::BadSignatureShare) {
                assert!(world.proofs > 0, "its own statement convinces others");
            }
            assert!(world.phase() > 0);
        }
    }
}

#[test]
fn a_crash_at_any_change_of_a_disk_is_harmless() {
    for (seed, changes) in (0..14).map(|number| (200 + number, 1 + number)) {
        let mut world = World::new(seed, 3);
        let victim = 1 + (seed % 3) as u32;
        world.members[&victim].disk.cut_power_after(changes);
        for _ in 0..600 {
            world.pass();
        }
        if world.members[&victim].quorum.is_none() {
            world.start(victim);
        }
        if seed % 2 == 0 {
            world.lead(1 + victim % 3);
        }
        world.form();
        world.sign(3);
        // Everybody at once, with what is on disk.
        let before = world.phase();
        for id in 1..=3 {
            world.crash(id);
            world.start(id);
        }
        world.sign(2);
        assert_eq!(world.phase(), before, "shares outlive a crash");
    }
}

#[test]
fn members_come_and_go_and_the_key_stays() {
    let mut world = World::new(300, 3);
    world.loss = 20;
    world.form();
    world.sign(3);
    let (key, old) = (world.key, world.members[&3].keys.group().unwrap().clone());
    let share = |world: &World, id: u32| {
        let (phase, secret) = world.members[&id].quorum.as_ref().unwrap().dealing.share().unwrap();
        (phase, secret.sign(Context::Batch, b"message").unwrap())
    };
    let (first_phase, stolen) = share(&world, 3);

    // One more, one less, and the one that went keeps no share.
    world.add(4);
    world.voters.insert(4);
    world.lead(2);
    world.batch();
    world.form();
    world.sign(3);
    world.voters.remove(&3);
    world.lead(2);
    world.form();
    world.until("the member that went knows", |world| world.members[&3].share_phase() == 0);
    world.sign(3);

    // One has lost its disk, under the same number.
    world.members.remove(&1);
    world.add(1);
    world.form();
    world.sign(2);

    // New shares of the same members, by command.
    let before = world.phase();
    world.step(2, Input::Refresh);
    world.until("new shares", |world| world.phase() > before);
    world.form();
    world.sign(2);
    assert_eq!(world.key, key);
    assert_eq!(world.named(), BTreeSet::new());

    // A share of an old phase is worth nothing beside new ones.
    let (phase, new) = share(&world, 4);
    assert!(phase > first_phase);
    let mixed = combine(&[stolen, new]).unwrap();
    assert!(verify_group(&key.unwrap(), Context::Batch, b"message", &mixed).is_err());
    assert_eq!(old.key(), key.unwrap());
}

#[test]
fn an_aggregator_that_is_gone_is_replaced() {
    let mut world = World::new(400, 4);
    world.lead(3);
    world.form();
    world.crash(1);
    world.sign(5);
    assert_eq!(world.members[&3].quorum.as_ref().unwrap().status().aggregator, Some(2));
    world.start(1);
    world.until("who came back is asked again", |world| {
        world.members[&3].quorum.as_ref().unwrap().status().aggregator == Some(1)
    });
    world.sign(5);
    assert_eq!(world.named(), BTreeSet::new());
}

#[test]
fn a_group_that_is_idle_suspects_nobody_and_knows_who_is_gone_before_it_needs_it() {
    let mut world = World::new(450, 4);
    world.lead(3);
    world.form();
    let status = |world: &World, id: u32| world.members[&id].quorum.as_ref().unwrap().status();
    let idle = |world: &mut World, ms: u64| {
        let until_ms = world.now_ms + ms;
        while world.now_ms < until_ms {
            world.pass();
        }
    };
    idle(&mut world, 60_000);
    for id in 1..=4 {
        let status = status(&world, id);
        assert_eq!((status.counters.failed, status.passed_over.len()), (0, 0), "{status:?}");
    }
    let passed_on = status(&world, 3).counters.passed_on;
    world.crash(1);
    world.until("the others know", |world| {
        [2, 3, 4].iter().all(|id| {
            let status = status(world, *id);
            status.aggregator == Some(2)
                && status.suspicion[&1] >= 1000
                && status.passed_over == BTreeMap::from([(1, false)])
        })
    });
    world.sign(3);
    assert_eq!(status(&world, 3).counters.passed_on, passed_on, "no batch waited for who is gone");
    world.start(1);
    world.until("it is known to be back", |world| {
        [2, 3, 4].iter().all(|id| status(world, *id).aggregator == Some(1))
    });
    world.sign(3);
    assert_eq!(world.named(), BTreeSet::new());
}

#[test]
fn a_leader_may_go_in_the_middle_of_a_round() {
    for seed in 500..508 {
        let mut world = World::new(seed, 4);
        for _ in 0..(seed - 500) * 6 {
            world.pass();
        }
        let gone = world.leader;
        world.crash(gone);
        world.lead(2);
        for _ in 0..40 {
            world.pass();
        }
        world.start(gone);
        world.form();
        world.sign(2);
    }
}

#[test]
fn what_comes_from_another_member_is_no_message_or_is_taken() {
    bolero::check!().with_iterations(2_000).for_each(|bytes: &[u8]| {
        let mut world = World::new(1, 2);
        world.step(1, Input::Peer { from: 2, bytes: bytes.to_vec() });
        assert!(world.members[&1].quorum.is_some());
    });
}
