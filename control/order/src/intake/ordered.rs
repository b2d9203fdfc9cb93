//! What was ordered of each source: deterministic, and part of the application's snapshot.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::event::{SignedEvent, Source, Verify};

/// Why an ordered operation has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// It is no event.
    Malformed,
    /// Its signature is wrong.
    Signature,
    /// It was ordered before.
    Duplicate,
    /// An earlier event of its source was not ordered yet; whoever holds both proposes them again in order.
    Gap,
    /// There are too many sources.
    Sources,
}

/// Counts of what was ordered. The same on every replica that began at the same state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrderedCounters {
    /// Events that took effect.
    pub accepted: u64,
    /// Operations that are no event.
    pub malformed: u64,
    /// Wrong signatures.
    pub signatures: u64,
    /// Events ordered again.
    pub duplicates: u64,
    /// Events before their predecessor.
    pub gaps: u64,
    /// Events of sources beyond the limit.
    pub sources: u64,
}

/// The last sequence of each source. Every replica gives it the same operations in the same order, so it is the same everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordered {
    last: BTreeMap<Source, u64>,
    sources_max: usize,
    counters: OrderedCounters,
}

const VERSION: u8 = 1;
const ENTRY_BYTES: usize = 40;

impl Ordered {
    /// Nothing was ordered. `sources_max` must be the same on all replicas.
    pub fn new(sources_max: usize) -> Ordered {
        Ordered { last: BTreeMap::new(), sources_max, counters: OrderedCounters::default() }
    }

    /// The last sequence that was ordered of `source`; 0 before its first.
    pub fn last(&self, source: &Source) -> u64 {
        self.last.get(source).copied().unwrap_or(0)
    }

    /// What was counted.
    pub fn counters(&self) -> OrderedCounters {
        self.counters
    }

    /// Takes an ordered operation. Ok: it takes effect now, for the only time.
    pub fn admit(&mut self, operation: &Bytes, verify: &dyn Verify) -> Result<SignedEvent, Dropped> {
        let result = self.judge(operation, verify);
        let counters = &mut self.counters;
        let counter = match &result {
            Ok(event) => {
                self.last.insert(event.source, event.sequence);
                &mut counters.accepted
            }
            Err(Dropped::Malformed) => &mut counters.malformed,
            Err(Dropped::Signature) => &mut counters.signatures,
            Err(Dropped::Duplicate) => &mut counters.duplicates,
            Err(Dropped::Gap) => &mut counters.gaps,
            Err(Dropped::Sources) => &mut counters.sources,
        };
        *counter += 1;
        result
    }

    fn judge(&self, operation: &Bytes, verify: &dyn Verify) -> Result<SignedEvent, Dropped> {
        let event = SignedEvent::decode(operation).ok_or(Dropped::Malformed)?;
        let last = self.last(&event.source);
        if event.sequence <= last {
            return Err(Dropped::Duplicate);
        }
        if event.sequence > last + 1 {
            return Err(Dropped::Gap);
        }
        if last == 0 && self.last.len() >= self.sources_max {
            return Err(Dropped::Sources);
        }
        // Last, because it costs most; nothing before it depends on what the event says.
        if verify.is_right(&event) { Ok(event) } else { Err(Dropped::Signature) }
    }

    /// The bytes for a snapshot. Counters are not part of the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(5 + ENTRY_BYTES * self.last.len());
        out.push(VERSION);
        out.extend_from_slice(&(self.last.len() as u32).to_le_bytes());
        for (source, last) in &self.last {
            out.extend_from_slice(&source.0);
            out.extend_from_slice(&last.to_le_bytes());
        }
        out
    }

    /// Reads what [`Ordered::encode`] wrote; None when it is something else.
    pub fn decode(bytes: &[u8], sources_max: usize) -> Option<Ordered> {
        let (version, rest) = bytes.split_first()?;
        let (count, entries) = rest.split_at_checked(4)?;
        let count = u32::from_le_bytes(count.try_into().ok()?) as usize;
        if *version != VERSION || count > sources_max || entries.len() != count * ENTRY_BYTES {
            return None;
        }
        let mut last = BTreeMap::new();
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            let (source, sequence) = entry.split_at(32);
            let source = Source(source.try_into().ok()?);
            let sequence = u64::from_le_bytes(sequence.try_into().ok()?);
            // Sorted and without a second of one, so that equal states have equal bytes.
            if sequence == 0 || last.last_key_value().is_some_and(|(before, _)| *before >= source) {
                return None;
            }
            last.insert(source, sequence);
        }
        Some(Ordered { last, sources_max, counters: OrderedCounters::default() })
    }
}
