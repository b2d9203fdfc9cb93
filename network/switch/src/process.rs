//! The process of a switch: from its settings to its threads, and back.
//!
//! A switch may end at any instruction: what is in force is in the checkpoint, connections are in their
//! journal, the devices are persistent. The next one takes all of it back before it moves
//! the first packet, with no controller and no agent (row A9).

use crate::config::SwitchConfig;
use crate::control::clients::ControlCounters;
use crate::control::punt::PuntSocket;
use crate::control::{Control, PUNT_SOCKET, REQUESTS_MAX};
use crate::engine::counters::Counters;
use crate::engine::idle::Idle;
use crate::engine::polling::Polling;
use crate::engine::port::{Device, Port};
use crate::engine::ring::frame_ring;
use crate::engine::sys::{self, Wakeup};
use crate::engine::transmit::Transmit;
use crate::engine::{
    COMMANDS_MAX, Channels, Command, EXTERNAL, Engine, MissLoad, RING_BYTES, RING_FRAMES, Shared, Underlay,
};
use crate::flowtable::{FlowStore, Index};
use crate::ports::attach::Attacher;
use crate::ports::{self, PortError};
use crate::slow::flows::FlowBook;
use crate::slow::mind::Mind;
use crate::slow::ports::{Arrived, PortBook};
use crate::slow::requests::with_suffix;
use crate::slow::{EngineLink, Identity, Parts, Slow};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_base::journal::Journal;
use weir_base::numbers::Numbers;
use weir_base::world::{Clock, RealClock, RealDisk};
use weir_model::join::{TrustFile, from_hex};
use weir_model::resource::Encapsulation;
use weir_model::signed::GroupKey;
use weir_trust::batch::Verifier;
use weir_trust::gate::Gate;
use weir_trust::identity::KeyPair;
use weir_trust::token::TokenKey;

/// Name of the lock in the run directory.
const LOCK_FILE: &str = "switch.lock";
/// Name of the checkpoint in the state directory.
const CHECKPOINT_FILE: &str = "switch.checkpoint";
/// Name of the journal of connections in the state directory.
const CONNECTIONS_FILE: &str = "switch.connections";
/// File of the numbers of the switch's events.
const NUMBERS_FILE: &str = "switch.numbers";
/// How many of them are reserved with one durable write: an hour of usage reports.
const NUMBERS_RESERVED: u64 = 4096;
/// How often the main thread looks at the others, milliseconds.
const WATCH_MS: u64 = 100;
/// Linux's `IP_PMTUDISC_DO` and `IPV6_PMTUDISC_DO`: never fragment.
const PMTUDISC_DO: libc::c_int = 2;

/// Why a switch cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// A setting is wrong.
    #[error("the settings of the switch are wrong: {0}")]
    Config(String),
    /// A file cannot be used.
    #[error("{what} '{path}': {reason}")]
    File {
        /// What it is.
        what: &'static str,
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another switch runs in the run directory.
    #[error("another switch runs in '{0}': stop it, or give this one a run_dir of its own")]
    Running(PathBuf),
    /// A socket of the underlay cannot be opened.
    #[error("UDP {address} cannot be opened: {source}")]
    Underlay {
        /// The address wanted.
        address: SocketAddr,
        /// What the kernel says.
        source: io::Error,
    },
    /// The device of the outside cannot be made.
    #[error("the way outside: {0}")]
    External(#[from] PortError),
    /// The kernel refused something else.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the kernel says.
        source: io::Error,
    },
    /// A thread ended that must not.
    #[error("the {thread} thread ended: {reason}")]
    Ended {
        /// Which.
        thread: &'static str,
        /// Why.
        reason: String,
    },
}

fn system(doing: &'static str) -> impl FnOnce(io::Error) -> SwitchError {
    move |source| SwitchError::System { doing, source }
}

fn file_error(what: &'static str, path: &Path, reason: impl ToString) -> SwitchError {
    SwitchError::File { what, path: path.to_path_buf(), reason: reason.to_string() }
}

/// Secrets and keys of a switch.
pub struct Secrets {
    /// The group's public key.
    pub group_key: GroupKey,
    /// Key of the security tokens in packets.
    pub dataplane: [u8; 16],
    /// Key that signs acks and events.
    pub identity: KeyPair,
}

