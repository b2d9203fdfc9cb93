//! One network, as far as this switch knows it. Its parts arrive in any order.

use super::asked::Asked;
use super::routes::{Route, Routes};
use super::tags::{TagId, Tags};
use crate::answer::bucket::Bucket;
use crate::flow::PortIndex;
use crate::policy::{Judgement, Policy, Query};
use hashbrown::HashMap;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_model::entry::{NetworkEntry, RouteHop, SubnetEntry, VirtualEntry, Vni};
use weir_model::resource::{Direction, Forwarding};
use weir_model::{MacAddr, Version};
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;

/// Most denied flows that a network remembers; see [`Network::denied`].
pub const DENIED_MAX: usize = 16_384;
/// Most senders remembered for one denied flow.
const DENIED_SENDERS_MAX: usize = 32;

pub(crate) type Hasher = foldhash::quality::RandomState;

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The endpoint's Ethernet address.
    pub mac: MacAddr,
    /// Its host's address on the underlay.
    pub underlay: IpAddr,
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    /// Its identifier.
    pub vni: Vni,
    /// Parameters, when in force.
    pub entry: Option<NetworkEntry>,
    /// Rules, when in force.
    pub policy: Option<Policy>,
    /// Version of the rules; zero without.
    pub policy_version: Version,
    /// Tags and who carries them.
    pub tags: Tags,
    /// Routes.
    pub(super) routes: Routes,
    /// How many routes lead to an address.
    pub(super) next_hops: HashMap<IpAddr, u32, Hasher>,
    /// Where addresses are.
    pub(super) locations: HashMap<IpAddr, Location, Hasher>,
    /// How many locations are at an underlay address.
    pub hosts: HashMap<IpAddr, u32, Hasher>,
    /// Addresses that the controller asks this host about.
    pub sought: BTreeSet<IpAddr>,
    /// Virtual addresses.
    pub(super) virtuals: HashMap<IpAddr, VirtualEntry, Hasher>,
    /// Which member serves a client of a virtual address: by client and virtual address.
    pub(super) turns: HashMap<(IpAddr, IpAddr), IpAddr, Hasher>,
    /// Which port has an address.
    pub(super) local: HashMap<IpAddr, PortIndex, Hasher>,
    /// Ports here.
    pub ports: BTreeSet<PortIndex>,
    /// Rises with everything that a verdict of the firewall depends on. A connection that was judged
    /// in an older generation is judged again.
    pub generation: u64,
    /// Flows from the underlay that the firewall denied and the engine holds as drops, by key, with
    /// their senders and what those had decided. A connection opened the other way makes them allowed, so they are replaced then.
    denied: HashMap<FlowKey, Vec<(IpAddr, Half)>, Hasher>,
    /// Whether `denied` is full; the denied flows are then decided again at the next tick.
    pub denied_full: bool,
    /// Budget of ICMP errors that its packets from the underlay are answered with.
    pub bucket: Bucket,
    /// The addresses that the walk which goes on, or was the last, asked about.
    pub asked: Asked,
}

impl Network {
    /// A network of which nothing is known.
    pub fn new(vni: Vni) -> Network {
        Network {
            vni,
            entry: None,
            policy: None,
            policy_version: Version::ZERO,
            tags: Tags::default(),
            routes: Routes::default(),
            next_hops: HashMap::default(),
            locations: HashMap::default(),
            hosts: HashMap::default(),
            sought: BTreeSet::new(),
            virtuals: HashMap::default(),
            turns: HashMap::default(),
            local: HashMap::default(),
            ports: BTreeSet::new(),
            generation: 1,
            denied: HashMap::default(),
            denied_full: false,
            bucket: Bucket::default(),
            asked: Asked::default(),
        }
    }

    /// Whether nothing is known of it any more.
    pub fn is_empty(&self) -> bool {
        self.entry.is_none()
            && self.policy.is_none()
            && self.tags.is_empty()
            && self.routes.is_empty()
            && self.locations.is_empty()
            && self.ports.is_empty()
            && self.sought.is_empty()
            && self.virtuals.is_empty()
            && self.turns.is_empty()
    }

