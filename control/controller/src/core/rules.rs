//! By which rules ordered entries are carried out.
//!
//! An entry is carried out again whenever a log is replayed, so what a release does with it can never change. New rules are
//! therefore switched on by an entry, the [`marker`], and hold for those behind it. It looks to releases that do not know it like a
//! batch of a client that nobody opened, which changes nothing.
//!
//! | rules | since |
//! |---|---|
//! | 0 | the beginning: operations of clients are carried out whatever they cost |
//! | 1 | operations are bounded by [`weir_store::meter`]; who asks is asked again when they are carried out |
//! | 2 | a key that was revoked is taken of nobody ([`identities`](super::identities)); an actuator that comes back with another key begins with an empty window of seen numbers ([`dedup`](super::dedup)) |
//! | 3 | every event of an entry keeps its own updates, also of a key that a later event of the entry changes: what linear consistency stands on |
//!
//! The rules are part of the state: snapshots have them. A controller puts the marker in front of the first operations that
//! it orders where it does not know that the rules are on, and again whenever it begins to lead: a member that was upgraded behind
//! the others reads it then. Rule 3 costs a signed leaf for each update of a busy key, and is put on by controllers whose consistency is
//! linear, in front of whatever they order first; it stays on.

use super::{Core, Item};
use weir_model::Label;
use weir_model::event::SourceId;
use weir_store::access::Identity;
use weir_store::{Applied, Batch, Meter, Terms};

/// The newest rules that this release knows.
pub const RULES: u32 = 3;
/// Since when keys that were revoked count for everybody, and who comes back begins anew.
pub const REVOKED_FOR_ALL: u32 = 2;
/// Events keep their updates apart.
pub const APART: u32 = 3;

/// The client of a marker; versions never get there, so nobody has this number.
const MARKER_CLIENT: u64 = u64::MAX;
/// The principal of a marker.
const MARKER_PRINCIPAL: u64 = 0x7275_6c65_735f_6f6e;

/// The entry that switches rules on, and those before them.
pub fn marker(now_ms: u64, rules: u32) -> Item {
    let batch = Batch {
        client: MARKER_CLIENT,
        principal: MARKER_PRINCIPAL,
        settled_below: rules.into(),
        requests: Vec::new(),
    };
    Item::Operations { now_ms, origin: 0, ticket: 0, batch }
}

fn marked(batch: &Batch) -> Option<u64> {
    let is_marker =
        batch.client == MARKER_CLIENT && batch.principal == MARKER_PRINCIPAL && batch.requests.is_empty();
    is_marker.then_some(batch.settled_below)
}

impl Core {
    /// By which rules the next entry is carried out.
    pub fn rules(&self) -> u32 {
        self.rules
    }

    /// Carries operations of a client out.
    pub(super) fn apply(&mut self, meter: &mut Meter, batch: &Batch) -> Applied {
        if let Some(rules) = marked(batch) {
            if rules > u64::from(RULES) {
                let known = RULES;
                tracing::error!(
                    rules,
                    known,
                    "the order has rules of a newer release: upgrade this controller"
                );
            }
            self.rules = self.rules.max(rules.min(RULES.into()) as u32);
        }
        if self.rules == 0 {
            return self.store.apply(&self.registry, self.now_ms, batch);
        }
        let who = self.who(batch.principal);
        let terms = Terms { meter, who: who.as_ref() };
        self.store.apply_on(&self.registry, terms, self.now_ms, batch)
    }

    /// Whose a principal is, as things are now. Nobody asks as 0 but the controller itself.
    fn who(&self, principal: u64) -> Option<Identity> {
        let admin = Identity::admin(Identity::ADMINISTRATOR);
        if principal == 0 {
            return None;
        }
        if principal == admin.principal() {
            return Some(admin);
        }
        let Some(name) = self.principals.get(&principal) else { return Some(Identity::nobody()) };
        let taken = self.registered().keys_of(&SourceId::of_actuator(name));
        Some(taken.map_or_else(|_| Identity::nobody(), |_| Identity::actuator(name.as_str())))
    }

    /// Knows actuators by the numbers under which they ask.
    pub(super) fn name_principals(&mut self) {
        let named = |name: &Label| (Identity::actuator(name.as_str()).principal(), name.clone());
        self.principals = self.joined.keys().map(named).collect();
    }
}

#[cfg(test)]
mod tests;
