//! Tests of rates, with a clock of their own.

use super::*;
use crate::policy::tests::{chain, try_chain};

fn rate(calls_per_s: Option<u64>, bytes_per_s: Option<u64>) -> Rate {
    let file = RateFile {
        per: Per::User,
        calls_per_s,
        bytes_per_s,
        burst_ms: Some(1000),
        over: Over::Delay,
        ops: Vec::new(),
    };
    Rate::compile(&file, None).unwrap()
}

#[test]
fn calls_come_through_at_the_rate_in_the_long_run() {
    let rate = rate(Some(100), None);
    let (mut now_us, mut passed) = (0, 0);
    while now_us < 10_000_000 {
        match rate.take(Key::User(1), 0, now_us) {
            Ok(()) => passed += 1,
            Err(wait_us) => now_us += wait_us,
        }
    }
    // A burst of one second, then ten seconds.
    assert!((1099..=1101).contains(&passed), "{passed}");
    assert_eq!(rate.take(Key::User(2), 0, now_us), Ok(()), "another user has his own bucket");
}

#[test]
fn a_payload_above_the_burst_goes_into_debt_and_is_paid_for() {
    let rate = rate(None, Some(1000));
    assert_eq!(rate.take(Key::All, 5000, 0), Ok(()));
    let wait_us = rate.take(Key::All, 1, 0).unwrap_err();
    assert!((4_000_000..4_001_000).contains(&wait_us), "{wait_us}");
    assert_eq!(rate.take(Key::All, 1, wait_us), Ok(()));
    assert_eq!(rate.take(Key::All, 0, 0), Ok(()), "a call without data costs nothing");
}

#[test]
fn buckets_are_bounded() {
    let rate = rate(Some(1), None);
    for uid in 0..BUCKETS_MAX as u32 + 5 {
        assert_eq!(rate.take(Key::User(uid), 0, 0), Ok(()));
    }
    assert!(rate.buckets.lock().unwrap().len() <= BUCKETS_MAX);
    assert!(rate.forgotten.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_reload_does_not_fill_buckets_and_a_wrong_file_is_named() {
    let text = "kind: rate\nper: user\ncalls-per-s: 1\nover: jukebox";
    let before = chain(text);
    let call = || crate::policy::tests::made(1, Op::Null, |record| record);
    assert_eq!(crate::policy::tests::answer(&before, &call()), None, "NULL is not counted");
    let getattr = || crate::policy::tests::made(1, Op::Getattr, |record| record.opaque(b"x"));
    assert_eq!(crate::policy::tests::answer(&before, &getattr()), None);
    let after = try_chain(text, Some(&before)).unwrap();
    assert_eq!(crate::policy::tests::answer(&after, &getattr()), Some(Status::Jukebox));
    let wrong = try_chain("kind: rate\nper: user", None).unwrap_err().to_string();
    assert!(wrong.contains("calls-per-s"), "{wrong}");
}
