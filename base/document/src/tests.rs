use super::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Settings {
    name: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    way: Option<Way>,
    #[serde(default)]
    at: Option<IpAddr>,
    #[serde(default)]
    inner: Option<Box<Settings>>,
    #[serde(default)]
    lists: Vec<u8>,
    #[serde(default)]
    numbered: BTreeMap<u32, bool>,
    #[serde(default)]
    either: Option<Either>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Way {
    ThereAndBack,
    Once,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(untagged)]
enum Either {
    Number(u8),
    Text(String),
}

#[test]
fn errors_name_the_field_the_value_and_what_is_allowed() {
    let cases: [(&str, &[&str]); 18] = [
        ("name: a\nport: 70000", &["'port'", "'70000'", "from 0 to 65535"]),
        ("name: a\nport: -1", &["'port'", "'-1'", "from 0 to 65535"]),
        ("name: a\nport: high", &["'port'", "'high'", "from 0 to 65535"]),
        ("name: a\nport: 1.5", &["'port'", "'1.5'"]),
        ("name: 5", &["'name'", "'5'", "quotes"]),
        ("name: [a]", &["'name'"]),
        ("port: 1", &["the field 'name' is missing"]),
        ("", &["the field 'name' is missing"]),
        ("# nothing\n---\n", &["the field 'name' is missing"]),
        ("name: a\nprot: 1", &["there is no field 'prot'", "port"]),
        ("name: a\nname: b", &["the field 'name' is given twice"]),
        ("name: a\nway: twice", &["'way'", "'twice' is none of there-and-back or once"]),
        ("name: a\nat: here", &["'at'", "'here' is not an IP address"]),
        ("name: a\ninner: {name: b, port: x}", &["'inner.port'", "'x'"]),
        ("name: a\nlists: [1, 2, 300]", &["'lists[2]'", "'300'", "from 0 to 255"]),
        ("name: a\nnumbered: {5: yes}", &["numbered.5", "'yes' is not true or false"]),
        ("name: a\neither: {}", &["'either'", "is not what this field takes"]),
        ("name: a\n---\nname: b", &["2 documents"]),
    ];
    for (text, parts) in cases {
        let error = match read::<Settings>(text) {
            Ok(read) => panic!("{text:?} is taken: {read:?}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(error.contains(part), "{text:?}: no {part} in {error}");
        }
        for word in
            ["u8", "u16", "variant", "expected", "invalid", "DuplicateKey", "struct", "boolean", "sequence"]
        {
            assert!(!error.contains(word), "{text:?}: {word} in {error}");
        }
    }
    let syntax = read::<Settings>("name: [\n").unwrap_err().to_string();
    assert!(syntax.contains("line 1") || syntax.contains("line 2"), "{syntax}");
    let list = read::<Settings>("- a\n").unwrap_err().to_string();
    assert!(list.contains("fields with values"), "{list}");
}

#[test]
fn what_is_a_boolean_elsewhere_is_a_text_here() {
    for name in ["y", "n", "yes", "no", "on", "off", "Y", "NO"] {
        let read: Settings = read(&format!("name: {name}\n")).unwrap();
        assert_eq!(read.name, name);
    }
    let read: Settings = read("{\"name\": \"json\", \"port\": 1, \"numbered\": {\"7\": true}}").unwrap();
    assert_eq!((read.name.as_str(), read.port, read.numbered[&7]), ("json", 1, true));
}

#[test]
fn many_documents_are_read_as_they_stand() {
    let all = values("name: a\n---\n---\n- 1\n").unwrap();
    let said: Vec<&Value> = all.iter().filter(|document| !document.is_null()).collect();
    assert!(said.len() == 2 && said[1].is_array(), "{all:?}");
    // Depth ends somewhere, and not with the program.
    let deep = "[".repeat(100_000);
    assert!(values(&deep).is_err());
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let names = vec![format!("*a{}", level - 1); 10].join(", ");
        laughs.push_str(&format!("a{level}: &a{level} [{names}]\n"));
    }
    assert!(values(&laughs).is_err());
    let long: String = (0..20_000).map(|number| format!("---\nname: n{number}\n")).collect();
    assert_eq!(values(&long).unwrap().len(), 20_000);
}
