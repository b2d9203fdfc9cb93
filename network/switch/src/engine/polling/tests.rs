use super::*;

const LONGEST: Duration = Duration::from_micros(30);

fn after(start: Instant, us: u64) -> Instant {
    start + Duration::from_micros(us)
}

#[test]
fn it_looks_where_answers_come_soon_and_stops_where_they_do_not() {
    let start = Instant::now();
    let mut polling = Polling::new(LONGEST, start);
    assert!(!polling.looks(start), "nothing is known yet");
    polling.found(after(start, 10));
    polling.worked(after(start, 12), 100);
    assert!(polling.looks(after(start, 41)) && !polling.looks(after(start, 42)));
    let mut now = after(start, 12);
    for left in (0..PATIENCE).rev() {
        now += Duration::from_millis(1);
        polling.found(now);
        polling.worked(now, 100);
        assert_eq!(polling.looks(now), left > 0);
    }
    // A short gap is seen asleep too.
    polling.found(now + LONGEST / 2);
    polling.worked(now + LONGEST / 2, 100);
    assert!(polling.looks(now + LONGEST));
}

#[test]
fn it_does_not_look_while_there_is_bulk() {
    let start = Instant::now();
    let mut polling = Polling::new(LONGEST, start);
    polling.found(start);
    polling.worked(start, BULK_BYTES);
    assert!(!polling.looks(after(start, 1)));
    polling.found(after(start, 5));
    polling.worked(after(start, 5), 66);
    assert!(!polling.looks(after(start, 6)), "bulk was just now");
    polling.worked(start + BULK_HOLD, 66);
    assert!(polling.looks(start + BULK_HOLD));
}

#[test]
fn zero_means_never() {
    let start = Instant::now();
    let mut polling = Polling::new(Duration::ZERO, start);
    polling.found(start);
    polling.worked(start, 66);
    assert!(!polling.looks(start));
}

#[test]
fn on_a_processor_of_its_own_it_always_looks() {
    let start = Instant::now();
    let mut polling = Polling::always(start);
    assert!(polling.is_alone() && polling.looks(start + Duration::from_secs(9)));
    polling.found(start);
    polling.worked(start, BULK_BYTES);
    assert!(polling.looks(start), "bulk too");
}
