//! What endpoints claim: addresses, Ethernet addresses, devices, places, tags. Claims of a whole
//! transaction are made in steps, so that the order of its mutations means nothing: all changed
//! endpoints let go of theirs; then those keep what they were given and still need; then comes what
//! documents ask for; then the rest is chosen, in order of names.

use super::balancer;
use super::change::Change;
use super::domains;
use super::pool::Pool;
use super::tables::{
    ADDRESSES, Allocated, DEVICES, MACS, NETWORK_HOSTS, PLACED, SUBNET_USERS, Stored, TAGGED, address_bytes,
    host_vni, joined, label, name0, read, tagged_key, vni_key, vni_name0_name,
};
use super::work::{Count, Work};
use crate::delta::{reference, wrong_field};
use std::net::IpAddr;
use weir_base::codec::encode;
use weir_model::entry::{Vni, member_bucket};
use weir_model::event::Role;
use weir_model::resource::{Endpoint, FieldError, Kind, Resource, ResourceId, Subnet};
use weir_model::{Key, Label, MacAddr};
use weir_store::Rejection;

/// How many Ethernet addresses are tried for one endpoint.
const MAC_ATTEMPTS_MAX: u64 = 64;
/// Longest name of a device, bytes: what Linux takes.
const DEVICE_BYTES_MAX: usize = 15;

/// An endpoint that claims.
struct Claim<'c> {
    id: &'c ResourceId,
    endpoint: &'c Endpoint,
    old: Option<&'c Stored>,
    vni: Vni,
    subnet: Subnet,
    mac: Option<MacAddr>,
    /// Asked for, then chosen; filled step by step.
    chosen: Vec<IpAddr>,
}

/// Lets go of everything that an endpoint had.
pub(super) fn release(
    work: &mut Work<'_, '_, '_>,
    old: &Stored,
    endpoint: &Endpoint,
) -> Result<(), Rejection> {
    let Some(vni) = work.vni(&endpoint.network) else { unreachable!("an endpoint without its network") };
    let subnet = subnet_of(work, endpoint);
    for &address in &old.allocated.addresses {
        work.view.delete(ADDRESSES, &vni_key(vni, &address_bytes(address)));
        work.count_down(Count::Addresses, b"")?;
        if let Some(pool) = subnet.as_ref().and_then(|subnet| pool_of(vni, subnet, address)) {
            pool.free(work, address)?;
        }
        for tag in &endpoint.tags {
            work.view.delete(TAGGED, &tagged_key(vni, tag, member_bucket(address), address));
        }
    }
    if let Some(mac) = old.allocated.mac {
        work.view.delete(MACS, &vni_key(vni, &mac.0));
    }
    work.view.delete(SUBNET_USERS, &vni_name0_name(vni, &endpoint.subnet, &endpoint.name));
    work.count_down(Count::Endpoints, &vni_key(vni, b""))?;
    if let Some(host) = &endpoint.host {
        leave(work, old, endpoint, vni, host)?;
    }
    mark(work, vni, endpoint, &old.allocated.addresses);
    Ok(())
}

fn leave(
    work: &mut Work<'_, '_, '_>,
    old: &Stored,
    endpoint: &Endpoint,
    vni: Vni,
    host: &Label,
) -> Result<(), Rejection> {
    work.view.delete(PLACED, &joined(host_vni(host, vni), endpoint.name.as_str().as_bytes()));
    if let Some(device) = &old.allocated.device {
        work.view.delete(DEVICES, &device_key(host, endpoint, device));
    }
    work.count_down(Count::HostEndpoints, host.as_str().as_bytes())?;
    let key = vni_key(vni, host.as_str().as_bytes());
    let ports = work.view.get(NETWORK_HOSTS, &key).map_or(0, |bytes| read::<u64>(NETWORK_HOSTS, &bytes));
    assert!(ports > 0, "the endpoints of a host are counted below zero");
    if ports == 1 {
        work.view.delete(NETWORK_HOSTS, &key);
    } else {
        work.view.put(NETWORK_HOSTS, &key, encode(&(ports - 1)))?;
    }
    work.own.broad.pairs.insert((host.clone(), vni));
    Ok(())
}

