//! What becomes of one packet: the decision and the changes, without any input or output. [`plain`]: the same for those that go
//! the short way.

pub mod plain;

use super::counters::Counters;
use crate::flow::{CounterIndex, MissReason};
use crate::flowtable::{CompiledAction, CompiledHop, FlowStore, Tables};
use weir_packet::address::Mac;
use weir_packet::headers::{PROTOCOL_ICMPV6, tcp_flags};
use weir_packet::rewrite::{self, ChecksumState};
use weir_packet::virtio::{Offload, VirtioNetHeader};
use weir_packet::{FlowKey, Fragment, PacketError, Parsed, Transport, checksum};

/// A frame and what its virtio header asks for, both checked. By default of an empty frame.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// Its fields.
    pub parsed: Parsed,
    /// What is left to do on it.
    pub offload: Offload,
}

impl Default for Checked {
    fn default() -> Checked {
        Checked { parsed: Parsed::default(), offload: Offload::Complete }
    }
}

impl Checked {
    /// As [`Checked::new`], in the place of what was there, which is gone also after an error.
    ///
    /// # Errors
    /// What is wrong with either.
    #[inline]
    pub fn renew(&mut self, frame: &[u8], virtio: &VirtioNetHeader) -> Result<(), PacketError> {
        weir_packet::parse_into(frame, &mut self.parsed)?;
        self.offload = virtio.validate(frame.len(), &self.parsed)?;
        Ok(())
    }

    /// Parses a frame and checks its virtio header against it.
    ///
    /// # Errors
    /// What is wrong with either.
    #[inline]
    pub fn new(frame: &[u8], virtio: &VirtioNetHeader) -> Result<Checked, PacketError> {
        let parsed = weir_packet::parse(frame)?;
        let offload = virtio.validate(frame.len(), &parsed)?;
        Ok(Checked { parsed, offload })
    }

    /// As [`Checked::renew`], for a frame of another switch whose transport checksum is said to be partial, which is written
    /// anew: what is there is not believed.
    ///
    /// # Errors
    /// What is wrong with the frame; `VirtioChecksum` if it is nothing that can have a partial checksum.
    #[inline]
    pub fn renew_partial(&mut self, frame: &mut [u8]) -> Result<(), PacketError> {
        weir_packet::parse_into(frame, &mut self.parsed)?;
        let parsed = &self.parsed;
        let field = match (parsed.transport, parsed.fragment) {
            (Transport::Tcp | Transport::Udp, Fragment::Whole) => checksum::field_offset(parsed),
            _ => None,
        };
        let field = field.ok_or(PacketError::VirtioChecksum)?;
        checksum::fill_partial(frame, parsed)?;
        self.offload = Offload::Checksum { start: parsed.l4_offset, field };
        Ok(())
    }

    /// Whether it is to be cut.
    #[inline]
    pub fn is_super_frame(&self) -> bool {
        matches!(self.offload, Offload::Segment(_))
    }

    /// How many packets it is, and their bytes, when it is cut.
    #[inline]
    pub fn weight(&self, frame_bytes: usize) -> (u64, u64) {
        match self.offload {
            Offload::Segment(cut) => {
                let segments = cut.segments as u64;
                (segments, frame_bytes as u64 + (segments - 1) * self.parsed.payload_offset as u64)
            }
            _ => (1, frame_bytes as u64),
        }
    }

    /// The largest IP packet that it becomes, bytes.
    #[inline]
    fn packet_bytes(&self) -> usize {
        match self.offload {
            Offload::Segment(cut) => {
                let headers = self.parsed.payload_offset - self.parsed.l3_offset;
                headers + cut.payload_bytes.min(self.parsed.payload_length())
            }
            _ => self.parsed.l3_length(),
        }
    }

    /// What its checksum field holds.
    #[inline]
    fn checksum_state(&self) -> ChecksumState {
        if self.offload == Offload::Complete { ChecksumState::Full } else { ChecksumState::Partial }
    }
}

/// Whether the flow table is not for a packet: no IP, or about neighbours, or to many, or one that no honest sender makes.
#[inline]
pub fn is_special(parsed: &Parsed) -> bool {
    parsed.destination_mac[0] & 1 != 0
        || !parsed.is_ip()
        || parsed.ttl == 0
        || (parsed.transport == Transport::Tcp && tcp_flags::is_odd(parsed.tcp_flags))
        || (parsed.protocol == PROTOCOL_ICMPV6 && matches!(parsed.icmp_type, 133..=137))
        || parsed.destination.is_multicast()
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'a> {
    /// It goes on as the action says.
    Forward {
        /// The action.
        action: &'a CompiledAction,
        /// Hash of the flow.
        hash: u64,
        /// Place of the flow in the store.
        slot: u32,
    },
    /// The slow path must decide.
    Miss(MissReason, FlowKey),
    /// It was dropped and counted.
    Dropped,
}

/// The flow that was looked up last. Packets come in trains of one flow, so the next look-up is often the same.
#[derive(Debug, Default)]
pub struct LastFlow(Option<(FlowKey, u64, u32)>);

impl LastFlow {
    /// Forgets it: to be called when the tables change.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Hash of a key: the remembered one, if it is of the last flow.
    #[inline]
    pub fn hash(&self, store: &FlowStore, key: &FlowKey) -> u64 {
        match &self.0 {
            Some((last, hash, _)) if last == key => *hash,
            _ => store.hash(key),
        }
    }

