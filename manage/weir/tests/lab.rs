//! The shared labs, one with a single controller and one with a group: each is brought up once, made whole before each scenario, removed when this process ends.

use crate::namespaces::wait;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use weir_api::client::{Client, Context};
use weir_api::operator::OperatorKey;
use weir_api::types::ActuatorStatus;
use weir_base::codec::{encode_frame, read_frame};
use weir_lab::process::{Record, Signal};
use weir_lab::{Netns, system};
use weir_model::local::{Answer, FromSwitch, Question, ToSwitch};
use weir_model::{Key, Version};

const INSTANCE: &str = "9";

/// Which lab.
pub struct Kind {
    name: &'static str,
    prefix: &'static str,
    /// Begins the names of what scenarios add. Labs of other kinds are up beside it: one that still knows an endpoint of an earlier scenario
    /// would take the device of the same name in the same namespace.
    added: &'static str,
    folder: &'static str,
    lock: &'static str,
    /// The controllers that run when it is whole; the first one's context is used.
    controllers: &'static [&'static str],
    /// A scenario failed in it and may have left anything.
    broken: AtomicBool,
    brought_up: OnceLock<Result<(), String>>,
    /// While this process lives, the pipe is open; when it ends, the one who reads it takes the lab down.
    lifeline: OnceLock<ChildStdin>,
}

static TWO_TENANTS: Kind = Kind {
    name: "two-tenants",
    prefix: "wl9-",
    added: "wlx-",
    folder: "/run/weir-lab/two-tenants-9",
    lock: "/run/weir-lab/tests-of-weir.lock",
    controllers: &["controller"],
    broken: AtomicBool::new(false),
    brought_up: OnceLock::new(),
    lifeline: OnceLock::new(),
};

static THREE_CONTROLLERS: Kind = Kind {
    name: "three-controllers",
    prefix: "wg9-",
    added: "wgx-",
    folder: "/run/weir-lab/three-controllers-9",
    lock: "/run/weir-lab/tests-of-weir-group.lock",
    controllers: &["c1", "c2", "c3"],
    broken: AtomicBool::new(false),
    brought_up: OnceLock::new(),
    lifeline: OnceLock::new(),
};

static FOUR_CONTROLLERS: Kind = Kind {
    name: "four-controllers",
    prefix: "wf9-",
    added: "wfx-",
    folder: "/run/weir-lab/four-controllers-9",
    lock: "/run/weir-lab/tests-of-weir-byzantine.lock",
    controllers: &["c1", "c2", "c3", "c4"],
    broken: AtomicBool::new(false),
    brought_up: OnceLock::new(),
    lifeline: OnceLock::new(),
};

static SEVEN_CONTROLLERS: Kind = Kind {
    name: "seven-controllers",
    prefix: "wv9-",
    added: "wvx-",
    folder: "/run/weir-lab/seven-controllers-9",
    lock: "/run/weir-lab/tests-of-weir-seven.lock",
    controllers: &["c1", "c2", "c3", "c4", "c5", "c6", "c7"],
    broken: AtomicBool::new(false),
    brought_up: OnceLock::new(),
    lifeline: OnceLock::new(),
};

/// How long another run may take.
const OTHER_RUN_BOUND: Duration = Duration::from_secs(900);
/// Hosts and gateway.
pub const SWITCHES: [&str; 4] = ["h1", "h2", "h3", "g1"];
/// Programs without which no scenario runs.
const NEEDED: [&str; 9] = ["ip", "ping", "ss", "curl", "iperf3", "nginx", "dhcpcd", "udhcpc", "tcpdump"];

static TURN: Mutex<()> = Mutex::new(());
/// Which lab has the turn.
static CURRENT: Mutex<Option<&'static Kind>> = Mutex::new(None);

/// A scenario's turn with the lab.
pub struct Lab {
    kind: &'static Kind,
    _turn: MutexGuard<'static, ()>,
}

/// The lab, whole; `None`, with the NOT RUN line, where root or a program is missing.
pub fn lab(scenario: &str) -> Option<Lab> {
    lab_of(&TWO_TENANTS, scenario)
}

/// The lab with a group of controllers, as [`lab`].
pub fn group_lab(scenario: &str) -> Option<Lab> {
    lab_of(&THREE_CONTROLLERS, scenario)
}

/// The lab with a group of which one may lie, as [`lab`].
pub fn byzantine_lab(scenario: &str) -> Option<Lab> {
    lab_of(&FOUR_CONTROLLERS, scenario)
}

