//! Resources: what a person asks for (row A1), written as JSON or YAML.
//!
//! They state intent only (row A2): which encapsulation carries a packet, which element does a
//! function and how a switch is programmed are not here, except as a setting a network may choose.
//!
//! Networks stand alone; everything else lives inside one network, so two tenants may use the same
//! names and the same addresses.

mod admit;
mod balancer;
mod document;
mod same;
mod validate;
mod words;

use crate::vni::Vni;
use crate::{Label, MacAddr};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use balancer::{Balancer, BalancerService, MEMBERS_MAX, SERVICES_MAX};
pub use validate::FieldError;

/// Most tags of an endpoint or a rule.
pub const TAGS_MAX: usize = 32;
/// Most addresses of an endpoint.
pub const ADDRESSES_MAX: usize = 16;
/// Most port ranges or peers of one firewall rule.
pub const RULE_ITEMS_MAX: usize = 64;
/// Smallest MTU a network may have: IPv6 needs it (RFC 8200).
pub const MTU_MIN: u16 = 1280;
/// Most pairs of queues of one virtual machine's port.
pub const QUEUE_PAIRS_MAX: u16 = 8;
/// Longest path of a socket, bytes: what `sockaddr_un` holds.
pub const SOCKET_BYTES_MAX: usize = 107;
/// Largest MTU a network may have: with the overlay's headers it must fit in one UDP datagram.
pub const MTU_MAX: u16 = 65_000;

/// What kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A tenant's network.
    Network,
    /// A range of addresses inside a network.
    Subnet,
    /// A virtual machine's or container's port.
    Endpoint,
    /// A path for a prefix inside a network.
    Route,
    /// A firewall rule inside a network.
    FirewallRule,
    /// A virtual address inside a network whose connections endpoints take in turns.
    Balancer,
}

impl Kind {
    /// Every kind, in the order in which resources depend on each other.
    pub const ALL: [Kind; 6] =
        [Kind::Network, Kind::Subnet, Kind::Endpoint, Kind::Route, Kind::FirewallRule, Kind::Balancer];

    /// The kind as it is written in a document.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Network => "network",
            Kind::Subnet => "subnet",
            Kind::Endpoint => "endpoint",
            Kind::Route => "route",
            Kind::FirewallRule => "firewall-rule",
            Kind::Balancer => "balancer",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Kind {
    type Err = FieldError;
    fn from_str(text: &str) -> Result<Kind, FieldError> {
        let singular = text.strip_suffix('s').unwrap_or(text);
        Kind::ALL.into_iter().find(|k| k.as_str() == singular).ok_or_else(|| {
            FieldError::new("kind", text, "network, subnet, endpoint, route, firewall-rule or balancer")
        })
    }
}

/// Names one resource. The network is absent exactly for networks themselves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceId {
    /// Kind of the resource.
    pub kind: Kind,
    /// The network it lives in.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub network: Option<Label>,
    /// Its name, unique for its kind in its network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.network {
            Some(network) => write!(f, "{}/{}/{}", self.kind, network, self.name),
            None => write!(f, "{}/{}", self.kind, self.name),
        }
    }
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Resource {
    /// See [`Network`].
    Network(Network),
    /// See [`Subnet`].
    Subnet(Subnet),
    /// See [`Endpoint`].
    Endpoint(Endpoint),
    /// See [`Route`].
    Route(Route),
    /// See [`FirewallRule`].
    FirewallRule(FirewallRule),
    /// See [`Balancer`].
    Balancer(Balancer),
}

impl Resource {
    /// The kind.
    pub fn kind(&self) -> Kind {
        match self {
            Resource::Network(_) => Kind::Network,
            Resource::Subnet(_) => Kind::Subnet,
            Resource::Endpoint(_) => Kind::Endpoint,
            Resource::Route(_) => Kind::Route,
            Resource::FirewallRule(_) => Kind::FirewallRule,
            Resource::Balancer(_) => Kind::Balancer,
        }
    }

