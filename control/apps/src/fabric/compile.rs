//! From marks to a plan: each marked key is compared with what its actuators shall have; a
//! difference is written to `desired` and issued.

use super::issued::Issued;
use super::marks::{self, offload_key};
use super::refusal;
use super::tables::{
    DESIRED, HOST_OFFLOADS, LOADS, OFFLOADS, address_bytes, desired_key, desired_value, host_vni,
    is_tombstone, joined, name0, read_desired, split_desired,
};
use super::work::{Count, Work};
use super::{TOMBSTONES_MAX, balancer, depend};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use weir_base::codec::encode;
use weir_model::entry::Vni;
use weir_model::event::Role;
use weir_model::{Change, Entry, Key, Label, Plan, PlannedUpdate, Update, Version};
use weir_store::Rejection;

/// Turns the marks into updates with their order.
pub(super) fn plan(work: &mut Work<'_, '_>) -> Result<Plan, Rejection> {
    let marked = marks::expand(work);
    let mut issued = Vec::new();
    for (key, targets) in marked {
        let entry = work.entry(&key)?;
        let value = entry.as_ref().map(|entry| desired_value(work.version, &encode(&Some(entry))));
        for target in targets {
            settle(work, &target, &key, entry.as_ref().zip(value.as_ref()), &mut issued)?;
        }
    }
    refusal::forget_superseded(work, &issued)?;
    let updates = depend::order(work, &issued);
    write_loads(work)?;
    let version = work.version;
    let planned = issued.into_iter().zip(updates).map(|(issued, after)| PlannedUpdate {
        update: Update {
            target: issued.target,
            key: issued.key,
            version,
            expected: Version::ZERO,
            change: issued.change,
        },
        after,
    });
    Ok(Plan { updates: planned.collect() })
}

/// Compares one key of one actuator with what it shall have.
fn settle(
    work: &mut Work<'_, '_>,
    target: &Label,
    key: &Key,
    wanted: Option<(&Entry, &Arc<[u8]>)>,
    issued: &mut Vec<Issued>,
) -> Result<(), Rejection> {
    let cell = desired_key(target, key);
    let old = work.view.get(DESIRED, &cell);
    let held = wanted.filter(|(entry, _)| work.holds(target, key, entry));
    let Some((entry, value)) = held else {
        if let Key::Location { vni, address } = key {
            drop_offload(work, target, *vni, *address)?;
        }
        if let Key::Turn { vni, client, address } = key {
            balancer::drop_turn(work, target, (*vni, *client, *address))?;
        }
        return settle_absent(work, target, key, &cell, old, issued);
    };
    let mut own = None;
    match (key, entry) {
        (Key::Gateways, _) if work.member_as(target, Role::Gateway).is_some() => {
            own = Some(Entry::Gateways(Vec::new()));
        }
        (Key::Plane { plane, name }, _) => own = work.plane_entry(target, plane, name),
        (Key::Port { vni, .. }, Entry::Port(port)) => {
            let mut port = port.clone();
            port.policy_min = policy_min(work, target, *vni, &port, old.as_deref());
            own = Some(Entry::Port(port));
        }
        _ => {}
    }
    let value =
        own.as_ref().map_or_else(|| value.clone(), |own| desired_value(work.version, &encode(&Some(own))));
    let before = old.as_deref().map(split_desired);
    if !work.again && before.map(|(_, tail)| tail) == Some(split_desired(&value).1) {
        return Ok(());
    }
    let was_tombstone = before.is_some_and(|(_, tail)| is_tombstone(tail));
    let counted = counts(work, target, key);
    let load = work.load(target);
    load.tombstones -= u64::from(was_tombstone);
    load.entries += u64::from(counted && (before.is_none() || was_tombstone));
    work.view.put(DESIRED, &cell, value)?;
    let change = Change::Put(own.unwrap_or_else(|| entry.clone()));
    issued.push(Issued {
        target: target.clone(),
        key: key.clone(),
        change,
        addresses_before: addresses(old),
    });
    Ok(())
}

