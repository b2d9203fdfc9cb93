//! The command line against a real controller on loopback: what it prints, what it asks, how it ends. Needs no root and no
//! lab.

use crate::store::Controller;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that ends before it has read all is no fault of this test.
    let _gone = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

impl Controller {
    fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(WEIR);
        command.args(arguments).arg("--context").arg(self.context()).env("NO_COLOR", "1");
        command
    }

    /// Runs a command, which must end with this code; gives all that it printed.
    fn ends(&self, code: i32, arguments: &[&str], input: &str) -> String {
        let output = run(&mut self.cli(arguments), input);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "weir {arguments:?}: {said}");
        said
    }
}

const KINDS: &str = "\
kind: network
name: n
externalAccess: true
---
kind: subnet
network: n
name: y
v4: 10.5.0.0/24
v6: fd00:5::/64
dhcp: {leaseS: 600, search: [on.example]}
---
kind: endpoint
network: n
name: no
subnet: y
host: off
tags: [yes, db]
attachment: {netns: n, device: on}
---
kind: endpoint
network: n
name: vm
subnet: y
addresses: [10.5.0.77]
attachment: {kind: vhost-user, socket: /run/weir/vm.sock, queuePairs: 2}
---
kind: route
network: n
name: out
prefix: 0.0.0.0/0
nextHop: external
---
kind: firewall-rule
network: n
name: web
direction: ingress
action: allow
protocol: tcp
ports: ['80', 8000-8080]
peers: [{tag: db}, {prefix: 10.0.0.0/8}]
---
kind: balancer
network: n
name: shop
address: 10.5.0.200
services: [{protocol: tcp, port: 80, targetPort: 8080}]
members: [no]
";

#[test]
fn what_get_prints_is_what_apply_takes() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    controller.ends(0, &["apply", "-f", "-", "--yes"], KINDS);
    let pinned = text(&run(&mut controller.cli(&["get", "all", "-o", "yaml", "--allocated"]), "").stdout);
    for form in [&["get", "all", "-o", "yaml"][..], &["get", "all", "-o", "json"]] {
        let printed = text(&run(&mut controller.cli(form), "").stdout);
        // As it is, it says what is there.
        let said = controller.ends(0, &["diff", "-f", "-"], &printed);
        assert_eq!(said, "", "{form:?}");
        // And it makes all of it anew.
        let names = controller.ends(0, &["delete", "-f", "-", "--yes"], &printed);
        assert!(names.contains("- endpoint/n/no") && names.contains("7 to delete"), "{names}");
        assert!(controller.ends(0, &["get", "all"], "").contains("Nothing there"));
        controller.ends(0, &["apply", "-f", "-", "--yes"], &printed);
        let again = text(&run(&mut controller.cli(form), "").stdout);
        if form.contains(&"yaml") {
            assert_eq!(again, printed);
        }
    }
    // Pinned, addresses and MACs are the same elsewhere too.
    assert!(
        pinned.contains("mac: ") && pinned.contains("10.5.0.2\"") && pinned.contains("vni: "),
        "{pinned}"
    );
    controller.ends(0, &["delete", "-f", "-", "--yes"], KINDS);
    controller.ends(0, &["apply", "-f", "-", "--yes"], &pinned);
    let after = text(&run(&mut controller.cli(&["get", "all", "-o", "yaml", "--allocated"]), "").stdout);
    assert_eq!(after, pinned);
}

#[test]
fn a_long_plan_says_what_it_leaves_out_and_shows_all_that_goes() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    let mut many =
        "kind: network\nname: red\n---\nkind: subnet\nnetwork: red\nname: a\nv4: 10.0.0.0/16\n".to_owned();
    for number in 0..230 {
        many += &format!("---\nkind: endpoint\nnetwork: red\nname: e{number}\nsubnet: a\n");
    }
    let said = controller.ends(0, &["apply", "-f", "-", "--dry-run"], &many);
    assert!(said.contains("… and 32 more: 32 endpoints to create; --all shows them"), "{said}");
    assert_eq!(said.matches("\n+ ").count() + usize::from(said.starts_with("+ ")), 200, "{said}");
    let all = controller.ends(0, &["apply", "-f", "-", "--yes", "--all"], &many);
    assert_eq!(all.matches("+ endpoint/red/e").count(), 230);
    let network = "kind: network\nname: red\n";
    let gone = controller.ends(0, &["apply", "-f", "-", "--replace-all", "--dry-run"], network);
    assert_eq!(gone.matches("- endpoint/red/e").count(), 230, "{gone}");
    assert!(gone.contains("231 to delete"), "{gone}");
    // A change says which field, and what it was; another order is none.
    let tagged = |tags: &str| format!("kind: endpoint\nnetwork: red\nname: e1\nsubnet: a\ntags: [{tags}]\n");
    let said = controller.ends(0, &["apply", "-f", "-", "--yes"], &tagged("x, w"));
    assert!(said.contains("~ endpoint/red/e1") && said.contains("    tags: [] -> [\"w\",\"x\"]"), "{said}");
    let said = controller.ends(0, &["apply", "-f", "-", "--yes"], &tagged("w, x"));
    assert!(said.contains("0 to change") && said.contains("1 unchanged"), "{said}");
}

