use super::plain;
use crate::server::parse;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[expect(dead_code, reason = "only its reading is looked at")]
struct Asked {
    mtu: u16,
    name: String,
    #[serde(default)]
    ports: Vec<u8>,
    #[serde(default)]
    deny: bool,
    #[serde(default)]
    way: Option<Way>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    In,
    Out,
}

fn said(body: &str) -> String {
    parse::<Asked>(body.as_bytes()).unwrap_err().problem.message
}

#[test]
fn errors_are_in_the_words_of_whoever_wrote_the_input() {
    let cases = [
        (
            r#"{"mtu":70000,"name":"a"}"#,
            "mtu: the number 70000 is not allowed: a whole number from 0 to 65535 is wanted",
        ),
        (
            r#"{"mtu":"x","name":"a"}"#,
            "mtu: the text \"x\" is not allowed: a whole number from 0 to 65535 is wanted",
        ),
        (r#"{"mtu":1.5,"name":"a"}"#, "mtu: the number 1.5 is not allowed"),
        (r#"{"mtu":1,"name":7}"#, "name: the number 7 is not allowed: text is wanted"),
        (r#"{"mtu":1,"name":null}"#, "name: nothing (null) is not allowed: text is wanted"),
        (
            r#"{"mtu":1,"name":"a","deny":"y"}"#,
            "deny: the text \"y\" is not allowed: true or false is wanted",
        ),
        (r#"{"mtu":1,"name":"a","ports":3}"#, "ports: the number 3 is not allowed: a list is wanted"),
        (r#"{"mtu":1,"name":"a","ports":[1,300]}"#, "ports[1]: the number 300 is not allowed"),
        (
            r#"{"mtu":1,"name":"a","mttu":3}"#,
            "there is no field 'mttu' here: the fields are mtu, name, ports, deny, way",
        ),
        (r#"{"mtu":1,"name":"a","way":"up"}"#, "way: 'up' is not allowed: it is one of in, out"),
        (r#"{"mtu":1}"#, "the field 'name' is missing"),
        (r#"{"mtu":1,"mtu":1}"#, "the field 'mtu' is there twice"),
        (r#""text""#, "the text \"text\" is not allowed: fields with values is wanted"),
        ("", "the document ends before a value"),
        ("{", "the document ends too early"),
        ("{\"mtu\" 1}", "a colon is missing"),
        (r#"{"mtu":1,"name":"a"} x"#, "behind the document"),
        (r#"{"mtu":1,}"#, "a comma stands before the end"),
        ("nope", "this is not JSON"),
    ];
    for (body, wanted) in cases {
        let said = said(body);
        assert!(said.contains(wanted), "{body}: {said}");
    }
}

/// Words of the language and of its readers, which nobody who writes input can be expected to know.
const FOREIGN: [&str; 14] = [
    "u8",
    "u16",
    "u32",
    "u64",
    "variant",
    "struct",
    "enum",
    "invalid type",
    "a map",
    "sequence",
    "EOF",
    "deserialize",
    "ident",
    "`",
];

#[test]
fn no_reader_s_own_words_come_through() {
    let bodies = [
        "",
        "{",
        "[",
        "nul",
        "tru",
        "\"",
        "{\"mtu\":",
        "{\"mtu\":1e999,\"name\":\"a\"}",
        "{\"mtu\":-1,\"name\":\"a\"}",
        "{1:2}",
        "[1,2]",
        "[]",
        "{}",
        "\"\\q\"",
        "{\"mtu\":[]}",
        "{\"mtu\":{}}",
        "{\"way\":{}}",
        "{\"way\":7}",
        "{\"ports\":\"x\"}",
        "{\"ports\":[[]]}",
        "{\"deny\":1}",
        "{\"name\":[]}",
        "{\"mtu\":true}",
        "1 2",
        "{\"mtu\":99999999999999999999}",
    ];
    for body in bodies {
        let said = said(body);
        let found: Vec<_> = FOREIGN.iter().filter(|word| said.contains(*word)).collect();
        assert!(found.is_empty(), "{body}: {said}: {found:?}");
    }
}

#[test]
fn queries_and_paths_are_answered_the_same_way() {
    let number = "invalid digit found in string";
    assert_eq!(plain(number), "a whole number that is not negative is wanted");
    assert_eq!(
        plain("Cannot parse `id` with value `x` to a `u64`"),
        "'x' is not allowed: a whole number from 0 to 18446744073709551615 is wanted"
    );
    assert_eq!(
        plain("Cannot parse `seven` to a `u64`"),
        "'seven' is not allowed: a whole number from 0 to 18446744073709551615 is wanted"
    );
    assert_eq!(plain("provided string was not `true` or `false`"), "true or false is wanted");
    assert_eq!(plain("stale: provided string was not `true` or `false`"), "stale: true or false is wanted");
    // Our own sentences stay as they are.
    assert_eq!(
        plain("'a b' is no name: letters, digits and dashes"),
        "'a b' is no name: letters, digits and dashes"
    );
}
