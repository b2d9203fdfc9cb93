//! What actuators that join, move or are forgotten mean for networks.

use super::marks::route_keys;
use super::offload::{drop_offload, held_address};
use super::tables::{ADDRESSES, GATEWAYS, HOST_OFFLOADS, Member, PLACED, Parts, VNIS, name0};
use super::work::{Count, Work};
use super::{balancer, domains, learned, switches};
use weir_model::entry::Vni;
use weir_model::event::{ActuatorFacts, Role};
use weir_model::{Key, Label};
use weir_store::Rejection;

/// An actuator joined, or has other facts than before.
pub(super) fn joined(
    work: &mut Work<'_, '_, '_>,
    facts: &ActuatorFacts,
    before: Option<&Member>,
) -> Result<(), Rejection> {
    let name = &facts.name;
    let moved = before.filter(|before| before.facts.underlay != facts.underlay);
    if before.is_none() {
        admit(work, facts)?;
        work.own.fresh = Some(name.clone());
    }
    if facts.role.has_switch() && (moved.is_some() || before.is_none()) {
        switches::mark(work, facts.underlay);
    }
    if let Some(before) = moved.filter(|before| before.facts.role.has_switch()) {
        switches::mark(work, before.facts.underlay);
    }
    match (facts.role, before.is_none()) {
        (Role::Host, true) => {
            work.marks.key(name, Key::Gateways);
            mark_host(work, name);
        }
        (Role::Host, false) if moved.is_some() => mark_locations(work, name),
        (Role::Gateway, true) => {
            mark_everything(work, name);
            mark_gateways(work);
        }
        (Role::Gateway, false) if moved.is_some() => mark_gateways(work),
        _ => {}
    }
    Ok(())
}

fn admit(work: &mut Work<'_, '_, '_>, facts: &ActuatorFacts) -> Result<(), Rejection> {
    if facts.role == Role::Gateway {
        let limit = work.settings.gateways_max;
        work.count_up(Count::Gateways, b"", limit, || "gateways".to_string())?;
        work.flag(GATEWAYS, facts.name.as_str().as_bytes())?;
    }
    Ok(())
}

/// An actuator was forgotten. Its endpoints stay placed on it.
pub(super) fn left(work: &mut Work<'_, '_, '_>, member: &Member) -> Result<(), Rejection> {
    let name = &member.facts.name;
    for (held, _) in work.view.scan(HOST_OFFLOADS, &name0(name.as_str())) {
        let (vni, address) = held_address(name, &held);
        drop_offload(work, name, vni, address)?;
    }
    balancer::forget_host(work, name)?;
    learned::forget_host(work, name);
    if member.facts.role.has_switch() {
        switches::mark(work, member.facts.underlay);
    }
    match member.facts.role {
        Role::Planes => {}
        Role::Host => mark_locations(work, name),
        Role::Gateway => {
            work.view.delete(GATEWAYS, name.as_str().as_bytes());
            work.count_down(Count::Gateways, b"")?;
            mark_gateways(work);
        }
    }
    Ok(())
}

/// All endpoints placed on a host.
fn placed(work: &Work<'_, '_, '_>, host: &Label) -> Vec<(Vni, Label)> {
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

fn mark_host(work: &mut Work<'_, '_, '_>, host: &Label) {
    for (vni, endpoint) in placed(work, host) {
        work.own.broad.pairs.insert((host.clone(), vni));
        work.marks.key(host, Key::Port { vni, endpoint });
    }
    mark_locations(work, host);
}

fn mark_locations(work: &mut Work<'_, '_, '_>, host: &Label) {
    for (vni, endpoint) in placed(work, host) {
        if let Some(stored) = work.endpoint(vni, &endpoint) {
            work.own.broad.locations.extend(stored.allocated.addresses.iter().map(|address| (vni, *address)));
        }
        balancer::mark_member(work, vni, &endpoint);
    }
}

/// A gateway gets every network, route and location.
fn mark_everything(work: &mut Work<'_, '_, '_>, gateway: &Label) {
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

fn mark_gateways(work: &mut Work<'_, '_, '_>) {
    for host in work.all_members(Role::Host) {
        work.marks.key(&host, Key::Gateways);
    }
}
