//! Which events were decided before (row R4): a window of numbers for each source, in the store, so
//! that it is part of every snapshot and digest.
//!
//! Number `n` of a source uses slot `n % WINDOW`; the slot holds the number decided last in it. So a
//! slot with a smaller number proves that `n` was never decided, the same number that it was, and a
//! greater one that `n` is too old to tell: then it is refused, never decided twice.
//!
//! Rejected events leave no trace and may be tried again under their number.

use weir_base::codec::{decode, encode};
use weir_model::Version;
use weir_model::event::{Event, SourceId};
use weir_store::{Rejection, Store, View};

/// Table of the windows; the watch feed leaves it out.
pub const DEDUP_TABLE: &str = "seen-events";
/// How many numbers of a source are remembered.
pub const WINDOW: u64 = 256;
/// Most slots of all sources together.
pub const CELLS_MAX: usize = 4_000_000;

pub(crate) enum Seen {
    Never,
    At(Version),
    TooOld,
}

fn slot(event: &Event) -> Vec<u8> {
    encode(&(&event.source, event.sequence % WINDOW))
}

/// The highest number of a source that is remembered.
pub(crate) fn last_sequence_of(store: &Store, source: &SourceId) -> u64 {
    let slots = (0..WINDOW).filter_map(|slot| store.get(DEDUP_TABLE, &encode(&(source, slot))));
    let known = slots.filter_map(|cell| decode::<(u64, Version)>(&cell.value).ok());
    known.map(|(sequence, _)| sequence).max().unwrap_or_default()
}

/// Whether an event was decided before.
pub(crate) fn seen(store: &Store, event: &Event) -> Seen {
    let cell = store.get(DEDUP_TABLE, &slot(event));
    let known = cell.and_then(|cell| decode::<(u64, Version)>(&cell.value).ok());
    match known {
        Some((sequence, version)) if sequence == event.sequence => Seen::At(version),
        Some((sequence, _)) if sequence > event.sequence => Seen::TooOld,
        _ => Seen::Never,
    }
}

/// Remembers that an event is decided.
pub(crate) fn record(view: &mut View<'_>, event: &Event, version: Version) -> Result<(), Rejection> {
    let slot = slot(event);
    let store = view.store();
    if store.get(DEDUP_TABLE, &slot).is_none() && store.count(DEDUP_TABLE) >= CELLS_MAX {
        return Err(Rejection::limit("table of seen events", store.count(DEDUP_TABLE) + 1, CELLS_MAX));
    }
    view.put(DEDUP_TABLE, &slot, encode(&(event.sequence, version)))
}
