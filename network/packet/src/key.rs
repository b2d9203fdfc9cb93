//! The key of a flow, and its keyed hash (row A22: one hash lookup to a dense index).
//!
//! The hash folds 64x64-bit products with secret words, as foldhash does. It is fast and needs a random seed,
//! so that a tenant cannot choose flows that collide; it is no cryptographic hash and authenticates nothing.

use crate::address::IpAddress;
use crate::headers::{Fragment, Parsed, Transport};
use std::hash::{Hash, Hasher};

/// The packet is a later fragment: its ports are in the first one, so they are 0 here. Who has seen the first one can
/// make the flow's key of it.
pub const FLAG_FRAGMENT: u8 = 1;
/// The frame is not IP: addresses hold the Ethernet addresses, `destination_port` the ethertype.
pub const FLAG_ETHERNET: u8 = 2;

/// Value of [`FlowKey::vlan`] for a frame without a tag.
pub const NO_VLAN: u16 = 0xffff;

const ICMP_ECHO_REPLY: u8 = 0;
const ICMP_ECHO_REQUEST: u8 = 8;
const ICMPV6_ECHO_REQUEST: u8 = 128;
const ICMPV6_ECHO_REPLY: u8 = 129;

/// Names one direction of one flow: 44 bytes, no padding. A table entry of one 64-byte cache line has 20 to spare.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct FlowKey {
    /// Source address; for [`FLAG_ETHERNET`] the source Ethernet address in its first 6 bytes.
    pub source: IpAddress,
    /// Destination address, in the same form.
    pub destination: IpAddress,
    /// What keeps tenants apart: a VNI, or a port number. The caller decides which.
    pub zone: u32,
    /// TCP or UDP source port; ICMP echo identifier; else 0.
    pub source_port: u16,
    /// TCP or UDP destination port; ICMP type and code (type in the high byte); ethertype; else 0.
    pub destination_port: u16,
    /// VLAN identifier inside the tenant's frame, or [`NO_VLAN`].
    pub vlan: u16,
    /// IP protocol.
    pub protocol: u8,
    /// [`FLAG_FRAGMENT`], [`FLAG_ETHERNET`].
    pub flags: u8,
}

/// All fields of a key as numbers.
pub(crate) type Words = [u64; 6];

impl FlowKey {
    /// The key of a parsed frame in `zone`. Every frame has one.
    #[inline]
    pub fn new(zone: u32, parsed: &Parsed) -> Self {
        let vlan = parsed.vlan_id().unwrap_or(NO_VLAN);
        if !parsed.is_ip() {
            return Self::of_ethernet(zone, vlan, parsed);
        }
        let mut key = Self {
            source: parsed.source,
            destination: parsed.destination,
            zone,
            source_port: parsed.source_port,
            destination_port: parsed.destination_port,
            vlan,
            protocol: parsed.protocol,
            flags: 0,
        };
        if parsed.fragment == Fragment::Later {
            key.flags = FLAG_FRAGMENT;
        } else if matches!(parsed.transport, Transport::Icmpv4 | Transport::Icmpv6) {
            key.source_port = parsed.icmp_id;
            key.destination_port = u16::from_be_bytes([parsed.icmp_type, parsed.icmp_code]);
        }
        key
    }

    fn of_ethernet(zone: u32, vlan: u16, parsed: &Parsed) -> Self {
        let (mut source, mut destination) = ([0; 16], [0; 16]);
        source[..6].copy_from_slice(&parsed.source_mac);
        destination[..6].copy_from_slice(&parsed.destination_mac);
        Self {
            source: IpAddress(source),
            destination: IpAddress(destination),
            zone,
            source_port: 0,
            destination_port: parsed.ethertype,
            vlan,
            protocol: 0,
            flags: FLAG_ETHERNET,
        }
    }

    /// Whether the frame is not IP.
    #[inline]
    pub fn is_ethernet(&self) -> bool {
        self.flags & FLAG_ETHERNET != 0
    }

