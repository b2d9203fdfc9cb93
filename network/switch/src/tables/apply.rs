//! Applying updates: check, change, say what must be decided again.

use super::network::{Location, Network};
use super::routes::ROUTES_MAX;
use super::{
    GATEWAYS_MAX, LOCATIONS_MAX, MEMBERS_MAX, NETWORKS_MAX, PORTS_MAX, Port, Role, SOUGHT_MAX, SUBNETS_MAX,
    TURNS_MAX, Tables, VIRTUALS_MAX,
};
use crate::flow::{Effects, Invalidate, PortEffect, PortIndex};
use crate::policy::{Policy, RULES_MAX};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_model::entry::{
    GatewayEntry, LocationEntry, NetworkEntry, PolicyEntry, PortEntry, RouteEntry, RouteHop, ServiceEntry,
    VNI_MAX, VirtualEntry, Vni,
};
use weir_model::resource::{
    ADDRESSES_MAX, MEMBERS_MAX as BALANCER_MEMBERS_MAX, MTU_MAX, MTU_MIN, PortState, QUEUE_PAIRS_MAX,
    SERVICES_MAX, SOCKET_BYTES_MAX, TAGS_MAX,
};
use weir_model::update::Refusal;
use weir_model::{Change, Entry, Key, Label, MacAddr, Update, Version};

/// Longest name of a network device, bytes.
const DEVICE_BYTES_MAX: usize = 15;

pub(super) fn failed<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Failed(text.into()))
}

pub(super) fn full<T>(limit: usize) -> Result<T, Refusal> {
    Err(Refusal::Full { limit: limit as u64 })
}

/// An address that an endpoint or a switch may have.
pub(super) fn is_unicast(address: IpAddr) -> bool {
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || mapped || broadcast)
}

impl Tables {
    /// Applies an update that passed the gate.
    ///
    /// # Errors
    /// A refusal; nothing has changed then.
    pub fn apply(&mut self, update: &Update) -> Result<Effects, Refusal> {
        if let Some(vni) = update.key.vni()
            && !(1..=VNI_MAX).contains(&vni.0)
        {
            return failed(format!("network identifier {vni} is not between 1 and {VNI_MAX}"));
        }
        let effects = match (&update.key, &update.change) {
            (Key::Gateways, Change::Put(Entry::Gateways(gateways))) => self.put_gateways(gateways),
            (Key::Gateways, Change::Delete) => self.put_gateways(&[]),
            // For the monitor, which reads it here because it was verified here; packets have nothing to do with it.
            (Key::Repair { .. }, Change::Put(Entry::Repair(_)) | Change::Delete) => Ok(Effects::default()),
            // The same for FileWalls.
            (Key::FileWall { .. }, Change::Put(Entry::FileWall(_)) | Change::Delete) => {
                Ok(Effects::default())
            }
            (Key::Plane { plane, .. }, _) => {
                return failed(format!("a switch has no plane {plane}: a process of that plane takes it"));
            }
            // The gate reads it itself.
            (Key::Controllers, Change::Put(Entry::Controllers(_)) | Change::Delete) => Ok(Effects::default()),
            (Key::Switches { bucket }, Change::Put(Entry::Switches(addresses))) => {
                self.put_switches(*bucket, addresses)
            }
            (Key::Switches { bucket }, Change::Delete) => self.put_switches(*bucket, &[]),
            (Key::Underlays, Change::Put(Entry::Underlays(entry))) => self.put_underlays(Some(entry)),
            (Key::Underlays, Change::Delete) => self.put_underlays(None),
            (key, change) => {
                let vni = key.vni().unwrap_or(Vni(0));
                if !self.networks.contains_key(&vni.0) {
                    if *change == Change::Delete {
                        return Ok(Effects::default());
                    }
                    if self.networks.len() >= NETWORKS_MAX {
                        return full(NETWORKS_MAX);
                    }
                    self.networks.insert(vni.0, Network::new(vni));
                }
                let effects = self.apply_to_network(vni.0, key, change, update.version);
                if self.networks.get(&vni.0).is_some_and(Network::is_empty) {
                    self.networks.remove(&vni.0);
                }
                effects
            }
        }?;
        self.forgive(&effects);
        Ok(effects)
    }

