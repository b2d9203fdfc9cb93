//! Entries: what a switch holds, one value a key. The `fabric` app turns resources into entries,
//! updates carry them, a switch (of a host or a gateway) keeps and obeys them.
//!
//! Invariants
//! - An entry is whole: applying a newer version over any older one is right, whatever was missed.
//! - A host holds only what its own ports need; a gateway holds every location (row A11).
//! - Members of a tag are spread over [`MEMBER_BUCKETS`] entries, so that one endpoint more costs
//!   one small entry a host and not the whole set.

use crate::filewall::PolicySet;
use crate::health::RepairEntry;
use crate::protocol::{PLANES_SINCE, PROTOCOL_MIN, SWITCHES_SINCE};
use crate::resource::{
    Action, AttachmentKind, DhcpOptions, Direction, Encapsulation, Forwarding, Peer, PortRange, PortState,
    Protocol,
};
use crate::statement::Statement;
use crate::{Label, MacAddr, plane};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_base::Version;

pub use crate::location::LocationEntry;
pub use crate::vni::{VNI_MAX, Vni};

/// How many entries the members of one tag are spread over.
pub const MEMBER_BUCKETS: u8 = 64;
/// Most prefixes of each kind in an [`UnderlaysEntry`]: those of as many other domains as there may be.
pub const UNDERLAY_PREFIXES_MAX: usize = 8_192;
/// What an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Key {
    /// The gateways of the domain.
    Gateways,
    /// A network that has a port here (on a host) or exists (on a gateway).
    Network {
        /// Its identifier.
        vni: Vni,
    },
    /// The firewall rules of a network.
    Policy {
        /// The network.
        vni: Vni,
    },
    /// One bucket of the addresses of the endpoints that carry a tag.
    Members {
        /// The network.
        vni: Vni,
        /// The tag.
        tag: Label,
        /// Which bucket: [`member_bucket`] of the address.
        bucket: u8,
    },
    /// The winning route of a prefix.
    Route {
        /// The network.
        vni: Vni,
        /// Destinations.
        prefix: IpNet,
    },
    /// A port of this host.
    Port {
        /// The network.
        vni: Vni,
        /// Name of the endpoint.
        endpoint: Label,
    },
    /// Where an address of a network is: on gateways all of them, on hosts those in use.
    Location {
        /// The network.
        vni: Vni,
        /// The endpoint's address.
        address: IpAddr,
    },
    /// A repair that the monitor of a host is to carry out.
    Repair {
        /// The host.
        host: Label,
        /// Path of the cgroup below the mount.
        cgroup: String,
    },
    /// The policies of a FileWall of a host.
    FileWall {
        /// The host.
        host: Label,
        /// Name of the FileWall.
        wall: Label,
    },
    /// The controller asks this host whether the endpoint with an address of a learned network is here.
    Sought {
        /// The network.
        vni: Vni,
        /// The endpoint's address.
        address: IpAddr,
    },
    /// A virtual address of a network that has a port here.
    Virtual {
        /// The network.
        vni: Vni,
        /// The virtual address.
        address: IpAddr,
    },
    /// Which member of a virtual address serves a client that is here.
    Turn {
        /// The network.
        vni: Vni,
        /// The client's address.
        client: IpAddr,
        /// The virtual address.
        address: IpAddr,
    },
    /// What this domain tells another one; no switch has it.
    Statement {
        /// The other domain.
        to: Label,
        /// Its number among all that is told to that domain, from 1.
        sequence: u64,
    },
    /// The controllers whose own signatures prove a batch, enough of them together. Only the group's key can change it.
    Controllers,
    /// One bucket of the underlay addresses of the domain's own switches. See [`Key::Underlays`].
    Switches {
        /// Which bucket: [`member_bucket`] of the address.
        bucket: u8,
    },
    /// Where else switches may be, and what tenants must not reach. With it in force a switch takes encapsulated packets from
    /// the gateways, the switches of all buckets of [`Key::Switches`], and these places only: so it is told last.
    Underlays,
    /// What one of the host's planes beside the switch is to have under a name. Which planes there are no enum says: see
    /// [`crate::plane`].
    Plane {
        /// The plane, such as `filewall`.
        plane: Label,
        /// The name; see [`plane::name_problem`].
        name: String,
    },
}

