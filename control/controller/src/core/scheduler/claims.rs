//! What keys claim at an actuator: a claim, such as an address or a device, is one key's at a time ([`edges::claims`]). A key that
//! wants what another has waits until that one lets go of it ([`edges::LETS_GO`]), whichever decision took it away. A plan cannot
//! say this: an app does not know what is in force.
//!
//! - Known is what was sent or acked here since this scheduler began. What is not known is not waited for: the actuator lets a
//!   newer key take what an older one has, and its refusal, if it gives one, is tried again when what it names changes.
//! - A key waits only for what was decided no later than itself, and of two keys of one decision the later waits for the
//!   former: so two that swap their claims do not wait for each other.
//! - A key does not wait for one whose going an actuator holds up that is away.

use super::held::Held;
use super::{Node, Scheduler};
use std::collections::{BTreeMap, BTreeSet};
use weir_model::edges::{self, Claim};
use weir_model::{Dependency, Key, Label};

/// Most keys whose refusal is tried again when one key changes.
const NAMED_MAX: usize = 64;

/// The claims of an actuator's keys. Bounded by these.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Every key that can claim and is held, also one of which nothing is known.
    held: BTreeMap<Key, BTreeSet<Claim>>,
    holders: BTreeMap<Claim, BTreeSet<Key>>,
}

impl Claims {
    /// A key may have these as well.
    pub fn add(&mut self, key: &Key, claims: Vec<Claim>) {
        let held = self.held.entry(key.clone()).or_default();
        for claim in claims {
            self.holders.entry(claim.clone()).or_default().insert(key.clone());
            held.insert(claim);
        }
    }

    /// A key has these and no others.
    pub fn set(&mut self, key: &Key, claims: Vec<Claim>) {
        self.forget(key);
        self.add(key, claims);
    }

    /// A key is not held any more.
    pub fn forget(&mut self, key: &Key) {
        for old in self.held.remove(key).unwrap_or_default() {
            if let Some(holders) = self.holders.get_mut(&old) {
                holders.remove(key);
                if holders.is_empty() {
                    self.holders.remove(&old);
                }
            }
        }
    }

    fn holders(&self, claim: &Claim) -> impl Iterator<Item = &Key> {
        self.holders.get(claim).into_iter().flatten()
    }

    /// The keys that a text names.
    fn named(&self, text: &str) -> Vec<Key> {
        let words: BTreeSet<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
        let is_named = |key: &&Key| edges::claimant(key).is_some_and(|name| words.contains(name));
        self.held.keys().filter(is_named).cloned().collect()
    }
}

impl Scheduler {
    /// The keys that must let go of what a key wants.
    pub(super) fn rivals(&self, held: &Held) -> Vec<Dependency> {
        let update = &held.proven.update;
        let Some(target) = self.targets.get(&update.target) else { return Vec::new() };
        let mut found = Vec::new();
        for claim in edges::claims(update) {
            for key in target.claims.holders(&claim).filter(|key| **key != update.key) {
                let Some(slot) = target.slots.get(key) else { continue };
                let mut unacked = slot.held.iter().filter(|other| Some(other.version()) > slot.acked);
                let lets_go = unacked.find(|other| !edges::claims(&other.proven.update).contains(&claim));
                if let Some(other) =
                    lets_go.filter(|other| comes_first(other, held) && !self.is_held_up(other))
                {
                    found.push(Dependency {
                        target: update.target.clone(),
                        key: key.clone(),
                        version: other.version(),
                        reason: edges::LETS_GO,
                    });
                }
            }
        }
        found
    }

    /// Whether an update waits for an actuator that is away.
    fn is_held_up(&self, held: &Held) -> bool {
        let is_away = |label: &Label| self.targets.get(label).is_some_and(|target| target.session.is_none());
        self.planned_missing(held).any(|dependency| is_away(&dependency.target))
    }

    /// Remembers which keys a refusal names, to try it again when one of them changes.
    pub(super) fn note_named(&mut self, label: &Label, key: &Key, reason: &str) {
        let Some(target) = self.targets.get_mut(label).filter(|_| edges::can_claim(key)) else {
            return;
        };
        for other in target.claims.named(reason).into_iter().filter(|other| other != key) {
            let refused = target.named.entry(other).or_default();
            if refused.len() < NAMED_MAX {
                refused.insert(key.clone());
            }
        }
    }

    /// Tries again what was refused because of a key that changed.
    pub(super) fn retry_named(&mut self, node: &Node) {
        let Some(target) = self.targets.get_mut(&node.0) else { return };
        for key in target.named.remove(&node.1).unwrap_or_default() {
            if target.refused.remove(&key) {
                if let Some(slot) = target.slots.get_mut(&key) {
                    slot.refused = None;
                }
                self.counters.retried += 1;
                self.woken.insert((node.0.clone(), key));
            }
        }
    }
}

/// Whether a key may wait for what another does.
fn comes_first(other: &Held, held: &Held) -> bool {
    if other.is_delete() { other.version() <= held.version() } else { other.place() < held.place() }
}
