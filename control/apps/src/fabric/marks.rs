//! Marks of networks: which keys a change may concern, and at which actuators. Some are of many keys or many actuators
//! ([`super::broad`]); here they become those of the engine.

use super::tables::{
    Family, NETWORK_HOSTS, OFFLOADS, PREFIX_ROUTES, Parts, TAG_USERS, TAGGED, VIRTUALS, address_bytes,
    family_prefix, joined, label, vni_key, vni_name0,
};
use super::work::Work;
use crate::delta::who_speak;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use weir_model::entry::Vni;
use weir_model::session::SWITCHES_SINCE;
use weir_model::{Key, Label};

/// Lists that many marks of one network need.
#[derive(Default)]
struct Lists {
    hosts: BTreeMap<Vni, Rc<Vec<Label>>>,
    keys: BTreeMap<Vni, Rc<Vec<Key>>>,
    used: BTreeMap<(Vni, Label), bool>,
}

/// Spreads what is marked broadly.
pub(super) fn spread(work: &mut Work<'_, '_, '_>) {
    let mut broad = std::mem::take(&mut work.own.broad);
    let mut lists = Lists::default();
    for (vni, tag) in std::mem::take(&mut broad.tags) {
        changed_use(work, vni, &tag);
    }
    let gateways = work.gateways();
    for key in broad.networks {
        let Some(vni) = key.vni() else { continue };
        let to_gateways = !matches!(key, Key::Policy { .. } | Key::Virtual { .. });
        let hosts = lists.hosts(work, vni);
        let targets = work.marks.at(key);
        targets.extend(hosts.iter().cloned());
        targets.extend(gateways.iter().filter(|_| to_gateways).cloned());
    }
    for (vni, tag, bucket) in broad.members {
        if lists.used(work, vni, &tag) {
            let hosts = lists.hosts(work, vni);
            work.marks.at(Key::Members { vni, tag, bucket }).extend(hosts.iter().cloned());
        }
    }
    for (host, vni) in broad.pairs {
        let key = vni_key(vni, host.as_str().as_bytes());
        let now = work.has(NETWORK_HOSTS, &key);
        let before = work.view.version_below(NETWORK_HOSTS, &key).is_some();
        let fresh = work.own.fresh.as_ref() == Some(&host);
        if work.member(&host).is_none() || (now == before && !fresh) {
            continue;
        }
        let keys = if now { lists.keys(work, vni) } else { Rc::new(keys_at(work, &host, vni)) };
        for key in keys.iter() {
            work.marks.key(&host, key.clone());
        }
    }
    for (vni, address) in broad.locations {
        let holders = holders(work, vni, address);
        let targets = work.marks.at(Key::Location { vni, address });
        targets.extend(gateways.iter().cloned());
        targets.extend(holders);
    }
}

impl Lists {
    fn hosts(&mut self, work: &Work<'_, '_, '_>, vni: Vni) -> Rc<Vec<Label>> {
        self.hosts.entry(vni).or_insert_with(|| Rc::new(hosts_of(work, vni))).clone()
    }

    fn keys(&mut self, work: &Work<'_, '_, '_>, vni: Vni) -> Rc<Vec<Key>> {
        self.keys.entry(vni).or_insert_with(|| Rc::new(network_keys(work, vni))).clone()
    }

    fn used(&mut self, work: &Work<'_, '_, '_>, vni: Vni, tag: &Label) -> bool {
        *self
            .used
            .entry((vni, tag.clone()))
            .or_insert_with(|| !work.view.scan(TAG_USERS, &vni_name0(vni, tag)).is_empty())
    }
}

/// The hosts on which a network has endpoints, joined or not.
pub(super) fn hosts_of(work: &Work<'_, '_, '_>, vni: Vni) -> Vec<Label> {
    let found = work.view.scan(NETWORK_HOSTS, &vni_key(vni, b""));
    found.into_iter().map(|(key, _)| label(&key[4..])).collect()
}

/// The hosts that have a direct location of an address.
pub(super) fn holders(work: &Work<'_, '_, '_>, vni: Vni, address: IpAddr) -> Vec<Label> {
    let prefix = vni_key(vni, &address_bytes(address));
    work.view.scan(OFFLOADS, &prefix).into_iter().map(|(key, _)| label(&key[prefix.len()..])).collect()
}

