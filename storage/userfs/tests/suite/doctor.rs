//! What the doctor says of daemons that live, and of one that was killed.

use super::{cannot_mount, mounts::until};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_userfs::daemon::{Task, serve};
use weir_userfs::doctor::{self, Finding, Verdict};
use weir_userfs::mount::Options;

/// Where the process of [`a_daemon_to_be_killed`] mounts; without it, that test is none.
const POINT: &str = "WEIR_TEST_DOCTOR_POINT";

fn task(point: &Path, state: &Path) -> Task {
    let options = Options { others: true, ..Options::default() };
    Task { backend: "mem:64M".to_owned(), point: point.to_owned(), state: state.to_owned(), options }
}

#[test]
fn a_daemon_to_be_killed() {
    let Some(folder) = std::env::var_os(POINT).map(PathBuf::from) else { return };
    serve(task(&folder.join("mount"), &folder.join("state")), &AtomicBool::new(false)).unwrap();
}

/// A process that serves until it is killed; what it leaves is unmounted.
struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("mount")).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "suite::doctor::a_daemon_to_be_killed"]).env(POINT, folder.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let daemon = Daemon { child, folder };
        until("the daemon", || {
            let all = weir_userfs::control::all(&daemon.state());
            all.iter().any(|status| status.pid == daemon.child.id())
        });
        daemon
    }

    fn point(&self) -> PathBuf {
        std::fs::canonicalize(self.folder.path()).unwrap().join("mount")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What is said of `what`.
    fn about(&self, what: &str) -> Vec<Finding> {
        let all = doctor::examine(&self.state(), &[]);
        all.into_iter().filter(|finding| finding.what == what).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        // A mount that is gone already is what is wanted.
        let _ = rustix::mount::unmount(self.point(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_mount_whose_daemon_was_killed_is_found() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN a_mount_whose_daemon_was_killed: {reason}");
    }
    let mut daemon = Daemon::start();
    let (mount, id) =
        (format!("mount {}", daemon.point().display()), format!("daemon {}", daemon.child.id()));
    let living = daemon.about(&mount);
    assert_eq!((living.len(), living[0].verdict), (1, Verdict::Good), "{living:?}");
    let same = daemon.about(&id);
    assert!(!same.is_empty() && same.iter().all(|finding| finding.verdict == Verdict::Good), "{same:?}");

    daemon.kill();
    let dead = daemon.about(&mount);
    assert_eq!((dead.len(), dead[0].verdict), (1, Verdict::Wrong), "{dead:?}");
    assert!(dead[0].found.contains("gone") && dead[0].right.as_ref().unwrap().contains("umount"), "{dead:?}");
    assert!(!doctor::is_well(&doctor::examine(&daemon.state(), &[])));
    let folder = weir_userfs::control::mount_directory(&daemon.state(), &daemon.point());
    let socket = daemon.about(&format!("socket {}", folder.display()));
    assert_eq!((socket.len(), socket[0].verdict), (1, Verdict::Note), "{socket:?}");
}

#[test]
fn a_daemon_that_serves_nothing_is_found() {
    if let Some(reason) = cannot_mount() {
        return println!("NOT RUN a_daemon_that_serves_nothing: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (point, state) = (folder.path().join("mount"), folder.path().join("state"));
    std::fs::create_dir(&point).unwrap();
    let point = std::fs::canonicalize(point).unwrap();
    let end = Arc::new(AtomicBool::new(false));
    let (told, of) = (end.clone(), task(&point, &state));
    let served = std::thread::spawn(move || serve(of, &told));
    until("the mount", || !weir_userfs::control::all(&state).is_empty());
    // Out of sight while a file is open: it goes on.
    let open = std::fs::File::create(point.join("open")).unwrap();
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
    let all = doctor::examine(&state, &[]);
    let found = all.iter().find(|finding| finding.found.contains("nothing of its is mounted"));
    assert!(found.is_some_and(|finding| finding.verdict == Verdict::Wrong), "{all:?}");
    end.store(true, Ordering::Relaxed);
    drop(open);
    served.join().unwrap().unwrap();
}

#[test]
fn programs_are_judged_by_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    let programs = [PathBuf::from("/bin/bash"), script, folder.path().join("none")];
    let all = doctor::examine(folder.path(), &programs);
    let of = |program: &Path| {
        let what = format!("program {}", program.display());
        all.iter().find(|finding| finding.what == what).unwrap()
    };
    assert_ne!(of(&programs[0]).verdict, Verdict::Wrong, "{all:?}");
    assert!(of(&programs[0]).found.contains("places"), "{all:?}");
    assert_eq!(of(&programs[1]).verdict, Verdict::Note, "{all:?}");
    assert_eq!(of(&programs[2]).verdict, Verdict::Wrong, "{all:?}");
    let interception = all.iter().find(|finding| finding.what == "interception").unwrap();
    assert_eq!(interception.verdict == Verdict::Good, weir_intercept::try_out().is_ok(), "{all:?}");
}
