use super::*;
use crate::threshold::simulation::{domain, group, members};
use weir_base::codec::decode;
use weir_base::world::Rng;

fn key(member: u32) -> KeyPair {
    let mut seed = [7; 32];
    seed[..4].copy_from_slice(&member.to_le_bytes());
    KeyPair::from_seed(&seed)
}

fn round() -> Round {
    Round::fresh(domain(), 1, members(1..=4)).unwrap()
}

fn dealer(round: &Round, me: u32) -> Dealer {
    let mut rng = Rng::new(u64::from(me));
    Dealer::new(round.clone(), me, None, &mut |bytes| rng.fill(bytes)).unwrap()
}

#[test]
fn rounds_that_cannot_work_are_refused() {
    let old = group(4, 1).public;
    let reshare =
        |dealers: Members, players: Members| Round::reshare(domain(), 2, old.clone(), dealers, players);
    assert!(Round::fresh(domain(), 1, members([])).is_err());
    assert!(Round::fresh(domain(), 1, members(0..4)).is_err(), "id 0");
    assert!(Round::fresh(domain(), 1, members(1..=65)).is_err(), "too many");
    assert!(reshare(members(1..=2), members(1..=4)).is_err(), "too few dealers");
    assert!(reshare(members(2..=5), members(1..=4)).is_err(), "a dealer without a share");
    assert!(reshare(members(1..=3), members(5..=8)).is_ok(), "all are replaced");
}

#[test]
fn rounds_differ_in_name_by_every_fact() {
    let other = |phase, count| Round::fresh(domain(), phase, members(1..=count)).unwrap().id();
    assert_eq!(round().id(), other(1, 4));
    assert_ne!(round().id(), other(2, 4));
    assert_ne!(round().id(), other(1, 5));
}

#[test]
fn a_dealer_waits_for_all_but_f_acks_and_reveals_the_rest() {
    let round = round();
    let mut dealer = dealer(&round, 1);
    for player in [4, 2, 1] {
        assert!(dealer.log(&key(1)).is_none(), "{:?}", dealer.missing().collect::<Vec<_>>());
        let ack =
            Player::new(round.clone(), player).unwrap().take(&dealer.deal(player).unwrap(), &key(player));
        dealer.take_ack(&ack.unwrap()).unwrap();
    }
    assert_eq!(dealer.missing().collect::<Vec<_>>(), [3]);
    let log = dealer.log(&key(1)).unwrap();
    assert_eq!(log.answers[&3], Answer::Revealed(dealer.deal(3).unwrap().share));
    assert_eq!(Ledger::new(round).add(&log), Ok(Progress::Needs(2)));
}

#[test]
fn a_player_takes_one_commitment_a_dealer_and_answers_again_after_a_restart() {
    let round = round();
    let mut player = Player::new(round.clone(), 2).unwrap();
    let first = dealer(&round, 1).deal(2).unwrap();
    let ack = player.take(&first, &key(2)).unwrap();
    assert_eq!(player.take(&first, &key(2)), Ok(ack.clone()));
    assert_eq!(Player::new(round.clone(), 2).unwrap().take(&first, &key(2)), Ok(ack));
    let mut other = dealer(&round, 3).deal(2).unwrap();
    other.dealer = 1;
    assert_eq!(player.take(&other, &key(2)), Err(Fault { member: 1, what: FaultKind::Equivocated }));
    let elsewhere = Deal { round: [0; 32], ..first.clone() };
    assert_eq!(player.take(&elsewhere, &key(2)), Err(Fault { member: 1, what: FaultKind::WrongRound }));
    let stranger = Deal { dealer: 9, ..first };
    assert_eq!(player.take(&stranger, &key(2)), Err(Fault { member: 9, what: FaultKind::NotMember }));
}

/// All four deal and play; the logs.
fn logs(round: &Round, players: &mut [Player]) -> Vec<DealLog> {
    (1..=4)
        .map(|me| {
            let mut dealer = dealer(round, me);
            for (at, player) in players.iter_mut().enumerate() {
                let id = at as u32 + 1;
                let ack = player.take(&dealer.deal(id).unwrap(), &key(id)).unwrap();
                dealer.take_ack(&ack).unwrap();
            }
            dealer.log(&key(me)).unwrap()
        })
        .collect()
}

