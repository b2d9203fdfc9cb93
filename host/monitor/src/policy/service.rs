//! `kind: service`: a service that is watched for crashes and may be started again (row O: the crash of an application, seen
//! from outside it).

use super::{Action, Common};
use crate::restart::{LIMIT_MAX, RestartSettings};
use serde::Deserialize;
use serde_json::Value;
use std::path::PathBuf;

/// Where the cgroups of units for systemd are.
const UNITS: &str = "system.slice";
/// Most words of a command.
const WORDS_MAX: usize = 64;
/// Longest time of any field, ms.
const MS_MAX: u64 = 86_400_000;

/// Which process of a service is its main one, whose end is the end of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Main {
    /// The oldest in the policy's cgroup whose parent is not in it.
    Topmost,
    /// The one that a file names.
    PidFile(PathBuf),
    /// The oldest with this program whose parent has another one.
    Program(String),
}

/// How it is started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Program and arguments.
    pub command: Vec<String>,
    /// When, and how often.
    pub settings: RestartSettings,
    /// Whether the command is run in the policy's cgroup. A unit's own is left to systemd.
    pub enters: bool,
}

/// `kind: service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePolicy {
    /// What all have.
    pub common: Common,
    /// Its main process.
    pub main: Main,
    /// Exit codes that are no crash.
    pub clean_exits: Vec<u32>,
    /// How it is started again, if it is.
    pub restart: Option<Restart>,
}

impl ServicePolicy {
    /// What is done, as in a file.
    pub fn action_name(&self) -> &'static str {
        if self.restart.is_some() { "restart" } else { Action::Report.name() }
    }

    /// Whether the main process ended by a fault, by what `wait` tells. The signals that ask a process to end, and that of a pipe
    /// that nobody reads, are none (systemd's clean signals).
    pub fn is_crash(&self, status: u32) -> bool {
        match status & 0x7f {
            0 => !self.clean_exits.contains(&(status >> 8 & 0xff)),
            _ => is_fault(status),
        }
    }
}

/// Whether a process was ended by a signal that is a sign of a fault.
pub(crate) fn is_fault(status: u32) -> bool {
    const HUP: u32 = 1;
    const INT: u32 = 2;
    const PIPE: u32 = 13;
    const TERM: u32 = 15;
    !matches!(status & 0x7f, 0 | HUP | INT | PIPE | TERM)
}

/// The fields of a document that only this kind has.
#[derive(Default)]
pub(super) struct ServiceFields {
    pub unit: Option<String>,
    pub pid_file: Option<PathBuf>,
    pub program: Option<String>,
    pub clean_exits: Option<Vec<u32>>,
    pub restart: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RestartFields {
    command: Vec<String>,
    #[serde(default = "backoff_ms")]
    backoff_ms: u64,
    #[serde(default = "backoff_max_ms")]
    backoff_max_ms: u64,
    #[serde(default = "limit")]
    limit: u32,
    #[serde(default = "window_s")]
    window_s: u64,
    #[serde(default = "start_ms")]
    start_ms: u64,
}

fn backoff_ms() -> u64 {
    100
}
fn backoff_max_ms() -> u64 {
    30_000
}
fn limit() -> u32 {
    10
}
fn window_s() -> u64 {
    600
}
fn start_ms() -> u64 {
    10_000
}

impl ServiceFields {
    /// A field that is there.
    pub(super) fn given(&self) -> Option<&'static str> {
        let fields = [
            (self.unit.is_some(), "unit"),
            (self.pid_file.is_some(), "pid-file"),
            (self.program.is_some(), "program"),
            (self.clean_exits.is_some(), "clean-exits"),
            (self.restart.is_some(), "restart"),
        ];
        fields.into_iter().find(|(given, _)| *given).map(|(_, name)| name)
    }

    pub(super) fn policy(self, common: Common) -> Result<ServicePolicy, String> {
        let unit = self.unit.is_some();
        let mut common = Common { action: Action::Report, ..common };
        let main = match (self.unit, self.pid_file, self.program) {
            (Some(unit), None, None) => {
                if common.cgroup.is_some() {
                    return Err("a unit has its own cgroup: give unit or cgroup".into());
                }
                if unit.contains('/') || !unit.contains('.') {
                    return Err(format!(
                        "unit '{unit}' is no unit: give its whole name, such as web.service"
                    ));
                }
                common.cgroup = Some(PathBuf::from(UNITS).join(unit));
                Main::Topmost
            }
            (None, Some(path), None) => Main::PidFile(path),
            (None, None, Some(name)) if !name.is_empty() && !name.contains('/') => Main::Program(name),
            (None, None, Some(name)) => {
                return Err(format!("program '{name}' is no name of a program, such as 'nginx'"));
            }
            (None, None, None) if common.cgroup.is_some() => Main::Topmost,
            (None, None, None) => return Err("give one of unit, cgroup, pid-file, program".into()),
            _ => return Err("give one of unit, pid-file, program, not several".into()),
        };
        let clean_exits = self.clean_exits.unwrap_or_else(|| vec![0]);
        if clean_exits.iter().any(|code| *code > 255) {
            return Err("clean-exits: exit codes are from 0 to 255".into());
        }
        let enters = !unit && common.cgroup.is_some();
        let restart = self.restart.map(|fields| restart(fields, enters)).transpose()?;
        Ok(ServicePolicy { common, main, clean_exits, restart })
    }
}

fn restart(fields: Value, enters: bool) -> Result<Restart, String> {
    let fields: RestartFields =
        serde_json::from_value(fields).map_err(|error| format!("restart: {error}"))?;
    let words = fields.command.len();
    if words == 0 || words > WORDS_MAX || fields.command[0].is_empty() {
        return Err(format!(
            "restart: command must be a program and its arguments, at most {WORDS_MAX} words"
        ));
    }
    if fields.limit == 0 || fields.limit as usize >= LIMIT_MAX {
        return Err(format!("restart: limit must be from 1 to {}, not {}", LIMIT_MAX - 1, fields.limit));
    }
    let window_ms = fields.window_s.saturating_mul(1000);
    let times = [
        ("backoff-ms", fields.backoff_ms),
        ("backoff-max-ms", fields.backoff_max_ms),
        ("window-s", window_ms),
        ("start-ms", fields.start_ms),
    ];
    if let Some((name, _)) = times.iter().find(|(_, ms)| *ms == 0 || *ms > MS_MAX) {
        return Err(format!("restart: {name} must be more than 0 and at most a day"));
    }
    if fields.backoff_max_ms < fields.backoff_ms {
        return Err("restart: backoff-max-ms must not be less than backoff-ms".into());
    }
    let ns = |ms: u64| ms * 1_000_000;
    let settings = RestartSettings {
        backoff_ns: ns(fields.backoff_ms),
        backoff_ns_max: ns(fields.backoff_max_ms),
        limit: fields.limit,
        window_ns: ns(window_ms),
        start_ns: ns(fields.start_ms),
    };
    Ok(Restart { command: fields.command, settings, enters })
}
