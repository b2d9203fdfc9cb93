//! Groups whose clocks lie, jump and are set right, in simulated time.

use super::*;
use crate::world::Rng;

const HOUR: i64 = 3_600_000;
const YEAR: i64 = 365 * 24 * HOUR;
const BEGIN: u64 = 1_790_000_000_000;
/// Between two ticks.
const STEP: u64 = 200;

/// What a member is like.
#[derive(Clone)]
struct Member {
    time: OrderedTime,
    /// By how much its wall clock is wrong.
    wrong_ms: i64,
    /// It tells others this instead of the truth.
    lie: Option<Reading>,
    down: bool,
}

struct World {
    now_ms: u64,
    members: Vec<Member>,
    quorum: usize,
    rng: Rng,
}

impl World {
    fn new(count: usize, quorum: usize, last_ms: u64) -> World {
        let ids: BTreeSet<u64> = (1..=count as u64).collect();
        let member = |id: u64| {
            let mut time = OrderedTime::new(id, last_ms, 0);
            time.set_members(ids.clone(), quorum);
            Member { time, wrong_ms: 0, lie: None, down: false }
        };
        World { now_ms: 0, members: ids.iter().map(|id| member(*id)).collect(), quorum, rng: Rng::new(7) }
    }

    fn raft(count: usize) -> World {
        World::new(count, count / 2 + 1, 0)
    }

    fn bft(count: usize) -> World {
        World::new(count, count - (count - 1) / 3, 0)
    }

    fn wall(&self, at: usize) -> u64 {
        (BEGIN + self.now_ms).saturating_add_signed(self.members[at].wrong_ms)
    }

    fn restart(&mut self, at: usize, last_ms: u64) {
        let ids: BTreeSet<u64> = (1..=self.members.len() as u64).collect();
        let mut time = OrderedTime::new(at as u64 + 1, last_ms, self.now_ms);
        time.set_members(ids, self.quorum);
        self.members[at].time = time;
    }

    fn run(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while self.now_ms < until_ms {
            self.now_ms += STEP;
            if self.now_ms.is_multiple_of(1_000) {
                self.tell();
            }
            for at in 0..self.members.len() {
                let wall_ms = self.wall(at);
                self.members[at].time.tick(wall_ms, self.now_ms);
            }
        }
    }

    fn tell(&mut self) {
        for from in 0..self.members.len() {
            let (member, wall_ms) = (&self.members[from], self.wall(from));
            let reading = member.lie.unwrap_or(member.time.reading(wall_ms, self.now_ms));
            if member.down {
                continue;
            }
            for to in (0..self.members.len()).filter(|to| *to != from) {
                // Some are lost.
                if self.rng.chance(9, 10) && !self.members[to].down {
                    let now_ms = self.now_ms;
                    self.members[to].time.heard(from as u64 + 1, reading, now_ms);
                }
            }
        }
    }

    fn ordered(&self, at: usize) -> u64 {
        self.members[at].time.ordered_ms(self.now_ms)
    }

    /// How far everybody's ordered time is ahead of the true time, at most.
    fn off(&self, at: usize) -> i64 {
        apart(self.ordered(at), BEGIN + self.now_ms)
    }
}

fn wrongs() -> [i64; 4] {
    [-10 * YEAR, -HOUR, HOUR, 10 * YEAR]
}

#[test]
fn no_single_clock_moves_ordered_time_whatever_it_says() {
    for (mut world, what) in [(World::raft(3), "raft"), (World::raft(5), "raft"), (World::bft(4), "bft")] {
        world.run(10_000);
        for wrong_ms in wrongs() {
            for at in 0..world.members.len() {
                world.members[at].wrong_ms = wrong_ms;
                world.run(70_000);
                for other in 0..world.members.len() {
                    let off_ms = world.off(other);
                    assert!(off_ms.abs() < 2_000, "{what} {wrong_ms} of {at}: {other} is off by {off_ms} ms");
                }
                let seen = world.members[0].time.view(world.now_ms).members_ms[&(at as u64 + 1)];
                assert!((seen - wrong_ms).abs() < 5_000, "{what}: {seen} is shown for {wrong_ms}");
                world.members[at].wrong_ms = 0;
            }
        }
    }
}

