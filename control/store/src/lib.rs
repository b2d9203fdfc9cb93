//! The store: named tables of opaque values with versions, and the procedures (apps) that run beside
//! them (Botelho et al., rows B2, B6, B8 in a first form).
//!
//! Invariants
//! - It changes only by committing a [`View`], at a version above all before. Replicas that commit
//!   the same views have the same digest.
//! - A view sees its own writes; dropping it leaves no trace. So a dry run is a decision whose view
//!   is dropped.
//! - A clone of a store is a snapshot: it costs nothing and never changes.
//!
//! No socket, thread, clock or disk: the controller's runtime orders, stores and moves bytes.

mod app;
mod snapshot;
mod view;

pub use app::{App, Decision, Rejection};
pub use snapshot::SnapshotError;
pub use view::View;

use imbl::OrdMap;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use weir_model::Version;

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Largest value, bytes.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of keys and values in all tables.
pub const STORE_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// Name of a table: a short word, such as `endpoint`.
pub type TableName = &'static str;

/// A value with the version at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// When it was written.
    pub version: Version,
    /// The bytes.
    pub value: Arc<[u8]>,
}

type Table = OrdMap<Vec<u8>, Cell>;

/// All tables at one version.
#[derive(Clone, Debug, Default)]
pub struct Store {
    tables: OrdMap<String, Table>,
    version: Version,
    digest: u128,
    bytes: u64,
}

/// One write of a committed view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The table.
    pub table: TableName,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` means deleted.
    pub value: Option<Arc<[u8]>>,
}

fn cell_digest(table: &str, key: &[u8], cell: &Cell) -> u128 {
    let hash: [u8; 32] = Sha256::new()
        .chain_update((table.len() as u64).to_le_bytes())
        .chain_update(table)
        .chain_update((key.len() as u64).to_le_bytes())
        .chain_update(key)
        .chain_update(cell.version.0.to_le_bytes())
        .chain_update(&cell.value)
        .finalize()
        .into();
    let mut low = [0; 16];
    low.copy_from_slice(&hash[..16]);
    u128::from_le_bytes(low)
}

impl Store {
    /// An empty one.
    pub fn new() -> Store {
        Store::default()
    }

    /// Version of the last commit.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Running digest over all cells: equal for replicas that hold the same.
    pub fn digest(&self) -> u128 {
        self.digest
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A value.
    pub fn get(&self, table: TableName, key: &[u8]) -> Option<&Cell> {
        self.tables.get(table)?.get(key)
    }

    /// The cells whose keys begin with `prefix`, in order of the keys.
    pub fn scan<'a>(
        &'a self,
        table: TableName,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a Cell)> + 'a {
        self.tables
            .get(table)
            .into_iter()
            .flat_map(move |cells| cells.range(prefix.to_vec()..))
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, cell)| (key.as_slice(), cell))
    }

    /// Number of cells of a table.
    pub fn count(&self, table: TableName) -> usize {
        self.tables.get(table).map_or(0, OrdMap::len)
    }

    /// Begins a change.
    pub fn view(&self) -> View<'_> {
        View::new(self)
    }

    /// Makes the writes of a view true, at `version`.
    ///
    /// # Panics
    /// When `version` is not above the store's, or a write passes a limit that the view checks.
    pub fn commit(&mut self, version: Version, writes: Vec<Changed>) {
        assert!(version > self.version, "{version} is not above {}", self.version);
        self.version = version;
        for write in writes {
            self.write(version, write);
        }
    }

    fn write(&mut self, version: Version, write: Changed) {
        let cells = self.tables.entry(write.table.to_string()).or_default();
        let weight = |cell: &Cell| (write.key.len() + cell.value.len()) as u64;
        let old = match &write.value {
            Some(value) => {
                let cell = Cell { version, value: value.clone() };
                self.digest = self.digest.wrapping_add(cell_digest(write.table, &write.key, &cell));
                self.bytes += weight(&cell);
                cells.insert(write.key.clone(), cell)
            }
            None => cells.remove(&write.key),
        };
        if let Some(old) = old {
            self.digest = self.digest.wrapping_sub(cell_digest(write.table, &write.key, &old));
            self.bytes -= weight(&old);
        }
    }
}

#[cfg(test)]
mod tests;
