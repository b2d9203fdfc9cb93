use super::*;
use crate::Error;
use proptest::prelude::*;
use weir_base::codec::encode;
use weir_model::entry::Vni;
use weir_model::event::Transaction;
use weir_store::{Changed, Decision, View};
use weir_trust::batch::SingleSigner;
use weir_trust::identity::KeyPair;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn key(number: u8) -> Key {
    Key::Members { vni: Vni(1), tag: label("t"), bucket: number }
}

fn planned(number: u8, version: u64, after: &[(u8, u64)]) -> PlannedUpdate {
    let update = Update {
        target: label("h1"),
        key: key(number),
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Delete,
    };
    let dependency = |(number, version): &(u8, u64)| Dependency {
        target: label("h1"),
        key: key(*number),
        version: Version(*version),
        reason: Reason::PolicyBeforePort,
    };
    PlannedUpdate { update, after: after.iter().map(dependency).collect() }
}

fn names(planned: &[PlannedUpdate]) -> Vec<(u8, u64)> {
    let name = |p: &PlannedUpdate| match p.update.key {
        Key::Members { bucket, .. } => (bucket, p.update.version.0),
        _ => unreachable!(),
    };
    planned.iter().map(name).collect()
}

/// Counts events in a cell, and rejects odd usage windows.
struct Counter;

impl App for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn decide(
        &self,
        view: &mut View<'_>,
        version: Version,
        now_ms: u64,
        event: &Event,
    ) -> Result<Decision, Rejection> {
        view.put("count", b"events", encode(&(version, now_ms)))?;
        match &event.body {
            EventBody::Intent(transaction) if transaction.replace_all => {
                Err(Rejection::limit("replace", 1, 0))
            }
            EventBody::Removed { .. } => {
                Ok(Decision { plan: Plan { updates: vec![planned(1, 99_999, &[])] } })
            }
            _ => Ok(Decision { plan: Plan { updates: vec![planned(1, version.0, &[])] } }),
        }
    }
}

fn settings() -> CoreSettings {
    let scheduler = SchedulerSettings::default();
    CoreSettings { domain: label("d"), epoch: 3, source: SourceId("controller/c1".into()), scheduler }
}

fn core() -> Core {
    Core::new(settings(), Box::new(SingleSigner(KeyPair::from_seed(&[1; 32]))), vec![Arc::new(Counter)])
}

fn event(sequence: u64, replace_all: bool) -> Item {
    let body = EventBody::Intent(Transaction { mutations: Vec::new(), replace_all });
    Item::Event { now_ms: 1_000 + sequence, event: Event { source: SourceId("s".into()), sequence, body } }
}

fn outcomes(core: &mut Core, items: Vec<Item>) -> Vec<Outcome> {
    let mut out = Vec::new();
    core.step(Input::Ordered(items), &mut out);
    out.into_iter()
        .filter_map(|output| match output {
            Output::Decided { outcome, .. } => Some(outcome),
            _ => None,
        })
        .collect()
}

#[test]
fn each_event_has_its_version_and_the_batch_one_signature() {
    let mut core = core();
    let found = outcomes(&mut core, (1..=5).map(|sequence| event(sequence, sequence == 3)).collect());
    let rejected = Outcome::Rejected(Rejection::limit("replace", 1, 0));
    let committed = |version| Outcome::Committed(Version(version));
    assert_eq!(found, [committed(1), committed(2), rejected, committed(3), committed(4)]);
    let counters = core.counters();
    assert_eq!((counters.signatures, counters.merged, counters.rejected), (1, 3, 1));
    let held = core.scheduler().desired(&label("h1"), &key(1)).unwrap();
    assert_eq!((held.version(), held.header.header.count, held.header.header.epoch), (Version(4), 1, 3));
}

#[test]
fn an_event_is_decided_once() {
    let mut core = core();
    outcomes(&mut core, vec![event(1, false), event(1, false), event(300, false)]);
    let digest = core.store().digest();
    let again = outcomes(&mut core, vec![event(1, false), event(300, false), event(300 - WINDOW, false)]);
    let duplicate = |version| Outcome::Duplicate(Version(version));
    assert_eq!(again, [duplicate(1), duplicate(2), Outcome::TooOld]);
    assert_eq!(core.store().digest(), digest);
    // Below the highest number, but never seen: decided.
    assert_eq!(outcomes(&mut core, vec![event(299, false)]), [Outcome::Committed(Version(3))]);
    // A rejected event may be tried again under its number.
    assert!(matches!(outcomes(&mut core, vec![event(301, true)])[0], Outcome::Rejected(_)));
    assert_eq!(outcomes(&mut core, vec![event(301, false)]), [Outcome::Committed(Version(4))]);
}

#[test]
fn ordered_time_never_goes_back() {
    let mut core = core();
    outcomes(&mut core, vec![event(5, false), event(2, false)]);
    let cell = core.store().get("count", b"events").unwrap();
    assert_eq!(weir_base::codec::decode::<(Version, u64)>(&cell.value).unwrap(), (Version(2), 1_005));
}

