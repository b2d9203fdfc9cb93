//! The virtio-net header (virtio 1.2 §5.1.6): codec and strict validation.
//!
//! A guest writes this header, so nothing in it is believed: header lengths and the place of the checksum
//! come from the parsed frame, and the header must agree. What passes is an [`Offload`], from which a clean header is
//! written for the next device; a guest's own header is never handed on.

use crate::PacketError;
use crate::bytes::{get_array, put};
use crate::checksum::{TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET};
use crate::headers::{Fragment, Network, Parsed, Transport, tcp_flags};

/// Length of the header without mergeable buffers.
pub const HEADER_BYTES: usize = 10;
/// Length of the header with mergeable buffers, and of every header of a virtio 1 device.
pub const MERGEABLE_HEADER_BYTES: usize = 12;

/// The checksum is partial and must be completed.
pub const FLAG_NEEDS_CSUM: u8 = 1;
/// The checksum was verified by the sender of the header.
pub const FLAG_DATA_VALID: u8 = 2;

/// No segmentation.
pub const GSO_NONE: u8 = 0;
/// Cut as TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// Cut as TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// Cut as UDP datagrams (USO).
pub const GSO_UDP_L4: u8 = 5;
/// Bit: the TCP super-frame has CWR set.
pub const GSO_ECN: u8 = 0x80;

/// Most segments that one super-frame may be cut into (64 KiB at 32 bytes).
pub const MAX_SEGMENTS: usize = 2048;
/// Most header bytes (Ethernet to transport) of a super-frame.
pub const MAX_SEGMENT_HEADER_BYTES: usize = 256;

/// The header as numbers. In memory between host and guest it is little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VirtioNetHeader {
    /// [`FLAG_NEEDS_CSUM`], [`FLAG_DATA_VALID`].
    pub flags: u8,
    /// `GSO_...`
    pub gso_type: u8,
    /// Length of the headers: a hint.
    pub hdr_len: u16,
    /// Payload bytes of one segment.
    pub gso_size: u16,
    /// Where the checksum starts to sum.
    pub csum_start: u16,
    /// Where the checksum is, from `csum_start`.
    pub csum_offset: u16,
    /// Number of merged buffers; only in the 12-byte form.
    pub num_buffers: u16,
}

/// How a super-frame is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segmentation {
    /// [`GSO_TCPV4`], [`GSO_TCPV6`] or [`GSO_UDP_L4`].
    pub gso_type: u8,
    /// Payload bytes of every segment but the last.
    pub payload_bytes: usize,
    /// Number of segments, at least 1.
    pub segments: usize,
}

/// What is left to do before a frame may go on a wire, after validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// The frame is complete; its checksums are as the sender wrote them.
    Complete,
    /// One frame, whose checksum is partial: [`crate::checksum::complete`] with these places.
    Checksum {
        /// First summed byte, from the start of the frame.
        start: usize,
        /// Place of the checksum, from the start of the frame.
        field: usize,
    },
    /// A super-frame: [`crate::segment::Segmenter`].
    Segment(Segmentation),
}

/// Whether a header asks for nothing, and [`VirtioNetHeader::validate`] would say so of a frame of so many bytes.
#[inline]
pub fn asks_nothing(header: &[u8; HEADER_BYTES], frame_bytes: usize) -> bool {
    // Flags, kind of segmentation, length of the headers; without a kind the rest means nothing.
    let word = u64::from_le_bytes(get_array(header, 0));
    word & 0xffff & !u64::from(FLAG_DATA_VALID) == 0 && usize::from((word >> 16) as u16) <= frame_bytes
}

impl VirtioNetHeader {
    /// Reads the header from the first [`HEADER_BYTES`] or [`MERGEABLE_HEADER_BYTES`] (`length`) of a buffer.
    ///
    /// # Errors
    /// [`PacketError::VirtioTruncated`], also for any other `length`.
    #[inline]
    pub fn decode(buffer: &[u8], length: usize) -> Result<Self, PacketError> {
        if buffer.len() < length || !matches!(length, HEADER_BYTES | MERGEABLE_HEADER_BYTES) {
            return Err(PacketError::VirtioTruncated);
        }
        let number = |at: usize| u16::from_le_bytes([buffer[at], buffer[at + 1]]);
        Ok(Self {
            flags: buffer[0],
            gso_type: buffer[1],
            hdr_len: number(2),
            gso_size: number(4),
            csum_start: number(6),
            csum_offset: number(8),
            num_buffers: if length == MERGEABLE_HEADER_BYTES { number(10) } else { 0 },
        })
    }

    /// The first [`HEADER_BYTES`] as two numbers that are little-endian in memory: written so, they can be read soon after.
    #[inline]
    pub fn words(&self) -> (u64, u16) {
        let kind = u64::from(self.flags) | u64::from(self.gso_type) << 8;
        let lengths = u64::from(self.hdr_len) << 16 | u64::from(self.gso_size) << 32;
        (kind | lengths | u64::from(self.csum_start) << 48, self.csum_offset)
    }

