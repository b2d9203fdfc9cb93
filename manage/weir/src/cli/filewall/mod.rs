//! `weir filewall`: runs a FileWall, looks at one, and pushes policies to one.

mod ask;
mod push;
mod top;

use super::Failure;
use crate::roles::filewall::Orders;
use crate::roles::filewall::plane::Ordered;
use crate::roles::filewall::plane::Wall;
use crate::roles::plane::OfHost;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::routing::get;
use clap::{Args, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use weir_actuator::service;
use weir_api::client::Client;
use weir_filewall::proxy::{Config, FileWall, Limits, Server};
use weir_filewall::replicate::Plan;
use weir_model::Label;

/// Where a FileWall shows what it does, unless another address is given.
const STATUS_ADDRESS: &str = "127.0.0.1:9749";

/// `weir filewall …`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct FileWallArguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Option<Serve>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a FileWall ('weir filewall --server …' is the same)
    Serve(Box<Serve>),
    /// Check policies without putting them in force
    Check(ask::Check),
    /// Explain what the policies do with a call, policy by policy (exit code 4 if it is denied)
    Explain(ask::Explain),
    /// Show operations, latencies and denials by client, user, role and policy
    Top(top::Top),
    /// Show which policies are in force, and how the servers are (exit code 4 if something is wrong)
    Status(top::Brief),
    /// Push policies to a FileWall that runs with --host-config, and wait until it has them in force
    Push(push::Push),
    /// Withdraw policies that were pushed; the FileWall keeps what it has in force
    Withdraw(push::Withdraw),
    /// The same as push and withdraw, as releases before had it
    #[command(hide = true)]
    Order(push::Order),
}

/// What to serve, where, under which policies.
#[derive(Debug, Args)]
struct Serve {
    /// The server: nfs://ADDRESS/EXPORT, perhaps with ?nfsport=N&mountport=N
    #[arg(long, value_name = "URL")]
    server: String,
    /// Address to listen at
    #[arg(long, default_value = "0.0.0.0")]
    listen: IpAddr,
    /// Port of NFS and MOUNT, over TCP and UDP
    #[arg(long, default_value_t = 2049)]
    port: u16,
    /// Port of PORTMAP
    #[arg(long, default_value_t = 111)]
    portmap_port: u16,
    /// Do not answer PORTMAP: clients must be told the port
    #[arg(long)]
    no_portmap: bool,
    /// Do not serve UDP
    #[arg(long)]
    no_udp: bool,
    /// File or folder of policies; without it every call is let through
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,
    /// Number of threads; as many as cores if it is not given
    #[arg(long)]
    workers: Option<usize>,
    /// Most clients' connections
    #[arg(long, default_value_t = Limits::default().sessions)]
    sessions: usize,
    /// Most connections of one client address (IPv6: of one /64)
    #[arg(long, default_value_t = Limits::default().sessions_per_client)]
    sessions_per_client: usize,
    /// A connection from which no call has come ends after so many milliseconds, and before where others need its place
    #[arg(long, value_name = "MS", default_value_t = Limits::default().first_call_us / 1000)]
    first_call_ms: u64,
    /// Another server with the same content, as --server: changes go to all, and any of them may fail (NFSv3 only). Repeat for more
    #[arg(long = "replica", value_name = "URL")]
    replicas: Vec<String>,
    /// A folder of the export that another server serves: /FOLDER=nfs://ADDRESS/EXPORT (NFSv3 only). Repeat for more
    #[arg(long = "redirect", value_name = "FOLDER=URL")]
    redirects: Vec<String>,
    /// Folder of what a second FileWall needs to take over; must be kept, with --replica and --redirect
    #[arg(long, value_name = "FOLDER")]
    context: Option<PathBuf>,
    /// Wait until the FileWall that has the context ends, then take over
    #[arg(long, requires = "context")]
    standby: bool,
    /// What --host-config was in releases before: the run directory of the host's switch
    #[arg(long, value_name = "DIR", requires_all = ["name", "policy"], hide = true)]
    orders_from: Option<PathBuf>,
    /// Of releases before; the host's name is in its state
    #[arg(long, requires = "orders_from", hide = true)]
    host: Option<Label>,
    /// Take policies that are pushed to NAME on the host of these settings ('weir filewall push'): node.json in its state directory, or
    /// what 'weir host --config' has. FileWall verifies and acks them itself
    #[arg(long, value_name = "FILE", requires_all = ["name", "policy"], conflicts_with = "orders_from")]
    host_config: Option<PathBuf>,
    /// Name of this FileWall among those of the host
    #[arg(long)]
    name: Option<Label>,
    /// Address of /metrics and /status, which `weir filewall top` reads. It shows who does what: keep it private
    #[arg(long, default_value = STATUS_ADDRESS)]
    status: SocketAddr,
}

