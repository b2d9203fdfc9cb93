//! A plane beside the switch, end to end: ordered at a group of controllers, signed by it, carried by the host's agent, verified and
//! acked by the plane's process. The process is in this program: the toy.

use crate::extra::Extra;
use crate::group::{leader, wait_whole};
use crate::lab::{Lab, group_lab, text};
use crate::namespaces::wait;
use std::path::{Path, PathBuf};
use weir_actuator::suite::echo::Echo;
use weir_actuator::{Folders, Identity, Made, Service};
use weir_agent::join;
use weir_lab::Program;

/// The toy as a process of host h1, which keeps what it has in a folder.
fn start(lab: &Lab, folder: &Path) -> Service<Echo> {
    let service = serve(lab.folder().join("h1/state"), lab.run_folder("h1"), folder.to_path_buf());
    service.wait();
    service
}

/// The toy as a process of the host with these directories, which may not have joined yet.
fn serve(state: PathBuf, run: PathBuf, folder: PathBuf) -> Service<Echo> {
    let make = move || {
        let member = join::membership(&state).map_err(|error| error.to_string())?.ok_or("not joined")?;
        let key_of = state.clone();
        let identity = Identity {
            actuator: member.name,
            domain: member.domain,
            group: join::group_key(&state).ok_or("not joined")?,
            read_key: Box::new(move || join::identity(&key_of).map_err(|error| error.to_string())),
        };
        let folders = Folders { state: folder.clone(), run: run.clone() };
        Ok(Made { identity, folders, instance: None, actuator: Echo::default() })
    };
    Service::start(Box::new(make)).unwrap()
}

/// Pushes a text to h1; the exit code and what was said.
fn push(lab: &Lab, folder: &Path, plane: &str, said: &str) -> (i32, String) {
    push_to(lab, "h1", folder, plane, said)
}

