//! Frames of other switches: opened, looked up, joined into super-frames for a port or sent on.
//!
//! Datagrams go through three stages, a batch of them at once, whichever message they came in, as guests' frames do (row A20):
//! each is opened, and the bucket of its flow asked for; then each one's flow is asked for; then each is judged and goes on, in
//! the order in which they came. What of one datagram may change what becomes of another is done in the last stage alone:
//! fragments find the flow of their datagram, and a sender's word that it takes partial checksums is heard. Flow tables and captures
//! do not change meanwhile. While something is captured a batch is one datagram, so that captures show what goes in beside what becomes of it.
//!
//! Segments of one super-frame that arrive in one message with a partial checksum are a [`Train`]: the first is parsed and
//! looked up, and those that differ from it only in what counts up follow it without, as what was decided on the first holds for
//! all. Each is counted. The first of a train is the last of its batch.

mod joiner;

use super::fragment::Stopped;
use super::{Origin, Path, fragment, hand_over, outer_of};
use crate::capture::Outer;
use crate::engine::counters::{EngineDrop, EngineEvent};
use crate::engine::forward::{self, Ahead, Checked, Lookup, Verdict};
use crate::engine::hand::{Hand, NOBODY};
use crate::engine::receive::{MESSAGE_BYTES, MESSAGES_MAX, Message, WIRE_FRAMES_MAX};
use crate::engine::ring::FrameProducer;
use crate::engine::{EXTERNAL, Miss};
use crate::flow::{CounterIndex, Ingress, MissReason};
use crate::flowtable::tunnel::{Tunnel, wire_format};
use crate::flowtable::{CompiledHop, ZoneKey};
use crate::ports::xdp::UNDERLAY_CHUNKS;
use crate::underlay::QUEUES_MAX;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;
use weir_model::resource::Encapsulation;
use weir_packet::coalesce::Part;
use weir_packet::encap::{self, Half, InnerChecksum};
use weir_packet::train::Train;
use weir_packet::virtio::{Offload, VirtioNetHeader};
use weir_packet::{FlowKey, Fragment, IpAddress, Parsed, checksum};

pub(super) use joiner::Joiner;

/// Looks that empty the rings of all queues: a look takes at least one frame, and most take many.
const WIRE_LOOKS_MAX: usize = QUEUES_MAX * UNDERLAY_CHUNKS as usize;

/// Datagrams that are worked on at once. They are less than a message may have, as what is known of each lies in the cache until
/// its turn.
pub(super) const BATCH_MAX: usize = 32;

/// The zone of a network's datagrams of one message, and what their sender decided.
type Known = (u32, Half, Option<u32>);

/// Where a received datagram is.
#[derive(Clone, Copy, Default)]
struct Datagram {
    /// Number of its message.
    buffer: usize,
    /// First byte in the receive buffers.
    start: usize,
    length: usize,
}

/// A datagram of a batch that was opened.
#[derive(Clone)]
struct Opened {
    ingress: Ingress,
    sender: IpAddr,
    zone: Option<u32>,
    /// Its sender says that it takes partial checksums.
    hears: bool,
    /// The frame in it.
    inner: Datagram,
    packet: Checked,
    /// Key and flow, but for a fragment, whose flow is worked out when it is its turn.
    ahead: Ahead,
}

impl Opened {
    fn empty() -> Opened {
        Opened {
            ingress: Ingress::External,
            sender: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            zone: None,
            hears: false,
            inner: Datagram::default(),
            packet: Checked::default(),
            ahead: Ahead { key: FlowKey::new(0, &Parsed::default()), hash: 0, near: None },
        }
    }

    #[inline]
    fn is_whole(&self) -> bool {
        self.packet.parsed.fragment == Fragment::Whole
    }
}

/// Room for a batch, which is used again and again: a datagram's fields are written where they stay.
#[derive(Default)]
pub(super) struct Stage {
    opened: Box<[Opened]>,
    used: usize,
}

