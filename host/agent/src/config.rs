//! The configuration file of a host or a gateway: YAML, one file for supervisor, agent and switch.
//!
//! The section `switch` is typed by whoever reads the file, because the agent knows nothing of the
//! switch's settings. An unknown field is an error everywhere.
//!
//! ```yaml
//! name: host-1
//! role: host                  # or gateway
//! underlay: 192.0.2.1         # this machine's address towards other switches
//! stateDir: /var/lib/weir
//! runDir: /run/weir
//! controllers: []             # host:port; empty means those learned by joining and from the group
//! agent:
//!   metrics: 127.0.0.1:9471
//!   dns: { upstream: ["192.0.2.53:53"] }
//! supervisor: { stopSwitch: false, switchAnswerMs: 10000 }
//! monitor: { run: auto }      # watches this machine and repairs it by policy
//! switch: {}
//! ```

use crate::AgentError;
use crate::session::tls::split_address;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use weir_model::Label;
use weir_model::event::Role;

/// Most controllers.
pub const CONTROLLERS_MAX: usize = 16;
/// Most resolvers outside.
pub const UPSTREAM_MAX: usize = 8;
/// Port of the gateways' DNS listener on the underlay, unless told otherwise.
pub const GATEWAY_DNS_PORT: u16 = 4053;

/// The whole file. `S` is what the section `switch` holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, bound = "S: serde::de::DeserializeOwned + Default")]
pub struct NodeConfig<S> {
    /// Name of the actuator.
    pub name: Label,
    /// What it is.
    #[serde(default = "default_role")]
    pub role: Role,
    /// Address on the underlay.
    pub underlay: IpAddr,
    /// Where identity, trust and checkpoints are kept.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// Where sockets and locks are.
    #[serde(default = "default_run_dir")]
    pub run_dir: PathBuf,
    /// Session addresses of the controllers; empty means those learned by joining.
    #[serde(default)]
    pub controllers: Vec<String>,
    /// See [`AgentSettings`].
    #[serde(default)]
    pub agent: AgentSettings,
    /// See [`SupervisorSettings`].
    #[serde(default)]
    pub supervisor: SupervisorSettings,
    /// See [`MonitorSettings`].
    #[serde(default)]
    pub monitor: MonitorSettings,
    /// The switch's own.
    #[serde(default)]
    pub switch: S,
}

/// Whether the supervisor runs a monitor too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunMonitor {
    /// Where it can: as root, on a machine with cgroups of version 2.
    #[default]
    Auto,
    /// In any case: what it lacks is told again and again.
    On,
    /// Not.
    Off,
}

/// Settings of the monitor (`weir monitor`) that the supervisor runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MonitorSettings {
    /// Whether it runs.
    pub run: RunMonitor,
    /// File or folder of policies; absent means `/etc/weir/monitor` if it is there, or else a fork bomb and a lack of memory are
    /// reported and nothing is done about them.
    pub policy: Option<PathBuf>,
    /// File of queries.
    pub query: Option<PathBuf>,
    /// File of the ring of hosts that watch each other.
    pub ring: Option<PathBuf>,
    /// Where it shows its status.
    pub status: SocketAddr,
    /// Where alarms are sent.
    pub webhook: Option<String>,
    /// Where metrics are sent, in OpenTelemetry's protocol.
    pub otlp: Option<String>,
}

impl Default for MonitorSettings {
    fn default() -> Self {
        MonitorSettings {
            run: RunMonitor::Auto,
            policy: None,
            query: None,
            ring: None,
            status: SocketAddr::from(([127, 0, 0, 1], 9750)),
            webhook: None,
            otlp: None,
        }
    }
}

/// Settings of the agent alone.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AgentSettings {
    /// Where named network namespaces are.
    pub netns_dir: PathBuf,
    /// Where metrics are served; absent means nowhere.
    pub metrics: Option<SocketAddr>,
    /// See [`DnsSettings`].
    pub dns: DnsSettings,
    /// First wait after a failed session, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest wait after failed sessions, milliseconds.
    pub backoff_max_ms: u64,
}

impl Default for AgentSettings {
    fn default() -> Self {
        AgentSettings {
            netns_dir: "/run/netns".into(),
            metrics: None,
            dns: DnsSettings::default(),
            backoff_min_ms: 200,
            backoff_max_ms: 15_000,
        }
    }
}

/// Settings of DNS.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DnsSettings {
    /// Port of the gateways' listeners; the same in the whole domain.
    pub gateway_port: u16,
    /// Resolvers for names outside; none means such names are refused.
    pub upstream: Vec<SocketAddr>,
}

impl Default for DnsSettings {
    fn default() -> Self {
        DnsSettings { gateway_port: GATEWAY_DNS_PORT, upstream: Vec::new() }
    }
}

/// Settings of the supervisor alone.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SupervisorSettings {
    /// Whether the switch, and so traffic, stops when the supervisor is told to stop.
    pub stop_switch: bool,
    /// A switch that lives and does not answer for so long is killed and started again, milliseconds; 0: never. One
    /// that a debugger is attached to is left alone in any case.
    pub switch_answer_ms: u64,
    /// Whether a switch that is found running, of another program than this, is taken over from under traffic: so the restart of the
    /// service after an update replaces the switch too.
    pub take_over: bool,
    /// First wait between two starts of a child that dies, milliseconds.
    pub backoff_min_ms: u64,
    /// Longest wait between two starts of a child that dies, milliseconds.
    pub backoff_max_ms: u64,
}

