//! What is learnt of names, and when it must not be.

use super::*;
use proptest::prelude::*;

const FOLDER: &[u8] = b"folder";

/// What a call for a name takes along.
fn asked(names: &Names, name: &[u8], four: bool, at_us: u64) -> Seen {
    let (key, _) = names.key(FOLDER, name).unwrap();
    Seen {
        keys: [Some(key), None],
        names: names.changes(key),
        names_elsewhere: names.changes_by(!four),
        four,
        at_us,
        ..Seen::default()
    }
}

fn known(names: &Names, name: &[u8]) -> Option<Vec<u8>> {
    let (key, _) = names.key(FOLDER, name).unwrap();
    match names.get(key)? {
        Leads::To(handle, _) => Some(handle.as_bytes().to_vec()),
        Leads::Nowhere => Some(Vec::new()),
    }
}

fn listed(names: &Names, at_us: u64) -> Seen {
    let folder = names.folder(FOLDER);
    Seen {
        names: names.changes_in(folder),
        names_elsewhere: names.changes_by(true),
        at_us,
        ..Seen::default()
    }
}

#[test]
fn a_name_is_known_until_a_call_that_unbinds_it_goes_to_the_server() {
    let names = Names::default();
    names.learn(&asked(&names, b"a", false, 1), b"handle-a", false);
    assert_eq!((known(&names, b"a").as_deref(), names.known()), (Some(&b"handle-a"[..]), 1));
    let key = names.key(FOLDER, b"a").unwrap();
    names.begin(key, false, 2);
    assert_eq!(known(&names, b"a"), None);
    // Nothing is learnt while it is under way, nor from what was asked before its end.
    let before_its_end = asked(&names, b"a", false, 3);
    names.learn(&before_its_end, b"handle-a", false);
    assert_eq!(known(&names, b"a"), None);
    names.end(key, false);
    names.learn(&before_its_end, b"handle-a", false);
    assert_eq!(known(&names, b"a"), None);
    names.learn(&asked(&names, b"a", false, 4), b"another", false);
    assert_eq!(known(&names, b"a").as_deref(), Some(&b"another"[..]));
}

#[test]
fn a_listing_teaches_nothing_that_a_change_in_the_folder_has_overtaken() {
    let names = Names::default();
    let seen = listed(&names, 1);
    let key = names.key(FOLDER, b"a").unwrap();
    names.begin(key, false, 2);
    names.end(key, false);
    names.learn_listed(&seen, (FOLDER, names.folder(FOLDER)), b"a", b"handle-a");
    assert_eq!(known(&names, b"a"), None);
    let seen = listed(&names, 3);
    names.learn_listed(&seen, (FOLDER, names.folder(FOLDER)), b"a", b"handle-a");
    names.learn_listed(&seen, (FOLDER, names.folder(FOLDER)), b"..", b"parent");
    assert_eq!((known(&names, b"a").is_some(), names.known()), (true, 1));
    // What has begun before the listing was asked for and is not over.
    let key = names.key(FOLDER, b"b").unwrap();
    names.begin(key, false, 4);
    names.learn_listed(&listed(&names, 5), (FOLDER, names.folder(FOLDER)), b"b", b"handle-b");
    assert_eq!(known(&names, b"b"), None);
}

#[test]
fn what_the_other_version_of_nfs_unbinds_may_be_the_same_name_under_another_handle() {
    let names = Names::default();
    names.learn(&asked(&names, b"a", false, 1), b"handle-a", false);
    let other = names.key(b"the same folder's handle in NFSv4", b"a").unwrap();
    names.begin(other, true, 2);
    assert_eq!(known(&names, b"a"), None, "while it is under way");
    names.end(other, true);
    assert_eq!(known(&names, b"a"), None, "and after it");
    names.learn(&asked(&names, b"a", false, 3), b"another", false);
    assert!(known(&names, b"a").is_some());
}

#[test]
fn a_call_whose_reply_never_comes_is_under_way_for_longer_than_anybody_waits() {
    let names = Names::default();
    let key = names.key(FOLDER, b"a").unwrap();
    names.begin(key, false, 1);
    names.settle(LOST_US);
    names.learn(&asked(&names, b"a", false, LOST_US), b"handle-a", false);
    assert_eq!(known(&names, b"a"), None);
    // The first reply after that shows that it is over, the second one is asked since.
    for _ in 0..2 {
        names.settle(LOST_US + 2);
        names.learn(&asked(&names, b"a", false, LOST_US + 2), b"handle-a", false);
    }
    assert!(known(&names, b"a").is_some());
    assert!(names.versions.is_quiet(false, names.changes_by(false)));
}

#[test]
fn handles_come_back_as_they_were_with_the_zeros_at_their_end() {
    let names = Names::default();
    for (name, handle) in [(&b"a"[..], vec![7; 28]), (b"b", [vec![7; 28], vec![0; 100]].concat())] {
        names.learn(&asked(&names, name, true, 1), &handle, false);
        assert_eq!(known(&names, name), Some(handle));
    }
    names.learn(&asked(&names, b"c", true, 1), &[7; 100], false);
    assert_eq!(known(&names, b"c"), None, "too long to be remembered");
    // The same folder, as NFSv4 pads its handle.
    let padded = [FOLDER, &[0; 20]].concat();
    assert_eq!(names.key(&padded, b"a"), names.key(FOLDER, b"a"));
}