/// Claims for all changed endpoints, and stores them.
pub(super) fn claim_all(work: &mut Work<'_, '_, '_>, changes: &[Change]) -> Result<(), Rejection> {
    let mut claims = Vec::new();
    for change in changes {
        if let Some(Resource::Endpoint(endpoint)) = &change.new {
            claims.push(begin(work, change, endpoint)?);
        }
    }
    for claim in &mut claims {
        keep(work, claim)?;
    }
    for change in changes {
        if let Some(Resource::Balancer(wanted)) = &change.new {
            balancer::claim(work, &change.id, wanted)?;
        }
    }
    for claim in &mut claims {
        ask(work, claim)?;
    }
    for claim in &mut claims {
        choose(work, claim)?;
    }
    for claim in claims {
        store(work, claim)?;
    }
    Ok(())
}

fn begin<'c>(
    work: &mut Work<'_, '_, '_>,
    change: &'c Change,
    endpoint: &'c Endpoint,
) -> Result<Claim<'c>, Rejection> {
    let id = &change.id;
    let Some(vni) = work.vni(&endpoint.network) else { unreachable!("{id} has no network") };
    let Some(subnet) = subnet_of(work, endpoint) else {
        let problem = format!(
            "its subnet '{}' does not exist in network '{}': create it first, or in the same document",
            endpoint.subnet, endpoint.network
        );
        return Err(reference(id, problem));
    };
    if let Some(domain) = domains::foreign_domain(work, &subnet) {
        let problem =
            format!("subnet '{}' is of domain '{domain}': its endpoints are made there", subnet.name);
        return Err(reference(id, problem));
    }
    if let Some(host) = &endpoint.host
        && work.member_as(host, Role::Gateway).is_some()
    {
        let problem = format!("'{host}' is a gateway: endpoints are placed on hosts");
        return Err(reference(id, problem));
    }
    for &address in &endpoint.addresses {
        check_address(id, vni, &subnet, address)?;
    }
    let old = change.old.as_deref();
    Ok(Claim { id, endpoint, old, vni, subnet, mac: None, chosen: Vec::new() })
}

fn check_address(id: &ResourceId, vni: Vni, subnet: &Subnet, address: IpAddr) -> Result<(), Rejection> {
    let name = &subnet.name;
    let wrong = |allowed: String| wrong_field(id, FieldError::new("addresses", address, allowed));
    let Some(prefix) = subnet.prefix_for(address) else {
        return Err(wrong(format!("subnet '{name}' has no addresses of this family")));
    };
    if !prefix.contains(&address) {
        return Err(wrong(format!("an address of {prefix}, the prefix of subnet '{name}'")));
    }
    match Pool::new(vni, name, prefix).reserved(address) {
        Some(what) => Err(wrong(format!("any address of {prefix} but {what}"))),
        None => Ok(()),
    }
}

/// What the fabric chose before stays, where the document still leaves the choice.
fn keep(work: &mut Work<'_, '_, '_>, claim: &mut Claim<'_>) -> Result<(), Rejection> {
    let Some(old) = claim.old else { return Ok(()) };
    let Resource::Endpoint(before) = &old.resource else { return Ok(()) };
    for &address in &old.allocated.addresses {
        let was_chosen = !before.addresses.contains(&address);
        if was_chosen && claim.leaves_open(address) {
            claim.take_address(work, address)?;
        }
    }
    if before.mac.is_none()
        && claim.endpoint.mac.is_none()
        && let Some(mac) = old.allocated.mac
    {
        claim.take_mac(work, mac)?;
    }
    Ok(())
}

/// What documents ask for.
fn ask(work: &mut Work<'_, '_, '_>, claim: &mut Claim<'_>) -> Result<(), Rejection> {
    for &address in &claim.endpoint.addresses {
        if let Some(owner) = claim.owner(work, address) {
            let problem = format!("address {address} is that of endpoint '{owner}' in the same network");
            return Err(reference(claim.id, problem));
        }
        if let Some(owner) = balancer::at(work, claim.vni, address) {
            let problem = format!("address {address} is the virtual one of balancer '{owner}'");
            return Err(reference(claim.id, problem));
        }
        claim.register(work, address)?;
    }
    if let Some(mac) = claim.endpoint.mac {
        if mac == claim.vni.router_mac() {
            let error = FieldError::new("mac", mac, "any address but that of the network's router");
            return Err(wrong_field(claim.id, error));
        }
        if let Some(owner) = work.view.get(MACS, &vni_key(claim.vni, &mac.0)) {
            let owner = label(&owner);
            let problem = format!("Ethernet address {mac} is that of endpoint '{owner}' in the same network");
            return Err(reference(claim.id, problem));
        }
        claim.take_mac(work, mac)?;
    }
    Ok(())
}

