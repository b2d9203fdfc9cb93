//! The underlay by AF_XDP: single datagrams of a switch in memory that the underlay's device shares with us, beside the UDP sockets
//! (rows A19, A20; `docs/decisions/0039-xdp-underlay.md`).
//!
//! ```text
//!             ┌ single datagrams, next hop known ── wire ── ring of queue 0 ─┐
//!    engine ──┤                                                              ├── device ── underlay
//!             └ cut from super-frames, all the rest ── UDP socket ── stack ──┘
//!
//!             ┌ whole UDP datagrams to our address and ports ── ring of their queue ── wire ─┐
//!    device ──┤  (XDP program)                                                               ├── engine
//!             └ fragments, IP options, all the rest ── stack ── UDP socket ──────────────────┘
//! ```
//!
//! The engine's part is [`crate::engine::wire`], the frames' is [`crate::ports::xdp`]. Here is the thread that keeps both going, and on which no
//! packet waits: it finds the device that has the underlay's address, opens a socket for each of its queues, attaches the program
//! ([`crate::ports::xdp::filter`]), and keeps the map of next hops.
//!
//! **Next hops** are the kernel's: for each receiver that the engine asks for, the kernel is asked which way a socket's datagram would go, and
//! for the neighbour there ([`kernel`]). It is asked again when it says that something has changed, and every [`REFRESH`], since what routers say
//! of an MTU it tells nobody. A neighbour that is missing or stale the kernel is told to look for, as it would for a socket, which a frame
//! past its stack does not do. Receivers for which nothing came in [`UNUSED_MAX`] refreshes are forgotten; there are
//! [`HOPS_MAX`] at most, and what is for others goes by the sockets.
//!
//! **When it cannot be had**, the sockets carry everything: the reason is in the log and among the counters (`underlay_way`), and it
//! is tried again, every [`RETRY`].
//!
//! **A hand-over** (row A30) needs no message. [`Control::leave`] takes the sockets from the program before the engine pauses: from then on the kernel
//! gives every datagram to the UDP sockets, which go over. What is in the rings the engine takes out before it says that it
//! has paused. The next process opens rings of its own when this one has ended, since a queue has one owner. If this one goes on after all,
//! [`Control::go_on`] gives the sockets to the program again. A crash is the same without the emptying: the link ends with the process.
//!
//! Limits: [`QUEUES_MAX`] queues; datagrams of further ones go to the sockets. Frames of an MTU that needs several chunks need a kernel and driver
//! that can do so.

pub mod kernel;
mod ways;

use crate::engine::sys::{self, Poller, Wakeup};
use crate::engine::wire::{ASKS_MAX, Ask, HOPS_MAX, SharedHops, Wire, Wires};
use crate::engine::{Command, Shared};
use crate::ports::xdp::filter::Filter;
use crate::ports::xdp::{self, Socket};
use crate::ports::{PortError, veth};
use arc_swap::ArcSwap;
use kernel::{Kernel, Link};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use ways::Ways;

/// Queues of a device that have a socket.
pub const QUEUES_MAX: usize = 16;
/// How often the kernel is asked again for what it tells nobody.
pub const REFRESH: Duration = Duration::from_secs(2);
/// Refreshes after which a receiver that nothing came for is forgotten.
pub const UNUSED_MAX: u32 = 15;
/// Wait before another try to have the device's frames.
pub const RETRY: Duration = Duration::from_millis(250);
/// Shortest time between two maps of next hops: changes come in crowds.
const PUBLISH: Duration = Duration::from_millis(5);
/// Asks of the engine that are taken at once.
const ASKS_AT_ONCE: usize = ASKS_MAX;

const TOKEN_WAKE: u64 = 0;
const TOKEN_KERNEL: u64 = 1;

/// What the underlay is, by the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Own address.
    pub address: IpAddr,
    /// UDP ports of Geneve and VXLAN.
    pub ports: [u16; 2],
    /// What the sockets' datagrams have as hop limit.
    pub hop_limit: u8,
}