#[test]
fn what_nobody_looks_at_is_forgotten() {
    let names = Names::default();
    names.learn(&asked(&names, b"kept", false, 1), b"handle", false);
    for number in 0..NAMES_MAX as u32 * 3 / 2 {
        names.learn(&asked(&names, &number.to_be_bytes(), false, 1), b"handle", false);
        if number % 256 == 0 {
            assert!(known(&names, b"kept").is_some());
        }
    }
    assert!(names.known() <= NAMES_MAX);
}

#[test]
fn that_a_name_leads_nowhere_is_known_until_a_call_that_makes_it_goes_to_the_server() {
    let names = Names::default();
    let (key, _) = names.key(FOLDER, b"a").unwrap();
    let before = asked(&names, b"a", false, 1);
    names.learn_absent(&before);
    assert_eq!(names.get(key), Some(Leads::Nowhere));
    // What it makes is learnt from its own reply, if nothing else is under way.
    let mut own = asked(&names, b"a", false, 2);
    own.names = names.begin_making(key, false, 2);
    assert_eq!(names.get(key), None);
    names.learn_absent(&before);
    assert_eq!(names.get(key), None);
    names.learn(&own, b"made", true);
    names.end_making(key);
    assert_eq!(known(&names, b"a").as_deref(), Some(&b"made"[..]));
    // A call that makes what is there changes nothing about it.
    names.begin_making(key, false, 3);
    assert!(known(&names, b"a").is_some());
    names.end_making(key);
    let other = names.key(FOLDER, b"b").unwrap().0;
    let mut own = asked(&names, b"b", false, 4);
    own.names = names.begin_making(other, false, 4);
    names.begin_making(other, false, 5);
    names.learn(&own, b"made", true);
    assert_eq!(names.get(other), None, "another one is under way");
}

#[test]
fn that_a_name_leads_nowhere_is_not_believed_where_nfsv4_may_make_it_unseen() {
    let names = Names::default();
    let (key, _) = names.key(FOLDER, b"a").unwrap();
    names.learn_absent(&asked(&names, b"a", false, 1));
    names.makes_unseen(2);
    assert_eq!(names.get(key), None);
    for (at_us, believed) in [(3, false), (2 + LOST_US, false), (3 + LOST_US, true)] {
        names.learn_absent(&asked(&names, b"a", false, at_us));
        assert_eq!(names.get(key).is_some(), believed, "{at_us}");
    }
    // NFSv4 itself asks.
    let (key, _) = names.key(FOLDER, b"b").unwrap();
    names.learn_absent(&asked(&names, b"b", true, 4 + LOST_US));
    assert_eq!(names.get(key), None);
}

/// A server with one name, and calls that are on their way to it or back.
#[derive(Clone, Debug)]
enum Step {
    /// A LOOKUP is shown to FileWall and goes out.
    Ask,
    /// A removal goes out.
    Remove,
    /// A call that makes the name goes out.
    Make,
    /// The server carries out the pending call of this number.
    CarryOut(usize),
    /// FileWall gets the reply of that number.
    Reply(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Ask),
        Just(Step::Remove),
        Just(Step::Make),
        (0..4usize).prop_map(Step::CarryOut),
        (0..4usize).prop_map(Step::Reply),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A call: what it does, what it has taken along, what it was answered once it was carried out.
struct Pending {
    step: Step,
    seen: Seen,
    answer: Option<u8>,
}

proptest! {
    /// However calls and replies overtake each other: what is believed is what the server has, and neither a removal of what is there nor
    /// the making of what is not is under way then.
    #[test]
    fn what_is_believed_is_so(steps in steps()) {
        let names = Names::default();
        let key = names.key(FOLDER, b"a").unwrap();
        // What the name leads to at the server: 0 is nothing.
        let (mut object, mut next) = (0u8, 0u8);
        let mut calls: Vec<Pending> = Vec::new();
        for (now_us, step) in (1..).zip(steps) {
            let mut seen = asked(&names, b"a", false, now_us);
            match step {
                Step::Ask => calls.push(Pending { step, seen, answer: None }),
                Step::Remove => {
                    names.begin(key, false, now_us);
                    calls.push(Pending { step, seen, answer: None });
                }
                Step::Make => {
                    seen.names = names.begin_making(key.0, false, now_us);
                    calls.push(Pending { step, seen, answer: None });
                }
                Step::CarryOut(number) => {
                    if let Some(call) = calls.iter_mut().filter(|call| call.answer.is_none()).nth(number) {
                        match call.step {
                            Step::Remove => object = 0,
                            Step::Make if object == 0 => {
                                next += 1;
                                object = next;
                            }
                            _ => {}
                        }
                        call.answer = Some(object);
                    }
                }
                Step::Reply(number) => {
                    let done: Vec<usize> = (0..calls.len()).filter(|at| calls[*at].answer.is_some()).collect();
                    let Some(at) = done.get(number) else { continue };
                    let Pending { step, seen, answer } = calls.remove(*at);
                    match (step, answer) {
                        (Step::Remove, _) => names.end(key, false),
                        (Step::Make, Some(made)) => {
                            names.learn(&seen, &[made], true);
                            names.end_making(key.0);
                        }
                        (_, Some(0)) => names.learn_absent(&seen),
                        (_, found) => names.learn(&seen, &[found.unwrap()], false),
                    }
                }
            }
            let removes = calls.iter().any(|call| matches!(call.step, Step::Remove));
            let makes = calls.iter().any(|call| matches!(call.step, Step::Make));
            match names.get(key.0) {
                Some(Leads::To(handle, _)) => {
                    prop_assert!(!removes);
                    prop_assert_eq!(handle.as_bytes(), &[object]);
                }
                Some(Leads::Nowhere) => {
                    prop_assert!(!makes);
                    prop_assert_eq!(object, 0);
                }
                None => {}
            }
        }
    }
}
