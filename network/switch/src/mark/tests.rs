use super::*;

#[test]
fn what_was_in_hand_is_found_by_the_next_process_once() {
    let directory = tempfile::tempdir().unwrap();
    let (mark, found) = Mark::open(directory.path()).unwrap();
    assert_eq!(found, None);
    mark.name(7, name_of(Some("red"), "eth0"));
    mark.take(7);
    drop(mark);
    let (mark, found) = Mark::open(directory.path()).unwrap();
    assert_eq!(found, Some(InHand::Device(name_of(Some("red"), "eth0"))));
    assert_ne!(name_of(Some("red"), "eth0"), name_of(None, "eth0"));
    mark.take(UNDERLAY);
    drop(mark);
    let (mark, found) = Mark::open(directory.path()).unwrap();
    assert_eq!(found, Some(InHand::Underlay));
    mark.take(3);
    mark.put_down();
    drop(mark);
    assert_eq!(Mark::open(directory.path()).unwrap().1, None);
}

#[test]
fn a_file_that_is_none_is_made_anew_and_a_link_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(MARK_FILE);
    std::fs::write(&path, b"something else").unwrap();
    assert_eq!(Mark::open(directory.path()).unwrap().1, None);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), BYTES as u64);
    // Places that cannot be are nothing in hand.
    let mut bytes = vec![0; BYTES];
    bytes[..8].copy_from_slice(&u64::MAX.to_ne_bytes());
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(Mark::open(directory.path()).unwrap().1, None);
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(directory.path().join("victim"), &path).unwrap();
    assert!(Mark::open(directory.path()).is_err());
    let none = Mark::none();
    none.take(1);
    none.put_down();
}
