//! What is in force at this switch, compiled for lookup (rows A1, A11, A14, A24).
//!
//! Updates arrive key by key in any order; each changes only what it names and tells which flows must
//! be asked for again. A lookup is a hash or a trie walk, never a scan over endpoints.
//!
//! Invariants
//! - A refused update changes nothing.
//! - A port carries traffic only while it is wanted up, its network is in force and the network's
//!   policy has at least the version the port asks for (pain 8).
//! - An address belongs to at most one port of a network.
//! - What is deleted leaves nothing behind (pain 13).
//!
//! Gateways are chosen by rendezvous hashing of the network and the pair of addresses, not of the
//! ports: ICMP errors and fragments then meet the gateway that translates their conversation.

mod apply;
pub mod asked;
pub mod gateways;
pub mod network;
pub mod routes;
pub mod switches;
pub mod tags;

use crate::answer::bucket::Bucket;
use crate::flow::PortIndex;
use hashbrown::HashMap;
use network::{Hasher, Location, Network};
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use switches::Switches;
use tags::TagId;
use weir_model::entry::{GatewayEntry, PortEntry, RouteHop, Vni};
use weir_model::{Key, Label, Version};

/// Most ports of a switch.
pub const PORTS_MAX: usize = 4096;
/// Most networks of a switch.
pub const NETWORKS_MAX: usize = 65_536;
/// Most subnets of a network.
pub const SUBNETS_MAX: usize = 1024;
/// Most locations of a switch.
pub const LOCATIONS_MAX: usize = 2_000_000;
/// Most addresses of a network that a host is asked about.
pub const SOUGHT_MAX: usize = 4096;
/// Most virtual addresses of a network.
pub const VIRTUALS_MAX: usize = 4096;
/// Most turns of a switch.
pub const TURNS_MAX: usize = 65_536;
/// Most members of tags of a switch.
pub const MEMBERS_MAX: usize = 2_000_000;
/// Most gateways of a domain.
pub const GATEWAYS_MAX: usize = 256;

/// What a switch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The switch of a host: it has ports.
    Host,
    /// A gateway: it knows every location and reaches the outside.
    Gateway,
}

/// A port in force.
#[derive(Debug)]
pub struct Port {
    /// Its number.
    pub index: PortIndex,
    /// Its network.
    pub vni: Vni,
    /// Name of the endpoint.
    pub name: Label,
    /// Version in force.
    pub version: Version,
    /// Its entry.
    pub entry: PortEntry,
    /// Numbers of its tags in the network.
    pub tags: Vec<TagId>,
    /// Whether it carries traffic.
    pub up: bool,
    /// Why not.
    pub reason: String,
    /// Budget of ICMP errors that it is sent.
    pub bucket: Bucket,
}

impl Port {
    /// Its key.
    pub fn key(&self) -> Key {
        Key::Port { vni: self.vni, endpoint: self.name.clone() }
    }

    /// Whether the address is the endpoint's own.
    pub fn has(&self, address: IpAddr) -> bool {
        self.entry.addresses.contains(&address)
    }
}

/// Where a packet for an address goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// To a port here.
    Port(PortIndex),
    /// To another host.
    Host(Location),
}

/// See the module.
#[derive(Debug)]
pub struct Tables {
    role: Role,
    networks: HashMap<u32, Network, Hasher>,
    ports: Vec<Option<Port>>,
    free_ports: VecDeque<PortIndex>,
    port_by_name: HashMap<(u32, Label), PortIndex, Hasher>,
    gateways: Vec<GatewayEntry>,
    /// Of these, those that do not answer this host.
    silent: BTreeSet<IpAddr>,
    /// The others; all, if there are no others.
    usable: Vec<GatewayEntry>,
    routes: usize,
    locations: usize,
    /// Where locations are: how many are at an underlay address, over all networks.
    underlays: HashMap<IpAddr, u32, Hasher>,
    members: usize,
    turns: usize,
    switches: Switches,
}

