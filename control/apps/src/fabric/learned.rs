//! Learned networks (decision 0019; Botelho et al. §VI-B and §VI-D; rows B10 and C8): where endpoints are comes from
//! packets that switches report, not from documents.
//!
//! A document still says which endpoints there are, under which addresses, and on which host each may be: ports police
//! that. So a report is believed only of an endpoint that is placed on the reporting host, and a host that lies moves
//! nobody. That the endpoint is really there, and under which place others reach it, is known only once a packet, or
//! its host when it was asked, has told.
//!
//! Packets to virtual addresses are reported in the same way, of networks of any kind; [`super::balancer`] decides on
//! those.
//!
//! The apps are those of [`crate::flows`], by the same code: the learning switch, for which a whole network is one
//! switch and each host a port of it, and the device manager. Each network has its own part of their tables.
//!
//! - A packet teaches the place of its sender. A place that is new or another marks the sender's locations: gateways
//!   get them, and hosts that hold or await them.
//! - An unknown destination gets the asking host its location, as an offload: what is not used goes again
//!   ([`super::offload`]).
//! - A destination that was not heard yet is sought: the one host that may have it is asked by an entry
//!   ([`Key::Sought`]), and who asked is noted and gets the location when it is heard. That is what a flood is here,
//!   with one branch. A destination that no endpoint has is nobody's, and nothing is done.
//!
//! Invariants
//! - Those who wait are at most `waiting_per_network_max` a network, and for at most `waiting_ms` of ordered time,
//!   looked at when the network is heard of.
//! - What is known of an endpoint goes with it: place, device, and the question for it.

use super::balancer;
use super::marks::offload_key;
use super::offload;
use super::tables::{
    DEVICE_ADDRESSES, DEVICE_COUNTERS, DEVICE_FIRST, DEVICE_MACS, DEVICES_SEEN, LEARNED, OFFLOADS, PLACES,
    Parts, SOUGHT, Stored, WAITING, address_bytes, joined, read, vni_key,
};
use super::work::{Count, Work};
use crate::delta::reference;
use crate::flows::beside::Part;
use crate::flows::{PacketIn as Packet, devices, learning};
use std::net::IpAddr;
use weir_base::codec::encode;
use weir_model::entry::Vni;
use weir_model::event::{Role, Usage};
use weir_model::packet_in::{PacketIn, PacketInReport, Why};
use weir_model::resource::{Forwarding, Kind, Resource};
use weir_model::{Key, Label, MacAddr};
use weir_store::{Aborted, Rejection, Store, TableName};

/// How often at most those who wait are looked through, milliseconds of ordered time.
const SWEEP_MS: u64 = 1_000;
/// Key of the last place given, in [`PLACES`].
const LAST_PLACE: &[u8] = &[2];

const LEARNING: &[(&str, TableName)] = &[("ports", LEARNED)];
const MANAGER: &[(&str, TableName)] = &[
    ("devices", DEVICES_SEEN),
    ("macs", DEVICE_MACS),
    ("addresses", DEVICE_ADDRESSES),
    ("counters", DEVICE_COUNTERS),
];

/// An endpoint that sent a packet.
struct Sender {
    mac: MacAddr,
    addresses: Vec<IpAddr>,
}

/// Decides on a report. Its packets are all the host's own to tell, or nothing of it is believed.
pub(super) fn hear(
    work: &mut Work<'_, '_, '_>,
    report: &PacketInReport,
    now_ms: u64,
) -> Result<(), Rejection> {
    let (host, vni) = (&report.actuator, report.vni);
    let wrong = |problem: &str| Err(reference(format!("packets of network {vni} from {host}"), problem));
    if work.member_as(host, Role::Host).is_none() {
        return wrong("no host of this name has joined");
    }
    if let Some(problem) = report.problem() {
        return wrong(&problem);
    }
    let learned = is_learned(work, vni);
    let balanced = report.packets.iter().all(|packet| packet.why == Why::Balanced);
    if !work.network_at(host, vni) || !(learned || balanced) {
        return wrong("it is no learned network with an endpoint on that host");
    }
    let mut senders = Vec::with_capacity(report.packets.len());
    for packet in &report.packets {
        match sender(work, host, vni, packet) {
            Some(sender) => senders.push(sender),
            None => {
                return wrong(&format!(
                    "endpoint {} is not on that host with the address {} {:?}",
                    packet.endpoint, packet.source_mac, packet.source
                ));
            }
        }
    }
    let place = if learned { Some(place_of(work, host)?) } else { None };
    for (packet, sender) in report.packets.iter().zip(senders) {
        if let Some(place) = place {
            learn(work, (host, place), vni, (packet, &sender), now_ms)?;
        }
        match (packet.why, packet.source, packet.destination) {
            (Why::Unknown, _, Some(destination)) => answer(work, host, vni, destination, now_ms)?,
            (Why::Balanced, Some(client), Some(address)) => {
                balancer::answer(work, host, (vni, client, address), &packet.endpoint, now_ms)?;
            }
            _ => {}
        }
    }
    if learned { sweep(work, vni, now_ms) } else { Ok(()) }
}

