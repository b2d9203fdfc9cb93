//! Random events over few names, so that they meet.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::net::IpAddr;
use weir_apps::fabric::{desired, resource, resources, vni_of};
use weir_model::entry::Vni;
use weir_model::event::{
    ActuatorFacts, Event, EventBody, Mutation, Role, SourceId, Transaction, TurnUse, Usage, UsageReport,
    Wanted,
};
use weir_model::packet_in::{PacketIn, PacketInReport, Why};
use weir_model::resource::{Kind, Resource, ResourceId};
use weir_model::session::{PLANES_SINCE, PROTOCOL_MIN};
use weir_model::update::Refusal;
use weir_model::{Label, Version};
use weir_store::Store;

pub(super) fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

pub(super) fn event(version: Version, body: EventBody) -> Event {
    let source = if matches!(body, EventBody::Speaks { .. }) { "controller/c1" } else { "test" };
    Event { source: SourceId(source.into()), sequence: version.0, body }
}

/// All switches that there may be.
pub(super) fn actuators() -> Vec<Label> {
    ["g0", "g1", "h0", "h1", "h2", "h3"].map(label).to_vec()
}

pub(super) fn pick<'a, T>(rng: &mut ChaCha8Rng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

fn name(rng: &mut ChaCha8Rng, letter: char, count: u32) -> String {
    format!("{letter}{}", rng.random_range(0..count))
}

/// Two networks to begin with; without them most transactions would be rejected.
pub(super) fn beginning() -> EventBody {
    let documents: Vec<Value> = ["n0", "n1"]
        .into_iter()
        .flat_map(|network| {
            let subnet = |name: &str, v4: &str, v6: &str| json!({"kind": "subnet", "network": network, "name": name, "v4": v4, "v6": v6});
            [
                json!({"kind": "network", "name": network}),
                subnet("s0", "10.0.0.0/28", "fd00::/64"),
                subnet("s1", "10.0.0.16/28", "fd00:1::/64"),
            ]
        })
        .collect();
    let mutations = documents.iter().map(|document| Mutation {
        id: document_id(document),
        expected: None,
        wanted: Wanted::Document(document.to_string()),
    });
    EventBody::Intent(Transaction { mutations: mutations.collect(), replace_all: true })
}

pub(super) fn document_id(document: &Value) -> ResourceId {
    let text = |field: &str| document[field].as_str().map(label);
    let kind: Kind = document["kind"].as_str().unwrap().parse().unwrap();
    ResourceId { kind, network: text("network"), name: text("name").unwrap() }
}

/// Usually `often`, now and then `rarely`.
fn mostly<T>(rng: &mut ChaCha8Rng, often: T, rarely: T) -> T {
    if rng.random_range(0..25) == 0 { rarely } else { often }
}

pub(super) fn body(rng: &mut ChaCha8Rng, store: &Store) -> EventBody {
    match rng.random_range(0..100) {
        _ if store.count(weir_apps::fabric::tables::VNIS) == 0 => beginning(),
        0..60 => EventBody::Intent(transaction(rng, store)),
        60..72 => EventBody::Joined(facts(rng)),
        72..76 => EventBody::Speaks {
            name: pick(rng, &actuators()).clone(),
            // Numbers of a log that is there, not this release's: they stay when that one rises.
            protocol: *pick(rng, &[PROTOCOL_MIN, PLANES_SINCE, PLANES_SINCE]),
        },
        76..79 => EventBody::Removed { actuator: pick(rng, &actuators()).clone() },
        79..86 => EventBody::Usage(report(rng, store)),
        86..94 => packets(rng, store),
        _ => refused(rng, store),
    }
}

pub(super) fn join(name: &str) -> EventBody {
    let role = if name.starts_with('g') { Role::Gateway } else { Role::Host };
    EventBody::Joined(ActuatorFacts {
        name: label(name),
        role,
        identity: [0; 32],
        underlay: [10, 9, 0, 1].into(),
    })
}

fn facts(rng: &mut ChaCha8Rng) -> ActuatorFacts {
    let name = pick(rng, &actuators()).clone();
    let gateway = name.as_str().starts_with('g');
    let role = if gateway { mostly(rng, Role::Gateway, Role::Host) } else { Role::Host };
    ActuatorFacts { name, role, identity: [0; 32], underlay: [10, 9, 0, rng.random_range(1..4)].into() }
}

pub(super) fn transaction(rng: &mut ChaCha8Rng, store: &Store) -> Transaction {
    let size = *pick(rng, &[1, 1, 2, 2, 3, 4, 8]);
    let mut mutations: Vec<Mutation> = Vec::new();
    for _ in 0..size {
        let next = mutation(rng, store);
        if mutations.iter().all(|m| m.id != next.id) || rng.random_range(0..30) == 0 {
            mutations.push(next);
        }
    }
    Transaction { mutations, replace_all: rng.random_range(0..100) == 0 }
}

