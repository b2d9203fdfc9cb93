//! `weir controller`: the controller's process.

use super::backend::Controlled;
use super::state::State;
use crate::cli::Failure;
use clap::Args;
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
use weir_controller::driver::{Controller, ControllerSettings, serve_sessions};
use weir_model::Label;
use weir_trust::batch::SingleSigner;

#[derive(Debug, Args)]
pub struct ControllerArguments {
    /// Directory of the log, keys and certificates; made when it is not there
    #[arg(long, default_value = "/var/lib/weir/controller")]
    state: PathBuf,
    /// Name of the domain
    #[arg(long, default_value = "weir")]
    domain: Label,
    /// Where the API listens
    #[arg(long, default_value = "0.0.0.0:7443")]
    api: SocketAddr,
    /// Where sessions of hosts and gateways listen
    #[arg(long, default_value = "0.0.0.0:7444")]
    session: SocketAddr,
    /// Address under which hosts reach this machine; needed when it listens on all
    #[arg(long)]
    advertise: Option<IpAddr>,
}

impl ControllerArguments {
    /// Runs until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(Failure::io("starting threads"))?;
        runtime.block_on(self.serve())
    }

    fn advertised(&self) -> Result<IpAddr, Failure> {
        match self.advertise {
            Some(address) => Ok(address),
            None if !self.api.ip().is_unspecified() => Ok(self.api.ip()),
            None => Err(Failure::Input(format!(
                "--api {} listens on every address: say with --advertise under which one hosts reach this machine",
                self.api
            ))),
        }
    }

    async fn serve(self) -> Result<ExitCode, Failure> {
        let advertised = self.advertised()?;
        let wrong = |error: &dyn std::fmt::Display| Failure::Input(error.to_string());
        let names = [advertised, self.api.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let state = State::open(&self.state, &self.domain, &names).map_err(|error| wrong(&error))?;
        let log = self.state.join("log");
        std::fs::create_dir_all(&log).map_err(Failure::io(log.display().to_string()))?;
        let disk = RealDisk::open(&log).map_err(Failure::io(log.display().to_string()))?;
        let mut settings = ControllerSettings::new(self.domain.clone(), super::label("controller"));
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
        let (api, sessions) = (bind(self.api).await?, bind(self.session).await?);
        let ca = state.authority.certificate_pem().to_string();
        let api_tls = server_config(&state.server, &ca, false).map_err(|error| wrong(&error))?;
        let session_tls = server_config(&state.server, &ca, true).map_err(|error| wrong(&error))?;
        let api_address = SocketAddr::new(advertised, self.api.port());
        let context = self.state.join("admin.json");
        state.write_context(&context, api_address).map_err(|error| wrong(&error))?;
        let admins = Admins::of_token(&state.admin_token);
        let backend = Controlled {
            handle: controller.handle(),
            state,
            api_addresses: vec![format!("https://{api_address}")],
            session_addresses: vec![SocketAddr::new(advertised, self.session.port()).to_string()],
        };
        let listener = TlsListener::new(api, api_tls).map_err(Failure::io("listening"))?;
        let store = super::store::route(controller.handle(), admins.clone());
        let service = router(Arc::new(backend), admins).merge(store);
        let service = service.into_make_service_with_connect_info::<Peer>();
        tracing::info!(domain = %self.domain, api = %api_address, context = %context.display(), "the controller is ready");
        let ended = tokio::select! {
            ended = async { axum::serve(listener, service).await } => ended.map_err(Failure::io("serving the API")),
            ended = serve_sessions(controller.handle(), sessions, session_tls) => {
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
}
