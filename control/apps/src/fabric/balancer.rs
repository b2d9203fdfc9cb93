//! Load balancers of Weir's own networks (Botelho et al. §VI-C; rows B10 and A25; decision 0024): a flow to a virtual
//! address that its switch knows no member for is a question, and the answer the backend that the client is assigned, in turns (round robin).
//!
//! It is assigned by the app of [`crate::flows::balancer`], by the same code, on tables of which each balancer has a
//! part. An assignment is of a client's address and a virtual one: what the client connects to later goes to the same member,
//! without a question, until the pair is not used for as long as a direct location would be kept.
//!
//! Passed over are members that cannot serve: the client itself, one whose port is wanted down, or that has no host, or
//! whose host has not joined or was removed. Nobody looks whether a member answers.
//!
//! Invariants
//! - A virtual address is one of the network's subnets and no endpoint's; the pool of addresses has it as taken.
//! - An assignment is of a client that is placed on the host that holds it, and leads to a member that can serve. Whatever
//!   ends either takes the assignment along.
//! - The turns of a host are at most `turns_per_host_max`.

use super::pool::Pool;
use super::tables::{
    BALANCED_MEMBERS, BALANCED_POOLS, HOST_TURNS, MEMBER_OF, MEMBER_TURNS, Parts, TURNS, VIRTUALS,
    address_bytes, host_vni, joined, label, name0, read, vni_key, vni_name0, vni_name0_name,
};
use super::work::{Count, Work};
use crate::delta::{reference, wrong_field};
use crate::flows::balancer::{pool_value, take, turn_of};
use crate::flows::beside::{Beside as _, Part};
use crate::flows::value;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use weir_base::codec::encode;
use weir_model::entry::{ServiceEntry, TurnEntry, VirtualEntry, Vni};
use weir_model::event::{Role, TurnUse};
use weir_model::resource::{
    Balancer, Endpoint, FieldError, Kind, PortState, Protocol, Resource, ResourceId, Subnet,
};
use weir_model::{Key, Label};
use weir_store::columns::column;
use weir_store::{Aborted, Rejection, TableName};

const TABLES: &[(&str, TableName)] = &[("pools", BALANCED_POOLS), ("members", BALANCED_MEMBERS)];
/// Key of a balancer's one pool in its part of the table.
const POOL: &[u8] = b"";

/// A client and a virtual address of a network.
pub(super) type Pair = (Vni, IpAddr, IpAddr);

/// Who serves a client, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Assignment {
    /// The client's host.
    host: Label,
    /// The endpoint that serves.
    member: Label,
    /// Ordered time of last use, milliseconds.
    used_ms: u64,
}

fn pair_bytes(client: IpAddr, address: IpAddr) -> Vec<u8> {
    joined(address_bytes(client), &address_bytes(address))
}

fn turn_key((vni, client, address): Pair) -> Vec<u8> {
    vni_key(vni, &pair_bytes(client, address))
}

fn member_key((vni, client, address): Pair, member: &Label) -> Vec<u8> {
    joined(vni_name0(vni, member), &pair_bytes(client, address))
}

fn host_key((vni, client, address): Pair, host: &Label) -> Vec<u8> {
    joined(host_vni(host, vni), &pair_bytes(client, address))
}

fn broken(aborted: Aborted) -> Rejection {
    reference("balancers", aborted.reason)
}

/// The tables of one balancer, as the app sees them.
fn part<'w, 's>(work: &'w mut Work<'_, '_, 's>, vni: Vni, name: &Label) -> Part<'w, 's> {
    Part::new(work.view, TABLES, vni_name0(vni, name))
}

fn assignment(work: &Work<'_, '_, '_>, pair: Pair) -> Option<Assignment> {
    work.view.get(TURNS, &turn_key(pair)).map(|bytes| read(TURNS, &bytes))
}

/// The host that an assignment was asked from.
pub(super) fn asked_from(work: &Work<'_, '_, '_>, pair: Pair) -> Option<Label> {
    assignment(work, pair).map(|kept| kept.host)
}

