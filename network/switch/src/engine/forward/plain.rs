//! The short way's part of the decision: plain packets of a batch, whose flows say briefly all that is to be done.
//!
//! What is said about a packet is what [`super::judge`] would say; what cannot be said briefly is left to that.

use super::Lookup;
use crate::flow::CounterIndex;
use crate::flowtable::Flow;
use crate::flowtable::action::Brief;
use crate::flowtable::tunnel::TunnelHeader;
use crate::flowtable::ways::Way;
use weir_packet::Plain;

/// Bytes of both Ethernet addresses.
pub const ADDRESSES_BYTES: usize = 12;

/// What is to be done with a plain packet of a batch, and its flow, if the flow is where it was looked for and says all of
/// it briefly. Else nothing is said: it must be parsed and judged as any other. It is counted with a [`Tally`].
#[inline]
pub fn judge_plain<'a>(
    lookup: &Lookup<'a>,
    near: Option<u32>,
    packet: &Plain,
) -> Option<(&'a Flow, &'a Brief)> {
    let (flow, brief) = lookup.tables.brief_near(lookup.store, near, &packet.key)?;
    (packet.l3_bytes <= brief.mtu && brief.is_all(packet.ttl, packet.tcp_flags)).then_some((flow, brief))
}

/// Changes a plain packet as its flow says, but for the Ethernet addresses, which it returns as they shall be, with what
/// follows them. They are written where the packet goes: a short piece that was just written over a part of a longer one
/// keeps the processor waiting when it is read. `None` for what has no addresses, which is not plain.
#[inline]
pub fn alter_plain<'a>(
    frame: &'a mut [u8],
    packet: &mut Plain,
    brief: &'a Brief,
) -> Option<(&'a [u8; ADDRESSES_BYTES], &'a [u8])> {
    if brief.is_routed() {
        packet.decrement_ttl(frame);
    }
    let (own, rest) = frame.split_first_chunk()?;
    Some((brief.ethernet().unwrap_or(own), rest))
}

/// The way to another switch of a flow that [`judge_plain`] gave, if it goes to one.
#[inline(always)]
pub fn way_of<'a>(lookup: &Lookup<'a>, brief: &Brief) -> Option<&'a Way> {
    brief.way().map(|way| lookup.store.way(way))
}

/// Has a plain packet, of `length` bytes at `at` of a buffer behind room for its tunnel header, ready for another switch. Returns where the
/// datagram begins; `None` for what has no addresses, which is not plain.
#[inline]
pub fn encapsulate_plain(
    buffer: &mut [u8],
    (at, length): (usize, usize),
    packet: &mut Plain,
    brief: &Brief,
    header: &TunnelHeader,
) -> Option<usize> {
    let frame = buffer.get_mut(at..at + length)?;
    if brief.is_routed() {
        packet.decrement_ttl(frame);
    }
    if let Some(addresses) = brief.ethernet() {
        *frame.first_chunk_mut()? = *addresses;
    }
    Some(header.write_before(buffer, at))
}

/// Packets and their bytes. Of two widths: those of one would be put together in a longer register first, to be added with twice the
/// instructions.
#[derive(Clone, Copy, Default)]
struct Sum {
    packets: u32,
    bytes: u64,
}

/// Counts plain packets: those of one flow that follow each other at once, and flows of one rule at once. What was not counted is when
/// it is dropped.
pub struct Tally<'a> {
    lookup: &'a Lookup<'a>,
    flow: Option<&'a Flow>,
    of_flow: Sum,
    tcp_flags: u8,
    rule: CounterIndex,
    of_rule: Sum,
}

impl<'a> Tally<'a> {
    /// Of no packet.
    #[inline]
    pub fn new(lookup: &'a Lookup<'a>) -> Tally<'a> {
        let (of_flow, of_rule) = (Sum::default(), Sum::default());
        Tally { lookup, flow: None, of_flow, tcp_flags: 0, rule: 0, of_rule }
    }

    /// Counts a packet that [`judge_plain`] said something about.
    #[inline(always)]
    pub fn count(&mut self, flow: &'a Flow, brief: &Brief, packet: &Plain, frame_bytes: usize) {
        if !self.flow.is_some_and(|last| std::ptr::eq(last, flow)) {
            self.turn_to(flow, brief.counter());
        }
        self.of_flow.packets += 1;
        self.of_flow.bytes += frame_bytes as u64;
        self.tcp_flags |= packet.tcp_flags;
    }

    #[inline(never)]
    fn turn_to(&mut self, flow: &'a Flow, rule: CounterIndex) {
        self.end_flow();
        self.flow = Some(flow);
        if rule != self.rule {
            self.end_rule();
            self.rule = rule;
        }
    }

    #[inline(always)]
    fn end_flow(&mut self) {
        let Sum { packets, bytes } = std::mem::take(&mut self.of_flow);
        let tcp_flags = std::mem::take(&mut self.tcp_flags);
        if let Some(flow) = self.flow {
            flow.counters.count(packets, bytes, self.lookup.now_ms, tcp_flags);
            self.of_rule.packets += packets;
            self.of_rule.bytes += bytes;
        }
    }

    fn end_rule(&mut self) {
        let Sum { packets, bytes } = std::mem::take(&mut self.of_rule);
        if packets > 0
            && let Some(rule) = self.lookup.counters.rule(self.rule)
        {
            rule.add(packets.into(), bytes);
        }
    }
}

impl Drop for Tally<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        self.end_flow();
        self.end_rule();
    }
}
