//! DNS over TCP for endpoints (RFC 7766; rows A11, A15): a small TCP per router's address and port, over
//! smoltcp, because the segments come here as punted frames and never see a kernel.
//!
//! A pure machine: frames and time in, frames and queries out. Whoever drives it answers each query once
//! with [`Streams::answer`], in any order; RFC 7766 lets answers overtake each other.
//!
//! Invariants
//! - Bounded: [`CONNECTIONS_MAX`] connections in all and [`CONNECTIONS_PER_STACK_MAX`] of an endpoint with
//!   one address of its router; for one more the one makes room that was idle longest, if for [`YIELDS_MS`], else it is refused
//!   with a reset. [`PIPELINE_MAX`] queries of one connection are
//!   out at once: beyond that, and while [`UNSENT_BYTES_MAX`] bytes of answers wait, its window closes.
//! - A connection is closed [`IDLE_MS`] after its last whole query or answer, however many bytes trickle in.
//! - An endpoint that leaves answers unacknowledged for [`UNACKED_MS`] is forgotten.
//! - What an endpoint's stack has belongs to it: another endpoint's frames never reach it.
//!
//! Departures: no TCP Fast Open, no edns-tcp-keepalive; the time-out is the same for all.

mod device;

use super::framing::{self, Reassembly};
use crate::frame::TcpFrame;
use crate::metrics::Metrics;
use crate::mirror::PortContext;
use device::Queue;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr, IpListenEndpoint};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use weir_model::Label;
use weir_model::entry::Vni;

/// Most connections of all endpoints.
pub const CONNECTIONS_MAX: usize = 512;
/// Most connections of one endpoint with one address of its router.
pub const CONNECTIONS_PER_STACK_MAX: usize = 8;
/// Most queries of one connection that are not answered.
pub const PIPELINE_MAX: usize = 8;
/// While so many bytes of answers wait to be sent, no further query is read.
pub const UNSENT_BYTES_MAX: usize = 64 * 1024;
/// A connection without a whole query or answer for so long is closed, milliseconds.
pub const IDLE_MS: u64 = 10_000;
/// A connection without anything under way makes room for another of its endpoint when it was idle for so long, milliseconds.
pub const YIELDS_MS: u64 = 1_000;
/// An endpoint that says nothing at all for so long is forgotten, milliseconds; longer than [`IDLE_MS`], so that who
/// is only idle is told.
pub const UNACKED_MS: u64 = 15_000;
/// How long closing may take, milliseconds.
const CLOSING_MS: u64 = 5_000;
/// How often [`Streams::tick`] is wanted while there are connections, milliseconds.
pub const TICK_MS: u64 = 50;
const RECEIVE_BYTES: usize = 2048;
const SEND_BYTES: usize = 8192;
const PORT: u16 = super::DNS_PORT;

/// Whose stack: the endpoint, and the router's address that it speaks to.
pub type StackName = (Vni, Label, IpAddr);

/// A connection, named once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamId {
    stack: StackName,
    number: u64,
}

/// What a step led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Frames for the endpoint.
    pub frames: Vec<Vec<u8>>,
    /// Queries; each is to be answered once.
    pub queries: Vec<(StreamId, Vec<u8>)>,
}

struct Connection {
    number: u64,
    handle: SocketHandle,
    reassembly: Reassembly,
    /// Queries that wait for their answers.
    open: usize,
    unsent: VecDeque<u8>,
    /// When a query or an answer was last whole.
    active_ms: u64,
    /// When closing began.
    closing_ms: Option<u64>,
}

struct Stack {
    name: StackName,
    port: PortContext,
    device: Queue,
    interface: Interface,
    sockets: SocketSet<'static>,
    listener: Option<SocketHandle>,
    connections: Vec<Connection>,
    /// Sockets of connections that made room and have yet to say so.
    yielded: Vec<SocketHandle>,
}

/// The connections of all endpoints of a host.
#[derive(Default)]
pub struct Streams {
    stacks: BTreeMap<StackName, Stack>,
    connections: usize,
    next: u64,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").field("connections", &self.connections).finish_non_exhaustive()
    }
}

fn at(now_ms: u64) -> Instant {
    Instant::from_millis(i64::try_from(now_ms).unwrap_or(i64::MAX))
}

impl Streams {
    /// Connections that are there.
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// Takes a segment of an endpoint to one of its router's addresses.
    pub fn take(
        &mut self,
        metrics: &Metrics,
        port: &PortContext,
        segment: &TcpFrame<'_>,
        now_ms: u64,
    ) -> Output {
        let name = (port.vni, port.endpoint.clone(), segment.destination);
        let mut stack = match self.stacks.remove(&name) {
            Some(mut stack) => {
                stack.port = port.clone();
                stack
            }
            None => Stack::new(name, port.clone(), now_ms),
        };
        stack.device.receive(segment.packet.to_vec());
        self.run(metrics, stack, now_ms)
    }

