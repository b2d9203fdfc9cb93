//! The command line.

mod apply;
mod approvals;
mod audit;
mod clock;
mod consent;
mod context;
mod convert;
mod domain;
mod explain;
mod filewall;
mod fs;
mod group;
mod identity;
pub(crate) mod input;
mod inspect;
mod monitor;
pub(crate) mod operator;
mod ordered;
pub(crate) mod output;
mod plan;
mod plane;
mod set_aside;
mod shown;
mod state;
mod store;
mod token;
mod trace;
mod upgrade;
mod written;

use crate::roles::controller::ControllerArguments;
use crate::roles::node::{AgentArguments, GatewayArguments, HostArguments};
use crate::roles::switch::SwitchArguments;
pub use context::load as load_context;

pub use crate::failure::Failure;
use clap::{Args, CommandFactory, Parser, Subcommand};
use output::Format;
use std::path::PathBuf;
use std::process::ExitCode;
use weir_api::any::{AnyId, network_kind, parse_kind};
use weir_api::client::Client;
use weir_model::resource::Kind;

/// Isolated tenant networks on a set of hosts.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, propagate_version = true)]
pub struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Args)]
struct Global {
    /// Where the controller is and who you are: the file admin.json that it wrote [env: WEIR_CONTEXT]
    #[arg(long, global = true, value_name = "FILE")]
    context: Option<PathBuf>,
    /// File of the operator's key that signs what is asked, instead of the one in the context [env: WEIR_OPERATOR]
    #[arg(long, global = true, value_name = "FILE")]
    operator: Option<PathBuf>,
    /// Take the lab that is up on this machine
    #[arg(long = "lab", global = true)]
    of_lab: bool,
}

impl Global {
    fn context(&self) -> Result<weir_api::client::Context, Failure> {
        let lab = self.of_lab.then(|| PathBuf::from(context::LAB));
        let variable = std::env::var_os(CONTEXT_VARIABLE).map(PathBuf::from);
        let mut context = context::load(lab.or_else(|| self.context.clone()).or(variable).as_deref())?;
        if let Some(key) = self.operator()? {
            context.operator = Some(key);
        }
        Ok(context)
    }

    /// The operator's key that is named here, if one is.
    fn operator(&self) -> Result<Option<weir_api::operator::OperatorKey>, Failure> {
        let variable = std::env::var_os(OPERATOR_VARIABLE).map(PathBuf::from);
        self.operator.clone().or(variable).map(|path| operator::read(&path)).transpose()
    }
}

/// Names the context where the command line does not. It is no `env` of the argument: `weir filewall` has one of the same name.
const CONTEXT_VARIABLE: &str = "WEIR_CONTEXT";

