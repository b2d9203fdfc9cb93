use super::*;
use crate::threshold::simulation::{Group, group};
use crate::threshold::verify_group;

const MESSAGE: &[u8] = b"the root of a batch";

fn collector() -> Collector {
    Collector::new(Context::Batch, MESSAGE.to_vec())
}

fn shares(group: &Group) -> Vec<ShareSignature> {
    group.shares(Context::Batch, MESSAGE, usize::MAX)
}

/// What member `member` signs when it lies.
fn lie(group: &Group, member: u32) -> ShareSignature {
    group.secrets[&member].sign(Context::Batch, b"something else").unwrap()
}

#[test]
fn honest_shares_cost_one_check() {
    let group = group(4, 1);
    let mut collector = collector();
    let shares = shares(&group);
    assert_eq!(collector.add(&group.public, &shares[3]), Collected::default());
    assert_eq!(collector.add(&group.public, &shares[1]), Collected::default());
    assert_eq!(collector.add(&group.public, &shares[1]), Collected::default(), "once more");
    let collected = collector.add(&group.public, &shares[0]);
    let signature = collected.signature.unwrap();
    assert_eq!(verify_group(&group.public.key(), Context::Batch, MESSAGE, &signature), Ok(()));
    assert_eq!((collected.faults, collector.checks), (Vec::new(), 1));
    assert_eq!(
        collector.add(&group.public, &shares[2]).signature,
        Some(signature),
        "late ones change nothing"
    );
    assert_eq!(combine(&shares[1..]), Ok(signature), "any threshold of shares makes the same signature");
}

#[test]
fn a_bad_share_is_found_and_its_sender_named() {
    let group = group(7, 1);
    let mut collector = collector();
    let good = shares(&group);
    let bad = |member| Fault { member, what: FaultKind::BadSignatureShare };
    for share in [&lie(&group, 1), &good[1], &good[2], &lie(&group, 4)] {
        assert_eq!(collector.add(&group.public, share), Collected::default());
    }
    let collected = collector.add(&group.public, &good[4]);
    assert_eq!(collected, Collected { signature: None, faults: vec![bad(1), bad(4)] });
    assert_eq!(collector.add(&group.public, &good[0]), Collected::default(), "a liar is not heard again");
    assert_eq!(collector.add(&group.public, &good[5]), Collected::default());
    let collected = collector.add(&group.public, &good[6]);
    assert!(collected.signature.is_some() && collected.faults.is_empty(), "{collected:?}");
    // One for the failed five, five one by one, one for the five that are good.
    assert_eq!(collector.checks, 7);
}

#[test]
fn two_different_shares_and_strangers_are_faults() {
    let group = group(4, 1);
    let mut collector = collector();
    collector.add(&group.public, &shares(&group)[1]);
    let collected = collector.add(&group.public, &lie(&group, 2));
    assert_eq!(collected.faults, [Fault { member: 2, what: FaultKind::Equivocated }]);
    let stranger = ShareSignature { member: 8, ..lie(&group, 2) };
    let collected = collector.add(&group.public, &stranger);
    assert_eq!(collected.faults, [Fault { member: 8, what: FaultKind::NotMember }]);
    let garbage = ShareSignature { member: 3, signature: BlsSignature([[9; 16]; 3]) };
    let collected = collector.add(&group.public, &garbage);
    assert_eq!(collected.faults, [Fault { member: 3, what: FaultKind::BadSignatureShare }]);
    assert_eq!(collector.checks, 0);
}

#[test]
fn combining_needs_different_members() {
    let group = group(4, 1);
    let share = shares(&group).remove(0);
    assert!(combine(&[]).is_err());
    assert!(combine(&[share.clone(), share]).is_err());
}
