//! `weir bench`: comparisons with other systems, interleaved in one run. Losing rows are shown.

mod completion;
mod estate;
mod flows;
mod net;
mod net_path;
mod order;
mod scale;
mod setup;
mod setup_steps;
mod simulated;
mod upgrade;
mod vm;

pub use order::tool as order_client;

use crate::failure::Failure;
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
    /// What consistency, size and domains cost: events a second and latency over simulated switches, batches, signatures
    Estate(estate::Estate),
    /// The store of a group of three controllers beside three members of etcd
    Order(order::Order),
    /// The store of a group of four controllers, of which one may lie, beside one of three, of which one may crash
    Byzantine(order::Byzantine),
    /// How long writes stand still when the leader of a group goes, beside etcd
    Failover(order::Failover),
    /// The apps of packets on the store of a group of three controllers, in each form
    Flows(flows::Flows),
    /// How long the first packet of a flow waits in a learned network, by the order of the controllers (root)
    Setup(setup::Setup),
    /// What controllers cost the flows whose rules they set up: steps measured, networks simulated
    Completion(completion::Completion),
    /// How long a host stands still when its switch is replaced under traffic, and when it crashes (root)
    Upgrade(upgrade::Upgrade),
    /// Two QEMU guests on two hosts, beside QEMU's own socket and TAP (root)
    Vm(vm::Vm),
    /// Memory and disk of a group of three over a million writes, beside etcd
    Growth(order::Growth),
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
            Command::Estate(bench) => bench.run(),
            Command::Order(bench) => bench.run(),
            Command::Byzantine(bench) => bench.run(),
            Command::Failover(bench) => bench.run(),
            Command::Flows(bench) => bench.run(),
            Command::Setup(bench) => bench.run(),
            Command::Completion(bench) => bench.run(),
            Command::Upgrade(bench) => bench.run(),
            Command::Vm(bench) => bench.run(),
            Command::Growth(bench) => bench.run(),
            Command::All => {
                net::Net::usual().run()?;
                scale::Scale::usual().run()?;
                estate::Estate::usual().run()?;
                order::Order::usual().run()?;
                order::Byzantine::usual().run()?;
                order::Failover::usual().run()?;
                flows::Flows::usual().run()?;
                setup::Setup::usual().run()?;
                completion::Completion::usual().run()?;
                upgrade::Upgrade::usual().run()?;
                match vm::Vm::usual().run() {
                    Err(Failure::Missing(reason)) => say!("NOT RUN bench vm: {reason}"),
                    ran => {
                        ran?;
                    }
                }
                order::Growth::usual().run()
            }
        }
    }
}
