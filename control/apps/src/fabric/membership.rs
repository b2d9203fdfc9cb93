//! Actuators that join, join again with other facts, or are forgotten.

use super::compile;
use super::marks::route_keys;
use super::offload::held_address;
use super::tables::{
    ADDRESSES, DESIRED, GATEWAYS, HOST_OFFLOADS, LOADS, Member, PLACED, Parts, STATUS, VNIS, name0,
};
use super::work::{Count, Work, reference};
use super::{balancer, domains, filewall, health, learned, orders, switches};
use weir_model::entry::Vni;
use weir_model::event::{ActuatorFacts, Role};
use weir_model::identity::IdentityEvent;
use weir_model::{Key, Label};
use weir_store::Rejection;

/// An actuator says what it is. The same facts again change nothing.
pub(super) fn join(work: &mut Work<'_, '_>, facts: &ActuatorFacts) -> Result<(), Rejection> {
    let name = &facts.name;
    let before = work.member(name);
    if let Some(before) = &before
        && before.facts.role != facts.role
    {
        let problem = "it joined before in another role (host, gateway, planes): remove it first";
        return Err(reference(format!("actuator/{name}"), problem));
    }
    if before.as_ref().is_some_and(|before| before.facts == *facts) {
        return Ok(());
    }
    let moved = before.as_ref().is_some_and(|before| before.facts.underlay != facts.underlay);
    if before.is_none() {
        admit(work, facts)?;
        work.fresh = Some(name.clone());
    }
    work.put_member(Member { facts: facts.clone(), version: work.version })?;
    if facts.role.has_switch() && (moved || before.is_none()) {
        switches::mark(work, facts.underlay);
    }
    if let Some(before) = before.as_ref().filter(|before| moved && before.facts.role.has_switch()) {
        switches::mark(work, before.facts.underlay);
    }
    match (facts.role, before.is_none()) {
        (Role::Host, true) => {
            work.marks.key(name, Key::Gateways);
            mark_host(work, name);
        }
        (Role::Host, false) if moved => mark_locations(work, name),
        (Role::Gateway, true) => {
            mark_everything(work, name);
            mark_gateways(work);
        }
        (Role::Gateway, false) if moved => mark_gateways(work),
        _ => {}
    }
    Ok(())
}

/// An actuator has another key. Whether it may, is decided elsewhere.
pub(super) fn rekey(work: &mut Work<'_, '_>, about: &IdentityEvent) -> Result<(), Rejection> {
    let IdentityEvent::Rotated(rotation) = about else { return Ok(()) };
    let name = rotation.whose.actuator().and_then(|name| Label::new(name).ok());
    let Some(member) = name.and_then(|name| work.member(&name)) else { return Ok(()) };
    let facts = ActuatorFacts { identity: rotation.new, ..member.facts.clone() };
    work.put_member(Member { facts, version: work.version })
}

fn admit(work: &mut Work<'_, '_>, facts: &ActuatorFacts) -> Result<(), Rejection> {
    let limit = work.settings.actuators_max;
    work.count_up(Count::Actuators, b"", limit, || "actuators".to_string())?;
    if facts.role == Role::Gateway {
        let limit = work.settings.gateways_max;
        work.count_up(Count::Gateways, b"", limit, || "gateways".to_string())?;
        work.flag(GATEWAYS, facts.name.as_str().as_bytes())?;
    }
    Ok(())
}

/// An actuator is forgotten, with all that it should have had. Its endpoints stay placed on it.
pub(super) fn remove(work: &mut Work<'_, '_>, name: &Label) -> Result<(), Rejection> {
    let Some(member) = work.member(name) else { return Ok(()) };
    let key = name.as_str().as_bytes();
    for (held, _) in work.view.scan(HOST_OFFLOADS, &name0(name.as_str())) {
        let (vni, address) = held_address(name, &held);
        compile::drop_offload(work, name, vni, address)?;
    }
    let prefix = name0(name.as_str());
    for (cell, _) in work.view.store().scan(DESIRED, &prefix) {
        work.view.delete(DESIRED, cell);
    }
    balancer::forget_host(work, name)?;
    work.view.delete(LOADS, key);
    work.view.delete(STATUS, key);
    health::forget(work, name);
    filewall::forget(work, name);
    orders::forget(work, name);
    learned::forget_host(work, name);
    switches::forget(work, name);
    work.count_down(Count::Actuators, b"")?;
    work.delete_member(name);
    if member.facts.role.has_switch() {
        switches::mark(work, member.facts.underlay);
    }
    match member.facts.role {
        Role::Planes => {}
        Role::Host => mark_locations(work, name),
        Role::Gateway => {
            work.view.delete(GATEWAYS, key);
            work.count_down(Count::Gateways, b"")?;
            mark_gateways(work);
        }
    }
    Ok(())
}

/// All endpoints placed on a host.
fn placed(work: &Work<'_, '_>, host: &Label) -> Vec<(Vni, Label)> {
    let prefix = name0(host.as_str());
    let cells = work.view.scan(PLACED, &prefix);
    cells
        .iter()
        .map(|(key, _)| {
            let mut parts = Parts(&key[prefix.len()..]);
            (parts.vni(), parts.name())
        })
        .collect()
}

fn mark_host(work: &mut Work<'_, '_>, host: &Label) {
    for (vni, endpoint) in placed(work, host) {
        work.marks.pairs.insert((host.clone(), vni));
        work.marks.key(host, Key::Port { vni, endpoint });
    }
    mark_locations(work, host);
}

fn mark_locations(work: &mut Work<'_, '_>, host: &Label) {
    for (vni, endpoint) in placed(work, host) {
        if let Some(stored) = work.endpoint(vni, &endpoint) {
            work.marks.locations.extend(stored.allocated.addresses.iter().map(|address| (vni, *address)));
        }
        balancer::mark_member(work, vni, &endpoint);
    }
}

/// A gateway gets every network, route and location.
fn mark_everything(work: &mut Work<'_, '_>, gateway: &Label) {
    for (key, _) in work.view.scan(VNIS, b"") {
        work.marks.key(gateway, Key::Network { vni: Parts(&key).vni() });
    }
    for key in route_keys(work, b"") {
        work.marks.key(gateway, key);
    }
    for (key, _) in work.view.scan(ADDRESSES, b"") {
        let mut parts = Parts(&key);
        let key = Key::Location { vni: parts.vni(), address: parts.address() };
        work.marks.key(gateway, key);
    }
    domains::mark_foreign(work, gateway);
    work.marks.key(gateway, Key::Gateways);
}

fn mark_gateways(work: &mut Work<'_, '_>) {
    for host in work.all_members(Role::Host) {
        work.marks.key(&host, Key::Gateways);
    }
}
