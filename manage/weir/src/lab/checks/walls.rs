//! What must not pass: between tenants, and what the firewall denies.

use super::{Ground, Row, page};
use crate::failure::Failure;
use std::collections::BTreeMap;
use weir_lab::probe::http::{self, Outcome};
use weir_lab::probe::ping;

/// How long a request may stay without an answer before it counts as dropped, seconds.
const SILENCE_S: u32 = 2;
/// The labels of the drop counter of the rule that denies a port.
const NO_ADMIN: &str = "reason=\"rule\",network=\"red\",rule=\"no-admin\"";
/// The labels of the drop counter of what no rule allows.
const DEFAULT_DENY: &str = "reason=\"default-deny\",network=\"red\",direction=\"ingress\"";

/// One address, two tenants, two pages.
pub fn same_address(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for tenant in ["red", "blue"] {
        let answer = page(ground.netns(tenant, "app")?, "http://10.1.0.10/", 5)?;
        let wanted = format!("{tenant}/web");
        let holds = answer.as_ref() == Ok(&wanted);
        let measured = answer.unwrap_or_else(|error| error);
        rows.push(Row::new(format!("{tenant}: app gets http://10.1.0.10/"), wanted, measured, holds));
    }
    Ok(rows)
}

/// Addresses that only the other tenant has; all at a time, since silence takes its time.
pub fn no_way_across(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let mut cases = Vec::new();
    for (tenant, other) in [("red", "blue"), ("blue", "red")] {
        for v6 in [false, true] {
            cases.push((tenant, other, ground.netns(tenant, "app")?, ground.address(other, "db", v6)?));
        }
    }
    let options = ping::Options { count: 2, ..ping::Options::default() };
    let reports = std::thread::scope(|scope| {
        let all: Vec<_> = cases
            .iter()
            .map(|(_, _, netns, target)| scope.spawn(|| ping::run(netns, *target, &options)))
            .collect();
        all.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    let mut rows = Vec::new();
    for ((tenant, other, _, target), report) in cases.iter().zip(reports) {
        let report = report.map_err(|_| Failure::Input("a ping could not be made".to_string()))??;
        rows.push(Row::new(
            format!("{tenant}: app pings {other}'s db, {target}"),
            "no answer",
            format!("{} of {} answered", report.received, report.sent),
            report.none(),
        ));
    }
    Ok(rows)
}

/// All counters of all switches, summed by name.
pub fn counters(ground: &Ground) -> Result<BTreeMap<String, u64>, Failure> {
    let mut sum = BTreeMap::new();
    for member in super::super::programs::members() {
        for (name, value) in ground.client.counters(member.name)? {
            *sum.entry(name).or_default() += value;
        }
    }
    Ok(sum)
}

/// The drop counters that grew, by their labels, and by how much.
fn grown(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let drops = after.iter().filter_map(|(name, value)| {
        let labels = name.strip_prefix("drops{")?.strip_suffix('}')?;
        Some((labels.to_string(), value.saturating_sub(before.get(name).copied().unwrap_or(0))))
    });
    drops.filter(|(_, growth)| *growth > 0).collect()
}

/// Tries a port that must be silent, and names the counters that grew meanwhile.
fn silent(
    ground: &Ground,
    from: (&str, &str),
    url: &str,
    name: &str,
    counter: &str,
) -> Result<Vec<Row>, Failure> {
    let before = counters(ground)?;
    let outcome = http::run(ground.netns(from.0, from.1)?, url, SILENCE_S)?;
    let after = counters(ground)?;
    let grown = grown(&before, &after);
    let counted = grown.iter().any(|(name, _)| name == counter);
    let list: Vec<String> = grown.iter().map(|(name, growth)| format!("{} +{growth}", plain(name))).collect();
    Ok(vec![
        Row::new(name, "silence", said(&outcome), outcome == Outcome::Silent),
        Row::new(
            format!("{name}: who counted it"),
            plain(counter),
            if list.is_empty() { "no drop counter grew".to_string() } else { list.join(", ") },
            counted,
        ),
    ])
}

/// Labels without their quotation marks.
fn plain(labels: &str) -> String {
    labels.replace('"', "").replace(',', " ")
}

fn said(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered { status, .. } => format!("answer {status}"),
        Outcome::NameUnknown => "name unknown".to_string(),
        Outcome::Refused => "refused".to_string(),
        Outcome::Silent => "silence".to_string(),
        Outcome::Failed { code, reason } => format!("curl {code}: {reason}"),
    }
}

/// A port inside an allowed range that a rule of higher priority denies; its neighbour is open.
pub fn denied_port(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let open = page(ground.netns("red", "app")?, "http://web:8081/", 5)?;
    let holds = open == Ok("red/web".to_string());
    let measured = open.unwrap_or_else(|error| error);
    let mut rows = vec![Row::new("red: app gets http://web:8081/, allowed", "red/web", measured, holds)];
    let name = "red: app gets http://web:8080/, denied";
    rows.extend(silent(ground, ("red", "app"), "http://web:8080/", name, NO_ADMIN)?);
    Ok(rows)
}

/// The reply of an allowed connection passes although no rule lets `db` reach `app`.
pub fn stateful(ground: &Ground) -> Result<Vec<Row>, Failure> {
    let reply = page(ground.netns("red", "app")?, "http://db:5432/", 5)?;
    let holds = reply == Ok("red/db".to_string());
    let measured = reply.unwrap_or_else(|error| error);
    let mut rows = vec![Row::new("red: app gets http://db:5432/, stateful rule", "red/db", measured, holds)];
    let name = "red: db opens a connection to app";
    rows.extend(silent(ground, ("red", "db"), "http://app/", name, DEFAULT_DENY)?);
    Ok(rows)
}
