//! Intents: a transaction's documents become resources, all of them or none (row A1).

use super::balancer;
use super::change::Change;
use super::claims;
use super::document;
use super::domains;
use super::learned;
use super::tables::{
    Allocated, PREFIX_ROUTES, RESOURCES, ROUTE_USERS, SUBNET_USERS, Stored, TAG_USERS, VNIS, joined, label,
    prefix_bytes, vni_key, vni_name0, vni_name0_name,
};
use super::work::{Count, Work};
use crate::delta::{reference, wrong_field};
use ipnet::IpNet;
use std::collections::BTreeMap;
use weir_base::codec::encode;
use weir_model::entry::{VNI_MAX, Vni};
use weir_model::event::{MUTATIONS_MAX, Mutation, Transaction, Wanted};
use weir_model::resource::{
    Balancer, FieldError, FirewallRule, Kind, Network, NextHop, Peer, Resource, ResourceId, Route, Subnet,
};
use weir_model::{Key, Label, Version};
use weir_store::Rejection;

/// Decides on a transaction: everything is let go of before anything is claimed.
pub(super) fn change(work: &mut Work<'_, '_, '_>, transaction: &Transaction) -> Result<(), Rejection> {
    let changes = read_changes(work, transaction)?;
    for change in &changes {
        release(work, change)?;
    }
    for change in &changes {
        check_prefix_free(work, change)?;
    }
    for change in &changes {
        match (&change.id.kind, &change.new) {
            (_, Some(Resource::Network(network))) => put_network(work, change, network)?,
            (Kind::Network, None) => delete_network(work, change)?,
            _ => {}
        }
    }
    for change in changes.iter().filter(|change| change.new.is_some()) {
        check_network(work, &change.id)?;
    }
    for change in &changes {
        match &change.new {
            Some(Resource::Subnet(subnet)) => put_subnet(work, change, subnet)?,
            None if change.id.kind != Kind::Network => work.delete_stored(&change.id),
            _ => {}
        }
    }
    claims::claim_all(work, &changes)?;
    for change in &changes {
        match &change.new {
            Some(Resource::Route(route)) => put_route(work, change, route)?,
            Some(Resource::FirewallRule(rule)) => put_rule(work, change, rule)?,
            Some(Resource::Balancer(wanted)) => put_balancer(work, change, wanted)?,
            _ => {}
        }
    }
    for change in &changes {
        check_users(work, change)?;
        forget_learned(work, change)?;
        forget_turns(work, change)?;
    }
    check_overlaps(work, &changes)?;
    for change in changes.iter().filter(|change| matches!(change.id.kind, Kind::Network | Kind::Subnet)) {
        domains::check_shared(work, &change.id)?;
    }
    check_policies(work, &changes)
}

/// The mutations that change something, in order of kinds and names.
fn read_changes(work: &mut Work<'_, '_, '_>, transaction: &Transaction) -> Result<Vec<Change>, Rejection> {
    let count = transaction.mutations.len();
    if count > MUTATIONS_MAX {
        return Err(Rejection::limit("mutations of a transaction", count, MUTATIONS_MAX));
    }
    let mut wanted: BTreeMap<ResourceId, Option<Resource>> = BTreeMap::new();
    for mutation in &transaction.mutations {
        let id = &mutation.id;
        let resource = read_mutation(mutation)?;
        check_expected(work, mutation)?;
        if wanted.insert(id.clone(), resource).is_some() {
            return Err(reference(id, "the transaction names it twice: name it once"));
        }
    }
    if transaction.replace_all {
        let all = work.view.scan(RESOURCES, b"");
        for stored in all.into_iter().filter_map(|(key, _)| work.stored_at(key)) {
            wanted.entry(stored.resource.id()).or_insert(None);
        }
    }
    let mut changes = Vec::new();
    for (id, new) in wanted {
        let old = work.stored(&id);
        if old.as_ref().map(|old| &old.resource) != new.as_ref() {
            changes.push(Change { id, old, new });
        }
    }
    Ok(changes)
}

fn read_mutation(mutation: &Mutation) -> Result<Option<Resource>, Rejection> {
    let id = &mutation.id;
    if (id.kind == Kind::Network) != id.network.is_none() {
        let found = id.network.as_ref().map_or("", |network| network.as_str());
        let error = FieldError::new("network", found, "absent for a network, given for everything else");
        return Err(wrong_field(id, error));
    }
    match &mutation.wanted {
        Wanted::Document(document) => document::parse(id, document).map(Some),
        Wanted::Absent => Ok(None),
    }
}

