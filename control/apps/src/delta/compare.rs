//! The second half of a decision, from marks to a plan: each marked key is compared with what its actuators shall have; a
//! difference is written to [`DESIRED`] and issued.

use super::decider::{Deciders, Held, owner};
use super::desk::Desk;
use super::issued::Issued;
use super::refusal;
use super::tables::{DESIRED, LOADS, desired_key, desired_value, is_tombstone, name0, split_desired};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_base::codec::encode;
use weir_model::{Change, Dependency, Entry, Key, Label, Plan, PlannedUpdate, Update, Version};
use weir_store::Rejection;

/// Most tombstones of an actuator; beyond it the older half is forgotten.
pub const TOMBSTONES_MAX: u64 = 16_384;

/// Turns the marks into updates with their order.
pub(super) fn plan(desk: &mut Desk<'_, '_>, deciders: &mut Deciders<'_>) -> Result<Plan, Rejection> {
    for decider in deciders.iter_mut() {
        decider.spread(desk);
    }
    let mut issued = Vec::new();
    for (key, targets) in desk.take_marks() {
        let entry = match owner(deciders, &key) {
            Some(decider) => decider.entry(desk, &key)?,
            None => None,
        };
        let value = entry.as_ref().map(|entry| desired_value(desk.version, &encode(&Some(entry))));
        for target in targets {
            settle(desk, deciders, &target, &key, entry.as_ref().zip(value.as_ref()), &mut issued)?;
        }
    }
    refusal::forget_superseded(desk, &issued)?;
    let mut after: Vec<Vec<Dependency>> = issued.iter().map(|_| Vec::new()).collect();
    for decider in deciders.iter_mut() {
        decider.depend(desk, &issued, &mut after);
    }
    write_loads(desk)?;
    let version = desk.version;
    let planned = issued.into_iter().zip(after).map(|(issued, after)| PlannedUpdate {
        update: Update {
            target: issued.target,
            key: issued.key,
            version,
            expected: Version::ZERO,
            change: issued.change,
        },
        after,
    });
    Ok(Plan { updates: planned.collect() })
}

/// Compares one key of one actuator with what it shall have.
fn settle(
    desk: &mut Desk<'_, '_>,
    deciders: &mut Deciders<'_>,
    target: &Label,
    key: &Key,
    wanted: Option<(&Entry, &Arc<[u8]>)>,
    issued: &mut Vec<Issued>,
) -> Result<(), Rejection> {
    let cell = desired_key(target, key);
    let old = desk.view.get(DESIRED, &cell);
    let held = match (owner(deciders, key), wanted) {
        (Some(decider), Some((entry, _))) => decider.held(desk, target, key, entry, old.as_deref()),
        _ => Held::Not,
    };
    let (entry, shared, own) = match (held, wanted) {
        (Held::Same, Some((entry, shared))) => (entry, shared, None),
        (Held::Own(own), Some((entry, shared))) => (entry, shared, Some(own)),
        (Held::Not, _) | (_, None) => {
            if let Some(decider) = owner(deciders, key) {
                decider.let_go(desk, target, key)?;
            }
            return settle_absent(desk, deciders, target, key, &cell, old, issued);
        }
    };
    let value =
        own.as_ref().map_or_else(|| shared.clone(), |own| desired_value(desk.version, &encode(&Some(own))));
    let before = old.as_deref().map(split_desired);
    if !desk.again && before.map(|(_, tail)| tail) == Some(split_desired(&value).1) {
        return Ok(());
    }
    let was_tombstone = before.is_some_and(|(_, tail)| is_tombstone(tail));
    let is_new = before.is_none() || was_tombstone;
    let counted = owner(deciders, key).is_none_or(|decider| decider.counts(desk, target, key));
    let load = desk.load(target);
    load.tombstones -= u64::from(was_tombstone);
    load.entries += u64::from(counted && is_new);
    desk.view.put(DESIRED, &cell, value)?;
    let entry = own.unwrap_or_else(|| entry.clone());
    // Gates refuse anything else, each of them, for good.
    debug_assert!(entry.fits(key), "what was decided for {key} at {target} is no entry of its kind");
    let (target, key) = (target.clone(), key.clone());
    let change = Change::Put(entry);
    issued.push(Issued { target, key, change, before: old });
    Ok(())
}

/// The actuator shall not have the key.
fn settle_absent(
    desk: &mut Desk<'_, '_>,
    deciders: &mut Deciders<'_>,
    target: &Label,
    key: &Key,
    cell: &[u8],
    old: Option<Arc<[u8]>>,
    issued: &mut Vec<Issued>,
) -> Result<(), Rejection> {
    if desk.member(target).is_none() {
        return Ok(());
    }
    let before = old.as_deref().map(split_desired);
    let was_entry = before.is_some_and(|(_, tail)| !is_tombstone(tail));
    if !was_entry && !desk.again {
        return Ok(());
    }
    let is_new = was_entry || before.is_none();
    let counted = owner(deciders, key).is_none_or(|decider| decider.counts(desk, target, key));
    let load = desk.load(target);
    load.entries -= u64::from(counted && was_entry);
    load.tombstones += u64::from(is_new);
    desk.view.put(DESIRED, cell, desired_value(desk.version, &encode(&None::<Entry>)))?;
    let (target, key) = (target.clone(), key.clone());
    issued.push(Issued { target, key, change: Change::Delete, before: old });
    Ok(())
}

/// Checks how full the tables of actuators are, and forgets old tombstones.
fn write_loads(desk: &mut Desk<'_, '_>) -> Result<(), Rejection> {
    for (actuator, mut load) in desk.take_loads() {
        let Some(role) = desk.member(&actuator).map(|member| member.facts.role) else { continue };
        let limit = desk.bounds.entries_max(role);
        if load.entries > limit as u64 {
            return Err(Rejection::limit(
                &format!("entries of actuator {actuator}"),
                load.entries as usize,
                limit,
            ));
        }
        if load.tombstones > TOMBSTONES_MAX {
            load.tombstones -= forget_tombstones(desk, &actuator);
        }
        desk.view.put(LOADS, actuator.as_str().as_bytes(), encode(&load))?;
    }
    Ok(())
}

/// Forgets the older tombstones of an actuator, never those of this decision. Returns how many.
fn forget_tombstones(desk: &mut Desk<'_, '_>, actuator: &Label) -> u64 {
    let cells = desk.view.scan(DESIRED, &name0(actuator.as_str()));
    let mut tombstones: BTreeSet<(Version, Vec<u8>)> = BTreeSet::new();
    for (key, value) in cells {
        let (version, tail) = split_desired(&value);
        if is_tombstone(tail) {
            tombstones.insert((version, key));
        }
    }
    let older = tombstones.len() - TOMBSTONES_MAX as usize / 2;
    let now = desk.version;
    let forgotten: Vec<_> =
        tombstones.into_iter().take(older).filter(|(version, _)| *version < now).collect();
    for (_, key) in &forgotten {
        desk.view.delete(DESIRED, key);
    }
    forgotten.len() as u64
}