/// The lab with a group of which two may lie, as [`lab`]. Only one scenario has it, and takes it down.
pub fn seven_lab(scenario: &str) -> Option<Lab> {
    lab_of(&SEVEN_CONTROLLERS, scenario)
}

fn lab_of(kind: &'static Kind, scenario: &str) -> Option<Lab> {
    if !system::is_root() {
        println!("NOT RUN {scenario}: it needs root");
        return None;
    }
    if let Err(error) = system::require_installed(&NEEDED) {
        println!("NOT RUN {scenario}: {error}");
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    let lab = Lab { kind, _turn: turn };
    if let Err(error) = kind.brought_up.get_or_init(|| bring_up(kind)) {
        panic!("the lab did not come up: {error}");
    }
    if kind.broken.swap(false, Ordering::AcqRel) {
        let again = run_lab(kind, &["down"]).and_then(|()| run_lab(kind, &["up", "--no-checks"]));
        again.unwrap_or_else(|error| panic!("the lab did not come up again: {error}"));
    }
    lab.make_whole();
    Some(lab)
}

fn weir(kind: &Kind) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("WEIR_CONTEXT", kind.context()).env("NO_COLOR", "1");
    if kind.operator().exists() {
        command.env("WEIR_OPERATOR", kind.operator());
    }
    command
}

impl Kind {
    fn context(&self) -> PathBuf {
        Path::new(self.folder).join(self.controllers[0]).join("state/admin.json")
    }

    /// The key of the lab's operator, where it has one.
    fn operator(&self) -> PathBuf {
        Path::new(self.folder).join("operator.key")
    }
}

/// The right to the ninth instance: another run of these tests may have it.
fn take_instance(kind: &Kind) -> Result<std::fs::File, String> {
    let said = |error: std::io::Error| format!("{}: {error}", kind.lock);
    std::fs::create_dir_all("/run/weir-lab").map_err(said)?;
    let lock = std::fs::File::create(kind.lock).map_err(said)?;
    let taken = system::wait_for("the end of another run of these tests", OTHER_RUN_BOUND, || {
        Ok(lock.try_lock().is_ok())
    });
    taken.map_err(|error| error.to_string()).map(|()| lock)
}

fn bring_up(kind: &Kind) -> Result<(), String> {
    let lock = take_instance(kind)?;
    let (own, name) = (env!("CARGO_BIN_EXE_weir"), kind.name);
    let script = format!("cat >/dev/null; '{own}' lab down {name} --instance {INSTANCE} >/dev/null");
    let mut watcher = Command::new("sh");
    // It has the lock too, and so keeps it until the lab is gone.
    watcher.args(["-c", &script]).stdin(Stdio::piped()).stdout(lock).stderr(Stdio::null());
    let mut watcher = watcher.process_group(0).spawn().map_err(|error| error.to_string())?;
    let _ = kind.lifeline.set(watcher.stdin.take().ok_or("no pipe to the watcher")?);
    run_lab(kind, &["up", "--no-checks"])
}

/// Runs `weir lab` for the instance of the tests.
fn run_lab(kind: &Kind, verb: &[&str]) -> Result<(), String> {
    let mut command = weir(kind);
    command.arg("lab").arg(verb[0]).arg(kind.name).args(&verb[1..]).args(["--instance", INSTANCE]);
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}

/// Names and prefix of what the scenario that has a lab now adds to it.
pub fn added() -> (String, &'static str) {
    let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let kind = current.expect("a scenario adds to a lab that it has");
    (format!("test-weir-{}", kind.name), kind.added)
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kind.broken.store(true, Ordering::Release);
        }
    }
}

impl Lab {
    /// Starts what an earlier scenario left ended, and brings the resources back to those of the lab.
    fn make_whole(&self) {
        for program in self.kind.controllers {
            // One that a scenario which failed left stopped. Who is gone is started below.
            let _gone = self.program(program).map(|record| record.signal(Signal::CONT));
        }
        for program in self.kind.controllers.iter().chain(&SWITCHES).chain(&["nginx-red-db"]) {
            if self.program(program).is_none_or(|record| !record.alive()) {
                self.start(program);
            }
        }
        wait("every switch connected", || {
            self.switches().iter().filter(|one| one.connected).count() == SWITCHES.len()
        });
        self.restore();
        self.wait_in_step();
    }

