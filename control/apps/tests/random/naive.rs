//! A compiler that makes everything anew from the resources, written apart from the fabric's, and
//! checks of what was allocated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_apps::fabric::{
    Stored, actuators, desired, network_of, offloads, resource_counts, resources, tables,
};
use weir_base::codec::decode;
use weir_model::entry::{
    GatewayEntry, LocationEntry, NetworkEntry, PolicyEntry, PortEntry, RouteEntry, RouteHop, Rule,
    ServiceEntry, SubnetEntry, UnderlaysEntry, VirtualEntry, Vni, member_bucket,
};
use weir_model::event::{ActuatorFacts, Role, SPEAKS_TABLE};
use weir_model::resource::{
    Action, Balancer, Endpoint, FirewallRule, Network, NextHop, Peer, PortState, Protocol, Resource, Route,
    Subnet,
};
use weir_model::session::SWITCHES_SINCE;
use weir_model::{Entry, Key, Label, MacAddr, Version};
use weir_store::Store;

type Desired = BTreeMap<(Label, Key), Entry>;

/// One network with all that is in it.
struct Tenant {
    vni: Vni,
    network: Network,
    subnets: Vec<Subnet>,
    endpoints: Vec<(Endpoint, Stored)>,
    routes: Vec<(Route, Version)>,
    rules: Vec<(FirewallRule, Version)>,
    balancers: Vec<Balancer>,
}

fn tenants(store: &Store) -> Vec<Tenant> {
    let all: Vec<Stored> = resources(store, None, None).collect();
    let mut kinds = BTreeMap::new();
    all.iter().for_each(|stored| *kinds.entry(stored.resource.kind()).or_default() += 1);
    assert_eq!(resource_counts(store), kinds);
    let mut tenants = Vec::new();
    for stored in &all {
        let Resource::Network(network) = &stored.resource else { continue };
        let mut tenant = Tenant {
            vni: stored.allocated.vni.unwrap(),
            network: network.clone(),
            subnets: Vec::new(),
            endpoints: Vec::new(),
            routes: Vec::new(),
            rules: Vec::new(),
            balancers: Vec::new(),
        };
        for inside in all.iter().filter(|s| s.resource.id().network.as_ref() == Some(&network.name)) {
            match inside.resource.clone() {
                Resource::Network(_) => {}
                Resource::Subnet(subnet) => tenant.subnets.push(subnet),
                Resource::Endpoint(endpoint) => tenant.endpoints.push((endpoint, inside.clone())),
                Resource::Route(route) => tenant.routes.push((route, inside.version)),
                Resource::FirewallRule(rule) => tenant.rules.push((rule, inside.version)),
                Resource::Balancer(balancer) => tenant.balancers.push(balancer),
            }
        }
        tenants.push(tenant);
    }
    tenants
}

impl Tenant {
    fn network(&self) -> Entry {
        let entry = |s: &Subnet| SubnetEntry {
            name: s.name.clone(),
            v4: s.v4,
            router_v4: s.router_v4(),
            v6: s.v6,
            router_v6: s.router_v6(),
        };
        Entry::Network(NetworkEntry {
            name: self.network.name.clone(),
            mtu: self.network.mtu,
            encapsulation: self.network.encapsulation,
            external_access: self.network.external_access,
            subnets: self.subnets.iter().map(entry).collect(),
            forwarding: self.network.forwarding,
        })
    }

    fn policy(&self) -> Entry {
        let mut rules: Vec<Rule> = Vec::new();
        for priority in 0..=u16::MAX {
            for action in [Action::Deny, Action::Allow] {
                for (r, version) in
                    self.rules.iter().filter(|(r, _)| (r.priority, r.action) == (priority, action))
                {
                    rules.push(Rule {
                        name: r.name.clone(),
                        version: *version,
                        direction: r.direction,
                        priority,
                        action,
                        protocol: r.protocol,
                        ports: r.ports.clone(),
                        peers: r.peers.clone(),
                        targets: r.targets.clone(),
                        stateful: r.stateful,
                    });
                }
            }
            if rules.len() == self.rules.len() {
                break;
            }
        }
        let Network { ingress, egress, .. } = self.network;
        Entry::Policy(PolicyEntry { default_ingress: ingress, default_egress: egress, rules })
    }

