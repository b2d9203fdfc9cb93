//! `weir controller`: the controller's process.

pub mod config;

use super::backend::WATCHED;
use super::backend::{Controlled, WATCHERS_MAX};
use super::convert;
use super::domains::{Domains, Me};
use super::doors::Doors;
use super::group::{self, Founding, Group, MEMBER_NUMBER_MAX};
use super::identities;
use super::keys::Keys;
use super::manifest;
use super::names::member_name;
use super::own::{Own, own_key};
use super::state::State;
use crate::failure::Failure;
use clap::Args;
use config::{Consistency, ControllerConfig, Given, Ordering, Signatures};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use weir_api::pki::{CONTROLLER_RENEWAL, Now, Refuses, Shown, refusing_server_config};
use weir_api::server::{Admins, finished, router};
use weir_apps::Deciders;
use weir_apps::fabric::FabricSettings;
use weir_base::world::{Clock, RealClock, RealDisk};
use weir_controller::core::SharedApp;
use weir_controller::core::scheduler::Mode;
use weir_controller::driver::aside::AsidePlace;
use weir_controller::driver::{
    AuditPlace, Controller, ControllerHandle, ControllerSettings, Ended, SessionAccess, Signing, TimeKeeper,
    serve_sessions,
};
use weir_controller::quorum::Way;
use weir_model::Label;
use weir_model::event::SourceId;
use weir_trust::batch::{GroupSigner, SingleSigner};
use weir_trust::identity::KeyPair;

/// How long a controller that stops tries to give leadership away.
const RESIGN_BOUND: Duration = Duration::from_secs(2);

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
    /// Begin without being a member, and wait to be added to the group with 'weir group add'; the founders in the settings are not
    /// used, but with group.order: bft, where all have the same list of them
    #[arg(long)]
    join_group: bool,
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
        let ended = runtime.block_on(serve(config));
        // A question that waits at another domain keeps nobody from stopping.
        runtime.shutdown_background();
        match ended? {
            Ending::Stopped => Ok(ExitCode::SUCCESS),
            Ending::Converted => Err(convert::start_again()),
        }
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
            consistency: None,
            audit_mebibytes: None,
            operators: None,
            group: None,
        };
        let mut given = options.over(file);
        if self.join_group {
            match &mut given.group {
                // They are where the chain of members begins that it follows.
                Some(group) if group.order == Ordering::Bft => group.joins = true,
                Some(group) => group.founders.clear(),
                None => {
                    let text =
                        "--join-group: the settings have no part 'group' with this controller's number";
                    return Err(Failure::Input(text.to_string()));
                }
            }
        }
        given.check()
    }
}

/// What a start comes to.
enum Started {
    /// The controller, alone or with its replica of a group, and whether it founds that.
    Runs(Box<Controller>, Option<(Group, Founding)>),
    /// Its order has ended: it goes on as a member of a group.
    Ended(Arc<Ended>),
}

/// How serving ended.
#[derive(PartialEq, Eq)]
enum Ending {
    /// It was told to stop.
    Stopped,
    /// Its order has ended.
    Converted,
}

/// How long an answer may be on its way to who asked for the conversion.
const ANSWER_PAUSE: Duration = Duration::from_millis(20);

