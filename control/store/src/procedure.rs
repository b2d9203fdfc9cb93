//! Procedures of clients: transactions that run beside the tables, in one request (row B8; Botelho
//! §IV-D, "micro components").
//!
//! A procedure is called by `namespace/word` and reads and writes the tables of this namespace. A
//! module that was loaded under the full name comes first; else the word names one that is built in.
//! Loaded modules are state: ordered, in snapshots, in the digest. How one runs is a [`Loader`]'s matter.
//!
//! Departure: the paper's are compiled into the store. Ours are too, where that is wanted, and an
//! operator's are loaded while the store runs.
//!
//! Every replica must have the same built-in procedures and the same loader: an upgrade that changes
//! either changes all replicas before anybody calls what is new.

use crate::columns::column;
use crate::meter::{Meter, What};
use crate::module::Module;
use crate::{Cell, KEY_BYTES_MAX, Key, ProcedureLimits, Refusal, View};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use weir_model::Version;

/// Largest arguments and largest reply, bytes.
pub const ARGUMENT_BYTES_MAX: usize = 1024 * 1024;
/// Most entries that one call reads or writes, or passes in scans.
pub const CALL_STEPS_MAX: u32 = 20_000;
/// Most compiled modules that are kept.
const COMPILED_MAX: usize = 256;

/// Why a procedure did not end well; nothing of it is done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Aborted {
    /// Why. The same on every replica.
    pub reason: String,
}

impl Aborted {
    /// With a reason.
    pub fn new(reason: impl Into<String>) -> Aborted {
        Aborted { reason: reason.into() }
    }
}

impl From<Refusal> for Aborted {
    fn from(refusal: Refusal) -> Aborted {
        Aborted::new(refusal.to_string())
    }
}

/// A deterministic, bounded procedure: the same tables, time and arguments give the same writes and reply.
pub trait Procedure: Send + Sync {
    /// Runs it.
    ///
    /// # Errors
    /// [`Aborted`]: then none of its writes happen.
    fn call(&self, call: &mut Call<'_, '_>, arguments: &[u8]) -> Result<Vec<u8>, Aborted>;
}

/// What is wrong with a module. The same words on every replica: outcomes have them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadModule(pub String);

impl BadModule {
    /// With what is wrong.
    pub fn new(problem: impl Into<String>) -> BadModule {
        BadModule(problem.into())
    }
}

/// Makes procedures of modules. The same module and limits behave the same on every replica.
pub trait Loader: Send + Sync {
    /// Checks and compiles a module.
    ///
    /// # Errors
    /// What is wrong with it; the same on every replica.
    fn load(&self, module: &[u8], limits: ProcedureLimits) -> Result<Arc<dyn Procedure>, BadModule>;
}

type Compiled = HashMap<([u8; 32], ProcedureLimits), Arc<dyn Procedure>>;

/// An entry that a procedure reads: its key, version and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// When it was written.
    pub version: Version,
    /// The value.
    pub value: Arc<[u8]>,
}

impl Entry {
    fn new(key: Key, cell: Cell) -> Entry {
        Entry { key, version: cell.version, value: cell.value }
    }
}

/// What procedures there are besides loaded ones, and how loaded ones run.
#[derive(Default)]
pub struct Registry {
    built_in: BTreeMap<&'static str, Arc<dyn Procedure>>,
    loader: Option<Arc<dyn Loader>>,
    /// What was compiled, by module and limits. Not state: it can be made again at any time.
    compiled: Mutex<Compiled>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("built_in", &self.built_in.keys()).finish_non_exhaustive()
    }
}

impl Registry {
    /// No procedures.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// With a procedure that every namespace has.
    #[must_use]
    pub fn with(mut self, name: &'static str, procedure: Arc<dyn Procedure>) -> Registry {
        self.built_in.insert(name, procedure);
        self
    }

    /// With a loader of modules.
    #[must_use]
    pub fn with_loader(mut self, loader: Arc<dyn Loader>) -> Registry {
        self.loader = Some(loader);
        self
    }

    pub(crate) fn built_in(&self, word: &str) -> Option<Arc<dyn Procedure>> {
        self.built_in.get(word).cloned()
    }

    pub(crate) fn loaded(&self, module: &Module) -> Result<Arc<dyn Procedure>, BadModule> {
        let Some(loader) = &self.loader else { return Err(BadModule::new("this store loads no procedures")) };
        let name = (module.hash, module.limits);
        let locked = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(procedure) = locked().get(&name) {
            return Ok(procedure.clone());
        }
        let procedure = loader.load(&module.bytes, module.limits)?;
        let mut compiled = locked();
        if compiled.len() >= COMPILED_MAX {
            compiled.clear();
        }
        compiled.insert(name, procedure.clone());
        Ok(procedure)
    }
}

/// What a procedure may do. Tables are named by their word: they are those of its namespace.
pub struct Call<'v, 'a> {
    view: &'v mut View<'a>,
    meter: &'v mut Meter,
    namespace: &'v str,
    now_ms: u64,
    steps: u32,
}

impl<'v, 'a> Call<'v, 'a> {
    pub(crate) fn new(
        view: &'v mut View<'a>,
        meter: &'v mut Meter,
        namespace: &'v str,
        now_ms: u64,
    ) -> Call<'v, 'a> {
        Call { view, meter, namespace, now_ms, steps: 0 }
    }

    /// Fuel that the entry has left for this call, whatever the call's own limit is.
    pub fn fuel_left(&self) -> u64 {
        self.meter.fuel_left()
    }

