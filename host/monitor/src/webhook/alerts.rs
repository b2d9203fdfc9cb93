//! Which alerts fire, and the messages that say so.
//!
//! An alert is known by its labels, and its fingerprint is that which Prometheus computes of them: it is the same at its start and at its
//! end. It is over when an entry says so; else when it was not raised again for [`RESOLVE_MS`], unless it is about a state that lasts until
//! its end is told.

use super::name;
use super::{is_end, rfc3339, severity};
use crate::audit::{Entry, What};
use crate::explain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An alert that was not raised again for so long is over, ms.
pub const RESOLVE_MS: u64 = 300_000;
/// One that is raised again and again is told again after so long, ms.
pub const REPEAT_MS: u64 = 60_000;
/// Most alerts that fire at a time; the one that was raised longest ago gives way.
pub const FIRING_MAX: usize = 512;
/// The time that alertmanager writes for "not yet".
const NOT_YET: &str = "0001-01-01T00:00:00Z";

type Pairs = BTreeMap<String, String>;

/// A message, with one alert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    version: &'static str,
    group_key: String,
    truncated_alerts: u64,
    status: &'static str,
    receiver: &'static str,
    group_labels: Pairs,
    common_labels: Pairs,
    common_annotations: Pairs,
    #[serde(rename = "externalURL")]
    external_url: &'static str,
    alerts: Vec<Alert>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Alert {
    status: &'static str,
    labels: Pairs,
    annotations: Pairs,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL")]
    generator_url: &'static str,
    fingerprint: String,
}

/// An alert that fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Raised {
    labels: Pairs,
    annotations: Pairs,
    starts_ms: u64,
    /// When it was raised last, and when that was told last.
    raised_ms: u64,
    told_ms: u64,
    /// Whether it is over only when that is told.
    lasts: bool,
}

impl Raised {
    /// The message that it fires, or that it is over since `ends_ms`.
    fn message(&self, ends_ms: Option<u64>) -> Message {
        let status = if ends_ms.is_some() { "resolved" } else { "firing" };
        let alertname = self.labels.get("alertname").cloned().unwrap_or_default();
        let alert = Alert {
            status,
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
            starts_at: rfc3339(self.starts_ms),
            ends_at: ends_ms.map_or(NOT_YET.to_string(), rfc3339),
            generator_url: "",
            fingerprint: fingerprint(&self.labels),
        };
        Message {
            version: "4",
            group_key: format!("{{}}:{{alertname=\"{alertname}\"}}"),
            truncated_alerts: 0,
            status,
            receiver: "weir-monitor",
            group_labels: Pairs::from([("alertname".to_string(), alertname)]),
            common_labels: self.labels.clone(),
            common_annotations: self.annotations.clone(),
            external_url: "",
            alerts: vec![alert],
        }
    }
}

/// Prometheus' fingerprint of labels: FNV-1a of 64 bits over names and values in order, each followed by the byte 255.
fn fingerprint(labels: &Pairs) -> String {
    let (start, prime) = (0xcbf2_9ce4_8422_2325_u64, 0x0000_0100_0000_01b3_u64);
    let parts = labels.iter().flat_map(|(label, value)| [label, value]);
    let bytes = parts.flat_map(|part| part.bytes().chain([255]));
    let hash = bytes.fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(prime));
    format!("{hash:016x}")
}

/// The labels of an entry's alert; nothing for entries that are no alarm.
fn labels(entry: &Entry) -> Option<Pairs> {
    let severity = severity(entry)?.to_string();
    let mut labels = vec![("alertname", name(entry)?), ("severity", severity)];
    labels.extend(entry.policy.clone().map(|policy| ("policy", policy)));
    match &entry.what {
        What::HostFailed { host, .. } => labels.push(("host", host.clone())),
        What::Query { query, .. } => labels.push(("query", query.clone())),
        What::Ordered { cgroup, order, .. } => {
            labels.extend([("cgroup", cgroup.clone()), ("order", order.clone())]);
        }
        _ => {}
    }
    Some(labels.into_iter().map(|(label, value)| (label.to_string(), value)).collect())
}

