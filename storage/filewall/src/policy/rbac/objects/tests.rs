//! What is learnt of owners, and when it must not be.

use super::*;
use crate::wire::make::Attributes;

fn attributes(uid: u32, fsid: u64) -> [u8; ATTRIBUTES_BYTES] {
    Attributes { folder: false, mode: 0o644, uid, gid: 100, size: 3, fsid, fileid: 5, time: (1, 1) }.bytes()
}

fn asked(objects: &Objects, four: bool, at_us: u64) -> Seen {
    Seen { owners: objects.changes(), four, at_us, ..Seen::default() }
}

fn owner(objects: &Objects, since_us: u64) -> Option<u32> {
    objects.get(b"file", since_us).map(|object| object.uid)
}

#[test]
fn an_owner_that_was_never_comes_after_one_that_is() {
    let objects = Objects::default();
    let before = asked(&objects, false, 1);
    objects.learn(b"file", &attributes(7, 1), &before);
    assert_eq!(owner(&objects, 0), Some(7));
    objects.begin(b"file", false, 2);
    assert_eq!(owner(&objects, 0), None);
    let meanwhile = asked(&objects, false, 3);
    objects.learn(b"file", &attributes(7, 1), &meanwhile);
    assert_eq!(owner(&objects, 0), None, "not while it is under way");
    objects.end(b"file", false);
    for overtaken in [before, meanwhile, Seen::default()] {
        objects.learn(b"file", &attributes(7, 1), &overtaken);
        assert_eq!(owner(&objects, 0), None, "nor from what was asked before its end");
    }
    objects.learn(b"file", &attributes(8, 1), &asked(&objects, false, 4));
    assert_eq!(owner(&objects, 0), Some(8));
    // Others are known meanwhile.
    objects.begin(b"other", false, 5);
    assert_eq!(owner(&objects, 0), Some(8));
    // A reply that never comes.
    objects.learn(b"other", &attributes(7, 1), &asked(&objects, false, 5 + LOST_US));
    assert!(objects.get(b"other", 0).is_none());
    objects.learn(b"other", &attributes(7, 1), &asked(&objects, false, 6 + LOST_US));
    assert!(objects.get(b"other", 0).is_some());
}

#[test]
fn what_is_known_grows_old_from_when_it_was_asked_for() {
    let objects = Objects::default();
    let late = asked(&objects, false, 50);
    objects.learn(b"file", &attributes(7, 1), &asked(&objects, false, 100));
    assert_eq!((owner(&objects, 100), owner(&objects, 101)), (Some(7), None));
    // A reply to an older question makes it no older.
    objects.learn(b"file", &attributes(7, 1), &late);
    assert_eq!(owner(&objects, 100), Some(7));
    objects.learn(b"file", &attributes(7, 1), &asked(&objects, false, 200));
    assert_eq!(owner(&objects, 101), Some(7));
}

#[test]
fn owners_that_change_in_one_version_of_nfs_are_asked_for_again_in_the_other() {
    let objects = Objects::default();
    objects.learn(b"file", &attributes(7, 1), &asked(&objects, false, 1));
    objects.begin(b"perhaps the same file", true, 2);
    assert_eq!(owner(&objects, 0), None);
    objects.end(b"perhaps the same file", true);
    assert_eq!(owner(&objects, 0), None);
    objects.learn(b"file", &attributes(8, 1), &asked(&objects, false, 3));
    assert_eq!(owner(&objects, 0), Some(8));
    // NFSv4 does not say the file system's number of NFSv3: what is known of it stays.
    objects.learn(b"file", &attributes(8, 0), &asked(&objects, true, 4));
    assert_eq!(objects.get(b"file", 0).unwrap().fsid, 1);
}
