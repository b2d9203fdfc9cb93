//! The tables themselves.

use crate::cell::{Cell, Key};
use crate::clients::Clients;
use crate::digest::{Part, of_cell, of_part};
use crate::module::Module;
use crate::name::namespace_of;
use crate::{ProcedureInfo, Quota, TableInfo, TableOptions, View};
use imbl::{OrdMap, OrdSet};
use std::ops::Bound;
use std::sync::Arc;
use weir_base::codec::encode;
use weir_model::Version;

/// A cell and what it adds to the digest.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub cell: Cell,
    digest: u128,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// Of the tables of clients; those of apps have none.
    pub options: Option<Arc<TableOptions>>,
    pub cells: OrdMap<Key, Stored>,
    pub bytes: u64,
    /// Sum over the cells.
    pub digest: u128,
    /// Cells that will go.
    pub expiring: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Namespace {
    pub quota: Quota,
    /// Whether somebody set the quota.
    pub quota_set: bool,
    pub tables: u64,
    pub entries: u64,
    pub bytes: u64,
    pub procedures: u64,
}

/// One write of a committed view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The table.
    pub table: Arc<str>,
    /// The key.
    pub key: Key,
    /// The new value; `None` means deleted.
    pub value: Option<Arc<[u8]>>,
    /// When it goes, milliseconds of ordered time; 0: never.
    pub expires_ms: u64,
}

/// All tables at one version, and what belongs to them. See the crate.
#[derive(Clone, Debug, Default)]
pub struct Store {
    pub(crate) tables: OrdMap<Arc<str>, Table>,
    pub(crate) namespaces: OrdMap<Arc<str>, Namespace>,
    pub(crate) procedures: OrdMap<Arc<str>, Arc<Module>>,
    pub(crate) clients: Clients,
    /// Every entry that will go, in the order in which they go.
    pub(crate) expiry: OrdSet<(u64, Arc<str>, Key)>,
    pub(crate) version: Version,
    pub(crate) now_ms: u64,
    pub(crate) digest: u128,
    pub(crate) bytes: u64,
}

impl Store {
    /// An empty one.
    pub fn new() -> Store {
        Store::default()
    }

