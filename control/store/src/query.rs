//! Reads: they are not ordered, they see one store as it is (rows B5, B7).
//!
//! A read never fails for its place: replicas with the same tables give the same answers. When it is
//! linearizable is the matter of whoever chooses the store that it sees.
//!
//! A procedure may be tried as a read ([`Query::Call`]): most calls of a procedure that learns find that what they
//! would write is there already, and such a one costs no entry of the log and no disk. The paper orders every call.

use crate::columns::{COLUMNS_MAX, Columns, column};
use crate::meter::{Meter, What};
use crate::{Cell, KEY_BYTES_MAX, Quota, Refusal, Registry, Store, TableOptions, View};
use serde::{Deserialize, Serialize};
use weir_base::codec::encoded_bytes;
use weir_model::Version;

/// Most tables that one read passes through.
pub const HOPS_MAX: usize = 8;
/// Most entries of one page of a scan.
pub const SCAN_ENTRIES_MAX: usize = 10_000;
/// What an entry that is answered takes besides its key and value, bytes.
const ENTRY_BYTES: usize = 96;
/// A page of a scan ends behind so many bytes of keys and values.
pub const SCAN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Query {
    /// One entry.
    Get {
        /// The table.
        table: String,
        /// The key.
        key: Vec<u8>,
        /// What of it.
        select: Select,
    },
    /// The entry at the end of a chain of references (row B5).
    Follow {
        /// The first table.
        table: String,
        /// The key there.
        key: Vec<u8>,
        /// The column to go by from each table on, empty for the whole value. When there is none,
        /// whole values are followed as far as tables refer by them.
        via: Vec<String>,
        /// What of the last entry.
        select: Select,
    },
    /// Entries in order of their keys.
    Scan {
        /// The table.
        table: String,
        /// The first key.
        from: Vec<u8>,
        /// The key to end before; empty: none.
        to: Vec<u8>,
        /// Most entries; 0: [`SCAN_ENTRIES_MAX`].
        limit: u32,
        /// What of each.
        select: Select,
    },
    /// The tables of a namespace; of the apps, when it is empty.
    Tables {
        /// The namespace.
        namespace: String,
    },
    /// Loaded procedures of a namespace.
    Procedures {
        /// The namespace.
        namespace: String,
    },
    /// Quota and use of a namespace.
    Usage {
        /// The namespace.
        namespace: String,
    },
    /// Version and digest.
    Digest,
    /// A procedure, as long as it writes nothing (row B8): then its reply is a read like any other and needs no place
    /// in the order. Not within a transaction.
    Call {
        /// Its name, `namespace/word`.
        procedure: String,
        /// What it is given.
        arguments: Vec<u8>,
    },
}

/// What of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Select {
    /// The whole value.
    #[default]
    Whole,
    /// Some columns.
    Columns(Vec<String>),
    /// Version and key only.
    Nothing,
}

/// One entry, as much of it as was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// When it was written.
    pub version: Version,
    /// When it goes, milliseconds of ordered time; 0: never.
    pub expires_ms: u64,
    /// What was selected.
    pub value: Selected,
}

/// What was selected of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selected {
    /// The whole value.
    Whole(Vec<u8>),
    /// The columns asked for that are there.
    Columns(Vec<(String, Vec<u8>)>),
    /// Nothing was asked for.
    Nothing,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// An entry.
    Found(Found),
    /// It is not there. `hops` tables were passed before the one that has no such key.
    Absent {
        /// How many.
        hops: u32,
    },
    /// A page of a scan.
    Page {
        /// Keys and entries.
        entries: Vec<(Vec<u8>, Found)>,
        /// Where to go on from; `None`: this is the end.
        next: Option<Vec<u8>>,
    },
    /// Tables.
    Tables(Vec<TableInfo>),
    /// Procedures.
    Procedures(Vec<ProcedureInfo>),
    /// A namespace's quota and use.
    Usage {
        /// Its quota.
        quota: Quota,
        /// Its use, in the terms of the quota.
        used: Quota,
    },
    /// Version and digest.
    Digest {
        /// Version of the last change.
        version: Version,
        /// Ordered time, milliseconds of the Unix epoch.
        now_ms: u64,
        /// Running digest over all tables, options, procedures, quotas and clients.
        digest: u128,
    },
    /// It cannot be read.
    Refused(Refusal),
    /// What a procedure replied that wrote nothing.
    Reply(Vec<u8>),
    /// The procedure writes: it is for [`crate::Operation::Call`]. Nothing of it was done.
    Writes,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableInfo {
    /// Its full name.
    pub table: String,
    /// Its options.
    pub options: TableOptions,
    /// Entries.
    pub entries: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// A loaded procedure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcedureInfo {
    /// Its full name.
    pub procedure: String,
    /// When it was loaded.
    pub version: Version,
    /// Bytes of the module.
    pub bytes: u64,
    /// SHA-256 of the module.
    pub hash: [u8; 32],
}

