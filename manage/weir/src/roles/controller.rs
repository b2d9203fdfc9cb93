//! `weir controller`: the controller's process.

mod config;

use super::backend::Controlled;
use super::state::State;
use crate::cli::Failure;
use clap::Args;
use config::{ControllerConfig, Given};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;
use weir_api::pki::server_config;
use weir_api::server::{Admins, router};
use weir_api::tls::{Peer, TlsListener};
use weir_apps::fabric::{Fabric, FabricSettings};
use weir_base::world::{RealClock, RealDisk};
use weir_controller::driver::{Controller, ControllerSettings, SessionAccess, serve_sessions};
use weir_model::Label;
use weir_trust::batch::SingleSigner;

/// `weir controller`.
#[derive(Debug, Args)]
pub struct ControllerArguments {
    /// Settings (YAML); the options below stand over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the log, keys and certificates; made when it is not there [default: /var/lib/weir/controller]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
    /// Name of the domain [default: weir]
    #[arg(long)]
    domain: Option<String>,
    /// Where the API listens [default: 0.0.0.0:7443]
    #[arg(long, value_name = "ADDRESS:PORT")]
    api: Option<String>,
    /// Where sessions of hosts and gateways listen [default: 0.0.0.0:7444]
    #[arg(long, value_name = "ADDRESS:PORT")]
    session: Option<String>,
    /// Address under which hosts reach this machine; needed when it listens on all
    #[arg(long, value_name = "ADDRESS")]
    advertise: Option<String>,
    /// Life of a host's certificate, which renews by itself, days [default: 90]
    #[arg(long, value_name = "DAYS")]
    certificate_days: Option<u32>,
}

impl ControllerArguments {
    /// Runs until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let config = self.settings()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(Failure::io("starting threads"))?;
        runtime.block_on(serve(config))
    }

    /// The command line over the file over the defaults.
    fn settings(self) -> Result<ControllerConfig, Failure> {
        let file = self.config.as_deref().map(Given::read).transpose()?.unwrap_or_default();
        let options = Given {
            domain: self.domain,
            state_dir: self.state,
            api: self.api,
            session: self.session,
            advertise: self.advertise,
            certificate_days: self.certificate_days,
        };
        options.over(file).check()
    }
}

async fn serve(config: ControllerConfig) -> Result<ExitCode, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Input(error.to_string());
    let names = [config.advertise, config.api.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let state = State::open(&config.state_dir, &config.domain, &names).map_err(|error| wrong(&error))?;
    let log = config.state_dir.join("log");
    std::fs::create_dir_all(&log).map_err(Failure::io(log.display().to_string()))?;
    let disk = RealDisk::open(&log).map_err(Failure::io(log.display().to_string()))?;
    let identity = Arc::new(state.event_key());
    let mut settings = ControllerSettings::new(config.domain.clone(), super::label("controller"), identity);
    settings.registry = super::store::registry();
    let controller = Controller::open(
        settings,
        Arc::new(disk),
        Arc::new(RealClock::new()),
        Box::new(SingleSigner(state.group_key())),
        vec![Arc::new(Fabric::new(FabricSettings::default()))],
    )
    .map_err(|error| wrong(&error))?;

    // Listen only now: who connects finds a controller that has recovered.
    let bind = async |address: SocketAddr| {
        TcpListener::bind(address).await.map_err(Failure::io(format!("listening on {address}")))
    };
    let (api, sessions) = (bind(config.api).await?, bind(config.session).await?);
    let ca = state.authority.certificate_pem().to_string();
    let api_tls = server_config(&state.server, &ca, false).map_err(|error| wrong(&error))?;
    let session_tls = server_config(&state.server, &ca, true).map_err(|error| wrong(&error))?;
    let api_address = SocketAddr::new(config.advertise, config.api.port());
    let context = config.state_dir.join("admin.json");
    state.write_context(&context, api_address).map_err(|error| wrong(&error))?;
    let admins = Admins::of_token(&state.admin_token);
    let (state, certificate_days) = (Arc::new(state), config.certificate_days);
    let authority = state.clone();
    let renewer = move |name: &Label, csr_pem: &str| {
        let signed = authority.authority.actuator(name, csr_pem, certificate_days);
        signed.map_err(|error| format!("the request cannot be signed: {error}"))
    };
    let access = SessionAccess { tls: session_tls, strangers: false, renewer: Arc::new(renewer) };
    let backend = Controlled {
        handle: controller.handle(),
        state,
        certificate_days,
        api_addresses: vec![format!("https://{api_address}")],
        session_addresses: vec![SocketAddr::new(config.advertise, config.session.port()).to_string()],
    };
    let listener = TlsListener::new(api, api_tls).map_err(Failure::io("listening"))?;
    let store = super::store::route(controller.handle(), admins.clone());
    let service = router(Arc::new(backend), admins).merge(store);
    let service = service.into_make_service_with_connect_info::<Peer>();
    tracing::info!(domain = %config.domain, api = %api_address, context = %context.display(), "the controller is ready");
    let ended = tokio::select! {
        ended = async { axum::serve(listener, service).await } => ended.map_err(Failure::io("serving the API")),
        ended = serve_sessions(controller.handle(), sessions, access) => {
            ended.map_err(|error| Failure::Input(error.to_string()))
        }
        () = super::store::expire(controller.handle()) => Ok(()),
        () = super::stopped() => Ok(()),
    };
    tracing::info!("the controller stops");
    // Blocks until the log is closed.
    let closed = tokio::task::spawn_blocking(move || controller.shutdown()).await;
    ended?;
    closed.map_err(|error| Failure::Input(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}
