//! Runs a monitor and serves its status.

use super::{AUDIT_FILE, STATUS_ADDRESS, export, failure};
use crate::failure::Failure;
use crate::roles::monitor::{Attached, Place};
use crate::roles::node::{self, PidFile};
use crate::roles::plane::OfHost;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::routing::get;
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use weir_actuator::service;
use weir_agent::supervise::{MONITOR_LOCK, RunLock};
use weir_api::serve::Plain;
use weir_model::Label;
use weir_monitor::audit::Entry;
use weir_monitor::dataplane::Pulse;
use weir_monitor::local::{self, Settings};
use weir_monitor::plane::{Acting, Repairer, Telling};
use weir_monitor::policy::{POLICIES_MAX, Policy};
use weir_monitor::remote::RingFile;
use weir_monitor::service::{Config, Monitor};
use weir_monitor::webhook::{self, Answer, Webhook, judge};

/// Queries in a folder of policies.
const QUERIES_FILE: &str = "queries.txt";
/// How long one try takes at most.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// What to watch, how.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// File or folder of policies, or 'builtin', which only reports; without it nothing is judged, only shown
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// File of queries; without it 'queries.txt' in the folder of policies, if there is one
    #[arg(long, value_name = "FILE")]
    query: Option<PathBuf>,
    /// Time between two looks, ms
    #[arg(long, default_value_t = 10)]
    period_ms: u64,
    /// The same while there are signs of trouble: many forks, memory that is filling up, a loop that is late
    #[arg(long, default_value_t = 1)]
    quick_period_ms: u64,
    /// Processor to stay on; the last one if it is not given
    #[arg(long)]
    cpu: Option<usize>,
    /// Real-time priority of the loop, 1 to 99
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i32).range(1..100))]
    priority: i32,
    /// Run like any other program: no pinning, no real-time priority, no locked memory
    #[arg(long)]
    ordinary: bool,
    /// Hear the kernel by its process connector, not by programs in it
    #[arg(long)]
    without_bpf: bool,
    /// The audit log
    #[arg(long, default_value = AUDIT_FILE)]
    audit: PathBuf,
    /// Folder in which sensor boxes are registered
    #[arg(long, default_value = weir_sensor::FOLDER)]
    sensors: PathBuf,
    /// Address of /metrics, /status and /events, which the other commands read. It shows who does what: keep it private
    #[arg(long, default_value = STATUS_ADDRESS)]
    status: SocketAddr,
    /// File of the ring of hosts that watch each other
    #[arg(long, value_name = "FILE")]
    ring: Option<PathBuf>,
    /// Where alarms are sent, in the form that alertmanager sends to its webhooks
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// OpenTelemetry collector that metrics are sent to, by HTTP with JSON (such as http://127.0.0.1:4318)
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Time between two sendings to it, s
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    otlp_every_s: u64,
    /// Settings of this host ('weir host --config', or node.json in its state directory): what is seen is told to the controllers,
    /// what they order is verified, carried out and acked by the monitor itself, as a plane of the host
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    host_config: Option<PathBuf>,
    /// The same, where a file that is not there means that this machine is no host
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// What --host-config was in releases before: the run directory of the host's switch
    #[arg(long, value_name = "DIR", requires = "report_as", conflicts_with_all = ["node", "host_config"], hide = true)]
    report_to: Option<PathBuf>,
    /// And the host's name
    #[arg(long, value_name = "NAME", requires = "report_to", hide = true)]
    report_as: Option<Label>,
    /// Do without what the machine refuses (priority, locked memory, the status address), and say so
    #[arg(long)]
    where_possible: bool,
}

impl Serve {
    fn settings(&self) -> Settings {
        let ns = |ms: u64| ms.max(1).saturating_mul(1_000_000);
        let (period_ns, quick_period_ns) = (ns(self.period_ms), ns(self.quick_period_ms));
        if self.ordinary {
            return Settings { period_ns, quick_period_ns, cpu: None, priority: None, lock_memory: false };
        }
        let last = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
        Settings {
            period_ns,
            quick_period_ns,
            cpu: Some(self.cpu.unwrap_or(last)),
            priority: Some(self.priority),
            lock_memory: true,
        }
    }

