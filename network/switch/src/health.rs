//! What programs of a host tell of it, made one report: the monitor's, and what became of orders (rows F and O).
//!
//! The monitor tells all that it has seen at once, and a later report takes the place of the one before. Whoever carries out an order (a
//! FileWall its policies, a monitor a repair) tells what became of that one order, whether a monitor runs or not. The controllers
//! keep one report of a host, so the switch, which signs it, puts both together.
//!
//! What became of an order is a note: its policy names the order's version ([`order_policy`]), a version names one order of a domain,
//! and the severity says how it ended: `Info` for one that is in force, anything else for one that was refused or has failed.
//!
//! Invariants
//! - What one program tells takes nothing away of what another has told, but for the oldest notes where there is no room.
//! - There is at most one note of an order: the last.
//! - A switch that begins anew knows nothing: whoever has told something tells it again over a new connection.

use std::collections::VecDeque;
use weir_model::Label;
use weir_model::health::{HealthNote, HealthReport, NOTES_MAX};

/// Orders of which it is known what became of them; the oldest make room.
pub const ORDERS_MAX: usize = NOTES_MAX / 2;
/// What the policy of an order's note begins with.
const ORDER: &str = "order v";
/// How the kernel is heard where no monitor has told anything.
const NO_MONITOR: &str = "nothing (no monitor has told anything)";

/// The policy of the note that tells what became of the order of a version.
pub fn order_policy(version: u64) -> String {
    format!("{ORDER}{version}")
}

/// What became of orders, as one report of a host: without a kernel, which only monitors hear.
pub fn orders_report(actuator: Label, notes: Vec<HealthNote>) -> HealthReport {
    HealthReport { actuator, kernel: String::new(), alarms: 0, notes }
}

fn is_of_orders(report: &HealthReport) -> bool {
    let of_order = |note: &HealthNote| {
        note.policy.strip_prefix(ORDER).is_some_and(|version| version.parse::<u64>().is_ok())
    };
    report.kernel.is_empty() && !report.notes.is_empty() && report.notes.iter().all(of_order)
}

/// What was told so far.
#[derive(Debug, Default)]
pub struct Told {
    monitor: Option<HealthReport>,
    orders: VecDeque<HealthNote>,
}

impl Told {
    /// Takes a report; what is known of the host then.
    pub fn take(&mut self, report: HealthReport) -> HealthReport {
        let actuator = report.actuator.clone();
        if is_of_orders(&report) {
            for note in report.notes {
                self.orders.retain(|known| known.policy != note.policy);
                self.orders.push_back(note);
            }
            let over = self.orders.len().saturating_sub(ORDERS_MAX);
            self.orders.drain(..over);
        } else {
            self.monitor = Some(report);
        }
        let mut whole = self.monitor.clone().unwrap_or_else(|| HealthReport {
            actuator,
            kernel: NO_MONITOR.to_string(),
            alarms: 0,
            notes: Vec::new(),
        });
        let over = (whole.notes.len() + self.orders.len()).saturating_sub(NOTES_MAX);
        whole.notes.drain(..over.min(whole.notes.len()));
        // What a monitor tells is in its order already, whatever its clock did meanwhile.
        if !self.orders.is_empty() {
            whole.notes.extend(self.orders.iter().cloned());
            whole.notes.sort_by_key(|note| note.unix_ms);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::health::Severity;

    fn note(policy: &str, unix_ms: u64) -> HealthNote {
        HealthNote {
            number: 0,
            unix_ms,
            severity: Severity::Info,
            policy: policy.to_string(),
            text: format!("text of {policy}"),
        }
    }

    fn host() -> Label {
        Label::new("h1").unwrap()
    }

    fn monitor(notes: Vec<HealthNote>) -> HealthReport {
        HealthReport { actuator: host(), kernel: "bpf".to_string(), alarms: 3, notes }
    }

    fn policies(report: &HealthReport) -> Vec<&str> {
        report.notes.iter().map(|note| note.policy.as_str()).collect()
    }

    #[test]
    fn a_monitor_and_whoever_carries_out_orders_take_nothing_from_each_other() {
        let mut told = Told::default();
        let alone = told.take(orders_report(host(), vec![note(&order_policy(7), 10)]));
        assert_eq!((policies(&alone), alone.problem()), (vec!["order v7"], None));
        let both = told.take(monitor(vec![note("oom", 5), note("stalled", 20)]));
        assert_eq!((policies(&both), both.alarms), (vec!["oom", "order v7", "stalled"], 3));
        let again = told.take(orders_report(host(), vec![note(&order_policy(7), 30)]));
        assert_eq!((policies(&again), again.kernel.as_str()), (vec!["oom", "stalled", "order v7"], "bpf"));
        // A monitor's report without notes is a monitor's.
        assert_eq!(policies(&told.take(monitor(Vec::new()))), ["order v7"]);
        let silent = HealthReport { kernel: String::new(), ..monitor(Vec::new()) };
        assert_eq!(policies(&told.take(silent)), ["order v7"]);
    }

    #[test]
    fn a_report_is_never_longer_than_one_may_be_and_the_newest_of_each_stay() {
        let mut told = Told::default();
        for version in 0..40 {
            told.take(orders_report(host(), vec![note(&order_policy(version), version)]));
        }
        let notes = (0..NOTES_MAX as u64).map(|at| note(&format!("p{at}"), 100 + at)).collect();
        let whole = told.take(monitor(notes));
        assert_eq!((whole.notes.len(), whole.problem()), (NOTES_MAX, None));
        assert!(policies(&whole).contains(&"order v39") && policies(&whole).contains(&"p15"));
        assert!(!policies(&whole).contains(&"order v31") && !policies(&whole).contains(&"p7"));
    }

    #[test]
    fn a_policy_of_a_monitor_is_no_order() {
        let mut told = Told::default();
        told.take(orders_report(host(), vec![note("order value", 1)]));
        let whole = told.take(monitor(Vec::new()));
        assert!(whole.notes.is_empty(), "{whole:?}");
    }
}
