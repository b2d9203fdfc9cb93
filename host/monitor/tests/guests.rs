//! A real guest under QEMU's emulator: its tasks are read from its memory, with address randomisation on; its own `/proc` is
//! the oracle; an idle guest lives and a stopped one does not.

use crate::cage::{Watched, until};
use crate::vm::Vm;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::Duration;
use weir_monitor::audit::{GuestAlarm, What};
use weir_monitor::detector::{Decision, Detector, Settings, State};
use weir_monitor::guest::Guest;
use weir_monitor::guest::qmp::Qmp;
use weir_monitor::kernel::comm_text;
use weir_sensor::now_ns;

fn tgids(guest: &Guest) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let whole = guest.tasks(|task| {
        found.insert(task.tgid);
    });
    assert!(whole, "the list has an end");
    found
}

#[test]
fn a_guest_is_read_from_outside_and_its_end_is_noticed() {
    let mut vm = match Vm::boot() {
        Ok(vm) => vm,
        Err(reason) => {
            return println!("NOT RUN a_guest_is_read_from_outside_and_its_end_is_noticed: {reason}");
        }
    };
    let guest = Guest::find(&vm.memory).unwrap();
    assert!(!guest.release.is_empty());

    // The guest's own list also has the programs that make it, which are gone afterwards; the idle task is 0.
    let own = vm.processes();
    let mut outside = BTreeSet::new();
    until("both lists to agree", || {
        outside = tgids(&guest);
        outside.remove(&0);
        outside.is_subset(&own)
    });
    assert!(own.len() - outside.len() <= 5, "{own:?} {outside:?}");
    let mut names = Vec::new();
    guest.tasks(|task| names.push((task.pid, task.parent, comm_text(&task.comm))));
    assert!(names[0].2.starts_with("swapper"), "{names:?}");
    assert!(
        names.iter().any(|(pid, _, name)| *pid == 1 && (name == "init" || name == "busybox")),
        "{names:?}"
    );
    let sleepers =
        names.iter().filter(|(_, parent, name)| *parent == 1 && (name == "sleep" || name == "busybox"));
    assert_eq!(sleepers.count(), 4, "{names:?}");

    // Idle: its ticks may stand still; whenever that looks like an end, a key is pressed, and it moves.
    let settings = Settings { period_ns: 50_000_000, periods: 3, watch_ns: 20_000_000_000 };
    let mut detector = Detector::new(settings);
    for _ in 0..60 {
        match detector.observe(now_ns(), guest.progress().unwrap()) {
            Decision::Stimulate => vm.type_line(),
            Decision::Failed => panic!("an idle guest was declared failed"),
            Decision::Nothing | Decision::Recovered => {}
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    until("the answer to the last stimulus", || {
        detector.observe(now_ns(), guest.progress().unwrap());
        detector.state() == State::Alive
    });

    // Stopped: no stimulus helps. Its memory can be read all the same.
    vm.signal(Signal::STOP);
    let settings = Settings { watch_ns: 150_000_000, ..settings };
    let mut detector = Detector::new(settings);
    until("the failure", || {
        let decision = detector.observe(now_ns(), guest.progress().unwrap());
        if decision == Decision::Stimulate {
            vm.type_line();
        }
        decision == Decision::Failed
    });
    assert!(tgids(&guest).contains(&1));
    vm.signal(Signal::CONT);
    until("the recovery", || {
        vm.type_line();
        detector.observe(now_ns(), guest.progress().unwrap()) == Decision::Recovered
    });
}

/// The alarms about guests, in order.
fn alarms(watched: &Watched) -> Vec<GuestAlarm> {
    let recent = watched.monitor.recent().into_iter();
    recent
        .filter_map(|entry| match entry.what {
            What::Guest(alarm) => Some(alarm),
            _ => None,
        })
        .collect()
}

#[test]
fn a_guest_under_a_policy_is_stimulated_fenced_and_failed_over() {
    const NAME: &str = "a_guest_under_a_policy_is_stimulated_fenced_and_failed_over";
    let mut vm = match Vm::boot() {
        Ok(vm) => vm,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let folder = vm.folder.path().to_path_buf();
    let at = |name: &str| folder.join(name).display().to_string();
    let fail_over = vm.folder.path().join("fail-over");
    std::fs::write(&fail_over, format!("#!/bin/sh\necho \"$1\" >> {}\n", at("failed-over"))).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&fail_over, executable).unwrap();
    // Generous times: other tests may have both processors.
    let text = format!(
        "kind: guest\nname: vm\nmemory-file: {}\nqmp: {}\nstimulus: console:{}\nperiod-ms: 50\nperiods: 3\n\
         watch-ms: 20000\naction: pause\ndry-run: false\nfail-over: {}\n---\n\
         kind: guest\nname: many\nmemory-file: {}\nstimulus: none\nperiod-ms: 50\nperiods: 100000\n\
         cooldown-ms: 3600000\nwhen: {{ tasks: 200 }}\n",
        vm.memory.display(),
        at("qmp"),
        at("console"),
        fail_over.display(),
        vm.memory.display(),
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let row = || watched.monitor.status().guests[0].clone();
    until("its kernel", || !row().release.is_empty());
    // An idle guest lives: it is stimulated again and again, and each time it moves.
    until("some stimuli", || row().stimuli >= 5);
    assert_eq!(alarms(&watched), [], "an idle guest is no failure");

    // One that a person stops is no failure either, however long that takes.
    let mut qmp = Qmp::connect(&vm.folder.path().join("qmp-of-test")).unwrap();
    qmp.command("stop", serde_json::Value::Null).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let stimuli = row().stimuli;
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(row().stimuli, stimuli, "a stopped guest is not stimulated");
    qmp.command("cont", serde_json::Value::Null).unwrap();
    until("stimuli again", || row().stimuli > stimuli);
    assert_eq!(alarms(&watched), []);

    // Too many tasks are counted from outside.
    vm.say("multiply");
    until("the alarm about tasks", || alarms(&watched).len() == 1);
    let alarm = alarms(&watched).remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str(), alarm.fenced), ("tasks", "reported", None));
    assert!(alarm.found >= 200 && (alarm.program == "busybox" || alarm.program == "sleep"), "{alarm:?}");

    // A panic: it is fenced, and only then failed over. Both policies see it; one of them acts.
    vm.say("panic");
    let pauses = || alarms(&watched).into_iter().filter(|alarm| alarm.action == "pause").collect::<Vec<_>>();
    until("the alarm about the panic", || !pauses().is_empty());
    let alarm = pauses().remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("panic", "acted"), "{alarm:?}");
    assert_eq!((alarm.fenced, alarm.failed_over), (Some(true), Some(true)), "{alarm:?}");
    assert!(!qmp.running().unwrap(), "it is stopped");
    assert_eq!(std::fs::read_to_string(at("failed-over")).unwrap(), "vm\n");
    assert!(row().failed);
}

