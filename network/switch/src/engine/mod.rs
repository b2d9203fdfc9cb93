//! The engine: one thread that moves packets both ways, each to its end before the next (rows A19, A20,
//! A22, A23, A28 in a first form).
//!
//! Between a port and the underlay lie no thread, no queue and no lock. A turn of the loop serves every port that has
//! frames, a bounded number of each, and the underlay; what it gathers for other switches leaves at the end of the turn at the latest. On the way
//! there is no allocation and no system call but input and output: reads and writes of ports, sends and receives of the underlay,
//! the wait for either, and the wakeup of the slow thread.
//!
//! - [`forward`]: the decision about one packet.
//! - [`path`]: a packet's way from where it comes in to where it goes out.
//! - [`transmit`], [`receive`]: the underlay. [`wire`]: the underlay without sockets. [`port`]: the devices. [`peers`]: what other switches take. [`polling`]: when it sleeps.
//!   [`urgency`]: when it goes before others.
//! - [`buffer`]: the memory. [`idle`]: what else its processor may do. [`catch_up`]: how it begins without flows.
//! - [`ring`]: frames to and from the slow thread; `injects`: how those from it are taken, and what is sent before tables go back. [`counters`]: what is counted. [`contained`]: what a fault at one frame costs.
//!
//! Departure from the paper: the engine polls only for a few microseconds, and only while that pays ([`polling`]), because
//! a small host has no processor to give away. It yields after every empty look, so that an endpoint on the same
//! processor runs.

pub mod buffer;
pub mod catch_up;
pub mod contained;
pub mod counters;
pub mod forward;
pub mod hand;
pub mod idle;
mod injects;
pub mod limits;
pub mod path;
pub mod peers;
pub mod polling;
pub mod port;
pub mod receive;
pub mod ring;
pub mod sys;
pub mod transmit;
pub mod urgency;
pub mod wire;

pub use limits::{EXTERNAL, MISS_CLASSES, PORTS_MAX, SENDER_CLASSES};

use crate::capture::Tap;
use crate::counters::Reason;
use crate::flow::{Ingress, MissReason, PortIndex};
use crate::flowtable::tunnel::Tunnel;
use crate::flowtable::{FlowStore, Tables};
use crate::fragments::Fragments;
use crate::mark::{self, Mark};
use catch_up::CatchUp;
use counters::{Counters, EngineEvent};
use path::Path;
use polling::Polling;
use port::Port;
use ring::{FrameConsumer, FrameProducer};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};
use sys::{Poller, Wakeup};
use urgency::{Level, Urgency};
use weir_model::resource::Encapsulation;
use weir_packet::virtio::VirtioNetHeader;
use weir_packet::{FlowKey, Parsed};
use wire::Wires;

/// Frames of one class that may wait for the slow path.
pub const MISSES_PER_CLASS_MAX: u32 = 256;
/// Frames that may wait for the slow path, or come back from it.
pub const RING_FRAMES: usize = 4096;
/// Bytes of them.
pub const RING_BYTES: usize = 8 * 1024 * 1024;
/// Commands that may wait for the engine.
pub const COMMANDS_MAX: usize = 1024;
/// Calls that receive messages of the underlay, in one turn.
const RECEIVES_PER_TURN: usize = 4;
const EVENTS: usize = 64;
/// How long an engine that has work does not ask the kernel what else there is: that is a system call.
const POLL_PERIOD: Duration = Duration::from_micros(20);

/// How long a paused engine waits for commands at once.
const PAUSED_WAIT_MS: i32 = 10;

const TOKEN_WAKE: u64 = 1 << 32;
const TOKEN_UNDERLAY: u64 = 1 << 33;
const TOKEN_IDLE: u64 = 1 << 34;
/// Only wakes: wires are looked at in every turn.
const TOKEN_WIRE: u64 = 1 << 35;

/// A frame for the slow path.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// Where it came in.
    pub ingress: Ingress,
    /// Its key, zone zero.
    pub key: FlowKey,
    /// Why.
    pub reason: MissReason,
    /// What is left to do on it.
    pub virtio: VirtioNetHeader,
    /// Who is charged: whoever takes the frame out calls [`MissLoad::done`] with it.
    pub class: usize,
}

