//! Ethernet, IP, UDP and TCP headers of punted frames: just what DHCP and DNS need.
//!
//! The host's floor lies below the network's, so this crate has its own few lines for it.
//!
//! Invariants: nothing outside the lengths that the headers give is read; fragments, VLAN tags and
//! IPv6 extension headers are refused; a checksum must verify, be absent (UDP over IPv4 only), or be the
//! pseudo-header sum that an endpoint leaves to its device to finish.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_model::MacAddr;

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
const PROTOCOL_UDP: u8 = 17;
const PROTOCOL_TCP: u8 = 6;
/// The least of a TCP header, bytes.
const TCP_BYTES: usize = 20;
const ETHERTYPE_V4: u16 = 0x0800;
const ETHERTYPE_V6: u16 = 0x86dd;
/// TTL or hop limit of what is built here.
const HOPS: u8 = 64;

/// A UDP datagram in its Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFrame<'a> {
    /// Ethernet source.
    pub source_mac: MacAddr,
    /// Ethernet destination.
    pub destination_mac: MacAddr,
    /// Sender.
    pub source: IpAddr,
    /// Receiver, of the same family.
    pub destination: IpAddr,
    /// Sender's port.
    pub source_port: u16,
    /// Receiver's port.
    pub destination_port: u16,
    /// What it carries.
    pub payload: &'a [u8],
}

/// A TCP segment in its Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpFrame<'a> {
    /// Ethernet source.
    pub source_mac: MacAddr,
    /// Sender.
    pub source: IpAddr,
    /// Receiver, of the same family.
    pub destination: IpAddr,
    /// Receiver's port.
    pub destination_port: u16,
    /// The whole IP packet.
    pub packet: &'a [u8],
}

/// Why a frame is nothing that we take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A header or length passes the end of the frame.
    #[error("the frame is cut off")]
    Short,
    /// Neither IPv4 nor IPv6, or something else right behind it.
    #[error("the frame carries another protocol")]
    OtherProtocol,
    /// A fragment.
    #[error("the packet is a fragment")]
    Fragment,
    /// A header contradicts itself or its checksum.
    #[error("a header or checksum is wrong")]
    Wrong,
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, FrameError> {
    match bytes.get(at..at + 2) {
        Some(&[a, b]) => Ok(u16::from_be_bytes([a, b])),
        _ => Err(FrameError::Short),
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], FrameError> {
    bytes.get(at..at + N).and_then(|slice| slice.try_into().ok()).ok_or(FrameError::Short)
}

/// Adds bytes to an Internet checksum's sum, as big-endian words.
fn add(sum: u32, bytes: &[u8]) -> u32 {
    let mut chunks = bytes.chunks_exact(2);
    let sum = chunks.by_ref().fold(sum, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    sum + chunks.remainder().first().map_or(0, |&odd| u32::from(odd) << 8)
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, length: u16) -> u32 {
    let sum = u32::from(length) + u32::from(protocol);
    let add_address = |sum, address| match address {
        IpAddr::V4(v4) => add(sum, &Ipv4Addr::octets(&v4)),
        IpAddr::V6(v6) => add(sum, &Ipv6Addr::octets(&v6)),
    };
    add_address(add_address(sum, source), destination)
}

/// Reads a frame.
///
/// # Errors
/// [`FrameError`].
pub fn parse_udp(frame: &[u8]) -> Result<UdpFrame<'_>, FrameError> {
    let destination_mac = MacAddr(array(frame, 0)?);
    let source_mac = MacAddr(array(frame, 6)?);
    let Packet { source, destination, payload: udp, .. } = parse_packet(frame, PROTOCOL_UDP)?;
    let length = be16(udp, 4)?;
    let udp = udp.get(..usize::from(length)).ok_or(FrameError::Short)?;
    let payload = udp.get(UDP_BYTES..).ok_or(FrameError::Wrong)?;
    let checksum = be16(udp, 6)?;
    let pseudo = pseudo_sum(source, destination, PROTOCOL_UDP, length);
    let absent = checksum == 0 && source.is_ipv4();
    if !absent && checksum != fold(pseudo) && fold(add(pseudo, udp)) != 0xffff {
        return Err(FrameError::Wrong);
    }
    Ok(UdpFrame {
        source_mac,
        destination_mac,
        source,
        destination,
        source_port: be16(udp, 0)?,
        destination_port: be16(udp, 2)?,
        payload,
    })
}

/// Reads the headers of a TCP segment; what is behind its ports and checksum is left to a TCP.
///
/// # Errors
/// [`FrameError`].
pub fn parse_tcp(frame: &[u8]) -> Result<TcpFrame<'_>, FrameError> {
    let source_mac = MacAddr(array(frame, 6)?);
    let Packet { source, destination, whole, payload: tcp } = parse_packet(frame, PROTOCOL_TCP)?;
    if tcp.len() < TCP_BYTES {
        return Err(FrameError::Short);
    }
    let length = u16::try_from(tcp.len()).map_err(|_| FrameError::Wrong)?;
    let pseudo = pseudo_sum(source, destination, PROTOCOL_TCP, length);
    if be16(tcp, 16)? != fold(pseudo) && fold(add(pseudo, tcp)) != 0xffff {
        return Err(FrameError::Wrong);
    }
    Ok(TcpFrame { source_mac, source, destination, destination_port: be16(tcp, 2)?, packet: whole })
}

