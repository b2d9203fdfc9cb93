//! The way of a packet from where it comes in to where it goes out.
//!
//! Frames of ports are read into the arena, one behind the other, until the messages that point to them
//! are sent; super-frames with room for the headers of their segments where that can be foretold ([`spread`]). Frames of the underlay stay in their receive buffers, and are joined from there into
//! super-frames for a port, or sent on from there.
//!
//! Invariant: `transmit` is flushed before the arena or the receive buffers are used again, so the
//! pointers that it holds are to frames that are still there.

mod fragment;
mod guest;
mod send;
mod spread;
mod underlay;

use super::buffer::Buffer;
use super::counters::{EngineDrop, EngineEvent};
use super::forward::{self, Ahead, Checked, LastFlow, Lookup, Verdict};
use super::hand::{Hand, NOBODY};
use super::peers::Peers;
use super::port::{Ports, Served};
use super::receive::Receive;
use super::ring::FrameProducer;
use super::sys;
use super::transmit::Transmit;
use super::urgency::BULK_FRAME_BYTES;
use super::wire::Wires;
use super::{Carried, EXTERNAL, Inject, Miss, PORTS_MAX, SENDER_CLASSES, Shared, ingress_of};
use crate::capture::{Outer, Taps};
use crate::counters::Reason;
use crate::flow::{Ingress, MissReason};
use crate::flowtable::tunnel::Tunnel;
use crate::flowtable::{CompiledHop, Tables, ZoneKey};
use crate::ports::xdp::Received;
use fragment::Stopped;
use spread::{SPREAD_BYTES_MAX, Shape, Shapes};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use underlay::Joiner;
use weir_model::resource::Encapsulation;
use weir_packet::virtio::{HEADER_BYTES, VirtioNetHeader};
use weir_packet::{FlowKey, IpAddress, PacketError, Parsed, encap};

/// Frames of one port in one turn (row A28).
pub const PORT_FRAMES_PER_TURN: usize = 64;
/// Segments from which on a super-frame is sent at once, so that its buffer stays in the processor's cache.
const SEGMENTS_TO_FLUSH: usize = 8;
/// Room in front of each frame in the arena: the virtio header or a tunnel header. So much that what follows the headers of
/// most frames, 66 bytes of Ethernet, IPv4 and TCP with timestamps, begins a cache line.
const HEADROOM: usize = 62;
/// Frames in the arena begin so many bytes apart, or a multiple of it.
const CACHE_LINE_BYTES: usize = 64;
/// Largest frame of a port, bytes.
const FRAME_BYTES_MAX: usize = 65_535 + 18;
/// Bytes of a port's whole share of a turn from which on it was bulk.
const PORT_BULK_BYTES: u64 = PORT_FRAMES_PER_TURN as u64 * BULK_FRAME_BYTES;
const ARENA_BYTES: usize = 256 * 1024;
/// Zone of what comes from outside.
const EXTERNAL_ZONE: u32 = EXTERNAL as u32;
/// Zones of senders on the underlay start here.
pub const UNDERLAY_ZONES: u32 = 1 << 31;

const _: () = assert!(encap::MAX_ENCAP_BYTES <= HEADROOM && HEADER_BYTES <= HEADROOM);
const _: () = assert!(2 * (HEADROOM + SPREAD_BYTES_MAX) < ARENA_BYTES);

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
    /// The slow path has had it, under this key.
    again: Option<FlowKey>,
    /// It waited for the first fragment of its datagram.
    held: bool,
}

impl Origin {
    /// From another switch.
    fn underlay(ingress: Ingress, sender: IpAddr, zone: Option<u32>) -> Origin {
        Origin { ingress, zone, class: sender_class(sender), again: None, held: false }
    }