/// Names the file of an operator's key.
const OPERATOR_VARIABLE: &str = "WEIR_OPERATOR";

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply files: show the plan, then change resources to match
    Apply(apply::Apply),
    /// Delete resources
    Delete(apply::Delete),
    /// Show how files differ from what is there (exit code 4 if they do)
    Diff(apply::Diff),
    /// List or show resources
    Get(inspect::Get),
    /// Show all about one resource
    Describe(inspect::Describe),
    /// Show the fields of a kind of resource
    Explain(explain::Explain),
    /// Find a safe order for a change of forwarding rules, and say why it is so
    Plan(plan::PlanCommand),
    /// Follow changes as they happen
    Watch(inspect::Watch),
    /// Show the state of the domain: desired, acknowledged and in force, by switch
    Status(inspect::Status),
    /// Show the counters of a host's or gateway's switch
    Counters(inspect::Counters),
    /// Trace a packet through the real tables (exit code 4 if it does not arrive)
    Trace(trace::Trace),
    /// Capture frames of a port or of an underlay to a pcap file
    Capture(trace::Capture),
    /// Read and write tables of the store
    Store(store::Store),
    /// Manage the group of controllers
    #[command(subcommand)]
    Group(group::Group),
    /// Check and repair a state directory on this machine
    #[command(subcommand)]
    State(state::State),
    /// Manage peer domains that share networks with this one
    #[command(subcommand)]
    Domain(domain::Domain),
    /// Query and verify the audit log: who said, decided and signed what
    #[command(subcommand)]
    Audit(audit::Audit),
    /// List, rotate and revoke keys and certificates of hosts, gateways and controllers
    #[command(subcommand)]
    Identity(identity::Identity),
    /// List, show, approve and reject requests that wait for several operators, and say what has to wait
    #[command(subcommand)]
    Approvals(approvals::Approvals),
    /// Make an operator's key; list, add, change and remove the operators whose signed requests are taken
    #[command(subcommand)]
    Operator(operator::Operator),
    /// Show, push and withdraw what the planes of a host beside its switch are to have
    #[command(subcommand)]
    Plane(plane::Plane),
    /// Show the controllers' clocks, and set them by a majority
    Clock(clock::Clock),
    /// Make a join token for a host or gateway; list and void tokens
    Token(token::Token),
    /// Remove a host or gateway that is gone for good
    Forget(inspect::Forget),
    /// Bring up whole systems on this machine, to try and to test (root)
    Lab(crate::lab::Lab),
    /// Compare with other systems
    Bench(crate::bench::Bench),
    /// Send or receive the benches' datagrams
    #[command(hide = true)]
    LabTool {
        /// udp-send or udp-recv with its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run a controller
    Controller(ControllerArguments),
    /// Run a host: an agent and a switch, kept running
    Host(HostArguments),
    /// Run a gateway: an agent and a switch, kept running
    Gateway(GatewayArguments),
    /// Run an agent by itself ('weir host' and 'weir gateway' start one)
    Agent(AgentArguments),
    /// Run a switch by itself ('weir host' and 'weir gateway' start one)
    Switch(SwitchArguments),
    /// Upgrade the switch of this host or gateway under traffic
    Upgrade(upgrade::Upgrade),
    /// Enforce policies in front of an NFS server
    Filewall(filewall::FileWallArguments),
    /// Mount user-space file systems, and run programs on them without the kernel
    Fs(fs::FileSystems),
    /// Monitor this host from outside its workload, and repair it by policy
    Monitor(monitor::MonitorArguments),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Arguments {
    /// Whether a reader that goes away shall end the command without a word. Not for what runs for
    /// ever or cleans up: there a closed pipe must not end the process.
    pub fn ends_quietly(&self) -> bool {
        !matches!(
            self.command,
            Command::Controller(_)
                | Command::Host(_)
                | Command::Gateway(_)
                | Command::Agent(_)
                | Command::Switch(_)
                | Command::Lab(_)
                | Command::Bench(_)
                | Command::LabTool { .. }
                | Command::Filewall(_)
                | Command::Fs(_)
                | Command::Monitor(_)
        )
    }
}

/// Runs a command.
///
/// # Errors
/// [`Failure`].
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let connect = || -> Result<Client, Failure> { Ok(Client::new(arguments.global.context()?)?) };
    match arguments.command {
        Command::Apply(command) => command.run(&connect()?),
        Command::Delete(command) => command.run(&connect()?),
        Command::Diff(command) => command.run(&connect()?),
        Command::Get(command) => command.run(&connect()?),
        Command::Describe(command) => command.run(&connect()?),
        Command::Explain(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Watch(command) => command.run(&connect()?),
        Command::Status(command) => command.run(&connect()?),
        Command::Counters(command) => command.run(&connect()?),
        Command::Trace(command) => command.run(&connect()?),
        Command::Capture(command) => command.run(&connect()?),
        Command::Store(command) => command.run(&arguments.global.context()?),
        Command::Group(group::Group::Keys(command)) => command.run(),
        Command::Group(group::Group::Identity(command)) => command.run(),
        Command::Group(group::Group::SetAside(command)) => command.run(arguments.global.operator()?),
        Command::Group(group::Group::Convert(command)) if command.is_back() => command.run_back(),
        Command::Group(command) => command.run(&connect()?),
        Command::State(command) => command.run(),
        Command::Domain(command) => command.run(&connect()?),
        Command::Audit(command) => command.run(connect),
        Command::Identity(command) => command.run(&connect()?),
        Command::Approvals(command) => command.run(&connect()?),
        Command::Operator(operator::Operator::Key(command)) => command.run(),
        Command::Operator(command) => command.run(&connect()?),
        Command::Plane(command) => command.run(connect),
        Command::Clock(command) => command.run(&connect()?),
        Command::Token(command) => command.run(&connect()?),
        Command::Forget(command) => command.run(&connect()?),
        Command::Lab(command) => command.run(),
        Command::Bench(bench) => bench.run(),
        Command::LabTool { arguments } if arguments == ["order-client"] => {
            say!("{}", crate::bench::order_client()?);
            Ok(ExitCode::SUCCESS)
        }
        Command::LabTool { arguments } => {
            say!("{}", weir_lab::probe::datagram::tool(&arguments)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Controller(role) => role.run(),
        Command::Host(role) => role.run(),
        Command::Gateway(role) => role.run(),
        Command::Agent(role) => role.run(),
        Command::Switch(role) => role.run(),
        Command::Upgrade(command) => command.run(),
        Command::Filewall(command) => command.run(connect),
        Command::Fs(command) => command.run(),
        Command::Monitor(command) => command.run(connect),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "weir", &mut script);
            crate::print::bytes(&script);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Parses `KIND NAME` into an id: `network red`, `endpoint red/web`, `filewall h1/wall`.
fn parse_id(kind: &str, name: &str) -> Result<AnyId, Failure> {
    let kind = parse_kind(kind)?;
    let label = |text: &str| text.parse().map_err(|error| Failure::Input(format!("{error}")));
    let id = |network, host, name: &str| AnyId { kind: kind.clone(), network, host, name: name.to_owned() };
    let id = match (network_kind(kind.as_str()), name.split_once('/')) {
        (Some(Kind::Network), None) => id(None, None, name),
        (Some(Kind::Network), Some(_)) => {
            let text = format!("'{name}' is not the name of a network: use 'weir … network NAME'");
            return Err(Failure::Input(text));
        }
        (Some(_), Some((network, name))) => id(Some(label(network)?), None, name),
        (Some(_), None) => {
            return Err(Failure::Input(format!("say in which network the {kind} is: NETWORK/{name}")));
        }
        (None, Some((host, name))) => id(None, Some(label(host)?), name),
        (None, None) => {
            return Err(Failure::Input(format!("say at which host the {kind} is: HOST/{name}")));
        }
    };
    id.named()?;
    Ok(id)
}

#[derive(Clone, Copy, Debug, Args)]
struct Output {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[cfg(test)]
mod tests;
