//! Offload (row A11): a destination to which a host sends enough by a gateway gets a direct location
//! at that host; one that it no longer uses goes. Decided only from what sending hosts report, never
//! from gateways, which may be overloaded.

use super::balancer;
use super::marks::offload_key;
use super::tables::{HOST_OFFLOADS, OFFLOADS, Parts, address_bytes, host_vni, joined, name0, read};
use super::work::{Count, Work};
use crate::delta::{reference, wrong_field};
use std::cmp::Reverse;
use std::net::IpAddr;
use weir_base::codec::encode;
use weir_model::entry::Vni;
use weir_model::event::{Role, USAGE_FLOWS_MAX, USAGE_TURNS_MAX, Usage, UsageReport};
use weir_model::resource::FieldError;
use weir_model::{Key, Label};
use weir_store::Rejection;

/// Decides on a report. A host is believed only for networks that have an endpoint on it.
pub(super) fn weigh(work: &mut Work<'_, '_, '_>, report: &UsageReport, now_ms: u64) -> Result<(), Rejection> {
    let host = &report.actuator;
    let id = || format!("usage of actuator/{host}");
    if work.member_as(host, Role::Host).is_none() {
        return Err(reference(id(), "no host of this name has joined"));
    }
    let flows = report.through_gateway.len().max(report.direct.len());
    if flows > USAGE_FLOWS_MAX {
        return Err(Rejection::limit(&format!("flows in the {}", id()), flows, USAGE_FLOWS_MAX));
    }
    if report.window_ms == 0 {
        return Err(wrong_field(id(), FieldError::new("window_ms", 0, "at least 1 millisecond")));
    }
    if report.turns.len() > USAGE_TURNS_MAX {
        return Err(Rejection::limit(&format!("turns in the {}", id()), report.turns.len(), USAGE_TURNS_MAX));
    }
    note_used(work, host, &report.direct, now_ms)?;
    drop_idle(work, host, now_ms)?;
    balancer::note_used(work, host, &report.turns, now_ms)?;
    balancer::drop_idle(work, host, now_ms)?;
    let threshold = u128::from(work.settings.offload_threshold_bps);
    let mut large: Vec<&Usage> = report
        .through_gateway
        .iter()
        .filter(|usage| u128::from(usage.bytes) * 8000 >= threshold * u128::from(report.window_ms))
        .collect();
    large.sort_by_key(|usage| (Reverse(usage.bytes), usage.vni, usage.address));
    for usage in large {
        if work.count(Count::HostOffloads, host.as_str().as_bytes())
            >= work.settings.offloads_per_host_max as u64
        {
            break;
        }
        give(work, host, usage, now_ms)?;
    }
    Ok(())
}

/// Lets a host have the location of an address, unless it has it or nobody is there.
pub(super) fn give(
    work: &mut Work<'_, '_, '_>,
    host: &Label,
    usage: &Usage,
    now_ms: u64,
) -> Result<(), Rejection> {
    let (vni, address) = (usage.vni, usage.address);
    let key = offload_key(vni, address, host);
    // Of another domain's endpoints hosts know none: see `domains`.
    if !work.network_at(host, vni) || work.has(OFFLOADS, &key) || work.address_owner(vni, address).is_none() {
        return Ok(());
    }
    let location = Key::Location { vni, address };
    let Some(entry) = work.entry(&location)? else { return Ok(()) };
    work.view.put(OFFLOADS, &key, encode(&now_ms))?;
    if !work.holds(host, &location, &entry) {
        work.view.delete(OFFLOADS, &key);
        return Ok(());
    }
    work.flag(HOST_OFFLOADS, &joined(host_vni(host, vni), &address_bytes(address)))?;
    let limit = work.settings.offloads_per_host_max;
    work.count_up(Count::HostOffloads, host.as_str().as_bytes(), limit, || {
        format!("direct locations of host {host}")
    })?;
    work.marks.key(host, location);
    Ok(())
}

/// Times are written only when they moved enough to matter, so that a busy pair costs few writes.
fn note_used(
    work: &mut Work<'_, '_, '_>,
    host: &Label,
    direct: &[Usage],
    now_ms: u64,
) -> Result<(), Rejection> {
    let grain_ms = work.settings.offload_idle_ms / 4;
    for usage in direct.iter().filter(|usage| usage.bytes > 0) {
        let key = offload_key(usage.vni, usage.address, host);
        let Some(bytes) = work.view.get(OFFLOADS, &key) else { continue };
        if now_ms.saturating_sub(read(OFFLOADS, &bytes)) >= grain_ms {
            work.view.put(OFFLOADS, &key, encode(&now_ms))?;
        }
    }
    Ok(())
}

fn drop_idle(work: &mut Work<'_, '_, '_>, host: &Label, now_ms: u64) -> Result<(), Rejection> {
    for (held, _) in work.view.scan(HOST_OFFLOADS, &name0(host.as_str())) {
        let (vni, address) = held_address(host, &held);
        let Some(bytes) = work.view.get(OFFLOADS, &offload_key(vni, address, host)) else { continue };
        if now_ms.saturating_sub(read(OFFLOADS, &bytes)) >= work.settings.offload_idle_ms {
            drop_offload(work, host, vni, address)?;
            work.marks.key(host, Key::Location { vni, address });
        }
    }
    Ok(())
}

/// The address in a key of [`HOST_OFFLOADS`].
pub(super) fn held_address(host: &Label, key: &[u8]) -> (Vni, IpAddr) {
    let mut parts = Parts(&key[name0(host.as_str()).len()..]);
    (parts.vni(), parts.address())
}

/// Forgets that a host holds an address directly.
pub(super) fn drop_offload(
    work: &mut Work<'_, '_, '_>,
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