fn start(config: &ControllerConfig, state: &State) -> Result<Started, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Input(error.to_string());
    let (name, identity) = match &config.group {
        None => (super::label("controller"), state.event_key()),
        Some(group) if group.order == Ordering::Bft => {
            (member_name(group.id), KeyPair::from_seed(&group::secret(&config.state_dir)?))
        }
        Some(group) => (member_name(group.id), state.member_event_key(group.id)),
    };
    let first = identity.public();
    let identity = own_key(&config.state_dir, identity).map_err(|error| wrong(&error))?;
    let mut settings = ControllerSettings::new(config.domain.clone(), name, Arc::new(identity));
    settings.configured = Some(first);
    settings.registry = super::store::registry();
    settings.feed.first = WATCHED;
    settings.audit = audit(config)?;
    settings.operators = config.operators.clone();
    settings.scheduler.mode = match config.consistency {
        Consistency::Dependent => Mode::Dependent,
        Consistency::Linear => Mode::Linear,
        Consistency::None => Mode::None,
    };
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let single = || Box::new(SingleSigner(state.group_key()));
    let apps: Vec<SharedApp> = vec![Arc::new(Deciders::new(fabric(config)))];
    let Some(group) = &config.group else {
        settings.takes_back = convert::takes_back(&config.state_dir);
        let log = config.state_dir.join("log");
        let disk = RealDisk::open(&log).map_err(Failure::io(log.display().to_string()))?;
        let keep = group::keep(&config.state_dir, "log");
        settings.aside = Some(AsidePlace::alone_with(settings.identity.clone(), keep));
        return match Controller::open(settings, Arc::new(disk), clock, single(), apps) {
            Ok(controller) => Ok(Started::Runs(Box::new(controller), None)),
            Err(weir_controller::Error::Ended { ended, .. }) => Ok(Started::Ended(ended)),
            Err(error) => Err(wrong(&error)),
        };
    };
    let way = match group.signatures {
        Signatures::Shares | Signatures::SharedKey => Way::Aggregated,
        Signatures::SharesAtSwitches => Way::SharesAtActuators,
        Signatures::Endorsed => Way::Endorsed,
    };
    settings.scheduler.send_unsigned = way != Way::Aggregated;
    group.batch.tell(&mut settings.batcher);
    settings.peers = match group.order {
        // All that a group can have: who is in it must not change what is right in the order.
        Ordering::Raft => (1..=MEMBER_NUMBER_MAX)
            .filter(|id| *id != group.id)
            .map(|id| (SourceId::of_controller(&member_name(id)), state.member_event_key(id).public()))
            .collect(),
        // Each by its own key, so that none can speak for another.
        Ordering::Bft => {
            settings.snapshots.entries = group::STATE_EVERY;
            // Who came later, or came back with another key, is introduced by the others.
            settings.configured = group.founder_keys.get(&group.id).copied();
            settings.is_configured = settings.configured.is_some();
            settings.believes_one = false;
            let others = group.founder_keys.iter().filter(|(id, _)| **id != group.id);
            others.map(|(id, key)| (SourceId::of_controller(&member_name(*id)), *key)).collect()
        }
    };
    let numbers = config.state_dir.join("numbers");
    let numbers = RealDisk::open(&numbers).map_err(Failure::io(numbers.display().to_string()))?;
    let time = Arc::new(TimeKeeper::new(clock.clone(), group.id));
    settings.time = Some(time.clone());
    let (founding, mut opening) =
        group::open(group, &config.state_dir, state, (time, settings.awaits_operators.clone()))?;
    let signing = match group.signatures {
        Signatures::SharedKey => Signing::Key(single()),
        Signatures::Shares | Signatures::SharesAtSwitches | Signatures::Endorsed => {
            let (thread, members) = opening.sign_with_shares(&config.state_dir, &config.domain, way)?;
            // Members of a domain that was converted have the key from before; others never use it.
            let before = (group.order == Ordering::Raft).then(|| single() as Box<dyn GroupSigner + Send>);
            Signing::Shares(thread, members, before)
        }
    };
    // The key by which the others know this member stays when the one that signs its events changes.
    let key = match group.order {
        Ordering::Bft => KeyPair::from_seed(&group::secret(&config.state_dir)?),
        Ordering::Raft => state.member_event_key(group.id),
    };
    let seed = state.event_seed;
    let key_of = Box::new(move |id| super::state::member_event_key(&seed, id).public());
    settings.aside = Some(opening.aside(&config.state_dir, key, key_of)?);
    let started = opening.group();
    let controller =
        Controller::follow(settings, Arc::new(numbers), clock, signing, apps, |sink| opening.start(sink));
    let controller = controller.map_err(|error| wrong(&error))?;
    let group = started().ok_or_else(|| Failure::Input("the replica did not start".into()))?;
    Ok(Started::Runs(Box::new(controller), Some((group, founding))))
}

