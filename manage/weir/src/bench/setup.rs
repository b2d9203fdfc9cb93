//! `weir bench setup`: how long the first packet of a flow waits in a learned network: from its arrival at the switch
//! until the controllers' answer is in force there (row C8; Lembke, Cicero: flow set-up latency).
//!
//! Real switches in real labs: one with a single controller, one with three over raft, one with four of which one may
//! lie, and two of these that sign otherwise: switches put the shares of signatures together, or take endorsements. All are up together and take turns, one question at a time, each for a
//! destination that the asking switch never had. The switch's own clock measures. Two kinds of question: for an endpoint
//! that was heard before (one event, one update), and for one that must be sought at its host first (two of each).
//!
//! Where the time goes: what the controllers, and the host that asks, count of their steps meanwhile, beside RoSCo's (Lembke, Table 2.3; row R10).
//!
//! The labs keep their logs and journals in `/run`, in memory where that is a tmpfs: the line says which.

use super::order::median;
use super::setup_steps::{Steps, report_steps};
use crate::failure::Failure;
use crate::lab::place::{self, HOSTS, METRICS_ADDRESS, Place};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Display;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use weir_api::client::{Client, Context};
use weir_api::types::ApplyRequest;
use weir_lab::{Netns, Scope, scope::CleanOnDrop, system};

/// A lab of the bench.
#[derive(Clone, Copy)]
struct Kind {
    lab: &'static str,
    instance: u8,
    /// Its controllers.
    controllers: &'static [&'static str],
    /// What orders, and who puts signatures together where it is not a controller.
    word: &'static str,
    more: &'static [&'static str],
}

const LABS: [Kind; 5] = [
    Kind { lab: "two-tenants", instance: 8, controllers: &["controller"], word: "local", more: &[] },
    Kind { lab: "three-controllers", instance: 8, controllers: &["c1", "c2", "c3"], word: "raft", more: &[] },
    Kind {
        lab: "four-controllers",
        instance: 8,
        controllers: &["c1", "c2", "c3", "c4"],
        word: "bft",
        more: &[],
    },
    Kind {
        lab: "four-controllers",
        instance: 9,
        controllers: &["c1", "c2", "c3", "c4"],
        word: "bft-at-switches",
        more: &["--signatures", "shares-at-switches"],
    },
    Kind {
        lab: "four-controllers",
        instance: 7,
        controllers: &["c1", "c2", "c3", "c4"],
        word: "bft-endorsed",
        more: &["--signatures", "endorsed"],
    },
];
/// Most addresses of an endpoint: one is sought, the others belong to one that was heard.
const ADDRESSES: u32 = 16;
/// How long anything may take.
const BOUND: Duration = Duration::from_secs(60);
/// How long a question is left alone before its answer is looked for: longer than nearly every answer takes.
const UNSEEN: Duration = Duration::from_millis(30);
/// The network of the bench.
const NETWORK: &str = "setup";

#[derive(Debug, Args)]
pub struct Setup {
    /// Rounds; in each, every lab has one endpoint to seek and fifteen destinations of an endpoint that was heard
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Only these: local, raft, bft, bft-at-switches or bft-endorsed
    #[arg(long, value_parser = LABS.map(|kind| kind.word))]
    only: Vec<String>,
}

fn wrong(error: impl Display) -> Failure {
    Failure::Input(error.to_string())
}

/// Latencies, milliseconds.
#[derive(Default)]
struct Measured {
    heard: Vec<f64>,
    sought: Vec<f64>,
}

/// A lab that is up; it goes when this is dropped.
struct Up {
    kind: Kind,
    client: Client,
    controllers: Vec<Client>,
    sender: Netns,
    measured: Measured,
    /// What its controllers had counted when the questions began.
    before: Steps,
}

impl Drop for Up {
    fn drop(&mut self) {
        // What is left is found and removed by 'weir lab down'.
        let _ended = lab(self.kind, &["down", self.kind.lab]);
    }
}

fn place(kind: Kind) -> Place {
    // The labs above are all there.
    let lab = place::Kind::named(kind.lab).unwrap_or(place::Kind::TwoTenants);
    Place::new(lab, kind.instance)
}

