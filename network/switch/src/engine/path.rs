//! The way of a packet from where it comes in to where it goes out.
//!
//! Frames of ports are read into the arena, one behind the other, until the messages that point to them
//! are sent. Frames of the underlay stay in their receive buffers, and are joined from there into
//! super-frames for a port, or sent on from there.
//!
//! Invariant: `transmit` is flushed before the arena or the receive buffers are used again, so the
//! pointers that it holds are to frames that are still there.

use super::counters::{EngineDrop, EngineEvent};
use super::forward::{self, Checked, Verdict};
use super::port::{self, Ports, Served};
use super::receive::{MESSAGE_BYTES, Message, Receive};
use super::ring::FrameProducer;
use super::sys;
use super::transmit::Transmit;
use super::{EXTERNAL, Inject, Miss, PORTS_MAX, SENDER_CLASSES, Shared, ingress_of};
use crate::capture::{Outer, Taps};
use crate::flow::{Ingress, MissReason};
use crate::flowtable::action::{Tunnel, wire_format};
use crate::flowtable::{CompiledHop, Tables, ZoneKey};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use weir_model::resource::Encapsulation;
use weir_packet::coalesce::{CoalesceConfig, Coalescer, MAX_PARTS, Output, Place, Sink};
use weir_packet::segment::Segmenter;
use weir_packet::virtio::{HEADER_BYTES, Offload, VirtioNetHeader};
use weir_packet::{FlowKey, IpAddress, checksum, encap};

/// Frames of one port in one turn (row A28).
pub const PORT_FRAMES_PER_TURN: usize = 64;
/// Segments from which on a super-frame is sent at once, so that its buffer stays in the processor's cache.
const SEGMENTS_TO_FLUSH: usize = 8;
/// Room in front of each frame in the arena: the virtio header or a tunnel header.
const HEADROOM: usize = 32;
/// Largest frame of a port, bytes.
const FRAME_BYTES_MAX: usize = 65_535 + 18;
const ARENA_BYTES: usize = 256 * 1024;
/// Zone of what comes from outside.
const EXTERNAL_ZONE: u32 = EXTERNAL as u32;
/// Zones of senders on the underlay start here.
pub const UNDERLAY_ZONES: u32 = 1 << 31;

const _: () = assert!(encap::MAX_ENCAP_BYTES <= HEADROOM && HEADER_BYTES <= HEADROOM);

/// Zone of a port.
pub fn port_zone(port: usize) -> u32 {
    if port == EXTERNAL { EXTERNAL_ZONE } else { port as u32 }
}

/// Where a frame came in.
#[derive(Clone, Copy)]
struct Origin {
    ingress: Ingress,
    zone: Option<u32>,
    class: usize,
    /// The slow path has had it.
    again: bool,
}

impl Origin {
    fn port(number: usize) -> Origin {
        Origin { ingress: ingress_of(number), zone: Some(port_zone(number)), class: number, again: false }
    }
}

fn sender_class(sender: IpAddr) -> usize {
    let mix = |sum: usize, byte: &u8| sum.wrapping_mul(31).wrapping_add(usize::from(*byte));
    PORTS_MAX + 1 + IpAddress::from(sender).0.iter().fold(0, mix) % SENDER_CLASSES
}

/// See the module.
pub struct Path {
    shared: Arc<Shared>,
    tables: Box<Tables>,
    /// The ports.
    pub ports: Ports,
    /// Captures.
    pub taps: Taps,
    transmit: Transmit,
    receive: Receive,
    joiner: Joiner,
    arena: Box<[u8]>,
    arena_used: usize,
    underlay: IpAddr,
    underlay_ports: [u16; 2],
    now_ms: u32,
    missed: bool,
}

impl Path {
    /// With no ports.
    pub fn new(
        shared: Arc<Shared>,
        transmit: Transmit,
        underlay: IpAddr,
        underlay_ports: [u16; 2],
        tables: Box<Tables>,
    ) -> Path {
        Path {
            shared,
            tables,
            ports: Ports::default(),
            taps: Taps::default(),
            transmit,
            receive: Receive::default(),
            joiner: Joiner::new(),
            arena: vec![0; ARENA_BYTES].into_boxed_slice(),
            arena_used: 0,
            underlay,
            underlay_ports,
            now_ms: 0,
            missed: false,
        }
    }

