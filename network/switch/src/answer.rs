//! What the network itself answers: ARP, neighbour discovery, router advertisements, echo to the
//! router, and ICMP errors (pains 11 and 12).
//!
//! The router answers for every address of the network with its own Ethernet address, so nothing is
//! ever flooded: endpoints send everything to the router, whose table knows the way. An address outside
//! of all subnets is answered only when it is the router's. Nobody is answered about his own address,
//! so that probes for duplicates find none.
//!
//! Everything here is pure and judged by what the frame says; the caller counts and limits.

pub mod bucket;

pub use bucket::{Bucket, ICMP_ERRORS_PER_S};

use crate::counters::Reason;
use crate::tables::Port;
use crate::tables::network::Network;
use std::net::{IpAddr, Ipv6Addr};
use weir_model::entry::SubnetEntry;
use weir_packet::build::{self, IcmpError, Prefix, RouterAdvertisement};
use weir_packet::headers::{ARP_REQUEST, NeighborMessage, parse_arp, parse_neighbor};
use weir_packet::{IpAddress, PacketError, Parsed, Transport};

/// Lifetime of the router that advertisements tell: the longest there is (RFC 8319).
pub const ROUTER_LIFETIME_S: u16 = u16::MAX;
/// Largest ICMP error with Ethernet header and tag.
const ERROR_BYTES_MAX: usize = 1280 + 18;
/// Room for an answer about a neighbour.
const NEIGHBOR_BYTES_MAX: usize = 512;

const UDP_DHCP_SERVER: u16 = 67;
const UDP_DHCP_CLIENT: u16 = 68;
const UDP_DHCPV6_CLIENT: u16 = 546;
const UDP_DHCPV6_SERVER: u16 = 547;
const DNS: u16 = 53;
const ALL_DHCP_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Who answers, or why an answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Service {
    /// ARP.
    Arp,
    /// Neighbour discovery.
    Neighbor,
    /// Router advertisement.
    Router,
    /// Echo.
    Echo,
    /// DHCP, by the agent.
    Dhcp,
    /// DNS, by the agent.
    Dns,
    /// A reset to a TCP segment that the router does not take.
    TcpReset,
    /// ICMP port unreachable.
    PortUnreachable,
    /// ICMP host unreachable.
    HostUnreachable,
    /// ICMP network unreachable.
    NetworkUnreachable,
    /// ICMP too big.
    TooBig,
    /// ICMP time exceeded.
    TimeExceeded,
}

impl Service {
    /// All of them, in the order of their numbers.
    pub const ALL: [Service; 12] = [
        Service::Arp,
        Service::Neighbor,
        Service::Router,
        Service::Echo,
        Service::Dhcp,
        Service::Dns,
        Service::TcpReset,
        Service::PortUnreachable,
        Service::HostUnreachable,
        Service::NetworkUnreachable,
        Service::TooBig,
        Service::TimeExceeded,
    ];

    /// The label `by`.
    pub fn as_str(self) -> &'static str {
        match self {
            Service::Arp => "arp",
            Service::Neighbor => "neighbor",
            Service::Router => "router-advertisement",
            Service::Echo => "echo",
            Service::Dhcp => "dhcp",
            Service::Dns => "dns",
            Service::TcpReset => "tcp-reset",
            Service::PortUnreachable => "port-unreachable",
            Service::HostUnreachable => "host-unreachable",
            Service::NetworkUnreachable => "network-unreachable",
            Service::TooBig => "too-big",
            Service::TimeExceeded => "time-exceeded",
        }
    }

    /// Whether the answer says that the packet goes nowhere.
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Service::TcpReset
                | Service::PortUnreachable
                | Service::HostUnreachable
                | Service::NetworkUnreachable
                | Service::TooBig
                | Service::TimeExceeded
        )
    }
}

/// What a service makes of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It answers.
    Frame(Service, Vec<u8>),
    /// The agent answers.
    Punt(Service),
    /// It stays silent, and the frame ends.
    Silent(Reason),
    /// It is malformed.
    Malformed(PacketError),
    /// It is not for this service.
    NotMine,
}

