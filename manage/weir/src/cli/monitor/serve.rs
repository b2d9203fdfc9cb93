//! Runs a monitor and serves its status.

use super::{AUDIT_FILE, STATUS_ADDRESS, failure};
use crate::cli::Failure;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::routing::get;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use weir_monitor::audit::Entry;
use weir_monitor::local::Settings;
use weir_monitor::service::{Config, Monitor, OnEntry};
use weir_monitor::webhook;

/// Most entries that wait to be sent to the webhook; more are lost there, not in the audit log.
const WEBHOOK_QUEUE_MAX: usize = 256;
/// How long one try takes at most.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an entry is tried.
const WEBHOOK_TRIES: u32 = 3;

/// What to watch, how.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// File or folder of policies; without it nothing is judged, only shown
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// File of queries
    #[arg(long, value_name = "FILE")]
    query: Option<PathBuf>,
    /// Time between two looks, ms
    #[arg(long, default_value_t = 10)]
    period_ms: u64,
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
}

impl Serve {
    fn settings(&self) -> Settings {
        let period_ns = self.period_ms.max(1).saturating_mul(1_000_000);
        if self.ordinary {
            return Settings { period_ns, cpu: None, priority: None, lock_memory: false };
        }
        let last = std::thread::available_parallelism().map_or(0, |cores| cores.get() - 1);
        Settings {
            period_ns,
            cpu: Some(self.cpu.unwrap_or(last)),
            priority: Some(self.priority),
            lock_memory: true,
        }
    }

    /// Runs it.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let policies =
            self.policy.as_deref().map_or(Ok(Vec::new()), weir_monitor::policy::load).map_err(failure)?;
        let queries =
            self.query.as_deref().map_or(Ok(Vec::new()), weir_monitor::query::load).map_err(failure)?;
        let ring =
            self.ring.as_deref().map(weir_monitor::remote::RingFile::load).transpose().map_err(failure)?;
        let monitor = Monitor::start(Config {
            ring,
            policies,
            queries,
            settings: self.settings(),
            audit: self.audit.clone(),
            sensors: weir_sensor::Directory::new(&self.sensors),
            without_bpf: self.without_bpf,
            on_entry: on_entry(self.webhook.clone())?,
        })
        .map_err(failure)?;
        let status = monitor.status();
        tracing::info!(
            kernel = status.kernel,
            degraded = status.degraded,
            policies = status.policies.len(),
            status = %self.status,
            "the monitor is up"
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::io("starting the status service"))?;
        runtime.block_on(serve_status(Arc::new(monitor), self.status))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Serves until SIGTERM or ctrl-c.
async fn serve_status(monitor: Arc<Monitor>, address: SocketAddr) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |what: &str| Failure::io(what.to_string());
    let listener =
        tokio::net::TcpListener::bind(address).await.map_err(failed("listening for the status"))?;
    let routes = Router::new()
        .route("/metrics", get(metrics))
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
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    axum::serve(listener, routes).with_graceful_shutdown(stop).await.map_err(failed("serving the status"))
}

async fn metrics(State(monitor): State<Arc<Monitor>>) -> impl axum::response::IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], monitor.status().prometheus())
}

/// Who is told of entries: nobody, or a thread that sends them on.
fn on_entry(url: Option<String>) -> Result<OnEntry, Failure> {
    let Some(url) = url else { return Ok(Box::new(|_| ())) };
    let (queue, entries): (SyncSender<Entry>, Receiver<Entry>) = sync_channel(WEBHOOK_QUEUE_MAX);
    std::thread::Builder::new()
        .name("monitor-webhook".into())
        .spawn(move || send_all(&url, &entries))
        .map_err(Failure::io("starting the thread of the webhook"))?;
    Ok(Box::new(move |entry| {
        if queue.try_send(entry.clone()).is_err() {
            tracing::error!(number = entry.number, "an event was not sent to the webhook: its queue is full");
        }
    }))
}

fn send_all(url: &str, entries: &Receiver<Entry>) {
    let config = ureq::Agent::config_builder().timeout_global(Some(WEBHOOK_TIMEOUT)).build();
    let agent = ureq::Agent::new_with_config(config);
    for entry in entries {
        let Some(body) = webhook::message(&entry) else { continue };
        let sent = (0..WEBHOOK_TRIES).any(|number| {
            std::thread::sleep(Duration::from_millis(200) * number);
            agent
                .post(url)
                .send_json(&body)
                .inspect_err(|error| tracing::warn!(%error, url, "the webhook"))
                .is_ok()
        });
        if !sent {
            tracing::error!(number = entry.number, url, "an event was not sent to the webhook");
        }
    }
}