    /// Slot, action and hash of a key; `find` is asked for slot and hash unless the key is the last one.
    #[inline]
    fn find<'a>(
        &mut self,
        tables: &'a Tables,
        store: &'a FlowStore,
        key: &FlowKey,
        find: impl FnOnce() -> Option<(u32, &'a CompiledAction, u64)>,
    ) -> Option<(u32, &'a CompiledAction, u64)> {
        if let Some((last, hash, slot)) = &self.0
            && last == key
        {
            return Some((*slot, tables.action(store, *slot), *hash));
        }
        let (slot, action, hash) = find()?;
        self.0 = Some((*key, hash, slot));
        Some((slot, action, hash))
    }
}

/// What was done ahead for a packet of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// Its key.
    pub key: FlowKey,
    /// Hash of it.
    pub hash: u64,
    /// Where its flow nearly certainly is, in the tables that are in use.
    pub near: Option<u32>,
}

/// What packets are looked up in, and where they are counted.
pub struct Lookup<'a> {
    /// The tables in use.
    pub tables: &'a Tables,
    /// The flows.
    pub store: &'a FlowStore,
    /// Counters of rules.
    pub counters: &'a Counters,
    /// Time, milliseconds since the start, wrapping.
    pub now_ms: u32,
}

/// Looks a packet up under `key` and counts it. `zone` is that of the key, `None` for a sender that no flow is known of.
#[inline]
pub fn judge<'a>(
    lookup: &Lookup<'a>,
    last: &mut LastFlow,
    zone: Option<u32>,
    key: &FlowKey,
    packet: &Checked,
    frame_bytes: usize,
) -> Verdict<'a> {
    let find = || {
        let hash = lookup.store.hash(key);
        let (slot, action) = lookup.tables.find(lookup.store, hash, key)?;
        Some((slot, action, hash))
    };
    judge_found(lookup, last, zone, key, find, packet, frame_bytes)
}

/// The same for a packet of a batch.
#[inline]
pub fn judge_ahead<'a>(
    lookup: &Lookup<'a>,
    last: &mut LastFlow,
    zone: Option<u32>,
    ahead: &Ahead,
    packet: &Checked,
    frame_bytes: usize,
) -> Verdict<'a> {
    let Ahead { key, hash, near } = ahead;
    let find = || {
        let (slot, action) = lookup.tables.find_near(lookup.store, *near, *hash, key)?;
        Some((slot, action, *hash))
    };
    judge_found(lookup, last, zone, key, find, packet, frame_bytes)
}

#[inline]
fn judge_found<'a>(
    lookup: &Lookup<'a>,
    last: &mut LastFlow,
    zone: Option<u32>,
    key: &FlowKey,
    find: impl FnOnce() -> Option<(u32, &'a CompiledAction, u64)>,
    packet: &Checked,
    frame_bytes: usize,
) -> Verdict<'a> {
    let parsed = &packet.parsed;
    let missed = || FlowKey { zone: 0, ..*key };
    if is_special(parsed) {
        return Verdict::Miss(MissReason::Special, missed());
    }
    if zone.is_none() {
        return Verdict::Miss(MissReason::NoFlow, missed());
    }
    let Some((slot, action, hash)) = last.find(lookup.tables, lookup.store, key, find) else {
        return Verdict::Miss(MissReason::NoFlow, missed());
    };
    let is_drop = action.hop == CompiledHop::Drop;
    if !is_drop && packet.packet_bytes() > usize::from(action.mtu) {
        return Verdict::Miss(MissReason::TooBig(action.mtu), missed());
    }
    if !is_drop && action.routed && parsed.ttl <= 1 {
        return Verdict::Miss(MissReason::TtlExpired, missed());
    }
    let (packets, bytes) = packet.weight(frame_bytes);
    lookup.store.counters(slot).count(packets as u32, bytes, lookup.now_ms, parsed.tcp_flags);
    if let Some(rule) = lookup.counters.rule(action.counter) {
        rule.add(packets, bytes);
    }
    if is_drop { Verdict::Dropped } else { Verdict::Forward { action, hash, slot } }
}

/// Counts packets that follow one which was judged, and differ from it only in what does not matter to its flow.
#[inline]
pub fn count_more(
    lookup: &Lookup<'_>,
    slot: u32,
    rule: CounterIndex,
    packets: u64,
    bytes: u64,
    tcp_flags: u8,
) {
    lookup.store.counters(slot).count(packets as u32, bytes, lookup.now_ms, tcp_flags);
    if let Some(rule) = lookup.counters.rule(rule) {
        rule.add(packets, bytes);
    }
}

/// Changes a packet as its flow's action says.
///
/// # Errors
/// `NotTranslatable`; the packet must be dropped then.
#[inline]
pub fn alter(frame: &mut [u8], packet: &mut Checked, action: &CompiledAction) -> Result<(), PacketError> {
    let state = packet.checksum_state();
    let parsed = &mut packet.parsed;
    if action.mss_max != 0 {
        rewrite::clamp_mss(frame, parsed, action.mss_max, state)?;
    }
    if let Some(change) = &action.rewrite {
        rewrite::rewrite(frame, parsed, change, state)?;
    }
    if action.routed {
        rewrite::decrement_ttl(frame, parsed)?;
    }
    if let Some((destination, source)) = action.ethernet {
        rewrite::set_macs(frame, parsed, source, destination)?;
    }
    Ok(())
}

/// Gives a frame other Ethernet addresses.
///
/// # Errors
/// `FrameMismatch`, which cannot be for a frame that was parsed.
#[inline]
pub fn set_ethernet(
    frame: &mut [u8],
    packet: &mut Checked,
    (destination, source): (Mac, Mac),
) -> Result<(), PacketError> {
    rewrite::set_macs(frame, &mut packet.parsed, source, destination)
}

#[cfg(test)]
mod tests;