fn check_expected(work: &mut Work<'_, '_, '_>, mutation: &Mutation) -> Result<(), Rejection> {
    let Some(expected) = mutation.expected else { return Ok(()) };
    let found = work.stored(&mutation.id).map_or(Version::ZERO, |stored| stored.version);
    if found == expected {
        return Ok(());
    }
    Err(Rejection::Version { resource: mutation.id.to_string(), expected, found })
}

/// Takes the old resource out of the indices.
fn release(work: &mut Work<'_, '_, '_>, change: &Change) -> Result<(), Rejection> {
    let (Some(old), Some(network)) = (&change.old, &change.id.network) else { return Ok(()) };
    let Some(vni) = work.vni(network) else { unreachable!("{} has no network", change.id) };
    match &old.resource {
        Resource::Network(_) => {}
        Resource::Subnet(subnet) => {
            work.own.broad.networks.insert(Key::Network { vni });
            domains::share(work, vni, subnet, false)?;
            work.count_down(Count::Subnets, &vni_key(vni, b""))?;
        }
        Resource::Endpoint(endpoint) => claims::release(work, old, endpoint)?,
        Resource::Route(route) => {
            let name = route.name.as_str().as_bytes();
            work.view.delete(PREFIX_ROUTES, &joined(vni_key(vni, &prefix_bytes(route.prefix)), name));
            if let NextHop::Endpoint(endpoint) = &route.next_hop {
                work.view.delete(ROUTE_USERS, &vni_name0_name(vni, endpoint, &route.name));
            }
            work.own.broad.networks.insert(Key::Route { vni, prefix: route.prefix });
            work.count_down(Count::Routes, &vni_key(vni, b""))?;
        }
        Resource::FirewallRule(rule) => {
            for tag in peer_tags(rule) {
                let key = vni_name0_name(vni, tag, &rule.name);
                // A rule may name a tag twice.
                if work.has(TAG_USERS, &key) {
                    work.view.delete(TAG_USERS, &key);
                    count_tag_down(work, vni, tag)?;
                }
            }
            work.own.broad.networks.insert(Key::Policy { vni });
            work.count_down(Count::Rules, &vni_key(vni, b""))?;
        }
        Resource::Balancer(before) => balancer::release(work, vni, before, change.new.is_none())?,
    }
    Ok(())
}

fn peer_tags(rule: &FirewallRule) -> impl Iterator<Item = &Label> {
    rule.peers.iter().filter_map(|peer| match peer {
        Peer::Tag(tag) => Some(tag),
        Peer::Prefix(_) => None,
    })
}

fn put_network(work: &mut Work<'_, '_, '_>, change: &Change, network: &Network) -> Result<(), Rejection> {
    let vni = match change.old.as_ref().and_then(|old| old.allocated.vni) {
        Some(vni) if network.vni.is_some_and(|asked| asked != vni) => {
            let allowed = format!("{vni}, which it has: it never changes");
            let asked = network.vni.map_or(0, |vni| vni.0);
            return Err(wrong_field(&change.id, FieldError::new("vni", asked, allowed)));
        }
        Some(vni) => vni,
        None => new_vni(work, &change.id, network)?,
    };
    work.own.broad.networks.insert(Key::Network { vni });
    if let Some(Resource::Network(old)) = change.old_resource()
        && old.forwarding != network.forwarding
        && work.count(Count::Endpoints, &vni_key(vni, b"")) > 0
    {
        let problem = "its forwarding changes only while no endpoint is in it: delete the endpoints first, or make \
                       another network";
        return Err(reference(&change.id, problem));
    }
    if let Some(Resource::Network(old)) = change.old_resource()
        && (old.ingress, old.egress) != (network.ingress, network.egress)
    {
        work.own.broad.networks.insert(Key::Policy { vni });
    }
    put(work, change, Allocated { vni: Some(vni), ..Allocated::default() })
}

