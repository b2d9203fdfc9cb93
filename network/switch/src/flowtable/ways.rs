//! Ways to other switches: each once, however many flows take it.
//!
//! A million flows lead to some hundred other switches, and the tunnel header is the same for all flows of one network to one switch. So
//! it is made once a way and not once a packet, and lies in lines that all of those flows share (`flowtable::book`).

use super::tunnel::{Tunnel, TunnelHeader};
use weir_packet::encap::InnerChecksum;

/// Number of a way.
pub type WayIndex = u16;

/// Most ways. Flows of more go the long way, with a header made for each packet.
pub const WAYS_MAX: usize = 1 << WayIndex::BITS;

/// A way to another switch, with the tunnel headers of packets whose checksum is full.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Way {
    /// The way.
    pub tunnel: Tunnel,
    accepts: TunnelHeader,
    full: TunnelHeader,
}

impl Way {
    pub(super) fn new(tunnel: &Tunnel) -> Way {
        let [accepts, full] = [InnerChecksum::Accepts, InnerChecksum::Full].map(|inner| tunnel.header(inner));
        Way { tunnel: *tunnel, accepts, full }
    }

    /// The tunnel header of a packet whose checksum is full; `inner` says whether partial ones are taken.
    #[inline(always)]
    pub fn header(&self, inner: InnerChecksum) -> &TunnelHeader {
        debug_assert_ne!(inner, InnerChecksum::Partial);
        if inner == InnerChecksum::Full { &self.full } else { &self.accepts }
    }
}
