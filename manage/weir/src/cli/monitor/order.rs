//! `weir monitor order`: a repair that the controllers order. It travels as an update that their group signs, and the switch of
//! the host verifies it before the monitor sees it.

use crate::cli::Failure;
use crate::cli::output::{Format, print};
use crate::roles::told;
use clap::{Args, ValueEnum};
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::types::RepairRequest;
use weir_model::health::RepairAction;

/// What is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wanted {
    /// Freeze it for as long as the order stands
    Freeze,
    /// Kill all of it, once
    Kill,
    /// Withdraw the order; what it froze is thawed
    Release,
}

/// `weir monitor order`
#[derive(Debug, Args)]
pub struct Order {
    /// The host or gateway
    host: String,
    /// What to do
    #[arg(value_enum)]
    wanted: Wanted,
    /// The cgroup (version 2): its path below the mount, such as machines/web
    cgroup: String,
    /// Wait so long for the host to have it and its monitor to say what it did; exit code 1 when that failed, 5 when neither came
    #[arg(long, default_value_t = 10)]
    wait_s: u32,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

impl Order {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let action = match self.wanted {
            Wanted::Freeze => Some(RepairAction::Freeze),
            Wanted::Kill => Some(RepairAction::Kill),
            Wanted::Release => None,
        };
        let wait_ms = self.wait_s.saturating_mul(1000);
        let request = RepairRequest { cgroup: self.cgroup.clone(), action, wait_ms };
        let response = client.repair(&self.host, &request)?;
        let who = action.is_some().then_some("the monitor");
        let (exit, text) = told::ending(response.in_force, response.outcome.as_ref(), self.wait_s, who);
        print(self.output, &response, || say!("ordered at v{}: {text}", response.version))?;
        Ok(exit.into())
    }
}
