//! The agent's process: all tasks together.

use crate::AgentError;
use crate::config::{AgentConfig, check_controllers};
use crate::dns;
use crate::hub;
use crate::join;
use crate::kept;
use crate::link;
use crate::ports::Keeper;
use crate::punts::{self, Answerer};
use crate::session::driver::Plan;
use crate::session::{self, tls};
use crate::shared::Shared;
use crate::switchless::Switchless;
use crate::wire::{read_frame, write_frame};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use weir_admission::{Door, Guarded, Limits};
use weir_base::codec::CodecError;
use weir_base::exposition::{Exposition, Kind};
use weir_model::event::Role;
use weir_model::local::{Answer, FromSwitch, Question, ToSwitch};

/// Frames of the switch that wait for the session.
const LINK_EVENTS_MAX: usize = 256;
/// Most requests for metrics at once.
const SCRAPES_MAX: usize = 8;
/// A request for metrics takes at most so long, milliseconds.
const SCRAPE_MS: u64 = 5000;
/// The switch gets so long of it to tell its counters, milliseconds.
const SWITCH_COUNTERS_MS: u64 = 2000;
/// Frames of the switch looked at for the answer.
const SWITCH_FRAMES_MAX: usize = 16;

/// Puts a switch's counters, by name with labels, into Prometheus' text format.
pub type SwitchMetrics = fn(&[(String, u64)]) -> String;
/// What every process tells of itself, in Prometheus' text format.
pub type ProcessMetrics = fn() -> String;

/// An agent that has read its files and is not running yet.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    shared: Arc<Shared>,
    plan: Plan,
    keeper_dir: std::path::PathBuf,
    switch_metrics: Option<SwitchMetrics>,
    process_metrics: Option<ProcessMetrics>,
}

impl Agent {
    /// Reads identity and membership.
    ///
    /// # Errors
    /// What is missing or wrong in the state directory, such as that it has not joined.
    pub fn new(config: AgentConfig) -> Result<Agent, AgentError> {
        kept::check(&config.state_dir)?;
        let membership = join::membership(&config.state_dir)?;
        let controllers = match (&config.controllers[..], membership) {
            ([], Some(member)) => member.controllers,
            ([], None) => {
                let allowed =
                    "list host:port of each controller, or join first: `weir host` with WEIR_JOIN_TOKEN";
                return Err(AgentError::field("controllers", "", allowed));
            }
            (given, _) => given.to_vec(),
        };
        check_controllers("controllers", &controllers)?;
        // What an earlier agent had got of new keys counts from its first session on.
        session::rotation::Rotation::open(&config.state_dir, &config.name)?;
        let identity = join::identity(&config.state_dir)?.public();
        // Read now, so that a wrong file is told at once and not at the first session.
        tls::session_config(&config.state_dir)?;
        kept::record(&config.state_dir);
        let settings = session::Settings {
            actuator: config.name.clone(),
            role: config.role,
            software: env!("CARGO_PKG_VERSION").to_string(),
            identity,
            underlay: config.underlay,
            controllers,
            backoff_min_ms: config.settings.backoff_min_ms,
            backoff_max_ms: config.settings.backoff_max_ms,
        };
        let shared = Arc::new(Shared::new(config.name.clone()));
        let learns = config.controllers.is_empty();
        let plan = Plan { settings, learns, state_dir: config.state_dir.clone() };
        let keeper_dir = config.state_dir.clone();
        Ok(Agent { config, shared, plan, keeper_dir, switch_metrics: None, process_metrics: None })
    }

    /// Serves the switch's counters beside the agent's own, in this format.
    pub fn with_switch_metrics(self, format: SwitchMetrics) -> Agent {
        Agent { switch_metrics: Some(format), ..self }
    }

    /// Serves this beside its own counters: what every process tells of itself.
    pub fn with_process_metrics(self, text: ProcessMetrics) -> Agent {
        Agent { process_metrics: Some(text), ..self }
    }

    /// Counters, mirror and problems, for whoever shows them.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Runs until `stop` becomes true. Devices, and whatever the switch holds, stay.
    ///
    /// # Errors
    /// The list of devices cannot be read, or the metrics address cannot be used.
    pub async fn run(self, mut stop: watch::Receiver<bool>) -> Result<(), AgentError> {
        let Agent { config, shared, plan, keeper_dir, switch_metrics, process_metrics } = self;
        let keeper = Keeper::new(shared.clone(), config.settings.netns_dir.clone(), &keeper_dir)?;
        let dns_settings = dns::Settings {
            role: config.role,
            gateway_port: config.settings.dns.gateway_port,
            underlay: Some(config.underlay),
            upstream: config.settings.dns.upstream.clone(),
        };
        let answerer = Arc::new(Answerer::new(shared.clone(), dns_settings));
        let (events, link_events) = mpsc::channel(LINK_EVENTS_MAX);
        let mut tasks = JoinSet::new();
        if let Some(address) = config.settings.metrics {
            let listener = TcpListener::bind(address)
                .await
                .map_err(|source| AgentError::Socket { what: format!("metrics on {address}"), source })?;
            let socket = link::control_socket(&config.run_dir);
            let switch_metrics = switch_metrics.filter(|_| config.role.has_switch());
            let scraped = Scraped {
                shared: shared.clone(),
                socket,
                role: config.role,
                switch_metrics,
                process_metrics,
            };
            tasks.spawn(serve_metrics(scraped, listener));
        }
        let place = match config.role.has_switch() {
            true => link::Place::Socket(link::control_socket(&config.run_dir)),
            false => {
                let here = Switchless::open(&config.state_dir, &config.name)?;
                link::Place::Here(Arc::new(Mutex::new(here)))
            }
        };
        tasks.spawn(link::run(shared.clone(), place, events));
        let (plane_events, planes) = mpsc::channel(LINK_EVENTS_MAX);
        tasks.spawn(hub::driver::run(config.run_dir.clone(), plane_events));
        tasks.spawn(session::driver::run(shared.clone(), plan, link_events, planes));
        if config.role.has_switch() {
            tasks.spawn(keeper.run());
            tasks.spawn(punts::run(answerer, config.run_dir.clone()));
        }
        if config.role == Role::Gateway {
            let address = SocketAddr::new(config.underlay, config.settings.dns.gateway_port);
            tasks.spawn(dns::listener::run(shared.clone(), address));
        }
        tokio::select! {
            _ = stop.wait_for(|&stop| stop) => tracing::info!("the agent ends; the switch goes on"),
            ended = tasks.join_next() => tracing::error!(?ended, "a task of the agent ended; the agent ends too"),
        }
        Ok(())
    }
}

