//! Conversations: documents in, updates out.

use crate::Deciders;
use crate::delta::{REFUSALS_MAX, REISSUES_MAX, TOMBSTONES_MAX};
use crate::fabric::*;
use serde_json::{Value, json};
use weir_model::entry::Vni;
use weir_model::event::{
    ActuatorFacts, Event, EventBody, Mutation, Role, SourceId, Transaction, Usage, UsageReport, Wanted,
};
use weir_model::resource::{FieldError, Kind, ResourceId};
use weir_model::update::{Reason, Refusal};
use weir_model::{Change, Entry, Key, Label, Plan, Version};
use weir_store::{App, Rejection, Store};

mod allocation;
mod balancer;
mod conduct;
mod documents;
mod domains;
mod filewall;
mod health;
mod learned;
mod order;
mod orders;
mod reports;
mod switches;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

/// `kind/name` for a network, `kind/network/name` for everything else.
fn id(text: &str) -> ResourceId {
    let parts: Vec<&str> = text.split('/').collect();
    let network = (parts.len() == 3).then(|| label(parts[1]));
    ResourceId { kind: parts[0].parse().unwrap(), network, name: label(parts[parts.len() - 1]) }
}

fn document_id(document: &Value) -> ResourceId {
    let text = |field: &str| document[field].as_str().map(label);
    let kind: Kind = document["kind"].as_str().unwrap().parse().unwrap();
    ResourceId { kind, network: text("network"), name: text("name").unwrap() }
}

fn mutation(document: &Value) -> Mutation {
    Mutation { id: document_id(document), expected: None, wanted: Wanted::Document(document.to_string()) }
}

/// A store with the deciders beside it, and an ordered clock.
struct Cloud {
    app: Deciders,
    store: Store,
    now_ms: u64,
}

impl Cloud {
    fn new() -> Cloud {
        Cloud { app: Deciders::default(), store: Store::new(), now_ms: 1_000 }
    }

    /// Gateways g1 and g2 and hosts h1 to h3, and no network.
    fn with_switches() -> Cloud {
        let mut cloud = Cloud::new();
        for (name, role, last) in [
            ("g1", Role::Gateway, 101),
            ("g2", Role::Gateway, 102),
            ("h1", Role::Host, 1),
            ("h2", Role::Host, 2),
            ("h3", Role::Host, 3),
        ] {
            cloud.join(name, role, last);
        }
        cloud
    }

    fn decide(&mut self, body: EventBody) -> Result<Plan, Rejection> {
        let version = Version(self.store.version().0 + 1);
        let event = Event { source: SourceId("test".into()), sequence: version.0, body };
        let mut view = self.store.view();
        let plan = self.app.decide(&mut view, version, self.now_ms, &event)?.plan;
        let writes = view.into_writes();
        self.store.commit(version, writes);
        Ok(plan)
    }

    fn join(&mut self, name: &str, role: Role, last: u8) -> Plan {
        let underlay = [10, 0, 0, last].into();
        self.decide(EventBody::Joined(ActuatorFacts {
            name: label(name),
            role,
            identity: [last; 32],
            underlay,
        }))
        .unwrap()
    }

    fn mutate(&mut self, mutations: Vec<Mutation>) -> Result<Plan, Rejection> {
        self.decide(EventBody::Intent(Transaction { mutations, replace_all: false }))
    }

    fn try_apply(&mut self, documents: Value) -> Result<Plan, Rejection> {
        self.mutate(documents.as_array().unwrap().iter().map(mutation).collect())
    }

    fn apply(&mut self, documents: Value) -> Plan {
        self.try_apply(documents).unwrap()
    }

    fn try_delete(&mut self, ids: &[&str]) -> Result<Plan, Rejection> {
        let gone = |text: &&str| Mutation { id: id(text), expected: None, wanted: Wanted::Absent };
        self.mutate(ids.iter().map(gone).collect())
    }

    fn rejected(&mut self, documents: Value) -> String {
        let before = self.store.digest();
        let text = self.try_apply(documents).unwrap_err().to_string();
        assert_eq!(self.store.digest(), before);
        text
    }

    fn stored(&self, text: &str) -> Stored {
        resource(&self.store, &id(text)).unwrap()
    }

    fn addresses(&self, text: &str) -> Vec<String> {
        self.stored(text).allocated.addresses.iter().map(ToString::to_string).collect()
    }

    fn entry(&self, actuator: &str, key: Key) -> Option<Entry> {
        desired_entry(&self.store, &label(actuator), &key)?.1
    }
}