impl Key {
    /// The network that the key belongs to, if to one.
    pub fn vni(&self) -> Option<Vni> {
        match self {
            Key::Gateways
            | Key::Repair { .. }
            | Key::FileWall { .. }
            | Key::Statement { .. }
            | Key::Controllers
            | Key::Switches { .. }
            | Key::Underlays
            | Key::Plane { .. } => None,
            Key::Network { vni }
            | Key::Policy { vni }
            | Key::Members { vni, .. }
            | Key::Route { vni, .. }
            | Key::Port { vni, .. }
            | Key::Location { vni, .. }
            | Key::Sought { vni, .. }
            | Key::Virtual { vni, .. }
            | Key::Turn { vni, .. } => Some(*vni),
        }
    }

    /// The first protocol of sessions that has this kind of key: nobody who speaks an older one can read a frame with it.
    pub fn since_protocol(&self) -> u32 {
        match self {
            Key::Switches { .. } | Key::Underlays => SWITCHES_SINCE,
            Key::Plane { .. } => PLANES_SINCE,
            _ => PROTOCOL_MIN,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Gateways => f.write_str("gateways"),
            Key::Network { vni } => write!(f, "network/{vni}"),
            Key::Policy { vni } => write!(f, "policy/{vni}"),
            Key::Members { vni, tag, bucket } => write!(f, "members/{vni}/{tag}/{bucket}"),
            Key::Route { vni, prefix } => write!(f, "route/{vni}/{prefix}"),
            Key::Port { vni, endpoint } => write!(f, "port/{vni}/{endpoint}"),
            Key::Location { vni, address } => write!(f, "location/{vni}/{address}"),
            Key::Repair { host, cgroup } => write!(f, "repair/{host}/{cgroup}"),
            Key::FileWall { host, wall } => write!(f, "filewall/{host}/{wall}"),
            Key::Sought { vni, address } => write!(f, "sought/{vni}/{address}"),
            Key::Virtual { vni, address } => write!(f, "virtual/{vni}/{address}"),
            Key::Turn { vni, client, address } => write!(f, "turn/{vni}/{client}/{address}"),
            Key::Statement { to, sequence } => write!(f, "statement/{to}/{sequence}"),
            Key::Controllers => f.write_str("controllers"),
            Key::Switches { bucket } => write!(f, "switches/{bucket}"),
            Key::Underlays => f.write_str("underlays"),
            Key::Plane { plane, name } => write!(f, "plane/{plane}/{name}"),
        }
    }
}

/// The bucket of [`Key::Members`] and of [`Key::Switches`] that an address belongs to. Stable for ever: it is in stored keys.
pub fn member_bucket(address: IpAddr) -> u8 {
    let fold =
        |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(*b)));
    let sum = match address {
        IpAddr::V4(v4) => fold(&v4.octets()),
        IpAddr::V6(v6) => fold(&v6.octets()),
    };
    (sum % u32::from(MEMBER_BUCKETS)) as u8
}

/// The value of a key. The variant always fits the key's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// For [`Key::Gateways`].
    Gateways(Vec<GatewayEntry>),
    /// For [`Key::Network`].
    Network(NetworkEntry),
    /// For [`Key::Policy`].
    Policy(PolicyEntry),
    /// For [`Key::Members`]: addresses in ascending order.
    Members(Vec<IpAddr>),
    /// For [`Key::Route`].
    Route(RouteEntry),
    /// For [`Key::Port`].
    Port(PortEntry),
    /// For [`Key::Location`].
    Location(LocationEntry),
    /// For [`Key::Repair`].
    Repair(RepairEntry),
    /// For [`Key::FileWall`].
    FileWall(PolicySet),
    /// For [`Key::Sought`].
    Sought,
    /// For [`Key::Virtual`].
    Virtual(VirtualEntry),
    /// For [`Key::Turn`].
    Turn(TurnEntry),
    /// For [`Key::Statement`].
    Statement(Box<Statement>),
    /// For [`Key::Controllers`].
    Controllers(ControllersEntry),
    /// For [`Key::Switches`]: addresses in ascending order.
    Switches(Vec<IpAddr>),
    /// For [`Key::Underlays`].
    Underlays(UnderlaysEntry),
    /// For [`Key::Plane`]: a specification in the words of its plane, at most [`plane::SPEC_BYTES_MAX`] bytes.
    Plane(Vec<u8>),
}

