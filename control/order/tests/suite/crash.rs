//! Crashes at every write, over many seeds.

use super::machine::{Broken, Life};

#[test]
fn lives_with_every_kind_of_failure_lose_nothing() {
    for seed in 0..1500 {
        let mut life = Life::new(seed, Broken::No);
        life.run(60).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn power_may_go_during_every_single_change() {
    let mut cuts = 0;
    for seed in 10_000..10_012 {
        let mut whole = Life::new(seed, Broken::No);
        whole.run(25).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        for change in 0..whole.disk.changes() {
            let mut life = Life::new(seed, Broken::No);
            life.cut_at(change);
            life.run(25).unwrap_or_else(|what| panic!("seed {seed}, power cut in change {change}: {what}"));
            cuts += 1;
        }
    }
    assert!(cuts > 1000, "only {cuts} changes were cut");
}