/// Name of the balancer that has a virtual address.
pub(super) fn at(work: &Work<'_, '_, '_>, vni: Vni, address: IpAddr) -> Option<Label> {
    work.view.get(VIRTUALS, &vni_key(vni, &address_bytes(address))).map(|name| label(&name))
}

fn balancer(work: &mut Work<'_, '_, '_>, vni: Vni, name: &Label) -> Option<Balancer> {
    let network = work.network_name(vni)?;
    match &work.named(&network, Kind::Balancer, name)?.resource {
        Resource::Balancer(balancer) => Some(balancer.clone()),
        _ => None,
    }
}

/// The address under which an endpoint can serve a family now.
fn serving(work: &mut Work<'_, '_, '_>, vni: Vni, name: &Label, v4: bool) -> Option<IpAddr> {
    let stored = work.endpoint(vni, name)?;
    let Resource::Endpoint(endpoint) = &stored.resource else { return None };
    let up = endpoint.state == PortState::Up;
    work.member_as(endpoint.host.as_ref()?, Role::Host).filter(|_| up)?;
    stored.allocated.addresses.iter().copied().find(|address| address.is_ipv4() == v4)
}

/// The entry of a virtual address.
pub(super) fn virtual_entry(work: &mut Work<'_, '_, '_>, vni: Vni, address: IpAddr) -> Option<VirtualEntry> {
    let name = at(work, vni, address)?;
    let Balancer { services, members, .. } = balancer(work, vni, &name)?;
    let mut serve: Vec<IpAddr> =
        members.iter().filter_map(|member| serving(work, vni, member, address.is_ipv4())).collect();
    serve.sort_unstable();
    let service = |service: &weir_model::resource::BalancerService| ServiceEntry {
        protocol: if service.protocol == Protocol::TCP { 6 } else { 17 },
        port: service.port,
        target_port: service.target(),
    };
    Some(VirtualEntry { name, services: services.iter().map(service).collect(), members: serve })
}

/// The entry of an assignment; none when its member does not serve there any more.
pub(super) fn turn_entry(work: &mut Work<'_, '_, '_>, pair: Pair) -> Option<TurnEntry> {
    let (vni, _, address) = pair;
    let Assignment { member, .. } = assignment(work, pair)?;
    let name = at(work, vni, address)?;
    if !work.has(MEMBER_OF, &vni_name0_name(vni, &member, &name)) {
        return None;
    }
    let address = serving(work, vni, &member, address.is_ipv4())?;
    Some(TurnEntry { endpoint: member, member: address })
}

/// A host asked which backend serves, for a client that was checked to be its own.
pub(super) fn answer(
    work: &mut Work<'_, '_, '_>,
    host: &Label,
    pair: Pair,
    client: &Label,
    now_ms: u64,
) -> Result<(), Rejection> {
    let (vni, source, address) = pair;
    let Some(name) = at(work, vni, address) else { return Ok(()) };
    if assignment(work, pair).is_some() || source.is_ipv4() != address.is_ipv4() {
        return Ok(());
    }
    let Some(member) = next(work, vni, &name, client, address.is_ipv4())? else { return Ok(()) };
    let limit = work.settings.turns_per_host_max;
    work.count_up(Count::HostTurns, host.as_str().as_bytes(), limit, || {
        format!("turns of virtual addresses of host {host}")
    })?;
    work.flag(MEMBER_TURNS, &member_key(pair, &member))?;
    work.flag(HOST_TURNS, &host_key(pair, host))?;
    let assigned = Assignment { host: host.clone(), member, used_ms: now_ms };
    work.view.put(TURNS, &turn_key(pair), encode(&assigned))?;
    work.marks.key(host, Key::Turn { vni, client: source, address });
    Ok(())
}

/// Assigns the next member in turn that can serve the client.
fn next(
    work: &mut Work<'_, '_, '_>,
    vni: Vni,
    balancer: &Label,
    client: &Label,
    v4: bool,
) -> Result<Option<Label>, Rejection> {
    let Some(pool) = part(work, vni, balancer).get("pools", POOL).map_err(broken)? else { return Ok(None) };
    let mut passed = 0;
    while let Some(turn) = turn_of(&pool, passed) {
        passed += 1;
        let entry = part(work, vni, balancer).get("members", &turn.0).map_err(broken)?;
        let Some(member) = entry.as_deref().and_then(|entry| column(entry, "name")).map(label) else {
            continue;
        };
        if member != *client && serving(work, vni, &member, v4).is_some() {
            take(&mut part(work, vni, balancer), POOL, turn).map_err(broken)?;
            return Ok(Some(member));
        }
    }
    Ok(None)
}

