use super::file::parse;
use super::*;

const BOMB: &str = "kind: fork-bomb\nname: a\nwhen: { living: 100 }\n";

#[test]
fn a_policy_is_a_dry_run_unless_it_says_otherwise() {
    let policies = parse(BOMB).unwrap();
    let Policy::ForkBomb(policy) = &policies[0] else { panic!("{policies:?}") };
    assert!(policy.common.dry_run);
    assert_eq!((policy.common.action, policy.when.window_ms), (Action::FreezeKill, 250));
    assert_eq!((policies[0].kind(), policies[0].common().name.as_str()), ("fork-bomb", "a"));
}

#[test]
fn all_kinds_are_read() {
    let text = "
kind: fork-bomb
name: containers
cgroup: containers
whitelist: [sshd]
action: kill-cgroup
dry-run: false
cooldown-ms: 5
when: { living: 100, forks: 500, depth: 64, breadth: 200, window-ms: 100 }
---
kind: memory-hog
name: memory
cgroup: containers
memory: /sys/fs/cgroup/memory/containers
when: { used-percent: 80 }
---
kind: stalled
name: web
box: web
sensor: requests
periods: 4
action: report
";
    let policies = parse(text).unwrap();
    assert_eq!(policies.len(), 3);
    assert!(!policies[0].common().dry_run);
    let Policy::Stalled(web) = &policies[2] else { panic!("{policies:?}") };
    assert_eq!((web.sensor_box.as_str(), web.periods, web.period_ms), ("web", 4, None));
}

#[test]
fn what_is_wrong_is_named() {
    let cases = [
        ("kind: nothing\nname: a", "fork-bomb, memory-hog, stalled, guest or service"),
        ("kind: fork-bomb\nname: a", "'when' is missing"),
        ("kind: fork-bomb\nname: a b\nwhen: { living: 1 }", "is no name"),
        ("kind: fork-bomb\nname: a\nwhen: {}", "at least one of"),
        ("kind: fork-bomb\nname: a\nwhen: { living: 0 }", "limit of 0"),
        ("kind: fork-bomb\nname: a\nwhen: { living: 5, window-ms: 1 }", "window-ms"),
        ("kind: fork-bomb\nname: a\nwhen: { growth: 0 }", "limit of 0"),
        ("kind: fork-bomb\nname: a\nwhen: { growth: 5, growth-window-ms: 999 }", "growth-window-ms"),
        ("kind: fork-bomb\nname: a\nwhen: { growth: 5, growth-window-ms: 86400001 }", "growth-window-ms"),
        ("kind: fork-bomb\nname: a\nwhen: { alive: 5 }", "alive"),
        ("kind: fork-bomb\nname: a\naction: hook\nwhen: { living: 5 }", "needs a cgroup"),
        ("kind: fork-bomb\nname: a\nbox: b\nwhen: { living: 5 }", "does not belong to kind fork-bomb"),
        ("kind: fork-bomb\nname: a\nunit: b.service\nwhen: { living: 5 }", "field 'unit' does not belong"),
        ("kind: service\nname: a", "one of unit, cgroup, pid-file, program"),
        ("kind: service\nname: a\nunit: b.service\npid-file: /p", "not several"),
        ("kind: service\nname: a\nunit: web", "whole name"),
        ("kind: service\nname: a\nunit: b.service\ncgroup: c", "its own cgroup"),
        ("kind: service\nname: a\nprogram: /usr/bin/x", "no name of a program"),
        ("kind: service\nname: a\nprogram: x\naction: report", "field 'action' does not belong"),
        ("kind: service\nname: a\nprogram: x\nclean-exits: [256]", "0 to 255"),
        ("kind: service\nname: a\nprogram: x\nrestart: { command: [] }", "a program and its arguments"),
        ("kind: service\nname: a\nprogram: x\nrestart: { command: [web], limit: 0 }", "limit must be from 1"),
        ("kind: service\nname: a\nprogram: x\nrestart: { command: [web], start-ms: 0 }", "start-ms"),
        ("kind: service\nname: a\nprogram: x\nrestart: { command: [web], backoff-max-ms: 5 }", "less than"),
        ("kind: memory-hog\nname: a\nwhen: { used-bytes: 5 }", "need a cgroup"),
        ("kind: memory-hog\nname: a\ncgroup: x\nwhen: { used-percent: 101 }", "1 to 100"),
        ("kind: memory-hog\nname: a\nwhen: { used-bytes: 5, available-bytes: 5 }", "give used-bytes or"),
        ("kind: fork-bomb\nname: a\ncgroup: ../../../etc\nwhen: { living: 5 }", "without '..'"),
        (
            "kind: fork-bomb\nname: a\nwhitelist: [systemd-journald]\nwhen: { living: 5 }",
            "say 'systemd-journal'",
        ),
        ("kind: stalled\nname: a\nbox: b", "'sensor' is missing"),
        ("kind: stalled\nname: a\nbox: b\nsensor: c\nperiods: 0", "more than 0"),
    ];
    for (text, wanted) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(wanted) && error.starts_with("document 1: "), "{text}: {error}");
    }
}

