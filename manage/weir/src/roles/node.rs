//! `weir host` and `weir gateway`: join once, then keep two processes running, an agent and a switch.
//!
//! Settings come from a file (`--config`) or from the command line. What they come to is written to
//! the state directory, so that the second start needs neither.

use super::health;
use crate::failure::Failure;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weir_agent::AgentError;
use weir_agent::config::{NodeConfig, RunMonitor};
use weir_agent::join::{Applicant, Joined, join, membership};
use weir_agent::kept;
use weir_agent::supervise::upgrade::SUPERVISOR_SOCKET;
use weir_agent::supervise::{
    AGENT_LOCK, ChildSpec, MONITOR_LOCK, RunLock, SUPERVISOR_LOCK, SupervisorConfig, run as supervise,
    stop_on_signals,
};
use weir_model::Label;
use weir_model::event::Role;
use weir_model::join::{IDENTITY_FILE, TRUST_FILE};
use weir_model::local::{CONTROL_SOCKET, STORE_SOCKET, SWITCH_LOCK};
use weir_switch::config::{EngineConfig, ExternalConfig, Net, SwitchConfig};
use zeroize::Zeroizing;

/// The variable that holds a token.
const JOIN_VARIABLE: &str = "WEIR_JOIN_TOKEN";
/// Settings of this node as the command line gave them, in the state directory.
const NODE_FILE: &str = "node.json";
/// Settings of the switch, made from the node's.
const SWITCH_FILE: &str = "switch.json";
/// The folder of sensor boxes in the run directory; with the default run directory it is [`weir_sensor::FOLDER`].
pub const SENSORS_FOLDER: &str = "sensors";

/// What the section `switch` of the settings holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SwitchSection {
    /// UDP port of Geneve; absent means 6081.
    pub geneve_port: Option<u16>,
    /// UDP port of VXLAN; absent means 4789.
    pub vxlan_port: Option<u16>,
    /// The way outside, at a gateway.
    pub external: Option<ExternalConfig>,
    /// Where other switches are on the underlay; what comes encapsulated from elsewhere is dropped. Empty: anywhere.
    pub underlay_from: Vec<Net>,
    /// The engine.
    pub engine: EngineConfig,
}

type Config = NodeConfig<SwitchSection>;

/// Settings that the command line gives.
#[derive(Debug, Args)]
pub struct NodeArguments {
    /// Settings (YAML) instead of the options below
    #[arg(long, conflicts_with_all = ["name", "underlay"])]
    config: Option<PathBuf>,
    /// Name in the domain
    #[arg(long)]
    name: Option<Label>,
    /// Device or address towards the other switches
    #[arg(long, value_name = "DEVICE|ADDRESS")]
    underlay: Option<String>,
    /// Join with this token ('weir token' makes one); needed once. Better in the environment or a file: every user may read command lines
    #[arg(long, value_name = "TOKEN", env = JOIN_VARIABLE, hide_env_values = true)]
    join: Option<String>,
    /// Join with the token in this file; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "join")]
    join_file: Option<PathBuf>,
    /// Directory of keys and checkpoints
    #[arg(long, default_value = "/var/lib/weir/node")]
    state: PathBuf,
    /// Directory of sockets and locks
    #[arg(long, default_value = "/run/weir")]
    run: PathBuf,
    /// Resolver for names outside, ADDRESS:PORT; more than one is allowed
    #[arg(long, value_name = "ADDRESS:PORT")]
    dns_upstream: Vec<String>,
    /// Where the agent serves metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Watch this machine and repair it by policy too ('weir monitor'): auto (where root and cgroups allow it), on or off
    #[arg(long, value_name = "auto|on|off", value_parser = ["auto", "on", "off"])]
    monitor: Option<String>,
    /// File or folder of the monitor's policies; /etc/weir/monitor unless told otherwise, and without that it only reports
    #[arg(long, value_name = "PATH")]
    monitor_policy: Option<PathBuf>,
}

/// `weir host`.
#[derive(Debug, Args)]
pub struct HostArguments {
    #[command(flatten)]
    node: NodeArguments,
    /// Run no switch: this host is in no network, and has planes alone, such as FileWalls and its monitor. Its token is one of
    /// 'weir token --role planes'
    #[arg(long)]
    no_switch: bool,
}