#[test]
fn what_cannot_be_taken_back_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    controller.ends(0, &["store", "create", "t/words"], "");
    controller.ends(0, &["store", "put", "t/words", "k", "v"], "");
    let asked = controller.ends(2, &["store", "drop", "t/words"], "y\n");
    assert!(asked.contains("goes with its 1 entries") && asked.contains("--yes"), "{asked}");
    let dry = controller.ends(0, &["store", "drop", "t/words", "--dry-run"], "");
    assert!(dry.starts_with("Would be done: Table t/words"), "{dry}");
    controller.ends(0, &["store", "get", "t/words", "k"], "");
    let told = controller.ends(0, &["store", "drop", "t/words", "--yes", "-o", "json"], "");
    assert!(serde_json::from_str::<serde_json::Value>(&told).unwrap()["written"].is_u64(), "{told}");
    controller.ends(1, &["store", "get", "t/words", "k"], "");
    for unknown in [
        &["forget", "h9"][..],
        &["identity", "revoke", "h9", "--reason", "x"],
        &["domain", "remove", "east"],
        &["group", "remove", "3"],
        &["store", "drop", "t/none"],
    ] {
        controller.ends(1, unknown, "");
    }
    // Somebody at a terminal is asked about one that is there.
    let asked = controller.ends(2, &["identity", "revoke", "controller", "--reason", "test"], "");
    assert!(asked.contains("none of its keys ever again (test)") && asked.contains("--yes"), "{asked}");
    let dry = controller.ends(0, &["identity", "revoke", "controller", "--reason", "test", "--dry-run"], "");
    assert!(dry.starts_with("Would be done: Of controller controller"), "{dry}");
}

#[test]
fn every_answer_has_a_form_for_programs() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    controller.ends(0, &["apply", "-f", "-", "--yes"], "kind: network\nname: red\n");
    controller.ends(0, &["store", "create", "t/words"], "");
    controller.ends(0, &["store", "put", "t/words", "k", "v"], "");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/plan-example.yaml");
    let state = dir.path().join("member").display().to_string();
    let cases: [(&[&str], &str); 21] = [
        (&["apply", "-f", "-", "--yes"], "kind: network\nname: blue\n"),
        (&["diff", "-f", "-"], "kind: network\nname: red\n"),
        (&["delete", "network", "blue", "--yes"], ""),
        (&["get", "all"], ""),
        (&["describe", "network", "red"], ""),
        (&["explain"], ""),
        (&["explain", "endpoint"], ""),
        (&["plan", example, "--check"], ""),
        (&["status"], ""),
        (&["token", "--name", "h1"], ""),
        (&["token", "list"], ""),
        (&["clock"], ""),
        (&["store", "get", "t/words", "k"], ""),
        (&["store", "put", "t/words", "k", "w"], ""),
        (&["store", "increment", "t/words", "n"], ""),
        (&["store", "tables", "t"], ""),
        (&["store", "digest"], ""),
        (&["group", "identity", "--state", &state], ""),
        (&["domain", "show"], ""),
        (&["identity", "list"], ""),
        (&["audit", "list"], ""),
    ];
    for (arguments, input) in cases {
        let ended = run(controller.cli(arguments).args(["-o", "json"]), input);
        let said = text(&ended.stdout);
        assert!(ended.status.success(), "weir {arguments:?}: {said}{}", text(&ended.stderr));
        assert!(serde_json::from_str::<serde_json::Value>(&said).is_ok(), "weir {arguments:?}: {said}");
    }
}

/// A command that asks, on a terminal of its own.
struct Asking {
    child: std::process::Child,
    said: String,
}

