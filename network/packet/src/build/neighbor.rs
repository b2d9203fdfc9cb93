//! ARP and neighbour discovery on behalf of the network.

use super::{IpHeader, Link, seal};
use crate::PacketError;
use crate::address::{BROADCAST, IpAddress, Mac};
use crate::bytes::{put, put16, put32};
use crate::headers::{
    ARP_BYTES, ARP_REPLY, ARP_REQUEST, Arp, ETHERTYPE_ARP, ICMP_BYTES, NeighborMessage, PROTOCOL_ICMPV6,
    Parsed,
};

/// Most DNS servers in one router advertisement.
pub const MAX_DNS_SERVERS: usize = 8;

const ALL_NODES: IpAddress = IpAddress::v6([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
const NEIGHBOR_HOP_LIMIT: u8 = 255;

/// Writes an ARP packet and returns the length of the frame.
///
/// # Errors
/// `BufferTooSmall`.
pub fn arp_packet(out: &mut [u8], link: &Link, arp: &Arp) -> Result<usize, PacketError> {
    let at = link.write(out, ETHERTYPE_ARP, ARP_BYTES)?;
    put(out, at, &[0, 1, 8, 0, 6, 4]);
    put16(out, at + 6, arp.operation);
    put(out, at + 8, &arp.sender_mac);
    put(out, at + 14, &arp.sender_ip);
    put(out, at + 18, &arp.target_mac);
    put(out, at + 24, &arp.target_ip);
    Ok(at + ARP_BYTES)
}

/// Answers the ARP request `arp`, which came in the frame `parsed`: its target is at `mac`.
///
/// # Errors
/// `NotAnswerable` when it is no request, `BufferTooSmall`.
pub fn arp_reply(out: &mut [u8], parsed: &Parsed, arp: &Arp, mac: Mac) -> Result<usize, PacketError> {
    if arp.operation != ARP_REQUEST || arp.sender_mac[0] & 1 != 0 {
        return Err(PacketError::NotAnswerable);
    }
    let link = Link { source: mac, destination: arp.sender_mac, vlan_tci: parsed.vlan_tci };
    let answer = Arp {
        operation: ARP_REPLY,
        sender_mac: mac,
        sender_ip: arp.target_ip,
        target_mac: arp.sender_mac,
        target_ip: arp.sender_ip,
    };
    arp_packet(out, &link, &answer)
}

/// Asks everybody who has `target`, on behalf of `(mac, ip)`.
///
/// # Errors
/// `BufferTooSmall`.
pub fn arp_request(
    out: &mut [u8],
    vlan_tci: Option<u16>,
    mac: Mac,
    ip: [u8; 4],
    target: [u8; 4],
) -> Result<usize, PacketError> {
    let link = Link { source: mac, destination: BROADCAST, vlan_tci };
    let arp =
        Arp { operation: ARP_REQUEST, sender_mac: mac, sender_ip: ip, target_mac: [0; 6], target_ip: target };
    arp_packet(out, &link, &arp)
}

/// Answers the neighbour solicitation `message`, which came in the frame `parsed`: its target is at `mac`. A
/// solicitation from `::` (duplicate address detection) is answered to all nodes.
///
/// # Errors
/// `NotAnswerable` when it is no solicitation, `BufferTooSmall`.
pub fn neighbor_advertisement(
    out: &mut [u8],
    parsed: &Parsed,
    message: &NeighborMessage,
    mac: Mac,
    is_router: bool,
) -> Result<usize, PacketError> {
    let NeighborMessage::Solicitation { target, source_mac } = message else {
        return Err(PacketError::NotAnswerable);
    };
    let unsolicited = parsed.source.is_unspecified();
    let (destination, destination_mac) = if unsolicited {
        (ALL_NODES, ALL_NODES_MAC)
    } else {
        (parsed.source, source_mac.unwrap_or(parsed.source_mac))
    };
    let link = Link { source: mac, destination: destination_mac, vlan_tci: parsed.vlan_tci };
    let ip = IpHeader {
        source: IpAddress::v6(*target),
        destination,
        protocol: PROTOCOL_ICMPV6,
        ttl: NEIGHBOR_HOP_LIMIT,
    };
    let length = ICMP_BYTES + 16 + 8;
    let at = ip.write(out, &link, length)?;
    let flags = u32::from(is_router) << 31 | u32::from(!unsolicited) << 30 | 1 << 29;
    put32(out, at, 136 << 24);
    put32(out, at + 4, flags);
    put(out, at + 8, target);
    link_layer_option(out, at + 24, 2, mac);
    seal(out, at + length)
}

/// A prefix that a router announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix; bits behind `length` are zero.
    pub address: [u8; 16],
    /// Number of bits.
    pub length: u8,
    /// Hosts reach it directly on the link.
    pub on_link: bool,
    /// Hosts make addresses of it themselves.
    pub autonomous: bool,
    /// How long it is valid.
    pub valid_s: u32,
    /// How long addresses of it are preferred.
    pub preferred_s: u32,
}

/// What a router advertisement says (RFC 4861 §4.2, RFC 8106).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterAdvertisement<'a> {
    /// Ethernet address of the router.
    pub mac: Mac,
    /// Link-local address of the router.
    pub source: [u8; 16],
    /// Hop limit that hosts should use; 0 says nothing.
    pub hop_limit: u8,
    /// M: addresses come by DHCPv6.
    pub managed: bool,
    /// O: other configuration comes by DHCPv6.
    pub other: bool,
    /// How long the router is a default router; 0: it is none.
    pub lifetime_s: u16,
    /// MTU of the link.
    pub mtu: Option<u32>,
    /// Prefix of the link.
    pub prefix: Option<Prefix>,
    /// Addresses of DNS servers, at most [`MAX_DNS_SERVERS`].
    pub dns_servers: &'a [[u8; 16]],
    /// How long the DNS servers may be used.
    pub dns_lifetime_s: u32,
}