    /// Gives a query its answer; without one its connection goes on as if it had never been asked.
    pub fn answer(&mut self, metrics: &Metrics, to: &StreamId, answer: Option<&[u8]>, now_ms: u64) -> Output {
        let Some(mut stack) = self.stacks.remove(&to.stack) else { return Output::default() };
        if let Some(connection) = stack.connections.iter_mut().find(|one| one.number == to.number) {
            connection.open = connection.open.saturating_sub(1);
            connection.active_ms = now_ms;
            connection.unsent.extend(answer.and_then(framing::frame).unwrap_or_default());
        }
        self.run(metrics, stack, now_ms)
    }

    /// Lets time pass: sends again, closes what is idle. What each endpoint's stack makes of it, if anything.
    pub fn tick(&mut self, metrics: &Metrics, now_ms: u64) -> Vec<(PortContext, Output)> {
        let mut outputs = Vec::new();
        for (_, stack) in std::mem::take(&mut self.stacks) {
            let port = stack.port.clone();
            let output = self.run(metrics, stack, now_ms);
            if output != Output::default() {
                outputs.push((port, output));
            }
        }
        outputs
    }

    /// Lets a stack do all that it can, and keeps it if it still has a connection.
    fn run(&mut self, metrics: &Metrics, mut stack: Stack, now_ms: u64) -> Output {
        let mut output = Output::default();
        let before = stack.connections.len();
        let others = self.connections - before;
        loop {
            stack.listen(others + stack.connections.len() < CONNECTIONS_MAX, now_ms);
            stack.interface.poll(at(now_ms), &mut stack.device, &mut stack.sockets);
            let accepted = stack.accept(metrics, &mut self.next, now_ms);
            metrics.dns_tcp_accepted.add(u64::from(accepted));
            let moved = stack.move_bytes(metrics, now_ms, &mut output);
            if stack.device.is_full() || !accepted && !moved && stack.device.is_empty() {
                break;
            }
        }
        // A connection that was just broken off has yet to say so.
        stack.interface.poll(at(now_ms), &mut stack.device, &mut stack.sockets);
        // Who made room is told by a reset too.
        let (resets, made_room) = (stack.device.take_resets(), stack.yielded.len() as u64);
        metrics.dns_tcp_refused.add(resets.saturating_sub(made_room));
        stack.remove_closed();
        self.connections = others + stack.connections.len();
        metrics.dns_tcp_connections.set(self.connections as u64);
        output.frames = stack.frames();
        if !stack.connections.is_empty() {
            self.stacks.insert(stack.name.clone(), stack);
        }
        output
    }
}

impl Stack {
    fn new(name: StackName, port: PortContext, now_ms: u64) -> Stack {
        let mut device = Queue::new(usize::from(port.network.mtu));
        let mut config = Config::new(HardwareAddress::Ip);
        // Initial sequence numbers that nobody guesses.
        config.random_seed = rand::random();
        let mut interface = Interface::new(config, &mut device, at(now_ms));
        // Everything is on this link: the switch has already decided that the segment may come here.
        interface.update_ip_addrs(|addresses| {
            let pushed = addresses.push(IpCidr::new(IpAddress::from(name.2), 0));
            assert!(pushed.is_ok(), "an interface has room for one address");
        });
        let sockets = SocketSet::new(Vec::new());
        let (connections, yielded) = (Vec::new(), Vec::new());
        Stack { name, port, device, interface, sockets, listener: None, connections, yielded }
    }

    /// The connection that has been idle longest, of those that make room for another.
    fn idlest(&self, now_ms: u64) -> Option<usize> {
        let quiet = self.connections.iter().enumerate().filter(|(_, one)| {
            one.closing_ms.is_none()
                && one.open == 0
                && one.unsent.is_empty()
                && now_ms.saturating_sub(one.active_ms) >= YIELDS_MS
        });
        quiet.min_by_key(|(_, one)| one.active_ms).map(|(place, _)| place)
    }

    /// Has a socket that listens, unless there are connections enough and none of them makes room.
    fn listen(&mut self, room: bool, now_ms: u64) {
        let full = self.connections.len() >= CONNECTIONS_PER_STACK_MAX;
        let room = if full { self.idlest(now_ms).is_some() } else { room };
        match self.listener {
            None if room => {
                let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
                let mut socket = Socket::new(buffer(RECEIVE_BYTES), buffer(SEND_BYTES));
                socket.set_timeout(Some(Duration::from_millis(UNACKED_MS)));
                socket.set_ack_delay(None);
                socket.set_nagle_enabled(false);
                let address = Some(IpAddress::from(self.name.2));
                let listens = socket.listen(IpListenEndpoint { addr: address, port: PORT });
                assert!(listens.is_ok(), "a new socket listens on a port that is not 0");
                self.listener = Some(self.sockets.add(socket));
            }
            Some(listener) if !room => {
                self.sockets.remove(listener);
                self.listener = None;
            }
            _ => {}
        }
    }