    fn members(&self) -> BTreeMap<Key, Entry> {
        let mut used = BTreeSet::new();
        for (rule, _) in &self.rules {
            used.extend(rule.peers.iter().filter_map(|p| if let Peer::Tag(t) = p { Some(t) } else { None }));
        }
        let mut members: BTreeMap<Key, BTreeSet<IpAddr>> = BTreeMap::new();
        for (endpoint, stored) in &self.endpoints {
            for tag in endpoint.tags.iter().filter(|tag| used.contains(tag)) {
                for address in &stored.allocated.addresses {
                    let key =
                        Key::Members { vni: self.vni, tag: tag.clone(), bucket: member_bucket(*address) };
                    members.entry(key).or_default().insert(*address);
                }
            }
        }
        members.into_iter().map(|(key, set)| (key, Entry::Members(set.into_iter().collect()))).collect()
    }

    fn routes(&self) -> BTreeMap<Key, Entry> {
        let mut sorted: Vec<&(Route, Version)> = self.routes.iter().collect();
        sorted.sort_by_key(|(route, _)| (Reverse(route.priority), route.name.clone()));
        let mut found = BTreeMap::new();
        for (route, version) in sorted {
            let next_hop = match &route.next_hop {
                NextHop::External => RouteHop::External,
                NextHop::Drop => RouteHop::Drop,
                NextHop::Endpoint(name) => {
                    let (_, stored) = self.endpoints.iter().find(|(e, _)| e.name == *name).unwrap();
                    let v4 = route.prefix.addr().is_ipv4();
                    RouteHop::Address(*stored.allocated.addresses.iter().find(|a| a.is_ipv4() == v4).unwrap())
                }
            };
            let entry = Entry::Route(RouteEntry { name: route.name.clone(), version: *version, next_hop });
            found.entry(Key::Route { vni: self.vni, prefix: route.prefix }).or_insert(entry);
        }
        found
    }

    fn port(&self, endpoint: &Endpoint, stored: &Stored) -> Entry {
        let subnet = self.subnets.iter().find(|s| s.name == endpoint.subnet).unwrap();
        Entry::Port(PortEntry {
            mac: stored.allocated.mac.unwrap(),
            addresses: stored.allocated.addresses.clone(),
            tags: endpoint.tags.clone(),
            state: endpoint.state,
            netns: endpoint.attachment.as_ref().and_then(|a| a.netns.clone()),
            device: endpoint.attachment.as_ref().map_or(endpoint.name.to_string(), |a| a.device.clone()),
            kind: endpoint.attachment.as_ref().map(|a| a.kind).unwrap_or_default(),
            queue_pairs: endpoint.attachment.as_ref().map_or(1, |a| a.queue_pairs),
            subnet: endpoint.subnet.clone(),
            dhcp: subnet.dhcp.clone(),
            policy_min: Version::ZERO,
        })
    }

    fn locations(&self, hosts: &BTreeMap<Label, ActuatorFacts>) -> BTreeMap<Key, (Label, Entry)> {
        let mut found = BTreeMap::new();
        for (endpoint, stored) in &self.endpoints {
            let Some(host) = endpoint.host.as_ref().and_then(|host| hosts.get(host)) else { continue };
            for &address in &stored.allocated.addresses {
                let entry = Entry::Location(LocationEntry {
                    endpoint: endpoint.name.clone(),
                    mac: stored.allocated.mac.unwrap(),
                    host: host.name.clone(),
                    underlay: host.underlay,
                });
                found.insert(Key::Location { vni: self.vni, address }, (host.name.clone(), entry));
            }
        }
        found
    }
}

impl Tenant {
    fn virtuals(&self, hosts: &BTreeMap<Label, ActuatorFacts>) -> BTreeMap<Key, Entry> {
        let locations = self.locations(hosts);
        let of = |balancer: &Balancer| {
            let v4 = balancer.address.is_ipv4();
            let serves = |name: &Label| {
                let (endpoint, stored) = self.endpoints.iter().find(|(e, _)| e.name == *name).unwrap();
                let address = *stored.allocated.addresses.iter().find(|a| a.is_ipv4() == v4).unwrap();
                let there = locations.contains_key(&Key::Location { vni: self.vni, address });
                (there && endpoint.state == PortState::Up).then_some(address)
            };
            let members: BTreeSet<IpAddr> = balancer.members.iter().filter_map(serves).collect();
            let services = balancer.services.iter().map(|service| ServiceEntry {
                protocol: if service.protocol == Protocol::TCP { 6 } else { 17 },
                port: service.port,
                target_port: service.target_port.unwrap_or(service.port),
            });
            let entry = VirtualEntry {
                name: balancer.name.clone(),
                services: services.collect(),
                members: members.into_iter().collect(),
            };
            (Key::Virtual { vni: self.vni, address: balancer.address }, Entry::Virtual(entry))
        };
        self.balancers.iter().map(of).collect()
    }
}

