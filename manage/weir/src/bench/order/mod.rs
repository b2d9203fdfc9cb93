//! `weir bench order`: the store of a group of three controllers beside three members of etcd (rows B1, R1, R9).
//!
//! Both are real processes on loopback that sync every write to the same disk; both are driven at their leader by a client
//! process. Weir's client has one stream of batches, and TLS; etcd's has as many plain connections as callers, up to 16,
//! and a call for each operation, which is how its own client does it. The cells of one peer and the other take turns.
//! A row in which Weir loses is shown like any other.
//!
//! `weir bench byzantine`: four controllers of which one may lie beside three of which one may crash, in the same way.
//!
//! `weir bench failover`: how long no write is acknowledged after the leader was killed or stopped, and whether an
//! acknowledged write is missing afterwards.

pub(super) mod client;
mod etcd;
mod failover;
mod growth;
pub(super) mod servers;

pub use client::tool;
pub use failover::Failover;
pub use growth::Growth;

use crate::failure::Failure;
use clap::Args;
use client::Cell;
use serde::{Deserialize, Serialize};
use servers::{Peer, Servers};
use std::path::PathBuf;
use std::process::ExitCode;

/// Callers of the cells.
const CALLERS: [usize; 3] = [1, 16, 256];
/// Bytes of the values.
const BYTES: [usize; 2] = [100, 1_400];

#[derive(Debug, Args)]
pub struct Order {
    /// How often each cell is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=21))]
    rounds: u32,
    /// How long a cell is measured each time, milliseconds
    #[arg(long, default_value_t = 1_200, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
}

/// What a client process tells of one window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Operations in a second.
    pub rate: f64,
    /// Median time of one, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// Operations.
    pub count: u64,
    /// Processor time of the client, microseconds.
    pub client_cpu_us: f64,
}

/// A window with what the servers used.
#[derive(Clone, Copy, Debug)]
struct Measured {
    window: Window,
    /// Processor time of servers and client, microseconds an operation.
    cpu_us: f64,
}

fn cells() -> Vec<Cell> {
    let cell = |reads, bytes, callers| Cell { reads, bytes, callers, every_ms: 0 };
    let puts = BYTES.into_iter().flat_map(|bytes| CALLERS.map(|callers| cell(false, bytes, callers)));
    puts.chain(CALLERS.map(|callers| cell(true, BYTES[0], callers))).collect()
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Order {
    /// With the usual options.
    pub fn usual() -> Order {
        Order { rounds: 5, window_ms: 1_200 }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let peers = [("weir", Servers::start(Peer::Weir)?), ("etcd", Servers::start(Peer::Etcd)?)];
        compare("order", &peers, &cells(), self.rounds, self.window_ms)
    }
}

#[derive(Debug, Args)]
pub struct Byzantine {
    /// How often each cell is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=21))]
    rounds: u32,
    /// How long a cell is measured each time, milliseconds
    #[arg(long, default_value_t = 1_200, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    window_ms: u64,
    /// Where their state is, such as a folder in memory instead of on a disk
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
}

impl Byzantine {
    /// With the usual options.
    pub fn usual() -> Byzantine {
        Byzantine { rounds: 5, window_ms: 1_200, folder: PathBuf::from("/var/tmp") }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let start = |peer| Servers::start_in(peer, &self.folder);
        let peers = [("weir", start(Peer::Bft)?), ("raft", start(Peer::Weir)?)];
        compare("byzantine", &peers, &cells(), self.rounds, self.window_ms)
    }
}

/// Measures each cell at one and the other in turn, and prints medians.
fn compare(
    bench: &str,
    peers: &[(&str, Servers); 2],
    cells: &[Cell],
    rounds: u32,
    window_ms: u64,
) -> Result<ExitCode, Failure> {
    let mut found: Vec<[Vec<Measured>; 2]> = cells.iter().map(|_| [Vec::new(), Vec::new()]).collect();
    for (_, servers) in peers {
        // Connections, tables and caches.
        window(servers, &cells[1], window_ms)?;
    }
    for _ in 0..rounds {
        for (cell, found) in cells.iter().zip(&mut found) {
            for ((_, servers), found) in peers.iter().zip(found) {
                found.push(window(servers, cell, window_ms)?);
            }
        }
    }
    for (cell, [ours, theirs]) in cells.iter().zip(&found) {
        report(bench, cell, (peers[0].0, ours), (peers[1].0, theirs));
    }
    Ok(ExitCode::SUCCESS)
}

fn window(servers: &Servers, cell: &Cell, window_ms: u64) -> Result<Measured, Failure> {
    let before = servers.cpu_us();
    let window = client::run(servers, cell, window_ms)?;
    let servers_us = servers.cpu_us() - before;
    let cpu_us = (servers_us + window.client_cpu_us) / window.count.max(1) as f64;
    Ok(Measured { window, cpu_us })
}

fn report(bench: &str, cell: &Cell, (our, ours): (&str, &[Measured]), (their, theirs): (&str, &[Measured])) {
    let row = |metric: &str, unit: &str, value: fn(&Measured) -> f64, decimals: usize| {
        let (ours, theirs) = (median(ours.iter().map(value)), median(theirs.iter().map(value)));
        say!(
            "RESULT {bench} {cell}_{metric} {our}={ours:.decimals$}{unit} {their}={theirs:.decimals$}{unit} \
             ratio={:.2}",
            ours / theirs
        );
    };
    row("throughput", "/s", |one| one.window.rate, 0);
    row("p50", "ms", |one| one.window.p50_us / 1e3, 3);
    row("p99", "ms", |one| one.window.p99_us / 1e3, 3);
    row("cpu_per_operation", "us", |one| one.cpu_us, 1);
}