impl Stage {
    /// For so many datagrams.
    pub(super) fn new(datagrams: usize) -> Stage {
        Stage { opened: vec![Opened::empty(); datagrams].into_boxed_slice(), used: 0 }
    }
}

/// A train, and what was decided about it.
struct Run {
    train: Train,
    /// Place of its flow in the store.
    slot: u32,
    rule: CounterIndex,
    tcp_flags: u8,
    datagram_bytes: usize,
    frame_bytes: usize,
}

impl Path {
    /// Receives messages of the underlay once; returns whether there may be more.
    pub fn serve_underlay(
        &mut self,
        socket: BorrowedFd<'_>,
        format: Encapsulation,
        misses: &mut FrameProducer<Miss>,
    ) -> bool {
        if self.reads_no_more(misses) {
            return false;
        }
        let most = if self.misses_until == usize::MAX { MESSAGES_MAX } else { 1 };
        let (count, more) = match self.receive.receive(socket, most) {
            Ok(received) => received,
            Err(_) => return false,
        };
        self.shared.counters.event(EngineEvent::UnderlayReceives).add(count as u64);
        // It is put back below; nothing in between looks for it.
        let mut stage = std::mem::take(&mut self.opened);
        for number in 0..count {
            let message = self.receive.message(number);
            self.take_message(&message, number, format, &mut stage, misses);
        }
        self.pass_opened(&mut stage, misses);
        self.opened = stage;
        self.join_end();
        self.flush();
        more
    }

    /// Takes frames of every wire, at most its share of a turn; returns how many.
    #[inline]
    pub fn serve_wires(&mut self, misses: &mut FrameProducer<Miss>) -> usize {
        let Some(queues) = self.wires().map(|wires| wires.len()) else { return 0 };
        let (mut all, mut behind) = (0, false);
        for queue in 0..queues {
            if self.reads_no_more(misses) {
                break;
            }
            let count = self.serve_wire(queue, misses);
            all += count;
            behind |= count == WIRE_FRAMES_MAX;
        }
        self.wires_behind = behind;
        all
    }

    fn serve_wire(&mut self, queue: usize, misses: &mut FrameProducer<Miss>) -> usize {
        let Some(wire) = self.transmit.wire(queue) else { return 0 };
        let (own, counters) =
            ((&IpAddress::from(self.underlay), &self.underlay_ports), &self.shared.counters);
        let count = self.receive.receive_by_wire(wire, WIRE_FRAMES_MAX, own, counters);
        if count == 0 {
            return 0;
        }
        let mut stage = std::mem::take(&mut self.opened);
        let mut number = 0;
        while let Some((message, format)) = self.receive.wired(number) {
            // They all lie in one buffer.
            self.take_message(&message, 0, format, &mut stage, misses);
            number += 1;
        }
        self.pass_opened(&mut stage, misses);
        self.opened = stage;
        self.join_end();
        self.flush();
        count
    }

    /// Takes what is left in the wires, of which no more comes; everything goes by the sockets from then on.
    #[cold]
    pub fn rest_wires(&mut self, misses: &mut FrameProducer<Miss>) {
        let until = std::mem::replace(&mut self.misses_until, usize::MAX);
        for _ in 0..WIRE_LOOKS_MAX {
            if self.serve_wires(misses) == 0 {
                break;
            }
        }
        self.misses_until = until;
        self.wires_behind = false;
        if let Some(wires) = self.wires() {
            wires.settle();
            wires.rest(true);
        }
    }

