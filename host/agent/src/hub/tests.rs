use super::*;
use crate::testing::label;
use weir_model::entry::Vni;
use weir_model::signed::{BatchHeader, Signature};
use weir_model::{Change, Entry, Update};

const SIGNATURE: Signature = Signature { r: [0; 32], s: [0; 32] };

fn key(plane: &str, name: &str) -> Key {
    Key::Plane { plane: label(plane), name: name.into() }
}

fn frame(signature: GroupSignature, updates: Vec<(Key, u64)>) -> SignedUpdates {
    let count = updates.len() as u32;
    let header = BatchHeader { domain: label("lab"), epoch: 1, index: Version(9), count, root: [0; 32] };
    let update = |(key, version)| Update {
        target: label("host-1"),
        key,
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(Entry::Plane(b"{}".to_vec())),
    };
    let proven = |(leaf, update)| ProvenUpdate { leaf, path: vec![[leaf as u8; 32]], update };
    let updates = (0..).zip(updates.into_iter().map(update)).map(proven).collect();
    SignedUpdates { header: SignedHeader { header, signature }, updates }
}

fn signed(updates: Vec<(Key, u64)>) -> SignedUpdates {
    frame(GroupSignature::Single(SIGNATURE), updates)
}

/// A process that has these keys, and what it was sent.
fn come(
    hub: &mut Hub,
    id: u64,
    plane: &str,
    names: Option<&[&str]>,
    has: &[(Key, u64)],
) -> mpsc::Receiver<ToSwitch> {
    let (sender, mut receiver) = mpsc::channel(driver::TO_LOCAL_MAX);
    let names = names.map(|names| names.iter().map(ToString::to_string).collect());
    assert!(hub.came(id, (label(plane), names), sender));
    assert!(matches!(receiver.try_recv(), Ok(ToSwitch::SendState)));
    let has: Vec<_> = has.iter().map(|(key, version)| content(key, *version)).collect();
    let (first, rest) = has.split_at(has.len() / 2);
    assert_eq!(hub.state(id, first.to_vec(), false).unwrap(), None, "it does not count yet");
    assert!(hub.state(id, rest.to_vec(), true).unwrap().is_some());
    receiver
}

/// A key as a process says it.
fn content(key: &Key, version: u64) -> (Key, Version, u128) {
    (key.clone(), Version(version), u128::MAX - u128::from(version))
}

fn sent(receiver: &mut mpsc::Receiver<ToSwitch>) -> Vec<(Key, u64)> {
    let mut all = Vec::new();
    while let Ok(ToSwitch::Updates(frame)) = receiver.try_recv() {
        all.extend(frame.updates.into_iter().map(|proven| (proven.update.key, proven.update.version.0)));
    }
    all
}

fn ack(key: Key, version: u64) -> Ack {
    Ack { key, version: Version(version), result: Ok(()) }
}

#[test]
fn a_frame_is_split_by_plane_and_each_part_keeps_its_proofs() {
    let mut hub = Hub::default();
    let mut echo = come(&mut hub, 1, "echo", None, &[]);
    let mut other = come(&mut hub, 2, "other", None, &[]);
    let network = Key::Network { vni: Vni(7) };
    let whole = signed(vec![
        (key("echo", "a"), 5),
        (network.clone(), 6),
        (key("other", "a"), 7),
        (key("echo", "b"), 8),
    ]);
    let (switch, refused) = hub.route(whole.clone());
    assert_eq!(refused, []);
    let switch = switch.unwrap();
    assert_eq!((&switch.header, &switch.updates[..]), (&whole.header, &whole.updates[1..2]));
    let Ok(ToSwitch::Updates(first)) = echo.try_recv() else { panic!() };
    assert_eq!((&first.header, &first.updates[..]), (&whole.header, &whole.updates[..1]));
    assert_eq!(sent(&mut echo), [(key("echo", "b"), 8)]);
    assert_eq!(sent(&mut other), [(key("other", "a"), 7)]);
    // What has nothing of planes passes as it is, proofs without updates too.
    for frame in [signed(vec![(network, 6)]), signed(vec![])] {
        assert_eq!(hub.route(frame.clone()), (Some(frame), vec![]));
    }
}

