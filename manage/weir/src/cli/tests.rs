use super::*;
use serde_json::json;
use weir_api::types::ApplyResponse;

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
    assert!(wrong("kind: cloud\nname: x\n").contains("kind: 'cloud' is not allowed: network, subnet"));
    assert!(wrong("hello\n").contains("such as 'kind: network'"));
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let message = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(std::path::PathBuf::from).collect();
        input::read(&paths).unwrap_err().to_string()
    };
    assert!(message(&["/nowhere.yaml"]).contains("/nowhere.yaml: there is no such file; name a file"));
    let empty = tempfile::tempdir().unwrap();
    assert!(message(&[empty.path().to_str().unwrap()]).contains("no resource is in there"));
    let context = context::load(Some(std::path::Path::new("/nowhere/admin.json"))).unwrap_err();
    assert!(context.to_string().contains("copy admin.json there") && context.code() == 1, "{context}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{}").unwrap();
    let context = context::load(Some(file.path())).unwrap_err();
    assert!(context.to_string().contains("copy admin.json anew"), "{context}");
    let refused = |kind: std::io::ErrorKind| Failure::io("x")(kind.into()).to_string();
    assert!(refused(std::io::ErrorKind::PermissionDenied).contains("run this as root"));
    assert!(refused(std::io::ErrorKind::AddrInUse).contains("another port"));
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
fn an_outcome_says_where_it_is_in_force() {
    let done = |joined, updates_total, in_force| ApplyResponse {
        version: Some(7),
        changes: Vec::new(),
        updates: Vec::new(),
        updates_total,
        switches: updates_total,
        joined,
        in_force,
    };
    let cases = [
        (done(0, 0, true), Some(10), "in force nowhere: no host has joined"),
        (done(2, 0, true), Some(10), "no switch needs to know"),
        (done(2, 3, true), Some(10), "in force on every switch"),
        (done(2, 3, false), Some(10), "not in force everywhere after 10 s"),
        (done(2, 3, false), None, "shows when it is in force"),
    ];
    for (done, waited_s, words) in cases {
        let said = apply::outcome(&done, waited_s);
        assert!(said.contains(words) && said.contains("v7"), "{said}");
    }
}

#[test]
fn exit_codes_are_as_documented() {
    let unreachable = ClientError::Unreachable { server: "x".into(), reason: "y".into(), may_be_done: false };
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

#[test]
fn what_another_domain_brought_is_read_or_the_error_says_what_it_should_be() {
    let text = "name: east\ngroupKey: cd\nauthority: |\n  -----BEGIN CERTIFICATE-----\ncontrollers:\n  \
                - {id: 1, key: ab, api: '198.18.2.1:7443'}\n";
    let read = domain::read("east.yaml", text).unwrap();
    assert_eq!((read.name.as_str(), read.controllers[0].api.as_str()), ("east", "198.18.2.1:7443"));
    let json = serde_json::to_string(&read).unwrap();
    assert_eq!(domain::read("east.json", &json).unwrap(), read);
    let message = domain::read("east.yaml", "name: east\ncolour: red\n").unwrap_err().to_string();
    assert!(message.contains("east.yaml") && message.contains("colour"), "{message}");
    assert!(message.contains("weir domain show -o yaml"), "{message}");
}
