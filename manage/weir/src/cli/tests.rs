use super::*;
use serde_json::json;

#[test]
fn the_command_line_is_sound() {
    Arguments::command().debug_assert();
}

#[test]
fn ids_are_read_and_wrong_ones_say_what_is_right() {
    assert_eq!(parse_id("endpoints", "red/web").unwrap().to_string(), "endpoint/red/web");
    assert_eq!(parse_id("network", "red").unwrap().to_string(), "network/red");
    let message = |kind: &str, name: &str| parse_id(kind, name).unwrap_err().to_string();
    assert!(message("endpoint", "web").contains("NETWORK/web"));
    assert!(message("network", "red/web").contains("not the name of a network"));
    assert!(message("cloud", "red").contains("firewall-rule"));
    assert!(message("network", "Red").contains("a-z"));
}

#[test]
fn files_hold_many_documents_and_errors_name_the_place() {
    let text = "kind: network\nname: red\n---\n- {kind: subnet, network: red, name: a, v4: 10.0.0.0/24}\n";
    let documents = input::parse("net.yaml", text).unwrap();
    assert_eq!(documents.len(), 2);
    let wrong = |text: &str| input::parse("net.yaml", text).unwrap_err().to_string();
    let message = wrong("kind: network\nname: red\n---\nkind: network\nname: blue\nmtu: 100\n");
    assert!(
        message.contains("document 2 (blue)") && message.contains("mtu") && message.contains("1280"),
        "{message}"
    );
    assert!(wrong("kind: network\nname: red\ncolour: 1\n").contains("colour"));
    assert!(wrong("kind: [\n").contains("net.yaml"));
    assert!(wrong("kind: cloud\nname: x\n").contains("cloud"));
}

#[test]
fn a_large_file_is_read() {
    let text: String =
        (0..10_000).map(|i| format!("---\nkind: endpoint\nnetwork: red\nname: e{i}\nsubnet: a\n")).collect();
    assert_eq!(input::parse("big", &text).unwrap().len(), 10_000);
}

#[test]
fn a_difference_names_only_what_differs() {
    let old = json!({"name": "red", "mtu": 1400});
    let new = json!({"name": "red", "mtu": 1500});
    let found = apply::differences(Some(&old), Some(&new));
    assert_eq!(found, [("mtu".to_string(), Some(json!(1400)), Some(json!(1500)))]);
    assert_eq!(apply::differences(None, Some(&new)).len(), 2);
}

#[test]
fn exit_codes_are_as_documented() {
    let unreachable = ClientError::Unreachable { server: "x".into(), reason: "y".into() };
    assert_eq!(Failure::Client(unreachable).code(), 3);
    assert_eq!(Failure::Input("x".into()).code(), 2);
    assert_eq!(Failure::Client(ClientError::Answer("x".into())).code(), 1);
}

#[test]
fn every_kind_and_field_is_explained() {
    let schemas = explain::Schemas::load().unwrap();
    for kind in Kind::ALL {
        let text = schemas.explain(kind.as_str()).unwrap();
        assert!(text.contains("name  <text>  required"), "{text}");
    }
    let subnet = schemas.explain("subnet.dhcp").unwrap();
    assert!(subnet.contains("leaseS  <number>  default 3600"), "{subnet}");
    let action = schemas.explain("network.ingress").unwrap();
    assert!(action.contains("<allow | deny>  default deny"), "{action}");
    let hop = schemas.explain("route.nextHop").unwrap();
    assert!(hop.contains("endpoint"), "{hop}");
    let message = schemas.explain("endpoint.colour").err().unwrap().to_string();
    assert!(message.contains("no field 'colour'") && message.contains("addresses"), "{message}");
    assert!(schemas.explain("cloud").err().unwrap().to_string().contains("firewall-rule"));
}

#[test]
fn the_page_of_resources_is_current() {
    let page = include_str!("../../../../docs/operate/resources.md");
    assert_eq!(
        page,
        explain::Schemas::load().unwrap().markdown().unwrap(),
        "run 'weir explain --markdown > docs/operate/resources.md'"
    );
}
