//! Who is near a fault and not behind it: an old shell below which it was started, and what else that shell has started.

use crate::cage::{Cage, Watched, until};
use std::path::Path;
use weir_monitor::audit::What;

/// A shell that is old, with an old child of its own, when it starts what is a fault; and what it does afterwards.
fn old_shell(fault: &str, ready: &Path) -> String {
    // Older than the ten seconds within which all counts as one burst.
    format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; sleep 12; {fault}", ready.display())
}

fn read(path: &Path) -> u32 {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    until("the old shell", || !text().is_empty());
    text().trim().parse().unwrap()
}

#[test]
fn an_old_shell_and_its_old_children_outlive_the_bombs_that_it_started() {
    const NAME: &str = "an_old_shell_and_its_old_children_outlive_the_bombs_that_it_started";
    let cage = match Cage::new(300, 512 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let text = format!(
        "kind: fork-bomb\nname: cage\ncgroup: {}\ndry-run: false\nwhen: {{ living: 24, window-ms: 2000 }}\n",
        cage.folder.display()
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let ready = watched.folder.path().join("ready");
    // Four of them: none holds half of what is young, and all of it is below the shell.
    let bomb = "sh -c 'while :; do sleep 1000 & sleep 0.02; done' &";
    let mut shell =
        cage.start(&old_shell(&format!("{bomb} {bomb} {bomb} {bomb} wait; exec sleep 1000"), &ready));
    let child = read(&ready);
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!(alarm.outcome, "acted", "{alarm:?}");
    assert!(!alarm.processes.contains(&shell.id()) && !alarm.processes.contains(&child), "{alarm:?}");
    until("the shell and its old child alone", || {
        let mut left = cage.processes();
        left.retain(|process| *process != child);
        left == [shell.id()]
    });
    assert!(cage.processes().contains(&child), "the old child was killed");
    assert!(shell.try_wait().unwrap().is_none(), "the shell was killed");
    // A process is signalled once at most, however often it is looked at until it is gone.
    until("the signals that were counted", || watched.monitor.status().signals > 0);
    let status = watched.monitor.status();
    assert!(status.signals <= status.forks, "{} of {}", status.signals, status.forks);
    shell.kill().unwrap();
    shell.wait().unwrap();
}

#[test]
fn an_old_shell_and_its_old_children_outlive_the_hogs_that_it_started() {
    const NAME: &str = "an_old_shell_and_its_old_children_outlive_the_hogs_that_it_started";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let text = format!(
        "kind: memory-hog\nname: cage\ncgroup: {}\nmemory: {}\ndry-run: false\nwhen: {{ used-percent: 50 }}\n",
        cage.folder.display(),
        cage.memory().display()
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let ready = watched.folder.path().join("ready");
    // Only together do they pass the limit: none of them holds half of it, and all of it is below the shell.
    let hog = "head -c 50M /dev/zero | tail -c 50M | sleep 1000 &";
    let mut shell = cage.start(&old_shell(&format!("{hog} {hog} {hog} wait; exec sleep 1000"), &ready));
    let child = read(&ready);
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("memory-used-bytes", "acted"), "{alarm:?}");
    let culprit = alarm.culprit.as_ref().map_or("", |culprit| culprit.program.as_str());
    assert_eq!(culprit, "tail", "the heaviest: {alarm:?}");
    watched.wait_for("the end of a hog", |entry| matches!(entry.what, What::Settled { .. }));
    let recent = watched.monitor.recent();
    assert!(cage.processes().contains(&child), "the old child was killed: {recent:?}");
    assert!(shell.try_wait().unwrap().is_none(), "the shell was killed: {recent:?}");
    shell.kill().unwrap();
    shell.wait().unwrap();
}
