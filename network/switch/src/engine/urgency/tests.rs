use super::*;

#[test]
fn it_rises_when_bulk_is_left_behind_again_and_again_and_falls_when_that_is_over() {
    let start = Instant::now();
    let mut urgency = Urgency::new(-20);
    for _ in 1..PATIENCE {
        assert_eq!(urgency.turned(start, true), None);
    }
    assert_eq!(urgency.turned(start, false), None, "it has caught up");
    for _ in 1..PATIENCE {
        assert_eq!(urgency.turned(start, true), None);
    }
    assert_eq!(urgency.turned(start, true), Some(Change::Rise(-20)));
    assert!(urgency.is_on());
    // Seen again before the time is over, it stays so from then.
    let later = start + HOLD / 2;
    assert_eq!(urgency.turned(later, true), None);
    assert_eq!(urgency.turned(start + HOLD, false), None);
    assert_eq!(urgency.turned(later + HOLD, false), Some(Change::Fall));
    assert!(!urgency.is_on());
    assert_eq!(urgency.turned(later + 2 * HOLD, false), None);
}

#[test]
fn without_a_level_or_the_right_to_it_it_never_rises() {
    let start = Instant::now();
    let mut none = Urgency::new(0);
    let mut refused = Urgency::new(-1);
    refused.give_up();
    for _ in 0..3 * PATIENCE {
        assert_eq!((none.turned(start, true), refused.turned(start, true)), (None, None));
    }
    assert!(!none.is_on() && !refused.is_on());
}

#[test]
fn the_level_of_a_thread_rises_and_falls_alone() {
    let nice = || rustix::process::getpriority_process(None).unwrap();
    let others = nice();
    let changed = std::thread::spawn(move || {
        let mut level = Level::default();
        // Only down to be sure: a test may not have the right to rise.
        rustix::process::setpriority_process(None, others + 2).unwrap();
        if let Err(error) = level.make(Change::Rise(others + 1)) {
            println!("NOT RUN the_level_of_a_thread_rises_and_falls_alone: {error}");
            return (others + 1, others + 2, others + 2);
        }
        let risen = nice();
        level.make(Change::Rise(others + 3)).unwrap();
        let still = nice();
        level.make(Change::Fall).unwrap();
        (risen, nice(), still + 1)
    });
    assert_eq!(changed.join().unwrap(), (others + 1, others + 2, others + 2));
    assert_eq!(nice(), others);
}
