//! Packets that the network itself sends: ARP and neighbour answers, router advertisements, ICMP, TCP resets, UDP.
//!
//! Every function writes one whole frame into the caller's buffer, checksums filled, and returns its length. What may not be
//! answered (RFC 1122 §3.2.2, RFC 4443 §2.4) is refused with [`PacketError::NotAnswerable`].

mod icmp;
mod neighbor;
mod tcp;

pub use icmp::{IcmpError, echo_reply, icmp_error};
pub use neighbor::{
    MAX_DNS_SERVERS, Prefix, RouterAdvertisement, arp_packet, arp_reply, arp_request, neighbor_advertisement,
    router_advertisement,
};
pub use tcp::tcp_reset;

use crate::PacketError;
use crate::address::{IpAddress, Mac};
use crate::bytes::{put, put16};
use crate::checksum;
use crate::headers::{
    ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IPV4_BYTES, IPV6_BYTES, PROTOCOL_UDP,
    Parsed, UDP_BYTES, VLAN_BYTES, parse,
};

/// TTL and hop limit of what we send, where the protocol does not prescribe one.
pub const DEFAULT_TTL: u8 = 64;

/// The Ethernet part of a frame to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Where the frame comes from.
    pub source: Mac,
    /// Where the frame goes.
    pub destination: Mac,
    /// Tag control information, if tagged.
    pub vlan_tci: Option<u16>,
}

impl Link {
    /// Back to the sender of `parsed`, from `source`, with the same tag.
    pub fn answer(parsed: &Parsed, source: Mac) -> Self {
        Self { source, destination: parsed.source_mac, vlan_tci: parsed.vlan_tci }
    }

    fn header_bytes(&self) -> usize {
        ETHERNET_BYTES + if self.vlan_tci.is_some() { VLAN_BYTES } else { 0 }
    }

    /// Writes the Ethernet header for a frame of `payload_bytes` and returns its length.
    fn write(&self, out: &mut [u8], ethertype: u16, payload_bytes: usize) -> Result<usize, PacketError> {
        let length = self.header_bytes();
        if out.len() < length + payload_bytes {
            return Err(PacketError::BufferTooSmall);
        }
        put(out, 0, &self.destination);
        put(out, 6, &self.source);
        if let Some(tci) = self.vlan_tci {
            put16(out, 12, ETHERTYPE_VLAN);
            put16(out, 14, tci);
        }
        put16(out, length - 2, ethertype);
        Ok(length)
    }
}

/// The IP part of a packet to send. Both addresses are of one family.
#[derive(Debug, Clone, Copy)]
struct IpHeader {
    source: IpAddress,
    destination: IpAddress,
    protocol: u8,
    ttl: u8,
}

impl IpHeader {
    /// Writes Ethernet and IP header for `payload_bytes` more, and returns where those start.
    fn write(&self, out: &mut [u8], link: &Link, payload_bytes: usize) -> Result<usize, PacketError> {
        if self.source.is_v4() != self.destination.is_v4() {
            return Err(PacketError::NotAnswerable);
        }
        let is_v4 = self.source.is_v4();
        let (ethertype, header_bytes) =
            if is_v4 { (ETHERTYPE_IPV4, IPV4_BYTES) } else { (ETHERTYPE_IPV6, IPV6_BYTES) };
        if header_bytes + payload_bytes > usize::from(u16::MAX) {
            return Err(PacketError::PacketTooLarge);
        }
        let at = link.write(out, ethertype, header_bytes + payload_bytes)?;
        let header = &mut out[at..at + header_bytes];
        header.fill(0);
        if is_v4 {
            header[0] = 0x45;
            put16(header, 2, (header_bytes + payload_bytes) as u16);
            // Atomic: "don't fragment" set, so that the identification has no meaning (RFC 6864).
            put16(header, 6, 0x4000);
            header[8] = self.ttl;
            header[9] = self.protocol;
            put(header, 12, self.source.wire());
            put(header, 16, self.destination.wire());
            let value = checksum::checksum(header);
            put16(header, 10, value);
        } else {
            header[0] = 0x60;
            put16(header, 4, payload_bytes as u16);
            header[6] = self.protocol;
            header[7] = self.ttl;
            put(header, 8, self.source.wire());
            put(header, 24, self.destination.wire());
        }
        Ok(at + header_bytes)
    }
}

/// Fills the transport checksum of the frame in the first `length` bytes, and returns `length`.
fn seal(out: &mut [u8], length: usize) -> Result<usize, PacketError> {
    let frame = &mut out[..length];
    let parsed = parse(frame)?;
    checksum::fill_transport(frame, &parsed)?;
    Ok(length)
}

/// One UDP datagram in IP in Ethernet: DHCP and DNS answers, outer headers of tunnels. Addresses and ports are
/// `(address, port)`; both addresses of one family.
///
/// # Errors
/// `BufferTooSmall`, `PacketTooLarge`, `NotAnswerable` (families differ), `SourceMulticast`.
pub fn udp_datagram(
    out: &mut [u8],
    link: &Link,
    source: (IpAddress, u16),
    destination: (IpAddress, u16),
    payload: &[u8],
) -> Result<usize, PacketError> {
    let length = UDP_BYTES + payload.len();
    let ip =
        IpHeader { source: source.0, destination: destination.0, protocol: PROTOCOL_UDP, ttl: DEFAULT_TTL };
    let at = ip.write(out, link, length)?;
    put16(out, at, source.1);
    put16(out, at + 2, destination.1);
    put16(out, at + 4, length as u16);
    put16(out, at + 6, 0);
    put(out, at + UDP_BYTES, payload);
    seal(out, at + length)
}

/// Whether an answer to a stranger's packet is allowed at all: unicast on the link and in IP, a known source, whole or the
/// first fragment.
fn check_answerable(parsed: &Parsed) -> Result<(), PacketError> {
    let link_unicast = parsed.destination_mac[0] & 1 == 0 && parsed.source_mac[0] & 1 == 0;
    let destination_unicast = !parsed.destination.is_multicast() && !parsed.destination.is_broadcast();
    let first = parsed.fragment != crate::headers::Fragment::Later;
    let fine = parsed.is_ip()
        && link_unicast
        && destination_unicast
        && !parsed.source.is_unspecified()
        && !parsed.source.is_multicast()
        && first;
    if fine { Ok(()) } else { Err(PacketError::NotAnswerable) }
}

#[cfg(test)]
mod tests;