/// `weir gateway`.
#[derive(Debug, Args)]
pub struct GatewayArguments {
    #[command(flatten)]
    node: NodeArguments,
    /// Address that endpoints have outside; this machine must be reachable under it. More than one is allowed
    #[arg(long, value_name = "ADDRESS")]
    external_address: Vec<IpAddr>,
}

/// `weir agent`.
#[derive(Debug, Args)]
pub struct AgentArguments {
    /// Settings (YAML or JSON) of the node
    #[arg(long)]
    config: PathBuf,
}

fn wrong(error: &AgentError) -> Failure {
    Failure::Input(error.to_string())
}

impl HostArguments {
    /// Runs until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        start(self.node, if self.no_switch { Role::Planes } else { Role::Host }, Vec::new())
    }
}

impl GatewayArguments {
    /// Runs until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        start(self.node, Role::Gateway, self.external_address)
    }
}

impl AgentArguments {
    /// Runs until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        let config = Config::read(&self.config).map_err(|error| wrong(&error))?;
        runtime()?.block_on(async {
            let stop = stop_on_signals().map_err(|error| wrong(&error))?;
            let _lock =
                RunLock::take(&config.run_dir.join(AGENT_LOCK), "agent").map_err(|error| wrong(&error))?;
            let _pid = PidFile::write(&config.run_dir, "agent")?;
            let agent = weir_agent::agent::Agent::new(config.agent()).map_err(|error| wrong(&error))?;
            let agent = agent.with_switch_metrics(weir_switch::process::metrics_text);
            let agent = agent.with_process_metrics(super::process::metrics_text);
            agent.run(stop).await.map_err(|error| wrong(&error))
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("starting the runtime"))
}

/// A file with a process's number, for people and for labs; removed at a clean end.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the number of this process.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn write(run_dir: &Path, name: &str) -> Result<PidFile, Failure> {
        let path = run_dir.join(format!("{name}.pid"));
        std::fs::create_dir_all(run_dir).map_err(Failure::io(run_dir.display().to_string()))?;
        let _alone = PidFile::alone(&path);
        weir_base::file::replace(&path, PidFile::text().as_bytes(), 0o644)
            .map_err(Failure::io(path.display().to_string()))?;
        Ok(PidFile(path))
    }

    /// Keeps another process that takes over from writing the file between a look at it and its removal.
    fn alone(path: &Path) -> Option<std::fs::File> {
        let folder = std::fs::File::open(path.parent()?).ok()?;
        folder.lock().ok().map(|()| folder)
    }

    fn text() -> String {
        format!("{}\n", std::process::id())
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _alone = PidFile::alone(&self.0);
        // One that another process has written since, which took over from this one, stays.
        if std::fs::read_to_string(&self.0).is_ok_and(|text| text == PidFile::text()) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn start(arguments: NodeArguments, role: Role, external: Vec<IpAddr>) -> Result<ExitCode, Failure> {
    let (path, config) = settings(&arguments, role, external)?;
    if !is_started_as(config.role, role) {
        return Err(Failure::Input(format!(
            "{} is of role {}: start it with '{}'",
            path.display(),
            config.role.as_str(),
            command(config.role)
        )));
    }
    let token = token(&arguments)?;
    runtime()?.block_on(enter(&config, token.as_deref().map(String::as_str)))?;
    if arguments.join.is_some() {
        // Neither this process nor those that it starts show the token any more.
        return Err(begin_anew());
    }
    runtime()?.block_on(async {
        let made = config.role.has_switch().then(|| write_switch_settings(&config)).transpose()?;
        let running = weir_switch::process::running_settings(&config.run_dir);
        let other_settings = match (&made, running) {
            (Some((_, settings)), Some(running)) => running != *settings,
            _ => false,
        };
        let stop = stop_on_signals().map_err(|error| wrong(&error))?;
        let program = std::env::current_exe().map_err(Failure::io("finding this program"))?;
        let child = |name: &'static str, config: &Path| ChildSpec {
            name,
            program: program.clone(),
            arguments: vec![name.into(), "--config".into(), config.into()],
        };
        let supervisor = SupervisorConfig {
            agent: child("agent", &path),
            switch: made.map(|(path, _)| child("switch", &path)),
            monitor: monitor(&path, &config, &program)
                .map(|monitor| (monitor, config.run_dir.join(MONITOR_LOCK))),
            supervisor_lock: config.run_dir.join(SUPERVISOR_LOCK),
            agent_lock: config.run_dir.join(AGENT_LOCK),
            switch_lock: config.run_dir.join(SWITCH_LOCK),
            switch_socket: config.run_dir.join(CONTROL_SOCKET),
            switch_answer_ms: config.supervisor.switch_answer_ms,
            stop_switch: config.supervisor.stop_switch,
            take_over: "--take-over",
            replaces_others: config.supervisor.take_over,
            other_settings,
            upgrade_socket: config.run_dir.join(SUPERVISOR_SOCKET),
            store_socket: config.run_dir.join(STORE_SOCKET),
            backoff_min_ms: config.supervisor.backoff_min_ms,
            backoff_max_ms: config.supervisor.backoff_max_ms,
        };
        supervise(supervisor, stop).await.map_err(|error| wrong(&error))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Most bytes of a file with a token.
const TOKEN_FILE_BYTES_MAX: u64 = 16 * 1024;

/// The token with which to join, from wherever it is given.
fn token(arguments: &NodeArguments) -> Result<Option<Zeroizing<String>>, Failure> {
    let Some(path) = &arguments.join_file else {
        return Ok(arguments.join.clone().map(Zeroizing::new));
    };
    let text = crate::cli::input::whole(path, TOKEN_FILE_BYTES_MAX);
    text.map(|text| Some(Zeroizing::new(text))).map_err(Failure::io(path.display().to_string()))
}

/// The command line without a token in it.
fn without_token(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_encoded_bytes();
        if bytes == b"--join" {
            arguments.next();
        } else if !bytes.starts_with(b"--join=") {
            kept.push(argument);
        }
    }
    kept
}

/// Runs this program again in this process, with the same settings and without the token; gives back why it could not.
fn begin_anew() -> Failure {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Failure::io("finding this program")(error),
    };
    let mut command = std::process::Command::new(program);
    command.args(without_token(std::env::args_os().skip(1))).env_remove(JOIN_VARIABLE);
    Failure::io("starting again without the token")(command.exec())
}

/// The policies of the monitor; nothing means those that are built in.
fn policies(config: &Config) -> Option<PathBuf> {
    let known = Path::new(health::POLICIES);
    config.monitor.policy.clone().or_else(|| known.exists().then(|| known.to_path_buf()))
}

/// Name of the host whose settings are in a file.
///
/// # Errors
/// What is wrong with it.
pub fn name(path: &Path) -> Result<Label, Failure> {
    Config::read(path).map(|config| config.name).map_err(|error| wrong(&error))
}

/// The monitor as a child, if it is to run.
fn monitor(path: &Path, config: &Config, program: &Path) -> Option<ChildSpec> {
    let settings = &config.monitor;
    match (settings.run, health::obstacle()) {
        (RunMonitor::Off, _) => return None,
        (RunMonitor::Auto, Some(obstacle)) => {
            tracing::warn!(obstacle, "no monitor runs here");
            return None;
        }
        (RunMonitor::Auto | RunMonitor::On, _) => {}
    }
    let mut arguments: Vec<OsString> = vec!["monitor".into(), "--where-possible".into()];
    let mut option = |name: &str, value: OsString| arguments.extend([name.into(), value]);
    option("--policy", policies(config).map_or("builtin".into(), Into::into));
    for (name, path) in [("--query", &settings.query), ("--ring", &settings.ring)] {
        if let Some(path) = path {
            option(name, path.into());
        }
    }
    for (name, url) in [("--webhook", &settings.webhook), ("--otlp", &settings.otlp)] {
        if let Some(url) = url {
            option(name, url.into());
        }
    }
    option("--audit", config.state_dir.join("monitor/audit.log").into());
    option("--sensors", config.run_dir.join(SENSORS_FOLDER).into());
    option("--status", settings.status.to_string().into());
    option("--host-config", path.into());
    Some(ChildSpec { name: "monitor", program: program.to_path_buf(), arguments })
}

/// How one of a role is started.
fn command(role: Role) -> &'static str {
    match role {
        Role::Host => "weir host",
        Role::Gateway => "weir gateway",
        Role::Planes => "weir host --no-switch",
    }
}

