//! Geneve (RFC 8926 §3.4-3.5) with two options of ours: the security token of row A18, and what is agreed about
//! inner checksums (row A19).
//!
//! The options have an experimental class (0xff57). The token is not critical: a peer that does not know it (Open
//! vSwitch, the Linux kernel) skips it. Whether a packet without it is accepted is the network's policy.
//!
//! The checksum option has no body; its type says all. Type 2, not critical: the sender of this packet takes packets
//! whose inner checksum is partial. Type 3, critical: so it does, and the inner TCP or UDP checksum of this packet is
//! partial: it holds the sum of the pseudo header only, and the outer UDP checksum, which must be there, protects the
//! rest. Who does not know the option never gets type 3, because it never sent type 2; if it gets one by mistake, it drops
//! the packet, as the critical bit says, and does not deliver a wrong checksum.
//!
//! The last byte of the header, which RFC 8926 reserves and receivers ignore, holds what the sender's half of the firewall decided
//! ([`Half`]): the version 1 in its high four bits, two zero bits, and two bits of the decision. Of another version nothing is believed.

use super::{Decapsulated, Half, check_vni};
use crate::PacketError;
use crate::bytes::{get_array, get16, get32, put, put16, put32};

/// UDP port of Geneve.
pub const GENEVE_PORT: u16 = 6081;
/// Length of a Geneve header without options.
pub const GENEVE_BYTES: usize = 8;
/// Length of the security token option.
pub const GENEVE_TOKEN_BYTES: usize = 12;
/// Class of the security token option, from the experimental range 0xff00-0xffff.
pub const TOKEN_OPTION_CLASS: u16 = 0xff57;
/// Type of the security token option; the critical bit (0x80) is not set.
pub const TOKEN_OPTION_TYPE: u8 = 0x01;
/// Length of the checksum option.
pub const GENEVE_CHECKSUM_BYTES: usize = 4;
/// Type of the checksum option that only tells what the sender takes.
pub const ACCEPTS_OPTION_TYPE: u8 = 0x02;
/// Type of the checksum option of a packet with a partial inner checksum, critical bit included.
pub const PARTIAL_OPTION_TYPE: u8 = 0x83;

const ETHERNET_PROTOCOL: u16 = 0x6558;
const FLAG_OAM: u8 = 0x80;
const FLAG_CRITICAL: u8 = 0x40;
const OPTION_CRITICAL: u8 = 0x80;
const OPTION_HEADER_BYTES: usize = 4;
/// Place of the reserved byte behind the VNI.
const HALF_AT: usize = 7;
/// The version of what is in it; the two lowest bits are those of the decision.
const HALF_VERSION: u8 = 0x10;

/// What is said about inner checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InnerChecksum {
    /// Nothing: the checksum is full, and the sender takes only full ones.
    #[default]
    Full,
    /// The checksum is full, and the sender takes partial ones.
    Accepts,
    /// The checksum is partial, and the sender takes partial ones.
    Partial,
}

/// Writes a Geneve header, with the token if there is one, and returns its length.
///
/// # Errors
/// `VniRange`, `BufferTooSmall`.
#[inline]
pub fn encode_geneve(
    buffer: &mut [u8],
    vni: u32,
    token: Option<u64>,
    checksum: InnerChecksum,
) -> Result<usize, PacketError> {
    check_vni(vni)?;
    let token_bytes = if token.is_some() { GENEVE_TOKEN_BYTES } else { 0 };
    let checksum_bytes = if checksum == InnerChecksum::Full { 0 } else { GENEVE_CHECKSUM_BYTES };
    let option_bytes = token_bytes + checksum_bytes;
    if buffer.len() < GENEVE_BYTES + option_bytes {
        return Err(PacketError::BufferTooSmall);
    }
    buffer[0] = (option_bytes / 4) as u8;
    buffer[1] = if checksum == InnerChecksum::Partial { FLAG_CRITICAL } else { 0 };
    put16(buffer, 2, ETHERNET_PROTOCOL);
    put32(buffer, 4, vni << 8);
    if let Some(token) = token {
        put16(buffer, 8, TOKEN_OPTION_CLASS);
        buffer[10] = TOKEN_OPTION_TYPE;
        buffer[11] = 2;
        put(buffer, 12, &token.to_be_bytes());
    }
    let kind = match checksum {
        InnerChecksum::Full => return Ok(GENEVE_BYTES + option_bytes),
        InnerChecksum::Accepts => ACCEPTS_OPTION_TYPE,
        InnerChecksum::Partial => PARTIAL_OPTION_TYPE,
    };
    let at = GENEVE_BYTES + token_bytes;
    put16(buffer, at, TOKEN_OPTION_CLASS);
    buffer[at + 2] = kind;
    buffer[at + 3] = 0;
    Ok(GENEVE_BYTES + option_bytes)
}

