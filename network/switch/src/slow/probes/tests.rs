use super::*;
use proptest::prelude::*;

fn place(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

fn gateways(of: &[u8]) -> Vec<GatewayEntry> {
    of.iter()
        .map(|last| GatewayEntry { name: Label::new(format!("g{last}")).unwrap(), underlay: place(*last) })
        .collect()
}

/// Time in ticks of 50 ms, and who answers in it.
struct World {
    probes: Probes,
    now_ms: u64,
    sent: u64,
}

impl World {
    fn of(gateways_of: &[u8]) -> World {
        let mut probes = Probes::default();
        probes.set(0, &gateways(gateways_of));
        World { probes, now_ms: 0, sent: 0 }
    }

    fn run(&mut self, ms: u64, answers: &[u8]) -> Vec<Step> {
        let end = self.now_ms + ms;
        let mut steps = Vec::new();
        while self.now_ms < end {
            let step = self.probes.pass_time(self.now_ms, |of| answers.iter().any(|last| place(*last) == of));
            self.sent += step.send.len() as u64;
            if step != Step::default() {
                steps.push(step);
            }
            self.now_ms += 50;
        }
        steps
    }

    fn silent(&self) -> Vec<IpAddr> {
        self.probes.silent().into_iter().collect()
    }
}

#[test]
fn one_that_does_not_answer_is_silent_in_time_and_back_when_it_answers() {
    let mut world = World::of(&[1, 2, 3]);
    world.run(3000, &[1, 2, 3]);
    assert!(world.silent().is_empty());
    // It answered the last probe that it was sent; the next ones it does not.
    let lost = world.run(DETECTED_MS, &[1, 3]);
    assert_eq!(world.silent(), [place(2)]);
    assert_eq!(lost.iter().flat_map(|step| &step.lost).collect::<Vec<_>>(), [&Label::new("g2").unwrap()]);
    // It is asked seldom then, and not for ever at once.
    let sent = world.sent;
    world.run(60_000, &[1, 3]);
    let of_two = world.sent - sent - 2 * 60_000 / INTERVAL_MS;
    assert!((60_000 / PAUSE_MS_MAX..25).contains(&of_two), "{of_two}");
    let back = world.run(PAUSE_MS_MAX + u64::from(ANSWERS_MIN) * INTERVAL_MS + 50, &[1, 2, 3]);
    assert!(world.silent().is_empty());
    assert_eq!(back.iter().flat_map(|step| &step.back).count(), 1);
    let counted: Vec<u64> = world.probes.all().map(|(_, _, counters)| counters.silent).collect();
    assert_eq!(counted, [0, 1, 0]);
}

#[test]
fn when_nobody_answers_nobody_is_silent() {
    let mut world = World::of(&[1, 2]);
    world.run(3000, &[1, 2]);
    world.run(60_000, &[]);
    assert!(world.silent().is_empty(), "it is this host, or the underlay");
    // Those that answer again first show that the others are silent.
    world.run(DETECTED_MS, &[2]);
    assert_eq!(world.silent(), [place(1)]);
}

#[test]
fn one_that_never_answered_has_longer() {
    let mut world = World::of(&[1, 2]);
    world.run(u64::from(UNPROVEN_MAX) * INTERVAL_MS, &[1]);
    assert!(world.silent().is_empty());
    world.run(2 * INTERVAL_MS, &[1]);
    assert_eq!(world.silent(), [place(2)]);
}

#[test]
fn one_that_comes_and_goes_needs_ever_more_answers() {
    let mut world = World::of(&[1, 2]);
    world.run(3000, &[1, 2]);
    let mut needed = Vec::new();
    for _ in 0..8 {
        world.run(DETECTED_MS, &[1]);
        assert_eq!(world.silent(), [place(2)]);
        let begun = world.now_ms;
        while !world.silent().is_empty() {
            world.run(INTERVAL_MS, &[1, 2]);
        }
        needed.push((world.now_ms - begun) / INTERVAL_MS);
    }
    assert!(needed.windows(2).all(|pair| pair[0] <= pair[1]), "{needed:?}");
    assert!(needed[0] <= 6 && needed[4] >= 40 && needed[7] <= u64::from(ANSWERS_MAX) + 4, "{needed:?}");
    // After a while of quiet it is as any other.
    world.run(STEADY_MS, &[1, 2]);
    world.run(DETECTED_MS, &[1]);
    world.run(8 * INTERVAL_MS, &[1, 2]);
    assert!(world.silent().is_empty());
}

#[test]
fn those_that_are_no_gateways_any_more_are_forgotten() {
    let mut world = World::of(&[1, 2]);
    world.run(3000, &[1, 2]);
    world.run(DETECTED_MS, &[1]);
    assert_eq!(world.silent(), [place(2)]);
    world.probes.set(world.now_ms, &gateways(&[1, 3]));
    assert!(world.silent().is_empty());
    let asked: Vec<IpAddr> = world.run(INTERVAL_MS, &[1, 3]).into_iter().flat_map(|step| step.send).collect();
    assert!(asked.contains(&place(3)) && !asked.contains(&place(2)));
}

proptest! {
    /// Whatever is lost on the way: never are all silent, none is asked more often than it may, and who answers everything
    /// is not silent for long.
    #[test]
    fn bounds_hold_whatever_is_lost(lost in proptest::collection::vec((0..3_u8, any::<bool>()), 1..400)) {
        let mut world = World::of(&[0, 1, 2]);
        let mut up = [true; 3];
        for (of, is_up) in lost {
            up[usize::from(of)] = is_up;
            let answers: Vec<u8> = (0..3).filter(|last| up[usize::from(*last)]).collect();
            for step in world.run(INTERVAL_MS, &answers) {
                prop_assert!(step.send.len() <= 3);
            }
            prop_assert!(world.sent <= 3 * (world.now_ms / INTERVAL_MS + 1));
            prop_assert!(world.silent().len() < 3, "one is silent only beside one that is not");
        }
        world.run(2 * (PAUSE_MS_MAX + u64::from(ANSWERS_MAX) * INTERVAL_MS), &[0, 1, 2]);
        prop_assert!(world.silent().is_empty());
    }
}

/// A process that takes over sends nothing to a gateway that was silent, and finds one that dies in the same time.
#[test]
fn what_is_known_goes_over() {
    let mut world = World::of(&[1, 2, 3]);
    world.run(3000, &[1, 2, 3]);
    world.run(DETECTED_MS, &[1, 3]);
    let known = world.probes.carried();
    assert_eq!(known, [(place(1), false), (place(2), true), (place(3), false)]);
    let mut other = World::of(&[1, 2, 3, 4]);
    other.probes.carry(&known);
    // One that is not in force here any more is nothing.
    other.probes.carry(&[(place(9), true)]);
    assert_eq!(other.silent(), [place(2)]);
    other.run(DETECTED_MS + INTERVAL_MS, &[1]);
    assert_eq!(other.silent(), [place(2), place(3)], "the fourth never answered, and has more time");
    other.run(60_000, &[1, 2, 3, 4]);
    assert!(other.silent().is_empty());
}
