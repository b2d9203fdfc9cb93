//! Rounds of dealing and resharing from a seed, with traitors among dealers and players; and groups made
//! so for other tests of the crate.

use super::*;
use crate::identity::{Context, KeyPair};
use std::collections::{BTreeMap, BTreeSet};
use weir_base::world::Rng;
use weir_model::Label;
use weir_model::signed::{GroupKey, GroupSignature, Signature};

/// What a traitor does when it deals and when it plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traitor {
    /// Deals nothing and acknowledges nothing.
    Silent,
    /// Deals up to f players somebody else's share.
    WrongToSome,
    /// Deals everybody somebody else's share, and publishes acks that it made up.
    WrongToAll,
    /// Commits to one polynomial for odd players and to another for even ones.
    Equivocates,
    /// Deals a secret that is not its share of the key; in a fresh round that is its right.
    OtherSecret,
    /// Reveals a share that does not fit.
    BadReveal,
    /// Acknowledges with a signature that does not verify.
    ForgesAcks,
}

const TRAITORS: [Traitor; 7] = [
    Traitor::Silent,
    Traitor::WrongToSome,
    Traitor::WrongToAll,
    Traitor::Equivocates,
    Traitor::OtherSecret,
    Traitor::BadReveal,
    Traitor::ForgesAcks,
];

const NO_SIGNATURE: Signature = Signature { r: [1; 32], s: [2; 32] };

pub(crate) fn identity(member: u32) -> KeyPair {
    let mut seed = [7; 32];
    seed[..4].copy_from_slice(&member.to_le_bytes());
    KeyPair::from_seed(&seed)
}

pub(crate) fn members(ids: impl IntoIterator<Item = u32>) -> Members {
    ids.into_iter().map(|id| (id, identity(id).public())).collect()
}

pub(crate) fn domain() -> Label {
    Label::new("prod").unwrap()
}

/// A group with all secrets of its honest members.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) public: GroupPublic,
    pub(crate) secrets: BTreeMap<u32, MemberSecret>,
}

impl Group {
    /// The shares of the first `count` honest members.
    pub(crate) fn shares(&self, context: Context, message: &[u8], count: usize) -> Vec<ShareSignature> {
        self.secrets.values().take(count).map(|secret| secret.sign(context, message).unwrap()).collect()
    }
}

impl crate::batch::GroupSigner for Group {
    fn group_key(&self) -> GroupKey {
        GroupKey::Threshold(self.public.key())
    }

    fn sign(&self, message: &[u8]) -> GroupSignature {
        let shares = self.shares(Context::Batch, message, self.public.threshold());
        GroupSignature::Threshold(combine(&shares).unwrap())
    }
}

/// A group of `count` honest members, 1 to `count`.
pub(crate) fn group(count: u32, seed: u64) -> Group {
    let round = Round::fresh(domain(), 1, members(1..=count)).unwrap();
    Run::new(round, None, BTreeMap::new(), seed).finish()
}

/// One round with everything that happens in it.
struct Run<'g> {
    round: Round,
    previous: Option<&'g Group>,
    traitors: BTreeMap<u32, Traitor>,
    players: BTreeMap<u32, Player>,
    faults: BTreeSet<Fault>,
    rng: Rng,
}

