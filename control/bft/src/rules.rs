//! What may be ordered: the state that judges a batch (rows R1, R4).
//!
//! Every replica has the same [`Tables`] after the same block, and votes for a block only when each of its batches is
//! [`Judgement::Fresh`] there. So a batch that was ordered is never ordered again, whoever proposes it, and, where operations
//! are signed events of sources, neither is an event: consensus refuses it, and no application sees it a second time.
//!
//! - A batch is fresh when its name is above the last of its origin: a later life, or a higher sequence in the same.
//! - With an [`Admission`], each operation must pass it, and when it is an event, be the next of its source.
//!
//! Invariant: what is judged stale stays stale for ever; what waits for a predecessor may become fresh.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use weir_order::batcher;
use weir_order::intake::{Ordered, SignedEvent, Source, Verify};

use crate::wire::{Batch, Malformed, Name, Reader};

/// What operations must be, when they are signed events of the leaderless intake (row R4). The same on every replica.
#[derive(Clone)]
pub struct Admission {
    /// Says whether an event's signature is right.
    pub verify: Arc<dyn Verify + Send + Sync>,
    /// Sources that may ever send.
    pub sources_max: usize,
}

/// What a batch is after some block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It may come next.
    Fresh,
    /// It, or an event in it, was ordered already.
    Stale,
    /// An event in it must wait for the one before.
    Early,
    /// It is no batch of signed events, or a signature is wrong.
    Wrong,
}

/// What was ordered up to a block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tables {
    origins: BTreeMap<u32, (u64, u64)>,
    sources: Option<Ordered>,
}

/// What blocks that are not committed yet add.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    origins: BTreeMap<u32, (u64, u64)>,
    sources: BTreeMap<Source, u64>,
}

fn events(body: &Bytes) -> Option<Vec<SignedEvent>> {
    // The empty batch holds nothing: it only brings the order on.
    if body.is_empty() {
        return Some(Vec::new());
    }
    let operations = batcher::decode(body).ok()?;
    operations.into_iter().map(|operation| SignedEvent::decode(&body.slice_ref(operation))).collect()
}

/// Whether a batch is made of rightly signed events. Depends on nothing but the batch, so the answer may be kept.
pub fn is_admissible(admission: Option<&Admission>, body: &Bytes) -> bool {
    let Some(admission) = admission else { return true };
    events(body).is_some_and(|events| {
        (body.is_empty() || !events.is_empty()) && events.iter().all(|event| admission.verify.is_right(event))
    })
}

impl Tables {
    /// Before everything.
    pub fn new(admission: Option<&Admission>) -> Tables {
        Tables { origins: BTreeMap::new(), sources: admission.map(|rules| Ordered::new(rules.sources_max)) }
    }

    /// The life and sequence of an origin's last batch.
    pub fn last_of(&self, overlay: &Overlay, origin: u32) -> (u64, u64) {
        overlay.origins.get(&origin).or_else(|| self.origins.get(&origin)).copied().unwrap_or_default()
    }

    /// Whether a name was passed by already, so that its batch can never be ordered.
    pub fn is_passed(&self, overlay: &Overlay, name: &Name) -> bool {
        (name.life, name.sequence) <= self.last_of(overlay, name.origin)
    }

    /// Judges a batch that [`is_admissible`] behind `overlay`, and adds it there when it is fresh.
    pub fn judge(&self, overlay: &mut Overlay, name: &Name, body: &Bytes) -> Judgement {
        if self.is_passed(overlay, name) {
            return Judgement::Stale;
        }
        let mut fresh: BTreeMap<Source, u64> = BTreeMap::new();
        if let Some(sources) = &self.sources {
            let Some(events) = events(body) else { return Judgement::Wrong };
            for event in events {
                let before = fresh.get(&event.source).or_else(|| overlay.sources.get(&event.source));
                let last = before.copied().unwrap_or_else(|| sources.last(&event.source));
                if event.sequence <= last {
                    return Judgement::Stale;
                }
                if event.sequence > last + 1 {
                    return Judgement::Early;
                }
                fresh.insert(event.source, event.sequence);
            }
        }
        overlay.sources.extend(fresh);
        overlay.origins.insert(name.origin, (name.life, name.sequence));
        Judgement::Fresh
    }

    /// Takes a batch that was ordered. Its signatures were checked by those who voted for it.
    pub fn ordered(&mut self, batch: &Batch) {
        let name = &batch.name;
        let last = self.origins.entry(name.origin).or_default();
        *last = (*last).max((name.life, name.sequence));
        if let Some(sources) = &mut self.sources {
            let all_right = |_: &SignedEvent| true;
            for event in events(&batch.body).into_iter().flatten() {
                // What it drops was refused by the vote already, but for a source too many.
                let _counted = sources.admit(&event.encode(), &all_right);
            }
        }
    }

    /// The bytes for a snapshot; equal tables have equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&(self.origins.len() as u32).to_le_bytes());
        for (origin, (life, sequence)) in &self.origins {
            out.extend_from_slice(&origin.to_le_bytes());
            out.extend_from_slice(&life.to_le_bytes());
            out.extend_from_slice(&sequence.to_le_bytes());
        }
        let sources = self.sources.as_ref().map(Ordered::encode).unwrap_or_default();
        out.extend_from_slice(&(sources.len() as u32).to_le_bytes());
        out.extend_from_slice(&sources);
        out
    }

    /// Reads what [`Tables::encode`] wrote, under the same rules.
    pub fn decode(bytes: Bytes, admission: Option<&Admission>) -> Result<Tables, Malformed> {
        let mut from = Reader(bytes);
        let count = from.count(crate::settings::MEMBERS_EVER_MAX, "too many origins")?;
        let mut origins = BTreeMap::new();
        for _ in 0..count {
            origins.insert(from.u32()?, (from.u64()?, from.u64()?));
        }
        let length = from.u32()? as usize;
        let sources = from.bytes(length)?;
        from.end()?;
        let sources = match admission {
            Some(rules) => {
                let read = Ordered::decode(&sources, rules.sources_max);
                Some(read.ok_or(Malformed("the table of sources cannot be read"))?)
            }
            None if sources.is_empty() => None,
            None => return Err(Malformed("it has a table of sources, and this replica has no admission")),
        };
        Ok(Tables { origins, sources })
    }
}