    /// Makes a connection of a listener that somebody has called.
    fn accept(&mut self, metrics: &Metrics, next: &mut u64, now_ms: u64) -> bool {
        let called = |handle: &SocketHandle| self.sockets.get::<Socket<'_>>(*handle).state() != State::Listen;
        let Some(handle) = self.listener.take_if(|handle| called(handle)) else { return false };
        if self.connections.len() >= CONNECTIONS_PER_STACK_MAX
            && let Some(place) = self.idlest(now_ms)
        {
            let old = self.connections.swap_remove(place);
            metrics.dns_tcp_idle.count();
            // It is told as whoever asks for too much is; its socket goes with the next poll.
            self.sockets.get_mut::<Socket<'_>>(old.handle).abort();
            self.yielded.push(old.handle);
        }
        *next += 1;
        self.connections.push(Connection {
            number: *next,
            handle,
            reassembly: Reassembly::default(),
            open: 0,
            unsent: VecDeque::new(),
            active_ms: now_ms,
            closing_ms: None,
        });
        true
    }

    /// Reads queries, writes answers, closes; whether anything happened that another poll should see.
    fn move_bytes(&mut self, metrics: &Metrics, now_ms: u64, output: &mut Output) -> bool {
        let mut moved = false;
        for connection in &mut self.connections {
            let socket = self.sockets.get_mut::<Socket<'_>>(connection.handle);
            let sent = connection.send(socket);
            let queries = connection.read(socket, metrics, now_ms);
            moved |= sent || !queries.is_empty();
            let id = StreamId { stack: self.name.clone(), number: connection.number };
            output.queries.extend(queries.into_iter().map(|query| (id.clone(), query)));
            moved |= connection.end(socket, metrics, now_ms);
        }
        moved
    }

    fn remove_closed(&mut self) {
        let sockets = &mut self.sockets;
        for handle in self.yielded.drain(..) {
            sockets.remove(handle);
        }
        self.connections.retain(|connection| {
            let state = sockets.get::<Socket<'_>>(connection.handle).state();
            // A socket in TIME-WAIT has said everything: keeping it would only keep a place.
            let over = matches!(state, State::Closed | State::TimeWait);
            if over {
                sockets.remove(connection.handle);
            }
            !over
        });
    }

    fn frames(&mut self) -> Vec<Vec<u8>> {
        let (to, from) = (self.port.port.mac, self.port.vni.router_mac());
        let kind: [u8; 2] = if self.name.2.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
        let framed = |packet: Vec<u8>| [&to.0[..], &from.0, &kind, &packet].concat();
        self.device.take_sent().into_iter().map(framed).collect()
    }
}

impl Connection {
    fn send(&mut self, socket: &mut Socket<'_>) -> bool {
        let mut moved = false;
        while socket.can_send() && !self.unsent.is_empty() {
            let (first, _) = self.unsent.as_slices();
            let Ok(sent) = socket.send_slice(first) else { break };
            if sent == 0 {
                break;
            }
            self.unsent.drain(..sent);
            moved = true;
        }
        moved
    }

    /// Whole queries, as many as may be out.
    fn read(&mut self, socket: &mut Socket<'_>, metrics: &Metrics, now_ms: u64) -> Vec<Vec<u8>> {
        let mut queries = Vec::new();
        while self.closing_ms.is_none() && self.open < PIPELINE_MAX && self.unsent.len() < UNSENT_BYTES_MAX {
            match self.reassembly.message() {
                Ok(Some(query)) => {
                    metrics.dns_tcp_queries.count();
                    (self.open, self.active_ms) = (self.open + 1, now_ms);
                    queries.push(query);
                }
                Ok(None) if socket.can_recv() => {
                    let reassembly = &mut self.reassembly;
                    let read = socket.recv(|bytes| {
                        let taken = reassembly.push(bytes);
                        (taken, taken)
                    });
                    if read.is_err() {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "a DNS stream ends");
                    metrics.dns_tcp_malformed.count();
                    socket.abort();
                    self.closing_ms = Some(now_ms);
                }
            }
        }
        queries
    }

    /// Closes what is over or idle, and gives up what does not close.
    fn end(&mut self, socket: &mut Socket<'_>, metrics: &Metrics, now_ms: u64) -> bool {
        let quiet = self.open == 0 && self.unsent.is_empty();
        let late = |since_ms: u64, limit_ms: u64| now_ms.saturating_sub(since_ms) >= limit_ms;
        match self.closing_ms {
            Some(since_ms) if late(since_ms, CLOSING_MS) && socket.is_open() => socket.abort(),
            Some(_) => return false,
            // The endpoint has said everything, and has heard everything.
            None if socket.state() == State::CloseWait && !socket.can_recv() && quiet => {
                socket.close();
                self.closing_ms = Some(now_ms);
            }
            None if late(self.active_ms, IDLE_MS) => {
                metrics.dns_tcp_idle.count();
                // A handshake that was never finished has nobody to say good-bye to.
                if socket.state() == State::SynReceived {
                    socket.abort()
                } else {
                    socket.close()
                }
                self.closing_ms = Some(now_ms);
            }
            None => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests;
