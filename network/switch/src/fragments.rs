//! Later fragments follow their first one (rows A17, A22, A24, A25).
//!
//! Only the first fragment of a datagram has the ports. So what is remembered of it is the key of its flow, and each
//! later fragment is looked up under that key: it gets the same verdict, the same translation, the same counters, and
//! a rule that is revoked takes effect in the middle of a datagram too. Which datagram a fragment is of is told by the
//! network, the addresses, the identification and, of IPv4, the protocol (RFC 791; RFC 8200 §4.5: the protocol of an
//! IPv6 fragment is what its first one says).
//!
//! Refused, each under its own reason:
//! - `fragment-early`: no first fragment was seen, it was too long ago, or it did not pass. One that may only be early waits for
//!   its first one, in little room and not long ([`Held`]), and is refused then. Where the switch itself could change the
//!   order, when the slow path has the first fragment, those behind it take the same way.
//! - `fragment-overlap`: it overlaps one that was there, is empty, goes on behind the end of the datagram, or is a second
//!   first or last one (RFC 5722, RFC 1858, RFC 3128; for IPv4 too). The rest of its datagram is refused with it.
//! - `fragment-scattered`: pieces of its datagram came so much out of order that more than [`PIECES_MAX`] stand apart.
//!
//! First fragments that do not hold the whole transport header, and those at offset 8 of TCP, are refused when they are
//! parsed (`tcp_truncated`, `udp_truncated`, `icmp_truncated`, `fragment_tiny`).
//!
//! Limits: [`DATAGRAMS_MAX`] datagrams, in memory that is taken once; [`TIMEOUT_MS`] each. A datagram is forgotten when
//! all of it has passed, so that those in the table are those under way. In a full bucket the datagram of whoever
//! holds most makes room, the oldest of them: who floods takes from himself. That is counted.
//!
//! Departures: translation leaves the identification as it is (RFC 4787 REQ-14 leaves it open), so that two endpoints
//! behind one outside address which send fragments to one destination may use one identification; the receiver's
//! checksum tells.

mod carried;
pub(crate) mod held;

pub use carried::{CarriedDatagram, CarriedFate, CarriedPlace};
pub use held::{Held, HeldFrame, Lost};

use crate::counters::Reason;
use crate::engine::limits::{EXTERNAL, MISS_CLASSES};
use crate::flow::Ingress;
use std::hash::BuildHasher;
use weir_packet::{FlowKey, Fragment, IpAddress, Parsed};

/// Most datagrams that are followed.
pub const DATAGRAMS_MAX: usize = 8192;
/// How long after its first fragment a datagram may go on, milliseconds.
pub const TIMEOUT_MS: u32 = 5000;
/// Pieces of a datagram that may stand apart from each other: every second fragment of the largest one at an MTU of 1500.
pub const PIECES_MAX: usize = 23;
/// Datagrams in a bucket.
const WAYS: usize = 8;
/// Added to the number of a network, apart from those of ports.
const NETWORKS: u32 = 1 << 31;

/// Names a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DatagramKey {
    source: IpAddress,
    destination: IpAddress,
    place: u32,
    identification: u32,
    protocol: u8,
}

impl DatagramKey {
    fn new(ingress: &Ingress, parsed: &Parsed) -> DatagramKey {
        DatagramKey {
            source: parsed.source,
            destination: parsed.destination,
            place: match *ingress {
                Ingress::Port(port) => u32::from(port),
                Ingress::External => EXTERNAL as u32,
                // Not the sender: a datagram may begin by a gateway and go on directly.
                Ingress::Underlay { vni, .. } => NETWORKS | vni,
            },
            identification: parsed.identification,
            protocol: if parsed.is_v6() { 0 } else { parsed.protocol },
        }
    }
}

/// What of a datagram has come: pieces that do not touch, from the lowest on, each from its first byte to the one behind
/// its last.
#[derive(Clone, Copy, Debug, Default)]
struct Pieces {
    pieces: [(u16, u16); PIECES_MAX],
    count: u8,
    /// Where the datagram ends, when its last fragment has come.
    end: Option<u16>,
}

