//! The routes of a network: longest prefix match in a multi-bit trie (row A14, a million entries).
//!
//! Departure from the paper: its reverse path check needs a copy of the routes or an extension; here
//! the check asks the same trie ([`super::network::Network::leads_to`]).

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;
use std::net::IpAddr;
use weir_model::entry::{RouteEntry, RouteHop};

/// Most routes of a switch, all networks together.
pub const ROUTES_MAX: usize = 2_000_000;

/// A route in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Name of the resource.
    pub name: Box<str>,
    /// Where it leads.
    pub hop: RouteHop,
}

/// The routes of one network.
#[derive(Debug, Default)]
pub struct Routes {
    v4: PrefixMap<Ipv4Net, Route>,
    v6: PrefixMap<Ipv6Net, Route>,
}

impl Routes {
    /// Puts a route and returns the one it replaces.
    pub fn put(&mut self, prefix: IpNet, entry: &RouteEntry) -> Option<Route> {
        let route = Route { name: entry.name.as_str().into(), hop: entry.next_hop.clone() };
        match prefix {
            IpNet::V4(prefix) => self.v4.insert(prefix, route),
            IpNet::V6(prefix) => self.v6.insert(prefix, route),
        }
    }

    /// Removes a route and returns it.
    pub fn remove(&mut self, prefix: IpNet) -> Option<Route> {
        match prefix {
            IpNet::V4(prefix) => self.v4.remove(&prefix),
            IpNet::V6(prefix) => self.v6.remove(&prefix),
        }
    }

    /// The route of exactly this prefix.
    pub fn get(&self, prefix: IpNet) -> Option<&Route> {
        match prefix {
            IpNet::V4(prefix) => self.v4.get(&prefix),
            IpNet::V6(prefix) => self.v6.get(&prefix),
        }
    }

    /// The longest prefix that has an address, with its route.
    pub fn find(&self, address: IpAddr) -> Option<(IpNet, &Route)> {
        match address {
            IpAddr::V4(v4) => self.v4.get_lpm(&v4.into()).map(|(prefix, route)| (IpNet::V4(prefix), route)),
            IpAddr::V6(v6) => self.v6.get_lpm(&v6.into()).map(|(prefix, route)| (IpNet::V6(prefix), route)),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
