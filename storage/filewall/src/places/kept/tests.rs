//! The journal grows with what is learnt, not with what is known.

use super::*;
use crate::places::{Places, Zones};

#[test]
fn a_journal_that_is_too_long_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("places");
    let mut zones = Zones::default();
    zones.add("/home").unwrap();
    let (home, root) = (zones.place(b"/home/x").unwrap(), zones.place(b"/x").unwrap());
    let places = Places::open(&path, &zones).unwrap();
    let bytes = || std::fs::metadata(&path).unwrap().len();
    // One handle with two places in turn: no server does that. More than a record may hold, at once.
    let mut batch = Batch::default();
    for number in 0..100_000 {
        let place = if number % 2 == 0 { home } else { root };
        places.learn_in(places.directory(b"folder"), b"file", place, None, &mut batch);
    }
    places.write_down(batch, &zones);
    let long = bytes();
    assert!(long > 100_000 * ENTRY_BYTES as u64);
    places.kept.as_ref().unwrap().0.lock().unwrap().entries = RECORDS_MAX;
    let batch = places.learn(b"file", home, b"folder", None);
    places.write_down(batch, &zones);
    assert!(bytes() < long / 1000);
    drop(places);
    assert_eq!(Places::open(&path, &zones).unwrap().get(b"file"), Some(home));
}

#[test]
fn what_is_no_journal_of_places_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("places");
    let zones = Zones::default();
    std::fs::write(&path, b"something else").unwrap();
    assert!(Places::open(&path, &zones).is_err());
    // A journal with other records than ours, too short for a seed, and with a half entry.
    for records in [vec![b"x".to_vec()], vec![head([7; 16], &zones), vec![1; ENTRY_BYTES + 1]]] {
        std::fs::remove_file(&path).unwrap();
        Journal::open(&path).unwrap().0.append(&records).unwrap();
        assert!(Places::open(&path, &zones).unwrap().len() <= 1);
    }
}