    fn port(number: usize) -> Origin {
        let zone = Some(port_zone(number));
        Origin { ingress: ingress_of(number), zone, class: number, again: None, held: false }
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
    arena: Buffer,
    arena_used: usize,
    underlay: IpAddr,
    underlay_ports: [u16; 2],
    /// A look at a wire found as much as it takes at once.
    wires_behind: bool,
    now: Instant,
    now_ms: u32,
    /// Frames of a virtual machine that are taken at once.
    batch: usize,
    /// Those that are being worked on; kept for its memory.
    stage: guest::Stage,
    /// Datagrams of other switches that are; likewise.
    opened: underlay::Stage,
    last_flow: LastFlow,
    following: fragment::Following,
    peers: Peers,
    shapes: Shapes,
    /// Bytes read from ports and received in this turn.
    turn_bytes: u64,
    /// Bulk was left in a device in this turn.
    left_bulk: bool,
    missed: bool,
    /// The frame that is worked on, and where it came from, for whoever contains a fault.
    pub(super) hand: Hand,
    pub(super) hand_of: usize,
    /// Makes the handling of some frames fail.
    #[cfg(test)]
    pub(super) trap: Option<fn(&[u8]) -> bool>,
    /// Nothing more is read when so many frames were ever handed to the slow path: see [`super::catch_up`].
    pub(super) misses_until: usize,
}

impl Path {
    /// With no ports.
    pub fn new(
        shared: Arc<Shared>,
        transmit: Transmit,
        underlay: IpAddr,
        underlay_ports: [u16; 2],
        peers: Peers,
        tables: Box<Tables>,
        batch: usize,
    ) -> Path {
        Path {
            shared,
            tables,
            ports: Ports::default(),
            taps: Taps::default(),
            transmit,
            receive: Receive::default(),
            joiner: Joiner::new(),
            arena: Buffer::new(ARENA_BYTES),
            arena_used: 0,
            underlay,
            underlay_ports,
            wires_behind: false,
            now: Instant::now(),
            now_ms: 0,
            batch,
            stage: guest::Stage::new(batch),
            opened: underlay::Stage::new(underlay::BATCH_MAX),
            last_flow: LastFlow::default(),
            following: fragment::Following::default(),
            peers,
            shapes: Shapes::default(),
            turn_bytes: 0,
            left_bulk: false,
            missed: false,
            misses_until: usize::MAX,
            hand: Hand::Nothing,
            hand_of: NOBODY,
            #[cfg(test)]
            trap: None,
        }
    }

    /// Sets the time of the turn.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.now_ms = now.saturating_duration_since(self.shared.start).as_millis() as u32;
    }

    /// What would become of a fragment: the key of its flow, or why it would be dropped.
    ///
    /// # Errors
    /// The reason to drop it for.
    pub fn look_fragment(&self, ingress: &Ingress, parsed: &Parsed) -> Result<FlowKey, Reason> {
        if forward::is_special(parsed) {
            return Ok(FlowKey::new(0, parsed));
        }
        self.following.fragments.look(ingress, parsed, self.now_ms).map(|followed| followed.key)
    }

    /// What another engine is to begin with.
    pub fn carried(&self) -> Carried {
        Carried { fragments: self.following.fragments.clone(), peers: self.peers.carried() }
    }

    /// Begins with what another engine had.
    pub fn carry(&mut self, carried: Carried) {
        self.following.fragments = carried.fragments;
        for (address, heard_ms) in carried.peers {
            self.peers.heard(address, heard_ms);
        }
    }

    /// What follows is of a port, or of nobody that is known.
    pub(super) fn hold(&mut self, of: usize) {
        (self.hand, self.hand_of) = (Hand::Nothing, of);
    }

    /// Bytes of the receive buffers.
    pub(super) fn received(&self, at: usize, length: usize) -> Option<&[u8]> {
        self.receive.bytes.get(at..at + length)
    }

    /// Bytes of the arena.
    pub(super) fn in_arena(&self, at: usize, length: usize) -> Option<&[u8]> {
        self.arena.get(at..at + length)
    }

    /// Goes on after a fault, with nothing of what was begun.
    #[cold]
    pub(super) fn begin_anew(&mut self) {
        use weir_base::contain::contain;
        self.stage = guest::Stage::new(self.batch);
        self.opened = underlay::Stage::new(underlay::BATCH_MAX);
        // What others gathered is whole, unless the fault is there.
        if contain(|| self.join_end()).is_err() {
            self.joiner = Joiner::new();
        }
        if contain(|| self.flush()).is_err() {
            self.transmit.let_go();
            self.arena_used = 0;
        }
        self.last_flow.clear();
    }

