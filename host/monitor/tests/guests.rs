//! A real guest under QEMU's emulator: its tasks are read from its memory, with address randomisation on; an idle guest lives
//! and a stopped one does not; each repair is done to it. Oracles that share nothing with the monitor: the guest's own
//! `/proc`, QEMU's translation of addresses by the guest's page tables, and, where it is installed, `crash` ([`crate::oracle`]).

use crate::cage::{Watched, until};
use crate::oracle::Found;
use crate::vm::Vm;
use crate::waiting::Listed;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_monitor::detector::{Decision, Detector, Settings, State};
use weir_monitor::guest::qmp::Qmp;
use weir_monitor::guest::{Guest, Task};
use weir_monitor::kernel::comm_text;
use weir_sensor::now_ns;

fn tgids(guest: &Guest) -> BTreeSet<u32> {
    tasks(guest).into_iter().map(|task| task.tgid).collect()
}

pub fn tasks(guest: &Guest) -> Vec<Task> {
    let mut found = Vec::new();
    let whole = guest.tasks(|task| found.push(*task));
    assert!(whole, "the list has an end");
    found
}

/// Whether a list read from outside and the guest's own have the same processes, programs and parents. The idle task is
/// not in the guest's own; `/proc` says after a slash and a plus what a kernel's worker works on.
pub fn agree(outside: &[Task], own: &BTreeMap<u32, Listed>) -> bool {
    let same = |task: &Task| {
        let comm = comm_text(&task.comm);
        own.get(&task.tgid)
            .is_some_and(|listed| listed.parent == task.parent && listed.program.starts_with(&comm))
    };
    outside.len() == own.len() + 1 && outside.iter().filter(|task| task.tgid != 0).all(same)
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
    // Where the guest itself says that its kernel was moved to.
    let text = vm.console.lock().unwrap().split("TEXT ").nth(1).unwrap()[..16].to_string();
    assert_eq!(u64::from_str_radix(&text, 16).unwrap(), 0xffff_ffff_8100_0000 + guest.kernel_offset);

    // Its own list, too, has the program that makes it, which is gone afterwards.
    until("both lists to agree", || {
        let mut own = vm.processes();
        own.retain(|_, listed| listed.program != "cat");
        agree(&tasks(&guest), &own)
    });
    let found = tasks(&guest);
    let names: Vec<(u32, u32, String)> =
        found.iter().map(|task| (task.pid, task.parent, comm_text(&task.comm))).collect();
    assert!(names[0].2.starts_with("swapper"), "{names:?}");
    let sleepers = names.iter().filter(|(_, parent, name)| *parent == 1 && name == "busybox");
    assert_eq!(sleepers.count(), 5, "{names:?}");

    // QEMU finds each task where the monitor does: it walks the guest's page tables from the processor's own register.
    let mut qmp = Qmp::connect(&vm.folder.path().join("qmp-of-test")).unwrap();
    qmp.command("stop", serde_json::Value::Null).unwrap();
    for task in tasks(&guest) {
        let asked = serde_json::json!({ "command-line": format!("gva2gpa {:#x}", task.address) });
        let said = qmp.command("human-monitor-command", asked).unwrap();
        let physical = guest.physical(task.address).unwrap();
        assert_eq!(said.as_str().unwrap().trim(), format!("gpa: {physical:#x}"), "{task:?}");
    }
    match crate::oracle::tasks(&mut qmp, &guest.release, vm.folder.path()) {
        Ok(found) => {
            let parent = |found: &Found, all: &[Found]| {
                all.iter().find(|other| other.address == found.parent).map_or(0, |parent| parent.pid)
            };
            let theirs: Vec<_> = found
                .iter()
                .map(|task| (task.address, task.pid, parent(task, &found), task.program.clone()))
                .collect();
            let ours: Vec<_> = tasks(&guest)
                .iter()
                .map(|task| (task.address, task.pid, task.parent, comm_text(&task.comm)))
                .collect();
            assert_eq!(ours, theirs);
        }
        Err(reason) => {
            println!("NOT RUN a_guest_is_read_from_outside_and_its_end_is_noticed, crash: {reason}");
        }
    }
    qmp.command("cont", serde_json::Value::Null).unwrap();

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
    until("its kernel", || !watched.guest().release.is_empty());
    // An idle guest lives: it is stimulated again and again, and each time it moves.
    until("some stimuli", || watched.guest().stimuli >= 5);
    assert_eq!(watched.guest_alarms(), [], "an idle guest is no failure");

    // One that a person stops is no failure either, however long that takes.
    let mut qmp = Qmp::connect(&vm.folder.path().join("qmp-of-test")).unwrap();
    qmp.command("stop", serde_json::Value::Null).unwrap();
    until("that the monitor knows it", || watched.guest().stopped);
    let (stimuli, looks) = (watched.guest().stimuli, watched.guest().looks);
    // Many times the periods after which a guest that runs is stimulated.
    until("more looks at it", || watched.guest().looks >= looks + 40);
    assert_eq!(watched.guest().stimuli, stimuli, "a stopped guest is not stimulated");
    qmp.command("cont", serde_json::Value::Null).unwrap();
    until("stimuli again", || watched.guest().stimuli > stimuli);
    assert_eq!(watched.guest_alarms(), []);

    // Too many tasks are counted from outside.
    vm.say("multiply");
    until("the alarm about tasks", || watched.guest_alarms().len() == 1);
    let alarm = watched.guest_alarms().remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str(), alarm.fenced), ("tasks", "reported", None));
    assert!(alarm.found >= 200 && alarm.program == "busybox" && alarm.process > 1, "{alarm:?}");

    // A panic: it is fenced, and only then failed over. Both policies see it; one of them acts.
    vm.say("panic");
    let pauses =
        || watched.guest_alarms().into_iter().filter(|alarm| alarm.action == "pause").collect::<Vec<_>>();
    until("the alarm about the panic", || !pauses().is_empty());
    let alarm = pauses().remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("panic", "acted"), "{alarm:?}");
    assert_eq!((alarm.fenced, alarm.failed_over), (Some(true), Some(true)), "{alarm:?}");
    assert!(!qmp.running().unwrap(), "it is stopped");
    assert_eq!(std::fs::read_to_string(at("failed-over")).unwrap(), "vm\n");
    assert!(watched.guest().failed);
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
    until("its kernel and a stimulus", || watched.guest().stimuli > 0);
    vm.signal(Signal::STOP);
    until("the alarm", || !watched.guest_alarms().is_empty());
    let alarm = watched.guest_alarms().remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("silent-ns", "acted"), "{alarm:?}");
    assert_eq!((alarm.fenced, alarm.failed_over), (Some(true), None), "{alarm:?}");
    until("the end of its process", || vm.qemu.try_wait().unwrap().is_some());
}

