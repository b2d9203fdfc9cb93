//! `ping`: reachability and round-trip time.

use crate::{Error, Netns, Program, Result, system};
use std::net::IpAddr;
use std::time::Duration;

/// What `ping` saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Echo requests sent.
    pub sent: u32,
    /// Echo replies received.
    pub received: u32,
    /// Mean round-trip time, absent if nothing came back.
    pub round_trip_mean_ms: Option<f64>,
}

impl Report {
    /// True if every request was answered.
    pub fn all(&self) -> bool {
        self.sent > 0 && self.received == self.sent
    }

    /// True if no request was answered.
    pub fn none(&self) -> bool {
        self.received == 0
    }
}

/// How to ping.
#[derive(Debug, Clone)]
pub struct Options {
    /// Requests, 200 ms apart.
    pub count: u32,
    /// Payload in bytes (the packet is 28 more with IPv4, 48 more with IPv6).
    pub payload_bytes: u32,
    /// Forbid fragmentation.
    pub dont_fragment: bool,
    /// How long to wait for the last answer.
    pub wait_s: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { count: 3, payload_bytes: 56, dont_fragment: false, wait_s: 1 }
    }
}

/// Pings `address` from `netns`.
pub fn run(netns: &Netns, address: IpAddr, options: &Options) -> Result<Report> {
    let mut program = Program::new("ping").netns(netns).args([
        "-n".to_string(),
        "-q".into(),
        "-i".into(),
        "0.2".into(),
        "-c".into(),
        options.count.to_string(),
        "-s".into(),
        options.payload_bytes.to_string(),
        "-W".into(),
        options.wait_s.to_string(),
    ]);
    if options.dont_fragment {
        program = program.args(["-M", "do"]);
    }
    let bound = Duration::from_secs(u64::from(options.count) + u64::from(options.wait_s) + 10);
    let output = system::run_output(program.arg(address.to_string()).command(), bound)?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Without a route, or with a packet longer than the link takes, ping prints no statistics or 0 received.
    match parse(&text) {
        Err(_) if !output.status.success() => {
            Ok(Report { sent: options.count, received: 0, round_trip_mean_ms: None })
        }
        other => other,
    }
}

/// Reads the two summary lines of iputils' `ping -q`.
pub fn parse(text: &str) -> Result<Report> {
    let wrong = |reason: &str| Error::Output { program: "ping", reason: reason.to_string() };
    let line =
        text.lines().find(|line| line.contains("packets transmitted")).ok_or(wrong("no summary line"))?;
    let mut counts = line.split(',').map(|part| part.split_whitespace().next().and_then(|n| n.parse().ok()));
    let sent = counts.next().flatten().ok_or(wrong("no count of sent packets"))?;
    let received = counts.next().flatten().ok_or(wrong("no count of received packets"))?;
    let round_trip_mean_ms = text
        .lines()
        .find(|line| line.starts_with("rtt ") || line.starts_with("round-trip "))
        .and_then(|line| line.split(" = ").nth(1)?.split('/').nth(1)?.parse().ok());
    Ok(Report { sent, received, round_trip_mean_ms })
}