/// Reads the trust and identity files.
///
/// # Errors
/// [`SwitchError::File`], with what would be right.
pub fn read_secrets(config: &SwitchConfig) -> Result<Secrets, SwitchError> {
    let path = &config.trust_file;
    let bad = |reason: String| file_error("the trust file", path, reason);
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let trust: TrustFile = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if trust.domain != config.domain {
        return Err(bad(format!("it is of domain '{}', the settings say '{}'", trust.domain, config.domain)));
    }
    let group_key = GroupKey::from_hex(&trust.group_key)
        .ok_or_else(|| bad("group_key is not 64 hex digits, or 192 of a threshold key".into()))?;
    let dataplane = from_hex(&trust.dataplane_secret)
        .ok_or_else(|| bad("dataplane_secret is not 32 hex digits".into()))?;
    let path = &config.identity_file;
    let bad = |reason: String| file_error("the identity file", path, reason);
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    let seed = from_hex(text.trim()).ok_or_else(|| bad("it does not hold 64 hex digits".into()))?;
    Ok(Secrets { group_key, dataplane, identity: KeyPair::from_seed(&seed) })
}

/// A running switch.
#[derive(Debug)]
pub struct Switch {
    shared: Arc<Shared>,
    control_wake: Arc<Wakeup>,
    threads: Vec<(&'static str, JoinHandle<io::Result<()>>)>,
    /// Kept for as long as the switch runs.
    _lock: OwnedFd,
}

impl Switch {
    /// Starts a switch with a mind of the caller's making.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start<M: Mind + 'static>(
        config: &SwitchConfig,
        make_mind: impl FnOnce(&SwitchConfig, TokenKey) -> M,
    ) -> Result<Switch, SwitchError> {
        Switch::start_with_idle(config, make_mind, None)
    }

    /// Starts one with something to do in its engine's idle slots.
    ///
    /// # Errors
    /// [`SwitchError`].
    pub fn start_with_idle<M: Mind + 'static>(
        config: &SwitchConfig,
        make_mind: impl FnOnce(&SwitchConfig, TokenKey) -> M,
        idle: Option<Box<dyn Idle>>,
    ) -> Result<Switch, SwitchError> {
        if let Some(problem) = config.problem() {
            return Err(SwitchError::Config(problem));
        }
        for dir in [&config.run_dir, &config.state_dir] {
            std::fs::create_dir_all(dir).map_err(|error| file_error("the directory", dir, error))?;
        }
        let lock = lock(&config.run_dir)?;
        let secrets = read_secrets(config)?;
        let mind = make_mind(config, TokenKey::new(secrets.dataplane));
        let shared = Arc::new(shared(config.engine.flows_max)?);
        let (flows, tables) = FlowBook::new(Arc::clone(&shared.store));
        let (channels, link) = channels();
        let underlay = open_underlay(config, &shared.counters)?;
        let batch = usize::from(config.engine.batch);
        let engine = Engine::new(Arc::clone(&shared), channels, underlay, tables, polling(config), batch)
            .and_then(|engine| engine.with_idle(idle))
            .map_err(system("making the engine"))?;
        open_external(config, &link, &shared.engine_wake)?;
        let counters = Arc::new(ControlCounters::default());
        let (request_sender, requests) = sync_channel(REQUESTS_MAX);
        let control =
            Control::new(&config.run_dir, request_sender, Arc::clone(&shared), Arc::clone(&counters))
                .map_err(system("opening the control socket"))?;
        let control_wake = control.waker();
        let parts = Parts {
            identity: Identity {
                name: config.name.clone(),
                role: config.role,
                underlay: config.underlay,
                domain: config.domain.clone(),
                key: secrets.identity,
                numbers: open_numbers(config)?,
                tokens: TokenKey::new(secrets.dataplane),
            },
            mind,
            open_gate: gate_opener(config, secrets.group_key),
            journal: open_journal(config)?,
            flows,
            ports: port_book(&shared)?,
            link,
            requests,
            punt: PuntSocket::bind(&config.run_dir.join(PUNT_SOCKET))
                .map_err(system("opening the punt socket"))?,
            control: counters,
            shared: Arc::clone(&shared),
        };
        let slow = Slow::new(parts)
            .map_err(|error| file_error("the checkpoint", &config.state_dir.join(CHECKPOINT_FILE), error))?;
        log_budget(config);
        let cpu = config.engine.cpu;
        let stop = Arc::clone(&shared);
        let threads = vec![
            spawn("engine", move || {
                if let Some(cpu) = cpu {
                    sys::pin_thread(cpu)?;
                }
                engine.run()
            })?,
            spawn("slow", move || slow.run())?,
            spawn("control", move || control.run(&stop.stop))?,
        ];
        Ok(Switch { shared, control_wake, threads, _lock: lock })
    }

    /// The name of a thread that has ended, if one has.
    pub fn ended(&self) -> Option<&'static str> {
        self.threads.iter().find(|(_, thread)| thread.is_finished()).map(|(name, _)| *name)
    }

    /// Ends the switch. Devices and state stay.
    ///
    /// # Errors
    /// [`SwitchError::Ended`] when a thread had ended by itself.
    pub fn stop(self) -> Result<(), SwitchError> {
        let early = self.ended();
        self.shared.stop.store(true, Relaxed);
        self.shared.slow_wake.wake();
        // The slow path tells the engine to end, unless it has ended itself.
        self.shared.engine_wake.wake();
        self.control_wake.wake();
        let mut result = Ok(());
        for (name, thread) in self.threads {
            let reason = match thread.join() {
                Ok(Ok(())) if early == Some(name) => "for no reason".to_string(),
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it panicked".to_string(),
            };
            if result.is_ok() {
                result = Err(SwitchError::Ended { thread: name, reason });
            }
        }
        result
    }
}

