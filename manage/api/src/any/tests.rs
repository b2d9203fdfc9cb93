use super::*;
use serde_json::json;

fn read(document: &Value) -> Result<AnyResource, String> {
    AnyResource::from_document(document).map_err(|error| error.to_string())
}

/// The toy, and nothing of it outside its vocabulary.
fn greeting() -> Value {
    json!({"kind": "echo", "host": "h1", "name": "good day", "spec": {"text": "x"}})
}

#[test]
fn a_kind_of_a_plane_is_one_by_its_vocabulary_alone() {
    let toy = read(&greeting()).unwrap();
    assert_eq!((toy.kind().as_str(), toy.id().to_string().as_str()), ("echo", "echo/h1/good day"));
    assert_eq!(toy.of_plane().unwrap().describe(), "say 'x'");
    assert_eq!(serde_json::to_value(&toy).unwrap(), greeting());
    assert_eq!(serde_json::from_value::<AnyResource>(greeting()).unwrap(), toy);
    let Named::Plane(id) = toy.id().named().unwrap() else { panic!("{toy:?}") };
    assert_eq!(id, toy.of_plane().unwrap().id());
    for plane in ALL {
        assert!(kinds().any(|kind| kind == plane.kind));
        assert_eq!(parse_kind(&format!("{}s", plane.kind)).unwrap().as_str(), plane.kind);
        assert_eq!(plane_of(&kind_label(plane.kind)).as_str(), plane.name);
    }
    assert!(parse_kind("cloud").unwrap_err().to_string().contains("balancer, filewall"));
}

#[test]
fn what_is_wrong_with_one_is_told_by_its_field() {
    let said = |field: &str, value: Value| {
        let mut document = greeting();
        document[field] = value;
        read(&document).unwrap_err()
    };
    assert!(said("kind", json!("nobody")).starts_with("kind: 'nobody' is not allowed: network, subnet"));
    assert!(said("host", json!("H1")).starts_with("host: 'H1' is not allowed: 1 to 63 of a-z"));
    assert!(said("host", Value::Null).contains("host: '' is not allowed: it must be given"));
    assert!(said("name", json!(7)).contains("goes in quotes"));
    assert!(said("name", json!("")).contains("1 to 255 bytes"));
    assert!(said("name", json!("x".repeat(256))).contains("1 to 255 bytes"));
    assert!(said("name", json!("a\nb")).contains("no control characters"));
    assert!(
        said("spec", json!({"text": ""})).contains("spec.text: '' is not allowed: a text that is not empty")
    );
    assert!(said("spec", json!({"words": ""})).contains("unknown field `words`"));
    assert!(
        said("network", json!("red")).contains("network: '\"red\"' is not allowed: there is no such field")
    );
    let long = "x".repeat(weir_model::plane::SPEC_BYTES_MAX);
    assert!(said("spec", json!({"text": long})).contains("at most 131072 bytes"));
    read(&json!({"kind": "echo", "host": "h1", "name": "x".repeat(255), "spec": {"text": "x"}})).unwrap();
}

#[test]
fn an_id_of_what_nobody_knows_can_be_said_and_a_mixed_one_cannot() {
    let id = |json: Value| serde_json::from_value::<AnyId>(json).unwrap().named();
    let later = id(json!({"kind": "later", "host": "h1", "name": "a b"})).unwrap();
    let Named::Plane(PlaneId { plane, .. }) = later else { panic!("{later:?}") };
    assert_eq!(plane.as_str(), "later");
    for (wrong, field) in [
        (json!({"kind": "later", "name": "a"}), "host"),
        (json!({"kind": "later", "host": "h1", "network": "red", "name": "a"}), "network"),
        (json!({"kind": "endpoint", "host": "h1", "network": "red", "name": "a"}), "host"),
        (json!({"kind": "network", "name": "a b"}), "name"),
        (json!({"kind": "echo", "host": "h1", "name": ""}), "name"),
    ] {
        assert_eq!(id(wrong.clone()).unwrap_err().field, field, "{wrong}");
    }
    let network = ResourceId { kind: Kind::Network, network: None, name: Label::new("red").unwrap() };
    let text = serde_json::to_value(AnyId::from(network.clone())).unwrap();
    assert_eq!(text, serde_json::to_value(network).unwrap(), "as it was before there were others");
}

#[test]
fn policies_are_compared_file_by_file() {
    let wall = |files: Value| {
        let document = json!({"kind": "filewall", "host": "h1", "name": "wall", "spec": {"files": files}});
        read(&document).unwrap().of_plane().unwrap().clone()
    };
    let file = |name: &str, text: &str| json!({"name": name, "text": text});
    let old = wall(json!([file("a.yaml", "1"), file("b.yaml", "2")]));
    let new = wall(json!([file("a.yaml", "1"), file("b.yaml", "3"), file("c.yaml", "4")]));
    assert!(!old.says_the_same(&new) && old.says_the_same(&old));
    let found = old.differences(&new);
    assert_eq!(found[0], ("spec.files.b.yaml.text".into(), Some(json!("2")), Some(json!("3"))));
    assert_eq!((found[1].0.as_str(), &found[1].1, found.len()), ("spec.files.c.yaml", &None, 2));
}