/// A frame from the slow path.
#[derive(Clone, Copy, Debug)]
pub enum Inject {
    /// It missed, and has a flow now.
    Again {
        /// Where it came in.
        ingress: Ingress,
        /// The key that it missed under, zone zero.
        key: FlowKey,
        /// What is left to do on it.
        virtio: VirtioNetHeader,
        /// The tables must be at least this new.
        generation: u64,
    },
    /// For a port, or [`EXTERNAL`].
    Port(usize),
    /// For another switch.
    Underlay(Tunnel),
}

/// To the engine.
pub enum Command {
    /// Look flows up in these; send back the old ones.
    Tables(Box<Tables>),
    /// A port, or [`EXTERNAL`], has this device. The old one goes back.
    SetPort(usize, Box<Port>),
    /// Let a port carry traffic or not.
    SetUp(usize, bool),
    /// The port is gone.
    RemovePort(usize),
    /// Copy frames.
    StartCapture(Tap),
    /// Stop copying.
    StopCapture(u64),
    /// Say what would become of a fragment.
    LookFragment(Box<(Ingress, Parsed)>),
    /// Read nothing more from outside, say so, and do what the slow path wants.
    Pause,
    /// Go on, with what came meanwhile ([`catch_up`]).
    Resume,
    /// Say what another engine is to begin with.
    Carry,
    /// Begin with this.
    Take(Box<Carried>),
    /// Have datagrams go by these wires where they can, or by the sockets alone. Those before go back.
    SetWires(Option<Box<Wires>>),
    /// Do this in idle slots.
    Idle(Box<dyn idle::Idle>),
    /// End.
    Stop,
}

/// What one engine hands to the next (row A30): what it learned from packets and cannot be told again.
#[derive(Default)]
pub struct Carried {
    /// Datagrams of which fragments are under way.
    pub fragments: Fragments,
    /// Switches that take partial checksums, with the time of their word.
    pub peers: Vec<(std::net::IpAddr, u32)>,
}

/// From the engine.
pub enum Returned {
    /// Tables that it no longer reads.
    Tables(Box<Tables>),
    /// A device that it no longer uses; dropping it may take milliseconds, so somebody else does.
    Port(Box<Port>),
    /// The device of a port is gone.
    PortFailed(usize),
    /// The handling of a frame failed.
    Fault(Box<contained::Fault>),
    /// The key of a fragment's flow, zone zero, or why it would be dropped.
    Fragment(Result<FlowKey, Reason>),
    /// It reads nothing from outside, and all that it read is on its way.
    Paused,
    /// What another engine is to begin with.
    Carried(Box<Carried>),
    /// Wires that it no longer uses; dropping them may take milliseconds, so somebody else does.
    Wires(Box<Wires>),
}

/// How many frames of each class wait for the slow path.
#[derive(Debug)]
pub struct MissLoad(Box<[std::sync::atomic::AtomicU32]>);

impl Default for MissLoad {
    fn default() -> MissLoad {
        MissLoad((0..MISS_CLASSES).map(|_| std::sync::atomic::AtomicU32::new(0)).collect())
    }
}

