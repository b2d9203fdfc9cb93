//! Health of hosts: what their monitors tell, and repairs that the controllers order (row O).
//!
//! A report is kept as it came; of an order the newest for each cgroup stands until it is withdrawn or its host is forgotten.

use super::tables::{HEALTH, REPAIRS};
use crate::delta::tables::{joined, name0, read};
use crate::delta::{Desk, reference, wrong_field};
use serde::{Deserialize, Serialize};
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::entry::Key;
use weir_model::health::{HealthReport, REPAIRS_MAX, RepairEntry, RepairOrder, cgroup_problem};
use weir_model::resource::FieldError;
use weir_store::{Rejection, Store};

/// What is known of a host's health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The newest report.
    pub report: HealthReport,
    /// When it was ordered, milliseconds of the Unix epoch.
    pub told_ms: u64,
}

/// Keeps a report.
pub(super) fn note(desk: &mut Desk<'_, '_>, report: &HealthReport, now_ms: u64) -> Result<(), Rejection> {
    let id = || format!("health of actuator/{}", report.actuator);
    if desk.member(&report.actuator).is_none() {
        return Err(reference(id(), "no actuator of this name has joined"));
    }
    if let Some(problem) = report.problem() {
        return Err(reference(id(), problem));
    }
    let health = Health { report: report.clone(), told_ms: now_ms };
    desk.view.put(HEALTH, report.actuator.as_str().as_bytes(), encode(&health))
}

/// Orders a repair, or withdraws it.
pub(super) fn order(desk: &mut Desk<'_, '_>, order: &RepairOrder) -> Result<(), Rejection> {
    let RepairOrder { actuator, cgroup, action } = order;
    let id = || format!("repair of actuator/{actuator}");
    if desk.member(actuator).is_none() {
        return Err(reference(id(), "no actuator of this name has joined"));
    }
    if let Some(allowed) = cgroup_problem(cgroup) {
        return Err(wrong_field(id(), FieldError::new("cgroup", cgroup, allowed)));
    }
    let key = repair_key(actuator, cgroup);
    match action {
        Some(action) => {
            let standing = desk.view.scan(REPAIRS, &name0(actuator.as_str())).len();
            if standing >= REPAIRS_MAX && !desk.has(REPAIRS, &key) {
                return Err(Rejection::limit(&format!("repairs of {actuator}"), standing + 1, REPAIRS_MAX));
            }
            desk.view.put(REPAIRS, &key, encode(&RepairEntry { action: *action, version: desk.version }))?;
        }
        None if desk.has(REPAIRS, &key) => desk.view.delete(REPAIRS, &key),
        None => return Err(reference(id(), format!("no repair of cgroup '{cgroup}' is in force"))),
    }
    desk.marks.key(actuator, Key::Repair { host: actuator.clone(), cgroup: cgroup.clone() });
    Ok(())
}

/// Forgets all about an actuator.
pub(super) fn forget(desk: &mut Desk<'_, '_>, actuator: &Label) {
    desk.view.delete(HEALTH, actuator.as_str().as_bytes());
    for (key, _) in desk.view.scan(REPAIRS, &name0(actuator.as_str())) {
        desk.view.delete(REPAIRS, &key);
    }
}

fn repair_key(actuator: &Label, cgroup: &str) -> Vec<u8> {
    joined(name0(actuator.as_str()), cgroup.as_bytes())
}

/// The repair that is in force for a cgroup.
pub(super) fn entry(desk: &Desk<'_, '_>, host: &Label, cgroup: &str) -> Option<RepairEntry> {
    desk.view.get(REPAIRS, &repair_key(host, cgroup)).map(|bytes| read(REPAIRS, &bytes))
}

/// What is known of the health of an actuator.
pub fn health(store: &Store, actuator: &Label) -> Option<Health> {
    store.get(HEALTH, actuator.as_str().as_bytes()).map(|cell| read(HEALTH, &cell.value))
}

/// The repairs in force at an actuator: cgroup, and what.
pub fn repairs_of(store: &Store, actuator: &Label) -> impl Iterator<Item = (String, RepairEntry)> + use<> {
    let prefix = name0(actuator.as_str());
    // Collected because the store's scan borrows the prefix; there are few.
    let found: Vec<(String, RepairEntry)> = store
        .scan(REPAIRS, &prefix)
        .map(|(key, cell)| {
            (String::from_utf8_lossy(&key[prefix.len()..]).into_owned(), read(REPAIRS, &cell.value))
        })
        .collect();
    found.into_iter()
}