impl Entry {
    /// Whether the entry is of the kind that the key wants, and of a plane's whether it is in its bounds.
    pub fn fits(&self, key: &Key) -> bool {
        if let (Entry::Plane(bytes), Key::Plane { name, .. }) = (self, key) {
            return bytes.len() <= plane::SPEC_BYTES_MAX && plane::name_problem(name).is_none();
        }
        matches!(
            (self, key),
            (Entry::Gateways(_), Key::Gateways)
                | (Entry::Network(_), Key::Network { .. })
                | (Entry::Policy(_), Key::Policy { .. })
                | (Entry::Members(_), Key::Members { .. })
                | (Entry::Route(_), Key::Route { .. })
                | (Entry::Port(_), Key::Port { .. })
                | (Entry::Location(_), Key::Location { .. })
                | (Entry::Repair(_), Key::Repair { .. })
                | (Entry::FileWall(_), Key::FileWall { .. })
                | (Entry::Sought, Key::Sought { .. })
                | (Entry::Virtual(_), Key::Virtual { .. })
                | (Entry::Turn(_), Key::Turn { .. })
                | (Entry::Statement(_), Key::Statement { .. })
                | (Entry::Controllers(_), Key::Controllers)
                | (Entry::Switches(_), Key::Switches { .. })
                | (Entry::Underlays(_), Key::Underlays)
        )
    }
}

/// A gateway: where a host sends what it has no location for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayEntry {
    /// Name of the gateway.
    pub name: Label,
    /// Its address on the underlay.
    pub underlay: IpAddr,
}

/// A network, as far as a switch must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkEntry {
    /// Name; the DNS zone of its endpoints is `<name>.weir.internal`.
    pub name: Label,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Format on the underlay.
    pub encapsulation: Encapsulation,
    /// Whether gateways let it out by source NAT.
    pub external_access: bool,
    /// Its subnets.
    pub subnets: Vec<SubnetEntry>,
    /// How switches come to know where its endpoints are.
    pub forwarding: Forwarding,
}

/// A subnet, as far as a switch must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetEntry {
    /// Name.
    pub name: Label,
    /// IPv4 prefix.
    pub v4: Option<Ipv4Net>,
    /// The router's IPv4 address.
    pub router_v4: Option<Ipv4Addr>,
    /// IPv6 prefix.
    pub v6: Option<Ipv6Net>,
    /// The router's IPv6 address.
    pub router_v6: Option<Ipv6Addr>,
}

/// The firewall of a network (rows A17, A24).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyEntry {
    /// What happens to packets towards an endpoint that no rule matches.
    pub default_ingress: Action,
    /// What happens to packets from an endpoint that no rule matches.
    pub default_egress: Action,
    /// In the order in which they decide: the first match wins.
    pub rules: Vec<Rule>,
}

/// One firewall rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Name of the resource.
    pub name: Label,
    /// Version of the resource.
    pub version: Version,
    /// Direction.
    pub direction: Direction,
    /// Priority, only to show: the order of the list decides.
    pub priority: u16,
    /// Action.
    pub action: Action,
    /// Protocol.
    #[serde(with = "protocol_code")]
    pub protocol: Protocol,
    /// Destination ports; empty means all.
    #[serde(with = "port_ranges")]
    pub ports: Vec<PortRange>,
    /// The other side; empty means anybody.
    pub peers: Vec<Peer>,
    /// Tags of the endpoints it protects; empty means all.
    pub targets: Vec<Label>,
    /// Whether replies pass by themselves.
    pub stateful: bool,
}

