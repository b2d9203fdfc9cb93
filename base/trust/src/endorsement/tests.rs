use super::*;
use crate::batch::{GroupSigner, Verifier, prepare_batch};
use crate::threshold::simulation;
use proptest::prelude::*;
use weir_model::entry::Vni;
use weir_model::signed::{GroupSignature, SignedHeader};
use weir_model::{Change, Key, Label, Update, Version};

const PHASE: u64 = 3;

fn controllers(count: u32) -> ControllersEntry {
    let threshold = crate::threshold::threshold(count as usize) as u32;
    ControllersEntry { phase: PHASE, threshold, members: simulation::members(1..=count) }
}

fn header(index: u64) -> BatchHeader {
    let update = Update {
        target: Label::new("h1").unwrap(),
        key: Key::Network { vni: Vni(1) },
        version: Version(index),
        expected: Version::ZERO,
        change: Change::Delete,
    };
    prepare_batch(&simulation::domain(), 1, Version(index), vec![update]).unwrap().0
}

fn by(member: u32, phase: u64, header: &BatchHeader) -> MemberSignature {
    MemberSignature { member, signature: endorse(&simulation::identity(member), phase, header) }
}

#[test]
fn enough_of_the_controllers_in_force_prove_a_batch_and_nobody_else() {
    let (known, header) = (controllers(4), header(1));
    let of = |members: &[u32]| -> Vec<MemberSignature> {
        members.iter().map(|member| by(*member, PHASE, &header)).collect()
    };
    let verdict = |signatures: &[MemberSignature]| verify(&known, &header, PHASE, signatures);
    assert_eq!(verdict(&of(&[1, 2, 4])), Ok(()));
    assert_eq!(verdict(&of(&[4, 3, 2, 1])), Ok(()));
    let count = |given| Err(TrustError::EndorsementCount { given, wanted: 3, max: 4 });
    assert_eq!(verdict(&of(&[1, 2])), count(2));
    assert_eq!(verdict(&of(&[1, 2, 3, 4, 1])), count(5));
    assert_eq!(verdict(&[]), count(0));
    assert_eq!(verdict(&of(&[1, 2, 2])), Err(TrustError::StrangeMember(2)));
    assert_eq!(verdict(&of(&[1, 2, 5])), Err(TrustError::StrangeMember(5)));
    // In another one's name, of another phase, and over another batch.
    let mut stolen = of(&[1, 2, 3]);
    stolen[2].member = 4;
    assert_eq!(verdict(&stolen), Err(TrustError::BadSignature));
    let phase =
        |phase| -> Vec<MemberSignature> { (1..=3).map(|member| by(member, phase, &header)).collect() };
    assert_eq!(verdict(&phase(PHASE - 1)), Err(TrustError::BadSignature));
    let other = Err(TrustError::OtherPhase { given: PHASE - 1, wanted: PHASE });
    assert_eq!(verify(&known, &header, PHASE - 1, &phase(PHASE - 1)), other);
    assert_eq!(
        verify(&known, &super::tests::header(2), PHASE, &of(&[1, 2, 3])),
        Err(TrustError::BadSignature)
    );
    // A signature for another purpose.
    let mut share = of(&[1, 2, 3]);
    share[0].signature = simulation::identity(1).sign(Context::Share, &message(PHASE, &header));
    assert_eq!(verdict(&share), Err(TrustError::BadSignature));
}

#[test]
fn an_entry_that_wants_nobody_still_wants_somebody() {
    let known = ControllersEntry { threshold: 0, ..controllers(4) };
    assert!(verify(&known, &header(1), PHASE, &[]).is_err());
    let empty = ControllersEntry { phase: PHASE, threshold: 0, members: Default::default() };
    assert!(verify(&empty, &header(1), PHASE, &[]).is_err());
}

#[test]
fn a_verifier_remembers_what_was_endorsed_only_among_the_same_controllers() {
    let group = simulation::group(4, 1);
    let mut verifier = Verifier::new(simulation::domain(), group.group_key());
    let header = header(1);
    let signatures = (1..=3).map(|member| by(member, PHASE, &header)).collect();
    let signed = SignedHeader { header, signature: GroupSignature::Members { phase: PHASE, signatures } };
    assert_eq!(verifier.verify_header(&signed), Err(TrustError::NoControllers));
    let known = controllers(4);
    for _ in 0..3 {
        assert_eq!(verifier.verify_header_by(&signed, Some(&known)), Ok(()));
    }
    assert_eq!(verifier.signature_checks, 1);
    let next = ControllersEntry { phase: PHASE + 1, ..known };
    let other = Err(TrustError::OtherPhase { given: PHASE, wanted: PHASE + 1 });
    assert_eq!(verifier.verify_header_by(&signed, Some(&next)), other);
    assert_eq!(verifier.verify_header(&signed), Err(TrustError::NoControllers));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is put together: it passes when it is `threshold` right ones of distinct members or more, and nothing else.
    #[test]
    fn nothing_passes_but_enough_right_ones(
        count in 1_u32..=7,
        given in proptest::collection::vec((1_u32..=8, 0_u8..12), 0..9),
    ) {
        let (known, header) = (controllers(count), header(9));
        let made = |(member, kind): &(u32, u8)| match kind {
            0 => by(*member, PHASE + 1, &header),
            1 => by(*member, PHASE, &super::tests::header(8)),
            2 => MemberSignature { member: *member, ..by(member % 7 + 1, PHASE, &header) },
            _ => by(*member, PHASE, &header),
        };
        let signatures: Vec<MemberSignature> = given.iter().map(made).collect();
        let right = given.iter().all(|(member, kind)| {
            // A member's own signature under its own name is right, whoever took it for another's.
            *member <= count && (*kind > 2 || (*kind == 2 && member % 7 + 1 == *member))
        });
        let members: BTreeSet<u32> = given.iter().map(|(member, _)| *member).collect();
        let enough = members.len() == given.len() && given.len() >= known.threshold as usize;
        prop_assert_eq!(verify(&known, &header, PHASE, &signatures).is_ok(), right && enough);
    }
}
