//! `weir clock`: the controllers' clocks, and what ordered time makes of them.

use super::output::{self, paint};
use super::{Failure, Output};
use clap::Args;
use comfy_table::{Cell, Color};
use std::process::ExitCode;
use weir_api::client::Client;
use weir_api::types::ClockStatus;

/// A clock that is further away is told of.
const AWAY_MS: i64 = 5_000;

/// Shows by how much each controller's clock is ahead or behind; with --set, accepts what the clocks of a majority say
#[derive(Debug, Args)]
pub(super) struct Clock {
    /// Say that the clocks of a majority are right. Keys with a time to live keep what is left of it
    #[arg(long)]
    set: bool,
    #[command(flatten)]
    output: Output,
}

impl Clock {
    pub(super) fn run(self, client: &Client) -> Result<ExitCode, Failure> {
        if self.set {
            client.set_clock()?;
            let words = "Wall time is what the controllers' clocks say; everything with a time to live keeps what is left of it.";
            output::done(self.output.output, serde_json::json!({"set": true}), words)?;
            return Ok(ExitCode::SUCCESS);
        }
        let clock = client.clock()?;
        output::print(self.output.output, &clock, || say!("{}", text(&clock)))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A difference in words: `3 h 2 min ahead`.
fn ahead(ms: i64) -> String {
    let seconds = ms.unsigned_abs() / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let size = match seconds {
        0..60 => format!("{}.{} s", seconds, ms.unsigned_abs() / 100 % 10),
        60..3_600 => format!("{minutes} min {} s", seconds % 60),
        3_600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    };
    match ms {
        -99..100 => "right".to_string(),
        100.. => format!("{size} ahead"),
        _ => format!("{size} behind"),
    }
}

fn state(clock: &ClockStatus) -> String {
    let by = clock.ahead_ms.map(ahead).unwrap_or_default();
    match clock.state.as_str() {
        "follows" => "Ordered time follows the controllers' clocks.".to_string(),
        "corrects" => format!(
            "The controllers' clocks are {by} of ordered time: it is led to them slowly, or at once when they stay ahead for a minute."
        ),
        "asks" => format!(
            "The controllers' clocks are {by} of ordered time, which goes on without them: set them right, or accept them with \
             'weir clock --set'. Keys with a time to live keep what is left of it either way."
        ),
        _ => "The clocks of too few controllers are known here: ordered time goes on by this machine's monotonic clock.".to_string(),
    }
}

/// All of it.
fn text(clock: &ClockStatus) -> String {
    let mut table = output::table(&["controller", "clock"]);
    for one in &clock.controllers {
        let id = if one.id == 0 { "this one".to_string() } else { one.id.to_string() };
        let color = if one.ahead_ms.abs() > AWAY_MS { Color::Red } else { Color::Green };
        table.add_row(vec![Cell::new(id), paint(ahead(one.ahead_ms), color)]);
    }
    format!("{}\n{table}", state(clock))
}

/// What `weir status` says of the clocks: nothing while all are right.
pub(super) fn notes(clock: &ClockStatus) -> Vec<String> {
    let mut notes = Vec::new();
    if !["follows", "alone"].contains(&clock.state.as_str()) {
        notes.push(state(clock));
    }
    let away = clock.controllers.iter().filter(|one| one.id != 0 && one.ahead_ms.abs() > AWAY_MS);
    notes.extend(away.map(|one| {
        format!("The clock of controller {} is {}: set it right ('weir clock').", one.id, ahead(one.ahead_ms))
    }));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_api::types::ClockOf;

    #[test]
    fn differences_are_told_in_words() {
        let told = |ms: i64| ahead(ms);
        assert_eq!(told(50), "right");
        assert_eq!(told(1_500), "1.5 s ahead");
        assert_eq!(told(-3_600_000), "1 h 0 min behind");
        assert_eq!(told(10 * 365 * 86_400_000), "3650 d 0 h ahead");
        assert_eq!(told(i64::MIN), "106751991167 d 7 h behind");
    }

    #[test]
    fn status_names_a_clock_that_is_wrong_and_no_other() {
        let controllers = vec![ClockOf { id: 1, ahead_ms: 20 }, ClockOf { id: 3, ahead_ms: -3_600_000 }];
        let mut clock = ClockStatus {
            ordered_ms: 1,
            wall_ms: 1,
            ahead_ms: Some(0),
            state: "follows".into(),
            controllers,
        };
        assert_eq!(
            notes(&clock),
            ["The clock of controller 3 is 1 h 0 min behind: set it right ('weir clock')."]
        );
        (clock.state, clock.ahead_ms) = ("asks".into(), Some(3_650 * 86_400_000));
        assert!(
            notes(&clock)[0].contains("3650 d 0 h ahead of ordered time") && text(&clock).contains("--set")
        );
    }
}