    /// Version of the last change.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Ordered time of the last batch applied, milliseconds of the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Running digest over all parts: equal for replicas that hold the same.
    pub fn digest(&self) -> u128 {
        self.digest.wrapping_add(self.clients.digest())
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A value.
    pub fn get(&self, table: &str, key: &[u8]) -> Option<&Cell> {
        Some(&self.tables.get(table)?.cells.get(key)?.cell)
    }

    /// The cells from a key on, in order of the keys.
    pub fn range<'a>(
        &'a self,
        table: &str,
        from: &[u8],
    ) -> impl Iterator<Item = (&'a Key, &'a Cell)> + use<'a> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let cells = self.tables.get(table).map(|table| table.cells.range::<_, [u8]>(bounds));
        cells.into_iter().flatten().map(|(key, stored)| (key, &stored.cell))
    }

    /// The cells whose keys begin with `prefix`, in order of the keys.
    pub fn scan<'a>(
        &'a self,
        table: &str,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a [u8], &'a Cell)> + use<'a> {
        self.range(table, prefix)
            .take_while(move |(key, _)| key.starts_with(prefix))
            .map(|(key, cell)| (&key[..], cell))
    }

    /// Number of cells of a table.
    pub fn count(&self, table: &str) -> usize {
        self.tables.get(table).map_or(0, |table| table.cells.len())
    }

    /// When the next entry goes, milliseconds of ordered time.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.expiry.get_min().map(|(expires_ms, _, _)| *expires_ms)
    }

    /// Begins a change.
    pub fn view(&self) -> View<'_> {
        View::new(self)
    }

    /// Whether a table can be read: it was created, or is one of the apps', which are made by writing.
    pub(crate) fn has_table(&self, table: &str) -> bool {
        self.tables.contains_key(table) || namespace_of(table).is_none()
    }

    pub(crate) fn options(&self, table: &str) -> Option<&Arc<TableOptions>> {
        self.tables.get(table)?.options.as_ref()
    }

    pub(crate) fn has_columns(&self, table: &str) -> bool {
        self.options(table).is_some_and(|options| options.columns)
    }

    /// The table that a column, or with an empty name the whole value, refers to.
    pub(crate) fn reference(&self, table: &str, column: &str) -> Option<&str> {
        let references = &self.options(table)?.references;
        references.iter().find(|(name, _)| name == column).map(|(_, to)| to.as_str())
    }

    pub(crate) fn tables_of(&self, namespace: &str) -> Vec<TableInfo> {
        let wanted = |name: &str| namespace_of(name).unwrap_or_default() == namespace;
        let of = |(name, table): (&Arc<str>, &Table)| TableInfo {
            table: name.to_string(),
            options: table.options.as_deref().cloned().unwrap_or_default(),
            entries: table.cells.len() as u64,
            bytes: table.bytes,
        };
        self.tables.iter().filter(|(name, _)| wanted(name)).map(of).collect()
    }

    pub(crate) fn procedures_of(&self, namespace: &str) -> Vec<ProcedureInfo> {
        let wanted = |name: &str| namespace_of(name) == Some(namespace);
        self.procedures
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(name, module)| module.info(name))
            .collect()
    }

    pub(crate) fn usage(&self, namespace: &str) -> (Quota, Quota) {
        let known = self.namespaces.get(namespace).cloned().unwrap_or_default();
        let used = Quota {
            tables_max: known.tables,
            entries_max: known.entries,
            bytes_max: known.bytes,
            procedures_max: known.procedures,
        };
        (known.quota, used)
    }

    /// Makes writes true, at `version`.
    ///
    /// # Panics
    /// When `version` is not above the store's.
    pub fn commit(&mut self, version: Version, writes: Vec<Changed>) {
        assert!(version > self.version, "{version} is not above {}", self.version);
        self.version = version;
        self.write(version, &writes);
    }

    /// Changes something behind everybody's back, at no new version, as a bad memory cell would: to see that it is noticed. In
    /// builds for tests only.
    #[cfg(debug_assertions)]
    pub fn rot(&mut self) {
        let (table, value) = (Arc::from("debug/rot"), Some(Arc::from(&b"rotten"[..])));
        let write = Changed { table, key: b"cell"[..].into(), value, expires_ms: 0 };
        self.write(self.version, &[write]);
    }

    fn write(&mut self, version: Version, writes: &[Changed]) {
        for group in writes.chunk_by(|a, b| a.table == b.table) {
            let name = &group[0].table;
            if !self.tables.contains_key(name) {
                self.tables.insert(name.clone(), Table::default());
            }
            let Some(table) = self.tables.get_mut(name) else { unreachable!("it was just made") };
            let (entries, bytes, digest) = (table.cells.len() as u64, table.bytes, table.digest);
            for write in group {
                table.write(name, version, write, &mut self.expiry);
            }
            let grown = table.bytes.wrapping_sub(bytes);
            self.bytes = self.bytes.wrapping_add(grown);
            self.digest = self.digest.wrapping_add(table.digest.wrapping_sub(digest));
            let more = (table.cells.len() as u64).wrapping_sub(entries);
            if let Some(namespace) = namespace_of(name).and_then(|name| self.namespaces.get_mut(name)) {
                namespace.bytes = namespace.bytes.wrapping_add(grown);
                namespace.entries = namespace.entries.wrapping_add(more);
            }
        }
    }

    /// Puts a cell where none is: for loading a snapshot.
    pub(crate) fn restore(&mut self, table: &Arc<str>, key: Key, cell: Cell) {
        let (version, expires_ms) = (cell.version, cell.expires_ms);
        self.write(version, &[Changed { table: table.clone(), key, value: Some(cell.value), expires_ms }]);
    }

    pub(crate) fn add_table(&mut self, name: &Arc<str>, options: TableOptions) {
        self.digest = self.digest.wrapping_add(table_digest(name, &options));
        let table = Table { options: Some(Arc::new(options)), ..Table::default() };
        self.tables.insert(name.clone(), table);
        self.namespace(name).tables += 1;
    }

    pub(crate) fn set_options(&mut self, name: &str, options: TableOptions) {
        let Some(table) = self.tables.get_mut(name) else { return };
        let Some(old) = table.options.replace(Arc::new(options.clone())) else { return };
        self.digest = self.digest.wrapping_sub(table_digest(name, &old));
        self.digest = self.digest.wrapping_add(table_digest(name, &options));
    }

    pub(crate) fn remove_table(&mut self, name: &str) {
        let Some(table) = self.tables.remove(name) else { return };
        if let Some(options) = &table.options {
            self.digest = self.digest.wrapping_sub(table_digest(name, options));
        }
        self.digest = self.digest.wrapping_sub(table.digest);
        self.bytes -= table.bytes;
        if table.expiring > 0 {
            let name: Arc<str> = name.into();
            for (key, stored) in table.cells.iter().filter(|(_, stored)| stored.cell.expires_ms > 0) {
                self.expiry.remove(&(stored.cell.expires_ms, name.clone(), key.clone()));
            }
        }
        let namespace = self.namespace(name);
        namespace.tables -= 1;
        namespace.bytes -= table.bytes;
        namespace.entries -= table.cells.len() as u64;
    }

    /// The namespace of a name, made when it is not there.
    pub(crate) fn namespace(&mut self, name: &str) -> &mut Namespace {
        let namespace = namespace_of(name).unwrap_or(name);
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.into(), Namespace::default());
        }
        let Some(found) = self.namespaces.get_mut(namespace) else { unreachable!("it was just made") };
        found
    }

    pub(crate) fn set_quota(&mut self, namespace: &str, quota: Quota) {
        let known = self.namespace(namespace);
        let old = known.quota_set.then_some(known.quota);
        known.quota = quota;
        known.quota_set = true;
        if let Some(old) = old {
            self.digest = self.digest.wrapping_sub(quota_digest(namespace, old));
        }
        self.digest = self.digest.wrapping_add(quota_digest(namespace, quota));
    }

    pub(crate) fn set_procedure(&mut self, name: &str, module: Option<Arc<Module>>) {
        if let Some(old) = self.procedures.remove(name) {
            self.digest = self.digest.wrapping_sub(of_part(Part::Procedure, &encode(&(name, &*old))));
            self.namespace(name).procedures -= 1;
        }
        if let Some(module) = module {
            self.digest = self.digest.wrapping_add(of_part(Part::Procedure, &encode(&(name, &*module))));
            self.procedures.insert(name.into(), module);
            self.namespace(name).procedures += 1;
        }
    }
}

