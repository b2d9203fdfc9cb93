//! A change in the making: reads see the store below and the view's own writes above it.

use crate::{Changed, KEY_BYTES_MAX, Rejection, STORE_BYTES_MAX, Store, TableName, VALUE_BYTES_MAX};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_model::Version;

type Writes = BTreeMap<Vec<u8>, Option<Arc<[u8]>>>;

/// See the module.
#[derive(Debug)]
pub struct View<'a> {
    store: &'a Store,
    writes: BTreeMap<TableName, Writes>,
    written_bytes: u64,
}

impl<'a> View<'a> {
    pub(crate) fn new(store: &'a Store) -> View<'a> {
        View { store, writes: BTreeMap::new(), written_bytes: 0 }
    }

    /// The store below, without the view's writes.
    pub fn store(&self) -> &'a Store {
        self.store
    }

    /// A value, the view's own writes included.
    pub fn get(&self, table: TableName, key: &[u8]) -> Option<Arc<[u8]>> {
        match self.writes.get(table).and_then(|writes| writes.get(key)) {
            Some(written) => written.clone(),
            None => self.store.get(table, key).map(|cell| cell.value.clone()),
        }
    }

    /// The version of a value in the store below; `None` when it is not there.
    pub fn version_below(&self, table: TableName, key: &[u8]) -> Option<Version> {
        self.store.get(table, key).map(|cell| cell.version)
    }

    /// Whether the view wrote this key.
    pub fn wrote(&self, table: TableName, key: &[u8]) -> bool {
        self.writes.get(table).is_some_and(|writes| writes.contains_key(key))
    }

    /// Writes a value.
    ///
    /// # Errors
    /// A [`Rejection`] when the key, the value or the store would pass its limit.
    pub fn put(
        &mut self,
        table: TableName,
        key: &[u8],
        value: impl Into<Arc<[u8]>>,
    ) -> Result<(), Rejection> {
        let value = value.into();
        if key.len() > KEY_BYTES_MAX {
            return Err(Rejection::limit("key", key.len(), KEY_BYTES_MAX));
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Rejection::limit("value", value.len(), VALUE_BYTES_MAX));
        }
        self.written_bytes += (key.len() + value.len()) as u64;
        let total = self.store.bytes().saturating_add(self.written_bytes);
        if total > STORE_BYTES_MAX {
            return Err(Rejection::limit("store", total as usize, STORE_BYTES_MAX as usize));
        }
        self.writes.entry(table).or_default().insert(key.to_vec(), Some(value));
        Ok(())
    }

    /// Deletes a value; nothing happens when it is not there.
    pub fn delete(&mut self, table: TableName, key: &[u8]) {
        self.writes.entry(table).or_default().insert(key.to_vec(), None);
    }

    /// Keys and values that begin with `prefix`, in order of the keys, the view's writes included.
    pub fn scan(&self, table: TableName, prefix: &[u8]) -> Vec<(Vec<u8>, Arc<[u8]>)> {
        let below = self.store.scan(table, prefix).map(|(key, cell)| (key.to_vec(), cell.value.clone()));
        let Some(writes) = self.writes.get(table) else { return below.collect() };
        let mut merged: BTreeMap<Vec<u8>, Arc<[u8]>> = below.collect();
        for (key, value) in writes.range(prefix.to_vec()..).take_while(|(key, _)| key.starts_with(prefix)) {
            match value {
                Some(value) => drop(merged.insert(key.clone(), value.clone())),
                None => drop(merged.remove(key)),
            }
        }
        merged.into_iter().collect()
    }

    /// The first key and value behind `after` that begin with `prefix`.
    pub fn next(&self, table: TableName, prefix: &[u8], after: &[u8]) -> Option<(Vec<u8>, Arc<[u8]>)> {
        self.scan(table, prefix).into_iter().find(|(key, _)| key.as_slice() > after)
    }

    /// The writes that change something, in order of tables and keys. Ends the view.
    pub fn into_writes(self) -> Vec<Changed> {
        let store = self.store;
        self.writes
            .into_iter()
            .flat_map(|(table, writes)| {
                writes.into_iter().map(move |(key, value)| Changed { table, key, value })
            })
            .filter(|write| {
                let below = store.get(write.table, &write.key).map(|cell| &cell.value);
                below != write.value.as_ref()
            })
            .collect()
    }

    /// Takes back every write from a mark on: see [`View::mark`].
    pub fn rollback(&mut self, mark: Mark) {
        self.writes = mark.0;
        self.written_bytes = mark.1;
    }

    /// Remembers the writes so far.
    pub fn mark(&self) -> Mark {
        Mark(self.writes.clone(), self.written_bytes)
    }
}

/// The writes of a view at some moment.
#[derive(Clone, Debug)]
pub struct Mark(BTreeMap<TableName, Writes>, u64);
