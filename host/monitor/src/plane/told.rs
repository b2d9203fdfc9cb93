//! What a monitor tells of its host: what it has counted, and the newest entries of its audit log that are of faults and repairs.

use crate::audit::{self, What};
use crate::status::Status;
use crate::{explain, webhook};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_model::health::{HealthNote, NOTES_MAX, POLICY_BYTES_MAX, Severity, TEXT_BYTES_MAX};
use weir_model::plane::REPORT_BYTES_MAX;
use weir_planes::monitor::Report;

/// A note for the controllers from an entry of the audit log; nothing for what is of no interest to them. They are told
/// of faults and repairs only: a query that fires says what somebody asked this host for, and one that fires often would
/// push all faults out of the few notes that are kept.
pub fn note(entry: &audit::Entry) -> Option<HealthNote> {
    if matches!(entry.what, What::Query { .. }) {
        return None;
    }
    let severity = match webhook::severity(entry) {
        Some("critical") => Severity::Critical,
        Some("warning") => Severity::Warning,
        Some(_) => Severity::Info,
        None if webhook::is_end(entry) => Severity::Info,
        None => return None,
    };
    Some(HealthNote {
        number: entry.number,
        unix_ms: entry.unix_ms,
        severity,
        policy: cut(&entry.policy.clone().unwrap_or_default(), POLICY_BYTES_MAX),
        text: cut(&explain::line(entry), TEXT_BYTES_MAX),
    })
}

/// The beginning of a text, in whole characters.
fn cut(text: &str, most: usize) -> String {
    let end = text.char_indices().find(|(at, one)| at + one.len_utf8() > most);
    text[..end.map_or(text.len(), |(at, _)| at)].to_string()
}

/// The newest notes: from an audit log, and from entries as they are written.
#[derive(Clone, Debug)]
pub struct Telling(Arc<Mutex<VecDeque<HealthNote>>>);

impl Telling {
    /// Begins with what an audit log has: what was seen before this start is still worth knowing.
    pub fn new(audit: &Path) -> Telling {
        let known = audit::read_all(audit).unwrap_or_default();
        let newest: Vec<HealthNote> =
            known.iter().rev().filter_map(|(_, entry)| note(entry)).take(NOTES_MAX).collect();
        Telling(Arc::new(Mutex::new(newest.into_iter().rev().collect())))
    }

    fn notes(&self) -> MutexGuard<'_, VecDeque<HealthNote>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears of an entry.
    pub fn hear(&self, entry: &audit::Entry) {
        let Some(note) = note(entry) else { return };
        let mut notes = self.notes();
        if notes.len() == NOTES_MAX {
            notes.pop_front();
        }
        notes.push_back(note);
    }

    /// The report, as long as one may be: the oldest notes make room.
    pub fn report(&self, status: &Status) -> Report {
        let kernel = match &status.degraded {
            Some(reason) => format!("{} (degraded: {reason})", status.kernel),
            None => status.kernel.clone(),
        };
        let mut report = Report {
            kernel: cut(&kernel, TEXT_BYTES_MAX),
            alarms: status.alarms,
            notes: self.notes().iter().cloned().collect(),
        };
        let is_long =
            |report: &Report| serde_json::to_vec(report).is_ok_and(|text| text.len() > REPORT_BYTES_MAX);
        while is_long(&report) && !report.notes.is_empty() {
            report.notes.remove(0);
        }
        report
    }
}

#[cfg(test)]
mod tests;
