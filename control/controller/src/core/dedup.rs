//! Which events were decided before (row R4): a window of numbers for each source, in the store, so
//! that it is part of every snapshot and digest.
//!
//! Number `n` of a source uses slot `n % WINDOW`; the slot holds the number decided last in it. So a
//! slot with a smaller number proves that `n` was never decided, the same number that it was, and a
//! greater one that `n` is too old to tell: then it is refused, never decided twice.
//!
//! Rejected events leave no trace and may be tried again under their number.
//!
//! Only registered sources have a window, and a source that is forgotten loses it; so does one that was revoked and joins with another
//! key: what the old key signed is refused for its signature, and the numbers of the new one begin where its owner's do. So the table has at most
//! `WINDOW` slots for each. Who joins again with the same key begins with an empty window, and what it said before it
//! was forgotten may be decided once more then; a new key (an empty state directory) excludes that.

use weir_base::codec::{decode, encode};
use weir_base::limits::LABEL_BYTES_MAX;
use weir_model::event::{Event, SourceId};
use weir_model::{Label, Version};
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
    slot_of(&event.source, event.sequence % WINDOW)
}

fn slot_of(source: &SourceId, number: u64) -> Vec<u8> {
    encode(&(source, number))
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

/// Whether deciding on an event would change nothing because its number was used, or is too old to tell.
pub fn was_decided(store: &Store, event: &Event) -> bool {
    !matches!(seen(store, event), Seen::Never)
}

/// The highest number under which something of a source was decided; 0 where nothing was.
pub(crate) fn highest(store: &Store, source: &SourceId) -> u64 {
    let slots = (0..WINDOW).filter_map(|number| store.get(DEDUP_TABLE, &slot_of(source, number)));
    let numbers = slots.filter_map(|cell| decode::<(u64, Version)>(&cell.value).ok());
    numbers.map(|(number, _)| number).max().unwrap_or(0)
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

/// Forgets the window of a source.
pub(crate) fn forget(view: &mut View<'_>, source: &SourceId) {
    for number in 0..WINDOW {
        let slot = slot_of(source, number);
        if view.store().get(DEDUP_TABLE, &slot).is_some() {
            view.delete(DEDUP_TABLE, &slot);
        }
    }
}

/// Forgets the windows of the planes of an actuator. They are few: see the app's bound of reports.
pub(crate) fn forget_planes(view: &mut View<'_>, actuator: &Label) {
    let first = SourceId::of_actuator(actuator).0 + "/";
    for length in first.len() + 1..=first.len() + LABEL_BYTES_MAX {
        // A name's encoding begins with its length.
        let mut prefix = encode(&length);
        prefix.extend_from_slice(first.as_bytes());
        for (slot, _) in view.scan(DEDUP_TABLE, &prefix) {
            view.delete(DEDUP_TABLE, &slot);
        }
    }
}