    /// The identity.
    pub fn id(&self) -> ResourceId {
        let (network, name) = match self {
            Resource::Network(r) => (None, &r.name),
            Resource::Subnet(r) => (Some(&r.network), &r.name),
            Resource::Endpoint(r) => (Some(&r.network), &r.name),
            Resource::Route(r) => (Some(&r.network), &r.name),
            Resource::FirewallRule(r) => (Some(&r.network), &r.name),
            Resource::Balancer(r) => (Some(&r.network), &r.name),
        };
        ResourceId { kind: self.kind(), network: network.cloned(), name: name.clone() }
    }

    /// Checks what can be checked without looking at other resources.
    ///
    /// # Errors
    /// The first wrong field, its value, and what is allowed.
    pub fn validate(&self) -> Result<(), FieldError> {
        validate::validate(self)
    }
}

/// What a rule, or a network without a matching rule, does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Let it pass.
    Allow,
    /// Drop and count it.
    Deny,
}

/// How packets of a network cross the underlay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Encapsulation {
    /// Geneve (RFC 8926) with a security token that the receiver checks (row A18).
    #[default]
    Geneve,
    /// VXLAN (RFC 7348), for underlays and peers that know nothing else. No token.
    Vxlan,
}

/// How the switches of a network come to know where its endpoints are (decision 0019).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Forwarding {
    /// They are told: gateways all places, hosts those that they use. What a host does not know goes by a gateway.
    #[default]
    Routed,
    /// They ask: what a host does not know is a question to the controllers, which learn places from packets.
    Learned,
}

/// A tenant's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// Name, unique in the cloud.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
    /// Largest IP packet of an endpoint, bytes: 1280 to 65000.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// How packets cross the underlay.
    #[serde(default)]
    pub encapsulation: Encapsulation,
    /// What happens to packets towards an endpoint that no rule matches.
    #[serde(default = "deny")]
    pub ingress: Action,
    /// What happens to packets from an endpoint that no rule matches.
    #[serde(default = "allow")]
    pub egress: Action,
    /// Whether endpoints reach the outside through a gateway, by source NAT.
    #[serde(default)]
    pub external_access: bool,
    /// How switches come to know where endpoints are; it changes only while no endpoint is in the network.
    #[serde(default)]
    pub forwarding: Forwarding,
    /// Its identifier on the wire, 1 to 16777215; absent: any that is free. A network that is in several domains needs the
    /// same in all. It never changes.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<Vni>,
}

fn default_mtu() -> u16 {
    1400
}
fn deny() -> Action {
    Action::Deny
}
fn allow() -> Action {
    Action::Allow
}

/// A range of addresses of a network. At least one of `v4` and `v6`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Subnet {
    /// The network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub network: Label,
    /// Name, unique in the network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
    /// IPv4 prefix, /8 to /29. Its first host address is the router's.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v4: Option<Ipv4Net>,
    /// IPv6 prefix, /48 to /120. Its first address after the anycast one is the router's.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v6: Option<Ipv6Net>,
    /// What DHCP and DNS tell the endpoints.
    #[serde(default)]
    pub dhcp: DhcpOptions,
    /// The domain whose hosts have its endpoints; absent: this one. The endpoints of a subnet of another domain are told by
    /// that domain, which may tell of no other addresses.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Label>,
}

impl Subnet {
    /// The router's IPv4 address.
    pub fn router_v4(&self) -> Option<Ipv4Addr> {
        self.v4.map(|net| Ipv4Addr::from(u32::from(net.network()).wrapping_add(1)))
    }

    /// The router's IPv6 address inside the prefix (its link-local one is in the switch's entries).
    pub fn router_v6(&self) -> Option<Ipv6Addr> {
        self.v6.map(|net| Ipv6Addr::from(u128::from(net.network()).wrapping_add(1)))
    }

    /// The prefix that an address of this family must be in.
    pub fn prefix_for(&self, address: IpAddr) -> Option<IpNet> {
        match address {
            IpAddr::V4(_) => self.v4.map(IpNet::V4),
            IpAddr::V6(_) => self.v6.map(IpNet::V6),
        }
    }
}

