use super::*;

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
