//! Small UDP datagrams in large numbers: a sender and a receiver of our own, since iperf3 makes one system call a
//! datagram and so measures itself.
//!
//! They run as `<program> lab-tool udp-send|udp-recv ...` inside namespaces and print one JSON line.

use crate::{Error, Netns, Program, Result, system};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg, sockopt};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

mod batch;

/// The port that the receiver listens on.
pub const PORT: u16 = 9000;
/// Datagrams a system call.
const BATCH: usize = 64;
/// Longest payload that the tool takes, in bytes.
const PAYLOAD_BYTES_MAX: usize = 1472;
/// Receive buffer asked for; the same for every path that is compared.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// How long the receiver may take to listen.
const LISTEN_BOUND: Duration = Duration::from_secs(10);
/// The receiver ends when nothing came for this long after the first datagram.
const IDLE_END: Duration = Duration::from_millis(300);
/// The receiver ends when nothing came at all for this long.
const FIRST_BOUND: Duration = Duration::from_secs(10);

/// What the sender did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Datagrams that the kernel took.
    pub datagrams: u64,
    /// Calls that the kernel refused, for lack of buffers or a passing error.
    pub refused_calls: u64,
    /// Time from first to last call.
    pub elapsed_us: u64,
}

/// What the receiver saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Datagrams that reached the program.
    pub datagrams: u64,
    /// Time from the first to the last arrival.
    pub elapsed_us: u64,
}

impl Received {
    /// Datagrams a second; zero if fewer than two came.
    pub fn per_second(&self) -> f64 {
        if self.elapsed_us == 0 {
            return 0.0;
        }
        self.datagrams as f64 / (self.elapsed_us as f64 / 1e6)
    }
}

/// The two ends together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The sender's account.
    pub sent: Sent,
    /// The receiver's account.
    pub received: Received,
}

/// Where to run the two ends.
#[derive(Debug, Clone)]
pub struct Options {
    /// Program and first arguments that reach [`tool`], such as `weir lab-tool`.
    pub tool: Vec<OsString>,
    /// Bytes a datagram; 18 make a 64-byte Ethernet frame with IPv4.
    pub payload_bytes: usize,
    /// How long to send.
    pub duration_ms: u64,
    /// The sender's core.
    pub sender_core: Option<u32>,
    /// The receiver's core.
    pub receiver_core: Option<u32>,
}

/// Sends from one namespace to a receiver at `address` in another, as fast as the sender can.
pub fn run(from: &Netns, to: &Netns, address: IpAddr, options: &Options) -> Result<Report> {
    let target = SocketAddr::new(address, PORT).to_string();
    let sender = tool_program(&options.tool, from, options.sender_core)?.args([
        "udp-send".to_string(),
        target.clone(),
        options.payload_bytes.to_string(),
        options.duration_ms.to_string(),
    ]);
    let receiver =
        tool_program(&options.tool, to, options.receiver_core)?.args(["udp-recv".to_string(), target]);
    let bound = Duration::from_millis(options.duration_ms) + Duration::from_secs(20);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| system::run_ok(receiver.command(), bound + FIRST_BOUND));
        system::wait_for("datagram receiver", LISTEN_BOUND, || {
            let text = to.run("ss", &["-Hlun", &format!("sport = :{PORT}")])?;
            // A receiver that has ended already says why when it is joined.
            Ok(!text.trim().is_empty() || receiving.is_finished())
        })?;
        let sent = parse(&system::run_ok(sender.command(), bound)?)?;
        let text =
            receiving.join().map_err(|_| Error::io("receiver thread", std::io::ErrorKind::Other))??;
        Ok(Report { sent, received: parse(&text)? })
    })
}

fn tool_program(tool: &[OsString], netns: &Netns, core: Option<u32>) -> Result<Program> {
    let (first, rest) =
        tool.split_first().ok_or_else(|| Error::Missing { program: "the datagram tool".to_string() })?;
    let mut program = Program::new(first.clone()).args(rest.iter().cloned()).netns(netns);
    if let Some(core) = core {
        program = program.core(core);
    }
    Ok(program)
}