/// DHCP and DNS options of a subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DhcpOptions {
    /// Lease time, seconds.
    #[serde(default = "default_lease_s")]
    pub lease_s: u32,
    /// Name servers to tell; empty means Weir's own, at the router's address.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    #[serde(default)]
    pub dns_servers: Vec<IpAddr>,
    /// Search domains to tell after the network's own.
    #[serde(default)]
    pub search: Vec<String>,
    /// Time servers to tell.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    #[serde(default)]
    pub ntp_servers: Vec<IpAddr>,
}

fn default_lease_s() -> u32 {
    3600
}

impl Default for DhcpOptions {
    fn default() -> Self {
        DhcpOptions {
            lease_s: default_lease_s(),
            dns_servers: Vec::new(),
            search: Vec::new(),
            ntp_servers: Vec::new(),
        }
    }
}

/// Whether an endpoint's port shall carry traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// Carry traffic as soon as the policy is in force.
    #[default]
    Up,
    /// Keep the link down.
    Down,
}

/// What connects an endpoint to its host's switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AttachmentKind {
    /// A network device that the host makes: for containers, and for programs of the host.
    #[default]
    Tap,
    /// A virtual machine's queues in shared memory; the switch listens on the socket.
    VhostUser,
    /// The same; the virtual machine monitor listens, and the switch connects.
    VhostUserClient,
    /// A veth pair that the host makes: the endpoint has one end, the switch the frames of the other by AF_PACKET.
    AfPacket,
    /// The same by AF_XDP, or by AF_PACKET where there is none.
    AfXdp,
}

impl AttachmentKind {
    /// Whether it is a TAP.
    pub fn is_tap(&self) -> bool {
        *self == AttachmentKind::Tap
    }

    /// Whether it is a veth pair.
    pub fn is_veth(&self) -> bool {
        matches!(self, AttachmentKind::AfPacket | AttachmentKind::AfXdp)
    }

    /// Whether it is a network device that the host makes.
    pub fn is_device(&self) -> bool {
        self.is_tap() || self.is_veth()
    }
}

/// Name of the host's end of a veth pair whose other end is `device` in `netns`: the agent that makes it and the switch that has its
/// frames know it without telling each other.
pub fn host_end(netns: Option<&str>, device: &str) -> String {
    // FNV-1a, of the two names with a byte between that is in neither.
    let names = netns.unwrap_or_default().bytes().chain([b'/']).chain(device.bytes());
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = names.fold(0xcbf2_9ce4_8422_2325, mix);
    format!("wv{:012x}", sum & 0xffff_ffff_ffff)
}

/// Where the host makes the endpoint's device, or meets its virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attachment {
    /// What it is.
    #[serde(default, skip_serializing_if = "AttachmentKind::is_tap")]
    pub kind: AttachmentKind,
    /// Named network namespace of the device on the host; absent means the host's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Name of the device, at most 15 bytes; needed for `tap`, `af-packet` and `af-xdp`, and only there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Path of the virtual machine's socket on the host, at most 107 bytes; needed for `vhost-user` and
    /// `vhost-user-client`, and only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Pairs of queues that the virtual machine may use, 1 to 8.
    #[serde(default = "one_pair", skip_serializing_if = "is_one_pair")]
    pub queue_pairs: u16,
}

fn one_pair() -> u16 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde wants it so
fn is_one_pair(pairs: &u16) -> bool {
    *pairs == 1
}

/// A virtual machine's or container's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Endpoint {
    /// The network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub network: Label,
    /// Name, unique in the network; also its DNS name.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
    /// The subnet that its addresses come from.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub subnet: Label,
    /// The host it is on; absent while it is placed nowhere.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Label>,
    /// Ethernet address; absent means one is made from the network and the name.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// Addresses; a family of the subnet that has none here gets one allocated.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Tags that firewall rules select by.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    #[serde(default)]
    pub tags: Vec<Label>,
    /// Wanted state of the port.
    #[serde(default)]
    pub state: PortState,
    /// Where its device is made; absent means in the host's namespace, named after the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<Attachment>,
}

/// Where packets for a route's prefix go.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum NextHop {
    /// To an endpoint of the same network, which forwards them.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    Endpoint(Label),
    /// Outside, through a gateway.
    External,
    /// Nowhere: dropped and counted.
    Drop,
}