    /// Sets the time of the turn.
    pub fn set_now(&mut self, now_ms: u32) {
        self.now_ms = now_ms;
    }

    /// Number of the tables in use.
    pub fn generation(&self) -> u64 {
        self.tables.generation
    }

    /// Takes new tables; returns the old ones.
    pub fn swap(&mut self, tables: Box<Tables>) -> Box<Tables> {
        std::mem::replace(&mut self.tables, tables)
    }

    /// Sends what is gathered. Returns whether the slow thread has something new to do.
    pub fn end_turn(&mut self) -> bool {
        self.flush();
        std::mem::take(&mut self.missed)
    }

    fn flush(&mut self) {
        self.transmit.flush();
        self.arena_used = 0;
    }

    /// Where the next frame goes in the arena; there is room for the largest.
    fn arena_place(&mut self) -> usize {
        if self.transmit.is_empty() {
            self.arena_used = 0;
        }
        if self.arena_used + HEADROOM + FRAME_BYTES_MAX > self.arena.len() {
            self.flush();
        }
        self.arena_used + HEADROOM
    }

    /// Reads a port's frames, at most its share of a turn.
    pub fn serve_port(&mut self, number: usize, misses: &mut FrameProducer<Miss>) -> Served {
        for _ in 0..PORT_FRAMES_PER_TURN {
            let at = self.arena_place();
            let Some(device) = self.ports.device(number) else { return Served::Done };
            let room = &mut self.arena[at - HEADER_BYTES..at + FRAME_BYTES_MAX];
            let read = match sys::read(device, room) {
                Ok(read) => read,
                Err(error) if is_gone(&error) => return Served::Failed,
                Err(_) => return Served::Done,
            };
            self.shared.counters.event(EngineEvent::PortReads).add(1);
            let Ok(virtio) = VirtioNetHeader::decode(&room[..read], HEADER_BYTES) else { continue };
            self.take_frame(Origin::port(number), at, read - HEADER_BYTES, &virtio, misses);
        }
        Served::Done
    }

    /// Takes a frame that is in the arena.
    fn take_frame(
        &mut self,
        origin: Origin,
        at: usize,
        length: usize,
        virtio: &VirtioNetHeader,
        misses: &mut FrameProducer<Miss>,
    ) {
        let counters = &self.shared.counters;
        let frame = &mut self.arena[at..at + length];
        let mut packet = match Checked::new(frame, virtio) {
            Ok(packet) => packet,
            Err(reason) => {
                counters.parse_error(reason).add(1, length as u64);
                return;
            }
        };
        let (packets, bytes) = packet.weight(length);
        if !origin.again && origin.class <= EXTERNAL {
            counters.port(origin.class).rx.add(packets, bytes);
            if !self.taps.is_empty() {
                self.taps.port(origin.class, &[frame], counters);
            }
        }
        let verdict = forward::judge(
            &self.tables,
            &self.shared.store,
            counters,
            origin.zone,
            &packet,
            length,
            self.now_ms,
        );
        match verdict {
            Verdict::Dropped => {}
            Verdict::Miss(reason, key) => {
                let virtio = packet.offload.header(&packet.parsed);
                self.missed |= hand_over(&self.shared, misses, &origin, key, reason, virtio, frame, packets);
            }
            Verdict::Forward { action, hash } => {
                let (action, hash) = (*action, hash);
                if forward::alter(frame, &mut packet, &action).is_err() {
                    counters.dropped(EngineDrop::NotTranslatable).add(packets, bytes);
                    return;
                }
                match action.hop {
                    CompiledHop::Port(port) => self.send_to_port(usize::from(port), at, length, &packet),
                    CompiledHop::External => self.send_to_port(EXTERNAL, at, length, &packet),
                    CompiledHop::Underlay(tunnel) => {
                        self.send_to_underlay(&tunnel, hash, at, length, &packet)
                    }
                    CompiledHop::Drop => {}
                }
            }
        }
    }

