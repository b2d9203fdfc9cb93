//! By how much wall time differs from ordered time, as the order says.
//!
//! Ordered time only goes on: what has a life ends by it. When it is far from what clocks say, a correction does not move it but
//! keeps the difference in the store, and whoever shows or compares wall time adds it. So nothing that has a life loses or gains any of it.

pub use weir_model::event::CLOCK_TABLE;

use weir_base::codec::{decode, encode};
use weir_model::event::{Event, EventBody};
use weir_store::{Rejection, Store, View};

/// By how much wall time is ahead of ordered time, milliseconds.
pub fn difference_ms(store: &Store) -> i64 {
    store.get(CLOCK_TABLE, b"").and_then(|cell| decode(&cell.value).ok()).unwrap_or_default()
}

/// Wall time at some ordered time, as the order says; 0: none is known yet.
pub(super) fn wall_ms(view: &View<'_>, ordered_ms: u64) -> u64 {
    let difference_ms: Option<i64> = view.get(CLOCK_TABLE, b"").and_then(|cell| decode(&cell).ok());
    if ordered_ms == 0 { 0 } else { ordered_ms.saturating_add_signed(difference_ms.unwrap_or_default()) }
}

/// The same of a store.
pub fn wall_of(store: &Store, ordered_ms: u64) -> u64 {
    if ordered_ms == 0 { 0 } else { ordered_ms.saturating_add_signed(difference_ms(store)) }
}

/// Takes a correction in.
pub(super) fn decide(view: &mut View<'_>, now_ms: u64, event: &Event) -> Result<(), Rejection> {
    let EventBody::Clock { wall_ms } = event.body else { return Ok(()) };
    let ahead = i128::from(wall_ms) - i128::from(now_ms);
    let ahead = i64::try_from(ahead).map_err(|_| {
        Rejection::limit("milliseconds by which wall time differs", wall_ms as usize, i64::MAX as usize)
    })?;
    match ahead {
        0 => view.delete(CLOCK_TABLE, b""),
        ahead => view.put(CLOCK_TABLE, b"", encode(&ahead))?,
    }
    Ok(())
}