fn spawn(
    name: &'static str,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<(&'static str, JoinHandle<io::Result<()>>), SwitchError> {
    let builder = std::thread::Builder::new().name(format!("weir-{name}"));
    let thread = builder.spawn(work).map_err(system("starting a thread"))?;
    Ok((name, thread))
}

/// Runs a switch with the tables for a mind: see [`run_with`].
///
/// # Errors
/// [`SwitchError`].
pub fn run(config: &SwitchConfig) -> Result<(), SwitchError> {
    run_with(config, crate::slow::tables_mind::make, || None)
}

/// The same with something to do in idle slots, which is made when signals are blocked.
///
/// # Errors
/// [`SwitchError`].
pub fn run_with_idle(
    config: &SwitchConfig,
    idle: impl FnOnce() -> Option<Box<dyn Idle>>,
) -> Result<(), SwitchError> {
    run_with(config, crate::slow::tables_mind::make, idle)
}

/// Runs a switch until the process is told to end (SIGTERM or SIGINT), or a thread ends. To be called before
/// the process has other threads: the signals are blocked for this one and those that it starts.
///
/// # Errors
/// [`SwitchError`].
pub fn run_with<M: Mind + 'static>(
    config: &SwitchConfig,
    make_mind: impl FnOnce(&SwitchConfig, TokenKey) -> M,
    idle: impl FnOnce() -> Option<Box<dyn Idle>>,
) -> Result<(), SwitchError> {
    let signals = sys::Signals::block().map_err(system("blocking signals"))?;
    let started = Instant::now();
    let switch = Switch::start_with_idle(config, make_mind, idle())?;
    tracing::info!(
        name = %config.name,
        underlay = %config.underlay,
        started_ms = started.elapsed().as_millis() as u64,
        "the switch runs"
    );
    while switch.ended().is_none() {
        if signals.wait(Duration::from_millis(WATCH_MS)) {
            break;
        }
    }
    switch.stop()
}

fn lock(run_dir: &Path) -> Result<OwnedFd, SwitchError> {
    use rustix::fs::{FlockOperation, flock};
    let path = run_dir.join(LOCK_FILE);
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| file_error("the lock", &path, error))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file.into()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SwitchError::Running(run_dir.to_path_buf())),
        Err(error) => Err(file_error("the lock", &path, error)),
    }
}

fn polling(config: &SwitchConfig) -> Polling {
    if config.engine.always_poll {
        return Polling::always(Instant::now());
    }
    Polling::new(Duration::from_micros(u64::from(config.engine.busy_poll_us)), Instant::now())
}