fn lab(kind: Kind, arguments: &[&str]) -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
    let mut command = Command::new(own);
    command.arg("lab").args(arguments).args(["--instance", &kind.instance.to_string()]);
    let output = command.stdin(Stdio::null()).output().map_err(Failure::io("weir lab"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(wrong(format!("weir lab {}: {said}", arguments.join(" "))))
}

/// Waits for something that may fail meanwhile.
fn wait<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let begun = Instant::now();
    loop {
        if let Some(found) = holds() {
            return Ok(found);
        }
        if begun.elapsed() > BOUND {
            return Err(wrong(format!("{what} did not come within {} s", BOUND.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn address(endpoint: u32, number: u32) -> String {
    format!("10.77.{}.{}", 1 + endpoint, 1 + number)
}

fn resources(rounds: u32, sender: &Netns) -> Vec<Value> {
    let mut all = vec![
        json!({"kind": "network", "name": NETWORK, "ingress": "allow", "forwarding": "learned"}),
        json!({"kind": "subnet", "network": NETWORK, "name": "main", "v4": "10.77.0.0/16"}),
        json!({"kind": "endpoint", "network": NETWORK, "name": "sender", "subnet": "main", "host": "h1",
               "addresses": ["10.77.0.11"], "attachment": {"netns": sender.name(), "device": "eth0"}}),
    ];
    for endpoint in 0..rounds {
        let addresses: Vec<String> = (0..ADDRESSES).map(|number| address(endpoint, number)).collect();
        let name = format!("set{endpoint}");
        all.push(
            json!({"kind": "endpoint", "network": NETWORK, "name": name, "subnet": "main", "host": "h2",
                        "addresses": addresses}),
        );
    }
    all
}

impl Up {
    fn bring(kind: Kind, scope: &Scope, rounds: u32) -> Result<Up, Failure> {
        say!("bringing up {} ({})", kind.lab, kind.word);
        lab(kind, &[&["up", kind.lab, "--no-checks"], kind.more].concat())?;
        let folder = PathBuf::from(format!("/run/weir-lab/{}-{}", kind.lab, kind.instance));
        let client = |name: &str| {
            let path = folder.join(name).join("state/admin.json");
            let text = std::fs::read_to_string(&path).map_err(Failure::io(path.display().to_string()))?;
            let context: Context = serde_json::from_str(&text).map_err(wrong)?;
            Ok::<_, Failure>(Client::new(context)?)
        };
        let controllers = kind.controllers.iter().map(|name| client(name)).collect::<Result<Vec<_>, _>>()?;
        let sender = scope.netns(kind.word)?;
        let mut up = Up {
            kind,
            client: client(kind.controllers[0])?,
            controllers,
            sender,
            measured: Measured::default(),
            before: Steps::default(),
        };
        let resources = resources(rounds, &up.sender);
        up.client.apply(&ApplyRequest { resources, wait_ms: 60_000, ..ApplyRequest::default() })?;
        wait("the sender's device", || up.sender.up("eth0").ok())?;
        up.sender.address("eth0", "10.77.0.11/16")?;
        wait("every switch in sync", || {
            let status = up.client.status().ok()?;
            status.actuators.iter().all(|one| one.acked_entries == one.desired_entries).then_some(())
        })?;
        up.before = up.steps()?;
        Ok(up)
    }

    /// What its controllers have counted, and the host that asks.
    fn steps(&self) -> Result<Steps, Failure> {
        let url = format!("http://{METRICS_ADDRESS}/metrics");
        let host = place(self.kind).netns(HOSTS[0].netns).run("curl", &["-sf", &url])?;
        Steps::read(&self.controllers, &host)
    }

    /// Questions that h1 had answered, and the time that they took together, microseconds.
    fn counted(&self) -> Option<(u64, u64)> {
        let counters = self.client.counters("h1").ok()?;
        Some((*counters.get("questions_answered")?, *counters.get("question_us")?))
    }

    /// Sends one datagram to a destination of which nothing is known, and gives how long it waited, milliseconds.
    fn ask(&self, to: &str) -> Result<f64, Failure> {
        let (answered, took_us) = wait("the counters of h1", || self.counted())?;
        let script = format!("echo x >/dev/udp/{to}/9");
        self.sender.run("bash", &["-c", &script])?;
        // Who looks meanwhile takes the processors that the answer needs.
        std::thread::sleep(UNSEEN);
        wait(&format!("an answer for {to} over {}", self.kind.word), || {
            let (now, us) = self.counted()?;
            (now > answered).then(|| (us - took_us) as f64 / 1_000.0 / (now - answered) as f64)
        })
    }

    fn round(&mut self, endpoint: u32) -> Result<(), Failure> {
        let sought = self.ask(&address(endpoint, 0))?;
        self.measured.sought.push(sought);
        for number in 1..ADDRESSES {
            let heard = self.ask(&address(endpoint, number))?;
            self.measured.heard.push(heard);
        }
        Ok(())
    }
}

fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

impl Setup {
    /// With the usual options.
    pub fn usual() -> Setup {
        Setup { rounds: 7, only: Vec::new() }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        system::require_root()?;
        let is_wanted = |kind: &Kind| self.only.is_empty() || self.only.iter().any(|only| only == kind.word);
        let wanted: Vec<Kind> = LABS.into_iter().filter(is_wanted).collect();
        let scope: CleanOnDrop = Scope::begin("bench-setup", "wbs-")?.clean_on_drop();
        let mut labs = Vec::new();
        for lab in wanted {
            labs.push(Up::bring(lab, &scope, self.rounds)?);
        }
        for endpoint in 0..self.rounds {
            for up in &mut labs {
                up.round(endpoint)?;
            }
        }
        let disk = rustix::fs::statfs("/run").map_err(wrong)?.f_type;
        say!("logs and journals in {}", if disk == TMPFS { "memory (tmpfs)" } else { "files of /run" });
        report(&labs)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What `statfs` says of a tmpfs.
const TMPFS: i64 = 0x0102_1994;

fn report(labs: &[Up]) -> Result<(), Failure> {
    let Some(base) = labs.first() else { return Ok(()) };
    for up in labs {
        for (kind, own, other) in [
            ("known", &up.measured.heard, &base.measured.heard),
            ("sought", &up.measured.sought, &base.measured.sought),
        ] {
            for (word, of) in [("p50", 50), ("p90", 90)] {
                let figure = |values: &[f64]| match of {
                    50 => median(values.iter().copied()),
                    _ => percentile(values, of),
                };
                let (own, other) = (figure(own), figure(other));
                say!(
                    "RESULT setup {kind}-{}-{word} weir={own:.2}ms {}={other:.2}ms ratio={:.2}",
                    up.kind.word,
                    base.kind.word,
                    own / other
                );
            }
        }
        say!("{}: {} known, {} sought", up.kind.word, up.measured.heard.len(), up.measured.sought.len());
        let answered = median(up.measured.heard.iter().copied());
        report_steps(up.kind.word, up.kind.more.is_empty(), answered, &up.steps()?.since(&up.before));
    }
    Ok(())
}