    /// Whether places are asked for, and not told (decision 0019).
    pub fn is_learned(&self) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.forwarding == Forwarding::Learned)
    }

    /// The subnets in force.
    pub fn subnets(&self) -> &[SubnetEntry] {
        self.entry.as_ref().map_or(&[], |entry| &entry.subnets)
    }

    /// The subnet that has an address.
    pub fn subnet_of(&self, address: IpAddr) -> Option<&SubnetEntry> {
        self.subnets().iter().find(|subnet| subnet_has(subnet, address))
    }

    /// The route that an address takes. The longest prefix wins, and subnets count as connected routes, which win over a route of their
    /// own length: so a default route is not for the network's own addresses.
    pub fn route_of(&self, address: IpAddr) -> Option<(IpNet, &Route)> {
        self.asked.note(address);
        self.route_taken(address)
    }

    fn route_taken(&self, address: IpAddr) -> Option<(IpNet, &Route)> {
        let (prefix, route) = self.routes.find(address)?;
        let connected = self.subnets().iter().filter(|subnet| subnet_has(subnet, address));
        let is_connected =
            connected.filter_map(|subnet| bits_of(subnet, address)).any(|bits| bits >= prefix.prefix_len());
        (!is_connected).then_some((prefix, route))
    }

    /// The route of exactly this prefix.
    pub fn route(&self, prefix: IpNet) -> Option<&Route> {
        self.routes.get(prefix)
    }

    /// The longest prefix of its routes that has an address; subnets do not count.
    pub fn longest_route(&self, address: IpAddr) -> Option<IpNet> {
        self.routes.find(address).map(|(prefix, _)| prefix)
    }

    /// The next hop by which an address is reached, if it has no place of its own and its route leads to an address. Not noted: this is what
    /// comes of what was.
    pub fn next_hop_of(&self, address: IpAddr) -> Option<IpAddr> {
        if self.next_hops.is_empty() || self.local.contains_key(&address) || self.is_located_here(address) {
            return None;
        }
        match self.route_taken(address)?.1.hop {
            RouteHop::Address(hop) => Some(hop),
            _ => None,
        }
    }

    fn is_located_here(&self, address: IpAddr) -> bool {
        self.locations.contains_key(&address)
    }

    /// The port here that has an address.
    pub fn port_of(&self, address: IpAddr) -> Option<PortIndex> {
        self.asked.note(address);
        self.local.get(&address).copied()
    }

    /// Whether it is known where an address is, elsewhere than here.
    pub fn is_located(&self, address: IpAddr) -> bool {
        self.asked.note(address);
        self.is_located_here(address)
    }

    /// What is virtual about an address.
    pub fn virtual_of(&self, address: IpAddr) -> Option<&VirtualEntry> {
        self.asked.note(address);
        self.virtuals.get(&address)
    }

    /// The member that serves a client of a virtual address. It is the address that hangs on it.
    pub fn turn_of(&self, client: IpAddr, address: IpAddr) -> Option<IpAddr> {
        self.asked.note(address);
        self.turns.get(&(client, address)).copied()
    }

    /// Whether an address is reached through one of `hops`: then those may speak for it.
    pub fn leads_to(&self, address: IpAddr, hops: &[IpAddr]) -> bool {
        matches!(self.route_of(address), Some((_, Route { hop: RouteHop::Address(hop), .. })) if hops.contains(hop))
    }

    /// Whether both addresses are in one subnet.
    pub fn same_subnet(&self, a: IpAddr, b: IpAddr) -> bool {
        self.subnets().iter().any(|subnet| subnet_has(subnet, a) && subnet_has(subnet, b))
    }

    /// Whether the address is the router's, its link-local one included.
    pub fn is_router(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.subnets().iter().any(|subnet| subnet.router_v4 == Some(v4)),
            IpAddr::V6(v6) => {
                v6 == self.vni.router_link_local()
                    || self.subnets().iter().any(|subnet| subnet.router_v6 == Some(v6))
            }
        }
    }

    /// Whether the address is the broadcast or network address of an IPv4 subnet.
    pub fn is_subnet_broadcast(&self, address: IpAddr) -> bool {
        let IpAddr::V4(v4) = address else { return false };
        self.subnets()
            .iter()
            .filter_map(|subnet| subnet.v4)
            .any(|net| net.prefix_len() < 31 && (v4 == net.broadcast() || v4 == net.network()))
    }

    /// The router's address that speaks to `towards`: that of its subnet, else of any.
    pub fn router_address(&self, towards: IpAddr) -> Option<IpAddr> {
        let of = |subnet: &SubnetEntry| match towards {
            IpAddr::V4(_) => subnet.router_v4.map(IpAddr::V4),
            IpAddr::V6(_) => subnet.router_v6.map(IpAddr::V6),
        };
        self.subnet_of(towards).and_then(of).or_else(|| self.subnets().iter().find_map(of))
    }

    /// Asks the rules; `None` when no policy is in force.
    pub fn judge(&self, direction: Direction, port_tags: &[TagId], key: &FlowKey) -> Option<Judgement> {
        self.asked.note(key.source.into());
        self.asked.note(key.destination.into());
        let policy = self.policy.as_ref()?;
        Some(policy.judge(direction, port_tags, &self.tags, &Query::new(key, direction)))
    }

    /// Whether one more denied flow can be remembered.
    pub fn can_deny(&self, key: &FlowKey, sender: (IpAddr, Half)) -> bool {
        match self.denied.get(key) {
            Some(senders) => senders.contains(&sender) || senders.len() < DENIED_SENDERS_MAX,
            None => self.denied.len() < DENIED_MAX,
        }
    }

    /// Remembers a denied flow. Only when [`Network::can_deny`].
    pub fn deny(&mut self, key: FlowKey, sender: (IpAddr, Half)) {
        let senders = self.denied.entry(key).or_default();
        if !senders.contains(&sender) {
            senders.push(sender);
        }
    }

    /// Senders whose flow of this key was denied, with what their half had decided.
    pub fn denied(&self, key: &FlowKey) -> &[(IpAddr, Half)] {
        self.denied.get(key).map_or(&[], Vec::as_slice)
    }

    /// Forgets what was denied under a key: the flow has another action now.
    pub fn forgive(&mut self, key: &FlowKey) {
        self.denied.remove(key);
    }

    /// Forgets that a sender's flow was denied.
    pub fn forgive_of(&mut self, key: &FlowKey, sender: (IpAddr, Half)) {
        if let Some(senders) = self.denied.get_mut(key) {
            senders.retain(|known| *known != sender);
            if senders.is_empty() {
                self.denied.remove(key);
            }
        }
    }

    /// Forgets all that was denied to a sender.
    pub fn forgive_sender(&mut self, sender: IpAddr) {
        self.denied.retain(|_, senders| {
            senders.retain(|(known, _)| *known != sender);
            !senders.is_empty()
        });
    }

    /// Forgets all that was denied: the flows of the network are decided again.
    pub fn forgive_all(&mut self) {
        self.denied.clear();
        self.denied_full = false;
    }
}

/// Length of a subnet's prefix of an address's family.
fn bits_of(subnet: &SubnetEntry, address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(_) => subnet.v4.map(|net| net.prefix_len()),
        IpAddr::V6(_) => subnet.v6.map(|net| net.prefix_len()),
    }
}

/// Whether a subnet has an address.
pub fn subnet_has(subnet: &SubnetEntry, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => subnet.v4.is_some_and(|net| net.contains(&v4)),
        IpAddr::V6(v6) => subnet.v6.is_some_and(|net| net.contains(&v6)),
    }
}
