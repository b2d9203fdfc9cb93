//! Questions to the engine's tables. Pure functions over a store; a store is cheap to clone, so a question never holds up a
//! decision.

use super::refusal::Refused;
use super::tables::{
    ACTUATORS, DESIRED, LOADS, Load, Member, STATUS, decode_key, desired_key, label, name0, read,
    read_desired,
};
use weir_model::event::ActuatorFacts;
use weir_model::{Entry, Key, Label, Version};
use weir_store::Store;

/// An actuator, as the deciders know it. What it acked is the scheduler's to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActuatorStatus {
    /// What it said when it joined.
    pub facts: ActuatorFacts,
    /// When its facts last changed.
    pub version: Version,
    /// Entries that it shall have, but those with a limit of their own.
    pub entries: u64,
    /// Deleted keys that are remembered.
    pub tombstones: u64,
    /// What it refused, oldest first, at most [`super::REFUSALS_MAX`].
    pub refusals: Vec<Refused>,
}

/// An actuator that joined.
pub fn actuator(store: &Store, name: &Label) -> Option<ActuatorStatus> {
    let key = name.as_str().as_bytes();
    let member: Member = read(ACTUATORS, &store.get(ACTUATORS, key)?.value);
    let load = store.get(LOADS, key).map_or_else(Load::default, |cell| read(LOADS, &cell.value));
    let refusals = store.get(STATUS, key).map_or_else(Vec::new, |cell| read(STATUS, &cell.value));
    let Load { entries, tombstones } = load;
    Some(ActuatorStatus { facts: member.facts, version: member.version, entries, tombstones, refusals })
}

/// All actuators that joined, by name.
pub fn actuators(store: &Store) -> impl Iterator<Item = ActuatorStatus> + '_ {
    store.scan(ACTUATORS, b"").filter_map(|(key, _)| actuator(store, &label(key)))
}

/// What an actuator shall have: each key with its version and entry, or `None` for a key that it
/// shall have deleted. In order of the keys' encoding.
pub fn desired(
    store: &Store,
    actuator: &Label,
) -> impl Iterator<Item = (Key, Version, Option<Entry>)> + use<> {
    let prefix = name0(actuator.as_str());
    let cells: Vec<_> = store
        .scan(DESIRED, &prefix)
        .map(|(key, cell)| (decode_key(&key[prefix.len()..]), cell.value.clone()))
        .collect();
    cells.into_iter().map(|(key, value)| {
        let (version, entry) = read_desired(&value);
        (key, version, entry)
    })
}

/// What an actuator shall have of one key; see [`desired`].
pub fn desired_entry(store: &Store, actuator: &Label, key: &Key) -> Option<(Version, Option<Entry>)> {
    store.get(DESIRED, &desired_key(actuator, key)).map(|cell| read_desired(&cell.value))
}