#[test]
fn the_first_logs_of_the_order_make_the_group() {
    let round = round();
    let mut players: Vec<Player> = (1..=4).map(|id| Player::new(round.clone(), id).unwrap()).collect();
    let logs = logs(&round, &mut players);
    let mut ledger = Ledger::new(round.clone());
    assert_eq!(ledger.outcome(), Err(TrustError::RoundOpen { given: 0, wanted: 3 }));
    assert_eq!(ledger.add(&logs[3]), Ok(Progress::Needs(2)));
    assert_eq!(ledger.add(&logs[3]), Ok(Progress::Needs(2)), "once more");
    assert_eq!(ledger.add(&logs[0]), Ok(Progress::Needs(1)));
    assert_eq!(ledger.add(&logs[1]), Ok(Progress::Complete));
    let outcome = ledger.outcome().unwrap();
    assert_eq!(ledger.add(&logs[2]), Ok(Progress::Complete), "too late to count");
    assert_eq!(ledger.outcome().unwrap(), outcome);
    for player in &players {
        assert_eq!(player.finish(&ledger).unwrap().0, outcome);
    }
    let forgetful = Player::new(round, 2).unwrap();
    assert_eq!(forgetful.finish(&ledger).err(), Some(TrustError::ShareLost(1)));
}

#[test]
fn a_changed_log_does_not_count() {
    let round = round();
    let mut players: Vec<Player> = (1..=4).map(|id| Player::new(round.clone(), id).unwrap()).collect();
    let log = logs(&round, &mut players).remove(0);
    let refused = |change: &dyn Fn(&mut DealLog)| {
        let mut changed = log.clone();
        change(&mut changed);
        Ledger::new(round.clone()).add(&changed).err().map(|fault| fault.what)
    };
    assert_eq!(refused(&|_| {}), None);
    assert_eq!(refused(&|log| log.signature.r[0] ^= 1), Some(FaultKind::BadSignature));
    assert_eq!(refused(&|log| log.dealer = 2), Some(FaultKind::BadSignature));
    assert_eq!(refused(&|log| log.dealer = 7), Some(FaultKind::NotMember));
    assert_eq!(refused(&|log| log.round = [0; 32]), Some(FaultKind::WrongRound));
    let signed = |change: &dyn Fn(&mut BTreeMap<u32, Answer>)| {
        let mut answers = log.answers.clone();
        change(&mut answers);
        let log = DealLog::sign(&key(1), round.id(), 1, log.commitment.clone(), answers);
        Ledger::new(round.clone()).add(&log).err().map(|fault| fault.what)
    };
    let share = |player| Answer::Revealed(dealer(&round, 1).deal(player).unwrap().share);
    assert_eq!(signed(&|answers| drop(answers.insert(2, share(2)))), None);
    assert_eq!(signed(&|answers| drop(answers.insert(2, share(3)))), Some(FaultKind::BadLog));
    assert_eq!(signed(&|answers| drop(answers.remove(&2))), Some(FaultKind::BadLog));
    assert_eq!(signed(&|answers| drop(answers.insert(9, share(2)))), Some(FaultKind::BadLog));
    let two = |answers: &mut BTreeMap<u32, Answer>| answers.extend([(2, share(2)), (3, share(3))]);
    assert_eq!(signed(&two), Some(FaultKind::BadLog), "two revealed, one allowed");
}

#[test]
fn nothing_secret_is_printed() {
    let round = round();
    let dealer = dealer(&round, 1);
    let shown = format!("{dealer:?} {:?}", dealer.deal(2).unwrap().share);
    assert_eq!(shown, "Dealer { member: 1, phase: 1, acks: 0 } SecretShare(secret)");
}

#[test]
fn any_bytes_decode_to_a_message_or_an_error() {
    bolero::check!().with_iterations(500).for_each(|bytes: &[u8]| {
        if let Ok(deal) = decode::<Deal>(bytes) {
            assert_eq!(encode(&deal), bytes);
        }
        let _ = decode::<DealAck>(bytes);
        let _ = decode::<DealLog>(bytes);
        let _ = decode::<Round>(bytes);
    });
}