    fn apply_to_network(
        &mut self,
        vni: u32,
        key: &Key,
        change: &Change,
        version: Version,
    ) -> Result<Effects, Refusal> {
        match (key, change) {
            (Key::Network { .. }, Change::Put(Entry::Network(entry))) => self.put_network(vni, Some(entry)),
            (Key::Network { .. }, Change::Delete) => self.put_network(vni, None),
            (Key::Policy { .. }, Change::Put(Entry::Policy(entry))) => {
                self.put_policy(vni, Some(entry), version)
            }
            (Key::Policy { .. }, Change::Delete) => self.put_policy(vni, None, Version::ZERO),
            (Key::Members { tag, bucket, .. }, Change::Put(Entry::Members(addresses))) => {
                self.put_members(vni, tag, *bucket, addresses)
            }
            (Key::Members { tag, bucket, .. }, Change::Delete) => self.put_members(vni, tag, *bucket, &[]),
            (Key::Route { prefix, .. }, Change::Put(Entry::Route(entry))) => {
                self.put_route(vni, *prefix, Some(entry))
            }
            (Key::Route { prefix, .. }, Change::Delete) => self.put_route(vni, *prefix, None),
            (Key::Port { endpoint, .. }, Change::Put(Entry::Port(entry))) => {
                self.put_port(vni, endpoint, entry, version)
            }
            (Key::Port { endpoint, .. }, Change::Delete) => Ok(self.delete_port(vni, endpoint)),
            (Key::Location { address, .. }, Change::Put(Entry::Location(entry))) => {
                self.put_location(vni, *address, Some(entry))
            }
            (Key::Location { address, .. }, Change::Delete) => self.put_location(vni, *address, None),
            (Key::Sought { address, .. }, Change::Put(Entry::Sought)) => self.seek(vni, *address, true),
            (Key::Sought { address, .. }, Change::Delete) => self.seek(vni, *address, false),
            (Key::Virtual { address, .. }, Change::Put(Entry::Virtual(entry))) => {
                self.put_virtual(vni, *address, Some(entry))
            }
            (Key::Virtual { address, .. }, Change::Delete) => self.put_virtual(vni, *address, None),
            (Key::Turn { client, address, .. }, Change::Put(Entry::Turn(turn))) => {
                self.put_turn(vni, (*client, *address), Some(turn.member))
            }
            (Key::Turn { client, address, .. }, Change::Delete) => {
                self.put_turn(vni, (*client, *address), None)
            }
            _ => Err(Refusal::Misfit),
        }
    }

    /// Of flows that are decided again it is remembered anew that they are denied, if they are. Of a sender that may be none any more
    /// nothing is remembered, also not of flows that have left the table.
    fn forgive(&mut self, effects: &Effects) {
        for invalidate in &effects.invalidate {
            match invalidate {
                Invalidate::All => self.networks.values_mut().for_each(Network::forgive_all),
                Invalidate::Network(vni) => {
                    if let Some(network) = self.networks.get_mut(vni) {
                        network.forgive_all();
                    }
                }
                Invalidate::Sender(None, sender) => {
                    self.networks.values_mut().for_each(|network| network.forgive_sender(*sender));
                }
                Invalidate::Sender(Some(vni), sender) => {
                    if let Some(network) = self.networks.get_mut(vni) {
                        network.forgive_sender(*sender);
                    }
                }
                _ => {}
            }
        }
    }

    fn put_gateways(&mut self, gateways: &[GatewayEntry]) -> Result<Effects, Refusal> {
        if gateways.len() > GATEWAYS_MAX {
            return full(GATEWAYS_MAX);
        }
        if let Some(wrong) = gateways.iter().find(|gateway| !is_unicast(gateway.underlay)) {
            return failed(format!(
                "gateway {} has the underlay address {}, which is no host's",
                wrong.name, wrong.underlay
            ));
        }
        if self.gateways == gateways {
            return Ok(Effects::default());
        }
        let (before, after) = (places(&self.gateways), places(gateways));
        self.gateways = gateways.to_vec();
        self.silent.retain(|gateway| after.contains(gateway));
        let come: Vec<IpAddr> = after.difference(&before).copied().collect();
        let gone: Vec<IpAddr> = before.difference(&after).copied().collect();
        let used = self.use_gateways();
        let mut invalidate: Vec<Invalidate> =
            gone.iter().map(|gateway| Invalidate::Sender(None, *gateway)).collect();
        if self.role == Role::Gateway {
            // No tenant reaches one from outside.
            invalidate.extend(gone.iter().chain(&come).map(|gateway| Invalidate::Outside(*gateway)));
        } else {
            invalidate.extend(used);
        }
        Ok(Effects { invalidate, ports: Vec::new() })
    }

