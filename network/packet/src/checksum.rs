//! The internet checksum: full (RFC 1071), incremental (RFC 1624), and partial as virtio's NEEDS_CSUM has it.
//!
//! A *full* checksum field holds the complement of the sum over pseudo header, header and payload. A *partial*
//! one holds the plain sum of the pseudo header only; whoever completes it sums from the transport header on.

mod wide;

use crate::PacketError;
use crate::address::IpAddress;
use crate::bytes::{read, read16, write16};
use crate::headers::{Fragment, Network, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, Parsed, Transport};

/// Where the checksum is in a TCP header.
pub const TCP_CHECKSUM_OFFSET: usize = 16;
/// Where the checksum is in a UDP header.
pub const UDP_CHECKSUM_OFFSET: usize = 6;
/// Where the checksum is in an ICMP header.
pub const ICMP_CHECKSUM_OFFSET: usize = 2;

/// A running one's complement sum. Pieces must be of even length, except the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The empty sum.
    pub const ZERO: Sum = Sum(0);

    /// Adds bytes; an odd last byte counts as if a zero followed.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (sum, rest) = wide::sum(bytes);
        self.add64(sum).narrow(rest)
    }

    /// Adds bytes without the help of vector instructions.
    #[inline]
    fn narrow(self, bytes: &[u8]) -> Self {
        // Words are summed as they lie in memory (RFC 1071 §2B) into 128 bits, so that no carry is lost.
        let (mut even, mut odd) = (u128::from(self.0), 0_u128);
        let mut blocks = bytes.chunks_exact(16);
        for block in &mut blocks {
            if let (Some(a), Some(b)) = (block.first_chunk::<8>(), block.last_chunk::<8>()) {
                even += u128::from(u64::from_ne_bytes(*a));
                odd += u128::from(u64::from_ne_bytes(*b));
            }
        }
        let tail = blocks.remainder();
        if !tail.is_empty() {
            let mut last = [0; 16];
            last[..tail.len()].copy_from_slice(tail);
            let last = u128::from_ne_bytes(last);
            even += last & u128::from(u64::MAX);
            odd += last >> 64;
        }
        let total = even + odd;
        Self(0).add64(total as u64).add64((total >> 64) as u64)
    }

    /// Adds a 16-bit number.
    #[inline]
    #[must_use]
    pub fn word(self, value: u16) -> Self {
        self.add64(u64::from(value.to_be()))
    }

    /// Adds a 32-bit number.
    #[inline]
    #[must_use]
    pub fn double(self, value: u32) -> Self {
        self.add64(u64::from(value.to_be()))
    }

    #[inline(always)]
    fn add64(self, value: u64) -> Self {
        let (sum, carry) = self.0.overflowing_add(value);
        Self(sum + u64::from(carry))
    }

    /// Adds what `other` has summed.
    #[inline]
    #[must_use]
    pub fn join(self, other: Sum) -> Self {
        self.add64(other.0)
    }

    /// The sum in 16 bits, not complemented: what a partial checksum field holds.
    #[inline]
    pub fn partial(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        u16::from_be(sum as u16)
    }

    /// The checksum: the complement of the sum.
    #[inline]
    pub fn finish(self) -> u16 {
        !self.partial()
    }

    /// The checksum of a transport header, where 0 means "none" in UDP and is written as 0xffff.
    #[inline]
    pub fn finish_transport(self) -> u16 {
        match self.finish() {
            0 => 0xffff,
            checksum => checksum,
        }
    }
}

/// The checksum of `bytes`.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).finish()
}

/// The sum of the pseudo header (RFC 9293 §3.1, RFC 8200 §8.1); `length` is that of transport header and payload.
#[inline]
pub fn pseudo_header(source: &IpAddress, destination: &IpAddress, protocol: u8, length: usize) -> Sum {
    addresses(source, destination).double(u32::from(protocol)).double(length as u32)
}

/// The sum of the two addresses alone.
#[inline]
pub(crate) fn addresses(source: &IpAddress, destination: &IpAddress) -> Sum {
    Sum::ZERO.bytes(source.wire()).bytes(destination.wire())
}

/// A full checksum after a 16-bit word that it covers has changed (RFC 1624, equation 3).
#[inline]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO.word(!checksum).word(!old).word(new).finish()
}

/// A full checksum after bytes that it covers have changed. Both of the same even length, at an even place.
#[inline]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    debug_assert_eq!(old.len(), new.len());
    debug_assert!(old.len().is_multiple_of(2));
    let removed = Sum::ZERO.bytes(old).partial();
    Sum::ZERO.word(!checksum).word(!removed).bytes(new).finish()
}

/// A partial checksum after bytes of the pseudo header have changed.
#[inline]
pub fn update_partial_bytes(partial: u16, old: &[u8], new: &[u8]) -> u16 {
    !update_bytes(!partial, old, new)
}

/// Where the checksum of the frame's transport header is, in bytes from the start of the frame.
#[inline]
pub fn field_offset(parsed: &Parsed) -> Option<usize> {
    let inside = match parsed.transport {
        Transport::Tcp => TCP_CHECKSUM_OFFSET,
        Transport::Udp => UDP_CHECKSUM_OFFSET,
        Transport::Icmpv4 | Transport::Icmpv6 => ICMP_CHECKSUM_OFFSET,
        Transport::Other => return None,
    };
    Some(parsed.l4_offset + inside)
}

/// The sum of the pseudo header of a parsed frame; zero for ICMP, which has none.
#[inline]
pub fn pseudo_header_of(parsed: &Parsed) -> Sum {
    let protocol = match parsed.transport {
        Transport::Tcp => PROTOCOL_TCP,
        Transport::Udp => PROTOCOL_UDP,
        Transport::Icmpv6 => PROTOCOL_ICMPV6,
        Transport::Icmpv4 | Transport::Other => return Sum::ZERO,
    };
    pseudo_header(&parsed.source, &parsed.destination, protocol, transport_end(parsed) - parsed.l4_offset)
}

