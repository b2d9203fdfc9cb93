//! Policies: what is a fault, who may not be touched, what is done (Bohra, 3.5.2; row O). They are documents in YAML
//! files; `docs/operate/monitor.md` says each field. A file that is wrong refuses the start: a monitor that runs has the
//! policies that were written.
//!
//! Nothing acts unless it says `dry-run: false`: a policy is tried on a live system first.

mod file;
mod guest;
mod service;

pub use file::{builtin, load};
pub use guest::{GuestAction, GuestPolicy, Stimulus};
pub(crate) use service::is_fault;
pub use service::{Main, Restart, ServicePolicy};

use crate::kernel::Comm;
use serde::Deserialize;
use std::path::PathBuf;

/// Most policies.
pub const POLICIES_MAX: usize = crate::tree::scope::SCOPES_MAX;
/// Longest name of a policy.
pub const NAME_CHARS_MAX: usize = 63;
/// Bytes that the kernel keeps of a program's name.
pub const COMM_BYTES: usize = 15;

/// Whether a path leads nowhere above its beginning.
pub fn is_plain(path: &std::path::Path) -> bool {
    path.components().all(|part| !matches!(part, std::path::Component::ParentDir))
}

/// Most names of a whitelist.
pub const WHITELIST_MAX: usize = 256;
/// Longest window, ms.
pub const WINDOW_MS_MAX: u64 = 600_000;
/// Shortest and longest window of growth, ms.
pub const GROWTH_WINDOW_MS: std::ops::RangeInclusive<u64> = 1000..=86_400_000;

/// What is done to a culprit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Freeze the cgroup (or stop the tree), kill the culprit's tree, thaw.
    #[default]
    FreezeKill,
    /// Freeze the cgroup and leave it so, for a person to look at.
    Freeze,
    /// Kill the whole cgroup, innocents too.
    KillCgroup,
    /// Name the cgroup in the kernel's repair hook: one write to memory, no system call. Innocents die too.
    Hook,
    /// Only report.
    Report,
}

impl Action {
    /// As in a file.
    pub fn name(self) -> &'static str {
        match self {
            Action::FreezeKill => "freeze-kill",
            Action::Freeze => "freeze",
            Action::KillCgroup => "kill-cgroup",
            Action::Hook => "hook",
            Action::Report => "report",
        }
    }
}

/// What all policies have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Common {
    /// Its name.
    pub name: String,
    /// The cgroup that it looks at, with those below it: a folder, absolute or below the mount of cgroups version 2. The
    /// whole host if it is not said.
    pub cgroup: Option<PathBuf>,
    /// Names of programs that are never touched.
    pub whitelist: Vec<String>,
    /// What is done.
    pub action: Action,
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
    /// After acting, be quiet for so long.
    pub cooldown_ms: u64,
}

/// When processes are a fork bomb. Each limit that is given raises the alarm by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ForkBombWhen {
    /// So many processes that were born in the window live.
    pub living: Option<u64>,
    /// So many were forked in the window, whether they live or not.
    pub forks: Option<u64>,
    /// A chain of so many young living processes, each forked by the one before.
    pub depth: Option<u32>,
    /// So many living children of one process.
    pub breadth: Option<u32>,
    /// So many more processes live than the fewest of the long window.
    pub growth: Option<u64>,
    /// The window, ms.
    pub window_ms: u64,
    /// The long window, ms.
    pub growth_window_ms: u64,
}

impl Default for ForkBombWhen {
    fn default() -> ForkBombWhen {
        ForkBombWhen {
            living: None,
            forks: None,
            depth: None,
            breadth: None,
            growth: None,
            window_ms: 250,
            growth_window_ms: 600_000,
        }
    }
}

/// `kind: fork-bomb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkBomb {
    /// What all have.
    pub common: Common,
    /// When.
    pub when: ForkBombWhen,
}

/// When memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct MemoryHogWhen {
    /// The cgroup uses so many bytes.
    pub used_bytes: Option<u64>,
    /// The cgroup uses so much of its limit, percent.
    pub used_percent: Option<u64>,
    /// The host has so many bytes left.
    pub available_bytes: Option<u64>,
}

/// `kind: memory-hog`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryHog {
    /// What all have.
    pub common: Common,
    /// Folder of the memory controller: that of version 1, or the cgroup's own if it is not said.
    pub memory: Option<PathBuf>,
    /// When.
    pub when: MemoryHogWhen,
}

/// `kind: stalled`: a counter of an application's box that must grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// What all have.
    pub common: Common,
    /// The box.
    pub sensor_box: String,
    /// The counter.
    pub sensor: String,
    /// So many periods without progress are a failure (the paper's k).
    pub periods: u32,
    /// The period, ms; that of the box if it is not said.
    pub period_ms: Option<u64>,
    /// Who looks.
    pub context: Context,
}

/// Where a reader runs (Bohra, table 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Context {
    /// In the monitor's own loop.
    #[default]
    Local,
    /// In idle slots of the switch's packet core; the monitor only acts on what it finds, and looks itself while no switch does.
    Dataplane,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Processes that multiply.
    ForkBomb(ForkBomb),
    /// Processes that take all memory.
    MemoryHog(MemoryHog),
    /// An application that makes no progress.
    Stalled(Stalled),
    /// A virtual machine that hangs, or whose processes multiply.
    Guest(GuestPolicy),
    /// A service that crashes.
    Service(ServicePolicy),
}

impl Policy {
    /// What all have.
    pub fn common(&self) -> &Common {
        match self {
            Policy::ForkBomb(policy) => &policy.common,
            Policy::MemoryHog(policy) => &policy.common,
            Policy::Stalled(policy) => &policy.common,
            Policy::Guest(policy) => &policy.common,
            Policy::Service(policy) => &policy.common,
        }
    }

    /// As in a file.
    pub fn kind(&self) -> &'static str {
        match self {
            Policy::ForkBomb(_) => "fork-bomb",
            Policy::MemoryHog(_) => "memory-hog",
            Policy::Stalled(_) => "stalled",
            Policy::Guest(_) => "guest",
            Policy::Service(_) => "service",
        }
    }

    /// What is done, as in a file.
    pub fn action_name(&self) -> &'static str {
        match self {
            Policy::Guest(policy) => policy.action.name(),
            Policy::Service(policy) => policy.action_name(),
            other => other.common().action.name(),
        }
    }
}

/// Names that are compared as the kernel keeps them: their first 15 bytes.
#[derive(Clone, Debug, Default)]
pub struct Whitelist(Vec<Comm>);

impl Whitelist {
    /// From names.
    pub fn new(names: &[String]) -> Whitelist {
        let comm = |name: &String| {
            let mut comm = [0; 16];
            let length = name.len().min(15);
            comm[..length].copy_from_slice(&name.as_bytes()[..length]);
            comm
        };
        Whitelist(names.iter().map(comm).collect())
    }

    /// Whether the name is in it.
    pub fn holds(&self, comm: &Comm) -> bool {
        let mut whole = *comm;
        whole[15] = 0;
        self.0.contains(&whole)
    }
}

#[cfg(test)]
mod tests;
