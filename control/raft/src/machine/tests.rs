use super::*;
use crate::types::{Address, Membership, log_id};

fn members(ids: &[u64]) -> Membership {
    let nodes =
        ids.iter().map(|id| (*id, Address(format!("at {id}")))).collect::<std::collections::BTreeMap<_, _>>();
    Membership::new(vec![ids.iter().copied().collect()], nodes).unwrap()
}

#[test]
fn batches_are_counted_without_gaps_and_found_in_the_log() {
    let mut steps = Steps::default();
    let stored = |index, ids: &[u64]| StoredMembership::new(Some(log_id(1, index)), members(ids));
    steps.own(log_id(1, 0), Some(stored(0, &[1, 2, 3])));
    steps.own(log_id(1, 1), None);
    steps.batch(log_id(1, 2));
    steps.batch(log_id(1, 3));
    steps.own(log_id(1, 4), Some(stored(4, &[1, 2, 3, 4])));
    steps.batch(log_id(2, 5));
    assert_eq!(steps.position(), Position { term: 2, index: 3 });
    let at = |steps: &Steps, term, index| steps.meta_of(Position { term, index }).unwrap();
    assert_eq!((at(&steps, 1, 1).log_id, at(&steps, 1, 2).log_id), (log_id(1, 2), log_id(1, 3)));
    assert_eq!(at(&steps, 1, 2).membership.log_id(), &Some(log_id(1, 0)));
    let third = at(&steps, 2, 3);
    assert_eq!((third.log_id, *third.membership.log_id()), (log_id(2, 5), Some(log_id(1, 4))));

    steps.rebase(&at(&steps, 1, 2));
    assert_eq!(at(&steps, 2, 3), third, "the same from a later base");
    assert!(steps.meta_of(Position { term: 1, index: 2 }).is_err());
    assert!(steps.meta_of(Position { term: 2, index: 4 }).is_err());

    let mut fresh = Steps::default();
    fresh.install(&third);
    fresh.own(log_id(3, 6), None);
    fresh.batch(log_id(3, 7));
    assert_eq!(fresh.position(), Position { term: 3, index: 4 });
    assert_eq!(at(&fresh, 3, 4).log_id, log_id(3, 7));
    assert_eq!(at(&fresh, 3, 4).membership.membership(), &members(&[1, 2, 3, 4]));
}

#[test]
fn a_preamble_keeps_what_it_says_and_hostile_ones_are_refused() {
    let position = Position { term: 2, index: 3 };
    let membership = StoredMembership::new(Some(log_id(1, 4)), members(&[1, 2]));
    let meta = Meta { log_id: log_id(2, 5), membership, position };
    let bytes = [preamble(&meta), b"the application's".to_vec()].concat();
    let mut state = &bytes[..];
    assert_eq!(read_preamble(&mut state, position).unwrap(), meta);
    assert_eq!(state, b"the application's");
    bolero::check!().with_iterations(2000).with_type::<Vec<u8>>().for_each(|bytes| {
        if let Ok(meta) = read_preamble(&mut &bytes[..], position) {
            assert!(meta.membership.membership().nodes().count() <= 64);
        }
    });
}
