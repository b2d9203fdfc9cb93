//! `kind: guest`: a virtual machine of QEMU that is watched through its memory (Bohra, 3.5.1; row O).

use super::Common;
use serde::Deserialize;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Shortest and longest period, ms.
const PERIOD_MS: std::ops::RangeInclusive<u64> = 1..=60_000;

/// Shortest and longest time in which a guest's hook must answer, ms.
const HOOK_MS: std::ops::RangeInclusive<u64> = 1..=60_000;
/// The time where none is said, ms: it goes through all of the guest's processes a few times.
const HOOK_DEFAULT_MS: u64 = 5_000;

/// What is done to a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestAction {
    /// Only report.
    #[default]
    Report,
    /// Stop its processors and leave it so, for a person to look at.
    Pause,
    /// Stop it, then start it anew.
    Reset,
    /// Stop it, then end its QEMU.
    Quit,
    /// Have its own kernel kill its largest process (the guest's SysRq key `f`).
    OomKill,
    /// Have it crash and write its dump (a non-maskable interrupt), for diagnosis.
    Nmi,
    /// Have the hook that it exports end the culprit's tree.
    Hook,
}

impl GuestAction {
    const ALL: [GuestAction; 7] = [
        GuestAction::Report,
        GuestAction::Pause,
        GuestAction::Reset,
        GuestAction::Quit,
        GuestAction::OomKill,
        GuestAction::Nmi,
        GuestAction::Hook,
    ];

    /// As in a file.
    pub fn name(self) -> &'static str {
        match self {
            GuestAction::Report => "report",
            GuestAction::Pause => "pause",
            GuestAction::Reset => "reset",
            GuestAction::Quit => "quit",
            GuestAction::OomKill => "oom-kill",
            GuestAction::Nmi => "nmi",
            GuestAction::Hook => "hook",
        }
    }

    /// Whether the guest is stopped before it is done.
    pub fn fences(self) -> bool {
        matches!(self, GuestAction::Pause | GuestAction::Reset | GuestAction::Quit)
    }
}

/// What makes an idle guest move a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stimulus {
    /// A key (a shift key alone, which types nothing) is pressed, by QMP.
    Key,
    /// A byte is written to the Unix socket of its serial console.
    Console(PathBuf),
    /// A datagram is sent to it; whether somebody takes it there does not matter.
    Packet(SocketAddr),
    /// There is none: silence decides.
    None,
}

/// `kind: guest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestPolicy {
    /// What all have; its action is not used.
    pub common: Common,
    /// What is done.
    pub action: GuestAction,
    /// The file of the guest's memory.
    pub memory_file: PathBuf,
    /// The Unix socket of QEMU's monitor protocol.
    pub qmp: Option<PathBuf>,
    /// The Unix socket of the port behind which the guest exports a hook.
    pub hook: Option<PathBuf>,
    /// The hook must have answered within this time, ms.
    pub hook_ms: u64,
    /// What makes it move.
    pub stimulus: Stimulus,
    /// The period, ms.
    pub period_ms: u64,
    /// So many periods without progress make it suspect.
    pub periods: u32,
    /// After the stimulus, progress must come within this time, ms.
    pub watch_ms: u64,
    /// So many tasks are too many.
    pub tasks: Option<u64>,
    /// Program that is run once the guest is fenced; it is given the policy's name.
    pub fail_over: Option<PathBuf>,
}

/// The fields of a document that belong to this kind alone.
#[derive(Debug, Default)]
pub(super) struct GuestFields {
    pub(super) memory_file: Option<PathBuf>,
    pub(super) qmp: Option<PathBuf>,
    pub(super) hook: Option<PathBuf>,
    pub(super) hook_ms: Option<u64>,
    pub(super) stimulus: Option<String>,
    pub(super) watch_ms: Option<u64>,
    pub(super) fail_over: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct GuestWhen {
    tasks: Option<u64>,
}

impl GuestFields {
    /// A field that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let fields = [
            (self.memory_file.is_some(), "memory-file"),
            (self.qmp.is_some(), "qmp"),
            (self.hook.is_some(), "hook"),
            (self.hook_ms.is_some(), "hook-ms"),
            (self.stimulus.is_some(), "stimulus"),
            (self.watch_ms.is_some(), "watch-ms"),
            (self.fail_over.is_some(), "fail-over"),
        ];
        fields.into_iter().find(|(given, _)| *given).map(|(_, name)| name)
    }

    /// The policy. `times` are period, ms, and periods.
    pub(super) fn policy(
        self,
        common: Common,
        action: Option<&str>,
        times: (Option<u64>, Option<u32>),
        when: Option<Value>,
    ) -> Result<GuestPolicy, String> {
        let action = match action {
            None => GuestAction::Report,
            Some(said) => {
                GuestAction::ALL.into_iter().find(|action| action.name() == said).ok_or_else(|| {
                    format!(
                        "action '{said}' is none of a guest: use report, pause, reset, quit, oom-kill, nmi or hook"
                    )
                })?
            }
        };
        let when: GuestWhen = match when {
            Some(when) => serde_json::from_value(when).map_err(|error| format!("when: {error}"))?,
            None => GuestWhen::default(),
        };
        if when.tasks == Some(0) {
            return Err("when: a limit of 0 tasks would always be passed".into());
        }
        let memory_file = self.memory_file.ok_or("field 'memory-file' is missing")?;
        let (period_ms, periods) = (times.0.unwrap_or(50), times.1.unwrap_or(3));
        if !PERIOD_MS.contains(&period_ms) || periods == 0 {
            return Err(format!("period-ms must be from 1 to {}, and periods more than 0", PERIOD_MS.end()));
        }
        let missing = "field 'stimulus' is missing: an idle guest stands still, and only what it does when it is \
                       stimulated tells that it lives; 'none' lets silence decide";
        let stimulus = stimulus(self.stimulus.as_deref().ok_or(missing)?)?;
        if action == GuestAction::Hook && self.hook.is_none() {
            return Err(
                "action hook needs the field 'hook': the socket of a port on which the guest listens".into(),
            );
        }
        let hook_ms = self.hook_ms.unwrap_or(HOOK_DEFAULT_MS);
        if !HOOK_MS.contains(&hook_ms) {
            return Err(format!("hook-ms must be from 1 to {}", HOOK_MS.end()));
        }
        let by_qemu = !matches!(action, GuestAction::Report | GuestAction::Hook);
        if self.qmp.is_none() && (stimulus == Stimulus::Key || by_qemu) {
            return Err(format!("action {} with this stimulus needs the field 'qmp'", action.name()));
        }
        let default_ms = if stimulus == Stimulus::None { 0 } else { 200 };
        Ok(GuestPolicy {
            common,
            action,
            memory_file,
            qmp: self.qmp,
            hook: self.hook,
            hook_ms,
            stimulus,
            period_ms,
            periods,
            watch_ms: self.watch_ms.unwrap_or(default_ms),
            tasks: when.tasks,
            fail_over: self.fail_over,
        })
    }
}

fn stimulus(said: &str) -> Result<Stimulus, String> {
    let wrong = || format!("stimulus '{said}' is none: use none, key, console:PATH or packet:ADDRESS:PORT");
    match said.split_once(':') {
        None if said == "none" => Ok(Stimulus::None),
        None if said == "key" => Ok(Stimulus::Key),
        Some(("console", path)) if !path.is_empty() => Ok(Stimulus::Console(path.into())),
        Some(("packet", address)) => address.parse().map(Stimulus::Packet).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}