    /// Opens the datagrams of a message. Those that are opened when it ends are in `stage`: what follows may be of the same batch.
    fn take_message(
        &mut self,
        message: &Message,
        number: usize,
        format: Encapsulation,
        stage: &mut Stage,
        misses: &mut FrameProducer<Miss>,
    ) {
        self.turn_bytes += message.length as u64;
        let counters = &self.shared.counters;
        counters
            .event(EngineEvent::UnderlayDatagrams)
            .add(message.length.div_ceil(message.segment_bytes) as u64);
        if message.truncated {
            counters.dropped(EngineDrop::UnderlayTruncated).add(1, message.length as u64);
            return;
        }
        let most = if self.taps.is_empty() { stage.opened.len() } else { 1 };
        // One look a message for the zone: its datagrams nearly always are of one network.
        let mut known = None;
        let end = message.start + message.length;
        let mut start = message.start;
        while start < end {
            let length = message.segment_bytes.min(end - start);
            let at = Datagram { buffer: number, start, length };
            let train = self.open_datagram(message, at, format, &mut known, stage);
            start += length;
            if let Some(train) = train {
                if let Some(run) = self.pass_train(train, length, stage, misses) {
                    start = self.follow(run, number, start, end);
                }
            } else if stage.used >= most {
                self.pass_opened(stage, misses);
            }
        }
    }

    /// Takes the datagrams from `start` to `end` of a message that continue a run; returns where it ended.
    fn follow(&mut self, mut run: Run, number: usize, start: usize, end: usize) -> usize {
        let (length, header_bytes) = (run.datagram_bytes, run.train.header_bytes());
        let (payload, buffer) = (length - header_bytes, number as u32);
        let mut at = start;
        while at + length <= end && run.train.takes(&self.receive.bytes[at..at + length]) {
            let first = (at + header_bytes - number * MESSAGE_BYTES) as u32;
            if !self.joiner.coalescer.extend(Part { buffer, start: first, length: payload as u32 }) {
                break;
            }
            at += length;
        }
        let packets = ((at - start) / length) as u64;
        if packets > 0 {
            let counters = &self.shared.counters;
            let (tables, store, now_ms) = (&*self.tables, &*self.shared.store, self.now_ms);
            let lookup = Lookup { tables, store, counters, now_ms };
            let bytes = packets * run.frame_bytes as u64;
            forward::count_more(&lookup, run.slot, run.rule, packets, bytes, run.tcp_flags);
        }
        at
    }

    /// Opens a datagram, as one more of the batch; one that is refused is counted. Returns what those behind it are to be compared with,
    /// if the next one is of its train.
    #[inline]
    fn open_datagram(
        &mut self,
        message: &Message,
        at: Datagram,
        format: Encapsulation,
        known: &mut Option<Known>,
        stage: &mut Stage,
    ) -> Option<Train> {
        (self.hand, self.hand_of) = (Hand::Received { at: at.start, length: at.length }, NOBODY);
        let counters = &self.shared.counters;
        let opened = stage.opened.get_mut(stage.used)?;
        let (datagram, behind) = self.receive.bytes[at.start..].split_at_mut(at.length);
        let tunnel = match open(datagram, format, &mut opened.packet) {
            Ok(tunnel) => tunnel,
            Err(reason) => {
                counters.parse_error(reason).add(1, at.length as u64);
                return None;
            }
        };
        if tunnel.oam {
            counters.dropped(EngineDrop::ControlPacket).add(1, at.length as u64);
            return None;
        }
        let mut train = None;
        if !self.taps.is_empty() {
            let (header, inner) = datagram.split_at(tunnel.inner_offset);
            let port = self.underlay_ports[usize::from(format == Encapsulation::Vxlan)];
            let outer = Outer { source: message.sender, destination: self.underlay, port, ecn: message.ecn };
            self.taps.underlay(&outer, [header, inner], counters);
        } else if tunnel.checksum == InnerChecksum::Partial && message.ecn == 0 {
            let left = message.start + message.length - (at.start + at.length);
            train = train_of(datagram, &tunnel, &opened.packet, &behind[..left.min(at.length)]);
        }
        let frame = &mut datagram[tunnel.inner_offset..];
        if message.ecn != 0 && !mark(frame, &mut opened.packet, message.ecn) {
            counters.dropped(EngineDrop::OuterCongestion).add(1, frame.len() as u64);
            return None;
        }
        opened.hears = false;
        opened.zone = match known {
            Some((vni, half, zone)) if (*vni, *half) == (tunnel.vni, tunnel.half) => *zone,
            _ => {
                let (sender, vni, half) = (message.sender.into(), tunnel.vni, tunnel.half);
                let key = ZoneKey { sender, vni, format, half };
                let zone = self.tables.zones.get(&key).copied();
                *known = Some((vni, half, zone));
                opened.hears = zone.is_some() && tunnel.checksum != InnerChecksum::Full;
                zone
            }
        };
        let (sender, vni, token, half) = (message.sender, tunnel.vni, tunnel.token, tunnel.half);
        (opened.sender, opened.ingress) = (sender, Ingress::Underlay { sender, vni, token, format, half });
        opened.inner =
            Datagram { start: at.start + tunnel.inner_offset, length: at.length - tunnel.inner_offset, ..at };
        if opened.is_whole() {
            let key = FlowKey::new(opened.zone.unwrap_or_default(), &opened.packet.parsed);
            let hash = self.last_flow.hash(&self.shared.store, &key);
            self.tables.prefetch_bucket(hash);
            opened.ahead = Ahead { key, hash, near: None };
        }
        stage.used += 1;
        train
    }

