//! Where a frame of the arena goes out: to a port, or gathered for another switch, cut into segments if it is a super-frame.

use super::spread::Shape;
use super::{HEADER_BYTES, Path, SEGMENTS_TO_FLUSH, outer_of};
use crate::capture::Outer;
use crate::engine::counters::EngineEvent;
use crate::engine::forward::{self, Checked};
use crate::engine::port;
use crate::flowtable::tunnel::Tunnel;
use weir_packet::checksum;
use weir_packet::encap::InnerChecksum;
use weir_packet::segment::Segmenter;
use weir_packet::virtio::{MAX_SEGMENT_HEADER_BYTES, Offload, Segmentation};

impl Path {
    /// Writes a frame of the arena to a port, whole, with a clean virtio header.
    pub(super) fn send_to_port(&mut self, number: usize, at: usize, length: usize, packet: &mut Checked) {
        let counters = &self.shared.counters;
        let (packets, bytes) = packet.weight(length);
        if let Some(addresses) = self.ports.ethernet(number) {
            // It cannot fail for a frame that was parsed.
            let _ = forward::set_ethernet(&mut self.arena[at..at + length], packet, addresses);
        }
        if !self.taps.is_empty() {
            self.taps.port(number, &[&self.arena[at..at + length]], counters);
        }
        let frame = &mut self.arena[at - HEADER_BYTES..at + length];
        let header = packet.offload.header(&packet.parsed);
        port::write(&self.ports, counters, number, &header, frame, packets, bytes);
    }

    /// Gathers a frame of the arena for another switch. Returns the shape to read the next one of its port with.
    pub(super) fn send_to_underlay(
        &mut self,
        tunnel: &Tunnel,
        hash: u64,
        at: usize,
        length: usize,
        gaps: Option<Shape>,
        packet: &Checked,
    ) -> Option<Shape> {
        let inner = self.inner_checksum(tunnel, &packet.offload);
        match packet.offload {
            Offload::Segment(cut) => {
                let shape = match inner {
                    InnerChecksum::Partial => Shape::of(packet, tunnel.header(inner).len()),
                    // Somebody must read the payload.
                    InnerChecksum::Accepts | InnerChecksum::Full => None,
                };
                match gaps {
                    Some(gaps) if shape == Some(gaps) => {
                        self.spread_to_underlay(tunnel, hash, at, length, gaps, packet, &cut);
                    }
                    _ => {
                        if let Some(gaps) = gaps {
                            gaps.close(&mut self.arena, at, length);
                        }
                        self.segments_to_underlay(tunnel, inner, hash, at, length, packet, &cut);
                    }
                }
                if cut.segments >= SEGMENTS_TO_FLUSH {
                    self.flush();
                }
                return shape;
            }
            Offload::Checksum { start, field } if inner != InnerChecksum::Partial => {
                let end = packet.parsed.payload_end;
                // The places were checked against the frame.
                let _ = checksum::complete(&mut self.arena[at..at + length], start, field, end);
            }
            Offload::Checksum { .. } | Offload::Complete => {}
        }
        let header = tunnel.header(inner);
        let from = at - header.len();
        self.arena[from..at].copy_from_slice(&header);
        if !self.taps.is_empty() {
            let outer = self.outer_to(tunnel, packet.parsed.ecn());
            self.taps.underlay(&outer, [&header, &self.arena[at..at + length]], &self.shared.counters);
        }
        self.arena_used = at + length;
        let datagram = &self.arena[from..at + length];
        // SAFETY: the arena up to `arena_used` stays as it is until `flush`, which sends first.
        #[allow(unsafe_code)]
        unsafe {
            self.transmit.append(tunnel, hash, packet.parsed.ecn(), 0, datagram);
        }
        None
    }

    /// What a packet to another switch says of its checksum.
    #[inline]
    pub(super) fn inner_checksum(&self, tunnel: &Tunnel, offload: &Offload) -> InnerChecksum {
        self.peers.inner_checksum(tunnel, offload, self.now_ms)
    }

    #[allow(clippy::too_many_arguments)]
    fn segments_to_underlay(
        &mut self,
        tunnel: &Tunnel,
        inner: InnerChecksum,
        hash: u64,
        at: usize,
        length: usize,
        packet: &Checked,
        cut: &Segmentation,
    ) {
        let frame = &self.arena[at..at + length];
        let Ok(mut segmenter) = Segmenter::new(frame, &packet.parsed, cut) else { return };
        if inner == InnerChecksum::Partial {
            segmenter = segmenter.leave_partial(&packet.parsed);
        }
        let header = tunnel.header(inner);
        let (tunnel_bytes, inner_bytes) = (header.len(), segmenter.header_bytes());
        let ecn = packet.parsed.ecn();
        self.arena_used = at + length;
        loop {
            let room = self.transmit.header_room(tunnel_bytes + inner_bytes);
            room[..tunnel_bytes].copy_from_slice(&header);
            let Some(payload) = segmenter.next_into(&mut room[tunnel_bytes..]) else { break };
            let payload = &frame[payload];
            if !self.taps.is_empty() {
                let inner = [&room[tunnel_bytes..], payload].concat();
                let outer = outer_of(self.underlay, tunnel, &self.underlay_ports, ecn);
                self.taps.underlay(&outer, [&header, &inner], &self.shared.counters);
            }
            // SAFETY: the arena up to `arena_used` stays as it is until `flush`, which sends first.
            #[allow(unsafe_code)]
            unsafe {
                self.transmit.append_cut(tunnel, hash, ecn, tunnel_bytes + inner_bytes, payload);
            }
        }
    }

    /// Gathers a super-frame whose payload was read with gaps: the headers go into them.
    #[allow(clippy::too_many_arguments)]
    fn spread_to_underlay(
        &mut self,
        tunnel: &Tunnel,
        hash: u64,
        at: usize,
        length: usize,
        gaps: Shape,
        packet: &Checked,
        cut: &Segmentation,
    ) {
        let header = tunnel.header(InnerChecksum::Partial);
        let mut inner = [0; MAX_SEGMENT_HEADER_BYTES];
        let inner = &mut inner[..packet.parsed.payload_offset];
        inner.copy_from_slice(&self.arena[at..at + packet.parsed.payload_offset]);
        let Ok(mut segmenter) = Segmenter::of_header(inner, &packet.parsed, cut) else { return };
        let first = at - gaps.tunnel();
        let (mut to, mut payload_bytes) = (first, 0);
        while payload_bytes < length - inner.len() {
            let room = &mut self.arena[to..to + gaps.gap()];
            room[..header.len()].copy_from_slice(&header);
            let Some(payload) = segmenter.next_into(&mut room[header.len()..]) else { break };
            to += gaps.gap() + payload.len();
            payload_bytes += payload.len();
        }
        self.arena_used = to;
        self.shared.counters.event(EngineEvent::SpreadFrames).add(1);
        let datagrams = &self.arena[first..to];
        // SAFETY: the arena up to `arena_used` stays as it is until `flush`, which sends first.
        #[allow(unsafe_code)]
        unsafe {
            self.transmit.append_run(tunnel, hash, packet.parsed.ecn(), datagrams, gaps.datagram());
        }
    }

    fn outer_to(&self, tunnel: &Tunnel, ecn: u8) -> Outer {
        outer_of(self.underlay, tunnel, &self.underlay_ports, ecn)
    }
}
