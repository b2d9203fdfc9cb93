//! The IPv6 header and a bounded walk over its extension headers (RFC 8200 §4, RFC 7112, RFC 5095).

use super::{Fragment, IPV6_BYTES, Network, Parsed, parse_payload, set_fragment};
use crate::PacketError;
use crate::address::IpAddress;
use crate::bytes::{get_array, get16, get32};

/// Most extension headers that a packet may have; RFC 8200 foresees at most seven.
pub const MAX_EXTENSION_HEADERS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

#[inline]
pub(super) fn parse(frame: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    let start = parsed.l3_offset;
    let packet = &frame[start..];
    if packet.len() < IPV6_BYTES {
        return Err(PacketError::Ipv6Truncated);
    }
    if packet[0] >> 4 != 6 {
        return Err(PacketError::Ipv6Version);
    }
    let payload_length = usize::from(get16(packet, 4));
    if IPV6_BYTES + payload_length > packet.len() {
        return Err(PacketError::Ipv6PayloadLength);
    }
    parsed.network = Network::Ipv6;
    parsed.tos = (get16(packet, 0) >> 4) as u8;
    parsed.ttl = packet[7];
    parsed.dont_fragment = true;
    parsed.source = IpAddress::v6(get_array(packet, 8));
    parsed.destination = IpAddress::v6(get_array(packet, 24));
    if parsed.source.is_v4() || parsed.destination.is_v4() {
        return Err(PacketError::Ipv6MappedAddress);
    }
    parsed.protocol = packet[6];
    parsed.l4_offset = start + IPV6_BYTES;
    parsed.end = start + IPV6_BYTES + payload_length;
    if is_extension(parsed.protocol) {
        parsed.has_options = true;
        walk_extensions(frame, parsed)?;
    }
    parse_payload(frame, parsed)
}

#[inline]
fn is_extension(protocol: u8) -> bool {
    matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS)
}

/// Moves `l4_offset` and `protocol` behind the extension headers; stops at a later fragment.
fn walk_extensions(frame: &[u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    let mut fragment_seen = false;
    for position in 0..=MAX_EXTENSION_HEADERS {
        let kind = parsed.protocol;
        if !is_extension(kind) {
            return Ok(());
        }
        if position == MAX_EXTENSION_HEADERS {
            break;
        }
        let rest = &frame[parsed.l4_offset..parsed.end];
        let length = extension_length(kind, rest)?;
        parsed.protocol = rest[0];
        parsed.l4_offset += length;
        match kind {
            HOP_BY_HOP if position > 0 => return Err(PacketError::Ipv6ExtensionOrder),
            ROUTING if rest[2] == 0 => return Err(PacketError::Ipv6RoutingType),
            FRAGMENT if fragment_seen => return Err(PacketError::Ipv6ExtensionOrder),
            FRAGMENT => {
                fragment_seen = true;
                let field = get16(rest, 2);
                set_fragment(parsed, field & 0xfff8, field & 1 != 0, get32(rest, 4))?;
                if parsed.fragment == Fragment::Later {
                    return Ok(());
                }
            }
            _ => {}
        }
    }
    Err(PacketError::Ipv6ExtensionChain)
}

/// Length of the extension header at the start of `rest`, at least 8 and inside the packet.
fn extension_length(kind: u8, rest: &[u8]) -> Result<usize, PacketError> {
    if rest.len() < 8 {
        return Err(PacketError::Ipv6ExtensionTruncated);
    }
    let length = match kind {
        FRAGMENT => 8,
        AUTHENTICATION => (usize::from(rest[1]) + 2) * 4,
        _ => (usize::from(rest[1]) + 1) * 8,
    };
    if length > rest.len() || length < 8 { Err(PacketError::Ipv6ExtensionTruncated) } else { Ok(length) }
}