/// The rest is chosen: what it had, where that is free; else the lowest.
fn choose(work: &mut Work<'_, '_, '_>, claim: &mut Claim<'_>) -> Result<(), Rejection> {
    for &address in claim.old.map_or(&[][..], |old| &old.allocated.addresses) {
        let taken = claim.owner(work, address).is_some() || balancer::at(work, claim.vni, address).is_some();
        if claim.leaves_open(address) && !taken {
            claim.take_address(work, address)?;
        }
    }
    let prefixes = [claim.subnet.v4.map(ipnet::IpNet::V4), claim.subnet.v6.map(ipnet::IpNet::V6)];
    for prefix in prefixes.into_iter().flatten() {
        if claim.has_family(prefix.addr()) {
            continue;
        }
        let pool = Pool::new(claim.vni, &claim.subnet.name, prefix);
        match pool.lowest(work)? {
            Some(address) => claim.take_address(work, address)?,
            None => {
                let problem = format!("subnet '{}' has no free address in {prefix}", claim.subnet.name);
                return Err(reference(claim.id, problem));
            }
        }
    }
    if claim.mac.is_none() {
        let free = (0..MAC_ATTEMPTS_MAX)
            .map(|attempt| made_mac(claim.endpoint, attempt))
            .find(|mac| !work.has(MACS, &vni_key(claim.vni, &mac.0)));
        let Some(mac) = free else {
            let problem = "no Ethernet address could be made from its name: give it one in `mac`";
            return Err(reference(claim.id, problem));
        };
        claim.take_mac(work, mac)?;
    }
    Ok(())
}

impl Claim<'_> {
    fn has_family(&self, like: IpAddr) -> bool {
        let all = self.endpoint.addresses.iter().chain(&self.chosen);
        all.into_iter().any(|address| address.is_ipv4() == like.is_ipv4())
    }

    /// Whether the fabric may choose this address: no other of its family is there, and it is one
    /// of the subnet's that endpoints may have.
    fn leaves_open(&self, address: IpAddr) -> bool {
        let fits = check_address(self.id, self.vni, &self.subnet, address).is_ok();
        fits && !self.has_family(address)
    }

    fn owner(&self, work: &Work<'_, '_, '_>, address: IpAddr) -> Option<Label> {
        work.view.get(ADDRESSES, &vni_key(self.vni, &address_bytes(address))).map(|name| label(&name))
    }

    fn take_address(&mut self, work: &mut Work<'_, '_, '_>, address: IpAddr) -> Result<(), Rejection> {
        self.chosen.push(address);
        self.register(work, address)
    }

    fn register(&self, work: &mut Work<'_, '_, '_>, address: IpAddr) -> Result<(), Rejection> {
        let limit = work.settings.addresses_max;
        work.count_up(Count::Addresses, b"", limit, || "addresses of all endpoints".to_string())?;
        if let Some(pool) = pool_of(self.vni, &self.subnet, address) {
            pool.take(work, address)?;
        }
        let name = self.endpoint.name.as_str().as_bytes();
        work.view.put(ADDRESSES, &vni_key(self.vni, &address_bytes(address)), name)
    }

    fn take_mac(&mut self, work: &mut Work<'_, '_, '_>, mac: MacAddr) -> Result<(), Rejection> {
        self.mac = Some(mac);
        work.view.put(MACS, &vni_key(self.vni, &mac.0), self.endpoint.name.as_str().as_bytes())
    }
}

fn store(work: &mut Work<'_, '_, '_>, claim: Claim<'_>) -> Result<(), Rejection> {
    let Claim { id, endpoint, old, vni, mac, chosen, .. } = claim;
    let v4_first = |wanted: bool| chosen.iter().filter(move |address| address.is_ipv4() == wanted);
    let addresses: Vec<IpAddr> =
        endpoint.addresses.iter().chain(v4_first(true)).chain(v4_first(false)).copied().collect();
    for &address in &addresses {
        for tag in &endpoint.tags {
            work.flag(TAGGED, &tagged_key(vni, tag, member_bucket(address), address))?;
        }
    }
    work.flag(SUBNET_USERS, &vni_name0_name(vni, &endpoint.subnet, &endpoint.name))?;
    let limit = work.settings.endpoints_per_network_max;
    work.count_up(Count::Endpoints, &vni_key(vni, b""), limit, || {
        format!("endpoints of network {}", endpoint.network)
    })?;
    let device = device_name(endpoint);
    if let Some(host) = &endpoint.host {
        place(work, id, endpoint, vni, host, &device)?;
    }
    mark(work, vni, endpoint, &addresses);
    let created = old.map_or(work.version, |old| old.created);
    let allocated = Allocated { vni: None, mac, addresses, device: Some(device) };
    let resource = Resource::Endpoint(endpoint.clone());
    work.put_stored(Stored { resource, version: work.version, created, allocated })
}