/// Whether settings of a role are for this command: 'weir host' starts a host without a switch again, too.
fn is_started_as(role: Role, command: Role) -> bool {
    role == command || (role == Role::Planes && command == Role::Host)
}

/// The settings and the file that holds them.
fn settings(
    arguments: &NodeArguments,
    role: Role,
    external: Vec<IpAddr>,
) -> Result<(PathBuf, Config), Failure> {
    let path = match &arguments.config {
        Some(path) => path.clone(),
        None => {
            let path = std::path::absolute(arguments.state.join(NODE_FILE))
                .map_err(Failure::io("the state directory"))?;
            match (&arguments.name, &arguments.underlay) {
                (Some(name), Some(underlay)) => {
                    let document = document(arguments, role, name, underlay_address(underlay)?, &external)?;
                    std::fs::create_dir_all(&arguments.state)
                        .map_err(Failure::io(arguments.state.display().to_string()))?;
                    write(&path, &document)?;
                }
                (None, None) if path.exists() => {}
                _ => {
                    return Err(Failure::Input(format!(
                        "say --name and --underlay, or --config FILE; {} is not there from an earlier start",
                        path.display()
                    )));
                }
            }
            path
        }
    };
    let config = Config::read(&path).map_err(|error| wrong(&error))?;
    Ok((path, config))
}

