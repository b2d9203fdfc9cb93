use super::*;

fn records(n: u8) -> Vec<Vec<u8>> {
    (0..n).map(|i| vec![i; usize::from(i) * 3 + 1]).collect()
}

#[test]
fn a_cut_at_any_byte_keeps_the_whole_records_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(&records(6)).unwrap();
    drop(journal);
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let (mut journal, found) = Journal::open(&path).unwrap();
        assert_eq!(found, records(6)[..found.len()], "cut at {cut}");
        assert_eq!(cut == whole.len(), found.len() == 6);
        journal.append(&[b"after".to_vec()]).unwrap();
        let (_, again) = Journal::open(&path).unwrap();
        assert_eq!(again.len(), found.len() + 1, "cut at {cut}");
    }
}

#[test]
fn a_damaged_record_ends_the_journal_and_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(&records(4)).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let (journal, found) = Journal::open(&path).unwrap();
    assert_eq!(found, records(3));
    assert!(journal.cut_bytes > 0);
}

#[test]
fn rewrite_replaces_everything_and_appends_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let (mut journal, _) = Journal::open(&path).unwrap();
    journal.append(&records(9)).unwrap();
    journal.rewrite(records(2).iter().map(Vec::as_slice)).unwrap();
    journal.append(&[b"tail".to_vec()]).unwrap();
    let (_, found) = Journal::open(&path).unwrap();
    assert_eq!(found, [records(2), vec![b"tail".to_vec()]].concat());
}

#[test]
fn another_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    std::fs::write(&path, b"not a journal at all").unwrap();
    assert_eq!(Journal::open(&path).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
}

#[test]
fn another_process_is_followed_and_then_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    assert_eq!(Journal::follow(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let (mut theirs, _) = Journal::open(&path).unwrap();
    theirs.append(&records(3)).unwrap();
    let (mut ours, found) = Journal::follow(&path).unwrap();
    assert_eq!(found, records(3));
    assert!(ours.append(&records(1)).is_err(), "it is not ours");
    theirs.append(&[b"more".to_vec()]).unwrap();
    // What the other is just writing is no damage.
    let mut half = Vec::new();
    put(&mut half, b"a record that is not whole yet").unwrap();
    theirs.file.write_all(&half[..half.len() - 3]).unwrap();
    assert_eq!(ours.more().unwrap(), [b"more".to_vec()]);
    assert!(ours.more().unwrap().is_empty());
    theirs.file.write_all(&half[half.len() - 3..]).unwrap();
    assert_eq!(ours.more().unwrap(), [b"a record that is not whole yet".to_vec()]);
    theirs.file.write_all(b"torn").unwrap();
    drop(theirs);
    ours.own().unwrap();
    assert_eq!(ours.cut_bytes, 4);
    ours.append(&[b"ours".to_vec()]).unwrap();
    let (mut again, found) = Journal::open(&path).unwrap();
    assert_eq!((found.len(), found.last().unwrap().as_slice()), (6, b"ours".as_slice()));
    again.rewrite(records(2).iter().map(Vec::as_slice)).unwrap();
    assert_eq!(ours.more().unwrap_err().kind(), std::io::ErrorKind::InvalidData, "it was replaced");
    assert_eq!(ours.follow_anew().unwrap(), records(2));
    assert!(ours.more().unwrap().is_empty());
}

#[test]
fn fuzz_scan() {
    bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
        let (records, valid) = scan(bytes);
        assert!(valid <= bytes.len());
        assert_eq!(valid, records.iter().map(|r| r.len() + HEADER_BYTES).sum::<usize>());
    });
}

#[test]
fn a_journal_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    std::fs::write(&path, MAGIC).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let (mut journal, _) = Journal::open(&path).unwrap();
    assert_eq!(mode(), 0o600, "one that was open to others is closed");
    journal.rewrite([&b"record"[..]].into_iter()).unwrap();
    assert_eq!(mode(), 0o600);
}
