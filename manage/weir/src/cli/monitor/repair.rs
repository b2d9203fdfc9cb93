//! `weir monitor repair` and `withdraw`: a repair that the controllers order. It travels as an update that their group signs; the
//! host's monitor verifies it, carries it out once, and acks it.

use crate::cli::ordered::ending;
use crate::cli::output::{Format, print};
use crate::failure::Failure;
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
}

/// What is ordered, in the words of the release before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WantedBefore {
    Freeze,
    Kill,
    Release,
}

/// Which cgroup, and how to wait for its host's monitor.
#[derive(Debug, Args)]
struct Target {
    /// The cgroup (version 2): its path below the mount, such as machines/web
    cgroup: String,
    /// Wait so long for the host to have it and its monitor to say what it did; exit code 1 when that failed, 5 when neither came
    #[arg(long, default_value_t = 10)]
    wait_s: u32,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// `weir monitor repair`
#[derive(Debug, Args)]
pub struct Repair {
    /// The host or gateway
    host: String,
    /// What to do
    #[arg(value_enum)]
    wanted: Wanted,
    #[command(flatten)]
    target: Target,
    /// A name for this order: given again, as after an answer that was lost, it is not carried out a second time
    #[arg(long)]
    id: Option<String>,
}

/// `weir monitor withdraw`
#[derive(Debug, Args)]
pub struct Withdraw {
    /// The host or gateway
    host: String,
    #[command(flatten)]
    target: Target,
}

/// What `repair` and `withdraw` were in the release before.
#[derive(Debug, Args)]
pub struct Order {
    host: String,
    #[arg(value_enum)]
    wanted: WantedBefore,
    #[command(flatten)]
    target: Target,
}

impl Repair {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let action = match self.wanted {
            Wanted::Freeze => RepairAction::Freeze,
            Wanted::Kill => RepairAction::Kill,
        };
        self.target.order(client, &self.host, Some(action), self.id)
    }
}

impl Withdraw {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        self.target.order(client, &self.host, None, None)
    }
}

impl Order {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        let action = match self.wanted {
            WantedBefore::Freeze => Some(RepairAction::Freeze),
            WantedBefore::Kill => Some(RepairAction::Kill),
            WantedBefore::Release => None,
        };
        self.target.order(client, &self.host, action, None)
    }
}

impl Target {
    fn order(
        self,
        client: &Client,
        host: &str,
        action: Option<RepairAction>,
        id: Option<String>,
    ) -> Result<ExitCode, Failure> {
        let wait_ms = self.wait_s.saturating_mul(1000);
        let response = client.repair(host, &RepairRequest { cgroup: self.cgroup, action, id, wait_ms })?;
        let who = action.is_some().then_some("the monitor");
        let (exit, text) = ending(response.in_force, response.outcome.as_ref(), self.wait_s, who);
        print(self.output, &response, || say!("ordered at v{}: {text}", response.version))?;
        Ok(exit.into())
    }
}