#[test]
fn a_group_that_begins_with_a_wrong_member_begins_at_the_time_of_the_others() {
    for wrong_ms in wrongs() {
        for mut world in [World::raft(3), World::bft(4)] {
            world.members[0].wrong_ms = wrong_ms;
            assert_eq!(world.ordered(0), 0);
            world.run(10_000);
            for at in 0..world.members.len() {
                assert!(world.off(at).abs() < 3_000, "{wrong_ms}: {at} is off by {} ms", world.off(at));
            }
        }
    }
}

#[test]
fn two_seconds_of_wrong_clocks_everywhere_change_nothing() {
    for wrong_ms in wrongs().into_iter().chain([-60_000]) {
        let mut world = World::bft(4);
        world.run(10_000);
        world.members.iter_mut().for_each(|member| member.wrong_ms = wrong_ms);
        world.run(2_000);
        world.members.iter_mut().for_each(|member| member.wrong_ms = 0);
        world.run(5_000);
        for at in 0..4 {
            assert!(world.off(at).abs() < 2_000, "{wrong_ms}: {at} is off by {} ms", world.off(at));
        }
    }
}

#[test]
fn all_clocks_set_back_never_hold_ordered_time() {
    for wrong_ms in [-60_000, -HOUR, -10 * YEAR] {
        let mut world = World::bft(4);
        world.run(10_000);
        world.members.iter_mut().for_each(|member| member.wrong_ms = wrong_ms);
        let (before_ms, ran_ms) = (world.ordered(1), 120_000);
        world.run(ran_ms);
        let ran = world.ordered(1) - before_ms;
        assert!(ran >= ran_ms - ran_ms / 12 && ran <= ran_ms + 1_000, "{wrong_ms}: {ran} ms of {ran_ms}");
        let view = world.members[1].time.view(world.now_ms);
        let wanted = if wrong_ms < -ASK_MS { State::Asks } else { State::Corrects };
        assert_eq!(view.state, wanted);
    }
}

#[test]
fn a_long_sleep_of_the_machines_is_followed_when_it_stands_and_asked_about_when_it_is_days() {
    let mut world = World::raft(3);
    world.run(10_000);
    world.members.iter_mut().for_each(|member| member.wrong_ms = 8 * HOUR);
    world.run(30_000);
    assert!(world.off(0) < 3_000);
    world.run(60_000);
    (0..3).for_each(|at| assert!((world.off(at) - 8 * HOUR).abs() < 3_000, "{}", world.off(at)));
    assert!(world.members.iter().any(|member| member.time.steps() == 1));
    world.members.iter_mut().for_each(|member| member.wrong_ms = 10 * YEAR);
    world.run(200_000);
    (0..3).for_each(|at| assert!((world.off(at) - 8 * HOUR).abs() < 3_000, "{}", world.off(at)));
    assert_eq!(world.members[0].time.view(world.now_ms).state, State::Asks);
    // The order says by how much: nothing that has a life moves, and people read what the clocks say.
    let before_ms = world.ordered(0);
    let difference_ms = apart(world.wall(0), world.ordered(0));
    world.members.iter_mut().for_each(|member| member.time.set_difference(difference_ms));
    assert_eq!(world.ordered(0), before_ms);
    world.run(1_000);
    let view = world.members[0].time.view(world.now_ms);
    assert_eq!(view.state, State::Follows);
    assert!(apart(view.wall_ms, world.wall(0)).abs() < 1_000);
}

#[test]
fn clocks_that_jump_to_and_fro_move_ordered_time_by_the_slew_at_most() {
    let (mut world, mut rng) = (World::bft(7), Rng::new(3));
    world.run(10_000);
    let mut before_ms = world.ordered(0);
    for _ in 0..60 {
        let wrongs = wrongs();
        world.members.iter_mut().for_each(|member| member.wrong_ms = wrongs[rng.below(4) as usize]);
        world.run(10_000);
        let now_ms = world.ordered(0);
        let ran_ms = now_ms - before_ms;
        assert!((9_000..=11_000).contains(&ran_ms), "{ran_ms} ms of 10000");
        before_ms = now_ms;
    }
}