/// Where entries are read: a store, or a view with its own writes.
pub(crate) trait Source {
    fn store(&self) -> &Store;
    fn cell(&self, table: &str, key: &[u8]) -> Option<Cell>;
    fn page(&self, table: &str, from: &[u8], visit: &mut dyn FnMut(&[u8], &Cell) -> bool);
}

impl Source for Store {
    fn store(&self) -> &Store {
        self
    }

    fn cell(&self, table: &str, key: &[u8]) -> Option<Cell> {
        self.get(table, key).cloned()
    }

    fn page(&self, table: &str, from: &[u8], visit: &mut dyn FnMut(&[u8], &Cell) -> bool) {
        for (key, cell) in self.range(table, from) {
            if !visit(key, cell) {
                return;
            }
        }
    }
}

impl Source for View<'_> {
    fn store(&self) -> &Store {
        View::store(self)
    }

    fn cell(&self, table: &str, key: &[u8]) -> Option<Cell> {
        View::cell(self, table, key)
    }

    fn page(&self, table: &str, from: &[u8], visit: &mut dyn FnMut(&[u8], &Cell) -> bool) {
        for (key, cell) in self.range(table, from) {
            if !visit(&key, &cell) {
                return;
            }
        }
    }
}

impl Store {
    /// Answers a query. A procedure sees the ordered time of the last batch.
    pub fn query(&self, registry: &Registry, query: &Query) -> Answer {
        self.queries(registry, std::slice::from_ref(query)).pop().unwrap_or(Answer::Writes)
    }

    /// Answers queries that are asked together, within the bounds of [`crate::meter::BATCH`]: what passes them is refused.
    pub fn queries(&self, registry: &Registry, queries: &[Query]) -> Vec<Answer> {
        let mut meter = Meter::new();
        meter.begin_batch();
        let mut one = |query: &Query| {
            meter.begin_request();
            let answered = match query {
                Query::Call { procedure, arguments } => {
                    crate::call::ask(self, registry, &mut meter, procedure, arguments)
                }
                other => answer(self, &mut meter, other),
            };
            answered.unwrap_or_else(Answer::Refused)
        };
        queries.iter().map(&mut one).collect()
    }
}

impl Meter {
    /// An entry is answered.
    fn found(&mut self, key: &[u8], found: &Found) -> Result<(), Refusal> {
        let value = match &found.value {
            Selected::Whole(value) => value.len(),
            Selected::Columns(columns) => {
                columns.iter().map(|(name, bytes)| 64 + name.len() + bytes.len()).sum()
            }
            Selected::Nothing => 0,
        };
        self.charge(What::Answered, (ENTRY_BYTES + key.len() + value) as u64)
    }
}

pub(crate) fn answer(source: &impl Source, meter: &mut Meter, query: &Query) -> Result<Answer, Refusal> {
    let store = source.store();
    meter.charge(What::Entries, 1)?;
    match query {
        Query::Get { table, key, select } => get(source, meter, table, key, 0, select),
        Query::Follow { table, key, via, select } => follow(source, meter, table, key, via, select),
        Query::Scan { table, from, to, limit, select } => {
            scan(source, meter, (table, from, to), *limit, select)
        }
        Query::Tables { namespace } => {
            meter.charge(What::Entries, store.tables.len() as u64)?;
            let tables = store.tables_of(namespace);
            let bytes = tables.iter().map(|info| ENTRY_BYTES + encoded_bytes(info)).sum::<usize>();
            meter.charge(What::Answered, bytes as u64)?;
            Ok(Answer::Tables(tables))
        }
        Query::Procedures { namespace } => {
            meter.charge(What::Entries, store.procedures.len() as u64)?;
            let procedures = store.procedures_of(namespace);
            let bytes = procedures.iter().map(|info| ENTRY_BYTES + encoded_bytes(info)).sum::<usize>();
            meter.charge(What::Answered, bytes as u64)?;
            Ok(Answer::Procedures(procedures))
        }
        Query::Usage { namespace } => {
            let (quota, used) = store.usage(namespace);
            Ok(Answer::Usage { quota, used })
        }
        Query::Digest => {
            Ok(Answer::Digest { version: store.version(), now_ms: store.now_ms(), digest: store.digest() })
        }
        Query::Call { .. } => {
            Err(Refusal::invalid("a transaction cannot call a procedure: call it by an operation of its own"))
        }
    }
}