/// What the app must know of the domain: the same for all its controllers.
fn fabric(config: &ControllerConfig) -> FabricSettings {
    let group = config.group.as_ref();
    FabricSettings {
        domain: Some(config.domain.clone()),
        believes_no_controller: group.is_some_and(|group| group.order == Ordering::Bft),
        // Counts only where none is believed, and there all have the list.
        controllers_founded: group.map_or(1, |group| group.founders.len().max(1)),
        ..FabricSettings::default()
    }
}

/// Where the audit is kept.
fn audit(config: &ControllerConfig) -> Result<Option<AuditPlace>, Failure> {
    if config.audit_bytes == 0 {
        return Ok(None);
    }
    let folder = config.state_dir.join("audit");
    let disk = RealDisk::open(&folder).map_err(Failure::io(folder.display().to_string()))?;
    Ok(Some(AuditPlace { disk: Arc::new(disk), bytes_max: config.audit_bytes }))
}

/// Where the controllers are, this one first, as far as the settings say.
fn known_apis(config: &ControllerConfig, own: &str) -> Vec<String> {
    let founders = config.group.iter().flat_map(|group| group.founders.values());
    let others = founders.map(|founder| founder.api.clone()).filter(|api| api != own);
    std::iter::once(own.to_string()).chain(others).collect()
}

/// Watches over the replica, once the group is founded; for ever when there is no group.
async fn watch_group(
    config: &ControllerConfig,
    group: Option<(Group, Founding)>,
    handle: ControllerHandle,
    state: Arc<State>,
) -> Result<(), Failure> {
    let (Some((group, founding)), Some(settings)) = (group, &config.group) else {
        return std::future::pending().await;
    };
    if founding == Founding::Found {
        group::found(&group, settings).await?;
    }
    group::watch(group, handle, state, config.state_dir.join("admin.json")).await
}

/// In builds for tests: lets the state rot when somebody puts the file `rot-state` into the state directory. Never ends.
async fn rot_when_told(handle: ControllerHandle, state_dir: PathBuf) {
    #[cfg(debug_assertions)]
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if std::fs::remove_file(state_dir.join("rot-state")).is_ok() {
            tracing::warn!("the state rots, as the file rot-state told");
            let _stops = handle.rot().await;
        }
    }
    #[cfg(not(debug_assertions))]
    {
        drop((handle, state_dir));
        std::future::pending::<()>().await;
    }
}

/// In builds for tests: orders what somebody puts into the file `betrays` of the state directory, each line the body of an event in base64,
/// by this controller's own word and past its own door; what became of each is in `betrayed`. Never ends.
async fn betray_when_told(handle: ControllerHandle, state_dir: PathBuf) {
    #[cfg(debug_assertions)]
    loop {
        use base64::Engine as _;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let file = state_dir.join("betrays");
        let Ok(told) = std::fs::read_to_string(&file) else { continue };
        tracing::warn!("this controller orders what is not its to order, as the file betrays told");
        let _gone = std::fs::remove_file(&file);
        let mut became = String::new();
        for line in told.lines() {
            let bytes = base64::prelude::BASE64_STANDARD.decode(line).unwrap_or_default();
            let outcome = match weir_base::codec::decode(&bytes) {
                Ok(body) => match handle.betray(body).await {
                    Ok(version) => format!("decided as {version}"),
                    Err(error) => error.to_string(),
                },
                Err(error) => format!("no event: {error}"),
            };
            became.push_str(&outcome);
            became.push('\n');
        }
        let _written = std::fs::write(state_dir.join("betrayed"), became);
    }
    #[cfg(not(debug_assertions))]
    {
        drop((handle, state_dir));
        std::future::pending::<()>().await;
    }
}

