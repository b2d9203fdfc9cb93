//! Names, and cleaning by prefix and record. What makes namespaces needs root.

use super::*;
use crate::process::Record;
use std::time::Duration;

/// A scope of its own for each test; `None`, with the NOT RUN line, without root.
fn scope(test: &str) -> Option<CleanOnDrop> {
    if !system::is_root() {
        println!("NOT RUN {test}: it needs root");
        return None;
    }
    Some(Scope::begin(&format!("test-{test}"), &format!("wxlab-{test}-")).unwrap().clean_on_drop())
}

#[test]
fn prefixes_that_could_hit_others_are_refused() {
    for prefix in ["", "-", "a-", "weir", "weir*-", "Weir-", "../x-", "0ab-", "averyveryverylongprefix12-"] {
        assert!(matches!(check_prefix(prefix), Err(Error::Name { .. })), "{prefix:?}");
    }
    for prefix in ["ab-", "weir-", "wxlab-1-"] {
        check_prefix(prefix).unwrap();
    }
    for name in ["", "..", "a/b", "-a", "A", "a b"] {
        assert!(check_name(name).is_err(), "{name:?}");
    }
}

#[test]
fn cleaning_ends_what_was_recorded_and_deletes_what_has_the_prefix() {
    let Some(scope) = scope("clean") else { return };
    let (a, b) = (scope.netns("a").unwrap(), scope.netns("b").unwrap());
    a.veth("eth0", &b, "eth0").unwrap();
    system::run("ip", &["link", "add", "name", "wxlab-clean-l", "type", "bridge"]).unwrap();
    scope.resolv_conf(&a, "nameserver 10.0.0.1\n").unwrap();
    let daemon = scope.start("sleeper", &Program::new("sleep").arg("600").netns(&a)).unwrap();
    let record = daemon.record().clone();
    assert!(record.alive());
    // Another command, later, knows only the files.
    drop(daemon);
    let cleaned = scope.clean().unwrap();
    assert_eq!(cleaned, Cleaned { processes: 1, namespaces: 2, links: 1 });
    assert!(!record.alive() && !a.exists() && !b.exists() && !scope.folder().exists());
    assert!(!Path::new("/etc/netns").join(a.name()).exists());
    assert_eq!(scope.clean().unwrap(), Cleaned::default());
}

#[test]
fn what_a_program_left_behind_in_a_namespace_ends_too() {
    let Some(scope) = scope("orphan") else { return };
    let netns = scope.netns("a").unwrap();
    let shell = Program::new("sh").arg("-c").arg("setsid sleep 600 & exec sleep 601").netns(&netns);
    let daemon = scope.start("parent", &shell).unwrap();
    // Until each is what it becomes: the second leaves the group of the first only shortly before.
    let is_sleep = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "sleep")
    };
    let both = || Ok(netns.processes().iter().filter(|pid| is_sleep(pid)).count() == 2);
    system::wait_for("both", Duration::from_secs(20), both).unwrap();
    daemon.record().stop(|| reap(daemon.record().pid)).unwrap();
    let [orphan] = netns.processes()[..] else { panic!("{:?}", netns.processes()) };
    let orphan = Record::of(orphan, "sleep".into()).unwrap();
    assert_eq!(scope.clean().unwrap(), Cleaned { processes: 1, namespaces: 1, links: 0 });
    assert!(!orphan.alive());
}

#[test]
fn a_process_with_a_reused_pid_is_left_alone() {
    let Some(scope) = scope("reuse") else { return };
    let mut bystander = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = i32::try_from(bystander.id()).unwrap();
    let truth = Record::of(pid, "sleep".into()).unwrap();
    let other_start = Record { start_ticks: truth.start_ticks + 1, ..truth.clone() };
    let other_boot = Record { boot_id: "another".into(), ..truth.clone() };
    for (name, record) in [("start", &other_start), ("boot", &other_boot)] {
        std::fs::write(scope.folder().join(format!("{name}.proc")), serde_json::to_vec(record).unwrap())
            .unwrap();
    }
    assert_eq!(scope.programs().len(), 2);
    assert_eq!(scope.clean().unwrap().processes, 0);
    assert!(truth.alive());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    assert!(!truth.alive());
}

#[test]
fn a_second_command_is_told_that_the_scope_is_busy() {
    let Some(scope) = scope("busy") else { return };
    let error = Scope::begin("test-busy", "wxlab-busy-").unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(scope);
    assert!(Scope::attach("test-busy").unwrap().is_none());
    Scope::begin("test-busy", "wxlab-busy-").unwrap().clean().unwrap();
}

#[test]
fn what_a_crashed_command_left_is_found_by_name_and_removed() {
    if !system::is_root() {
        println!("NOT RUN what_a_crashed_command_left: it needs root");
        return;
    }
    let scope = Scope::begin("test-left", "wxlab-left-").unwrap();
    let netns = scope.netns("a").unwrap();
    // A stopped process must end too.
    let daemon = scope.start("sleeper", &Program::new("sleep").arg("600").netns(&netns)).unwrap();
    daemon.signal(rustix::process::Signal::STOP).unwrap();
    let record = daemon.record().clone();
    drop((scope, daemon));
    assert!(list().contains(&"test-left".to_string()));
    let again = Scope::attach("test-left").unwrap().unwrap().clean_on_drop();
    assert_eq!(again.prefix(), "wxlab-left-");
    assert_eq!(again.clean().unwrap().processes, 1);
    assert!(!record.alive() && !netns.exists());
}

#[test]
fn a_program_that_ends_early_is_reported_with_its_words() {
    let Some(scope) = scope("early") else { return };
    let program = Program::new("sh").args(["-c", "echo no such table >&2; exit 3"]);
    let daemon = scope.start("broken", &program).unwrap();
    let error =
        daemon.wait_until("its socket", Duration::from_secs(60), || Ok(false)).unwrap_err().to_string();
    assert!(error.contains("no such table"), "{error}");
    assert!(matches!(scope.start("x", &Program::new("weir-no-such-program")), Err(Error::Missing { .. })));
}

#[test]
fn a_namespace_of_somebody_else_gets_no_resolver() {
    let Some(scope) = scope("alien") else { return };
    let error = scope.resolv_conf(&Netns::existing("other"), "").unwrap_err();
    assert!(matches!(error, Error::Name { .. }), "{error}");
}