/// Forgets an assignment of a host.
pub(super) fn drop_turn(work: &mut Work<'_, '_, '_>, host: &Label, pair: Pair) -> Result<(), Rejection> {
    let Some(assigned) = assignment(work, pair).filter(|kept| kept.host == *host) else { return Ok(()) };
    work.view.delete(TURNS, &turn_key(pair));
    work.view.delete(MEMBER_TURNS, &member_key(pair, &assigned.member));
    work.view.delete(HOST_TURNS, &host_key(pair, host));
    work.count_down(Count::HostTurns, host.as_str().as_bytes())
}

fn end_turn(work: &mut Work<'_, '_, '_>, host: &Label, pair: Pair) -> Result<(), Rejection> {
    drop_turn(work, host, pair)?;
    let (vni, client, address) = pair;
    work.marks.key(host, Key::Turn { vni, client, address });
    Ok(())
}

/// The turns of a host.
fn turns_of(work: &Work<'_, '_, '_>, host: &Label) -> Vec<Pair> {
    let prefix = name0(host.as_str());
    let rows = work.view.scan(HOST_TURNS, &prefix);
    let pair = |key: &[u8]| {
        let mut parts = Parts(&key[prefix.len()..]);
        (parts.vni(), parts.address(), parts.address())
    };
    rows.iter().map(|(key, _)| pair(key)).collect()
}

/// Times are written only when they moved enough to matter, as those of direct locations.
pub(super) fn note_used(
    work: &mut Work<'_, '_, '_>,
    host: &Label,
    used: &[TurnUse],
    now_ms: u64,
) -> Result<(), Rejection> {
    let grain_ms = work.settings.offload_idle_ms / 4;
    for &TurnUse { vni, client, address } in used {
        let Some(before) = assignment(work, (vni, client, address)).filter(|kept| kept.host == *host) else {
            continue;
        };
        if now_ms.saturating_sub(before.used_ms) >= grain_ms {
            let after = Assignment { used_ms: now_ms, ..before };
            work.view.put(TURNS, &turn_key((vni, client, address)), encode(&after))?;
        }
    }
    Ok(())
}

/// Ends the turns of a host that were not used for too long.
pub(super) fn drop_idle(work: &mut Work<'_, '_, '_>, host: &Label, now_ms: u64) -> Result<(), Rejection> {
    for pair in turns_of(work, host) {
        let idle = assignment(work, pair)
            .is_none_or(|kept| now_ms.saturating_sub(kept.used_ms) >= work.settings.offload_idle_ms);
        if idle {
            end_turn(work, host, pair)?;
        }
    }
    Ok(())
}

/// A host is forgotten, with the turns of its clients.
pub(super) fn forget_host(work: &mut Work<'_, '_, '_>, host: &Label) -> Result<(), Rejection> {
    for pair in turns_of(work, host) {
        drop_turn(work, host, pair)?;
    }
    Ok(())
}

/// A client's address is gone, or is at another host.
pub(super) fn forget_client(work: &mut Work<'_, '_, '_>, vni: Vni, client: IpAddr) -> Result<(), Rejection> {
    let prefix = vni_key(vni, &address_bytes(client));
    for (key, value) in work.view.scan(TURNS, &prefix) {
        let Assignment { host, .. } = read(TURNS, &value);
        end_turn(work, &host, (vni, client, Parts(&key[prefix.len()..]).address()))?;
    }
    Ok(())
}

/// Something of an endpoint, or its host, has changed: marks what it may serve.
pub(super) fn mark_member(work: &mut Work<'_, '_, '_>, vni: Vni, member: &Label) {
    let prefix = vni_name0(vni, member);
    for (key, _) in work.view.scan(MEMBER_OF, &prefix) {
        if let Some(balancer) = balancer(work, vni, &label(&key[prefix.len()..])) {
            work.own.broad.networks.insert(Key::Virtual { vni, address: balancer.address });
        }
    }
    mark_turns(work, vni, member, None);
}

