use super::*;
use crate::roles::node::SwitchSection;
use weir_agent::config::NodeConfig;
use weir_model::event::Role;
use weir_model::join::to_hex;
use weir_model::operator::OperatorRole;

fn file(text: &str) -> (tempfile::NamedTempFile, Result<Given, Failure>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let read = Given::read(file.path());
    (file, read)
}

#[test]
fn options_stand_over_the_file_and_the_file_over_defaults() {
    let (_file, given) = file("domain: prod\napi: 192.0.2.10:1\ncertificateDays: 7\n");
    let options = Given { api: Some("192.0.2.10:2".into()), ..Given::default() };
    let config = options.over(given.unwrap()).check().unwrap();
    assert_eq!((config.domain.as_str(), config.api.port(), config.certificate_days), ("prod", 2, 7));
    assert_eq!((config.session.port(), config.advertise), (7444, "192.0.2.10".parse().unwrap()));
}

#[test]
fn a_wrong_file_is_named_with_the_field_the_value_and_what_is_allowed() {
    let cases: [(&str, &[&str]); 8] = [
        ("domain: Prod\n", &["domain", "Prod", "a-z"]),
        ("api: here\n", &["api: 'here'", "ADDRESS:PORT"]),
        ("session: 192.0.2.1\n", &["session: '192.0.2.1'", "ADDRESS:PORT"]),
        ("advertise: 0.0.0.0\n", &["advertise: '0.0.0.0'", "reach this machine"]),
        ("certificateDays: 0\n", &["certificateDays: '0'", "1 to 3650"]),
        ("certificateDays: soon\n", &["certificateDays", "'soon' is not a whole number"]),
        ("stat: /x\n", &["there is no field 'stat'", "stateDir"]),
        ("api: [\n", &["line 1"]),
    ];
    for (text, parts) in cases {
        let (file, read) = file(text);
        let error = read.unwrap_err().to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{text:?}: {error}");
        for part in parts {
            assert!(error.contains(part), "{text:?}: '{part}' is not in: {error}");
        }
    }
    let error = Given::read(Path::new("/nowhere/controller.yaml")).unwrap_err().to_string();
    assert!(error.contains("/nowhere/controller.yaml"), "{error}");
    let error = Given::default().check().unwrap_err().to_string();
    assert!(error.contains("--advertise"), "{error}");
}

