//! What is told to other domains and not taken there yet (row C6; decision 0028): statements with their proofs.
//!
//! A statement is decided and signed like an update of a switch, but nobody sends it: the other domain's controllers come and
//! get it ([`crate::domains`]), from any controller that has it. Here it waits until enough of them say that their order has it.
//!
//! Invariants
//! - What is here is a function of the order: statements come with their batch and go by [`DomainEvent`]s.
//! - How many there are is limited by the app that decides them; a header waits for its signature here only while a
//!   statement under it does.
//!
//! [`DomainEvent`]: weir_model::domain::DomainEvent

use super::header::{BatchName, DecidedHeader};
use super::scheduler::Held;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use weir_base::codec::encoded_bytes;
use weir_model::Label;
use weir_model::domain::{BATCHES_MAX, STATEMENTS_MAX, statement_of};
use weir_model::signed::{GroupSignature, SignedUpdates};

/// Most bytes of the updates that are handed over at once, unless one alone is larger.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// What a domain gets when it asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboxPage {
    /// The next statements, in order; those of a batch under its signature.
    pub statements: Vec<SignedUpdates>,
    /// What follows is not here: the domain must ask for everything anew.
    pub behind: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    lanes: BTreeMap<Label, BTreeMap<u64, Held>>,
    unsigned: BTreeMap<BatchName, Arc<DecidedHeader>>,
    /// How often something came or was signed.
    changes: u64,
}

impl Outbox {
    /// Takes in an update, if it is a statement; else gives it back.
    pub(super) fn insert(&mut self, held: Held) -> Result<(), Held> {
        let Some((to, sequence, statement)) = statement_of(&held.proven.update) else { return Err(held) };
        let (to, anew) = (to.clone(), statement.after == 0);
        if !held.is_signed() {
            self.unsigned.insert(held.header.name(), held.header.clone());
        }
        let lane = self.lanes.entry(to).or_default();
        if anew {
            // What was told before is told again behind it.
            *lane = lane.split_off(&sequence);
        }
        lane.insert(sequence, held);
        self.changes += 1;
        if anew {
            self.let_go();
        }
        Ok(())
    }

    /// Forgets headers under which nothing is told any more.
    fn let_go(&mut self) {
        let told: BTreeSet<BatchName> = self.held().map(|held| held.header.name()).collect();
        self.unsigned.retain(|name, _| told.contains(name));
    }

    /// A domain has taken all up to a number.
    pub(super) fn taken(&mut self, domain: &Label, through: u64) {
        if let Some(lane) = self.lanes.get_mut(domain) {
            *lane = lane.split_off(&through.saturating_add(1));
            self.let_go();
        }
    }

    /// A domain is not known any more.
    pub(super) fn forget(&mut self, domain: &Label) {
        self.lanes.remove(domain);
        self.let_go();
    }

    /// The header of a batch with statements that waits for its signature.
    pub fn unsigned(&self, batch: &BatchName) -> Option<&Arc<DecidedHeader>> {
        self.unsigned.get(batch)
    }

    /// The group signed a batch.
    pub(super) fn signed(&mut self, batch: &BatchName, signature: &GroupSignature) {
        if let Some(header) = self.unsigned.remove(batch) {
            header.set_signature(signature.clone());
            self.changes += 1;
        }
    }

    /// All statements, by domain and number: what a snapshot keeps.
    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.lanes.values().flat_map(BTreeMap::values)
    }

    /// How many wait for each domain.
    pub fn waiting(&self) -> BTreeMap<Label, usize> {
        self.lanes.iter().map(|(domain, lane)| (domain.clone(), lane.len())).collect()
    }

    /// Grows whenever there is more to hand over.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// What follows a number for a domain, as far as it is signed.
    pub fn page(&self, domain: &Label, through: u64) -> OutboxPage {
        let mut page = OutboxPage::default();
        let Some(lane) = self.lanes.get(domain) else { return page };
        let (mut last, mut count, mut bytes) = (through, 0, 0);
        for (sequence, held) in lane.range((Bound::Excluded(through), Bound::Unbounded)) {
            let Some((_, _, statement)) = statement_of(&held.proven.update) else { break };
            if statement.after != 0 && statement.after != last {
                page.behind = count == 0;
                break;
            }
            let Some(header) = held.header.to_signed() else { break };
            bytes += encoded_bytes(&*held.proven);
            let same = page.statements.last().is_some_and(|batch| batch.header == header);
            let full = count == STATEMENTS_MAX
                || (count > 0 && bytes > PAGE_BYTES_MAX)
                || (!same && page.statements.len() == BATCHES_MAX);
            if full {
                break;
            }
            match page.statements.last_mut().filter(|_| same) {
                Some(batch) => batch.updates.push((*held.proven).clone()),
                None => {
                    let updates = vec![(*held.proven).clone()];
                    page.statements.push(SignedUpdates { header, updates });
                }
            }
            (last, count) = (*sequence, count + 1);
        }
        page
    }
}

#[cfg(test)]
mod tests;