#[test]
fn a_guest_whose_emulator_hangs_is_fenced_by_its_process_and_ended() {
    const NAME: &str = "a_guest_whose_emulator_hangs_is_fenced_by_its_process_and_ended";
    let mut vm = match Vm::boot() {
        Ok(vm) => vm,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let folder = vm.folder.path().to_path_buf();
    let at = |name: &str| folder.join(name).display().to_string();
    let text = format!(
        "kind: guest\nname: vm\nmemory-file: {}\nqmp: {}\nstimulus: console:{}\nperiod-ms: 50\nwatch-ms: 2000\n\
         action: quit\ndry-run: false\n",
        vm.memory.display(),
        at("qmp"),
        at("console"),
    );
    let watched = match Watched::start(&text, false) {
        Ok(watched) => watched,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let row = || watched.monitor.status().guests[0].clone();
    until("its kernel and a stimulus", || row().stimuli > 0);
    vm.signal(Signal::STOP);
    until("the alarm", || !alarms(&watched).is_empty());
    let alarm = alarms(&watched).remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("silent-ns", "acted"), "{alarm:?}");
    assert_eq!((alarm.fenced, alarm.failed_over), (Some(true), None), "{alarm:?}");
    until("the end of its process", || vm.qemu.try_wait().unwrap().is_some());
}