/// Marks the turns that a member serves; of one virtual address, or of all.
fn mark_turns(work: &mut Work<'_, '_, '_>, vni: Vni, member: &Label, of: Option<IpAddr>) {
    let prefix = vni_name0(vni, member);
    for (key, _) in work.view.scan(MEMBER_TURNS, &prefix) {
        let mut parts = Parts(&key[prefix.len()..]);
        let (client, address) = (parts.address(), parts.address());
        if of.is_none_or(|of| of == address)
            && let Some(host) = asked_from(work, (vni, client, address))
        {
            work.marks.key(&host, Key::Turn { vni, client, address });
        }
    }
}

/// Takes a balancer out of the indices; with its pool when it is gone.
pub(super) fn release(
    work: &mut Work<'_, '_, '_>,
    vni: Vni,
    old: &Balancer,
    gone: bool,
) -> Result<(), Rejection> {
    let address = old.address;
    work.view.delete(VIRTUALS, &vni_key(vni, &address_bytes(address)));
    if let Some(pool) = pool_of(work, vni, old) {
        pool.free(work, address)?;
    }
    for member in &old.members {
        work.view.delete(MEMBER_OF, &vni_name0_name(vni, member, &old.name));
        mark_turns(work, vni, member, Some(address));
    }
    if gone {
        let prefix = vni_name0(vni, &old.name);
        for table in [BALANCED_POOLS, BALANCED_MEMBERS] {
            for (key, _) in work.view.scan(table, &prefix) {
                work.view.delete(table, &key);
            }
        }
    }
    work.own.broad.networks.insert(Key::Virtual { vni, address });
    work.count_down(Count::Balancers, &vni_key(vni, b""))
}

fn subnet_at(work: &mut Work<'_, '_, '_>, network: &Label, address: IpAddr) -> Option<Subnet> {
    work.all_of(network, Kind::Subnet).iter().find_map(|stored| match &stored.resource {
        Resource::Subnet(subnet) if subnet.prefix_for(address).is_some_and(|net| net.contains(&address)) => {
            Some(subnet.clone())
        }
        _ => None,
    })
}

fn pool_of(work: &mut Work<'_, '_, '_>, vni: Vni, balancer: &Balancer) -> Option<Pool> {
    let subnet = subnet_at(work, &balancer.network, balancer.address)?;
    if super::domains::foreign_domain(work, &subnet).is_some() {
        return None;
    }
    subnet.prefix_for(balancer.address).map(|prefix| Pool::new(vni, &subnet.name, prefix))
}

/// Takes the virtual address, before endpoints choose theirs.
pub(super) fn claim(
    work: &mut Work<'_, '_, '_>,
    id: &ResourceId,
    wanted: &Balancer,
) -> Result<(), Rejection> {
    let Some(vni) = work.vni(&wanted.network) else { unreachable!("{id} has no network") };
    let address = wanted.address;
    let wrong = |allowed: String| Err(wrong_field(id, FieldError::new("address", address, allowed)));
    let Some(pool) = pool_of(work, vni, wanted) else {
        return wrong(format!("an address of one of the subnets of network '{}'", wanted.network));
    };
    if let Some(what) = pool.reserved(address) {
        return wrong(format!("any address of the subnet but {what}"));
    }
    if let Some(owner) = work.address_owner(vni, address) {
        let problem = format!("address {address} is that of endpoint '{owner}' in the same network");
        return Err(reference(id, problem));
    }
    if let Some(owner) = at(work, vni, address) {
        let problem =
            format!("address {address} is the virtual one of balancer '{owner}' in the same network");
        return Err(reference(id, problem));
    }
    pool.take(work, address)?;
    work.view.put(VIRTUALS, &vni_key(vni, &address_bytes(address)), wanted.name.as_str().as_bytes())
}

