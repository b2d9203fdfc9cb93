//! What a switch is told when it starts.

use crate::flow::{FLOWS_LIMIT, FLOWS_MAX};
use crate::ports::vhost::ring::BATCH_MAX;
use crate::ports::vhost::touched::{TOUCHED_BYTES_LEAST, TOUCHED_BYTES_MAX};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use weir_model::Label;
use weir_model::event::Role;

/// A range of addresses in the settings.
pub type Net = IpNet;

/// Settings of a switch. Unknown fields are an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SwitchConfig {
    /// Name of the actuator.
    pub name: Label,
    /// The domain; must be that of the trust file.
    pub domain: Label,
    /// What it is.
    pub role: Role,
    /// Own address on the underlay: where it receives, and its senders' source. Its family is the underlay's.
    pub underlay: IpAddr,
    /// UDP port of Geneve.
    #[serde(default = "geneve_port")]
    pub geneve_port: u16,
    /// UDP port of VXLAN.
    #[serde(default = "vxlan_port")]
    pub vxlan_port: u16,
    /// Directory of the sockets and the lock: one switch runs in it.
    pub run_dir: PathBuf,
    /// Directory of the checkpoint and the journal.
    pub state_dir: PathBuf,
    /// A `weir_model::join::TrustFile`, JSON.
    pub trust_file: PathBuf,
    /// Seed of the key that signs acks: 64 hex digits.
    pub identity_file: PathBuf,
    /// The way outside, at a gateway.
    #[serde(default)]
    pub external: Option<ExternalConfig>,
    /// Where other switches are on the underlay. What comes encapsulated from elsewhere is dropped, whatever its format; empty: the
    /// token of Geneve decides, and of VXLAN what is known of the network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub underlay_from: Vec<IpNet>,
    /// The engine.
    #[serde(default)]
    pub engine: EngineConfig,
    /// What the monitor's reader does in the engine's idle slots.
    #[serde(default)]
    pub idle_reader: Option<IdleReader>,
}

/// Where whoever starts the switch finds what its idle slots are for. The switch itself does not read these files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdleReader {
    /// File or folder of the monitor's policies.
    #[serde(default)]
    pub policy: Option<PathBuf>,
    /// File of the ring of hosts.
    #[serde(default)]
    pub ring: Option<PathBuf>,
}

/// The way outside: a device that the switch makes in its own namespace. The kernel routes from there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExternalConfig {
    /// Name of the device.
    #[serde(default = "external_device")]
    pub device: String,
    /// MTU of the device, bytes.
    #[serde(default = "external_mtu")]
    pub mtu: u16,
    /// Addresses that endpoints have outside; routed to the device.
    pub addresses: Vec<IpAddr>,
    /// First port or ICMP identifier to use.
    #[serde(default = "first_port")]
    pub first_port: u16,
    /// Last port or ICMP identifier to use.
    #[serde(default = "last_port")]
    pub last_port: u16,
    /// Destinations that no tenant reaches through this gateway, besides the switches that it knows and what is no host's: the
    /// controllers and this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guarded: Vec<IpNet>,
    /// Of all those, the ones that tenants may reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reachable: Vec<IpNet>,
}

/// Settings of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Processor that it is bound to; none: the kernel chooses.
    pub cpu: Option<usize>,
    /// How long it looks for packets before it sleeps, at most, microseconds; zero: it sleeps at once. It looks only while
    /// packets come so close to each other, not while there is bulk, and lets others on its processor run meanwhile.
    pub busy_poll_us: u32,
    /// Whether it looks for packets all the time and never sleeps: with a processor of its own (`cpu`), where nobody else is
    /// kept from running.
    pub always_poll: bool,
    /// Nice level while it leaves bulk behind in its devices, -20 to 0; 0: it never goes before others.
    #[serde(skip_serializing_if = "is_usual_nice")]
    pub urgent_nice: i8,
    /// Frames of a virtual machine that are taken at once, 1 to 64.
    pub batch: u8,
    /// Most flows, up to 4,194,304. A flow takes about 250 bytes, and what is known of its connection some more.
    pub flows_max: usize,
    /// Most bytes of virtual machines' memory that this process may be the first to touch, and so is charged for; a port may have half of
    /// what is left.
    #[serde(skip_serializing_if = "is_usual_touched")]
    pub guest_touched_bytes_max: u64,
    /// UDP source ports that flows are spread over, 1 to 16: what the underlay can tell apart.
    pub source_ports: u8,
    /// Buffer of each socket, bytes.
    pub socket_buffer_bytes: u32,
    /// How datagrams go to other switches and come from them.
    #[serde(skip_serializing_if = "UnderlayBy::is_usual")]
    pub underlay: UnderlayBy,
    /// Whether the checksums inside Geneve may be left to the receiving host's kernel, between switches that both
    /// take it. The outer UDP checksum protects the packet then: turn it off where the underlay cannot be trusted with that.
    pub partial_checksums: bool,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            cpu: None,
            busy_poll_us: 60,
            always_poll: false,
            urgent_nice: URGENT_NICE,
            batch: 32,
            flows_max: FLOWS_MAX,
            guest_touched_bytes_max: TOUCHED_BYTES_MAX,
            source_ports: 4,
            socket_buffer_bytes: 64 * 1024 * 1024,
            underlay: UnderlayBy::Sockets,
            partial_checksums: true,
        }
    }
}