fn write(path: &Path, document: &Value) -> Result<(), Failure> {
    super::state::write_secret(path, &format!("{document:#}\n"))
        .map_err(|error| Failure::Input(error.to_string()))
}

fn document(
    arguments: &NodeArguments,
    role: Role,
    name: &Label,
    underlay: IpAddr,
    external: &[IpAddr],
) -> Result<Value, Failure> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(Failure::io(path.display().to_string()));
    let mut agent = json!({ "dns": { "upstream": arguments.dns_upstream } });
    if let Some(metrics) = &arguments.metrics {
        agent["metrics"] = json!(metrics);
    }
    let mut monitor = json!({ "run": arguments.monitor.as_deref().unwrap_or("auto") });
    if let Some(policy) = &arguments.monitor_policy {
        monitor["policy"] = json!(absolute(policy)?);
    }
    let switch =
        if external.is_empty() { json!({}) } else { json!({ "external": { "addresses": external } }) };
    Ok(json!({
        "name": name,
        "role": role,
        "underlay": underlay,
        "stateDir": absolute(&arguments.state)?,
        "runDir": absolute(&arguments.run)?,
        "agent": agent,
        "monitor": monitor,
        "switch": switch,
    }))
}

/// The address of a device, or the address itself.
fn underlay_address(text: &str) -> Result<IpAddr, Failure> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let all = if_addrs::get_if_addrs().map_err(Failure::io("reading the addresses of devices"))?;
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> =
        all.iter().filter(|device| device.name == text).map(if_addrs::Interface::ip).filter(usable).collect();
    // IPv4 first, and always the same one.
    addresses.sort();
    addresses.first().copied().ok_or_else(|| {
        let names: std::collections::BTreeSet<&str> = all.iter().map(|device| device.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        Failure::Input(format!(
            "--underlay '{text}' is neither an address nor a device with one; devices with addresses: {}",
            names.join(", ")
        ))
    })
}

/// Joins the domain, unless that was done.
async fn enter(config: &Config, token: Option<&str>) -> Result<(), Failure> {
    kept::check(&config.state_dir).map_err(|error| wrong(&error))?;
    let applicant = Applicant { name: config.name.clone(), role: config.role, underlay: config.underlay };
    match token {
        Some(token) => {
            match join(&config.state_dir, &applicant, token, false).await.map_err(|error| wrong(&error))? {
                Joined::Now(member) => tracing::info!(name = %member.name, domain = %member.domain, "joined"),
                Joined::Before(member) => {
                    tracing::info!(name = %member.name, domain = %member.domain, "has joined before; the token is not used");
                }
            }
        }
        None if membership(&config.state_dir).map_err(|error| wrong(&error))?.is_none() => {
            return Err(Failure::Input(format!(
                "'{0}' has not joined a domain: run 'weir token --name {0}' on the controller's machine and give its output here as \
                 WEIR_JOIN_TOKEN, or in a file by --join-file",
                config.name
            )));
        }
        None => {}
    }
    Ok(())
}

