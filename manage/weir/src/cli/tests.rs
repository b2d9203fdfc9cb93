use super::*;
use crate::exit::Exit;
use serde_json::json;
use weir_api::client::ClientError;
use weir_api::types::{ApplyResponse, Effect, FieldChange, ResourceChange, TraceLine, TraceResponse};

#[test]
fn the_command_line_is_sound() {
    Arguments::command().debug_assert();
}

/// An argument for all commands may not have the name of one that a command has: that is found only when the command is read.
#[test]
fn every_command_reads_its_own_arguments_beside_those_of_all() {
    for words in [
        &["lab", "up"][..],
        &["lab", "up", "three-controllers"],
        &["lab", "list"],
        &["status", "--lab"],
        &["store", "get", "t/a", "k", "-o", "json", "--lab"],
        &["fs", "status", "-o", "yaml"],
        &["filewall", "top", "--help"],
        &["audit", "list", "--context", "x"],
    ] {
        let read = Arguments::try_parse_from(std::iter::once("weir").chain(words.iter().copied()));
        if let Err(told) = read {
            assert!(!told.use_stderr(), "weir {words:?}: {told}");
        }
    }
}

/// Whoever knows one plane's command knows the others'.
#[test]
fn planes_have_the_same_verbs() {
    let weir = Arguments::command();
    // What a plane has no process or figures of its own for is left to its own command.
    for (name, wanted) in [
        ("filewall", &["serve", "check", "explain", "top", "status", "push", "withdraw"][..]),
        ("monitor", &["serve", "check", "explain", "top", "status", "push", "withdraw"]),
        ("plane", &["check", "explain", "status", "push", "withdraw"]),
    ] {
        let command = weir.find_subcommand(name).unwrap();
        for verb in wanted {
            let found = command.find_subcommand(verb).unwrap_or_else(|| panic!("weir {name} {verb}"));
            let shown = found.get_name() == *verb || found.get_visible_aliases().any(|alias| alias == *verb);
            assert!(shown && !found.is_hide_set(), "weir {name} {verb} is not shown");
        }
    }
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
    assert!(
        context.to_string().contains("copy admin.json there") && context.exit() == Exit::Failed,
        "{context}"
    );
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

fn change(effect: Effect, name: &str) -> ResourceChange {
    ResourceChange {
        id: parse_id("endpoint", &format!("red/{name}")).unwrap(),
        effect,
        version: None,
        fields: Vec::new(),
    }
}

#[test]
fn a_plan_shows_all_that_goes_and_counts_what_it_leaves_out() {
    let mut changes: Vec<ResourceChange> =
        (0..300).map(|number| change(Effect::Create, &format!("new{number}"))).collect();
    changes.extend((0..50).map(|number| change(Effect::Update, &format!("other{number}"))));
    changes.extend((0..318).map(|number| change(Effect::Delete, &format!("old{number}"))));
    changes.push(change(Effect::Unchanged, "same"));
    let lines = apply::changes_shown(&changes, false);
    assert_eq!(lines.iter().filter(|line| line.starts_with("- ")).count(), 318, "what goes is shown all");
    assert_eq!(lines.iter().filter(|line| line.starts_with("+ ")).count(), 200);
    let last = lines.last().unwrap();
    assert_eq!(last, "… and 150 more: 50 endpoints to change, 100 endpoints to create; --all shows them");
    assert_eq!(apply::changes_shown(&changes, true).len(), 300 + 50 + 318);
}

#[test]
fn a_change_says_which_field_with_old_and_new() {
    let mut changed = change(Effect::Update, "web");
    let field = |field: &str, old, new| FieldChange { field: field.to_owned(), old, new };
    changed.fields.push(field("addresses", Some(json!(["10.0.0.5"])), Some(json!(["10.0.0.6"]))));
    changed.fields.push(field("host", None, Some(json!("h1"))));
    changed.fields.push(field("mac", Some(json!("m".repeat(500))), None));
    let lines = apply::changes_shown(&[changed], false);
    assert_eq!(lines[0], "~ endpoint/red/web");
    assert_eq!(lines[1], r#"    addresses: ["10.0.0.5"] -> ["10.0.0.6"]"#);
    assert_eq!(lines[2], "    host: (none) -> h1");
    assert!(lines[3].ends_with("… -> (none)") && lines[3].chars().count() < 160, "{}", lines[3]);
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
        not_ready: Vec::new(),
        without_host: Vec::new(),
        not_in_force: Vec::new(),
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
    let exit = |done, waited_s| apply::exit(&done, waited_s);
    assert_eq!(exit(done(2, 3, true), Some(10)), Exit::Done);
    assert_eq!(exit(done(2, 3, false), Some(10)), Exit::NotInForce);
    assert_eq!(exit(done(2, 3, false), None), Exit::Done, "nobody waited");
    assert_eq!(exit(done(2, 0, false), Some(10)), Exit::Done, "no switch needs to know");
    let without_device =
        ApplyResponse { not_ready: vec!["red/web at h1: no such namespace".into()], ..done(2, 3, true) };
    let said = apply::outcome(&without_device, Some(10));
    assert!(said.contains("not every port carries traffic") && said.contains("no such namespace"), "{said}");
    assert_eq!(exit(without_device, Some(10)), Exit::NotInForce);
    // What a plane's process refuses is told with its reason, also where nothing else is waited for.
    for updates_total in [0, 3] {
        let reason = "filewall/h1/wall: refused: no such export";
        let refused = ApplyResponse { not_in_force: vec![reason.into()], ..done(2, updates_total, false) };
        let said = apply::outcome(&refused, Some(10));
        assert!(said.contains("not in force everywhere after 10 s") && said.contains(reason), "{said}");
        assert_eq!(exit(refused, Some(10)), Exit::NotInForce);
    }
}

#[test]
fn the_page_of_exit_codes_is_the_table() {
    let page = include_str!("../../../../docs/operate/exit-codes.md");
    let rows: Vec<&str> =
        page.lines().filter(|line| line.starts_with("| ") && !line.contains("code")).collect();
    assert_eq!(rows.len(), Exit::ALL.len());
    for (row, exit) in rows.iter().zip(Exit::ALL) {
        assert!(row.starts_with(&format!("| {} | ", exit as u8)), "{row}");
        let source = include_str!("../exit.rs");
        let words = row.split('|').nth(2).unwrap().trim();
        assert!(source.contains(&format!("/// {words}.")), "exit.rs does not say: {words}");
    }
}

/// What a person opens in a packet filter is what the settings that are shipped, and those of the documents, listen at.
#[test]
fn the_table_of_ports_has_each_that_the_settings_name() {
    let page = include_str!("../../../../docs/operate/README.md");
    let settings = [
        include_str!("../../../../packaging/examples/controller.yaml"),
        include_str!("../../../../packaging/examples/gateway.yaml"),
        include_str!("../../../../packaging/examples/host.yaml"),
        include_str!("../../../../docs/operate/monitor.md"),
    ];
    let words = settings
        .iter()
        .flat_map(|text| text.split(|at: char| !at.is_ascii_digit() && at != ':' && at != '.'));
    let written = words.filter_map(|word| word.parse::<std::net::SocketAddrV4>().ok()).map(|at| at.port());
    let fixed = [
        weir_agent::config::GATEWAY_DNS_PORT,
        weir_packet::encap::VXLAN_PORT,
        weir_packet::encap::GENEVE_PORT,
    ];
    // At 53 resolvers elsewhere are asked.
    let ports: std::collections::BTreeSet<u16> = written.chain(fixed).filter(|port| *port != 53).collect();
    for port in [7443, 7444, 7445, 9471, 9750, 4054].iter().chain(&fixed) {
        assert!(ports.contains(port), "the settings name {port}: {ports:?}");
    }
    for port in &ports {
        let is_told = page.lines().any(|line| line.starts_with(&format!("| {port}/")));
        assert!(is_told, "docs/operate/README.md has no row for {port}");
    }
}

#[test]
fn names_that_old_yaml_takes_for_booleans_are_texts() {
    let read = |text: &str| input::parse("names", text).unwrap().remove(0).resource.id().to_string();
    for name in ["n", "y", "no", "yes", "on", "off"] {
        assert_eq!(read(&format!("kind: network\nname: {name}\n")), format!("network/{name}"));
        let document = json!({"kind": "network", "name": name, "externalAccess": false});
        let printed = output::yaml(&document).unwrap();
        assert_eq!(read(&printed), format!("network/{name}"), "{printed}");
    }
    let wrong = input::parse("f", "kind: network\nname: red\nexternalAccess: yes\n").unwrap_err().to_string();
    assert!(wrong.contains("externalAccess: 'yes' is not allowed: true or false"), "{wrong}");
    let twice = input::parse("f", "kind: network\nname: a\nname: b\n").unwrap_err().to_string();
    assert!(twice.contains("the field 'name' is given twice") && !twice.contains("Policy"), "{twice}");
    assert!(twice.contains("3 | name: b") && !twice.contains("duplicate"), "{twice}");
    let open = input::parse("f", "kind: [\n").unwrap_err().to_string();
    let marked = open.lines().find(|line| line.contains('^')).map(|line| line.trim_matches([' ', '|', '^']));
    assert!(marked.is_none_or(str::is_empty), "it is said once: {open}");
}

#[test]
fn a_trace_of_tcp_has_a_port() {
    let read = |protocol, port| trace::protocol_and_port(protocol, port, false);
    assert_eq!(read(None, None).unwrap(), ("icmp".to_owned(), 0));
    assert_eq!(read(None, Some(80)).unwrap(), ("tcp".to_owned(), 80));
    assert_eq!(read(Some("udp"), Some(53)).unwrap(), ("udp".to_owned(), 53));
    assert!(read(Some("tcp"), None).unwrap_err().to_string().contains("--port"));
    assert!(read(Some("icmp"), Some(80)).unwrap_err().to_string().contains("no ports"));
    assert!(trace::protocol_and_port(Some("tcp"), None, true).is_ok(), "a frame has its own");
}

#[test]
fn a_trace_in_short_is_one_line_with_the_last_rule_that_had_a_say() {
    let step = |rule: Option<&str>| TraceLine {
        switch: "h1".to_owned(),
        stage: "firewall".to_owned(),
        detail: "egress".to_owned(),
        rule: rule.map(str::to_owned),
        entry: None,
        version: None,
        signed_by: None,
    };
    let traced = |steps: Vec<TraceLine>, delivered| TraceResponse {
        steps,
        verdict: if delivered { "delivered to web" } else { "dropped: policy" }.to_owned(),
        delivered,
    };
    let denied =
        trace::in_short(&traced(vec![step(Some("red/first")), step(Some("red/last")), step(None)], false));
    assert!(denied.contains("dropped: policy") && denied.ends_with(" (by red/last)"), "{denied}");
    assert_eq!(denied.lines().count(), 1);
    let passed = trace::in_short(&traced(vec![step(None)], true));
    assert!(passed.contains("delivered to web") && !passed.contains("by"), "{passed}");
}

#[test]
fn exit_codes_are_as_documented() {
    let unreachable = ClientError::Unreachable { server: "x".into(), reason: "y".into(), may_be_done: false };
    assert_eq!(Failure::Client(unreachable).exit(), Exit::Unreachable);
    assert_eq!(Failure::Input("x".into()).exit(), Exit::Usage);
    assert_eq!(Failure::Client(ClientError::Answer("x".into())).exit(), Exit::Failed);
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
    // Kinds of planes, by their vocabularies alone.
    for plane in weir_planes::ALL {
        let text = schemas.explain(plane.kind).unwrap();
        assert!(text.contains(plane.about) && text.contains("host  <text>  required"), "{text}");
    }
    let wall = schemas.explain("filewalls").unwrap();
    assert!(wall.contains("spec.files.text  <text>  required"), "{wall}");
    let part = schemas.explain("filewall.spec.files").unwrap();
    assert!(part.contains("spec.files.name") && !part.contains("host  <"), "{part}");
    let message = schemas.explain("filewall.fil").err().unwrap().to_string();
    assert!(message.contains("no field 'fil'") && message.contains("spec.files"), "{message}");
}

#[test]
fn a_file_has_networks_and_what_planes_have_and_what_is_printed_is_read() {
    let text = "kind: network\nname: red\n---\nkind: echo\nhost: h1\nname: good day\nspec:\n  text: 'yes'\n";
    let read = input::parse("all.yaml", text).unwrap();
    let ids: Vec<String> = read.iter().map(|document| document.resource.id().to_string()).collect();
    assert_eq!(ids, ["network/red", "echo/h1/good day"]);
    let view = weir_api::types::ResourceView {
        resource: read[1].resource.clone(),
        version: 7,
        allocated: json!({}),
    };
    // As `get -o yaml` and `get -o json` print it.
    let yaml = output::yaml(&inspect::document(&view, true).unwrap()).unwrap();
    let listed = json!({"items": [view], "version": 7}).to_string();
    for printed in [yaml, listed] {
        assert_eq!(input::parse("again", &printed).unwrap()[0].resource, read[1].resource, "{printed}");
    }
    let wrong = input::parse("all.yaml", "kind: echo\nhost: h1\nname: n\nspec: {text: ''}\n").unwrap_err();
    assert!(wrong.to_string().contains("all.yaml, document 1 (n): spec.text: '' is not allowed"), "{wrong}");
    assert_eq!(parse_id("echos", "h1/a/b").unwrap().to_string(), "echo/h1/a/b");
    for (kind, name, wanted) in [
        ("echo", "x", "say at which host the echo is: HOST/x"),
        ("echo", "H1/x", "'H1' is not a name"),
        ("echo", "h1/", "1 to 255 bytes"),
        ("endpoint", "red/A", "'A' is not a name"),
    ] {
        let said = parse_id(kind, name).unwrap_err().to_string();
        assert!(said.contains(wanted), "{said}");
    }
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

#[test]
fn a_file_is_read_whole_or_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // What is cut off here would be a resource that is not there, and with --replace-all one to delete.
    std::fs::write(file.path(), "kind: network\nname: red\n---\nkind: network\nname: blue\n").unwrap();
    let cut = input::whole(file.path(), 26).unwrap_err();
    assert!(cut.to_string().contains("longer than 26 bytes"), "{cut}");
    assert_eq!(input::whole(file.path(), 1000).unwrap().lines().count(), 5);
}