/// How datagrams go to other switches and come from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnderlayBy {
    /// By UDP sockets of the kernel.
    #[default]
    Sockets,
    /// Single ones by AF_XDP, where the device of the underlay's address has it; the rest by sockets.
    AfXdp,
}

impl UnderlayBy {
    /// What is usual is not written down, so that a switch of an older release reads it too.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_usual(&self) -> bool {
        *self == UnderlayBy::Sockets
    }
}

/// The usual nice level of an engine that is behind.
const URGENT_NICE: i8 = -20;

/// What is usual is not written down, so that a switch of an older release reads it too.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_usual_nice(nice: &i8) -> bool {
    *nice == URGENT_NICE
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_usual_touched(bytes: &u64) -> bool {
    *bytes == TOUCHED_BYTES_MAX
}

fn geneve_port() -> u16 {
    weir_packet::encap::GENEVE_PORT
}

fn vxlan_port() -> u16 {
    weir_packet::encap::VXLAN_PORT
}

fn external_device() -> String {
    "wext0".into()
}

fn external_mtu() -> u16 {
    1500
}

fn first_port() -> u16 {
    1024
}

fn last_port() -> u16 {
    u16::MAX
}

impl SwitchConfig {
    /// What is wrong with the settings, in words that name the field.
    pub fn problem(&self) -> Option<String> {
        let ports = self.engine.source_ports;
        if self.geneve_port == self.vxlan_port {
            return Some(format!("genevePort and vxlanPort are both {}: use two", self.geneve_port));
        }
        if self.geneve_port == 0 || self.vxlan_port == 0 {
            return Some("genevePort and vxlanPort must not be 0".into());
        }
        if !(1..=16).contains(&ports) {
            return Some(format!("engine.sourcePorts is {ports}: use 1 to 16"));
        }
        let engine = &self.engine;
        if engine.always_poll && engine.cpu.is_none() {
            return Some("engine.always_poll needs a processor of its own: set engine.cpu".into());
        }
        if !(1..=BATCH_MAX).contains(&usize::from(engine.batch)) {
            return Some(format!("engine.batch is {}: use 1 to {BATCH_MAX}", engine.batch));
        }
        if !(-20..=0).contains(&engine.urgent_nice) {
            return Some(format!("engine.urgentNice is {}: use -20 to 0", engine.urgent_nice));
        }
        if !(1..=FLOWS_LIMIT).contains(&engine.flows_max) {
            return Some(format!("engine.flowsMax is {}: use 1 to {FLOWS_LIMIT}", engine.flows_max));
        }
        if engine.guest_touched_bytes_max < TOUCHED_BYTES_LEAST {
            let bytes = engine.guest_touched_bytes_max;
            return Some(format!(
                "engine.guestTouchedBytesMax is {bytes}: use {TOUCHED_BYTES_LEAST} or more"
            ));
        }
        if self.underlay.is_unspecified() || self.underlay.is_multicast() {
            return Some(format!("underlay is {}: use the host's own address there", self.underlay));
        }
        let external = self.external.as_ref()?;
        if self.role != Role::Gateway {
            return Some("external is only for a gateway".into());
        }
        if external.first_port > external.last_port || external.first_port == 0 {
            let (first, last) = (external.first_port, external.last_port);
            return Some(format!("external.firstPort {first} to lastPort {last} is no range of ports"));
        }
        None
    }
}
