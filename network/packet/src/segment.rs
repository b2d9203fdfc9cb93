//! Cuts a TCP or UDP super-frame into segments, for a scatter and gather send.
//!
//! Row A19 (few packets per byte) and the rules of Linux's own segmentation: IPv4 identification plus n; TCP sequence
//! plus offset, FIN and PSH only on the last, CWR only on the first; every length and checksum right, so that no
//! receiver has to trust us; or, where the receiver completes it, a partial transport checksum, so that nobody has to
//! read the payload ([`Segmenter::leave_partial`]). The payload is not copied: each segment is a header in the caller's buffer and a range of
//! the super-frame. All segments but the last are equal in size, as UDP_SEGMENT wants them.

use std::ops::Range;

use crate::PacketError;
use crate::bytes::{get32, put16, put32};
use crate::checksum::{Sum, TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET, addresses};
use crate::headers::{Network, Parsed, Transport, tcp_flags};
use crate::virtio::{GSO_UDP_L4, MAX_SEGMENT_HEADER_BYTES, Segmentation};

const IPV4_TOTAL_LENGTH: usize = 2;
const IPV4_IDENTIFICATION: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const IPV6_PAYLOAD_LENGTH: usize = 4;
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const UDP_LENGTH: usize = 4;

/// An iterator over the segments of one super-frame.
#[derive(Debug)]
pub struct Segmenter<'a> {
    frame: &'a [u8],
    l3_offset: usize,
    l4_offset: usize,
    header_bytes: usize,
    payload: Range<usize>,
    segment_bytes: usize,
    is_v6: bool,
    is_udp: bool,
    sequence: u32,
    flags: u8,
    identification: u16,
    /// Sum of the IPv4 header without total length, identification and checksum.
    network_sum: Sum,
    /// Sum of addresses, protocol and transport header without length, sequence, flags and checksum.
    transport_sum: Sum,
    /// Sum of addresses and protocol, if transport checksums shall stay partial.
    partial_sum: Option<Sum>,
    index: usize,
    at: usize,
}

impl<'a> Segmenter<'a> {
    /// Prepares to cut `frame`. `segmentation` comes from [`crate::virtio::VirtioNetHeader::validate`] or is the caller's.
    ///
    /// # Errors
    /// `VirtioGsoType`, `VirtioGsoSize`, `VirtioHeaderLength`, `FrameMismatch`.
    pub fn new(frame: &'a [u8], parsed: &Parsed, segmentation: &Segmentation) -> Result<Self, PacketError> {
        parsed.check(frame)?;
        Self::prepare(frame, parsed, segmentation)
    }

    /// Prepares to cut a super-frame of which only the headers, Ethernet to transport, are at hand: its payload is where the
    /// caller knows. Transport checksums stay partial, so nobody has to read it.
    ///
    /// # Errors
    /// As [`Segmenter::new`]; `FrameMismatch` if `header` is shorter than the headers that `parsed` tells of.
    pub fn of_header(
        header: &'a [u8],
        parsed: &Parsed,
        segmentation: &Segmentation,
    ) -> Result<Self, PacketError> {
        if header.len() < parsed.payload_offset {
            return Err(PacketError::FrameMismatch);
        }
        Ok(Self::prepare(header, parsed, segmentation)?.leave_partial(parsed))
    }

    fn prepare(frame: &'a [u8], parsed: &Parsed, segmentation: &Segmentation) -> Result<Self, PacketError> {
        let is_udp = segmentation.gso_type == GSO_UDP_L4;
        if parsed.transport != if is_udp { Transport::Udp } else { Transport::Tcp } {
            return Err(PacketError::VirtioGsoType);
        }
        if parsed.payload_offset > MAX_SEGMENT_HEADER_BYTES {
            return Err(PacketError::VirtioHeaderLength);
        }
        if segmentation.payload_bytes == 0 {
            return Err(PacketError::VirtioGsoSize);
        }
        let mut segmenter = Self {
            frame,
            l3_offset: parsed.l3_offset,
            l4_offset: parsed.l4_offset,
            header_bytes: parsed.payload_offset,
            payload: parsed.payload_offset..parsed.payload_end,
            segment_bytes: segmentation.payload_bytes,
            is_v6: parsed.network == Network::Ipv6,
            is_udp,
            sequence: 0,
            flags: parsed.tcp_flags,
            identification: parsed.identification as u16,
            network_sum: Sum::ZERO,
            transport_sum: Sum::ZERO,
            partial_sum: None,
            index: 0,
            at: parsed.payload_offset,
        };
        segmenter.prepare_sums(parsed);
        Ok(segmenter)
    }

    /// Leaves the transport checksum of every segment partial: the sum of its pseudo header.
    #[must_use]
    pub fn leave_partial(mut self, parsed: &Parsed) -> Self {
        let sum = addresses(&parsed.source, &parsed.destination).double(u32::from(parsed.protocol));
        self.partial_sum = Some(sum);
        self
    }

