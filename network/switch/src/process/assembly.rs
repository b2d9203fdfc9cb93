//! The parts of a switch put together, and its threads.

use super::given::{Given, Outside, Sockets, copies, gate_opener, open_numbers, underlay_of};
use super::{Secrets, Switch, SwitchError, read_identity, system, who};
use crate::config::{SwitchConfig, UnderlayBy};
use crate::control::clients::ControlCounters;
use crate::control::{Control, REQUESTS_MAX};
use crate::engine::counters::{Counters, EngineEvent};
use crate::engine::polling::Polling;
use crate::engine::ring::frame_ring;
use crate::engine::sys::{self, Wakeup};
use crate::engine::transmit::Transmit;
use crate::engine::urgency::Urgency;
use crate::engine::{COMMANDS_MAX, Channels, Engine, MissLoad, RING_BYTES, RING_FRAMES, Shared, Underlay};
use crate::flowtable::{FlowStore, Index};
use crate::handover::Fixed;
use crate::handover::new::Taken;
use crate::handover::old::Keeper;
use crate::handover::store::Words;
use crate::handover::{self, HandoverCounters, UPGRADE_SOCKET};
use crate::mark::Mark;
use crate::ports::attach::Attacher;
use crate::ports::vhost::touched::All;
use crate::slow::faults::Faults;
use crate::slow::flows::FlowBook;
use crate::slow::handover::HandoverPort;
use crate::slow::mind::Mind;
use crate::slow::ports::{Arrived, PortBook};
use crate::slow::{EngineLink, Identity, Parts, Slow};
use crate::underlay::{Settings, Underlay as Wired};
use rustix::net::sockopt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_model::event::SourceId;
use weir_model::resource::Encapsulation;
use weir_trust::kept::Kept;
use weir_trust::signer::{HostSigner, ReadKey};
use weir_trust::token::TokenKey;

/// Questions of a hand-over that may wait.
const ASKS_MAX: usize = 4;

/// The parts of a switch, before any of its threads runs.
pub(super) struct Assembly<M> {
    pub(super) slow: Slow<M>,
    /// What a crashed process had open.
    pub(super) found: Taken,
    engine: Engine,
    control: Control,
    shared: Arc<Shared>,
    keeper: Keeper,
    pub(super) counters: Arc<HandoverCounters>,
    wired: Option<Wired>,
    left: Arc<AtomicBool>,
    lock: OwnedFd,
}

/// A switch whose engine runs and whose other threads do not yet.
pub(super) struct Running {
    engine: (&'static str, JoinHandle<io::Result<()>>),
    control: Control,
    shared: Arc<Shared>,
    keeper: Keeper,
    wired: Option<Wired>,
    left: Arc<AtomicBool>,
    lock: OwnedFd,
}

impl<M: Mind + 'static> Assembly<M> {
    pub(super) fn new(
        config: &SwitchConfig,
        secrets: Secrets,
        mind: M,
        given: Given,
    ) -> Result<Assembly<M>, SwitchError> {
        let shared = Arc::new(shared(config.engine.flows_max, given.start, given.mark)?);
        All::process().set_most(config.engine.guest_touched_bytes_max);
        shared.counters.event(EngineEvent::LeftWaiting).add(given.left_waiting);
        let (flows, tables) = FlowBook::new(Arc::clone(&shared.store));
        let (channels, link) = channels();
        let copy = |sockets: &Sockets| copies(sockets).map_err(system("copying a descriptor"));
        let fixed = Fixed {
            lock: given.lock.try_clone().map_err(system("copying a descriptor"))?,
            control: given.control.try_clone().map_err(system("copying a descriptor"))?.into(),
            punt: given.punt.copy().map_err(system("copying a descriptor"))?,
            receivers: copy(&given.receivers)?,
            senders: copy(&given.senders)?,
        };
        let (found, start_taken) = (given.found, given.taken);
        let wired = wired(config, &given.senders, &link, &shared)?;
        let underlay = underlay(config, given.receivers, given.senders, &shared.counters);
        let mut store = given.store;
        let kept = fixed.receivers.iter().chain(&fixed.senders).map(|(socket, _)| socket.try_clone());
        let kept: io::Result<Vec<_>> = kept.map(|socket| socket.map(Arc::new)).collect();
        let kept = kept.map_err(system("copying a descriptor"))?;
        store.keep(Words::Underlay(underlay_of(config)), kept);
        let batch = usize::from(config.engine.batch);
        let engine = Engine::new(Arc::clone(&shared), channels, underlay, tables, polling(config), batch)
            .map_err(system("making the engine"))?
            .with_urgency(urgency(config));
        let engine = if start_taken { engine.paused() } else { engine };
        let counters = Arc::new(ControlCounters::default());
        let (request_sender, requests) = sync_channel(REQUESTS_MAX);
        let control = Control::on(given.control, request_sender, Arc::clone(&shared), Arc::clone(&counters))
            .map_err(system("opening the control socket"))?;
        let (ask_sender, asks) = sync_channel(ASKS_MAX);
        let (handed, left) = (Arc::new(HandoverCounters::default()), Arc::new(AtomicBool::new(false)));
        let book = port_book(&shared)?;
        let parts = Parts {
            identity: Identity {
                name: config.name.clone(),
                role: config.role,
                underlay: config.underlay,
                signer: signer(config)?.holding(secrets.identity),
                tokens: TokenKey::new(secrets.dataplane),
            },
            mind,
            kept: Kept::with(given.gate, gate_opener(config, secrets.group_key)),
            journal: given.journal,
            flows,
            ports: if start_taken || !found.taps.is_empty() { book.adopting() } else { book },
            store,
            link,
            requests,
            punt: given.punt,
            control: counters,
            faults: Faults::in_directory(&config.state_dir),
            shared: Arc::clone(&shared),
            handover: HandoverPort { asks, counters: Arc::clone(&handed), left: Arc::clone(&left) },
            underlay: wired.as_ref().map(|wired| Arc::clone(wired.control())),
        };
        let slow = Slow::new(parts).map_err(system("starting the slow path"))?;
        let keeper = Keeper {
            fixed,
            outside: None,
            who: who(config),
            asks: ask_sender,
            shared: Arc::clone(&shared),
            wake: Arc::new(Wakeup::new().map_err(system("making a wakeup"))?),
            counters: Arc::clone(&handed),
            path: config.run_dir.join(UPGRADE_SOCKET),
        };
        let (counters, lock) = (handed, given.lock);
        Ok(Assembly { slow, found, engine, control, shared, keeper, counters, wired, left, lock })
    }