    /// The resources of the lab, and no others.
    pub fn restore(&self) {
        self.ok(&[
            "apply",
            "-f",
            &format!("{}/net.yaml", self.kind.folder),
            "--replace-all",
            "--yes",
            "--wait-s",
            "30",
        ]);
    }

    /// Runs `weir` with arguments and text on its standard input.
    pub fn weir_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = weir(self.kind);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that refuses its arguments does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    /// Runs `weir` with arguments.
    pub fn weir(&self, arguments: &[&str]) -> Output {
        self.weir_with_input(arguments, "")
    }

    /// A `weir` to start as a process.
    pub fn command(&self) -> Command {
        weir(self.kind)
    }

    /// Runs `weir`; its output. It must succeed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        success(arguments, &self.weir(arguments))
    }

    /// Applies resources, which must be in force on every switch then.
    pub fn apply(&self, yaml: &str) -> String {
        let arguments = ["apply", "-f", "-", "--yes", "--wait-s", "60"];
        let said = success(&arguments, &self.weir_with_input(&arguments, yaml));
        assert!(
            said.contains("in force on every switch") || said.contains(" 0 to create, 0 to change"),
            "{said}"
        );
        said
    }

    /// The file that names controller and token.
    pub fn context(&self) -> PathBuf {
        self.kind.context()
    }

    /// A client of its controller.
    pub fn client(&self) -> Client {
        self.client_of(self.kind.controllers[0])
    }

    /// A client with the context that one controller wrote.
    pub fn client_of(&self, controller: &str) -> Client {
        Client::new(self.context_of(controller)).unwrap()
    }

    /// The context that one controller wrote.
    pub fn context_of(&self, controller: &str) -> Context {
        let path = self.folder().join(controller).join("state/admin.json");
        let context: Context = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        Context { operator: self.operator(), ..context }
    }

    /// The key of the lab's operator, where requests are signed.
    pub fn operator(&self) -> Option<OperatorKey> {
        let text = std::fs::read_to_string(self.kind.operator()).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    }

    /// Its controllers.
    pub fn controllers(&self) -> &'static [&'static str] {
        self.kind.controllers
    }

    /// Its run directory.
    pub fn folder(&self) -> &'static Path {
        Path::new(self.kind.folder)
    }

    /// State of the switches; empty while the controller does not answer.
    pub fn switches(&self) -> Vec<ActuatorStatus> {
        self.client().status().map(|status| status.actuators).unwrap_or_default()
    }

    /// Waits until every switch has in force what it shall have.
    pub fn wait_in_step(&self) {
        wait("every switch in sync", || {
            let switches = self.switches();
            !switches.is_empty()
                && switches.iter().all(|one| {
                    one.connected
                        && one.acked_entries == one.desired_entries
                        && one.in_force_version >= Some(one.desired_version)
                })
        });
    }

    /// The namespace of a guest, such as `red-app`.
    pub fn netns(&self, short: &str) -> Netns {
        Netns::existing(format!("{}{short}", self.kind.prefix))
    }

    /// The address of a guest's device.
    pub fn v4(&self, short: &str) -> std::net::IpAddr {
        let text = self.netns(short).ip(&["-o", "-4", "address", "show", "dev", "eth0"]).unwrap();
        text.split_whitespace().nth(3).unwrap().split('/').next().unwrap().parse().unwrap()
    }

    /// A program of the lab as it was written down.
    pub fn program(&self, name: &str) -> Option<Record> {
        let text = std::fs::read(self.folder().join(format!("{name}.proc"))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Ends a program as a crash would.
    pub fn kill(&self, program: &str) {
        self.ok(&["lab", "kill", program, self.kind.name, "--instance", INSTANCE]);
    }

    /// Starts a program again.
    pub fn start(&self, program: &str) {
        self.ok(&["lab", "start", program, self.kind.name, "--instance", INSTANCE]);
    }

    /// Starts a program again, which may end at once.
    pub fn try_start(&self, program: &str) {
        let _ended = self.weir(&["lab", "start", program, self.kind.name, "--instance", INSTANCE]);
    }

    /// Starts a program again, with these in its environment, by `starter`, which is another name of `weir`.
    pub fn start_with(&self, starter: &Path, program: &str, environment: &[(&str, String)]) {
        let mut command = Command::new(starter);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let arguments = ["lab", "start", program, self.kind.name, "--instance", INSTANCE];
        command.args(arguments).env("WEIR_CONTEXT", self.kind.context()).env("NO_COLOR", "1");
        success(&arguments, &command.output().unwrap());
    }

    /// What this scenario did to the lab is not undone: the next one has a new one.
    pub fn spent(self) {
        self.kind.broken.store(true, Ordering::Release);
    }

    /// Takes the lab down before this process ends.
    pub fn take_down(self) {
        self.ok(&["lab", "down", self.kind.name, "--instance", INSTANCE]);
    }

    /// All checks of the lab.
    pub fn run_checks(&self) -> Output {
        self.weir(&["lab", "run", self.kind.name, "--instance", INSTANCE])
    }

    /// A second supervisor of a host, as by a mistake.
    pub fn command_in(&self, host: &str) -> Command {
        let mut command = self.netns(host).command(env!("CARGO_BIN_EXE_weir"));
        command.args(["host", "--config"]);
        command.arg(self.folder().join(host).join("state/node.json"));
        command
    }

    /// Where a program's output goes.
    pub fn log(&self, program: &str) -> PathBuf {
        self.folder().join(format!("{program}.log"))
    }

    /// Run directory of a host or gateway.
    pub fn run_folder(&self, member: &str) -> PathBuf {
        self.folder().join(member).join("run")
    }

    /// The agent or switch of a host or gateway.
    pub fn child(&self, member: &str, role: &str) -> Option<Record> {
        let text = std::fs::read_to_string(self.run_folder(member).join(format!("{role}.pid"))).ok()?;
        Record::of(text.trim().parse().ok()?, role.to_string()).ok()
    }

    /// Kills an agent or a switch with -9 and waits until another one runs.
    pub fn crash(&self, member: &str, role: &str) {
        self.replaced_after(member, role, Signal::KILL);
    }

    /// Stops a child without ending it, and waits until its supervisor has put another in its place.
    pub fn hang(&self, member: &str, role: &str) {
        self.replaced_after(member, role, Signal::STOP);
    }

    fn replaced_after(&self, member: &str, role: &str, signal: Signal) {
        let old = self.child(member, role).unwrap();
        assert!(old.signal(signal).unwrap(), "{role} of {member} runs");
        wait(&format!("a new {role} of {member}"), || {
            self.child(member, role).is_some_and(|new| new.pid != old.pid && new.alive())
        });
    }

    /// Counters of a switch.
    pub fn counters(&self, switch: &str) -> BTreeMap<String, u64> {
        self.client().counters(switch).unwrap()
    }

    /// Keys and versions in force, as the switch itself tells.
    fn in_force(&self, switch: &str) -> BTreeMap<Key, Version> {
        let mut stream = UnixStream::connect(self.run_folder(switch).join("control.sock")).unwrap();
        stream.set_read_timeout(Some(crate::namespaces::BOUND)).unwrap();
        let mut found = BTreeMap::new();
        loop {
            let after = found.last_key_value().map(|(key, _): (&Key, &Version)| key.clone());
            let question = Question::Entries { after };
            stream.write_all(&encode_frame(&ToSwitch::Ask { id: 1, question }).unwrap()).unwrap();
            let FromSwitch::Answer { answer: Answer::Entries { entries, last }, .. } =
                read_frame(&mut stream).unwrap()
            else {
                panic!("{switch} answered something else");
            };
            found.extend(entries.into_iter().map(|(key, version, _, _)| (key, version)));
            if last {
                return found;
            }
        }
    }

    /// How each switch is programmed. Without the hosts' direct flows, which come and go with what is sent.
    pub fn programmed(&self) -> BTreeMap<&'static str, BTreeMap<Key, Version>> {
        let of = |switch: &'static str| {
            let mut entries = self.in_force(switch);
            entries.retain(|key, _| switch == "g1" || !matches!(key, Key::Location { .. }));
            (switch, entries)
        };
        SWITCHES.into_iter().map(of).collect()
    }

    /// Updates that came to each switch although they were in force there already.
    pub fn repeated(&self) -> BTreeMap<&'static str, u64> {
        let of =
            |switch| (switch, self.counters(switch).get("updates_repeated").copied().unwrap_or_default());
        SWITCHES.into_iter().map(of).collect()
    }
}

/// The output of a command that must have succeeded.
fn success(arguments: &[&str], output: &Output) -> String {
    let (said, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "weir {}: {}\n{said}{error}", arguments.join(" "), output.status);
    said
}

/// Bytes as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
