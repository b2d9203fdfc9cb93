use super::*;
use crate::types::Expected;
use weir_model::event::{ActuatorFacts, Role};
use weir_model::filewall::{PolicyFile, PolicyOrder};
use weir_model::health::{RepairAction, RepairOrder};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

fn rule(name: &str, action: &str) -> Value {
    json!({"kind": "firewall-rule", "network": "red", "name": name, "direction": "ingress", "action": action, "priority": 7})
}

fn wall(text: &str) -> Value {
    let files = json!([{ "name": "a.yaml", "text": text }]);
    json!({"kind": "filewall", "host": "h1", "name": "wall", "spec": {"files": files}})
}

fn id_of(document: &Value) -> ResourceId {
    Resource::from_document(document).unwrap().id()
}

fn put(document: &Value) -> Mutation {
    Mutation { id: id_of(document), expected: None, wanted: Wanted::Document(document.to_string()) }
}

fn gone(document: &Value) -> Mutation {
    Mutation { id: id_of(document), expected: None, wanted: Wanted::Absent }
}

fn intent(mutations: Vec<Mutation>, replace_all: bool) -> EventBody {
    EventBody::Intent(Transaction { mutations, replace_all })
}

/// Two rules to put, one to delete.
fn request() -> ApplyRequest {
    ApplyRequest {
        resources: vec![rule("a", "deny"), rule("b", "deny")],
        delete: vec![id_of(&rule("c", "deny")).into()],
        expected: vec![Expected { id: id_of(&rule("a", "deny")).into(), version: 3 }],
        ..ApplyRequest::default()
    }
}

fn made() -> Vec<Mutation> {
    let first = Mutation { expected: Some(Version(3)), ..put(&rule("a", "deny")) };
    vec![first, put(&rule("b", "deny")), gone(&rule("c", "deny"))]
}

fn refuses(asked: &Asked<'_>, body: &EventBody, word: &str) {
    let said = asked.check(body).unwrap_err();
    assert!(said.contains(word) && said.contains("Nothing was signed"), "'{word}' is not in: {said}");
}

#[test]
fn a_change_is_signed_where_it_is_the_one_that_was_asked() {
    let request = request();
    let asked = Asked::Apply(&request);
    asked.check(&intent(made(), false)).unwrap();
    // In another order, and with what says the same written otherwise.
    let mut other: Vec<Mutation> = made();
    other.reverse();
    other[1].wanted = Wanted::Document(serde_json::to_string_pretty(&rule("b", "deny")).unwrap());
    asked.check(&intent(other, false)).unwrap();
    asked
        .check(&EventBody::Apply(Apply {
            resources: Transaction { mutations: made(), replace_all: false },
            orders: Vec::new(),
        }))
        .unwrap();
}

/// What a controller may try.
#[test]
fn a_change_is_not_signed_with_anything_that_was_not_asked() {
    let request = request();
    let asked = Asked::Apply(&request);
    let changed = |change: &dyn Fn(&mut Vec<Mutation>)| {
        let mut mutations = made();
        change(&mut mutations);
        intent(mutations, false)
    };
    let allow_all = rule("evil", "allow");
    refuses(&asked, &changed(&|all| all.push(put(&allow_all))), "firewall-rule/red/evil");
    refuses(
        &asked,
        &changed(&|all| all[1] = put(&rule("b", "allow"))),
        "firewall-rule/red/b with other fields",
    );
    refuses(&asked, &changed(&|all| all[1] = gone(&rule("b", "deny"))), "the end of firewall-rule/red/b");
    refuses(&asked, &changed(&|all| all.push(gone(&rule("d", "deny")))), "the end of firewall-rule/red/d");
    refuses(&asked, &changed(&|all| all.truncate(2)), "without firewall-rule/red/c");
    refuses(&asked, &changed(&|all| all[0].expected = None), "another version");
    refuses(&asked, &changed(&|all| all[1].expected = Some(Version(9))), "another version");
    refuses(&asked, &changed(&|all| all.push(put(&rule("b", "allow")))), "firewall-rule/red/b");
    refuses(&asked, &changed(&|all| all[1].wanted = Wanted::Document("{}".into())), "other fields");
    refuses(&asked, &intent(made(), true), "all that was not named");
    let whole = ApplyRequest { replace_all: true, ..request.clone() };
    refuses(&Asked::Apply(&whole), &intent(made(), false), "leaves what was not named");
    refuses(&asked, &EventBody::Removed { actuator: label("h1") }, "the removal of 'h1'");
    let order =
        PlaneOrder { plane: label("filewall"), actuator: label("h1"), name: "wall".into(), spec: None };
    let orders = vec![OrderChange { order, expected: None }];
    let resources = Transaction { mutations: made(), replace_all: false };
    refuses(&asked, &EventBody::Apply(Apply { resources, orders }), "the end of filewall/h1/wall");
}