#[test]
fn states_and_digests_of_planes_join_the_switchs() {
    let mut hub = Hub::default();
    assert_eq!(hub.digest(StateDigest(7)), StateDigest(7));
    let _echo = come(&mut hub, 1, "echo", None, &[(key("echo", "a"), 5), (key("echo", "b"), 6)]);
    let _other = come(&mut hub, 2, "other", Some(&["x"]), &[(key("other", "x"), 7)]);
    let pairs =
        [(key("echo", "a"), Version(5)), (key("echo", "b"), Version(6)), (key("other", "x"), Version(7))];
    assert_eq!(hub.entries(), pairs);
    // Minus 6, 7, 8.
    assert_eq!(hub.digest(StateDigest(100)), StateDigest(100 - 21));
    // What it changed it says before its acks, and what it has no longer.
    assert_eq!(hub.state(1, vec![content(&key("echo", "a"), 9)], true).unwrap(), None);
    hub.acked(1, &[ack(key("echo", "a"), 9), ack(key("other", "y"), 9), ack(Key::Gateways, 9)]);
    let found = |hub: &Hub| hub.entries().into_iter().map(|(_, version)| version.0).collect::<Vec<u64>>();
    assert_eq!((found(&hub), hub.digest(StateDigest(100))), (vec![9, 6, 7], StateDigest(100 - 25)));
    hub.state(1, vec![content(&key("echo", "a"), 0)], true).unwrap();
    assert_eq!((found(&hub), hub.digest(StateDigest(100))), (vec![6, 7], StateDigest(100 - 15)));
    assert!(hub.state(1, vec![content(&key("other", "x"), 9)], true).unwrap_err().contains("of plane echo"));
    // Where two have one key it counts once.
    let _twin = come(&mut hub, 3, "echo", Some(&["b"]), &[(key("echo", "b"), 7)]);
    assert_eq!((found(&hub), hub.digest(StateDigest(100))), (vec![7, 7], StateDigest(100 - 16)));
}

#[test]
fn a_process_that_goes_takes_its_keys_along_and_one_that_comes_brings_them() {
    let mut hub = Hub::default();
    let _one = come(&mut hub, 1, "echo", Some(&["a"]), &[(key("echo", "a"), 5)]);
    let _two = come(&mut hub, 2, "echo", Some(&["b"]), &[(key("echo", "b"), 6)]);
    let before = hub.changes;
    let left = hub.went(1, 1_000).unwrap();
    assert_eq!(left.entries, Some(vec![(key("echo", "b"), Version(6))]), "another of the plane is there");
    let left = hub.went(2, 1_000).unwrap();
    assert_eq!((left.plane.as_str(), &left.entries), ("echo", &None));
    assert_eq!((hub.entries(), hub.went(2, 1_000), hub.changes), (vec![], None, before + 2));
    assert_eq!(
        hub.states(),
        [PlaneState { plane: label("echo"), entries: None }],
        "sessions are told that it is away"
    );
    let _back = come(&mut hub, 3, "echo", None, &[(key("echo", "a"), 5)]);
    assert_eq!(hub.states()[0].entries, Some(vec![(key("echo", "a"), Version(5))]));
    // One that never said what it has never counted.
    let (sender, _receiver) = mpsc::channel(2);
    assert!(hub.came(4, (label("echo"), None), sender));
    assert_eq!(hub.went(4, 1_000), None);
}

