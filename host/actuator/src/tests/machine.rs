use crate::suite::echo::Echo;
use crate::{Actuator, Identity, Machine};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use weir_model::event::{EventBody, SourceId};
use weir_model::signed::SignedUpdates;
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Key, Label, Update, Version};
use weir_planes::Plane;
use weir_planes::echo::Echo as EchoPlane;
use weir_trust::batch::{GroupSigner, SingleSigner, frames, sign_batch};
use weir_trust::identity::{KeyPair, verify_event};

pub(super) fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn signer() -> SingleSigner {
    SingleSigner(KeyPair::from_seed(&[1; 32]))
}

pub(super) fn host_key() -> KeyPair {
    KeyPair::from_seed(&[2; 32])
}

pub(super) fn identity() -> Identity {
    Identity {
        actuator: label("h1"),
        domain: label("prod"),
        group: signer().group_key(),
        read_key: Box::new(|| Ok(host_key())),
    }
}

pub(super) fn key(name: &str) -> Key {
    Key::Plane { plane: label("echo"), name: name.into() }
}

pub(super) fn put(version: u64, name: &str, text: &str) -> SignedUpdates {
    let spec = format!(r#"{{"text":"{text}"}}"#).into_bytes();
    let update = Update {
        target: label("h1"),
        key: key(name),
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(Entry::Plane(spec)),
    };
    let (header, proven) = sign_batch(&signer(), &label("prod"), 1, Version(version), vec![update]).unwrap();
    frames(proven.into_iter().map(|proven| (header.clone(), proven)), 1).remove(0)
}

fn open(folder: &Path) -> Machine<Echo> {
    Machine::open(identity(), folder, Echo::default()).unwrap()
}

fn answer<A: Actuator>(machine: &mut Machine<A>, frame: &SignedUpdates) -> Result<(), Refusal> {
    machine.take(frame).unwrap().acks.remove(0).result
}

#[test]
fn a_panic_is_a_refusal_and_what_was_in_force_is_put_in_force_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = open(folder.path());
    assert_eq!(answer(&mut machine, &put(1, "n", "before")), Ok(()));
    let refused = answer(&mut machine, &put(2, "n", "panic")).unwrap_err().to_string();
    assert!(refused.contains("a fault of the program: a fault of the toy"), "{refused}");
    assert_eq!(machine.actuator().texts["n"], "before", "the panic had taken it away");
    assert_eq!((machine.counters().faults, machine.counters().refused), (1, 1));
    assert_eq!(machine.state(), [(key("n"), Version(1))]);
}

#[test]
fn a_plane_has_no_more_than_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = open(folder.path());
    for number in 0..EchoPlane::ORDERS_MAX as u64 {
        assert_eq!(answer(&mut machine, &put(number + 1, &number.to_string(), "x")), Ok(()));
    }
    assert_eq!(answer(&mut machine, &put(90, "more", "x")), Err(Refusal::Full { limit: 8 }));
    // One that is there already has its place.
    assert_eq!(answer(&mut machine, &put(91, "0", "y")), Ok(()));
}

/// Refuses everything for as long as it is told to, and takes one name only.
struct Moody(Arc<AtomicBool>, Arc<Mutex<Vec<String>>>);

impl Actuator for Moody {
    type Plane = EchoPlane;

    fn names(&self) -> Option<Vec<String>> {
        Some(vec!["n".into()])
    }

    fn apply(
        &mut self,
        name: &str,
        spec: Option<&<EchoPlane as Plane>::Spec>,
        version: Version,
    ) -> Result<(), String> {
        if self.0.load(Ordering::SeqCst) {
            return Err("not today".into());
        }
        self.1.lock().unwrap().push(format!("{name} {version} {:?}", spec.map(|spec| &spec.text)));
        Ok(())
    }
}