    /// Has what was opened go on: the last two stages. Returns slot and rule of the last one's flow if that went to a joiner.
    #[inline(never)]
    fn pass_opened(
        &mut self,
        stage: &mut Stage,
        misses: &mut FrameProducer<Miss>,
    ) -> Option<(u32, CounterIndex)> {
        let used = std::mem::take(&mut stage.used);
        let batch = &mut stage.opened[..used];
        let (tables, store) = (&*self.tables, &*self.shared.store);
        for opened in batch.iter_mut().filter(|opened| opened.is_whole()) {
            opened.ahead.near = tables.prefetch_flow(store, opened.ahead.hash, false);
        }
        let mut joined = None;
        for opened in batch {
            if opened.hears {
                self.peers.heard(opened.sender, self.now_ms);
            }
            joined = self.decide_received(opened, misses);
        }
        joined
    }

    /// Has what was opened go on, of which the last one is the first of a train. Returns how those behind it go on, if it was given
    /// to a joiner.
    fn pass_train(
        &mut self,
        train: Train,
        datagram_bytes: usize,
        stage: &mut Stage,
        misses: &mut FrameProducer<Miss>,
    ) -> Option<Run> {
        let last = stage.used.checked_sub(1)?;
        let (slot, rule) = self.pass_opened(stage, misses)?;
        let Opened { packet, inner, .. } = &stage.opened[last];
        let (tcp_flags, frame_bytes) = (packet.parsed.tcp_flags, inner.length);
        self.joiner.coalescer.holds_last().then_some(Run {
            train,
            slot,
            rule,
            tcp_flags,
            datagram_bytes,
            frame_bytes,
        })
    }

