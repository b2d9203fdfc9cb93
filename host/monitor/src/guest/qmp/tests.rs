use super::*;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;

/// A QEMU that answers by rote: what it says to each line that it reads.
fn qemu(
    folder: &Path,
    script: Vec<&'static str>,
) -> (std::path::PathBuf, std::thread::JoinHandle<Vec<String>>) {
    let path = folder.join("qmp");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"{\"QMP\": {}}\n").unwrap();
        let mut heard = Vec::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for answer in script {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap() == 0 {
                break;
            }
            heard.push(line);
            stream.write_all(answer.as_bytes()).unwrap();
        }
        heard
    });
    (path, thread)
}

#[test]
fn commands_are_answered_and_events_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let script = vec![
        "{\"return\": {}}\n",
        "{\"event\": \"STOP\"}\n{\"event\": \"NICE\"}\n{\"return\": {\"running\": false}}\n",
        "{\"error\": {\"desc\": \"no such thing\"}}\n{\"event\": \"RESET\"}\n",
    ];
    let (path, thread) = qemu(folder.path(), script);
    let mut qmp = Qmp::connect(&path).unwrap();
    assert_eq!(qmp.process().map(|(_, pid)| pid), Some(std::process::id()));
    assert!(!qmp.running().unwrap());
    let error = qmp.command("wish", json!({ "for": 1 })).unwrap_err().to_string();
    assert!(error.contains("wish") && error.contains("no such thing"), "{error}");
    let heard = thread.join().unwrap();
    assert!(heard[2].contains("\"for\":1"), "{heard:?}");
    let mut events = Vec::new();
    let closed = loop {
        match qmp.events() {
            Ok(more) => events.extend(more),
            Err(error) => break error.to_string(),
        }
    };
    // What came before the end is lost only when it was not asked for.
    assert!(closed.contains("closed"), "{closed}");
    assert!(events.is_empty() || events.contains(&Event::Stopped), "{events:?}");
}

#[test]
fn what_is_no_qmp_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Qmp::connect(&folder.path().join("nothing")).is_err());
    let path = folder.path().join("other");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"hello\n").unwrap();
        stream
    });
    assert!(Qmp::connect(&path).is_err());
    drop(thread.join());
}

#[test]
fn a_qemu_that_hangs_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qmp");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = Qmp::connect(&path).unwrap_err().to_string();
    assert!(error.contains("does not answer"), "{error}");
}
