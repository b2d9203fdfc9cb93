//! Loads that others wrote (stress-ng), a hog that is started again and again, and work that is no fault: all in cages.

use crate::cage::{Cage, Watched, until};
use std::process::Command;
use weir_monitor::audit::{Alarm, What};
use weir_monitor::policy::{self, Policy};

/// Why stress-ng cannot be run.
fn stress_ng() -> Result<(), String> {
    let found = Command::new("stress-ng").arg("--version").output();
    found.map(|_| ()).map_err(|error| format!("stress-ng: {error}"))
}

fn hog_policy(cage: &Cage, percent: u32) -> String {
    format!(
        "kind: memory-hog\nname: cage\ncgroup: {}\nmemory: {}\ndry-run: false\ncooldown-ms: 50\n\
         when: {{ used-percent: {percent} }}\n",
        cage.folder.display(),
        cage.memory().display()
    )
}

fn bomb_policy(cage: &Cage) -> String {
    format!(
        "kind: fork-bomb\nname: cage\ncgroup: {}\ndry-run: false\nwhen: {{ forks: 100, window-ms: 10000 }}\n",
        cage.folder.display()
    )
}

/// The alarms that were acted on.
fn acted(watched: &Watched) -> Vec<Alarm> {
    let alarm = |what| match what {
        What::Alarm(alarm) if alarm.outcome == "acted" => Some(*alarm),
        _ => None,
    };
    watched.monitor.recent().into_iter().filter_map(|entry| alarm(entry.what)).collect()
}

/// Runs a load beside an innocent; the monitor ends the load, and the innocent lives.
fn is_ended(name: &str, load: &str, policy: fn(&Cage) -> String, measure: &str) {
    let ready = stress_ng().and_then(|()| Cage::new(200, 256 << 20));
    let cage = match ready {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let watched = match Watched::start(&policy(&cage), false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    // As young as the load: its age does not save it.
    let mut innocent = cage.start("exec sleep 1000");
    cage.wait_for(1);
    let mut stress = cage.start(load);
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!(alarm.measure, measure, "{alarm:?}");
    // What it starts anew meanwhile is the next to be blamed.
    until("the end of the load", || stress.try_wait().unwrap().is_some() || cage.processes().len() <= 1);
    until("the innocent alone", || cage.processes().len() == 1);
    assert!(!acted(&watched).is_empty());
    // The load is gone, and nobody else is blamed for it.
    let steps = watched.monitor.status().steps;
    until("more looks", || watched.monitor.status().steps >= steps + 100);
    assert!(innocent.try_wait().unwrap().is_none(), "the innocent process was killed");
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    stress.wait().unwrap();
}

#[test]
fn stress_ng_forks_are_ended() {
    let load = "exec stress-ng --quiet --fork 2 --timeout 300 --temp-path /tmp";
    is_ended("stress_ng_forks_are_ended", load, bomb_policy, "forks");
}

/// stress-ng may start a worker again that was killed, for as long as it likes: what is promised is that the worker goes.
#[test]
fn stress_ng_memory_workers_are_acted_on() {
    const NAME: &str = "stress_ng_memory_workers_are_acted_on";
    let cage = match stress_ng().and_then(|()| Cage::new(200, 256 << 20)) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut innocent = cage.start("exec sleep 1000");
    cage.wait_for(1);
    let watched = match Watched::start(&hog_policy(&cage, 20), false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let load =
        "exec stress-ng --quiet --oomable --vm 2 --vm-bytes 80M --vm-keep --timeout 300 --temp-path /tmp";
    let mut stress = cage.start(load);
    until("a repair", || !acted(&watched).is_empty());
    let alarm = acted(&watched).swap_remove(0);
    assert_eq!(alarm.measure, "memory-used-bytes", "{alarm:?}");
    assert!(
        alarm.culprit.as_ref().is_some_and(|culprit| culprit.program.starts_with("stress-ng")),
        "{alarm:?}"
    );
    assert!(innocent.try_wait().unwrap().is_none(), "the innocent process was killed");
    drop(watched);
    drop(cage);
    innocent.wait().unwrap();
    stress.wait().unwrap();
}

#[test]
fn stress_ng_heaps_that_grow_are_ended() {
    let load = "exec stress-ng --quiet --oomable --bigheap 1 --timeout 300 --temp-path /tmp";
    is_ended("stress_ng_heaps_that_grow_are_ended", load, |cage| hog_policy(cage, 30), "memory-used-bytes");
}

#[test]
fn a_hog_that_is_started_again_and_again_is_ended_each_time() {
    const NAME: &str = "a_hog_that_is_started_again_and_again_is_ended_each_time";
    let cage = match Cage::new(50, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut innocent = cage.start("exec sleep 1000");
    cage.wait_for(1);
    let watched = match Watched::start(&hog_policy(&cage, 15), false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut controller = cage.start("while :; do head -c 60M /dev/zero | tail -c 60M | sleep 1; done");
    until("two repairs", || acted(&watched).len() >= 2);
    assert!(innocent.try_wait().unwrap().is_none(), "the innocent process was killed");
    drop(watched);
    drop(cage);
    innocent.wait().unwrap();
    controller.wait().unwrap();
}

/// The policies that are proposed to people, on a machine that is busy with honest work.
#[test]
fn honest_work_raises_no_alarm() {
    const NAME: &str = "honest_work_raises_no_alarm";
    let cage = match Cage::new(100, 256 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let text = format!(
        "kind: fork-bomb\nname: cage\ncgroup: {0}\nwhen: {{ living: 128, depth: 64, breadth: 512 }}\n---\n\
         kind: memory-hog\nname: memory\ncgroup: {0}\nmemory: {1}\nwhen: {{ used-percent: 90 }}\n",
        cage.folder.display(),
        cage.memory().display()
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    // A build of many small programs, one after the other, beside two that only compute.
    let mut work = cage.start(
        "dd if=/dev/zero of=/dev/null & dd if=/dev/zero of=/dev/null & \
         n=0; while [ $n -lt 300 ]; do true | cat | sort > /dev/null; n=$((n + 1)); done; kill %1 %2",
    );
    work.wait().unwrap();
    assert_eq!(watched.monitor.status().alarms, 0, "{:?}", watched.monitor.recent());
    let builtin: Vec<Policy> = policy::builtin().unwrap();
    assert_eq!(builtin.len(), 2);
}