    /// Writes a frame of the arena to a port, whole, with a clean virtio header.
    fn send_to_port(&mut self, number: usize, at: usize, length: usize, packet: &Checked) {
        let counters = &self.shared.counters;
        let (packets, bytes) = packet.weight(length);
        let mut packet = *packet;
        if let Some(addresses) = self.ports.ethernet(number) {
            // It cannot fail for a frame that was parsed.
            let _ = forward::set_ethernet(&mut self.arena[at..at + length], &mut packet, addresses);
        }
        let header = packet.offload.header(&packet.parsed);
        let frame = &mut self.arena[at - HEADER_BYTES..at + length];
        // There is room: `HEADER_BYTES` of it.
        let _ = header.encode(frame, HEADER_BYTES);
        if !self.taps.is_empty() {
            self.taps.port(number, &[&frame[HEADER_BYTES..]], counters);
        }
        port::write(&self.ports, counters, number, frame, packets, bytes);
    }

    /// Gathers a frame of the arena for another switch.
    fn send_to_underlay(&mut self, tunnel: &Tunnel, hash: u64, at: usize, length: usize, packet: &Checked) {
        match packet.offload {
            Offload::Segment(cut) => {
                self.segments_to_underlay(tunnel, hash, at, length, packet, &cut);
                return;
            }
            Offload::Checksum { start, field } => {
                let end = packet.parsed.payload_end;
                // The places were checked against the frame.
                let _ = checksum::complete(&mut self.arena[at..at + length], start, field, end);
            }
            Offload::Complete => {}
        }
        let header = tunnel.header();
        let from = at - header.len();
        self.arena[from..at].copy_from_slice(header);
        if !self.taps.is_empty() {
            let outer = self.outer_to(tunnel, packet.parsed.ecn());
            self.taps.underlay(&outer, [header, &self.arena[at..at + length]], &self.shared.counters);
        }
        self.arena_used = at + length;
        let datagram = &self.arena[from..at + length];
        // SAFETY: the arena up to `arena_used` stays as it is until `flush`, which sends first.
        #[allow(unsafe_code)]
        unsafe {
            self.transmit.append(tunnel, hash, packet.parsed.ecn(), 0, datagram);
        }
    }

    fn segments_to_underlay(
        &mut self,
        tunnel: &Tunnel,
        hash: u64,
        at: usize,
        length: usize,
        packet: &Checked,
        cut: &weir_packet::virtio::Segmentation,
    ) {
        let frame = &self.arena[at..at + length];
        let Ok(mut segmenter) = Segmenter::new(frame, &packet.parsed, cut) else { return };
        let (tunnel_bytes, inner_bytes) = (tunnel.header().len(), segmenter.header_bytes());
        let ecn = packet.parsed.ecn();
        self.arena_used = at + length;
        loop {
            let room = self.transmit.header_room(tunnel_bytes + inner_bytes);
            room[..tunnel_bytes].copy_from_slice(tunnel.header());
            let Some(payload) = segmenter.next_into(&mut room[tunnel_bytes..]) else { break };
            let payload = &frame[payload];
            if !self.taps.is_empty() {
                let inner = [&room[tunnel_bytes..], payload].concat();
                let outer = outer_of(self.underlay, tunnel, &self.underlay_ports, ecn);
                self.taps.underlay(&outer, [tunnel.header(), &inner], &self.shared.counters);
            }
            // SAFETY: the arena up to `arena_used` stays as it is until `flush`, which sends first.
            #[allow(unsafe_code)]
            unsafe {
                self.transmit.append(tunnel, hash, ecn, tunnel_bytes + inner_bytes, payload);
            }
        }
        if cut.segments >= SEGMENTS_TO_FLUSH {
            self.flush();
        }
    }

    fn outer_to(&self, tunnel: &Tunnel, ecn: u8) -> Outer {
        outer_of(self.underlay, tunnel, &self.underlay_ports, ecn)
    }

    /// Receives messages of the underlay once; returns whether there may be more.
    pub fn serve_underlay(
        &mut self,
        socket: BorrowedFd<'_>,
        format: Encapsulation,
        misses: &mut FrameProducer<Miss>,
    ) -> bool {
        let count = match self.receive.receive(socket) {
            Ok(count) => count,
            Err(_) => return false,
        };
        self.shared.counters.event(EngineEvent::UnderlayReceives).add(count as u64);
        for number in 0..count {
            let message = self.receive.message(number);
            self.take_message(&message, number, format, misses);
        }
        self.join_end();
        self.flush();
        count == super::receive::MESSAGES_MAX
    }