    /// The host whose monitor it is, if it is one's.
    fn place(&self) -> Result<Option<Place>, Failure> {
        let (host, name) = match (&self.host_config, &self.node, &self.report_to, &self.report_as) {
            (Some(config), ..) => (OfHost::read(config)?, node::name(config)?),
            (None, Some(config), ..) if config.exists() => (OfHost::read(config)?, node::name(config)?),
            (None, _, Some(run), Some(name)) => (OfHost::at(run.clone()), name.clone()),
            _ => return Ok(None),
        };
        Ok(Some(Place { host, name, audit: self.audit.clone() }))
    }

    /// Runs it.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let place = self.place()?;
        // Of two in one place the second would write into the first one's audit log.
        let _lock = place.as_ref().map(|place| {
            let taken = RunLock::take(&place.host.run().join(MONITOR_LOCK), "monitor");
            let pid = PidFile::write(place.host.run(), "monitor");
            taken.map_err(|error| Failure::Input(error.to_string())).and_then(|lock| Ok((lock, pid?)))
        });
        let _lock = _lock.transpose()?;
        let telling = Telling::new(&self.audit);
        let monitor = Arc::new(self.start(place.as_ref(), telling.clone())?);
        let status = monitor.status();
        tracing::info!(
            kernel = status.kernel,
            degraded = status.degraded,
            policies = status.policies.len(),
            status = %self.status,
            "the monitor is up"
        );
        let attached = place.map(|place| Attached::start(&monitor, place, telling)).transpose()?;
        if let Some(url) = &self.otlp {
            export::start(&monitor, url, Duration::from_secs(self.otlp_every_s))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::io("starting the status service"))?;
        let is_sound = || match self.files() {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(%error, "SIGHUP: the monitor goes on with what it had");
                false
            }
        };
        let plane = attached.as_ref().map(Attached::metrics);
        let served = serve_status((monitor.clone(), plane), self.status, self.where_possible, is_sound);
        let ending = runtime.block_on(served);
        // What is in hand is done, then nothing more; then the monitor ends.
        drop(attached);
        drop(monitor);
        match ending? {
            Ending::Stop => Ok(ExitCode::SUCCESS),
            Ending::Anew => Err(begin_anew()),
        }
    }

    /// Policies and queries as the files are now.
    fn files(&self) -> Result<(Vec<Policy>, Vec<weir_monitor::query::Query>), Failure> {
        let policies = match self.policy.as_deref() {
            None => Ok(Vec::new()),
            Some(path) if path == Path::new("builtin") => weir_monitor::policy::builtin(),
            Some(path) => weir_monitor::policy::load(path).and_then(or_builtin),
        };
        let beside =
            self.policy.as_ref().map(|folder| folder.join(QUERIES_FILE)).filter(|file| file.is_file());
        let queries = self.query.as_ref().or(beside.as_ref());
        let queries = queries.map_or(Ok(Vec::new()), |path| weir_monitor::query::load(path));
        Ok((policies.map_err(failure)?, queries.map_err(failure)?))
    }

    /// Starts the monitor, perhaps with less than was wanted.
    fn start(&self, place: Option<&Place>, telling: Telling) -> Result<Monitor, Failure> {
        let settings = self.settings();
        let obstacle = local::try_settings(&settings).err();
        let settings = match obstacle {
            Some(error) if self.where_possible => {
                tracing::warn!(%error, "DEGRADED: the monitor runs like any other program");
                Settings { cpu: None, priority: None, lock_memory: false, ..settings }
            }
            _ => settings,
        };
        let (mut policies, queries) = self.files()?;
        if let Some(place) = place.filter(|place| place.host.has_switch()) {
            watch_switch(&place.name, &mut policies);
        }
        let webhook = self.webhook.as_ref().map(|url| {
            Webhook::start(&self.audit, Box::new(Post::new(url)), webhook::Settings::default()).map(Arc::new)
        });
        let config = Config {
            webhook: webhook.transpose().map_err(failure)?,
            ring: self.ring.as_deref().map(RingFile::load).transpose().map_err(failure)?,
            policies,
            queries,
            settings,
            audit: self.audit.clone(),
            sensors: weir_sensor::Directory::new(&self.sensors),
            without_bpf: self.without_bpf,
            on_entry: Box::new(move |entry: &Entry| telling.hear(entry)),
        };
        Monitor::start(config).map_err(failure)
    }
}