fn mutation(rng: &mut ChaCha8Rng, store: &Store) -> Mutation {
    let document = document(rng);
    let id = document_id(&document);
    let found = resource(store, &id).map_or(Version::ZERO, |stored| stored.version);
    let expected = match rng.random_range(0..20) {
        0 => Some(mostly(rng, found, Version::ZERO)),
        1..4 => Some(found),
        _ => None,
    };
    let wanted = match rng.random_range(0..6) {
        0 => Wanted::Absent,
        _ => Wanted::Document(document.to_string()),
    };
    Mutation { id, expected, wanted }
}

fn document(rng: &mut ChaCha8Rng) -> Value {
    let network = name(rng, 'n', 2);
    let mtu = *pick(rng, &[1400, 9000]);
    let mtu = mostly(rng, mtu, 100);
    match rng.random_range(0..23) {
        20.. => balancer(rng, &network),
        0 => json!({"kind": "network", "name": network, "mtu": mtu,
            "ingress": *pick(rng, &["allow", "deny"]), "externalAccess": rng.random_bool(0.5)}),
        1..3 => subnet(rng, &network),
        3..12 => endpoint(rng, &network),
        12..15 => {
            let hop = match rng.random_range(0..4) {
                0 => json!("external"),
                1 => json!("drop"),
                _ => json!({"endpoint": name(rng, 'e', 5)}),
            };
            json!({"kind": "route", "network": network, "name": name(rng, 'r', 3), "nextHop": hop,
                "prefix": *pick(rng, &["0.0.0.0/0", "10.7.0.0/16", "::/0"]), "priority": rng.random_range(1..3)})
        }
        _ => {
            let count = rng.random_range(0..3);
            let peers: Vec<Value> = (0..count)
                .map(|_| match rng.random_range(0..4) {
                    0 => json!({"prefix": "10.0.0.0/8"}),
                    _ => json!({"tag": name(rng, 't', 3)}),
                })
                .collect();
            json!({"kind": "firewall-rule", "network": network, "name": name(rng, 'f', 4),
                "direction": *pick(rng, &["ingress", "egress"]), "action": *pick(rng, &["allow", "deny"]),
                "priority": rng.random_range(1..4), "peers": peers})
        }
    }
}

fn subnet(rng: &mut ChaCha8Rng, network: &str) -> Value {
    let which = rng.random_range(0..2);
    let mut document = json!({"kind": "subnet", "network": network, "name": format!("s{which}")});
    let (v4, v6) = [("10.0.0.0/28", "fd00::/64"), ("10.0.0.16/28", "fd00:1::/64")][which];
    document["v4"] = json!(mostly(rng, v4, "10.0.0.16/29"));
    if rng.random_range(0..4) > 0 {
        document["v6"] = json!(v6);
    }
    let lease_s = *pick(rng, &[60, 600]);
    let lease_s = mostly(rng, lease_s, 1);
    document["dhcp"] = json!({"leaseS": lease_s});
    document
}

fn endpoint(rng: &mut ChaCha8Rng, network: &str) -> Value {
    let mut document = json!({"kind": "endpoint", "network": network, "name": name(rng, 'e', 5),
        "subnet": name(rng, 's', 2), "state": *pick(rng, &["up", "up", "down"])});
    let tags: Vec<String> = (0..rng.random_range(0..3)).map(|_| name(rng, 't', 3)).collect();
    document["tags"] = json!(tags);
    if rng.random_range(0..8) > 0 {
        document["host"] = json!(name(rng, 'h', 4));
    }
    if rng.random_range(0..3) == 0 {
        let first = document["subnet"] == "s0";
        let known: &[&str] = match mostly(rng, first, !first) {
            true => &["10.0.0.2", "10.0.0.5", "10.0.0.6", "fd00::5"],
            false => &["10.0.0.18", "10.0.0.19", "fd00:1::5", "10.0.0.17"],
        };
        let mut addresses: Vec<&str> = (0..rng.random_range(1..3)).map(|_| *pick(rng, known)).collect();
        addresses.dedup();
        document["addresses"] = json!(addresses);
    }
    if rng.random_range(0..8) == 0 {
        document["mac"] = json!(format!("02:00:00:00:00:0{}", rng.random_range(1..4)));
    }
    // Mostly in a namespace of its network, so that networks rarely get in each other's way.
    if rng.random_range(0..8) > 0 {
        let device = document["name"].clone();
        document["attachment"] = json!({"netns": network, "device": device});
    }
    document
}