/// Every turn is of a client at that host and leads to another endpoint that serves.
fn check_turn(
    tenants: &[Tenant],
    hosts: &BTreeMap<Label, ActuatorFacts>,
    host: &Label,
    key: &Key,
    entry: &Entry,
) {
    let (Key::Turn { vni, client, address }, Entry::Turn(turn)) = (key, entry) else { panic!("{key}") };
    let tenant = tenants.iter().find(|tenant| tenant.vni == *vni).unwrap();
    let (at, _) = &tenant.locations(hosts)[&Key::Location { vni: *vni, address: *client }];
    assert_eq!(at, host, "{key} is where its client is not");
    let virtuals = tenant.virtuals(hosts);
    let Some(Entry::Virtual(serves)) = virtuals.get(&Key::Virtual { vni: *vni, address: *address }) else {
        panic!("{key} is of no virtual address");
    };
    assert!(serves.members.contains(&turn.member), "{key} leads to {}, which is gone", turn.member);
    let owner = |address: &IpAddr| {
        let has = |(_, stored): &&(Endpoint, Stored)| stored.allocated.addresses.contains(address);
        tenant.endpoints.iter().find(has).unwrap().0.name.clone()
    };
    assert_eq!(owner(&turn.member), turn.endpoint);
    assert_ne!(owner(client), turn.endpoint, "{key} leads to the client");
}

fn compile(store: &Store, tenants: &[Tenant]) -> Desired {
    let facts: Vec<ActuatorFacts> = actuators(store).map(|status| status.facts).collect();
    let of = |role: Role| facts.iter().filter(move |facts| facts.role == role);
    let hosts: BTreeMap<Label, ActuatorFacts> = of(Role::Host).map(|f| (f.name.clone(), f.clone())).collect();
    let gateways: Vec<GatewayEntry> = of(Role::Gateway)
        .map(|facts| GatewayEntry { name: facts.name.clone(), underlay: facts.underlay })
        .collect();
    let direct: BTreeSet<(Label, Vni, IpAddr)> = offloads(store).collect();
    let mut switches: BTreeMap<u8, BTreeSet<IpAddr>> = BTreeMap::new();
    for facts in &facts {
        switches.entry(member_bucket(facts.underlay)).or_default().insert(facts.underlay);
    }
    let reads = |name: &Label| {
        let cell = store.get(SPEAKS_TABLE, name.as_str().as_bytes());
        cell.is_some_and(|cell| decode::<u32>(&cell.value).unwrap() >= SWITCHES_SINCE)
    };
    let mut all = Desired::new();
    for facts in &facts {
        let at = |key: &Key| (facts.name.clone(), key.clone());
        let gateway = facts.role == Role::Gateway;
        let known = if gateway { Vec::new() } else { gateways.clone() };
        all.insert(at(&Key::Gateways), Entry::Gateways(known));
        if reads(&facts.name) {
            for (bucket, addresses) in &switches {
                let list = addresses.iter().copied().collect();
                all.insert(at(&Key::Switches { bucket: *bucket }), Entry::Switches(list));
            }
            all.insert(at(&Key::Underlays), Entry::Underlays(UnderlaysEntry::default()));
        }
        for tenant in tenants {
            let here: Vec<_> = tenant
                .endpoints
                .iter()
                .filter(|(e, _)| !gateway && e.host.as_ref() == Some(&facts.name))
                .collect();
            if gateway || !here.is_empty() {
                all.insert(at(&Key::Network { vni: tenant.vni }), tenant.network());
                all.extend(tenant.routes().into_iter().map(|(key, entry)| (at(&key), entry)));
            }
            if !here.is_empty() {
                all.insert(at(&Key::Policy { vni: tenant.vni }), tenant.policy());
                all.extend(tenant.members().into_iter().map(|(key, entry)| (at(&key), entry)));
                all.extend(tenant.virtuals(&hosts).into_iter().map(|(key, entry)| (at(&key), entry)));
            }
            for (endpoint, stored) in here {
                let key = Key::Port { vni: tenant.vni, endpoint: endpoint.name.clone() };
                all.insert(at(&key), tenant.port(endpoint, stored));
            }
            for (key, (_, entry)) in tenant.locations(&hosts) {
                let Key::Location { vni, address } = key else { unreachable!() };
                if gateway || direct.contains(&(facts.name.clone(), vni, address)) {
                    all.insert(at(&key), entry);
                }
            }
        }
    }
    check_offloads(tenants, &hosts, &direct);
    all
}