/// A plan as lines `+actuator key` and `-actuator key`, sorted.
fn lines(plan: &Plan) -> Vec<String> {
    let mut lines: Vec<String> = plan.updates.iter().map(|p| line(&p.update)).collect();
    lines.sort();
    lines
}

fn line(update: &weir_model::Update) -> String {
    let sign = if update.change == Change::Delete { '-' } else { '+' };
    format!("{sign}{} {}", update.target, update.key)
}

/// What one update of a plan waits for, as `actuator key @version`.
fn after(plan: &Plan, wanted: &str) -> Vec<String> {
    let planned = plan.updates.iter().find(|p| line(&p.update) == wanted);
    let planned = planned.unwrap_or_else(|| panic!("no {wanted} in {:?}", lines(plan)));
    let mut after: Vec<String> =
        planned.after.iter().map(|d| format!("{} {} @{}", d.target, d.key, d.version.0)).collect();
    after.sort();
    after
}

fn network(name: &str) -> Value {
    json!({"kind": "network", "name": name})
}

fn subnet(network: &str, v4: &str) -> Value {
    json!({"kind": "subnet", "network": network, "name": "main", "v4": v4})
}

fn endpoint(network: &str, name: &str, host: &str) -> Value {
    json!({"kind": "endpoint", "network": network, "name": name, "subnet": "main", "host": host})
}

/// `value` with more fields.
fn with(mut value: Value, more: Value) -> Value {
    for (field, content) in more.as_object().unwrap() {
        value[field] = content.clone();
    }
    value
}

fn red() -> Value {
    json!([network("red"), subnet("red", "10.0.0.0/24")])
}

#[test]
fn a_first_endpoint_programs_its_host_and_the_gateways_and_nobody_else() {
    let mut cloud = Cloud::with_switches();
    let plan = cloud.apply(red());
    assert_eq!(lines(&plan), ["+g1 network/1", "+g2 network/1"]);
    let plan = cloud.apply(json!([endpoint("red", "web", "h1")]));
    assert_eq!(
        lines(&plan),
        [
            "+g1 location/1/10.0.0.2",
            "+g2 location/1/10.0.0.2",
            "+h1 network/1",
            "+h1 policy/1",
            "+h1 port/1/web"
        ]
    );
    assert_eq!(after(&plan, "+h1 port/1/web"), ["h1 network/1 @7", "h1 policy/1 @7"]);
    assert_eq!(after(&plan, "+g1 location/1/10.0.0.2"), ["h1 port/1/web @7"]);
    let summary = plan_summary(&plan).to_string();
    assert!(summary.starts_with("5 updates at 3 switches, 3 of them ordered after another\n"), "{summary}");
    assert!(summary.contains("h1: networks +1, policies +1, ports +1"), "{summary}");
}

#[test]
fn a_document_applied_again_changes_nothing() {
    let mut cloud = Cloud::with_switches();
    let all = json!([network("red"), subnet("red", "10.0.0.0/24"), endpoint("red", "web", "h1")]);
    cloud.apply(all.clone());
    let digest = cloud.store.digest();
    assert_eq!(cloud.apply(all), Plan::default());
    assert_eq!(cloud.store.digest(), digest);
    assert_eq!(cloud.stored("endpoint/red/web").version, Version(6));
}

#[test]
fn the_order_inside_a_document_means_nothing() {
    let documents = [
        endpoint("red", "b", "h2"),
        json!({"kind": "route", "network": "red", "name": "far", "prefix": "192.168.0.0/16", "nextHop": {"endpoint": "a"}}),
        endpoint("red", "a", "h1"),
        subnet("red", "10.0.0.0/24"),
        network("red"),
    ];
    let mut forward = Cloud::with_switches();
    let mut backward = Cloud::with_switches();
    let plan = forward.apply(documents.to_vec().into());
    assert_eq!(plan, backward.apply(documents.into_iter().rev().collect::<Vec<_>>().into()));
    assert_eq!(forward.store.digest(), backward.store.digest());
    assert_eq!(forward.addresses("endpoint/red/a"), ["10.0.0.2"]);
}

#[test]
fn a_full_update_deletes_what_it_does_not_name() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(json!([network("red"), subnet("red", "10.0.0.0/24"), endpoint("red", "web", "h1")]));
    let kept = vec![mutation(&network("blue"))];
    let plan = cloud.decide(EventBody::Intent(Transaction { mutations: kept, replace_all: true })).unwrap();
    assert_eq!(
        lines(&plan),
        [
            "+g1 network/2",
            "+g2 network/2",
            "-g1 location/1/10.0.0.2",
            "-g1 network/1",
            "-g2 location/1/10.0.0.2",
            "-g2 network/1",
            "-h1 network/1",
            "-h1 policy/1",
            "-h1 port/1/web"
        ]
    );
    assert_eq!(resources(&cloud.store, None, None).count(), 1);
}

