use super::*;
use weir_model::Version;
use weir_model::signed::BatchHeader;
use weir_trust::identity::KeyPair;
use weir_trust::threshold::{Dealer, Ledger, MemberSecret, Members, Player, Round};

/// A group of four with all its secrets, of which three must sign.
fn group() -> (GroupKey, Vec<MemberSecret>) {
    let key = |id: u32| KeyPair::from_seed(&[id as u8; 32]);
    let members: Members = (1..=4).map(|id| (id, key(id).public())).collect();
    let round = Round::fresh(weir_model::Label::new("d").unwrap(), 1, members).unwrap();
    let mut players: Vec<Player> = (1..=4).map(|id| Player::new(round.clone(), id).unwrap()).collect();
    let mut ledger = Ledger::new(round.clone());
    for id in 1..=4_u32 {
        let mut next = id as u8;
        let mut randomness = |bytes: &mut [u8]| {
            for byte in bytes {
                next = next.wrapping_mul(37).wrapping_add(11);
                *byte = next;
            }
        };
        let mut dealer = Dealer::new(round.clone(), id, None, &mut randomness).unwrap();
        for (player, number) in players.iter_mut().zip(1..) {
            let ack = player.take(&dealer.deal(number).unwrap(), &key(number)).unwrap();
            dealer.take_ack(&ack).unwrap();
        }
        ledger.add(&dealer.log(&key(id)).unwrap()).unwrap();
    }
    let finished: Vec<_> = players.iter().map(|player| player.finish(&ledger).unwrap()).collect();
    let key = GroupKey::Threshold(finished[0].0.key());
    (key, finished.into_iter().map(|(_, secret)| secret).collect())
}

fn header(number: u8) -> BatchHeader {
    let domain = weir_model::Label::new("d").unwrap();
    BatchHeader { domain, epoch: 1, index: Version(u64::from(number)), count: 1, root: [number; 32] }
}

fn unsigned(number: u8) -> UnsignedUpdates {
    UnsignedUpdates { header: header(number), updates: Vec::new() }
}

/// A share of batch `number` that says it is of batch `under`.
fn share(secret: &MemberSecret, number: u8, under: u8) -> HeaderShare {
    let signed = secret.sign(Context::Batch, &encode(&header(number))).unwrap();
    let (member, signature) = (signed.member, signed.signature);
    HeaderShare { header: header(under), phase: 1, threshold: 3, member, signature }
}

#[test]
fn updates_go_as_soon_as_enough_shares_are_there_in_any_order() {
    let (key, secrets) = group();
    for updates_come_at in 0..5 {
        let mut shares = Shares::new(Some(&key));
        let mut released = 0;
        for at in 0..5 {
            let combined = if at == updates_come_at {
                shares.unsigned(unsigned(1))
            } else {
                let member = if at > updates_come_at { at - 1 } else { at };
                shares.share(member as u64, share(&secrets[member], 1, 1))
            };
            assert!(combined.bad.is_empty(), "{:?}", combined.bad);
            for updates in &combined.updates {
                let GroupSignature::Threshold(signature) = &updates.header.signature else { panic!() };
                let verifier = Shares::new(Some(&key)).key.unwrap();
                assert_eq!(verifier.verify(Context::Batch, &encode(&header(1)), signature), Ok(()));
            }
            released += combined.updates.len();
        }
        assert_eq!((released, shares.counters.checks, shares.counters.combined), (1, 1, 1));
        // What comes later of the same batch goes at once.
        assert_eq!(shares.unsigned(unsigned(1)).updates.len(), 1);
    }
}

#[test]
fn a_bad_share_is_found_and_its_session_named() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    shares.unsigned(unsigned(1));
    assert_eq!(shares.share(10, share(&secrets[0], 2, 1)), Combined::default());
    assert_eq!(shares.share(20, share(&secrets[1], 1, 1)), Combined::default());
    assert_eq!(shares.share(30, share(&secrets[2], 1, 1)), Combined::default(), "one of three is bad");
    let combined = shares.share(40, share(&secrets[3], 1, 1));
    assert_eq!((combined.updates.len(), combined.bad), (1, vec![10]));
    // Another one's name on a bad share does not put the blame on that one.
    shares.unsigned(unsigned(3));
    let stolen = HeaderShare { member: 2, ..share(&secrets[0], 2, 3) };
    shares.share(10, stolen);
    shares.share(20, share(&secrets[1], 3, 3));
    shares.share(30, share(&secrets[2], 3, 3));
    let combined = shares.share(40, share(&secrets[3], 3, 3));
    assert_eq!((combined.updates.len(), combined.bad), (1, vec![10]));
    assert_eq!(shares.counters.bad, 2);
}

#[test]
fn what_a_liar_sends_is_bounded() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    for number in 0..=255_u8 {
        for threshold in [0, 1, 2, u32::MAX] {
            let lie = HeaderShare { threshold, ..share(&secrets[0], 1, number) };
            assert_eq!(shares.share(u64::from(threshold), lie), Combined::default());
        }
        shares.unsigned(unsigned(number));
    }
    assert!(shares.batches.len() <= BATCHES_MAX);
    assert_eq!(Shares::new(None).unsigned(unsigned(1)), Combined::default());
}
