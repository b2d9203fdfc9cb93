//! Joins received TCP segments (and, where asked, UDP datagrams) of one flow into super-frames.
//!
//! Row A19: a TAP write or a guest's descriptor per 64 KiB and not per segment. Several flows stay open at once, since
//! parallel connections interleave on the wire.
//!
//! Nothing of the payload is copied. An [`Output`] is a header (virtio-net header, then for a super-frame its rewritten
//! Ethernet, IP and transport headers) and a list of [`Part`]s of the receive buffers, so that one `writev` emits it.
//! The state names buffers by number and not by reference: it is made once and used for every batch.
//!
//! Two segments are joined only if both checksums are right (or the transport checksum is partial and somebody vouches
//! for the payload) and Ethernet addresses, tag, IP header (but length and
//! identification), ports, acknowledgement, window, TCP options and flags (but PSH) are equal and the
//! sequence goes on. Identifications must count up unless "don't fragment" is set (RFC 6864). PSH, a segment shorter than the first, 64 parts or
//! 65535 bytes close the super-frame. SYN, FIN, RST, URG and CWR, IP options and fragments are never joined.
//!
//! Invariants:
//! - Frames of one flow leave in the order in which they came; cutting a super-frame again gives the same segments.
//! - A frame that is not joined leaves as it came, with a virtio header that asks for nothing, or for its partial
//!   checksum to be completed.
//! - After [`Coalescer::flush`] nothing is held. The caller flushes before it reuses the buffers.

mod flow;

use crate::checksum;
use crate::headers::{Fragment, Parsed, Transport, tcp_flags};
use crate::virtio::{
    FLAG_DATA_VALID, FLAG_NEEDS_CSUM, HEADER_BYTES, MERGEABLE_HEADER_BYTES, VirtioNetHeader,
};
use flow::{OpenFlow, Refusal};

/// Flows that may be open at once.
pub const MAX_OPEN_FLOWS: usize = 8;
/// Segments of one super-frame.
pub const MAX_PARTS: usize = 64;
/// Bytes of one super-frame, its headers included.
pub const MAX_SUPER_FRAME_BYTES: usize = 65535;

/// A piece of a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// The caller's number of the buffer.
    pub buffer: u32,
    /// First byte in the buffer.
    pub start: u32,
    /// Number of bytes.
    pub length: u32,
}

/// One frame to write: `header`, then the parts in order.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    /// Where to: [`Place::port`] of the frames.
    pub port: u32,
    /// The virtio-net header, and the new frame headers of a super-frame.
    pub header: &'a [u8],
    /// Payload pieces of a super-frame; of a single frame, the whole frame.
    pub parts: &'a [Part],
}

/// Takes the outputs, for example into an iovec list.
pub trait Sink {
    /// Takes one frame. The slices are valid only during the call.
    fn emit(&mut self, output: Output<'_>);
}

impl<F: FnMut(Output<'_>)> Sink for F {
    fn emit(&mut self, output: Output<'_>) {
        self(output);
    }
}

/// Why a super-frame was closed, or a frame not joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FlushReason {
    /// The batch is over.
    BatchEnd,
    /// The segment had PSH.
    Push,
    /// The segment was shorter than the first.
    ShortSegment,
    /// 64 parts.
    Parts,
    /// 65535 bytes would be exceeded.
    Bytes,
    /// The sequence did not go on.
    Sequence,
    /// A header field differed.
    Header,
    /// The segment was longer than the first.
    LongSegment,
    /// A frame of the flow that cannot be joined at all came.
    Unmergeable,
    /// The table was full and this flow was the oldest.
    Evicted,
}

impl FlushReason {
    /// Every reason in the order of the counters.
    pub const ALL: [FlushReason; 10] = [
        FlushReason::BatchEnd,
        FlushReason::Push,
        FlushReason::ShortSegment,
        FlushReason::Parts,
        FlushReason::Bytes,
        FlushReason::Sequence,
        FlushReason::Header,
        FlushReason::LongSegment,
        FlushReason::Unmergeable,
        FlushReason::Evicted,
    ];

    /// The stable metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            FlushReason::BatchEnd => "batch_end",
            FlushReason::Push => "push",
            FlushReason::ShortSegment => "short_segment",
            FlushReason::Parts => "parts",
            FlushReason::Bytes => "bytes",
            FlushReason::Sequence => "sequence",
            FlushReason::Header => "header",
            FlushReason::LongSegment => "long_segment",
            FlushReason::Unmergeable => "unmergeable",
            FlushReason::Evicted => "evicted",
        }
    }
}

/// What the coalescer has done since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CoalesceCounters {
    /// Frames that came.
    pub frames: u64,
    /// Frames that left inside a super-frame.
    pub merged_frames: u64,
    /// Super-frames of two or more segments that left.
    pub super_frames: u64,
    /// Frames that left alone.
    pub single_frames: u64,
    /// Frames whose checksum was wrong; they left alone, for the receiver to judge.
    pub bad_checksums: u64,
    /// Closings of a flow by [`FlushReason`].
    pub flushes: [u64; FlushReason::ALL.len()],
}