    /// For tests: fails at frames that are to fail.
    #[cfg(test)]
    fn trip(&self) {
        let frame = match self.hand {
            Hand::Nothing => None,
            Hand::Arena { at, length } => self.in_arena(at, length),
            Hand::Received { at, length } => self.received(at, length),
        };
        assert!(!self.trap.zip(frame).is_some_and(|(trap, frame)| trap(frame)), "a frame that is a trap");
    }

    #[cfg(not(test))]
    #[inline(always)]
    #[allow(clippy::unused_self)]
    fn trip(&self) {}

    /// Number of the tables in use.
    pub fn generation(&self) -> u64 {
        self.tables.generation
    }

    /// Takes new tables; returns the old ones.
    pub fn swap(&mut self, tables: Box<Tables>) -> Box<Tables> {
        self.last_flow.clear();
        std::mem::replace(&mut self.tables, tables)
    }

    /// Has datagrams go by wires where they can; returns those before, or these if they cannot be had.
    pub fn set_wires(&mut self, wires: Option<Box<Wires>>) -> Option<Box<Wires>> {
        self.flush();
        self.transmit.set_wires(wires).unwrap_or_default()
    }

    /// The wires, if there are some.
    pub fn wires(&mut self) -> Option<&mut Wires> {
        self.transmit.wires()
    }

    /// Whether there is more in the wires than was taken in the last look.
    #[inline]
    pub fn wires_behind(&self) -> bool {
        self.wires_behind
    }

    /// Sends what is gathered. Returns whether the slow thread has something new to do.
    pub fn end_turn(&mut self) -> bool {
        self.flush();
        self.ports.publish(&self.shared.counters);
        std::mem::take(&mut self.missed)
    }