/// The actuator shall not have the key.
fn settle_absent(
    work: &mut Work<'_, '_>,
    target: &Label,
    key: &Key,
    cell: &[u8],
    old: Option<Arc<[u8]>>,
    issued: &mut Vec<Issued>,
) -> Result<(), Rejection> {
    if work.member(target).is_none() {
        return Ok(());
    }
    let before = old.as_deref().map(split_desired);
    let was_entry = before.is_some_and(|(_, tail)| !is_tombstone(tail));
    if !was_entry && !work.again {
        return Ok(());
    }
    let counted = counts(work, target, key);
    let load = work.load(target);
    load.entries -= u64::from(counted && was_entry);
    load.tombstones += u64::from(was_entry || before.is_none());
    work.view.put(DESIRED, cell, desired_value(work.version, &encode(&None::<Entry>)))?;
    let change = Change::Delete;
    issued.push(Issued {
        target: target.clone(),
        key: key.clone(),
        change,
        addresses_before: addresses(old),
    });
    Ok(())
}

/// Direct locations and turns of hosts have limits of their own.
fn counts(work: &mut Work<'_, '_>, target: &Label, key: &Key) -> bool {
    let earned = matches!(key, Key::Location { .. } | Key::Turn { .. });
    !(earned && work.member_as(target, Role::Host).is_some())
}

fn addresses(old: Option<Arc<[u8]>>) -> Vec<IpAddr> {
    match old.map(|value| read_desired(&value).1) {
        Some(Some(Entry::Port(port))) => port.addresses,
        _ => Vec::new(),
    }
}

/// A port waits for the policy that is desired when the port is decided. A later policy does not
/// change the port: so the old bound stays while nothing else of the port changes.
fn policy_min(
    work: &Work<'_, '_>,
    host: &Label,
    vni: Vni,
    port: &weir_model::entry::PortEntry,
    old: Option<&[u8]>,
) -> Version {
    if let Some(Entry::Port(mut before)) = old.and_then(|old| read_desired(old).1) {
        let bound = std::mem::replace(&mut before.policy_min, Version::ZERO);
        if before == *port {
            return bound;
        }
    }
    let policy = work.view.get(DESIRED, &desired_key(host, &Key::Policy { vni }));
    policy.map_or(Version::ZERO, |value| split_desired(&value).0)
}

/// Forgets that a host holds an address directly.
pub(super) fn drop_offload(
    work: &mut Work<'_, '_>,
    host: &Label,
    vni: Vni,
    address: IpAddr,
) -> Result<(), Rejection> {
    let key = offload_key(vni, address, host);
    if work.has(OFFLOADS, &key) {
        work.view.delete(OFFLOADS, &key);
        work.view.delete(HOST_OFFLOADS, &joined(host_vni(host, vni), &address_bytes(address)));
        work.count_down(Count::HostOffloads, host.as_str().as_bytes())?;
    }
    Ok(())
}

/// Checks how full the tables of actuators are, and forgets old tombstones.
fn write_loads(work: &mut Work<'_, '_>) -> Result<(), Rejection> {
    for (actuator, mut load) in work.take_loads() {
        let Some(role) = work.member(&actuator).map(|member| member.facts.role) else { continue };
        let limit = match role {
            Role::Host | Role::Planes => work.settings.entries_per_host_max,
            Role::Gateway => work.settings.entries_per_gateway_max,
        };
        if load.entries > limit as u64 {
            return Err(Rejection::limit(
                &format!("entries of actuator {actuator}"),
                load.entries as usize,
                limit,
            ));
        }
        if load.tombstones > TOMBSTONES_MAX {
            load.tombstones -= forget_tombstones(work, &actuator);
        }
        work.view.put(LOADS, actuator.as_str().as_bytes(), encode(&load))?;
    }
    Ok(())
}

/// Forgets the older tombstones of an actuator, never those of this decision. Returns how many.
fn forget_tombstones(work: &mut Work<'_, '_>, actuator: &Label) -> u64 {
    let cells = work.view.scan(DESIRED, &name0(actuator.as_str()));
    let mut tombstones: BTreeSet<(Version, Vec<u8>)> = BTreeSet::new();
    for (key, value) in cells {
        let (version, tail) = split_desired(&value);
        if is_tombstone(tail) {
            tombstones.insert((version, key));
        }
    }
    let older = tombstones.len() - TOMBSTONES_MAX as usize / 2;
    let now = work.version;
    let forgotten: Vec<_> =
        tombstones.into_iter().take(older).filter(|(version, _)| *version < now).collect();
    for (_, key) in &forgotten {
        work.view.delete(DESIRED, key);
    }
    forgotten.len() as u64
}
