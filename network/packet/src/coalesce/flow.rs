//! One open flow: the header of its first segment and the payload pieces so far.

use super::{Checksums, FlushReason, MAX_PARTS, MAX_SUPER_FRAME_BYTES, Output, Part, Place};
use crate::bytes::{get32, put16};
use crate::checksum::{Sum, TCP_CHECKSUM_OFFSET, UDP_CHECKSUM_OFFSET, checksum, pseudo_header};
use crate::headers::{IPV6_BYTES, Network, Parsed, Transport, tcp_flags};
use crate::virtio::{
    FLAG_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, MERGEABLE_HEADER_BYTES, VirtioNetHeader,
};

/// Longest frame header that can be joined: Ethernet with a tag, IPv6 without extensions, TCP with all options.
const MAX_FRAME_HEADER_BYTES: usize = 18 + IPV6_BYTES + 60;

/// Why a frame does not continue the super-frame.
pub(super) struct Refusal(pub(super) FlushReason);

#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFlow {
    /// Zero: not open.
    age: u64,
    /// Description of the first frame; meaningful while open.
    first: Option<Parsed>,
    place: Place,
    frame_bytes: usize,
    segment_bytes: usize,
    payload_bytes: usize,
    push: bool,
    parts: usize,
    list: [Part; MAX_PARTS],
    /// Room for the virtio-net header, then the frame header of the first segment.
    header: [u8; MERGEABLE_HEADER_BYTES + MAX_FRAME_HEADER_BYTES],
}

impl OpenFlow {
    pub(super) const EMPTY: OpenFlow = OpenFlow {
        age: 0,
        first: None,
        place: Place { port: 0, buffer: 0, start: 0, checksums: Checksums::Unknown },
        frame_bytes: 0,
        segment_bytes: 0,
        payload_bytes: 0,
        push: false,
        parts: 0,
        list: [Part { buffer: 0, start: 0, length: 0 }; MAX_PARTS],
        header: [0; MERGEABLE_HEADER_BYTES + MAX_FRAME_HEADER_BYTES],
    };

    pub(super) fn is_open(&self) -> bool {
        self.first.is_some()
    }

    pub(super) fn age(&self) -> u64 {
        self.age
    }

    pub(super) fn parts(&self) -> usize {
        self.parts
    }

    pub(super) fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    pub(super) fn first(&self) -> Place {
        self.place
    }

    pub(super) fn first_frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    pub(super) fn release(&mut self) {
        self.first = None;
        self.parts = 0;
    }

    /// Whether the frame is of the same flow: order within it must be kept.
    #[inline]
    pub(super) fn is_of(&self, port: u32, parsed: &Parsed) -> bool {
        self.first.as_ref().is_some_and(|first| {
            self.place.port == port
                && first.source_port == parsed.source_port
                && first.destination_port == parsed.destination_port
                && first.transport == parsed.transport
                && first.source == parsed.source
                && first.destination == parsed.destination
                && first.vlan_id() == parsed.vlan_id()
        })
    }

    pub(super) fn open(&mut self, age: u64, place: Place, frame: &[u8], parsed: &Parsed) {
        self.age = age;
        self.place = place;
        self.frame_bytes = frame.len();
        self.segment_bytes = parsed.payload_length();
        self.payload_bytes = 0;
        self.push = false;
        self.parts = 0;
        self.first = Some(*parsed);
        let header = &frame[..parsed.payload_offset];
        self.header[MERGEABLE_HEADER_BYTES..][..header.len()].copy_from_slice(header);
        self.append(place, parsed);
    }

    pub(super) fn append(&mut self, place: Place, parsed: &Parsed) {
        let length = parsed.payload_length();
        let start = place.start + parsed.payload_offset as u32;
        self.list[self.parts] = Part { buffer: place.buffer, start, length: length as u32 };
        self.parts += 1;
        self.payload_bytes += length;
        self.push |= parsed.tcp_flags & tcp_flags::PSH != 0;
    }

    /// Appends a payload of the first segment's length; false if there is no room for it.
    #[inline]
    pub(super) fn extend(&mut self, payload: Part, max_parts: usize) -> bool {
        let Some(first) = &self.first else { return false };
        let length = payload.length as usize;
        let bytes = first.payload_offset + self.payload_bytes + length;
        if self.parts >= max_parts || length != self.segment_bytes || bytes > MAX_SUPER_FRAME_BYTES {
            return false;
        }
        self.list[self.parts] = payload;
        self.parts += 1;
        self.payload_bytes += length;
        true
    }

