//! TCP, UDP and ICMP headers.

use super::{
    Fragment, ICMP_BYTES, Network, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, Parsed,
    TCP_BYTES, Transport, UDP_BYTES,
};
use crate::PacketError;
use crate::bytes::get16;

#[inline]
pub(super) fn parse(frame: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    let segment = &frame[parsed.l4_offset..parsed.end];
    match (parsed.protocol, parsed.network) {
        (PROTOCOL_TCP, _) => parse_tcp(segment, parsed),
        (PROTOCOL_UDP, _) => parse_udp(segment, parsed),
        (PROTOCOL_ICMP, Network::Ipv4) => parse_icmp(segment, parsed, Transport::Icmpv4),
        (PROTOCOL_ICMPV6, Network::Ipv6) => parse_icmp(segment, parsed, Transport::Icmpv6),
        _ => Ok(()),
    }
}

#[inline]
fn parse_tcp(segment: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    if segment.len() < TCP_BYTES {
        return Err(PacketError::TcpTruncated);
    }
    let header_length = usize::from(segment[12] >> 4) * 4;
    if header_length < TCP_BYTES {
        return Err(PacketError::TcpDataOffset);
    }
    if header_length > segment.len() {
        return Err(PacketError::TcpTruncated);
    }
    parsed.transport = Transport::Tcp;
    parsed.source_port = get16(segment, 0);
    parsed.destination_port = get16(segment, 2);
    parsed.tcp_flags = segment[13];
    parsed.payload_offset = parsed.l4_offset + header_length;
    Ok(())
}

#[inline]
fn parse_udp(segment: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    if segment.len() < UDP_BYTES {
        return Err(PacketError::UdpTruncated);
    }
    let length = usize::from(get16(segment, 4));
    if length < UDP_BYTES {
        return Err(PacketError::UdpLengthShort);
    }
    // The length of a first fragment counts the pieces that follow it.
    if length > segment.len() && parsed.fragment == Fragment::Whole {
        return Err(PacketError::UdpLengthLong);
    }
    parsed.transport = Transport::Udp;
    parsed.source_port = get16(segment, 0);
    parsed.destination_port = get16(segment, 2);
    parsed.payload_offset = parsed.l4_offset + UDP_BYTES;
    parsed.payload_end = parsed.l4_offset + length.min(segment.len());
    Ok(())
}

#[inline]
fn parse_icmp(segment: &[u8], parsed: &mut Parsed, transport: Transport) -> Result<(), PacketError> {
    if segment.len() < ICMP_BYTES {
        return Err(PacketError::IcmpTruncated);
    }
    parsed.transport = transport;
    parsed.icmp_type = segment[0];
    parsed.icmp_code = segment[1];
    parsed.payload_offset = parsed.l4_offset + ICMP_BYTES;
    if parsed.is_icmp_echo() {
        parsed.icmp_id = get16(segment, 4);
    }
    Ok(())
}