/// Puts a balancer whose address is claimed into the indices, and makes its pool.
pub(super) fn put(
    work: &mut Work<'_, '_, '_>,
    id: &ResourceId,
    vni: Vni,
    wanted: &Balancer,
    before: Option<&Balancer>,
) -> Result<(), Rejection> {
    for member in &wanted.members {
        check_member(work, id, vni, wanted, member)?;
        work.flag(MEMBER_OF, &vni_name0_name(vni, member, &wanted.name))?;
        mark_turns(work, vni, member, Some(wanted.address));
    }
    make_pool(work, vni, wanted, before)?;
    work.own.broad.networks.insert(Key::Virtual { vni, address: wanted.address });
    Ok(())
}

fn check_member(
    work: &mut Work<'_, '_, '_>,
    id: &ResourceId,
    vni: Vni,
    wanted: &Balancer,
    member: &Label,
) -> Result<(), Rejection> {
    let Some(stored) = work.endpoint(vni, member) else {
        let problem = format!(
            "its member, endpoint '{member}', does not exist in network '{}': create it first, or take it out",
            wanted.network
        );
        return Err(reference(id, problem));
    };
    let v4 = wanted.address.is_ipv4();
    if stored.allocated.addresses.iter().any(|address| address.is_ipv4() == v4) {
        return Ok(());
    }
    let problem =
        format!("its member, endpoint '{member}', has no address of the family of {}", wanted.address);
    Err(reference(id, problem))
}

/// The pool with its members. Whoever had the turn keeps it; if it is no member any more, the next that still is.
fn make_pool(
    work: &mut Work<'_, '_, '_>,
    vni: Vni,
    wanted: &Balancer,
    before: Option<&Balancer>,
) -> Result<(), Rejection> {
    let old = part(work, vni, &wanted.name).get("pools", POOL).map_err(broken)?;
    let mut turn = 0;
    if let (Some(old), Some(before)) = (&old, before) {
        let after = (0..before.members.len()).find_map(|passed| {
            let (member, _) = turn_of(old, passed)?;
            let name = before.members.get(u64::from_be_bytes(member) as usize)?;
            wanted.members.iter().position(|member| member == name)
        });
        turn = after.unwrap_or(0);
    }
    for (key, _) in work.view.scan(BALANCED_MEMBERS, &vni_name0(vni, &wanted.name)) {
        work.view.delete(BALANCED_MEMBERS, &key);
    }
    let mut numbers = Vec::new();
    let mut tables = part(work, vni, &wanted.name);
    for (number, member) in wanted.members.iter().enumerate() {
        let number = (number as u64).to_be_bytes();
        numbers.extend(number);
        tables.put("members", &number, &value(&[("name", member.as_str().as_bytes())])).map_err(broken)?;
    }
    let pool = pool_value(wanted.name.as_str().as_bytes(), &numbers, turn as u32);
    tables.put("pools", POOL, &pool).map_err(broken)
}

/// An endpoint that is a member stays, with an address of the family.
pub(super) fn recheck_member(
    work: &mut Work<'_, '_, '_>,
    id: &ResourceId,
    vni: Vni,
    endpoint: &Endpoint,
) -> Result<(), Rejection> {
    let prefix = vni_name0(vni, &endpoint.name);
    for (key, _) in work.view.scan(MEMBER_OF, &prefix) {
        let Some(balancer) = balancer(work, vni, &label(&key[prefix.len()..])) else { continue };
        let of = Resource::Balancer(balancer.clone()).id();
        if work.stored(id).is_none() {
            return Err(reference(id, format!("{of} has it as a member: take it out there first")));
        }
        check_member(work, &of, vni, &balancer, &endpoint.name)?;
    }
    Ok(())
}

/// A balancer with an address of a subnet.
pub(super) fn in_subnet(work: &mut Work<'_, '_, '_>, vni: Vni, subnet: &Subnet) -> Option<Label> {
    let all = work.all_of(&subnet.network, Kind::Balancer);
    all.iter().find_map(|stored| match &stored.resource {
        Resource::Balancer(balancer) => {
            let prefix = subnet.prefix_for(balancer.address)?;
            // One that the transaction changes has let go of its address.
            let is_there = prefix.contains(&balancer.address)
                && at(work, vni, balancer.address).as_ref() == Some(&balancer.name);
            is_there.then(|| balancer.name.clone())
        }
        _ => None,
    })
}
