//! Alarms in the form that Prometheus' alertmanager sends to its webhooks (version 4), so that whatever takes those takes
//! ours.
//!
//! ```text
//!  audit log ──► alerts: which of them fire, which are over ──► outbox, on disk ──► sender ──► receiver
//! ```
//!
//! Invariants
//! - What the audit log has is told: an entry that finds no room in the queue, or that a killed monitor had not put into the outbox, is
//!   read from the log.
//! - What is in the outbox stays there until the receiver has taken it, over restarts too, in order; a receiver may see the same twice,
//!   with the same fingerprint. The outbox is bounded, and what was dropped for that is counted.
//! - The loop, and the thread that writes the log, wait for none of this.

pub mod alerts;
pub mod outbox;
pub mod sender;

pub use alerts::{Firing, Message};
pub use outbox::{Limits, Outbox};
pub use sender::{Answer, Receiver, Settings, Webhook, judge};

use crate::audit::{Entry, What};

/// The name of the alert of an entry; nothing for entries that are no alarm and end none.
pub(crate) fn name(entry: &Entry) -> Option<String> {
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
        // They end what began with other entries.
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