/// How often it is looked whether this controller's certificate is in its time.
const CERTIFICATE_LOOK: Duration = Duration::from_secs(2);
/// A certificate that was made so long before its time is made anew: half of what it is good before that.
const CLOCK_WRONG: Duration = Duration::from_secs(30 * 60);

/// Shows a new certificate long before the one before is over, and when the one before was made by a clock that is wrong by those
/// of the group: others would not take it. Never ends.
async fn show_anew(shown: &Shown, state: &State, time: &TimeKeeper) {
    let mut made_at = SystemTime::now();
    loop {
        tokio::time::sleep(CERTIFICATE_LOOK).await;
        let now = time.by_clocks();
        let early = made_at.duration_since(now).is_ok_and(|early| early > CLOCK_WRONG);
        let old = now.duration_since(made_at).is_ok_and(|age| age > CONTROLLER_RENEWAL);
        if !early && !old {
            continue;
        }
        let renewed = state.controller_certificate(now).map_err(|error| error.to_string());
        match renewed.and_then(|made| shown.show(&made).map_err(|error| error.to_string())) {
            Ok(()) => made_at = now,
            Err(error) => tracing::error!(error, "the certificate of this controller was not renewed"),
        }
    }
}

/// Says which listeners everybody reaches who reaches this machine.
fn tell_where(config: &ControllerConfig) {
    let open = [("API", config.api), ("sessions", config.session)];
    for (what, address) in open.into_iter().filter(|(_, address)| address.ip().is_unspecified()) {
        tracing::warn!(
            %address,
            "{what}: listens on all addresses of this machine; to listen on one, set it in the settings or with --api and --session"
        );
    }
}

/// Returns when the order of this controller has ended, and who asked for that has been answered; never in a group.
async fn converted(handle: ControllerHandle) -> Result<(), Failure> {
    handle.has_ended().await;
    tokio::time::sleep(ANSWER_PAUSE).await;
    Ok(())
}

