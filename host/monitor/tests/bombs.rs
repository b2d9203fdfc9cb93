//! The shell's fork bomb, in a cage.

use crate::cage::{Cage, Watched, policies, until};
use std::sync::mpsc::sync_channel;
use weir_monitor::audit::{Entry, What, read};
use weir_monitor::controls::Controls;
use weir_monitor::engine::{Engine, NOTES_MAX, cgroups_below};
use weir_monitor::incident::{Note, Outcome};
use weir_monitor::kernel::{Kernel, Way};
use weir_sensor::now_ns;

/// Each doubles and ends, as everybody knows it.
const BOMB: &str = "f() { f | f & }; f";
/// A parent that forks and forks.
const BROAD: &str = "while :; do sleep 1000 & done";
/// Each forks one more, and stays.
const DEEP: &str = "export S='sh -c \"$S\"; :'; sh -c \"$S\"; :";

fn policy(cage: &Cage, when: &str, action: &str, dry_run: bool) -> String {
    format!(
        "kind: fork-bomb\nname: cage\ncgroup: {}\naction: {action}\ndry-run: {dry_run}\nwhen: {when}\n",
        cage.folder.display()
    )
}

/// Starts innocents, a monitor and a bomb; waits until the bomb is gone; the innocents live.
fn is_repaired(name: &str, bomb: &str, when: &str, measure: &str, without_bpf: bool) {
    let cage = match Cage::new(300, 512 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let mut innocents: Vec<_> = (0..3).map(|_| cage.start("exec sleep 1000")).collect();
    cage.wait_for(3);
    let watched = match Watched::start(&policy(&cage, when, "freeze-kill", false), without_bpf) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {name}: {reason}"),
    };
    let mut bomber = cage.start(bomb);
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), (measure, "acted"), "{alarm:?}");
    assert!(alarm.signalled > 0, "{alarm:?}");
    watched.wait_for("the end of the bomb", |entry| matches!(entry.what, What::Settled { .. }));
    bomber.wait().unwrap();
    // On a busy machine a part of the bomb may be old when it is noticed; it then grows into the next alarm.
    until("the innocents alone", || cage.processes().len() == 3);
    for innocent in &mut innocents {
        assert!(innocent.try_wait().unwrap().is_none(), "an innocent process was killed");
        innocent.kill().unwrap();
        innocent.wait().unwrap();
    }
    let audit = watched.folder.path().join("audit.log");
    watched.monitor.stop();
    let entries = read(&audit).unwrap();
    assert!(matches!(entries.first().unwrap().1.what, What::Started { .. }));
    assert_eq!(entries.last().unwrap().1.what, What::Stopped);
}

#[test]
fn the_shells_fork_bomb_is_gone_and_innocents_live() {
    is_repaired(
        "the_shells_fork_bomb_is_gone_and_innocents_live",
        BOMB,
        "{ living: 40, window-ms: 500 }",
        "living",
        false,
    );
}

#[test]
fn it_is_gone_without_programs_in_the_kernel_too() {
    is_repaired(
        "it_is_gone_without_programs_in_the_kernel_too",
        BOMB,
        "{ living: 40, window-ms: 500 }",
        "living",
        true,
    );
}

#[test]
fn a_broad_bomb_is_gone() {
    is_repaired("a_broad_bomb_is_gone", BROAD, "{ breadth: 50 }", "breadth", false);
}

#[test]
fn a_deep_bomb_is_gone() {
    is_repaired("a_deep_bomb_is_gone", DEEP, "{ depth: 40 }", "depth", false);
}

/// Ten forks a second, of which each stays: no limit of a window of milliseconds sees that.
const SLOW: &str = "while :; do sleep 1000 & sleep 0.1; done";

#[test]
fn a_slow_bomb_is_gone() {
    let when = "{ living: 40, forks: 100, breadth: 2000, growth: 30, growth-window-ms: 600000 }";
    is_repaired("a_slow_bomb_is_gone", SLOW, when, "growth", false);
}