/// What was learned of an endpoint is void when it is gone, is placed elsewhere or has another Ethernet address.
fn forget_learned(work: &mut Work<'_, '_, '_>, change: &Change) -> Result<(), Rejection> {
    let (Some(old), Some(network)) = (&change.old, &change.id.network) else { return Ok(()) };
    let Resource::Endpoint(before) = &old.resource else { return Ok(()) };
    let Some(vni) = work.vni(network) else { return Ok(()) };
    if !learned::is_learned(work, vni) {
        return Ok(());
    }
    let new = work.stored(&change.id);
    let mac = new.as_ref().and_then(|new| new.allocated.mac);
    let gone = mac.is_none() || mac != old.allocated.mac;
    let moved = match new.as_ref().map(|new| &new.resource) {
        Some(Resource::Endpoint(after)) => after.host != before.host,
        _ => true,
    };
    let readdressed = new.as_ref().is_some_and(|new| new.allocated.addresses != old.allocated.addresses);
    if gone || moved || readdressed { learned::forget(work, vni, old, gone) } else { Ok(()) }
}

fn new_vni(work: &mut Work<'_, '_, '_>, id: &ResourceId, network: &Network) -> Result<Vni, Rejection> {
    let name = &network.name;
    let limit = work.settings.networks_max.min(VNI_MAX as usize);
    work.count_up(Count::Networks, b"", limit, || "networks".to_string())?;
    if let Some(asked) = network.vni {
        if let Some(owner) = work.network_name(asked) {
            let problem = format!("identifier {asked} is that of network '{owner}': give it another 'vni'");
            return Err(reference(id, problem));
        }
        work.view.put(VNIS, &vni_key(asked, b""), name.as_str().as_bytes())?;
        return Ok(asked);
    }
    let mut last = work.count(Count::LastVni, b"") as u32;
    let vni = loop {
        last = if last >= VNI_MAX { 1 } else { last + 1 };
        if !work.has(VNIS, &vni_key(Vni(last), b"")) {
            break Vni(last);
        }
    };
    work.set_count(Count::LastVni, b"", u64::from(vni.0))?;
    work.view.put(VNIS, &vni_key(vni, b""), name.as_str().as_bytes())?;
    Ok(vni)
}

fn delete_network(work: &mut Work<'_, '_, '_>, change: &Change) -> Result<(), Rejection> {
    let Some(vni) = work.vni(&change.id.name) else { unreachable!("{} has no VNI", change.id) };
    work.view.delete(VNIS, &vni_key(vni, b""));
    learned::forget_network(work, vni)?;
    work.count_down(Count::Networks, b"")?;
    work.own.broad.networks.insert(Key::Network { vni });
    work.delete_stored(&change.id);
    Ok(())
}

fn check_network(work: &mut Work<'_, '_, '_>, id: &ResourceId) -> Result<(), Rejection> {
    let Some(network) = &id.network else { return Ok(()) };
    if work.named(network, Kind::Network, network).is_some() {
        return Ok(());
    }
    let problem = format!("network '{network}' does not exist: create it first, or in the same document");
    Err(reference(id, problem))
}

/// Stores the new resource as it was asked for.
fn put(work: &mut Work<'_, '_, '_>, change: &Change, allocated: Allocated) -> Result<(), Rejection> {
    let Some(resource) = change.new.clone() else { return Ok(()) };
    let version = work.version;
    let created = change.old.as_ref().map_or(version, |old| old.created);
    work.put_stored(Stored { resource, version, created, allocated })
}

fn network_of(work: &mut Work<'_, '_, '_>, name: &Label) -> Vni {
    match work.vni(name) {
        Some(vni) => vni,
        None => unreachable!("network {name} was checked"),
    }
}

fn put_subnet(work: &mut Work<'_, '_, '_>, change: &Change, subnet: &Subnet) -> Result<(), Rejection> {
    let vni = network_of(work, &subnet.network);
    let limit = work.settings.subnets_per_network_max;
    work.count_up(Count::Subnets, &vni_key(vni, b""), limit, || {
        format!("subnets of network {}", subnet.network)
    })?;
    work.own.broad.networks.insert(Key::Network { vni });
    domains::share(work, vni, subnet, true)?;
    put(work, change, Allocated::default())
}

