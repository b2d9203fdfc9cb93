//! A replica whose state diverged is fenced and repaired.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use weir_order::Engine;

use super::sim::{Options, Sim, commit_all, run};

async fn fill(sim: &Sim, ids: std::ops::Range<u64>) {
    commit_all(sim, ids, 100).await;
}

async fn diverge(seed: u64, the_leader: bool) {
    let mut options = Options::of(3);
    options.digest_every = 10;
    let mut sim = Sim::new(seed, options);
    sim.found().await;
    fill(&sim, 1..100).await;
    let leader = sim.leader_now().unwrap();
    for id in 1..=3 {
        sim.snapshot(id);
    }
    fill(&sim, 100..120).await;
    let victim = if the_leader { leader } else { leader % 3 + 1 };
    let replica = sim.replica(victim).unwrap();
    assert!(replica.replica_status().fenced.is_none() && replica.counters().digests_agreed > 0);

    sim.machines[&victim].app.lock().unwrap().rot = true;
    let mut next = 1000;
    let end = Instant::now() + Duration::from_secs(60);
    while replica.replica_status().fenced.is_none() {
        assert!(Instant::now() < end, "never fenced");
        fill(&sim, next..next + 1).await;
        next += 1;
    }
    let refused =
        replica.propose(bytes::Bytes::from_static(b"12345678"), weir_order::Completion::new(|_| ()));
    assert!(matches!(refused, Err(weir_order::Error::Fenced { .. })), "{refused:?}");
    let end = Instant::now() + Duration::from_secs(60);
    while replica.replica_status().fenced.is_some() {
        assert!(Instant::now() < end, "never repaired: {:?}", replica.counters());
        sleep(Duration::from_millis(50)).await;
    }
    fill(&sim, next + 1..next + 40).await;
    let counters = replica.counters();
    assert_eq!((counters.divergences, counters.repairs), (1, 1));
    sleep(Duration::from_secs(1)).await;
    let states: Vec<Vec<u64>> = (1..=3).map(|id| sim.machines[&id].app.lock().unwrap().ids.clone()).collect();
    assert!(states[0] == states[1] && states[1] == states[2], "the states differ");
    assert!(replica.replica_status().fenced.is_none());
}

#[test]
fn a_follower_that_diverged_is_fenced_and_repaired() {
    run(51, async || diverge(51, false).await);
}

#[test]
fn a_leader_that_diverged_gives_leadership_away_and_is_repaired() {
    run(52, async || {
        diverge(52, true).await;
    });
}
