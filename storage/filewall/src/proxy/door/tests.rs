//! Tests of the door.

use super::*;

fn at(slot: u32) -> At {
    (0, SessionKey { slot, uses: 1 })
}

fn seat(door: &Door, from: &str) -> Option<(Ticket, Option<At>)> {
    match door.admit(from.parse().unwrap()) {
        Admitted::Seat { ticket, end, .. } => Some((ticket, end)),
        Admitted::Full => None,
    }
}

#[test]
fn the_oldest_who_said_nothing_leaves_and_nobody_who_spoke() {
    let door = Door::new(3, 3);
    let tickets: Vec<Ticket> =
        (1..=3).map(|last| seat(&door, &format!("10.0.0.{last}")).unwrap().0).collect();
    for (slot, ticket) in (0..).zip(&tickets) {
        assert!(door.seated(*ticket, at(slot)));
    }
    assert!(door.spoke(tickets[0]));
    let (fourth, end) = seat(&door, "10.0.0.4").unwrap();
    assert_eq!(end, Some(at(1)), "the oldest of the silent");
    assert!(!door.spoke(tickets[1]), "it lost its seat");
    assert!(door.spoke(tickets[2]) && door.spoke(fourth));
    assert_eq!(seat(&door, "10.0.0.5"), None, "all have spoken");
    // The one that was displaced gives nothing back a second time.
    assert!(!door.release(tickets[1]));
    assert_eq!(seat(&door, "10.0.0.5"), None);
    assert!(door.release(fourth));
    assert!(seat(&door, "10.0.0.5").is_some());
}

#[test]
fn a_group_displaces_its_own_and_an_ipv6_client_is_its_64() {
    let door = Door::new(100, 2);
    let (first, _) = seat(&door, "fd00:0:0:1::1").unwrap();
    let (second, _) = seat(&door, "fd00:0:0:1:ffff:ffff:ffff:ffff").unwrap();
    let (other, _) = seat(&door, "fd00:0:0:2::1").unwrap();
    assert!(door.spoke(first) && door.spoke(second));
    assert_eq!(seat(&door, "fd00:0:0:1:7::7"), None, "one /64 has its share");
    assert!(seat(&door, "::ffff:10.0.0.1").is_some() && seat(&door, "10.0.0.1").is_some());
    let (_, end) = seat(&door, "10.0.0.1").unwrap();
    assert_eq!(end, None, "the one that left was not with a worker yet");
    assert!(door.spoke(other), "others are left alone");
}

#[test]
fn one_that_is_displaced_before_its_worker_has_it_is_not_seated() {
    let door = Door::new(1, 1);
    let (first, _) = seat(&door, "10.0.0.1").unwrap();
    let (second, _) = seat(&door, "10.0.0.2").unwrap();
    assert!(!door.seated(first, at(0)) && door.seated(second, at(1)));
}

#[test]
fn who_leaves_slowly_keeps_newcomers_out_at_last() {
    let door = Door::new(1, 1);
    let tickets: Vec<Ticket> = (0..=LEAVING_MAX).map(|_| seat(&door, "10.0.0.1").unwrap().0).collect();
    assert_eq!(seat(&door, "10.0.0.1"), None);
    assert!(!door.release(tickets[0]));
    assert!(seat(&door, "10.0.0.1").is_some());
    assert_eq!(Door::new(0, 5).admit([10, 0, 0, 1].into()), Admitted::Full);
    assert_eq!(Door::new(5, 0).admit([10, 0, 0, 1].into()), Admitted::Full);
}