fn write_switch_settings(config: &Config) -> Result<(PathBuf, SwitchConfig), Failure> {
    let member = membership(&config.state_dir)
        .map_err(|error| wrong(&error))?
        .ok_or_else(|| Failure::Input(format!("'{}' has not joined a domain", config.name)))?;
    let defaults = json!({
        "name": config.name,
        "domain": member.domain,
        "role": config.role,
        "underlay": config.underlay,
        "runDir": config.run_dir,
        "stateDir": config.state_dir,
        "trustFile": config.state_dir.join(TRUST_FILE),
        "identityFile": config.state_dir.join(IDENTITY_FILE),
        "engine": config.switch.engine,
        "idleReader": monitor(Path::new(""), config, Path::new("")).map(|_| json!({
            "policy": policies(config),
            "ring": config.monitor.ring,
        })),
    });
    let mut settings: SwitchConfig =
        serde_json::from_value(defaults).map_err(|error| Failure::Input(format!("switch: {error}")))?;
    settings.geneve_port = config.switch.geneve_port.unwrap_or(settings.geneve_port);
    settings.vxlan_port = config.switch.vxlan_port.unwrap_or(settings.vxlan_port);
    settings.underlay_from.clone_from(&config.switch.underlay_from);
    settings.external.clone_from(&config.switch.external);
    if let Some(external) = &mut settings.external {
        let own = if_addrs::get_if_addrs().map_err(Failure::io("reading the addresses of devices"))?;
        external.guarded.extend(guarded(&member.controllers, config.underlay, &own));
    }
    if let Some(problem) = settings.problem() {
        return Err(Failure::Input(format!("switch: {problem}")));
    }
    let path = config.state_dir.join(SWITCH_FILE);
    let value = serde_json::to_value(&settings).map_err(|error| Failure::Input(error.to_string()))?;
    write(&path, &value)?;
    Ok((path, settings))
}

/// What no tenant reaches through a gateway besides the switches that the controllers tell of: the controllers, this machine under all its
/// addresses, and whoever is on the underlay's link, by all prefixes of that device: who has an IPv4 address there that is known may have
/// another one of IPv6.
fn guarded(controllers: &[String], underlay: IpAddr, devices: &[if_addrs::Interface]) -> Vec<Net> {
    let of_controllers =
        controllers.iter().filter_map(|at| at.parse().ok().map(|at: std::net::SocketAddr| at.ip()));
    // What is no host's is guarded anyway, and comes and goes with devices.
    let own: Vec<_> =
        devices.iter().filter(|device| !device.is_loopback() && !device.is_link_local()).collect();
    let link = devices.iter().find(|device| device.ip() == underlay).map(|device| &device.name);
    let on_link = own.iter().filter(|device| Some(&device.name) == link);
    // A prefix of everything is no link's: it would leave no outside.
    let prefixes = on_link.filter_map(|device| prefix(&device.addr)).filter(|net| net.prefix_len() > 0);
    let own = own.iter().map(|device| device.ip());
    let all: std::collections::BTreeSet<Net> =
        of_controllers.chain(own).map(|address| Net::from(address.to_canonical())).chain(prefixes).collect();
    all.into_iter().collect()
}

