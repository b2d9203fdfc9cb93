//! `sockperf`: TCP request and response, one message at a time.

use crate::{Daemon, Error, Netns, Program, Result, Scope, system};
use std::net::IpAddr;
use std::time::Duration;

/// The port that the server listens on.
pub const PORT: u16 = 11111;
const LISTEN_BOUND: Duration = Duration::from_secs(10);

/// Half round-trip times.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Messages that the figures stand on.
    pub messages: u64,
}

/// Starts a server in `netns` at `address`, on `core` if given, and waits until it listens.
pub fn server(
    scope: &Scope,
    name: &str,
    netns: &Netns,
    address: IpAddr,
    core: Option<u32>,
) -> Result<Daemon> {
    let mut program = Program::new("sockperf").netns(netns).args([
        "server".to_string(),
        "--tcp".into(),
        "-i".into(),
        address.to_string(),
        "-p".into(),
        PORT.to_string(),
    ]);
    if let Some(core) = core {
        program = program.core(core);
    }
    let daemon = scope.start(name, &program)?;
    daemon.wait_until("sockperf server", LISTEN_BOUND, || super::stream::listening(netns, PORT))?;
    Ok(daemon)
}

/// Sends 14-byte messages from `netns` to the server for `duration_s`, each after the answer to the one before.
pub fn run(netns: &Netns, address: IpAddr, duration_s: u32, core: Option<u32>) -> Result<Report> {
    let mut program = Program::new("sockperf").netns(netns).args([
        "ping-pong".to_string(),
        "--tcp".into(),
        "-i".into(),
        address.to_string(),
        "-p".into(),
        PORT.to_string(),
        "-m".into(),
        "14".into(),
        "-t".into(),
        duration_s.to_string(),
    ]);
    if let Some(core) = core {
        program = program.core(core);
    }
    let text = system::run_ok(program.command(), Duration::from_secs(u64::from(duration_s) + 20))?;
    parse(&text)
}

/// Reads the percentiles and the count that `sockperf ping-pong` prints.
pub fn parse(text: &str) -> Result<Report> {
    let wrong = |reason: String| Error::Output { program: "sockperf", reason };
    let percentile = |name: &str| -> Result<f64> {
        text.lines()
            .find(|line| line.contains(&format!("percentile {name} ")))
            .and_then(|line| line.rsplit('=').next()?.trim().parse().ok())
            .ok_or_else(|| wrong(format!("no percentile {name}")))
    };
    let messages = text
        .lines()
        .find(|line| line.contains("observations"))
        .and_then(|line| line.split_whitespace().find_map(|word| word.parse().ok()))
        .ok_or_else(|| wrong("no count of observations".into()))?;
    Ok(Report { p50_us: percentile("50.000")?, p99_us: percentile("99.000")?, messages })
}
