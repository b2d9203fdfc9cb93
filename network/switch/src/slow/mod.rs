//! The slow thread: it owns what is in force and everything that changes (rows A9, A15 to A18, A22).
//!
//! It takes updates through the gate, lets the [`mind::Mind`] resolve what the engine missed,
//! publishes flows, feeds back what flows carried, keeps the ports attached, keeps the journals and
//! answers questions. It may allocate, wait and call the system; the engine never waits for it.
//!
//! - [`flows`]: the book of flows: which are in the table, under which zones, and which to decide again.
//! - [`ports`]: the state of the ports. [`usage`]: who sent how much to whom.
//! - [`requests`]: updates and questions of clients. [`captures`]: captures that run.
//! - [`faults`]: frames whose handling failed.
//! - [`questions`]: frames of learned networks that wait until the controllers have answered.
//! - [`handover`]: what another process of the switch takes over.
//! - [`probes`]: which gateways forward.
//! - [`mind`]: what this thread asks of the slow path's mind.
//!
//! Order that matters: an ack leaves only after the engine works with the tables that the update led to, and has sent what it had
//! decided by those before and what this thread had decided and given it. So "acked" means "in force for every packet": none that
//! arrives later passes by what was in force before, and none that arrived earlier is still to be sent.

mod again;
pub mod captures;
pub mod faults;
pub mod flows;
pub mod handover;
pub mod mind;
pub mod ports;
pub mod probes;
pub mod questions;
pub mod requests;
pub mod tables_mind;
pub mod usage;

use crate::control::clients::{Client, ControlCounters, Request};
use crate::control::punt::PuntSocket;
use crate::durations::Durations;
use crate::engine::ring::{FrameConsumer, FrameProducer};
use crate::engine::sys::Poller;
use crate::engine::{Command, EXTERNAL, Inject, Miss, Returned, Shared};
use crate::flow::{About, Effects, Hop, Ingress, Invalidate, MissReason, Outcome, PortEffect};
use crate::flowtable::tunnel::Tunnel;
use crate::handover::store::Store;
use crate::underlay;
use captures::Captures;
use faults::Faults;
use flows::FlowBook;
use handover::HandoverPort;
use mind::Mind;
use ports::PortBook;
use probes::Probes;
use questions::Questions;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};
use usage::UsageWindow;
use weir_base::journal::Journal;
use weir_base::numbers::Numbers;
use weir_model::event::{EventBody, Role};
use weir_model::local::Punt;
use weir_model::packet_in::PacketInReport;
use weir_model::{Change, Key, Label};
use weir_trust::kept::Kept;
use weir_trust::signer::HostSigner;
use weir_trust::token::TokenKey;

/// How often time passes for flows, captures and subscribers, milliseconds.
const TICK_MS: u64 = 50;
/// Ticks of a whole round over the flows, which is the window of usage reports.
pub const TICKS_PER_ROUND: u64 = 20;
/// Misses between two swaps.
const MISSES_PER_SWAP: usize = 256;
/// Requests of clients between two looks at the engine.
const REQUESTS_PER_TURN: usize = 16;
/// Punted answers between two looks at the engine.
const PUNTS_PER_TURN: usize = 64;
/// The journal of connections is compacted when it is over this size and twice what compaction left, bytes.
const COMPACT_BYTES_MIN: u64 = 4 * 1024 * 1024;

const TOKEN_WAKE: u64 = 0;
const TOKEN_PUNT: u64 = 1;

