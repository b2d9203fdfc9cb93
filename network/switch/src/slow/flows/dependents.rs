//! What flows hang on: from a port, a sender, a gateway or an address to the flows whose decision depends on it (rows A12, A14, A22).
//!
//! Each flow has a row of at most [`LINKS`] links, one in the list of each thing that it hangs on. Lists are doubly linked by the numbers of
//! links in dense vectors, so that a flow comes and goes without a walk and without an object of its own on the heap. The
//! [`ALWAYS`] first, which every flow may have, are 52 bytes a slot; the others, of flows that are translated or that a next hop takes, are
//! in rows of their own, 88 bytes each. What is hung on has a node as long as a flow hangs on it; nodes of addresses are in
//! order besides, so that the addresses within a route's prefix are one range.
//!
//! Networks have no list of their own: every flow is in the list of its source, so a network's flows are those of its range of addresses.

use crate::flow::{FLOWS_LIMIT, NEXT_HOPS, OTHERS, PortIndex};
use crate::flowtable::store::SLOTS_SPARE;
use hashbrown::HashTable;
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::{Range, RangeInclusive};
use weir_packet::IpAddress;

/// What a flow may hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum On {
    /// A port, that it comes from or goes to.
    Port(PortIndex),
    /// The zone of a sender.
    Zone(u32),
    /// A gateway that stands in for a location; the unspecified address: that there is one at all.
    Gateway(IpAddress),
    /// An address of a network: of its packets, before or after translation, that its decision asked about, or of a next hop.
    Address(u32, IpAddress),
    /// Any address of a network: it hangs on more than there are places for.
    Any(u32),
}

/// Where it comes from: a port or a zone.
pub const INGRESS: usize = 0;
/// Where it goes: a port or a gateway.
pub const HOP: usize = 1;
/// The source of its packets. Every flow has one.
pub const SOURCE: usize = 2;
/// Their destination.
pub const DESTINATION: usize = 3;
/// Addresses that its action writes, or that its decision asked about.
pub const OTHER: Range<usize> = ALWAYS..ALWAYS + OTHERS;
/// The next hops of the routes of all these.
pub const NEXT_HOP: Range<usize> = OTHER.end..OTHER.end + NEXT_HOPS;
/// Any address of its network.
pub const ANY: usize = NEXT_HOP.end;
/// Links of a flow.
pub const LINKS: usize = ANY + 1;
/// Links that every flow has room for: the first.
pub const ALWAYS: usize = 4;
const SELDOM: usize = LINKS - ALWAYS;
/// In the number of a link: it is one of the others.
const IS_SELDOM: u32 = 1 << 31;

/// What a flow hangs on, by the places above.
pub type Row = [Option<On>; LINKS];

const NONE: u32 = u32::MAX;
// Numbers of links of all slots, and of the other links of as many rows, are below the bit that tells them apart.
const _: () = assert!((FLOWS_LIMIT + SLOTS_SPARE) * SELDOM < IS_SELDOM as usize);

#[derive(Clone, Copy)]
struct Link {
    node: u32,
    before: u32,
    behind: u32,
}

const UNLINKED: Link = Link { node: NONE, before: NONE, behind: NONE };

#[derive(Clone, Copy)]
struct Always {
    links: [Link; ALWAYS],
    /// Where its other links are.
    seldom: u32,
}

const UNLINKED_ALWAYS: Always = Always { links: [UNLINKED; ALWAYS], seldom: NONE };

struct Seldom {
    links: [Link; SELDOM],
    slot: u32,
}

struct Node {
    on: On,
    first: u32,
}

/// See the module.
#[derive(Default)]
pub struct Dependents {
    links: Vec<Always>,
    seldom: Vec<Seldom>,
    seldom_free: Vec<u32>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    by_on: HashTable<u32>,
    hasher: foldhash::quality::RandomState,
    addresses: BTreeSet<(u32, IpAddress)>,
    gateways: BTreeSet<IpAddress>,
}

