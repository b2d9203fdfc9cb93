//! Tests of the memory of operations that must happen once.

use super::*;

fn waiter(slot: u32) -> Waiter {
    Waiter { worker: 0, session: SessionKey { slot, uses: 1 }, xid: slot }
}

#[test]
fn a_call_is_carried_out_once() {
    let memory = Retransmits::default();
    let key = memory.key([10, 0, 0, 1].into(), &[b"remove x"]);
    assert_ne!(key, memory.key([10, 0, 0, 2].into(), &[b"remove x"]), "another client");
    assert_ne!(key, memory.key([10, 0, 0, 1].into(), &[b"remove y"]), "another call");
    assert_eq!(memory.known(key, Look::Forward, waiter(1), 0), Known::New);
    assert_eq!(memory.known(key, Look::Forward, waiter(2), 0), Known::Pending);
    let (_, waiters) = memory.answered(key, b"done", true, 5);
    assert_eq!(waiters, [waiter(2)]);
    assert_eq!(memory.known(key, Look::Forward, waiter(3), 6), Known::Answered(Arc::from(&b"done"[..])));
    assert_eq!(memory.known(key, Look::Forward, waiter(3), 6 + REMEMBERED_US), Known::New, "long ago");
}

#[test]
fn a_look_before_it_goes_on_begins_nothing_and_what_is_not_kept_is_forgotten() {
    let memory = Retransmits::default();
    let key = memory.key([10, 0, 0, 1].into(), &[b"slot 1", b"rename x"]);
    assert_ne!(key, memory.key([10, 0, 0, 1].into(), &[b"slot 1r", b"ename x"]), "its parts");
    assert_eq!(memory.known(key, Look::Before, waiter(1), 0), Known::New);
    assert_eq!(memory.known(key, Look::Forward, waiter(1), 0), Known::New);
    assert_eq!(memory.known(key, Look::Before, waiter(2), 0), Known::Pending);
    let (reply, waiters) = memory.answered(key, b"mark    done", false, 0);
    assert_eq!(waiters, [waiter(2)]);
    let mut again = Vec::new();
    put_again(&reply, 2, &mut again);
    assert_eq!(again, b"mark\0\0\0\x02done");
    assert_eq!(memory.known(key, Look::Before, waiter(3), 0), Known::New);
}

#[test]
fn what_was_abandoned_may_be_tried_again() {
    let memory = Retransmits::default();
    let key = memory.key([10, 0, 0, 1].into(), &[b"remove x"]);
    memory.known(key, Look::Forward, waiter(1), 0);
    memory.known(key, Look::Forward, waiter(2), 0);
    assert_eq!(memory.abandoned(key, 0), [waiter(2)]);
    assert_eq!(memory.known(key, Look::Forward, waiter(2), 0), Known::Unknown, "it must be settled first");
    assert_eq!(memory.known(key, Look::Forward, waiter(3), 0), Known::Pending);
}

#[test]
fn a_second_process_knows_what_the_first_one_had_begun_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("once");
    let address = [10, 0, 0, 1].into();
    let first = Retransmits::open(&path).unwrap();
    let (ended, begun) = (first.key(address, &[b"remove x"]), first.key(address, &[b"remove y"]));
    first.known(ended, Look::Forward, waiter(1), 0);
    first.answered(ended, b"done", true, 1);
    first.known(begun, Look::Forward, waiter(1), 2);
    for number in 0..2 {
        let second = Retransmits::open(&path).unwrap();
        assert_eq!(second.key(address, &[b"remove x"]), ended);
        assert_eq!(
            second.known(ended, Look::Forward, waiter(1), 0),
            Known::Answered(Arc::from(&b"done"[..]))
        );
        assert_eq!(second.known(begun, Look::Forward, waiter(1), 0), Known::Unknown);
        assert_eq!(second.known(second.key(address, &[&[number]]), Look::Forward, waiter(1), 0), Known::New);
    }
}

#[test]
fn the_memory_is_bounded() {
    let memory = Retransmits::default();
    for number in 0..REMEMBERED_MAX as u32 * 2 {
        let key = memory.key([10, 0, 0, 1].into(), &[&number.to_be_bytes()]);
        assert_eq!(memory.known(key, Look::Forward, waiter(1), 0), Known::New);
        memory.answered(key, b"done", true, 0);
    }
    assert!(memory.len() <= REMEMBERED_MAX + SHARDS, "{}", memory.len());
    let key = memory.key([10, 0, 0, 1].into(), &[b"crowd"]);
    memory.known(key, Look::Forward, waiter(0), 0);
    for number in 0..WAITERS_MAX as u32 {
        assert_eq!(memory.known(key, Look::Forward, waiter(number), 0), Known::Pending);
    }
    assert_eq!(memory.known(key, Look::Forward, waiter(9), 0), Known::Crowded);
}