#[test]
fn what_nobody_takes_waits_is_refused_by_name_and_is_given_to_who_comes() {
    let mut hub = Hub::default();
    let both = || signed(vec![(key("echo", "a"), 5), (key("echo", "b"), 5)]);
    assert_eq!(hub.route(both()), (None, vec![]));
    assert_eq!(hub.due(GRACE_MS - 1), []);
    let refused = hub.due(GRACE_MS);
    assert_eq!(refused.len(), 2);
    let Err(Refusal::Failed(why)) = &refused[0].result else { panic!("{refused:?}") };
    assert!(why.contains("no process of plane echo is on this host"), "{why}");
    assert_eq!(hub.due(GRACE_MS + 1), [], "once");
    // The controllers try again: they are answered again.
    hub.route(both());
    assert_eq!(hub.due(GRACE_MS + 1).len(), 2);
    // The newest of each key is what is kept.
    hub.route(signed(vec![(key("echo", "a"), 8)]));
    hub.route(signed(vec![(key("echo", "a"), 6)]));
    let mut one = come(&mut hub, 1, "echo", Some(&["a"]), &[]);
    assert_eq!(sent(&mut one), [(key("echo", "a"), 8)]);
    assert_eq!(hub.held(), 1);
    let refused = hub.due(GRACE_MS + 2);
    assert_eq!(refused, [], "it was told of 'b' already");
    hub.route(signed(vec![(key("echo", "b"), 5)]));
    let Err(Refusal::Failed(why)) = &hub.due(GRACE_MS + 2)[0].result else { panic!() };
    assert!(why.contains("no process of plane echo on this host takes 'b', there are: a"), "{why}");
    let mut rest = come(&mut hub, 2, "echo", None, &[]);
    assert_eq!(sent(&mut rest), [(key("echo", "b"), 5)]);
    // Who names it takes it, and what is nobody's goes to who takes all.
    hub.route(signed(vec![(key("echo", "a"), 9), (key("echo", "c"), 9)]));
    assert_eq!((sent(&mut one), sent(&mut rest)), (vec![(key("echo", "a"), 9)], vec![(key("echo", "c"), 9)]));
    // After one went, it has time to come back.
    hub.went(2, 50_000);
    hub.route(signed(vec![(key("echo", "c"), 10)]));
    assert_eq!(hub.due(50_000 + GRACE_MS - 1), []);
    assert_eq!(hub.due(50_000 + GRACE_MS).len(), 1);
}

#[test]
fn what_nobody_has_is_withdrawn() {
    let mut hub = Hub::default();
    let mut gone = signed(vec![(key("echo", "a"), 5)]);
    gone.updates[0].update.change = Change::Delete;
    assert_eq!(hub.route(gone.clone()), (None, vec![]));
    assert_eq!(hub.due(GRACE_MS), [ack(key("echo", "a"), 5)]);
    assert_eq!((hub.due(GRACE_MS), hub.counters.refused), (vec![], 0));
    assert_eq!(hub.held(), 0);
    // Who comes with it after all says so, and the controllers send it again.
    let mut echo = come(&mut hub, 1, "echo", None, &[(key("echo", "a"), 4)]);
    assert_eq!(hub.entries(), [(key("echo", "a"), Version(4))]);
    hub.route(gone);
    assert_eq!(sent(&mut echo), [(key("echo", "a"), 5)]);
}

#[test]
fn what_is_kept_and_what_processes_may_say_is_bounded() {
    let mut hub = Hub::default();
    for number in 0..HELD_MAX {
        assert_eq!(hub.route(signed(vec![(key("echo", &number.to_string()), 5)])).1, []);
    }
    let (_, refused) = hub.route(signed(vec![(key("echo", "more"), 5)]));
    assert_eq!(refused.len(), 1, "there is no room, and that is said at once");
    assert_eq!((hub.held(), hub.counters.dropped), (HELD_MAX, 1));
    let mut echo = come(&mut hub, 1, "echo", None, &[]);
    assert_eq!(sent(&mut echo).len(), HELD_MAX);
    assert_eq!(hub.held(), 0);
    let (sender, _receiver) = mpsc::channel(2);
    let many = vec![String::new(); PLANE_NAMES_MAX + 1];
    assert!(!hub.came(2, (label("echo"), Some(many)), sender.clone()));
    assert!(hub.came(2, (label("echo"), None), sender));
    let wrong = hub.state(2, vec![content(&key("other", "a"), 1)], true).unwrap_err();
    assert!(wrong.contains("plane/other/a") && wrong.contains("of plane echo"), "{wrong}");
    for id in 3..LOCALS_MAX as u64 + 1 {
        let (sender, _receiver) = mpsc::channel(2);
        assert!(hub.came(id, (label("echo"), None), sender), "{id}");
    }
    let (sender, _receiver) = mpsc::channel(2);
    assert!(!hub.came(1_000, (label("echo"), None), sender));
}

