//! Tests of the pending map.

use super::*;

fn entry(client_xid: u32, since_us: u64) -> Entry {
    let chain = Chain::new(Vec::new(), Default::default(), Default::default(), None);
    let caller = chain.principals().get(chain.identities(), [10, 0, 0, 1].into(), 1, 1, &[]);
    let asked = Asked::getattr(caller);
    let asked = Question::Call(asked, 0);
    let print = Some(Print::of(b"the call", 8));
    Entry { client_xid, print, asked, chain: Arc::new(chain), since_us, once: None, resent: false }
}

#[test]
fn a_reply_finds_its_call_once() {
    let mut pending = Pending::new(u32::MAX - 1);
    let xids: Vec<u32> = (0..5).map(|client_xid| pending.insert(entry(client_xid, 0))).collect();
    assert_eq!(pending.meets(3, b"the call", 8), Met::Copy);
    assert_eq!(pending.meets(3, b"the coll", 8), Met::Another);
    assert_eq!(pending.meets(3, b"the call and more", 17), Met::Another);
    assert_eq!(pending.meets(3, b"the", 8), Met::Copy, "as far as it is there");
    assert!(pending.get(xids[3]).is_some());
    assert_eq!(pending.take(xids[3]).unwrap().client_xid, 3);
    assert!(pending.take(xids[3]).is_none());
    assert_eq!(pending.meets(3, b"the call", 8), Met::Nobody);
    let again = pending.insert(entry(3, 0));
    assert_ne!(again, xids[3], "the place is the same, the number is not");
    assert!(pending.get(xids[3]).is_none(), "a late reply finds nothing");
    assert_eq!(pending.len(), 5);
}

#[test]
fn numbers_that_nobody_gave_out_find_nothing() {
    let mut pending = Pending::new(0);
    let xid = pending.insert(entry(1, 0));
    for other in (0..100_000).filter(|other| *other != xid) {
        assert!(pending.get(other).is_none());
    }
}

#[test]
fn the_map_is_bounded_and_purged() {
    let mut pending = Pending::new(7);
    for number in 0..PENDING_MAX as u32 {
        assert!(!pending.is_full());
        pending.insert(entry(number, u64::from(number)));
    }
    assert!(pending.is_full());
    assert_eq!(pending.expire(10).len(), 10);
    assert_eq!(pending.drain().len(), PENDING_MAX - 10);
    assert!(pending.is_empty() && !pending.any_once());
}
