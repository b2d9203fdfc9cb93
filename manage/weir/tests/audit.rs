//! The audit of real controllers: a rule is traced back to the event that made it and to who signed; chains are checked, also
//! after a kill and by a file that was changed; controllers of a group say the same.

use crate::extra::{Extra, configure, endpoint};
use crate::group::wait_whole;
use crate::lab::{Lab, group_lab, lab};
use crate::namespaces::wait;
use serde_json::Value;

fn json(lab: &Lab, arguments: &[&str]) -> Value {
    serde_json::from_str(&lab.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
}

fn add(lab: &Lab, extra: &Extra, number: u8) -> String {
    let name = format!("audited-{number}");
    let netns = extra.netns(&name);
    let address = format!("10.1.0.{}", 180 + number);
    lab.apply(&endpoint("red", &name, "h1", &[&address], &netns));
    configure(&netns, &format!("{address}/24"), "10.1.0.1");
    name
}

/// The newest version of an entry, once its switch has acknowledged it.
fn rule(lab: &Lab, switch: &str, key: &str) -> Value {
    let mut found = Value::Null;
    wait("the rule in the audit, acknowledged", || {
        let run = lab.weir(&["audit", "rule", switch, key, "-o", "json"]);
        let rules: Value = serde_json::from_slice(&run.stdout).unwrap_or_default();
        found = rules[0].clone();
        run.status.success() && !found["acknowledged"].is_null() && !found["signed"].is_null()
    });
    found
}

/// The key of an endpoint's port, as the audit tells it.
fn port_key(lab: &Lab, name: &str) -> String {
    let network = json(lab, &["get", "network", "red"]);
    let vni = network["allocated"]["vni"].as_u64().unwrap();
    format!("port/{vni}/{name}")
}

#[test]
fn a_rule_is_traced_to_its_event_and_a_changed_chain_is_found_out() {
    let Some(lab) = lab("audit") else { return };
    let extra = Extra::begin();
    let name = add(&lab, &extra, 1);
    let key = port_key(&lab, &name);
    let found = rule(&lab, "h1", &key);
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    assert!(text("event").contains(&format!("intent endpoint/red/{name}")), "{found}");
    assert!(text("event").contains("controller/controller for admin"), "{found}");
    assert!(text("signed").contains("the group's one key"), "{found}");
    assert!(text("acknowledged").contains("in force"), "{found}");

    let verified = json(&lab, &["audit", "verify"]);
    assert_eq!(verified["problems"], 0, "{verified}");
    for some in ["events", "batches", "signatures", "acks"] {
        assert!(verified[some].as_u64().unwrap() > 0, "{some}: {verified}");
    }
    let noted = format!("{}:{}", verified["last"], verified["head"].as_str().unwrap());

    // What was told survives a kill, and the chain goes on behind it.
    lab.kill("controller");
    lab.start("controller");
    wait("the controller answers again", || lab.client().status().is_ok());
    let second = add(&lab, &extra, 2);
    let key_of_second = port_key(&lab, &second);
    rule(&lab, "h1", &key_of_second);
    let group_key = lab.client().status().unwrap().group_key;
    let again = json(&lab, &["audit", "verify", "--noted", &noted, "--group-key", &group_key]);
    assert_eq!(
        (&again["problems"], &again["groupKeyGiven"]),
        (&Value::from(0), &Value::from(true)),
        "{again}"
    );
    assert!(again["last"].as_u64() > verified["last"].as_u64());
    assert_eq!(rule(&lab, "h1", &key)["version"], found["version"]);

    // Somebody who has the file changes a word in it.
    let file = lab.folder().join("audit.jsonl");
    let path = file.to_str().unwrap();
    lab.ok(&["audit", "export", "--out", path, "--force"]);
    assert!(lab.ok(&["audit", "verify", "--file", path, "--noted", &noted]).contains("Nothing is wrong"));
    let lines = std::fs::read_to_string(&file).unwrap();
    let changed: Vec<String> = lines
        .lines()
        .enumerate()
        .map(|(nth, line)| {
            let mut link: Value = serde_json::from_str(line).unwrap();
            if nth == 3 {
                let text = link["link"].as_str().unwrap();
                let (before, after) = text.split_at(text.len() / 2);
                let turned = if after.starts_with('A') { 'B' } else { 'A' };
                link["link"] = format!("{before}{turned}{}", &after[1..]).into();
            }
            link.to_string()
        })
        .collect();
    std::fs::write(&file, changed.join("\n")).unwrap();
    let run = lab.weir(&["audit", "verify", "--file", path]);
    assert_eq!(run.status.code(), Some(4), "{}", String::from_utf8_lossy(&run.stdout));
    std::fs::remove_file(&file).unwrap();

    for (arguments, wanted) in [
        (&["audit", "rule", "h1", "port/1/nobody"][..], "the audit has no entry"),
        (&["audit", "list", "--kind", "lies"][..], "use began, event"),
        (&["audit", "verify", "--group-key", "12"][..], "64 or 192 hexadecimal digits"),
        (&["audit", "verify", "--noted", "7"][..], "NUMBER:HASH"),
        (&["audit", "verify", "--file", "/nowhere"][..], "/nowhere"),
        (&["audit", "compare"][..], "two controllers or more"),
    ] {
        let run = lab.weir(arguments);
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && said.contains(wanted), "{arguments:?}: {said}");
    }
}

#[test]
fn controllers_of_a_group_keep_the_same_audit() {
    let Some(lab) = group_lab("audit_group") else { return };
    wait_whole(&lab);
    let extra = Extra::begin();
    let name = add(&lab, &extra, 3);
    let found = rule(&lab, "h1", &port_key(&lab, &name));
    assert!(found["signed"].as_str().unwrap().contains("shares of phase"), "{found}");
    // One that follows may be some entries behind for a moment; then it is left out of the end of the comparison.
    let compared = json(&lab, &["audit", "compare"]);
    assert_eq!(compared["controllers"].as_array().unwrap().len(), 3, "{compared}");
    assert_eq!(compared["differencesTotal"], 0, "{compared}");
    assert!(compared["places"].as_u64().unwrap() > 0, "{compared}");
    let verified = json(&lab, &["audit", "verify"]);
    assert_eq!(verified["problems"], 0, "{verified}");
}
