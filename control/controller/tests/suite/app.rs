//! A small app for the tests: endpoints of networks on hosts, and gateways that know where they are.
//!
//! An endpoint's document is the name of its host; a firewall rule's is `allow` or `deny` and is the
//! policy of its network. Entries of a network that is touched are computed anew and compared with
//! the table of entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_base::codec::{decode, encode};
use weir_controller::core::admission::SourceKeys;
use weir_model::entry::{LocationEntry, NetworkEntry, PolicyEntry, PortEntry, UnderlaysEntry, Vni};
use weir_model::event::{
    ActuatorFacts, Event, EventBody, Mutation, Role, SPEAKS_TABLE, SignedEvent, SourceId, Transaction, Wanted,
};
use weir_model::resource::{Action, DhcpOptions, Encapsulation, Kind, PortState, ResourceId};
use weir_model::session::SWITCHES_SINCE;
use weir_model::update::Reason;
use weir_model::{Change, Dependency, Entry, Key, Label, MacAddr, Plan, PlannedUpdate, Update, Version};
use weir_store::{App, Decision, Rejection, Store, View};
use weir_trust::identity::{KeyPair, sign_event};

pub const ENDPOINTS: &str = "endpoint";
pub const POLICIES: &str = "policy";
pub const ACTUATORS: &str = "actuator";
pub const ENTRIES: &str = "entry";
pub const REFUSALS: &str = "refusal";

pub struct TestApp;

pub fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

pub fn vni(network: &Label) -> Vni {
    Vni(network.as_str()[1..].parse().unwrap())
}

pub fn address(endpoint: &Label) -> IpAddr {
    let number: u8 = endpoint.as_str()[1..].parse().unwrap();
    IpAddr::from([10, 0, 0, number])
}

fn endpoint_id(network: &str, name: &str) -> ResourceId {
    ResourceId { kind: Kind::Endpoint, network: Some(label(network)), name: label(name) }
}

/// Puts an endpoint on a host.
pub fn endpoint(network: &str, name: &str, host: &str) -> Mutation {
    Mutation { id: endpoint_id(network, name), expected: None, wanted: Wanted::Document(host.into()) }
}

/// Removes an endpoint.
pub fn no_endpoint(network: &str, name: &str) -> Mutation {
    Mutation { id: endpoint_id(network, name), expected: None, wanted: Wanted::Absent }
}

/// Sets the policy of a network: `allow` or `deny`.
pub fn policy(network: &str, action: &str) -> Mutation {
    let id = ResourceId { kind: Kind::FirewallRule, network: Some(label(network)), name: label("rule") };
    Mutation { id, expected: None, wanted: Wanted::Document(action.into()) }
}

pub fn transaction(mutations: Vec<Mutation>) -> Transaction {
    Transaction { mutations, replace_all: false }
}

/// Sources that these tests register, and their keys.
const SOURCES: [(&str, u8); 2] = [("client", 201), ("controller/c1", 202)];

pub fn key_of(source: &str) -> KeyPair {
    let (_, seed) = SOURCES.iter().find(|(name, _)| *name == source).unwrap();
    KeyPair::from_seed(&[*seed; 32])
}

pub fn keys() -> SourceKeys {
    SOURCES.iter().map(|(name, _)| (SourceId((*name).into()), key_of(name).public())).collect()
}

pub fn event(source: &str, sequence: u64, body: EventBody) -> SignedEvent {
    let event = Event { source: SourceId(source.into()), sequence, body };
    sign_event(&key_of(source), &label("d"), event, None)
}

pub fn facts(name: &str, identity: [u8; 32]) -> ActuatorFacts {
    let role = if name.starts_with('g') { Role::Gateway } else { Role::Host };
    ActuatorFacts { name: label(name), role, identity, underlay: "192.0.2.1".parse().unwrap() }
}

type Node = (Label, Key);
type Desired = BTreeMap<Node, (Entry, Vec<(Node, Reason)>)>;

/// All entries of the store with their versions.
pub fn entries(store: &Store) -> BTreeMap<Node, (Version, Entry)> {
    store
        .scan(ENTRIES, b"")
        .map(|(key, cell)| {
            let (_, target, entry_key): (u32, Label, Key) = decode(key).unwrap();
            let (version, entry): (Version, Entry) = decode(&cell.value).unwrap();
            ((target, entry_key), (version, entry))
        })
        .collect()
}

fn read<T: serde::de::DeserializeOwned>(view: &View<'_>, table: &'static str, prefix: &[u8]) -> Vec<T> {
    view.scan(table, prefix).iter().map(|(_, value)| decode(value).unwrap()).collect()
}