/// The monitor of a host watches its switch, unless a policy does so already.
fn watch_switch(name: &Label, policies: &mut Vec<Policy>) {
    let own = Pulse::name(name.as_str());
    let watched = |policy: &Policy| matches!(policy, Policy::Stalled(stalled) if stalled.sensor_box == own);
    if !policies.iter().any(watched) && policies.len() < POLICIES_MAX {
        policies.push(Pulse::policy(name.as_str()));
    }
}

/// A folder in which nobody wrote any policy yet is no reason to notice nothing.
fn or_builtin(found: Vec<Policy>) -> weir_monitor::Result<Vec<Policy>> {
    if found.is_empty() {
        tracing::warn!("no policies were written: those that are built in only report");
        return weir_monitor::policy::builtin();
    }
    Ok(found)
}

/// How a monitor ends.
enum Ending {
    Stop,
    /// As a process of the same number that reads its files anew.
    Anew,
}

/// Begins anew, as it was started; returns why that was not done.
fn begin_anew() -> Failure {
    use std::os::unix::process::CommandExt;
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_else(|| "weir".into());
    let error = std::process::Command::new(&program).args(words).exec();
    Failure::io(format!("starting {} anew", program.display()))(error)
}

/// What takes orders, for whoever tells of it.
type Plane = service::Weak<Repairer<Acting>>;

/// Serves until SIGTERM or ctrl-c, or until SIGHUP finds files that are sound.
async fn serve_status(
    (monitor, plane): (Arc<Monitor>, Option<Plane>),
    address: SocketAddr,
    where_possible: bool,
    is_sound: impl Fn() -> bool,
) -> Result<Ending, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |what: &str| Failure::io(what.to_string());
    let listener = match tokio::net::TcpListener::bind(address).await {
        Ok(listener) => Some(listener),
        Err(error) if where_possible => {
            tracing::warn!(%address, %error, "DEGRADED: the monitor shows its status nowhere");
            None
        }
        Err(error) => return Err(failed("listening for the status")(error)),
    };
    let routes = Router::new()
        .route("/metrics", get(move |monitor| metrics(monitor, plane.clone())))
        .route(
            "/status",
            get(|State(monitor): State<Arc<Monitor>>| async move { axum::Json(monitor.status()) }),
        )
        .route(
            "/events",
            get(|State(monitor): State<Arc<Monitor>>| async move { axum::Json(monitor.recent()) }),
        )
        .with_state(monitor);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("waiting for SIGTERM"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed("waiting for SIGHUP"))?;
    let ends = async {
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ending::Stop,
                _ = tokio::signal::ctrl_c() => return Ending::Stop,
                _ = hangup.recv() => if is_sound() { return Ending::Anew },
            }
        }
    };
    let Some(listener) = listener else { return Ok(ends.await) };
    // Who asks meanwhile is not answered: an end waits for nobody.
    tokio::select! {
        ending = ends => Ok(ending),
        served = axum::serve(Plain::new(listener), routes).into_future() => {
            served.map(|()| Ending::Stop).map_err(failed("serving the status"))
        }
    }
}

async fn metrics(
    State(monitor): State<Arc<Monitor>>,
    plane: Option<Plane>,
) -> impl axum::response::IntoResponse {
    let plane = plane.map(|plane| plane.metrics_text()).unwrap_or_default();
    let text = monitor.status().prometheus() + &plane + &crate::roles::process::metrics_text();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

/// The webhook, over HTTP.
struct Post {
    url: String,
    agent: ureq::Agent,
}

impl Post {
    fn new(url: &str) -> Post {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(WEBHOOK_TIMEOUT))
            .http_status_as_error(false)
            // What follows one is no POST any more, and would be taken for an alert that was received.
            .max_redirects(0)
            .max_redirects_will_error(false);
        Post { url: url.to_string(), agent: ureq::Agent::new_with_config(config.build()) }
    }
}

impl webhook::Receiver for Post {
    fn post(&mut self, message: &[u8]) -> Answer {
        let sent = self.agent.post(&self.url).header("content-type", "application/json").send(message);
        match sent {
            Ok(answer) => {
                let after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
                judge(answer.status().as_u16(), after, std::time::SystemTime::now())
            }
            Err(error) => Answer::Later { why: error.to_string(), after: None },
        }
    }
}