    /// Says which gateways do not answer this host; returns which flows are to be decided again.
    pub fn set_silent(&mut self, silent: BTreeSet<IpAddr>) -> Vec<Invalidate> {
        self.silent = silent;
        self.use_gateways().into_iter().collect()
    }

    /// Spreads conversations over the gateways that are not silent, or over all where there is no other.
    fn use_gateways(&mut self) -> Option<Invalidate> {
        let is_heard = |gateway: &&GatewayEntry| !self.silent.contains(&gateway.underlay);
        let heard: Vec<GatewayEntry> = self.gateways.iter().filter(is_heard).cloned().collect();
        let usable = if heard.is_empty() { self.gateways.clone() } else { heard };
        let before = places(&std::mem::replace(&mut self.usable, usable));
        let after = places(&self.usable);
        let come: Vec<IpAddr> = after.difference(&before).copied().collect();
        let gone: Vec<IpAddr> = before.difference(&after).copied().collect();
        (!(come.is_empty() && gone.is_empty())).then_some(Invalidate::Gateways { come, gone })
    }

    fn put_network(&mut self, vni: u32, entry: Option<&NetworkEntry>) -> Result<Effects, Refusal> {
        if let Some(entry) = entry {
            check_network(entry)?;
        }
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        if network.entry.as_ref() == entry {
            return Ok(Effects::default());
        }
        network.entry = entry.cloned();
        network.generation += 1;
        Ok(Effects { invalidate: vec![Invalidate::Network(vni)], ports: self.refresh_ports(vni, true) })
    }

    fn put_policy(
        &mut self,
        vni: u32,
        entry: Option<&PolicyEntry>,
        version: Version,
    ) -> Result<Effects, Refusal> {
        if entry.is_some_and(|entry| entry.rules.len() > RULES_MAX) {
            return full(RULES_MAX);
        }
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        let new = entry.map(|entry| Policy::compile(entry, &mut network.tags));
        if let Some(old) = std::mem::replace(&mut network.policy, new) {
            old.release(&mut network.tags);
        }
        network.policy_version = version;
        network.generation += 1;
        Ok(Effects { invalidate: vec![Invalidate::Network(vni)], ports: self.refresh_ports(vni, false) })
    }

    fn put_members(
        &mut self,
        vni: u32,
        tag: &Label,
        bucket: u8,
        addresses: &[IpAddr],
    ) -> Result<Effects, Refusal> {
        if addresses.windows(2).any(|pair| pair[0] >= pair[1]) {
            return failed(format!("the members of {tag} are not in ascending order"));
        }
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        let old = network.tags.members();
        if self.members - network.tags.bucket_len(tag, bucket) + addresses.len() > MEMBERS_MAX {
            return full(MEMBERS_MAX);
        }
        let changed = network.tags.set_bucket(tag, bucket, addresses);
        self.members = self.members - old + network.tags.members();
        let used = network
            .tags
            .find(tag)
            .is_some_and(|id| network.policy.as_ref().is_some_and(|policy| policy.selects_peers_by(id)));
        if !used || changed.is_empty() {
            return Ok(Effects::default());
        }
        network.generation += 1;
        Ok(Effects { invalidate: addresses_of(vni, changed), ports: Vec::new() })
    }

    fn put_route(&mut self, vni: u32, prefix: IpNet, entry: Option<&RouteEntry>) -> Result<Effects, Refusal> {
        if prefix != prefix.trunc() {
            return failed(format!(
                "prefix {prefix} has bits behind its length; {} has none",
                prefix.trunc()
            ));
        }
        if let Some(RouteHop::Address(hop)) = entry.map(|entry| &entry.next_hop)
            && (!is_unicast(*hop) || hop.is_ipv4() != prefix.addr().is_ipv4())
        {
            return failed(format!("next hop {hop} of {prefix} is no endpoint's address of that family"));
        }
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        let known = network.routes.get(prefix);
        let same = known.map(|route| (&*route.name, &route.hop))
            == entry.map(|entry| (entry.name.as_str(), &entry.next_hop));
        if same {
            return Ok(Effects::default());
        }
        if known.is_none() && self.routes >= ROUTES_MAX {
            return full(ROUTES_MAX);
        }
        let old = match entry {
            Some(entry) => network.routes.put(prefix, entry),
            None => network.routes.remove(prefix),
        };
        self.routes = self.routes + usize::from(entry.is_some()) - usize::from(old.is_some());
        if let Some(RouteHop::Address(hop)) = old.map(|route| route.hop) {
            count_down(&mut network.next_hops, hop);
        }
        if let Some(RouteHop::Address(hop)) = entry.map(|entry| &entry.next_hop) {
            *network.next_hops.entry(*hop).or_default() += 1;
        }
        network.generation += 1;
        let concerns = self.role == Role::Gateway || !network.ports.is_empty();
        let invalidate = if concerns { vec![Invalidate::Route(vni, prefix)] } else { Vec::new() };
        Ok(Effects { invalidate, ports: Vec::new() })
    }

