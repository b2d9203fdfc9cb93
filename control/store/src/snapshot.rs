//! A store as bytes: what a snapshot on disk and a state transfer carry.
//!
//! Format 1: a postcard header (format, version, digest, number of cells), then each cell as
//! (table, key, version, value), tables and keys ascending. The digest is checked on load.

use crate::{Cell, Store, cell_digest};
use weir_base::codec::encode;
use weir_model::Version;

const FORMAT: u32 = 1;

/// Why bytes are no snapshot of a store.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Written by another release.
    #[error("snapshot format {0} is not known here: this release reads format {FORMAT}")]
    Format(u32),
    /// Cut or damaged.
    #[error("the snapshot is damaged: {0}")]
    Damaged(String),
}

impl Store {
    /// The store as bytes.
    pub fn to_snapshot(&self) -> Vec<u8> {
        let cells: u64 = self.tables.values().map(|cells| cells.len() as u64).sum();
        let mut bytes = encode(&(FORMAT, self.version, self.digest, cells));
        for (table, table_cells) in &self.tables {
            for (key, cell) in table_cells {
                bytes.extend_from_slice(&encode(&(table, key, cell.version, &cell.value[..])));
            }
        }
        bytes
    }

    /// The store that [`Store::to_snapshot`] wrote.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn from_snapshot(bytes: &[u8]) -> Result<Store, SnapshotError> {
        let damaged = |error: &dyn std::fmt::Display| SnapshotError::Damaged(error.to_string());
        let ((format, version, digest, count), mut rest) =
            postcard::take_from_bytes::<(u32, Version, u128, u64)>(bytes).map_err(|e| damaged(&e))?;
        if format != FORMAT {
            return Err(SnapshotError::Format(format));
        }
        let mut store = Store { version, ..Store::default() };
        for _ in 0..count {
            let ((table, key, version, value), after) =
                postcard::take_from_bytes::<(String, Vec<u8>, Version, Vec<u8>)>(rest)
                    .map_err(|e| damaged(&e))?;
            rest = after;
            let cell = Cell { version, value: value.into() };
            store.digest = store.digest.wrapping_add(cell_digest(&table, &key, &cell));
            store.bytes += (key.len() + cell.value.len()) as u64;
            store.tables.entry(table).or_default().insert(key, cell);
        }
        if !rest.is_empty() {
            return Err(damaged(&format!("{} bytes are left over", rest.len())));
        }
        if store.digest != digest {
            return Err(damaged(&"the digest does not match"));
        }
        Ok(store)
    }
}