#[test]
fn expected_versions_guard_a_change() {
    let mut cloud = Cloud::new();
    let at = |expected: u64, mtu: u16| {
        let mut change = mutation(&with(network("red"), json!({"mtu": mtu})));
        change.expected = Some(Version(expected));
        vec![change]
    };
    cloud.mutate(at(0, 1400)).unwrap();
    let error = cloud.mutate(at(0, 1500)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "network/red is at v1, the change expects v0: read it again and repeat the change"
    );
    cloud.mutate(at(1, 1500)).unwrap();
    assert_eq!(cloud.stored("network/red").version, Version(2));
    assert_eq!(cloud.stored("network/red").created, Version(1));
}

/// One ordered entry must not end who decides it: the pool of a subnet counts from its prefix.
#[test]
fn a_prefix_that_changes_in_one_transaction_with_who_moves_there_is_refused_while_it_is_used() {
    let mut cloud = Cloud::with_switches();
    let named = |name: &str, v4: &str| with(subnet("red", v4), json!({"name": name}));
    let at = |name: &str, subnet: &str, address: &str| {
        with(endpoint("red", name, "h1"), json!({"subnet": subnet, "addresses": [address]}))
    };
    cloud.apply(json!([
        network("red"),
        named("s0", "10.0.0.0/28"),
        named("s1", "10.0.0.16/28"),
        at("stays", "s0", "10.0.0.3"),
    ]));
    let chosen = with(endpoint("red", "moves", "h1"), json!({"subnet": "s1"}));
    // The address that it has there stands where the other's stood in the old prefix.
    cloud.apply(json!([at("first", "s1", "10.0.0.18"), chosen]));
    assert_eq!(cloud.stored("endpoint/red/moves").allocated.addresses[0].to_string(), "10.0.0.19");
    let moved = with(endpoint("red", "moves", "h1"), json!({"subnet": "s0"}));
    for prefix in ["10.0.0.16/29", "10.0.0.16/28", "10.0.0.0/27"] {
        let error = cloud.rejected(json!([named("s0", prefix), moved]));
        assert!(error.contains("endpoint 'stays' has addresses of it"), "{error}");
    }
    // With nobody left there it may.
    cloud.try_delete(&["endpoint/red/stays", "endpoint/red/first", "endpoint/red/moves"]).unwrap();
    cloud.try_delete(&["subnet/red/s1"]).unwrap();
    cloud.apply(json!([named("s0", "10.0.0.16/28"), moved]));
    assert_eq!(cloud.stored("endpoint/red/moves").allocated.addresses[0].to_string(), "10.0.0.18");
}

#[test]
fn what_is_used_cannot_go() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(json!([network("red"), subnet("red", "10.0.0.0/24"), endpoint("red", "web", "h1")]));
    cloud.apply(
        json!([{"kind": "route", "network": "red", "name": "far", "prefix": "0.0.0.0/0", "nextHop": {"endpoint": "web"}}]),
    );
    for (gone, problem) in [
        ("network/red", "endpoint/red/web is still in it"),
        ("subnet/red/main", "endpoint 'web' has addresses of it"),
        ("endpoint/red/web", "route/red/far leads to it"),
    ] {
        let error = cloud.try_delete(&[gone]).unwrap_err().to_string();
        assert!(error.starts_with(gone) && error.contains(problem), "{error}");
    }
    cloud.try_delete(&["network/red", "subnet/red/main", "route/red/far", "endpoint/red/web"]).unwrap();
    assert_eq!(cloud.try_delete(&["endpoint/red/web"]).unwrap(), Plan::default());
}

#[test]
fn what_is_missing_is_named() {
    let mut cloud = Cloud::with_switches();
    let error = cloud.rejected(json!([subnet("red", "10.0.0.0/24")]));
    assert!(error.contains("network 'red' does not exist"), "{error}");
    let error = cloud.rejected(json!([network("red"), endpoint("red", "web", "h1")]));
    assert!(error.contains("its subnet 'main' does not exist in network 'red'"), "{error}");
    cloud.apply(red());
    let error = cloud.rejected(
        json!([{"kind": "route", "network": "red", "name": "r", "prefix": "0.0.0.0/0", "nextHop": {"endpoint": "web"}}]),
    );
    assert!(error.contains("endpoint 'web', does not exist"), "{error}");
    let error = cloud.rejected(json!([endpoint("red", "web", "g1")]));
    assert!(error.contains("'g1' is a gateway"), "{error}");
    let twice = json!([network("blue"), network("blue")]);
    assert!(cloud.rejected(twice).contains("names it twice"));
}