    /// Writes the header in `length` bytes.
    ///
    /// # Errors
    /// [`PacketError::BufferTooSmall`], also for a `length` that is neither 10 nor 12.
    #[inline]
    pub fn encode(&self, buffer: &mut [u8], length: usize) -> Result<(), PacketError> {
        if buffer.len() < length || !matches!(length, HEADER_BYTES | MERGEABLE_HEADER_BYTES) {
            return Err(PacketError::BufferTooSmall);
        }
        let (first, last) = self.words();
        put(buffer, 0, &first.to_le_bytes());
        put(buffer, 8, &last.to_le_bytes());
        if length == MERGEABLE_HEADER_BYTES {
            put(buffer, 10, &self.num_buffers.to_le_bytes());
        }
        Ok(())
    }

    /// Checks what the header asks for against the frame (`frame_bytes` long) that follows it.
    ///
    /// # Errors
    /// The `Virtio...` reasons.
    #[inline]
    pub fn validate(&self, frame_bytes: usize, parsed: &Parsed) -> Result<Offload, PacketError> {
        if self.flags & !(FLAG_NEEDS_CSUM | FLAG_DATA_VALID) != 0 {
            return Err(PacketError::VirtioFlags);
        }
        if usize::from(self.hdr_len) > frame_bytes {
            return Err(PacketError::VirtioHeaderLength);
        }
        let needs_checksum = self.flags & FLAG_NEEDS_CSUM != 0;
        if self.gso_type != GSO_NONE {
            if !needs_checksum {
                return Err(PacketError::VirtioGsoChecksum);
            }
            self.validate_checksum(frame_bytes, parsed)?;
            return self.validate_segmentation(parsed).map(Offload::Segment);
        }
        if !needs_checksum {
            return Ok(Offload::Complete);
        }
        let (start, field) = self.validate_checksum(frame_bytes, parsed)?;
        Ok(Offload::Checksum { start, field })
    }

    /// The partial checksum must be that of the outermost transport header. Anywhere else a guest could have us write
    /// over the very fields that were just checked.
    fn validate_checksum(&self, frame_bytes: usize, parsed: &Parsed) -> Result<(usize, usize), PacketError> {
        let inside = match parsed.transport {
            Transport::Tcp => TCP_CHECKSUM_OFFSET,
            Transport::Udp => UDP_CHECKSUM_OFFSET,
            _ => return Err(PacketError::VirtioChecksum),
        };
        let (start, offset) = (usize::from(self.csum_start), usize::from(self.csum_offset));
        let fits = start == parsed.l4_offset && offset == inside && start + offset + 2 <= frame_bytes;
        if !fits || parsed.fragment != Fragment::Whole {
            return Err(PacketError::VirtioChecksum);
        }
        Ok((start, start + offset))
    }

    fn validate_segmentation(&self, parsed: &Parsed) -> Result<Segmentation, PacketError> {
        let gso_type = self.gso_type & !GSO_ECN;
        let fits = match (gso_type, parsed.network, parsed.transport) {
            (GSO_TCPV4, Network::Ipv4, Transport::Tcp) | (GSO_TCPV6, Network::Ipv6, Transport::Tcp) => true,
            (GSO_UDP_L4, _, Transport::Udp) => {
                self.gso_type & GSO_ECN == 0 && parsed.payload_end == parsed.end
            }
            _ => false,
        };
        if !fits {
            return Err(PacketError::VirtioGsoType);
        }
        if parsed.tcp_flags & (tcp_flags::SYN | tcp_flags::RST) != 0 {
            return Err(PacketError::VirtioGsoFlags);
        }
        if parsed.payload_offset > MAX_SEGMENT_HEADER_BYTES {
            return Err(PacketError::VirtioHeaderLength);
        }
        let payload_bytes = usize::from(self.gso_size);
        if payload_bytes == 0 || parsed.payload_length().div_ceil(payload_bytes) > MAX_SEGMENTS {
            return Err(PacketError::VirtioGsoSize);
        }
        let segments = parsed.payload_length().div_ceil(payload_bytes).max(1);
        Ok(Segmentation { gso_type, payload_bytes, segments })
    }
}

impl Offload {
    /// A clean header that asks the next device (a TAP, a guest that negotiated it) for the same.
    #[inline]
    pub fn header(&self, parsed: &Parsed) -> VirtioNetHeader {
        let mut header = VirtioNetHeader { num_buffers: 1, ..VirtioNetHeader::default() };
        if *self == Offload::Complete {
            return header;
        }
        header.flags = FLAG_NEEDS_CSUM;
        header.csum_start = parsed.l4_offset as u16;
        header.csum_offset =
            if parsed.transport == Transport::Tcp { TCP_CHECKSUM_OFFSET } else { UDP_CHECKSUM_OFFSET } as u16;
        if let Offload::Segment(segmentation) = self {
            let ecn = if parsed.tcp_flags & tcp_flags::CWR != 0 { GSO_ECN } else { 0 };
            header.gso_type = segmentation.gso_type | ecn;
            header.gso_size = segmentation.payload_bytes as u16;
            header.hdr_len = parsed.payload_offset as u16;
        }
        header
    }
}

#[cfg(test)]
mod tests;