/// An IP packet with the payload wanted.
struct Packet<'a> {
    source: IpAddr,
    destination: IpAddr,
    whole: &'a [u8],
    payload: &'a [u8],
}

fn parse_packet(frame: &[u8], protocol: u8) -> Result<Packet<'_>, FrameError> {
    let packet = frame.get(ETHERNET_BYTES..).ok_or(FrameError::Short)?;
    match be16(frame, 12)? {
        ETHERTYPE_V4 => parse_v4(packet, protocol),
        ETHERTYPE_V6 => parse_v6(packet, protocol),
        _ => Err(FrameError::OtherProtocol),
    }
}

fn parse_v4(packet: &[u8], protocol: u8) -> Result<Packet<'_>, FrameError> {
    let first = *packet.first().ok_or(FrameError::Short)?;
    let header_bytes = usize::from(first & 0x0f) * 4;
    let total = usize::from(be16(packet, 2)?);
    let packet = packet.get(..total).ok_or(FrameError::Short)?;
    if first >> 4 != 4 || header_bytes < 20 || total < header_bytes {
        return Err(FrameError::Wrong);
    }
    if fold(add(0, &packet[..header_bytes])) != 0xffff {
        return Err(FrameError::Wrong);
    }
    if be16(packet, 6)? & 0x3fff != 0 {
        return Err(FrameError::Fragment);
    }
    if packet[9] != protocol {
        return Err(FrameError::OtherProtocol);
    }
    let source = Ipv4Addr::from(array::<4>(packet, 12)?);
    let destination = Ipv4Addr::from(array::<4>(packet, 16)?);
    let payload = &packet[header_bytes..];
    Ok(Packet { source: source.into(), destination: destination.into(), whole: packet, payload })
}

fn parse_v6(packet: &[u8], protocol: u8) -> Result<Packet<'_>, FrameError> {
    let first = *packet.first().ok_or(FrameError::Short)?;
    if first >> 4 != 6 {
        return Err(FrameError::Wrong);
    }
    let length = usize::from(be16(packet, 4)?);
    let whole = packet.get(..40 + length).ok_or(FrameError::Short)?;
    match packet[6] {
        next if next == protocol => {}
        44 => return Err(FrameError::Fragment),
        _ => return Err(FrameError::OtherProtocol),
    }
    let source = Ipv6Addr::from(array::<16>(packet, 8)?);
    let destination = Ipv6Addr::from(array::<16>(packet, 24)?);
    let payload = &whole[40..];
    Ok(Packet { source: source.into(), destination: destination.into(), whole, payload })
}

impl UdpFrame<'_> {
    /// Writes the frame, checksums included. `None` when the families differ or the payload passes
    /// what an IP packet holds.
    pub fn build(&self) -> Option<Vec<u8>> {
        let udp_bytes = u16::try_from(UDP_BYTES + self.payload.len()).ok()?;
        let mut frame = Vec::with_capacity(ETHERNET_BYTES + 40 + usize::from(udp_bytes));
        frame.extend_from_slice(&self.destination_mac.0);
        frame.extend_from_slice(&self.source_mac.0);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend_from_slice(&ETHERTYPE_V4.to_be_bytes());
                push_v4(&mut frame, source, destination, udp_bytes.checked_add(20)?);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend_from_slice(&ETHERTYPE_V6.to_be_bytes());
                frame.extend_from_slice(&[0x60, 0, 0, 0]);
                frame.extend_from_slice(&udp_bytes.to_be_bytes());
                frame.extend_from_slice(&[PROTOCOL_UDP, HOPS]);
                frame.extend_from_slice(&source.octets());
                frame.extend_from_slice(&destination.octets());
            }
            _ => return None,
        }
        let at = frame.len();
        frame.extend_from_slice(&self.source_port.to_be_bytes());
        frame.extend_from_slice(&self.destination_port.to_be_bytes());
        frame.extend_from_slice(&udp_bytes.to_be_bytes());
        frame.extend_from_slice(&[0, 0]);
        frame.extend_from_slice(self.payload);
        let sum = add(pseudo_sum(self.source, self.destination, PROTOCOL_UDP, udp_bytes), &frame[at..]);
        let checksum = match !fold(sum) {
            0 => 0xffff,
            checksum => checksum,
        };
        frame[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
        Some(frame)
    }
}

fn push_v4(frame: &mut Vec<u8>, source: Ipv4Addr, destination: Ipv4Addr, total: u16) {
    let at = frame.len();
    // Don't Fragment is clear and the identification zero: the packet goes one hop, over a device
    // whose MTU is checked by the caller.
    frame.extend_from_slice(&[0x45, 0]);
    frame.extend_from_slice(&total.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0, HOPS, PROTOCOL_UDP, 0, 0]);
    frame.extend_from_slice(&source.octets());
    frame.extend_from_slice(&destination.octets());
    let checksum = !fold(add(0, &frame[at..]));
    frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests;