#[test]
fn a_host_that_has_not_joined_is_programmed_when_it_does() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(red());
    assert_eq!(cloud.apply(json!([endpoint("red", "web", "h9")])), Plan::default());
    let plan = cloud.join("h9", Role::Host, 9);
    assert_eq!(
        lines(&plan),
        [
            "+g1 location/1/10.0.0.2",
            "+g2 location/1/10.0.0.2",
            "+h9 gateways",
            "+h9 network/1",
            "+h9 policy/1",
            "+h9 port/1/web"
        ]
    );
    assert_eq!(cloud.join("h9", Role::Host, 9), Plan::default());
    let moved = cloud.join("h9", Role::Host, 10);
    assert_eq!(lines(&moved), ["+g1 location/1/10.0.0.2", "+g2 location/1/10.0.0.2"]);
    let removed = cloud.decide(EventBody::Removed { actuator: label("h9") }).unwrap();
    assert_eq!(lines(&removed), ["-g1 location/1/10.0.0.2", "-g2 location/1/10.0.0.2"]);
    assert_eq!(desired(&cloud.store, &label("h9")).count(), 0);
    assert_eq!(cloud.stored("endpoint/red/web").version, Version(7));
}

#[test]
fn an_actuator_keeps_its_role() {
    let mut cloud = Cloud::with_switches();
    let facts = ActuatorFacts {
        name: label("h1"),
        role: Role::Gateway,
        identity: [0; 32],
        underlay: [10, 0, 0, 1].into(),
    };
    let error = cloud.decide(EventBody::Joined(facts)).unwrap_err().to_string();
    assert!(error.contains("remove it first"), "{error}");
}

#[test]
fn explain_names_the_entries_of_a_resource() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(json!([network("red"), subnet("red", "10.0.0.0/24"), endpoint("red", "web", "h1")]));
    let led = |text: &str| -> Vec<String> {
        let led = explain(&cloud.store, &id(text), 100);
        led.iter().map(|led| format!("{} {}", led.actuator, led.key)).collect()
    };
    let location = "location/1/10.0.0.2";
    assert_eq!(
        led("endpoint/red/web"),
        [format!("g1 {location}"), format!("g2 {location}"), "h1 port/1/web".into()]
    );
    assert_eq!(led("subnet/red/main"), ["g1 network/1", "g2 network/1", "h1 network/1"]);
    assert!(led("network/blue").is_empty());
    assert_eq!(network_of(&cloud.store, Vni(1)), Some(label("red")));
    assert_eq!(actuator(&cloud.store, &label("h1")).unwrap().entries, 4);
}

#[test]
fn limits_refuse_before_a_table_overflows() {
    let settings = FabricSettings {
        endpoints_per_network_max: 2,
        rules_per_network_max: 1,
        rule_tags_per_network_max: 1,
        entries_per_host_max: 5,
        ..FabricSettings::default()
    };
    let mut cloud = Cloud::with_switches();
    cloud.app = Deciders::new(settings);
    cloud.apply(red());
    cloud.apply(json!([endpoint("red", "a", "h1"), endpoint("red", "b", "h1")]));
    let error = cloud.rejected(json!([endpoint("red", "c", "h2")]));
    assert_eq!(error, "endpoints of network red of 3 is over the limit of 2");
    let rule = |name: &str, tags: &[&str]| {
        let peers: Vec<Value> = tags.iter().map(|tag| json!({"tag": tag})).collect();
        json!({"kind": "firewall-rule", "network": "red", "name": name, "direction": "ingress", "action": "allow", "peers": peers})
    };
    assert!(cloud.rejected(json!([rule("x", &["p", "q"])])).contains("tags that the rules of network red"));
    cloud.apply(json!([rule("x", &["p", "p"])]));
    assert!(cloud.rejected(json!([rule("y", &[])])).contains("firewall rules of network red"));
    // Making room and using it is one change.
    cloud
        .mutate(vec![
            mutation(&rule("y", &["q"])),
            Mutation { id: id("firewall-rule/red/x"), expected: None, wanted: Wanted::Absent },
        ])
        .unwrap();
    let blue =
        json!([network("blue"), subnet("blue", "10.0.0.0/24"), with(endpoint("blue", "z", "h1"), json!({}))]);
    assert_eq!(cloud.rejected(blue), "entries of actuator h1 of 8 is over the limit of 5");
}
