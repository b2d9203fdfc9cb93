//! What an administrator writes of `kind: rbac`.

use crate::policy::time::WindowFile;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The file. Users, roles, hierarchy and static separation of duty are in `kind: identities`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RbacFile {
    /// Rules in Cedar.
    pub rules: String,
    /// Where changes are kept. A relative path begins at the folder of policies.
    pub state_file: PathBuf,
    /// Name of the control folder in the root of the export; without it there is none.
    #[serde(default)]
    pub control: Option<String>,
    /// Roles that are active when a session begins, of those that the user has.
    pub initial: BTreeSet<String>,
    /// Roles that may change what others have.
    #[serde(default)]
    pub administrators: BTreeSet<String>,
    /// Sets of roles of which a session may have one active (dynamic separation of duty).
    #[serde(default)]
    pub exclusive: Vec<BTreeSet<String>>,
    /// Roles that others may take over at times.
    #[serde(default)]
    pub delegations: Vec<DelegationFile>,
    /// What makes a user a threat.
    #[serde(default)]
    pub threat: Option<ThreatFile>,
    /// Machines that users work from; a user elsewhere has no role.
    #[serde(default)]
    pub machines: BTreeMap<String, Vec<String>>,
    /// Time zone of windows; the system's if there is none.
    #[serde(default)]
    pub timezone: Option<String>,
    /// Log of LOG and ALARM.
    #[serde(default)]
    pub log_file: Option<PathBuf>,
    /// Others change the server too (a FileWall beside this one, say): for how long to believe who owns what, seconds, and
    /// names are asked for before they are removed. Without it FileWall is the only way to the server.
    #[serde(default)]
    pub known_s: Option<u64>,
}

/// A role that others may take over.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DelegationFile {
    /// The role.
    pub role: String,
    /// Roles whose members may take it over.
    pub to: BTreeSet<String>,
    /// When; always if there are no windows.
    #[serde(default)]
    pub time: Vec<WindowFile>,
}

/// What makes a user a threat.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ThreatFile {
    /// The only role of a threat.
    pub role: String,
    /// Roles for which asking is enough, if the user may never have them.
    #[serde(default)]
    pub escalation: BTreeSet<String>,
    /// So many denied calls within the window.
    #[serde(default)]
    pub denials: Option<u32>,
    /// The window, seconds.
    #[serde(default = "minute")]
    pub window_s: u64,
}

fn minute() -> u64 {
    60
}
