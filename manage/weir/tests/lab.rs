//! The shared lab: brought up once, made whole before each scenario, removed when this process ends.

use crate::namespaces::wait;
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use weir_api::client::{Client, Context};
use weir_api::types::ActuatorStatus;
use weir_base::codec::{encode_frame, read_frame};
use weir_lab::process::Record;
use weir_lab::{Netns, system};
use weir_model::local::{Answer, FromSwitch, Question, ToSwitch};
use weir_model::{Key, Version};

const INSTANCE: &str = "9";
const PREFIX: &str = "wl9-";
const FOLDER: &str = "/run/weir-lab/two-tenants-9";
const LOCK: &str = "/run/weir-lab/tests-of-weir.lock";
/// How long another run may take.
const OTHER_RUN_BOUND: Duration = Duration::from_secs(900);
/// Hosts and gateway.
pub const SWITCHES: [&str; 4] = ["h1", "h2", "h3", "g1"];
/// Programs without which no scenario runs.
const NEEDED: [&str; 9] = ["ip", "ping", "ss", "curl", "iperf3", "nginx", "dhcpcd", "udhcpc", "tcpdump"];

static TURN: Mutex<()> = Mutex::new(());
static BROUGHT_UP: OnceLock<Result<(), String>> = OnceLock::new();
/// While this process lives, the pipe is open; when it ends, the one who reads it takes the lab down.
static LIFELINE: OnceLock<ChildStdin> = OnceLock::new();

/// A scenario's turn with the lab.
pub struct Lab {
    _turn: MutexGuard<'static, ()>,
}

/// The lab, whole; `None`, with the NOT RUN line, where root or a program is missing.
pub fn lab(scenario: &str) -> Option<Lab> {
    if !system::is_root() {
        println!("NOT RUN {scenario}: it needs root");
        return None;
    }
    if let Err(error) = system::require_installed(&NEEDED) {
        println!("NOT RUN {scenario}: {error}");
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let lab = Lab { _turn: turn };
    if let Err(error) = BROUGHT_UP.get_or_init(bring_up) {
        panic!("the lab did not come up: {error}");
    }
    lab.make_whole();
    Some(lab)
}

fn weir() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("WEIR_CONTEXT", format!("{FOLDER}/controller/state/admin.json")).env("NO_COLOR", "1");
    command
}

/// The right to the ninth instance: another run of these tests may have it.
fn take_instance() -> Result<std::fs::File, String> {
    let said = |error: std::io::Error| format!("{LOCK}: {error}");
    std::fs::create_dir_all("/run/weir-lab").map_err(said)?;
    let lock = std::fs::File::create(LOCK).map_err(said)?;
    let taken = system::wait_for("the end of another run of these tests", OTHER_RUN_BOUND, || {
        Ok(lock.try_lock().is_ok())
    });
    taken.map_err(|error| error.to_string()).map(|()| lock)
}

fn bring_up() -> Result<(), String> {
    let lock = take_instance()?;
    let script =
        format!("cat >/dev/null; '{}' lab down --instance {INSTANCE} >/dev/null", env!("CARGO_BIN_EXE_weir"));
    let mut watcher = Command::new("sh");
    // It has the lock too, and so keeps it until the lab is gone.
    watcher.args(["-c", &script]).stdin(Stdio::piped()).stdout(lock).stderr(Stdio::null());
    let mut watcher = watcher.process_group(0).spawn().map_err(|error| error.to_string())?;
    let _ = LIFELINE.set(watcher.stdin.take().ok_or("no pipe to the watcher")?);
    let output = weir().args(["lab", "up", "--no-checks", "--instance", INSTANCE]).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}

impl Lab {
    /// Starts what an earlier scenario left ended, and brings the resources back to those of the lab.
    fn make_whole(&self) {
        for program in ["controller"].iter().chain(&SWITCHES).chain(&["nginx-red-db"]) {
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
        self.ok(&["apply", "-f", &format!("{FOLDER}/net.yaml"), "--replace-all", "--yes", "--wait-s", "30"]);
    }

    /// Runs `weir` with arguments and text on its standard input.
    pub fn weir_with_input(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = weir();
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
        weir()
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
        Path::new(FOLDER).join("controller/state/admin.json")
    }

    /// A client of its controller.
    pub fn client(&self) -> Client {
        let text = std::fs::read_to_string(format!("{FOLDER}/controller/state/admin.json")).unwrap();
        Client::new(serde_json::from_str::<Context>(&text).unwrap()).unwrap()
    }

    /// State of the switches; empty while the controller does not answer.
    pub fn switches(&self) -> Vec<ActuatorStatus> {
        self.client().status().map(|status| status.actuators).unwrap_or_default()
    }

    /// Waits until every switch has in force what it shall have.
    pub fn wait_in_step(&self) {
        wait("every switch in step", || {
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
        Netns::existing(format!("{PREFIX}{short}"))
    }

    /// The address of a guest's device.
    pub fn v4(&self, short: &str) -> std::net::IpAddr {
        let text = self.netns(short).ip(&["-o", "-4", "address", "show", "dev", "eth0"]).unwrap();
        text.split_whitespace().nth(3).unwrap().split('/').next().unwrap().parse().unwrap()
    }

    /// A program of the lab as it was written down.
    pub fn program(&self, name: &str) -> Option<Record> {
        let text = std::fs::read(format!("{FOLDER}/{name}.proc")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Ends a program as a crash would.
    pub fn kill(&self, program: &str) {
        self.ok(&["lab", "kill", program, "--instance", INSTANCE]);
    }

    /// Starts a program again.
    pub fn start(&self, program: &str) {
        self.ok(&["lab", "start", program, "--instance", INSTANCE]);
    }

    /// All checks of the lab.
    pub fn run_checks(&self) -> Output {
        self.weir(&["lab", "run", "--instance", INSTANCE])
    }

    /// A second supervisor of a host, as by a mistake.
    pub fn command_in(&self, host: &str) -> Command {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            &format!("{PREFIX}{host}"),
            env!("CARGO_BIN_EXE_weir"),
            "host",
            "--config",
        ]);
        command.arg(format!("{FOLDER}/{host}/state/node.json"));
        command
    }

    /// Where a program's output goes.
    pub fn log(&self, program: &str) -> PathBuf {
        Path::new(FOLDER).join(format!("{program}.log"))
    }

    /// Run directory of a host or gateway.
    pub fn run_folder(&self, member: &str) -> PathBuf {
        Path::new(FOLDER).join(member).join("run")
    }

    /// The agent or switch of a host or gateway.
    pub fn child(&self, member: &str, role: &str) -> Option<Record> {
        let text = std::fs::read_to_string(self.run_folder(member).join(format!("{role}.pid"))).ok()?;
        Record::of(text.trim().parse().ok()?, role.to_string()).ok()
    }

    /// Kills an agent or a switch with -9 and waits until another one runs.
    pub fn crash(&self, member: &str, role: &str) {
        let old = self.child(member, role).unwrap();
        assert!(old.signal(weir_lab::process::Signal::KILL).unwrap(), "{role} of {member} runs");
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