/// A path for a prefix. The longest prefix wins, then the highest priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route {
    /// The network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub network: Label,
    /// Name, unique in the network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
    /// Destinations, such as `10.9.0.0/16`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub prefix: IpNet,
    /// Among routes for one prefix the highest wins.
    #[serde(default = "default_priority")]
    pub priority: u16,
    /// Where to.
    pub next_hop: NextHop,
}

/// Which way a packet crosses an endpoint's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Towards the endpoint.
    Ingress,
    /// From the endpoint.
    Egress,
}

/// The other side of a firewall rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum Peer {
    /// Addresses.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    Prefix(IpNet),
    /// Endpoints of the same network that carry a tag.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    Tag(Label),
}

/// Which packets by protocol: `any`, `tcp`, `udp`, `icmp` (which is ICMPv6 too) or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// All.
    #[default]
    Any,
    /// ICMP for IPv4 and ICMPv6 for IPv6.
    Icmp,
    /// One protocol number; 6 is TCP, 17 is UDP.
    Number(u8),
}

impl Protocol {
    /// TCP.
    pub const TCP: Protocol = Protocol::Number(6);
    /// UDP.
    pub const UDP: Protocol = Protocol::Number(17);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Protocol::Any => f.write_str("any"),
            Protocol::Icmp => f.write_str("icmp"),
            Protocol::TCP => f.write_str("tcp"),
            Protocol::UDP => f.write_str("udp"),
            Protocol::Number(n) => write!(f, "{n}"),
        }
    }
}

impl std::str::FromStr for Protocol {
    type Err = FieldError;
    fn from_str(text: &str) -> Result<Protocol, FieldError> {
        Ok(match text {
            "any" => Protocol::Any,
            "icmp" => Protocol::Icmp,
            "tcp" => Protocol::TCP,
            "udp" => Protocol::UDP,
            number => Protocol::Number(number.parse().map_err(|_| {
                FieldError::new(
                    "protocol",
                    text,
                    "any, tcp, udp, icmp, or an IP protocol number from 0 to 255",
                )
            })?),
        })
    }
}

/// A range of ports, both ends inside: `"80"` or `"8000-8080"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl std::str::FromStr for PortRange {
    type Err = FieldError;
    fn from_str(text: &str) -> Result<PortRange, FieldError> {
        let wrong =
            || FieldError::new("ports", text, "a port such as \"80\" or a range such as \"8000-8080\"");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = PortRange {
            first: first.parse().map_err(|_| wrong())?,
            last: last.parse().map_err(|_| wrong())?,
        };
        if range.first <= range.last { Ok(range) } else { Err(wrong()) }
    }
}

macro_rules! serde_as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
serde_as_text!(Protocol);
serde_as_text!(PortRange);

/// A firewall rule. Among the rules of a direction that match, the lowest priority number decides;
/// at the same priority, deny wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FirewallRule {
    /// The network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub network: Label,
    /// Name, unique in the network; drops are counted under it.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub name: Label,
    /// Which way the packets cross the endpoint's port.
    pub direction: Direction,
    /// Lower numbers are looked at first.
    #[serde(default = "default_rule_priority")]
    pub priority: u16,
    /// What to do.
    pub action: Action,
    /// Which protocol: `any`, `tcp`, `udp`, `icmp` (ICMPv6 too) or a number.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    #[serde(default)]
    pub protocol: Protocol,
    /// Destination ports, such as `80` or `8000-8080`; empty means all. Only for TCP and UDP.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    #[serde(default)]
    pub ports: Vec<PortRange>,
    /// The other side; empty means anybody.
    #[serde(default)]
    pub peers: Vec<Peer>,
    /// Tags of the endpoints that the rule protects; empty means all of the network.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    #[serde(default)]
    pub targets: Vec<Label>,
    /// Whether replies of an allowed connection pass without a rule of their own.
    #[serde(default = "default_stateful")]
    pub stateful: bool,
}

fn default_priority() -> u16 {
    100
}
fn default_rule_priority() -> u16 {
    1000
}
fn default_stateful() -> bool {
    true
}

#[cfg(test)]
mod tests;
