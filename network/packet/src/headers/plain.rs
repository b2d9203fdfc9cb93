//! The nearly certain frame, read in one go: untagged, IPv4 without options or IPv6 without extension headers, whole, TCP or UDP,
//! from one host to one other, with a TTL and TCP flags that such packets have.
//!
//! [`super::parse`] writes down thirty fields, of which a packet that only goes from one port to another needs five. What is
//! [`Plain`] is right in all that [`super::parse`] checks, and says the same of it; whatever is not plain is left to that.

use super::{
    ETHERNET_BYTES, IPV4_BYTES, IPV6_BYTES, PROTOCOL_TCP, PROTOCOL_UDP, TCP_BYTES, UDP_BYTES, tcp_flags,
};
use crate::address::IpAddress;
use crate::bytes::{get_array, get16};
use crate::checksum::update;
use crate::key::{FlowKey, HashSeed, NO_VLAN, Words, hash};

/// Ethertype of IPv4, version 4 and a header of 20 bytes, as the four bytes from the ethertype on are read here.
const IPV4_WITHOUT_OPTIONS: u32 = 0x0045_0008;
/// Ethertype of IPv6 and version 6.
const IPV6: u32 = 0x0060_dd86;
const IPV4_MASK: u32 = 0x00ff_ffff;
const IPV6_MASK: u32 = 0x00f0_ffff;
/// Of the word with IPv4's fragment offset: the offset, and "more fragments".
const IS_FRAGMENT: u16 = 0x3fff;
/// The shortest plain frame: IPv4 and UDP.
const SHORTEST: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// First byte of the addresses that are no host's: multicast and what is behind.
const NO_HOST: u8 = 224;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plain {
    /// The key of its flow.
    pub key: FlowKey,
    /// Length of the IP packet, bytes.
    pub l3_bytes: u16,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TCP flag byte, else 0.
    pub tcp_flags: u8,
}

impl Default for Plain {
    fn default() -> Plain {
        let key = FlowKey {
            source: IpAddress::default(),
            destination: IpAddress::default(),
            zone: 0,
            source_port: 0,
            destination_port: 0,
            vlan: NO_VLAN,
            protocol: 0,
            flags: 0,
        };
        Plain { key, l3_bytes: 0, ttl: 0, tcp_flags: 0 }
    }
}

impl Plain {
    /// Reads a frame that came from `zone`; `None` when it is not plain.
    #[inline]
    pub fn new(zone: u32, frame: &[u8]) -> Option<Plain> {
        let mut plain = Plain::default();
        plain.read(zone, frame).map(|_| plain)
    }

    /// As [`Plain::new`], in the place of what was there, which is gone also when the frame is not plain. Returns the hash of its key
    /// if it is.
    #[inline]
    pub fn renew(&mut self, zone: u32, frame: &[u8], seed: &HashSeed) -> Option<u64> {
        self.read(zone, frame).map(|words| hash(&words, seed))
    }

    /// Returns the words of the key: what was just written field by field is slow to read in words.
    #[inline(always)]
    fn read(&mut self, zone: u32, frame: &[u8]) -> Option<Words> {
        let head = frame.first_chunk::<SHORTEST>()?;
        // To many.
        if head[0] & 1 != 0 {
            return None;
        }
        let kind = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
        if kind & IPV4_MASK == IPV4_WITHOUT_OPTIONS {
            return self.read_ipv4(zone, frame, head);
        }
        if kind & IPV6_MASK == IPV6 { self.read_ipv6(zone, frame) } else { None }
    }

