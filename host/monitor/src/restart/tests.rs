use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn settings() -> RestartSettings {
    RestartSettings {
        backoff_ns: 100 * MS,
        backoff_ns_max: 300 * MS,
        limit: 4,
        window_ns: 60_000 * MS,
        start_ns: 1000 * MS,
    }
}

#[test]
fn a_crash_is_followed_by_a_start_after_the_back_off() {
    let mut restarts = Restarts::new(settings());
    assert_eq!(restarts.up(0), None, "it was there before");
    assert_eq!(restarts.crashed(10 * MS), Next::In(100 * MS));
    assert_eq!(restarts.tick(109 * MS), Do::Nothing);
    assert_eq!(restarts.tick(110 * MS), Do::Run(1));
    assert!(restarts.is_starting(1));
    assert_eq!(restarts.tick(200 * MS), Do::Nothing);
    assert_eq!(restarts.up(210 * MS), Some((1, 100 * MS)));
    assert_eq!(restarts.tick(5000 * MS), Do::Nothing);
    assert!(!restarts.is_starting(1));
}

#[test]
fn one_that_does_not_come_up_is_tried_again_later_and_later_and_then_given_up() {
    let mut restarts = Restarts::new(settings());
    let (mut now, mut waits) = (0, Vec::new());
    let mut next = restarts.crashed(now);
    while let Next::In(wait_ns) = next {
        waits.push(wait_ns / MS);
        now += wait_ns;
        assert_eq!(restarts.tick(now), Do::Run(waits.len() as u32));
        now += 1000 * MS;
        assert_eq!(restarts.tick(now), Do::Late(waits.len() as u32));
        next = restarts.crashed(now);
    }
    assert_eq!((next, waits), (Next::GivenUp(4), vec![100, 200, 300, 300]));
    assert_eq!(restarts.tick(now * 10), Do::Nothing);
    restarts.stopped();
    assert_eq!(restarts.tick(now * 10), Do::Nothing);
    assert_eq!(restarts.up(now * 10), None);
    assert_eq!(
        restarts.crashed(now * 10 + MS),
        Next::In(100 * MS),
        "somebody had started it: it begins anew"
    );
}

#[test]
fn a_service_that_somebody_else_started_or_stopped_is_left_alone() {
    let mut restarts = Restarts::new(settings());
    restarts.crashed(0);
    assert_eq!(restarts.up(50 * MS), None);
    assert_eq!(restarts.tick(200 * MS), Do::Nothing);
    restarts.crashed(300 * MS);
    restarts.stopped();
    assert_eq!(restarts.tick(1000 * MS), Do::Nothing);
}

#[test]
fn after_a_quiet_window_the_back_off_is_short_again_and_old_restarts_do_not_count() {
    let mut restarts = Restarts::new(settings());
    let mut now = 0;
    for _ in 0..20 {
        assert_eq!(restarts.crashed(now), Next::In(100 * MS));
        assert!(matches!(restarts.tick(now + 100 * MS), Do::Run(_)));
        restarts.up(now + 200 * MS);
        now += 61_000 * MS;
    }
}

proptest! {
    /// However it crashes, the command is not run more often than the limit allows in any window.
    #[test]
    fn the_limit_holds(limit in 1_u32..LIMIT_MAX as u32, steps in prop::collection::vec((0_u8..4, 0_u64..3000), 1..400)) {
        let settings = RestartSettings { limit, ..settings() };
        let mut restarts = Restarts::new(settings);
        let (mut now, mut runs) = (1, Vec::new());
        for (what, wait_ms) in steps {
            now += wait_ms * MS;
            match what {
                0 => {
                    restarts.crashed(now);
                }
                1 if restarts.is_starting(restarts.attempts) => {
                    restarts.up(now);
                }
                2 => restarts.stopped(),
                _ => {}
            }
            if let Do::Run(_) = restarts.tick(now) {
                runs.push(now);
            }
        }
        for (at, first) in runs.iter().enumerate() {
            let inside = runs[at..].iter().filter(|time| *time - first < settings.window_ns).count();
            prop_assert!(inside <= limit as usize, "{inside} runs within a window of {limit}");
        }
    }
}
