//! Spares follow without a vote, long before anybody is gone, and take a place by the word of as many as decide.

use std::collections::BTreeMap;
use std::time::Duration;

use commonware_runtime::deterministic::{Config, Runner};
use commonware_runtime::{Clock, Runner as _};
use weir_bft::members::Change;

use super::sim::{Fate, MEMBERS, NO_MEMBER, Sim, propose, settings};

/// Has all members keep these machines as spares.
fn keep(sim: &Sim, spares: &[u32]) {
    let spares: BTreeMap<u32, _> = spares.iter().map(|id| (*id, sim.member(*id))).collect();
    for id in sim.up() {
        sim.replica(id).unwrap().set_spares(spares.clone());
    }
}

async fn until(sim: &Sim, what: &str, holds: impl Fn(&Sim) -> bool) {
    for _ in 0..1_200 {
        if holds(sim) {
            return;
        }
        sim.context.sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}

async fn order(sim: &Sim, by: u32, ids: std::ops::Range<u64>) {
    for id in ids {
        let replica = sim.replica(by).unwrap();
        assert!(matches!(propose(&sim.context, &replica, id, 100).await, Fate::Committed(_)), "{id}");
    }
}

fn length(sim: &Sim, id: u32) -> usize {
    sim.machines[&id].list.lock().unwrap().iter().filter(|id| **id > 0).count()
}

#[test]
fn a_spare_follows_for_long_and_takes_the_place_of_one_that_is_gone() {
    for seed in 0..4 {
        let config = Config::new().with_seed(seed).with_timeout(Some(Duration::from_secs(3_600)));
        Runner::new(config).start(|context| async move {
            let mut sim = Sim::new(context, seed, settings(), MEMBERS, true).await;
            for id in 1..=MEMBERS + 2 {
                sim.start(id).await.unwrap();
            }
            keep(&sim, &[5, 6]);
            order(&sim, 1, 1..30).await;
            until(&sim, "the spares have all", |sim| length(sim, 5) == 29 && length(sim, 6) == 29).await;
            let spare = sim.replica(5).unwrap().replica_status();
            assert!(!spare.member && spare.roster.members.len() == 4, "{spare:?}");
            // How far they are is known, for they take places without being asked.
            until(&sim, "how far the spares are is known", |sim| {
                let others = sim.replica(2).unwrap().others();
                [5, 6].iter().all(|id| others.get(id).is_some_and(|seen| seen.behind == 0))
            })
            .await;
            sim.crash(4, false).await;
            let change = Change::Replace { out: 4, id: 5, member: sim.member(5) };
            // Two of the four are too few.
            for id in [1, 2] {
                sim.replica(id).unwrap().change(change.clone(), Box::new(|_| {}));
            }
            order(&sim, 1, 30..40).await;
            assert!(sim.roster().members.contains_key(&4));
            sim.replica(3).unwrap().change(change, Box::new(|_| {}));
            until(&sim, "the spare votes", |sim| sim.replica(5).unwrap().replica_status().member).await;
            assert!(sim.roster().ids() == [1, 2, 3, 5], "{:?}", sim.roster());
            // It is one of those that decide: with another one gone three are left.
            sim.crash(3, false).await;
            order(&sim, 5, 40..50).await;
            sim.start(3).await.unwrap();
            // Who comes back hears that it is no member, and may become a spare with all that it has.
            sim.start(4).await.unwrap();
            until(&sim, "the one that was replaced ends", |sim| {
                let failure = sim.replica(4).unwrap().replica_status().failure;
                failure.is_some_and(|why| why.contains(NO_MEMBER))
            })
            .await;
            sim.bury().await;
            sim.start(4).await.unwrap();
            keep(&sim, &[4, 6]);
            order(&sim, 1, 50..60).await;
            until(&sim, "it has all again", |sim| length(sim, 4) == 59).await;
            assert!(!sim.replica(4).unwrap().replica_status().member);
            let violations = sim.witness.lock().unwrap().violations.clone();
            assert!(violations.is_empty(), "{violations:?}");
        });
    }
}