#[test]
fn a_dry_run_leaves_no_trace_and_a_plan_of_another_version_is_refused() {
    let mut core = core();
    let Item::Event { event: intent, .. } = event(1, false) else { unreachable!() };
    let plan = core.dry_run(&intent).unwrap();
    assert_eq!((plan.updates.len(), core.store().version(), core.store().digest()), (1, Version::ZERO, 0));
    let removed = EventBody::Removed { actuator: label("h1") };
    let wrong = Event { source: SourceId("s".into()), sequence: 2, body: removed };
    let found = outcomes(&mut core, vec![Item::Event { now_ms: 1, event: wrong }]);
    assert!(matches!(&found[0], Outcome::Rejected(Rejection::Reference { .. })), "{found:?}");
}

#[test]
fn a_later_update_of_a_key_wins_in_a_batch() {
    let merged = batch::merge(vec![planned(1, 1, &[]), planned(2, 1, &[(1, 1)]), planned(1, 2, &[])]);
    assert_eq!(names(&merged), [(2, 1), (1, 2)]);
    let circle = vec![planned(1, 1, &[]), planned(2, 1, &[(1, 1)]), planned(1, 2, &[(2, 1)])];
    assert_eq!(names(&batch::merge(circle)), [(1, 1), (2, 1), (1, 2)], "both wait for each other else");
}

#[test]
fn a_circle_in_a_plan_is_broken_and_counted() {
    let (sorted, invalid) =
        batch::sort(vec![planned(1, 1, &[(2, 1)]), planned(2, 1, &[(1, 1)]), planned(3, 1, &[(2, 7)])]);
    assert_eq!((names(&sorted), invalid), (vec![(3, 1), (1, 1), (2, 1)], 2));
    assert!(sorted[1].after.is_empty() && sorted[2].after.len() == 1);
}

proptest! {
    #[test]
    fn sorting_puts_first_what_must_be_first(edges in proptest::collection::vec((0..20_u8, 0..20_u8), 0..60)) {
        let plan: Vec<PlannedUpdate> = (0..20_u8)
            .map(|number| {
                // Only towards smaller numbers after a permutation, so without a circle.
                let mixed = |n: u8| u64::from(n) * 7 % 20;
                let after: Vec<(u8, u64)> = edges
                    .iter()
                    .filter(|(a, b)| *a == number && mixed(*b) < mixed(*a))
                    .map(|(_, b)| (*b, 1))
                    .collect();
                planned(number, 1, &after)
            })
            .collect();
        let (sorted, invalid) = batch::sort(plan);
        prop_assert_eq!((sorted.len(), invalid), (20, 0));
        for (at, planned) in sorted.iter().enumerate() {
            for dependency in &planned.after {
                prop_assert!(sorted[..at].iter().any(|p| p.update.key == dependency.key));
            }
        }
    }
}

#[test]
fn a_feed_gives_what_it_has_and_says_what_it_has_not() {
    let settings = FeedSettings { changes_max: 3, bytes_max: 1_000_000 };
    let mut feed = Feed::new(settings, Version(10));
    for version in 11..=20 {
        let change = |table: &str| Changed {
            table: table.into(),
            key: [1].as_slice().into(),
            value: None,
            expires_ms: 0,
        };
        let (write, seen) = (change("a"), change(DEDUP_TABLE));
        feed.push(Arc::new(feed::committed(Version(version), 0, &[write, seen])));
    }
    let versions = |from: u64, limit| {
        feed.after(Version(from), limit).map(|c| c.iter().map(|c| c.version.0).collect::<Vec<_>>())
    };
    assert_eq!(versions(17, 10).unwrap(), [18, 19, 20]);
    assert_eq!(versions(18, 1).unwrap(), [19]);
    assert_eq!(versions(20, 10).unwrap(), Vec::<u64>::new());
    assert!(matches!(versions(16, 10), Err(Error::WatchTooOld { oldest: Version(17), .. })));
    assert!(matches!(versions(21, 10), Err(Error::WatchAhead { last: Version(20), .. })));
    assert_eq!(feed.after(Version(19), 1).unwrap()[0].writes.len(), 1, "seen events are left out");
}

#[test]
fn fuzz_snapshots_and_batches() {
    let mut core = core();
    outcomes(&mut core, (1..=9).map(|sequence| event(sequence, false)).collect());
    let good = core.snapshot().to_bytes();
    let load = |bytes: &[u8]| {
        let signer = Box::new(SingleSigner(KeyPair::from_seed(&[1; 32])));
        Core::from_snapshot(settings(), signer, vec![Arc::new(Counter)], bytes)
    };
    assert_eq!(load(&good).unwrap().snapshot().to_bytes(), good);
    bolero::check!().with_iterations(3_000).with_type::<(Vec<u8>, usize, u8)>().for_each(
        |(noise, at, flip)| {
            let mut bytes = good.clone();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            let _ = load(&bytes);
            let _ = load(&good[..at]).map(|_| panic!("a cut snapshot was loaded"));
            let _ = load(noise);
            let _ = decode_batch(noise);
        },
    );
}
