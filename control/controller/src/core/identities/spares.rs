//! Spares of a group, as far as they are known by a key.

use super::{Context, Registered, Work, never_revoked};
use weir_model::event::SourceId;
use weir_store::{Rejection, View};

/// A spare that as many controllers name as cannot all lie is known by the key that they name it with: it will take a place without anybody
/// being asked.
pub(super) fn introduced(
    view: &mut View<'_>,
    context: &Context<'_>,
    known: Registered<'_>,
    now_ms: u64,
    (id, key): (u64, [u8; 32]),
) -> Result<Option<SourceId>, Rejection> {
    let source = SourceId(format!("{}controller-{id}", SourceId::CONTROLLERS));
    let row = known.identities.row(&source);
    let is_out = row.is_some_and(|row| row.revoked.is_some() || row.refused.contains(&key));
    if is_out || known.keys_of(&source).is_ok_and(|known| known.now == key) {
        return Ok(None);
    }
    let mut work = Work::of(view, &source);
    if never_revoked(context, known, &work, &key).is_err() {
        return Ok(None);
    }
    work.row.key = Some(key);
    work.row.previous = None;
    work.row.since_ms = now_ms;
    work.put().map(Some)
}