/// What is told of agent and switch.
#[derive(Clone, Debug)]
struct Scraped {
    shared: Arc<Shared>,
    /// The switch's control socket.
    socket: PathBuf,
    role: Role,
    switch_metrics: Option<SwitchMetrics>,
    process_metrics: Option<ProcessMetrics>,
}

impl Scraped {
    /// The agent's metrics, and behind them the switch's.
    async fn text(&self) -> String {
        let mut text = self.shared.metrics.metrics_text();
        text.push_str(&self.process_metrics.map(|told| told()).unwrap_or_default());
        if let Some(format) = self.switch_metrics {
            let limit = Duration::from_millis(SWITCH_COUNTERS_MS);
            let counters = tokio::time::timeout(limit, switch_counters(&self.socket)).await;
            let counters = counters.ok().and_then(Result::ok);
            let mut up = Exposition::new();
            let (help, told) =
                ("Whether the switch told its counters.", f64::from(u8::from(counters.is_some())));
            up.put("weir_switch_up", Kind::Gauge, help, &[], told);
            text.push_str(&up.text());
            text.push_str(&format(&counters.unwrap_or_default()));
        }
        text
    }
}

/// Asks the switch for its counters, on a connection of its own.
async fn switch_counters(socket: &Path) -> Result<Vec<(String, u64)>, CodecError> {
    let mut stream = UnixStream::connect(socket).await?;
    write_frame(&mut stream, &ToSwitch::Ask { id: 1, question: Question::Counters }).await?;
    for _ in 0..SWITCH_FRAMES_MAX {
        if let FromSwitch::Answer { answer: Answer::Counters(counters), .. } = read_frame(&mut stream).await?
        {
            return Ok(counters);
        }
    }
    Err(CodecError::Closed)
}

/// `GET /metrics` for Prometheus and `GET /healthz` for checks from afar (row A16).
async fn serve_metrics(scraped: Scraped, listener: TcpListener) {
    let limits = Limits {
        strangers_max: SCRAPES_MAX,
        strangers_per_address_max: SCRAPES_MAX,
        stranger_life: Duration::from_millis(SCRAPE_MS),
        ..Limits::default()
    };
    let door = Door::new("metrics", limits);
    loop {
        let (stream, _) = weir_admission::accept(&listener, &door).await;
        let scraped = scraped.clone();
        tokio::spawn(async move {
            let limit = Duration::from_millis(SCRAPE_MS);
            // A scraper that is slow or gone scrapes again.
            let _ = tokio::time::timeout(limit, serve_one(&scraped, stream)).await;
        });
    }
}

async fn serve_one(scraped: &Scraped, mut stream: Guarded<TcpStream>) -> std::io::Result<()> {
    let mut request = [0_u8; 1024];
    let mut filled = 0;
    while filled < request.len() && !request[..filled].contains(&b'\n') {
        match stream.read(&mut request[filled..]).await? {
            0 => return Ok(()),
            read => filled += read,
        }
    }
    let (status, body) = match &request[..filled] {
        line if line.starts_with(b"GET /metrics ") => ("200 OK", scraped.text().await),
        line if line.starts_with(b"GET /healthz ") => health(&scraped.shared, scraped.role),
        _ => ("404 Not Found", "ask for /metrics or /healthz\n".to_string()),
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Healthy is an agent that can do its work here: the switch is there, where the host has one, and its entries are read. A
/// missing controller does not make a host ill.
fn health(shared: &Shared, role: Role) -> (&'static str, String) {
    let metrics = &shared.metrics;
    let well = metrics.link_up.get() == 1 && shared.synced();
    let mut text = format!(
        "switch {}\nentries {}\nsession {}\n",
        match (role.has_switch(), metrics.link_up.get()) {
            (false, _) => "none: this host has planes only",
            (true, 1) => "connected",
            (true, _) => "missing",
        },
        if shared.synced() { "read" } else { "not read yet" },
        if metrics.session_up.get() == 1 { "established" } else { "none" },
    );
    for (key, reason) in shared.problems().iter() {
        text.push_str(&format!("{key}: {reason}\n"));
    }
    (if well { "200 OK" } else { "503 Service Unavailable" }, text)
}