/// Whether the network of an identifier is learned.
pub(super) fn is_learned(work: &mut Work<'_, '_, '_>, vni: Vni) -> bool {
    let Some(name) = work.network_name(vni) else { return false };
    let stored = work.named(&name, Kind::Network, &name);
    stored.is_some_and(|stored| {
        matches!(&stored.resource, Resource::Network(network) if network.forwarding == Forwarding::Learned)
    })
}

fn sender(work: &mut Work<'_, '_, '_>, host: &Label, vni: Vni, packet: &PacketIn) -> Option<Sender> {
    let stored = work.endpoint(vni, &packet.endpoint)?;
    let Resource::Endpoint(endpoint) = &stored.resource else { return None };
    let mac = stored.allocated.mac?;
    let addresses = &stored.allocated.addresses;
    let own = packet.source.is_none_or(|source| addresses.contains(&source));
    let here = endpoint.host.as_ref() == Some(host) && mac == packet.source_mac && own;
    here.then(|| Sender { mac, addresses: addresses.clone() })
}

/// Runs one of the apps on the network's part of its tables.
fn app<'w, 's>(
    work: &'w mut Work<'_, '_, 's>,
    tables: &'static [(&'static str, TableName)],
    prefix: Vec<u8>,
) -> Part<'w, 's> {
    Part::new(work.view, tables, prefix)
}

fn broken(aborted: Aborted) -> Rejection {
    reference("learned networks", aborted.reason)
}

/// Number of a host, as the learning switch knows it: never another's.
fn place_of(work: &mut Work<'_, '_, '_>, host: &Label) -> Result<u32, Rejection> {
    let name = joined(vec![0], host.as_str().as_bytes());
    if let Some(bytes) = work.view.get(PLACES, &name) {
        return Ok(read(PLACES, &bytes));
    }
    let last: u32 = work.view.get(PLACES, LAST_PLACE).map_or(0, |bytes| read(PLACES, &bytes));
    let place = last + 1;
    work.view.put(PLACES, LAST_PLACE, encode(&place))?;
    work.view.put(PLACES, &name, encode(&place))?;
    work.view.put(PLACES, &joined(vec![1], &place.to_be_bytes()), host.as_str().as_bytes())?;
    Ok(place)
}

/// A host is gone: whatever was learned to be there is nowhere.
pub(super) fn forget_host(work: &mut Work<'_, '_, '_>, host: &Label) {
    let name = joined(vec![0], host.as_str().as_bytes());
    if let Some(bytes) = work.view.get(PLACES, &name) {
        let place: u32 = read(PLACES, &bytes);
        work.view.delete(PLACES, &name);
        work.view.delete(PLACES, &joined(vec![1], &place.to_be_bytes()));
    }
}

/// Where an endpoint of a learned network was heard, if that is where it is placed.
pub(super) fn is_heard(work: &mut Work<'_, '_, '_>, vni: Vni, mac: MacAddr, host: &Label) -> bool {
    let place = learning::known(&mut app(work, LEARNING, Vec::new()), u64::from(vni.0), mac);
    let Ok(Some(place)) = place else { return false };
    let found = work.view.get(PLACES, &joined(vec![1], &place.to_be_bytes()));
    found.is_some_and(|name| &name[..] == host.as_str().as_bytes())
}