impl Asking {
    /// Begins the command and reads what it says up to its question.
    fn begin(controller: &Controller, arguments: &str) -> Asking {
        let command = format!("{WEIR} {arguments} --context {}", controller.context().display());
        let mut child = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .env("NO_COLOR", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        let mut byte = [0];
        while !text(&said).contains("[y/N] ") && child.stdout.as_mut().unwrap().read(&mut byte).unwrap() == 1
        {
            said.push(byte[0]);
        }
        Asking { child, said: text(&said) }
    }

    /// Answers, and gives the exit code and all that it said.
    fn answer(mut self, answer: &str) -> (Option<i32>, String) {
        self.child.stdin.as_mut().unwrap().write_all(answer.as_bytes()).unwrap();
        let mut rest = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        let code = self.child.wait().unwrap().code();
        (code, self.said + &rest)
    }
}

#[test]
fn what_a_person_was_shown_is_what_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    let network = |name: &str, mtu: u16| format!("kind: network\nname: {name}\nmtu: {mtu}\n");
    let both = network("red", 1400) + "---\n" + &network("blue", 1400);
    controller.ends(0, &["apply", "-f", "-", "--yes"], &both);
    let file = dir.path().join("red.yaml");
    std::fs::write(&file, network("red", 1300)).unwrap();

    // Somebody changes what the plan was about while it is read.
    let asking = Asking::begin(&controller, &format!("apply -f {}", file.display()));
    assert!(asking.said.contains("mtu: 1400 -> 1300"), "{}", asking.said);
    controller.ends(0, &["apply", "-f", "-", "--yes"], &network("red", 1350));
    let (code, said) = asking.answer("y\n");
    assert!(code == Some(1) && said.contains("read it again and repeat the change"), "{code:?}: {said}");
    assert!(controller.ends(0, &["get", "network", "red", "-o", "yaml"], "").contains("mtu: 1350"));

    // What came meanwhile was not shown to go, and stays; what was shown goes.
    let asking = Asking::begin(&controller, &format!("apply --replace-all -f {}", file.display()));
    assert!(asking.said.contains("- network/blue"), "{}", asking.said);
    controller.ends(0, &["apply", "-f", "-", "--yes"], &network("green", 1400));
    let (code, said) = asking.answer("y\n");
    assert_eq!(code, Some(0), "{said}");
    let there = controller.ends(0, &["get", "network"], "");
    assert!(there.contains("red") && there.contains("green") && !there.contains("blue"), "{there}");

    // Nothing in between: as always.
    let (code, said) = Asking::begin(&controller, "delete network red green").answer("y\n");
    assert_eq!(code, Some(0), "{said}");
    assert!(controller.ends(0, &["get", "network"], "").contains("Nothing there"));
}

/// Commands that print, each with what it is given.
const PRINTING: [(&[&str], &str); 28] = [
    (&["--help"], ""),
    (&["--version"], ""),
    (&["completions", "bash"], ""),
    (&["explain", "endpoint"], ""),
    (&["explain", "--markdown"], ""),
    (&["apply", "-f", "-", "--dry-run"], "kind: network\nname: green\n"),
    (&["diff", "-f", "-"], "kind: network\nname: green\n"),
    (&["delete", "network", "red", "--dry-run"], ""),
    (&["get", "all"], ""),
    (&["get", "all", "-o", "yaml"], ""),
    (&["get", "network", "red", "-o", "json"], ""),
    (&["get", "devices"], ""),
    (&["describe", "network", "red"], ""),
    (&["status"], ""),
    (&["status", "-o", "json"], ""),
    (&["token", "--name", "h9"], ""),
    (&["token", "--name", "h9", "-o", "yaml"], ""),
    (&["token", "list"], ""),
    (&["store", "tables"], ""),
    (&["store", "digest"], ""),
    (&["store", "scan", "t/words"], ""),
    (&["store", "get", "t/words", "k", "--raw"], ""),
    (&["domain", "show"], ""),
    (&["domain", "list"], ""),
    (&["audit", "list"], ""),
    (&["audit", "verify"], ""),
    (&["audit", "export", "--out", "-"], ""),
    (&["identity", "list"], ""),
];