fn balancer(rng: &mut ChaCha8Rng, network: &str) -> Value {
    let known = ["10.0.0.9", "10.0.0.25", "fd00::99", "10.0.0.2", "10.0.0.1"];
    let place = *pick(rng, &[0, 0, 1, 2]);
    let wrong = *pick(rng, &[3, 4]);
    let place = mostly(rng, place, wrong);
    let members: std::collections::BTreeSet<String> =
        (0..rng.random_range(0..4)).map(|_| name(rng, 'e', 5)).collect();
    json!({"kind": "balancer", "network": network, "name": name(rng, 'b', 2), "address": known[place],
        "services": [{"protocol": *pick(rng, &["tcp", "udp"]), "port": rng.random_range(1..3)}],
        "members": members.into_iter().collect::<Vec<_>>()})
}

/// Questions whose turn it is, from the endpoints of one network on one host.
fn packets(rng: &mut ChaCha8Rng, store: &Store) -> EventBody {
    let network = label(&name(rng, 'n', 2));
    let actuator = label(&name(rng, 'h', 4));
    let mut packets = Vec::new();
    for stored in resources(store, Some(Kind::Endpoint), Some(&network)) {
        let Resource::Endpoint(endpoint) = &stored.resource else { continue };
        if endpoint.host.as_ref() != Some(&actuator) && rng.random_range(0..20) > 0 {
            continue;
        }
        let source = *pick(rng, &stored.allocated.addresses);
        let virtuals: Vec<IpAddr> = resources(store, Some(Kind::Balancer), Some(&network))
            .filter_map(|stored| match stored.resource {
                Resource::Balancer(balancer) => Some(balancer.address),
                _ => None,
            })
            .collect();
        let destination = if virtuals.is_empty() { [10, 0, 0, 9].into() } else { *pick(rng, &virtuals) };
        packets.push(PacketIn {
            endpoint: endpoint.name.clone(),
            why: Why::Balanced,
            source_mac: stored.allocated.mac.unwrap(),
            source: Some(source),
            destination: Some(destination),
            protocol: 6,
            ports: (1, 1),
        });
    }
    let vni = vni_of(store, &network).unwrap_or(Vni(99));
    EventBody::PacketIn(PacketInReport { actuator, vni, packets })
}

/// Turns that were used, as a host tells.
fn turns(rng: &mut ChaCha8Rng, store: &Store, actuator: &Label) -> Vec<TurnUse> {
    let of = |key: weir_model::Key| match key {
        weir_model::Key::Turn { vni, client, address } => Some(TurnUse { vni, client, address }),
        _ => None,
    };
    let all: Vec<TurnUse> = desired(store, actuator).filter_map(|(key, _, _)| of(key)).collect();
    all.into_iter().filter(|_| rng.random_bool(0.7)).collect()
}

fn usages(rng: &mut ChaCha8Rng, store: &Store) -> Vec<Usage> {
    let mut known: Vec<(Vni, IpAddr)> = vec![(Vni(99), [10, 0, 0, 2].into())];
    for stored in resources(store, Some(Kind::Endpoint), None) {
        let vni = vni_of(store, &stored.resource.id().network.unwrap()).unwrap();
        known.extend(stored.allocated.addresses.iter().map(|address| (vni, *address)));
    }
    (0..rng.random_range(1..6))
        .map(|_| {
            let (vni, address) = *pick(rng, &known);
            Usage { vni, address, bytes: *pick(rng, &[0, 50_000, 60_000]) }
        })
        .collect()
}

fn report(rng: &mut ChaCha8Rng, store: &Store) -> UsageReport {
    let actuator = label(&name(rng, 'h', 4));
    let through_gateway = usages(rng, store);
    let turns = turns(rng, store, &actuator);
    UsageReport { actuator, window_ms: 1000, through_gateway, direct: usages(rng, store), turns }
}

fn refused(rng: &mut ChaCha8Rng, store: &Store) -> EventBody {
    let actuator = pick(rng, &actuators()).clone();
    let keys: Vec<_> = desired(store, &actuator).map(|(key, version, _)| (key, version)).collect();
    let (key, version) = match keys.is_empty() {
        true => (weir_model::Key::Policy { vni: Vni(50) }, Version(1)),
        false => pick(rng, &keys).clone(),
    };
    let refusal = match rng.random_range(0..3) {
        0 => Refusal::Failed("it broke".into()),
        1 => Refusal::Full { limit: 3 },
        _ => Refusal::Stale { in_force: Version(store.version().0.saturating_sub(rng.random_range(0..3))) },
    };
    EventBody::Refused { actuator, key, version, refusal }
}