    /// Looks a received frame up and sends it on its way. Returns slot and rule of its flow if it went to a joiner.
    #[inline]
    fn decide_received(
        &mut self,
        opened: &mut Opened,
        misses: &mut FrameProducer<Miss>,
    ) -> Option<(u32, CounterIndex)> {
        let is_whole = opened.is_whole();
        let Opened { ingress, sender, zone, inner: at, packet, ahead, .. } = opened;
        let (at, zone) = (*at, *zone);
        (self.hand, self.hand_of) = (Hand::Received { at: at.start, length: at.length }, NOBODY);
        self.trip();
        let counters = &self.shared.counters;
        let frame = &mut self.receive.bytes[at.start..at.start + at.length];
        let (tables, store, now_ms) = (&*self.tables, &*self.shared.store, self.now_ms);
        let lookup = Lookup { tables, store, counters, now_ms };
        let origin = || Origin::underlay(*ingress, *sender, zone);
        let verdict = if is_whole {
            forward::judge_ahead(&lookup, &mut self.last_flow, zone, ahead, packet, at.length)
        } else {
            let (following, parsed) = (&mut self.following, &packet.parsed);
            match fragment::key_of(following, counters, now_ms, zone, parsed, at.length, origin) {
                Ok((key, false)) => {
                    forward::judge(&lookup, &mut self.last_flow, zone, &key, packet, at.length)
                }
                Ok((key, true)) => Verdict::Miss(MissReason::NoFlow, FlowKey { zone: 0, ..key }),
                Err(Stopped::Dropped) => return None,
                Err(Stopped::Early) => {
                    let held = &mut self.following.held;
                    fragment::hold(held, counters, now_ms, &origin(), packet, frame);
                    return None;
                }
            }
        };
        match verdict {
            Verdict::Dropped => {}
            Verdict::Miss(reason, key) => {
                let virtio = packet.offload.header(&packet.parsed);
                let origin = origin();
                let taken = hand_over(&self.shared, misses, &origin, key, reason, virtio, frame, 1);
                fragment::missed(
                    &mut self.following.fragments,
                    now_ms,
                    &origin,
                    &packet.parsed,
                    reason,
                    taken,
                );
                self.missed |= taken;
            }
            Verdict::Forward { action, hash, slot } => {
                if forward::alter(frame, packet, action).is_err() {
                    counters.dropped(EngineDrop::NotTranslatable).add(1, at.length as u64);
                    return None;
                }
                let joined = Some((slot, action.counter));
                match action.hop {
                    CompiledHop::Port(port) => self.join(usize::from(port), at, packet),
                    CompiledHop::External => self.join(EXTERNAL, at, packet),
                    CompiledHop::Underlay(tunnel) => {
                        self.relay(&tunnel, hash, at, packet);
                        return None;
                    }
                    CompiledHop::Drop => return None,
                }
                return joined;
            }
        }
        None
    }

    /// Sends a received frame on to another switch.
    fn relay(&mut self, tunnel: &Tunnel, hash: u64, at: Datagram, packet: &Checked) {
        let inner = self.inner_checksum(tunnel, &packet.offload);
        if let (Offload::Checksum { start, field }, true) = (packet.offload, inner != InnerChecksum::Partial)
        {
            let frame = &mut self.receive.bytes[at.start..at.start + at.length];
            // The places are those of the parsed frame.
            let _ = checksum::complete(frame, start, field, packet.parsed.payload_end);
        }
        let header = tunnel.header(inner);
        let frame = &self.receive.bytes[at.start..at.start + at.length];
        if !self.taps.is_empty() {
            let outer = outer_of(self.underlay, tunnel, &self.underlay_ports, packet.parsed.ecn());
            self.taps.underlay(&outer, [&header, frame], &self.shared.counters);
        }
        self.transmit.header_room(header.len()).copy_from_slice(&header);
        // SAFETY: the receive buffers stay as they are until `serve_underlay` ends, which flushes.
        #[allow(unsafe_code)]
        unsafe {
            self.transmit.append(tunnel, hash, packet.parsed.ecn(), header.len(), frame);
        }
    }
}

/// Reads a tunnel header and the frame behind it.
#[inline]
fn open(
    datagram: &mut [u8],
    format: Encapsulation,
    packet: &mut Checked,
) -> Result<encap::Decapsulated, weir_packet::PacketError> {
    let tunnel = wire_format(format).decode(datagram)?;
    let frame = &mut datagram[tunnel.inner_offset..];
    match tunnel.checksum {
        InnerChecksum::Partial => packet.renew_partial(frame)?,
        _ => packet.renew(frame, &VirtioNetHeader::default())?,
    }
    Ok(tunnel)
}

/// The train of a datagram, if `next`, as many bytes as it has or what is left of its message, is of it.
#[inline]
fn train_of(datagram: &[u8], tunnel: &encap::Decapsulated, packet: &Checked, next: &[u8]) -> Option<Train> {
    if next.len() < datagram.len() {
        return None;
    }
    let train = Train::new(datagram, tunnel.inner_offset, &packet.parsed)?;
    // What is compared counts up.
    let mut look = train;
    look.takes(next).then_some(train)
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

#[cfg(test)]
mod tests;