#[test]
fn a_full_disk_and_a_reader_that_goes_away_end_every_command_with_a_word_at_most() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    controller.ends(0, &["apply", "-f", "-", "--yes"], "kind: network\nname: red\n");
    controller.ends(0, &["store", "create", "t/words"], "");
    controller.ends(0, &["store", "put", "t/words", "k", "v"], "");
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/plan-example.yaml");
    let alone = [(vec!["fs", "doctor"], ""), (vec!["lab", "list"], ""), (vec!["plan", example], "")];
    let with = PRINTING.iter().map(|(arguments, input)| (arguments.to_vec(), *input));
    for (arguments, input) in with.chain(alone) {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = controller.cli(&arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let _gone = child.stdin.take().unwrap().write_all(input.as_bytes());
        let ended = child.wait_with_output().unwrap();
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "weir {arguments:?} > /dev/full: {said}");
        let told = said.lines().filter(|line| line.contains("standard output: No space left")).count();
        assert_eq!(told, 1, "weir {arguments:?} > /dev/full: {said}");
        assert!(!said.contains("panicked"), "weir {arguments:?} > /dev/full: {said}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = controller.cli(&arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        let _gone = child.stdin.take().unwrap().write_all(input.as_bytes());
        let ended = child.wait_with_output().unwrap();
        let said = text(&ended.stderr);
        assert!(!ended.status.success() && !said.contains("panicked"), "weir {arguments:?} | true: {said}");
    }
}

#[test]
fn one_cause_has_one_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    controller.ends(0, &["store", "create", "t/words"], "");
    let (folder, there) = (dir.path().join("out"), dir.path().join("there"));
    std::fs::write(&there, "kept").unwrap();
    let (out, there) = (folder.display().to_string(), there.display().to_string());
    let wrong = "kind: network\nname: red\nmtu: 70000\n";
    let cases: [(i32, &[&str], &str, &str); 17] = [
        (0, &["audit", "export", "--out", &out], "", "links written"),
        (1, &["audit", "export", "--out", &there], "", "--force"),
        (1, &["audit", "export", "--out", "/dev/null", "--force"], "", "no plain file"),
        (1, &["get", "network", "red"], "", "red"),
        (1, &["describe", "network", "red"], "", "red"),
        (1, &["counters", "h9"], "", "h9"),
        (1, &["trace", "red/a", "red/b"], "", "red"),
        (2, &["trace", "red/a", "b", "-p", "tcp"], "", "--port 1 to 65535"),
        (2, &["trace", "red/a", "b", "--port", "0"], "", "port"),
        (2, &["get", "rules"], "", "firewall-rule"),
        (2, &["apply", "-f", "-"], wrong, "mtu: '70000' is not allowed: a whole number from 0 to 65535"),
        (2, &["apply", "-f", "-"], "kind: network\nname: a\nname: b\n", "the field 'name' is given twice"),
        (2, &["token", "--name", "h1", "--valid-s", "0"], "", "60..=604800"),
        (4, &["store", "get", "t/words", "none"], "", "not there"),
        (4, &["diff", "-f", "-"], "kind: network\nname: red\n", "+ network/red"),
        (2, &["forget"], "", "Usage"),
        (0, &["apply", "-f", "-", "--yes"], "kind: network\nname: red\n", "no host has joined"),
    ];
    for (code, arguments, input, word) in cases {
        let said = controller.ends(code, arguments, input);
        assert!(said.contains(word), "weir {arguments:?}: '{word}' is not in: {said}");
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "kept");
    let long = "x".repeat(64 * 1024);
    for arguments in [&["store", "watch", &long][..], &["store", "watch", "t/words", &long]] {
        assert!(controller.ends(2, arguments, "").contains("at most 1024"));
    }
    for arguments in [
        ["fs", "mount", "--backend", "mem:", &long],
        ["fs", "serve", "--backend", "mem:", &long],
        ["fs", "mount", "--backend", &format!("dir:/{long}"), "/mnt"],
    ] {
        let ended = run(Command::new(WEIR).args(arguments), "");
        let said = text(&ended.stderr);
        assert!(
            ended.status.code() == Some(2) && said.len() < 1024 && said.contains("at most 4095"),
            "{said}"
        );
    }
    // The server says the same of a document that comes without the command line.
    let reserved = "kind: subnet\nnetwork: red\nname: a\nv4: 240.0.0.0/8\n";
    assert!(controller.ends(1, &["apply", "-f", "-", "--yes"], reserved).contains("240.0.0.0/8"));
    assert!(controller.ends(0, &["status"], "").contains("server https://127.0.0.1:"));
    let context = controller.context().to_owned();
    drop(controller);
    for arguments in [&["status"][..], &["get", "all"], &["store", "digest"], &["store", "scan", "t/words"]] {
        let ended = run(Command::new(WEIR).args(arguments).arg("--context").arg(&context), "");
        assert_eq!(ended.status.code(), Some(3), "weir {arguments:?}: {}", text(&ended.stderr));
    }
}