    fn take_message(
        &mut self,
        message: &Message,
        number: usize,
        format: Encapsulation,
        misses: &mut FrameProducer<Miss>,
    ) {
        let counters = &self.shared.counters;
        counters
            .event(EngineEvent::UnderlayDatagrams)
            .add(message.length.div_ceil(message.segment_bytes) as u64);
        if message.truncated {
            counters.dropped(EngineDrop::UnderlayTruncated).add(1, message.length as u64);
            return;
        }
        // One look a message for the zone: its datagrams nearly always are of one network.
        let mut known = None;
        let end = message.start + message.length;
        let mut start = message.start;
        while start < end {
            let length = message.segment_bytes.min(end - start);
            self.take_datagram(message, number, format, start, length, &mut known, misses);
            start += length;
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn take_datagram(
        &mut self,
        message: &Message,
        number: usize,
        format: Encapsulation,
        start: usize,
        length: usize,
        known: &mut Option<(u32, Option<u32>)>,
        misses: &mut FrameProducer<Miss>,
    ) {
        let counters = &self.shared.counters;
        let datagram = &mut self.receive.bytes[start..start + length];
        let (tunnel, mut packet) = match open(datagram, format) {
            Ok(opened) => opened,
            Err(reason) => {
                counters.parse_error(reason).add(1, length as u64);
                return;
            }
        };
        if tunnel.oam {
            counters.dropped(EngineDrop::ControlPacket).add(1, length as u64);
            return;
        }
        if !self.taps.is_empty() {
            let (header, inner) = datagram.split_at(tunnel.inner_offset);
            let port = self.underlay_ports[usize::from(format == Encapsulation::Vxlan)];
            let outer = Outer { source: message.sender, destination: self.underlay, port, ecn: message.ecn };
            self.taps.underlay(&outer, [header, inner], counters);
        }
        let frame = &mut datagram[tunnel.inner_offset..];
        let frame_bytes = frame.len();
        if message.ecn != 0 && !mark(frame, &mut packet, message.ecn) {
            counters.dropped(EngineDrop::OuterCongestion).add(1, frame_bytes as u64);
            return;
        }
        let zone = match known {
            Some((vni, zone)) if *vni == tunnel.vni => *zone,
            _ => {
                let sender = message.sender.into();
                let zone = self.tables.zones.get(&ZoneKey { sender, vni: tunnel.vni, format }).copied();
                *known = Some((tunnel.vni, zone));
                zone
            }
        };
        let verdict = forward::judge(
            &self.tables,
            &self.shared.store,
            counters,
            zone,
            &packet,
            frame_bytes,
            self.now_ms,
        );
        match verdict {
            Verdict::Dropped => {}
            Verdict::Miss(reason, key) => {
                let (sender, vni, token) = (message.sender, tunnel.vni, tunnel.token);
                let ingress = Ingress::Underlay { sender, vni, token, format };
                let origin = Origin { ingress, zone, class: sender_class(sender), again: false };
                let virtio = packet.offload.header(&packet.parsed);
                self.missed |= hand_over(&self.shared, misses, &origin, key, reason, virtio, frame, 1);
            }
            Verdict::Forward { action, hash } => {
                let (action, hash) = (*action, hash);
                if forward::alter(frame, &mut packet, &action).is_err() {
                    counters.dropped(EngineDrop::NotTranslatable).add(1, frame_bytes as u64);
                    return;
                }
                let start = start + tunnel.inner_offset;
                match action.hop {
                    CompiledHop::Port(port) => {
                        self.join(usize::from(port), number, start, frame_bytes, packet)
                    }
                    CompiledHop::External => self.join(EXTERNAL, number, start, frame_bytes, packet),
                    CompiledHop::Underlay(tunnel) => self.relay(&tunnel, hash, start, frame_bytes, &packet),
                    CompiledHop::Drop => {}
                }
            }
        }
    }

    /// Gives a received frame to the joiner of its port.
    #[inline]
    fn join(&mut self, port: usize, buffer: usize, start: usize, length: usize, mut packet: Checked) {
        if let Some(addresses) = self.ports.ethernet(port) {
            let frame = &mut self.receive.bytes[start..start + length];
            // It cannot fail for a frame that was parsed.
            let _ = forward::set_ethernet(frame, &mut packet, addresses);
        }
        if !self.taps.is_empty() {
            let frame = &self.receive.bytes[start..start + length];
            self.taps.port(port, &[frame], &self.shared.counters);
        }
        if self.joiner.port != port {
            self.join_end();
            self.joiner.port = port;
        }
        let bytes = &self.receive.bytes;
        let mut sink = DeviceSink { number: port, ports: &self.ports, shared: &self.shared, bytes };
        let place = Place {
            port: port as u32,
            buffer: buffer as u32,
            start: (start - buffer * MESSAGE_BYTES) as u32,
            verified: false,
        };
        self.joiner.coalescer.push(place, &bytes[start..start + length], &packet.parsed, &mut sink);
    }

    /// Writes all that the joiner holds.
    fn join_end(&mut self) {
        if self.joiner.coalescer.open_flows() > 0 {
            let (number, bytes) = (self.joiner.port, &self.receive.bytes);
            let mut sink = DeviceSink { number, ports: &self.ports, shared: &self.shared, bytes };
            self.joiner.coalescer.flush(&mut sink);
        }
        let done = self.joiner.coalescer.counters();
        self.shared.counters.event(EngineEvent::SuperFrames).set(done.super_frames);
        self.shared.counters.event(EngineEvent::MergedFrames).set(done.merged_frames);
    }

    /// Sends a received frame on to another switch.
    fn relay(&mut self, tunnel: &Tunnel, hash: u64, start: usize, length: usize, packet: &Checked) {
        let header = tunnel.header();
        let frame = &self.receive.bytes[start..start + length];
        if !self.taps.is_empty() {
            let outer = outer_of(self.underlay, tunnel, &self.underlay_ports, packet.parsed.ecn());
            self.taps.underlay(&outer, [header, frame], &self.shared.counters);
        }
        self.transmit.header_room(header.len()).copy_from_slice(header);
        // SAFETY: the receive buffers stay as they are until `serve_underlay` ends, which flushes.
        #[allow(unsafe_code)]
        unsafe {
            self.transmit.append(tunnel, hash, packet.parsed.ecn(), header.len(), frame);
        }
    }

    /// Takes a frame that the slow path made or gives back.
    pub fn inject(&mut self, inject: &Inject, frame: &[u8], misses: &mut FrameProducer<Miss>) {
        let length = frame.len();
        if length > FRAME_BYTES_MAX {
            return;
        }
        let at = self.arena_place();
        self.arena[at..at + length].copy_from_slice(frame);
        let counters = &self.shared.counters;
        match inject {
            Inject::Again { ingress, virtio, .. } => {
                counters.event(EngineEvent::Reinjected).add(1);
                let origin = Origin { again: true, ..self.origin(ingress) };
                self.take_frame(origin, at, length, virtio, misses);
            }
            Inject::Port(_) | Inject::Underlay(_) => {
                counters.event(EngineEvent::Answers).add(1);
                let packet = match Checked::new(frame, &VirtioNetHeader::default()) {
                    Ok(packet) => packet,
                    Err(reason) => return counters.parse_error(reason).add(1, length as u64),
                };
                match inject {
                    Inject::Port(number) => self.send_to_port((*number).min(EXTERNAL), at, length, &packet),
                    Inject::Underlay(tunnel) => self.send_to_underlay(tunnel, 0, at, length, &packet),
                    Inject::Again { .. } => {}
                }
            }
        }
    }

    fn origin(&self, ingress: &Ingress) -> Origin {
        match ingress {
            Ingress::Port(port) => Origin::port(usize::from(*port).min(EXTERNAL)),
            Ingress::External => Origin::port(EXTERNAL),
            Ingress::Underlay { sender, vni, format, .. } => {
                let key = ZoneKey { sender: (*sender).into(), vni: *vni, format: *format };
                let zone = self.tables.zones.get(&key).copied();
                Origin { ingress: *ingress, zone, class: sender_class(*sender), again: false }
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADFD | libc::ENODEV | libc::EBADF))
}

fn outer_of(source: IpAddr, tunnel: &Tunnel, ports: &[u16; 2], ecn: u8) -> Outer {
    let port = ports[usize::from(tunnel.format == Encapsulation::Vxlan)];
    Outer { source, destination: tunnel.receiver, port, ecn }
}

/// Reads a tunnel header and the frame behind it.
#[inline]
fn open(
    datagram: &[u8],
    format: Encapsulation,
) -> Result<(encap::Decapsulated, Checked), weir_packet::PacketError> {
    let tunnel = wire_format(format).decode(datagram)?;
    let packet = Checked::new(&datagram[tunnel.inner_offset..], &VirtioNetHeader::default())?;
    Ok((tunnel, packet))
}

/// Brings congestion marks of the outer header into the packet (RFC 6040); false: it must be dropped.
fn mark(frame: &mut [u8], packet: &mut Checked, outer: u8) -> bool {
    if !packet.parsed.is_ip() {
        return true;
    }
    match encap::ecn_inner(packet.parsed.ecn(), outer) {
        Some(ecn) => weir_packet::rewrite::set_ecn(frame, &mut packet.parsed, ecn).is_ok(),
        None => false,
    }
}

/// Hands a frame to the slow path; returns whether it was taken.
#[allow(clippy::too_many_arguments)]
#[cold]
fn hand_over(
    shared: &Shared,
    misses: &mut FrameProducer<Miss>,
    origin: &Origin,
    key: FlowKey,
    reason: MissReason,
    virtio: VirtioNetHeader,
    frame: &[u8],
    packets: u64,
) -> bool {
    let counters = &shared.counters;
    if origin.again && matches!(reason, MissReason::NoFlow | MissReason::Special) {
        counters.dropped(EngineDrop::MissTwice).add(packets, frame.len() as u64);
        return false;
    }
    let overflow = counters.dropped(EngineDrop::SlowPathOverflow);
    if !shared.load.charge(origin.class) {
        overflow.add(packets, frame.len() as u64);
        return false;
    }
    let miss = Miss { ingress: origin.ingress, key, reason, virtio, class: origin.class };
    if misses.push(miss, &[frame]).is_err() {
        shared.load.done(origin.class);
        overflow.add(packets, frame.len() as u64);
        return false;
    }
    counters.event(EngineEvent::Misses).add(1);
    true
}

/// Joins segments for one port at a time. Two tenants may have equal flows, so what is held for one port is
/// written before a frame of another is taken.
struct Joiner {
    coalescer: Coalescer,
    port: usize,
}

impl Joiner {
    fn new() -> Joiner {
        let config = CoalesceConfig { join_udp: true, ..CoalesceConfig::default() };
        Joiner { coalescer: Coalescer::new(config), port: 0 }
    }
}

/// Writes joined frames to a device.
struct DeviceSink<'a> {
    number: usize,
    ports: &'a Ports,
    shared: &'a Shared,
    bytes: &'a [u8],
}

impl Sink for DeviceSink<'_> {
    fn emit(&mut self, output: Output<'_>) {
        let packets = output.parts.len() as u64;
        let headers = (output.header.len() - HEADER_BYTES) as u64 * packets;
        let bytes = headers + output.parts.iter().map(|part| u64::from(part.length)).sum::<u64>();
        let Some(device) = self.ports.device(self.number) else {
            port::count_absent(&self.shared.counters, self.number, packets, bytes);
            return;
        };
        let mut pieces = [sys::piece(&[]); MAX_PARTS + 1];
        pieces[0] = sys::piece(output.header);
        let parts = output.parts.len().min(MAX_PARTS);
        for (piece, part) in pieces[1..].iter_mut().zip(output.parts) {
            let start = part.buffer as usize * MESSAGE_BYTES + part.start as usize;
            *piece = sys::piece(&self.bytes[start..start + part.length as usize]);
        }
        // SAFETY: the pieces are of the header and of the receive buffers, borrowed during this call.
        #[allow(unsafe_code)]
        let result = unsafe { sys::write_pieces(device, &pieces[..=parts]) };
        port::count_write(&self.shared.counters, self.number, &result, packets, bytes);
    }
}