#[test]
fn a_folder_is_read_in_order_and_names_are_unique() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("b.yaml", BOMB);
    write("a.yaml", "kind: fork-bomb\nname: first\nwhen: { depth: 10 }\n");
    write("notes.txt", "not a policy");
    let names: Vec<String> =
        load(folder.path()).unwrap().iter().map(|policy| policy.common().name.clone()).collect();
    assert_eq!(names, ["first", "a"]);
    write("c.yaml", BOMB);
    assert!(load(folder.path()).unwrap_err().to_string().contains("two policies are named 'a'"));
}

#[test]
fn whitelisted_names_are_compared_as_the_kernel_cuts_them() {
    let list = Whitelist::new(&["sshd".into(), "a-very-long-name-of-a-program".into()]);
    let comm = |name: &str| {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        comm
    };
    assert!(list.holds(&comm("sshd")) && list.holds(&comm("a-very-long-nam")));
    assert!(!list.holds(&comm("ssh")) && !list.holds(&comm("")));
}

#[test]
fn any_text_is_read_without_harm() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            drop(parse(text));
        }
    });
}

#[test]
fn the_examples_of_the_documentation_are_sound() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/monitor"));
    let policies = load(folder).unwrap();
    assert!(policies.len() >= 5);
    assert!(
        policies.iter().all(|policy| policy.common().dry_run || policy.common().action == Action::Report)
    );
    assert!(crate::query::load(&folder.join("queries.txt")).unwrap().len() >= 5);
}

#[test]
fn guests_are_read_and_what_is_wrong_with_them_is_named() {
    let text = "
kind: guest
name: vm1
memory-file: /dev/shm/vm1
qmp: /run/vm1.qmp
stimulus: key
action: reset
dry-run: false
period-ms: 20
when: { tasks: 500 }
fail-over: /usr/local/sbin/fail-over
";
    let policies = parse(text).unwrap();
    let Policy::Guest(guest) = &policies[0] else { panic!("{policies:?}") };
    assert_eq!((guest.action, &guest.stimulus, guest.watch_ms), (GuestAction::Reset, &Stimulus::Key, 200));
    assert_eq!((guest.period_ms, guest.periods, guest.tasks), (20, 3, Some(500)));
    assert_eq!((policies[0].kind(), policies[0].action_name()), ("guest", "reset"));
    let base = "kind: guest\nname: a\nmemory-file: /m\n";
    let cases = [
        ("", "'stimulus' is missing"),
        ("stimulus: wish\n", "console:PATH"),
        ("stimulus: packet:nowhere\n", "packet:ADDRESS:PORT"),
        ("stimulus: key\n", "needs the field 'qmp'"),
        ("stimulus: none\naction: pause\n", "needs the field 'qmp'"),
        ("stimulus: none\naction: freeze-kill\n", "none of a guest"),
        ("stimulus: none\naction: hook\n", "needs the field 'hook'"),
        ("stimulus: none\nhook-ms: 60001\n", "hook-ms must be from 1 to 60000"),
        ("stimulus: none\nwhen: { tasks: 0 }\n", "0 tasks"),
        ("stimulus: none\nperiod-ms: 0\n", "period-ms"),
        ("stimulus: none\nbox: b\n", "does not belong to kind guest"),
    ];
    for (rest, reason) in cases {
        let error = parse(&format!("{base}{rest}")).unwrap_err();
        assert!(error.contains(reason), "{rest}: {error}");
    }
    let error = parse("kind: fork-bomb\nname: a\nqmp: /q\nwhen: { living: 5 }").unwrap_err();
    assert!(error.contains("'qmp' does not belong"), "{error}");
}

#[test]
fn the_builtin_policies_only_report() {
    for policy in builtin().unwrap() {
        assert_eq!(policy.common().action, Action::Report);
        assert!(policy.common().dry_run);
    }
}

#[test]
fn a_service_is_known_by_its_unit_cgroup_pid_file_or_program() {
    let service = |more: &str| {
        let parsed = parse(&format!("kind: service\nname: a\n{more}")).unwrap();
        let [Policy::Service(service)] = parsed.as_slice() else { panic!("{parsed:?}") };
        service.clone()
    };
    let unit =
        service("unit: web.service\nrestart: { command: [systemctl, restart, web.service], limit: 3 }");
    assert_eq!(unit.common.cgroup, Some(PathBuf::from("system.slice/web.service")));
    let restart = unit.restart.as_ref().unwrap();
    assert_eq!(
        (restart.enters, restart.settings.limit, restart.settings.backoff_ns),
        (false, 3, 100_000_000)
    );
    assert_eq!((unit.main.clone(), unit.action_name()), (Main::Topmost, "restart"));
    let caged = service("cgroup: web\npid-file: /run/web.pid\nrestart: { command: [web] }");
    assert!(caged.restart.unwrap().enters);
    assert_eq!(caged.main, Main::PidFile("/run/web.pid".into()));
    let named = service("program: web\nclean-exits: [0, 3]");
    assert_eq!((named.action_name(), named.main.clone()), ("report", Main::Program("web".into())));
    let crashes = [0, 3 << 8, 15, 1, 4 << 8, 11, 11 | 0x80, 9].map(|status| named.is_crash(status));
    assert_eq!(crashes, [false, false, false, false, true, true, true, true]);
}
