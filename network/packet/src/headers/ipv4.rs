//! The IPv4 header and its options.

use super::{IPV4_BYTES, Network, Parsed, parse_payload, set_fragment};
use crate::PacketError;
use crate::address::IpAddress;
use crate::bytes::{get_array, get16};

#[inline]
pub(super) fn parse(frame: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    let start = parsed.l3_offset;
    let packet = &frame[start..];
    if packet.len() < IPV4_BYTES {
        return Err(PacketError::Ipv4Truncated);
    }
    if packet[0] >> 4 != 4 {
        return Err(PacketError::Ipv4Version);
    }
    let header_length = usize::from(packet[0] & 0x0f) * 4;
    if header_length < IPV4_BYTES {
        return Err(PacketError::Ipv4HeaderLength);
    }
    if packet.len() < header_length {
        return Err(PacketError::Ipv4Truncated);
    }
    let total_length = usize::from(get16(packet, 2));
    if total_length < header_length {
        return Err(PacketError::Ipv4TotalLengthShort);
    }
    if total_length > packet.len() {
        return Err(PacketError::Ipv4TotalLengthLong);
    }
    if header_length > IPV4_BYTES {
        walk_options(&packet[IPV4_BYTES..header_length])?;
        parsed.has_options = true;
    }
    let fragmentation = get16(packet, 6);
    parsed.network = Network::Ipv4;
    parsed.tos = packet[1];
    parsed.ttl = packet[8];
    parsed.protocol = packet[9];
    parsed.dont_fragment = fragmentation & 0x4000 != 0;
    parsed.source = IpAddress::v4(get_array(packet, 12));
    parsed.destination = IpAddress::v4(get_array(packet, 16));
    parsed.l4_offset = start + header_length;
    parsed.end = start + total_length;
    let (offset, more) = ((fragmentation & 0x1fff) << 3, fragmentation & 0x2000 != 0);
    set_fragment(parsed, offset, more, u32::from(get16(packet, 4)))?;
    parse_payload(frame, parsed)
}

/// Checks that every option ends inside the header. At most 40 steps.
fn walk_options(options: &[u8]) -> Result<(), PacketError> {
    let mut at = 0;
    while at < options.len() {
        match options[at] {
            0 => return Ok(()),
            1 => at += 1,
            _ => {
                let length = options.get(at + 1).copied().map_or(0, usize::from);
                if length < 2 || at + length > options.len() {
                    return Err(PacketError::Ipv4Options);
                }
                at += length;
            }
        }
    }
    Ok(())
}