fn learn(
    work: &mut Work<'_, '_, '_>,
    (host, place): (&Label, u32),
    vni: Vni,
    (packet, sender): (&PacketIn, &Sender),
    now_ms: u64,
) -> Result<(), Rejection> {
    let switch = u64::from(vni.0);
    let target = packet.destination.and_then(|destination| mac_of(work, vni, destination));
    let target = target.unwrap_or(MacAddr::BROADCAST);
    let before = is_heard(work, vni, sender.mac, host);
    let mut tables = app(work, LEARNING, Vec::new());
    learning::learn(&mut tables, switch, (sender.mac, place), target).map_err(broken)?;
    let addresses = match (packet.source, packet.destination) {
        (Some(IpAddr::V4(source)), Some(IpAddr::V4(destination))) => Some((source, destination)),
        (Some(IpAddr::V4(source)), _) => Some((source, std::net::Ipv4Addr::UNSPECIFIED)),
        _ => None,
    };
    let seen = Packet { switch, port: place, source: sender.mac, target, addresses, now_ms };
    let mut tables = app(work, MANAGER, vni_key(vni, b""));
    let seen = devices::seen_beside(&mut tables, &seen).map_err(broken)?;
    if seen.new {
        work.view.put(DEVICE_FIRST, &vni_key(vni, &sender.mac.0), encode(&now_ms))?;
    }
    if before {
        return Ok(());
    }
    for &address in &sender.addresses {
        work.own.broad.locations.insert((vni, address));
        end_search(work, vni, address, host);
        let prefix = vni_key(vni, &address_bytes(address));
        for (key, _) in work.view.scan(WAITING, &prefix) {
            let waiting = Parts(&key[prefix.len()..]).name();
            stop_waiting(work, vni, &key)?;
            give(work, &waiting, vni, address, now_ms)?;
        }
    }
    Ok(())
}

fn mac_of(work: &mut Work<'_, '_, '_>, vni: Vni, address: IpAddr) -> Option<MacAddr> {
    let owner = work.address_owner(vni, address)?;
    work.endpoint(vni, &owner)?.allocated.mac
}

/// A host asked where an address is.
fn answer(
    work: &mut Work<'_, '_, '_>,
    host: &Label,
    vni: Vni,
    address: IpAddr,
    now_ms: u64,
) -> Result<(), Rejection> {
    let Some(owner) = work.address_owner(vni, address) else { return Ok(()) };
    if work.entry(&Key::Location { vni, address })?.is_some() {
        return give(work, host, vni, address, now_ms);
    }
    let key = offload_key(vni, address, host);
    if !work.has(WAITING, &key) {
        let limit = work.settings.waiting_per_network_max;
        let whose = || format!("hosts of network {vni} that wait for an address");
        work.count_up(Count::Waiting, &vni_key(vni, b""), limit, whose)?;
    }
    work.view.put(WAITING, &key, encode(&now_ms))?;
    let cell = vni_key(vni, &address_bytes(address));
    if work.has(SOUGHT, &cell) {
        return Ok(());
    }
    let stored = work.endpoint(vni, &owner);
    let Some(Resource::Endpoint(endpoint)) = stored.as_ref().map(|stored| &stored.resource) else {
        return Ok(());
    };
    if let Some(at) = &endpoint.host {
        work.view.put(SOUGHT, &cell, Vec::new())?;
        work.marks.key(at, Key::Sought { vni, address });
    }
    Ok(())
}

/// Lets a host have a location, until it does not use it any more.
fn give(
    work: &mut Work<'_, '_, '_>,
    host: &Label,
    vni: Vni,
    address: IpAddr,
    now_ms: u64,
) -> Result<(), Rejection> {
    offload::give(work, host, &Usage { vni, address, bytes: 0 }, now_ms)?;
    let key = offload_key(vni, address, host);
    if work.has(OFFLOADS, &key) {
        work.view.put(OFFLOADS, &key, encode(&now_ms))?;
    }
    Ok(())
}

fn end_search(work: &mut Work<'_, '_, '_>, vni: Vni, address: IpAddr, host: &Label) {
    let cell = vni_key(vni, &address_bytes(address));
    if work.has(SOUGHT, &cell) {
        work.view.delete(SOUGHT, &cell);
        work.marks.key(host, Key::Sought { vni, address });
    }
}

fn stop_waiting(work: &mut Work<'_, '_, '_>, vni: Vni, key: &[u8]) -> Result<(), Rejection> {
    work.view.delete(WAITING, key);
    work.count_down(Count::Waiting, &vni_key(vni, b""))
}