#[test]
fn of_planes_the_specification_is_the_one_that_was_asked() {
    let policy = "kind: none\n";
    let request = ApplyRequest { resources: vec![wall(policy)], ..ApplyRequest::default() };
    let with = |document: Value| {
        let resource = PlaneResource { ..serde_json::from_value(document).unwrap() };
        let PlaneId { plane, host, name } = resource.id();
        let order = PlaneOrder { plane, actuator: host, name, spec: Some(resource.bytes()) };
        let orders = vec![OrderChange { order, expected: None }];
        EventBody::Apply(Apply { resources: Transaction::default(), orders })
    };
    Asked::Apply(&request).check(&with(wall(policy))).unwrap();
    refuses(&Asked::Apply(&request), &with(wall("kind: none\n# other\n")), "another specification");

    let spec = wall(policy)["spec"].clone();
    let id = PlaneId { plane: label("filewall"), host: label("h1"), name: "wall".into() };
    let asked = Asked::Plane { id, spec: Some(&spec) };
    let order = |host: &str, spec: Option<&Value>| {
        let spec = spec.map(|spec| serde_json::to_vec(spec).unwrap());
        EventBody::Order(PlaneOrder {
            plane: label("filewall"),
            actuator: label(host),
            name: "wall".into(),
            spec,
        })
    };
    asked.check(&order("h1", Some(&spec))).unwrap();
    refuses(&asked, &order("h2", Some(&spec)), "'h2'");
    refuses(&asked, &order("h1", None), "another specification");
    refuses(&asked, &order("h1", Some(&json!({"files": []}))), "another specification");
}

#[test]
fn orders_of_repairs_and_policies_are_those_that_were_asked_in_both_forms() {
    let repair = RepairRequest {
        cgroup: "machines/web".into(),
        action: Some(RepairAction::Freeze),
        id: Some("7".into()),
        wait_ms: 0,
    };
    let asked = Asked::Repair(label("h1"), &repair);
    let before = |action| {
        EventBody::Repair(RepairOrder { actuator: label("h1"), cgroup: "machines/web".into(), action })
    };
    let plane = |cgroup: &str, spec: Value| {
        let spec = Some(serde_json::to_vec(&spec).unwrap());
        EventBody::Order(PlaneOrder {
            plane: label("monitor"),
            actuator: label("h1"),
            name: cgroup.into(),
            spec,
        })
    };
    asked.check(&before(Some(RepairAction::Freeze))).unwrap();
    asked.check(&plane("machines/web", json!({"action": "freeze", "id": "7"}))).unwrap();
    refuses(&asked, &before(Some(RepairAction::Kill)), "a repair at 'h1'");
    refuses(&asked, &before(None), "a repair at 'h1'");
    refuses(&asked, &plane("machines/web", json!({"action": "kill", "id": "7"})), "another specification");
    refuses(&asked, &plane("machines/web", json!({"action": "freeze", "id": "8"})), "another specification");
    refuses(&asked, &plane("machines/db", json!({"action": "freeze", "id": "7"})), "machines/db");
    // An id that the request leaves open is the controller's to make; what is done is not.
    let open = RepairRequest { id: None, ..repair.clone() };
    let asked = Asked::Repair(label("h1"), &open);
    asked.check(&plane("machines/web", json!({"action": "freeze", "id": "8"}))).unwrap();
    refuses(&asked, &plane("machines/web", json!({"action": "kill", "id": "8"})), "another specification");

    let files = |text: &str| Some(vec![PolicyFile { name: "a.yaml".into(), text: text.into() }]);
    let request = FileWallRequest { files: files("kind: none\n"), wait_ms: 0 };
    let asked = Asked::FileWall(label("h1"), label("wall"), &request);
    let order =
        |files| EventBody::FileWall(PolicyOrder { actuator: label("h1"), wall: label("wall"), files });
    asked.check(&order(files("kind: none\n"))).unwrap();
    refuses(&asked, &order(files("")), "policies of FileWall 'wall'");
    refuses(&asked, &order(None), "policies of FileWall 'wall'");
}

#[test]
fn what_is_asked_by_name_is_that_and_no_other() {
    let about = |whose: &str, change| IdentityEvent::Token {
        whose: weir_model::event::SourceId::of_actuator(&label(whose)),
        id: [7; 16],
        change,
    };
    let voided = |id| {
        let IdentityEvent::Token { whose, change, .. } = about("h1", TokenChange::Voided) else {
            unreachable!()
        };
        EventBody::Identity(Box::new(IdentityEvent::Token { whose, id, change }))
    };
    let asked = Asked::VoidToken([7; 16]);
    asked.check(&voided([7; 16])).unwrap();
    refuses(&asked, &voided([8; 16]), "identity");
    let used = TokenChange::Used { key: [1; 32] };
    refuses(&asked, &EventBody::Identity(Box::new(about("h1", used))), "identity");

    let forget = Asked::event(EventBody::Removed { actuator: label("h1") });
    forget.check(&EventBody::Removed { actuator: label("h1") }).unwrap();
    refuses(&forget, &EventBody::Removed { actuator: label("h2") }, "the removal of 'h2'");
    refuses(&forget, &intent(vec![put(&rule("evil", "allow"))], false), "a change of 1 resources");
    let facts = ActuatorFacts {
        name: label("evil"),
        role: Role::Host,
        identity: [1; 32],
        underlay: "192.0.2.1".parse().unwrap(),
    };
    refuses(&forget, &EventBody::Joined(facts), "what no operator orders");
}
