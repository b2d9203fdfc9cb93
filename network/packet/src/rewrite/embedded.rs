//! The packet inside an ICMP error: found, named by its flow key, and translated.
//!
//! An error travels against the flow that it is about, so its embedded packet has the addresses of that flow's own
//! direction. It may be cut off anywhere behind the first 8 bytes of its transport header (RFC 792).

use super::{Rewrite, address_place};
use crate::PacketError;
use crate::address::IpAddress;
use crate::bytes::{get_array, get16, read, read16, write, write16};
use crate::checksum::{ICMP_CHECKSUM_OFFSET, TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET, update_bytes};
use crate::headers::{
    IPV4_BYTES, IPV6_BYTES, Network, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, Parsed,
};
use crate::key::{FLAG_FRAGMENT, FlowKey, NO_VLAN};

/// Bytes of the transport header that every ICMP error carries.
const MIN_TRANSPORT_BYTES: usize = 8;
/// Number and length of the IPv6 fragment header.
const FRAGMENT_HEADER: u8 = 44;
const FRAGMENT_HEADER_BYTES: usize = 8;

/// Where the embedded packet is and which flow it belongs to. Offsets are from the start of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embedded {
    /// Start of the embedded IP header.
    pub l3_offset: usize,
    /// Start of the embedded transport header.
    pub l4_offset: usize,
    /// End of what is there of it.
    pub end: usize,
    /// IP protocol.
    pub protocol: u8,
    /// A later fragment: no transport header.
    pub is_later_fragment: bool,
    /// Its source: the sender that the error goes to.
    pub source: IpAddress,
    /// Its destination.
    pub destination: IpAddress,
    /// TCP or UDP source port, or ICMP echo identifier, else 0.
    pub source_port: u16,
    /// TCP or UDP destination port, or ICMP type and code, else 0.
    pub destination_port: u16,
}

impl Embedded {
    /// The key of the flow that the error is about, as [`FlowKey::new`] gives it for the embedded packet itself.
    pub fn key(&self, zone: u32, parsed: &Parsed) -> FlowKey {
        let (source_port, destination_port, flags) = if self.is_later_fragment {
            (0, 0, FLAG_FRAGMENT)
        } else {
            (self.source_port, self.destination_port, 0)
        };
        FlowKey {
            source: self.source,
            destination: self.destination,
            zone,
            source_port,
            destination_port,
            vlan: parsed.vlan_id().unwrap_or(NO_VLAN),
            protocol: self.protocol,
            flags,
        }
    }

    fn has_ports(&self) -> bool {
        matches!(self.protocol, PROTOCOL_TCP | PROTOCOL_UDP) && !self.is_later_fragment
    }

    /// Whether it is an ICMP echo, whose identifier is in `source_port`.
    fn is_echo(&self) -> bool {
        let kind = self.destination_port >> 8;
        let echo = match (self.protocol, self.source.is_v4()) {
            (PROTOCOL_ICMP, true) => matches!(kind, 0 | 8),
            (PROTOCOL_ICMPV6, false) => matches!(kind, 128 | 129),
            _ => false,
        };
        echo && !self.is_later_fragment
    }

    /// Place of its transport checksum, if that is there.
    fn checksum_field(&self) -> Option<usize> {
        if self.is_later_fragment {
            return None;
        }
        let inside = match self.protocol {
            PROTOCOL_TCP => TCP_CHECKSUM_OFFSET,
            PROTOCOL_UDP => UDP_CHECKSUM_OFFSET,
            PROTOCOL_ICMP if self.source.is_v4() => ICMP_CHECKSUM_OFFSET,
            PROTOCOL_ICMPV6 if !self.source.is_v4() => ICMP_CHECKSUM_OFFSET,
            _ => return None,
        };
        Some(self.l4_offset + inside).filter(|field| field + 2 <= self.end)
    }
}