    fn put_location(
        &mut self,
        vni: u32,
        address: IpAddr,
        entry: Option<&LocationEntry>,
    ) -> Result<Effects, Refusal> {
        if let Some(entry) = entry {
            if !is_unicast(entry.underlay) || !is_unicast(address) {
                return failed(format!("{address} at {} is no place of an endpoint", entry.underlay));
            }
            check_mac(entry.mac)?;
        }
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        let new = entry.map(|entry| Location { mac: entry.mac, underlay: entry.underlay });
        let old = network.locations.get(&address).copied();
        if old == new {
            return Ok(Effects::default());
        }
        if old.is_none() && self.locations >= LOCATIONS_MAX {
            return full(LOCATIONS_MAX);
        }
        match new {
            Some(new) => {
                network.locations.insert(address, new);
                *network.hosts.entry(new.underlay).or_default() += 1;
            }
            None => {
                network.locations.remove(&address);
            }
        }
        self.locations = self.locations + usize::from(new.is_some()) - usize::from(old.is_some());
        // Whose rules judge hangs on whether an address is here.
        network.generation += 1;
        let mut invalidate = vec![Invalidate::Address(vni, address)];
        if let Some(new) = new {
            *self.underlays.entry(new.underlay).or_default() += 1;
            if self.underlays[&new.underlay] == 1 && self.role == Role::Gateway {
                // Flows that go outside to a place which nobody knew for a switch's.
                invalidate.push(Invalidate::Outside(new.underlay));
            }
        }
        if let Some(old) = old {
            count_down(&mut network.hosts, old.underlay);
            count_down(&mut self.underlays, old.underlay);
            if !network.hosts.contains_key(&old.underlay) {
                // Without a token that was what proved it to be a sender of the network.
                invalidate.push(Invalidate::Sender(Some(vni), old.underlay));
            }
            if self.role == Role::Gateway && !self.underlays.contains_key(&old.underlay) {
                invalidate.push(Invalidate::Outside(old.underlay));
            }
        }
        Ok(Effects { invalidate, ports: Vec::new() })
    }

    fn seek(&mut self, vni: u32, address: IpAddr, wanted: bool) -> Result<Effects, Refusal> {
        if let Some(network) = self.networks.get_mut(&vni) {
            if wanted && network.sought.len() >= SOUGHT_MAX && !network.sought.contains(&address) {
                return full(SOUGHT_MAX);
            }
            match wanted {
                true => network.sought.insert(address),
                false => network.sought.remove(&address),
            };
        }
        Ok(Effects::default())
    }

    fn put_virtual(
        &mut self,
        vni: u32,
        address: IpAddr,
        entry: Option<&VirtualEntry>,
    ) -> Result<Effects, Refusal> {
        if let Some(entry) = entry {
            check_virtual(address, entry)?;
        }
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        if network.virtuals.get(&address) == entry {
            return Ok(Effects::default());
        }
        match entry {
            Some(_) if network.virtuals.len() >= VIRTUALS_MAX && !network.virtuals.contains_key(&address) => {
                return full(VIRTUALS_MAX);
            }
            Some(entry) => network.virtuals.insert(address, entry.clone()),
            None => network.virtuals.remove(&address),
        };
        Ok(Effects { invalidate: vec![Invalidate::Address(vni, address)], ports: Vec::new() })
    }

