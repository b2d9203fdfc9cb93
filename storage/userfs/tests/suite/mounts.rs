//! Mounting, locks, unmounting, and the daemon.

use super::{Mounted, cannot_mount, on_all};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_userfs::control::{self, Answer, Question};
use weir_userfs::daemon::{Task, serve};
use weir_userfs::mem::Limits;
use weir_userfs::mount::Options;

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == point.to_str())
}

#[test]
fn locks_are_the_kernels() {
    on_all("locks", |on| {
        let path = on.root().join("locked");
        let (one, two) = (fs::File::create(&path).unwrap(), fs::File::open(&path).unwrap());
        let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&one, exclusive).unwrap();
        assert_eq!(rustix::fs::flock(&two, exclusive).unwrap_err(), rustix::io::Errno::WOULDBLOCK);
        drop(one);
        until("the lock of a closed file to go", || rustix::fs::flock(&two, exclusive).is_ok());
    });
}

#[test]
fn a_cached_file_is_opened_without_asking() {
    on_all("no_open", |on| {
        if on.name == "dir" {
            // The kernel asks for the file itself.
            return;
        }
        let path = on.root().join("file");
        fs::write(&path, "some").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"some");
        let switches = || {
            let usage = fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = usage.lines().find(|line| line.starts_with("voluntary")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
        };
        let before = switches();
        for _ in 0..1000 {
            assert_eq!(fs::read(&path).unwrap(), b"some");
        }
        assert!(switches() - before < 100, "{} context switches for 1000 files", switches() - before);
    });
}

#[test]
fn a_mount_in_use_is_not_taken_away_unless_told() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN a_mount_in_use: {reason}");
    }
    let mut on = Mounted::memory(Limits::default());
    let point = fs::canonicalize(on.root()).unwrap();
    let file = fs::File::create(point.join("open")).unwrap();
    let refused = on.mount().unmount(false).unwrap_err().to_string();
    assert!(refused.contains("busy"), "{refused}");
    on.mount().unmount(true).unwrap();
    assert!(!is_mounted(&point));
    file.set_len(100).unwrap();
    drop(file);
    until("the session to end", || !on.mount().is_alive());
}

#[test]
fn a_mount_right_after_an_unmount_stays() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN a_mount_right_after: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = || {
        let backend = Arc::new(weir_userfs::mem::Memory::new(Limits::default(), 0, 0).unwrap());
        weir_userfs::mount::Mount::new(backend, folder.path(), &Options::default()).unwrap()
    };
    let mut first = mount();
    for round in 0..20 {
        // Its session ends after another one was begun at the place, by whoever it was unmounted.
        match round % 3 {
            0 => first.unmount(false).unwrap(),
            1 => first.unmount(true).unwrap(),
            _ => rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::empty()).unwrap(),
        }
        let second = mount();
        fs::write(folder.path().join("file"), "of the second").unwrap();
        drop(first);
        assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"of the second", "round {round}");
        first = second;
    }
    drop(first);
    assert!(!is_mounted(&fs::canonicalize(folder.path()).unwrap()));
}

#[test]
fn a_daemon_answers_and_ends() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN a_daemon_answers: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (point, state) = (folder.path().join("mount"), folder.path().join("state"));
    fs::create_dir(&point).unwrap();
    let task = Task {
        backend: "mem:64M".to_owned(),
        point: point.clone(),
        state: state.clone(),
        options: Options::default(),
    };
    let end = Arc::new(AtomicBool::new(false));
    let told = end.clone();
    let served = std::thread::spawn(move || serve(task, &told));
    until("the mount", || is_mounted(&point) && !control::all(&state).is_empty());
    fs::write(point.join("file"), "x").unwrap();
    let Answer::Status(status) = control::ask(&state, &point, &Question::Status).unwrap() else {
        panic!("no status")
    };
    assert_eq!(status.backend, "mem:64M");
    assert!(status.operations.iter().any(|count| count.operation == "write" && count.calls == 1));
    assert_eq!(control::ask(&state, &point, &Question::Unmount { lazy: false }).unwrap(), Answer::Done);
    served.join().unwrap().unwrap();
    assert!(!is_mounted(&point));
    assert!(control::all(&state).is_empty());
    assert!(!end.load(Ordering::Relaxed));
}

/// Whoever tells it to end need not find out who has the mount.
#[test]
fn a_daemon_ends_though_another_namespace_has_its_mount() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN a_daemon_ends_though: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (point, state) = (folder.path().join("mount"), folder.path().join("state"));
    fs::create_dir(&point).unwrap();
    let options = Options::default();
    let task = Task { backend: "mem:64M".to_owned(), point: point.clone(), state: state.clone(), options };
    let end = Arc::new(AtomicBool::new(false));
    let told = end.clone();
    let served = std::thread::spawn(move || serve(task, &told));
    until("the mount", || is_mounted(&point) && !control::all(&state).is_empty());
    let mut other = std::process::Command::new("unshare");
    other.args(["--mount", "--propagation", "private", "sh", "-c", "cd \"$0\" && echo there && read _"]);
    let pipes = std::process::Stdio::piped;
    let mut other = other.arg(&point).stdin(pipes()).stdout(pipes()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(other.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "there\n");
    assert_eq!(control::ask(&state, &point, &Question::Unmount { lazy: false }).unwrap(), Answer::Done);
    assert!(!is_mounted(&point));
    end.store(true, Ordering::Relaxed);
    until("the daemon's end", || served.is_finished());
    served.join().unwrap().unwrap();
    assert!(control::all(&state).is_empty());
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn memory_of_removed_files_goes_back_to_the_system() {
    const BYTES: usize = 192 << 20;
    const KEPT: i64 = 96 << 20;
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN memory_of_removed_files: {reason}");
    }
    let mut on = Mounted::memory(Limits::default());
    let path = on.root().join("large");
    fs::write(&path, vec![1; BYTES]).unwrap();
    let backend = on.mount().backend().clone();
    let taken = || {
        let memory = backend.segment().unwrap().memory();
        rustix::fs::fstat(memory).unwrap().st_blocks * 512
    };
    assert!(taken() > BYTES as i64);
    fs::remove_file(&path).unwrap();
    until("memory", || taken() < KEPT);
    fs::write(&path, vec![2; BYTES]).unwrap();
    assert!(fs::read(&path).unwrap() == vec![2; BYTES]);
}

#[test]
fn devices_and_set_ids_are_nothing_unless_they_are_asked_for() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN devices_and_set_ids: {reason}");
    }
    for (asked, right) in [(false, true), (true, false)] {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { devices: asked, set_ids: asked, ..Options::default() };
        let backend = Arc::new(weir_userfs::mem::Memory::new(Limits::default(), 0, 0).unwrap());
        let mount = weir_userfs::mount::Mount::new(backend, folder.path(), &options).unwrap();
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line =
            table.lines().find(|line| line.split(' ').nth(1) == folder.path().to_str()).unwrap().to_owned();
        let words: Vec<&str> = line.split(' ').nth(3).unwrap().split(',').collect();
        for word in ["nosuid", "nodev"] {
            assert_eq!(words.contains(&word), right, "{line}");
        }
        drop(mount);
    }
}