/// A service whose processes are replaced as fast does not grow.
#[test]
fn what_replaces_its_processes_is_no_slow_bomb() {
    const NAME: &str = "what_replaces_its_processes_is_no_slow_bomb";
    let cage = match Cage::new(60, 512 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let watched = match Watched::start(
        &policy(&cage, "{ growth: 30, growth-window-ms: 600000 }", "report", false),
        false,
    ) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut service = cage.start("i=0; while [ $i -lt 300 ]; do sleep 0.05 & i=$((i+1)); wait; done; exit 7");
    assert_eq!(service.wait().unwrap().code(), Some(7));
    until("all forks in the tree", || watched.monitor.status().forks >= 300);
    assert_eq!(watched.monitor.status().policies[0].alarms, 0);
}

/// The loop still has the controls of a cgroup that was removed, and made anew under its name.
#[test]
fn a_bomb_in_a_cgroup_made_anew_is_killed_and_said_to_be() {
    const NAME: &str = "a_bomb_in_a_cgroup_made_anew_is_killed_and_said_to_be";
    let cage = match Cage::new(200, 512 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let kernel = match Kernel::open() {
        Ok(kernel) if kernel.way() == Way::Bpf => kernel,
        other => return println!("NOT RUN {NAME}: {:?}", other.map(|kernel| kernel.degraded)),
    };
    let (notes, told) = sync_channel(NOTES_MAX);
    let policies = policies(&policy(&cage, "{ breadth: 40 }", "freeze-kill", false));
    let mut engine = Engine::new(kernel, policies, Vec::new(), notes).unwrap();
    let before = Controls::open(&cage.folder).unwrap();
    assert!(before.is_there());
    std::fs::remove_dir(&cage.folder).unwrap();
    std::fs::create_dir(&cage.folder).unwrap();
    assert!(!before.is_there() && !before.thaw(), "it is another cgroup now");
    engine.redefine(0, &cgroups_below(&cage.folder).unwrap());
    let mut bomber = cage.start(BROAD);
    let mut incident = None;
    until("the alarm and its end", || {
        engine.step(now_ns());
        incident = incident.or_else(|| {
            told.try_iter().find_map(|note| match note {
                Note::Incident(incident) => Some(incident),
                _ => None,
            })
        });
        incident.is_some() && cage.processes().is_empty()
    });
    let incident = incident.unwrap();
    assert_eq!(incident.outcome, Outcome::Acted, "{incident:?}");
    assert!(incident.frozen, "by the controls of the cgroup that is there: {incident:?}");
    bomber.wait().unwrap();
}

#[test]
fn a_dry_run_touches_nothing() {
    const NAME: &str = "a_dry_run_touches_nothing";
    let cage = match Cage::new(120, 512 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let watched = match Watched::start(&policy(&cage, "{ breadth: 50 }", "freeze-kill", true), false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let mut bomber = cage.start("i=0; while [ $i -lt 90 ]; do sleep 1000 & i=$((i+1)); done; wait");
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!((alarm.outcome.as_str(), alarm.signalled, alarm.frozen), ("reported", 0, false), "{alarm:?}");
    assert!(alarm.members >= 50);
    cage.wait_for(91);
    assert!(bomber.try_wait().unwrap().is_none());
    assert_eq!(watched.monitor.status().signals, 0);
    drop(cage);
    bomber.wait().unwrap();
}

#[test]
fn the_hook_kills_a_cgroup_by_one_write_to_memory() {
    const NAME: &str = "the_hook_kills_a_cgroup_by_one_write_to_memory";
    let cage = match Cage::new(200, 512 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let watched = match Watched::start(&policy(&cage, "{ living: 40, window-ms: 500 }", "hook", false), false)
    {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    // Half of them spin without a system call: only the timer reaches these.
    let mut bomber = cage.start("f() { (while :; do :; done) & f | f & }; f");
    let alarm = watched.wait_for_alarm("cage");
    assert_eq!((alarm.outcome.as_str(), alarm.signalled), ("acted", 0), "{alarm:?}");
    watched.wait_for("the end of the bomb", |entry| matches!(entry.what, What::Settled { .. }));
    until("an empty cage", || cage.processes().is_empty());
    bomber.wait().unwrap();
}

#[test]
fn a_policy_for_the_monitors_own_cgroup_is_refused() {
    const NAME: &str = "a_policy_for_the_monitors_own_cgroup_is_refused";
    let Some(mount) = weir_monitor::controls::mount() else {
        return println!("NOT RUN {NAME}: cgroups of version 2 are not mounted");
    };
    for action in ["freeze-kill", "report"] {
        let text = format!(
            "kind: fork-bomb\nname: own\ncgroup: {}\nwhen: {{ living: 5000 }}\naction: {action}\n",
            mount.display()
        );
        match Watched::start(&text, false) {
            Err(reason) if reason.contains("the monitor itself is in its cgroup") => {}
            Err(reason) => println!("NOT RUN {NAME}: {reason}"),
            Ok(_) => panic!("it would judge itself, with {action}"),
        }
    }
}

/// A cgroup that is made later, removed and made anew is that of its policy each time; meanwhile the policies beside it act.
#[test]
fn a_policy_without_its_cgroup_stops_nobody_and_follows_it() {
    const NAME: &str = "a_policy_without_its_cgroup_stops_nobody_and_follows_it";
    let cage = match Cage::new(200, 512 << 20) {
        Ok(cage) => cage,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    std::fs::remove_dir(&cage.folder).unwrap();
    let watched = match Watched::start(&policy(&cage, "{ breadth: 40 }", "freeze-kill", false), false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    for round in 1..=2 {
        std::fs::create_dir(&cage.folder).unwrap();
        let mut bomber = cage.start("while :; do sleep 1000 & sleep 0.01; done");
        until("the end of the bomb", || {
            let settled = |entry: &Entry| matches!(entry.what, What::Settled { .. });
            watched.monitor.recent().iter().filter(|entry| settled(entry)).count() >= round
        });
        bomber.wait().unwrap();
        until("an empty cage", || cage.processes().is_empty());
        until("the end of the cgroup", || std::fs::remove_dir(&cage.folder).is_ok());
    }
    let recent = watched.monitor.recent();
    let outcomes = recent.iter().filter_map(|entry| match &entry.what {
        What::Alarm(alarm) => Some(alarm.outcome.as_str()),
        _ => None,
    });
    assert!(outcomes.clone().count() >= 2);
    assert!(outcomes.clone().all(|outcome| outcome == "acted"), "{:?}", outcomes.collect::<Vec<_>>());
    std::fs::create_dir(&cage.folder).unwrap();
}

/// As a monitor that is killed between freeze and thaw leaves it.
#[test]
fn what_a_dead_monitor_left_frozen_is_thawed_and_what_others_froze_is_not() {
    const NAME: &str = "what_a_dead_monitor_left_frozen_is_thawed_and_what_others_froze_is_not";
    let cages = || Ok::<_, String>([Cage::new(20, 64 << 20)?, Cage::new(20, 64 << 20)?]);
    let [left, foreign] = match cages() {
        Ok(cages) => cages,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let frozen = |cage: &Cage| {
        std::fs::read_to_string(cage.folder.join("cgroup.events")).unwrap().contains("frozen 1")
    };
    let mut sleepers: Vec<_> = [&left, &foreign].map(|cage| cage.start("exec sleep 1000")).into();
    for cage in [&left, &foreign] {
        cage.wait_for(1);
        std::fs::write(cage.folder.join("cgroup.freeze"), "1").unwrap();
        until("a frozen cage", || frozen(cage));
    }
    // Of no process that lives.
    let (file, mark) = (left.folder.join("cgroup.freeze"), [0; 12]);
    rustix::fs::setxattr(file, c"trusted.weir.struck", &mark, rustix::fs::XattrFlags::empty()).unwrap();
    let watched = match Watched::start(&policy(&foreign, "{ living: 10 }", "report", false), false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    until("a thawed cage", || !frozen(&left));
    assert!(frozen(&foreign), "what somebody else froze was thawed");
    drop(watched);
    drop((left, foreign));
    sleepers.iter_mut().for_each(|sleeper| drop(sleeper.wait()));
}