impl Reply {
    fn built(service: Service, mut out: Vec<u8>, length: Result<usize, PacketError>) -> Reply {
        match length {
            Ok(length) => {
                out.truncate(length);
                Reply::Frame(service, out)
            }
            Err(PacketError::NotAnswerable) => Reply::Silent(Reason::ToRouter),
            Err(error) => Reply::Malformed(error),
        }
    }
}

/// ARP from a port.
pub fn arp(network: &Network, port: &Port, frame: &[u8], parsed: &Parsed) -> Reply {
    let arp = match parse_arp(&frame[parsed.l3_offset..]) {
        Ok(arp) => arp,
        Err(error) => return Reply::Malformed(error),
    };
    let sender = IpAddr::from(arp.sender_ip);
    if arp.sender_mac != port.entry.mac.0 {
        return Reply::Silent(Reason::SpoofedMac);
    }
    if !sender.is_unspecified() && !may_speak_for(network, port, sender) {
        return Reply::Silent(Reason::SpoofedSource);
    }
    let target = IpAddr::from(arp.target_ip);
    if arp.operation != ARP_REQUEST {
        return Reply::Silent(Reason::ArpUnsolicited);
    }
    if port.has(target) || target == sender {
        return Reply::Silent(Reason::ArpOwnAddress);
    }
    let known = network.is_router(target)
        || (network.subnet_of(target).is_some() && !network.is_subnet_broadcast(target));
    if !known {
        return Reply::Silent(Reason::ArpOutside);
    }
    let mut out = vec![0; NEIGHBOR_BYTES_MAX];
    let length = build::arp_reply(&mut out, parsed, &arp, network.vni.router_mac().0);
    Reply::built(Service::Arp, out, length)
}

/// Whether the endpoint of a port may use a source address: its own, or one that a route leads to it
/// (row A14: the reverse path check asks the routes themselves).
pub fn may_speak_for(network: &Network, port: &Port, source: IpAddr) -> bool {
    port.has(source)
        || (network.port_of(source).is_none()
            && network.virtual_of(source).is_none()
            && !network.is_located(source)
            && !network.is_router(source)
            && network.leads_to(source, &port.entry.addresses))
}

/// Neighbour discovery from a port.
pub fn neighbor(network: &Network, port: &Port, frame: &[u8], parsed: &Parsed) -> Reply {
    if parsed.transport != Transport::Icmpv6 {
        return Reply::NotMine;
    }
    let message = match parse_neighbor(frame, parsed) {
        Ok(Some(message)) => message,
        Ok(None) => return Reply::NotMine,
        Err(error) => return Reply::Malformed(error),
    };
    match message {
        NeighborMessage::Advertisement { .. } => Reply::Silent(Reason::NeighborUnsolicited),
        NeighborMessage::RouterSolicitation { .. } => match router_advertisement(network, port) {
            Some(frame) => Reply::Frame(Service::Router, frame),
            None => Reply::Silent(Reason::NoRouterAddress),
        },
        NeighborMessage::Solicitation { target, source_mac } => {
            let target = Ipv6Addr::from(target);
            if source_mac.is_some_and(|mac| mac != port.entry.mac.0) {
                return Reply::Silent(Reason::SpoofedMac);
            }
            if port.has(target.into()) || IpAddr::from(parsed.source) == IpAddr::V6(target) {
                return Reply::Silent(Reason::NeighborOwnAddress);
            }
            let is_router = network.is_router(target.into());
            if !is_router && network.subnet_of(target.into()).is_none() {
                return Reply::Silent(Reason::NeighborOutside);
            }
            let mac = network.vni.router_mac().0;
            let mut out = vec![0; NEIGHBOR_BYTES_MAX];
            let length = build::neighbor_advertisement(&mut out, parsed, &message, mac, is_router);
            Reply::built(Service::Neighbor, out, length)
        }
    }
}

