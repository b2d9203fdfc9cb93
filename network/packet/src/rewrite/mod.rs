//! Changes to a frame in place: address and port translation, TTL, ECN, MSS, Ethernet addresses.
//!
//! Row A25. Checksums are updated from the difference (RFC 1624) and never computed anew, so a packet that came with a
//! wrong checksum leaves with a wrong one. The [`Parsed`] is kept true to the frame.

mod embedded;

pub use embedded::{Embedded, parse_embedded, rewrite_embedded};

use crate::PacketError;
use crate::address::{IpAddress, Mac};
use crate::bytes::{read, read16, write, write16};
use crate::checksum::{field_offset, update, update_bytes, update_partial_bytes};
use crate::headers::{Fragment, Network, Parsed, TCP_BYTES, Transport, tcp_flags};

/// What the transport checksum field of a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumState {
    /// The whole checksum.
    Full,
    /// The sum of the pseudo header only: a frame with NEEDS_CSUM.
    Partial,
}

/// A new address, and a new port or ICMP echo identifier if that changes too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The new address, of the same family.
    pub address: IpAddress,
    /// The new TCP or UDP port, or ICMP echo identifier.
    pub port: Option<u16>,
}

/// A translation. ICMP echo has one identifier: that of `source` counts, else that of `destination`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rewrite {
    /// New source.
    pub source: Option<Endpoint>,
    /// New destination.
    pub destination: Option<Endpoint>,
}

impl Rewrite {
    /// The identifier for ICMP echo.
    fn icmp_id(&self) -> Option<u16> {
        let port = |endpoint: Option<Endpoint>| endpoint.and_then(|endpoint| endpoint.port);
        port(self.source).or(port(self.destination))
    }

    fn wants_port(&self) -> bool {
        self.icmp_id().is_some()
    }

    fn check_family(&self, is_v4: bool) -> Result<(), PacketError> {
        let wrong = |endpoint: &Endpoint| endpoint.address.is_v4() != is_v4;
        if self.source.iter().chain(&self.destination).any(wrong) {
            return Err(PacketError::NotTranslatable);
        }
        Ok(())
    }
}

/// Offset of the source address in an IP header, and the length of an address.
fn address_place(is_v4: bool) -> (usize, usize) {
    if is_v4 { (12, 4) } else { (8, 16) }
}

/// Translates a packet. Fragments after the first have no ports: only their addresses change.
///
/// # Errors
/// `NotTranslatable` (family differs, or a port is wanted where there is none), `FrameMismatch`. Nothing is changed then.
pub fn rewrite(
    frame: &mut [u8],
    parsed: &mut Parsed,
    change: &Rewrite,
    state: ChecksumState,
) -> Result<(), PacketError> {
    parsed.check(frame)?;
    change.check_family(parsed.network == Network::Ipv4)?;
    let has_port = matches!(parsed.transport, Transport::Tcp | Transport::Udp) || parsed.is_icmp_echo();
    if !parsed.is_ip() || (change.wants_port() && !has_port && parsed.fragment != Fragment::Later) {
        return Err(PacketError::NotTranslatable);
    }
    if let Some(endpoint) = change.source {
        set_address(frame, parsed, 0, endpoint.address, state)?;
        parsed.source = endpoint.address;
    }
    if let Some(endpoint) = change.destination {
        set_address(frame, parsed, 1, endpoint.address, state)?;
        parsed.destination = endpoint.address;
    }
    set_ports(frame, parsed, change, state)
}

/// Writes the source (0) or destination (1) address.
fn set_address(
    frame: &mut [u8],
    parsed: &Parsed,
    which: usize,
    address: IpAddress,
    state: ChecksumState,
) -> Result<(), PacketError> {
    let is_v4 = parsed.network == Network::Ipv4;
    let (first, length) = address_place(is_v4);
    let at = parsed.l3_offset + first + which * length;
    let mut old = [0; 16];
    if is_v4 {
        old[..4].copy_from_slice(&read::<4>(frame, at)?);
    } else {
        old = read(frame, at)?;
    }
    let (old, new) = (&old[..length], address.wire());
    if is_v4 {
        let field = parsed.l3_offset + 10;
        let value = update_bytes(read16(frame, field)?, old, new);
        write16(frame, field, value)?;
    }
    if parsed.transport != Transport::Icmpv4 {
        update_transport(frame, parsed, old, new, state, true)?;
    }
    write(frame, at, new)
}

fn set_ports(
    frame: &mut [u8],
    parsed: &mut Parsed,
    change: &Rewrite,
    state: ChecksumState,
) -> Result<(), PacketError> {
    let l4 = parsed.l4_offset;
    if matches!(parsed.transport, Transport::Tcp | Transport::Udp) {
        if let Some(port) = change.source.and_then(|endpoint| endpoint.port) {
            replace_word(frame, parsed, l4, port, state)?;
            parsed.source_port = port;
        }
        if let Some(port) = change.destination.and_then(|endpoint| endpoint.port) {
            replace_word(frame, parsed, l4 + 2, port, state)?;
            parsed.destination_port = port;
        }
    } else if let Some(id) = change.icmp_id().filter(|_| parsed.is_icmp_echo()) {
        replace_word(frame, parsed, l4 + 4, id, state)?;
        parsed.icmp_id = id;
    }
    Ok(())
}