/// Reads the packet inside the ICMP error `frame`. IPv6 extension headers in it are not followed but for that of a
/// fragment: such a packet has addresses, but no ports.
///
/// # Errors
/// `IcmpEmbedded` when it is no error, or the packet in it is missing or malformed; `FrameMismatch`.
pub fn parse_embedded(frame: &[u8], parsed: &Parsed) -> Result<Embedded, PacketError> {
    parsed.check(frame)?;
    if !parsed.is_icmp_error() || parsed.fragment != crate::headers::Fragment::Whole {
        return Err(PacketError::IcmpEmbedded);
    }
    let start = parsed.payload_offset;
    let packet = frame.get(start..parsed.end).ok_or(PacketError::FrameMismatch)?;
    let mut embedded = if parsed.network == Network::Ipv4 {
        embedded_v4(packet, start)?
    } else {
        embedded_v6(packet, start)?
    };
    embedded.end = parsed.end;
    if embedded.is_later_fragment {
        return Ok(embedded);
    }
    let has_fields =
        matches!(embedded.protocol, PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_ICMP | PROTOCOL_ICMPV6);
    if has_fields && embedded.l4_offset + MIN_TRANSPORT_BYTES > embedded.end {
        return Err(PacketError::IcmpEmbedded);
    }
    if embedded.has_ports() {
        embedded.source_port = read16(frame, embedded.l4_offset)?;
        embedded.destination_port = read16(frame, embedded.l4_offset + 2)?;
    } else if embedded.checksum_field().is_some() {
        embedded.destination_port = read16(frame, embedded.l4_offset)?;
        if embedded.is_echo() {
            embedded.source_port = read16(frame, embedded.l4_offset + 4)?;
        }
    }
    Ok(embedded)
}

fn embedded_v4(packet: &[u8], start: usize) -> Result<Embedded, PacketError> {
    if packet.len() < IPV4_BYTES || packet[0] >> 4 != 4 {
        return Err(PacketError::IcmpEmbedded);
    }
    let header_length = usize::from(packet[0] & 0x0f) * 4;
    if header_length < IPV4_BYTES || header_length > packet.len() {
        return Err(PacketError::IcmpEmbedded);
    }
    Ok(Embedded {
        l3_offset: start,
        l4_offset: start + header_length,
        end: start + packet.len(),
        protocol: packet[9],
        is_later_fragment: get16(packet, 6) & 0x1fff != 0,
        source: IpAddress::v4(get_array(packet, 12)),
        destination: IpAddress::v4(get_array(packet, 16)),
        source_port: 0,
        destination_port: 0,
    })
}

fn embedded_v6(packet: &[u8], start: usize) -> Result<Embedded, PacketError> {
    if packet.len() < IPV6_BYTES || packet[0] >> 4 != 6 {
        return Err(PacketError::IcmpEmbedded);
    }
    let (source, destination): ([u8; 16], [u8; 16]) = (get_array(packet, 8), get_array(packet, 24));
    let (source, destination) = (IpAddress::v6(source), IpAddress::v6(destination));
    if source.is_v4() || destination.is_v4() {
        return Err(PacketError::Ipv6MappedAddress);
    }
    let (mut protocol, mut header_length, mut is_later_fragment) = (packet[6], IPV6_BYTES, false);
    if protocol == FRAGMENT_HEADER {
        if packet.len() < IPV6_BYTES + FRAGMENT_HEADER_BYTES {
            return Err(PacketError::IcmpEmbedded);
        }
        protocol = packet[IPV6_BYTES];
        header_length += FRAGMENT_HEADER_BYTES;
        is_later_fragment = get16(packet, IPV6_BYTES + 2) & 0xfff8 != 0;
    }
    Ok(Embedded {
        l3_offset: start,
        l4_offset: start + header_length,
        end: start + packet.len(),
        protocol,
        is_later_fragment,
        source,
        destination,
        source_port: 0,
        destination_port: 0,
    })
}

