//! A controller that orders what is its operators' to order: by its own word, past its own door, with its own key. And with requests of the
//! operator: stolen, changed, in another's envelope, held back until they are over. Nothing of it is in force, on no switch and in no table;
//! the audit of each of the others names it; and what the operator signs goes on.

use crate::extra::Extra;
use crate::group::{newcomer, wait_known, wait_whole};
use crate::lab::{Lab, byzantine_lab, text};
use crate::namespaces::wait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weir_api::operator::{OperatorKey, now_ms};
use weir_base::codec::encode;
use weir_model::approval::{Approval, Needs};
use weir_model::domain::{DomainEvent, DomainRecord};
use weir_model::event::{
    ActuatorFacts, Apply, Event, EventBody, JoinedBy, Mutation, Role, Said, SourceId, Transaction, Wanted,
};
use weir_model::filewall::{PolicyFile, PolicyOrder};
use weir_model::health::{RepairAction, RepairOrder};
use weir_model::identity::{IdentityEvent, TokenChange};
use weir_model::operator::{OperatorChange, OperatorFacts, OperatorRole};
use weir_model::plane::PlaneOrder;
use weir_model::resource::Resource;
use weir_model::signed::{GroupKey, Signature};
use weir_model::{Key, Label, Version};
use weir_trust::identity::KeyPair;
use weir_trust::said::sign_said;

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn rule(name: &str) -> EventBody {
    let document = json!({"kind": "firewall-rule", "network": "red", "name": name, "direction": "ingress", "action": "allow", "priority": 1});
    let id = Resource::from_document(&document).unwrap().id();
    let mutation = Mutation { id, expected: None, wanted: Wanted::Document(document.to_string()) };
    EventBody::Intent(Transaction { mutations: vec![mutation], replace_all: false })
}

fn identity(about: IdentityEvent) -> EventBody {
    EventBody::Identity(Box::new(about))
}

fn approval(about: Approval) -> EventBody {
    EventBody::Approval(Box::new(about))
}

fn evil() -> ActuatorFacts {
    let (identity, underlay) = (KeyPair::from_seed(&[9; 32]).public(), "198.18.99.9".parse().unwrap());
    ActuatorFacts { name: label("evil"), role: Role::Host, identity, underlay }
}

/// One of each kind that a controller may not order by its own word.
fn bare() -> Vec<EventBody> {
    let key = KeyPair::from_seed(&[9; 32]).public();
    let (whose, id) = (SourceId::of_actuator(&label("evil")), [9; 16]);
    let token = |change| identity(IdentityEvent::Token { whose: whose.clone(), id, change });
    let (role, until_s) = (Role::Host, now_ms() / 1_000 + 3_600);
    let domain = DomainRecord {
        name: label("evil"),
        group_key: GroupKey::Single(key),
        authority_pem: String::new(),
        controllers: Vec::new(),
        underlays: vec!["198.18.99.0/24".parse().unwrap()],
    };
    let all_gone = Transaction { mutations: Vec::new(), replace_all: true };
    let spec = serde_json::to_vec(&json!({"action": "kill", "id": "9"})).unwrap();
    let (monitor, cgroup) = (label("monitor"), "machines/evil".to_owned());
    let files = vec![PolicyFile { name: "a.yaml".into(), text: "kind: none\n".into() }];
    let facts = OperatorFacts { role: OperatorRole::Admin, keys: vec![key] };
    let eve = SourceId::of_operator(&label("eve"));
    let signature = Signature { r: [9; 32], s: [9; 32] };
    vec![
        rule("evil"),
        EventBody::Intent(all_gone.clone()),
        EventBody::Apply(Apply { resources: all_gone, orders: Vec::new() }),
        EventBody::Removed { actuator: label("h2") },
        EventBody::Joined(evil()),
        EventBody::Repair(RepairOrder {
            actuator: label("h1"),
            cgroup: cgroup.clone(),
            action: Some(RepairAction::Kill),
        }),
        EventBody::Order(PlaneOrder {
            plane: monitor,
            actuator: label("h1"),
            name: cgroup,
            spec: Some(spec),
        }),
        EventBody::FileWall(PolicyOrder { actuator: label("h1"), wall: label("evil"), files: Some(files) }),
        EventBody::Domain(Box::new(DomainEvent::Known(domain))),
        identity(IdentityEvent::Revoked {
            whose: SourceId::of_actuator(&label("h1")),
            reason: "evil".into(),
        }),
        identity(IdentityEvent::Introduced { whose: SourceId::of_controller(&label("controller-9")), key }),
        identity(IdentityEvent::Operator { whose: eve, change: OperatorChange::Added(facts) }),
        token(TokenChange::Made { role, until_s, underlay: None }),
        token(TokenChange::MadeWithKey { role, until_s, underlay: None, key }),
        token(TokenChange::Used { key }),
        EventBody::JoinedBy(Box::new(JoinedBy { facts: evil(), token: id, authority: [9; 32], signature })),
        identity(IdentityEvent::Certified {
            whose: SourceId::of_actuator(&label("h1")),
            key: [9; 32],
            until_s: u64::MAX,
        }),
        identity(IdentityEvent::Certified { whose, key: [9; 32], until_s: u64::MAX }),
        approval(Approval::Given([9; 32])),
        approval(Approval::Refused([9; 32])),
        approval(Approval::Needed(Needs::default())),
    ]
}

