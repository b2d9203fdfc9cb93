//! Alarms in the form that Prometheus' alertmanager sends to its webhooks (version 4), so that whatever takes those takes
//! ours.

use crate::audit::{Entry, What};
use crate::explain;
use serde::Serialize;
use std::collections::BTreeMap;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    version: &'static str,
    group_key: String,
    truncated_alerts: u64,
    status: &'static str,
    receiver: &'static str,
    group_labels: BTreeMap<&'static str, String>,
    common_labels: BTreeMap<&'static str, String>,
    common_annotations: BTreeMap<&'static str, String>,
    #[serde(rename = "externalURL")]
    external_url: &'static str,
    alerts: Vec<Alert>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    status: &'static str,
    labels: BTreeMap<&'static str, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL")]
    generator_url: &'static str,
    fingerprint: String,
}

/// The time that alertmanager writes for "not yet".
const NOT_YET: &str = "0001-01-01T00:00:00Z";

/// The name of the alert of an entry; nothing for entries that are no alarm and end none.
fn name(entry: &Entry) -> Option<String> {
    Some(match &entry.what {
        What::Alarm(alarm) => format!("weir-monitor-{}", alarm.measure),
        What::Guest(alarm) => format!("weir-monitor-guest-{}", alarm.measure),
        What::Crashed(crash) if crash.main => "weir-monitor-crashed".into(),
        What::Crashed(_) => "weir-monitor-worker-crashed".into(),
        What::NotRestarted(_) => "weir-monitor-not-restarted".into(),
        What::Ordered { .. } => "weir-monitor-ordered".into(),
        What::Unsettled { .. } => "weir-monitor-unsettled".into(),
        What::Query { .. } => "weir-monitor-query".into(),
        What::HostFailed { .. } => "weir-monitor-host-failed".into(),
        What::Resynced { .. } => "weir-monitor-lost-events".into(),
        // The end of an alarm must carry the labels of its start, of which the measure is not known here.
        What::Settled { .. }
        | What::Recovered
        | What::Restarted { .. }
        | What::HostRecovered { .. }
        | What::Started { .. }
        | What::Stopped => return None,
    })
}

/// How bad an entry is: `info`, `warning` or `critical`; nothing for entries that are no alarm.
pub fn severity(entry: &Entry) -> Option<&'static str> {
    name(entry)?;
    Some(match &entry.what {
        What::Alarm(alarm) if alarm.outcome == "acted" || alarm.dry_run => "warning",
        What::Guest(alarm) if alarm.dry_run => "warning",
        // It will be started again, or its main process sees to it.
        What::Crashed(crash) if !crash.main || crash.restart_in_ms.is_some() => "warning",
        What::NotRestarted(not) if not.again_in_ms.is_some() => "warning",
        What::Ordered { problem: None, .. } | What::Resynced { .. } | What::Query { .. } => "info",
        _ => "critical",
    })
}

/// Whether an entry tells that something is over.
pub fn is_end(entry: &Entry) -> bool {
    matches!(
        entry.what,
        What::Settled { .. } | What::Recovered | What::Restarted { .. } | What::HostRecovered { .. }
    )
}

/// The message for an entry; nothing for entries that are no alarm and end none.
pub fn message(entry: &Entry) -> Option<Message> {
    let (name, severity) = (name(entry)?, severity(entry)?);
    let mut labels = BTreeMap::from([("alertname", name), ("severity", severity.to_string())]);
    if let Some(policy) = &entry.policy {
        labels.insert("policy", policy.clone());
    }
    if let What::HostFailed { host, .. } = &entry.what {
        labels.insert("host", host.clone());
    }
    let annotations = BTreeMap::from([
        ("summary", explain::line(entry)),
        ("description", explain::text(entry, &[])),
        ("event", entry.number.to_string()),
    ]);
    let group_key = format!("{{}}:{{alertname=\"{}\"}}", labels["alertname"]);
    let alert = Alert {
        status: "firing",
        labels: labels.clone(),
        annotations: annotations.clone(),
        starts_at: rfc3339(entry.unix_ms),
        ends_at: NOT_YET.into(),
        generator_url: "",
        fingerprint: format!("{:016x}", entry.number),
    };
    Some(Message {
        version: "4",
        group_key,
        truncated_alerts: 0,
        status: "firing",
        receiver: "weir-monitor",
        group_labels: BTreeMap::from([("alertname", labels["alertname"].clone())]),
        common_labels: labels,
        common_annotations: annotations,
        external_url: "",
        alerts: vec![alert],
    })
}

/// A time as RFC 3339 wants it, in UTC (the civil calendar from days: Howard Hinnant's algorithm).
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests;
