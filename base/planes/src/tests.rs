use super::*;
use std::collections::BTreeSet;
use weir_model::Label;

#[test]
fn the_toy_says_what_it_takes() {
    let toy = find(ALL, "echo").unwrap();
    assert_eq!((toy.describe)("n", br#"{"text":"x"}"#), "say 'x'");
    assert!((toy.describe)("n", b"{}").contains("missing field `text`"));
    assert_eq!((toy.check)("n", br#"{"text":""}"#).unwrap_err().field, "spec.text");
    assert_eq!((toy.check_report)(b"\"x\""), Ok(()));
}

const WALL: &str = r#"{"files":[{"name":"a.yaml","text":"kind: none"}]}"#;

#[test]
fn every_plane_of_the_list_has_a_name_of_its_own_that_can_be_one() {
    let names: BTreeSet<&str> = ALL.iter().map(|kind| kind.name).collect();
    assert_eq!(names.len(), ALL.len());
    for kind in ALL {
        assert!(Label::new(kind.name).is_ok(), "{}", kind.name);
        // It is a kind of its own, and one that can be asked for in the plural.
        assert!(Label::new(kind.kind).is_ok() && !kind.kind.ends_with('s'), "{}", kind.kind);
        assert!(kind.kind.parse::<weir_model::resource::Kind>().is_err(), "{}", kind.kind);
        assert!(!["all", "device"].contains(&kind.kind), "{}", kind.kind);
        assert_eq!(of_kind(ALL, &format!("{}s", kind.kind)).unwrap().name, kind.name);
        let clash = |other: &&Kind| other.name != kind.name && [other.name, other.kind].contains(&kind.kind);
        assert!(!ALL.iter().any(|other| clash(&other)), "{}", kind.kind);
        assert!(!kind.about.is_empty() && kind.orders_max > 0, "{}", kind.name);
        // What is no specification of anybody is none of this one.
        assert_eq!((kind.check)("x", b"\xff").unwrap_err().field, "spec", "{}", kind.name);
        assert_eq!((kind.check)("", WALL.as_bytes()).unwrap_err().field, "name", "{}", kind.name);
        assert!((kind.check_report)(&vec![b' '; REPORT_BYTES_MAX + 1]).is_err(), "{}", kind.name);
    }
}

#[test]
fn what_is_wrong_is_told_by_its_field() {
    let wall = find(ALL, "filewall").unwrap();
    assert_eq!((wall.check)("wall", WALL.as_bytes()), Ok(()));
    assert_eq!((wall.describe)("wall", WALL.as_bytes()), "policies a.yaml");
    let said = |name: &str, spec: &str| (wall.check)(name, spec.as_bytes()).unwrap_err().to_string();
    assert!(said("a wall", WALL).starts_with("name: 'a wall' is not a name"));
    assert!(said("wall", r#"{"files":[]}"#).starts_with("spec.files: an order has 1 to 32 files"));
    assert!(said("wall", r#"{"files":[],"more":1}"#).contains("unknown field `more`"));
    let large = vec![b' '; SPEC_BYTES_MAX + 1];
    assert!((wall.check)("wall", &large).unwrap_err().allowed.contains("at most 131072 bytes"));
    // What it reports is told in lines, and what is no report says so.
    assert_eq!((wall.tell)(br#"{"version":7}"#), ["the policies of v7 are in force"]);
    assert!((wall.tell)(b"7")[0].starts_with("not readable by this release"));
    let report = br#"{"kernel":"bpf","alarms":2,"notes":[
        {"number":4,"unixMs":1,"severity":"info","policy":"","text":"first"},
        {"number":0,"unixMs":2,"severity":"warning","policy":"hog","text":"last"}]}"#;
    let lines = (find(ALL, "monitor").unwrap().tell)(report);
    assert_eq!(lines, ["2 alarms, kernel by bpf", "warning: hog: last", "info (event 4): first"]);
    // Each plane has a bound of its own, and says it.
    let monitor = find(ALL, "monitor").unwrap();
    let large = vec![b' '; monitor.spec_bytes_max + 1];
    let problem = (monitor.check)("machines/web", &large).unwrap_err();
    assert_eq!(
        (monitor.spec_bytes_max, problem.allowed.as_str()),
        (1024, "at most 1024 bytes, and it has 1025")
    );
    assert!(
        find(ALL, "nobody").is_none() && of_kind(ALL, "nobodys").is_none() && of_kind(ALL, "s").is_none()
    );
    // What says the same in other words has the same form; what is none has none.
    let spaced = WALL.replace(',', " , ");
    assert_eq!((wall.normal)("wall", spaced.as_bytes()), (wall.normal)("wall", WALL.as_bytes()));
    assert_eq!((wall.normal)("wall", b"{}"), None);
    assert!(
        unknown(ALL, "nobody")
            .to_string()
            .contains("'nobody' is no plane of this release, which has: filewall, monitor, echo")
    );
}

#[test]
fn a_repair_names_a_cgroup_below_the_mount_and_which_order_it_is() {
    let monitor = find(ALL, "monitor").unwrap();
    let freeze = |id: &str| format!(r#"{{"action":"freeze","id":"{id}"}}"#).into_bytes();
    assert_eq!((monitor.check)("machines/web", &freeze("a-1")), Ok(()));
    assert_eq!((monitor.describe)("machines/web", &freeze("a-1")), "freeze cgroup machines/web");
    let field = |name: &str, spec: &[u8]| (monitor.check)(name, spec).unwrap_err().field;
    for name in ["../above", "/absolute", "a//b", "."] {
        assert_eq!(field(name, &freeze("1")), "name", "{name}");
    }
    for id in ["", "a b", "ä", &"x".repeat(65)] {
        assert_eq!(field("web", &freeze(id)), "spec.id", "{id}");
    }
    for spec in [
        &br#"{"action":"hug","id":"1"}"#[..],
        br#"{"action":"kill"}"#,
        br#"{"action":"kill","id":"1","x":1}"#,
    ] {
        assert_eq!(field("web", spec), "spec");
    }
}
