//! `weir filewall top`: what a running FileWall does, by operation, principal, role and policy. `weir filewall status`: whether it does
//! what it should.

use crate::cli::output::table;
use crate::cli::shown::{self, Shown};
use serde::Serialize;
use std::collections::BTreeMap;
use weir_filewall::metrics::{OpRow, PrincipalRow, Status};

/// Most principals shown.
const PRINCIPALS_SHOWN: usize = 20;

/// `weir filewall top`
pub type Top = shown::Top<OfFileWall>;
/// `weir filewall status`
pub type Brief = shown::Brief<OfFileWall>;

/// A FileWall that shows its status.
#[derive(Debug)]
pub struct OfFileWall;

impl Shown for OfFileWall {
    const ADDRESS: &'static str = super::STATUS_ADDRESS;
    const NAME: &'static str = "a FileWall";
    type Status = Status;
    type Brief = Briefly;

    fn show(status: &Status, before: Option<(&Status, u64)>) {
        show(status, before);
    }

    fn brief(status: &Status) -> (Briefly, Vec<String>) {
        briefly(status)
    }

    fn say(brief: &Briefly) {
        let source = match brief.pushed_version {
            0 => "from files of this machine".to_string(),
            version => format!("pushed by the controllers at v{version}"),
        };
        say!("{} policies in force, {source}", brief.policies);
        let live = brief.replicas.iter().filter(|(_, live)| *live).count();
        if !brief.replicas.is_empty() {
            say!("{live} of {} servers live", brief.replicas.len());
        }
    }
}

/// What `weir filewall status` says.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Briefly {
    /// Policies in force.
    policies: usize,
    /// At which version the controllers pushed them; 0 for files of the machine's own.
    pushed_version: u64,
    /// Servers, and whether each is live.
    replicas: Vec<(String, bool)>,
}

fn briefly(status: &Status) -> (Briefly, Vec<String>) {
    let mut problems = Vec::new();
    if let Some(error) = &status.policy_error {
        problems.push(format!("the newest policy files are not in force: {error}"));
    }
    for (server, _) in status.replicas.iter().filter(|(_, live)| !live) {
        let why = status.replicas_behind.get(server).map_or("", String::as_str);
        problems.push(format!("server {server} is behind: {why}").trim_end_matches(": ").to_string());
    }
    let brief = Briefly {
        policies: status.policies.len(),
        pushed_version: status.policy_order,
        replicas: status.replicas.clone(),
    };
    (brief, problems)
}

fn show(status: &Status, before: Option<(&Status, u64)>) {
    say!("policies: number {} since the start, {} of them", status.policy_epoch, status.policies.len());
    if status.policy_order > 0 {
        say!("ordered by the controllers at v{}", status.policy_order);
    }
    if let Some(error) = &status.policy_error {
        say!("the newest files are NOT in force: {error}");
    }
    say!("\n{}\n\n{}", ops(status, before), policies(status));
    say!("\n{}\n\n{}", principals(status), roles(status));
    if !status.policies.iter().any(|policy| policy.kind == "statistics") {
        say!(
            "calls by client, user and role are counted where there is a policy of 'kind: statistics'; denials always are"
        );
    }
}

fn ops(status: &Status, before: Option<(&Status, u64)>) -> comfy_table::Table {
    let mut shown = table(&["operation", "calls", "calls/s", "denied", "mean us", "p50 us <", "p99 us <"]);
    for (op, totals) in &status.totals.ops {
        let rate = before.map_or("-".to_string(), |(before, seconds)| {
            let earlier = before.totals.ops.get(op).map_or(0, |totals| totals.row.calls);
            // One that was started anew counts from 0.
            (totals.row.calls.saturating_sub(earlier) / seconds.max(1)).to_string()
        });
        let row = &totals.row;
        shown.add_row([
            op.clone(),
            row.calls.to_string(),
            rate,
            row.denied.to_string(),
            row.latency_us.checked_div(row.replies).map_or("-".to_string(), |mean| mean.to_string()),
            totals.quantile_us(0.5).to_string(),
            totals.quantile_us(0.99).to_string(),
        ]);
    }
    shown
}

fn policies(status: &Status) -> comfy_table::Table {
    let mut shown = table(&["policy", "kind", "seen", "answered", "delayed", "details"]);
    for policy in &status.policies {
        let details: Vec<String> =
            policy.details.iter().map(|(name, value)| format!("{name}={value}")).collect();
        shown.add_row([
            policy.name.clone(),
            policy.kind.clone(),
            policy.seen.to_string(),
            policy.answered.to_string(),
            policy.delayed.to_string(),
            details.join(" "),
        ]);
    }
    shown
}