/// A request of the operator for an event, good for so long.
fn request(key: &OperatorKey, number: u64, body: EventBody, good_ms: u64) -> Said {
    let made_ms = now_ms();
    let event =
        Event { source: SourceId::of_operator(&key.name), sequence: Said::number_at(made_ms) | number, body };
    sign_said(&key.key().unwrap(), &key.domain, event, (made_ms, made_ms + good_ms))
}

fn said(said: &Said) -> EventBody {
    EventBody::Said(Box::new(said.clone()))
}

/// Has a controller order all of this; what became of each.
fn betray(lab: &Lab, traitor: &str, bodies: &[EventBody]) -> Vec<String> {
    let state = lab.folder().join(traitor).join("state");
    let lines: Vec<String> = bodies.iter().map(|body| BASE64_STANDARD.encode(encode(body))).collect();
    // Whole or not at all: it is read as soon as it is there.
    std::fs::write(state.join("betrays.new"), lines.join("\n")).unwrap();
    std::fs::rename(state.join("betrays.new"), state.join("betrays")).unwrap();
    let mut became = Vec::new();
    wait("the traitor to have ordered", || {
        let told = std::fs::read_to_string(state.join("betrayed")).unwrap_or_default();
        became = told.lines().map(str::to_owned).collect();
        became.len() >= bodies.len()
    });
    std::fs::remove_file(state.join("betrayed")).unwrap();
    assert_eq!(became.len(), bodies.len(), "{became:#?}");
    became
}

/// What the tables say: nothing of what is told here names what the traitor orders.
fn tables(lab: &Lab) -> Vec<String> {
    let commands: [&[&str]; 6] = [
        &["get", "all"],
        &["domain", "list"],
        &["operator", "list"],
        &["identity", "list"],
        &["token", "list"],
        &["plane", "show", "h1"],
    ];
    let said: Vec<String> = commands.iter().map(|command| lab.ok(command)).collect();
    for (command, said) in commands.iter().zip(&said) {
        for word in ["evil", "eve", "controller-9"] {
            let named = said.split(|c: char| !c.is_alphanumeric() && c != '-').any(|part| part == word);
            assert!(!named, "{command:?}: {word} in {said}");
        }
    }
    let listed: Vec<Value> = serde_json::from_str(&lab.ok(&["identity", "list", "-o", "json"])).unwrap();
    let h1 = listed.iter().find(|one| one["source"] == "actuator/h1").unwrap();
    assert!(h1["revoked"].is_null(), "{h1}");
    let mut names: Vec<String> = lab.switches().into_iter().map(|one| one.name).collect();
    names.sort();
    assert_eq!(names, ["g1", "h1", "h2", "h3"]);
    // Identities and tokens have times that go on; what is there is what counts.
    vec![said[0].clone(), said[1].clone(), said[2].clone()]
}