impl Dependents {
    /// Notes what the flow of a slot hangs on. The slot has no links.
    pub fn put(&mut self, slot: u32, row: &Row) {
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, UNLINKED_ALWAYS);
        }
        debug_assert_eq!(self.links[slot as usize].seldom, NONE, "slot {slot} has links");
        if row[ALWAYS..].iter().any(Option::is_some) {
            self.links[slot as usize].seldom = self.new_seldom(slot);
        }
        for (place, on) in row.iter().enumerate() {
            let Some(on) = on else { continue };
            let node = self.node(on);
            let (number, behind) = (self.number(slot, place), self.nodes[node as usize].first);
            debug_assert_eq!(self.link(number).node, NONE, "slot {slot} has links");
            *self.link_mut(number) = Link { node, before: NONE, behind };
            if behind != NONE {
                self.link_mut(behind).before = number;
            }
            self.nodes[node as usize].first = number;
        }
    }

    /// Forgets the flow of a slot.
    pub fn take(&mut self, slot: u32) {
        let seldom = self.links[slot as usize].seldom;
        for place in 0..if seldom == NONE { ALWAYS } else { LINKS } {
            let number = self.number(slot, place);
            let Link { node, before, behind } = std::mem::replace(self.link_mut(number), UNLINKED);
            if node == NONE {
                continue;
            }
            if behind != NONE {
                self.link_mut(behind).before = before;
            }
            if before != NONE {
                self.link_mut(before).behind = behind;
                continue;
            }
            self.nodes[node as usize].first = behind;
            if behind == NONE {
                self.free_node(node);
            }
        }
        if seldom != NONE {
            self.links[slot as usize].seldom = NONE;
            self.seldom_free.push(seldom);
        }
    }

    fn new_seldom(&mut self, slot: u32) -> u32 {
        let new = Seldom { links: [UNLINKED; SELDOM], slot };
        if let Some(free) = self.seldom_free.pop() {
            self.seldom[free as usize] = new;
            return free;
        }
        self.seldom.push(new);
        self.seldom.len() as u32 - 1
    }

    /// What the flow of a slot hangs on.
    pub fn row(&self, slot: u32) -> Row {
        let Always { links, seldom } = &self.links[slot as usize];
        let seldom = self.seldom.get(*seldom as usize).map_or(&[][..], |seldom| &seldom.links[..]);
        let mut row = Row::default();
        for (on, link) in row.iter_mut().zip(links.iter().chain(seldom)) {
            *on = (link.node != NONE).then(|| self.nodes[link.node as usize].on);
        }
        row
    }

    /// The slots of the flows that hang on something, with the place of the link.
    pub fn of(&self, on: &On) -> impl Iterator<Item = (u32, usize)> {
        let node = self.find(on);
        node.into_iter().flat_map(|node| self.list(node))
    }

    /// The addresses of a network in a range that flows hang on.
    pub fn addresses(&self, vni: u32, within: RangeInclusive<IpAddress>) -> impl Iterator<Item = IpAddress> {
        let (first, last) = within.into_inner();
        self.addresses.range((vni, first)..=(vni, last)).map(|(_, address)| *address)
    }

    /// The networks that have any.
    pub fn networks(&self) -> impl Iterator<Item = u32> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let from = (next?, IpAddress::default());
            let (vni, _) = self.addresses.range(from..).next()?;
            next = vni.checked_add(1);
            Some(*vni)
        })
    }

    /// The gateways that flows hang on.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddress> {
        self.gateways.iter().copied()
    }

    /// Bytes of it, about.
    pub fn bytes(&self) -> usize {
        // A node of the ordered map is two thirds full.
        let ordered = self.addresses.len() * size_of::<(u32, IpAddress)>() * 3 / 2;
        self.links.capacity() * size_of::<Always>()
            + self.seldom.capacity() * size_of::<Seldom>()
            + self.seldom_free.capacity() * size_of::<u32>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_on.capacity() * (size_of::<u32>() + 1)
            + ordered
    }

    fn list(&self, node: u32) -> impl Iterator<Item = (u32, usize)> {
        let mut next = self.nodes[node as usize].first;
        std::iter::from_fn(move || {
            let number = next;
            (number != NONE).then(|| {
                next = self.link(number).behind;
                self.place(number)
            })
        })
    }

    /// Number of the link of a place of a slot, which has it.
    fn number(&self, slot: u32, place: usize) -> u32 {
        match place.checked_sub(ALWAYS) {
            None => slot * ALWAYS as u32 + place as u32,
            Some(place) => IS_SELDOM | (self.links[slot as usize].seldom * SELDOM as u32 + place as u32),
        }
    }

    /// Slot and place of a link.
    fn place(&self, number: u32) -> (u32, usize) {
        let at = (number & !IS_SELDOM) as usize;
        match number & IS_SELDOM {
            0 => ((at / ALWAYS) as u32, at % ALWAYS),
            _ => (self.seldom[at / SELDOM].slot, ALWAYS + at % SELDOM),
        }
    }

    fn link(&self, number: u32) -> &Link {
        let at = (number & !IS_SELDOM) as usize;
        match number & IS_SELDOM {
            0 => &self.links[at / ALWAYS].links[at % ALWAYS],
            _ => &self.seldom[at / SELDOM].links[at % SELDOM],
        }
    }

    fn link_mut(&mut self, number: u32) -> &mut Link {
        let at = (number & !IS_SELDOM) as usize;
        match number & IS_SELDOM {
            0 => &mut self.links[at / ALWAYS].links[at % ALWAYS],
            _ => &mut self.seldom[at / SELDOM].links[at % SELDOM],
        }
    }

    fn find(&self, on: &On) -> Option<u32> {
        let hash = self.hasher.hash_one(on);
        self.by_on.find(hash, |node| self.nodes[*node as usize].on == *on).copied()
    }

    fn node(&mut self, on: &On) -> u32 {
        if let Some(node) = self.find(on) {
            return node;
        }
        let new = Node { on: *on, first: NONE };
        let node = match self.free.pop() {
            Some(node) => {
                self.nodes[node as usize] = new;
                node
            }
            None => {
                self.nodes.push(new);
                self.nodes.len() as u32 - 1
            }
        };
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let hash = hasher.hash_one(on);
        self.by_on.insert_unique(hash, node, |node| hasher.hash_one(nodes[*node as usize].on));
        match on {
            On::Address(vni, address) => drop(self.addresses.insert((*vni, *address))),
            On::Gateway(address) => drop(self.gateways.insert(*address)),
            On::Port(_) | On::Zone(_) | On::Any(_) => {}
        }
        node
    }

    fn free_node(&mut self, node: u32) {
        let on = self.nodes[node as usize].on;
        let hash = self.hasher.hash_one(on);
        if let Ok(entry) = self.by_on.find_entry(hash, |known| *known == node) {
            entry.remove();
        }
        match on {
            On::Address(vni, address) => drop(self.addresses.remove(&(vni, address))),
            On::Gateway(address) => drop(self.gateways.remove(&address)),
            On::Port(_) | On::Zone(_) | On::Any(_) => {}
        }
        self.free.push(node);
    }
}

#[cfg(test)]
mod tests;
