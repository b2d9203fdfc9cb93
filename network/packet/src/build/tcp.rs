//! A TCP reset for a connection that is refused.

use super::{DEFAULT_TTL, IpHeader, Link, check_answerable, seal};
use crate::PacketError;
use crate::address::Mac;
use crate::bytes::{put16, put32, read};
use crate::headers::{Fragment, PROTOCOL_TCP, Parsed, TCP_BYTES, Transport, tcp_flags};

/// Refuses the segment in `frame` as its destination would (RFC 9293 §3.10.7.1), from the Ethernet address `mac`.
///
/// # Errors
/// `NotAnswerable` (no whole TCP segment, a reset, not unicast), `BufferTooSmall`, `FrameMismatch`.
pub fn tcp_reset(out: &mut [u8], frame: &[u8], parsed: &Parsed, mac: Mac) -> Result<usize, PacketError> {
    parsed.check(frame)?;
    check_answerable(parsed)?;
    let flags = parsed.tcp_flags;
    if parsed.transport != Transport::Tcp || parsed.fragment != Fragment::Whole || flags & tcp_flags::RST != 0
    {
        return Err(PacketError::NotAnswerable);
    }
    let ip = IpHeader {
        source: parsed.destination,
        destination: parsed.source,
        protocol: PROTOCOL_TCP,
        ttl: DEFAULT_TTL,
    };
    let at = ip.write(out, &Link::answer(parsed, mac), TCP_BYTES)?;
    let counted = u32::from(flags & tcp_flags::SYN != 0) + u32::from(flags & tcp_flags::FIN != 0);
    let their_end = u32::from_be_bytes(read(frame, parsed.l4_offset + 4)?)
        .wrapping_add(parsed.payload_length() as u32)
        .wrapping_add(counted);
    let (sequence, acknowledgement, answer) = if flags & tcp_flags::ACK != 0 {
        (u32::from_be_bytes(read(frame, parsed.l4_offset + 8)?), 0, tcp_flags::RST)
    } else {
        (0, their_end, tcp_flags::RST | tcp_flags::ACK)
    };
    out[at..at + TCP_BYTES].fill(0);
    put16(out, at, parsed.destination_port);
    put16(out, at + 2, parsed.source_port);
    put32(out, at + 4, sequence);
    put32(out, at + 8, acknowledgement);
    out[at + 12] = 5 << 4;
    out[at + 13] = answer;
    seal(out, at + TCP_BYTES)
}
