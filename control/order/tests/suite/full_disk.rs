//! A log on a real file system that is full: a small one in memory, where this machine may mount one.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;
use weir_base::world::RealDisk;
use weir_order::log::{Log, LogSettings};
use weir_order::{Completion, Engine, Entry, Error, OpenedLocal, Position, Settings};

/// Only against a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const LOG: LogSettings =
    LogSettings { segment_bytes: 128 << 10, batch_bytes_max: 32 << 10, log_id_if_new: 5 };

struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(name: &str) -> Option<Mounted> {
        let dir = tempfile::tempdir().unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Mounted(dir)),
            other => {
                println!("NOT RUN {name}: no small file system can be mounted here: {other:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a file of a failed test may be open.
        let _unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Leaves so many KiB of the file system to others.
fn fill(path: &Path, left_kib: usize) {
    let ballast = path.join("ballast");
    let mut bytes = 1 << 20;
    while std::fs::write(&ballast, vec![1; bytes]).is_err() {
        bytes -= 4 << 10;
    }
    std::fs::write(&ballast, vec![1; bytes.saturating_sub(left_kib << 10)]).unwrap();
}

fn entry(index: u64) -> Entry {
    Entry { position: Position { term: 1, index }, batch: Bytes::from(vec![index as u8; 8 << 10]) }
}

#[test]
fn a_log_knows_that_its_disk_is_full_before_it_must_write_and_that_there_is_room_again() {
    let Some(mounted) = Mounted::new("a_log_knows_that_its_disk_is_full") else { return };
    let disk = || Arc::new(RealDisk::open(mounted.path()).unwrap());
    let (mut log, _) = Log::open(disk(), LOG, 0).unwrap();
    fill(mounted.path(), 64);
    let mut index = 1;
    let mut short_at = 0;
    let error = loop {
        match log.append(&[entry(index)]) {
            Ok(_) => index += 1,
            Err(error) => break error,
        }
        log.sync().unwrap();
        if log.wants_spare() && short_at == 0 {
            log.prepare_next();
            assert!(log.room().is_short(), "there is no room for another segment");
            short_at = index;
        }
    };
    assert!(matches!(error, Error::DiskFull { .. }) && error.is_no_room(), "{error}");
    assert!(
        short_at > 0 && index - short_at >= 5,
        "half a segment is left when it is known: {short_at} of {index}"
    );
    assert!(log.is_healthy());
    std::fs::remove_file(mounted.path().join("ballast")).unwrap();
    log.prepare_next();
    assert!(!log.room().is_short());
    for index in index..index + 20 {
        log.append(&[entry(index)]).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    let (log, recovery) = Log::open(disk(), LOG, 0).unwrap();
    assert_eq!((log.last().index, recovery.torn_bytes), (index + 19, 0));
}

#[test]
fn a_single_controllers_log_refuses_opens_and_goes_on() {
    let Some(mounted) = Mounted::new("a_single_controllers_log_refuses_opens_and_goes_on") else { return };
    let mut settings = Settings { log: LOG, ..Settings::default() };
    settings.local.batch_bytes_max = LOG.batch_bytes_max;
    let open = || {
        let opened = OpenedLocal::open(Arc::new(RealDisk::open(mounted.path()).unwrap()), settings).unwrap();
        let last = opened.opening().last_index;
        (opened.start(Box::new(|_: &Entry| {})).unwrap(), last)
    };
    let propose = |engine: &dyn Engine| {
        let (told, answer) = channel();
        let done = Completion::new(move |result| drop(told.send(result)));
        engine
            .propose(Bytes::from(vec![7; 8 << 10]), done)
            .and_then(|()| answer.recv_timeout(PATIENCE).unwrap())
    };
    let (engine, _) = open();
    fill(mounted.path(), 64);
    let mut acked = 0;
    let error = loop {
        match propose(&engine) {
            Ok(position) => acked = position.index,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::DiskFull { .. }) && error.is_definite(), "{error}");
    assert!(engine.status().healthy && acked > 5);
    drop(engine);
    // It starts on a full disk, and goes on.
    let (engine, last) = open();
    assert_eq!(last, acked);
    assert!(propose(&engine).is_err());
    std::fs::remove_file(mounted.path().join("ballast")).unwrap();
    assert_eq!(propose(&engine).unwrap().index, acked + 1);
}
