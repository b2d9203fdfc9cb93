//! Questions to the tables, for the API and the scheduler. Pure functions over a store; a store is
//! cheap to clone, so a question never holds up a decision.

use super::marks::decode_key;
use super::refusal::Refused;
use super::tables::{
    ACTUATORS, COUNTERS, DESIRED, GATEWAYS, LOADS, Load, Member, NETWORK_HOSTS, OFFLOADS, Parts, RESOURCES,
    STATUS, Stored, VNIS, address_bytes, desired_key, kind_prefix, label, name0, read, read_desired,
    resource_key, vni_key,
};
use super::work::{Count, counter_key};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_model::entry::{MEMBER_BUCKETS, Vni, member_bucket};
use weir_model::event::ActuatorFacts;
use weir_model::resource::{Kind, Peer, Resource, ResourceId};
use weir_model::{Entry, Key, Label, Version};
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

/// An actuator, as the fabric knows it. What it acked is the scheduler's to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActuatorStatus {
    /// What it said when it joined.
    pub facts: ActuatorFacts,
    /// When its facts last changed.
    pub version: Version,
    /// Entries that it shall have, direct locations of hosts aside.
    pub entries: u64,
    /// Deleted keys that are remembered.
    pub tombstones: u64,
    /// What it refused, oldest first, at most [`super::REFUSALS_MAX`].
    pub refusals: Vec<Refused>,
}

/// An actuator that joined.
pub fn actuator(store: &Store, name: &Label) -> Option<ActuatorStatus> {
    let key = name.as_str().as_bytes();
    let member: Member = read(ACTUATORS, &store.get(ACTUATORS, key)?.value);
    let load = store.get(LOADS, key).map_or_else(Load::default, |cell| read(LOADS, &cell.value));
    let refusals = store.get(STATUS, key).map_or_else(Vec::new, |cell| read(STATUS, &cell.value));
    let Load { entries, tombstones } = load;
    Some(ActuatorStatus { facts: member.facts, version: member.version, entries, tombstones, refusals })
}

/// All actuators that joined, by name.
pub fn actuators(store: &Store) -> impl Iterator<Item = ActuatorStatus> + '_ {
    store.scan(ACTUATORS, b"").filter_map(|(key, _)| actuator(store, &label(key)))
}

/// What an actuator shall have: each key with its version and entry, or `None` for a key that it
/// shall have deleted. In order of the keys' encoding.
pub fn desired(
    store: &Store,
    actuator: &Label,
) -> impl Iterator<Item = (Key, Version, Option<Entry>)> + use<> {
    let prefix = name0(actuator.as_str());
    let cells: Vec<_> = store
        .scan(DESIRED, &prefix)
        .map(|(key, cell)| (decode_key(&key[prefix.len()..]), cell.value.clone()))
        .collect();
    cells.into_iter().map(|(key, value)| {
        let (version, entry) = read_desired(&value);
        (key, version, entry)
    })
}

/// What an actuator shall have of one key; see [`desired`].
pub fn desired_entry(store: &Store, actuator: &Label, key: &Key) -> Option<(Version, Option<Entry>)> {
    store.get(DESIRED, &desired_key(actuator, key)).map(|cell| read_desired(&cell.value))
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
