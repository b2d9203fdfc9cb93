use super::*;
use weir_model::entry::Vni;
use weir_model::signed::{BatchHeader, GroupSignature, ProvenUpdate, Signature, SignedHeader};
use weir_model::{Change, Label, Update};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn frame(names: &[(u32, u64)]) -> SignedUpdates {
    let header = BatchHeader { domain: label("d"), epoch: 1, index: Version(9), count: 1, root: [0; 32] };
    let signature = GroupSignature::Single(Signature { r: [0; 32], s: [0; 32] });
    let update = |(vni, version): &(u32, u64)| Update {
        target: label("h1"),
        key: Key::Network { vni: Vni(*vni) },
        version: Version(*version),
        expected: Version::ZERO,
        change: Change::Delete,
    };
    let updates = names.iter().map(|name| ProvenUpdate { leaf: 0, path: Vec::new(), update: update(name) });
    SignedUpdates { header: SignedHeader { header, signature }, updates: updates.collect() }
}

fn acks(names: &[(u32, u64)]) -> Vec<Ack> {
    let ack = |(vni, version): &(u32, u64)| Ack {
        key: Key::Network { vni: Vni(*vni) },
        version: Version(*version),
        result: Ok(()),
    };
    names.iter().map(ack).collect()
}

fn is_empty(given: &Given) -> bool {
    given.frames.is_empty() && given.by_name.is_empty() && given.updates == 0
}

#[test]
fn of_two_that_give_the_same_names_the_first_is_answered_first() {
    let mut given = Given::default();
    given.gives(0, 4, &frame(&[(1, 7), (2, 7)]), None);
    given.gives(0, 1, &frame(&[(2, 7)]), None);
    given.gives(0, 2, &frame(&[(3, 7), (3, 7)]), None);
    assert_eq!(given.acked(&acks(&[(1, 7), (2, 7)])), [4]);
    assert_eq!(given.acked(&acks(&[(2, 7)])), [1]);
    assert_eq!(given.acked(&acks(&[(3, 7), (3, 7)])), [2]);
    assert_eq!(given.acked(&acks(&[(3, 7)])), [] as [u64; 0]);
    assert!(is_empty(&given));
}

#[test]
fn a_place_is_free_when_its_frame_is_answered_or_old_or_the_switch_is_gone() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let room = Room::default();
    let place = || Some(runtime.block_on(room.place()));
    let mut given = Given::default();
    for number in 0..FRAMES_MAX as u64 {
        given.gives(number, 1, &frame(&[(1, number)]), place());
    }
    assert_eq!(room.0.available_permits(), 0);
    given.acked(&acks(&[(1, 3), (1, 4)]));
    assert_eq!(room.0.available_permits(), 2);
    assert_eq!(given.next_tick_ms(), Some(LIFE_MS));
    given.tick(LIFE_MS + 1);
    assert_eq!(room.0.available_permits(), 4);
    given.clear();
    assert_eq!(room.0.available_permits(), FRAMES_MAX);
    assert!(is_empty(&given));
}

#[test]
fn what_is_remembered_is_bounded_and_a_frame_of_nothing_is_not() {
    let mut given = Given::default();
    given.gives(0, 1, &frame(&[]), None);
    assert!(is_empty(&given));
    let many: Vec<(u32, u64)> = (0..1_024).map(|vni| (vni, 1)).collect();
    for session in 0..(2 * UPDATES_MAX / many.len()) as u64 {
        given.gives(0, session, &frame(&many), None);
        assert!(given.updates <= UPDATES_MAX);
    }
    given.clear();
    assert!(is_empty(&given));
}