/// Every direct location is of somebody else's endpoint, in a network that the host has.
fn check_offloads(
    tenants: &[Tenant],
    hosts: &BTreeMap<Label, ActuatorFacts>,
    direct: &BTreeSet<(Label, Vni, IpAddr)>,
) {
    for (host, vni, address) in direct {
        assert!(hosts.contains_key(host));
        let tenant = tenants.iter().find(|tenant| tenant.vni == *vni).unwrap();
        assert!(tenant.endpoints.iter().any(|(endpoint, _)| endpoint.host.as_ref() == Some(host)));
        let locations = tenant.locations(hosts);
        let (owner, _) = &locations[&Key::Location { vni: *vni, address: *address }];
        assert_ne!(owner, host);
    }
}

fn check_allocations(tenants: &[Tenant]) {
    for tenant in tenants {
        let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
        let mut macs: BTreeSet<MacAddr> = BTreeSet::new();
        for (endpoint, stored) in &tenant.endpoints {
            let subnet = tenant.subnets.iter().find(|s| s.name == endpoint.subnet).unwrap();
            assert!(macs.insert(stored.allocated.mac.unwrap()));
            for address in &stored.allocated.addresses {
                assert!(addresses.insert(*address), "{address} twice");
                assert!(subnet.prefix_for(*address).unwrap().contains(address));
                assert_ne!(Some(*address), subnet.router_v4().map(IpAddr::V4));
                assert_ne!(Some(*address), subnet.router_v6().map(IpAddr::V6));
            }
            let has = |v4: bool| stored.allocated.addresses.iter().any(|a| a.is_ipv4() == v4);
            assert_eq!((has(true), has(false)), (subnet.v4.is_some(), subnet.v6.is_some()));
            assert!(stored.allocated.addresses.starts_with(&endpoint.addresses));
        }
    }
}

/// The fabric's tables say what a compilation from scratch says.
pub(super) fn check(store: &Store) {
    let tenants = tenants(store);
    check_allocations(&tenants);
    let wanted = compile(store, &tenants);
    let mut found = Desired::new();
    let joined = actuators(store).filter(|status| status.facts.role == Role::Host);
    let hosts: BTreeMap<Label, ActuatorFacts> = joined.map(|s| (s.facts.name.clone(), s.facts)).collect();
    let mut turns = 0;
    for status in actuators(store) {
        let name = &status.facts.name;
        let (mut entries, mut tombstones) = (0, 0);
        for (key, version, entry) in desired(store, name) {
            assert!(version <= store.version());
            let Some(mut entry) = entry else {
                tombstones += 1;
                continue;
            };
            if let Entry::Port(port) = &mut entry {
                assert!(port.policy_min <= version && port.policy_min > Version::ZERO);
                port.policy_min = Version::ZERO;
            }
            if matches!(key, Key::Turn { .. }) {
                check_turn(&tenants, &hosts, name, &key, &entry);
                turns += 1;
                continue;
            }
            let direct = matches!(key, Key::Location { .. }) && status.facts.role == Role::Host;
            entries += u64::from(!direct);
            found.insert((name.clone(), key), entry);
        }
        assert_eq!((status.entries, status.tombstones), (entries, tombstones), "counts of {name}");
    }
    for (at, entry) in &wanted {
        assert_eq!(found.get(at), Some(entry), "{} {}", at.0, at.1);
    }
    for at in found.keys() {
        assert!(wanted.contains_key(at), "{} has {} too much", at.0, at.1);
    }
    assert_eq!(store.count(tables::OFFLOADS), store.count(tables::HOST_OFFLOADS));
    for table in [tables::TURNS, tables::HOST_TURNS, tables::MEMBER_TURNS] {
        assert_eq!(store.count(table), turns, "{table}");
    }
    assert_eq!(store.count(tables::VNIS), tenants.len());
    for tenant in &tenants {
        assert_eq!(network_of(store, tenant.vni).as_ref(), Some(&tenant.network.name));
    }
}
