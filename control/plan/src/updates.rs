//! From a plan to the updates that a controller signs and its scheduler releases.
//!
//! A plan with drains cannot go this way: the scheduler waits for acknowledgements, not for packets. Such
//! a plan is for [`crate::Rollout`].

use crate::plan::{Plan, Reason, Step};
use weir_model::{Dependency, PlannedUpdate, Update};

/// The plan waits for packets to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan waits {0} times for packets to drain, which updates cannot; release it step by step")]
pub struct NeedsDrains(pub usize);

impl Plan {
    /// The plan as updates: `update` makes the update of a step, of which no two may have the same target
    /// and key. Dependencies name these targets, keys and versions.
    ///
    /// # Errors
    /// [`NeedsDrains`].
    pub fn updates(&self, update: impl FnMut(&Step) -> Update) -> Result<weir_model::Plan, NeedsDrains> {
        if self.drains() > 0 {
            return Err(NeedsDrains(self.drains()));
        }
        let updates: Vec<Update> = self.steps.iter().map(update).collect();
        let dependency = |first: &Update, reason| Dependency {
            target: first.target.clone(),
            key: first.key.clone(),
            version: first.version,
            reason,
        };
        let planned = self.steps.iter().zip(&updates).map(|(step, update)| PlannedUpdate {
            update: update.clone(),
            after: step
                .after
                .iter()
                .map(|after| dependency(&updates[after.step], of(after.reason)))
                .collect(),
        });
        Ok(weir_model::Plan { updates: planned.collect() })
    }
}

/// The vocabulary's reason for ours.
fn of(reason: Reason) -> weir_model::update::Reason {
    use weir_model::update::Reason as Model;
    match reason {
        Reason::BlackHole | Reason::Loop => Model::NextSwitchFirst,
        Reason::Breach { .. } | Reason::InFlight | Reason::Unused | Reason::OneByOne | Reason::Linear => {
            Model::PolicyOnTheWay
        }
        Reason::Capacity(_) | Reason::KnownLoad(_) => Model::RoomOnLink,
        Reason::VersionReady => Model::VersionKnown,
    }
}

#[cfg(test)]
mod tests;