/// What is desired of a network: entries, and what each waits for.
fn desired(view: &View<'_>, network: &Label, policy_version: Version) -> Desired {
    let endpoints: Vec<(Label, Label, Label)> = read(view, ENDPOINTS, &encode(network));
    let actuators: Vec<ActuatorFacts> = read(view, ACTUATORS, b"");
    let gateways: Vec<&ActuatorFacts> = actuators.iter().filter(|a| a.role == Role::Gateway).collect();
    let action = view
        .get(POLICIES, &encode(network))
        .map_or(Action::Allow, |value| if &value[..] == b"deny" { Action::Deny } else { Action::Allow });
    let vni = vni(network);
    let network_entry = Entry::Network(NetworkEntry {
        name: network.clone(),
        mtu: 1400,
        encapsulation: Encapsulation::Geneve,
        external_access: false,
        subnets: Vec::new(),
        forwarding: weir_model::resource::Forwarding::Routed,
    });
    let mut desired = Desired::new();
    for (_, name, host) in &endpoints {
        if !actuators.iter().any(|actuator| actuator.name == *host) {
            continue;
        }
        let policy =
            PolicyEntry { default_ingress: action, default_egress: Action::Allow, rules: Vec::new() };
        let (network_key, policy_key) = (Key::Network { vni }, Key::Policy { vni });
        desired.insert((host.clone(), network_key.clone()), (network_entry.clone(), Vec::new()));
        desired.insert((host.clone(), policy_key.clone()), (Entry::Policy(policy), Vec::new()));
        let port = Key::Port { vni, endpoint: name.clone() };
        let waits = vec![
            ((host.clone(), network_key), Reason::NetworkBeforePort),
            ((host.clone(), policy_key), Reason::PolicyBeforePort),
        ];
        desired.insert((host.clone(), port.clone()), (port_entry(network, name, policy_version), waits));
        for gateway in &gateways {
            let location = Key::Location { vni, address: address(name) };
            let entry = Entry::Location(LocationEntry {
                endpoint: name.clone(),
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                host: host.clone(),
                underlay: "192.0.2.1".parse().unwrap(),
            });
            let waits = vec![((host.clone(), port.clone()), Reason::PortBeforeLocation)];
            desired.insert((gateway.name.clone(), location), (entry, waits));
        }
    }
    desired
}

/// A port with an address and a device of its own, as the real app gives them.
fn port_entry(network: &Label, name: &Label, policy_min: Version) -> Entry {
    Entry::Port(PortEntry {
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        addresses: vec![address(name)],
        tags: Vec::new(),
        state: PortState::Up,
        netns: Some(network.to_string()),
        device: name.to_string(),
        kind: weir_model::resource::AttachmentKind::Tap,
        queue_pairs: 1,
        subnet: label("s"),
        dhcp: DhcpOptions::default(),
        policy_min,
    })
}

fn entry_key(target: &Label, key: &Key) -> Vec<u8> {
    encode(&(key.vni().map_or(0, |vni| vni.0), target, key))
}

/// Brings the entries of a network to what is desired, and plans the updates.
fn compute(view: &mut View<'_>, network: &Label, version: Version, plan: &mut Plan) -> Result<(), Rejection> {
    let mut versions: BTreeMap<Node, Version> = BTreeMap::new();
    let mut before: BTreeMap<Node, Entry> = BTreeMap::new();
    for (stored, value) in view.scan(ENTRIES, &encode(&vni(network).0)) {
        let (_, target, key): (u32, Label, Key) = decode(&stored).unwrap();
        let (version, entry): (Version, Entry) = decode(&value).unwrap();
        versions.insert((target.clone(), key.clone()), version);
        before.insert((target, key), entry);
    }
    let policy_of = |node: &Node| (node.0.clone(), Key::Policy { vni: vni(network) });
    let mut after = desired(view, network, Version::ZERO);
    // First what changes at all, then ports with the version of their policy, then what waits.
    for (node, (entry, _)) in &after {
        if before.get(node) != Some(entry) && !matches!(node.1, Key::Port { .. }) {
            versions.insert(node.clone(), version);
        }
    }
    for (node, (entry, _)) in &mut after {
        if let Entry::Port(port) = entry {
            port.policy_min = versions[&policy_of(node)];
            if before.get(node) != Some(entry) {
                versions.insert(node.clone(), version);
            }
        }
    }
    let gone: BTreeSet<Node> = before.keys().filter(|node| !after.contains_key(node)).cloned().collect();
    for (node, (entry, waits)) in &after {
        if versions[node] == version {
            view.put(ENTRIES, &entry_key(&node.0, &node.1), encode(&(version, entry)))?;
            let waits = waits.iter().map(|(node, reason)| dependency(node, versions[node], *reason));
            plan.updates.push(planned(node, version, Change::Put(entry.clone()), waits.collect()));
        }
    }
    for node in &gone {
        view.delete(ENTRIES, &entry_key(&node.0, &node.1));
        let waits = delete_waits(node, &before, &after, &gone, version, &versions);
        plan.updates.push(planned(node, version, Change::Delete, waits));
    }
    Ok(())
}

