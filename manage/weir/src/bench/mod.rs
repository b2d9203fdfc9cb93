//! `weir bench`: comparisons with other systems, interleaved in one run. Losing rows are shown.

mod net;
mod net_path;
mod scale;

use crate::cli::Failure;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// `weir bench …`
#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Packets between two endpoints on two hosts, beside kernel VXLAN and Open vSwitch (root)
    Net(net::Net),
    /// Many endpoints over many hosts: how long, how much memory, and what others feel of it
    Scale(scale::Scale),
    /// All of them
    All,
}

impl Bench {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Net(bench) => bench.run(),
            Command::Scale(bench) => bench.run(),
            Command::All => {
                net::Net::usual().run()?;
                scale::Scale::usual().run()
            }
        }
    }
}
