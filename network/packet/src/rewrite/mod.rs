//! Changes to a frame in place: address and port translation, TTL, ECN, MSS, Ethernet addresses.
//!
//! Row A25. Checksums are updated from the difference (RFC 1624) and never computed anew, so a packet that came with a
//! wrong checksum leaves with a wrong one. The [`Parsed`] is kept true to the frame.

mod embedded;

pub use embedded::{Embedded, parse_embedded, rewrite_embedded};

use crate::PacketError;
use crate::address::{IpAddress, Mac};
use crate::bytes::{get_array, get16, put, put16};
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
        set_address(frame, parsed, 0, endpoint.address, state);
        parsed.source = endpoint.address;
    }
    if let Some(endpoint) = change.destination {
        set_address(frame, parsed, 1, endpoint.address, state);
        parsed.destination = endpoint.address;
    }
    set_ports(frame, parsed, change, state);
    Ok(())
}

/// Writes the source (0) or destination (1) address.
fn set_address(frame: &mut [u8], parsed: &Parsed, which: usize, address: IpAddress, state: ChecksumState) {
    let is_v4 = parsed.network == Network::Ipv4;
    let (first, length) = address_place(is_v4);
    let at = parsed.l3_offset + first + which * length;
    let old: [u8; 16] = if is_v4 {
        let mut padded = [0; 16];
        padded[..4].copy_from_slice(&frame[at..at + 4]);
        padded
    } else {
        get_array(frame, at)
    };
    let (old, new) = (&old[..length], address.wire());
    if is_v4 {
        let field = parsed.l3_offset + 10;
        let value = update_bytes(get16(frame, field), old, new);
        put16(frame, field, value);
    }
    if parsed.transport != Transport::Icmpv4 {
        update_transport(frame, parsed, old, new, state, true);
    }
    put(frame, at, new);
}

fn set_ports(frame: &mut [u8], parsed: &mut Parsed, change: &Rewrite, state: ChecksumState) {
    let l4 = parsed.l4_offset;
    if matches!(parsed.transport, Transport::Tcp | Transport::Udp) {
        if let Some(port) = change.source.and_then(|endpoint| endpoint.port) {
            replace_word(frame, parsed, l4, port, state);
            parsed.source_port = port;
        }
        if let Some(port) = change.destination.and_then(|endpoint| endpoint.port) {
            replace_word(frame, parsed, l4 + 2, port, state);
            parsed.destination_port = port;
        }
    } else if let Some(id) = change.icmp_id().filter(|_| parsed.is_icmp_echo()) {
        replace_word(frame, parsed, l4 + 4, id, state);
        parsed.icmp_id = id;
    }
}

/// Writes a word of the transport header.
fn replace_word(frame: &mut [u8], parsed: &Parsed, at: usize, value: u16, state: ChecksumState) {
    let old: [u8; 2] = get_array(frame, at);
    update_transport(frame, parsed, &old, &value.to_be_bytes(), state, false);
    put16(frame, at, value);
}

/// Brings the transport checksum up to date. A partial one covers only the pseudo header.
fn update_transport(
    frame: &mut [u8],
    parsed: &Parsed,
    old: &[u8],
    new: &[u8],
    state: ChecksumState,
    in_pseudo_header: bool,
) {
    let Some(field) = field_offset(parsed) else { return };
    let checksum = get16(frame, field);
    let is_udp = parsed.transport == Transport::Udp;
    let value = match state {
        ChecksumState::Partial if in_pseudo_header => update_partial_bytes(checksum, old, new),
        ChecksumState::Partial => return,
        ChecksumState::Full if is_udp && checksum == 0 => return,
        ChecksumState::Full => match update_bytes(checksum, old, new) {
            0 if is_udp => 0xffff,
            value => value,
        },
    };
    put16(frame, field, value);
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
        frame[parsed.l3_offset + 7] = parsed.ttl;
        return Ok(());
    }
    let value = u16::from_be_bytes([parsed.ttl, frame[parsed.l3_offset + 9]]);
    replace_network_word(frame, parsed.l3_offset, 8, value);
    Ok(())
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
        let word = get16(frame, l3) & !0x0ff0 | u16::from(parsed.tos) << 4;
        put16(frame, l3, word);
    } else {
        let value = u16::from_be_bytes([frame[l3], parsed.tos]);
        replace_network_word(frame, l3, 0, value);
    }
    Ok(())
}

/// Writes a word of the IPv4 header at `l3 + inside` and updates its checksum.
fn replace_network_word(frame: &mut [u8], l3: usize, inside: usize, value: u16) {
    let checksum = update(get16(frame, l3 + 10), get16(frame, l3 + inside), value);
    put16(frame, l3 + inside, value);
    put16(frame, l3 + 10, checksum);
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
    put(frame, 0, &destination);
    put(frame, 6, &source);
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
    let Some(at) = find_mss(&frame[parsed.l4_offset + TCP_BYTES..parsed.payload_offset]) else {
        return Ok(false);
    };
    let at = parsed.l4_offset + TCP_BYTES + at;
    if get16(frame, at) <= mss {
        return Ok(false);
    }
    // An option may lie at an odd place: the two words around it are then what changes. They are in
    // the header, whose length is even.
    let from = at - (at - parsed.l4_offset) % 2;
    let old: [u8; 4] = get_array(frame, from);
    let mut new = old;
    put16(&mut new, at - from, mss);
    update_transport(frame, parsed, &old, &new, state, false);
    put(frame, from, &new);
    Ok(true)
}

/// Place of the MSS value in TCP options. At most 40 steps.
fn find_mss(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < options.len() {
        match options[at] {
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
    None
}

#[cfg(test)]
mod tests;