impl Pieces {
    /// Adds a fragment.
    fn add(&mut self, parsed: &Parsed) -> Result<(), Reason> {
        let (from, to) = (parsed.fragment_offset, parsed.fragment_end);
        let list = &self.pieces[..usize::from(self.count)];
        let behind = list.last().map_or(0, |piece| piece.1);
        let beyond = self.end.is_some_and(|end| to > end || !parsed.more_fragments);
        if from >= to || beyond || (!parsed.more_fragments && behind > to) {
            return Err(Reason::FragmentOverlap);
        }
        let at = list.partition_point(|piece| piece.1 <= from);
        if list.get(at).is_some_and(|piece| piece.0 < to) {
            return Err(Reason::FragmentOverlap);
        }
        let touches_before = at > 0 && list[at - 1].1 == from;
        let touches_behind = list.get(at).is_some_and(|piece| piece.0 == to);
        match (touches_before, touches_behind) {
            (true, true) => {
                self.pieces[at - 1].1 = self.pieces[at].1;
                self.pieces.copy_within(at + 1.., at);
                self.count -= 1;
            }
            (true, false) => self.pieces[at - 1].1 = to,
            (false, true) => self.pieces[at].0 = from,
            (false, false) => {
                if list.len() == PIECES_MAX {
                    return Err(Reason::FragmentScattered);
                }
                self.pieces.copy_within(at..PIECES_MAX - 1, at + 1);
                self.pieces[at] = (from, to);
                self.count += 1;
            }
        }
        if !parsed.more_fragments {
            self.end = Some(to);
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.count == 1 && self.end == Some(self.pieces[0].1) && self.pieces[0].0 == 0
    }
}

/// How far a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The slow path has its first fragment.
    Waits,
    /// Its first fragment is through.
    Goes,
    /// Nothing of it may pass any more.
    Refused(Reason),
}

/// A datagram under way.
#[derive(Clone, Copy, Debug)]
struct Datagram {
    key: DatagramKey,
    source_port: u16,
    destination_port: u16,
    /// Of its first fragment, behind all extension headers.
    protocol: u8,
    state: State,
    pieces: Pieces,
    since_ms: u32,
    class: u16,
}

impl Datagram {
    fn is_over(&self, now_ms: u32) -> bool {
        now_ms.wrapping_sub(self.since_ms) > TIMEOUT_MS
    }

    /// The key of the flow that its first fragment is of.
    fn flow(&self, parsed: &Parsed) -> FlowKey {
        FlowKey {
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol,
            flags: 0,
            ..FlowKey::new(0, parsed)
        }
    }
}

/// A fragment that belongs to a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The flow's key, zone zero.
    pub key: FlowKey,
    /// It must go through the slow path, for the first fragment is there.
    pub waits: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Fragments {
    datagrams: Box<[Option<Datagram>]>,
    /// Datagrams of each class.
    held: Box<[u16]>,
    hasher: foldhash::quality::RandomState,
    /// Datagrams that made room for others.
    pub evicted: u64,
}

impl Default for Fragments {
    fn default() -> Fragments {
        Fragments::with_limit(DATAGRAMS_MAX)
    }
}

impl Fragments {
    /// For `datagrams` at most, in buckets of 8.
    pub fn with_limit(datagrams: usize) -> Fragments {
        Fragments {
            datagrams: vec![None; datagrams.next_multiple_of(WAYS)].into(),
            held: vec![0; MISS_CLASSES].into(),
            hasher: foldhash::quality::RandomState::default(),
            evicted: 0,
        }
    }

    fn bucket(&self, key: &DatagramKey) -> std::ops::Range<usize> {
        let first = self.hasher.hash_one(key) as usize % (self.datagrams.len() / WAYS) * WAYS;
        first..first + WAYS
    }

    fn place(&self, key: &DatagramKey, now_ms: u32) -> Option<usize> {
        self.bucket(key).find(|&at| {
            self.datagrams[at]
                .as_ref()
                .is_some_and(|datagram| datagram.key == *key && !datagram.is_over(now_ms))
        })
    }

    /// What [`Fragments::take`] would say.
    ///
    /// # Errors
    /// The reason to drop it for.
    pub fn look(&self, ingress: &Ingress, parsed: &Parsed, now_ms: u32) -> Result<Followed, Reason> {
        let key = DatagramKey::new(ingress, parsed);
        let datagram = self.place(&key, now_ms).and_then(|at| self.datagrams[at].as_ref());
        match (parsed.fragment, datagram) {
            (Fragment::Whole, _) => Ok(Followed { key: FlowKey::new(0, parsed), waits: false }),
            (_, Some(Datagram { state: State::Refused(reason), .. })) => Err(*reason),
            (Fragment::First, None) => {
                Pieces::default().add(parsed)?;
                Ok(Followed { key: FlowKey::new(0, parsed), waits: false })
            }
            (Fragment::First, Some(_)) => Err(Reason::FragmentOverlap),
            (Fragment::Later, None) => Err(Reason::FragmentEarly),
            (Fragment::Later, Some(datagram)) => {
                { datagram.pieces }.add(parsed)?;
                Ok(Followed { key: datagram.flow(parsed), waits: datagram.state == State::Waits })
            }
        }
    }