/// When rules began or ceased to use a tag, all its members are concerned.
fn changed_use(work: &mut Work<'_, '_, '_>, vni: Vni, tag: &Label) {
    let prefix = vni_name0(vni, tag);
    let before = work.view.store().scan(TAG_USERS, &prefix).next().is_some();
    let after = !work.view.scan(TAG_USERS, &prefix).is_empty();
    if before == after {
        return;
    }
    let below = work.view.store().scan(TAGGED, &prefix).map(|(key, _)| key[prefix.len()]);
    let mut buckets: BTreeSet<u8> = below.collect();
    buckets.extend(work.view.scan(TAGGED, &prefix).iter().map(|(key, _)| key[prefix.len()]));
    let hosts = hosts_of(work, vni);
    for bucket in buckets {
        let key = Key::Members { vni, tag: tag.clone(), bucket };
        work.marks.at(key).extend(hosts.iter().cloned());
    }
}

/// What a host needs of a network before its first port there.
fn network_keys(work: &Work<'_, '_, '_>, vni: Vni) -> Vec<Key> {
    let mut keys = vec![Key::Network { vni }, Key::Policy { vni }];
    let tags: BTreeSet<Label> = work
        .view
        .scan(TAG_USERS, &vni_key(vni, b""))
        .iter()
        .map(|(key, _)| Parts(&key[4..]).name())
        .collect();
    for tag in tags {
        let prefix = vni_name0(vni, &tag);
        let members = work.view.scan(TAGGED, &prefix);
        let buckets: BTreeSet<u8> = members.iter().map(|(key, _)| key[prefix.len()]).collect();
        keys.extend(buckets.into_iter().map(|bucket| Key::Members { vni, tag: tag.clone(), bucket }));
    }
    keys.extend(route_keys(work, &vni_key(vni, b"")));
    let virtuals = work.view.scan(VIRTUALS, &vni_key(vni, b""));
    keys.extend(virtuals.iter().map(|(key, _)| Key::Virtual { vni, address: Parts(&key[4..]).address() }));
    keys
}

/// The keys of all prefixes that have a route, from a network or from all.
pub(super) fn route_keys(work: &Work<'_, '_, '_>, prefix: &[u8]) -> BTreeSet<Key> {
    let routes = work.view.scan(PREFIX_ROUTES, prefix);
    routes
        .iter()
        .map(|(key, _)| {
            let mut parts = Parts(key);
            Key::Route { vni: parts.vni(), prefix: parts.prefix() }
        })
        .collect()
}

/// What a host shall have of a network by the last decision, ports aside.
fn keys_at(work: &Work<'_, '_, '_>, host: &Label, vni: Vni) -> Vec<Key> {
    let families = [
        Family::Network,
        Family::Policy,
        Family::Members,
        Family::Route,
        Family::Location,
        Family::Virtual,
        Family::Turn,
    ];
    families
        .into_iter()
        .flat_map(|family| desired_keys(work, host, family, vni))
        .map(|(key, _)| key)
        .collect()
}

/// The keys of one kind and network at an actuator, tombstones included, with their values.
pub(super) fn desired_keys(
    work: &Work<'_, '_, '_>,
    actuator: &Label,
    family: Family,
    vni: Vni,
) -> Vec<(Key, std::sync::Arc<[u8]>)> {
    work.desired_under(actuator, &family_prefix(family, vni))
}

/// What is known of other domains, or of this one's controllers, changed: everybody who can read it has it.
pub(super) fn mark_underlays(work: &mut Work<'_, '_, '_>) {
    for reader in readers(work) {
        work.marks.key(&reader, Key::Underlays);
    }
}

/// Everybody who can read the list of switches.
pub(super) fn readers(work: &Work<'_, '_, '_>) -> Vec<Label> {
    who_speak(work, SWITCHES_SINCE)
}

/// Key of the record of a direct location.
pub(super) fn offload_key(vni: Vni, address: IpAddr, host: &Label) -> Vec<u8> {
    joined(vni_key(vni, &address_bytes(address)), host.as_str().as_bytes())
}