    /// Whether the packet is a later fragment, whose flow is that of its first one.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.flags & FLAG_FRAGMENT != 0
    }

    /// Whether the protocol is ICMP or ICMPv6, with its type in `destination_port`.
    #[inline]
    fn is_icmp(&self) -> bool {
        self.flags == 0 && self.protocol == if self.source.is_v4() { 1 } else { 58 }
    }

    /// The key of the answer: addresses and ports swapped; of ICMP echo the type, while the identifier stays.
    /// Reversing twice gives the key back.
    #[inline]
    pub fn reverse(&self) -> Self {
        let mut key = Self { source: self.destination, destination: self.source, ..*self };
        if self.is_icmp() {
            let [kind, code] = self.destination_port.to_be_bytes();
            key.destination_port = u16::from_be_bytes([answer_type(self.protocol, kind), code]);
        } else if !self.is_ethernet() {
            key.source_port = self.destination_port;
            key.destination_port = self.source_port;
        }
        key
    }

    /// All fields as numbers, put together as they lie in memory on most machines: then each is one read.
    #[inline(always)]
    pub(crate) fn words(&self) -> Words {
        let (s0, s1) = halves(&self.source);
        let (d0, d1) = halves(&self.destination);
        let ports = u64::from(self.source_port) << 32 | u64::from(self.destination_port) << 48;
        let rest = u64::from(self.protocol) << 16 | u64::from(self.flags) << 24;
        [s0, s1, d0, d1, u64::from(self.zone) | ports, u64::from(self.vlan) | rest]
    }

    /// Keyed hash of all fields. Two products deep; all 64 bits are usable.
    #[inline]
    pub fn hash(&self, seed: &HashSeed) -> u64 {
        hash(&self.words(), seed)
    }
}

/// See [`FlowKey::hash`].
#[inline(always)]
pub(crate) fn hash(&[s0, s1, d0, d1, ports, rest]: &Words, seed: &HashSeed) -> u64 {
    let k = &seed.words;
    let source = fold(s0 ^ k[0], s1 ^ k[1]);
    let destination = fold(d0 ^ k[2], d1 ^ k[3]);
    let meta = fold(ports ^ k[4], rest ^ k[5]);
    fold(source.rotate_left(23) ^ meta ^ k[6], destination ^ k[7])
}

impl PartialEq for FlowKey {
    /// Both addresses at once, and the other fields by words: what the field by field form is not made of.
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let ([.., ports, rest], [.., their_ports, their_rest]) = (self.words(), other.words());
        let are_the_same = self.source == other.source && self.destination == other.destination;
        are_the_same && ports == their_ports && rest == their_rest
    }
}

impl Eq for FlowKey {}

impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        for word in self.words() {
            state.write_u64(word);
        }
    }
}

/// The ICMP type that answers `kind`, or `kind` itself.
fn answer_type(protocol: u8, kind: u8) -> u8 {
    match (protocol, kind) {
        (1, ICMP_ECHO_REQUEST) => ICMP_ECHO_REPLY,
        (1, ICMP_ECHO_REPLY) => ICMP_ECHO_REQUEST,
        (58, ICMPV6_ECHO_REQUEST) => ICMPV6_ECHO_REPLY,
        (58, ICMPV6_ECHO_REPLY) => ICMPV6_ECHO_REQUEST,
        _ => kind,
    }
}

#[inline(always)]
fn halves(address: &IpAddress) -> (u64, u64) {
    let whole = u128::from_le_bytes(address.0);
    (whole as u64, (whole >> 64) as u64)
}

/// The 128-bit product, its halves joined.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The secret of a flow hash. Draw it at random for each table.
#[derive(Clone)]
pub struct HashSeed {
    words: [u64; 8],
}

impl HashSeed {
    /// Spreads 128 random bits over the words of the hash.
    pub fn new(random: [u64; 2]) -> Self {
        let mut state = random[0];
        let mut words = [0; 8];
        for (position, word) in words.iter_mut().enumerate() {
            // splitmix64, with the second half of the secret entering midway.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            if position == 4 {
                state ^= random[1];
            }
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *word = z ^ (z >> 31) ^ random[1].rotate_left(position as u32 * 8);
        }
        Self { words }
    }
}

impl std::fmt::Debug for HashSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashSeed(secret)")
    }
}

#[cfg(test)]
mod tests;
