//! Packs released updates into frames: updates of one batch travel under one header.

use super::held::Held;
use crate::core::{BatchName, DecidedHeader};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_base::limits::UPDATES_PER_FRAME_MAX;
use weir_model::signed::ProvenUpdate;

/// A frame is closed when its updates have so many bytes: far below the limit of a frame, so that
/// proofs fit too and a long frame does not hold up a short one.
const FRAME_FILL_BYTES: usize = 1024 * 1024;

/// Updates of one batch that go together.
pub(crate) struct Packed {
    /// The batch.
    pub header: Arc<DecidedHeader>,
    /// The updates.
    pub updates: Vec<ProvenUpdate>,
}

/// Packs updates that may be applied in any order.
pub(crate) fn pack(released: Vec<Held>) -> Vec<Packed> {
    type Batch = (Arc<DecidedHeader>, Vec<Held>);
    let mut batches: BTreeMap<BatchName, Batch> = BTreeMap::new();
    for held in released {
        let batch = batches.entry(held.header.name());
        batch.or_insert_with(|| (held.header.clone(), Vec::new())).1.push(held);
    }
    let mut frames = Vec::new();
    for (header, updates) in batches.into_values() {
        let mut frame = Packed { header: header.clone(), updates: Vec::new() };
        let mut bytes = 0;
        for held in updates {
            let full = bytes + held.bytes > FRAME_FILL_BYTES || frame.updates.len() == UPDATES_PER_FRAME_MAX;
            if full && !frame.updates.is_empty() {
                let next = Packed { header: header.clone(), updates: Vec::new() };
                frames.push(std::mem::replace(&mut frame, next));
                bytes = 0;
            }
            bytes += held.bytes;
            frame.updates.push((*held.proven).clone());
        }
        frames.push(frame);
    }
    frames
}
