//! A group of which nobody wants anything writes little, and answers at once when somebody does.

use std::sync::atomic::Ordering;
use std::time::Duration;

use commonware_runtime::deterministic::{Config, Runner};
use commonware_runtime::{Clock, Runner as _};
use weir_bft::{Settings, Timers};

use super::sim::{Fate, MEMBERS, Sim, propose, settings};

/// What an idle member writes to its disk in a second, at most.
const BYTES_PER_S_MAX: u64 = 50_000;
/// For how long it is counted, and how long it takes to rest before.
const COUNTED: Duration = Duration::from_secs(120);
const TO_REST: Duration = Duration::from_secs(20);

/// A group with the timers of a real one.
fn real() -> Settings {
    Settings { timers: Timers::LAN, ..settings() }
}

#[test]
fn an_idle_group_writes_little_and_answers_at_once() {
    let config = Config::new().with_seed(31).with_timeout(Some(Duration::from_secs(3_600)));
    Runner::new(config).start(|context| async move {
        let mut sim = Sim::new(context, 31, real(), MEMBERS, true).await;
        for id in 1..=MEMBERS {
            sim.start(id).await.unwrap();
        }
        for id in 1..20 {
            let replica = sim.replica(1 + (id % u64::from(MEMBERS)) as u32).unwrap();
            assert!(matches!(propose(&sim.context, &replica, id, 500).await, Fate::Committed(_)));
        }
        let written = |sim: &Sim| -> Vec<u64> {
            let bytes = |machine: &super::sim::Machine| machine.written.load(Ordering::Relaxed);
            (1..=MEMBERS).map(|id| bytes(&sim.machines[&id])).collect()
        };
        // Three times, each behind some work: what ends rests again.
        for round in 0..3 {
            sim.context.sleep(TO_REST).await;
            let before = written(&sim);
            sim.context.sleep(COUNTED).await;
            for (id, (before, after)) in (1..).zip(before.into_iter().zip(written(&sim))) {
                let per_s = (after - before) / COUNTED.as_secs();
                assert!(per_s <= BYTES_PER_S_MAX, "idle member {id} writes {per_s} bytes a second");
            }
            for id in 1..=u64::from(MEMBERS) {
                let replica = sim.replica(id as u32).unwrap();
                let begun = sim.context.current();
                let fate = propose(&sim.context, &replica, 1_000 + 10 * round + id, 500).await;
                assert!(matches!(fate, Fate::Committed(_)), "{fate:?}");
                let took = sim.context.current().duration_since(begun).unwrap();
                assert!(took < Duration::from_secs(1), "member {id} answers after {took:?}");
                sim.context.sleep(TO_REST).await;
            }
        }
    });
}
