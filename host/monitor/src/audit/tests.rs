use super::*;

impl Log {
    /// One beside which anything may be.
    fn open_for_test(path: &Path) -> Log {
        let file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        let held = file.try_clone().unwrap();
        let (path, rotation) = (path.to_path_buf(), Rotation::default());
        Log { path, file, hash: START.into(), number: 0, bytes: 0, rotation, _held: held }
    }
}

fn log(path: &Path, entries: u64) -> Log {
    let mut log = Log::open(path).unwrap();
    for number in 0..entries {
        log.write(number, Some("a".into()), What::Settled { took_us: number, again: 0 }).unwrap();
    }
    log
}

#[test]
fn a_log_goes_on_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/audit.log");
    let first = log(&path, 3);
    let hash = first.hash().to_string();
    drop(first);
    let mut again = Log::open(&path).unwrap();
    assert_eq!(again.hash(), hash);
    assert_eq!(again.write(9, None, What::Stopped).unwrap().number, 4);
    let entries = read(&path).unwrap();
    assert_eq!(entries.len(), 4);
    assert_eq!(entries[3].1.what, What::Stopped);
}

#[test]
fn a_second_monitor_does_not_write_into_the_log_of_one_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let mut first = log(&path, 2);
    let error = Log::open(&path).unwrap_err().to_string();
    assert!(error.contains("another monitor writes it"), "{error}");
    first.write(3, None, What::Stopped).unwrap();
    assert_eq!(read(&path).unwrap().len(), 3, "the chain is whole");
    drop(first);
    assert_eq!(log(&path, 1).number, 4);
}

#[test]
fn a_log_is_begun_anew_and_the_chain_goes_through_all_that_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let rotation = Rotation { bytes_max: 2000, kept: 4 };
    let mut log = Log::open_with(&path, rotation).unwrap();
    for number in 1..=200 {
        assert_eq!(log.write(0, None, What::Resynced { lost: number }).unwrap().number, number);
        if number % 70 == 0 {
            drop(log);
            log = Log::open_with(&path, rotation).unwrap();
        }
    }
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1 + 4 + 1, "the log, the older ones and the lock");
    for number in 1..=4 {
        let length = std::fs::metadata(rotated(&path, number)).unwrap().len();
        assert!((2000..2400).contains(&length), "{length}");
    }
    let entries = read_all(&path).unwrap();
    assert_eq!(entries.last().unwrap().1.number, 200);
    let first = entries[0].1.number;
    assert!(first > 1 && entries.len() as u64 == 201 - first, "{first}");
    // A log that is missing between two others is a gap.
    std::fs::copy(rotated(&path, 3), rotated(&path, 2)).unwrap();
    assert!(matches!(read_all(&path), Err(Error::Audit { line: 1, .. })));
}

#[test]
fn a_log_that_another_program_moved_away_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let mut log = log(&path, 3);
    std::fs::rename(&path, rotated(&path, 1)).unwrap();
    assert_eq!(read_all(&path).unwrap().len(), 3, "between the move and the next entry");
    log.write(0, None, What::Recovered).unwrap();
    assert_eq!((read(&path).unwrap().len(), read_all(&path).unwrap().len()), (1, 4));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(log.write(0, None, What::Recovered).unwrap().number, 5);
    assert_eq!(read(&path).unwrap()[0].1.number, 5, "and one that was deleted");
}

#[test]
fn an_entry_is_written_although_the_log_cannot_be_moved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    // A folder cannot be replaced by a file.
    std::fs::create_dir_all(rotated(&path, 1).join("in the way")).unwrap();
    let mut log = Log { rotation: Rotation { bytes_max: 1, kept: 1 }, ..Log::open_for_test(&path) };
    for number in 1..=3 {
        assert_eq!(log.write(0, None, What::Recovered).unwrap().number, number);
    }
    assert_eq!(read(&path).unwrap().len(), 3);
}

#[test]
fn what_was_changed_taken_out_or_put_in_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    log(&path, 4);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let cases = [
        (text.replace("\"took_us\":2", "\"took_us\":3"), 3),
        (text.replace("\"took_us\":0", "\"took_us\":9"), 1),
        ([lines[0], lines[2], lines[3]].concat(), 2),
        ([lines[0], lines[2], lines[1], lines[3]].concat(), 2),
        ([lines[0], lines[0], lines[1], lines[2]].concat(), 2),
        (text[..text.len() - 3].to_string(), 4),
        (format!("{text}x y\n"), 5),
    ];
    for (changed, wanted) in cases {
        std::fs::write(&path, &changed).unwrap();
        match read(&path) {
            Err(Error::Audit { line, .. }) => assert_eq!(line, wanted, "{changed}"),
            other => panic!("{other:?} for {changed}"),
        }
        assert!(Log::open(&path).is_err());
    }
}

#[test]
fn any_line_is_read_without_harm() {
    bolero::check!().for_each(|bytes: &[u8]| drop(parse(bytes, None)));
}