impl<'g> Run<'g> {
    fn new(
        round: Round,
        previous: Option<&'g Group>,
        traitors: BTreeMap<u32, Traitor>,
        seed: u64,
    ) -> Run<'g> {
        let player = |id: &u32| (*id, Player::new(round.clone(), *id).unwrap());
        let players = round.players().keys().map(player).collect();
        Run { round, previous, traitors, players, faults: BTreeSet::new(), rng: Rng::new(seed) }
    }

    fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for at in (1..items.len()).rev() {
            items.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        items
    }

    fn dealer(&mut self, me: u32, round: &Round) -> Dealer {
        let share = match self.previous {
            Some(group) if round.id() == self.round.id() => group.secrets.get(&me),
            _ => None,
        };
        let rng = &mut self.rng;
        Dealer::new(round.clone(), me, share, &mut |bytes| rng.fill(bytes)).unwrap()
    }

    /// Hands a deal to its player, and the ack back; both may be a traitor's.
    fn deliver(&mut self, dealer: &mut Dealer, player: u32, deal: &Deal) {
        let key = identity(player);
        let acked = self.players.get_mut(&player).unwrap().take(deal, &key);
        let mut ack = match acked {
            Ok(ack) => ack,
            Err(fault) => {
                self.faults.insert(fault);
                return;
            }
        };
        match self.traitors.get(&player) {
            Some(Traitor::Silent) => return,
            Some(Traitor::ForgesAcks) => ack.signature = NO_SIGNATURE,
            _ => {}
        }
        if let Err(fault) = dealer.take_ack(&ack) {
            // An equivocating dealer gets acks for its other face; that is no fault of the player.
            if fault.what == FaultKind::BadSignature {
                self.faults.insert(fault);
            }
        }
    }

    fn deal(&mut self, me: u32) -> Option<DealLog> {
        let key = identity(me);
        let ids: Vec<u32> = self.round.players().keys().copied().collect();
        let ids = self.shuffled(ids);
        let traitor = self.traitors.get(&me).copied();
        if traitor == Some(Traitor::Silent) {
            return None;
        }
        if traitor == Some(Traitor::OtherSecret) && self.previous.is_some() {
            return Some(self.deal_other_secret(me, &ids));
        }
        let round = self.round.clone();
        let mut dealer = self.dealer(me, &round);
        let mut other = (traitor == Some(Traitor::Equivocates)).then(|| {
            let fresh = Round::fresh(domain(), 99, round.players().clone()).unwrap();
            let base = if self.previous.is_some() { &round } else { &fresh };
            let fresh_me =
                if round.players().contains_key(&me) || self.previous.is_some() { me } else { ids[0] };
            self.dealer(fresh_me, base)
        });
        for (nth, player) in ids.iter().enumerate() {
            let mut deal = dealer.deal(*player).unwrap();
            let somebody = ids[(nth + 1) % ids.len()];
            match traitor {
                Some(Traitor::WrongToSome) if nth < self.round.reveals_max() => {
                    deal.share = dealer.deal(somebody).unwrap().share;
                }
                Some(Traitor::WrongToAll) => deal.share = dealer.deal(somebody).unwrap().share,
                Some(Traitor::Equivocates) if player % 2 == 0 => {
                    deal = other.as_mut().unwrap().deal(*player).unwrap();
                    deal.round = self.round.id();
                    deal.dealer = me;
                }
                _ => {}
            }
            self.deliver(&mut dealer, *player, &deal);
        }
        match traitor {
            Some(Traitor::WrongToAll | Traitor::Equivocates) => Some(made_up(&dealer, &round, me, &key)),
            Some(Traitor::BadReveal) => {
                let honest = dealer.log(&key)?;
                let mut answers = honest.answers;
                let (victim, somebody) = (ids[0], ids[1]);
                answers.insert(victim, Answer::Revealed(dealer.deal(somebody).unwrap().share));
                Some(DealLog::sign(&key, self.round.id(), me, honest.commitment, answers))
            }
            _ => dealer.log(&key),
        }
    }

    fn deal_other_secret(&mut self, me: u32, ids: &[u32]) -> DealLog {
        let mut with_me = self.round.players().clone();
        with_me.insert(me, identity(me).public());
        let fresh = Round::fresh(domain(), 99, with_me).unwrap();
        let mut dealer = self.dealer(me, &fresh);
        for player in ids {
            let deal = Deal { round: self.round.id(), ..dealer.deal(*player).unwrap() };
            self.deliver(&mut dealer, *player, &deal);
        }
        made_up(&dealer, &self.round, me, &identity(me))
    }

    /// All deal; the order takes the logs in any order.
    fn ledger(&mut self) -> Ledger {
        let dealers: Vec<u32> = self.round.dealers().keys().copied().collect();
        let dealers = self.shuffled(dealers);
        let logs: Vec<DealLog> = dealers.into_iter().filter_map(|dealer| self.deal(dealer)).collect();
        let logs = self.shuffled(logs);
        let mut ledger = Ledger::new(self.round.clone());
        for log in &logs {
            if let Err(fault) = ledger.add(log) {
                self.faults.insert(fault);
            }
        }
        ledger
    }

    /// Runs the round; every honest player must come to the same group.
    fn run(&mut self) -> Group {
        let ledger = self.ledger();
        let public = ledger.outcome().unwrap();
        let mut secrets = BTreeMap::new();
        for (id, player) in &self.players {
            if !self.traitors.contains_key(id) {
                let (group, secret) = player.finish(&ledger).unwrap();
                assert_eq!(group, public);
                secrets.insert(*id, secret);
            }
        }
        Group { public, secrets }
    }

    fn finish(mut self) -> Group {
        let group = self.run();
        assert_eq!(self.faults, BTreeSet::new());
        group
    }
}

