use super::*;
use crate::consensus::Identity;

fn member(id: u32) -> Member {
    let key = Identity { id, secret: [id as u8; 32] }.public().unwrap();
    Member { key, address: format!("192.0.2.{id}:1") }
}

fn roster(count: u32) -> Roster {
    let keys = Members((1..=count).map(|id| (id, member(id).key)).collect());
    Roster::founding("group", &keys)
}

#[test]
fn a_change_that_cannot_be_says_why() {
    let four = roster(4);
    assert_eq!((four.faulty_max(), four.quorum()), (1, 3));
    assert_eq!(four.after(&Change::Remove { id: 4 }), Err(Refused::TooFew { left: 3 }));
    assert_eq!(four.after(&Change::Remove { id: 9 }), Err(Refused::Missing { id: 9 }));
    let add = |id, member| Change::Add { id, member };
    assert_eq!(four.after(&add(4, member(9))), Err(Refused::Taken { id: 4 }));
    assert_eq!(four.after(&add(9, member(2))), Err(Refused::SameKey { id: 2 }));
    let nowhere = Member { address: String::new(), ..member(5) };
    assert!(matches!(four.after(&add(5, nowhere)), Err(Refused::Member { what: "address", .. })));
    assert_eq!(roster(16).after(&add(17, member(17))), Err(Refused::TooMany));
    let five = four.after(&add(5, member(5))).unwrap();
    assert_eq!(five.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let replaced = four.after(&Change::Replace { out: 2, id: 7, member: member(7) }).unwrap();
    assert_eq!(replaced.keys().copied().collect::<Vec<_>>(), [1, 3, 4, 7]);
}

#[test]
fn epochs_differ_by_what_came_before_them() {
    let four = roster(4);
    let next = four.after(&Change::Add { id: 5, member: member(5) }).unwrap();
    let block = |height| Block {
        epoch: 1,
        parent: [1; 32],
        height,
        first_index: 1,
        refs: vec![],
        next: Some(next.clone()),
    };
    let (a, b) = (Roster::behind(b"group", &block(1)).unwrap(), Roster::behind(b"group", &block(2)).unwrap());
    assert_eq!((a.epoch, a.quorum()), (2, 4));
    assert_ne!(a.genesis, b.genesis, "the block before differs");
    assert_ne!(a.genesis, Roster::behind(b"other", &block(1)).unwrap().genesis, "the group differs");
    assert_ne!(a.namespace("group"), b.namespace("group"));
}

#[test]
fn approvals_and_links_are_read_as_they_were_written() {
    for change in [
        Change::Add { id: 5, member: member(5) },
        Change::Remove { id: 3 },
        Change::Replace { out: 1, id: 6, member: member(6) },
    ] {
        let approval = Approval { epoch: 7, change };
        assert!(Approval::is_one(&approval.encode()));
        assert_eq!(Approval::decode(approval.encode()), Ok(approval));
    }
    bolero::check!().with_iterations(2000).with_type::<Vec<u8>>().for_each(|bytes| {
        let bytes = Bytes::from(bytes.clone());
        if let Ok(approval) = Approval::decode(bytes.clone()) {
            assert_eq!(approval.encode(), bytes);
        }
        if let Ok(link) = Link::decode(bytes.clone()) {
            assert_eq!(link.encode(), bytes);
        }
    });
}
