//! Updates whose batch the group has not signed yet: they wait for the signature as well.

use super::held::Held;
use super::{Node, Scheduler};
use crate::core::{BatchName, DecidedHeader};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use weir_model::signed::GroupSignature;

/// Batches are looked through for those that nobody wants any more when there are twice as many as after the last look,
/// and at least so many.
const LOOK_MIN: usize = 1024;

/// Batches without a signature, each with the updates to look at when it has one.
#[derive(Debug, Default)]
pub(super) struct Unsigned {
    batches: BTreeMap<BatchName, (Weak<DecidedHeader>, Vec<Node>)>,
    after_last_look: usize,
}

impl Unsigned {
    /// Remembers an update, if its batch has no signature.
    pub fn add(&mut self, held: &Held) {
        if held.is_signed() {
            return;
        }
        if self.batches.len() >= LOOK_MIN.max(2 * self.after_last_look) {
            self.batches.retain(|_, (header, _)| header.strong_count() > 0);
            self.after_last_look = self.batches.len();
        }
        let batch = self.batches.entry(held.header.name());
        batch.or_insert_with(|| (Arc::downgrade(&held.header), Vec::new())).1.push(held.node());
    }
}

impl Scheduler {
    /// The header of a batch that waits for its signature.
    pub fn unsigned(&self, batch: &BatchName) -> Option<Arc<DecidedHeader>> {
        self.unsigned.batches.get(batch).and_then(|(header, _)| header.upgrade())
    }

    /// The group signed a batch: its updates may go.
    pub fn signed(&mut self, batch: BatchName, signature: GroupSignature) {
        let Some((header, nodes)) = self.unsigned.batches.remove(&batch) else { return };
        let Some(header) = header.upgrade() else { return };
        header.set_signature(signature);
        for node in nodes {
            self.evaluate(&node);
        }
    }

    /// Headers of all updates that are held, each once.
    pub fn headers(&self) -> Vec<Arc<DecidedHeader>> {
        let all: BTreeMap<BatchName, &Arc<DecidedHeader>> =
            self.held().map(|held| (held.header.name(), &held.header)).collect();
        all.into_values().cloned().collect()
    }
}