/// Writes a word of the transport header.
fn replace_word(
    frame: &mut [u8],
    parsed: &Parsed,
    at: usize,
    value: u16,
    state: ChecksumState,
) -> Result<(), PacketError> {
    let old: [u8; 2] = read(frame, at)?;
    update_transport(frame, parsed, &old, &value.to_be_bytes(), state, false)?;
    write16(frame, at, value)
}

/// Brings the transport checksum up to date. A partial one covers only the pseudo header.
fn update_transport(
    frame: &mut [u8],
    parsed: &Parsed,
    old: &[u8],
    new: &[u8],
    state: ChecksumState,
    in_pseudo_header: bool,
) -> Result<(), PacketError> {
    let Some(field) = field_offset(parsed) else { return Ok(()) };
    let checksum = read16(frame, field)?;
    let is_udp = parsed.transport == Transport::Udp;
    let value = match state {
        ChecksumState::Partial if in_pseudo_header => update_partial_bytes(checksum, old, new),
        ChecksumState::Partial => return Ok(()),
        ChecksumState::Full if is_udp && checksum == 0 => return Ok(()),
        ChecksumState::Full => match update_bytes(checksum, old, new) {
            0 if is_udp => 0xffff,
            value => value,
        },
    };
    write16(frame, field, value)
}

/// Takes one from TTL or hop limit.
///
/// # Errors
/// `TtlExpired` when nothing would be left, `FrameMismatch`. Nothing is changed then.
pub fn decrement_ttl(frame: &mut [u8], parsed: &mut Parsed) -> Result<(), PacketError> {
    parsed.check(frame)?;
    if !parsed.is_ip() {
        return Ok(());
    }
    if parsed.ttl <= 1 {
        return Err(PacketError::TtlExpired);
    }
    parsed.ttl -= 1;
    if parsed.network == Network::Ipv6 {
        return write(frame, parsed.l3_offset + 7, &[parsed.ttl]);
    }
    let [protocol] = read(frame, parsed.l3_offset + 9)?;
    replace_network_word(frame, parsed.l3_offset, 8, u16::from_be_bytes([parsed.ttl, protocol]))
}

/// Sets the two ECN bits, as decapsulation must (see [`crate::encap::ecn_inner`]).
///
/// # Errors
/// `FrameMismatch`.
pub fn set_ecn(frame: &mut [u8], parsed: &mut Parsed, ecn: u8) -> Result<(), PacketError> {
    parsed.check(frame)?;
    if !parsed.is_ip() || parsed.ecn() == ecn & 3 {
        return Ok(());
    }
    parsed.tos = parsed.tos & !3 | ecn & 3;
    let l3 = parsed.l3_offset;
    if parsed.network == Network::Ipv6 {
        let word = read16(frame, l3)? & !0x0ff0 | u16::from(parsed.tos) << 4;
        write16(frame, l3, word)
    } else {
        let [version] = read(frame, l3)?;
        replace_network_word(frame, l3, 0, u16::from_be_bytes([version, parsed.tos]))
    }
}

/// Writes a word of the IPv4 header at `l3 + inside` and updates its checksum.
fn replace_network_word(frame: &mut [u8], l3: usize, inside: usize, value: u16) -> Result<(), PacketError> {
    let checksum = update(read16(frame, l3 + 10)?, read16(frame, l3 + inside)?, value);
    write16(frame, l3 + inside, value)?;
    write16(frame, l3 + 10, checksum)
}

/// Sets both Ethernet addresses.
///
/// # Errors
/// `FrameMismatch`.
pub fn set_macs(
    frame: &mut [u8],
    parsed: &mut Parsed,
    source: Mac,
    destination: Mac,
) -> Result<(), PacketError> {
    parsed.check(frame)?;
    write(frame, 0, &destination)?;
    write(frame, 6, &source)?;
    parsed.source_mac = source;
    parsed.destination_mac = destination;
    Ok(())
}

/// Lowers the MSS option of a SYN to `mss` at most. Returns whether it was lowered.
///
/// # Errors
/// `FrameMismatch`.
pub fn clamp_mss(
    frame: &mut [u8],
    parsed: &Parsed,
    mss: u16,
    state: ChecksumState,
) -> Result<bool, PacketError> {
    parsed.check(frame)?;
    if parsed.transport != Transport::Tcp || parsed.tcp_flags & tcp_flags::SYN == 0 {
        return Ok(false);
    }
    let first = parsed.l4_offset + TCP_BYTES;
    let options = frame.get(first..parsed.payload_offset).ok_or(PacketError::FrameMismatch)?;
    let Some(at) = find_mss(options).map(|at| first + at) else { return Ok(false) };
    let old: [u8; 2] = read(frame, at)?;
    if u16::from_be_bytes(old) <= mss {
        return Ok(false);
    }
    let new = mss.to_be_bytes();
    // At an odd place its bytes are the second of one word and the first of the next.
    let ([a, b], [c, d]) = (old, new);
    let (was, is) =
        if (at - parsed.l4_offset).is_multiple_of(2) { ([a, b], [c, d]) } else { ([b, a], [d, c]) };
    update_transport(frame, parsed, &was, &is, state, false)?;
    write(frame, at, &new)?;
    Ok(true)
}

/// Place of the MSS value in TCP options. At most 40 steps.
fn find_mss(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options.get(at)? {
            0 => return None,
            1 => at += 1,
            kind => {
                let length = usize::from(*options.get(at + 1)?);
                if length < 2 || at + length > options.len() {
                    return None;
                }
                if kind == 2 && length == 4 {
                    return Some(at + 2);
                }
                at += length;
            }
        }
    }
}

#[cfg(test)]
mod tests;
