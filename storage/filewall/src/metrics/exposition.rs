//! What Prometheus gets, by the project's one writer ([`weir_base::exposition`]): each family once, with HELP and TYPE.
//!
//! Invariants
//! - Each number that a policy tells of itself is a family of its kind of policy, [`DETAILS`]: what is unlike is never in one family, where a
//!   sum over its labels would mean nothing.
//! - Principals are left out: their number has no bound that a time series database would like; `weir filewall top` shows them.

use super::{CLASSES, OpTotals, PolicyRow, Status, TOTALS};
use weir_base::exposition::{Exposition, Kind};

/// A number that a kind of policy tells of itself: kind and name in [`PolicyRow::details`]; name behind the kind, and kind, of the family; help.
type Detail = (&'static str, &'static str, &'static str, Kind, &'static str);

/// All of them.
const DETAILS: [Detail; 32] = [
    (
        "access",
        "unknown_place",
        "unknown_places_total",
        Kind::Counter,
        "Calls on what nobody knows the place of.",
    ),
    ("alarm", "folders", "folders", Kind::Gauge, "Folders that are watched."),
    ("alarm", "raised", "raised_total", Kind::Counter, "Alarms raised."),
    ("alarm", "stopped_ever", "stopped", Kind::Gauge, "Watched users and machines that were stopped."),
    ("alarm", "watched", "watched", Kind::Gauge, "Users and machines that are watched."),
    ("audit", "lines_failed", "lines_failed_total", Kind::Counter, "Lines that the disk did not take."),
    ("audit", "lines_lost", "lines_lost_total", Kind::Counter, "Lines that there was no place for."),
    ("audit", "lines_removed", "lines_removed_total", Kind::Counter, "Lines that went with old files."),
    ("audit", "lines_written", "lines_written_total", Kind::Counter, "Lines written."),
    ("handles", "forged", "refused_total", Kind::Counter, "Handles that were not made for their client."),
    (
        "handles",
        "server_handles_too_long",
        "too_long_total",
        Kind::Counter,
        "Handles of the server that do not fit.",
    ),
    ("machines", "users", "users", Kind::Gauge, "Users whose machines are remembered."),
    ("module", "cut_off", "cut_off_total", Kind::Counter, "Runs of a module that were cut off."),
    ("module", "keys", "keys", Kind::Gauge, "Keys in a module's table."),
    ("quota", "bytes", "bytes", Kind::Gauge, "Bytes counted in the period."),
    ("quota", "names", "names", Kind::Gauge, "Names counted in the period."),
    (
        "quota",
        "saves_failed",
        "saves_failed_total",
        Kind::Counter,
        "Times that the counts could not be written.",
    ),
    ("rate", "buckets", "buckets", Kind::Gauge, "Buckets that are kept."),
    (
        "rate",
        "buckets_forgotten",
        "buckets_forgotten_total",
        Kind::Counter,
        "Buckets that gave way to others.",
    ),
    (
        "rbac",
        "activations",
        "activations_total",
        Kind::Counter,
        "Sessions begun with roles that were asked for.",
    ),
    (
        "rbac",
        "activations_refused",
        "activations_refused_total",
        Kind::Counter,
        "Roles asked for and refused.",
    ),
    ("rbac", "alarms", "alarms_total", Kind::Counter, "Denials that raised an alarm."),
    ("rbac", "control_calls", "control_calls_total", Kind::Counter, "Calls on the control folder."),
    (
        "rbac",
        "files_with_permissions",
        "files_with_permissions",
        Kind::Gauge,
        "Files with permissions of their own.",
    ),
    ("rbac", "logged", "logged_total", Kind::Counter, "Allowed operations that were logged."),
    ("rbac", "names_known", "names_known", Kind::Gauge, "Names that need not be asked for."),
    (
        "rbac",
        "names_not_asked",
        "names_not_asked_total",
        Kind::Counter,
        "Names that were known without a question.",
    ),
    ("rbac", "probes", "questions_total", Kind::Counter, "Questions to the server."),
    ("rbac", "sent_as_owner", "sent_as_owner_total", Kind::Counter, "Calls sent as the file's owner."),
    ("rbac", "sessions", "sessions", Kind::Gauge, "Sessions of users."),
    ("rbac", "threats", "threats", Kind::Gauge, "Users that are a threat."),
    ("reorder", "long_writes", "long_writes_total", Kind::Counter, "WRITEs that others may go before."),
];