fn get(
    source: &impl Source,
    meter: &mut Meter,
    table: &str,
    key: &[u8],
    hops: u32,
    select: &Select,
) -> Result<Answer, Refusal> {
    match source.cell(table, key) {
        Some(cell) => {
            let found = found(source.store(), meter, table, &cell, select)?;
            meter.found(&[], &found)?;
            Ok(Answer::Found(found))
        }
        None if source.store().has_table(table) => Ok(Answer::Absent { hops }),
        None => Err(Refusal::NoTable { table: table.to_owned() }),
    }
}

fn found(
    store: &Store,
    meter: &mut Meter,
    table: &str,
    cell: &Cell,
    select: &Select,
) -> Result<Found, Refusal> {
    if *select != Select::Nothing {
        meter.charge(What::Bytes, cell.value.len() as u64)?;
    }
    let value = match select {
        Select::Whole => Selected::Whole(cell.value.to_vec()),
        Select::Nothing => Selected::Nothing,
        Select::Columns(names) => {
            if names.len() > COLUMNS_MAX {
                return Err(Refusal::too_large("number of columns asked for", names.len(), COLUMNS_MAX));
            }
            if !store.has_columns(table) {
                let problem = "it has no columns: read the whole value".to_owned();
                return Err(Refusal::Columns { table: table.to_owned(), problem });
            }
            meter.charge(What::Bytes, (16 * names.len()) as u64)?;
            let columns = Columns::read(&cell.value).unwrap_or_default();
            let pick = |name: &String| columns.get(name).map(|bytes| (name.clone(), bytes.to_vec()));
            Selected::Columns(names.iter().filter_map(pick).collect())
        }
    };
    Ok(Found { version: cell.version, expires_ms: cell.expires_ms, value })
}

fn follow(
    source: &impl Source,
    meter: &mut Meter,
    table: &str,
    key: &[u8],
    via: &[String],
    select: &Select,
) -> Result<Answer, Refusal> {
    if via.len() > HOPS_MAX {
        return Err(Refusal::too_large("number of tables to pass", via.len(), HOPS_MAX));
    }
    let store = source.store();
    let (mut table, mut key) = (table.to_owned(), key.to_vec());
    for hop in 0.. {
        let by = via.get(hop).map_or("", String::as_str);
        let end = hop == HOPS_MAX || if via.is_empty() { false } else { hop == via.len() };
        let next = if end { None } else { store.reference(&table, by) };
        let Some(next) = next else {
            if !end && !via.is_empty() {
                return Err(Refusal::NoReference { table, column: by.to_owned() });
            }
            return get(source, meter, &table, &key, hop as u32, select);
        };
        let Some(cell) = source.cell(&table, &key) else {
            return get(source, meter, &table, &key, hop as u32, select);
        };
        meter.charge(What::Entries, 1)?;
        meter.charge(What::Bytes, cell.value.len() as u64)?;
        let to = if by.is_empty() { Some(&cell.value[..]) } else { column(&cell.value, by) };
        let Some(to) = to.filter(|to| to.len() <= KEY_BYTES_MAX) else {
            return Ok(Answer::Absent { hops: hop as u32 });
        };
        key = to.to_vec();
        table = next.to_owned();
    }
    unreachable!("the loop ends at HOPS_MAX")
}

fn scan(
    source: &impl Source,
    meter: &mut Meter,
    (table, from, to): (&str, &[u8], &[u8]),
    limit: u32,
    select: &Select,
) -> Result<Answer, Refusal> {
    let store = source.store();
    if !store.has_table(table) {
        return Err(Refusal::NoTable { table: table.to_owned() });
    }
    let limit = match limit as usize {
        0 => SCAN_ENTRIES_MAX,
        limit => limit.min(SCAN_ENTRIES_MAX),
    };
    let (mut entries, mut next, mut bytes, mut refused) = (Vec::new(), None, 0, None);
    source.page(table, from, &mut |key, cell| {
        if !to.is_empty() && key >= to {
            return false;
        }
        if entries.len() == limit || bytes >= SCAN_BYTES_MAX {
            next = Some(key.to_vec());
            return false;
        }
        let taken = meter.charge(What::Entries, 1).and_then(|()| found(store, meter, table, cell, select));
        match taken.and_then(|found| meter.found(key, &found).map(|()| found)) {
            Ok(found) => {
                // What is left out of an entry still takes time to pass, so it counts a little.
                bytes += 32 + key.len() + if *select == Select::Nothing { 0 } else { cell.value.len() };
                entries.push((key.to_vec(), found));
                true
            }
            Err(refusal) => {
                refused = Some(refusal);
                false
            }
        }
    });
    refused.map_or(Ok(Answer::Page { entries, next }), Err)
}