fn shared(flows_max: usize) -> Result<Shared, SwitchError> {
    let mut random = [0; 16];
    let urandom = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
    urandom.map_err(system("drawing the seed of the flow table"))?;
    let words = u128::from_ne_bytes(random);
    let wakeup = || Wakeup::new().map_err(system("making a wakeup"));
    Ok(Shared {
        store: Arc::new(FlowStore::with_flows_max([words as u64, (words >> 64) as u64], flows_max)),
        counters: Arc::new(Counters::default()),
        load: MissLoad::default(),
        engine_wake: wakeup()?,
        slow_wake: wakeup()?,
        start: Instant::now(),
        stop: AtomicBool::new(false),
    })
}

fn channels() -> (Channels, EngineLink) {
    let (command_sender, commands) = sync_channel(COMMANDS_MAX);
    // Each command gives back one thing at most; failures of ports come on top.
    let (returned_sender, returned) = sync_channel(2 * COMMANDS_MAX);
    let (miss_producer, misses) = frame_ring(RING_FRAMES, RING_BYTES);
    let (injects, inject_consumer) = frame_ring(RING_FRAMES, RING_BYTES);
    let channels =
        Channels { commands, returned: returned_sender, misses: miss_producer, injects: inject_consumer };
    (channels, EngineLink { commands: command_sender, returned, misses, injects })
}

fn gate_opener(config: &SwitchConfig, group_key: GroupKey) -> Box<dyn Fn() -> io::Result<Gate> + Send> {
    let (name, domain) = (config.name.clone(), config.domain.clone());
    let path = config.state_dir.join(CHECKPOINT_FILE);
    Box::new(move || Gate::open(name.clone(), Verifier::new(domain.clone(), group_key.clone()), &path))
}

/// Opens the numbers of events. Without the file, or with a damaged one, the clock keeps them rising.
fn open_numbers(config: &SwitchConfig) -> Result<Numbers, SwitchError> {
    let path = config.state_dir.join(NUMBERS_FILE);
    let bad = |error| file_error("the numbers of events", &path, error);
    let disk = RealDisk::open(&config.state_dir).map_err(bad)?;
    let now_ms = RealClock::new().wall_ms();
    let numbers = Numbers::open(Arc::new(disk), NUMBERS_FILE, NUMBERS_RESERVED, now_ms).map_err(bad)?;
    if numbers.damaged {
        tracing::warn!(path = %path.display(), "the numbers of events are damaged: they go on from the clock");
    }
    Ok(numbers)
}

/// Opens the journal of connections. One that is not a journal is an error: it may be somebody's file.
fn open_journal(config: &SwitchConfig) -> Result<(Journal, Vec<Vec<u8>>), SwitchError> {
    let path = config.state_dir.join(CONNECTIONS_FILE);
    Journal::open(&path).map_err(|error| file_error("the journal of connections", &path, error))
}

fn port_book(shared: &Arc<Shared>) -> Result<PortBook, SwitchError> {
    let (sender, arrived) = channel();
    let wake = Arc::clone(shared);
    let tell: Arc<dyn Fn(Arrived) + Send + Sync> = Arc::new(move |what| {
        // The receiver lives as long as the slow thread.
        let _ = sender.send(what);
        wake.slow_wake.wake();
    });
    let told = Arc::clone(&tell);
    let attacher = Attacher::start(move |result| told(result.into()));
    Ok(PortBook::new(attacher.map_err(system("starting the attaching thread"))?, tell, arrived))
}

/// Makes the device of the outside, and gives it to the engine. The engine looks at its commands when it is woken:
/// without that it would not read the device until something else concerns it, and what comes from outside
/// first, such as the answer that a connection waits for, would lie there.
fn open_external(config: &SwitchConfig, link: &EngineLink, engine_wake: &Wakeup) -> Result<(), SwitchError> {
    let Some(external) = &config.external else { return Ok(()) };
    let (device, mac) = ports::create_external(&external.device, external.mtu, &external.addresses)?;
    // The kernel takes a frame for its own by the destination alone.
    let router = [0x02, 0x57, 0x52, 0, 0, 0];
    let port = Port { device: Device::Tap(Arc::new(device)), up: true, ethernet: Some((mac, router)) };
    let sent = link.commands.send(Command::SetPort(EXTERNAL, Box::new(port)));
    engine_wake.wake();
    sent.map_err(|_| SwitchError::Ended { thread: "engine", reason: "before it began".into() })
}

