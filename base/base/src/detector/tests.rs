use super::*;
use proptest::prelude::*;

const PERIOD: u64 = 100;

fn detector(watch_ns: u64) -> Detector {
    Detector::new(Settings { period_ns: PERIOD, periods: 3, watch_ns })
}

/// Looks each period from `from` on; what was decided, with its time, without the nothings.
fn look(detector: &mut Detector, from: u64, values: impl IntoIterator<Item = u64>) -> Vec<(u64, Decision)> {
    let looks = values.into_iter().enumerate().map(|(n, value)| (from + n as u64 * PERIOD, value));
    looks
        .map(|(now, value)| (now, detector.observe(now, value)))
        .filter(|(_, decision)| *decision != Decision::Nothing)
        .collect()
}

#[test]
fn silence_of_k_periods_is_a_failure_where_nothing_can_be_stimulated() {
    let mut detector = detector(0);
    assert_eq!(look(&mut detector, 0, [1, 2, 3, 3, 3, 3, 3, 3]), [(500, Decision::Failed)]);
    assert_eq!(detector.failures, 1, "it is told once");
    assert_eq!(look(&mut detector, 800, [4]), [(800, Decision::Recovered)]);
}

#[test]
fn an_idle_target_that_answers_a_stimulus_lives() {
    let mut detector = detector(150);
    assert_eq!(look(&mut detector, 0, [1, 1, 1, 1]), [(300, Decision::Stimulate)]);
    assert_eq!(look(&mut detector, 400, [2, 2, 2]), []);
    assert_eq!(look(&mut detector, 700, [2]), [(700, Decision::Stimulate)]);
    assert_eq!(look(&mut detector, 800, [2, 2]), [(900, Decision::Failed)]);
}

#[test]
fn a_counter_that_wraps_or_falls_is_progress() {
    let mut detector = detector(0);
    assert_eq!(look(&mut detector, 0, [u64::MAX, 0, 9, 3, 2, 1]), []);
}

#[test]
fn flapping_needs_ever_longer_silence_and_calm_forgives() {
    let mut detector = detector(0);
    let mut now = 0;
    let mut silences = Vec::new();
    for round in 0..7 {
        detector.observe(now, round * 2 + 1);
        let since = now;
        while detector.observe(now, round * 2 + 1) != Decision::Failed {
            now += PERIOD;
        }
        silences.push((now - since) / PERIOD);
        assert_eq!(detector.observe(now, round * 2 + 2), Decision::Recovered);
    }
    assert_eq!(silences, [3, 6, 12, 24, 48, 48, 48]);
    let values = (0..CALM_PERIODS * 6).map(|n| 1000 + n);
    assert_eq!(look(&mut detector, now, values), []);
    assert_eq!(detector.silence_ns_max(), 3 * PERIOD);
}

#[test]
fn the_level_grows_with_silence() {
    let mut detector = detector(0);
    assert_eq!(detector.level(5), 0.0);
    look(&mut detector, 0, 0..50);
    let levels: Vec<f64> = (0..5).map(|n| detector.level(4900 + n * PERIOD)).collect();
    assert_eq!(levels[0], 0.0);
    assert!(levels.windows(2).all(|pair| pair[0] < pair[1]), "{levels:?}");
}

proptest! {
    #[test]
    fn progress_within_every_period_is_never_a_failure(steps in prop::collection::vec(1_u64..=PERIOD, 1..200), watch in 0_u64..200) {
        let mut detector = detector(watch);
        let mut now = 0;
        for (value, step) in steps.into_iter().enumerate() {
            prop_assert_eq!(detector.observe(now, value as u64), Decision::Nothing);
            now += step;
        }
    }

    #[test]
    fn silence_always_ends_in_a_failure(looks in prop::collection::vec((1_u64..50, 0_u64..3), 0..200), watch in 0_u64..200) {
        let mut detector = detector(watch);
        let mut now = 0;
        for (step, value) in looks {
            now += step;
            detector.observe(now, value);
        }
        if detector.state() != State::Failed {
            let declared = (0..200).any(|_| {
                now += PERIOD;
                detector.observe(now, 7) == Decision::Failed
            });
            prop_assert!(declared);
        }
    }
}
