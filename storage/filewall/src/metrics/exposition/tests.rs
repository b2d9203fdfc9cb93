//! Tests of what Prometheus gets: all that policies tell is there, each family by itself, and the text is a good one.

use super::*;
use crate::metrics::{Totals, TotalsRow};
use crate::policy::tests::chain;
use crate::wire::nfs3::Op;
use std::collections::{BTreeMap, BTreeSet};

/// A policy of each kind that tells something of itself, but for modules, which need a file.
const ALL: &str = "
kind: identities
users: {ann: {uid: 5, roles: [user]}}
roles: {user: {}}
---
kind: handles
key-file: key
---
kind: access
default: allow
rules: [{deny: [MKNOD]}, {deny: [LINK]}]
---
kind: rate
per: all
calls-per-s: 1000
---
kind: quota
per: user
bytes: 9
period: day
state-file: quota.json
---
kind: alarm
files: 10
window-s: 60
act: log
---
kind: machines
limit: 5
idle-s: 60
---
kind: reorder
---
kind: rbac
state-file: rbac.state
initial: [user]
rules: permit (principal, action, resource);
---
kind: audit
file: audit.log
ops: [all]
outcome: all
when-full: lose
";

fn status(policies: Vec<PolicyRow>, totals: TotalsRow) -> Status {
    Status {
        policy_epoch: 2,
        policy_order: 0,
        policy_error: None,
        replicas: vec![
            ("10.0.0.1:2049/\"odd\"".to_string(), true),
            ("10.0.0.2:2049/export".to_string(), false),
        ],
        replicas_behind: BTreeMap::new(),
        places: 3,
        policies,
        principals: Vec::new(),
        totals,
    }
}

/// What policies of all kinds tell.
fn rows() -> Vec<PolicyRow> {
    let mut rows = chain(ALL).rows();
    let module = [("cut_off".to_string(), 1), ("keys".to_string(), 2)].into();
    let (name, kind) = ("a module".to_string(), "module".to_string());
    rows.push(PolicyRow { name, kind, seen: 0, answered: 0, delayed: 0, details: module });
    let access = rows.iter_mut().find(|row| row.kind == "access").unwrap();
    access.details.insert("rule_2_denied".to_string(), 7);
    rows
}

#[test]
fn the_text_is_a_good_one_and_has_all_that_policies_tell() {
    let rows = rows();
    let totals = Totals::default();
    for op in Op::ALL {
        totals.call(op);
        totals.reply(op, 700);
    }
    let told: usize = rows.iter().map(|row| row.details.len()).sum();
    let families: BTreeSet<(String, String)> =
        rows.iter().flat_map(|row| row.details.keys().map(|name| (row.kind.clone(), name.clone()))).collect();
    let known = DETAILS.map(|(kind, name, ..)| (kind.to_string(), name.to_string()));
    let unknown: Vec<_> =
        families.iter().filter(|one| !known.contains(one) && rule_of(&one.1).is_none()).collect();
    assert!(unknown.is_empty(), "told, and in no family: {unknown:?}");
    let gone: Vec<_> = known.iter().filter(|one| !families.contains(one)).collect();
    assert!(gone.is_empty(), "in a family, and told by nobody: {gone:?}");
    let kinds: BTreeSet<&str> = rows.iter().map(|row| row.kind.as_str()).collect();
    let told_by = |line: &str| kinds.iter().any(|kind| line.starts_with(&format!("weir_filewall_{kind}_")));
    let status = status(rows.clone(), totals.snapshot());
    assert_eq!(status.exposition().problems(), []);
    let text = status.prometheus();
    assert_eq!(weir_base::exposition::check(&text), []);
    assert_eq!(text.lines().filter(|line| told_by(line)).count(), told, "{text}");
    assert!(text.contains("weir_filewall_access_denied_total{policy=\"access\",rule=\"2\"} 7\n"), "{text}");
    assert!(text.contains("weir_filewall_reply_seconds_sum{op=\"READ\"} 0.0007\n"), "{text}");
    assert!(text.contains("weir_filewall_replica_live{server=\"10.0.0.1:2049/\\\"odd\\\"\"} 1\n"), "{text}");
}

/// The list for people has what is told, and nothing else.
#[test]
fn the_list_in_the_docs_is_what_is_told() {
    let totals = Totals::default();
    totals.call(Op::Read);
    let text = status(rows(), totals.snapshot()).prometheus();
    let mut told: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            told.insert(name, ("", help));
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            told.get_mut(name).unwrap().0 = kind;
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/filewall-metrics.md");
    let docs = std::fs::read_to_string(path).unwrap();
    let listed: BTreeSet<&str> = docs.lines().filter(|line| line.starts_with("| `weir_filewall_")).collect();
    let is_listed = |name: &str, kind: &str, help: &str| {
        let begin = format!("| `{name}` | {kind} | ");
        listed.iter().any(|line| line.starts_with(&begin) && line.ends_with(&format!(" | {help} |")))
    };
    let missing: Vec<_> = told.iter().filter(|(name, (kind, help))| !is_listed(name, kind, help)).collect();
    assert!(missing.is_empty(), "not in the list: {missing:#?}");
    assert_eq!(listed.len(), told.len(), "in the list, and told by nobody");
}
