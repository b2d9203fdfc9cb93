//! ICMP and ICMPv6: echo replies and errors.

use super::{DEFAULT_TTL, IpHeader, Link, check_answerable, seal};
use crate::PacketError;
use crate::address::{IpAddress, Mac};
use crate::bytes::{put, put16, put32};
use crate::headers::{Fragment, ICMP_BYTES, IPV4_BYTES, IPV6_BYTES, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Parsed};

/// Largest ICMP error over IPv4 (RFC 1812 §4.3.2.3).
const MAX_ERROR_BYTES_V4: usize = 576;
/// Largest ICMPv6 error: the minimum MTU (RFC 4443 §2.4).
const MAX_ERROR_BYTES_V6: usize = 1280;

/// What went wrong with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet does not fit: IPv4 type 3 code 4, IPv6 "packet too big".
    TooBig {
        /// Largest IP packet that would fit.
        mtu: u32,
    },
    /// A rule forbids it.
    Prohibited,
    /// The destination does not answer.
    HostUnreachable,
    /// There is no route.
    NetworkUnreachable,
    /// Nobody listens on the UDP port.
    PortUnreachable,
    /// TTL or hop limit ran out.
    TimeExceeded,
}

impl IcmpError {
    /// Type, code, and the 32 bits after the checksum.
    fn fields(self, is_v4: bool) -> (u8, u8, u32) {
        match (self, is_v4) {
            (IcmpError::TooBig { mtu }, true) => (3, 4, mtu.min(0xffff)),
            (IcmpError::TooBig { mtu }, false) => (2, 0, mtu),
            (IcmpError::Prohibited, true) => (3, 13, 0),
            (IcmpError::Prohibited, false) => (1, 1, 0),
            (IcmpError::HostUnreachable, true) => (3, 1, 0),
            (IcmpError::HostUnreachable, false) => (1, 3, 0),
            (IcmpError::NetworkUnreachable, true) => (3, 0, 0),
            (IcmpError::NetworkUnreachable, false) => (1, 0, 0),
            (IcmpError::PortUnreachable, true) => (3, 3, 0),
            (IcmpError::PortUnreachable, false) => (1, 4, 0),
            (IcmpError::TimeExceeded, true) => (11, 0, 0),
            (IcmpError::TimeExceeded, false) => (3, 0, 0),
        }
    }
}

/// An error about `frame`, to its sender, from the Ethernet address `mac` and the IP address `source`; carries as much
/// of the packet as is allowed (576 bytes in all over IPv4, 1280 over IPv6). The caller limits the rate.
///
/// # Errors
/// `NotAnswerable` (also when `source` is of the other family), `BufferTooSmall`, `FrameMismatch`.
pub fn icmp_error(
    out: &mut [u8],
    frame: &[u8],
    parsed: &Parsed,
    mac: Mac,
    source: IpAddress,
    error: IcmpError,
) -> Result<usize, PacketError> {
    parsed.check(frame)?;
    check_answerable(parsed)?;
    let is_v4 = !parsed.is_v6();
    if parsed.is_icmp_error() || source.is_v4() != is_v4 {
        return Err(PacketError::NotAnswerable);
    }
    let (room, protocol) = if is_v4 {
        (MAX_ERROR_BYTES_V4 - IPV4_BYTES - ICMP_BYTES, PROTOCOL_ICMP)
    } else {
        (MAX_ERROR_BYTES_V6 - IPV6_BYTES - ICMP_BYTES, PROTOCOL_ICMPV6)
    };
    let cause = frame.get(parsed.l3_offset..parsed.end).ok_or(PacketError::FrameMismatch)?;
    let cause = &cause[..cause.len().min(room)];
    let ip = IpHeader { source, destination: parsed.source, protocol, ttl: DEFAULT_TTL };
    let at = ip.write(out, &Link::answer(parsed, mac), ICMP_BYTES + cause.len())?;
    let (kind, code, rest) = error.fields(is_v4);
    out[at] = kind;
    out[at + 1] = code;
    put16(out, at + 2, 0);
    put32(out, at + 4, rest);
    put(out, at + ICMP_BYTES, cause);
    seal(out, at + ICMP_BYTES + cause.len())
}

/// The answer to an echo request, from the Ethernet address `mac` and the address that was asked.
///
/// # Errors
/// `NotAnswerable` (not a whole echo request to a unicast address), `BufferTooSmall`, `FrameMismatch`.
pub fn echo_reply(out: &mut [u8], frame: &[u8], parsed: &Parsed, mac: Mac) -> Result<usize, PacketError> {
    parsed.check(frame)?;
    check_answerable(parsed)?;
    let (request, reply, protocol) =
        if parsed.is_v6() { (128, 129, PROTOCOL_ICMPV6) } else { (8, 0, PROTOCOL_ICMP) };
    let is_request = parsed.is_icmp_echo() && parsed.icmp_type == request;
    if !is_request || parsed.fragment != Fragment::Whole {
        return Err(PacketError::NotAnswerable);
    }
    let message = frame.get(parsed.l4_offset..parsed.end).ok_or(PacketError::FrameMismatch)?;
    let ip = IpHeader { source: parsed.destination, destination: parsed.source, protocol, ttl: DEFAULT_TTL };
    let at = ip.write(out, &Link::answer(parsed, mac), message.len())?;
    put(out, at, message);
    out[at] = reply;
    seal(out, at + message.len())
}