/// Writes what the sender's half decided into a header that [`encode_geneve`] made.
#[inline]
pub fn write_half(header: &mut [u8], half: Half) {
    if let Some(place) = header.get_mut(HALF_AT) {
        *place = half.wire();
    }
}

impl Half {
    /// The byte that says it.
    #[inline]
    pub const fn wire(self) -> u8 {
        match self {
            Half::Unsaid => 0,
            Half::Opens => HALF_VERSION,
            Half::Mutual => HALF_VERSION | 1,
            Half::Answers => HALF_VERSION | 2,
            Half::Replies => HALF_VERSION | 3,
        }
    }

    /// What a byte says.
    #[inline]
    pub const fn of_wire(byte: u8) -> Half {
        match byte {
            HALF_VERSION => Half::Opens,
            0x11 => Half::Mutual,
            0x12 => Half::Answers,
            0x13 => Half::Replies,
            _ => Half::Unsaid,
        }
    }
}

/// Whether a datagram that [`encode_geneve`] made must have an outer UDP checksum, because its inner one is partial.
#[inline]
pub fn needs_outer_checksum(datagram: &[u8]) -> bool {
    datagram.get(1).is_some_and(|flags| flags & FLAG_CRITICAL != 0)
}

/// Reads a Geneve header and walks its options (at most 63 of 4 bytes). The header's own critical flag is a summary
/// that a sender may get wrong; the options' critical bits decide.
///
/// # Errors
/// `GeneveTruncated`, `GeneveVersion`, `GeneveProtocol`, `GeneveOption`, `GeneveCritical`, `GeneveToken`,
/// `GeneveChecksum`.
#[inline]
pub fn decode_geneve(datagram: &[u8]) -> Result<Decapsulated, PacketError> {
    if datagram.len() < GENEVE_BYTES {
        return Err(PacketError::GeneveTruncated);
    }
    if datagram[0] >> 6 != 0 {
        return Err(PacketError::GeneveVersion);
    }
    let inner_offset = GENEVE_BYTES + usize::from(datagram[0] & 0x3f) * 4;
    if datagram.len() < inner_offset {
        return Err(PacketError::GeneveTruncated);
    }
    if get16(datagram, 2) != ETHERNET_PROTOCOL {
        return Err(PacketError::GeneveProtocol);
    }
    let (token, checksum) = walk_options(&datagram[GENEVE_BYTES..inner_offset])?;
    let (vni, oam) = (get32(datagram, 4) >> 8, datagram[1] & FLAG_OAM != 0);
    let half = Half::of_wire(datagram[HALF_AT]);
    Ok(Decapsulated { vni, inner_offset, token, checksum, half, oam })
}

fn walk_options(mut options: &[u8]) -> Result<(Option<u64>, InnerChecksum), PacketError> {
    let (mut token, mut checksum) = (None, InnerChecksum::Full);
    while !options.is_empty() {
        // The option area is a multiple of 4 bytes, so an option header is always whole.
        let (class, kind) = (get16(options, 0), options[2]);
        let length = OPTION_HEADER_BYTES + usize::from(options[3] & 0x1f) * 4;
        if length > options.len() {
            return Err(PacketError::GeneveOption);
        }
        if class == TOKEN_OPTION_CLASS && kind & !OPTION_CRITICAL == TOKEN_OPTION_TYPE {
            if length != GENEVE_TOKEN_BYTES || token.is_some() {
                return Err(PacketError::GeneveToken);
            }
            token = Some(u64::from_be_bytes(get_array(options, OPTION_HEADER_BYTES)));
        } else if class == TOKEN_OPTION_CLASS && matches!(kind, ACCEPTS_OPTION_TYPE | PARTIAL_OPTION_TYPE) {
            if length != GENEVE_CHECKSUM_BYTES || checksum != InnerChecksum::Full {
                return Err(PacketError::GeneveChecksum);
            }
            let partial = kind == PARTIAL_OPTION_TYPE;
            checksum = if partial { InnerChecksum::Partial } else { InnerChecksum::Accepts };
        } else if kind & OPTION_CRITICAL != 0 {
            return Err(PacketError::GeneveCritical);
        }
        options = &options[length..];
    }
    Ok((token, checksum))
}
