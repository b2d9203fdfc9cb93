//! What ports hold at a host: an address of a network, or a device, is one port's at a time. A port that wants what another
//! has waits until that one lets go of it ([`Reason::PortLetsGo`]), whichever decision took it away. A plan cannot say this:
//! an app does not know what is in force.
//!
//! - Known is what was sent or acked here since this scheduler began. What is not known is not waited for: the switch lets a
//!   newer port take what an older one has, and its refusal, if it gives one, is tried again when what it names changes.
//! - A port waits only for what was decided no later than itself, and of two ports of one decision the later waits for the
//!   former: so two that swap their addresses do not wait for each other.
//! - A port does not wait for one whose going an actuator holds up that is away.

use super::held::Held;
use super::{Node, Scheduler};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_model::entry::Vni;
use weir_model::update::Reason;
use weir_model::{Change, Dependency, Entry, Key, Label, Update};

/// Most ports whose refusal is tried again when one port changes.
const NAMED_MAX: usize = 64;

/// What one port at a time can have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    Address(Vni, IpAddr),
    Device(Option<String>, String),
}

/// What an update gives its port; nothing when it is no port's, or deletes one.
pub(crate) fn claims_of(update: &Update) -> Vec<Claim> {
    let (Key::Port { vni, .. }, Change::Put(Entry::Port(port))) = (&update.key, &update.change) else {
        return Vec::new();
    };
    let addresses = port.addresses.iter().map(|address| Claim::Address(*vni, *address));
    addresses.chain([Claim::Device(port.netns.clone(), port.device.clone())]).collect()
}

/// The claims of an actuator's ports. Bounded by its ports.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Every port that is held, also one of which nothing is known.
    held: BTreeMap<Key, BTreeSet<Claim>>,
    holders: BTreeMap<Claim, BTreeSet<Key>>,
}

impl Claims {
    /// A port may have these as well.
    pub fn add(&mut self, key: &Key, claims: Vec<Claim>) {
        let held = self.held.entry(key.clone()).or_default();
        for claim in claims {
            self.holders.entry(claim.clone()).or_default().insert(key.clone());
            held.insert(claim);
        }
    }

    /// A port has these and no others.
    pub fn set(&mut self, key: &Key, claims: Vec<Claim>) {
        self.forget(key);
        self.add(key, claims);
    }

    /// A port is not held any more.
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

    /// The ports whose endpoint a text names.
    fn named(&self, text: &str) -> Vec<Key> {
        let words: BTreeSet<&str> = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
        let is_named =
            |key: &&Key| matches!(key, Key::Port { endpoint, .. } if words.contains(endpoint.as_str()));
        self.held.keys().filter(is_named).cloned().collect()
    }
}

impl Scheduler {
    /// The ports that must let go of what a port wants.
    pub(super) fn rivals(&self, held: &Held) -> Vec<Dependency> {
        let update = &held.proven.update;
        let Some(target) = self.targets.get(&update.target) else { return Vec::new() };
        let mut found = Vec::new();
        for claim in claims_of(update) {
            for key in target.claims.holders(&claim).filter(|key| **key != update.key) {
                let Some(slot) = target.slots.get(key) else { continue };
                let mut unacked = slot.held.iter().filter(|other| Some(other.version()) > slot.acked);
                let lets_go = unacked.find(|other| !claims_of(&other.proven.update).contains(&claim));
                if let Some(other) =
                    lets_go.filter(|other| comes_first(other, held) && !self.is_held_up(other))
                {
                    found.push(Dependency {
                        target: update.target.clone(),
                        key: key.clone(),
                        version: other.version(),
                        reason: Reason::PortLetsGo,
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

    /// Remembers which ports a refusal names, to try it again when one of them changes.
    pub(super) fn note_named(&mut self, label: &Label, key: &Key, reason: &str) {
        let Some(target) = self.targets.get_mut(label).filter(|_| matches!(key, Key::Port { .. })) else {
            return;
        };
        for other in target.claims.named(reason).into_iter().filter(|other| other != key) {
            let refused = target.named.entry(other).or_default();
            if refused.len() < NAMED_MAX {
                refused.insert(key.clone());
            }
        }
    }

    /// Tries again what was refused because of a port that changed.
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

/// Whether a port may wait for what another does.
fn comes_first(other: &Held, held: &Held) -> bool {
    if other.is_delete() { other.version() <= held.version() } else { other.place() < held.place() }
}