/// Who knows the controllers, as it says itself, is given what these endorsed; the list comes as the group signed it, also to who comes
/// later, and an endorsed one counts for nothing.
#[test]
fn what_single_controllers_endorsed_is_for_those_who_know_them() {
    let mut hub = Hub::default();
    let mut echo = come(&mut hub, 1, "echo", None, &[]);
    let by = |phase| GroupSignature::Members { phase, signatures: vec![] };
    let network = Key::Network { vni: Vni(7) };
    let (switch, refused) = hub.route(frame(by(1), vec![(key("echo", "a"), 5), (network.clone(), 6)]));
    assert_eq!(switch.unwrap().updates[0].update.key, network);
    assert_eq!((refused, sent(&mut echo), hub.counters.dropped), (vec![], vec![], 1));
    hub.route(frame(by(1), vec![(Key::Controllers, 7)]));
    assert_eq!((hub.proof(), sent(&mut echo)), (None, vec![]));
    // The switch's to ack, and for the planes to know.
    let (switch, _) = hub.route(signed(vec![(Key::Controllers, 7)]));
    assert_eq!(switch.unwrap().updates[0].update.key, Key::Controllers);
    assert_eq!(sent(&mut echo), [(Key::Controllers, 7)]);
    hub.route(signed(vec![(Key::Controllers, 6)]));
    // A restored order's is newer, whatever its version.
    let mut restored = signed(vec![(Key::Controllers, 3)]);
    restored.header.header.epoch = 2;
    let mut restored_hub = Hub::with_proof(hub.proof().cloned());
    restored_hub.route(restored.clone());
    assert_eq!(restored_hub.proof(), Some(&restored));
    restored_hub.route(signed(vec![(Key::Controllers, 8)]));
    assert_eq!(restored_hub.proof(), Some(&restored));
    let mut later = come(&mut hub, 2, "later", None, &[]);
    assert_eq!((sent(&mut echo), sent(&mut later)), (vec![], vec![(Key::Controllers, 7)]), "the newest");
    let members = weir_model::entry::ControllersEntry { phase: 1, threshold: 1, members: [].into() };
    hub.knows(1, Some(&Entry::Controllers(members)));
    hub.route(frame(by(1), vec![(key("echo", "a"), 8), (key("later", "a"), 8)]));
    hub.route(frame(by(2), vec![(key("echo", "a"), 9)]));
    assert_eq!((sent(&mut echo), sent(&mut later)), (vec![(key("echo", "a"), 8)], vec![]));
    hub.knows(1, None);
    hub.route(frame(by(1), vec![(key("echo", "a"), 10)]));
    assert_eq!(sent(&mut echo), []);
}

#[test]
fn a_process_that_does_not_read_loses_updates_and_nobody_waits_for_it() {
    let mut hub = Hub::default();
    let (sender, mut receiver) = mpsc::channel(1);
    assert!(hub.came(1, (label("echo"), None), sender));
    receiver.try_recv().unwrap();
    hub.state(1, vec![], true).unwrap();
    hub.route(signed(vec![(key("echo", "a"), 5), (key("echo", "b"), 5)]));
    assert_eq!((hub.counters.given, hub.counters.dropped), (1, 1));
    // The controllers send it again.
    assert_eq!(sent(&mut receiver), [(key("echo", "a"), 5)]);
    hub.route(signed(vec![(key("echo", "b"), 5)]));
    assert_eq!(sent(&mut receiver), [(key("echo", "b"), 5)]);
}