    /// Sums once what all segments have in common, by taking the changing words out of the whole.
    fn prepare_sums(&mut self, parsed: &Parsed) {
        let mut header = [0; MAX_SEGMENT_HEADER_BYTES];
        let header = &mut header[..self.header_bytes];
        header.copy_from_slice(&self.frame[..self.header_bytes]);
        let (l3, l4) = (self.l3_offset, self.l4_offset);
        if !self.is_v6 {
            put16(header, l3 + IPV4_TOTAL_LENGTH, 0);
            put16(header, l3 + IPV4_IDENTIFICATION, 0);
            put16(header, l3 + IPV4_CHECKSUM, 0);
            self.network_sum = Sum::ZERO.bytes(&header[l3..l4]);
        }
        if self.is_udp {
            put16(header, l4 + UDP_LENGTH, 0);
            put16(header, l4 + UDP_CHECKSUM_OFFSET, 0);
        } else {
            self.sequence = get32(header, l4 + TCP_SEQUENCE);
            put32(header, l4 + TCP_SEQUENCE, 0);
            header[l4 + TCP_FLAGS] = 0;
            put16(header, l4 + TCP_CHECKSUM_OFFSET, 0);
        }
        self.transport_sum = addresses(&parsed.source, &parsed.destination)
            .double(u32::from(parsed.protocol))
            .bytes(&header[l4..]);
    }

    /// Length of the header of every segment: Ethernet to transport.
    pub fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// How many segments there are in all; a super-frame without payload is one.
    pub fn count(&self) -> usize {
        self.payload.len().div_ceil(self.segment_bytes).max(1)
    }

    /// Writes the header of the next segment into the first [`Segmenter::header_bytes`] of `header` and returns the
    /// range of its payload in the super-frame; `None` when all are done or `header` is too small.
    #[inline]
    pub fn next_into(&mut self, header: &mut [u8]) -> Option<Range<usize>> {
        let done = self.index > 0 && self.at >= self.payload.end;
        if done || header.len() < self.header_bytes {
            return None;
        }
        let header = &mut header[..self.header_bytes];
        header.copy_from_slice(&self.frame[..self.header_bytes]);
        let range = self.at..(self.at + self.segment_bytes).min(self.payload.end);
        self.write_network(header, range.len());
        if self.is_udp {
            self.write_udp(header, &range)
        } else {
            self.write_tcp(header, &range)
        }
        self.at = range.end;
        self.index += 1;
        Some(range)
    }

    #[inline]
    fn write_network(&self, header: &mut [u8], payload_bytes: usize) {
        let l3 = self.l3_offset;
        let length = self.header_bytes - l3 + payload_bytes;
        if self.is_v6 {
            put16(header, l3 + IPV6_PAYLOAD_LENGTH, (length - crate::headers::IPV6_BYTES) as u16);
            return;
        }
        let identification = self.identification.wrapping_add(self.index as u16);
        let checksum = self.network_sum.word(length as u16).word(identification).finish();
        put16(header, l3 + IPV4_TOTAL_LENGTH, length as u16);
        put16(header, l3 + IPV4_IDENTIFICATION, identification);
        put16(header, l3 + IPV4_CHECKSUM, checksum);
    }

    #[inline]
    fn write_tcp(&self, header: &mut [u8], range: &Range<usize>) {
        let l4 = self.l4_offset;
        let sequence = self.sequence.wrapping_add((range.start - self.payload.start) as u32);
        let mut flags = self.flags;
        if range.end < self.payload.end {
            flags &= !(tcp_flags::FIN | tcp_flags::PSH);
        }
        if self.index > 0 {
            flags &= !tcp_flags::CWR;
        }
        let length = self.header_bytes - l4 + range.len();
        let checksum = match self.partial_sum {
            Some(sum) => sum.double(length as u32).partial(),
            None => {
                let sum = self.transport_sum.double(length as u32).double(sequence).word(u16::from(flags));
                sum.bytes(&self.frame[range.clone()]).finish()
            }
        };
        put32(header, l4 + TCP_SEQUENCE, sequence);
        header[l4 + TCP_FLAGS] = flags;
        put16(header, l4 + TCP_CHECKSUM_OFFSET, checksum);
    }

    #[inline]
    fn write_udp(&self, header: &mut [u8], range: &Range<usize>) {
        let l4 = self.l4_offset;
        let length = self.header_bytes - l4 + range.len();
        let checksum = match self.partial_sum {
            Some(sum) => sum.double(length as u32).partial(),
            None => {
                // Once in the pseudo header, once in the UDP header.
                let sum = self.transport_sum.double(length as u32).word(length as u16);
                sum.bytes(&self.frame[range.clone()]).finish_transport()
            }
        };
        put16(header, l4 + UDP_LENGTH, length as u16);
        put16(header, l4 + UDP_CHECKSUM_OFFSET, checksum);
    }
}

#[cfg(test)]
mod tests;