/// A guest under one policy: its monitor, and the guest.
fn under(rest: &str) -> Result<(Watched, Vm), String> {
    let vm = Vm::boot()?;
    let at = |name: &str| vm.folder.path().join(name).display().to_string();
    let text = format!(
        "kind: guest\nname: vm\nmemory-file: {}\nqmp: {}\nhook: {}\nstimulus: console:{}\nperiod-ms: 50\n\
         watch-ms: 20000\ndry-run: false\n{rest}",
        vm.memory.display(),
        at("qmp"),
        at("hook"),
        at("console"),
    );
    let watched = Watched::start(&text, false)?;
    until("its kernel", || !watched.guest().release.is_empty());
    Ok((watched, vm))
}

/// Whether a process is in the guest's task list.
fn runs(vm: &Vm, program: &str) -> bool {
    let guest = Guest::find(&vm.memory).unwrap();
    tasks(&guest).iter().any(|task| !task.ended && comm_text(&task.comm) == program)
}

#[test]
fn a_guests_own_hook_ends_what_multiplies_in_it_and_spares_the_rest() {
    const NAME: &str = "a_guests_own_hook_ends_what_multiplies_in_it_and_spares_the_rest";
    let (watched, mut vm) = match under("action: hook\nhook-ms: 60000\nwhen: { tasks: 200 }\n") {
        Ok(both) => both,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    let guest = Guest::find(&vm.memory).unwrap();
    let before = tgids(&guest);
    vm.say("multiply");
    until("a repair", || watched.guest_alarms().iter().any(|alarm| alarm.outcome == "acted"));
    let alarm = watched.guest_alarms().remove(0);
    assert_eq!(
        (alarm.measure.as_str(), alarm.action.as_str(), alarm.fenced),
        ("tasks", "hook", None),
        "{alarm:?}"
    );
    assert!(alarm.process > 1 && !before.contains(&alarm.process), "{alarm:?}");
    let living = || tasks(&guest).into_iter().filter(|task| !task.ended).collect::<Vec<_>>();
    until("the end of the culprit's tree", || living().len() < 150);
    // Its innocents: those that run since the start, but for workers of the kernel.
    let user = |task: &Task| task.parent == 1 && before.contains(&task.tgid);
    assert_eq!(living().iter().filter(|task| user(task)).count(), 5);
    assert!(vm.processes().contains_key(&1), "it answers");
}

#[test]
fn a_guests_own_kernel_kills_its_largest_process_when_it_is_told_to() {
    const NAME: &str = "a_guests_own_kernel_kills_its_largest_process_when_it_is_told_to";
    let (watched, mut vm) = match under("action: oom-kill\nwhen: { tasks: 200 }\n") {
        Ok(both) => both,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    vm.say("fat");
    until("the fat one", || runs(&vm, "dd"));
    vm.say("multiply");
    until("a repair", || watched.guest_alarms().iter().any(|alarm| alarm.outcome == "acted"));
    until("the end of the fat one", || !runs(&vm, "dd"));
    assert!(vm.processes().contains_key(&1), "it answers");
}

#[test]
fn a_guest_that_is_interrupted_for_its_dump_panics_and_is_then_reset() {
    const NAME: &str = "a_guest_that_is_interrupted_for_its_dump_panics_and_is_then_reset";
    let (watched, mut vm) = match under("action: nmi\ncooldown-ms: 3600000\nwhen: { tasks: 200 }\n") {
        Ok(both) => both,
        Err(reason) => return println!("NOT RUN {NAME}: {reason}"),
    };
    vm.say("multiply");
    until("the alarm about tasks", || watched.guest_alarms().iter().any(|alarm| alarm.measure == "tasks"));
    let alarm = watched.guest_alarms().remove(0);
    assert_eq!((alarm.action.as_str(), alarm.outcome.as_str()), ("nmi", "acted"), "{alarm:?}");
    until("its panic", || watched.guest_alarms().iter().any(|alarm| alarm.measure == "panic"));
    drop(watched);

    // Another monitor finds it so, and has it begin anew: the kernel that has panicked is still in its memory then.
    let at = |name: &str| vm.folder.path().join(name).display().to_string();
    vm.console.lock().unwrap().clear();
    let watched = Watched::start(
        &format!(
            "kind: guest\nname: vm\nmemory-file: {}\nqmp: {}\nstimulus: console:{}\nperiod-ms: 50\nwatch-ms: 20000\n\
             action: reset\ndry-run: false\n",
            vm.memory.display(),
            at("qmp"),
            at("console"),
        ),
        false,
    )
    .unwrap();
    until("the alarm about its panic", || !watched.guest_alarms().is_empty());
    let alarm = watched.guest_alarms().remove(0);
    assert_eq!((alarm.measure.as_str(), alarm.outcome.as_str()), ("panic", "acted"), "{alarm:?}");
    assert_eq!(alarm.fenced, Some(true), "{alarm:?}");
    until("its start", || vm.console.lock().unwrap().contains("READY"));
    until("its new kernel", || !watched.guest().release.is_empty() && !watched.guest().failed);
    let stimuli = watched.guest().stimuli;
    until("that it is watched", || watched.guest().stimuli >= stimuli + 3);
    assert_eq!(watched.guest_alarms().len(), 1, "{:?}", watched.guest_alarms());
    assert!(vm.processes().contains_key(&1), "it answers");
}