fn put_route(work: &mut Work<'_, '_, '_>, change: &Change, route: &Route) -> Result<(), Rejection> {
    let vni = network_of(work, &route.network);
    let limit = work.settings.routes_per_network_max;
    work.count_up(Count::Routes, &vni_key(vni, b""), limit, || {
        format!("routes of network {}", route.network)
    })?;
    let name = route.name.as_str().as_bytes();
    work.flag(PREFIX_ROUTES, &joined(vni_key(vni, &prefix_bytes(route.prefix)), name))?;
    if let NextHop::Endpoint(endpoint) = &route.next_hop {
        work.flag(ROUTE_USERS, &vni_name0_name(vni, endpoint, &route.name))?;
        check_hop(work, &change.id, route, endpoint)?;
    }
    work.own.broad.networks.insert(Key::Route { vni, prefix: route.prefix });
    put(work, change, Allocated::default())
}

fn check_hop(
    work: &mut Work<'_, '_, '_>,
    id: &ResourceId,
    route: &Route,
    endpoint: &Label,
) -> Result<(), Rejection> {
    let v4 = route.prefix.addr().is_ipv4();
    match work.named(&route.network, Kind::Endpoint, endpoint) {
        None => {
            let problem = format!(
                "its next hop, endpoint '{endpoint}', does not exist: create it first, or delete the route"
            );
            Err(reference(id, problem))
        }
        Some(hop) if !hop.allocated.addresses.iter().any(|a| a.is_ipv4() == v4) => {
            let problem =
                format!("its next hop, endpoint '{endpoint}', has no address of the prefix's family");
            Err(reference(id, problem))
        }
        Some(_) => Ok(()),
    }
}

fn put_rule(work: &mut Work<'_, '_, '_>, change: &Change, rule: &FirewallRule) -> Result<(), Rejection> {
    let vni = network_of(work, &rule.network);
    let limit = work.settings.rules_per_network_max;
    work.count_up(Count::Rules, &vni_key(vni, b""), limit, || {
        format!("firewall rules of network {}", rule.network)
    })?;
    for tag in peer_tags(rule) {
        let key = vni_name0_name(vni, tag, &rule.name);
        if !work.has(TAG_USERS, &key) {
            work.flag(TAG_USERS, &key)?;
            count_tag_up(work, vni, tag, &rule.network)?;
        }
    }
    work.own.broad.networks.insert(Key::Policy { vni });
    put(work, change, Allocated::default())
}

fn put_balancer(work: &mut Work<'_, '_, '_>, change: &Change, wanted: &Balancer) -> Result<(), Rejection> {
    let vni = network_of(work, &wanted.network);
    let limit = work.settings.balancers_per_network_max;
    work.count_up(Count::Balancers, &vni_key(vni, b""), limit, || {
        format!("balancers of network {}", wanted.network)
    })?;
    let before = match change.old_resource() {
        Some(Resource::Balancer(before)) => Some(before),
        _ => None,
    };
    balancer::put(work, &change.id, vni, wanted, before)?;
    put(work, change, Allocated::default())
}

/// The turns of a client that is gone, or has moved, or has other addresses are void.
fn forget_turns(work: &mut Work<'_, '_, '_>, change: &Change) -> Result<(), Rejection> {
    let (Some(old), Some(network)) = (&change.old, &change.id.network) else { return Ok(()) };
    let Resource::Endpoint(before) = &old.resource else { return Ok(()) };
    let Some(vni) = work.vni(network) else { return Ok(()) };
    let new = work.stored(&change.id);
    let stays = match new.as_ref().map(|new| &new.resource) {
        Some(Resource::Endpoint(after)) => after.host == before.host,
        _ => false,
    };
    for &address in &old.allocated.addresses {
        if !stays || !new.as_ref().is_some_and(|new| new.allocated.addresses.contains(&address)) {
            balancer::forget_client(work, vni, address)?;
        }
    }
    Ok(())
}

/// The rules that use each tag are counted, and the tags that are used.
fn count_tag_up(
    work: &mut Work<'_, '_, '_>,
    vni: Vni,
    tag: &Label,
    network: &Label,
) -> Result<(), Rejection> {
    let of = vni_name0(vni, tag);
    if work.count(Count::TagRules, &of) == 0 {
        let limit = work.settings.rule_tags_per_network_max;
        work.count_up(Count::RuleTags, &vni_key(vni, b""), limit, || {
            format!("tags that the rules of network {network} select by")
        })?;
    }
    work.own.broad.tags.insert((vni, tag.clone()));
    work.count_up(Count::TagRules, &of, usize::MAX, String::new)
}