#[test]
fn a_lab_is_taken_only_when_that_is_said() {
    let mut command = Command::new(WEIR);
    command.args(["status"]).env_remove("WEIR_CONTEXT").env("HOME", "/nowhere");
    if ["/etc/weir/admin.json", "/var/lib/weir/controller/admin.json"]
        .iter()
        .any(|path| std::path::Path::new(path).exists())
    {
        println!("NOT RUN a_lab_is_taken_only_when_that_is_said: this machine has a context of its own");
        return;
    }
    let ended = run(&mut command, "");
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("no context"), "{said}");
}

#[test]
fn a_proxy_is_used_where_it_is_named_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let controller = Controller::begin(dir.path());
    // This machine is never asked by a proxy: the address is told under another name by NO_PROXY's rules only.
    let nobody = crate::store::free_address();
    let with = |arguments: &[&str]| {
        let mut command = controller.cli(arguments);
        command.env("HTTPS_PROXY", format!("http://{nobody}")).env_remove("NO_PROXY").env_remove("no_proxy");
        command
    };
    for arguments in [&["status"][..], &["store", "digest"]] {
        let ended = run(&mut with(arguments), "");
        assert!(ended.status.success(), "loopback needs no proxy: {}", text(&ended.stderr));
    }
    // Another address goes by the proxy, which is not there, and is named; NO_PROXY with a prefix goes without.
    let mut elsewhere = String::new();
    File::open(controller.context()).unwrap().read_to_string(&mut elsewhere).unwrap();
    let mut context: serde_json::Value = serde_json::from_str(&elsewhere).unwrap();
    context["server"] = "https://192.0.2.1:7443".into();
    let path = dir.path().join("elsewhere.json");
    std::fs::write(&path, context.to_string()).unwrap();
    for arguments in [&["status"][..], &["store", "digest"]] {
        let mut command = Command::new(WEIR);
        command.args(arguments).arg("--context").arg(&path).env("HTTPS_PROXY", format!("http://{nobody}"));
        command.env_remove("NO_PROXY").env_remove("no_proxy");
        let ended = run(&mut command, "");
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("by the proxy {nobody} of HTTPS_PROXY")), "{said}");
    }
    let mut wrong = with(&["status"]);
    let ended = run(wrong.env("HTTPS_PROXY", "socks5://x"), "");
    assert!(text(&ended.stderr).contains("HTTPS_PROXY: a proxy by 'socks5'"), "{}", text(&ended.stderr));
}

/// What is done to a state directory for ever is asked about, and said beforehand.
#[test]
fn what_is_done_to_a_state_for_ever_is_asked_about_and_may_be_tried() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    std::fs::write(dir.path().join("domain"), "lab\n").unwrap();
    ["group", "numbers"].iter().for_each(|folder| std::fs::create_dir(dir.path().join(folder)).unwrap());
    let files = || {
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        (names, std::fs::read_dir(dir.path().join("numbers")).unwrap().count())
    };
    let digest = "5f".repeat(32);
    let commands: [(Vec<&str>, &str); 3] = [
        (vec!["state", "accept", "--state", state], "is taken as it is"),
        (vec!["state", "rejoin", "--state", state], "group is put aside"),
        (
            vec!["group", "set-aside", "--state", state, "--entry", "7", "--digest", &digest],
            "entry 7 with digest 5f5f",
        ),
    ];
    for (arguments, said) in commands {
        let (before, weir) =
            (files(), |more: &[&str]| run(Command::new(WEIR).args(&arguments).args(more), "yes\n"));
        let asked = weir(&[]);
        assert!(!asked.status.success() && text(&asked.stderr).contains("--yes"), "{arguments:?}: {asked:?}");
        let tried = weir(&["--dry-run"]);
        let words = text(&tried.stdout);
        assert!(
            tried.status.success() && words.contains("Would be done") && words.contains(said),
            "{arguments:?}: {tried:?}"
        );
        assert_eq!(files(), before, "{arguments:?} did something before it was told to");
        assert!(weir(&["--yes"]).status.success());
        assert_ne!(files(), before, "{arguments:?}");
    }
}