fn place(
    work: &mut Work<'_, '_, '_>,
    id: &ResourceId,
    endpoint: &Endpoint,
    vni: Vni,
    host: &Label,
    device: &str,
) -> Result<(), Rejection> {
    let key = device_key(host, endpoint, device);
    if let Some(owner) = work.view.get(DEVICES, &key) {
        let (network, name): (Label, Label) = read(DEVICES, &owner);
        let problem = format!(
            "device '{device}' on host '{host}' is that of endpoint/{network}/{name}: \
             give one of them an attachment with another device or netns"
        );
        return Err(reference(id, problem));
    }
    work.view.put(DEVICES, &key, encode(&(&endpoint.network, &endpoint.name)))?;
    work.flag(PLACED, &joined(host_vni(host, vni), endpoint.name.as_str().as_bytes()))?;
    let limit = work.settings.endpoints_per_host_max;
    let of = host.as_str().as_bytes();
    work.count_up(Count::HostEndpoints, of, limit, || format!("endpoints on host {host}"))?;
    let key = vni_key(vni, of);
    let ports = work.view.get(NETWORK_HOSTS, &key).map_or(0, |bytes| read::<u64>(NETWORK_HOSTS, &bytes));
    work.view.put(NETWORK_HOSTS, &key, encode(&(ports + 1)))?;
    work.own.broad.pairs.insert((host.clone(), vni));
    Ok(())
}

/// Marks what depends on an endpoint as it was or is.
fn mark(work: &mut Work<'_, '_, '_>, vni: Vni, endpoint: &Endpoint, addresses: &[IpAddr]) {
    if let Some(host) = &endpoint.host {
        work.marks.key(host, Key::Port { vni, endpoint: endpoint.name.clone() });
    }
    work.own.broad.locations.extend(addresses.iter().map(|address| (vni, *address)));
    work.own.broad.tagged(vni, &endpoint.tags, addresses);
    balancer::mark_member(work, vni, &endpoint.name);
}

fn subnet_of(work: &mut Work<'_, '_, '_>, endpoint: &Endpoint) -> Option<Subnet> {
    match &work.named(&endpoint.network, Kind::Subnet, &endpoint.subnet)?.resource {
        Resource::Subnet(subnet) => Some(subnet.clone()),
        _ => None,
    }
}

fn pool_of(vni: Vni, subnet: &Subnet, address: IpAddr) -> Option<Pool> {
    subnet.prefix_for(address).map(|prefix| Pool::new(vni, &subnet.name, prefix))
}

fn device_key(host: &Label, endpoint: &Endpoint, device: &str) -> Vec<u8> {
    let netns = endpoint.attachment.as_ref().and_then(|at| at.netns.as_deref()).unwrap_or("");
    joined(joined(name0(host.as_str()), &name0(netns)), device.as_bytes())
}

/// The device of an endpoint: what is asked for, of a virtual machine its socket; or its name, cut and marked when it
/// is too long.
fn device_name(endpoint: &Endpoint) -> String {
    let name = endpoint.name.as_str();
    match &endpoint.attachment {
        Some(attachment) => attachment.socket.clone().unwrap_or_else(|| attachment.device.clone()),
        None if name.len() <= DEVICE_BYTES_MAX => name.to_string(),
        None => format!("{}-{:06x}", &name[..8], fnv(&[name.as_bytes()]) & 0xff_ffff),
    }
}

/// An Ethernet address made from the names of network and endpoint: locally administered, and never
/// a router's, whose addresses begin with 02:57:52.
fn made_mac(endpoint: &Endpoint, attempt: u64) -> MacAddr {
    let network = endpoint.network.as_str().as_bytes();
    let hash = fnv(&[network, &[0], endpoint.name.as_str().as_bytes(), &attempt.to_le_bytes()]);
    let [a, b, c, d, e, ..] = hash.to_le_bytes();
    MacAddr([0x06, a, b, c, d, e])
}

/// FNV-1a with a last mix: stable for ever, because addresses are made from it.
fn fnv(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