#[test]
fn operators_have_names_keys_and_an_admin_among_them() {
    let key = |seed: u8| to_hex(&weir_trust::identity::KeyPair::from_seed(&[seed; 32]).public());
    let (one, two) = (key(1), key(2));
    let right = format!(
        "advertise: 192.0.2.1\noperators:\n  - {{ name: alice, key: \"{one}\" }}\n  - {{ name: bob, keys: [\"{two}\"], role: operator }}\n"
    );
    let (_file, given) = file(&right);
    let operators = given.unwrap().check().unwrap().operators;
    let roles: Vec<(&str, OperatorRole)> =
        operators.iter().map(|(name, one)| (name.as_str(), one.role)).collect();
    assert_eq!(roles, [("alice", OperatorRole::Admin), ("bob", OperatorRole::Operator)]);
    let cases: [(String, &[&str]); 7] = [
        (format!("{{ name: Alice, key: \"{one}\" }}"), &["operators", "Alice"]),
        ("{ name: alice, key: \"12\" }".into(), &["key of 'alice'", "'12'", "weir operator key"]),
        (format!("{{ name: alice, key: \"{}\" }}", "00".repeat(32)), &["key of 'alice'"]),
        ("{ name: alice }".into(), &["key of 'alice'", "0 keys", "1 to 4"]),
        (format!("{{ name: alice, keys: [\"{one}\", \"{one}\"] }}"), &["key of 'alice'", "twice"]),
        (format!("{{ name: alice, key: \"{one}\", role: operator }}"), &["operators", "no admin"]),
        (format!("{{ name: alice, key: \"{one}\", role: root }}"), &["role", "root", "admin"]),
    ];
    for (text, parts) in cases {
        let (_file, read) = file(&format!("operators:\n  - {text}\n"));
        let error = read.unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

#[test]
fn the_shipped_examples_are_right() {
    let shipped =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/examples").join(name);
    let controller = Given::read(&shipped("controller.yaml")).unwrap().check().unwrap();
    assert_eq!(controller.state_dir, Path::new("/var/lib/weir/controller"), "as the unit has it");
    for (name, role) in [("host.yaml", Role::Host), ("gateway.yaml", Role::Gateway)] {
        let config = NodeConfig::<SwitchSection>::read(&shipped(name)).unwrap();
        assert_eq!(config.role, role, "{name}");
        assert_eq!(config.switch.external.is_some(), role == Role::Gateway, "{name}");
    }
}

/// Settings of controller 1 of a group with these founders, which survives lies.
fn byzantine(founders: usize, key: impl Fn(usize) -> String, more: &str) -> Result<ControllerConfig, String> {
    let mut text =
        "api: 192.0.2.1:7443\ngroup:\n  id: 1\n  listen: 192.0.2.1:7445\n  order: bft\n".to_string();
    text.push_str(&format!("{more}  founders:\n"));
    for id in 1..=founders {
        let at = |port: u16| format!("192.0.2.{id}:{port}");
        text.push_str(&format!(
            "    - {{ id: {id}, replica: \"{}\", api: \"{}\", session: \"{}\"{} }}\n",
            at(7445),
            at(7443),
            at(7444),
            key(id)
        ));
    }
    let (_file, given) = file(&text);
    let checked = given.and_then(|given| given.check());
    checked.map_err(|error| error.to_string())
}

#[test]
fn a_group_that_survives_lies_has_enough_founders_each_with_a_key() {
    let key = |id: usize| format!(", key: \"{}\"", format!("{id:02x}").repeat(32));
    let group = byzantine(4, key, "").unwrap().group.unwrap();
    assert_eq!((group.order, group.founder_keys.len()), (Ordering::Bft, 4));
    assert_eq!(group.founder_keys[&3], [3; 32]);
    for count in [1, 3] {
        let error = byzantine(count, key, "").unwrap_err();
        assert!(error.contains(&format!("{count} controllers")) && error.contains("list 4 to 16"), "{error}");
    }
    for count in [5, 6, 7] {
        assert!(byzantine(count, key, "").is_ok(), "{count} founders");
    }
    let error = byzantine(4, |id| if id == 2 { String::new() } else { key(id) }, "").unwrap_err();
    assert!(error.contains("key of controller 2") && error.contains("weir group identity"), "{error}");
    let error = byzantine(4, |_| key(7), "").unwrap_err();
    assert!(error.contains("each makes its own"), "{error}");
    let error = byzantine(4, key, "  signatures: shared-key\n").unwrap_err();
    assert!(error.contains("no controller may sign alone"), "{error}");
    // One that is added later has the same list, and is not in it.
    let text = "api: 192.0.2.9:7443\ngroup:\n  id: 9\n  listen: 192.0.2.9:7445\n  order: bft\n  founders:\n";
    let founder = |id: usize| {
        let at = |port: u16| format!("192.0.2.{id}:{port}");
        let (replica, api, session) = (at(7445), at(7443), at(7444));
        format!(
            "    - {{ id: {id}, replica: \"{replica}\", api: \"{api}\", session: \"{session}\"{} }}\n",
            key(id)
        )
    };
    let text = text.to_string() + &(1..=4).map(founder).collect::<String>();
    let (_file, given) = file(&text);
    let joiner = given.and_then(|given| given.check()).unwrap().group.unwrap();
    assert_eq!((joiner.id, joiner.founders.len(), joiner.joins), (9, 4, false));
}

#[test]
fn spares_are_other_controllers_than_the_founders_each_at_an_address_and_a_key_of_its_own() {
    let key = |id: usize| format!(", key: \"{}\"", format!("{id:02x}").repeat(32));
    let spare = |id: usize, at: usize, key: &str| {
        format!(
            "  spares:\n    - {{ id: {id}, replica: \"192.0.2.{at}:7445\", api: \"192.0.2.{at}:7443\", session: \"192.0.2.{at}:7444\"{key} }}\n"
        )
    };
    let right =
        byzantine(4, key, &(spare(5, 5, &key(5)) + "  replaceAfterSeconds: 600\n")).unwrap().group.unwrap();
    assert_eq!((right.replace_after_ms, right.spares[&5].key), (600_000, Some([5; 32])));
    let off = byzantine(4, key, "").unwrap().group.unwrap();
    assert_eq!((off.replace_after_ms, off.spares.len()), (0, 0), "off unless it is set");
    let cases = [
        (spare(2, 9, &key(9)), "it is a founder"),
        (spare(5, 2, &key(5)), "at the address of one"),
        (spare(5, 5, ""), "weir group identity"),
        (spare(0, 5, &key(5)), "1 to 255"),
        ("  replaceAfterSeconds: 1\n".into(), "5 to 2592000"),
    ];
    for (more, words) in cases {
        let error = byzantine(4, key, &more).unwrap_err();
        assert!(error.contains(words), "{more}: {error}");
    }
}