    pub(super) fn run_engine(self, config: &SwitchConfig) -> Result<(Running, Slow<M>), SwitchError> {
        let (cpu, engine) = (config.engine.cpu, self.engine);
        let engine = spawn("engine", move || {
            if let Some(cpu) = cpu {
                sys::pin_thread(cpu)?;
            }
            engine.run()
        })?;
        let Assembly { slow, control, shared, keeper, wired, left, lock, .. } = self;
        Ok((Running { engine, control, shared, keeper, wired, left, lock }, slow))
    }
}

impl Running {
    /// Says in the lock that this process has it.
    pub(super) fn sign(&self) -> Result<(), SwitchError> {
        handover::sign_lock(&self.lock).map_err(system("writing the lock"))
    }

    /// What is counted of hand-overs.
    pub(super) fn counters(&self) -> &HandoverCounters {
        &self.keeper.counters
    }

    /// Ends the engine, after its slow path is gone: then nothing of the switch is open here any more.
    pub(super) fn give_up(self) {
        self.shared.engine_wake.wake();
        // It has nothing to say.
        let _ = self.engine.1.join();
    }

    /// Starts the other threads.
    pub(super) fn run<M: Mind + 'static>(
        mut self,
        slow: Slow<M>,
        outside: Option<Outside>,
    ) -> Result<Switch, SwitchError> {
        let (control, stop) = (self.control, Arc::clone(&self.shared));
        let control_wake = control.waker();
        self.keeper.outside = outside.map(|outside| (outside.name, outside.device));
        let keeper_wake = Arc::clone(&self.keeper.wake);
        let mut threads = vec![
            self.engine,
            spawn("slow", move || slow.run())?,
            spawn("control", move || control.run(&stop.stop))?,
        ];
        let wired = self.wired.as_ref().map(|wired| Arc::clone(wired.control()));
        if let Some(underlay) = self.wired {
            threads.push(spawn("underlay", move || {
                underlay.run();
                Ok(())
            })?);
        }
        Ok(Switch {
            shared: self.shared,
            underlay: wired,
            control_wake,
            keeper_wake,
            threads,
            waiting: Some(self.keeper),
            keeper: None,
            left: self.left,
            _lock: self.lock,
        })
    }
}