/// A log with acks that nobody gave.
fn made_up(dealer: &Dealer, round: &Round, me: u32, key: &KeyPair) -> DealLog {
    let any = *round.players().keys().next().unwrap();
    let commitment = dealer.deal(any).unwrap().commitment;
    let answers = round.players().keys().map(|player| (*player, Answer::Acked(NO_SIGNATURE))).collect();
    DealLog::sign(key, round.id(), me, commitment, answers)
}

/// Chooses at most f traitors among `ids`.
fn choose_traitors(rng: &mut Rng, ids: &[u32], most: usize) -> BTreeMap<u32, Traitor> {
    (0..most)
        .map(|_| {
            let id = ids[rng.below(ids.len() as u64) as usize];
            (id, TRAITORS[rng.below(TRAITORS.len() as u64) as usize])
        })
        .collect()
}

/// Only traitors are blamed.
fn check_faults(faults: &BTreeSet<Fault>, traitors: &BTreeMap<u32, Traitor>) {
    for fault in faults {
        assert!(traitors.contains_key(&fault.member), "an honest member is blamed: {fault}");
    }
}

/// Any threshold of honest shares signs for the group's key; one less does not.
fn check_signing(group: &Group, key: &weir_model::signed::BlsKey, rng: &mut Rng) {
    assert_eq!(group.public.key(), *key);
    let message = rng.next_u64().to_le_bytes();
    let mut shares = group.shares(Context::Batch, &message, usize::MAX);
    assert!(shares.len() >= group.public.threshold());
    while shares.len() > group.public.threshold() {
        shares.swap_remove(rng.below(shares.len() as u64) as usize);
    }
    let signature = combine(&shares).unwrap();
    assert_eq!(verify_group(key, Context::Batch, &message, &signature), Ok(()));
    shares.pop();
    if let Ok(signature) = combine(&shares) {
        assert!(verify_group(key, Context::Batch, &message, &signature).is_err());
    }
}