    #[inline(always)]
    fn read_ipv4(&mut self, zone: u32, frame: &[u8], head: &[u8; SHORTEST]) -> Option<Words> {
        let l3_bytes = get16(head, 16);
        let is_whole = get16(head, 20) & IS_FRAGMENT == 0;
        let of_hosts = head[26] < NO_HOST && head[30] < NO_HOST && head[22] != 0;
        if usize::from(l3_bytes) > frame.len() - ETHERNET_BYTES || !is_whole || !of_hosts {
            return None;
        }
        let transport_bytes = usize::from(l3_bytes).checked_sub(IPV4_BYTES)?;
        let tcp_flags = transport(head[23], frame, ETHERNET_BYTES + IPV4_BYTES, transport_bytes)?;
        (self.l3_bytes, self.ttl, self.tcp_flags) = (l3_bytes, head[22], tcp_flags);
        let addresses = (IpAddress::v4(get_array(head, 26)), IpAddress::v4(get_array(head, 30)));
        Some(self.set_key(zone, addresses, (get16(head, 34), get16(head, 36)), head[23]))
    }

    // Not in line: it would be in the way of the other.
    #[inline(never)]
    fn read_ipv6(&mut self, zone: u32, frame: &[u8]) -> Option<Words> {
        let head: &[u8; ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES] = frame.first_chunk()?;
        let transport_bytes = usize::from(get16(head, 18));
        let l3_bytes = IPV6_BYTES + transport_bytes;
        let (source, destination) = (IpAddress::v6(get_array(head, 22)), IpAddress::v6(get_array(head, 38)));
        let of_hosts =
            [&source, &destination].iter().all(|ip| !ip.is_v4() && !ip.is_multicast()) && head[21] != 0;
        if l3_bytes > (frame.len() - ETHERNET_BYTES).min(usize::from(u16::MAX)) || !of_hosts {
            return None;
        }
        let tcp_flags = transport(head[20], frame, ETHERNET_BYTES + IPV6_BYTES, transport_bytes)?;
        (self.l3_bytes, self.ttl, self.tcp_flags) = (l3_bytes as u16, head[21], tcp_flags);
        Some(self.set_key(zone, (source, destination), (get16(head, 54), get16(head, 56)), head[20]))
    }

    #[inline(always)]
    fn set_key(
        &mut self,
        zone: u32,
        (source, destination): (IpAddress, IpAddress),
        (source_port, destination_port): (u16, u16),
        protocol: u8,
    ) -> Words {
        let key = FlowKey {
            source,
            destination,
            zone,
            source_port,
            destination_port,
            vlan: NO_VLAN,
            protocol,
            flags: 0,
        };
        self.key = key;
        key.words()
    }

    /// ECN bits of a plain frame.
    #[inline]
    pub fn ecn(frame: &[u8]) -> u8 {
        match frame.get(ETHERNET_BYTES..ETHERNET_BYTES + 2) {
            Some([version, class]) if version >> 4 == 6 => class >> 4 & 3,
            Some([_, class]) => class & 3,
            _ => 0,
        }
    }

    /// Takes one from TTL or hop limit, which must be more than 1.
    #[inline(never)]
    pub fn decrement_ttl(&mut self, frame: &mut [u8]) {
        debug_assert!(self.ttl > 1);
        let Some(head) = frame.first_chunk_mut::<{ ETHERNET_BYTES + IPV4_BYTES }>() else { return };
        self.ttl -= 1;
        if head[14] >> 4 == 6 {
            head[21] = self.ttl;
            return;
        }
        let new = u16::from_be_bytes([self.ttl, head[23]]);
        let checksum = update(get16(head, 24), get16(head, 22), new);
        head[22] = self.ttl;
        [head[24], head[25]] = checksum.to_be_bytes();
    }
}

/// Checks a transport header of which there are `there` bytes from `at` on, all in the frame. Returns the TCP flags, 0 of UDP.
#[inline(always)]
fn transport(protocol: u8, frame: &[u8], at: usize, there: usize) -> Option<u8> {
    match protocol {
        PROTOCOL_UDP if there >= UDP_BYTES => {
            let said = usize::from(get16(frame, at + 4));
            (said >= UDP_BYTES && said <= there).then_some(0)
        }
        PROTOCOL_TCP if there >= TCP_BYTES => {
            let header = usize::from(frame[at + 12] >> 4) * 4;
            let flags = frame[at + 13];
            (header >= TCP_BYTES && header <= there && !tcp_flags::is_odd(flags)).then_some(flags)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
