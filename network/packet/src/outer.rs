//! Outer headers of datagrams between switches, where no socket of the kernel makes or reads them: Ethernet, IPv4 or IPv6 without
//! options, and UDP.
//!
//! [`OuterHeader`] is what all datagrams to one receiver have in common, worked out once; what differs is filled in for each. It has
//! what the kernel's sockets have: Don't Fragment with the identification zero (RFC 6864 §4.1), the hop limit that it is told, no DSCP,
//! and the ECN bits. Over IPv4 a UDP checksum is left out unless it is asked for, which RFC 768 allows and RFC 7348 §5 and RFC 8926 §3.3
//! recommend. Over IPv6 there always is one: RFC 6935 allows tunnels to leave it out only where the receiver was set up for it (RFC 6936),
//! and neither Linux's sockets nor its VXLAN device take it as they come.
//!
//! [`open`] reads them as strictly as the kernel would: a datagram of lengths or checksums that do not fit is refused with its reason.
//! One departure: a UDP checksum that holds the sum of the pseudo header alone is taken. The kernel leaves it so when sender and receiver
//! are on one machine and nobody computes it on the way (a veth pair); a card completes it before a wire sees the frame. Of
//! frames that were damaged it lets one in 65,536 more pass, which is as many as the checksum itself does.

use crate::PacketError;
use crate::address::{IpAddress, Mac};
use crate::bytes::{get_array, get16, put, put16};
use crate::checksum::{Sum, pseudo_header};
use std::net::IpAddr;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const DONT_FRAGMENT: u16 = 0x4000;
/// The bits of a fragment's place, and the one that says that more follow.
const FRAGMENT: u16 = 0x3fff;

/// Longest outer headers.
pub const OUTER_BYTES_MAX: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;

/// Bytes of IP and UDP header: what a datagram has beside its payload of the MTU.
pub const fn overhead(is_v6: bool) -> usize {
    UDP_BYTES + if is_v6 { IPV6_BYTES } else { IPV4_BYTES }
}

/// What outer headers to one receiver have in common. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterHeader {
    bytes: [u8; OUTER_BYTES_MAX],
    is_v6: bool,
    /// Of the IPv4 header's words, without its length and its ECN bits.
    sum: u32,
    /// Of both addresses and the protocol.
    pseudo: Sum,
}