/// What each switch has, whatever the version.
fn keys(programmed: &BTreeMap<&'static str, BTreeMap<Key, Version>>) -> Vec<(&'static str, Vec<Key>)> {
    programmed.iter().map(|(switch, entries)| (*switch, entries.keys().cloned().collect())).collect()
}

/// Who is named for it, by the audits of which controllers.
fn named(lab: &Lab) -> Vec<(String, BTreeSet<String>)> {
    let run = lab.weir(&["audit", "faults", "-o", "json"]);
    let faults: Value = serde_json::from_slice(&run.stdout).unwrap_or_default();
    let faults = faults.as_array().cloned().unwrap_or_default();
    let of = |fault: Value| {
        let seen =
            fault["seenBy"].as_array()?.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect();
        let told = fault["what"].as_str()?.contains("no operator signed it");
        told.then(|| (fault["who"].as_str().unwrap_or_default().to_owned(), seen))
    };
    faults.into_iter().filter_map(of).collect()
}

/// Of how many kinds a controller orders by its own word.
pub const KINDS: usize = 21;

/// Whether programs of this build have a way for a controller to order past its own door.
pub fn can(name: &str) -> bool {
    if !cfg!(debug_assertions) {
        println!("NOT RUN {name}: this build has no way for a controller to order past its own door");
    }
    cfg!(debug_assertions)
}

/// Has a controller of a lab do all of it; how much that was, and how much of it was decided. The lab is whole before and after.
pub fn orders(lab: &Lab, traitor: &str) -> (usize, usize) {
    let key = lab.operator().unwrap();
    assert!(lab.ok(&["operator", "list"]).contains("must be signed here"));
    wait_known(lab);
    let (before, told) = (lab.programmed(), tables(lab));

    // By its own word.
    let bodies = bare();
    assert_eq!(bodies.len(), KINDS);
    let mut decided = 0;
    for (body, became) in bodies.iter().zip(betray(lab, traitor, &bodies)) {
        if became.contains("decided") {
            eprintln!("{body:?}: {became}");
            decided += 1;
        }
    }
    assert_eq!(tables(lab), told);
    assert_eq!(lab.programmed(), before);

    // With requests of the operator. One that is handed on is done, once.
    let real = request(&key, 1, rule("told"), 60_000);
    let became = betray(lab, traitor, &[said(&real)]);
    assert!(became[0].contains("decided"), "{became:?}");
    lab.wait_in_step();
    lab.ok(&["delete", "firewall-rule", "red/told", "--yes", "--wait-s", "30"]);
    let changed = Said { event: Event { body: rule("evil"), ..real.event.clone() }, ..real.clone() };
    let eve = SourceId::of_operator(&label("eve"));
    let another = Said { event: Event { source: eve, ..real.event.clone() }, ..real.clone() };
    let later = Said { until_ms: real.until_ms + 60_000, ..real.clone() };
    let number = Event { sequence: real.number() + 1, ..real.event.clone() };
    let number = Said { event: number, ..real.clone() };
    let west = OperatorKey { domain: label("west"), ..key.clone() };
    let west = request(&west, 2, rule("evil"), 60_000);
    let (rejected, held) = (request(&key, 3, rule("evil"), 60_000), request(&key, 4, rule("evil"), 1_000));
    let enveloped = Said { signature: rejected.signature, ..held.clone() };
    let wrong = [&changed, &another, &later, &number, &west, &enveloped].map(said);
    std::thread::sleep(Duration::from_millis(now_ms_until(held.until_ms)));
    let late = betray(lab, traitor, &[&wrong[..], &[said(&held)]].concat());
    let wrong = late.iter().filter(|became| became.contains("decided"));
    decided += wrong.inspect(|became| eprintln!("{became}")).count();
    // The very same once more is no second change.
    betray(lab, traitor, &[said(&real)]);
    lab.wait_in_step();
    assert_eq!(tables(lab), told, "what was told once is not done again");
    wait("the rule that was told to be gone everywhere", || keys(&lab.programmed()) == keys(&before));

    // All of the honest ones name it, and nobody else.
    let liar = traitor.replace('c', "controller-");
    let honest =
        lab.controllers().iter().filter(|one| **one != traitor).map(|one| one.replace('c', "controller-"));
    let honest: BTreeSet<String> = honest.collect();
    wait("the traitor to be named", || named(lab).iter().any(|(_, seen)| seen.is_superset(&honest)));
    assert!(named(lab).iter().all(|(who, _)| *who == liar), "{:?}", named(lab));
    let verified: Value = serde_json::from_str(&lab.ok(&["audit", "verify", "-o", "json"])).unwrap();
    assert_eq!(verified["problems"], 0, "{verified}");
    (bodies.len() + late.len(), decided)
}