pub(super) fn spawn(
    name: &'static str,
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> Result<(&'static str, JoinHandle<io::Result<()>>), SwitchError> {
    let builder = std::thread::Builder::new().name(format!("weir-{name}"));
    let thread = builder.spawn(work).map_err(system("starting a thread"))?;
    Ok((name, thread))
}

pub(super) fn polling(config: &SwitchConfig) -> Polling {
    if config.engine.always_poll {
        return Polling::always(Instant::now());
    }
    Polling::new(Duration::from_micros(u64::from(config.engine.busy_poll_us)), Instant::now())
}

fn urgency(config: &SwitchConfig) -> Urgency {
    // With a processor of its own there is nobody to go before.
    let nice = if config.engine.always_poll { 0 } else { config.engine.urgent_nice };
    Urgency::new(nice.into())
}

pub(super) fn shared(flows_max: usize, start: Instant, mark: Mark) -> Result<Shared, SwitchError> {
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
        start,
        stop: AtomicBool::new(false),
        mark,
    })
}

pub(super) fn channels() -> (Channels, EngineLink) {
    let (command_sender, commands) = sync_channel(COMMANDS_MAX);
    // Each command gives back one thing at most; failures of ports come on top.
    let (returned_sender, returned) = sync_channel(2 * COMMANDS_MAX);
    let (miss_producer, misses) = frame_ring(RING_FRAMES, RING_BYTES);
    let (injects, inject_consumer) = frame_ring(RING_FRAMES, RING_BYTES);
    let channels =
        Channels { commands, returned: returned_sender, misses: miss_producer, injects: inject_consumer };
    (channels, EngineLink { commands: command_sender, returned, misses, injects })
}

pub(super) fn underlay(
    config: &SwitchConfig,
    receivers: Sockets,
    senders: Sockets,
    counters: &Arc<Counters>,
) -> Underlay {
    let address = config.underlay;
    let (geneve, vxlan): (Sockets, Sockets) =
        senders.into_iter().partition(|(_, format)| *format == Encapsulation::Geneve);
    let alone = |sockets: Sockets| sockets.into_iter().map(|(socket, _)| socket).collect();
    let geneve = (alone(geneve), config.geneve_port);
    let vxlan = (alone(vxlan), config.vxlan_port);
    let transmit = Transmit::new(address.is_ipv6(), geneve, vxlan, Arc::clone(counters));
    let ports = [config.geneve_port, config.vxlan_port];
    let partial_checksums = config.engine.partial_checksums;
    Underlay { receivers, transmit, address, ports, partial_checksums }
}

/// The underlay without sockets, if the settings want it.
fn wired(
    config: &SwitchConfig,
    senders: &Sockets,
    link: &EngineLink,
    shared: &Arc<Shared>,
) -> Result<Option<Wired>, SwitchError> {
    let Some((socket, _)) = senders.first().filter(|_| config.engine.underlay == UnderlayBy::AfXdp) else {
        return Ok(None);
    };
    let address = config.underlay;
    let hop_limit = match address.is_ipv6() {
        true => sockopt::ipv6_unicast_hops(socket),
        false => sockopt::ip_ttl(socket).map(|limit| limit as u8),
    };
    let hop_limit = hop_limit.map_err(|error| system("reading a socket's hop limit")(error.into()))?;
    let settings = Settings { address, ports: [config.geneve_port, config.vxlan_port], hop_limit };
    let wired = Wired::new(settings, link.commands.clone(), Arc::clone(shared));
    wired.map(Some).map_err(system("making a wakeup"))
}

pub(super) fn port_book(shared: &Arc<Shared>) -> Result<PortBook, SwitchError> {
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

pub(super) fn log_budget(config: &SwitchConfig) {
    let flows_max = config.engine.flows_max;
    let mib = |bytes: usize| bytes / (1024 * 1024);
    tracing::info!(
        flows_max,
        flow_table_mib_max = mib(FlowStore::bytes_max(flows_max) + 2 * Index::bytes_max(flows_max)),
        rings_mib = mib(2 * RING_BYTES),
        socket_buffers_mib = mib(config.engine.socket_buffer_bytes as usize),
        "memory: tables grow as flows come, buffers as they fill"
    );
}

/// Signs what the switch says, with the key that its host has now.
fn signer(config: &SwitchConfig) -> Result<HostSigner, SwitchError> {
    let path = config.identity_file.clone();
    let read_key: ReadKey = Box::new(move || read_identity(&path).map_err(|error| error.to_string()));
    let (name, domain) = (config.name.clone(), config.domain.clone());
    let source = SourceId::of_actuator(&name);
    Ok(HostSigner::new(name, domain, source, read_key, open_numbers(config)?))
}
