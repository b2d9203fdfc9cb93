//! Ways to other switches: each once, however many flows take it.
//!
//! A million flows lead to some hundred other switches, and the tunnel header is the same for all flows of one network to one switch. So
//! it is made once a way and not once a packet, and lies in lines that all of those flows share.
//!
//! A way is written when its first flow is, by the same owner, before any published index names that flow's slot. It is used by the slots
//! that name it, and free again when the last of them is: nobody else can read one of them then.

use super::action::{Tunnel, TunnelHeader};
use super::store::FlowStore;
use std::collections::HashMap;
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
    fn new(tunnel: &Tunnel) -> Way {
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

/// Which ways there are, for the owner of the flow table.
#[derive(Debug, Default)]
pub(super) struct WayBook {
    numbers: HashMap<Tunnel, WayIndex>,
    /// Slots that name each way that was ever used.
    uses: Vec<u32>,
    free: Vec<WayIndex>,
}

impl WayBook {
    /// The number of a way, for one more slot. `None` when there are too many.
    pub(super) fn take(&mut self, store: &FlowStore, tunnel: &Tunnel) -> Option<WayIndex> {
        if let Some(number) = self.numbers.get(tunnel) {
            self.uses[usize::from(*number)] += 1;
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = WayIndex::try_from(self.uses.len()).ok()?;
                self.uses.push(0);
                number
            }
        };
        store.write_way(number, Way::new(tunnel));
        self.uses[usize::from(number)] = 1;
        self.numbers.insert(*tunnel, number);
        Some(number)
    }

    /// A slot that named a way is free.
    pub(super) fn give_back(&mut self, store: &FlowStore, number: WayIndex) {
        let uses = &mut self.uses[usize::from(number)];
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(&store.way(number).tunnel);
            self.free.push(number);
        }
    }
}