/// Calls, denials, replies and their latency over all operations.
fn sum(principal: &PrincipalRow) -> OpRow {
    principal.usage.ops.values().fold(OpRow::default(), |sum, row| OpRow {
        calls: sum.calls + row.calls,
        denied: sum.denied + row.denied,
        replies: sum.replies + row.replies,
        latency_us: sum.latency_us + row.latency_us,
    })
}

fn principals(status: &Status) -> comfy_table::Table {
    let mut shown =
        table(&["client", "user", "roles", "calls", "denied", "mean us", "read MB", "written MB"]);
    let mut rows: Vec<(OpRow, &PrincipalRow)> = status.principals.iter().map(|row| (sum(row), row)).collect();
    rows.sort_by_key(|(sum, _)| std::cmp::Reverse(sum.calls + sum.denied));
    let more = rows.len().saturating_sub(PRINCIPALS_SHOWN);
    for (sum, row) in rows.into_iter().take(PRINCIPALS_SHOWN) {
        shown.add_row([
            row.client.clone(),
            row.user.clone(),
            row.roles.join(","),
            sum.calls.to_string(),
            sum.denied.to_string(),
            sum.latency_us.checked_div(sum.replies).map_or("-".to_string(), |mean| mean.to_string()),
            (row.usage.read_bytes >> 20).to_string(),
            (row.usage.written_bytes >> 20).to_string(),
        ]);
    }
    if more > 0 {
        shown.add_row([format!("… and {more} more")]);
    }
    shown
}

fn roles(status: &Status) -> comfy_table::Table {
    let mut by_role: BTreeMap<&str, OpRow> = BTreeMap::new();
    for principal in &status.principals {
        let own = sum(principal);
        for role in &principal.roles {
            let row = by_role.entry(role).or_default();
            row.calls += own.calls;
            row.denied += own.denied;
        }
    }
    let mut shown = table(&["role", "calls", "denied"]);
    for (role, row) in by_role {
        shown.add_row([role.to_string(), row.calls.to_string(), row.denied.to_string()]);
    }
    shown
}

#[cfg(test)]
mod tests {
    //! Tests of the brief status, and of rates.

    use super::*;

    fn status(json: serde_json::Value) -> Status {
        let mut whole = serde_json::json!({
            "policy_epoch": 3, "policy_error": null, "places": 0, "policies": [], "principals": [],
            "totals": {"ops": {}, "counters": {}},
        });
        whole.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn what_is_wrong_is_named_and_nothing_else() {
        let (well, problems) =
            briefly(&status(serde_json::json!({"replicas": [["a:2049", true]], "policy_order": 7})));
        assert!(problems.is_empty() && well.pushed_version == 7, "{well:?} {problems:?}");
        let (_, problems) = briefly(&status(serde_json::json!({
            "policy_error": "p.yaml: nonsense",
            "replicas": [["a:2049", true], ["b:2049", false]],
            "replicas_behind": {"b:2049": "it left a change unanswered"},
        })));
        let said = problems.join("\n");
        assert!(said.contains("not in force: p.yaml: nonsense"), "{said}");
        assert!(
            said.contains("b:2049 is behind: it left a change unanswered") && !said.contains("a:2049"),
            "{said}"
        );
    }

    #[test]
    fn rates_are_of_what_came_since_and_0_after_a_new_start() {
        let calls = |count: u64| {
            let row = serde_json::json!({"calls": count, "denied": 0, "replies": 0, "latency_us": 0});
            status(
                serde_json::json!({"totals": {"ops": {"READ": {"row": row, "classes": []}}, "counters": {}}}),
            )
        };
        let shown = |now: u64, before: Option<(u64, u64)>| {
            let before = before.map(|(count, seconds)| (calls(count), seconds));
            ops(&calls(now), before.as_ref().map(|(before, seconds)| (before, *seconds))).to_string()
        };
        assert!(shown(900, Some((300, 2))).contains(" 300 "), "{}", shown(900, Some((300, 2))));
        assert!(shown(5, Some((300, 2))).contains(" 0 "), "{}", shown(5, Some((300, 2))));
        assert!(shown(5, None).contains(" - "));
    }
}