/// Whether what an entry tells lasts until its end is told.
fn lasts(entry: &Entry) -> bool {
    match &entry.what {
        What::HostFailed { .. } => true,
        What::Alarm(alarm) => alarm.measure == "silent-ns",
        What::Guest(alarm) => alarm.measure != "tasks",
        What::NotRestarted(not) => not.again_in_ms.is_none(),
        _ => false,
    }
}

/// The alerts that fire. It is kept beside the outbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    /// Number of the newest entry that was taken.
    pub last: u64,
    raised: BTreeMap<String, Raised>,
}

impl Firing {
    /// None, and the entries up to a number are of no interest.
    pub fn after(last: u64) -> Firing {
        Firing { last, ..Firing::default() }
    }

    /// How many fire.
    pub fn count(&self) -> usize {
        self.raised.len()
    }

    /// Takes an entry; returns what is to be sent. An entry that was taken before changes nothing.
    pub fn take(&mut self, entry: &Entry) -> Vec<Message> {
        if entry.number <= self.last {
            return Vec::new();
        }
        self.last = entry.number;
        match labels(entry) {
            Some(labels) => self.raise(entry, labels),
            None if is_end(entry) => {
                let host = match &entry.what {
                    What::HostRecovered { host } => Some(host),
                    _ => None,
                };
                self.end(entry.unix_ms, |labels| match host {
                    Some(host) => labels.get("host") == Some(host),
                    None => entry.policy.is_some() && labels.get("policy") == entry.policy.as_ref(),
                })
            }
            None => Vec::new(),
        }
    }

    fn raise(&mut self, entry: &Entry, labels: Pairs) -> Vec<Message> {
        let now = entry.unix_ms;
        let annotations = Pairs::from([
            ("summary".to_string(), explain::line(entry)),
            ("description".to_string(), explain::text(entry, &[])),
            ("event".to_string(), entry.number.to_string()),
        ]);
        let mut told = Vec::new();
        let key = fingerprint(&labels);
        if self.raised.len() >= FIRING_MAX && !self.raised.contains_key(&key) {
            let oldest = self.raised.iter().min_by_key(|(_, raised)| raised.raised_ms);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                told.extend(self.raised.remove(&oldest).map(|raised| raised.message(Some(now))));
            }
        }
        let fresh = Raised {
            labels,
            annotations: Pairs::new(),
            starts_ms: now,
            raised_ms: now,
            told_ms: 0,
            lasts: false,
        };
        let raised = self.raised.entry(key).or_insert(fresh);
        (raised.annotations, raised.raised_ms, raised.lasts) = (annotations, now, lasts(entry));
        // A clock that was set back must not make it silent.
        if raised.told_ms == 0 || now.abs_diff(raised.told_ms) >= REPEAT_MS {
            raised.told_ms = now.max(1);
            told.push(raised.message(None));
        }
        told
    }

    fn end(&mut self, now_ms: u64, mut ends: impl FnMut(&Pairs) -> bool) -> Vec<Message> {
        self.take_out(|raised| ends(&raised.labels), now_ms)
    }

    /// The messages that some are over, which are raised no more.
    fn take_out(&mut self, mut which: impl FnMut(&Raised) -> bool, now_ms: u64) -> Vec<Message> {
        let mut over = Vec::new();
        self.raised.retain(|_, raised| {
            let goes = which(raised);
            if goes {
                over.push(raised.message(Some(now_ms.max(raised.starts_ms))));
            }
            !goes
        });
        over
    }

    /// What is over because nobody raised it again.
    pub fn expire(&mut self, now_ms: u64) -> Vec<Message> {
        let is_old = |raised: &Raised| !raised.lasts && now_ms.saturating_sub(raised.raised_ms) >= RESOLVE_MS;
        self.take_out(is_old, now_ms)
    }

    /// A monitor has begun anew: it will raise again what lasts still, and cannot tell the end of what ended meanwhile.
    pub fn begin_anew(&mut self, now_ms: u64) {
        for raised in self.raised.values_mut().filter(|raised| raised.lasts) {
            (raised.lasts, raised.raised_ms) = (false, now_ms);
        }
    }
}
