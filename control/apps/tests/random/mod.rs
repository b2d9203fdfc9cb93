//! The fabric under random events, from seeds: transactions right and wrong, switches that come, go
//! and move, usage reports, refusals.
//!
//! After each event it is held against a compiler that makes everything anew ([`naive`]), and its
//! plans are delivered in random order by a scheduler that knows only dependencies ([`delivery`]).

mod delivery;
mod golden;
mod naive;
mod world;

use delivery::Switches;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_apps::delta::tables::COUNTERS;
use weir_apps::fabric::{desired, desired_entry};
use weir_apps::{Deciders, tables};
use weir_model::event::{Event, EventBody, Transaction};
use weir_model::{Entry, Plan, Version};
use weir_store::{App, Rejection, Store};

const SEEDS: u64 = 80;
const EVENTS: u64 = 100;

fn decide(store: &mut Store, version: Version, now_ms: u64, event: &Event) -> Result<Plan, Rejection> {
    let mut view = store.view();
    let plan = Deciders::default().decide(&mut view, version, now_ms, event)?.plan;
    let writes = view.into_writes();
    store.commit(version, writes);
    Ok(plan)
}

/// Every dependency names what its target shall have, and no update waits for itself in a circle.
fn check_dependencies(store: &Store, plan: &Plan) {
    let mut updates = std::collections::BTreeSet::new();
    for planned in &plan.updates {
        let update = &planned.update;
        assert!(updates.insert((&update.target, &update.key)), "{} {} twice", update.target, update.key);
        let entry = match &update.change {
            weir_model::Change::Put(entry) => Some(entry.clone()),
            weir_model::Change::Delete => None,
        };
        assert!(entry.as_ref().is_none_or(|entry| entry.fits(&update.key)));
        assert_eq!(desired_entry(store, &update.target, &update.key), Some((update.version, entry)));
        for wait in &planned.after {
            let found = desired_entry(store, &wait.target, &wait.key).map(|(version, _)| version);
            assert_eq!(found, Some(wait.version), "{} {} waits for {wait:?}", update.target, update.key);
        }
    }
}

struct Run {
    rng: ChaCha8Rng,
    store: Store,
    switches: Switches,
    version: Version,
    now_ms: u64,
    /// How many events were decided, and how many rejected.
    decided: u64,
    rejected: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            rng: ChaCha8Rng::seed_from_u64(seed),
            store: Store::new(),
            // Half of the runs finish each plan before the next event; there the strict invariants hold.
            switches: Switches::new(seed.is_multiple_of(2)),
            version: Version::ZERO,
            now_ms: 0,
            decided: 0,
            rejected: 0,
        }
    }

    fn step(&mut self, body: EventBody) {
        self.version = Version(self.version.0 + 1);
        self.now_ms += self.rng.random_range(0..5_000);
        let event = world::event(self.version, body);
        let mut twin = Store::from_snapshot(&self.store.to_snapshot()).unwrap();
        let before = (self.store.digest(), self.store.version());
        let result = decide(&mut self.store, self.version, self.now_ms, &event);
        assert_eq!(decide(&mut twin, self.version, self.now_ms, &event), result, "not deterministic");
        assert_eq!(twin.digest(), self.store.digest(), "not deterministic");
        let Ok(plan) = result else {
            self.rejected += 1;
            assert_eq!((self.store.digest(), self.store.version()), before);
            return;
        };
        self.decided += 1;
        check_dependencies(&self.store, &plan);
        naive::check(&self.store);
        if let EventBody::Removed { actuator } = &event.body {
            self.switches.forget(actuator);
        }
        self.switches.take(plan);
        let rounds = self.rng.random_range(0..20);
        self.switches.deliver(&self.store, &mut self.rng, rounds);
    }

    fn finish(&mut self) {
        let everything = Transaction { mutations: Vec::new(), replace_all: true };
        self.step(EventBody::Intent(everything));
        self.switches.drain(&self.store, &mut self.rng);
        for name in world::actuators() {
            for (key, _, entry) in desired(&self.store, &name) {
                let own = |entry: &Entry| {
                    matches!(entry, Entry::Gateways(_) | Entry::Switches(_) | Entry::Underlays(_))
                };
                assert!(entry.as_ref().is_none_or(own), "{name} keeps {key}");
            }
            self.step(EventBody::Removed { actuator: name });
        }
        for table in tables() {
            // Only the last VNI given is remembered.
            let kept = usize::from(table == COUNTERS && self.store.count(COUNTERS) > 0);
            assert_eq!(self.store.count(table), kept, "{table} leaks");
        }
    }
}

#[test]
fn incremental_is_from_scratch_whatever_happens() {
    let (mut decided, mut rejected) = (0, 0);
    for seed in 0..SEEDS {
        let mut run = Run::new(seed);
        for name in ["g0", "h0", "h1", "h2"] {
            run.step(world::join(name));
        }
        for _ in 0..EVENTS {
            let body = world::body(&mut run.rng, &run.store);
            run.step(body);
        }
        run.finish();
        (decided, rejected) = (decided + run.decided, rejected + run.rejected);
    }
    // The generator must make enough of both, or the test says little.
    assert!(decided > SEEDS * EVENTS / 3 && rejected > SEEDS * EVENTS / 20, "{decided} {rejected}");
}