/// The advertisement of the router to all nodes behind a port: addresses and all else come by DHCPv6,
/// and nothing is on the link but the router, so that everything is sent to it. `None` when the port's
/// subnet has no IPv6.
pub fn router_advertisement(network: &Network, port: &Port) -> Option<Vec<u8>> {
    let entry = network.entry.as_ref()?;
    let subnet: &SubnetEntry = entry.subnets.iter().find(|subnet| subnet.name == port.entry.subnet)?;
    let (prefix, router) = (subnet.v6?, subnet.router_v6?);
    let told = &port.entry.dhcp.dns_servers;
    let servers: Vec<[u8; 16]> = if told.is_empty() {
        vec![router.octets()]
    } else {
        let v6 = told.iter().filter_map(|server| match server {
            IpAddr::V6(v6) => Some(v6.octets()),
            IpAddr::V4(_) => None,
        });
        v6.take(build::MAX_DNS_SERVERS).collect()
    };
    let advertisement = RouterAdvertisement {
        mac: network.vni.router_mac().0,
        source: network.vni.router_link_local().octets(),
        hop_limit: build::DEFAULT_TTL,
        managed: true,
        other: true,
        lifetime_s: ROUTER_LIFETIME_S,
        mtu: Some(entry.mtu.into()),
        prefix: Some(Prefix {
            address: prefix.network().octets(),
            length: prefix.prefix_len(),
            on_link: false,
            autonomous: false,
            valid_s: u32::MAX,
            preferred_s: u32::MAX,
        }),
        dns_servers: &servers,
        dns_lifetime_s: u32::MAX,
    };
    let mut out = vec![0; NEIGHBOR_BYTES_MAX];
    let length = build::router_advertisement(&mut out, None, None, &advertisement).ok()?;
    out.truncate(length);
    Some(out)
}

/// Whether a packet asks for an address: DHCP to everybody or to the router.
pub fn is_dhcp(network: &Network, parsed: &Parsed) -> bool {
    let destination = IpAddr::from(parsed.destination);
    let ports = (parsed.source_port, parsed.destination_port);
    if parsed.transport != Transport::Udp {
        return false;
    }
    match destination {
        IpAddr::V4(v4) => {
            ports == (UDP_DHCP_CLIENT, UDP_DHCP_SERVER)
                && (v4.is_broadcast() || network.is_router(destination))
        }
        IpAddr::V6(v6) => {
            ports == (UDP_DHCPV6_CLIENT, UDP_DHCPV6_SERVER)
                && (v6 == ALL_DHCP_SERVERS || network.is_router(destination))
        }
    }
}

/// What the router itself makes of a packet from a port: DHCP, DNS, echo; it refuses all else.
pub fn router(network: &Network, frame: &[u8], parsed: &Parsed) -> Reply {
    if is_dhcp(network, parsed) {
        return Reply::Punt(Service::Dhcp);
    }
    let destination = IpAddr::from(parsed.destination);
    if !network.is_router(destination) {
        return Reply::NotMine;
    }
    let mac = network.vni.router_mac().0;
    match parsed.transport {
        Transport::Udp | Transport::Tcp if parsed.destination_port == DNS => Reply::Punt(Service::Dns),
        Transport::Udp => {
            error(frame, parsed, mac, destination, IcmpError::PortUnreachable, Service::PortUnreachable)
        }
        Transport::Tcp => {
            let mut out = vec![0; NEIGHBOR_BYTES_MAX];
            let length = build::tcp_reset(&mut out, frame, parsed, mac);
            Reply::built(Service::TcpReset, out, length)
        }
        Transport::Icmpv4 | Transport::Icmpv6 => echo(frame, parsed, mac),
        Transport::Other => Reply::Silent(Reason::ToRouter),
    }
}

/// The answer to an echo request.
pub fn echo(frame: &[u8], parsed: &Parsed, mac: [u8; 6]) -> Reply {
    let mut out = vec![0; frame.len() + NEIGHBOR_BYTES_MAX];
    let length = build::echo_reply(&mut out, frame, parsed, mac);
    Reply::built(Service::Echo, out, length)
}

/// An ICMP error about a frame, from the router's address that speaks to its sender.
pub fn error(
    frame: &[u8],
    parsed: &Parsed,
    mac: [u8; 6],
    source: IpAddr,
    what: IcmpError,
    service: Service,
) -> Reply {
    let mut out = vec![0; ERROR_BYTES_MAX + NEIGHBOR_BYTES_MAX];
    let source = IpAddress::from(source);
    let length = build::icmp_error(&mut out, frame, parsed, mac, source, what);
    Reply::built(service, out, length)
}

#[cfg(test)]
mod tests;
