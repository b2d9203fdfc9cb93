//! A group that begins with what an order of another kind has left.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_base::world::Disk;
use weir_order::Position;
use weir_order::log::LogSettings;
use weir_raft::{Change, Error, Replica, is_as_seeded, seed};

use super::sim::{Options, Sim, commit_all, run};

const LEFT: u64 = 40;

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Changes the group as soon as no other change is under way: a vote is there before the change that gives it ends.
async fn changed(leader: &Replica, change: Change) {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = leader.change(change.clone()).await {
        assert!(matches!(error, Error::Busy) && Instant::now() < end, "{error}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The first replica's disk has the state of `LEFT` batches.
fn seeded(seed_of: u64) -> Sim {
    let mut options = Options::of(3);
    options.promotes = true;
    options.digest_every = 8;
    let sim = Sim::new(seed_of, options);
    let disk: Arc<dyn Disk> = Arc::new(sim.machines[&1].disk.clone());
    let state: Vec<u8> = (1..=LEFT).flat_map(|id| id.to_le_bytes()).collect();
    let settings = LogSettings { segment_bytes: 32_768, batch_bytes_max: 4096, log_id_if_new: 1 };
    let at = Position { term: 3, index: LEFT };
    let info = seed(disk.clone(), settings, (1, "at 1".to_owned()), at, &mut &state[..]).unwrap();
    assert_eq!(info.at, at);
    let again = seed(disk, settings, (1, "at 1".to_owned()), at, &mut &state[..]);
    assert!(again.is_err(), "what is there is not written over");
    let disk: Arc<dyn Disk> = Arc::new(sim.machines[&1].disk.clone());
    assert!(
        is_as_seeded(&disk, settings, LEFT).unwrap() && !is_as_seeded(&disk, settings, LEFT - 1).unwrap()
    );
    sim
}

#[test]
fn one_replica_goes_on_from_a_state_and_others_get_it_from_there() {
    for seed_of in 0..20 {
        run(900 + seed_of, async || {
            let mut sim = seeded(900 + seed_of);
            // All of it is durable.
            if seed_of % 2 == 0 {
                sim.machines[&1].disk.cut_power();
            }
            for id in 1..=3 {
                sim.start(id).unwrap();
            }
            sim.leader().await.expect("the one that has the state leads");
            let at = sim.machines[&1].app.lock().unwrap().at;
            assert_eq!(at, Position { term: 3, index: LEFT }, "it has the state before anything else");
            // What is raft's own, such as that it leads, is nothing that was ordered.
            let untouched = |sim: &mut Sim| {
                sim.crash(1, false);
                let disk: Arc<dyn Disk> = Arc::new(sim.machines[&1].disk.restart());
                let settings = LogSettings { segment_bytes: 32_768, batch_bytes_max: 4096, log_id_if_new: 1 };
                let found = is_as_seeded(&disk, settings, LEFT).unwrap();
                sim.start(1).unwrap();
                found
            };
            assert!(untouched(&mut sim), "nothing was ordered");
            sim.leader().await.expect("it leads again");
            let leader = commit_all(&sim, 101..111, 100).await;
            assert!(!untouched(&mut sim), "something was ordered");
            drop(leader);
            let leader = commit_all(&sim, 111..112, 100).await;
            assert_eq!(leader.replica_status().id, 1);
            assert_eq!(sim.witness.lock().unwrap().order.keys().next(), Some(&(LEFT + 1)));
            for id in [2, 3] {
                changed(&leader, Change::AddLearner { id, address: format!("at {id}") }).await;
                until("it votes", || leader.replica_status().voters.contains_key(&id)).await;
            }
            commit_all(&sim, 201..221, 100).await;
            let has_all =
                |sim: &Sim, id: u64| sim.machines[&id].app.lock().unwrap().ids.len() as u64 == LEFT + 31;
            until("all have all of it", || (1..=3).all(|id| has_all(&sim, id))).await;
            assert_eq!(sim.machines[&2].app.lock().unwrap().ids[..40], (1..=LEFT).collect::<Vec<_>>()[..]);
            // The one that began may go: the others are the group.
            sim.crash(1, true);
            commit_all(&sim, 301..306, 100).await;
            sim.start(1).unwrap();
            until("it comes back", || sim.machines[&1].app.lock().unwrap().ids.len() as u64 == LEFT + 36)
                .await;
            let witness = sim.witness.lock().unwrap();
            assert!(witness.violations.is_empty(), "{:?}", witness.violations);
        });
    }
}