/// How to coalesce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoalesceConfig {
    /// Write the 12-byte virtio-net header and not the 10-byte one.
    pub mergeable_header: bool,
    /// Join UDP datagrams of equal size. Only for a receiver that negotiated USO (gso_type UDP_L4).
    pub join_udp: bool,
    /// Most segments of a super-frame, at most [`MAX_PARTS`].
    pub max_parts: usize,
}

impl Default for CoalesceConfig {
    fn default() -> Self {
        Self { mergeable_header: false, join_udp: false, max_parts: MAX_PARTS }
    }
}

/// Where a frame lies, and what is known of its checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The caller's number of the output port. Frames for different ports are never joined, so one state can serve
    /// all ports and tenants whose addresses are the same stay apart.
    pub port: u32,
    /// The caller's number of the buffer.
    pub buffer: u32,
    /// First byte of the frame in the buffer.
    pub start: u32,
    /// What is known of its checksums.
    pub checksums: Checksums,
}

/// What is known of a frame's checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// Nothing: they are verified here before the frame is joined.
    Unknown,
    /// Both were verified.
    Verified,
    /// The transport checksum, which starts at `start` and lies `offset` behind it, is partial, as
    /// [`crate::checksum::fill_partial`] writes it. The network header's is right if there is one.
    Partial {
        /// Start of the transport header in the frame.
        start: u16,
        /// Place of the checksum in the transport header.
        offset: u16,
    },
}

/// The state: a few open flows. About 8 KiB; make it once and keep it.
#[derive(Debug)]
pub struct Coalescer {
    config: CoalesceConfig,
    flows: [OpenFlow; MAX_OPEN_FLOWS],
    /// Rises with each flow that is opened; the oldest has the smallest.
    clock: u64,
    open: usize,
    /// The flow that took the last frame, if one did.
    last: Option<usize>,
    counters: CoalesceCounters,
}

impl Coalescer {
    /// An empty state.
    pub fn new(config: CoalesceConfig) -> Self {
        let config = CoalesceConfig { max_parts: config.max_parts.clamp(1, MAX_PARTS), ..config };
        Self {
            config,
            flows: [OpenFlow::EMPTY; MAX_OPEN_FLOWS],
            clock: 0,
            open: 0,
            last: None,
            counters: CoalesceCounters::default(),
        }
    }

    /// What was done so far.
    pub fn counters(&self) -> &CoalesceCounters {
        &self.counters
    }

    /// How many flows are held now.
    pub fn open_flows(&self) -> usize {
        self.open
    }

    /// Takes one frame of the batch, `parsed` being its [`crate::parse`]. Emits what becomes complete by it.
    pub fn push<S: Sink>(&mut self, place: Place, frame: &[u8], parsed: &Parsed, sink: &mut S) {
        self.counters.frames += 1;
        self.last = None;
        if !self.has_flow(parsed) || parsed.check(frame).is_err() {
            self.emit_single(place, frame.len(), sink);
            return;
        }
        let found = self.find(place.port, parsed);
        if !self.is_mergeable(place, frame, parsed) {
            if let Some(index) = found {
                self.close(index, FlushReason::Unmergeable, sink);
            }
            self.emit_single(place, frame.len(), sink);
            return;
        }
        // Verified by now, by the caller or here.
        let place = match place.checksums {
            Checksums::Unknown => Place { checksums: Checksums::Verified, ..place },
            _ => place,
        };
        if let Some(index) = found {
            match self.flows[index].refuses(frame, parsed, self.config.max_parts) {
                None => {
                    self.append(index, place, frame, parsed, sink);
                    return;
                }
                Some(Refusal(reason)) => self.close(index, reason, sink),
            }
        }
        self.start(place, frame, parsed, sink);
    }

    /// Whether the last frame that was taken is held, so that [`Coalescer::extend`] may continue it.
    #[inline]
    pub fn holds_last(&self) -> bool {
        self.last.is_some()
    }

    /// Takes a frame of which the caller knows that it continues the one that was taken last: the same header but for what
    /// counts up, a payload (`payload`, in a receive buffer) of the same length, a partial checksum, no PSH. False: it
    /// was not taken, and [`Coalescer::push`] must have it.
    #[inline]
    pub fn extend(&mut self, payload: Part) -> bool {
        let Some(index) = self.last else { return false };
        // One part less than the most, so that the flow need not be closed here.
        if !self.flows[index].extend(payload, self.config.max_parts - 1) {
            return false;
        }
        self.counters.frames += 1;
        true
    }

    /// Emits all that is held, oldest first.
    pub fn flush<S: Sink>(&mut self, sink: &mut S) {
        while let Some(index) = self.oldest() {
            self.close(index, FlushReason::BatchEnd, sink);
        }
    }

