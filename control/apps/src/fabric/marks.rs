//! Marks: which keys a change may concern, and at which actuators. A mark costs a comparison, no
//! update: only what differs from `desired` is issued.

use super::tables::{
    DESIRED, Family, NETWORK_HOSTS, OFFLOADS, PREFIX_ROUTES, Parts, TAG_USERS, TAGGED, VIRTUALS,
    address_bytes, desired_prefix, joined, label, name0, vni_key, vni_name0,
};
use super::work::Work;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use weir_base::codec::decode;
use weir_model::entry::{Vni, member_bucket};
use weir_model::{Key, Label};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// These keys at these actuators.
    pub keys: BTreeMap<Key, BTreeSet<Label>>,
    /// Network, policy, route and virtual keys: at every host of the network, and where they concern them at gateways.
    pub networks: BTreeSet<Key>,
    /// Buckets of members, if a rule uses their tag.
    pub members: BTreeSet<(Vni, Label, u8)>,
    /// Tags whose use by rules may have begun or ended.
    pub tags: BTreeSet<(Vni, Label)>,
    /// Addresses whose location may have changed: at gateways and at hosts that hold it.
    pub locations: BTreeSet<(Vni, IpAddr)>,
    /// Networks that may have come to a host or left it, or are on a host that just joined.
    pub pairs: BTreeSet<(Label, Vni)>,
}

impl Marks {
    pub(super) fn key(&mut self, actuator: &Label, key: Key) {
        self.keys.entry(key).or_default().insert(actuator.clone());
    }

    pub(super) fn tagged(&mut self, vni: Vni, tags: &[Label], addresses: &[IpAddr]) {
        for tag in tags {
            self.members.extend(addresses.iter().map(|a| (vni, tag.clone(), member_bucket(*a))));
        }
    }
}

/// Lists that many marks of one network need.
#[derive(Default)]
struct Lists {
    hosts: BTreeMap<Vni, Rc<Vec<Label>>>,
    keys: BTreeMap<Vni, Rc<Vec<Key>>>,
    used: BTreeMap<(Vni, Label), bool>,
}

/// Every marked key with the actuators it may concern.
pub(super) fn expand(work: &mut Work<'_, '_>) -> BTreeMap<Key, BTreeSet<Label>> {
    let mut marks = std::mem::take(&mut work.marks);
    let mut lists = Lists::default();
    for (vni, tag) in std::mem::take(&mut marks.tags) {
        changed_use(work, &mut marks, vni, &tag);
    }
    let gateways = work.gateways();
    for key in std::mem::take(&mut marks.networks) {
        let Some(vni) = key.vni() else { continue };
        let to_gateways = !matches!(key, Key::Policy { .. } | Key::Virtual { .. });
        let targets = marks.keys.entry(key).or_default();
        targets.extend(lists.hosts(work, vni).iter().cloned());
        targets.extend(gateways.iter().filter(|_| to_gateways).cloned());
    }
    for (vni, tag, bucket) in std::mem::take(&mut marks.members) {
        if lists.used(work, vni, &tag) {
            let targets = marks.keys.entry(Key::Members { vni, tag, bucket }).or_default();
            targets.extend(lists.hosts(work, vni).iter().cloned());
        }
    }
    for (host, vni) in std::mem::take(&mut marks.pairs) {
        let key = vni_key(vni, host.as_str().as_bytes());
        let now = work.has(NETWORK_HOSTS, &key);
        let before = work.view.version_below(NETWORK_HOSTS, &key).is_some();
        let fresh = work.fresh.as_ref() == Some(&host);
        if work.member(&host).is_none() || (now == before && !fresh) {
            continue;
        }
        let keys = if now { lists.keys(work, vni) } else { Rc::new(keys_at(work, &host, vni)) };
        for key in keys.iter() {
            marks.key(&host, key.clone());
        }
    }
    for (vni, address) in std::mem::take(&mut marks.locations) {
        let targets = marks.keys.entry(Key::Location { vni, address }).or_default();
        targets.extend(gateways.iter().cloned());
        targets.extend(holders(work, vni, address));
    }
    marks.keys
}

impl Lists {
    fn hosts(&mut self, work: &Work<'_, '_>, vni: Vni) -> Rc<Vec<Label>> {
        self.hosts.entry(vni).or_insert_with(|| Rc::new(hosts_of(work, vni))).clone()
    }

    fn keys(&mut self, work: &Work<'_, '_>, vni: Vni) -> Rc<Vec<Key>> {
        self.keys.entry(vni).or_insert_with(|| Rc::new(network_keys(work, vni))).clone()
    }

    fn used(&mut self, work: &Work<'_, '_>, vni: Vni, tag: &Label) -> bool {
        *self
            .used
            .entry((vni, tag.clone()))
            .or_insert_with(|| !work.view.scan(TAG_USERS, &vni_name0(vni, tag)).is_empty())
    }
}

/// The hosts on which a network has endpoints, joined or not.
pub(super) fn hosts_of(work: &Work<'_, '_>, vni: Vni) -> Vec<Label> {
    let found = work.view.scan(NETWORK_HOSTS, &vni_key(vni, b""));
    found.into_iter().map(|(key, _)| label(&key[4..])).collect()
}

/// The hosts that have a direct location of an address.
pub(super) fn holders(work: &Work<'_, '_>, vni: Vni, address: IpAddr) -> Vec<Label> {
    let prefix = vni_key(vni, &address_bytes(address));
    work.view.scan(OFFLOADS, &prefix).into_iter().map(|(key, _)| label(&key[prefix.len()..])).collect()
}

/// When rules began or ceased to use a tag, all its members are concerned.
fn changed_use(work: &Work<'_, '_>, marks: &mut Marks, vni: Vni, tag: &Label) {
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
        marks.keys.entry(key).or_default().extend(hosts.iter().cloned());
    }
}

/// What a host needs of a network before its first port there.
fn network_keys(work: &Work<'_, '_>, vni: Vni) -> Vec<Key> {
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
pub(super) fn route_keys(work: &Work<'_, '_>, prefix: &[u8]) -> BTreeSet<Key> {
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
fn keys_at(work: &Work<'_, '_>, host: &Label, vni: Vni) -> Vec<Key> {
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
    work: &Work<'_, '_>,
    actuator: &Label,
    family: Family,
    vni: Vni,
) -> Vec<(Key, std::sync::Arc<[u8]>)> {
    let skip = name0(actuator.as_str()).len();
    let prefix = desired_prefix(actuator, family, vni);
    let cells = work.view.scan(DESIRED, &prefix);
    cells.into_iter().map(|(key, value)| (decode_key(&key[skip..]), value)).collect()
}

/// A key that we wrote.
pub(super) fn decode_key(bytes: &[u8]) -> Key {
    match decode(bytes) {
        Ok(key) => key,
        Err(error) => unreachable!("a desired key cannot be read by this release: {error}"),
    }
}

/// Key of the record of a direct location.
pub(super) fn offload_key(vni: Vni, address: IpAddr, host: &Label) -> Vec<u8> {
    joined(vni_key(vni, &address_bytes(address)), host.as_str().as_bytes())
}