/// What the slow thread has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowCounters {
    /// Misses resolved.
    pub resolved: u64,
    /// Misses whose flow was there already.
    pub late: u64,
    /// Flows that had no room, or no network identifier that fits the wire.
    pub not_installed: u64,
    /// Flows that were idle too long.
    pub idle: u64,
    /// Frames that the ring to the engine had no room for.
    pub inject_overflow: u64,
    /// Frames punted to the agent.
    pub punted: u64,
    /// Frames that the agent did not take.
    pub punt_lost: u64,
    /// Punted answers for ports that are not there, or malformed.
    pub punt_refused: u64,
    /// Failed writes of the journal of connections.
    pub journal_errors: u64,
    /// Failed writes of the checkpoint; no update is acked while it fails.
    pub checkpoint_errors: u64,
    /// Events that were not told because no number for them could be kept.
    pub events_unnumbered: u64,
    /// Proofs of batches that were found right before any update under them came.
    pub proofs_ahead: u64,
    /// Times that the ports' devices could not be attached to.
    pub attach_failures: u64,
    /// Longest time from the receipt of an update to its being in force for every packet, microseconds.
    pub update_us_max: u64,
    /// These times.
    pub update: Durations,
}

/// The slow thread's ends of the channels to the engine.
pub struct EngineLink {
    /// Commands.
    pub commands: SyncSender<Command>,
    /// What comes back.
    pub returned: Receiver<Returned>,
    /// Frames that missed.
    pub misses: FrameConsumer<Miss>,
    /// Frames for the engine.
    pub injects: FrameProducer<Inject>,
}

/// Who this switch is.
pub struct Identity {
    /// Its name.
    pub name: Label,
    /// Its role.
    pub role: Role,
    /// Its address on the underlay.
    pub underlay: IpAddr,
    /// Signs its acks and events.
    pub signer: HostSigner,
    /// Makes the tokens of its own packets.
    pub tokens: TokenKey,
}

/// See the module.
pub struct Slow<M> {
    shared: Arc<Shared>,
    identity: Identity,
    mind: M,
    kept: Kept,
    /// What is kept and not in the tables, because they refuse it: none of it is told as in force.
    unapplied: BTreeSet<Key>,
    journal: Journal,
    journal_compacted_bytes: u64,
    flows: FlowBook,
    ports: PortBook,
    store: Store,
    usage: UsageWindow,
    questions: Questions<(Miss, Vec<u8>)>,
    probes: Probes,
    /// What had come back of each gateway's probes when it was asked the last time: the slot of their flow, and packets.
    probed: HashMap<IpAddr, (u32, u32)>,
    captures: Captures,
    faults: Faults,
    handover: HandoverPort,
    underlay: Option<Arc<underlay::Control>>,
    link: EngineLink,
    requests: Receiver<Request>,
    subscribers: Vec<Arc<Client>>,
    states: Vec<requests::StateCursor>,
    punt: PuntSocket,
    control: Arc<ControlCounters>,
    poller: Poller,
    counters: SlowCounters,
    tick: u64,
    next_tick: Instant,
}

/// What a slow thread starts with.
pub struct Parts<M> {
    /// Shared with the engine.
    pub shared: Arc<Shared>,
    /// Who this is.
    pub identity: Identity,
    /// The mind, empty.
    pub mind: M,
    /// What the checkpoint has in force, its own or followed.
    pub kept: Kept,
    /// The journal of connections and what was in it.
    pub journal: (Journal, Vec<Vec<u8>>),
    /// The book of flows, empty.
    pub flows: FlowBook,
    /// The book of ports, empty.
    pub ports: PortBook,
    /// Keeps what is open for the process after this one.
    pub store: Store,
    /// To the engine.
    pub link: EngineLink,
    /// From clients.
    pub requests: Receiver<Request>,
    /// Frames from and to the agent.
    pub punt: PuntSocket,
    /// What the control thread counts.
    pub control: Arc<ControlCounters>,
    /// Keeps frames whose handling failed.
    pub faults: Faults,
    /// Asked by who takes over.
    pub handover: HandoverPort,
    /// The underlay without sockets, if it is wanted.
    pub underlay: Option<Arc<underlay::Control>>,
}