/// The device's frames, while we have them.
struct Open {
    link: Link,
    filter: Filter,
    sockets: Vec<Arc<OwnedFd>>,
    is_zero_copy: bool,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// Why there is none.
    reason: String,
    /// Another process takes over: nothing is opened.
    leaves: bool,
}

/// What others ask of the thread, and see of it.
pub struct Control {
    state: Mutex<State>,
    hops: SharedHops,
    wake: Arc<Wakeup>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    /// Times that the device's frames could not be had.
    refused: AtomicU64,
    /// Receivers that the map had no room for.
    too_many: AtomicU64,
    /// Maps that were published.
    maps: AtomicU64,
    /// Questions that the kernel did not answer.
    failed: AtomicU64,
    /// Frames lost by rings that were closed since.
    lost_before: AtomicU64,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("reason", &self.state().reason).finish_non_exhaustive()
    }
}

/// What the thread has of its own, before it runs.
pub struct Underlay {
    control: Arc<Control>,
    settings: Settings,
    commands: SyncSender<Command>,
    shared: Arc<Shared>,
    asks: Receiver<Ask>,
    ask: SyncSender<Ask>,
}

impl Control {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panicked left a state that is whole: it is set in one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the kernel give every datagram to the UDP sockets, until [`Control::go_on`]. What is in the rings by then is all that ever will be.
    pub fn leave(&self) {
        let mut state = self.state();
        state.leaves = true;
        if let Some(open) = &mut state.open
            && let Err(error) = open.filter.rest()
        {
            tracing::warn!(device = open.link.name, %error, "what comes to the underlay's rings from now on is lost");
        }
    }

    /// Goes on after [`Control::leave`].
    pub fn go_on(&self) {
        let mut state = self.state();
        state.leaves = false;
        if let Some(Open { filter, sockets, link, .. }) = &mut state.open
            && let Err(error) = filter.go_on(sockets.iter().map(|socket| socket.as_fd()))
        {
            tracing::warn!(device = link.name, %error, "the underlay goes by sockets from now on");
            state.reason = format!("putting the sockets into the map again failed: {error}");
        }
        self.wake.wake();
    }

    /// What is counted, by name with labels.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let state = self.state();
        let is_on = state.open.as_ref().is_some_and(|open| open.filter.is_on());
        let (way, reason) = match (&state.open, is_on) {
            (Some(open), true) if open.is_zero_copy => ("af-xdp-zero-copy", ""),
            (Some(_), true) => ("af-xdp-copy", ""),
            _ => ("sockets", state.reason.as_str()),
        };
        let reason: String =
            reason.chars().map(|c| if matches!(c, '"' | '\\' | '\n') { '\'' } else { c }).collect();
        let queues = state.open.as_ref().map_or(0, |open| open.sockets.len());
        let lost: u64 = state.open.as_ref().map_or(0, Open::lost);
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        vec![
            (format!("underlay_way{{way=\"{way}\",reason=\"{reason}\"}}"), 1),
            ("underlay_wire_queues".into(), queues as u64),
            ("underlay_wire_lost".into(), lost + of(&self.counters.lost_before)),
            ("underlay_hops".into(), self.hops.load().len() as u64),
            ("underlay_hops_too_many".into(), of(&self.counters.too_many)),
            ("underlay_hop_maps".into(), of(&self.counters.maps)),
            ("underlay_refused".into(), of(&self.counters.refused)),
            ("underlay_kernel_failed".into(), of(&self.counters.failed)),
        ]
    }

    /// Has the thread look whether it is to end.
    pub fn wake(&self) {
        self.wake.wake();
    }
}

impl Open {
    /// Frames that the rings had no room for.
    fn lost(&self) -> u64 {
        self.sockets.iter().map(|socket| xdp::statistics(socket.as_fd()).lost).sum()
    }
}

impl Underlay {
    /// What runs once the switch does. `commands` are the engine's.
    ///
    /// # Errors
    /// When the kernel gives no wakeup.
    pub fn new(
        settings: Settings,
        commands: SyncSender<Command>,
        shared: Arc<Shared>,
    ) -> io::Result<Underlay> {
        let (ask, asks) = sync_channel(ASKS_MAX);
        let control = Arc::new(Control {
            state: Mutex::new(State { reason: "not tried yet".into(), ..State::default() }),
            hops: Arc::new(ArcSwap::default()),
            wake: Arc::new(Wakeup::new()?),
            counters: Counters::default(),
        });
        Ok(Underlay { control, settings, commands, shared, asks, ask })
    }