fn push_to(lab: &Lab, host: &str, folder: &Path, plane: &str, said: &str) -> (i32, String) {
    let file = folder.join("spec.yaml");
    std::fs::write(&file, format!("text: '{said}'\n")).unwrap();
    let file = file.display().to_string();
    let output = lab.weir(&["plane", "push", host, plane, "good day", &file, "--wait-s", "40"]);
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

fn show(lab: &Lab) -> String {
    lab.ok(&["plane", "show", "h1"])
}

fn has(service: &Service<Echo>) -> Option<String> {
    service.with(|machine| machine.actuator().texts.get("good day").cloned()).flatten()
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
    assert_eq!(
        echo.with(|machine| machine.counters().applied),
        Some(0),
        "nothing was sent again that it had"
    );
    let gone = lab.ok(&["plane", "withdraw", "h1", "echo", "good day", "--wait-s", "30"]);
    assert!(gone.contains("it is in force"), "{gone}");
    assert_eq!(has(&echo), None);
    files(&lab, spec, &echo);
    let audit = lab.ok(&["audit", "list", "--kind", "event", "--last", "500"]);
    for said in [
        "echo 'good day' at h1: say 'three'",
        "echo 'good day' at h1: withdrawn",
        "network/beside gone, echo 'good day' at h1: withdrawn",
    ] {
        assert!(audit.contains(said), "{said}: {audit}");
    }
    lab.wait_in_step();
}

/// A network and what the toy is to say, in one file, beside what is there.
fn file(lab: &Lab, folder: &Path, name: &str, host: &str, said: &str) -> String {
    let there = lab.ok(&["get", "all", "-o", "yaml"]);
    let greeting = format!("kind: echo\nhost: {host}\nname: good day\nspec:\n  text: '{said}'\n");
    let others =
        there.split("---\n").filter(|one| !one.contains("kind: echo") && !one.contains("name: beside"));
    let beside = format!("kind: network\nname: {name}\n");
    let documents: Vec<&str> = others.chain([beside.as_str(), greeting.as_str()]).collect();
    let path = folder.join("all.yaml");
    std::fs::write(&path, documents.join("---\n")).unwrap();
    path.display().to_string()
}

/// Runs an apply of a file; the exit code and what was said.
fn apply(lab: &Lab, file: &str, more: &[&str]) -> (i32, String) {
    let output = lab.weir(&[&["apply", "-f", file, "--yes", "--wait-s", "40"], more].concat());
    (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
}

/// What planes have are resources in files beside networks; the toy's kind comes with its vocabulary.
fn files(lab: &Lab, folder: &Path, echo: &Service<Echo>) {
    let four = file(lab, folder, "beside", "h1", "four");
    let (code, told) = apply(lab, &four, &["--dry-run"]);
    for line in ["+ network/beside", "+ echo/h1/good day", "2 to create", "plane/echo/good day"] {
        assert!(code == 0 && told.contains(line), "{line}: {told}");
    }
    let differs = lab.weir(&["diff", "-f", &four]);
    assert!(differs.status.code() == Some(4) && text(&differs.stdout).contains("+ echo/h1/good day"));
    assert_eq!(has(echo), None, "nothing was done");
    let version = lab.client().list(None, None).unwrap().version;
    let (code, told) = apply(lab, &four, &[]);
    assert!(code == 0 && told.contains("in force on every switch"), "{code}: {told}");
    assert_eq!(has(echo).as_deref(), Some("four"));
    let listed = lab.ok(&["get", "echos"]);
    assert!(["h1/good day", "say 'four'", "in force"].iter().all(|said| listed.contains(said)), "{listed}");
    assert!(lab.ok(&["status"]).contains("1 echo"));
    // What is printed is read, and is no change.
    std::fs::write(folder.join("again.yaml"), lab.ok(&["get", "all", "-o", "yaml"])).unwrap();
    let again = folder.join("again.yaml").display().to_string();
    let (code, told) = apply(lab, &again, &["--replace-all"]);
    assert!(code == 0 && told.contains("0 to create, 0 to change, 0 to delete"), "{told}");
    // What is pushed is the same resource, and a full update of a file without it withdraws it.
    assert_eq!(push(lab, folder, "echo", "five").0, 0);
    let shown = lab.ok(&["get", "echo", "h1/good day", "-o", "yaml"]);
    assert!(shown.contains("text: five"), "{shown}");
    lab.ok(&["plane", "push", "h1", "echo", "loud", &folder.join("spec.yaml").display().to_string()]);
    let (code, told) = apply(lab, &four, &["--replace-all"]);
    for line in ["- echo/h1/loud", "~ echo/h1/good day", "spec.text: five -> four"] {
        assert!(code == 0 && told.contains(line), "{line}: {told}");
    }
    assert_eq!(
        echo.with(|machine| machine.actuator().texts.clone()),
        Some([("good day".into(), "four".into())].into())
    );
    // A watch has all of it.
    let watched = lab.ok(&["watch", "--from", &version.to_string(), "--count", "6"]);
    for line in ["~ echo/h1/good day", "~ echo/h1/loud", "- echo/h1/loud", "~ network/beside"] {
        assert!(watched.contains(line), "{line}: {watched}");
    }
    // What the process refuses is told with its reason, and what it had stays.
    let (code, told) = apply(lab, &file(lab, folder, "beside", "h1", "refuse"), &[]);
    assert!(
        code == 5 && told.contains("echo/h1/good day: refused: ") && told.contains("this word is not said"),
        "{told}"
    );
    assert_eq!(has(echo).as_deref(), Some("four"));
    // All or nothing: a host that nobody knows is named, and the network is not made.
    let (code, told) = apply(lab, &file(lab, folder, "other", "h9", "four"), &[]);
    assert!(code == 1 && told.contains("no host or gateway 'h9' has joined"), "{code}: {told}");
    assert!(!lab.ok(&["get", "networks"]).contains("other"));
    let mine = "kind: echo\nhost: h1\nname: good day\nspec: {text: x}\n---\nkind: network\nname: beside\n";
    std::fs::write(folder.join("mine.yaml"), mine).unwrap();
    lab.ok(&["delete", "-f", &folder.join("mine.yaml").display().to_string(), "--yes", "--wait-s", "40"]);
    assert_eq!(has(echo), None);
    assert_eq!(lab.weir(&["get", "echo", "h1/good day"]).status.code(), Some(1));
}

/// A host that has planes and no switch joins, is told nothing of networks, and its planes are as good as any.
#[test]
fn a_host_without_a_switch_joins_for_its_planes() {
    let Some(lab) = group_lab("no_switch") else { return };
    wait_whole(&lab);
    let (extra, folder) = (Extra::begin(), tempfile::tempdir().unwrap());
    let (state, run) = (folder.path().join("state"), folder.path().join("run"));
    // The process is there before its host is one.
    let echo = serve(state.clone(), run.clone(), folder.path().join("echo"));
    wait("a try that fails", || echo.tries() > 0);
    // An address on the underlay is one host's: h9 has one of its own in the namespace of h1.
    let of_h1 = lab.switches().into_iter().find(|one| one.name == "h1").unwrap().underlay;
    let underlay = format!("{}.199", of_h1.rsplit_once('.').unwrap().0);
    let netns = lab.netns("h1");
    netns.ip(&["address", "add", &format!("{underlay}/24"), "dev", "eth0"]).unwrap();
    let token = lab.ok(&["token", "--name", "h9", "--role", "planes", "--underlay", &underlay]);
    let host = |token: Option<&str>| {
        let program = Program::new(env!("CARGO_BIN_EXE_weir"))
            .args([
                "host",
                "--no-switch",
                "--name",
                "h9",
                "--underlay",
                &underlay,
                "--monitor",
                "off",
                "--state",
            ])
            .arg(&state)
            .arg("--run")
            .arg(&run)
            .netns(&netns);
        match token {
            Some(token) => program.env("WEIR_JOIN_TOKEN", token.trim()),
            None => program,
        }
    };
    let mut daemon = extra.start("h9", &host(Some(&token)));
    let is = |said: &str| lab.ok(&["status"]).lines().any(|line| line.contains("h9") && line.contains(said));
    wait("h9 to be in sync, as a host of planes", || is("planes") && is("in sync"));
    let (code, told) = push_to(&lab, "h9", folder.path(), "echo", "without a switch");
    assert!(code == 0 && told.contains("it is in force"), "{code}: {told}");
    assert_eq!(has(&echo).as_deref(), Some("without a switch"));
    // What is a switch's is answered in words, and no endpoint comes here.
    let counters = lab.weir(&["counters", "h9"]);
    assert!(text(&counters.stderr).contains("this host has no switch"), "{}", text(&counters.stderr));
    assert!(!run.join("control.sock").exists() && !run.join("switch.pid").exists());
    let pushed = lab.client().status().unwrap().actuators.into_iter().find(|one| one.name == "h9").unwrap();
    assert!(pushed.refused.is_empty() && pushed.desired_entries == pushed.acked_entries, "{pushed:?}");
    // One that is placed here all the same waits, and every place where one looks says why.
    let why = "host 'h9' has no switch";
    let document = "kind: network\nname: nowhere\n---\nkind: subnet\nnetwork: nowhere\nname: main\nv4: 10.77.0.0/24\n---\n\
                    kind: endpoint\nnetwork: nowhere\nname: lost\nsubnet: main\nhost: h9\n";
    let file = folder.path().join("nowhere.yaml").display().to_string();
    std::fs::write(&file, document).unwrap();
    let told = lab.ok(&["apply", "-f", &file, "--yes"]);
    assert!(told.contains("nowhere/lost: ") && told.contains(why), "{told}");
    for look in
        [&["status"][..], &["get", "endpoint", "nowhere/lost"], &["describe", "endpoint", "nowhere/lost"]]
    {
        let told = lab.ok(look);
        assert!(told.contains(why), "{look:?}: {told}");
    }
    lab.ok(&["delete", "-f", &file, "--yes"]);
    wait("h9 to be in sync again", || is("in sync"));
    // Started again it is what it was, also when nobody says so.
    daemon.stop().unwrap();
    wait("h9 to be away", || is("closed"));
    let mut daemon = extra.start("h9", &host(None));
    wait("h9 to be back", || is("in sync"));
    assert_eq!(has(&echo).as_deref(), Some("without a switch"));
    daemon.stop().unwrap();
    drop(echo);
    lab.ok(&["forget", "h9", "--yes"]);
    netns.ip(&["address", "del", &format!("{underlay}/24"), "dev", "eth0"]).unwrap();
    lab.wait_in_step();
}
