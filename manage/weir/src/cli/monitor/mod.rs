//! `weir monitor`: watches a host and repairs it, and looks at what a monitor does.

mod ask;
mod export;
mod repair;
mod serve;
mod top;

use super::Failure;
use clap::{Args, Subcommand};
use std::process::ExitCode;
use weir_api::client::Client;

/// Where a monitor shows what it does, unless another address is given.
const STATUS_ADDRESS: &str = "127.0.0.1:9750";
/// Where the audit log is, unless another file is given.
const AUDIT_FILE: &str = "/var/lib/weir/monitor/audit.log";

/// `weir monitor …`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct MonitorArguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a monitor ('weir monitor' with options and no command is the same)
    Serve(Box<serve::Serve>),
    /// Check files of policies and queries without putting them in force
    Check(ask::Check),
    /// Show sensors, policies and processes
    Top(top::Top),
    /// Show the value of a query, or of all
    Query(ask::Query),
    /// List the newest events
    Events(ask::Events),
    /// Explain why the monitor acted: the event, what was measured, who was behind it, what was done
    Explain(ask::Explain),
    /// Verify that nothing in the audit log was changed (exit code 4 if something was)
    Audit(ask::Audit),
    /// Show whether all sensors and policies work (exit code 4 if something is wrong)
    Status(top::Brief),
    /// Freeze or kill a cgroup of a host through the controllers, signed
    #[command(visible_alias = "push")]
    Repair(repair::Repair),
    /// Withdraw a repair; what it froze is thawed
    Withdraw(repair::Withdraw),
    #[command(hide = true)]
    Order(repair::Order),
}

impl MonitorArguments {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self, connect: impl Fn() -> Result<Client, Failure>) -> Result<ExitCode, Failure> {
        match self.command {
            None => self.serve.run(),
            Some(Command::Serve(serve)) => serve.run(),
            Some(Command::Status(command)) => command.run(),
            Some(Command::Check(command)) => command.run(),
            Some(Command::Top(command)) => command.run(),
            Some(Command::Query(command)) => command.run(),
            Some(Command::Events(command)) => command.run(),
            Some(Command::Explain(command)) => command.run(),
            Some(Command::Audit(command)) => command.run(),
            Some(Command::Repair(command)) => command.run(&connect()?),
            Some(Command::Withdraw(command)) => command.run(&connect()?),
            Some(Command::Order(command)) => command.run(&connect()?),
        }
    }
}

/// An error of the monitor as a failure of a command.
pub(super) fn failure(error: weir_monitor::Error) -> Failure {
    match error {
        weir_monitor::Error::Io { what, error } => Failure::Io { what, error },
        other => Failure::Input(other.to_string()),
    }
}