#[test]
fn what_cannot_be_applied_again_is_not_told_and_is_tried_again_when_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let (mood, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let open =
        || Machine::open(identity(), folder.path(), Moody(Arc::clone(&mood), Arc::clone(&done))).unwrap();
    let frame = put(1, "n", "x");
    assert_eq!(answer(&mut open(), &frame), Ok(()));
    mood.store(true, Ordering::SeqCst);
    let mut machine = open();
    assert_eq!(machine.state(), []);
    assert_eq!(machine.problems().get(&key("n")).map(String::as_str), Some("not today"));
    assert_eq!(answer(&mut machine, &frame), Err(Refusal::Failed("not today".into())));
    mood.store(false, Ordering::SeqCst);
    assert_eq!(answer(&mut machine, &frame), Ok(()));
    assert_eq!(machine.state(), [(key("n"), Version(1))]);
    assert_eq!(done.lock().unwrap().len(), 2);
    let other = answer(&mut machine, &put(2, "other", "x")).unwrap_err().to_string();
    assert!(other.contains("no 'other' here: this process has n"), "{other}");
}

#[test]
fn reports_are_signed_as_the_planes_own_and_numbered_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    for version in 1..4 {
        let mut machine = open(folder.path());
        assert_eq!(answer(&mut machine, &put(version, "n", &version.to_string())), Ok(()));
        let events = machine.reports(false);
        assert_eq!(events.len(), 1);
        let event = &events[0].event;
        assert_eq!(event.source, SourceId::of_plane(&label("h1"), &label("echo")));
        assert_eq!(verify_event(&host_key().public(), &label("prod"), &events[0]), Ok(()));
        assert!(event.sequence > last, "{} after {last}", event.sequence);
        let first = event.sequence;
        let EventBody::Report(report) = &event.body else { panic!("{event:?}") };
        assert_eq!(report.bytes, format!("\"{version}\"").into_bytes());
        assert_eq!(machine.reports(false).len(), 0, "nothing changed");
        let again = machine.reports(true);
        assert_eq!(again.len(), 1);
        last = again[0].event.sequence;
        assert!(last > first, "{last} after {first}");
    }
}

#[test]
fn without_the_hosts_key_nothing_is_acked_and_with_a_new_one_it_signs_with_that() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Arc<Mutex<Option<u8>>> = Arc::new(Mutex::new(Some(2)));
    let shared = Arc::clone(&keys);
    let read_key = Box::new(move || {
        let seed = *shared.lock().unwrap();
        seed.map(|seed| KeyPair::from_seed(&[seed; 32])).ok_or_else(|| "no file".to_string())
    });
    let identity = Identity { read_key, ..identity() };
    let mut machine = Machine::open(identity, folder.path(), Echo::default()).unwrap();
    *keys.lock().unwrap() = None;
    assert!(machine.take(&put(1, "n", "x")).is_none());
    assert_eq!(machine.counters().unsigned, 1);
    *keys.lock().unwrap() = Some(3);
    let acks = machine.take(&put(1, "n", "x")).unwrap();
    let new = KeyPair::from_seed(&[3; 32]).public();
    assert_eq!(weir_trust::identity::verify_acks(&new, &acks), Ok(()));
}

#[test]
fn its_numbers_are_told_by_plane() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = open(folder.path());
    assert_eq!(answer(&mut machine, &put(1, "n", "x")), Ok(()));
    assert!(answer(&mut machine, &put(2, "n", "refuse")).is_err());
    let told: BTreeMap<String, u64> = machine.metrics().into_iter().collect();
    assert_eq!(told["plane_updates_total{plane=\"echo\",what=\"applied\"}"], 1);
    assert_eq!(told["plane_updates_total{plane=\"echo\",what=\"refused\"}"], 1);
    assert_eq!(told["plane_entries{plane=\"echo\"}"], 1);
}

#[test]
fn its_metrics_have_one_kind_and_a_help_each() {
    let folder = tempfile::tempdir().unwrap();
    let mut machine = open(folder.path());
    assert_eq!(answer(&mut machine, &put(1, "n", "x")), Ok(()));
    let text = machine.metrics_text();
    assert_eq!(weir_base::exposition::check(&text), []);
    assert!(text.contains("weir_plane_updates_total{plane=\"echo\",what=\"applied\"} 1"), "{text}");
    let documented = include_str!("../../../../docs/operate/metrics.md");
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(documented.contains(&format!("| `{name}` |")), "{name} is not in docs/operate/metrics.md");
    }
}