fn count_tag_down(work: &mut Work<'_, '_, '_>, vni: Vni, tag: &Label) -> Result<(), Rejection> {
    let of = vni_name0(vni, tag);
    work.count_down(Count::TagRules, &of)?;
    if work.count(Count::TagRules, &of) == 0 {
        work.count_down(Count::RuleTags, &vni_key(vni, b""))?;
    }
    work.own.broad.tags.insert((vni, tag.clone()));
    Ok(())
}

/// What others still need must not go, or change under them.
fn check_users(work: &mut Work<'_, '_, '_>, change: &Change) -> Result<(), Rejection> {
    let Some(old) = change.old_resource() else { return Ok(()) };
    let Some(vni) = work.vni(change.id.network.as_ref().unwrap_or(&change.id.name)) else { return Ok(()) };
    match old {
        Resource::Network(_) if change.new.is_none() => check_network_unused(work, &change.id, vni),
        Resource::Subnet(before) => check_subnet_users(work, change, before, vni),
        Resource::Endpoint(endpoint) => {
            for (key, _) in work.view.scan(ROUTE_USERS, &vni_name0(vni, &endpoint.name)) {
                let route = label(&key[vni_name0(vni, &endpoint.name).len()..]);
                recheck_route(work, &change.id, &endpoint.network, &route)?;
            }
            balancer::recheck_member(work, &change.id, vni, endpoint)
        }
        _ => Ok(()),
    }
}

fn check_network_unused(work: &mut Work<'_, '_, '_>, id: &ResourceId, vni: Vni) -> Result<(), Rejection> {
    let of = vni_key(vni, b"");
    let kinds = [
        (Count::Endpoints, Kind::Endpoint),
        (Count::Subnets, Kind::Subnet),
        (Count::Routes, Kind::Route),
        (Count::Rules, Kind::FirewallRule),
        (Count::Balancers, Kind::Balancer),
    ];
    for (what, kind) in kinds {
        if work.count(what, &of) > 0 {
            let user = work.all_of(&id.name, kind).first().map(|stored| stored.resource.id().to_string());
            let user = user.unwrap_or_else(|| kind.to_string());
            return Err(reference(id, format!("{user} is still in it: delete that first")));
        }
    }
    Ok(())
}

/// A subnet whose prefix changes has no user but those that the transaction says something of: the pool of its addresses counts from the
/// prefix, so what stays there would stand for another address. Asked before anybody claims one.
fn check_prefix_free(work: &mut Work<'_, '_, '_>, change: &Change) -> Result<(), Rejection> {
    let (Some(Resource::Subnet(before)), Some(Resource::Subnet(after))) =
        (change.old_resource(), &change.new)
    else {
        return Ok(());
    };
    if (after.v4, after.v6) == (before.v4, before.v6) {
        return Ok(());
    }
    let Some(vni) = work.vni(&before.network) else { return Ok(()) };
    if let Some(user) = balancer::in_subnet(work, vni, before) {
        return Err(reference(&change.id, balanced_in(&user)));
    }
    let prefix = vni_name0(vni, &before.name);
    match work.view.scan(SUBNET_USERS, &prefix).first() {
        None => Ok(()),
        Some((key, _)) => Err(reference(&change.id, used_by(&label(&key[prefix.len()..])))),
    }
}

fn balanced_in(user: &Label) -> String {
    format!("balancer '{user}' has an address of it: delete that first, or give it another address")
}

fn used_by(user: &Label) -> String {
    format!(
        "endpoint '{user}' has addresses of it: prefix and domain change only while no endpoint uses it; make another subnet and move \
         the endpoints there"
    )
}