/// One seed: a key is made with traitors about, then the membership changes again and again.
fn live(seed: u64) {
    let mut rng = Rng::new(seed);
    let count = 4 + rng.below(4) as u32;
    let ids: Vec<u32> = (1..=count).collect();
    let traitors = choose_traitors(&mut rng, &ids, faulty_max(ids.len()));
    let round = Round::fresh(domain(), 1, members(ids)).unwrap();
    let mut run = Run::new(round, None, traitors.clone(), rng.next_u64());
    let mut group = run.run();
    check_faults(&run.faults, &traitors);
    let key = group.public.key();
    check_signing(&group, &key, &mut rng);
    for (next_id, phase) in (count + 1..).zip(2..6) {
        let mut players: Vec<u32> = group.public.members().iter().copied().collect();
        match rng.below(4) {
            0 => {}
            1 => players.push(next_id),
            2 if players.len() > 4 => drop(players.remove(rng.below(players.len() as u64) as usize)),
            _ => {
                let at = rng.below(players.len() as u64) as usize;
                players[at] = next_id;
            }
        }
        // Old traitors have no share that the simulation knows, so only honest members deal, and new traitors
        // are chosen among all; as many as leave enough honest dealers.
        let dealers: Vec<u32> = group.secrets.keys().copied().collect();
        let spare = dealers.len() - group.public.threshold();
        let most = spare.min(faulty_max(players.len()));
        let traitors = choose_traitors(&mut rng, &players, most);
        let round = Round::reshare(domain(), phase, group.public.clone(), members(dealers), members(players))
            .unwrap();
        let mut run = Run::new(round, Some(&group), traitors.clone(), rng.next_u64());
        let next = run.run();
        check_faults(&run.faults, &traitors);
        check_signing(&next, &key, &mut rng);
        check_phases_do_not_mix(&group, &next, &mut rng);
        group = next;
    }
}

fn check_phases_do_not_mix(old: &Group, new: &Group, rng: &mut Rng) {
    let message = rng.next_u64().to_le_bytes();
    let mut shares = new.shares(Context::Batch, &message, new.public.threshold());
    let first = shares[0].member;
    let Some(secret) = old.secrets.get(&first) else { return };
    shares[0] = secret.sign(Context::Batch, &message).unwrap();
    let signature = combine(&shares).unwrap();
    assert!(verify_group(&new.public.key(), Context::Batch, &message, &signature).is_err());
}

#[test]
fn groups_live_through_changes_with_traitors() {
    for seed in 0..12 {
        live(seed);
    }
}

/// One traitor of a kind among four, in a fresh round and in a resharing one: what it is blamed for.
fn blamed(traitor: Traitor, reshare: bool) -> BTreeSet<FaultKind> {
    let honest = group(4, 3);
    let round = if reshare {
        Round::reshare(domain(), 2, honest.public.clone(), members(1..=4), members(1..=4)).unwrap()
    } else {
        Round::fresh(domain(), 2, members(1..=4)).unwrap()
    };
    let traitors = BTreeMap::from([(2, traitor)]);
    let mut run = Run::new(round, reshare.then_some(&honest), traitors.clone(), 11);
    let group = run.run();
    assert_eq!(group.public.key() == honest.public.key(), reshare);
    check_faults(&run.faults, &traitors);
    run.faults.iter().map(|fault| fault.what).collect()
}

#[test]
fn every_traitor_is_named_for_what_it_did() {
    use FaultKind::*;
    for reshare in [false, true] {
        assert_eq!(blamed(Traitor::Silent, reshare), BTreeSet::new());
        assert_eq!(blamed(Traitor::WrongToSome, reshare), BTreeSet::from([BadShare]));
        assert_eq!(blamed(Traitor::WrongToAll, reshare), BTreeSet::from([BadShare, BadLog]));
        assert_eq!(blamed(Traitor::Equivocates, reshare), BTreeSet::from([BadLog]));
        assert_eq!(blamed(Traitor::BadReveal, reshare), BTreeSet::from([BadLog]));
        assert_eq!(blamed(Traitor::ForgesAcks, reshare), BTreeSet::from([BadSignature]));
    }
    assert_eq!(blamed(Traitor::OtherSecret, false), BTreeSet::new());
    assert_eq!(blamed(Traitor::OtherSecret, true), BTreeSet::from([BadCommitment]));
}

#[test]
fn the_sum_of_a_seed_does_not_change() {
    // A canary: the whole simulation is a function of its seed.
    assert_eq!(group(4, 1).public, group(4, 1).public);
    assert_ne!(group(4, 1).public, group(4, 2).public);
}