    /// A turn that comes or goes concerns no flow: connections keep to their member. One that changes may have been
    /// denied for the old member.
    fn put_turn(
        &mut self,
        vni: u32,
        pair: (IpAddr, IpAddr),
        member: Option<IpAddr>,
    ) -> Result<Effects, Refusal> {
        let (client, address) = pair;
        if member.is_some_and(|member| !is_unicast(member) || member.is_ipv4() != address.is_ipv4())
            || client.is_ipv4() != address.is_ipv4()
        {
            return failed(format!(
                "the turn of {client} at {address} has a member of no address of that family"
            ));
        }
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        if member.is_some() && self.turns >= TURNS_MAX && !network.turns.contains_key(&pair) {
            return full(TURNS_MAX);
        }
        let old = match member {
            Some(member) => network.turns.insert(pair, member),
            None => network.turns.remove(&pair),
        };
        self.turns = self.turns + usize::from(member.is_some()) - usize::from(old.is_some());
        let changed = old.is_some() && member.is_some() && old != member;
        let invalidate = if changed { vec![Invalidate::Address(vni, address)] } else { Vec::new() };
        Ok(Effects { invalidate, ports: Vec::new() })
    }

    fn put_port(
        &mut self,
        vni: u32,
        name: &Label,
        entry: &PortEntry,
        version: Version,
    ) -> Result<Effects, Refusal> {
        if self.role == Role::Gateway {
            return failed(format!("port {name} is for a host, and this is a gateway"));
        }
        check_port(name, entry)?;
        let index = self.port_by_name.get(&(vni, name.clone())).copied();
        let older = self.older_holders(vni, (name, version), entry, index)?;
        let mut taken = Effects::default();
        for (other, name) in older {
            let effects = self.delete_port(other, &name);
            if other != vni && self.networks.get(&other).is_some_and(Network::is_empty) {
                self.networks.remove(&other);
            }
            taken.invalidate.extend(effects.invalidate);
            taken.ports.extend(effects.ports);
        }
        let index = match index {
            Some(index) => index,
            None => self.new_index()?,
        };
        let Some(network) = self.networks.get_mut(&vni) else { return Ok(Effects::default()) };
        let old = self.ports[usize::from(index)].take();
        let tags = entry.tags.iter().map(|tag| network.tags.hold(tag)).collect();
        if let Some(old) = &old {
            leave(network, old);
        }
        for address in &entry.addresses {
            let holder = network.local.insert(*address, index);
            // The other side is where it is looked up (`Tables::place`).
            debug_assert!(holder.is_none_or(|holder| holder == index), "{address} is two ports'");
        }
        network.ports.insert(index);
        let (up, reason) = readiness(network, entry);
        let bucket = old.as_ref().map(|old| old.bucket.clone()).unwrap_or_default();
        let (vni, name, entry) = (Vni(vni), name.clone(), entry.clone());
        let new = Port { index, vni, name, version, entry, tags, up, reason, bucket };
        taken.invalidate.extend(port_changes(network, old.as_ref(), &new));
        let mtu = network.entry.as_ref().map_or(MTU_MIN, |entry| entry.mtu);
        let same_device = old.as_ref().is_some_and(|old| {
            (old.up, &old.reason) == (new.up, &new.reason)
                && (&old.entry.netns, &old.entry.device) == (&new.entry.netns, &new.entry.device)
                && (old.entry.kind, old.entry.queue_pairs) == (new.entry.kind, new.entry.queue_pairs)
        });
        if !same_device {
            taken.ports.push(set_effect(&new, mtu));
        }
        self.port_by_name.insert((vni.0, new.name.clone()), index);
        self.ports[usize::from(index)] = Some(new);
        Ok(taken)
    }

    fn new_index(&mut self) -> Result<PortIndex, Refusal> {
        if self.ports.len() < PORTS_MAX {
            self.ports.push(None);
            return Ok((self.ports.len() - 1) as PortIndex);
        }
        self.free_ports.pop_front().map_or_else(|| full(PORTS_MAX), Ok)
    }

