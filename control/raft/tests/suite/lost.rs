//! A voter that comes back with an empty disk: it is filled and votes again, and what it had acknowledged is not lost meanwhile.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_base::world::SimDisk;

use super::sim::{Fate, Options, Sim, commit_all, propose, run};

const BYTES: usize = 200;

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn empty(sim: &mut Sim, id: u64) {
    sim.crash(id, true);
    let seed = sim.rng.next_u64();
    sim.machines.get_mut(&id).unwrap().disk = SimDisk::new(seed);
}

fn votes(sim: &Sim, id: u64) -> bool {
    let leader = sim.leader_now().and_then(|id| sim.replica(id));
    leader.is_some_and(|leader| leader.replica_status().voters.contains_key(&id))
}

#[test]
fn a_voter_that_comes_back_with_an_empty_disk_is_filled_and_votes_again() {
    for seed in 0..20 {
        run(600 + seed, async || {
            let mut sim = Sim::new(600 + seed, Options::of(3));
            sim.found().await;
            let leader = commit_all(&sim, 1..150, BYTES).await;
            let id = leader.replica_status().id;
            if seed % 2 == 0 {
                // By a state, too.
                sim.snapshot(id);
                commit_all(&sim, 1_000..1_150, BYTES).await;
                sim.snapshot(id);
                commit_all(&sim, 2_000..2_010, BYTES).await;
            }
            let lost = id % 3 + 1;
            empty(&mut sim, lost);
            sim.start(lost).unwrap();
            until("it is never told of", || leader.counters().mended > 0 || sim.leader_now() != Some(id))
                .await;
            commit_all(&sim, 5_000..5_020, BYTES).await;
            let last = || sim.witness.lock().unwrap().order.last_key_value().map_or(0, |(index, _)| *index);
            until("it lacks something", || sim.machines[&lost].app.lock().unwrap().at.index == last()).await;
            until("it never votes again", || votes(&sim, lost)).await;
            assert_eq!(leader.replica_status().failure, None, "seed {seed}: the leader bears it");
            // It counts: with one of the others it is the majority.
            let other = (1..=3).find(|id| *id != lost && Some(*id) != sim.leader_now()).unwrap();
            until("it is new for ever", || sim.machines[&lost].disk.read_all("newborn").is_err()).await;
            sim.crash(other, false);
            // Office may change hands in the midst of one, of which nobody knows then what became.
            let (mut next, mut committed) = (6_000, 0);
            let end = Instant::now() + Duration::from_secs(60);
            while committed < 5 {
                assert!(Instant::now() < end, "seed {seed}: with one of the others it is no majority");
                if let Some(leader) = sim.leader_now().and_then(|id| sim.replica(id)) {
                    next += 1;
                    committed += u32::from(matches!(propose(&leader, next, BYTES).await, Fate::Committed(_)));
                }
                sleep(Duration::from_millis(5)).await;
            }
            assert!(sim.witness.lock().unwrap().violations.is_empty());
        });
    }
}

#[test]
fn a_voter_that_has_lost_its_disk_does_not_vote_away_what_it_had_acknowledged() {
    for seed in 0..20 {
        run(650 + seed, async || {
            let mut sim = Sim::new(650 + seed, Options::of(3));
            sim.found().await;
            let leader = commit_all(&sim, 1..20, BYTES).await;
            let id = leader.replica_status().id;
            let (lost, cut) = (id % 3 + 1, (id + 1) % 3 + 1);
            // Only the leader and the one that will lose its disk have these.
            sim.net.cut(&[cut], &[id, lost], true);
            for number in 100..110 {
                let fate = propose(&leader, number, BYTES).await;
                assert!(matches!(fate, Fate::Committed(_)), "seed {seed}: {fate:?}");
            }
            sim.crash(id, true);
            empty(&mut sim, lost);
            sim.start(lost).unwrap();
            sim.net.heal();
            sleep(Duration::from_secs(20)).await;
            assert_eq!(
                sim.leader_now(),
                None,
                "seed {seed}: they elected one that lacks what was acknowledged"
            );
            sim.start(id).unwrap();
            commit_all(&sim, 1_000..1_010, BYTES).await;
            until("it never has all again", || {
                let last = sim.witness.lock().unwrap().order.last_key_value().map_or(0, |(index, _)| *index);
                sim.machines[&lost].app.lock().unwrap().at.index == last
            })
            .await;
            let witness = sim.witness.lock().unwrap();
            assert!(witness.violations.is_empty(), "{:?}", witness.violations);
            for number in 100..110 {
                assert!(witness.order.values().any(|id| *id == number), "seed {seed}: {number} is lost");
            }
        });
    }
}

#[test]
fn a_group_whose_first_leader_dies_at_any_moment_of_its_birth_comes_back_with_it() {
    for seed in 0..60 {
        run(680 + seed, async || {
            let mut sim = Sim::new(680 + seed, Options::of(3));
            sim.found().await;
            let id = sim.leader_now().unwrap();
            let leader = sim.replica(id).unwrap();
            // Some have entries of it by then, and none knows that they are committed.
            for number in 1..=sim.rng.below(4) {
                let done = weir_order::Completion::new(|_| {});
                let _refused =
                    weir_order::Engine::propose(&leader, number.to_le_bytes().to_vec().into(), done);
            }
            sleep(Duration::from_micros(sim.rng.below(40_000))).await;
            let power = sim.rng.chance(1, 2);
            sim.crash(id, power);
            sleep(Duration::from_secs(2)).await;
            sim.start(id).unwrap();
            commit_all(&sim, 1_000..1_010, BYTES).await;
            assert!(sim.witness.lock().unwrap().violations.is_empty());
        });
    }
}
