//! Health: what the monitor of a host tells the controllers, and what they order it to do (Bohra, 3.5; row O).
//!
//! A monitor is a plane of its host: its vocabulary is `weir_planes::monitor`, in the words that are defined here ([`HealthNote`],
//! [`RepairAction`], [`cgroup_problem`]). It verifies what is ordered of it, acks it, and signs what it reports by itself.
//!
//! [`HealthReport`], [`RepairOrder`] and [`RepairEntry`] are those of releases before planes, when a host's switch did this for its monitor.
//! Nothing tells them any more. They stay because logs hold them, and because controllers take hosts of the release before.

use crate::{Label, Version};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most notes of one report, and most that are kept of a host.
pub const NOTES_MAX: usize = 16;
/// Longest text of a note, bytes.
pub const TEXT_BYTES_MAX: usize = 240;
/// Longest name of a policy, bytes.
pub const POLICY_BYTES_MAX: usize = 63;
/// Longest path of a cgroup, bytes.
pub const CGROUP_BYTES_MAX: usize = 255;
/// Most repairs that are in force at one host.
pub const REPAIRS_MAX: usize = 64;

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// It was seen, and mended or left alone by policy.
    Warning,
    /// It was seen, and a person should look.
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        })
    }
}

/// Something that a monitor saw or did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct HealthNote {
    /// Its number in the audit log of the host.
    pub number: u64,
    /// When, milliseconds of the Unix epoch by the host's clock.
    pub unix_ms: u64,
    /// How bad it is.
    pub severity: Severity,
    /// The policy that it is about; empty if about none. At most [`POLICY_BYTES_MAX`] bytes.
    pub policy: String,
    /// What it is, in words. At most [`TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

/// What a monitor tells of its host: all that it has counted, and the newest notes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    /// The host or gateway.
    pub actuator: Label,
    /// How the monitor hears the kernel, and why not better; at most [`TEXT_BYTES_MAX`] bytes.
    pub kernel: String,
    /// Alarms since the monitor started.
    pub alarms: u64,
    /// The newest notes, oldest first; at most [`NOTES_MAX`].
    pub notes: Vec<HealthNote>,
}

impl HealthReport {
    /// What is over a limit, if something is.
    pub fn problem(&self) -> Option<&'static str> {
        let long =
            |note: &HealthNote| note.text.len() > TEXT_BYTES_MAX || note.policy.len() > POLICY_BYTES_MAX;
        if self.notes.len() > NOTES_MAX {
            return Some("it has more notes than a report may have");
        }
        if self.kernel.len() > TEXT_BYTES_MAX || self.notes.iter().any(long) {
            return Some("one of its texts is too long");
        }
        None
    }
}

/// What the controllers order a monitor to do with a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RepairAction {
    /// Freeze it for as long as the order stands.
    Freeze,
    /// Kill all of it, once.
    Kill,
}

impl fmt::Display for RepairAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RepairAction::Freeze => "freeze",
            RepairAction::Kill => "kill",
        })
    }
}

/// An order of a repair, or the end of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairOrder {
    /// The host or gateway.
    pub actuator: Label,
    /// The cgroup of version 2, as a path below the mount; see [`cgroup_problem`].
    pub cgroup: String,
    /// What is to be done; nothing withdraws the order, and so thaws what it froze.
    pub action: Option<RepairAction>,
}

/// A repair that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairEntry {
    /// What is to be done.
    pub action: RepairAction,
    /// When it was ordered: the same order given anew is carried out anew.
    pub version: Version,
}

/// Why a path is no path of a cgroup, if it is none.
pub fn cgroup_problem(path: &str) -> Option<&'static str> {
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if path.is_empty() || path.len() > CGROUP_BYTES_MAX {
        return Some("a cgroup's path has 1 to 255 bytes");
    }
    if path.starts_with('/') || path.split('/').any(odd) || path.chars().any(char::is_control) {
        return Some(
            "write a cgroup's path below the mount, such as machines/web, without '.', '..' or empty parts",
        );
    }
    None
}

#[cfg(test)]
mod tests;
