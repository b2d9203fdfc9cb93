//! `weir bench scale`: 10,000 endpoints over 200 hosts (row A12 in a first form).
//!
//! The controller is a process of its own with its real log; the hosts are simulated up to the gate:
//! real joining, TLS sessions, signatures, journals and acks, but no packets. Their journals are in memory where the
//! system has a place for that: so many hosts have as many disks, and not this machine's one. While the large
//! transaction is decided and programmed, another tenant makes small changes: what they wait is what
//! a stalled controller would show (pains 1 and 7).
//!
//! Each run has a new controller and new hosts; told are the median and the range of all runs, because what a
//! small change waits at most is a matter of when it comes. The transaction counts as in force when every switch
//! has acked everything up to its version: the other tenant's changes go on and are always a little behind.

use super::simulated::{Folder, Host};
use crate::failure::Failure;
use clap::Args;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_api::client::{Client, Context};
use weir_api::types::{ActuatorStatus, ApplyRequest};
use weir_model::Label;
use weir_model::event::Role;

/// Everything together may take so long.
const BOUND: Duration = Duration::from_secs(120);
/// How many single changes are timed in a run.
const SINGLES: usize = 21;

/// Over how many single changes, one after the other, their cost is taken: the clock of the kernel for processor time ticks 100 times a second.
const COSTED: u32 = 800;

/// A tick of that clock, us: fixed by the kernel's interface.
const TICK_US: f64 = 10_000.0;

/// What a run measures, with its unit and digits behind the point.
const FIGURES: [(&str, &str, usize); 15] = [
    ("accepted", "ms", 0),
    ("all_in_force", "ms", 0),
    ("small_change_meanwhile_p50", "ms", 1),
    ("small_change_meanwhile_p99", "ms", 1),
    ("small_change_meanwhile_max", "ms", 1),
    ("one_more_in_force_p50", "ms", 1),
    ("one_more_in_force_max", "ms", 1),
    ("memory_idle", "MiB", 1),
    ("memory_after", "MiB", 1),
    ("memory_peak", "MiB", 1),
    ("memory_of_tables", "MiB", 1),
    ("memory_of_the_watch_feed", "MiB", 1),
    ("cpu_of_one_more", "us", 0),
    ("log_of_one_more", "B", 0),
    ("audit_of_one_more", "B", 0),
];
type Run = [f64; FIGURES.len()];

#[derive(Debug, Args)]
pub struct Scale {
    /// Endpoints of one transaction
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=18_000))]
    endpoints: u32,
    /// Hosts
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=400))]
    hosts: u32,
    /// Runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Size of the controller's audit, MiB; 0: it keeps none, so that the difference is what the audit costs
    #[arg(long, default_value_t = 1024)]
    audit_mebibytes: u32,
    /// Folder for scale.md
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

