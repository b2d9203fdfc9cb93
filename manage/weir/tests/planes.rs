//! A plane beside the switch, end to end: ordered at a group of controllers, signed by it, carried by the host's agent, verified and
//! acked by the plane's process. The process is in this program: the toy.

use crate::group::{leader, wait_whole};
use crate::lab::{Lab, group_lab, text};
use crate::namespaces::wait;
use std::path::Path;
use weir_actuator::suite::echo::Echo;
use weir_actuator::{Folders, Identity, Runner, Serving};
use weir_agent::join;
use weir_model::Label;

/// The toy as a process of host h1, which keeps what it has in a folder.
fn start(lab: &Lab, folder: &Path) -> Serving<Echo> {
    let state = lab.folder().join("h1/state");
    let identity = Identity {
        actuator: Label::new("h1").unwrap(),
        domain: join::membership(&state).unwrap().unwrap().domain,
        group: join::group_key(&state).unwrap(),
        read_key: Box::new(move || join::identity(&state).map_err(|error| error.to_string())),
    };
    let folders = Folders { state: folder.to_path_buf(), run: lab.run_folder("h1") };
    Runner::new(identity, &folders, None, Echo::default()).unwrap().start().unwrap()
}

/// Pushes a text; the exit code and what was said.
fn push(lab: &Lab, folder: &Path, plane: &str, said: &str) -> (i32, String) {
    let file = folder.join("spec.yaml");
    std::fs::write(&file, format!("text: '{said}'\n")).unwrap();
    let file = file.display().to_string();
    let output = lab.weir(&["plane", "push", "h1", plane, "good day", &file, "--wait-s", "40"]);
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

fn show(lab: &Lab) -> String {
    lab.ok(&["plane", "show", "h1"])
}

fn has(serving: &Serving<Echo>) -> Option<String> {
    serving.with(|machine| machine.actuator().texts.get("good day").cloned())
}

#[test]
fn a_plane_acks_for_itself_through_a_whole_group() {
    let Some(lab) = group_lab("planes") else { return };
    wait_whole(&lab);
    let folder = tempfile::tempdir().unwrap();
    let (spec, kept) = (folder.path(), folder.path().join("kept"));
    // What is wrong is an error at the command, before anything is ordered.
    for (plane, said, wanted) in
        [("nobody", "x", "'nobody' is no plane of this release"), ("echo", "", "a text that is not empty")]
    {
        let (code, told) = push(&lab, spec, plane, said);
        assert!(code == 1 && told.contains(wanted), "{code}: {told}");
    }
    assert_eq!(lab.weir(&["plane", "withdraw", "h1", "echo", "good day"]).status.code(), Some(1));
    // Nobody is there: that is said, and not that it is in force.
    let (code, told) = push(&lab, spec, "echo", "one");
    assert!(code == 1 && told.contains("no process of plane echo is on this host"), "{code}: {told}");
    // It comes, and is given what waits for it.
    let echo = start(&lab, &kept);
    wait("what was ordered before is in force", || show(&lab).contains(" yes "));
    assert_eq!(has(&echo).as_deref(), Some("one"));
    wait("its report", || show(&lab).contains("echo 'good day' reports: \"one\""));
    let (code, told) = push(&lab, spec, "echo", "two");
    assert!(code == 0 && told.contains("it is in force"), "{code}: {told}");
    assert_eq!(has(&echo).as_deref(), Some("two"));
    // What the process refuses is told by its own words, and what it had stays.
    let (code, told) = push(&lab, spec, "echo", "refuse");
    assert!(code == 1 && told.contains("this word is not said"), "{code}: {told}");
    assert!(show(&lab).contains("this word is not said"));
    assert_eq!(has(&echo).as_deref(), Some("two"));
    // Whoever leads next knows as much.
    let led = leader(&lab, "");
    lab.kill(&led);
    leader(&lab, &led);
    let (code, told) = push(&lab, spec, "echo", "three");
    assert!(code == 0, "{code}: {told}");
    lab.start(&led);
    wait_whole(&lab);
    // The process goes, and the agent does; what was in force is again, as soon as it is there.
    drop(echo);
    wait("it is not in force while it is away", || !show(&lab).contains(" yes "));
    let echo = start(&lab, &kept);
    assert_eq!(has(&echo).as_deref(), Some("three"), "from its own journal");
    wait("it is in force again", || show(&lab).contains(" yes "));
    lab.crash("h1", "agent");
    wait_whole(&lab);
    wait("with a new agent too", || show(&lab).contains(" yes "));
    assert_eq!(echo.with(|machine| machine.counters.applied), 0, "nothing was sent again that it had");
    let gone = lab.ok(&["plane", "withdraw", "h1", "echo", "good day", "--wait-s", "30"]);
    assert!(gone.contains("it is in force"), "{gone}");
    assert_eq!(has(&echo), None);
    let audit = lab.ok(&["audit", "list", "--kind", "event", "--last", "500"]);
    for said in ["echo 'good day' at h1: say 'three'", "echo 'good day' at h1: withdrawn"] {
        assert!(audit.contains(said), "{said}: {audit}");
    }
    lab.wait_in_step();
}
