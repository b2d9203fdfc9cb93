use super::admission::UnauthenticCounters;
use super::scheduler::SchedulerSettings;
use super::*;
use crate::Error;
use proptest::prelude::*;
use weir_base::codec::encode;
use weir_model::entry::Vni;
use weir_model::event::{EventBody, Role, SignedEvent, Transaction, UsageReport};
use weir_model::plane::{PlaneOrder, PlaneReport};
use weir_model::update::Reason;
use weir_store::{Changed, Decision, View};
use weir_trust::batch::SingleSigner;
use weir_trust::identity::{KeyPair, sign_event};

pub(super) fn label(text: &str) -> Label {
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

pub(super) fn settings() -> CoreSettings {
    let scheduler = SchedulerSettings::default();
    let source = SourceId("controller/c1".into());
    let keys = SourceKeys::from([(SourceId("s".into()), source_key().public())]);
    CoreSettings { domain: label("d"), epoch: 3, source, keys, believes_one: true, scheduler }
}

pub(super) fn source_key() -> KeyPair {
    KeyPair::from_seed(&[7; 32])
}

pub(super) fn signed(key: &KeyPair, event: Event) -> SignedEvent {
    sign_event(key, &label("d"), event, None)
}

fn core() -> Core {
    Core::new(settings(), Box::new(SingleSigner(KeyPair::from_seed(&[1; 32]))), vec![Arc::new(Counter)])
}

fn event(sequence: u64, replace_all: bool) -> Item {
    let body = EventBody::Intent(Transaction { mutations: Vec::new(), replace_all });
    let event = Event { source: SourceId("s".into()), sequence, body };
    Item::Event { now_ms: 1_000 + sequence, event: signed(&source_key(), event) }
}

pub(super) fn outcomes(core: &mut Core, items: Vec<Item>) -> Vec<Outcome> {
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

/// With the rules that linear consistency stands on, none of them is left out.
#[test]
fn events_of_a_batch_keep_their_updates_apart_behind_the_marker() {
    let mut core = core();
    outcomes(&mut core, vec![event(1, false), event(2, false), marker(1, APART)]);
    assert_eq!((core.counters().merged, core.rules()), (0, APART), "the batch that has it, too");
    outcomes(&mut core, (3..=5).map(|sequence| event(sequence, false)).collect());
    let held = core.scheduler().desired(&label("h1"), &key(1)).unwrap();
    assert_eq!((held.version(), held.header.header.count, core.counters().merged), (Version(5), 3, 0));
    let again = Box::new(SingleSigner(KeyPair::from_seed(&[1; 32])));
    let again = Core::from_snapshot(settings(), again, Vec::new(), &core.snapshot().to_bytes()).unwrap();
    assert_eq!(again.rules(), APART);
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

fn unauthentic(reason: Unauthentic) -> Outcome {
    Outcome::Unauthentic(reason)
}

pub(super) fn from(source: &str, sequence: u64, body: EventBody) -> Event {
    Event { source: SourceId(source.into()), sequence, body }
}

fn usage(of: &str) -> EventBody {
    let (through_gateway, direct) = (Vec::new(), Vec::new());
    EventBody::Usage(UsageReport {
        actuator: label(of),
        window_ms: 1,
        through_gateway,
        direct,
        turns: Vec::new(),
    })
}

pub(super) fn joined(name: &str, key: &KeyPair) -> EventBody {
    let underlay = "192.0.2.1".parse().unwrap();
    EventBody::Joined(ActuatorFacts { name: label(name), role: Role::Host, identity: key.public(), underlay })
}

fn one(core: &mut Core, event: SignedEvent) -> Outcome {
    outcomes(core, vec![Item::Event { now_ms: 1, event }]).remove(0)
}

#[test]
fn only_what_its_source_signed_and_may_say_is_decided() {
    let mut core = core();
    let (s, h1, h2) = (source_key(), KeyPair::from_seed(&[8; 32]), KeyPair::from_seed(&[9; 32]));
    let own = signed(&h1, from("actuator/h1", 1, usage("h1")));
    assert_eq!(one(&mut core, own.clone()), unauthentic(Unauthentic::UnknownSource), "not joined yet");
    assert_eq!(one(&mut core, signed(&s, from("s", 1, joined("h1", &h1)))), Outcome::Committed(Version(1)));
    assert_eq!(one(&mut core, signed(&s, from("s", 2, joined("h2", &h2)))), Outcome::Committed(Version(2)));
    assert_eq!(one(&mut core, own.clone()), Outcome::Committed(Version(3)));
    assert_eq!(one(&mut core, own.clone()), Outcome::Duplicate(Version(3)));
    let digest = core.store().digest();
    let elsewhere = sign_event(&h1, &label("elsewhere"), from("actuator/h1", 2, usage("h1")), None);
    let mut other_number = own.clone();
    other_number.event.sequence = 2;
    let mut other_subject = own.clone();
    (other_subject.event.sequence, other_subject.subject) = (1, Some("root".into()));
    let long = sign_event(&s, &label("d"), from("s", 3, usage("h1")), Some("x".repeat(254)));
    for forged in
        [signed(&h2, from("actuator/h1", 2, usage("h1"))), elsewhere, other_number, other_subject, long]
    {
        assert_eq!(one(&mut core, forged), unauthentic(Unauthentic::BadSignature));
    }
    for (source, body) in [
        ("actuator/h1", usage("h2")),
        ("actuator/h1", joined("h3", &h1)),
        ("actuator/h1", EventBody::Removed { actuator: label("h2") }),
        ("actuator/h1", EventBody::Intent(Transaction::default())),
    ] {
        let outcome = one(&mut core, signed(&h1, from(source, 2, body)));
        assert_eq!(outcome, unauthentic(Unauthentic::NotItsOwn));
    }
    for source in ["h1", "actuator/", "actuator/H 1", "controller/c2", ""] {
        let outcome = one(&mut core, signed(&h1, from(source, 2, usage("h1"))));
        assert_eq!(outcome, unauthentic(Unauthentic::UnknownSource), "{source}");
    }
    assert_eq!(core.store().digest(), digest, "what is dropped leaves no trace");
    let counted =
        UnauthenticCounters { unknown_source: 6, bad_signature: 5, not_its_own: 4, ..Default::default() };
    assert_eq!(core.counters().unauthentic, counted);
}

#[test]
fn who_is_forgotten_leaves_nothing_among_the_seen_events() {
    let mut core = core();
    let (s, h1) = (source_key(), KeyPair::from_seed(&[8; 32]));
    one(&mut core, signed(&s, from("s", 1, joined("h1", &h1))));
    for sequence in 1..=2 * WINDOW {
        let told = one(&mut core, signed(&h1, from("actuator/h1", sequence, usage("h1"))));
        assert!(matches!(told, Outcome::Committed(_)), "{told:?}");
    }
    assert_eq!(core.store().count(dedup::DEDUP_TABLE), 1 + WINDOW as usize, "a window for each source");
    // The app of these tests plans for a version that nobody has, so another app decides.
    core.apps = Vec::new();
    let removed = EventBody::Removed { actuator: label("h1") };
    assert!(matches!(one(&mut core, signed(&s, from("s", 2, removed))), Outcome::Committed(_)));
    assert_eq!(core.store().count(dedup::DEDUP_TABLE), 2);
    let late = one(&mut core, signed(&h1, from("actuator/h1", 1_000, usage("h1"))));
    assert_eq!(late, unauthentic(Unauthentic::UnknownSource));
}

#[test]
fn fuzz_no_change_of_a_signed_event_is_decided() {
    let (s, h1) = (source_key(), KeyPair::from_seed(&[8; 32]));
    let join = signed(&s, from("s", 1, joined("h1", &h1)));
    let good = encode(&signed(&h1, from("actuator/h1", 1, usage("h1"))));
    bolero::check!().with_iterations(3_000).with_type::<(Vec<u8>, u16, u8)>().for_each(
        |(noise, at, flip)| {
            let mut core = core();
            one(&mut core, join.clone());
            let digest = core.store().digest();
            let mut bytes = good.clone();
            let at = usize::from(*at) % bytes.len();
            bytes[at] ^= flip;
            for bytes in [&bytes, noise] {
                if let Ok(event) = weir_base::codec::decode::<SignedEvent>(bytes)
                    && encode(&event) != good
                {
                    let outcome = one(&mut core, event);
                    assert!(matches!(outcome, Outcome::Unauthentic(_)), "{outcome:?}");
                    assert_eq!(core.store().digest(), digest);
                }
            }
        },
    );
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
    let plan = core.dry_run(&intent.event).unwrap();
    assert_eq!((plan.updates.len(), core.store().version(), core.store().digest()), (1, Version::ZERO, 0));
    let removed = EventBody::Removed { actuator: label("h1") };
    let wrong = Event { source: SourceId("s".into()), sequence: 2, body: removed };
    let found = outcomes(&mut core, vec![Item::Event { now_ms: 1, event: signed(&source_key(), wrong) }]);
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
    let settings = FeedSettings { changes_max: 3, bytes_max: 1_000_000, first: &[] };
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
        feed.after(Version(from), limit, Wanted::All)
            .map(|c| c.iter().map(|c| c.version.0).collect::<Vec<_>>())
    };
    assert_eq!(versions(17, 10).unwrap(), [18, 19, 20]);
    assert_eq!(versions(18, 1).unwrap(), [19]);
    assert_eq!(versions(20, 10).unwrap(), Vec::<u64>::new());
    assert!(matches!(versions(16, 10), Err(Error::WatchTooOld { oldest: Version(17), .. })));
    assert!(matches!(versions(21, 10), Err(Error::WatchAhead { last: Version(20), .. })));
    assert_eq!(
        feed.after(Version(19), 1, Wanted::All).unwrap()[0].writes.len(),
        1,
        "seen events are left out"
    );
}

#[test]
fn clients_and_reports_push_no_resources_out_of_the_feed() {
    let settings = FeedSettings { changes_max: 4, bytes_max: 1_000_000, first: &["resources"] };
    let mut feed = Feed::new(settings, Version(0));
    let mut push = |version: u64, table: &str| {
        let key = [1].as_slice().into();
        let write = Changed { table: table.into(), key, value: None, expires_ms: 0 };
        feed.push(Arc::new(feed::committed(Version(version), 0, &[write])));
    };
    push(1, "resources");
    for version in 2..=40 {
        push(version, if version % 2 == 0 { "shop/carts" } else { "loads" });
    }
    push(41, "resources");
    let after = |from: u64, wanted| {
        feed.after(Version(from), 100, wanted).map(|c| c.iter().map(|c| c.version.0).collect::<Vec<_>>())
    };
    assert_eq!(after(0, Wanted::First).unwrap(), [1, 41]);
    assert_eq!(after(1, Wanted::First).unwrap(), [41]);
    // Whoever wants all hears of the gap, and gets what is left in order.
    assert!(matches!(after(1, Wanted::All), Err(Error::WatchTooOld { oldest: Version(32), .. })));
    assert_eq!(after(32, Wanted::All).unwrap(), [33, 34, 35, 36, 37, 38, 39, 40, 41]);
    assert_eq!(feed.dropped(), 16 + 15);
}

pub(super) fn load(bytes: &[u8]) -> Result<Core, Error> {
    let signer = Box::new(SingleSigner(KeyPair::from_seed(&[1; 32])));
    Core::from_snapshot(settings(), signer, vec![Arc::new(Counter)], bytes)
}

/// A controller is restored from a backup of version 2, and an actuator has what was decided up to version 5: nothing that is decided
/// from now on has a version that the actuator has with another content.
#[test]
fn a_restored_order_goes_on_above_what_actuators_have() {
    let mut core = core();
    outcomes(&mut core, vec![event(1, false), event(2, false)]);
    let backup = core.snapshot().to_bytes();
    outcomes(&mut core, (3..=5).map(|sequence| event(sequence, false)).collect());
    let mut restored = load(&backup).unwrap();
    let mut out = Vec::new();
    restored.step(Input::Lead(true), &mut out);
    let digest = weir_model::session::StateDigest(77);
    restored.step(Input::Connected { actuator: label("h1"), session: 1, digest }, &mut out);
    let entries = vec![(key(1), Version(5))];
    restored.step(Input::State { actuator: label("h1"), session: 1, entries, last: true }, &mut out);
    restored.step(Input::Tick { now_ms: 60_000 }, &mut out);
    let repair = out.iter().find_map(|output| match output {
        Output::Repair { target, found } => {
            Some(Item::Repair { now_ms: 1, actuator: target.clone(), found: found.clone() })
        }
        _ => None,
    });
    outcomes(&mut restored, vec![repair.unwrap()]);
    assert_eq!(restored.store().version(), Version(6));
    assert_eq!(restored.scheduler().desired(&label("h1"), &key(1)).unwrap().version(), Version(6));
    assert_eq!(outcomes(&mut restored, vec![event(3, false)]), [Outcome::Committed(Version(7))]);
    // Nobody uses up the versions by saying that it has a very high one.
    let found = vec![(key(1), Version(u64::MAX)), (key(2), Version(u64::MAX - 1))];
    outcomes(&mut restored, vec![Item::Repair { now_ms: 1, actuator: label("h1"), found }]);
    assert!(restored.store().version() <= Version(8));
}

#[test]
fn the_snapshot_of_the_last_release_is_read() {
    let mut core = core();
    outcomes(&mut core, (1..=9).map(|sequence| event(sequence, false)).collect());
    let good = core.snapshot().to_bytes();
    // Format 3 is format 4 without whether controllers endorse, and format 2 that without what is told to other domains, which is
    // nothing here.
    let (format, last) = (good[0], &good[good.len() - 2..]);
    assert_eq!((format, last), (4, &[0, 0][..]));
    for (format, cut) in [(3, 1), (2, 2)] {
        let mut old = good[..good.len() - cut].to_vec();
        old[0] = format;
        assert_eq!(load(&old).unwrap().snapshot().to_bytes(), good);
    }
    let mut old = good.clone();
    for other in [1, 6] {
        old[0] = other;
        assert!(matches!(load(&old), Err(Error::SnapshotFormat { .. })), "format {other}");
    }
}

#[test]
fn fuzz_snapshots_and_batches() {
    let mut core = core();
    outcomes(&mut core, (1..=9).map(|sequence| event(sequence, false)).collect());
    let good = core.snapshot().to_bytes();
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

/// A plane of an actuator is a source with the actuator's keys, that reports of itself and says nothing else.
#[test]
fn a_plane_reports_of_itself_with_its_hosts_key() {
    let mut core = core();
    let (s, h1) = (source_key(), KeyPair::from_seed(&[8; 32]));
    let report = |actuator: &str, plane: &str| {
        let (plane, actuator) = (label(plane), label(actuator));
        EventBody::Report(PlaneReport { plane, actuator, name: "n".into(), bytes: b"{}".to_vec() })
    };
    let own = |sequence| signed(&h1, from("actuator/h1/echo", sequence, report("h1", "echo")));
    assert_eq!(one(&mut core, own(1)), unauthentic(Unauthentic::UnknownSource), "its host has not joined");
    assert_eq!(one(&mut core, signed(&s, from("s", 1, joined("h1", &h1)))), Outcome::Committed(Version(1)));
    assert_eq!(one(&mut core, own(1)), Outcome::Committed(Version(2)));
    assert_eq!(one(&mut core, own(1)), Outcome::Duplicate(Version(2)));
    let forged = signed(&s, from("actuator/h1/echo", 2, report("h1", "echo")));
    assert_eq!(one(&mut core, forged), unauthentic(Unauthentic::BadSignature));
    for (source, body) in [
        ("actuator/h1/echo", report("h2", "echo")),
        ("actuator/h1/echo", report("h1", "other")),
        ("actuator/h1/echo", usage("h1")),
        ("actuator/h1/echo", EventBody::Removed { actuator: label("h1") }),
        // The host's own numbers are the switch's.
        ("actuator/h1", report("h1", "echo")),
    ] {
        let outcome = one(&mut core, signed(&h1, from(source, 3, body)));
        assert_eq!(outcome, unauthentic(Unauthentic::NotItsOwn), "{source}");
    }
    let order = PlaneOrder { plane: label("echo"), actuator: label("h1"), name: "n".into(), spec: None };
    let outcome = one(&mut core, signed(&h1, from("actuator/h1", 4, EventBody::Order(order))));
    assert_eq!(outcome, unauthentic(Unauthentic::NotItsOwn), "nobody orders for itself");
    // With its host its numbers are forgotten, and nobody else's.
    let mut store = core.store().clone();
    let slots = store.count(dedup::DEDUP_TABLE);
    for (host, gone) in [("h", 0), ("h2", 0), ("h1", 1)] {
        let mut view = store.view();
        dedup::forget_planes(&mut view, &label(host));
        let writes = view.into_writes();
        store.commit(Version(store.version().0 + 1), writes);
        assert_eq!(store.count(dedup::DEDUP_TABLE), slots - gone, "{host}");
    }
}