    /// Bytes that came in since the last time.
    pub fn take_turn_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.turn_bytes)
    }

    /// Whether bulk was left in a device since the last time.
    pub fn take_left_bulk(&mut self) -> bool {
        std::mem::take(&mut self.left_bulk)
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
        self.arena_used = self.arena_used.next_multiple_of(CACHE_LINE_BYTES);
        if self.arena_used + HEADROOM + SPREAD_BYTES_MAX > self.arena.len() {
            self.flush();
        }
        self.arena_used + HEADROOM
    }

    /// Whether what is left outside is to stay there in this turn.
    #[inline]
    fn reads_no_more(&self, misses: &FrameProducer<Miss>) -> bool {
        misses.pushed() >= self.misses_until
    }

    /// Reads a port's frames, at most its share of a turn.
    pub fn serve_port(&mut self, number: usize, misses: &mut FrameProducer<Miss>) -> Served {
        self.hold(number);
        let was_single = self.ports.take_single(number);
        let bytes_before = self.turn_bytes;
        for count in 0..PORT_FRAMES_PER_TURN {
            if self.reads_no_more(misses) {
                return Served::Done;
            }
            if count == 1 && was_single {
                // Likely the only one again: it need not wait until the port says so.
                self.flush();
            }
            let at = self.arena_place();
            let Some(device) = self.ports.tap(number) else { return self.serve_xdp(number, misses) };
            // A capture sees whole frames.
            let shape = self.shapes.of_port(number).filter(|_| self.taps.is_empty());
            let result = match shape {
                Some(shape) => shape.read(device, &mut self.arena, at),
                None => sys::read(device, &mut self.arena[at - HEADER_BYTES..at + FRAME_BYTES_MAX]),
            };
            let read = match result {
                Ok(read) => read,
                Err(error) if is_gone(&error) => return Served::Failed,
                Err(_) => {
                    self.ports.set_single(number, count <= 1);
                    return Served::Done;
                }
            };
            self.turn_bytes += read as u64;
            self.shared.counters.event(EngineEvent::PortReads).add(1);
            let header = &self.arena[at - HEADER_BYTES..at - HEADER_BYTES + read.min(HEADER_BYTES)];
            let Ok(virtio) = VirtioNetHeader::decode(header, HEADER_BYTES) else { continue };
            let length = read - HEADER_BYTES;
            let gaps = shape.filter(|shape| length > shape.first());
            if shape.is_some() && gaps.is_none() {
                self.shapes.small(number);
            }
            self.take_frame(Origin::port(number), at, length, gaps, &virtio, misses);
        }
        self.left_bulk |= self.turn_bytes - bytes_before >= PORT_BULK_BYTES;
        Served::Done
    }

    /// Takes a port's frames out of memory that the kernel shares with us, at most its share of a turn.
    fn serve_xdp(&mut self, number: usize, misses: &mut FrameProducer<Miss>) -> Served {
        for _ in 0..PORT_FRAMES_PER_TURN {
            if self.reads_no_more(misses) {
                break;
            }
            let at = self.arena_place();
            let Some(socket) = self.ports.xdp(number) else { return Served::Done };
            let received = socket.borrow_mut().receive(&mut self.arena[at..at + FRAME_BYTES_MAX]);
            let length = match received {
                Received::Frame(length) => length,
                Received::TooLarge => {
                    self.shared.counters.dropped(EngineDrop::PortRead).add(1, FRAME_BYTES_MAX as u64);
                    continue;
                }
                Received::Nothing => break,
            };
            self.turn_bytes += length as u64;
            self.shared.counters.event(EngineEvent::PortReads).add(1);
            self.take_frame(Origin::port(number), at, length, None, &VirtioNetHeader::default(), misses);
        }
        if let Some(socket) = self.ports.xdp(number) {
            socket.borrow().give_back();
        }
        Served::Done
    }

    /// Parses a frame of the arena that was read with gaps or without. One whose gaps are not where its segments' headers go
    /// is closed up; returns the gaps that are left.
    #[inline]
    fn check_frame(
        &mut self,
        port: usize,
        at: usize,
        length: usize,
        gaps: Option<Shape>,
        virtio: &VirtioNetHeader,
    ) -> Result<(Checked, Option<Shape>), PacketError> {
        let result = Checked::new(&self.arena[at..at + length], virtio);
        let Some(shape) = gaps else { return result.map(|packet| (packet, None)) };
        if let Ok(packet) = &result
            && shape.fits(packet, length)
        {
            return result.map(|packet| (packet, gaps));
        }
        // What was parsed may have been bytes of a gap.
        self.shapes.forget(port);
        self.shared.counters.event(EngineEvent::GapsClosed).add(1);
        shape.close(&mut self.arena, at, length);
        Checked::new(&self.arena[at..at + length], virtio).map(|packet| (packet, None))
    }

    /// Takes a frame that is in the arena, with gaps if it was read with some.
    fn take_frame(
        &mut self,
        origin: Origin,
        at: usize,
        length: usize,
        gaps: Option<Shape>,
        virtio: &VirtioNetHeader,
        misses: &mut FrameProducer<Miss>,
    ) {
        (self.hand, self.hand_of) = (Hand::Arena { at, length }, origin.class);
        self.trip();
        let (mut packet, gaps) = match self.check_frame(origin.class, at, length, gaps, virtio) {
            Ok(checked) => checked,
            Err(reason) => {
                self.shared.counters.parse_error(reason).add(1, length as u64);
                return;
            }
        };
        let counters = &self.shared.counters;
        if origin.again.is_none() && !origin.held && origin.class <= EXTERNAL {
            let (packets, bytes) = packet.weight(length);
            counters.port(origin.class).rx.add(packets, bytes);
            if !self.taps.is_empty() {
                self.taps.port(origin.class, &[&self.arena[at..at + length]], counters);
            }
        }
        self.pass(&origin, at, length, gaps, &mut packet, None, misses);
    }

    /// Looks a frame of the arena up, and does with it what its flow says. `ahead` is what was done for it with its batch, if anything.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn pass(
        &mut self,
        origin: &Origin,
        at: usize,
        length: usize,
        gaps: Option<Shape>,
        packet: &mut Checked,
        ahead: Option<&Ahead>,
        misses: &mut FrameProducer<Miss>,
    ) {
        let counters = &self.shared.counters;
        let frame = &mut self.arena[at..at + length];
        let (tables, store, now_ms) = (&*self.tables, &*self.shared.store, self.now_ms);
        let lookup = Lookup { tables, store, counters, now_ms };
        let (zone, last) = (origin.zone, &mut self.last_flow);
        let verdict = match ahead {
            Some(ahead) => forward::judge_ahead(&lookup, last, zone, ahead, packet, length),
            None => {
                let (following, parsed) = (&mut self.following, &packet.parsed);
                match fragment::key_of(following, counters, now_ms, zone, parsed, length, || *origin) {
                    Ok((key, false)) => forward::judge(&lookup, last, zone, &key, packet, length),
                    Ok((key, true)) => Verdict::Miss(MissReason::NoFlow, FlowKey { zone: 0, ..key }),
                    Err(Stopped::Dropped) => return,
                    Err(Stopped::Early) => {
                        if let Some(shape) = gaps {
                            shape.close(&mut self.arena, at, length);
                        }
                        let frame = &self.arena[at..at + length];
                        fragment::hold(&mut self.following.held, counters, now_ms, origin, packet, frame);
                        return;
                    }
                }
            }
        };
        match verdict {
            Verdict::Dropped => {}
            Verdict::Miss(reason, key) => {
                let virtio = packet.offload.header(&packet.parsed);
                if let Some(shape) = gaps {
                    shape.close(&mut self.arena, at, length);
                }
                let frame = &self.arena[at..at + length];
                let (packets, _) = packet.weight(length);
                let taken = hand_over(&self.shared, misses, origin, key, reason, virtio, frame, packets);
                fragment::missed(
                    &mut self.following.fragments,
                    now_ms,
                    origin,
                    &packet.parsed,
                    reason,
                    taken,
                );
                self.missed |= taken;
            }
            Verdict::Forward { action, hash, .. } => {
                if forward::alter(frame, packet, action).is_err() {
                    let (packets, bytes) = packet.weight(length);
                    counters.dropped(EngineDrop::NotTranslatable).add(packets, bytes);
                    return;
                }
                let port = match action.hop {
                    CompiledHop::Port(port) => usize::from(port),
                    CompiledHop::External => EXTERNAL,
                    CompiledHop::Underlay(tunnel) => {
                        let shape = self.send_to_underlay(&tunnel, hash, at, length, gaps, packet);
                        if origin.again.is_none() && packet.is_super_frame() {
                            self.shapes.saw(origin.class, shape);
                        }
                        return;
                    }
                    CompiledHop::Drop => return,
                };
                if let Some(shape) = gaps {
                    // It is not sent to another switch, and the next one is likely not either.
                    shape.close(&mut self.arena, at, length);
                    self.shapes.forget(origin.class);
                }
                self.send_to_port(port, at, length, packet);
            }
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
            Inject::Again { ingress, key, virtio, .. } => {
                counters.event(EngineEvent::Reinjected).add(1);
                let origin = Origin { again: Some(*key), ..self.origin(ingress) };
                self.take_frame(origin, at, length, None, virtio, misses);
            }
            Inject::Port(_) | Inject::Underlay(_) => {
                counters.event(EngineEvent::Answers).add(1);
                let mut packet = match Checked::new(frame, &VirtioNetHeader::default()) {
                    Ok(packet) => packet,
                    Err(reason) => return counters.parse_error(reason).add(1, length as u64),
                };
                match inject {
                    Inject::Port(number) => {
                        self.send_to_port((*number).min(EXTERNAL), at, length, &mut packet)
                    }
                    Inject::Underlay(tunnel) => {
                        self.send_to_underlay(tunnel, 0, at, length, None, &packet);
                    }
                    Inject::Again { .. } => {}
                }
            }
        }
    }

    fn origin(&self, ingress: &Ingress) -> Origin {
        match ingress {
            Ingress::Port(port) => Origin::port(usize::from(*port).min(EXTERNAL)),
            Ingress::External => Origin::port(EXTERNAL),
            Ingress::Underlay { sender, vni, format, half, .. } => {
                let (sender_key, vni, format, half) = ((*sender).into(), *vni, *format, *half);
                let key = ZoneKey { sender: sender_key, vni, format, half };
                let zone = self.tables.zones.get(&key).copied();
                Origin::underlay(*ingress, *sender, zone)
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADFD | libc::ENODEV | libc::EBADF | libc::ENETDOWN))
}

fn outer_of(source: IpAddr, tunnel: &Tunnel, ports: &[u16; 2], ecn: u8) -> Outer {
    let port = ports[usize::from(tunnel.format == Encapsulation::Vxlan)];
    Outer { source, destination: tunnel.receiver, port, ecn }
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
    if origin.again.is_some() && matches!(reason, MissReason::NoFlow | MissReason::Special) {
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
