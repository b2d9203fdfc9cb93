use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn pace() -> Pace {
    let mut pace = Pace::new(10 * MS, MS);
    assert_eq!(pace.look(1000 * MS, Signs::default()), 10 * MS, "all is calm");
    pace
}

#[test]
fn each_sign_quickens_and_calm_slows_down_again() {
    let signs = [
        Signs { forks: BURST_FORKS, near: true, ..Signs::default() },
        Signs { memory_short_in_ns: Some(50 * MS), ..Signs::default() },
        Signs { late_ns: LATE_NS, ..Signs::default() },
        Signs { repairing: true, ..Signs::default() },
    ];
    for sign in signs {
        let mut pace = pace();
        assert_eq!(pace.look(1010 * MS, sign), MS, "{sign:?}");
        assert!(pace.is_quick());
        let calm = Signs { forks: sign.forks, ..Signs::default() };
        assert_eq!(pace.look(1011 * MS, calm), MS, "{sign:?}: it may come back");
        assert_eq!(pace.look(1010 * MS + CALM_NS + FORKS_WINDOW_NS, calm), 10 * MS, "{sign:?}");
        assert!(!pace.is_quick());
    }
}

#[test]
fn what_is_ordinary_is_no_sign() {
    let mut pace = pace();
    for step in 1..100 {
        let signs = Signs {
            forks: step * (BURST_FORKS - 1),
            near: true,
            memory_short_in_ns: Some(SOON_NS),
            late_ns: LATE_NS - 1,
            repairing: false,
        };
        assert_eq!(pace.look((1000 + step * 10) * MS, signs), 10 * MS);
    }
    // The forks of a long time, after which it looks for the first time.
    let signs = Signs { forks: 100 * BURST_FORKS, near: true, ..Signs::default() };
    assert_eq!(Pace::new(10 * MS, MS).look(3_600_000 * MS, signs), 10 * MS);
}

#[test]
fn a_burst_that_no_policy_minds_is_no_sign() {
    let mut pace = pace();
    for step in 1..1000 {
        let signs = Signs { forks: step * 10 * BURST_FORKS, ..Signs::default() };
        assert_eq!(pace.look((1000 + step * 10) * MS, signs), 10 * MS);
    }
}

#[test]
fn a_period_that_is_shorter_than_the_quick_one_holds() {
    let mut pace = Pace::new(MS / 2, MS);
    assert_eq!(pace.look(1000 * MS, Signs { repairing: true, ..Signs::default() }), MS / 2);
    assert!(!pace.is_quick());
}

#[test]
fn a_repair_is_watched_closely_for_as_long_as_it_lasts() {
    let mut pace = pace();
    for ms in 0..10_000 {
        assert_eq!(pace.look((1010 + ms) * MS, Signs { repairing: true, ..Signs::default() }), MS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Whatever the machine does, at most half of the time and a bit are quick looks.
    #[test]
    fn quick_looks_have_an_allowance(forks in prop::collection::vec(0_u64..40, 1..64), late in 0_u64..5) {
        let mut pace = Pace::new(10 * MS, MS);
        let (mut now, mut all, mut quick) = (1000 * MS, 0, 0);
        for found in forks.iter().cycle().take(20_000) {
            all += found;
            let next = pace.look(now, Signs { forks: all, near: true, late_ns: late * MS, ..Signs::default() });
            quick += if next == MS { next } else { 0 };
            now += next;
        }
        let took = now - 1000 * MS;
        prop_assert!(quick <= took / 2 + QUICK_NS_MAX + 10 * MS, "{quick} of {took}");
    }
}
