//! `weir monitor top`: what a running monitor sees: processes, policies, sensors.

use super::{STATUS_ADDRESS, ask};
use crate::cli::Failure;
use crate::cli::output::{Format, print, table};
use clap::Args;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use weir_monitor::status::Status;

/// `weir monitor top`
#[derive(Debug, Args)]
pub struct Top {
    /// Where the monitor shows its status
    #[arg(long, default_value = STATUS_ADDRESS)]
    status: SocketAddr,
    /// Seconds between two looks; without it, and when the output is no terminal, one look
    #[arg(long)]
    every_s: Option<u64>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

impl Top {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn run(self) -> Result<ExitCode, Failure> {
        loop {
            let status: Status = ask::fetch(self.status, "status")?;
            if self.every_s.is_some() && std::io::stdout().is_terminal() {
                put!("\x1b[2J\x1b[H");
            }
            print(self.output, &status, || show(&status))?;
            std::io::stdout().flush().map_err(Failure::io("printing"))?;
            let Some(seconds) = self.every_s else { return Ok(ExitCode::SUCCESS) };
            std::thread::sleep(Duration::from_secs(seconds.max(1)));
        }
    }
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