    /// Says how much fuel the call used.
    ///
    /// # Errors
    /// When the entry has not so much.
    pub fn burn(&mut self, fuel: u64) -> Result<(), Aborted> {
        Ok(self.meter.charge(What::Fuel, fuel)?)
    }

    /// What the store was asked for calls the procedure, which may ask again: [`Call::leave`] ends it.
    ///
    /// # Errors
    /// When there are too many calls within each other.
    pub fn enter(&mut self) -> Result<(), Aborted> {
        Ok(self.meter.enter()?)
    }

    /// The end of what [`Call::enter`] began.
    pub fn leave(&mut self) {
        self.meter.leave();
    }

    /// An entry was read.
    fn passed(&mut self, entry: Option<&Entry>) -> Result<(), Aborted> {
        let bytes = entry.map_or(0, |entry| (entry.key.len() + entry.value.len()) as u64);
        Ok(self.meter.charge(What::Bytes, bytes)?)
    }

    /// Ordered time, milliseconds of the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The version that its writes will have.
    pub fn version(&self) -> Version {
        self.view.version()
    }

    fn step(&mut self) -> Result<(), Aborted> {
        self.steps += 1;
        self.meter.charge(What::Entries, 1)?;
        if self.steps > CALL_STEPS_MAX {
            return Err(Aborted::new(format!("it took more than {CALL_STEPS_MAX} steps in the tables")));
        }
        Ok(())
    }

    fn table(&self, word: &str) -> Result<String, Aborted> {
        let table = format!("{}/{word}", self.namespace);
        if self.view.store().options(&table).is_none() {
            return Err(Refusal::NoTable { table }.into());
        }
        Ok(table)
    }

    /// An entry.
    ///
    /// # Errors
    /// When there is no such table, or the call took too many steps; so everywhere below.
    pub fn get(&mut self, table: &str, key: &[u8]) -> Result<Option<Entry>, Aborted> {
        self.step()?;
        let table = self.table(table)?;
        let found = self.view.cell(&table, key).map(|cell| Entry::new(key.into(), cell));
        self.passed(found.as_ref())?;
        Ok(found)
    }

    /// The entry that a whole value, or a column of it, refers to (row B5).
    ///
    /// # Errors
    /// See [`Call::get`]; also when the table has no such reference.
    pub fn follow(&mut self, table: &str, key: &[u8], by: &str) -> Result<Option<Entry>, Aborted> {
        self.step()?;
        let from = self.table(table)?;
        let Some(to) = self.view.store().reference(&from, by) else {
            return Err(Refusal::NoReference { table: from, column: by.to_owned() }.into());
        };
        let Some(cell) = self.view.cell(&from, key) else { return Ok(None) };
        let to_key = if by.is_empty() { Some(&cell.value[..]) } else { column(&cell.value, by) };
        let Some(to_key) = to_key.filter(|key| key.len() <= KEY_BYTES_MAX) else { return Ok(None) };
        let found = self.view.cell(to, to_key).map(|cell| Entry::new(to_key.into(), cell));
        self.passed(found.as_ref())?;
        Ok(found)
    }

    /// Writes an entry. In a column table the value must be an encoding of columns.
    ///
    /// # Errors
    /// See [`Call::get`]; also for what passes a limit.
    pub fn put(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), Aborted> {
        self.step()?;
        let table = self.table(table)?;
        crate::writes::put(self.view, self.meter, &table, key, value, 0)?;
        Ok(())
    }

    /// Deletes an entry; says whether it was there.
    ///
    /// # Errors
    /// See [`Call::get`].
    pub fn remove(&mut self, table: &str, key: &[u8]) -> Result<bool, Aborted> {
        self.step()?;
        let table = self.table(table)?;
        let there = self.view.get(&table, key).is_some();
        if there {
            self.view.delete(&table, key);
        }
        Ok(there)
    }

    /// One column of an entry.
    ///
    /// # Errors
    /// See [`Call::get`].
    pub fn column(&mut self, table: &str, key: &[u8], name: &str) -> Result<Option<Vec<u8>>, Aborted> {
        let found = self.get(table, key)?;
        Ok(found.and_then(|entry| column(&entry.value, name).map(<[u8]>::to_vec)))
    }

    /// Writes one column of an entry, which is made when it is not there.
    ///
    /// # Errors
    /// See [`Call::put`].
    pub fn set_column(&mut self, table: &str, key: &[u8], name: &str, bytes: &[u8]) -> Result<(), Aborted> {
        self.step()?;
        let table = self.table(table)?;
        let set = [(name.to_owned(), bytes.to_vec())];
        crate::writes::set_columns(self.view, self.meter, &table, key, &set, &[])?;
        Ok(())
    }

    /// Adds to a counter, and gives what it was before: see [`crate::Action::Increment`].
    ///
    /// # Errors
    /// See [`Call::put`]; also when it is no counter.
    pub fn increment(&mut self, table: &str, key: &[u8], name: &str, by: i64) -> Result<i64, Aborted> {
        self.step()?;
        let table = self.table(table)?;
        Ok(crate::writes::increment(self.view, self.meter, &table, key, name, by)?)
    }

    /// The first entry at or behind a key.
    ///
    /// # Errors
    /// See [`Call::get`].
    pub fn first_from(&mut self, table: &str, key: &[u8]) -> Result<Option<Entry>, Aborted> {
        self.step()?;
        let table = self.table(table)?;
        let found = self.view.range(&table, key).next().map(|(key, cell)| Entry::new(key, cell));
        self.passed(found.as_ref())?;
        Ok(found)
    }
}
