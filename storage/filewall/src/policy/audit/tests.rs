//! Tests of the audit log.

use super::*;
use crate::policy::tests::{answer, made};
use crate::wire::nfs3::Handle;
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

/// Lines are written in their order, and the last is there: what is missing before it was never written.
#[test]
fn what_is_denied_is_logged_in_the_named_folders_and_where_nobody_knows_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kind: audit\nfile: log\nops: [removals]\npaths: [/pub]\n---\nkind: read-only";
    std::fs::write(folder.path().join("p.yaml"), text).unwrap();
    let chain = crate::policy::load(folder.path(), None).unwrap();
    chain.knows_mount(&Handle::new(b"root").unwrap(), b"/");
    let (zones, places) = (chain.context().zones, chain.context().places);
    places.learn(b"pub", zones.place(b"/pub").unwrap(), b"root", Some(b"pub"));
    let removals: [(u32, &'static [u8], &'static [u8]); 6] = [
        (1, b"root", b"name"),
        (2, b"unknown", b"name"),
        (3, b"root", b"other"),
        (4, b"root", b"pub"),
        (5, b"root", b"name"),
        (6, b"pub", b"name"),
    ];
    for (uid, handle, name) in removals {
        let remove = made(uid, Op::Remove, |record| record.opaque(handle).opaque(name));
        assert_eq!(answer(&chain, &remove), Some(Status::Rofs));
    }
    let found = lines(&folder.path().join("log"), 3);
    let seen: Vec<_> = found.iter().map(|line| (line["uid"].as_u64(), line["path"].as_str())).collect();
    assert_eq!(seen, [(Some(2), Some("…/name")), (Some(4), Some("/pub")), (Some(6), Some("/pub/name"))]);
}

/// A disk with room for some bytes.
#[derive(Clone, Default)]
struct Disk(Arc<std::sync::Mutex<(usize, Vec<u8>)>>);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut disk = self.0.lock().unwrap();
        let taken = bytes.len().min(disk.0);
        if taken == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        disk.0 -= taken;
        disk.1.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn log(path: &Path, when_full: WhenFull, keep_files: usize, disk: Option<Disk>) -> Log {
    let how = How { rotate_bytes: 400, keep_files, when_full };
    let file: Box<dyn Write + Send> = match disk {
        Some(disk) => Box::new(disk),
        None => Box::new(open(path).unwrap()),
    };
    Log { path: path.to_path_buf(), file, bytes: 0, how, torn: false }
}

fn batch(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("{{\"line\":{number:90}}}\n").into_bytes()).collect()
}

#[test]
fn a_log_that_is_full_begins_anew_and_what_goes_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let counts = Counts::default();
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    log(&path, WhenFull::Lose, 2, None).put(&batch(30), &counts);
    let there =
        |name: &str| std::fs::read_to_string(folder.path().join(name)).map_or(0, |text| text.lines().count());
    let kept = there("log") + there("log.1") + there("log.2");
    assert!(there("log") > 0 && there("log.2") > 0 && there("log.3") == 0);
    assert_eq!((get(&counts.written), get(&counts.removed)), (30, 30 - kept as u64));
    // Where no line may be lost all files stay.
    let all = folder.path().join("all");
    let counts = Counts::default();
    log(&all, WhenFull::Wait, FILES_MAX, None).put(&batch(30), &counts);
    let kept: usize = (1..20).map(|number| there(&format!("all.{number}"))).sum();
    assert_eq!((kept + there("all"), get(&counts.removed)), (30, 0));
}

#[test]
fn what_the_disk_does_not_take_is_tried_again_or_counted_and_lines_stay_whole() {
    let (disk, counts) = (Disk::default(), Arc::new(Counts::default()));
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    disk.0.lock().unwrap().0 = 150;
    let (slow, told) = (disk.clone(), counts.clone());
    let writer = std::thread::spawn(move || {
        let mut log = log(Path::new("/nowhere"), WhenFull::Wait, FILES_MAX, Some(slow));
        log.how.rotate_bytes = u64::MAX;
        log.put(&batch(3), &told);
    });
    let begin = Instant::now();
    while !counts.stuck.load(Ordering::Relaxed) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the disk takes nothing, and nobody is told");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(get(&counts.written), 1);
    disk.0.lock().unwrap().0 = usize::MAX;
    writer.join().unwrap();
    assert_eq!(
        (get(&counts.written), get(&counts.failed), counts.stuck.load(Ordering::Relaxed)),
        (3, 0, false)
    );
    assert_eq!(disk.0.lock().unwrap().1, batch(3).concat());
    // Where lines may be lost they are counted, and the next one is not torn with what is left of one.
    let (disk, counts) = (Disk::default(), Counts::default());
    let mut log = log(Path::new("/nowhere"), WhenFull::Lose, 1, Some(disk.clone()));
    log.how.rotate_bytes = u64::MAX;
    disk.0.lock().unwrap().0 = 150;
    log.put(&batch(3), &counts);
    assert_eq!((get(&counts.written), get(&counts.failed)), (1, 2));
    disk.0.lock().unwrap().0 = usize::MAX;
    log.put(&batch(1), &counts);
    let text = String::from_utf8(disk.0.lock().unwrap().1.clone()).unwrap();
    let sound = text.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count();
    assert_eq!((sound, text.lines().count()), (2, 3));
}

#[test]
fn calls_wait_while_the_disk_takes_no_lines() {
    let folder = tempfile::tempdir().unwrap();
    let text = "kind: audit\nfile: log\nops: [removals]\nwhen-full: wait\n";
    std::fs::write(folder.path().join("p.yaml"), text).unwrap();
    let chain = crate::policy::load(folder.path(), None).unwrap();
    let remove = made(1001, Op::Remove, |record| record.opaque(b"dir").opaque(b"name"));
    let outcome = || crate::policy::tests::ask(&chain, &remove, |_| ()).0;
    assert!(matches!(outcome(), crate::policy::Outcome::Forward { .. }));
    let kept = chain.entries()[0].policy.dynamic().unwrap().downcast::<Writer>().unwrap();
    kept.counts.stuck.store(true, Ordering::Relaxed);
    assert!(matches!(outcome(), crate::policy::Outcome::Wait { .. }));
    kept.counts.stuck.store(false, Ordering::Relaxed);
    kept.coming.store(QUEUE_MAX as u64, Ordering::Relaxed);
    assert!(matches!(outcome(), crate::policy::Outcome::Wait { .. }));
}