    /// Takes a fragment: the flow that it belongs to. `class` is who is charged, below [`MISS_CLASSES`].
    ///
    /// # Errors
    /// The reason to drop it for.
    pub fn take(
        &mut self,
        ingress: &Ingress,
        class: usize,
        parsed: &Parsed,
        now_ms: u32,
    ) -> Result<Followed, Reason> {
        let followed = self.look(ingress, parsed, now_ms);
        let key = DatagramKey::new(ingress, parsed);
        let place = self.place(&key, now_ms);
        match (followed, place) {
            (Ok(_), Some(at)) => self.advance(at, parsed),
            (Ok(followed), None) if parsed.fragment == Fragment::First => {
                self.begin(key, class, &followed.key, parsed, now_ms);
            }
            (Err(reason), Some(at)) => {
                if let Some(datagram) = &mut self.datagrams[at] {
                    datagram.state = State::Refused(reason);
                }
            }
            _ => {}
        }
        followed
    }

    fn advance(&mut self, at: usize, parsed: &Parsed) {
        let Some(datagram) = &mut self.datagrams[at] else { return };
        // `look` has tried it.
        let _ = datagram.pieces.add(parsed);
        if datagram.pieces.is_whole() {
            self.clear(at);
        }
    }

    fn begin(&mut self, key: DatagramKey, class: usize, flow: &FlowKey, parsed: &Parsed, now_ms: u32) {
        let class = class.min(MISS_CLASSES - 1);
        let at = self.room(&key, class, now_ms);
        self.clear(at);
        self.held[class] += 1;
        let mut pieces = Pieces::default();
        // `look` has tried it.
        let _ = pieces.add(parsed);
        self.datagrams[at] = Some(Datagram {
            key,
            source_port: flow.source_port,
            destination_port: flow.destination_port,
            protocol: flow.protocol,
            state: State::Goes,
            pieces,
            since_ms: now_ms,
            class: class as u16,
        });
    }

    /// A place for a new datagram: a free one, or that of whoever holds most.
    fn room(&mut self, key: &DatagramKey, class: usize, now_ms: u32) -> usize {
        let bucket = self.bucket(key);
        let is_free =
            |at: &usize| self.datagrams[*at].as_ref().is_none_or(|datagram| datagram.is_over(now_ms));
        if let Some(at) = bucket.clone().find(is_free) {
            return at;
        }
        self.evicted += 1;
        let weight = |at: &usize| {
            let datagram = self.datagrams[*at].as_ref();
            datagram.map(|datagram| {
                let holder = usize::from(datagram.class);
                let held = self.held[holder] + u16::from(holder == class);
                (held, now_ms.wrapping_sub(datagram.since_ms))
            })
        };
        bucket.clone().max_by_key(weight).unwrap_or(bucket.start)
    }

    fn clear(&mut self, at: usize) {
        if let Some(datagram) = self.datagrams[at].take() {
            self.held[usize::from(datagram.class)] -= 1;
        }
    }

    /// The slow path has the first fragment of a datagram.
    pub fn first_waits(&mut self, ingress: &Ingress, parsed: &Parsed, now_ms: u32) {
        self.set_state(ingress, parsed, now_ms, State::Goes, State::Waits);
    }

    /// The slow path has put the first fragment of a datagram back.
    pub fn first_goes(&mut self, ingress: &Ingress, parsed: &Parsed, now_ms: u32) {
        self.set_state(ingress, parsed, now_ms, State::Waits, State::Goes);
    }

    fn set_state(&mut self, ingress: &Ingress, parsed: &Parsed, now_ms: u32, from: State, to: State) {
        let place = self.place(&DatagramKey::new(ingress, parsed), now_ms);
        if let Some(datagram) = place.and_then(|at| self.datagrams[at].as_mut())
            && datagram.state == from
        {
            datagram.state = to;
        }
    }

    /// The first fragment of a datagram was not passed on: what comes behind it has no first one.
    pub fn first_ended(&mut self, ingress: &Ingress, parsed: &Parsed, now_ms: u32) {
        if let Some(at) = self.place(&DatagramKey::new(ingress, parsed), now_ms) {
            self.clear(at);
        }
    }

    /// Datagrams in the table, those that are over but not yet replaced too.
    pub fn len(&self) -> usize {
        self.datagrams.iter().flatten().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
