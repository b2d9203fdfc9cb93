//! Entries: what a key's value is by the tables. Only presence differs between actuators, and the
//! gateways' own empty list of gateways.

use super::marks::offload_key;
use super::tables::Stored;
use super::tables::{
    ACTUATORS, ADDRESSES, NETWORK_HOSTS, OFFLOADS, PREFIX_ROUTES, Parts, SOUGHT, TAG_USERS, TAGGED,
    address_bytes, joined, label, prefix_bytes, read_desired, vni_key, vni_name0,
};
use super::work::Work;
use super::{balancer, domains, learned, switches};
use ipnet::IpNet;
use std::cmp::Reverse;
use std::net::IpAddr;
use std::rc::Rc;
use weir_model::entry::{
    GatewayEntry, LocationEntry, NetworkEntry, PolicyEntry, PortEntry, RouteEntry, RouteHop, Rule,
    SubnetEntry, Vni,
};
use weir_model::event::Role;
use weir_model::resource::{Action, Endpoint, FirewallRule, Kind, NextHop, Resource};
use weir_model::{Entry, Key, Label, Version};
use weir_store::Rejection;

impl Work<'_, '_, '_> {
    /// The entry of a key, wherever it shall be; `None` when it shall be nowhere. A port's
    /// `policy_min` is zero here.
    ///
    /// # Errors
    /// When the entry is over a limit.
    pub(super) fn entry(&mut self, key: &Key) -> Result<Option<Entry>, Rejection> {
        Ok(match key {
            Key::Gateways => Some(Entry::Gateways(self.gateway_entries())),
            Key::Network { vni } => self.network_entry(*vni).map(Entry::Network),
            Key::Policy { vni } => self.policy_entry(*vni).map(Entry::Policy),
            Key::Members { vni, tag, bucket } => {
                self.member_addresses(*vni, tag, *bucket)?.map(Entry::Members)
            }
            Key::Route { vni, prefix } => self.route_entry(*vni, *prefix).map(Entry::Route),
            Key::Port { vni, endpoint } => self.port_entry(*vni, endpoint).map(Entry::Port),
            Key::Location { vni, address } => self.location_entry(*vni, *address).map(Entry::Location),
            Key::Sought { vni, address } => {
                self.has(SOUGHT, &vni_key(*vni, &address_bytes(*address))).then_some(Entry::Sought)
            }
            Key::Virtual { vni, address } => {
                balancer::virtual_entry(self, *vni, *address).map(Entry::Virtual)
            }
            Key::Turn { vni, client, address } => {
                balancer::turn_entry(self, (*vni, *client, *address)).map(Entry::Turn)
            }
            Key::Switches { bucket } => {
                let addresses = switches::addresses(self, *bucket);
                (!addresses.is_empty()).then_some(Entry::Switches(addresses))
            }
            Key::Underlays => Some(Entry::Underlays(switches::underlays(self))),
            // Not a network's: see `owns`.
            Key::Repair { .. }
            | Key::FileWall { .. }
            | Key::Plane { .. }
            | Key::Statement { .. }
            | Key::Controllers => None,
        })
    }

    /// Whether an actuator shall hold a key that has an entry.
    pub(super) fn holds(&mut self, actuator: &Label, key: &Key, entry: &Entry) -> bool {
        let Some(role) = self.member(actuator).map(|member| member.facts.role) else { return false };
        match (role, key) {
            (
                _,
                Key::Repair { .. }
                | Key::FileWall { .. }
                | Key::Plane { .. }
                | Key::Statement { .. }
                | Key::Controllers,
            ) => false,
            // What is left is for switches.
            (Role::Planes, _) => false,
            (_, Key::Gateways) => true,
            (_, Key::Switches { .. } | Key::Underlays) => switches::reads(self, actuator),
            (Role::Gateway, Key::Network { .. } | Key::Route { .. } | Key::Location { .. }) => true,
            (
                Role::Gateway,
                Key::Policy { .. }
                | Key::Members { .. }
                | Key::Port { .. }
                | Key::Sought { .. }
                | Key::Virtual { .. }
                | Key::Turn { .. },
            ) => false,
            (
                Role::Host,
                Key::Network { vni }
                | Key::Policy { vni }
                | Key::Route { vni, .. }
                | Key::Virtual { vni, .. },
            ) => self.network_at(actuator, *vni),
            (Role::Host, Key::Turn { vni, client, address }) => {
                self.network_at(actuator, *vni)
                    && balancer::asked_from(self, (*vni, *client, *address)).as_ref() == Some(actuator)
            }
            (Role::Host, Key::Members { vni, tag, .. }) => {
                self.network_at(actuator, *vni) && self.tag_used(*vni, tag)
            }
            (Role::Host, Key::Port { vni, endpoint }) => {
                let stored = self.endpoint(*vni, endpoint);
                let endpoint = stored.as_deref().and_then(as_endpoint);
                endpoint.is_some_and(|endpoint| endpoint.host.as_ref() == Some(actuator))
            }
            (Role::Host, Key::Sought { vni, address }) => {
                let owner = self.address_owner(*vni, *address);
                let stored = owner.and_then(|owner| self.endpoint(*vni, &owner));
                let endpoint = stored.as_deref().and_then(as_endpoint);
                endpoint.is_some_and(|endpoint| endpoint.host.as_ref() == Some(actuator))
            }
            (Role::Host, Key::Location { vni, address }) => {
                let elsewhere = matches!(entry, Entry::Location(location) if location.host != *actuator);
                elsewhere
                    && self.network_at(actuator, *vni)
                    && self.has(OFFLOADS, &offload_key(*vni, *address, actuator))
            }
        }
    }

    /// What an actuator has of its own of a key that it holds.
    pub(super) fn own_entry(
        &mut self,
        actuator: &Label,
        key: &Key,
        entry: &Entry,
        before: Option<&[u8]>,
    ) -> Option<Entry> {
        match (key, entry) {
            (Key::Gateways, _) if self.member_as(actuator, Role::Gateway).is_some() => {
                Some(Entry::Gateways(Vec::new()))
            }
            (Key::Port { vni, .. }, Entry::Port(port)) => {
                let policy_min = self.policy_min(actuator, *vni, port, before);
                Some(Entry::Port(PortEntry { policy_min, ..port.clone() }))
            }
            _ => None,
        }
    }

    /// A port waits for the policy that is desired when the port is decided. A later policy does not
    /// change the port: so the old bound stays while nothing else of the port changes.
    fn policy_min(&self, host: &Label, vni: Vni, port: &PortEntry, before: Option<&[u8]>) -> Version {
        if let Some(Entry::Port(mut before)) = before.and_then(|before| read_desired(before).1) {
            let bound = std::mem::replace(&mut before.policy_min, Version::ZERO);
            if before == *port {
                return bound;
            }
        }
        self.desired_version(host, &Key::Policy { vni }).unwrap_or(Version::ZERO)
    }

    /// Whether a network has an endpoint on a host.
    pub(super) fn network_at(&self, host: &Label, vni: Vni) -> bool {
        self.has(NETWORK_HOSTS, &vni_key(vni, host.as_str().as_bytes()))
    }

    /// Whether a rule selects its peers by the tag.
    pub(super) fn tag_used(&self, vni: Vni, tag: &Label) -> bool {
        !self.view.scan(TAG_USERS, &vni_name0(vni, tag)).is_empty()
    }

    /// An endpoint by the VNI of its network.
    pub(super) fn endpoint(&mut self, vni: Vni, name: &Label) -> Option<Rc<Stored>> {
        let network = self.network_name(vni)?;
        self.named(&network, Kind::Endpoint, name)
    }

    fn gateway_entries(&mut self) -> Vec<GatewayEntry> {
        let mut entries = Vec::new();
        for name in self.gateways() {
            if let Some(member) = self.member(&name) {
                entries.push(GatewayEntry { name, underlay: member.facts.underlay });
            }
        }
        entries
    }

    fn network_entry(&mut self, vni: Vni) -> Option<NetworkEntry> {
        let name = self.network_name(vni)?;
        let stored = self.named(&name, Kind::Network, &name)?;
        let Resource::Network(network) = &stored.resource else { return None };
        let mut subnets = Vec::new();
        for stored in self.all_of(&name, Kind::Subnet) {
            if let Resource::Subnet(subnet) = &stored.resource {
                subnets.push(SubnetEntry {
                    name: subnet.name.clone(),
                    v4: subnet.v4,
                    router_v4: subnet.router_v4(),
                    v6: subnet.v6,
                    router_v6: subnet.router_v6(),
                });
            }
        }
        Some(NetworkEntry {
            name,
            mtu: network.mtu,
            encapsulation: network.encapsulation,
            external_access: network.external_access,
            subnets,
            forwarding: network.forwarding,
        })
    }

    fn policy_entry(&mut self, vni: Vni) -> Option<PolicyEntry> {
        let name = self.network_name(vni)?;
        let stored = self.named(&name, Kind::Network, &name)?;
        let Resource::Network(network) = &stored.resource else { return None };
        let rules = self.all_of(&name, Kind::FirewallRule);
        let mut rules: Vec<Rule> = rules.iter().filter_map(|stored| rule_entry(stored)).collect();
        rules.sort_by(|a, b| {
            let order = |rule: &Rule| (rule.priority, rule.action != Action::Deny);
            order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name))
        });
        Some(PolicyEntry { default_ingress: network.ingress, default_egress: network.egress, rules })
    }

    fn member_addresses(
        &mut self,
        vni: Vni,
        tag: &Label,
        bucket: u8,
    ) -> Result<Option<Vec<IpAddr>>, Rejection> {
        let prefix = joined(vni_name0(vni, tag), &[bucket]);
        let cells = self.view.scan(TAGGED, &prefix);
        let limit = self.settings.members_per_bucket_max;
        if cells.len() > limit {
            let what = format!("addresses in bucket {bucket} of tag {tag}");
            return Err(Rejection::limit(&what, cells.len(), limit));
        }
        let mut addresses: Vec<IpAddr> =
            cells.iter().map(|(key, _)| Parts(&key[prefix.len()..]).address()).collect();
        addresses.sort_unstable();
        Ok(Some(addresses).filter(|addresses| !addresses.is_empty()))
    }

    fn route_entry(&mut self, vni: Vni, prefix: IpNet) -> Option<RouteEntry> {
        let network = self.network_name(vni)?;
        let scope = vni_key(vni, &prefix_bytes(prefix));
        let names = self.view.scan(PREFIX_ROUTES, &scope);
        let mut routes = Vec::new();
        for (key, _) in names {
            let stored = self.named(&network, Kind::Route, &label(&key[scope.len()..]))?;
            if let Resource::Route(route) = &stored.resource {
                routes.push((
                    Reverse(route.priority),
                    route.name.clone(),
                    stored.version,
                    route.next_hop.clone(),
                ));
            }
        }
        let (_, name, version, hop) = routes.into_iter().min_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)))?;
        let next_hop = match hop {
            NextHop::External => RouteHop::External,
            NextHop::Drop => RouteHop::Drop,
            NextHop::Endpoint(endpoint) => {
                let stored = self.endpoint(vni, &endpoint)?;
                let v4 = prefix.addr().is_ipv4();
                RouteHop::Address(*stored.allocated.addresses.iter().find(|a| a.is_ipv4() == v4)?)
            }
        };
        Some(RouteEntry { name, version, next_hop })
    }

    fn port_entry(&mut self, vni: Vni, name: &Label) -> Option<PortEntry> {
        let stored = self.endpoint(vni, name)?;
        let endpoint = as_endpoint(&stored)?;
        let subnet = self.named(&endpoint.network, Kind::Subnet, &endpoint.subnet)?;
        let Resource::Subnet(subnet) = &subnet.resource else { return None };
        Some(PortEntry {
            mac: stored.allocated.mac?,
            addresses: stored.allocated.addresses.clone(),
            tags: endpoint.tags.clone(),
            state: endpoint.state,
            netns: endpoint.attachment.as_ref().and_then(|attachment| attachment.netns.clone()),
            device: stored.allocated.device.clone()?,
            kind: endpoint.attachment.as_ref().map(|attachment| attachment.kind).unwrap_or_default(),
            queue_pairs: endpoint.attachment.as_ref().map_or(1, |attachment| attachment.queue_pairs),
            subnet: endpoint.subnet.clone(),
            dhcp: subnet.dhcp.clone(),
            policy_min: Version::ZERO,
        })
    }

    /// Name of the endpoint that has an address.
    pub(super) fn address_owner(&self, vni: Vni, address: IpAddr) -> Option<Label> {
        self.view.get(ADDRESSES, &vni_key(vni, &address_bytes(address))).map(|name| label(&name))
    }

    /// Where an address is, on a host of this domain or of another.
    fn location_entry(&mut self, vni: Vni, address: IpAddr) -> Option<LocationEntry> {
        match self.address_owner(vni, address) {
            Some(_) => self.own_location(vni, address),
            None => domains::foreign_location(self, vni, address),
        }
    }

    /// Where an address is, if a host of this domain has it.
    pub(super) fn own_location(&mut self, vni: Vni, address: IpAddr) -> Option<LocationEntry> {
        let name = self.address_owner(vni, address)?;
        let stored = self.endpoint(vni, &name)?;
        let host = self.member_as(as_endpoint(&stored)?.host.as_ref()?, Role::Host)?;
        let mac = stored.allocated.mac?;
        if learned::is_learned(self, vni) && !learned::is_heard(self, vni, mac, &host.facts.name) {
            return None;
        }
        Some(LocationEntry {
            endpoint: name,
            mac,
            host: host.facts.name.clone(),
            underlay: host.facts.underlay,
        })
    }

    /// Names of all actuators of a role. Only for events that concern them all.
    pub(super) fn all_members(&mut self, role: Role) -> Vec<Label> {
        let names = self.view.scan(ACTUATORS, b"");
        let names: Vec<Label> = names.into_iter().map(|(key, _)| label(&key)).collect();
        names.into_iter().filter(|name| self.member_as(name, role).is_some()).collect()
    }
}

fn as_endpoint(stored: &Stored) -> Option<&Endpoint> {
    match &stored.resource {
        Resource::Endpoint(endpoint) => Some(endpoint),
        _ => None,
    }
}

fn rule_entry(stored: &Stored) -> Option<Rule> {
    match &stored.resource {
        Resource::FirewallRule(rule) => Some(rule_of(rule, stored.version)),
        _ => None,
    }
}

fn rule_of(rule: &FirewallRule, version: Version) -> Rule {
    Rule {
        name: rule.name.clone(),
        version,
        direction: rule.direction,
        priority: rule.priority,
        action: rule.action,
        protocol: rule.protocol,
        ports: rule.ports.clone(),
        peers: rule.peers.clone(),
        targets: rule.targets.clone(),
        stateful: rule.stateful,
    }
}
