//! `weir monitor top`: what a running monitor sees: processes, policies, sensors. `weir monitor status`: whether it does what it should.

use super::STATUS_ADDRESS;
use crate::cli::output::table;
use crate::cli::shown::{self, Shown};
use serde::Serialize;
use weir_monitor::status::Status;

/// `weir monitor top`
pub type Top = shown::Top<OfMonitor>;
/// `weir monitor status`
pub type Brief = shown::Brief<OfMonitor>;

/// A monitor that shows its status.
#[derive(Debug)]
pub struct OfMonitor;

impl Shown for OfMonitor {
    const ADDRESS: &'static str = STATUS_ADDRESS;
    const NAME: &'static str = "a 'weir monitor'";
    type Status = Status;
    type Brief = Briefly;

    fn show(status: &Status, _before: Option<(&Status, u64)>) {
        show(status);
    }

    fn brief(status: &Status) -> (Briefly, Vec<String>) {
        briefly(status)
    }

    fn say(brief: &Briefly) {
        say!("{} policies in force, kernel by {}, {} alarms", brief.policies, brief.kernel, brief.alarms);
    }
}

/// What `weir monitor status` says.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Briefly {
    /// Policies in force.
    policies: usize,
    /// How the kernel is heard.
    kernel: String,
    /// Alarms since the start.
    alarms: u64,
}

fn briefly(status: &Status) -> (Briefly, Vec<String>) {
    let mut problems: Vec<String> = status.degraded.iter().map(|why| format!("degraded: {why}")).collect();
    for row in &status.boxes {
        problems.extend(row.error.iter().map(|error| format!("sensor box {}: {error}", row.name)));
    }
    let hosts = status.hosts.iter();
    problems.extend(hosts.filter(|row| row.failed).map(|row| format!("host {} has failed", row.name)));
    if status.hosts.iter().any(|row| row.alone) {
        problems.push("this host hears no majority of the ring".to_string());
    }
    let guests = status.guests.iter();
    problems.extend(guests.filter(|row| row.failed).map(|row| format!("guest {} has failed", row.name)));
    if status.audit_failed > 0 {
        problems.push(format!("{} lines could not be written to the audit log", status.audit_failed));
    }
    let brief =
        Briefly { policies: status.policies.len(), kernel: status.kernel.clone(), alarms: status.alarms };
    (brief, problems)
}

fn show(status: &Status) {
    say!(
        "kernel by {}; {} processes, {} forks, {} execs, {} exits, {} lost; {} alarms, {} signals",
        status.kernel,
        status.processes,
        status.forks,
        status.execs,
        status.exits,
        status.lost,
        status.alarms,
        status.signals
    );
    say!(
        "loop: {} steps of {} us on average, longest {} us, at most {} us late, {} periods skipped, {} quick",
        status.steps,
        status.step_us.checked_div(status.steps).unwrap_or(0),
        status.step_us_max,
        status.late_us_max,
        status.skipped,
        status.quick
    );
    if let Some(reason) = &status.degraded {
        say!("DEGRADED: {reason}");
    }
    say!("\n{}\n\n{}", policies(status), sensors(status));
    if !status.guests.is_empty() {
        say!("\n{}", guests(status));
    }
    if !status.hosts.is_empty() {
        say!("\n{}", hosts(status));
    }
}

fn policies(status: &Status) -> comfy_table::Table {
    let mut shown = table(&["policy", "kind", "action", "dry run", "living", "forks", "suspicion", "alarms"]);
    for row in &status.policies {
        shown.add_row([
            row.name.clone(),
            row.kind.clone(),
            row.action.clone(),
            if row.dry_run { "yes" } else { "no" }.to_string(),
            row.living.to_string(),
            row.forks.to_string(),
            suspicion(row.level),
            row.alarms.to_string(),
        ]);
    }
    shown
}

/// An accrual level.
fn suspicion(level: Option<f64>) -> String {
    level.map_or("-".to_string(), |level| format!("{level:.1}"))
}

fn hosts(status: &Status) -> comfy_table::Table {
    let mut shown = table(&["host", "state", "suspicion"]);
    for row in &status.hosts {
        let state = match (row.failed, row.alone) {
            (true, _) => "FAILED",
            (false, true) => "ALONE",
            (false, false) => "alive",
        };
        shown.add_row([row.name.clone(), state.to_string(), suspicion(row.level)]);
    }
    shown
}

fn guests(status: &Status) -> comfy_table::Table {
    let mut shown = table(&["guest", "kernel", "state", "suspicion", "tasks", "stimuli"]);
    for row in &status.guests {
        let state = match row {
            row if row.failed => "FAILED",
            row if row.stopped => "stopped",
            row if row.release.is_empty() => "looked for",
            _ => "alive",
        };
        shown.add_row([
            row.name.clone(),
            row.release.clone(),
            state.to_string(),
            format!("{:.1}", row.level),
            row.tasks.to_string(),
            row.stimuli.to_string(),
        ]);
    }
    shown
}

fn sensors(status: &Status) -> comfy_table::Table {
    let mut shown = table(&["box", "process", "user", "sensor", "kind", "value", "updates", "age ms"]);
    for row in &status.boxes {
        if let Some(error) = &row.error {
            shown.add_row([row.name.clone(), row.process.to_string(), row.user.to_string(), error.clone()]);
        }
        for sensor in &row.sensors {
            shown.add_row([
                row.name.clone(),
                row.process.to_string(),
                row.user.to_string(),
                sensor.name.clone(),
                sensor.kind.clone(),
                sensor.value.to_string(),
                sensor.updates.to_string(),
                sensor.age_ms.map_or("-".to_string(), |age| age.to_string()),
            ]);
        }
    }
    shown
}
