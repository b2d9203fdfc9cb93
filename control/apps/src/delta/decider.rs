//! What a decider is.

use super::desk::Desk;
use super::issued::Issued;
use super::tables::Member;
use weir_model::event::{ActuatorFacts, Event};
use weir_model::{Dependency, Entry, Key, Label, PlannedUpdate};
use weir_store::Rejection;

/// What an actuator is to have under a key that has an entry.
pub(crate) enum Held {
    /// Nothing.
    Not,
    /// The entry, as everybody has it who has it.
    Same,
    /// An entry of its own.
    Own(Entry),
}

/// What decides about some of the keys: from tables of its own, which entries they have and who is to have them.
///
/// It is made for one decision, and keeps nothing but what it looked up. Whatever it writes it writes in the decision's view; it
/// issues nothing: it marks, and the engine compares.
pub(crate) trait Decider {
    /// Whether it decides about a key. No other decider does then.
    fn owns(&self, key: &Key) -> bool;

    /// What is wrong with a key that an actuator names: one that nobody could have been given.
    fn problem(&self, _key: &Key) -> Option<String> {
        None
    }

    /// An actuator joined, or joined again with other facts.
    ///
    /// # Errors
    /// Why it may not.
    fn joined(
        &mut self,
        _desk: &mut Desk<'_, '_>,
        _facts: &ActuatorFacts,
        _before: Option<&Member>,
    ) -> Result<(), Rejection> {
        Ok(())
    }

    /// An actuator was forgotten, with all that it was to have.
    ///
    /// # Errors
    /// When tables are full.
    fn left(&mut self, _desk: &mut Desk<'_, '_>, _member: &Member) -> Result<(), Rejection> {
        Ok(())
    }

    /// An actuator can read more than before, or less: see [`super::members::spoken`].
    fn speaks(&mut self, _desk: &mut Desk<'_, '_>, _name: &Label) {}

    /// Of how many controllers the same word counts, where the word of one does not.
    fn words_needed(&mut self, _desk: &mut Desk<'_, '_>) -> Option<usize> {
        None
    }

    /// The first half of a decision on any other event: it changes tables, and marks.
    ///
    /// # Errors
    /// Why the event changes nothing.
    fn note(&mut self, desk: &mut Desk<'_, '_>, event: &Event, now_ms: u64) -> Result<(), Rejection>;

    /// Updates for those who are no actuators, whom nothing is compared with. Asked while the decider's own marks are there.
    ///
    /// # Errors
    /// When something is over a limit.
    fn outside(&mut self, _desk: &mut Desk<'_, '_>) -> Result<Vec<PlannedUpdate>, Rejection> {
        Ok(Vec::new())
    }

    /// Turns marks of its own kind into marks of keys at actuators.
    fn spread(&mut self, _desk: &mut Desk<'_, '_>) {}

    /// The entry of one of its keys, wherever it shall be; `None` when it shall be nowhere.
    ///
    /// # Errors
    /// When the entry is over a limit.
    fn entry(&mut self, desk: &mut Desk<'_, '_>, key: &Key) -> Result<Option<Entry>, Rejection>;

    /// What an actuator is to have under one of its keys, whose entry is `entry`; `before` is the value of
    /// [`super::tables::DESIRED`] of until now.
    fn held(
        &mut self,
        desk: &mut Desk<'_, '_>,
        target: &Label,
        key: &Key,
        entry: &Entry,
        before: Option<&[u8]>,
    ) -> Held;

    /// An actuator is not to have one of its keys: what it had earned it by is forgotten.
    ///
    /// # Errors
    /// When tables are full.
    fn let_go(&mut self, _desk: &mut Desk<'_, '_>, _target: &Label, _key: &Key) -> Result<(), Rejection> {
        Ok(())
    }

    /// Whether a key counts among the entries of an actuator. One that does not has a limit of its own.
    fn counts(&mut self, _desk: &mut Desk<'_, '_>, _target: &Label, _key: &Key) -> bool {
        true
    }

    /// Adds to each update of one of its keys what it waits for. A wait names a key at the version at which
    /// [`super::tables::DESIRED`] has it after this decision.
    fn depend(&mut self, _desk: &mut Desk<'_, '_>, _issued: &[Issued], _after: &mut [Vec<Dependency>]) {}
}

/// All deciders of a decision.
pub(crate) type Deciders<'d> = [&'d mut dyn Decider];

/// Who decides about a key; nobody about those that follow from no table.
pub(super) fn owner<'a, 'd>(deciders: &'a mut Deciders<'d>, key: &Key) -> Option<&'a mut (dyn Decider + 'd)> {
    debug_assert!(
        deciders.iter().filter(|decider| decider.owns(key)).count() <= 1,
        "two deciders decide about {key}"
    );
    deciders.iter_mut().find(|decider| decider.owns(key)).map(|decider| &mut **decider)
}