impl OuterHeader {
    /// Headers from `source` to `destination` and a UDP port, with Ethernet addresses (destination, source). `None` if the addresses
    /// are of two families.
    pub fn new(
        ethernet: (Mac, Mac),
        source: IpAddr,
        destination: IpAddr,
        hop_limit: u8,
        port: u16,
    ) -> Option<OuterHeader> {
        if source.is_ipv6() != destination.is_ipv6() {
            return None;
        }
        let is_v6 = source.is_ipv6();
        let (source, destination) = (IpAddress::from(source), IpAddress::from(destination));
        let mut bytes = [0; OUTER_BYTES_MAX];
        put(&mut bytes, 0, &ethernet.0);
        put(&mut bytes, 6, &ethernet.1);
        put16(&mut bytes, 12, if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 });
        let ip = &mut bytes[ETHERNET_BYTES..];
        if is_v6 {
            ip[0] = 0x60;
            (ip[6], ip[7]) = (UDP, hop_limit);
            put(ip, 8, source.wire());
            put(ip, 24, destination.wire());
        } else {
            ip[0] = 0x45;
            put16(ip, 6, DONT_FRAGMENT);
            (ip[8], ip[9]) = (hop_limit, UDP);
            put(ip, 12, source.wire());
            put(ip, 16, destination.wire());
        }
        let (ip_bytes, mut sum) = (if is_v6 { IPV6_BYTES } else { IPV4_BYTES }, 0);
        if !is_v6 {
            sum =
                ip[..IPV4_BYTES].as_chunks().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        }
        put16(ip, ip_bytes + 2, port);
        let pseudo = pseudo_header(&source, &destination, UDP, 0);
        Some(OuterHeader { bytes, is_v6, sum, pseudo })
    }

    /// Bytes of the headers.
    #[inline]
    pub fn length(&self) -> usize {
        ETHERNET_BYTES + overhead(self.is_v6)
    }

    /// The headers of a datagram whose payload is `payload`, one piece behind the other; the first [`OuterHeader::length`] bytes are
    /// meant. With a UDP checksum if that is asked for, and over IPv6 always. The payload must be shorter than the 65,535 bytes that a
    /// datagram may have by the headers' own.
    #[inline]
    pub fn of(
        &self,
        source_port: u16,
        ecn: u8,
        payload: &[&[u8]],
        with_checksum: bool,
    ) -> [u8; OUTER_BYTES_MAX] {
        let mut bytes = self.bytes;
        let payload_bytes: usize = payload.iter().map(|piece| piece.len()).sum();
        let udp_bytes = (UDP_BYTES + payload_bytes) as u16;
        let udp = if self.is_v6 {
            bytes[ETHERNET_BYTES + 1] = ecn << 4;
            put16(&mut bytes, ETHERNET_BYTES + 4, udp_bytes);
            ETHERNET_BYTES + IPV6_BYTES
        } else {
            let total = udp_bytes + IPV4_BYTES as u16;
            let sum = self.sum + u32::from(total) + u32::from(ecn);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            bytes[ETHERNET_BYTES + 1] = ecn;
            put16(&mut bytes, ETHERNET_BYTES + 2, total);
            put16(&mut bytes, ETHERNET_BYTES + 10, !(sum as u16));
            ETHERNET_BYTES + IPV4_BYTES
        };
        put16(&mut bytes, udp, source_port);
        put16(&mut bytes, udp + 4, udp_bytes);
        if with_checksum || self.is_v6 {
            let ports = self.pseudo.word(source_port).word(get16(&bytes, udp + 2));
            // Once in the pseudo header, and once in the header itself.
            let sum = sum_pieces(ports.word(udp_bytes).word(udp_bytes), payload);
            put16(&mut bytes, udp + 6, sum.finish_transport());
        }
        bytes
    }
}

/// Adds pieces of any length that lie one behind the other in the packet.
#[inline]
fn sum_pieces(start: Sum, pieces: &[&[u8]]) -> Sum {
    let (mut sum, mut is_odd) = (start, false);
    for piece in pieces {
        let of_piece = Sum::ZERO.bytes(piece);
        // At an odd place every byte is the other half of its word.
        sum = if is_odd { sum.word(of_piece.partial().swap_bytes()) } else { sum.join(of_piece) };
        is_odd ^= piece.len() % 2 != 0;
    }
    sum
}

/// A datagram out of its outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where it comes from.
    pub sender: IpAddr,
    /// The UDP port that it is for.
    pub port: u16,
    /// ECN bits of the outer header.
    pub ecn: u8,
    /// Where its payload begins in the frame.
    pub start: usize,
    /// And where it ends.
    pub end: usize,
}