/// The winning route of a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteEntry {
    /// Name of the resource.
    pub name: Label,
    /// Version of the resource.
    pub version: Version,
    /// Where to.
    pub next_hop: RouteHop,
}

/// Where a route leads, with names resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouteHop {
    /// To the endpoint that has this address, found as any other address of the network.
    Address(IpAddr),
    /// Outside, through a gateway.
    External,
    /// Dropped and counted.
    Drop,
}

/// A port of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortEntry {
    /// Ethernet address of the endpoint.
    pub mac: MacAddr,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its tags.
    pub tags: Vec<Label>,
    /// Wanted state.
    pub state: PortState,
    /// Network namespace of the device; absent means the host's own.
    pub netns: Option<String>,
    /// Name of the device, or path of a virtual machine's socket.
    pub device: String,
    /// Which of them it is.
    pub kind: AttachmentKind,
    /// Pairs of queues that a virtual machine may use.
    pub queue_pairs: u16,
    /// Name of its subnet in the network's entry.
    pub subnet: Label,
    /// What DHCP tells it.
    pub dhcp: DhcpOptions,
    /// The port stays down until the network's policy has at least this version here (pain 8).
    pub policy_min: Version,
}

/// A virtual address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualEntry {
    /// Name of the balancer.
    pub name: Label,
    /// What is offered there.
    pub services: Vec<ServiceEntry>,
    /// The addresses of the members that can serve now, in ascending order. A connection to another one is over.
    pub members: Vec<IpAddr>,
}

/// A port of a virtual address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceEntry {
    /// IP protocol: 6 or 17.
    pub protocol: u8,
    /// The port that clients connect to.
    pub port: u16,
    /// The port of the members.
    pub target_port: u16,
}

/// A client's turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEntry {
    /// Name of the endpoint that serves.
    pub endpoint: Label,
    /// Its address.
    pub member: IpAddr,
}

/// The controllers that may endorse batches: those who hold shares of the group's key in one phase of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllersEntry {
    /// The dealing of the group's key that made them members.
    pub phase: u64,
    /// How many of them prove a batch: as many as make a signature of the group's key.
    pub threshold: u32,
    /// The ed25519 key of each, by its number.
    pub members: BTreeMap<u32, [u8; 32]>,
}

/// What is on the underlay besides the domain's own switches. Prefixes are in ascending order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderlaysEntry {
    /// Where hosts and gateways of other domains are that are known: packets from there may be theirs, and no tenant reaches it.
    pub switches: Vec<IpNet>,
    /// What else no tenant reaches: this domain's controllers.
    pub guarded: Vec<IpNet>,
}

mod protocol_code {
    //! A protocol is text in JSON; here it is two bytes.
    use super::Protocol;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    enum Code {
        Any,
        Icmp,
        Number(u8),
    }

    pub(super) fn serialize<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
        match *protocol {
            Protocol::Any => Code::Any,
            Protocol::Icmp => Code::Icmp,
            Protocol::Number(n) => Code::Number(n),
        }
        .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Protocol, D::Error> {
        Ok(match Code::deserialize(deserializer)? {
            Code::Any => Protocol::Any,
            Code::Icmp => Protocol::Icmp,
            Code::Number(n) => Protocol::Number(n),
        })
    }
}

mod port_ranges {
    //! Port ranges are text in JSON; here they are pairs of numbers.
    use super::PortRange;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(ports: &[PortRange], serializer: S) -> Result<S::Ok, S::Error> {
        ports.iter().map(|p| (p.first, p.last)).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PortRange>, D::Error> {
        let pairs = Vec::<(u16, u16)>::deserialize(deserializer)?;
        if let Some((first, last)) = pairs.iter().find(|(first, last)| first > last) {
            return Err(D::Error::custom(format!("port range {first}-{last} is upside down")));
        }
        Ok(pairs.into_iter().map(|(first, last)| PortRange { first, last }).collect())
    }
}

#[cfg(test)]
mod tests;