/// The rule of a detail such as `rule_3_denied`.
fn rule_of(detail: &str) -> Option<&str> {
    detail.strip_prefix("rule_")?.strip_suffix("_denied")
}

impl Status {
    /// As text for Prometheus.
    pub fn prometheus(&self) -> String {
        self.exposition().text()
    }

    /// As numbers for Prometheus, and what is wrong with them: nothing.
    pub fn exposition(&self) -> Exposition {
        let mut text = Exposition::new();
        self.scalars(&mut text);
        for (op, totals) in &self.totals.ops {
            operation(&mut text, op, totals);
        }
        for policy in &self.policies {
            of_policy(&mut text, policy);
        }
        text
    }

    fn scalars(&self, text: &mut Exposition) {
        for (name, help) in TOTALS {
            let kind = if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge };
            let value = self.totals.counters.get(*name).copied().unwrap_or(0);
            text.put(&format!("weir_filewall_{name}"), kind, help, &[], value as f64);
        }
        let refused = u64::from(self.policy_error.is_some());
        for (name, help, value) in [
            (
                "policy_epoch",
                "Number of the policies in force: 1 for the first since the start.",
                self.policy_epoch,
            ),
            (
                "policy_order",
                "Version of the order that they come from; 0 for files of this host.",
                self.policy_order,
            ),
            ("policy_refused", "1 when the newest policy files are wrong, and not in force.", refused),
            ("places", "Handles whose place is known.", self.places as u64),
        ] {
            text.put(&format!("weir_filewall_{name}"), Kind::Gauge, help, &[], value as f64);
        }
        for (server, live) in &self.replicas {
            let help = "1 when a replica is live, 0 when it is behind or silent.";
            let live = f64::from(u8::from(*live));
            text.put("weir_filewall_replica_live", Kind::Gauge, help, &[("server", server)], live);
        }
    }
}

fn operation(text: &mut Exposition, op: &str, totals: &OpTotals) {
    let labels = [("op", op)];
    let calls = totals.row.calls as f64;
    text.put("weir_filewall_calls_total", Kind::Counter, "Calls of clients.", &labels, calls);
    let denied = totals.row.denied as f64;
    text.put("weir_filewall_denied_total", Kind::Counter, "Calls that a policy answered.", &labels, denied);
    let bounds: [f64; CLASSES - 1] = std::array::from_fn(|class| (1u64 << class) as f64 / 1e6);
    let counts: [u64; CLASSES] = std::array::from_fn(|class| totals.classes.get(class).copied().unwrap_or(0));
    let help = "How long the server's replies took.";
    let sum = totals.row.latency_us as f64 / 1e6;
    text.histogram("weir_filewall_reply_seconds", help, &labels, &bounds, &counts, sum);
}

fn of_policy(text: &mut Exposition, policy: &PolicyRow) {
    let labels = [("policy", policy.name.as_str()), ("kind", policy.kind.as_str())];
    for (name, help, value) in [
        ("policy_seen_total", "Calls that a policy saw.", policy.seen),
        ("policy_answered_total", "Calls that a policy answered in place of the server.", policy.answered),
        ("policy_delayed_total", "Times that a policy had a call wait.", policy.delayed),
    ] {
        text.put(&format!("weir_filewall_{name}"), Kind::Counter, help, &labels, value as f64);
    }
    let own = &labels[..1];
    for (detail, value) in &policy.details {
        let known = DETAILS.iter().find(|(kind, name, ..)| *kind == policy.kind && name == detail);
        if let Some((kind, _, family, is, help)) = known {
            text.put(&format!("weir_filewall_{kind}_{family}"), *is, help, own, *value as f64);
        } else if let Some(rule) = rule_of(detail) {
            let labels = [own[0], ("rule", rule)];
            let help = "Calls that a rule denied.";
            text.put("weir_filewall_access_denied_total", Kind::Counter, help, &labels, *value as f64);
        }
    }
}

#[cfg(test)]
mod tests;
