use super::super::tests::{group, header, share, unsigned};
use super::*;
use weir_model::signed::{GroupKey, SignedUpdates};
use weir_model::update::{Ack, Refusal};
use weir_trust::endorsement::{endorse, verify};
use weir_trust::identity::KeyPair;

fn identity(member: u32) -> KeyPair {
    KeyPair::from_seed(&[member as u8; 32])
}

fn controllers(phase: u64) -> ControllersEntry {
    let members = (1..=4).map(|member| (member, identity(member).public())).collect();
    ControllersEntry { phase, threshold: 3, members }
}

/// A member's endorsement of batch `number` that says it is of batch `under`.
fn of(member: u32, phase: u64, number: u8, under: u8) -> HeaderEndorsement {
    let signature = endorse(&identity(member), phase, &header(number));
    HeaderEndorsement { header: header(under), phase, by: MemberSignature { member, signature } }
}

/// What a gate answers where these controllers are in force.
fn gate(known: Option<&ControllersEntry>, frames: &[SignedUpdates]) -> Vec<Ack> {
    let judged = frames.iter().flat_map(|frame| {
        let GroupSignature::Members { phase, signatures } = &frame.header.signature else { panic!() };
        let right =
            known.is_some_and(|known| verify(known, &frame.header.header, *phase, signatures).is_ok());
        frame.updates.iter().map(move |proven| Ack {
            key: proven.update.key.clone(),
            version: proven.update.version,
            result: if right { Ok(()) } else { Err(Refusal::Forged) },
        })
    });
    judged.collect()
}

fn shares() -> (GroupKey, Shares) {
    let (key, _) = group();
    let shares = Shares::new(Some(&key));
    (key, shares)
}

#[test]
fn updates_go_as_soon_as_enough_endorsed_them_in_any_order() {
    let known = controllers(1);
    for updates_come_at in 0..5 {
        let (_, mut shares) = shares();
        let mut released = Vec::new();
        for at in 0..5_u32 {
            let done = if at == updates_come_at {
                shares.unsigned(0, unsigned(1))
            } else {
                let member = if at > updates_come_at { at } else { at + 1 };
                shares.endorsement(u64::from(member), of(member, 1, 1, 1), Some(&known))
            };
            assert!(done.bad.is_empty());
            released.extend(done.updates);
        }
        // When the updates come last the proof goes ahead of them.
        let ahead = usize::from(updates_come_at >= 3);
        assert_eq!(released.iter().filter(|frame| frame.updates.is_empty()).count(), ahead);
        released.retain(|frame| !frame.updates.is_empty());
        assert_eq!((released.len(), shares.counters.checks, shares.counters.combined), (1, 0, 1));
        let acks = gate(Some(&known), &released);
        assert_eq!((acks[0].result.clone(), shares.acked(&acks, Some(&known))), (Ok(()), None));
        assert_eq!(
            shares.unsigned(0, unsigned(1)).updates.len(),
            1,
            "what comes later of the batch goes at once"
        );
    }
}

