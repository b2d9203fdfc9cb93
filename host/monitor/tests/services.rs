//! Services that crash, in cages: what is told, and that they are started again.

use crate::cage::{Cage, Watched, until};
use rustix::process::{Pid, Signal, kill_process};
use weir_monitor::audit::{Entry, What};
use weir_monitor::crash::{CrashEntry, NotRestarted};

/// A policy for the cage; `more` are further lines.
fn policy(cage: &Cage, more: &str) -> String {
    format!("kind: service\nname: web\ncgroup: {}\ndry-run: false\n{more}\n", cage.folder.display())
}

fn restart(script: &str, limit: u32) -> String {
    format!("restart: {{ command: [sh, -c, '{script}'], backoff-ms: 1, limit: {limit}, start-ms: 60000 }}")
}

impl Watched {
    /// Waits until the service is up, by a process other than `before`.
    fn main_process(&self, before: u32) -> u32 {
        let mut main = None;
        until("the main process", || {
            main = self.monitor.status().policies[0].main.filter(|process| *process != before);
            main.is_some()
        });
        main.unwrap()
    }

    fn crashes(&self) -> Vec<CrashEntry> {
        let crash = |entry: Entry| match entry.what {
            What::Crashed(crash) => Some(crash),
            _ => None,
        };
        self.monitor.recent().into_iter().filter_map(crash).collect()
    }

    fn wait_for_crash(&self, number: usize) -> CrashEntry {
        until("a crash that is told", || self.crashes().len() >= number);
        self.crashes().swap_remove(number - 1)
    }
}

fn send(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process.cast_signed()).unwrap(), signal).unwrap();
}

