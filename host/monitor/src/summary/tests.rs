use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;

#[test]
fn a_window_counts_what_is_in_it() {
    let mut counts = Counts::new(SECOND);
    for n in 0..100 {
        counts.add(10 * SECOND + n * SECOND / 100);
    }
    assert_eq!(counts.sum(10 * SECOND + SECOND - 1), 100);
    assert!((45..=55).contains(&counts.sum(10 * SECOND + SECOND * 3 / 2)));
    assert_eq!(counts.sum(13 * SECOND), 0);
    assert_eq!(counts.sum(9 * SECOND), 0, "what comes later is not in it");
}

#[test]
fn samples_have_average_least_most_and_slope() {
    let mut samples = Samples::new(SECOND);
    assert_eq!((samples.average(5), samples.least(5), samples.slope(5)), (None, None, None));
    for n in 0..100 {
        samples.add(10 * SECOND + n * SECOND / 100, 1000 + 5 * n);
    }
    let now = 10 * SECOND + SECOND * 99 / 100;
    assert_eq!((samples.least(now), samples.most(now)), (Some(1000), Some(1495)));
    assert!((samples.average(now).unwrap() - 1247.5).abs() < 0.01);
    assert!((samples.slope(now).unwrap() - 500.0).abs() < 20.0, "{:?}", samples.slope(now));
}

#[test]
fn the_heaviest_are_found_among_many() {
    let mut heaviest = Heaviest::default();
    for n in 0..20_000_u64 {
        heaviest.add(&key_of_number(n));
        if n % 10 == 0 {
            heaviest.add(&key_of_text("often"));
        }
        if n % 20 == 0 {
            heaviest.add(&key_of_text("less"));
        }
    }
    let rows: Vec<(Key, u32)> = heaviest.rows().collect();
    assert_eq!((rows[0].0, rows[1].0), (key_of_text("often"), key_of_text("less")));
    assert!((2000..2100).contains(&rows[0].1), "{}", rows[0].1);
    assert!(rows.is_sorted_by(|a, b| a.1 >= b.1) && rows.len() <= TOP_MAX);
}

proptest! {
    #[test]
    fn sketches_err_on_their_side_only(keys in prop::collection::vec(0_u64..500, 0..2000)) {
        let (mut bloom, mut counts) = (Bloom::default(), CountMin::default());
        let mut truth: BTreeMap<u64, u32> = BTreeMap::new();
        for key in &keys {
            bloom.add(&key_of_number(*key));
            counts.add(&key_of_number(*key));
            *truth.entry(*key).or_default() += 1;
        }
        for (key, count) in &truth {
            prop_assert!(bloom.seen(&key_of_number(*key)));
            prop_assert!(counts.frequency(&key_of_number(*key)) >= *count);
        }
        let wrong = (1000..2000).filter(|key| bloom.seen(&key_of_number(*key))).count();
        prop_assert!(wrong < 20, "{wrong} of 1000");
        let over: u32 = truth.iter().map(|(key, count)| counts.frequency(&key_of_number(*key)) - count).sum();
        prop_assert!(u64::from(over) <= keys.len() as u64, "{over}");
    }
}

#[test]
fn locks_taken_in_two_orders_are_a_cycle_before_they_ever_block() {
    let mut order = LockOrder::default();
    for (thread, lock, operation) in [(1, 10, 2), (1, 20, 2), (1, 20, 3), (1, 10, 3)] {
        order.take(thread, lock, operation);
    }
    assert_eq!((order.cycles(), order.deadlocked()), (0, 0));
    for (lock, operation) in [(20, 2), (10, 2), (10, 3), (20, 3)] {
        order.take(2, lock, operation);
    }
    assert_eq!((order.cycles(), order.deadlocked()), (1, 0), "it may come");
    order.take(1, 10, 2);
    order.take(2, 20, 2);
    order.take(1, 20, 1);
    assert_eq!(order.deadlocked(), 0);
    order.take(2, 10, 1);
    order.take(3, 10, 1);
    assert_eq!((order.cycles(), order.deadlocked()), (1, 2), "it has come, and the third only waits");
    order.forget_holders();
    assert_eq!((order.cycles(), order.deadlocked()), (1, 0));
}

/// Whether there is a cycle, found by taking away what nothing leads to.
fn has_cycle(edges: &std::collections::BTreeSet<(u64, u64)>) -> bool {
    let mut edges = edges.clone();
    loop {
        let targets: std::collections::BTreeSet<u64> = edges.iter().map(|(_, to)| *to).collect();
        let before = edges.len();
        edges.retain(|(from, _)| targets.contains(from));
        if edges.len() == before {
            return !edges.is_empty();
        }
    }
}

#[test]
fn cycles_are_those_of_a_plain_graph_and_any_events_are_taken() {
    bolero::check!().with_type::<Vec<(u8, u8, u8)>>().for_each(|events| {
        let mut order = LockOrder::default();
        let mut held: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
        let mut edges = std::collections::BTreeSet::new();
        for (thread, lock, operation) in events {
            let (thread, lock) = (u64::from(*thread % 4), u64::from(*lock % 6));
            order.take(thread, lock, u64::from(*operation % 5));
            let held = held.entry(thread).or_default();
            match operation % 5 {
                1 | 2 => {
                    edges.extend(held.iter().filter(|before| **before != lock).map(|before| (*before, lock)));
                    if operation % 5 == 2 && !held.contains(&lock) {
                        held.push(lock);
                    }
                }
                3 => held.retain(|other| *other != lock),
                _ => {}
            }
            assert_eq!(order.cycles() > 0, has_cycle(&edges), "{events:?}");
            assert!(order.deadlocked() <= 4);
        }
    });
}

#[test]
fn more_locks_and_threads_than_there_is_room_for_are_left_out() {
    let mut order = LockOrder::default();
    for number in 0..1000 {
        order.take(number, number, 2);
        order.take(0, number, 2);
    }
    assert!(order.refused > 0);
    assert_eq!(order.cycles(), 0);
}
