//! A change in the making: reads see the store below and the view's own writes above it.

use crate::cell::{Cell, Key};
use crate::name::namespace_of;
use crate::tables::Changed;
use crate::{KEY_BYTES_MAX, Refusal, Rejection, STORE_BYTES_MAX, Store, VALUE_BYTES_MAX};
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use weir_model::Version;

type Writes = BTreeMap<Key, Written>;

/// A value to be, and when it goes; `None` means to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    value: Option<Arc<[u8]>>,
    expires_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub struct View<'a> {
    store: &'a Store,
    writes: BTreeMap<Arc<str>, Writes>,
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

    fn written(&self, table: &str, key: &[u8]) -> Option<&Written> {
        self.writes.get(table)?.get(key)
    }

    /// The version that the view's writes will have, unless something is committed before them.
    pub fn version(&self) -> Version {
        Version(self.store.version().0 + 1)
    }

    fn cell_of(&self, written: &Written) -> Option<Cell> {
        let value = written.value.clone()?;
        Some(Cell { version: self.version(), expires_ms: written.expires_ms, value })
    }

    /// A value with its version, the view's own writes included.
    pub fn cell(&self, table: &str, key: &[u8]) -> Option<Cell> {
        match self.written(table, key) {
            Some(written) => self.cell_of(written),
            None => self.store.get(table, key).cloned(),
        }
    }

    /// A value, the view's own writes included.
    pub fn get(&self, table: &str, key: &[u8]) -> Option<Arc<[u8]>> {
        match self.written(table, key) {
            Some(written) => written.value.clone(),
            None => self.store.get(table, key).map(|cell| cell.value.clone()),
        }
    }

    /// The version of a value in the store below; `None` when it is not there.
    pub fn version_below(&self, table: &str, key: &[u8]) -> Option<Version> {
        self.store.get(table, key).map(|cell| cell.version)
    }

    /// Whether the view wrote this key.
    pub fn wrote(&self, table: &str, key: &[u8]) -> bool {
        self.written(table, key).is_some()
    }

    /// Writes a value.
    ///
    /// # Errors
    /// A [`Rejection`] when the key, the value or the store would pass its limit.
    pub fn put(&mut self, table: &str, key: &[u8], value: impl Into<Arc<[u8]>>) -> Result<(), Rejection> {
        self.put_until(table, key, value.into(), 0)
    }

    /// Writes a value that goes at an ordered time; 0: never.
    ///
    /// # Errors
    /// As [`View::put`].
    pub fn put_until(
        &mut self,
        table: &str,
        key: &[u8],
        value: Arc<[u8]>,
        expires_ms: u64,
    ) -> Result<(), Rejection> {
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
        self.note(table, key, Written { value: Some(value), expires_ms });
        Ok(())
    }

    /// Deletes a value; nothing happens when it is not there.
    pub fn delete(&mut self, table: &str, key: &[u8]) {
        self.note(table, key, Written { value: None, expires_ms: 0 });
    }

    fn note(&mut self, table: &str, key: &[u8], written: Written) {
        let writes = match self.writes.get_mut(table) {
            Some(writes) => writes,
            None => self.writes.entry(table.into()).or_default(),
        };
        writes.insert(key.into(), written);
    }

    /// Keys and cells from a key on, in order of the keys, the view's writes included.
    pub fn range<'v>(
        &'v self,
        table: &str,
        from: &[u8],
    ) -> Range<'v, impl Iterator<Item = (&'v Key, &'v Cell)>> {
        let writes = self.writes.get(table);
        let bounds = (Bound::Included(from), Bound::Unbounded);
        Range {
            view: self,
            below: self.store.range(table, from).peekable(),
            above: writes.map(|writes| writes.range::<[u8], _>(bounds).peekable()),
        }
    }

    /// Keys and values that begin with `prefix`, in order of the keys, the view's writes included.
    pub fn scan(&self, table: &str, prefix: &[u8]) -> Vec<(Vec<u8>, Arc<[u8]>)> {
        self.range(table, prefix)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, cell)| (key.to_vec(), cell.value))
            .collect()
    }

    /// The first key and value behind `after` that begin with `prefix`.
    pub fn next(&self, table: &str, prefix: &[u8], after: &[u8]) -> Option<(Vec<u8>, Arc<[u8]>)> {
        let (key, cell) = self
            .range(table, prefix.max(after))
            .take_while(|(key, _)| key.starts_with(prefix))
            .find(|(key, _)| &key[..] > after)?;
        Some((key.to_vec(), cell.value))
    }

    /// Whether tables and namespaces stay within their quotas with the view's writes. What does not
    /// grow may be above its quota, so that a lowered one never hinders deleting.
    pub(crate) fn check_quotas(&self) -> Result<(), Refusal> {
        for (name, writes) in &self.writes {
            let Some(namespace) = namespace_of(name) else { continue };
            let Some(table) = self.store.tables.get(&**name) else { continue };
            let (mut more, mut grown) = (0_i64, 0_i64);
            for (key, written) in writes {
                if let Some(value) = &written.value {
                    more += 1;
                    grown += (key.len() + value.len()) as i64;
                }
                if let Some(old) = table.cells.get(&key[..]) {
                    more -= 1;
                    grown -= (key.len() + old.cell.value.len()) as i64;
                }
            }
            let scope = |what: &str| format!("{what} {}", if what == "table" { name } else { namespace });
            let (quota, used) = self.store.usage(namespace);
            let options = table.options.as_deref().cloned().unwrap_or_default();
            let limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
            let entries = table.cells.len() as u64;
            for (place, what, used, more, limit) in [
                ("table", "entries", entries, more, limit(options.entries_max)),
                ("table", "bytes", table.bytes, grown, limit(options.bytes_max)),
                ("namespace", "entries", used.entries_max, more, quota.entries_max),
                ("namespace", "bytes", used.bytes_max, grown, quota.bytes_max),
            ] {
                let value = used.saturating_add_signed(more);
                if more > 0 && value > limit {
                    return Err(Refusal::Quota { scope: scope(place), what: what.to_owned(), value, limit });
                }
            }
        }
        Ok(())
    }

    /// The writes that change something, in order of tables and keys. Ends the view.
    pub fn into_writes(self) -> Vec<Changed> {
        let store = self.store;
        let mut writes = self.into_all_writes();
        writes.retain(|write| {
            let below = store.get(&write.table, &write.key);
            below.map(|cell| (&cell.value, cell.expires_ms))
                != write.value.as_ref().map(|value| (value, write.expires_ms))
        });
        writes
    }

    /// All writes but those that delete what is not there: a client's write of the value that is there
    /// already is a write, and has its version (row B6).
    pub(crate) fn into_all_writes(self) -> Vec<Changed> {
        let store = self.store;
        let mut all = Vec::new();
        for (table, writes) in self.writes {
            let changed = |(key, written): (Key, Written)| {
                let Written { value, expires_ms } = written;
                Changed { table: table.clone(), key, value, expires_ms }
            };
            let changes = writes.into_iter().map(changed);
            all.extend(
                changes
                    .filter(|write| write.value.is_some() || store.get(&write.table, &write.key).is_some()),
            );
        }
        all
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
pub struct Mark(BTreeMap<Arc<str>, Writes>, u64);

/// Keys and cells of a view in order: see [`View::range`].
pub struct Range<'v, I: Iterator<Item = (&'v Key, &'v Cell)>> {
    view: &'v View<'v>,
    below: Peekable<I>,
    above: Option<Peekable<btree_map::Range<'v, Key, Written>>>,
}

impl<'v, I: Iterator<Item = (&'v Key, &'v Cell)>> Iterator for Range<'v, I> {
    type Item = (Key, Cell);

    fn next(&mut self) -> Option<(Key, Cell)> {
        loop {
            let written = self.above.as_mut().and_then(Peekable::peek).map(|(key, _)| *key);
            match (self.below.peek().map(|(key, _)| *key), written) {
                (below, Some(key)) if below.is_none_or(|below| key <= below) => {
                    if below == Some(key) {
                        self.below.next();
                    }
                    let (key, written) = self.above.as_mut()?.next()?;
                    if let Some(cell) = self.view.cell_of(written) {
                        return Some((key.clone(), cell));
                    }
                }
                _ => return self.below.next().map(|(key, cell)| (key.clone(), cell.clone())),
            }
        }
    }
}
