//! Source translation at a gateway (row A25 in a first form).
//!
//! A translated port is unique towards one destination (protocol, address and port), so that a pool of
//! one address serves as many connections to each destination as it has ports. An endpoint keeps to one
//! outside address. The source port is kept when it is in the range and free.
//!
//! Towards one destination an endpoint may have a quarter of the ports and a network half of them (`nat-share`), so that nobody takes
//! all. Limits: [`PROBES_MAX`] ports are tried on each address; when none is free the packet is dropped as
//! `nat-exhausted`. TCP, UDP and ICMP echo are translated, nothing else.

use crate::conntrack::{Binding, Connections};
use siphasher::sip::SipHasher13;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use weir_packet::key::FlowKey;

/// Ports tried on each outside address.
pub const PROBES_MAX: usize = 512;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The outside addresses of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatPool {
    /// IPv4 addresses; none: IPv4 does not reach the outside.
    pub v4: Vec<Ipv4Addr>,
    /// IPv6 addresses; none: IPv6 does not reach the outside.
    pub v6: Vec<Ipv6Addr>,
    /// Ports and ICMP identifiers to use.
    pub ports: RangeInclusive<u16>,
}

impl NatPool {
    /// No outside.
    pub fn none() -> NatPool {
        NatPool { v4: Vec::new(), v6: Vec::new(), ports: 1024..=u16::MAX }
    }

    /// Whether the address is one of the pool.
    pub fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.v4.contains(&v4),
            IpAddr::V6(v6) => self.v6.contains(&v6),
        }
    }

    fn addresses(&self, v4: bool) -> Vec<IpAddr> {
        if v4 {
            self.v4.iter().copied().map(IpAddr::V4).collect()
        } else {
            self.v6.iter().copied().map(IpAddr::V6).collect()
        }
    }

    /// Ports of all addresses of a family: how many connections to one destination there can be.
    pub fn ports_of(&self, v4: bool) -> usize {
        let addresses = if v4 { self.v4.len() } else { self.v6.len() };
        addresses * (usize::from(self.ports.end() - self.ports.start()) + 1)
    }

    /// A free binding for a connection that `key` (zone: the network) opens; `None` when all that were
    /// tried are taken. Takes nothing: it is taken when the connection opens.
    pub fn find(&self, key: &FlowKey, connections: &Connections) -> Option<Binding> {
        let addresses = self.addresses(key.source.is_v4());
        let ports = usize::from(self.ports.end() - self.ports.start()) + 1;
        let at = spread(&(key.zone, key.source.0)) as usize;
        let offset = spread(key) as usize;
        for number in 0..addresses.len() {
            let address = addresses[(at % addresses.len() + number) % addresses.len()];
            let kept = Some(key.source_port).filter(|port| self.ports.contains(port));
            let tried = (0..ports.min(PROBES_MAX))
                .map(|probe| self.ports.start() + ((offset % ports + probe) % ports) as u16);
            for port in kept.into_iter().chain(tried) {
                let inbound = inbound_key(key, address, port);
                if connections.find_inbound(&inbound).is_none() {
                    return Some(Binding { external: (address, port), inbound });
                }
            }
        }
        None
    }
}

/// Key of the replies to `key` when its source is translated.
pub fn inbound_key(key: &FlowKey, address: IpAddr, port: u16) -> FlowKey {
    FlowKey { zone: 0, source: address.into(), source_port: port, ..*key }.reverse()
}

/// Whether a flow can be translated.
pub fn is_translatable(key: &FlowKey) -> bool {
    let echo = matches!(
        (key.protocol, key.source.is_v4(), key.destination_port >> 8),
        (1, true, 8) | (58, false, 128)
    );
    key.flags == 0 && (matches!(key.protocol, TCP | UDP) || echo)
}

fn spread(value: &impl Hash) -> u32 {
    let mut hasher = SipHasher13::new();
    value.hash(&mut hasher);
    hasher.finish() as u32
}

#[cfg(test)]
mod tests;
