use super::*;
use weir_model::entry::Vni;
use weir_model::signed::{BatchHeader, ProvenUpdate};
use weir_model::{Change, Update};
use weir_trust::batch::prepare_batch;
use weir_trust::identity::KeyPair;
use weir_trust::threshold::{Dealer, Ledger, MemberSecret, Members, Player, Round};

/// A group of four with all its secrets, of which three must sign.
pub(super) fn group() -> (GroupKey, Vec<MemberSecret>) {
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

/// The two updates of a batch.
fn batch(number: u8) -> (BatchHeader, Vec<ProvenUpdate>) {
    let version = Version(u64::from(number));
    let update = |vni: u32| Update {
        target: weir_model::Label::new("h1").unwrap(),
        key: Key::Network { vni: Vni(vni) },
        version,
        expected: Version::ZERO,
        change: Change::Delete,
    };
    let updates = vec![update(u32::from(number)), update(1_000 + u32::from(number))];
    prepare_batch(&weir_model::Label::new("d").unwrap(), 1, version, updates).unwrap()
}

pub(super) fn header(number: u8) -> BatchHeader {
    batch(number).0
}

pub(super) fn unsigned(number: u8) -> UnsignedUpdates {
    let (header, mut updates) = batch(number);
    updates.truncate(1);
    UnsignedUpdates { header, updates }
}

/// The other update of the batch.
fn rest(number: u8) -> UnsignedUpdates {
    let (header, mut updates) = batch(number);
    UnsignedUpdates { header, updates: updates.split_off(1) }
}

/// What the gate answers to frames: it checks what the agent did not.
fn gate(key: &GroupKey, frames: &[SignedUpdates]) -> Vec<Ack> {
    let verifier = Shares::new(Some(key)).key.unwrap();
    let judged = frames.iter().flat_map(|frame| {
        let GroupSignature::Threshold(signature) = &frame.header.signature else { panic!() };
        let right = verifier.verify(Context::Batch, &encode(&frame.header.header), signature).is_ok();
        frame.updates.iter().map(move |proven| Ack {
            key: proven.update.key.clone(),
            version: proven.update.version,
            result: if right { Ok(()) } else { Err(Refusal::Forged) },
        })
    });
    judged.collect()
}

/// A share of batch `number` that says it is of batch `under`.
pub(super) fn share(secret: &MemberSecret, number: u8, under: u8) -> HeaderShare {
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
                shares.unsigned(0, unsigned(1))
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
        assert_eq!((released, shares.counters.checks, shares.counters.combined), (1, 0, 1));
        // What comes later of the same batch goes at once.
        assert_eq!(shares.unsigned(0, unsigned(1)).updates.len(), 1);
    }
}

#[test]
fn a_bad_share_is_found_and_its_session_named() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    shares.unsigned(0, unsigned(1));
    assert_eq!(shares.share(10, share(&secrets[0], 2, 1)), Combined::default());
    assert_eq!(shares.share(20, share(&secrets[1], 1, 1)), Combined::default());
    // One of three is bad, and nobody knows that yet but the gate. Its answer goes no further.
    let hoped = shares.share(30, share(&secrets[2], 1, 1));
    assert_eq!((hoped.updates.len(), shares.counters.checks), (1, 0));
    let acks = gate(&key, &hoped.updates);
    assert_eq!(acks[0].result, Err(Refusal::Forged));
    let told = shares.acked(&acks, None);
    let costly = vec![10, 20, 30];
    assert_eq!(told, Some(Combined { costly, ..Combined::default() }), "three shares, one of them bad");
    let combined = shares.share(40, share(&secrets[3], 1, 1));
    assert_eq!((combined.updates.len(), &combined.bad[..]), (1, &[10][..]));
    let acks = gate(&key, &combined.updates);
    assert_eq!(
        (acks[0].result.clone(), shares.acked(&acks, None)),
        (Ok(()), None),
        "this one is for the controllers"
    );
    // Another one's name on a bad share does not put the blame on that one.
    shares.unsigned(0, unsigned(3));
    let stolen = HeaderShare { member: 2, ..share(&secrets[0], 2, 3) };
    shares.share(10, stolen);
    shares.share(20, share(&secrets[1], 3, 3));
    shares.share(30, share(&secrets[2], 3, 3));
    let combined = shares.share(40, share(&secrets[3], 3, 3));
    assert_eq!((combined.updates.len(), &combined.bad[..]), (1, &[][..]), "made without the suspect");
    assert_eq!(shares.acked(&gate(&key, &combined.updates), None), None);
}