    /// For others.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Keeps the underlay's wires going until the switch ends.
    pub fn run(self) {
        let mut ways = Ways::new(self.settings);
        while let Err(error) = self.keep_going(&mut ways) {
            self.close(&mut ways, "the kernel tells no more of its routes");
            self.refuse(format!("route netlink: {error}"));
            // Whoever ends the switch wakes it.
            sys::wait_readable(self.control.wake.fd(), RETRY.as_millis() as i32);
        }
        self.close(&mut ways, "the switch ends");
    }

    /// Ends with the switch, or when the kernel does not tell of changes.
    fn keep_going(&self, ways: &mut Ways) -> io::Result<()> {
        let mut kernel = Kernel::new()?;
        let poller = Poller::new()?;
        poller.add(self.control.wake.fd(), TOKEN_WAKE)?;
        poller.add(kernel.fd(), TOKEN_KERNEL)?;
        let (mut refresh_at, mut try_at) = (Instant::now() + REFRESH, Instant::now());
        let mut publish_at = None;
        while !self.shared.stop.load(Relaxed) {
            let now = Instant::now();
            let is_open = self.control.state().open.is_some();
            if !is_open && now >= try_at {
                self.try_open(&mut kernel, ways);
                try_at = now + RETRY;
            }
            if now >= refresh_at {
                refresh_at = now + REFRESH;
                self.look_at_device(&mut kernel, ways);
                ways.refresh(&mut kernel);
            }
            for _ in 0..ASKS_AT_ONCE {
                match self.asks.try_recv() {
                    Ok(Ask::Hop(receiver)) => ways.add(&mut kernel, receiver),
                    Ok(Ask::Gone) => self.close(ways, "the device is gone"),
                    Err(_) => break,
                }
            }
            if ways.has_changed() && publish_at.is_none() {
                publish_at = Some(now + PUBLISH);
            }
            if publish_at.is_some_and(|at| Instant::now() >= at) {
                publish_at = None;
                self.control.hops.store(Arc::new(ways.publish()));
                self.control.counters.maps.fetch_add(1, Relaxed);
            }
            self.control.counters.too_many.store(ways.too_many(), Relaxed);
            self.control.counters.failed.store(ways.failed(), Relaxed);
            let next = if is_open { refresh_at } else { refresh_at.min(try_at) };
            let wait = publish_at.unwrap_or(next).min(next).saturating_duration_since(Instant::now());
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
            let wait_ms = wait.as_micros().div_ceil(1000) as i32;
            let count = poller.wait(&mut events, wait_ms)?;
            for event in &events[..count] {
                match event.u64 {
                    TOKEN_KERNEL => {
                        let changes = kernel.changes();
                        if changes.all {
                            self.look_at_device(&mut kernel, ways);
                        }
                        ways.note(&mut kernel, &changes);
                    }
                    _ => self.control.wake.clear(),
                }
            }
        }
        Ok(())
    }

    /// The sockets carry everything, for this reason.
    fn refuse(&self, reason: String) {
        let mut state = self.control.state();
        self.control.counters.refused.fetch_add(1, Relaxed);
        if state.reason != reason {
            tracing::warn!(reason, "the underlay goes by sockets, not AF_XDP");
            state.reason = reason;
        }
    }

    /// Has the device's frames, if they can be had.
    fn try_open(&self, kernel: &mut Kernel, ways: &mut Ways) {
        let mut state = self.control.state();
        if state.leaves {
            return;
        }
        match self.open(kernel) {
            Ok((open, wires)) => {
                tracing::info!(
                    device = open.link.name,
                    queues = open.sockets.len(),
                    zero_copy = open.is_zero_copy,
                    "the underlay goes by AF_XDP"
                );
                ways.set_link(Some(open.link.clone()));
                ways.note_all(kernel);
                (state.open, state.reason) = (Some(open), String::new());
                // A full channel is an engine that does not work; then nothing does.
                let _ = self.commands.send(Command::SetWires(Some(wires)));
                self.shared.engine_wake.wake();
            }
            Err(reason) => {
                drop(state);
                self.refuse(reason);
            }
        }
    }