/// Translates the embedded packet and keeps the ICMP checksum right. The outer addresses are
/// [`super::rewrite`]'s, called apart and without ports.
///
/// # Errors
/// `NotTranslatable`, `FrameMismatch`. Nothing is changed then.
pub fn rewrite_embedded(
    frame: &mut [u8],
    parsed: &Parsed,
    embedded: &mut Embedded,
    change: &Rewrite,
) -> Result<(), PacketError> {
    parsed.check(frame)?;
    if embedded.end > parsed.end || embedded.l3_offset < parsed.payload_offset {
        return Err(PacketError::FrameMismatch);
    }
    let is_v4 = embedded.source.is_v4();
    change.check_family(is_v4)?;
    let has_port = embedded.has_ports() || embedded.is_echo() || embedded.is_later_fragment;
    if change.wants_port() && !has_port {
        return Err(PacketError::NotTranslatable);
    }
    let outer = parsed.l4_offset + ICMP_CHECKSUM_OFFSET;
    if let Some(endpoint) = change.source {
        set_address(frame, outer, embedded, 0, endpoint.address)?;
        embedded.source = endpoint.address;
    }
    if let Some(endpoint) = change.destination {
        set_address(frame, outer, embedded, 1, endpoint.address)?;
        embedded.destination = endpoint.address;
    }
    set_ports(frame, outer, embedded, change)
}

fn set_address(
    frame: &mut [u8],
    outer: usize,
    embedded: &Embedded,
    which: usize,
    address: IpAddress,
) -> Result<(), PacketError> {
    let is_v4 = embedded.source.is_v4();
    let (first, length) = address_place(is_v4);
    let at = embedded.l3_offset + first + which * length;
    let mut old = [0; 16];
    let there = frame.get(at..at + length).ok_or(PacketError::FrameMismatch)?;
    old[..length].copy_from_slice(there);
    let (old, new) = (&old[..length], address.wire());
    if is_v4 {
        update_field(frame, outer, embedded.l3_offset + 10, old, new, false)?;
    }
    let covers_addresses = !(embedded.protocol == PROTOCOL_ICMP && is_v4);
    if let Some(field) = embedded.checksum_field().filter(|_| covers_addresses) {
        update_field(frame, outer, field, old, new, embedded.protocol == PROTOCOL_UDP)?;
    }
    replace(frame, outer, at, new)
}

fn set_ports(
    frame: &mut [u8],
    outer: usize,
    embedded: &mut Embedded,
    change: &Rewrite,
) -> Result<(), PacketError> {
    let port = |endpoint: Option<super::Endpoint>| endpoint.and_then(|endpoint| endpoint.port);
    if embedded.has_ports() {
        if let Some(value) = port(change.source) {
            set_word(frame, outer, embedded, embedded.l4_offset, value)?;
            embedded.source_port = value;
        }
        if let Some(value) = port(change.destination) {
            set_word(frame, outer, embedded, embedded.l4_offset + 2, value)?;
            embedded.destination_port = value;
        }
    } else if let Some(value) = change.icmp_id().filter(|_| embedded.is_echo()) {
        set_word(frame, outer, embedded, embedded.l4_offset + 4, value)?;
        embedded.source_port = value;
    }
    Ok(())
}

/// Writes a word of the embedded transport header.
fn set_word(
    frame: &mut [u8],
    outer: usize,
    embedded: &Embedded,
    at: usize,
    value: u16,
) -> Result<(), PacketError> {
    let old: [u8; 2] = read(frame, at)?;
    let new = value.to_be_bytes();
    if let Some(field) = embedded.checksum_field() {
        update_field(frame, outer, field, &old, &new, embedded.protocol == PROTOCOL_UDP)?;
    }
    replace(frame, outer, at, &new)
}

/// Updates an embedded checksum, whose own change the outer checksum then covers too.
fn update_field(
    frame: &mut [u8],
    outer: usize,
    field: usize,
    old: &[u8],
    new: &[u8],
    is_udp: bool,
) -> Result<(), PacketError> {
    let checksum = read16(frame, field)?;
    if is_udp && checksum == 0 {
        return Ok(());
    }
    let mut value = update_bytes(checksum, old, new);
    if is_udp && value == 0 {
        value = 0xffff;
    }
    replace(frame, outer, field, &value.to_be_bytes())
}

/// Writes bytes at an even place of the message and updates the outer ICMP checksum.
fn replace(frame: &mut [u8], outer: usize, at: usize, new: &[u8]) -> Result<(), PacketError> {
    let old = frame.get(at..at + new.len()).ok_or(PacketError::FrameMismatch)?;
    let value = update_bytes(read16(frame, outer)?, old, new);
    write16(frame, outer, value)?;
    write(frame, at, new)
}