#[test]
fn what_is_forged_whatever_the_agent_does_is_told() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    // A frame of a controller, which the agent did not make.
    let ack = |result| vec![Ack { key: Key::Network { vni: Vni(9) }, version: Version(9), result }];
    assert_eq!(shares.acked(&ack(Err(Refusal::Forged)), None), None);
    // Two frames of a batch are on their way with a false signature when the first answer comes.
    for member in [0, 1] {
        shares.share(member as u64, share(&secrets[member], 1, 1));
    }
    shares.unsigned(0, unsigned(1));
    let first = shares.share(3, share(&secrets[3], 2, 1)).updates;
    let second = shares.unsigned(0, rest(1)).updates;
    assert_eq!((first.len(), second.len()), (1, 1));
    let costly = vec![0, 1, 3];
    assert_eq!(shares.acked(&gate(&key, &first), None), Some(Combined { costly, ..Combined::default() }));
    let again = shares.share(2, share(&secrets[2], 1, 1));
    assert_eq!((again.updates.len(), &again.bad[..]), (2, &[3][..]), "both go again");
    assert_eq!(
        shares.acked(&gate(&key, &second), None),
        Some(Combined::default()),
        "the late answer is for nobody"
    );
    let acks = gate(&key, &again.updates);
    assert!(
        acks.iter().all(|ack| ack.result.is_ok() && shares.acked(std::slice::from_ref(ack), None).is_none())
    );
    assert!(shares.unchecked.is_empty() && shares.void.is_empty());
}

#[test]
fn one_that_says_another_threshold_is_hoped_with_once() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    for number in 1..=20_u8 {
        let alone = HeaderShare { threshold: 1, ..share(&secrets[0], 99, number) };
        shares.unsigned(0, unsigned(number));
        let mut sent = shares.share(0, alone).updates;
        let mut forged = 0;
        let mut done = 0;
        for (member, secret) in secrets.iter().enumerate().skip(1) {
            for frame in std::mem::take(&mut sent) {
                let acks = gate(&key, std::slice::from_ref(&frame));
                forged += usize::from(acks[0].result.is_err());
                done += usize::from(acks[0].result.is_ok());
                sent.extend(shares.acked(&acks, None).unwrap_or_default().updates);
            }
            sent.extend(shares.share(member as u64, share(secret, number, number)).updates);
        }
        done += sent.iter().filter(|frame| gate(&key, std::slice::from_ref(frame))[0].result.is_ok()).count();
        sent.iter().for_each(|frame| drop(shares.acked(&gate(&key, std::slice::from_ref(frame)), None)));
        assert_eq!((done, forged), (1, usize::from(number == 1)), "batch {number}");
    }
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
        shares.unsigned(0, unsigned(number));
    }
    assert!(shares.batches.len() <= BATCHES_MAX);
    assert_eq!(Shares::new(None).unsigned(0, unsigned(1)), Combined::default());
}

#[test]
fn batches_that_do_not_exist_take_no_place_from_others() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    let (leader, liar) = (1, 9);
    for number in 1..=10_u8 {
        shares.unsigned(leader, unsigned(number));
    }
    // One that lies begins batch after batch, with shares and with updates.
    for index in 0..3 * BATCHES_MAX as u64 {
        let header = BatchHeader { index: Version(1_000 + index), ..header(1) };
        if index % 2 == 0 {
            shares.unsigned(liar, UnsignedUpdates { header, updates: unsigned(1).updates });
        } else {
            shares.share(liar, HeaderShare { header, ..share(&secrets[0], 1, 1) });
        }
    }
    assert_eq!(shares.batches.len(), BATCHES_MAX);
    for number in 1..=10_u8 {
        let made: usize = (1..=3)
            .map(|member| {
                shares.share(member, share(&secrets[member as usize], number, number)).updates.len()
            })
            .sum();
        assert_eq!(made, 1, "batch {number} is here still");
    }
}

#[test]
fn what_waits_of_one_session_is_bounded_in_bytes_and_an_update_of_another_root_goes_no_further() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    let mut other = unsigned(1);
    other.updates[0].update.version = Version(7);
    let told = shares.unsigned(9, other);
    assert_eq!((told.updates.len(), &told.costly[..], shares.counters.misplaced), (0, &[9][..], 1));
    assert!(shares.batches.is_empty());
    // As if much waited already.
    shares.bytes.insert(9, WAITING_BYTES_MAX);
    shares.unsigned(9, unsigned(2));
    assert_eq!(shares.counters.dropped, 1);
    shares.unsigned(1, unsigned(2));
    let sent: Vec<SignedUpdates> = (0..3)
        .flat_map(|member| shares.share(member, share(&secrets[member as usize], 2, 2)).updates)
        .collect();
    assert_eq!((sent.len(), shares.bytes.contains_key(&1)), (1, true));
    assert_eq!(shares.acked(&gate(&key, &sent), None), None);
    assert!(!shares.bytes.contains_key(&1), "what is in force waits no more");
}

#[test]
fn who_has_the_host_look_at_what_is_nothing_is_charged_for_it_each_time() {
    let (key, secrets) = group();
    let mut shares = Shares::new(Some(&key));
    let mut charged = 0;
    for number in 1..=20_u8 {
        // A batch that does not exist, under a threshold that the group does not have.
        shares.unsigned(9, unsigned(number));
        let lie = HeaderShare { threshold: 1, ..share(&secrets[0], 99, number) };
        let hoped = shares.share(9, lie);
        charged += hoped.costly.len();
        if !hoped.updates.is_empty() {
            let told = shares.acked(&gate(&key, &hoped.updates), None).expect("it is for nobody");
            charged += told.costly.iter().filter(|session| **session == 9).count();
        }
    }
    assert!(charged >= 20, "{charged}");
}