impl Tables {
    /// Tables with nothing in force.
    pub fn new(role: Role) -> Tables {
        Tables {
            role,
            networks: HashMap::default(),
            ports: Vec::new(),
            free_ports: VecDeque::new(),
            port_by_name: HashMap::default(),
            gateways: Vec::new(),
            silent: BTreeSet::new(),
            usable: Vec::new(),
            routes: 0,
            locations: 0,
            underlays: HashMap::default(),
            members: 0,
            turns: 0,
            switches: Switches::default(),
        }
    }

    /// What the switch is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// A network of which anything is known.
    pub fn network(&self, vni: u32) -> Option<&Network> {
        self.networks.get(&vni)
    }

    /// A network in which a walk begins: what that asks of it by address is noted from here on ([`Network::asked`]).
    pub(crate) fn begin_walk(&self, vni: u32) -> Option<&Network> {
        let network = self.networks.get(&vni)?;
        network.asked.clear();
        Some(network)
    }

    pub(crate) fn network_mut(&mut self, vni: u32) -> Option<&mut Network> {
        self.networks.get_mut(&vni)
    }

    pub(crate) fn networks_mut(&mut self) -> impl Iterator<Item = &mut Network> {
        self.networks.values_mut()
    }

    /// A port by its number.
    pub fn port(&self, index: PortIndex) -> Option<&Port> {
        self.ports.get(usize::from(index))?.as_ref()
    }

    pub(crate) fn port_mut(&mut self, index: PortIndex) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(index))?.as_mut()
    }

    /// A port by its key's fields.
    pub fn port_named(&self, vni: u32, name: &Label) -> Option<&Port> {
        self.port(*self.port_by_name.get(&(vni, name.clone()))?)
    }

    /// All ports, by number.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().flatten()
    }

    /// Networks of which anything is known.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.networks.values()
    }

    /// How many locations are in force.
    pub fn locations(&self) -> usize {
        self.locations
    }

    /// Whether an address of the underlay is that of a gateway, a host or a controller of any domain that is known here.
    pub fn is_underlay(&self, address: IpAddr) -> bool {
        self.underlays.contains_key(&address)
            || self.switches.guards(address)
            || self.gateways.iter().any(|gateway| gateway.underlay == address)
    }

    /// How many turns of virtual addresses are in force.
    pub fn turns(&self) -> usize {
        self.turns
    }

    /// The gateways of the domain.
    pub fn gateways(&self) -> &[GatewayEntry] {
        &self.gateways
    }

    /// Those that conversations are spread over: all that are not silent.
    pub fn usable_gateways(&self) -> &[GatewayEntry] {
        &self.usable
    }

    /// The network of a name.
    pub fn network_named(&self, name: &Label) -> Option<&Network> {
        self.networks.values().find(|network| network.entry.as_ref().is_some_and(|e| e.name == *name))
    }

    /// Where an endpoint of the network with this very address is: a port here before a location.
    pub fn place(&self, network: &Network, address: IpAddr) -> Option<Place> {
        network.asked.note(address);
        self.place_of_hop(network, address)
    }

    /// The same of the next hop of a route, which is not noted: whatever asks of an address hangs on the next hop of its route.
    pub fn place_of_hop(&self, network: &Network, address: IpAddr) -> Option<Place> {
        let port = network.local.get(&address).map(|&index| {
            debug_assert!(
                self.port(index).is_some_and(|port| port.vni == network.vni && port.has(address)),
                "{address} is of a port that has it not"
            );
            Place::Port(index)
        });
        port.or_else(|| network.locations.get(&address).map(|&location| Place::Host(location)))
    }

    /// The port here that receives what is sent to an address: its own, or that of the endpoint which
    /// a route names for it. An address with a location elsewhere is not here.
    pub fn receiver(&self, network: &Network, address: IpAddr) -> Option<PortIndex> {
        match self.place(network, address) {
            Some(Place::Port(index)) => Some(index),
            Some(Place::Host(_)) => None,
            None => match network.route_of(address)?.1.hop {
                RouteHop::Address(hop) => network.local.get(&hop).copied(),
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests;
