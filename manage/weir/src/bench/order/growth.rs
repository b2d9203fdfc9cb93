//! `weir bench growth`: memory and disk of a group of three controllers, and of three members of etcd, over many writes to the
//! same keys. With snapshots and a log that is cut behind them both stay bounded; without, they grow with the writes.

use super::client::{self, Cell};
use super::servers::{Peer, Servers};
use crate::failure::Failure;
use clap::Args;
use std::process::ExitCode;

/// Bytes in a mebibyte.
const MIB: f64 = 1024.0 * 1024.0;
/// How long writes are made between two looks, milliseconds.
const WINDOW_MS: u64 = 2_000;
/// Looks that are printed.
const LOOKS: u64 = 5;

#[derive(Debug, Args)]
pub struct Growth {
    /// Writes of 100 bytes, to 1,000 keys
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    writes: u64,
    /// Not etcd
    #[arg(long)]
    alone: bool,
}

impl Growth {
    /// With the usual options.
    pub fn usual() -> Growth {
        Growth { writes: 1_000_000, alone: false }
    }

    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let ours = self.measure(Peer::Weir)?;
        let theirs = if self.alone { Vec::new() } else { self.measure(Peer::Etcd)? };
        for (at, (writes, memory, disk)) in ours.iter().enumerate() {
            let row = |metric: &str, ours: f64, theirs: Option<f64>| {
                let beside = theirs.map_or(String::new(), |theirs| {
                    format!(" etcd={theirs:.0}MiB ratio={:.2}", ours / theirs)
                });
                say!("RESULT growth {metric}_after_{writes} weir={ours:.0}MiB{beside}");
            };
            row("memory", *memory, theirs.get(at).map(|one| one.1));
            row("disk", *disk, theirs.get(at).map(|one| one.2));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Writes so far in round numbers, with memory and disk of the largest replica, MiB.
    fn measure(&self, peer: Peer) -> Result<Vec<(u64, f64, f64)>, Failure> {
        let servers = Servers::start(peer)?;
        let cell = Cell { reads: false, bytes: 100, callers: 256, every_ms: 0 };
        let (mut written, mut looks) = (0, Vec::new());
        while written < self.writes {
            written += client::run(&servers, &cell, WINDOW_MS)?.count;
            while written >= self.writes * (looks.len() as u64 + 1) / LOOKS && (looks.len() as u64) < LOOKS {
                let look = self.writes * (looks.len() as u64 + 1) / LOOKS;
                looks.push((look, servers.memory_bytes() / MIB, servers.disk_bytes() / MIB));
            }
            tell!("{peer:?}: {written} of {} writes", self.writes);
        }
        Ok(looks)
    }
}