/// Writes a router advertisement to `destination` at `destination_mac`, or to all nodes.
///
/// # Errors
/// `PacketTooLarge` with too many DNS servers, `BufferTooSmall`.
pub fn router_advertisement(
    out: &mut [u8],
    vlan_tci: Option<u16>,
    destination: Option<(IpAddress, Mac)>,
    advertisement: &RouterAdvertisement<'_>,
) -> Result<usize, PacketError> {
    let servers = advertisement.dns_servers;
    if servers.len() > MAX_DNS_SERVERS {
        return Err(PacketError::PacketTooLarge);
    }
    let (destination, destination_mac) = destination.unwrap_or((ALL_NODES, ALL_NODES_MAC));
    let mtu_bytes = if advertisement.mtu.is_some() { 8 } else { 0 };
    let prefix_bytes = if advertisement.prefix.is_some() { 32 } else { 0 };
    let dns_bytes = if servers.is_empty() { 0 } else { 8 + 16 * servers.len() };
    let length = 16 + 8 + mtu_bytes + prefix_bytes + dns_bytes;
    let link = Link { source: advertisement.mac, destination: destination_mac, vlan_tci };
    let ip = IpHeader {
        source: IpAddress::v6(advertisement.source),
        destination,
        protocol: PROTOCOL_ICMPV6,
        ttl: NEIGHBOR_HOP_LIMIT,
    };
    let start = ip.write(out, &link, length)?;
    out[start..start + length].fill(0);
    out[start] = 134;
    out[start + 4] = advertisement.hop_limit;
    out[start + 5] = u8::from(advertisement.managed) << 7 | u8::from(advertisement.other) << 6;
    put16(out, start + 6, advertisement.lifetime_s);
    let mut at = start + 16;
    link_layer_option(out, at, 1, advertisement.mac);
    at += 8;
    if let Some(mtu) = advertisement.mtu {
        put(out, at, &[5, 1]);
        put32(out, at + 4, mtu);
        at += 8;
    }
    if let Some(prefix) = &advertisement.prefix {
        prefix_option(out, at, prefix);
        at += 32;
    }
    if !servers.is_empty() {
        put(out, at, &[25, 1 + 2 * servers.len() as u8]);
        put32(out, at + 4, advertisement.dns_lifetime_s);
        for (position, server) in servers.iter().enumerate() {
            put(out, at + 8 + 16 * position, server);
        }
    }
    seal(out, start + length)
}

fn link_layer_option(out: &mut [u8], at: usize, kind: u8, mac: Mac) {
    put(out, at, &[kind, 1]);
    put(out, at + 2, &mac);
}

fn prefix_option(out: &mut [u8], at: usize, prefix: &Prefix) {
    let flags = u8::from(prefix.on_link) << 7 | u8::from(prefix.autonomous) << 6;
    put(out, at, &[3, 4, prefix.length, flags]);
    put32(out, at + 4, prefix.valid_s);
    put32(out, at + 8, prefix.preferred_s);
    put(out, at + 16, &prefix.address);
}