/// End of what the transport checksum covers: a UDP length may end before the packet.
#[inline]
fn transport_end(parsed: &Parsed) -> usize {
    if parsed.transport == Transport::Udp { parsed.payload_end } else { parsed.end }
}

/// Checks the IPv4 header checksum and the transport checksum of a whole packet. Of a fragment only the header
/// can be checked; unknown protocols have nothing to check; UDP over IPv4 may leave its checksum out.
///
/// # Errors
/// `Ipv4Checksum`, `TcpChecksum`, `UdpChecksum`, `IcmpChecksum`, `FrameMismatch`.
#[inline]
pub fn verify(frame: &[u8], parsed: &Parsed) -> Result<(), PacketError> {
    verify_network(frame, parsed)?;
    verify_transport(frame, parsed)
}

/// Checks the IPv4 header checksum.
///
/// # Errors
/// `Ipv4Checksum`, `FrameMismatch`.
#[inline]
pub fn verify_network(frame: &[u8], parsed: &Parsed) -> Result<(), PacketError> {
    parsed.check(frame)?;
    if parsed.network == Network::Ipv4 && checksum(ipv4_header(frame, parsed)?) != 0 {
        return Err(PacketError::Ipv4Checksum);
    }
    Ok(())
}

/// Checks the transport checksum.
///
/// # Errors
/// `TcpChecksum`, `UdpChecksum`, `IcmpChecksum`, `FrameMismatch`.
#[inline]
pub fn verify_transport(frame: &[u8], parsed: &Parsed) -> Result<(), PacketError> {
    parsed.check(frame)?;
    let reason = match parsed.transport {
        Transport::Other => return Ok(()),
        Transport::Tcp => PacketError::TcpChecksum,
        Transport::Udp => PacketError::UdpChecksum,
        Transport::Icmpv4 | Transport::Icmpv6 => PacketError::IcmpChecksum,
    };
    if parsed.fragment != Fragment::Whole {
        return Ok(());
    }
    if parsed.transport == Transport::Udp && read16(frame, parsed.l4_offset + UDP_CHECKSUM_OFFSET)? == 0 {
        return if parsed.is_v6() { Err(reason) } else { Ok(()) };
    }
    let covered = frame.get(parsed.l4_offset..transport_end(parsed)).ok_or(PacketError::FrameMismatch)?;
    if pseudo_header_of(parsed).bytes(covered).finish() == 0 { Ok(()) } else { Err(reason) }
}

/// Writes the IPv4 header checksum, if the packet is IPv4.
///
/// # Errors
/// `FrameMismatch`.
#[inline]
pub fn fill_network(frame: &mut [u8], parsed: &Parsed) -> Result<(), PacketError> {
    parsed.check(frame)?;
    if parsed.network == Network::Ipv4 {
        write16(frame, parsed.l3_offset + 10, 0)?;
        let value = checksum(ipv4_header(frame, parsed)?);
        write16(frame, parsed.l3_offset + 10, value)?;
    }
    Ok(())
}

/// Writes the transport checksum of a whole packet from nothing.
///
/// # Errors
/// `FrameMismatch`.
#[inline]
pub fn fill_transport(frame: &mut [u8], parsed: &Parsed) -> Result<(), PacketError> {
    parsed.check(frame)?;
    let Some(field) = field_offset(parsed).filter(|_| parsed.fragment == Fragment::Whole) else {
        return Ok(());
    };
    write16(frame, field, 0)?;
    let covered = frame.get(parsed.l4_offset..transport_end(parsed)).ok_or(PacketError::FrameMismatch)?;
    let sum = pseudo_header_of(parsed).bytes(covered);
    let icmp = matches!(parsed.transport, Transport::Icmpv4 | Transport::Icmpv6);
    write16(frame, field, if icmp { sum.finish() } else { sum.finish_transport() })
}

/// Writes the partial checksum into a TCP or UDP header, as NEEDS_CSUM wants it.
///
/// # Errors
/// `FrameMismatch`.
#[inline]
pub fn fill_partial(frame: &mut [u8], parsed: &Parsed) -> Result<(), PacketError> {
    parsed.check(frame)?;
    if matches!(parsed.transport, Transport::Tcp | Transport::Udp) {
        let value = pseudo_header_of(parsed).partial();
        if let Some(field) = field_offset(parsed) {
            write16(frame, field, value)?;
        }
    }
    Ok(())
}

/// Completes a partial checksum: sums from `start` to `end`, the field at `field` included.
///
/// # Errors
/// [`PacketError::VirtioChecksum`] when the places are not inside the frame.
#[inline]
pub fn complete(frame: &mut [u8], start: usize, field: usize, end: usize) -> Result<(), PacketError> {
    if start > field || field + 2 > end || end > frame.len() {
        return Err(PacketError::VirtioChecksum);
    }
    let covered = frame.get(start..end).ok_or(PacketError::VirtioChecksum)?;
    let value = Sum::ZERO.bytes(covered).finish_transport();
    write16(frame, field, value)
}

#[inline]
fn ipv4_header<'a>(frame: &'a [u8], parsed: &Parsed) -> Result<&'a [u8], PacketError> {
    let [first] = read(frame, parsed.l3_offset)?;
    let end = (parsed.l3_offset + usize::from(first & 0x0f) * 4).min(parsed.l4_offset);
    frame.get(parsed.l3_offset..end).ok_or(PacketError::FrameMismatch)
}

#[cfg(test)]
mod tests;