async fn serve(mut config: ControllerConfig) -> Result<Ending, Failure> {
    // Before anything is opened: a listener that has no room for connections must not take it from the log.
    let descriptors = weir_admission::descriptors::raise();
    convert::adopt(&mut config)?;
    let wrong = |error: &dyn std::fmt::Display| Failure::Input(error.to_string());
    if let Some(keys) =
        config.group.as_ref().and_then(|group| group.keys.as_ref()).filter(|path| path.exists())
    {
        let keys = Keys::read(keys).map_err(|error| wrong(&error))?;
        keys.install(&config.state_dir).map_err(|error| wrong(&error))?;
    }
    let names = [config.advertise, config.api.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let state = State::open(&config.state_dir, &config.domain, &names).map_err(|error| wrong(&error))?;
    let mut started = start(&config, &state)?;
    if let Started::Ended(ended) = &started {
        convert::go_on(&mut config, ended)?;
        started = start(&config, &state)?;
    }
    let Started::Runs(controller, group) = started else {
        return Err(Failure::Input("the order has ended, and the group did not begin".into()));
    };
    if convert::takes_back(&config.state_dir) {
        controller.handle().take_back().await.map_err(|error| wrong(&error))?;
        convert::taken_back(&config.state_dir)?;
        tracing::info!("the end of this controller's order is taken back: it goes on alone");
    }
    manifest::record(&config.state_dir, config.domain.as_str());

    // Listen only now: who connects finds a controller that has recovered.
    let bind = async |address: SocketAddr| {
        TcpListener::bind(address).await.map_err(Failure::io(format!("listening on {address}")))
    };
    let (api, sessions) = (bind(config.api).await?, bind(config.session).await?);
    let ca = state.authority.certificate_pem().to_string();
    let shown = Arc::new(Shown::new(&state.server).map_err(|error| wrong(&error))?);
    // Who was forgotten hears in its session why it may not come; at the API it is nobody any more.
    let (of_sessions, refuses) =
        (identities::refuses(controller.handle()), identities::refuses_strangers(controller.handle()));
    let time = controller.handle().time().clone();
    let clocks = time.clone();
    let now: Arc<Now> = Arc::new(move || clocks.by_clocks());
    let tls = |required, refuses: &Arc<Refuses>| {
        refusing_server_config(shown.clone(), &ca, required, refuses.clone(), now.clone())
            .map_err(|error| wrong(&error))
    };
    let (api_tls, session_tls) = (tls(false, &refuses)?, tls(true, &of_sessions)?);
    let replicas = group.as_ref().and_then(|(group, _)| group.door());
    let doors = Arc::new(Doors::open(descriptors, replicas));
    let at = |port: u16| SocketAddr::new(config.advertise, port).to_string();
    let (api_address, session_address) = (at(config.api.port()), at(config.session.port()));
    let context = config.state_dir.join("admin.json");
    // In a group the file that is there names the others, and is written anew when they are known.
    if group.is_none() || !context.exists() {
        state.write_context(&context, &known_apis(&config, &api_address)).map_err(|error| wrong(&error))?;
    }
    let admins = Admins::of_token(&state.admin_token).refusing(refuses);
    let (state, certificate_days) = (Arc::new(state), config.certificate_days);
    let (authority, state_for_certificates) = (state.clone(), state.clone());
    let at = now.clone();
    let renewer = move |name: &Label, csr_pem: &str| {
        let signed = authority.authority.actuator(name, csr_pem, certificate_days, at());
        signed.map_err(|error| format!("the request cannot be signed: {error}"))
    };
    let access = SessionAccess {
        tls: session_tls,
        strangers: false,
        renewer: Arc::new(renewer),
        door: doors.sessions.clone(),
    };
    let replica = group.as_ref().map(|(group, _)| group.clone());
    let me = Me {
        id: config.group.as_ref().map_or(0, |group| group.id),
        api: api_address.clone(),
        group: replica.clone(),
        state: state.clone(),
    };
    let domains = Arc::new(Domains::new(controller.handle(), me));
    let backend = Controlled {
        handle: controller.handle(),
        state: state.clone(),
        certificate_days,
        api_address: api_address.clone(),
        session_address,
        group: replica.clone(),
        domains: domains.clone(),
        own: Own::new(&config.state_dir, shown.clone()),
        doors: doors.clone(),
        watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
    };
    let store = super::store::route(controller.handle(), replica.clone(), admins.clone());
    let service = finished(router(Arc::new(backend), admins).merge(store));
    tell_where(&config);
    tracing::info!(domain = %config.domain, api = %api_address, context = %context.display(), "the controller is ready");
    let ended = tokio::select! {
        never = weir_api::serve::serve(api, &api_tls, now, &doors.api, service) => match never {},
        ended = serve_sessions(controller.handle(), sessions, access) => {
            ended.map_err(|error| Failure::Input(error.to_string()))
        }
        ended = watch_group(&config, group, controller.handle(), state) => ended,
        () = super::store::expire(controller.handle()) => Ok(()),
        () = domains.run() => Ok(()),
        () = rot_when_told(controller.handle(), config.state_dir.clone()) => Ok(()),
        () = betray_when_told(controller.handle(), config.state_dir.clone()) => Ok(()),
        () = show_anew(&shown, &state_for_certificates, &time) => Ok(()),
        () = doors.end_untaken(controller.handle()) => Ok(()),
        ended = converted(controller.handle()) => ended,
        () = super::stopped() => Ok(()),
    };
    let ending = if controller.handle().published().ended { Ending::Converted } else { Ending::Stopped };
    tracing::info!("the controller stops");
    if let Some(replica) = replica {
        // Nobody has to wait for an election then. Best effort: the others can do without.
        let _ = tokio::time::timeout(RESIGN_BOUND, replica.resign()).await;
    }
    manifest::record(&config.state_dir, config.domain.as_str());
    // Blocks until the log is closed.
    let closed = tokio::task::spawn_blocking(move || controller.shutdown()).await;
    ended?;
    closed.map_err(|error| Failure::Input(error.to_string()))?;
    Ok(ending)
}
