//! Questions to the tables, for the API and the scheduler. Pure functions over a store; a store is
//! cheap to clone, so a question never holds up a decision.

use super::tables::{
    COUNTERS, GATEWAYS, NETWORK_HOSTS, OFFLOADS, Parts, RESOURCES, Stored, VNIS, address_bytes, counter_key,
    kind_prefix, label, name0, read, resource_key, vni_key,
};
use super::work::Count;
use crate::delta::desired_entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_model::entry::{MEMBER_BUCKETS, Vni, member_bucket};
use weir_model::resource::{Kind, Peer, Resource, ResourceId};
use weir_model::{Key, Label, Version};
use weir_store::Store;

/// A resource with its version and what was allocated for it.
pub fn resource(store: &Store, id: &ResourceId) -> Option<Stored> {
    store.get(RESOURCES, &resource_key(id)).map(|cell| Stored::from_json(&cell.value))
}

/// Resources in order of network, kind and name; of one kind, of one network, or all. With a
/// network it costs only what it gives.
pub fn resources(
    store: &Store,
    kind: Option<Kind>,
    network: Option<&Label>,
) -> impl Iterator<Item = Stored> + use<> {
    let prefix = match (network, kind) {
        (None, _) => Vec::new(),
        (Some(network), None) => name0(network.as_str()),
        (Some(network), Some(kind)) => kind_prefix(network, kind),
    };
    // Collected because the store's scan borrows the prefix; the values are decoded one by one.
    let values: Vec<_> = store.scan(RESOURCES, &prefix).map(|(_, cell)| cell.value.clone()).collect();
    values
        .into_iter()
        .map(|value| Stored::from_json(&value))
        .filter(move |stored| kind.is_none_or(|kind| stored.resource.kind() == kind))
}

/// How many resources there are of each kind that there is any of. Costs what there are networks, not resources.
pub fn resource_counts(store: &Store) -> BTreeMap<Kind, usize> {
    let kinds = [
        (Count::Networks, Kind::Network),
        (Count::Subnets, Kind::Subnet),
        (Count::Endpoints, Kind::Endpoint),
        (Count::Routes, Kind::Route),
        (Count::Rules, Kind::FirewallRule),
        (Count::Balancers, Kind::Balancer),
    ];
    let counted = kinds.into_iter().map(|(what, kind)| {
        let prefix = counter_key(what, b"");
        let counts = store.scan(COUNTERS, &prefix);
        (kind, counts.map(|(_, cell)| read::<u64>(COUNTERS, &cell.value) as usize).sum())
    });
    counted.filter(|(_, count)| *count > 0).collect()
}

/// The direct locations: host, network, address.
pub fn offloads(store: &Store) -> impl Iterator<Item = (Label, Vni, IpAddr)> + '_ {
    store.scan(OFFLOADS, b"").map(|(key, _)| {
        let mut parts = Parts(key);
        let (vni, address) = (parts.vni(), parts.address());
        (parts.name(), vni, address)
    })
}

/// Name of the network of a VNI.
pub fn network_of(store: &Store, vni: Vni) -> Option<Label> {
    store.get(VNIS, &vni_key(vni, b"")).map(|cell| label(&cell.value))
}

/// VNI of a network.
pub fn vni_of(store: &Store, network: &Label) -> Option<Vni> {
    let id = ResourceId { kind: Kind::Network, network: None, name: network.clone() };
    resource(store, &id)?.allocated.vni
}

/// An entry that a resource leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Led {
    /// At which actuator.
    pub actuator: Label,
    /// Which key.
    pub key: Key,
    /// Since which version.
    pub version: Version,
}

/// The entries that a resource leads to, at most `limit`, by actuator and key. Empty when the
/// resource is not there.
pub fn explain(store: &Store, id: &ResourceId, limit: usize) -> Vec<Led> {
    let Some(stored) = resource(store, id) else { return Vec::new() };
    let network = id.network.as_ref().unwrap_or(&id.name);
    let Some(vni) = vni_of(store, network) else { return Vec::new() };
    let mut found = Vec::new();
    for actuator in concerned(store, vni, &stored) {
        for key in keys_of(vni, &stored) {
            if found.len() >= limit {
                return found;
            }
            if let Some((version, Some(_))) = desired_entry(store, &actuator, &key) {
                found.push(Led { actuator: actuator.clone(), key, version });
            }
        }
    }
    found
}

fn keys_of(vni: Vni, stored: &Stored) -> Vec<Key> {
    match &stored.resource {
        Resource::Network(_) => vec![Key::Network { vni }, Key::Policy { vni }],
        Resource::Subnet(_) => vec![Key::Network { vni }],
        Resource::Route(route) => vec![Key::Route { vni, prefix: route.prefix }],
        Resource::Balancer(balancer) => vec![Key::Virtual { vni, address: balancer.address }],
        Resource::FirewallRule(rule) => {
            let tags = rule.peers.iter().filter_map(|peer| match peer {
                Peer::Tag(tag) => Some(tag),
                Peer::Prefix(_) => None,
            });
            let members = tags.flat_map(|tag| {
                (0..MEMBER_BUCKETS).map(move |bucket| Key::Members { vni, tag: tag.clone(), bucket })
            });
            std::iter::once(Key::Policy { vni }).chain(members).collect()
        }
        Resource::Endpoint(endpoint) => {
            let addresses = &stored.allocated.addresses;
            let locations = addresses.iter().map(|&address| Key::Location { vni, address });
            let members = endpoint.tags.iter().flat_map(|tag| {
                let buckets: BTreeSet<u8> = addresses.iter().map(|address| member_bucket(*address)).collect();
                buckets.into_iter().map(move |bucket| Key::Members { vni, tag: tag.clone(), bucket })
            });
            let port = Key::Port { vni, endpoint: endpoint.name.clone() };
            std::iter::once(port).chain(locations).chain(members).collect()
        }
    }
}

fn concerned(store: &Store, vni: Vni, stored: &Stored) -> BTreeSet<Label> {
    let scope = vni_key(vni, b"");
    let hosts = store.scan(NETWORK_HOSTS, &scope).map(|(key, _)| label(&key[4..]));
    let mut names: BTreeSet<Label> = hosts.collect();
    names.extend(store.scan(GATEWAYS, b"").map(|(key, _)| label(key)));
    for &address in &stored.allocated.addresses {
        let prefix = vni_key(vni, &address_bytes(address));
        names.extend(store.scan(OFFLOADS, &prefix).map(|(key, _)| label(&key[prefix.len()..])));
    }
    names
}