/// Opens the sockets of the underlay.
///
/// # Errors
/// [`SwitchError::Underlay`].
fn open_underlay(config: &SwitchConfig, counters: &Arc<Counters>) -> Result<Underlay, SwitchError> {
    let address = config.underlay;
    let mut receivers = Vec::new();
    let mut senders = Vec::new();
    for (format, port) in
        [(Encapsulation::Geneve, config.geneve_port), (Encapsulation::Vxlan, config.vxlan_port)]
    {
        let receiver = open_socket(config, SocketAddr::new(address, port))?;
        let clone = receiver.try_clone().map_err(system("copying a descriptor"))?;
        let mut sending = Vec::new();
        if config.engine.source_ports == 1 {
            sending.push(clone);
        } else {
            for _ in 0..config.engine.source_ports {
                sending.push(open_socket(config, SocketAddr::new(address, 0))?);
            }
        }
        receivers.push((receiver, format));
        senders.push((sending, port));
    }
    let (Some(vxlan), Some(geneve)) = (senders.pop(), senders.pop()) else {
        unreachable!("two formats were opened")
    };
    let transmit = Transmit::new(address.is_ipv6(), geneve, vxlan, Arc::clone(counters));
    let ports = [config.geneve_port, config.vxlan_port];
    let partial_checksums = config.engine.partial_checksums;
    Ok(Underlay { receivers, transmit, address, ports, partial_checksums })
}

fn open_socket(config: &SwitchConfig, address: SocketAddr) -> Result<OwnedFd, SwitchError> {
    let failed = |source| SwitchError::Underlay { address, source };
    let socket = UdpSocket::bind(address).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    set_options(&socket, address.ip(), config.engine.socket_buffer_bytes).map_err(failed)?;
    Ok(socket.into())
}

fn set_options(socket: &UdpSocket, address: IpAddr, buffer_bytes: u32) -> io::Result<()> {
    let fd = socket.as_fd();
    let bytes = i32::try_from(buffer_bytes).unwrap_or(i32::MAX);
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)?;
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)?;
    sys::set_option(fd, libc::SOL_UDP, sys::UDP_GRO, 1)?;
    if address.is_ipv6() {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_DO)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
    } else {
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_DO)?;
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
    }
}

fn log_budget(config: &SwitchConfig) {
    let flows_max = config.engine.flows_max;
    let mib = |bytes: usize| bytes / (1024 * 1024);
    tracing::info!(
        flows_max,
        flow_table_mib_max = mib(flows_max * FlowStore::slot_bytes() + 2 * Index::bytes_max(flows_max)),
        rings_mib = mib(2 * RING_BYTES),
        socket_buffers_mib = mib(config.engine.socket_buffer_bytes as usize),
        "memory: tables grow as flows come, buffers as they fill"
    );
}

/// Counters that say how things are, and do not only rise.
const GAUGES: [&str; 14] = [
    "connections",
    "connections_bytes",
    "counters",
    "flow_table_bytes",
    "flows",
    "journal_bytes",
    "port_up",
    "question_us_max",
    "questions_held_bytes",
    "questions_held_frames",
    "questions_open",
    "sender_zones",
    "turns",
    "update_us_max",
];

/// Counters in the text format of Prometheus.
pub fn metrics_text(counters: &[(String, u64)]) -> String {
    use std::fmt::Write;
    let mut sorted: Vec<&(String, u64)> = counters.iter().collect();
    sorted.sort();
    let (mut text, mut last) = (String::new(), "");
    for (name, value) in sorted {
        let metric = name.split('{').next().unwrap_or(name);
        let is_gauge = GAUGES.contains(&metric);
        let shown = if is_gauge { name.clone() } else { with_suffix(name, "_total") };
        if metric != last {
            let kind = if is_gauge { "gauge" } else { "counter" };
            let suffix = if is_gauge { "" } else { "_total" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "# TYPE weir_switch_{metric}{suffix} {kind}");
            last = metric;
        }
        let _ = writeln!(text, "weir_switch_{shown} {value}");
    }
    text
}

#[cfg(test)]
mod tests;