/// Forgets who waited too long, and stops to look for what nobody waits for.
fn sweep(work: &mut Work<'_, '_, '_>, vni: Vni, now_ms: u64) -> Result<(), Rejection> {
    let last = vni_key(vni, b"");
    let swept = work.view.get(PLACES, &joined(vec![3], &last)).map_or(0, |bytes| read(PLACES, &bytes));
    if now_ms.saturating_sub(swept) < SWEEP_MS {
        return Ok(());
    }
    work.view.put(PLACES, &joined(vec![3], &last), encode(&now_ms))?;
    for (key, value) in work.view.scan(WAITING, &last) {
        if now_ms.saturating_sub(read(WAITING, &value)) >= work.settings.waiting_ms {
            stop_waiting(work, vni, &key)?;
        }
    }
    for (key, _) in work.view.scan(SOUGHT, &last) {
        if work.view.next(WAITING, &key, &key).is_none() {
            let address = Parts(&key[4..]).address();
            let owner = work.address_owner(vni, address);
            let stored = owner.and_then(|owner| work.endpoint(vni, &owner));
            work.view.delete(SOUGHT, &key);
            if let Some(Resource::Endpoint(endpoint)) = stored.as_ref().map(|stored| &stored.resource)
                && let Some(host) = &endpoint.host
            {
                work.marks.key(host, Key::Sought { vni, address });
            }
        }
    }
    Ok(())
}

/// An endpoint is gone, or is placed elsewhere, or has another Ethernet address: what was learned of it is void. Its
/// device is forgotten when `gone`.
pub(super) fn forget(
    work: &mut Work<'_, '_, '_>,
    vni: Vni,
    old: &Stored,
    gone: bool,
) -> Result<(), Rejection> {
    let Resource::Endpoint(endpoint) = &old.resource else { return Ok(()) };
    let Some(mac) = old.allocated.mac else { return Ok(()) };
    learning::forget(&mut app(work, LEARNING, Vec::new()), u64::from(vni.0), mac).map_err(broken)?;
    if gone {
        devices::forget(&mut app(work, MANAGER, vni_key(vni, b"")), mac).map_err(broken)?;
        work.view.delete(DEVICE_FIRST, &vni_key(vni, &mac.0));
    }
    for &address in &old.allocated.addresses {
        work.own.broad.locations.insert((vni, address));
        if let Some(host) = &endpoint.host {
            end_search(work, vni, address, host);
        }
        if gone {
            let prefix = vni_key(vni, &address_bytes(address));
            for (key, _) in work.view.scan(WAITING, &prefix) {
                stop_waiting(work, vni, &key)?;
            }
        }
    }
    Ok(())
}

/// A network is gone: so is what was only of it.
pub(super) fn forget_network(work: &mut Work<'_, '_, '_>, vni: Vni) -> Result<(), Rejection> {
    let prefix = vni_key(vni, b"");
    for (key, _) in work.view.scan(WAITING, &prefix) {
        stop_waiting(work, vni, &key)?;
    }
    for table in [SOUGHT, DEVICES_SEEN, DEVICE_MACS, DEVICE_ADDRESSES, DEVICE_COUNTERS, DEVICE_FIRST] {
        for (key, _) in work.view.scan(table, &prefix) {
            work.view.delete(table, &key);
        }
    }
    work.view.delete(PLACES, &joined(vec![3], &prefix));
    Ok(())
}

/// A device of a learned network, as the device manager knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenDevice {
    /// Its network.
    pub vni: Vni,
    /// The host where it was seen last; absent when that host is gone.
    pub host: Option<Label>,
    /// When it was seen first, milliseconds of the Unix epoch.
    pub first_ms: u64,
    /// The rest.
    pub device: devices::Device,
}

/// The devices of a learned network, or of all of them, at most `limit`.
pub fn devices_seen(store: &Store, vni: Option<Vni>, limit: usize) -> Vec<SeenDevice> {
    let prefix = vni.map(|vni| vni_key(vni, b"")).unwrap_or_default();
    let rows = store.scan(DEVICES_SEEN, &prefix).take(limit);
    let seen = rows.filter_map(|(key, cell)| {
        let device = devices::read_device(&cell.value)?;
        let vni = Parts(key).vni();
        let place = joined(vec![1], &device.attachment.1.to_be_bytes());
        let host = store
            .get(PLACES, &place)
            .and_then(|cell| std::str::from_utf8(&cell.value).ok().and_then(|name| Label::new(name).ok()));
        let first = store.get(DEVICE_FIRST, &vni_key(vni, &device.mac.0));
        let first_ms = first.map_or(device.seen_ms, |cell| read(DEVICE_FIRST, &cell.value));
        Some(SeenDevice { vni, host, first_ms, device })
    });
    seen.collect()
}
