//! Tests of the audit log.

use super::*;
use crate::policy::tests::{answer, made};
use std::time::{Duration, Instant};

fn lines(path: &Path, count: usize) -> Vec<serde_json::Value> {
    let begin = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if lines.len() >= count {
            return lines;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "only {} lines", lines.len());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn denied_calls_are_written_with_their_policy() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kind: audit\nfile: log\nops: [removals]\noutcome: denied\n---\nkind: read-only";
    std::fs::write(folder.path().join("p.yaml"), text).unwrap();
    let chain = crate::policy::load(folder.path(), None).unwrap();
    let remove = made(1001, Op::Remove, |record| record.opaque(b"dir").opaque(b"name"));
    assert_eq!(answer(&chain, &remove), Some(Status::Rofs));
    let line = &lines(&folder.path().join("log"), 1)[0];
    assert_eq!(
        (line["op"].as_str(), line["uid"].as_u64(), line["status"].as_u64()),
        (Some("REMOVE"), Some(1001), Some(30))
    );
    assert_eq!((line["denied_by"].as_str(), line["path"].as_str()), (Some("read-only"), Some("…/name")));
}

#[test]
fn a_log_that_is_full_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut log =
        Log { path: path.clone(), file: BufWriter::new(open(&path).unwrap()), bytes: 0, rotate_bytes: 400 };
    let line = Line {
        unix_ms: 1,
        client: "c".into(),
        user: "u".into(),
        uid: 1,
        op: "WRITE",
        path: "/p".into(),
        path_to: None,
        status: 0,
        denied_by: None,
        latency_us: None,
    };
    (0..10).for_each(|_| log.write(&line).unwrap());
    log.file.flush().unwrap();
    let bytes = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().len();
    assert!(bytes("log") <= 400 && bytes("log.1") <= 400);
}