impl<M: Mind> Slow<M> {
    /// Takes over, and takes back what was in force from the checkpoint and the journal.
    ///
    /// # Errors
    /// When the kernel gives no poller.
    pub fn new(parts: Parts<M>) -> io::Result<Slow<M>> {
        let poller = Poller::new()?;
        poller.add(parts.shared.slow_wake.fd(), TOKEN_WAKE)?;
        poller.add(parts.punt.fd(), TOKEN_PUNT)?;
        let (journal, records) = parts.journal;
        let mut slow = Slow {
            usage: UsageWindow::new(parts.identity.name.clone()),
            shared: parts.shared,
            identity: parts.identity,
            mind: parts.mind,
            kept: parts.kept,
            unapplied: BTreeSet::new(),
            journal_compacted_bytes: journal.length_bytes,
            journal,
            flows: parts.flows,
            ports: parts.ports,
            store: parts.store,
            questions: Questions::default(),
            probes: Probes::default(),
            probed: HashMap::new(),
            captures: Captures::default(),
            faults: parts.faults,
            handover: parts.handover,
            underlay: parts.underlay,
            link: parts.link,
            requests: parts.requests,
            subscribers: Vec::new(),
            states: Vec::new(),
            punt: parts.punt,
            control: parts.control,
            poller,
            counters: SlowCounters::default(),
            tick: 0,
            next_tick: Instant::now(),
        };
        slow.restore(&records);
        Ok(slow)
    }

    /// Applies what the checkpoint has in force, in the order of the keys: gateways, networks, policies, members,
    /// routes, ports, locations; then takes back connections. What the tables refuse now (those of another release may) is not in
    /// force: the controllers send it again, and are told why.
    fn restore(&mut self, records: &[Vec<u8>]) {
        let now_ms = self.shared.now_ms();
        let updates: Vec<weir_model::Update> = requests::updates_in_force(self.kept.gate()).collect();
        for update in &updates {
            match self.mind.apply(now_ms, update) {
                // Nothing forwards yet, so there are no flows to decide again.
                Ok(effects) => drop(self.take_effects(update, effects)),
                Err(refusal) => {
                    tracing::warn!(key = %update.key, version = %update.version, %refusal, "not restored");
                    self.unapplied.insert(update.key.clone());
                }
            }
        }
        let connections = self.mind.restore(now_ms, records);
        tracing::info!(entries = updates.len(), connections, "restored from the checkpoint");
    }

    /// The numbers of events, which are read when nobody else takes any more.
    pub(crate) fn set_numbers(&mut self, numbers: Numbers) {
        self.identity.signer.set_numbers(numbers);
    }

    /// What is in force and the mind, for tests.
    #[cfg(test)]
    pub(crate) fn in_force(&mut self) -> (&mut Kept, &M) {
        (&mut self.kept, &self.mind)
    }