/// Crashes, is started again, and is left alone once it ended cleanly.
fn is_started_again(name: &str, without_bpf: bool) {
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let text = policy(&cage, &restart("exec sleep 1000", 5));
    let watched = match Watched::start(&text, without_bpf) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let mut service = cage.start("exec sleep 1000");
    let first = watched.main_process(0);
    assert_eq!(first, service.id());
    send(first, Signal::SEGV);
    service.wait().unwrap();
    let crash = watched.wait_for_crash(1);
    assert_eq!((crash.main, crash.signal, crash.exit_code), (true, Some(11), None), "{crash:?}");
    assert_eq!(crash.process.as_ref().unwrap().process, first, "{crash:?}");
    assert!(crash.restart_in_ms.is_some(), "{crash:?}");
    let up =
        watched.wait_for("the restart", |entry| matches!(entry.what, What::Restarted { attempt: 1, .. }));
    let second = watched.main_process(first);
    assert!(cage.processes().contains(&second), "it is in its cgroup: {up:?}");
    let score = std::fs::read_to_string(format!("/proc/{second}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "0", "it is not protected as the monitor is");

    // It ends because somebody asked it to.
    send(second, Signal::TERM);
    until("the end of the service", || watched.monitor.status().policies[0].main.is_none());
    let steps = watched.monitor.status().steps;
    until("more looks", || watched.monitor.status().steps >= steps + 50);
    assert_eq!((watched.crashes().len(), cage.processes().len()), (1, 0), "{:?}", watched.monitor.recent());

    // Somebody starts it, and it ends with an exit code.
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let mut service = cage.start(&format!("while [ ! -e {} ]; do sleep 0.05; done; exit 3", go.display()));
    let third = watched.main_process(0);
    std::fs::write(&go, "").unwrap();
    service.wait().unwrap();
    let crash = watched.wait_for_crash(2);
    assert_eq!((crash.signal, crash.exit_code), (None, Some(3)), "{crash:?}");
    assert_eq!(crash.process.as_ref().unwrap().process, third, "{crash:?}");
    watched.wait_for("the restart", |entry| matches!(entry.what, What::Restarted { attempt: 2, .. }));
    let status = watched.monitor.status();
    assert_eq!((status.policies[0].crashes, status.policies[0].restarts), (2, 2));
}

#[test]
fn a_service_that_crashes_is_started_again_and_one_that_ends_is_not() {
    is_started_again("a_service_that_crashes_is_started_again_and_one_that_ends_is_not", false);
}

#[test]
fn a_service_that_crashes_is_started_again_without_programs_in_the_kernel() {
    is_started_again("a_service_that_crashes_is_started_again_without_programs_in_the_kernel", true);
}

#[test]
fn a_service_that_does_not_come_up_is_given_up() {
    const NAME: &str = "a_service_that_does_not_come_up_is_given_up";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let tried = folder.path().join("tried");
    // Seen up or not before it ends: either is a failed attempt.
    let text = policy(&cage, &restart(&format!("echo >> {}; exit 7", tried.display()), 3));
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut service = cage.start("exec sleep 1000");
    send(watched.main_process(0), Signal::ABORT);
    service.wait().unwrap();
    watched.wait_for("that it is given up", |entry| match &entry.what {
        What::Crashed(CrashEntry { given_up_after, .. })
        | What::NotRestarted(NotRestarted { given_up_after, .. }) => *given_up_after == Some(3),
        _ => false,
    });
    let lines = || std::fs::read_to_string(&tried).unwrap_or_default().lines().count();
    assert_eq!(lines(), 3, "{:?}", watched.monitor.recent());
    // Somebody starts it: it is watched again.
    let mut service = cage.start("exec sleep 1000");
    send(watched.main_process(0), Signal::ABORT);
    service.wait().unwrap();
    until("another attempt", || lines() > 3);
}

#[test]
fn a_dry_run_starts_nothing() {
    const NAME: &str = "a_dry_run_starts_nothing";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let text = policy(&cage, &restart("exec sleep 1000", 5)).replace("dry-run: false", "dry-run: true");
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut service = cage.start("exec sleep 1000");
    send(watched.main_process(0), Signal::KILL);
    service.wait().unwrap();
    let crash = watched.wait_for_crash(1);
    assert!(crash.dry_run && crash.signal == Some(9), "{crash:?}");
    let steps = watched.monitor.status().steps;
    until("more looks", || watched.monitor.status().steps >= steps + 50);
    assert_eq!(cage.processes().len(), 0);
}

#[test]
fn a_service_is_known_by_its_pid_file() {
    const NAME: &str = "a_service_is_known_by_its_pid_file";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let text = policy(&cage, &format!("pid-file: {}\n{}", file.display(), restart(&script, 5)));
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    // Another process of the cgroup, older than the service, is not it.
    let mut other = cage.start("exec sleep 1000");
    cage.wait_for(1);
    let mut service = cage.start(&script);
    let first = watched.main_process(0);
    assert_eq!(first, service.id());
    send(first, Signal::BUS);
    service.wait().unwrap();
    assert_eq!(watched.wait_for_crash(1).signal, Some(7));
    watched.wait_for("the restart", |entry| matches!(entry.what, What::Restarted { .. }));
    assert_ne!(watched.main_process(first), other.id());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_service_is_known_by_its_program_and_its_workers_crashes_are_told_and_damped() {
    const NAME: &str = "a_service_is_known_by_its_program_and_its_workers_crashes_are_told_and_damped";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let name = format!("wxserve{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(&name);
    std::fs::copy("/bin/sh", &program).unwrap();
    let text = format!("kind: service\nname: web\nprogram: {name}\ncooldown-ms: 3600000\n");
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    // Workers that crash, one after the other, for as long as it lives.
    let crashed = folder.path().join("crashed");
    let loop_ =
        format!("while :; do sh -c \"kill -SEGV \\$\\$\"; echo >> {}; sleep 0.01; done", crashed.display());
    let mut service = cage.start(&format!("exec {} -c '{loop_}'", program.display()));
    let main = watched.main_process(0);
    assert_eq!(main, service.id());
    let crash = watched.wait_for_crash(1);
    assert_eq!((crash.main, crash.signal), (false, Some(11)), "{crash:?}");
    let lines = || std::fs::read_to_string(&crashed).unwrap_or_default().lines().count();
    let before = lines();
    until("more workers that crash", || lines() > before + 5);
    assert_eq!(watched.crashes().len(), 1, "one is told: the others are counted");
    send(main, Signal::KILL);
    service.wait().unwrap();
    let crash = watched.wait_for_crash(2);
    assert_eq!((crash.main, crash.signal, crash.restart_in_ms), (true, Some(9), None), "{crash:?}");
    assert!(crash.more > 0, "{crash:?}");
    assert_eq!(watched.monitor.status().alarms, 1, "only the end of the service is an alarm");
}