    /// The ports that a port takes an address or a device from: older ones, which are on their way out, or change too. They
    /// carry nothing from here until their own update comes.
    ///
    /// # Errors
    /// One of them is not older.
    fn older_holders(
        &self,
        vni: u32,
        (name, version): (&Label, Version),
        entry: &PortEntry,
        index: Option<PortIndex>,
    ) -> Result<BTreeSet<(u32, Label)>, Refusal> {
        let mut older = BTreeSet::new();
        let local = self.networks.get(&vni).map(|network| &network.local);
        for address in &entry.addresses {
            let holder = local.and_then(|local| local.get(address)).filter(|other| Some(**other) != index);
            let Some(other) = holder.and_then(|other| self.port(*other)) else { continue };
            if other.version >= version {
                return failed(format!("port {name} wants {address}, which {} has", other.name));
            }
            older.insert((other.vni.0, other.name.clone()));
        }
        let device = (&entry.netns, &entry.device);
        let taken =
            self.ports().find(|p| Some(p.index) != index && (&p.entry.netns, &p.entry.device) == device);
        if let Some(other) = taken {
            if other.version >= version {
                return failed(format!(
                    "port {name} wants the device {}, which {} has",
                    entry.device, other.name
                ));
            }
            older.insert((other.vni.0, other.name.clone()));
        }
        Ok(older)
    }

    fn delete_port(&mut self, vni: u32, name: &Label) -> Effects {
        let Some(index) = self.port_by_name.remove(&(vni, name.clone())) else { return Effects::default() };
        let (Some(port), Some(network)) =
            (self.ports[usize::from(index)].take(), self.networks.get_mut(&vni))
        else {
            return Effects::default();
        };
        leave(network, &port);
        network.ports.remove(&index);
        network.generation += 1;
        self.free_ports.push_back(index);
        let mut invalidate = vec![Invalidate::Port(index)];
        invalidate.extend(addresses_of(vni, port.entry.addresses));
        Effects { invalidate, ports: vec![PortEffect::Remove { port: index }] }
    }

    /// Looks again at which ports of a network carry traffic; `all` tells even those that stay as they
    /// are, because the MTU may have changed.
    fn refresh_ports(&mut self, vni: u32, all: bool) -> Vec<PortEffect> {
        let Some(network) = self.networks.get(&vni) else { return Vec::new() };
        let mtu = network.entry.as_ref().map_or(MTU_MIN, |entry| entry.mtu);
        let mut effects = Vec::new();
        for &index in &network.ports {
            let Some(port) = self.ports[usize::from(index)].as_mut() else { continue };
            let (up, reason) = readiness(network, &port.entry);
            if all || (up, &reason) != (port.up, &port.reason) {
                (port.up, port.reason) = (up, reason);
                effects.push(set_effect(port, mtu));
            }
        }
        effects
    }
}

fn places(gateways: &[GatewayEntry]) -> BTreeSet<IpAddr> {
    gateways.iter().map(|gateway| gateway.underlay).collect()
}

fn set_effect(port: &Port, mtu: u16) -> PortEffect {
    PortEffect::Set {
        port: port.index,
        vni: port.vni.0,
        netns: port.entry.netns.clone(),
        device: port.entry.device.clone(),
        kind: port.entry.kind,
        queue_pairs: port.entry.queue_pairs,
        up: port.up,
        reason: port.reason.clone(),
        mtu,
    }
}

/// Takes a port's tags and addresses out of its network.
fn leave(network: &mut Network, port: &Port) {
    port.tags.iter().for_each(|tag| network.tags.release(*tag));
    for address in &port.entry.addresses {
        network.local.remove(address);
    }
}

/// What a new or changed port invalidates; the network's generation rises if that is anything.
fn port_changes(network: &mut Network, old: Option<&Port>, new: &Port) -> Vec<Invalidate> {
    let after: BTreeSet<IpAddr> = new.entry.addresses.iter().copied().collect();
    let Some(old) = old else {
        network.generation += 1;
        return addresses_of(network.vni.0, after);
    };
    // What DHCP says, and the version that was waited for, are in no verdict.
    let verdict = |port: &Port| {
        let entry = &port.entry;
        (
            entry.mac,
            entry.addresses.clone(),
            entry.tags.clone(),
            port.up,
            entry.netns.clone(),
            entry.device.clone(),
        )
    };
    if verdict(old) == verdict(new) {
        return Vec::new();
    }
    network.generation += 1;
    let before: BTreeSet<IpAddr> = old.entry.addresses.iter().copied().collect();
    let mut invalidate = vec![Invalidate::Port(new.index)];
    // What is dropped on the way to it, for its tags too, hangs on its addresses alone.
    invalidate.extend(addresses_of(network.vni.0, before.union(&after).copied()));
    invalidate
}

