//! Disks that fill up and are emptied again: no member ends, nothing acknowledged is lost, reads go on as far as the reserve goes, and so do writes
//! when there is room.

use std::collections::BTreeMap;
use std::time::Duration;

use commonware_runtime::deterministic::{Config, Runner};
use commonware_runtime::{Clock, Runner as _};
use commonware_utils::channel::oneshot;
use weir_bft::Replica;
use weir_order::Completion;

use super::sim::{Fate, MEMBERS, Sim, propose, settings};

/// Bytes of a proposal.
const BYTES: usize = 4_000;

fn seeded<T>(seed: u64, work: impl AsyncFnOnce(Sim) -> T) -> T {
    let config = Config::new().with_seed(seed).with_timeout(Some(Duration::from_secs(3_600)));
    Runner::new(config).start(|context| async move {
        let mut sim = Sim::new(context, seed, settings(), MEMBERS, true).await;
        for id in 1..=MEMBERS {
            sim.start(id).await.unwrap();
        }
        work(sim).await
    })
}

/// Both disks of a member take so many bytes more than they have.
fn leave(sim: &Sim, id: u32, bytes: u64) {
    let machine = &sim.machines[&id];
    for disk in [&machine.disk, &machine.votes] {
        disk.set_capacity_bytes(disk.used_bytes() + bytes);
    }
}

fn empty_out(sim: &Sim) {
    for machine in sim.machines.values() {
        machine.disk.set_capacity_bytes(u64::MAX);
        machine.votes.set_capacity_bytes(u64::MAX);
    }
}

fn is_full(sim: &Sim, id: u32) -> bool {
    sim.replica(id).unwrap().replica_status().full.is_some()
}

fn nobody_ended(sim: &Sim) {
    for id in sim.up() {
        assert_eq!(sim.replica(id).unwrap().replica_status().failure, None, "member {id}");
    }
}

async fn commit_all(sim: &Sim, ids: std::ops::Range<u64>, by: &[u32]) {
    for id in ids {
        let replica = sim.replica(by[id as usize % by.len()]).unwrap();
        let mut tries = 0;
        loop {
            match propose(&sim.context, &replica, id, BYTES).await {
                Fate::Committed(_) => break,
                Fate::Refused => sim.context.sleep(Duration::from_millis(100)).await,
                Fate::Unknown => panic!("{id} is lost"),
            }
            tries += 1;
            assert!(tries < 600, "{id} is never committed");
        }
    }
}

async fn reads(sim: &Sim, replica: &Replica) -> bool {
    let (answer, answered) = oneshot::channel();
    let done = Completion::new(move |result| drop(answer.send(result)));
    if replica.barrier(done).is_err() {
        return false;
    }
    tokio::select! {
        biased;
        result = answered => matches!(result, Ok(Ok(_))),
        () = sim.context.sleep(Duration::from_secs(10)) => false,
    }
}

async fn whole(sim: &Sim, acked: &BTreeMap<u64, u64>) {
    let last = sim.witness.lock().unwrap().order.last_key_value().map_or(0, |(index, _)| *index);
    let has = |id: u32| sim.machines[&id].list.lock().unwrap().len() as u64;
    for _ in 0..600 {
        if sim.up().into_iter().all(|id| has(id) >= last) {
            break;
        }
        sim.context.sleep(Duration::from_millis(100)).await;
    }
    for id in sim.up() {
        assert!(has(id) >= last, "member {id} has {} of {last}", has(id));
    }
    let witness = sim.witness.lock().unwrap();
    assert!(witness.violations.is_empty(), "{:?}", witness.violations);
    for (index, id) in acked {
        assert_eq!(witness.order.get(index), Some(id), "an acknowledged proposal is lost");
    }
}

#[test]
fn all_disks_fill_up_and_nobody_ends() {
    let mut read = 0_u32;
    for seed in 0..4 {
        read += seeded(700 + seed, async |mut sim| {
            let mut read = 0_u32;
            commit_all(&sim, 1..10, &[1, 2, 3, 4]).await;
            for id in 1..=MEMBERS {
                let bytes = sim.rng.below(300_000);
                leave(&sim, id, bytes);
            }
            let (mut next, mut refused, mut acked) = (1_000, 0, BTreeMap::new());
            for _ in 0..2_000 {
                let replica = sim.replica(1 + (next % u64::from(MEMBERS)) as u32).unwrap();
                next += 1;
                match propose(&sim.context, &replica, next, BYTES).await {
                    Fate::Committed(index) => {
                        acked.insert(index, next);
                        refused = 0;
                    }
                    Fate::Refused => refused += 1,
                    Fate::Unknown => {}
                }
                if refused > 20 {
                    break;
                }
                sim.context.sleep(Duration::from_millis(20)).await;
            }
            assert!(refused > 20, "seed {seed}: it is never refused for good: {} acknowledged", acked.len());
            nobody_ended(&sim);
            assert!(
                sim.up().into_iter().any(|id| is_full(&sim, id)),
                "seed {seed}: nobody says that its disk is full"
            );
            // Reads take of the reserve: with too few that have any left, nobody can order them.
            let waits = |id: u32| sim.replica(id).unwrap().room_counters()[0].waited > 0;
            if (1..=MEMBERS).filter(|id| waits(*id)).count() <= 1 {
                let reader = (1..=MEMBERS).find(|id| !waits(*id)).unwrap();
                read += u32::from(reads(&sim, &sim.replica(reader).unwrap()).await);
            }
            // For a long while, and over a restart in the midst of it.
            let (id, power) = (1 + sim.rng.below(u64::from(MEMBERS)) as u32, sim.rng.chance(1, 2));
            sim.crash(id, power).await;
            sim.context.sleep(Duration::from_secs(2)).await;
            sim.start(id).await.unwrap_or_else(|error| panic!("seed {seed}: it does not start: {error}"));
            sim.context.sleep(Duration::from_secs(120)).await;
            nobody_ended(&sim);
            empty_out(&sim);
            commit_all(&sim, 100_000..100_040, &[1, 2, 3, 4]).await;
            for _ in 0..300 {
                if sim.up().into_iter().any(|id| is_full(&sim, id)) {
                    sim.context.sleep(Duration::from_millis(100)).await;
                }
            }
            assert!(!sim.up().into_iter().any(|id| is_full(&sim, id)), "seed {seed}: there is room");
            whole(&sim, &acked).await;
            nobody_ended(&sim);
            read
        });
    }
    assert!(read > 0, "reads were never served");
}

#[test]
fn one_full_member_stays_and_the_others_go_on() {
    seeded(750, async |sim| {
        commit_all(&sim, 1..10, &[1, 2, 3, 4]).await;
        leave(&sim, 4, 0);
        commit_all(&sim, 1_000..1_250, &[1, 2, 3]).await;
        let replica = sim.replica(4).unwrap();
        assert!(replica.replica_status().full.is_some());
        assert!(replica.room_counters()[0].waited >= 1, "{:?}", replica.room_counters());
        assert!(matches!(propose(&sim.context, &replica, 5_000, BYTES).await, Fate::Refused));
        nobody_ended(&sim);
        empty_out(&sim);
        whole(&sim, &BTreeMap::new()).await;
        commit_all(&sim, 6_000..6_004, &[4]).await;
        assert_eq!(replica.replica_status().full, None);
    });
}