fn parse<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::Output {
        program: "the datagram tool",
        reason: format!("{error} in {text:?}"),
    })
}

/// The hidden subcommand: `udp-send ADDRESS:PORT PAYLOAD_BYTES DURATION_MS` or `udp-recv ADDRESS:PORT`.
/// Returns the JSON line to print.
pub fn tool(arguments: &[String]) -> Result<String> {
    let usage = || Error::Command {
        command: format!("lab-tool {}", arguments.join(" ")),
        status: "wrong arguments".to_string(),
        stderr: "use: udp-send ADDRESS:PORT PAYLOAD_BYTES DURATION_MS | udp-recv ADDRESS:PORT".to_string(),
    };
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["udp-send", target, payload, duration] => {
            let target = target.parse().map_err(|_| usage())?;
            let payload_bytes: usize = payload.parse().map_err(|_| usage())?;
            let duration_ms = duration.parse().map_err(|_| usage())?;
            if payload_bytes > PAYLOAD_BYTES_MAX {
                return Err(usage());
            }
            to_json(&udp_send(target, payload_bytes, Duration::from_millis(duration_ms))?)
        }
        ["udp-recv", local] => {
            let socket = udp_listen(local.parse().map_err(|_| usage())?)?;
            to_json(&udp_receive(&socket, FIRST_BOUND)?)
        }
        _ => Err(usage()),
    }
}

fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::io("write the result", error))
}

/// Sends datagrams of `payload_bytes` to `target` for `duration`, 64 a call.
pub fn udp_send(target: SocketAddr, payload_bytes: usize, duration: Duration) -> Result<Sent> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)
        .and_then(|socket| socket.connect(target).map(|()| socket))
        .map_err(|error| Error::io(format!("open a datagram socket to {target}"), error))?;
    let payload = vec![0x5a_u8; payload_bytes];
    let slices = [IoSlice::new(&payload)];
    let mut controls: Vec<SendAncillaryBuffer<'_, '_, '_>> =
        (0..BATCH).map(|_| SendAncillaryBuffer::default()).collect();
    let mut messages: Vec<MMsgHdr<'_>> =
        controls.iter_mut().map(|control| MMsgHdr::new(&slices, control)).collect();
    let begin = Instant::now();
    let mut sent = Sent { datagrams: 0, refused_calls: 0, elapsed_us: 0 };
    while begin.elapsed() < duration {
        match sendmmsg(&socket, &mut messages, SendFlags::empty()) {
            Ok(count) => sent.datagrams += count as u64,
            // No buffer now, or an echo of an earlier datagram's ICMP error: both pass.
            Err(_) => sent.refused_calls += 1,
        }
    }
    sent.elapsed_us = micros(begin.elapsed());
    Ok(sent)
}

/// Opens the receiver's socket.
pub fn udp_listen(local: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(local).map_err(|error| Error::io(format!("listen on {local}"), error))?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES)
            .map_err(|error| Error::io("set the receive buffer", error))?;
    }
    socket.set_read_timeout(Some(IDLE_END)).map_err(|error| Error::io("set the receive timeout", error))?;
    Ok(socket)
}

/// Counts datagrams until none came for 300 ms after the first, or none at all within `first_bound`.
pub fn udp_receive(socket: &UdpSocket, first_bound: Duration) -> Result<Received> {
    let mut batch = batch::Batch::new(BATCH);
    let begin = Instant::now();
    let mut first = None;
    let mut last = begin;
    let mut datagrams = 0;
    loop {
        match batch.receive(socket) {
            Ok(count) => {
                last = Instant::now();
                first.get_or_insert(last);
                datagrams += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if first.is_some() || begin.elapsed() > first_bound {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("receive datagrams", error)),
        }
    }
    Ok(Received { datagrams, elapsed_us: first.map_or(0, |first| micros(last - first)) })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