/// Makes a key, and an operator with it; the file of the key.
fn operator(lab: &Lab, name: &str, role: &str) -> String {
    let path = lab.folder().join(format!("{name}.key")).display().to_string();
    let made = lab.ok(&["operator", "key", name, "--domain", "lab", "--out", &path, "--force", "-o", "json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    lab.ok(&["operator", "add", name, "--role", role, "--key", made["key"].as_str().unwrap()]);
    path
}

/// What waits for approval: the id.
fn waiting(lab: &Lab) -> Vec<String> {
    let list: Value = serde_json::from_str(&lab.ok(&["approvals", "list", "-o", "json"])).unwrap();
    list["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

/// Asks for something that waits for others; the id of what waits then.
fn asks(lab: &Lab, arguments: &[&str]) -> String {
    let before = waiting(lab);
    let run = lab.weir(arguments);
    let told = text(&run.stderr);
    assert_eq!(run.status.code(), Some(5), "{told}");
    assert!(told.contains("waits for approval") && told.contains("weir approvals approve"), "{told}");
    let mut new = waiting(lab);
    new.retain(|id| !before.contains(id));
    assert_eq!(new.len(), 1, "{told}");
    new.remove(0)
}

/// Chosen kinds of requests wait for several operators; what a traitor makes of that counts for nothing.
fn several_approve(lab: &Lab, traitor: &str) {
    let (carol, dan) = (operator(lab, "carol", "admin"), operator(lab, "dan", "operator"));
    let by = |key: &str, arguments: &[&str]| lab.weir(&[arguments, &["--operator", key]].concat());
    let done = |key: &str, arguments: &[&str]| {
        let run = by(key, arguments);
        assert!(run.status.success(), "{arguments:?}: {}", text(&run.stderr));
        text(&run.stdout)
    };
    lab.ok(&["approvals", "require", "delete=2", "--yes"]);
    let there = || lab.weir(&["get", "firewall-rule", "red/icmp"]).status.success();
    assert!(there());
    let gone = ["delete", "firewall-rule", "red/icmp", "--yes"];
    let id = asks(lab, &gone);
    let digest = weir_model::join::from_hex::<32>(&id).unwrap();
    assert!(there() && lab.ok(&["approvals", "show", &id[..12]]).contains("- firewall-rule/red/icmp"));

    // The traitor's own word, the author's own once more, a copy for another request, one that is over.
    let key = lab.operator().unwrap();
    let late = request(&key, 7, approval(Approval::Given(digest)), 1_000);
    let own = request(&key, 8, approval(Approval::Given(digest)), 60_000);
    let mut other = own.clone();
    other.event.body = approval(Approval::Given([9; 32]));
    std::thread::sleep(Duration::from_millis(now_ms_until(late.until_ms)));
    let bodies = [approval(Approval::Given(digest)), said(&late), said(&own), said(&other)];
    for became in betray(lab, traitor, &bodies) {
        assert!(!became.contains("decided"), "{became}");
    }
    assert!(there() && waiting(lab) == [id.clone()]);
    // The same person counts once, whatever key it has; another one ends it well.
    assert!(text(&lab.weir(&["approvals", "approve", &id, "--yes"]).stderr).contains("counts once"));
    assert!(done(&dan, &["approvals", "approve", &id[..12], "--yes"]).contains("done at version"));
    wait("the rule to be gone", || !there());
    assert_eq!(waiting(lab), [""; 0]);
    let audit = lab.ok(&["audit", "list", "--kind", "event"]);
    assert!(audit.contains("operator/dan asks: approval") && audit.contains(&id), "{audit}");

    // What is refused is gone; one admin changes neither the needs nor the operators.
    let gone = ["delete", "firewall-rule", "red/services", "--yes"];
    let there = || lab.weir(&["get", "firewall-rule", "red/services"]).status.success();
    let id = asks(lab, &gone);
    done(&dan, &["approvals", "reject", &id, "--yes"]);
    assert!(there() && waiting(lab).is_empty());
    let needs = asks(lab, &["approvals", "require", "--yes"]);
    assert!(!by(&dan, &["approvals", "approve", &needs, "--yes"]).status.success());
    done(&carol, &["approvals", "approve", &needs, "--yes"]);
    assert!(lab.ok(&["approvals", "list"]).contains("its author alone"));
    for name in ["carol", "dan"] {
        lab.ok(&["operator", "remove", name, "--yes"]);
        std::fs::remove_file(lab.folder().join(format!("{name}.key"))).unwrap();
    }
}

fn now_ms_until(at_ms: u64) -> u64 {
    // Ordered time may be a moment behind.
    at_ms.saturating_sub(now_ms()) + 2_000
}

#[test]
fn a_controller_that_orders_alone_orders_nothing_and_is_named() {
    if !can("a_controller_that_orders_alone_orders_nothing_and_is_named") {
        return;
    }
    let Some(lab) = byzantine_lab("traitor_orders") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    assert_eq!(orders(&lab, "c4").1, 0, "decided by a controller's word alone");

    // Who does not sign is told what helps, and nothing is done.
    let mut command = lab.command();
    command.args(["delete", "firewall-rule", "red/services", "--yes"]).env_remove("WEIR_OPERATOR");
    let output = command.output().unwrap();
    let told = text(&output.stderr);
    assert!(
        !output.status.success() && told.contains("must sign it") && told.contains("weir operator key"),
        "{told}"
    );

    // An operator comes and goes, by the admin's word; one who is no admin orders resources only.
    let file = lab.folder().join("bob.key");
    let path = file.display().to_string();
    let line =
        lab.ok(&["operator", "key", "bob", "--domain", "lab", "--out", &path, "--force", "-o", "json"]);
    let bob: Value = serde_json::from_str(&line).unwrap();
    lab.ok(&["operator", "add", "bob", "--role", "operator", "--key", bob["key"].as_str().unwrap()]);
    let as_bob = |arguments: &[&str]| lab.weir(&[arguments, &["--operator", &path]].concat());
    let made = as_bob(&["delete", "firewall-rule", "red/icmp", "--yes", "--wait-s", "30"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let beyond = as_bob(&["token", "--name", "h9"]);
    assert!(!beyond.status.success() && text(&beyond.stderr).contains("role"), "{}", text(&beyond.stderr));
    lab.ok(&["operator", "remove", "bob", "--yes"]);
    let gone = as_bob(&["delete", "firewall-rule", "red/services", "--yes"]);
    assert!(!gone.status.success() && text(&gone.stderr).contains("operator/bob"), "{}", text(&gone.stderr));
    let last = lab.weir(&["operator", "remove", "lab", "--yes"]);
    assert!(!last.status.success() && text(&last.stderr).contains("last admin"), "{}", text(&last.stderr));
    std::fs::remove_file(&file).unwrap();

    lab.restore();
    several_approve(&lab, "c4");
    lab.restore();
    newcomer(&lab, &extra, 44);
}