impl MissLoad {
    /// Charges a class; false when it has its share.
    fn charge(&self, class: usize) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        if self.0[class].load(Relaxed) >= MISSES_PER_CLASS_MAX {
            return false;
        }
        self.0[class].fetch_add(1, Relaxed);
        true
    }

    /// A frame of the class was taken out.
    pub fn done(&self, class: usize) {
        self.0[class].fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// What the engine and the other threads share.
#[derive(Debug)]
pub struct Shared {
    /// Flows and their statistics.
    pub store: Arc<FlowStore>,
    /// Counters.
    pub counters: Arc<Counters>,
    /// Load of the slow path.
    pub load: MissLoad,
    /// Wakes the engine.
    pub engine_wake: Wakeup,
    /// Wakes the slow thread.
    pub slow_wake: Wakeup,
    /// Start of the process's own clock.
    pub start: Instant,
    /// All threads shall end.
    pub stop: std::sync::atomic::AtomicBool,
    /// Which port is in hand, for the process after this one.
    pub mark: Mark,
}

impl Shared {
    /// Milliseconds since the start.
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Microseconds since the start.
    pub fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

/// The engine's ends of the channels.
pub struct Channels {
    /// Commands.
    pub commands: Receiver<Command>,
    /// What goes back.
    pub returned: SyncSender<Returned>,
    /// Frames to the slow path.
    pub misses: FrameProducer<Miss>,
    /// Frames from it.
    pub injects: FrameConsumer<Inject>,
}

/// The underlay as the engine sees it.
pub struct Underlay {
    /// Receiving sockets with their formats.
    pub receivers: Vec<(OwnedFd, Encapsulation)>,
    /// Sending side.
    pub transmit: transmit::Transmit,
    /// Own address and UDP ports (Geneve, VXLAN), for captures.
    pub address: std::net::IpAddr,
    /// UDP ports of Geneve and VXLAN.
    pub ports: [u16; 2],
    /// Whether inner checksums may stay partial between switches that both take it.
    pub partial_checksums: bool,
}

/// See the module.
pub struct Engine {
    shared: Arc<Shared>,
    channels: Channels,
    receivers: Vec<(OwnedFd, Encapsulation)>,
    path: Path,
    poller: Poller,
    polling: Polling,
    urgency: Urgency,
    level: Level,
    slots: idle::Slots,
    events: [libc::epoll_event; EVENTS],
    /// When the kernel is to be asked again at the latest.
    poll_at: Instant,
    /// When the last turn began, if it had something to do.
    worked_from: Option<Instant>,
    pause: Pause,
    catch_up: CatchUp,
    stopped: bool,
    /// How many frames of a port failed, the newest port last.
    faults: Vec<(usize, u32)>,
}

/// Whether the engine reads from outside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    No,
    /// This turn is the last.
    Asked,
    Yes,
}

impl Engine {
    /// An engine with no ports. It takes `batch` frames of a virtual machine at once, at most [`crate::ports::vhost::ring::BATCH_MAX`].
    ///
    /// # Errors
    /// When the kernel gives no poller.
    pub fn new(
        shared: Arc<Shared>,
        channels: Channels,
        underlay: Underlay,
        tables: Box<Tables>,
        polling: Polling,
        batch: usize,
    ) -> io::Result<Engine> {
        use std::os::fd::AsFd;
        let poller = Poller::new()?;
        poller.add(shared.engine_wake.fd(), TOKEN_WAKE)?;
        for (number, (socket, _)) in underlay.receivers.iter().enumerate() {
            poller.add(socket.as_fd(), TOKEN_UNDERLAY + number as u64)?;
        }
        let Underlay { receivers, transmit, address, ports, partial_checksums } = underlay;
        let peers = peers::Peers::new(partial_checksums);
        let path = Path::new(Arc::clone(&shared), transmit, address, ports, peers, tables, batch);
        Ok(Engine {
            shared,
            channels,
            receivers,
            path,
            poller,
            polling,
            urgency: Urgency::new(0),
            level: Level::default(),
            slots: idle::Slots::new(None),
            events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS],
            poll_at: Instant::now(),
            worked_from: None,
            pause: Pause::No,
            catch_up: CatchUp::default(),
            stopped: false,
            faults: Vec::new(),
        })
    }

    /// One that goes before others while it is behind ([`urgency`]).
    pub fn with_urgency(mut self, urgency: Urgency) -> Engine {
        self.urgency = urgency;
        self
    }

    /// One that reads nothing from outside until it is told to.
    pub fn paused(mut self) -> Engine {
        self.pause = Pause::Yes;
        self
    }

    /// Moves packets until it is told to stop.
    ///
    /// # Errors
    /// When the kernel refuses to wait, which it does not.
    pub fn run(mut self) -> io::Result<()> {
        while !self.stopped {
            self.turn()?;
        }
        Ok(())
    }

    /// One turn of [`Engine::run`], for whoever has the loop.
    ///
    /// # Errors
    /// When the kernel refuses to wait, which it does not.
    pub fn turn(&mut self) -> io::Result<()> {
        if self.pause != Pause::No {
            return self.paused_turn();
        }
        let start = Instant::now();
        let had_work = self.end_last(start);
        if self.catch_up.is_on() && !self.may_read(start) {
            return self.wait_for_slow_path();
        }
        let looks = self.polling.looks(start);
        let waits = !looks && !self.is_behind();
        let timeout_ms = if waits { self.slots.sleep_ms() } else { 0 };
        let mut count = 0;
        if waits || !had_work || start >= self.poll_at {
            count = self.poller.wait(&mut self.events, timeout_ms)?;
            self.poll_at = start + POLL_PERIOD;
        }
        let now = if timeout_ms == 0 { start } else { Instant::now() };
        self.path.set_now(now);
        let wired = self.contained(|engine| engine.path.serve_wires(&mut engine.channels.misses));
        for event in 0..count {
            self.serve(self.events[(self.catch_up.first() + event) % count].u64);
        }
        let frames = self.contained(|engine| engine.serve_guests(looks));
        let injected = self.take_injects();
        if count == 0 && frames + wired == 0 && !injected {
            let gave = self.slots.idle();
            if looks && !gave && !self.polling.is_alone() {
                std::thread::yield_now();
            }
            return Ok(());
        }
        self.slots.busy();
        let counters = &self.shared.counters;
        counters.event(EngineEvent::Turns).add(1);
        counters.event(EngineEvent::Sleeps).add(u64::from(timeout_ms != 0));
        self.polling.found(now);
        self.end_turn();
        self.worked_from = Some(now);
        Ok(())
    }

    /// A turn in which nothing is read from outside.
    #[cold]
    fn paused_turn(&mut self) -> io::Result<()> {
        if self.pause == Pause::Asked {
            self.pause = Pause::Yes;
            self.end_last(Instant::now());
            self.path.set_now(Instant::now());
            self.contained(|engine| engine.path.rest_wires(&mut engine.channels.misses));
            self.end_turn();
            self.give_back(Returned::Paused);
        }
        let wait_ms = if self.channels.injects.peek().is_some() { 0 } else { PAUSED_WAIT_MS };
        sys::wait_readable(self.shared.engine_wake.fd(), wait_ms);
        self.shared.engine_wake.clear();
        self.work_for_slow_path();
        Ok(())
    }

    /// What is done without reading anything from outside.
    fn work_for_slow_path(&mut self) {
        self.path.set_now(Instant::now());
        self.take_commands();
        self.take_injects();
        self.end_turn();
    }

    /// The last turn is over at `now`; returns whether it had something to do. Its end is the next one's beginning, so
    /// that a turn reads the clock once.
    fn end_last(&mut self, now: Instant) -> bool {
        let Some(from) = self.worked_from.take() else { return false };
        self.shared.counters.event(EngineEvent::BusyNs).add(now.duration_since(from).as_nanos() as u64);
        self.polling.worked(now, self.path.take_turn_bytes());
        let left_bulk = self.path.take_left_bulk();
        if let Some(change) = self.urgency.turned(now, left_bulk) {
            self.change_level(change);
        }
        true
    }

    #[cold]
    fn change_level(&mut self, change: urgency::Change) {
        let counters = &self.shared.counters;
        match self.level.make(change) {
            Ok(()) => counters.event(EngineEvent::Urgent).add(u64::from(self.urgency.is_on())),
            Err(_) => {
                counters.event(EngineEvent::UrgencyRefused).add(1);
                self.urgency.give_up();
            }
        }
    }

    /// Whether frames of the slow path were left over, or a guest may have more.
    fn is_behind(&self) -> bool {
        self.path.ports.has_hot() || self.path.wires_behind() || self.channels.injects.peek().is_some()
    }

    fn serve(&mut self, token: u64) {
        match token {
            TOKEN_WAKE => {
                self.shared.engine_wake.clear();
                self.take_commands();
                // They missed before anything that is read from now on, and that finds their flows.
                self.take_injects();
            }
            TOKEN_IDLE => self.slots.readable(),
            token if token >= TOKEN_WIRE => {}
            token if token >= TOKEN_UNDERLAY => {
                self.contained(|engine| engine.serve_underlay((token - TOKEN_UNDERLAY) as usize));
            }
            port => self.contained(|engine| engine.serve_port(port as usize)),
        }
    }

    fn serve_port(&mut self, port: usize) {
        if self.path.ports.heat(port) {
            return;
        }
        self.shared.mark.take(port);
        if self.path.serve_port(port, &mut self.channels.misses) == port::Served::Failed {
            self.path.ports.unwatch(port, &self.poller);
            let _ = self.channels.returned.try_send(Returned::PortFailed(port));
            self.shared.slow_wake.wake();
        }
    }

    fn serve_guests(&mut self, looks: bool) -> usize {
        if !self.path.ports.has_hot() {
            return 0;
        }
        let (poller, returned, slow_wake) = (&self.poller, &self.channels.returned, &self.shared.slow_wake);
        self.path.serve_guests(looks, &mut self.channels.misses, |path, port| {
            path.ports.unwatch(port, poller);
            path.ports.set_up(port, false, poller);
            let _ = returned.try_send(Returned::PortFailed(port));
            slow_wake.wake();
        })
    }

    fn serve_underlay(&mut self, number: usize) {
        use std::os::fd::AsFd;
        let Some((socket, format)) = self.receivers.get(number) else { return };
        self.shared.mark.take(mark::UNDERLAY);
        for _ in 0..RECEIVES_PER_TURN {
            if !self.path.serve_underlay(socket.as_fd(), *format, &mut self.channels.misses) {
                return;
            }
        }
    }

    fn take_commands(&mut self) {
        loop {
            let command = match self.channels.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return,
                // Who decides what flows do is gone: end, so that the process is started anew.
                Err(TryRecvError::Disconnected) => {
                    self.stopped = true;
                    return;
                }
            };
            let back = match command {
                Command::Tables(tables) => {
                    self.shared.counters.event(EngineEvent::Swaps).add(1);
                    let old = self.path.swap(tables);
                    self.settle();
                    Some(Returned::Tables(old))
                }
                Command::SetPort(number, port) => {
                    self.path.ports.set(number, port, &self.poller).map(Returned::Port)
                }
                Command::SetUp(number, up) => {
                    self.path.ports.set_up(number, up, &self.poller);
                    None
                }
                Command::RemovePort(number) => {
                    self.path.ports.remove(number, &self.poller).map(Returned::Port)
                }
                Command::StartCapture(tap) => {
                    self.path.taps.add(tap);
                    None
                }
                Command::StopCapture(id) => {
                    self.path.taps.remove(id);
                    None
                }
                Command::LookFragment(asked) => {
                    Some(Returned::Fragment(self.path.look_fragment(&asked.0, &asked.1)))
                }
                Command::Pause => {
                    self.pause = Pause::Asked;
                    None
                }
                Command::Resume => {
                    self.pause = Pause::No;
                    self.go_on();
                    self.catch_up.begin();
                    None
                }
                Command::SetWires(wires) => self.set_wires(wires).map(Returned::Wires),
                Command::Carry => Some(Returned::Carried(Box::new(self.path.carried()))),
                Command::Take(carried) => {
                    self.path.carry(*carried);
                    None
                }
                Command::Idle(work) => {
                    if let Some(socket) = work.socket() {
                        // It fails for one that is watched: then it is not asked.
                        let _ = self.poller.add(socket, TOKEN_IDLE);
                    }
                    self.slots = idle::Slots::new(Some(work));
                    None
                }
                Command::Stop => {
                    self.stopped = true;
                    None
                }
            };
            if let Some(back) = back {
                self.give_back(back);
            }
        }
    }

    fn set_wires(&mut self, wires: Option<Box<Wires>>) -> Option<Box<Wires>> {
        let old = self.path.set_wires(wires);
        old.iter().flat_map(|old| old.fds()).for_each(|fd| self.poller.remove(fd));
        if let Some(wires) = self.path.wires() {
            for (number, fd) in wires.fds().enumerate() {
                // It fails for no socket that is open.
                let _ = self.poller.add(fd, TOKEN_WIRE + number as u64);
            }
        }
        old
    }

    /// Has the ports go on where their rings stand: another process may have worked with them.
    fn go_on(&mut self) {
        if let Some(wires) = self.path.wires() {
            wires.rest(false);
        }
        for port in self.path.ports.go_on() {
            self.path.ports.unwatch(port, &self.poller);
            self.give_back(Returned::PortFailed(port));
        }
    }

    fn give_back(&self, back: Returned) {
        // The channel holds more than commands can be answered, and tables are one at a time.
        let _ = self.channels.returned.try_send(back);
        self.shared.slow_wake.wake();
    }

    fn end_turn(&mut self) {
        if self.path.holds() {
            self.contained(|engine| engine.path.serve_held(&mut engine.channels.misses));
        }
        if self.path.end_turn() {
            self.shared.slow_wake.wake();
        }
        self.shared.mark.put_down();
    }
}

/// The number of a port in flow terms.
pub fn ingress_of(port: usize) -> Ingress {
    if port == EXTERNAL { Ingress::External } else { Ingress::Port(port as PortIndex) }
}