impl FileWallArguments {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        match (self.command, self.serve) {
            (Some(Command::Serve(serve)), _) => serve.run(),
            (Some(Command::Status(command)), _) => command.run(),
            (Some(Command::Push(command)), _) => command.run(connect),
            (Some(Command::Withdraw(command)), _) => command.run(connect),
            (Some(Command::Order(command)), _) => command.run(connect),
            (Some(Command::Check(command)), _) => command.run(),
            (Some(Command::Explain(command)), _) => command.run(),
            (Some(Command::Top(command)), _) => command.run(),
            (None, Some(serve)) => serve.run(),
            (None, None) => {
                Err(Failure::Input("say which server: --server nfs://ADDRESS/EXPORT".to_string()))
            }
        }
    }
}

/// An error of FileWall as a failure of a command.
pub(super) fn failure(error: weir_filewall::Error) -> Failure {
    match error {
        weir_filewall::Error::Io { what, error } => Failure::Io { what, error },
        other => Failure::Input(other.to_string()),
    }
}

impl Serve {
    fn config(&self) -> Result<Config, Failure> {
        let server: Server = self.server.parse().map_err(failure)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Config {
            server,
            listen: self.listen,
            port: self.port,
            portmap_port: (!self.no_portmap).then_some(self.portmap_port),
            udp: !self.no_udp,
            workers: self.workers.unwrap_or(cores),
            policy: self.policy.clone(),
            // With orders, too: beside theirs there are files of the machine's owner.
            watch: true,
            limits: Limits {
                sessions: self.sessions,
                sessions_per_client: self.sessions_per_client,
                first_call_us: self.first_call_ms.saturating_mul(1000),
                ..Limits::default()
            },
        })
    }

    fn plan(&self) -> Result<Plan, Failure> {
        let redirect = |text: &String| {
            let (path, url) = text.split_once('=').ok_or_else(|| {
                Failure::Input(format!("--redirect '{text}': write it as /FOLDER=nfs://ADDRESS/EXPORT"))
            })?;
            Ok((path.to_string(), url.parse().map_err(failure)?))
        };
        let plan = Plan {
            replicas: self
                .replicas
                .iter()
                .map(|url| url.parse().map_err(failure))
                .collect::<Result<_, _>>()?,
            redirects: self.redirects.iter().map(redirect).collect::<Result<_, Failure>>()?,
            state_file: self.context.clone().unwrap_or_default().join("names"),
            context: self.context.clone(),
            standby: self.standby,
            ..Plan::default()
        };
        if !plan.is_empty() && self.context.is_none() {
            return Err(Failure::Input(
                "--replica and --redirect need a folder: --context FOLDER".to_string(),
            ));
        }
        Ok(plan)
    }

    /// What takes policies that are pushed.
    fn pushed(&self) -> Result<Option<Ordered>, Failure> {
        let (Some(wall), Some(folder)) = (&self.name, &self.policy) else { return Ok(None) };
        let host = match (&self.host_config, &self.orders_from) {
            (Some(config), _) => OfHost::read(config)?,
            (None, Some(run)) => {
                let host = self.host.as_ref().map(Label::as_str);
                tracing::warn!(host, "--orders-from and --host are of releases before: say --host-config");
                OfHost::at(run.clone())
            }
            (None, None) => return Ok(None),
        };
        Ordered::start(host, Orders { wall: wall.clone(), folder: folder.clone() }).map(Some)
    }

    /// Sessions that there are descriptors for: each has its client, its way to the server, and the two ends of each hop of a router.
    fn fit(config: &mut Config, plan: &Plan, descriptors: usize) {
        let each = if plan.is_empty() { 2 } else { 4 + plan.replicas.len() + plan.redirects.len() };
        let most = weir_admission::descriptors::for_connections(descriptors) / each;
        if most < config.limits.sessions {
            tracing::warn!(
                descriptors,
                sessions = most,
                wanted = config.limits.sessions,
                "the limit of open files (RLIMIT_NOFILE) leaves room for fewer sessions than --sessions says"
            );
            config.limits.sessions = most;
        }
    }

    /// What is open to everybody, to be said at the start.
    fn open_to_all(&self) -> Vec<&'static str> {
        let all = "NFS is served at all addresses of this machine; '--listen ADDRESS' serves it at one";
        let free = "there are no policies: whoever reaches FileWall may do everything; '--policy PATH' says what is allowed";
        let open = [(self.listen.is_unspecified(), all), (self.policy.is_none(), free)];
        open.into_iter().filter_map(|(is, said)| is.then_some(said)).collect()
    }

    fn run(self) -> Result<ExitCode, Failure> {
        if self.name.is_some() && self.orders_from.is_none() && self.host_config.is_none() {
            return Err(Failure::Input("--name is that of a FileWall with --host-config".into()));
        }
        let descriptors = weir_admission::descriptors::raise();
        let (mut config, plan) = (self.config()?, self.plan()?);
        Self::fit(&mut config, &plan, descriptors);
        let (server, open) = (config.server.clone(), self.open_to_all());
        let pushed = self.pushed()?;
        let first = pushed.as_ref().map(Ordered::first);
        let wall = Arc::new(FileWall::start_group(config, &plan).map_err(failure)?);
        if let (Some(pushed), Some(first)) = (&pushed, first) {
            pushed.serve(wall.clone(), first)?;
        }
        tracing::info!(
            address = %wall.address,
            portmap = wall.portmap_address.map(|address| address.to_string()),
            server = %server.nfs(),
            export = server.path,
            status = %self.status,
            "FileWall is up"
        );
        for said in open {
            tracing::warn!("{said}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::io("starting the status service"))?;
        runtime.block_on(serve_status(wall, pushed.as_ref().map(Ordered::metrics), self.status))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What takes orders, for whoever tells of it.
type Plane = service::Weak<Wall>;

/// Serves the status, and reloads on SIGHUP, until SIGTERM or ctrl-c.
async fn serve_status(wall: Arc<FileWall>, plane: Option<Plane>, address: SocketAddr) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |what: &str| Failure::io(what.to_string());
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed("listen for the status"))?;
    let routes = Router::new()
        .route("/metrics", get(move |wall| metrics(wall, plane.clone())))
        .route("/status", get(|State(wall): State<Arc<FileWall>>| async move { axum::Json(wall.status()) }))
        .with_state(wall.clone());
    let mut hangup = signal(SignalKind::hangup()).map_err(failed("waiting for SIGHUP"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("waiting for SIGTERM"))?;
    let stop = async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = tokio::signal::ctrl_c() => break,
                // What is wrong with the files is logged, and is part of the status.
                // Not in the midst of an order.
                _ = hangup.recv() => drop(wall.change_policies(|_| false, || wall.reload())),
            }
        }
    };
    let listener = weir_api::serve::Plain::new(listener);
    axum::serve(listener, routes).with_graceful_shutdown(stop).await.map_err(failed("serving the status"))
}