#[test]
fn one_that_endorses_wrongly_is_named_once_a_batch_and_asked_last() {
    let known = controllers(1);
    let (_, mut shares) = shares();
    for number in 1..=10_u8 {
        shares.unsigned(0, unsigned(number));
        let mut done = Combined::default();
        // The liar is the first: something else, another one's name, a stranger's.
        let lie = match number % 3 {
            1 => of(1, 1, number - 1, number),
            2 => {
                let own = of(1, 1, number, number);
                HeaderEndorsement { by: MemberSignature { member: 2, ..own.by }, ..own }
            }
            _ => of(9, 1, number, number),
        };
        let (mut forged, mut right, mut named) = (0, 0, Vec::new());
        let mut came = vec![(10, lie)];
        came.extend((2..=4).map(|member| (u64::from(member) * 10, of(member, 1, number, number))));
        for (session, endorsement) in came {
            let next = shares.endorsement(session, endorsement, Some(&known));
            done.updates.extend(next.updates);
            named.extend(next.bad);
            while let Some(frame) = done.updates.pop() {
                let acks = gate(Some(&known), &[frame]);
                if acks[0].result.is_ok() {
                    right += 1;
                    assert_eq!(shares.acked(&acks, Some(&known)), None);
                } else {
                    forged += 1;
                    let next = shares.acked(&acks, Some(&known)).expect("it is for nobody");
                    done.updates.extend(next.updates);
                    named.extend(next.bad);
                }
            }
        }
        assert_eq!(right, 1, "batch {number}");
        assert!(forged <= 1 && named.iter().all(|session| *session == 10), "batch {number}: {named:?}");
        if number > 1 {
            assert_eq!(forged, 0, "it is known by now");
        } else {
            assert_eq!(named, [10]);
        }
    }
    assert!(shares.unchecked.is_empty() && shares.void.is_empty());
}

#[test]
fn without_the_switchs_list_and_of_another_phase_nothing_is_handed_on() {
    let (_, mut shares) = shares();
    shares.unsigned(0, unsigned(1));
    for member in 1..=4 {
        let none = shares.endorsement(u64::from(member), of(member, 1, 1, 1), None);
        assert_eq!(none, Combined::default());
        let old = shares.endorsement(u64::from(member), of(member, 1, 1, 1), Some(&controllers(2)));
        assert_eq!(old, Combined::default(), "nobody is blamed for a change of phase");
    }
    // The group's signature over it can still be put together here, of shares.
    let (_, secrets) = group();
    let made: usize =
        (0..3).map(|member| shares.share(member, share(&secrets[member as usize], 1, 1)).updates.len()).sum();
    assert_eq!(made, 1);
}

#[test]
fn what_the_switch_does_not_take_is_tried_once_and_blames_nobody_of_another_phase() {
    let (_, mut shares) = shares();
    let (known, next) = (controllers(1), controllers(2));
    shares.unsigned(0, unsigned(1));
    let mut sent = Vec::new();
    for member in 1..=3 {
        sent.extend(shares.endorsement(member, of(member as u32, 1, 1, 1), Some(&known)).updates);
    }
    // The switch has the next list already; the agent comes to know it with the answer, or later.
    let acks = gate(Some(&next), &sent);
    assert_eq!(acks[0].result, Err(Refusal::Forged));
    assert_eq!(shares.acked(&acks, Some(&known)), Some(Combined::default()), "the same again is of no use");
    assert_eq!(shares.endorsement(3, of(3, 1, 1, 1), Some(&next)), Combined::default());
    // Another set of the old phase is tried, and refused; then there is none.
    let other = shares.endorsement(0, of(4, 1, 1, 1), Some(&known)).updates;
    assert_eq!(other.len(), 1);
    assert_eq!(shares.acked(&gate(Some(&next), &other), Some(&known)), Some(Combined::default()));
    assert!(shares.suspects.is_empty());
}

#[test]
fn what_liars_endorse_is_bounded() {
    let (_, mut shares) = shares();
    let known = controllers(1);
    for number in 1..=255_u8 {
        for session in 0..100 {
            let lie = of(1 + (session % 2) as u32, 1, 0, number);
            assert!(shares.endorsement(session, lie.clone(), Some(&known)).updates.is_empty());
            assert_eq!(shares.endorsement(session, lie, Some(&known)), Combined::default(), "it counts once");
        }
    }
    assert!(shares.counters.checks <= 255 * SHARES_MAX as u64, "{} checks", shares.counters.checks);
    assert!(shares.batches.len() <= super::super::BATCHES_MAX);
    assert!(shares.batches.values().all(|batch| batch.endorsements.len() <= SHARES_MAX));
    assert_eq!(Shares::new(None).endorsement(1, of(1, 1, 1, 1), Some(&known)), Combined::default());
}
