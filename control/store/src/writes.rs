//! Writes of one entry: of a whole value, of columns, of a counter. What they cost is charged before they are done.

use crate::columns::{Columns, column};
use crate::meter::{Meter, What};
use crate::{Refusal, View};
use std::sync::Arc;

fn not_columns(table: &str, problem: &str) -> Refusal {
    Refusal::Columns { table: table.to_owned(), problem: problem.to_owned() }
}

/// Writes what was checked.
pub(crate) fn keep(
    view: &mut View<'_>,
    meter: &mut Meter,
    table: &str,
    key: &[u8],
    value: Arc<[u8]>,
    expires_ms: u64,
) -> Result<(), Refusal> {
    meter.charge(What::Entries, 1)?;
    meter.charge(What::Bytes, (key.len() + value.len()) as u64)?;
    Ok(view.put_until(table, key, value, expires_ms)?)
}

/// Writes a whole value.
pub(crate) fn put(
    view: &mut View<'_>,
    meter: &mut Meter,
    table: &str,
    key: &[u8],
    value: &[u8],
    expires_ms: u64,
) -> Result<(), Refusal> {
    if view.store().has_columns(table) && Columns::read(value).is_none() {
        return Err(not_columns(table, "the value is no encoding of columns: write one, or single columns"));
    }
    keep(view, meter, table, key, value.into(), expires_ms)
}

/// Writes and deletes columns; when the entry goes stays as it was.
pub(crate) fn set_columns(
    view: &mut View<'_>,
    meter: &mut Meter,
    table: &str,
    key: &[u8],
    set: &[(String, Vec<u8>)],
    remove: &[String],
) -> Result<(), Refusal> {
    if !view.store().has_columns(table) {
        return Err(not_columns(table, "it has no columns: write the whole value"));
    }
    let old = view.cell(table, key);
    meter.charge(What::Bytes, old.as_ref().map_or(0, |cell| cell.value.len() as u64))?;
    let mut columns = match &old {
        Some(cell) => Columns::read(&cell.value).ok_or_else(|| not_columns(table, "its value is damaged"))?,
        None => Columns::new(),
    };
    for (name, bytes) in set {
        if bytes.len() > crate::VALUE_BYTES_MAX {
            return Err(Refusal::too_large("column", bytes.len(), crate::VALUE_BYTES_MAX));
        }
        columns.set(name, bytes)?;
    }
    remove.iter().for_each(|name| columns.remove(name));
    let expires_ms = old.as_ref().map_or(0, |cell| cell.expires_ms);
    keep(view, meter, table, key, columns.to_value().into(), expires_ms)
}

/// Adds to a counter and gives what it was before.
pub(crate) fn increment(
    view: &mut View<'_>,
    meter: &mut Meter,
    table: &str,
    key: &[u8],
    name: &str,
    by: i64,
) -> Result<i64, Refusal> {
    let wrong = |problem: &str| Refusal::Counter { table: table.to_owned(), problem: problem.to_owned() };
    let old = view.cell(table, key);
    meter.charge(What::Bytes, old.as_ref().map_or(0, |cell| cell.value.len() as u64))?;
    let bytes = match (&old, name) {
        (None, _) => None,
        (Some(cell), "") => Some(&cell.value[..]),
        (Some(cell), name) => column(&cell.value, name),
    };
    let before = match bytes {
        None => 0,
        Some(bytes) => i64::from_be_bytes(
            bytes.try_into().map_err(|_| wrong("is no counter: a counter has eight bytes, big-endian"))?,
        ),
    };
    let after = before.checked_add(by).ok_or_else(|| wrong("would pass the range of 64 bits"))?;
    let after = after.to_be_bytes();
    if name.is_empty() {
        let expires_ms = old.map_or(0, |cell| cell.expires_ms);
        put(view, meter, table, key, &after, expires_ms)?;
    } else {
        set_columns(view, meter, table, key, &[(name.to_owned(), after.to_vec())], &[])?;
    }
    Ok(before)
}
