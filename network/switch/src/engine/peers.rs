//! Which other switches take packets whose inner checksum is partial (row A19).
//!
//! Every Geneve packet of a switch says so of itself. It is believed of senders that a flow is known of, which proved
//! who they are by their token, and for [`HEARD_MS_MAX`]: a switch that is replaced by one that
//! does not know the option gets full checksums again by then. A table of fixed size: a peer that another took the place of
//! gets full checksums, which are always right.

use crate::flowtable::tunnel::Tunnel;
use std::net::IpAddr;
use weir_model::resource::Encapsulation;
use weir_packet::IpAddress;
use weir_packet::encap::InnerChecksum;
use weir_packet::virtio::Offload;

/// Peers that are remembered.
pub const PEERS_MAX: usize = 1024;
/// How long a peer's word holds, milliseconds.
pub const HEARD_MS_MAX: u32 = 10_000;

#[derive(Clone, Copy)]
struct Peer {
    address: IpAddr,
    heard_ms: u32,
}

/// See the module.
pub struct Peers {
    slots: Box<[Option<Peer>]>,
    /// Whether we use partial checksums at all.
    enabled: bool,
}

impl Peers {
    /// Knows nobody. When not `enabled`, it never will.
    pub fn new(enabled: bool) -> Peers {
        Peers { slots: vec![None; PEERS_MAX].into_boxed_slice(), enabled }
    }

    /// Whether to tell others that we take partial checksums.
    #[inline]
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// A peer said that it takes partial checksums.
    #[inline]
    pub fn heard(&mut self, address: IpAddr, now_ms: u32) {
        if self.enabled {
            self.slots[slot(address)] = Some(Peer { address, heard_ms: now_ms });
        }
    }

    /// Who is remembered, with the time of their word.
    pub fn carried(&self) -> Vec<(IpAddr, u32)> {
        self.slots.iter().flatten().map(|peer| (peer.address, peer.heard_ms)).collect()
    }

    /// What a packet to another switch says of its checksum: partial if it is, and the other takes that.
    #[inline]
    pub fn inner_checksum(&self, tunnel: &Tunnel, offload: &Offload, now_ms: u32) -> InnerChecksum {
        if tunnel.format != Encapsulation::Geneve || !self.enabled() {
            InnerChecksum::Full
        } else if *offload != Offload::Complete && self.takes_partial(tunnel.receiver, now_ms) {
            InnerChecksum::Partial
        } else {
            InnerChecksum::Accepts
        }
    }

    /// Whether a peer takes partial checksums.
    #[inline]
    pub fn takes_partial(&self, address: IpAddr, now_ms: u32) -> bool {
        self.slots[slot(address)]
            .is_some_and(|peer| peer.address == address && now_ms.wrapping_sub(peer.heard_ms) <= HEARD_MS_MAX)
    }
}

#[inline]
fn slot(address: IpAddr) -> usize {
    let bytes = u128::from_ne_bytes(IpAddress::from(address).0);
    let folded = (bytes >> 64) as u64 ^ bytes as u64;
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % PEERS_MAX
}

#[cfg(test)]
mod tests;
