//! The engine of deciding: from an event to the updates that it leads to (rows A1, A14, R1; pains 1, 4).
//!
//! ```text
//!   event ─► deciders: tables, marks ─► engine: each marked key made anew ─► what differs from `desired` ─► plan
//!            (what is wanted)            and compared, actuator by actuator    is written there, issued
//! ```
//!
//! A decision has two halves. First the event changes tables, which marks the keys of entries that may have changed. Then each marked
//! key is made anew, compared with what its actuators shall have by the [`tables::DESIRED`] table, and only a difference becomes an
//! update. Nothing is ever made anew as a whole, so a change costs what it concerns, and not what there is (pain 1).
//!
//! The engine knows no network, volume or policy: whose a key is, which entry it has, who is to have it and what waits for what says
//! a [`Decider`]. The engine has what is the same for all of them: who joined and what each can read ([`members`]), versions and
//! tombstones ([`compare`]), refusals ([`refusal`]), and how full each actuator is. Deciders share one run, so that one event may change
//! what several decide about, all of it or none, and that a plan has one order: that of its keys.
//!
//! Invariants
//! - The same view and event lead to the same writes and the same plan, in the same order. What was decided once is decided so for
//!   ever: `tests/random/golden.rs` holds it.
//! - A plan has at most one update for each actuator and key, all at the version of the event, and each is what [`tables::DESIRED`]
//!   has after it. What is repeated unchanged gets no new version and leads to no update (pain 4).
//! - Who is not there any more has nothing in any table here.
//! - A deleted key leaves nothing but a tombstone, at most [`TOMBSTONES_MAX`] an actuator. An actuator that still holds a key whose
//!   tombstone is gone is told to delete it when its refusal or its state is reported as
//!   [`weir_model::event::EventBody::Refused`].

mod compare;
mod decider;
mod desk;
mod issued;
mod members;
mod query;
mod refusal;
pub mod tables;

pub use compare::TOMBSTONES_MAX;
pub use query::{ActuatorStatus, actuator, actuators, desired, desired_entry};
pub use refusal::{REFUSALS_MAX, REISSUES_MAX, Refused};

pub(crate) use decider::{Decider, Deciders, Held};
pub(crate) use desk::{Bounds, Desk, reference, wrong_field};
pub(crate) use issued::Issued;
pub(crate) use members::{spoken, who_speak};

use members::Joined;
use weir_model::Plan;
use weir_model::event::{Event, EventBody};
use weir_store::Rejection;

/// Decides on an event.
///
/// # Errors
/// Why the event changes nothing: every write of the decision must be dropped then.
pub(crate) fn decide(
    desk: &mut Desk<'_, '_>,
    deciders: &mut Deciders<'_>,
    event: &Event,
    now_ms: u64,
) -> Result<Plan, Rejection> {
    note(desk, deciders, event, now_ms)?;
    let mut outside = Vec::new();
    for decider in deciders.iter_mut() {
        outside.extend(decider.outside(desk)?);
    }
    let mut plan = compare::plan(desk, deciders)?;
    plan.updates.extend(outside);
    Ok(plan)
}

/// The first half: who is there is the engine's, everything else its deciders'.
fn note(
    desk: &mut Desk<'_, '_>,
    deciders: &mut Deciders<'_>,
    event: &Event,
    now_ms: u64,
) -> Result<(), Rejection> {
    match &event.body {
        EventBody::Joined(facts) => {
            let before = match members::join(desk, facts)? {
                Joined::Same => return Ok(()),
                Joined::New => None,
                Joined::Changed(before) => Some(before),
            };
            deciders.iter_mut().try_for_each(|decider| decider.joined(desk, facts, before.as_deref()))
        }
        EventBody::Removed { actuator } => {
            let Some(member) = members::remove(desk, actuator)? else { return Ok(()) };
            deciders.iter_mut().try_for_each(|decider| decider.left(desk, &member))
        }
        EventBody::Identity(about) => members::rekey(desk, about),
        EventBody::Speaks { name, protocol } => {
            let needed = deciders.iter_mut().find_map(|decider| decider.words_needed(desk));
            if members::speaks(desk, event, (name, *protocol), needed)? {
                deciders.iter_mut().for_each(|decider| decider.speaks(desk, name));
            }
            Ok(())
        }
        EventBody::Refused { actuator, key, version, refusal } => {
            refusal::answer(desk, deciders, actuator, (key, *version), refusal)
        }
        _ => deciders.iter_mut().try_for_each(|decider| decider.note(desk, event, now_ms)),
    }
}

#[cfg(test)]
mod tests;