async fn metrics(
    State(wall): State<Arc<FileWall>>,
    plane: Option<Plane>,
) -> impl axum::response::IntoResponse {
    let plane = plane.map(|plane| plane.metrics_text()).unwrap_or_default();
    let text = wall.status().prometheus() + &plane + &crate::roles::process::metrics_text();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

#[cfg(test)]
mod tests {
    //! Tests of what `weir filewall` makes of its arguments.

    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        serve: Serve,
    }

    fn serve(words: &[&str]) -> Serve {
        let line = ["weir", "--server", "nfs://127.0.0.1/x"].iter().chain(words);
        Line::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).serve
    }

    #[test]
    fn what_is_open_to_all_is_said_at_the_start() {
        let said = serve(&[]).open_to_all().join("\n");
        assert!(said.contains("all addresses") && said.contains("--listen"), "{said}");
        assert!(said.contains("no policies") && said.contains("--policy"), "{said}");
        let closed = serve(&["--listen", "10.0.0.1", "--policy", "p"]);
        assert!(closed.open_to_all().is_empty());
        assert_eq!(serve(&["--listen", "::"]).open_to_all().len(), 2);
    }

    #[test]
    fn there_are_no_more_sessions_than_descriptors() {
        let serve = serve(&["--first-call-ms", "1500"]);
        let fitted = |descriptors: usize, plan: &Plan| {
            let mut config = serve.config().unwrap();
            Serve::fit(&mut config, plan, descriptors);
            assert_eq!(config.limits.first_call_us, 1_500_000);
            config.limits.sessions
        };
        let plain = Plan::default();
        assert_eq!((fitted(usize::MAX, &plain), fitted(1 << 20, &plain)), (4096, 4096));
        assert_eq!(fitted(1024, &plain), (1024 - 256) / 2);
        let other = serve.config().unwrap().server;
        let several = Plan { replicas: vec![other.clone(), other], ..Plan::default() };
        assert_eq!(fitted(1024, &several), (1024 - 256) / 6);
    }
}
