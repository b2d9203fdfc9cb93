//! Monitor: what the monitor of a host is to do with cgroups, each order under the path of its cgroup (row O).
//!
//! A kill is no state but something that is done. Its `id` says which one it is: an order that comes again with the same id is
//! carried out no second time, and one with another id is, though it says the same.

use crate::{Field, Plane, Problem};
use serde::{Deserialize, Serialize};
use weir_model::health::{HealthNote, REPAIRS_MAX, RepairAction, cgroup_problem};

/// Longest id of an order, bytes.
pub const ID_BYTES_MAX: usize = 64;
/// Under which name a monitor reports.
pub const HEALTH: &str = "health";

/// See the module.
#[derive(Debug)]
pub struct Monitor;

/// What is to be done with the cgroup whose path below the mount is the name of the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What.
    pub action: RepairAction,
    /// Which order it is: each is carried out once.
    pub id: String,
}

/// What a monitor tells of its host: the newest takes the place of the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How the monitor hears the kernel, and why not better.
    pub kernel: String,
    /// Alarms since the monitor started.
    pub alarms: u64,
    /// The newest notes, oldest first.
    pub notes: Vec<HealthNote>,
}

impl Plane for Monitor {
    const NAME: &'static str = "monitor";
    const ABOUT: &'static str = "repairs of cgroups by the host's monitor";
    const KIND: &'static str = "repair";
    const FIELDS: &'static [Field] = &[
        Field::required(
            "action",
            "text",
            "freeze (for as long as the resource is there) or kill (once): what is done with the cgroup whose path is the resource's name.",
        ),
        Field::required(
            "id",
            "text",
            "Which order it is: each is carried out once, and the same again with another id.",
        ),
    ];
    const ORDERS_MAX: usize = REPAIRS_MAX;
    const SPEC_BYTES_MAX: usize = 1024;
    type Spec = Spec;
    type Report = Report;

    fn check(name: &str, spec: &Spec) -> Result<(), Problem> {
        if let Some(allowed) = cgroup_problem(name) {
            return Err(Problem::new("name", allowed));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_id = (1..=ID_BYTES_MAX).contains(&spec.id.len()) && spec.id.bytes().all(plain);
        let allowed = "1 to 64 letters, digits, '-', '_' or '.'; another one for each order";
        if is_id { Ok(()) } else { Err(Problem::new("spec.id", allowed)) }
    }

    fn describe(name: &str, spec: &Spec) -> String {
        format!("{} cgroup {name}", spec.action)
    }

    fn tell(report: &Report) -> Vec<String> {
        let note = |note: &HealthNote| {
            let policy = if note.policy.is_empty() { String::new() } else { format!("{}: ", note.policy) };
            // What became of an order is not in the audit log of the host's monitor.
            let event = if note.number == 0 { String::new() } else { format!(" (event {})", note.number) };
            format!("{}{event}: {policy}{}", note.severity, note.text)
        };
        let first = format!("{} alarms, kernel by {}", report.alarms, report.kernel);
        std::iter::once(first).chain(report.notes.iter().rev().map(note)).collect()
    }
}