fn check_subnet_users(
    work: &mut Work<'_, '_, '_>,
    change: &Change,
    before: &Subnet,
    vni: Vni,
) -> Result<(), Rejection> {
    let kept = matches!(&change.new, Some(Resource::Subnet(after))
        if (after.v4, after.v6, &after.domain) == (before.v4, before.v6, &before.domain));
    if !kept && let Some(user) = balancer::in_subnet(work, vni, before) {
        return Err(reference(&change.id, balanced_in(&user)));
    }
    let prefix = vni_name0(vni, &before.name);
    let users = |key: &[u8]| label(&key[prefix.len()..]);
    match &change.new {
        None => match work.view.scan(SUBNET_USERS, &prefix).first() {
            None => Ok(()),
            Some((key, _)) => {
                let problem = format!("endpoint '{}' has addresses of it: delete that first", users(key));
                Err(reference(&change.id, problem))
            }
        },
        Some(Resource::Subnet(after))
            if (after.v4, after.v6, &after.domain) != (before.v4, before.v6, &before.domain) =>
        {
            let store = work.view.store();
            let mut stayed = store.scan(SUBNET_USERS, &prefix).filter(|(key, _)| work.has(SUBNET_USERS, key));
            match stayed.next() {
                None => Ok(()),
                Some((key, _)) => Err(reference(&change.id, used_by(&users(key)))),
            }
        }
        Some(Resource::Subnet(after)) if after.dhcp != before.dhcp => {
            for (key, _) in work.view.scan(SUBNET_USERS, &prefix) {
                mark_port(work, &before.network, vni, &users(&key));
            }
            Ok(())
        }
        Some(_) => Ok(()),
    }
}

fn mark_port(work: &mut Work<'_, '_, '_>, network: &Label, vni: Vni, name: &Label) {
    let Some(stored) = work.named(network, Kind::Endpoint, name) else { return };
    if let Resource::Endpoint(endpoint) = &stored.resource
        && let Some(host) = &endpoint.host
    {
        work.marks.key(host, Key::Port { vni, endpoint: name.clone() });
    }
}

/// A route whose next hop changed or is gone.
fn recheck_route(
    work: &mut Work<'_, '_, '_>,
    endpoint: &ResourceId,
    network: &Label,
    name: &Label,
) -> Result<(), Rejection> {
    let Some(stored) = work.named(network, Kind::Route, name) else { return Ok(()) };
    let Resource::Route(route) = &stored.resource else { return Ok(()) };
    let vni = network_of(work, network);
    work.own.broad.networks.insert(Key::Route { vni, prefix: route.prefix });
    if work.stored(endpoint).is_none() {
        let problem = format!("{} leads to it: delete that first", route_id(route));
        return Err(reference(endpoint, problem));
    }
    check_hop(work, &route_id(route), route, &endpoint.name)
}

fn route_id(route: &Route) -> ResourceId {
    Resource::Route(route.clone()).id()
}

/// Subnets of one network must not overlap.
fn check_overlaps(work: &mut Work<'_, '_, '_>, changes: &[Change]) -> Result<(), Rejection> {
    let mut last = None;
    for change in changes.iter().filter(|c| c.id.kind == Kind::Subnet && c.new.is_some()) {
        let Some(network) = &change.id.network else { continue };
        if last.replace(network) == Some(network) {
            continue;
        }
        let mut prefixes: Vec<(IpNet, ResourceId)> = Vec::new();
        for stored in work.all_of(network, Kind::Subnet) {
            if let Resource::Subnet(subnet) = &stored.resource {
                let id = stored.resource.id();
                prefixes.extend(subnet.v4.map(|net| (IpNet::V4(net), id.clone())));
                prefixes.extend(subnet.v6.map(|net| (IpNet::V6(net), id)));
            }
        }
        // By first address; a prefix that overlaps another then overlaps a neighbour.
        prefixes.sort_by_key(|(net, _)| (net.addr(), net.prefix_len()));
        for pair in prefixes.windows(2) {
            let [(first, owner), (second, id)] = pair else { continue };
            if first.contains(second) {
                let problem = format!("its prefix {second} overlaps {first} of {owner}");
                return Err(reference(id, problem));
            }
        }
    }
    Ok(())
}

/// The policy of each network whose rules changed must fit in one entry.
fn check_policies(work: &mut Work<'_, '_, '_>, changes: &[Change]) -> Result<(), Rejection> {
    let mut last = None;
    for change in changes.iter().filter(|c| c.id.kind == Kind::FirewallRule && c.new.is_some()) {
        let Some(network) = &change.id.network else { continue };
        if last.replace(network) == Some(network) {
            continue;
        }
        let vni = network_of(work, network);
        let entry = work.entry(&Key::Policy { vni })?;
        let limit = work.settings.policy_bytes_max;
        let bytes = encode(&entry).len();
        if bytes > limit {
            let what = format!("bytes of all firewall rules of network {network}");
            return Err(Rejection::limit(&what, bytes, limit));
        }
    }
    Ok(())
}