    /// Whether frames of this kind can belong to an open flow, so that order matters.
    #[inline]
    fn has_flow(&self, parsed: &Parsed) -> bool {
        let kind = match parsed.transport {
            Transport::Tcp => true,
            Transport::Udp => self.config.join_udp,
            _ => false,
        };
        kind && parsed.fragment == Fragment::Whole
    }

    #[inline]
    fn is_mergeable(&mut self, place: Place, frame: &[u8], parsed: &Parsed) -> bool {
        let refused = tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST | tcp_flags::URG | tcp_flags::CWR;
        let flags = parsed.tcp_flags;
        let is_tcp = parsed.transport == Transport::Tcp;
        if is_tcp && (flags & refused != 0 || flags & tcp_flags::ACK == 0) {
            return false;
        }
        if !is_tcp && (parsed.payload_end != parsed.end || frame[parsed.l4_offset + 6..][..2] == [0, 0]) {
            return false;
        }
        if parsed.has_options || parsed.payload_length() == 0 || parsed.end > MAX_SUPER_FRAME_BYTES {
            return false;
        }
        let right = match place.checksums {
            Checksums::Verified => true,
            Checksums::Partial { .. } => checksum::verify_network(frame, parsed).is_ok(),
            Checksums::Unknown => checksum::verify(frame, parsed).is_ok(),
        };
        self.counters.bad_checksums += u64::from(!right);
        right
    }

    #[inline]
    fn find(&self, port: u32, parsed: &Parsed) -> Option<usize> {
        if self.open == 0 {
            return None;
        }
        self.flows.iter().position(|flow| flow.is_of(port, parsed))
    }

    fn oldest(&self) -> Option<usize> {
        let open = self.flows.iter().enumerate().filter(|(_, flow)| flow.is_open());
        open.min_by_key(|(_, flow)| flow.age()).map(|(index, _)| index)
    }

    fn start<S: Sink>(&mut self, place: Place, frame: &[u8], parsed: &Parsed, sink: &mut S) {
        if parsed.tcp_flags & tcp_flags::PSH != 0 {
            // Alone already: nothing may be joined behind a PSH.
            self.counters.flushes[FlushReason::Push as usize] += 1;
            self.emit_single(place, frame.len(), sink);
            return;
        }
        let free = match self.flows.iter().position(|flow| !flow.is_open()) {
            Some(index) => index,
            None => {
                let index = self.oldest().unwrap_or(0);
                self.close(index, FlushReason::Evicted, sink);
                index
            }
        };
        self.clock += 1;
        self.open += 1;
        self.flows[free].open(self.clock, place, frame, parsed);
        self.last = Some(free);
    }

    fn append<S: Sink>(&mut self, index: usize, place: Place, frame: &[u8], parsed: &Parsed, sink: &mut S) {
        let flow = &mut self.flows[index];
        flow.append(place, parsed);
        self.last = Some(index);
        let reason = if parsed.tcp_flags & tcp_flags::PSH != 0 {
            FlushReason::Push
        } else if parsed.payload_length() < flow.segment_bytes() {
            FlushReason::ShortSegment
        } else if flow.parts() == self.config.max_parts {
            FlushReason::Parts
        } else {
            return;
        };
        debug_assert!(parsed.end <= frame.len());
        self.close(index, reason, sink);
    }

    fn close<S: Sink>(&mut self, index: usize, reason: FlushReason, sink: &mut S) {
        self.counters.flushes[reason as usize] += 1;
        self.open -= 1;
        self.last = None;
        let header_bytes = self.header_bytes();
        let flow = &mut self.flows[index];
        let (parts, place, length) = (flow.parts(), flow.first(), flow.first_frame_bytes());
        if parts == 1 {
            flow.release();
            self.emit_single(place, length, sink);
            return;
        }
        self.counters.super_frames += 1;
        self.counters.merged_frames += parts as u64;
        sink.emit(flow.finish(header_bytes));
        flow.release();
    }

    fn emit_single<S: Sink>(&mut self, place: Place, frame_bytes: usize, sink: &mut S) {
        self.counters.single_frames += 1;
        let mut virtio = VirtioNetHeader { num_buffers: 1, ..VirtioNetHeader::default() };
        match place.checksums {
            Checksums::Unknown => {}
            Checksums::Verified => virtio.flags = FLAG_DATA_VALID,
            Checksums::Partial { start, offset } => {
                virtio.flags = FLAG_NEEDS_CSUM;
                (virtio.csum_start, virtio.csum_offset) = (start, offset);
            }
        }
        let mut header = [0; MERGEABLE_HEADER_BYTES];
        let header = &mut header[..self.header_bytes()];
        let length = header.len();
        let encoded = virtio.encode(header, length);
        debug_assert!(encoded.is_ok());
        let part = Part { buffer: place.buffer, start: place.start, length: frame_bytes as u32 };
        sink.emit(Output { port: place.port, header, parts: &[part] });
    }

    fn header_bytes(&self) -> usize {
        if self.config.mergeable_header { MERGEABLE_HEADER_BYTES } else { HEADER_BYTES }
    }
}

#[cfg(test)]
mod tests;