fn table_digest(name: &str, options: &TableOptions) -> u128 {
    of_part(Part::Table, &encode(&(name, options)))
}

fn quota_digest(namespace: &str, quota: Quota) -> u128 {
    of_part(Part::Namespace, &encode(&(namespace, quota)))
}

impl Table {
    fn write(
        &mut self,
        name: &Arc<str>,
        version: Version,
        write: &Changed,
        expiry: &mut OrdSet<(u64, Arc<str>, Key)>,
    ) {
        let old = match &write.value {
            Some(value) => {
                let cell = Cell { version, expires_ms: write.expires_ms, value: value.clone() };
                let digest = of_cell(name, &write.key, &cell);
                self.digest = self.digest.wrapping_add(digest);
                self.bytes += (write.key.len() + value.len()) as u64;
                self.cells.insert(write.key.clone(), Stored { cell, digest })
            }
            None => self.cells.remove(&write.key[..]),
        };
        if let Some(old) = &old {
            self.digest = self.digest.wrapping_sub(old.digest);
            self.bytes -= (write.key.len() + old.cell.value.len()) as u64;
        }
        // What is counted along is of what is there: a table that is empty again adds nothing to quotas and digest.
        debug_assert!(
            !self.cells.is_empty() || (self.bytes, self.digest) == (0, 0),
            "table {name} is empty and counts {} bytes",
            self.bytes
        );
        let before_ms = old.map_or(0, |old| old.cell.expires_ms);
        let after_ms = if write.value.is_some() { write.expires_ms } else { 0 };
        if before_ms == after_ms {
            return;
        }
        if before_ms > 0 {
            expiry.remove(&(before_ms, name.clone(), write.key.clone()));
            self.expiring -= 1;
        }
        if after_ms > 0 {
            expiry.insert((after_ms, name.clone(), write.key.clone()));
            self.expiring += 1;
        }
    }
}