/// Whether a port carries traffic, and why not (pain 8).
fn readiness(network: &Network, port: &PortEntry) -> (bool, String) {
    if port.state == PortState::Down {
        (false, "it is wanted down".to_string())
    } else if network.entry.is_none() {
        (false, "its network is not in force here yet".to_string())
    } else if network.policy_version < port.policy_min {
        let (have, want) = (network.policy_version, port.policy_min);
        (false, format!("it waits for the policy of its network: {have} is in force, {want} is needed"))
    } else {
        (true, String::new())
    }
}

fn addresses_of(vni: u32, addresses: impl IntoIterator<Item = IpAddr>) -> Vec<Invalidate> {
    addresses.into_iter().map(|address| Invalidate::Address(vni, address)).collect()
}

fn count_down(counts: &mut hashbrown::HashMap<IpAddr, u32, super::Hasher>, address: IpAddr) {
    debug_assert!(counts.contains_key(&address), "{address} was not counted when it came");
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
}

fn check_virtual(address: IpAddr, entry: &VirtualEntry) -> Result<(), Refusal> {
    if entry.services.len() > SERVICES_MAX {
        return full(SERVICES_MAX);
    }
    if entry.members.len() > BALANCER_MEMBERS_MAX {
        return full(BALANCER_MEMBERS_MAX);
    }
    let fits = |member: &IpAddr| is_unicast(*member) && member.is_ipv4() == address.is_ipv4();
    if !is_unicast(address) || !entry.members.iter().all(fits) {
        return failed(format!("{address} of {} or one of its members is no endpoint's address", entry.name));
    }
    let is_service = |service: &ServiceEntry| {
        matches!(service.protocol, 6 | 17) && service.port > 0 && service.target_port > 0
    };
    if !entry.services.iter().all(is_service) {
        return failed(format!("a service of {} is no port of TCP or UDP", entry.name));
    }
    Ok(())
}

fn check_mac(mac: MacAddr) -> Result<(), Refusal> {
    if mac.is_unicast() && mac != MacAddr::default() {
        Ok(())
    } else {
        failed(format!("{mac} is no station's Ethernet address"))
    }
}

fn check_network(entry: &NetworkEntry) -> Result<(), Refusal> {
    if !(MTU_MIN..=MTU_MAX).contains(&entry.mtu) {
        return failed(format!("MTU {} of {} is not between {MTU_MIN} and {MTU_MAX}", entry.mtu, entry.name));
    }
    if entry.subnets.len() > SUBNETS_MAX {
        return full(SUBNETS_MAX);
    }
    for subnet in &entry.subnets {
        let v4 = subnet.router_v4.is_none_or(|router| subnet.v4.is_some_and(|net| net.contains(&router)));
        let v6 = subnet.router_v6.is_none_or(|router| subnet.v6.is_some_and(|net| net.contains(&router)));
        if !(v4 && v6) {
            return failed(format!("the router of subnet {} is outside of it", subnet.name));
        }
    }
    Ok(())
}

fn check_port(name: &Label, entry: &PortEntry) -> Result<(), Refusal> {
    check_mac(entry.mac)?;
    if entry.addresses.len() > ADDRESSES_MAX {
        return full(ADDRESSES_MAX);
    }
    if entry.tags.len() > TAGS_MAX {
        return full(TAGS_MAX);
    }
    if let Some(wrong) = entry.addresses.iter().find(|address| !is_unicast(**address)) {
        return failed(format!("port {name} has {wrong}, which is no endpoint's address"));
    }
    let device = entry.device.as_str();
    if !entry.kind.is_device() {
        let is_path = device.starts_with('/') && device.len() <= SOCKET_BYTES_MAX && !device.contains('\0');
        if !is_path || !(1..=QUEUE_PAIRS_MAX).contains(&entry.queue_pairs) {
            return failed(format!(
                "port {name} of a virtual machine wants a socket with an absolute path of at most \
                 {SOCKET_BYTES_MAX} bytes and 1 to {QUEUE_PAIRS_MAX} pairs of queues, and has '{device}' and {}",
                entry.queue_pairs
            ));
        }
        return Ok(());
    }
    if device.is_empty() || device.len() > DEVICE_BYTES_MAX || device.contains(['/', '\0', ' ']) {
        return failed(format!(
            "device '{device}' of port {name} is no name of 1 to {DEVICE_BYTES_MAX} bytes"
        ));
    }
    if entry.netns.as_deref().is_some_and(|netns| netns.is_empty() || netns.contains(['/', '\0'])) {
        return failed(format!("the namespace of port {name} is no name without '/'"));
    }
    Ok(())
}