/// The prefix of a device's address.
fn prefix(address: &if_addrs::IfAddr) -> Option<Net> {
    let (ip, bits) = match address {
        if_addrs::IfAddr::V4(v4) => (IpAddr::from(v4.ip), v4.netmask.to_bits().count_ones()),
        if_addrs::IfAddr::V6(v6) => (IpAddr::from(v6.ip), v6.netmask.to_bits().count_ones()),
    };
    Net::new(ip, u8::try_from(bits).ok()?).ok().map(|net| net.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(dir: &Path) -> NodeArguments {
        NodeArguments {
            config: None,
            name: Some(Label::new("h1").unwrap()),
            underlay: Some("192.0.2.1".to_string()),
            join: None,
            join_file: None,
            state: dir.to_path_buf(),
            run: dir.join("run"),
            dns_upstream: vec!["192.0.2.53:53".to_string()],
            metrics: Some("127.0.0.1:9471".to_string()),
            monitor: Some("off".to_string()),
            monitor_policy: Some(dir.join("policies")),
        }
    }

    #[test]
    fn options_become_settings_that_the_next_start_finds() {
        let dir = tempfile::tempdir().unwrap();
        let outside = vec!["203.0.113.10".parse().unwrap()];
        let (path, config) = settings(&arguments(dir.path()), Role::Gateway, outside.clone()).unwrap();
        assert_eq!(config.switch.external.as_ref().unwrap().addresses, outside);
        assert_eq!(config.agent.dns.upstream.len(), 1);
        assert_eq!(config.monitor.run, RunMonitor::Off);
        assert_eq!(config.monitor.policy, Some(dir.path().join("policies")));
        assert_eq!(monitor(&path, &config, Path::new("weir")), None);
        let later = NodeArguments { name: None, underlay: None, ..arguments(dir.path()) };
        assert_eq!(settings(&later, Role::Gateway, Vec::new()).unwrap(), (path, config));
    }

    #[test]
    fn a_gateway_guards_its_underlays_whole_link_in_both_versions() {
        let v4 = |name: &str, ip: &str, bits: u32| if_addrs::Interface {
            name: name.into(),
            addr: if_addrs::IfAddr::V4(if_addrs::Ifv4Addr {
                ip: ip.parse().unwrap(),
                netmask: std::net::Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - bits).unwrap_or(0)),
                prefixlen: 0,
                broadcast: None,
            }),
            index: None,
            oper_status: if_addrs::IfOperStatus::Up,
            is_p2p: false,
        };
        let v6 = |name: &str, ip: &str| if_addrs::Interface {
            addr: if_addrs::IfAddr::V6(if_addrs::Ifv6Addr {
                ip: ip.parse().unwrap(),
                netmask: "ffff:ffff:ffff:ffff::".parse().unwrap(),
                prefixlen: 0,
                broadcast: None,
            }),
            ..v4(name, "0.0.0.0", 32)
        };
        let devices = [
            v4("lo", "127.0.0.1", 8),
            v4("eth0", "192.0.2.21", 24),
            v6("eth0", "2001:db8:5::21"),
            v6("eth0", "fe80::21"),
            v4("eth1", "203.0.113.1", 24),
            v4("eth1", "198.51.100.1", 0),
        ];
        let controllers = ["10.7.0.1:7444".to_string(), "c.example:7444".to_string()];
        let list = |underlay: &str| -> Vec<String> {
            guarded(&controllers, underlay.parse().unwrap(), &devices).iter().map(Net::to_string).collect()
        };
        let single =
            ["10.7.0.1/32", "192.0.2.21/32", "198.51.100.1/32", "203.0.113.1/32", "2001:db8:5::21/128"];
        let mut wanted: Vec<String> = single.map(String::from).to_vec();
        assert_eq!(sorted(list("192.0.2.99")), sorted(wanted.clone()), "the device is not there yet");
        wanted.extend(["192.0.2.0/24", "2001:db8:5::/64"].map(String::from));
        assert_eq!(sorted(list("192.0.2.21")), sorted(wanted));
        assert!(!list("198.51.100.1").contains(&"0.0.0.0/0".to_string()), "everything is no link");
    }

    fn sorted(mut list: Vec<String>) -> Vec<String> {
        list.sort();
        list
    }

    #[test]
    fn the_monitor_is_told_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let on = NodeArguments { monitor: Some("on".into()), ..arguments(dir.path()) };
        let (path, config) = settings(&on, Role::Host, Vec::new()).unwrap();
        let child = monitor(&path, &config, Path::new("/usr/bin/weir")).unwrap();
        let words: Vec<String> =
            child.arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let after = |name: &str| words[words.iter().position(|word| word == name).unwrap() + 1].clone();
        assert_eq!(after("--host-config"), path.display().to_string());
        assert_eq!(name(&path).unwrap().as_str(), "h1");
        assert_eq!(after("--sensors"), config.run_dir.join("sensors").display().to_string());
        assert_eq!(after("--policy"), dir.path().join("policies").display().to_string());
        assert!(after("--audit").starts_with(&config.state_dir.display().to_string()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let nothing = NodeArguments { name: None, underlay: None, ..arguments(dir.path()) };
        let message = settings(&nothing, Role::Host, Vec::new()).unwrap_err().to_string();
        assert!(message.contains("--name and --underlay"), "{message}");
        let message = underlay_address("nowhere0").unwrap_err().to_string();
        assert!(message.contains("nowhere0") && message.contains("lo"), "{message}");
        assert_eq!(underlay_address("lo").unwrap().to_string(), "127.0.0.1");
    }
}