impl Scale {
    /// With the usual options.
    pub fn usual() -> Scale {
        Scale {
            endpoints: 10_000,
            hosts: 200,
            runs: 5,
            audit_mebibytes: 1024,
            results: "bench-results".into(),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut runs = Vec::new();
        for number in 1..=self.runs {
            say!("run {number} of {}", self.runs);
            runs.push(self.once()?);
        }
        let table = report(&runs);
        std::fs::create_dir_all(&self.results)
            .and_then(|()| std::fs::write(self.results.join("scale.md"), &table))
            .map_err(Failure::io(self.results.display().to_string()))?;
        say!("{table}");
        Ok(ExitCode::SUCCESS)
    }

    fn once(&self) -> Result<Run, Failure> {
        let folder = std::env::temp_dir().join(format!("weir-bench-scale-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(Failure::io(folder.display().to_string()))?;
        let hosts = Folder::new("scale-hosts")?;
        let result = self.measure(&folder, hosts.path());
        let removed = std::fs::remove_dir_all(&folder);
        if result.is_ok() {
            removed.map_err(Failure::io(folder.display().to_string()))?;
        }
        result
    }

    fn measure(&self, folder: &Path, hosts: &Path) -> Result<Run, Failure> {
        let controller = Controller::start(folder, self.audit_mebibytes)?;
        let client = controller.client()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(Failure::io("starting threads"))?;
        let sessions = [controller.session.clone()];
        for number in 0..=self.hosts {
            let (name, role) = member(number);
            Host::join((name, role, number), &client, hosts, &runtime)?.serve(&sessions, &runtime);
        }
        wait("every session", || Ok(client.status()?.actuators.iter().all(|one| one.connected)))?;
        say!("{} hosts and a gateway are joined and connected", self.hosts);
        let idle_kib = controller.memory_kib("VmRSS")?;
        self.apply(&client, &controller, idle_kib)
    }

    fn apply(&self, client: &Client, controller: &Controller, idle_kib: u64) -> Result<Run, Failure> {
        let request = |resources| ApplyRequest { resources, ..ApplyRequest::default() };
        let networks = vec![
            json!({"kind": "network", "name": "large"}),
            json!({"kind": "subnet", "network": "large", "name": "a", "v4": "10.0.0.0/16"}),
            json!({"kind": "firewall-rule", "network": "large", "name": "web", "direction": "ingress",
                   "action": "allow", "protocol": "tcp", "ports": ["80"], "peers": [{"tag": "client"}]}),
            json!({"kind": "network", "name": "other"}),
        ];
        client.apply(&request(networks))?;

        let stop = Arc::new(AtomicBool::new(false));
        let other = { Client::new(controller.context()?)? };
        let probe = std::thread::spawn({
            let stop = stop.clone();
            move || probe(&other, &stop)
        });
        std::thread::sleep(Duration::from_secs(1));
        let endpoints = (0..self.endpoints).map(|number| self.endpoint(number)).collect();
        let started = Instant::now();
        let applied = client.apply(&request(endpoints))?;
        let accepted_ms = started.elapsed().as_secs_f64() * 1e3;
        wait("every endpoint in force", || {
            let version = applied.version.unwrap_or_default();
            let reached = |one: &ActuatorStatus| one.acked_version >= version.min(one.desired_version);
            Ok(client.status()?.actuators.iter().all(reached))
        })?;
        let in_force_ms = started.elapsed().as_secs_f64() * 1e3;
        stop.store(true, Ordering::Relaxed);
        let mut waits = probe.join().map_err(|_| Failure::Input("the probe ended early".into()))?;
        waits.sort_by(f64::total_cmp);

        let mut singles = Vec::new();
        for number in 0..SINGLES as u32 {
            let started = Instant::now();
            let one = ApplyRequest {
                resources: vec![self.endpoint(self.endpoints + number)],
                wait_ms: 30_000,
                ..ApplyRequest::default()
            };
            let done = client.apply(&one)?;
            if !done.in_force {
                return Err(Failure::Input("one endpoint more was not in force within 30 s".into()));
            }
            singles.push(started.elapsed().as_secs_f64() * 1e3);
        }
        singles.sort_by(f64::total_cmp);
        let [cpu_us, log_bytes, audit_bytes] = self.cost(client, controller)?;
        let mib = |kib: u64| kib as f64 / 1024.0;
        let metrics = client.metrics()?;
        let at = |sorted: &[f64], share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
        say!(
            "{} endpoints over {} hosts: {} updates on {} switches",
            self.endpoints,
            self.hosts,
            applied.updates_total,
            applied.switches
        );
        Ok([
            accepted_ms,
            in_force_ms,
            at(&waits, 0.5),
            at(&waits, 0.99),
            at(&waits, 1.0),
            at(&singles, 0.5),
            at(&singles, 1.0),
            mib(idle_kib),
            mib(controller.memory_kib("VmRSS")?),
            mib(controller.memory_kib("VmHWM")?),
            metric(&metrics, "weir_controller_store_bytes")? / f64::from(1 << 20),
            metric(&metrics, "weir_controller_feed_bytes")? / f64::from(1 << 20),
            cpu_us,
            log_bytes,
            audit_bytes,
        ])
    }

    /// What one endpoint more costs the controller, on average: processor time, us; bytes of its log; bytes of its audit.
    fn cost(&self, client: &Client, controller: &Controller) -> Result<[f64; 3], Failure> {
        let spent = || -> Result<[f64; 3], Failure> {
            let text = client.metrics()?;
            let log = metric(&text, "weir_controller_log_total{what=\"appended_bytes\"}")?;
            // None where no audit is kept.
            let audit = metric(&text, "weir_controller_audit_total{what=\"bytes\"}").unwrap_or(0.0);
            Ok([controller.cpu_us()?, log, audit])
        };
        let before = spent()?;
        for number in 0..COSTED {
            let resources = vec![self.endpoint(self.endpoints + SINGLES as u32 + number)];
            let done =
                client.apply(&ApplyRequest { resources, wait_ms: 30_000, ..ApplyRequest::default() })?;
            if !done.in_force {
                return Err(Failure::Input("one endpoint more was not in force within 30 s".into()));
            }
        }
        let after = spent()?;
        Ok(std::array::from_fn(|nth| (after[nth] - before[nth]) / f64::from(COSTED)))
    }

    fn endpoint(&self, number: u32) -> serde_json::Value {
        let tag = if number.is_multiple_of(10) { "client" } else { "server" };
        json!({"kind": "endpoint", "network": "large", "name": format!("e{number}"), "subnet": "a",
               "host": format!("h{}", number % self.hosts), "tags": [tag]})
    }
}

/// The value of a metric without labels.
fn metric(text: &str, name: &str) -> Result<f64, Failure> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.ok_or_else(|| Failure::Input(format!("the controller has no metric {name}")))
}

/// Prints the figures of all runs, and gives them as a table: medians and ranges.
fn report(runs: &[Run]) -> String {
    let mut rows = Vec::new();
    for (number, (name, unit, digits)) in FIGURES.into_iter().enumerate() {
        let mut all: Vec<f64> = runs.iter().map(|run| run[number]).collect();
        all.sort_by(f64::total_cmp);
        let (least, median, most) = (all[0], all[all.len() / 2], all[all.len() - 1]);
        say!("RESULT scale {name} weir={median:.digits$}{unit}");
        let range = format!("{least:.digits$}-{most:.digits$}");
        rows.push(vec![name.replace('_', " "), format!("{median:.digits$}"), range, unit.to_string()]);
    }
    weir_lab::table::markdown(&["figure", "median", "range", "unit"], &rows)
}

/// Another tenant's small changes, one after the other; each one's time until it is durable, milliseconds.
fn probe(client: &Client, stop: &AtomicBool) -> Vec<f64> {
    let mut waits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mtu = 1300 + waits.len() % 100;
        let change = ApplyRequest {
            resources: vec![json!({"kind": "network", "name": "other", "mtu": mtu})],
            ..ApplyRequest::default()
        };
        let started = Instant::now();
        if client.apply(&change).is_ok() {
            waits.push(started.elapsed().as_secs_f64() * 1e3);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    waits
}

fn wait(what: &str, mut done: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let until = Instant::now() + BOUND;
    while !done()? {
        if Instant::now() > until {
            return Err(Failure::Input(format!("{what}: not within {} s", BOUND.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The gateway is number 0.
fn member(number: u32) -> (Label, Role) {
    let (name, role) = if number == 0 {
        ("g1".to_string(), Role::Gateway)
    } else {
        (format!("h{}", number - 1), Role::Host)
    };
    match Label::new(name) {
        Ok(name) => (name, role),
        Err(error) => unreachable!("{error}"),
    }
}

struct Controller {
    child: Child,
    state: PathBuf,
    session: String,
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Controller {
    fn start(folder: &Path, audit_mebibytes: u32) -> Result<Controller, Failure> {
        let (state, settings) = (folder.join("controller"), folder.join("controller.yaml"));
        std::fs::write(&settings, format!("auditMebibytes: {audit_mebibytes}\n"))
            .map_err(Failure::io(settings.display().to_string()))?;
        let own = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        // Below the ports that the system hands out itself.
        let (api, session) = ("127.0.0.1:17443", "127.0.0.1:17444".to_string());
        let child = Command::new(own)
            .args(["controller", "--domain", "scale", "--api", api, "--session", &session, "--state"])
            .arg(&state)
            .arg("--config")
            .arg(&settings)
            .env("WEIR_LOG", "warn")
            .stdin(Stdio::null())
            .spawn()
            .map_err(Failure::io("starting a controller"))?;
        let controller = Controller { child, state, session };
        wait("the controller", || Ok(controller.client().is_ok_and(|client| client.status().is_ok())))?;
        Ok(controller)
    }

    fn context(&self) -> Result<Context, Failure> {
        crate::cli::load_context(Some(&self.state.join("admin.json")))
    }

    fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(self.context()?)?)
    }

    /// Processor time that it has used, user and system, us.
    fn cpu_us(&self) -> Result<f64, Failure> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(Failure::io(path.clone()))?;
        let (_, fields) = text.rsplit_once(')').unwrap_or_default();
        // Behind the name: state is the first, user and system time the 12th and 13th, in ticks.
        let ticks: f64 =
            fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        Ok(ticks * TICK_US)
    }

    fn memory_kib(&self, field: &str) -> Result<u64, Failure> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&path).map_err(Failure::io(path.clone()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .ok_or_else(|| Failure::Input(format!("{path} has no {field}")))
    }
}
