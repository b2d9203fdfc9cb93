//! Refusals: an actuator would not apply an update. What issuing again can mend is issued again;
//! everything is remembered for people to see, within limits.

use super::decider::{Deciders, owner};
use super::desk::{Desk, reference};
use super::issued::Issued;
use super::tables::{STATUS, read};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_base::codec::encode;
use weir_model::update::Refusal;
use weir_model::{Key, Label, Version};
use weir_store::Rejection;

/// Most refusals remembered for an actuator; beyond it the oldest is forgotten.
pub const REFUSALS_MAX: usize = 32;
/// How often one value of a key is issued again after refusals.
pub const REISSUES_MAX: u32 = 8;

/// A refusal of a value that was not replaced since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The key.
    pub key: Key,
    /// The version that was refused.
    pub version: Version,
    /// Why.
    pub refusal: Refusal,
    /// How often the value was issued again since.
    pub reissues: u32,
    /// At which version it was issued again; absent when that would not mend it.
    pub reissued: Option<Version>,
}

/// Decides on a refusal.
///
/// A key that is neither desired nor remembered as deleted is one whose tombstone was forgotten, or
/// that was never ours to give: the actuator is told to delete it.
pub(super) fn answer(
    desk: &mut Desk<'_, '_>,
    deciders: &mut Deciders<'_>,
    actuator: &Label,
    (key, version): (&Key, Version),
    refusal: &Refusal,
) -> Result<(), Rejection> {
    let id = || format!("refusal of actuator/{actuator}");
    if desk.member(actuator).is_none() {
        return Err(reference(id(), "no actuator of this name has joined"));
    }
    if let Some(problem) = owner(deciders, key).and_then(|decider| decider.problem(key)) {
        return Err(reference(id(), problem));
    }
    let desired = desk.desired_version(actuator, key);
    if desired.is_some_and(|desired| version < desired) {
        return Ok(());
    }
    let in_force = match refusal {
        Refusal::Stale { in_force } | Refusal::Expected { in_force, .. } => Some(*in_force),
        _ => None,
    };
    let in_order = in_force.is_some_and(|in_force| desired == Some(in_force) && version == in_force);
    if in_order {
        return Ok(());
    }
    let mut list = status(desk, actuator);
    let before = list.iter().position(|refused| refused.key == *key).map(|at| list.remove(at));
    let reissues = before.map_or(0, |before| before.reissues);
    let again = in_force.is_some_and(|in_force| in_force < desk.version) && reissues < REISSUES_MAX;
    let reissued = again.then_some(desk.version);
    let refusal = refusal.clone();
    list.push(Refused {
        key: key.clone(),
        version,
        refusal,
        reissues: reissues + u32::from(again),
        reissued,
    });
    if list.len() > REFUSALS_MAX {
        list.remove(0);
    }
    desk.view.put(STATUS, actuator.as_str().as_bytes(), encode(&list))?;
    if again {
        desk.again = true;
        desk.marks.key(actuator, key.clone());
    }
    Ok(())
}

fn status(desk: &Desk<'_, '_>, actuator: &Label) -> Vec<Refused> {
    desk.view.get(STATUS, actuator.as_str().as_bytes()).map_or_else(Vec::new, |bytes| read(STATUS, &bytes))
}

/// A refusal is forgotten when its key gets another value.
pub(super) fn forget_superseded(desk: &mut Desk<'_, '_>, issued: &[Issued]) -> Result<(), Rejection> {
    if desk.again {
        return Ok(());
    }
    let mut lists: BTreeMap<&Label, (usize, Vec<Refused>)> = BTreeMap::new();
    for update in issued {
        let (_, list) = lists.entry(&update.target).or_insert_with(|| {
            let list = status(desk, &update.target);
            (list.len(), list)
        });
        list.retain(|refused| refused.key != update.key);
    }
    for (actuator, (before, list)) in lists {
        if list.is_empty() && before > 0 {
            desk.view.delete(STATUS, actuator.as_str().as_bytes());
        } else if list.len() < before {
            desk.view.put(STATUS, actuator.as_str().as_bytes(), encode(&list))?;
        }
    }
    Ok(())
}
