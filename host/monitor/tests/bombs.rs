//! The shell's fork bomb, in a cage.

use crate::cage::{Cage, Watched, until};
use weir_monitor::audit::{What, read};

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
    let Some(mount) = weir_monitor::levers::mount() else {
        return println!("NOT RUN {NAME}: cgroups of version 2 are not mounted");
    };
    let text = format!(
        "kind: fork-bomb\nname: own\ncgroup: {}\nwhen: {{ living: 5000 }}\naction: freeze-kill\n",
        mount.display()
    );
    match Watched::start(&text, false) {
        Err(reason) if reason.contains("the monitor itself is in its cgroup") => {}
        Err(reason) => println!("NOT RUN {NAME}: {reason}"),
        Ok(_) => panic!("it would freeze itself"),
    }
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