impl Default for SupervisorSettings {
    fn default() -> Self {
        SupervisorSettings {
            stop_switch: false,
            switch_answer_ms: 10_000,
            take_over: true,
            backoff_min_ms: 100,
            backoff_max_ms: 10_000,
        }
    }
}

fn default_role() -> Role {
    Role::Host
}
fn default_state_dir() -> PathBuf {
    "/var/lib/weir".into()
}
fn default_run_dir() -> PathBuf {
    "/run/weir".into()
}

/// A file without settings for the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSwitch {}

/// What an agent needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Name of the actuator.
    pub name: Label,
    /// What it is.
    pub role: Role,
    /// Address on the underlay.
    pub underlay: IpAddr,
    /// Where identity and trust are kept.
    pub state_dir: PathBuf,
    /// Where the switch's sockets are.
    pub run_dir: PathBuf,
    /// Session addresses of the controllers; empty means those learned by joining.
    pub controllers: Vec<String>,
    /// The rest.
    pub settings: AgentSettings,
}

impl<S: DeserializeOwned + Default> NodeConfig<S> {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file, the field, its value, and what is allowed.
    pub fn read(path: &Path) -> Result<NodeConfig<S>, AgentError> {
        let text = std::fs::read_to_string(path).map_err(|error| AgentError::file(path, error))?;
        NodeConfig::parse(&text).map_err(|error| match error {
            AgentError::Config { reason, .. } => AgentError::Config { path: path.into(), reason },
            other => AgentError::Config { path: path.into(), reason: other.to_string() },
        })
    }

    /// Parses and checks text.
    ///
    /// # Errors
    /// As [`NodeConfig::read`], with an empty path.
    pub fn parse(text: &str) -> Result<NodeConfig<S>, AgentError> {
        let config: NodeConfig<S> = weir_document::read(text)
            .map_err(|error| AgentError::Config { path: PathBuf::new(), reason: error.to_string() })?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), AgentError> {
        if self.underlay.is_unspecified() || self.underlay.is_multicast() {
            return Err(AgentError::field(
                "underlay",
                self.underlay,
                "use this machine's own unicast address",
            ));
        }
        check_controllers("controllers", &self.controllers)?;
        for (field, path) in [
            ("stateDir", &self.state_dir),
            ("runDir", &self.run_dir),
            ("agent.netnsDir", &self.agent.netns_dir),
        ] {
            if !path.is_absolute() {
                return Err(AgentError::field(field, path.display(), "use an absolute path"));
            }
        }
        let dns = &self.agent.dns;
        if dns.gateway_port == 0 {
            return Err(AgentError::field("agent.dns.gatewayPort", 0, "use 1 to 65535"));
        }
        if dns.upstream.len() > UPSTREAM_MAX {
            let allowed = format!("use at most {UPSTREAM_MAX} resolvers");
            return Err(AgentError::field("agent.dns.upstream", dns.upstream.len(), allowed));
        }
        if let Some(odd) =
            dns.upstream.iter().find(|server| server.port() == 0 || server.ip().is_unspecified())
        {
            return Err(AgentError::field(
                "agent.dns.upstream",
                odd,
                "use an address and port, such as 192.0.2.53:53",
            ));
        }
        let answer_ms = self.supervisor.switch_answer_ms;
        if answer_ms != 0 && !(1_000..=3_600_000).contains(&answer_ms) {
            let allowed = "use 1000 to 3600000 ms, or 0 for never";
            return Err(AgentError::field("supervisor.switchAnswerMs", answer_ms, allowed));
        }
        let agent = (self.agent.backoff_min_ms, self.agent.backoff_max_ms);
        let supervisor = (self.supervisor.backoff_min_ms, self.supervisor.backoff_max_ms);
        for (section, (min_ms, max_ms)) in [("agent", agent), ("supervisor", supervisor)] {
            if min_ms == 0 || min_ms > max_ms || max_ms > 3_600_000 {
                let value = format!("{min_ms} and {max_ms}");
                let allowed = "use 1 to 3600000 ms, the first not above the second";
                return Err(AgentError::field(
                    &format!("{section}.backoffMinMs and backoffMaxMs"),
                    value,
                    allowed,
                ));
            }
        }
        Ok(())
    }

    /// The agent's part.
    pub fn agent(&self) -> AgentConfig {
        AgentConfig {
            name: self.name.clone(),
            role: self.role,
            underlay: self.underlay,
            state_dir: self.state_dir.clone(),
            run_dir: self.run_dir.clone(),
            controllers: self.controllers.clone(),
            settings: self.agent.clone(),
        }
    }
}

/// Checks a list of session addresses.
pub(crate) fn check_controllers(field: &str, controllers: &[String]) -> Result<(), AgentError> {
    if controllers.len() > CONTROLLERS_MAX {
        let allowed = format!("use at most {CONTROLLERS_MAX} controllers");
        return Err(AgentError::field(field, controllers.len(), allowed));
    }
    for address in controllers {
        if split_address(address).is_err() {
            let allowed = "use host:port, such as 192.0.2.10:7444 or [2001:db8::1]:7444";
            return Err(AgentError::field(field, address, allowed));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