/// A port goes after nobody is told of it any more; network and policy after the ports.
fn delete_waits(
    node: &Node,
    before: &BTreeMap<Node, Entry>,
    after: &Desired,
    gone: &BTreeSet<Node>,
    version: Version,
    versions: &BTreeMap<Node, Version>,
) -> Vec<Dependency> {
    let mut waits = Vec::new();
    for (other, entry) in before {
        let same_port = |location: &LocationEntry| {
            location.host == node.0
                && matches!(&node.1, Key::Port { endpoint, .. } if *endpoint == location.endpoint)
        };
        match (&node.1, entry) {
            (Key::Port { .. }, Entry::Location(location)) if same_port(location) => {
                let at = if gone.contains(other) { version } else { versions[other] };
                waits.push(dependency(other, at, Reason::LocationGoneBeforePort));
            }
            (Key::Network { .. } | Key::Policy { .. }, Entry::Port(_)) if other.0 == node.0 => {
                assert!(!after.contains_key(other), "a port without its network");
                waits.push(dependency(other, version, Reason::PortGoneBeforeNetwork));
            }
            _ => {}
        }
    }
    waits
}

fn dependency(node: &Node, version: Version, reason: Reason) -> Dependency {
    Dependency { target: node.0.clone(), key: node.1.clone(), version, reason }
}

fn planned(node: &Node, version: Version, change: Change, after: Vec<Dependency>) -> PlannedUpdate {
    let (target, key) = node.clone();
    PlannedUpdate { update: Update { target, key, version, expected: Version::ZERO, change }, after }
}

impl App for TestApp {
    fn name(&self) -> &'static str {
        "test"
    }

    fn decide(
        &self,
        view: &mut View<'_>,
        version: Version,
        _now_ms: u64,
        event: &Event,
    ) -> Result<Decision, Rejection> {
        let mut touched: BTreeSet<Label> = BTreeSet::new();
        match &event.body {
            EventBody::Intent(transaction) => {
                for mutation in &transaction.mutations {
                    let network = mutation.id.network.clone().unwrap();
                    mutate(view, mutation, &network)?;
                    touched.insert(network);
                }
            }
            EventBody::Joined(facts) => {
                view.put(ACTUATORS, &encode(&facts.name), encode(facts))?;
                touched = networks(view);
            }
            EventBody::Removed { actuator } => {
                view.delete(ACTUATORS, &encode(actuator));
                touched = networks(view);
            }
            EventBody::Refused { actuator, key, version, refusal } => {
                view.put(REFUSALS, &encode(&(actuator, key)), encode(&(version, refusal)))?;
            }
            EventBody::Usage(report) => {
                view.put("usage", &encode(&report.actuator), encode(report))?;
            }
            EventBody::Health(_)
            | EventBody::Repair(_)
            | EventBody::FileWall(_)
            | EventBody::Domain(_)
            | EventBody::Identity(_)
            | EventBody::PacketIn(_)
            | EventBody::Apply(_)
            | EventBody::Said(_)
            | EventBody::JoinedBy(_)
            | EventBody::Approval(_)
            | EventBody::Rule(_)
            | EventBody::Report(_)
            | EventBody::Converted(_)
            | EventBody::Group(_)
            | EventBody::Conduct(_)
            | EventBody::Clock { .. } => {}
            // Whoever can read it or not: sessions keep it from who cannot.
            EventBody::Order(order) => {
                let change =
                    order.spec.clone().map_or(Change::Delete, |spec| Change::Put(Entry::Plane(spec)));
                let key = Key::Plane { plane: order.plane.clone(), name: order.name.clone() };
                let updates = vec![planned(&(order.actuator.clone(), key), version, change, Vec::new())];
                return Ok(Decision { plan: Plan { updates } });
            }
            EventBody::Speaks { name, protocol } => {
                view.put(SPEAKS_TABLE, name.as_str().as_bytes(), encode(protocol))?;
                let change = match *protocol >= SWITCHES_SINCE {
                    true => Change::Put(Entry::Underlays(UnderlaysEntry::default())),
                    false => Change::Delete,
                };
                let node = (name.clone(), Key::Underlays);
                let updates = vec![planned(&node, version, change, Vec::new())];
                return Ok(Decision { plan: Plan { updates } });
            }
        }
        let mut plan = Plan::default();
        for network in touched {
            compute(view, &network, version, &mut plan)?;
        }
        Ok(Decision { plan })
    }
}

fn networks(view: &View<'_>) -> BTreeSet<Label> {
    let all: Vec<(Label, Label, Label)> = read(view, ENDPOINTS, b"");
    all.into_iter().map(|(network, ..)| network).collect()
}

fn mutate(view: &mut View<'_>, mutation: &Mutation, network: &Label) -> Result<(), Rejection> {
    let key = encode(&(network, &mutation.id.name));
    match (mutation.id.kind, &mutation.wanted) {
        (Kind::Endpoint, Wanted::Document(host)) => {
            let host = Label::new(host.as_str()).map_err(|error| Rejection::Reference {
                resource: mutation.id.to_string(),
                problem: error.to_string(),
            })?;
            view.put(ENDPOINTS, &key, encode(&(network, &mutation.id.name, host)))
        }
        (Kind::Endpoint, Wanted::Absent) => {
            view.delete(ENDPOINTS, &key);
            Ok(())
        }
        (_, Wanted::Document(action)) => {
            view.put(POLICIES, &encode(network), Arc::<[u8]>::from(action.as_bytes()))
        }
        (_, Wanted::Absent) => {
            view.delete(POLICIES, &encode(network));
            Ok(())
        }
    }
}
