//! Switches of real hosts that are replaced under traffic by other programs, and back (row A30).

use crate::echo::{Echo, connects, ping_all};
use crate::lab::{Lab, lab};
use crate::namespaces::{BOUND, wait};
use std::path::{Path, PathBuf};

/// Has the supervisor of a member replace its switch; returns what the command says.
fn upgrade(lab: &Lab, member: &str, binary: Option<&Path>) -> String {
    let before = lab.child(member, "switch").unwrap().pid;
    let run = lab.run_folder(member).display().to_string();
    let mut arguments = vec!["upgrade", "--run", &run];
    let binary = binary.map(|path| path.display().to_string());
    if let Some(binary) = &binary {
        arguments.extend(["--binary", binary]);
    }
    let output = lab.weir(&arguments);
    let said = crate::lab::text(&output.stdout);
    assert!(output.status.success(), "{said}{}", crate::lab::text(&output.stderr));
    let after = lab.child(member, "switch").unwrap();
    assert!(after.pid != before && after.alive(), "another process serves");
    said
}

/// The program that a member's switch runs, if one runs.
fn program(lab: &Lab, member: &str) -> Option<PathBuf> {
    let pid = lab.child(member, "switch")?.pid;
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

#[test]
fn switches_are_replaced_by_another_program_and_back_and_connections_go_on() {
    let Some(lab) = lab("switch_upgrades") else { return };
    lab.kill("nginx-red-db");
    let echo = Echo::open(&lab.netns("red-app"), &lab.netns("red-db"), lab.v4("red-db"), 5432);
    let outwards = Echo::open(&lab.netns("red-app"), &lab.netns("out"), crate::extra::ip("192.0.2.2"), 7000);
    let before = lab.programmed();
    let own = PathBuf::from(env!("CARGO_BIN_EXE_weir"));
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("weir");
    std::fs::copy(&own, &other).unwrap();
    for (member, binary) in
        [("h2", &other), ("h3", &other), ("g1", &other), ("h2", &own), ("g1", &own), ("h3", &own)]
    {
        let said = upgrade(&lab, member, Some(binary));
        assert!(said.contains("upgraded"), "{said}");
        assert_eq!(program(&lab, member).as_ref(), Some(binary), "{member}");
        echo.goes_on();
        outwards.goes_on();
        assert_eq!(lab.counters(member)["handover_taken_over"], 1, "{member}");
    }
    // A supervisor that begins and finds a switch of another program takes over from it.
    upgrade(&lab, "h2", Some(&other));
    lab.kill("h2");
    echo.goes_on();
    lab.start("h2");
    wait("a switch of the new supervisor's program", || program(&lab, "h2").as_ref() == Some(&own));
    echo.goes_on();
    // One of its own program is adopted.
    let pid = lab.child("h2", "switch").unwrap().pid;
    lab.kill("h2");
    lab.start("h2");
    lab.wait_in_step();
    assert_eq!(lab.child("h2", "switch").unwrap().pid, pid);
    // A program that is no switch changes nothing.
    let run = lab.run_folder("h2").display().to_string();
    let output = lab.weir(&["upgrade", "--run", &run, "--binary", "/bin/false"]);
    assert_eq!(output.status.code(), Some(1), "{}", crate::lab::text(&output.stdout));
    assert_eq!(lab.child("h2", "switch").unwrap().pid, pid);
    echo.goes_on();
    assert!(connects(&lab.netns("blue-app"), crate::extra::ip("192.0.2.2"), 80, BOUND));
    assert!(ping_all(&lab.netns("red-app"), lab.v4("red-web")));
    lab.wait_in_step();
    assert_eq!(lab.programmed(), before, "keys and versions of each switch");
    assert!(echo.close() > 0 && outwards.close() > 0);
    lab.start("nginx-red-db");
}