    /// Why the frame, which is of this flow and joinable, does not continue the super-frame; `None` if it does.
    #[inline]
    pub(super) fn refuses(&self, frame: &[u8], parsed: &Parsed, max_parts: usize) -> Option<Refusal> {
        let Some(first) = &self.first else { return Some(Refusal(FlushReason::Header)) };
        let header = &self.header[MERGEABLE_HEADER_BYTES..][..first.payload_offset];
        if self.parts >= max_parts {
            return Some(Refusal(FlushReason::Parts));
        }
        if parsed.payload_length() > self.segment_bytes {
            return Some(Refusal(FlushReason::LongSegment));
        }
        if first.payload_offset + self.payload_bytes + parsed.payload_length() > MAX_SUPER_FRAME_BYTES {
            return Some(Refusal(FlushReason::Bytes));
        }
        if !self.same_header(header, first, frame, parsed) {
            return Some(Refusal(FlushReason::Header));
        }
        if parsed.transport == Transport::Tcp {
            let expected = get32(header, first.l4_offset + 4).wrapping_add(self.payload_bytes as u32);
            if get32(frame, parsed.l4_offset + 4) != expected {
                return Some(Refusal(FlushReason::Sequence));
            }
        }
        None
    }

    /// Compares all header bytes but lengths, identification, checksums, sequence and PSH.
    #[inline]
    fn same_header(&self, header: &[u8], first: &Parsed, frame: &[u8], parsed: &Parsed) -> bool {
        let (l3, l4, end) = (first.l3_offset, first.l4_offset, first.payload_offset);
        let same_places = l3 == parsed.l3_offset && l4 == parsed.l4_offset && end == parsed.payload_offset;
        if !same_places || header[..l3] != frame[..l3] {
            return false;
        }
        let same_network = if first.network == Network::Ipv4 {
            let expected = (first.identification as u16).wrapping_add(self.parts as u16);
            let counts_up = parsed.dont_fragment || parsed.identification as u16 == expected;
            counts_up
                && header[l3..l3 + 2] == frame[l3..l3 + 2]
                && header[l3 + 6..l3 + 10] == frame[l3 + 6..l3 + 10]
        } else {
            header[l3..l3 + 4] == frame[l3..l3 + 4] && header[l3 + 6..l3 + 8] == frame[l3 + 6..l3 + 8]
        };
        if !same_network || first.transport == Transport::Udp {
            return same_network;
        }
        let psh = tcp_flags::PSH;
        header[l4 + 8..l4 + 13] == frame[l4 + 8..l4 + 13]
            && header[l4 + 13] | psh == frame[l4 + 13] | psh
            && header[l4 + 14..l4 + 16] == frame[l4 + 14..l4 + 16]
            && header[l4 + 18..end] == frame[l4 + 18..end]
    }

    /// Rewrites the header for the whole super-frame and describes it. `virtio_bytes` is 10 or 12.
    pub(super) fn finish(&mut self, virtio_bytes: usize) -> Output<'_> {
        let from = MERGEABLE_HEADER_BYTES - virtio_bytes;
        let Some(first) = &self.first else { return Output { port: 0, header: &[], parts: &[] } };
        let header_bytes = first.payload_offset;
        let header = &mut self.header[MERGEABLE_HEADER_BYTES..][..header_bytes];
        write_network(header, first, self.payload_bytes);
        write_transport(header, first, self.payload_bytes, self.push);
        let virtio = virtio_header(first, self.segment_bytes);
        let encoded = virtio.encode(&mut self.header[from..], virtio_bytes);
        debug_assert!(encoded.is_ok());
        Output {
            port: self.place.port,
            header: &self.header[from..MERGEABLE_HEADER_BYTES + header_bytes],
            parts: &self.list[..self.parts],
        }
    }
}

fn write_network(header: &mut [u8], first: &Parsed, payload_bytes: usize) {
    let l3 = first.l3_offset;
    let length = header.len() - l3 + payload_bytes;
    if first.network == Network::Ipv6 {
        put16(header, l3 + 4, (length - IPV6_BYTES) as u16);
        return;
    }
    put16(header, l3 + 2, length as u16);
    put16(header, l3 + 10, 0);
    let value = checksum(&header[l3..first.l4_offset]);
    put16(header, l3 + 10, value);
}

fn write_transport(header: &mut [u8], first: &Parsed, payload_bytes: usize, push: bool) {
    let l4 = first.l4_offset;
    let length = header.len() - l4 + payload_bytes;
    let partial: Sum = pseudo_header(&first.source, &first.destination, first.protocol, length);
    if first.transport == Transport::Udp {
        put16(header, l4 + 4, length as u16);
        put16(header, l4 + UDP_CHECKSUM_OFFSET, partial.partial());
        return;
    }
    if push {
        header[l4 + 13] |= tcp_flags::PSH;
    }
    put16(header, l4 + TCP_CHECKSUM_OFFSET, partial.partial());
}

fn virtio_header(first: &Parsed, segment_bytes: usize) -> VirtioNetHeader {
    let (gso_type, csum_offset) = match (first.transport, first.network) {
        (Transport::Udp, _) => (GSO_UDP_L4, UDP_CHECKSUM_OFFSET),
        (_, Network::Ipv6) => (GSO_TCPV6, TCP_CHECKSUM_OFFSET),
        _ => (GSO_TCPV4, TCP_CHECKSUM_OFFSET),
    };
    VirtioNetHeader {
        flags: FLAG_NEEDS_CSUM,
        gso_type,
        hdr_len: first.payload_offset as u16,
        gso_size: segment_bytes as u16,
        csum_start: first.l4_offset as u16,
        csum_offset: csum_offset as u16,
        num_buffers: 1,
    }
}
