use super::*;

#[test]
fn fixed_counters_have_the_index_of_their_reason() {
    let counters = Counters::default();
    for &reason in Reason::ALL {
        let (name, _) = counters.get(counters.reason(reason)).unwrap();
        assert_eq!(name.to_string(), format!("drops{{reason=\"{}\"}}", reason.as_str()));
    }
    for &error in PacketError::ALL {
        let (name, _) = counters.get(counters.malformed(error)).unwrap();
        assert_eq!(name.labels[1].1, error.as_str());
    }
}

#[test]
fn a_name_keeps_its_index_and_counts_on() {
    let mut counters = Counters::default();
    let first = counters.register("drops", &[("rule", "a")]);
    counters.count(first, 2);
    let other = counters.register("drops", &[("rule", "b")]);
    assert_ne!(first, other);
    assert_eq!(counters.register("drops", &[("rule", "a")]), first);
    counters.count(first, 1);
    assert_eq!(counters.get(first).unwrap().1, 3);
    assert_eq!(counters.iter().count(), counters.len());
}

#[test]
fn more_counters_than_the_limit_share_the_overflow() {
    let mut counters = Counters::with_limit(0);
    let before = counters.len();
    let index = counters.register("drops", &[("rule", "a")]);
    assert_eq!(index, counters.reason(Reason::CounterOverflow));
    assert_eq!(counters.len(), before);
    counters.count(index, 5);
    assert_eq!(counters.get(index).unwrap().1, 5);
}
