use super::*;
use crate::threshold::simulation::group;
use weir_base::codec::{decode, encode};

#[test]
fn thresholds_are_a_quorum_and_more_than_half() {
    let of = |members: usize| (crate::threshold::faulty_max(members), threshold(members));
    let wanted = [
        (1, (0, 1)),
        (2, (0, 2)),
        (3, (0, 2)),
        (4, (1, 3)),
        (5, (1, 3)),
        (6, (1, 4)),
        (7, (2, 5)),
        (10, (3, 7)),
    ];
    for (members, pair) in wanted {
        assert_eq!(of(members), pair, "{members} members");
    }
    for members in 1..=MEMBERS_MAX {
        let (faulty, threshold) = of(members);
        assert!(threshold <= members - faulty, "{members}: honest members alone can sign");
        assert!(threshold > 2 * faulty, "{members}: liars and revealed shares cannot");
    }
}

#[test]
fn a_share_is_checked_under_its_members_key() {
    let group = group(4, 1);
    let share = group.secrets[&2].sign(Context::Batch, b"root").unwrap();
    let check =
        |message: &[u8], share: &ShareSignature| group.public.verify_share(Context::Batch, message, share);
    assert_eq!(check(b"root", &share), Ok(()));
    let bad = |member| Err(Fault { member, what: FaultKind::BadSignatureShare });
    assert_eq!(check(b"other", &share), bad(2));
    assert_eq!(check(b"root", &ShareSignature { member: 3, ..share.clone() }), bad(3));
    let stranger = ShareSignature { member: 9, ..share.clone() };
    assert_eq!(check(b"root", &stranger), Err(Fault { member: 9, what: FaultKind::NotMember }));
    assert!(group.public.verify_share(Context::Event, b"root", &share).is_err(), "a context is part of it");
}

#[test]
fn secrets_come_back_from_their_bytes_and_only_for_their_member() {
    let group = group(4, 1);
    let bytes = group.secrets[&2].to_bytes();
    let again = MemberSecret::from_bytes(&group.public, 2, &bytes).unwrap();
    assert_eq!(again.sign(Context::Batch, b"x"), group.secrets[&2].sign(Context::Batch, b"x"));
    assert_eq!(MemberSecret::from_bytes(&group.public, 3, &bytes).err(), Some(TrustError::BadShare));
    assert_eq!(MemberSecret::from_bytes(&group.public, 2, &[255; 32]).err(), Some(TrustError::BadShare));
    assert_eq!(format!("{:?}", group.secrets[&2]), "MemberSecret { member: 2, share: Scalar(secret) }");
}

#[test]
fn impossible_groups_are_refused() {
    let public = group(4, 1).public;
    let commitment = public.commitment.clone();
    assert!(GroupPublic::new([1, 2, 3, 4, 5, 6].into(), commitment.clone()).is_err(), "threshold");
    assert!(GroupPublic::new([0, 2, 3, 4].into(), commitment.clone()).is_err(), "member 0");
    assert!(GroupPublic::new(BTreeSet::new(), commitment.clone()).is_err(), "nobody");
    let disordered = GroupWire { members: vec![2, 1, 3, 4], commitment };
    assert!(decode::<GroupPublic>(&encode(&disordered)).is_err());
    assert_eq!(decode::<GroupPublic>(&encode(&public)).unwrap(), public);
}

#[test]
fn any_bytes_decode_to_a_group_or_an_error() {
    bolero::check!().with_iterations(500).for_each(|bytes: &[u8]| {
        if let Ok(group) = decode::<GroupPublic>(bytes) {
            assert_eq!(encode(&group), bytes);
        }
        let _ = decode::<ShareSignature>(bytes).map(|share| read_signature(&share.signature));
    });
}

#[test]
fn many_signatures_are_checked_at_once_and_no_wrong_one_passes() {
    let group = group(4, 1);
    let verifier = GroupVerifier::new(&group.public.key()).unwrap();
    let signed = |number: u8| {
        let message = vec![number; 40];
        let shares = group.shares(Context::Batch, &message, 3);
        (message, crate::threshold::combine(&shares).unwrap())
    };
    let all: Vec<_> = (0..20).map(signed).collect();
    for count in 0..=all.len() {
        assert_eq!(verifier.verify_all(Context::Batch, &all[..count]), Ok(()), "{count}");
    }
    // The same one twice, too.
    assert_eq!(verifier.verify_all(Context::Batch, &[all[0].clone(), all[0].clone()]), Ok(()));
    let wrong = Err(TrustError::BadSignature);
    assert_eq!(verifier.verify_all(Context::Event, &all), wrong, "a context is part of it");
    for at in [0, 7, 19] {
        let mut other = all.clone();
        other[at].0[0] ^= 1;
        assert_eq!(verifier.verify_all(Context::Batch, &other), wrong, "message {at}");
    }
    // The sum of these is right, and neither is.
    let mut swapped = all.clone();
    (swapped[3].1, swapped[4].1) = (all[4].1, all[3].1);
    assert_eq!(verifier.verify_all(Context::Batch, &swapped), wrong);
    let mut broken = all;
    broken[5].1 = BlsSignature([[0; 16]; 3]);
    assert_eq!(verifier.verify_all(Context::Batch, &broken), wrong);
}