/// Reads the outer headers of a frame for the address `own`.
///
/// # Errors
/// [`PacketError::OuterUnwanted`] for what is no whole UDP datagram to that address, or has options; `Ethernet…`, `Ipv4…`, `Ipv6…`,
/// `Udp…` and `SourceMulticast` as [`crate::parse`] has them.
#[inline]
pub fn open(frame: &[u8], own: &IpAddress) -> Result<Opened, PacketError> {
    if frame.len() < ETHERNET_BYTES {
        return Err(PacketError::EthernetTruncated);
    }
    let ip = &frame[ETHERNET_BYTES..];
    let (source, destination, ip_bytes, end, ecn) = match get16(frame, 12) {
        ETHERTYPE_IPV4 => open_v4(ip)?,
        ETHERTYPE_IPV6 => open_v6(ip)?,
        _ => return Err(PacketError::OuterUnwanted),
    };
    if destination != *own {
        return Err(PacketError::OuterUnwanted);
    }
    let is_loopback = matches!(source.as_v4(), Some([0 | 127, ..]));
    let is_nobody = source.is_unspecified() || is_loopback || source == *own;
    if source.is_multicast() || source.is_broadcast() || is_nobody {
        return Err(PacketError::SourceMulticast);
    }
    let udp = &ip[ip_bytes..end];
    if udp.len() < UDP_BYTES {
        return Err(PacketError::UdpTruncated);
    }
    let udp_bytes = usize::from(get16(udp, 4));
    if udp_bytes < UDP_BYTES {
        return Err(PacketError::UdpLengthShort);
    }
    if udp_bytes > udp.len() {
        return Err(PacketError::UdpLengthLong);
    }
    let is_v6 = ip_bytes == IPV6_BYTES;
    check_udp(&udp[..udp_bytes], &source, &destination, is_v6)?;
    let start = ETHERNET_BYTES + ip_bytes + UDP_BYTES;
    let end = start + udp_bytes - UDP_BYTES;
    Ok(Opened { sender: source.into(), port: get16(udp, 2), ecn, start, end })
}

/// Source, destination, bytes of the header, where the packet ends, and its ECN bits.
type Ip = (IpAddress, IpAddress, usize, usize, u8);

#[inline]
fn open_v4(ip: &[u8]) -> Result<Ip, PacketError> {
    let Some(header) = ip.first_chunk::<IPV4_BYTES>() else { return Err(PacketError::Ipv4Truncated) };
    if header[0] >> 4 != 4 {
        return Err(PacketError::Ipv4Version);
    }
    let is_fragment = get16(header, 6) & FRAGMENT != 0;
    if header[0] != 0x45 || is_fragment || header[9] != UDP {
        return Err(PacketError::OuterUnwanted);
    }
    let end = usize::from(get16(header, 2));
    if end < IPV4_BYTES {
        return Err(PacketError::Ipv4TotalLengthShort);
    }
    if end > ip.len() {
        return Err(PacketError::Ipv4TotalLengthLong);
    }
    if Sum::ZERO.bytes(header).finish() != 0 {
        return Err(PacketError::Ipv4Checksum);
    }
    let address = |at| IpAddress::v4(get_array(header, at));
    Ok((address(12), address(16), IPV4_BYTES, end, header[1] & 3))
}

#[inline]
fn open_v6(ip: &[u8]) -> Result<Ip, PacketError> {
    let Some(header) = ip.first_chunk::<IPV6_BYTES>() else { return Err(PacketError::Ipv6Truncated) };
    if header[0] >> 4 != 6 {
        return Err(PacketError::Ipv6Version);
    }
    if header[6] != UDP {
        return Err(PacketError::OuterUnwanted);
    }
    let end = IPV6_BYTES + usize::from(get16(header, 4));
    if end > ip.len() {
        return Err(PacketError::Ipv6PayloadLength);
    }
    let (source, destination) = (IpAddress::v6(get_array(header, 8)), IpAddress::v6(get_array(header, 24)));
    if source.is_v4() || destination.is_v4() {
        return Err(PacketError::Ipv6MappedAddress);
    }
    Ok((source, destination, IPV6_BYTES, end, header[1] >> 4 & 3))
}

/// `udp` is the datagram with its header.
#[inline]
fn check_udp(
    udp: &[u8],
    source: &IpAddress,
    destination: &IpAddress,
    is_v6: bool,
) -> Result<(), PacketError> {
    let checksum = get16(udp, 6);
    if checksum == 0 {
        return if is_v6 { Err(PacketError::UdpChecksum) } else { Ok(()) };
    }
    let pseudo = pseudo_header(source, destination, UDP, udp.len());
    // With the pseudo header's sum in its field nobody has computed it yet: see the module.
    let is_right = pseudo.bytes(udp).finish() == 0 || checksum == pseudo.partial();
    if is_right { Ok(()) } else { Err(PacketError::UdpChecksum) }
}

#[cfg(test)]
mod tests;
