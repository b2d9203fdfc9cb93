//! `iperf3`: TCP streams.

use crate::{Daemon, Error, Netns, Program, Result, Scope, system};
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;

/// The port that the server listens on.
pub const PORT: u16 = 5201;
/// Connections that one client of iperf3 makes at most.
pub const FLOWS_MAX: u32 = 128;
/// How long the server may take to listen.
const LISTEN_BOUND: Duration = Duration::from_secs(10);

/// What `iperf3` saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Bytes that reached the server's program.
    pub received_bytes: u64,
    /// Rate at the receiver.
    pub received_bits_per_s: f64,
    /// TCP segments sent again.
    pub retransmits: u64,
}

/// Starts a server in `netns`, on `core` if given, and waits until it listens.
pub fn server(scope: &Scope, name: &str, netns: &Netns, core: Option<u32>) -> Result<Daemon> {
    server_on(scope, name, netns, PORT, core)
}

/// The same on another port.
pub fn server_on(scope: &Scope, name: &str, netns: &Netns, port: u16, core: Option<u32>) -> Result<Daemon> {
    let mut program = Program::new("iperf3").netns(netns).args(["-s", "-p", &port.to_string()]);
    if let Some(core) = core {
        program = program.core(core);
    }
    let daemon = scope.start(name, &program)?;
    daemon.wait_until("iperf3 server", LISTEN_BOUND, || listening(netns, port))?;
    Ok(daemon)
}

/// True if a TCP socket listens on `port` in `netns`.
pub fn listening(netns: &Netns, port: u16) -> Result<bool> {
    let text = netns.run("ss", &["-Hltn", &format!("sport = :{port}")])?;
    Ok(!text.trim().is_empty())
}

/// How to run the client.
#[derive(Debug, Clone)]
pub struct Options {
    /// The server's port.
    pub port: u16,
    /// Parallel connections, at most [`FLOWS_MAX`].
    pub flows: u32,
    /// How long to send; iperf3 takes whole seconds.
    pub duration_s: u32,
    /// The client's core.
    pub core: Option<u32>,
    /// The server sends and the client receives.
    pub reverse: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { port: PORT, flows: 1, duration_s: 2, core: None, reverse: false }
    }
}

/// Streams from `netns` to the server at `address`.
pub fn run(netns: &Netns, address: IpAddr, options: &Options) -> Result<Report> {
    let mut program = Program::new("iperf3").netns(netns).args([
        "-J".to_string(),
        "-c".into(),
        address.to_string(),
        "-p".into(),
        options.port.to_string(),
        "-t".into(),
        options.duration_s.to_string(),
        "-P".into(),
        options.flows.to_string(),
        "--connect-timeout".into(),
        "3000".into(),
    ]);
    if let Some(core) = options.core {
        program = program.core(core);
    }
    if options.reverse {
        program = program.arg("-R");
    }
    let bound = Duration::from_secs(u64::from(options.duration_s) + 20);
    let output = system::run_output(program.command(), bound)?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    end: Option<End>,
}

#[derive(Deserialize)]
struct End {
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
}

#[derive(Deserialize)]
struct Sum {
    bytes: u64,
    bits_per_second: f64,
    #[serde(default)]
    retransmits: u64,
}

/// Reads the document that `iperf3 -J` prints.
pub fn parse(text: &str) -> Result<Report> {
    let wrong = |reason: String| Error::Output { program: "iperf3", reason };
    let document: Document = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if let Some(error) = document.error {
        return Err(wrong(error));
    }
    let end = document.end.ok_or_else(|| wrong("no summary".into()))?;
    let received = end.sum_received.ok_or_else(|| wrong("no sum of received bytes".into()))?;
    Ok(Report {
        received_bytes: received.bytes,
        received_bits_per_s: received.bits_per_second,
        retransmits: end.sum_sent.map_or(0, |sum| sum.retransmits),
    })
}