    /// Runs until it is told to stop, another process serves, or the engine is gone.
    ///
    /// # Errors
    /// When the kernel refuses to wait, or the engine ended by itself.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        while !self.shared.stop.load(Relaxed) {
            let wait = self.next_tick.saturating_duration_since(Instant::now());
            let busy = self.has_work();
            let timeout_ms = if busy { 0 } else { wait.as_millis() as i32 + 1 };
            let count = self.poller.wait(&mut events, timeout_ms)?;
            if events[..count].iter().any(|event| event.u64 == TOKEN_WAKE) {
                self.shared.slow_wake.clear();
            }
            self.take_returned();
            self.take_attached();
            self.take_punts();
            if self.flows.is_ready() {
                self.take_misses()?;
                self.take_requests()?;
            }
            if self.flows.is_ready() && Instant::now() >= self.next_tick {
                self.pass_time()?;
            }
            self.publish()?;
            self.write_journal();
            if self.take_asks()? {
                break;
            }
        }
        let _ = self.command(Command::Stop);
        Ok(())
    }

    fn has_work(&self) -> bool {
        self.flows.is_ready() && self.link.misses.peek().is_some()
    }

    fn command(&self, command: Command) -> io::Result<()> {
        // Before it has taken over, the engine has no ports and does not run.
        if self.ports.is_adopting() && matches!(command, Command::SetUp(..) | Command::RemovePort(_)) {
            return Ok(());
        }
        let sent = self.link.commands.send(command);
        self.shared.engine_wake.wake();
        sent.map_err(|_| io::Error::other("the engine has ended"))
    }

    /// Gives the engine something before it runs.
    pub(crate) fn tell_engine(&self, command: Command) -> io::Result<()> {
        self.command(command)
    }

    /// A way to the engine, for a moment: it ends when nobody has one any more.
    pub(crate) fn engine(&self) -> SyncSender<Command> {
        self.link.commands.clone()
    }

    fn take_returned(&mut self) {
        while let Ok(returned) = self.link.returned.try_recv() {
            self.take_one(returned);
        }
    }

    fn take_one(&mut self, returned: Returned) {
        match returned {
            Returned::Tables(tables) => {
                let now_ms = self.shared.now_ms();
                self.flows.take_back(tables, now_ms, &mut self.mind, &mut self.usage);
            }
            Returned::Port(port) => drop(port),
            Returned::PortFailed(number) => self.port_failed(number),
            Returned::Fault(fault) => self.engine_fault(*fault),
            // Who asked did not wait so long.
            Returned::Fragment(_) | Returned::Paused | Returned::Carried(_) | Returned::Wires(_) => {}
        }
    }

    /// Publishes changed tables if the shadow is here.
    fn publish(&mut self) -> io::Result<()> {
        match self.flows.publish() {
            Some(tables) => self.command(Command::Tables(tables)),
            None => Ok(()),
        }
    }

    /// Publishes, and waits until no packet meets the old tables any more and all frames are sent that were decided before.
    fn publish_and_wait(&mut self) -> io::Result<()> {
        self.wait_for_shadow()?;
        if self.link.injects.is_empty() {
            self.publish()?;
        } else if let Some(tables) = self.flows.publish_anyhow() {
            self.command(Command::Tables(tables))?;
        }
        self.wait_for_shadow()
    }

    fn wait_for_shadow(&mut self) -> io::Result<()> {
        use std::sync::mpsc::RecvTimeoutError;
        while !self.flows.is_ready() {
            match self.link.returned.recv_timeout(Duration::from_secs(1)) {
                Ok(returned) => self.take_one(returned),
                Err(RecvTimeoutError::Timeout) => self.shared.engine_wake.wake(),
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the engine has ended")),
            }
        }
        Ok(())
    }

    fn take_misses(&mut self) -> io::Result<()> {
        let mut injected = false;
        for _ in 0..MISSES_PER_SWAP {
            let Some((miss, frame)) = self.link.misses.peek() else { break };
            let frame = frame.to_vec();
            self.link.misses.pop();
            self.shared.load.done(miss.class);
            injected |= self.resolve(&miss, &frame);
        }
        self.publish()?;
        if injected {
            self.shared.engine_wake.wake();
        }
        self.tell_packets();
        Ok(())
    }

    /// Lets the frames go on that wait for the places and turns in these updates, which are in force.
    fn release_held(&mut self, updates: &[weir_model::Update]) -> io::Result<()> {
        let mut injected = false;
        for update in updates {
            let (vni, about) = match (&update.key, &update.change) {
                (Key::Location { vni, address }, Change::Put(_)) => (vni, About::Place(*address)),
                (Key::Turn { vni, client, address }, Change::Put(_)) => {
                    (vni, About::Turn { client: *client, address: *address })
                }
                _ => continue,
            };
            for (miss, frame) in self.questions.answered(self.shared.now_us(), vni.0, about) {
                injected |= self.resolve(&miss, &frame);
            }
        }
        if injected {
            self.publish()?;
            self.shared.engine_wake.wake();
        }
        Ok(())
    }

    /// Tells the controllers of packets that there are no rules for.
    fn tell_packets(&mut self) {
        while let Some((vni, packets)) = self.questions.take_told() {
            let actuator = self.identity.name.clone();
            self.tell_event(EventBody::PacketIn(PacketInReport { actuator, vni, packets }));
        }
    }

    /// Resolves one miss; returns whether there is a frame for the engine.
    fn resolve(&mut self, miss: &Miss, frame: &[u8]) -> bool {
        self.with_frame(&miss.ingress, frame, |slow| slow.resolve_one(miss, frame)).unwrap_or(false)
    }

    fn resolve_one(&mut self, miss: &Miss, frame: &[u8]) -> bool {
        let now_ms = self.shared.now_ms();
        if miss.reason == MissReason::NoFlow && self.flows.has(&miss.ingress, &miss.key) {
            // A packet of the same flow was resolved since this one missed.
            self.counters.late += 1;
            return self.reinject(miss, frame);
        }
        self.counters.resolved += 1;
        let resolution = self.mind.resolve(now_ms, &miss.ingress, &miss.key, miss.reason, frame);
        for (ingress, key, action) in &resolution.install {
            let installed = self.flows.install(ingress, key, action, |port| self.ports.vni(port), now_ms);
            self.counters.not_installed += u64::from(!installed);
            self.shared.counters.prepare_rule(action.counter);
        }
        // Of flows whose place others took.
        self.flows.tell_leaving(now_ms, &mut self.mind, &mut self.usage);
        if let Ingress::Port(port) = miss.ingress
            && let Some((vni, packet)) = self.mind.hear(now_ms, port, frame)
        {
            self.questions.tell(vni, packet);
        }
        match resolution.outcome {
            Outcome::Ask(asked) => {
                let held = (*miss, frame.to_vec());
                self.questions.ask(self.shared.now_us(), *asked, frame.len(), held);
                false
            }
            Outcome::Reinject => self.reinject(miss, frame),
            Outcome::Answer(answer) => self.answer(&miss.ingress, &answer),
            Outcome::Punt => {
                self.punt_frame(&miss.ingress, frame);
                false
            }
            Outcome::Forward { hop, frame } => self.forward(hop, &frame),
            Outcome::Drop => false,
        }
    }

    fn reinject(&mut self, miss: &Miss, frame: &[u8]) -> bool {
        let generation = self.flows.next_generation();
        self.inject(
            Inject::Again { ingress: miss.ingress, key: miss.key, virtio: miss.virtio, generation },
            frame,
        )
    }

    fn inject(&mut self, inject: Inject, frame: &[u8]) -> bool {
        let pushed = self.link.injects.push(inject, &[frame]).is_ok();
        self.counters.inject_overflow += u64::from(!pushed);
        pushed
    }

    /// Sends a frame that is ready.
    fn forward(&mut self, hop: Hop, frame: &[u8]) -> bool {
        match hop {
            Hop::Port(port) => self.inject(Inject::Port(usize::from(port)), frame),
            Hop::External => self.inject(Inject::Port(EXTERNAL), frame),
            Hop::Underlay { receiver, vni, format, token, half, .. } => {
                match Tunnel::new(receiver, vni, format, Some(token)) {
                    Some(tunnel) => self.inject(Inject::Underlay(tunnel.saying(half)), frame),
                    None => false,
                }
            }
            Hop::Drop => false,
        }
    }

    /// Gives a frame to where another came from.
    fn answer(&mut self, ingress: &Ingress, frame: &[u8]) -> bool {
        match *ingress {
            Ingress::Port(port) => self.inject(Inject::Port(usize::from(port)), frame),
            Ingress::External => self.inject(Inject::Port(EXTERNAL), frame),
            Ingress::Underlay { sender, vni, format, .. } => {
                let token = self.identity.tokens.token(vni, self.identity.underlay);
                match Tunnel::new(sender, vni, format, Some(token)) {
                    Some(tunnel) => self.inject(Inject::Underlay(tunnel), frame),
                    None => false,
                }
            }
        }
    }

    fn punt_frame(&mut self, ingress: &Ingress, frame: &[u8]) {
        let Ingress::Port(port) = *ingress else { return };
        let Some(key) = self.ports.key(port) else { return };
        let sent = self.punt.send(&Punt { key: key.clone(), frame: frame.to_vec() });
        self.counters.punted += u64::from(sent);
        self.counters.punt_lost += u64::from(!sent);
    }

    fn take_punts(&mut self) {
        let mut injected = false;
        for _ in 0..PUNTS_PER_TURN {
            match self.punt.receive() {
                Ok(Some(punt)) => match self.ports.number(&punt.key) {
                    Some(port) => injected |= self.inject(Inject::Port(usize::from(port)), &punt.frame),
                    None => self.counters.punt_refused += 1,
                },
                Ok(None) => break,
                Err(_) => self.counters.punt_refused += 1,
            }
        }
        if injected {
            self.shared.engine_wake.wake();
        }
    }

    /// Makes an applied update true outside of the mind's tables and of the flow table; returns which flows are to be decided again.
    fn take_effects(&mut self, update: &weir_model::Update, effects: Effects) -> Vec<Invalidate> {
        for effect in effects.ports {
            if let PortEffect::Remove { port } = effect {
                self.questions.port_gone(port);
            }
            self.port_effect(update, effect);
        }
        effects.invalidate
    }

    /// One tick: a part of the flows, and whatever waits for time.
    fn pass_time(&mut self) -> io::Result<()> {
        self.next_tick = Instant::now() + Duration::from_millis(TICK_MS);
        let now_ms = self.shared.now_ms();
        self.tick += 1;
        let part = self.tick % TICKS_PER_ROUND;
        let idle = self.flows.scan(part, TICKS_PER_ROUND, now_ms, &mut self.mind, &mut self.usage);
        self.counters.idle += idle;
        if part == 0 {
            let changes = self.mind.tick(now_ms);
            self.decide_again(&changes)?;
            let mut injected = false;
            for (port, frame) in self.mind.due_frames(now_ms) {
                injected |= self.inject(Inject::Port(usize::from(port)), &frame);
            }
            if injected {
                self.shared.engine_wake.wake();
            }
            let window_ms = (TICK_MS * TICKS_PER_ROUND) as u32;
            if let Some(report) = self.usage.close(window_ms, self.mind.holds_locations()) {
                self.tell_event(EventBody::Usage(report));
            }
            self.tell_found();
            self.look_at_veths();
        }
        self.probe_gateways(now_ms)?;
        self.questions.pass_time(now_ms);
        self.store.tend();
        self.faults.write_if_due();
        self.tell_packets();
        self.tell_ports();
        self.continue_states();
        self.serve_captures();
        Ok(())
    }

    /// Tells of what the controllers asked for and is here, until they do not ask any more.
    fn tell_found(&mut self) {
        for (vni, packet) in self.mind.found() {
            self.questions.tell(vni, packet);
        }
    }

    fn write_journal(&mut self) {
        let changes = self.mind.take_changes();
        if changes.is_empty() {
            return;
        }
        let limit = COMPACT_BYTES_MIN.max(2 * self.journal_compacted_bytes);
        let written = if self.journal.length_bytes > limit {
            let snapshot = self.mind.snapshot();
            let rewritten = self.journal.rewrite(snapshot.iter().map(Vec::as_slice));
            self.journal_compacted_bytes = self.journal.length_bytes;
            rewritten
        } else {
            self.journal.append(&changes)
        };
        if let Err(error) = written {
            self.counters.journal_errors += 1;
            tracing::error!(%error, "the journal of connections cannot be written: they will not survive a restart");
        }
    }
}