#[test]
fn liars_among_byzantine_members_move_nobody_and_their_proposals_are_refused() {
    for wrong_ms in wrongs() {
        let mut world = World::bft(4);
        world.run(10_000);
        let lie = (BEGIN + world.now_ms).saturating_add_signed(wrong_ms);
        world.members[2].lie = Some(Reading { wall_ms: lie, ordered_ms: lie });
        world.run(120_000);
        for at in [0, 1, 3] {
            assert!(world.off(at).abs() < 2_000, "{wrong_ms}: {at} is off by {} ms", world.off(at));
            let latest_ms = world.members[at].time.latest_ms(world.now_ms);
            assert!(latest_ms <= BEGIN + world.now_ms + AHEAD_MS + 2_000);
            // What one proposer put into the order leads no certain member on.
            let now_ms = world.now_ms;
            world.members[at].time.decided(BEGIN + now_ms + AHEAD_MS, now_ms);
            assert!(world.off(at).abs() < 2_000);
        }
    }
}

#[test]
fn who_is_restarted_or_was_wrong_agrees_with_the_others_again_without_a_restart() {
    let mut world = World::bft(4);
    world.run(10_000);
    // Wrong, and right again.
    for wrong_ms in wrongs() {
        world.members[3].wrong_ms = wrong_ms;
        world.run(30_000);
        world.members[3].wrong_ms = 0;
        world.run(3_000);
        let (own_ms, others_ms) = (world.ordered(3), world.members[0].time.latest_ms(world.now_ms));
        assert!(own_ms <= others_ms && world.off(3).abs() < 2_000);
    }
    // Restarted with an old state, and with a wrong clock.
    let last_ms = world.ordered(3);
    world.members[3].down = true;
    world.run(60_000);
    world.members[3].down = false;
    world.members[3].wrong_ms = 10 * YEAR;
    world.restart(3, last_ms);
    world.run(10_000);
    assert!(world.off(3).abs() < 3_000, "{}", world.off(3));
    // One whose monotonic clock stood still.
    let (ordered_ms, now_ms) = (world.ordered(3), world.now_ms);
    world.members[3].time.at = Some((ordered_ms - 600_000, now_ms));
    world.run(3_000);
    assert!(world.off(3).abs() < 3_000, "{}", world.off(3));
}

#[test]
fn a_single_controller_goes_on_by_monotonic_time_and_asks_when_it_is_days_off() {
    for (wrong_ms, state) in [(10 * YEAR, State::Asks), (-10 * YEAR, State::Asks), (-HOUR, State::Corrects)] {
        let mut world = World::new(1, 1, BEGIN);
        world.members[0].wrong_ms = wrong_ms;
        world.run(200_000);
        assert!(world.off(0).abs() <= 200_000 / SLEW as i64 + 1_000, "{wrong_ms}: {}", world.off(0));
        assert_eq!(world.members[0].time.view(world.now_ms).state, state);
    }
    // Nothing was ordered yet: its clock is all there is.
    let mut world = World::new(1, 1, 0);
    world.run(STEP);
    assert!(world.off(0).abs() < 1_000);
}

#[test]
fn only_a_correction_that_the_clocks_agree_with_is_right() {
    let mut world = World::bft(4);
    world.run(10_000);
    let (time, now_ms) = (&world.members[0].time, world.now_ms);
    let (wall_ms, ordered_ms) = (BEGIN + now_ms, world.ordered(0));
    assert!(time.is_right(wall_ms, ordered_ms, now_ms));
    for wrong_ms in wrongs() {
        assert!(!time.is_right(wall_ms.saturating_add_signed(wrong_ms), ordered_ms, now_ms));
        assert!(!time.is_right(wall_ms, ordered_ms.saturating_add_signed(wrong_ms), now_ms));
    }
}

#[test]
fn readings_are_read_as_they_were_written_and_nothing_else_is() {
    let reading = Reading { wall_ms: BEGIN, ordered_ms: 7 };
    assert_eq!(Reading::decode(&reading.encode()), Some(reading));
    assert_eq!(Reading::decode(&reading.encode()[..READING_BYTES - 1]), None);
    bolero::check!().with_iterations(2000).with_type::<Vec<u8>>().for_each(|bytes| {
        if let Some(reading) = Reading::decode(bytes) {
            assert_eq!(&reading.encode()[..], &bytes[..]);
        }
    });
}