    fn open(&self, kernel: &mut Kernel) -> Result<(Open, Box<Wires>), String> {
        let link = kernel.device_of(self.settings.address).map_err(|error| error.to_string())?;
        let name = link.name.clone();
        let refused = |reason: String| format!("device '{name}': {reason}");
        if link.is_loopback {
            return Err(refused("it is a loopback device: give the underlay an address of another".into()));
        }
        if link.mac.is_none() {
            return Err(refused("it has no Ethernet address".into()));
        }
        let queues = veth::queues(&name).map_err(|error| error.to_string())? as usize;
        if queues > QUEUES_MAX {
            tracing::warn!(device = name, queues, of_them = QUEUES_MAX, "further queues go to the sockets");
        }
        let queues = queues.min(QUEUES_MAX) as u32;
        let step = |(doing, error): (&'static str, io::Error)| refused(format!("{doing} failed: {error}"));
        let Settings { address, ports, .. } = self.settings;
        let mut filter = Filter::new(link.index, queues, address, ports).map_err(step)?;
        let mut sockets = Vec::new();
        for queue in 0..queues {
            let socket = Socket::open_queue(&name, link.index, queue, filter.map());
            let socket = socket.map_err(|error: PortError| error.to_string())?;
            if link.mtu + ETHERNET_BYTES > socket.frame_bytes_max() {
                let most = socket.frame_bytes_max() - ETHERNET_BYTES;
                return Err(refused(format!(
                    "its MTU is {}, and this kernel's AF_XDP takes {most}",
                    link.mtu
                )));
            }
            let added = filter.add(queue, socket.fd().as_fd());
            added.map_err(|error| step(("putting the socket into the map", error)))?;
            sockets.push(socket);
        }
        filter.attach().map_err(|error| step(("attaching the XDP program", error)))?;
        let is_zero_copy = sockets.iter().all(Socket::is_zero_copy);
        let fds = sockets.iter().map(|socket| Arc::clone(socket.fd())).collect();
        let queues = sockets.into_iter().map(|socket| Box::new(socket) as Box<dyn Wire>).collect();
        let asks = (self.ask.clone(), Arc::clone(&self.control.wake));
        let wires = Wires::new(queues, Arc::clone(&self.control.hops), Some(asks));
        Ok((Open { link, filter, sockets: fds, is_zero_copy }, Box::new(wires)))
    }

    /// Looks whether the device is still the one that has the address, as it was.
    fn look_at_device(&self, kernel: &mut Kernel, ways: &mut Ways) {
        let Some(before) = self.control.state().open.as_ref().map(|open| open.link.clone()) else { return };
        match kernel.device_of(self.settings.address) {
            Ok(link) if link.index == before.index && link.mtu == before.mtu => {
                if link != before {
                    if let Some(open) = &mut self.control.state().open {
                        open.link = link.clone();
                    }
                    ways.set_link(Some(link));
                    ways.note_all(kernel);
                }
            }
            Ok(_) => self.close(ways, "another device has the underlay's address, or its MTU has changed"),
            Err(error) => self.close(ways, &error.to_string()),
        }
    }

    /// Lets go of the device's frames.
    fn close(&self, ways: &mut Ways, reason: &str) {
        let mut state = self.control.state();
        let Some(mut open) = state.open.take() else { return };
        open.filter.detach();
        self.control.counters.lost_before.fetch_add(open.lost(), Relaxed);
        if !self.shared.stop.load(Relaxed) {
            tracing::warn!(device = open.link.name, reason, "the underlay goes by sockets from now on");
            let _ = self.commands.send(Command::SetWires(None));
            self.shared.engine_wake.wake();
        }
        state.reason = format!("device '{}': {reason}", open.link.name);
        ways.set_link(None);
    }
}

const ETHERNET_BYTES: usize = 14;

// The map's limit is the engine's.
const _: () = assert!(HOPS_MAX >= ASKS_MAX);
