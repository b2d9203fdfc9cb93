//! What hosts tell of controllers whose sessions they ended for what came on them.
//!
//! A report is kept as it came, the newest of each host and controller. It is a host's word and no more: nothing is decided by it.
//! A host has room for few, and is heard seldom, so that one that says it of everybody takes no room in the order from others.

use super::tables::CONDUCT;
use crate::delta::tables::{joined, name0, read};
use crate::delta::{Desk, reference};
use serde::{Deserialize, Serialize};
use weir_base::codec::encode;
use weir_model::Label;
use weir_model::group::{CONDUCT_EACH_MS, ConductReport};
use weir_model::session::CONTROLLERS_MAX;
use weir_store::{Rejection, Store};

/// Controllers of which one host's reports are kept; of more the oldest go. Those of a group that changes are more than it has at once.
pub const CONDUCT_MAX: usize = 2 * CONTROLLERS_MAX;

/// What a host told last of a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conduct {
    /// The report.
    pub report: ConductReport,
    /// When it was ordered, milliseconds of the Unix epoch.
    pub told_ms: u64,
}

/// Keeps a report.
pub(super) fn note(desk: &mut Desk<'_, '_>, report: &ConductReport, now_ms: u64) -> Result<(), Rejection> {
    let id = || format!("conduct of {}, by actuator/{}", report.controller, report.actuator);
    if desk.member(&report.actuator).is_none() {
        return Err(reference(id(), "no actuator of this name has joined"));
    }
    if let Some(problem) = report.problem() {
        return Err(reference(id(), problem));
    }
    let of_host = name0(report.actuator.as_str());
    let rows = desk.view.scan(CONDUCT, &of_host);
    let told: Vec<(Vec<u8>, u64)> =
        rows.into_iter().map(|(key, bytes)| (key, read::<Conduct>(CONDUCT, &bytes).told_ms)).collect();
    let lately = told.iter().filter(|(_, told_ms)| now_ms < told_ms + CONDUCT_EACH_MS).count();
    let key = joined(of_host, report.controller.as_bytes());
    let before = told.iter().find(|(known, _)| *known == key);
    let too_soon = before.is_some_and(|(_, told_ms)| now_ms < told_ms + CONDUCT_EACH_MS);
    if too_soon || lately >= CONTROLLERS_MAX {
        return Err(reference(id(), "a host reports a controller once in 30 s, and 16 of them"));
    }
    if before.is_none() && told.len() >= CONDUCT_MAX {
        let oldest = told.iter().min_by_key(|(_, told_ms)| *told_ms).map(|(key, _)| key.clone());
        oldest.into_iter().for_each(|key| desk.view.delete(CONDUCT, &key));
    }
    desk.view.put(CONDUCT, &key, encode(&Conduct { report: report.clone(), told_ms: now_ms }))
}

/// Forgets all that an actuator told.
pub(super) fn forget(desk: &mut Desk<'_, '_>, actuator: &Label) {
    for (key, _) in desk.view.scan(CONDUCT, &name0(actuator.as_str())) {
        desk.view.delete(CONDUCT, &key);
    }
}

/// What an actuator told of controllers.
pub fn conduct_of(store: &Store, actuator: &Label) -> Vec<Conduct> {
    let prefix = name0(actuator.as_str());
    store.scan(CONDUCT, &prefix).map(|(_, cell)| read(CONDUCT, &cell.value)).collect()
}
