//! What operations do (rows B2, B5 to B8).
//!
//! Every operation runs on a [`View`], so that one which fails has done nothing; what it wrote is
//! checked against the quotas and committed at one version. A batch first sets the time, and what
//! has expired goes before anything else.
//!
//! Nothing here fails: whatever is wrong with a request is its outcome.

use crate::access::Identity;
use crate::call::{run, split_procedure};
use crate::clients::Known;
use crate::columns::column;
use crate::meter::{Meter, What};
use crate::module::{MODULE_BYTES_MAX, Module};
use crate::name::{check_word, namespace_of, split_name};
use crate::operation::{BATCH_REQUESTS_MAX, TRANSACTION_STEPS_MAX};
use crate::procedure::BadModule;
use crate::query::answer;
use crate::tables::Changed;
use crate::writes::{increment, keep, put, set_columns};
use crate::{
    Action, Batch, Condition, KEY_BYTES_MAX, NAMESPACES_MAX, Operation, Outcome, ProcedureLimits, Refusal,
    Registry, Rejection, Request, Step, StepOutcome, Store, TableOptions, View, Write,
};
use std::sync::Arc;
use weir_model::Version;

/// Most entries that go in one batch; the rest go with the next.
pub const EXPIRED_MAX: usize = 4_096;
/// Most references of a table.
pub const REFERENCES_MAX: usize = 32;
/// The most fuel that a procedure may be given.
pub const FUEL_MAX: u64 = 50_000_000;
/// The most memory that a procedure may be given, bytes.
pub const MEMORY_BYTES_MAX: u64 = 64 << 20;

/// What one version changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The version.
    pub version: Version,
    /// Ordered time, milliseconds of the Unix epoch.
    pub now_ms: u64,
    /// The writes, in order of tables and keys; may be empty.
    pub writes: Vec<Changed>,
    /// A table that was deleted with all that was in it.
    pub dropped: Option<Arc<str>>,
}

impl Change {
    /// About what it holds in memory, bytes.
    pub fn bytes(&self) -> usize {
        let write = |w: &Changed| 64 + w.key.len() + w.value.as_ref().map_or(0, |value| value.len());
        64 + self.writes.iter().map(write).sum::<usize>()
    }
}

/// What a batch led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// One for each request, in order.
    pub outcomes: Vec<Outcome>,
    /// What changed, in order of versions.
    pub changes: Vec<Change>,
    /// Requests that were done before.
    pub repeated: u64,
}

/// On what terms a batch is carried out.
#[derive(Debug)]
pub struct Terms<'t> {
    /// What its entry may cost.
    pub meter: &'t mut Meter,
    /// Whose it is, as far as that is asked when it is carried out.
    pub who: Option<&'t Identity>,
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Refusal {
        match rejection {
            Rejection::Limit { what, value, limit } => Refusal::too_large(&what, value, limit),
            other => Refusal::invalid(other.to_string()),
        }
    }
}

/// What stops an operation: a refusal, or a condition that does not hold.
enum Stop {
    Refused(Refusal),
    Conflict { step: u32, found: Version },
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

impl Store {
    /// Time passes: what has expired goes, and clients that were idle for too long are forgotten. `now_ms` is
    /// ordered, in milliseconds of the Unix epoch; one that lies before an earlier one counts as that.
    pub fn advance(&mut self, now_ms: u64) -> Option<Change> {
        self.now_ms = self.now_ms.max(now_ms);
        self.clients.forget_idle(self.now_ms);
        let mut writes: Vec<Changed> = Vec::new();
        for (expires_ms, table, key) in self.expiry.iter().take(EXPIRED_MAX) {
            if *expires_ms > self.now_ms {
                break;
            }
            writes.push(Changed { table: table.clone(), key: key.clone(), value: None, expires_ms: 0 });
        }
        if writes.is_empty() {
            return None;
        }
        writes.sort_by(|a, b| (&a.table, &a.key).cmp(&(&b.table, &b.key)));
        Some(self.make_true(writes))
    }

    /// Does the requests of a batch, in order, whatever they cost and whosever they are.
    pub fn apply(&mut self, registry: &Registry, now_ms: u64, batch: &Batch) -> Applied {
        let terms = Terms { meter: &mut Meter::unbounded(), who: None };
        self.apply_on(registry, terms, now_ms, batch)
    }

    /// Does the requests of a batch, in order.
    pub fn apply_on(
        &mut self,
        registry: &Registry,
        mut terms: Terms<'_>,
        now_ms: u64,
        batch: &Batch,
    ) -> Applied {
        terms.meter.begin_batch();
        let mut applied =
            Applied { changes: self.advance(now_ms).into_iter().collect(), ..Applied::default() };
        let begun = if batch.requests.len() > BATCH_REQUESTS_MAX {
            Err(Refusal::too_large("number of requests in a batch", batch.requests.len(), BATCH_REQUESTS_MAX))
        } else if batch.client == 0 {
            Ok(())
        } else {
            self.clients.begin(batch.client, batch.principal, batch.settled_below, self.now_ms)
        };
        if let Err(refusal) = begun {
            applied.outcomes = vec![Outcome::Refused(refusal); batch.requests.len()];
            return applied;
        }
        for request in &batch.requests {
            terms.meter.begin_request();
            let outcome = self.request(registry, &mut terms, batch, request, &mut applied);
            applied.outcomes.push(outcome);
        }
        applied
    }

    fn request(
        &mut self,
        registry: &Registry,
        terms: &mut Terms<'_>,
        batch: &Batch,
        request: &Request,
        applied: &mut Applied,
    ) -> Outcome {
        let operation = &request.operation;
        let denied = terms.who.and_then(|who| who.check_operation(operation).err());
        if let Some(problem) = denied {
            return Outcome::Refused(Refusal::invalid(problem.to_string()));
        }
        let meter = &mut *terms.meter;
        if batch.client == 0 {
            return self.operate(registry, meter, batch, operation, &mut applied.changes);
        }
        match self.clients.look(batch.client, request.sequence) {
            Known::Done(outcome, bytes) => match meter.charge(What::Answered, bytes) {
                Ok(()) => {
                    applied.repeated += 1;
                    (*outcome).clone()
                }
                Err(refusal) => Outcome::Refused(refusal),
            },
            Known::Refused(refusal) => Outcome::Refused(refusal),
            Known::New => {
                if meter.is_bounded()
                    && let Err(refusal) = self.clients.reserve(batch.client, self.now_ms)
                {
                    return Outcome::Refused(refusal);
                }
                let outcome = self.operate(registry, meter, batch, operation, &mut applied.changes);
                self.clients.keep(batch.client, request.sequence, &outcome);
                outcome
            }
        }
    }

    fn next_version(&self) -> Version {
        Version(self.version.0 + 1)
    }

    fn make_true(&mut self, writes: Vec<Changed>) -> Change {
        let version = self.next_version();
        self.commit(version, writes.clone());
        Change { version, now_ms: self.now_ms, writes, dropped: None }
    }

    fn operate(
        &mut self,
        registry: &Registry,
        meter: &mut Meter,
        batch: &Batch,
        operation: &Operation,
        changes: &mut Vec<Change>,
    ) -> Outcome {
        let now_ms = self.now_ms;
        let mut view = self.view();
        let done = match operation {
            Operation::Write(write) => single(&mut view, meter, write, now_ms),
            Operation::Transaction(steps) => transaction(&mut view, meter, steps, now_ms),
            Operation::Call { procedure, arguments } => {
                call(&mut view, registry, meter, procedure, arguments, now_ms)
            }
            other => {
                drop(view);
                let done = self.administer(registry, meter, batch, other, changes);
                return done.unwrap_or_else(Outcome::Refused);
            }
        };
        let done = done.and_then(|outcome| {
            view.check_quotas()?;
            Ok((outcome, view.into_all_writes()))
        });
        match done {
            Err(Stop::Refused(refusal)) => Outcome::Refused(refusal),
            Err(Stop::Conflict { step, found }) => Outcome::Conflict { step, found },
            Ok((outcome, writes)) if writes.is_empty() => outcome,
            Ok((outcome, writes)) => {
                // The other side of this is where events are decided: apps write the other kind only.
                debug_assert!(
                    writes.iter().all(|write| namespace_of(&write.table).is_some()),
                    "an operation wrote a table of the apps"
                );
                let change = self.make_true(writes);
                let version = change.version;
                changes.push(change);
                at(outcome, version)
            }
        }
    }

    /// What concerns tables, procedures, quotas and clients as a whole.
    fn administer(
        &mut self,
        registry: &Registry,
        meter: &mut Meter,
        batch: &Batch,
        operation: &Operation,
        changes: &mut Vec<Change>,
    ) -> Result<Outcome, Refusal> {
        meter.charge(What::Entries, 1)?;
        let version = self.next_version();
        let mut dropped = None;
        match operation {
            Operation::CreateTable { table, options } => self.create_table(table, options)?,
            Operation::AlterTable { table, options } => self.alter_table(table, options)?,
            Operation::DropTable { table } => {
                self.declared(table)?;
                self.remove_table(table);
                dropped = Some(Arc::from(table.as_str()));
            }
            Operation::LoadProcedure { procedure, module, limits } => {
                meter.compile(module.len())?;
                self.load(registry, procedure, module, *limits)?;
            }
            Operation::RemoveProcedure { procedure } => {
                if !self.procedures.contains_key(procedure.as_str()) {
                    return Err(Refusal::NoProcedure { procedure: procedure.clone() });
                }
                self.set_procedure(procedure, None);
            }
            Operation::SetQuota { namespace, quota } => {
                check_word(namespace)?;
                self.check_namespace(namespace)?;
                self.set_quota(namespace, *quota);
            }
            Operation::OpenClient => {
                self.clients.open(version.0, batch.principal, self.now_ms, meter.is_bounded())?;
            }
            Operation::CloseClient { client } => {
                let known = self.clients.by_id.get(client);
                if known.is_none_or(|known| known.principal != batch.principal) {
                    return Err(Refusal::UnknownClient { client: *client });
                }
                self.clients.close(*client);
            }
            Operation::Write(_) | Operation::Transaction(_) | Operation::Call { .. } => {
                unreachable!("these run on a view")
            }
        }
        self.commit(version, Vec::new());
        changes.push(Change { version, now_ms: self.now_ms, writes: Vec::new(), dropped });
        Ok(match operation {
            Operation::OpenClient => Outcome::Opened { client: version.0 },
            _ => Outcome::Written { version },
        })
    }

    fn declared(&self, table: &str) -> Result<&Arc<TableOptions>, Refusal> {
        split_name(table)?;
        self.options(table).ok_or_else(|| Refusal::NoTable { table: table.to_owned() })
    }

    fn check_namespace(&self, namespace: &str) -> Result<(), Refusal> {
        if !self.namespaces.contains_key(namespace) && self.namespaces.len() >= NAMESPACES_MAX {
            return Err(Refusal::too_large(
                "number of namespaces",
                self.namespaces.len() + 1,
                NAMESPACES_MAX,
            ));
        }
        Ok(())
    }

    fn create_table(&mut self, table: &str, options: &TableOptions) -> Result<(), Refusal> {
        let (namespace, _) = split_name(table)?;
        if self.tables.contains_key(table) {
            return Err(Refusal::TableExists { table: table.to_owned() });
        }
        check_options(table, options)?;
        self.check_namespace(namespace)?;
        let (quota, used) = self.usage(namespace);
        quota_allows(namespace, "tables", used.tables_max + 1, quota.tables_max)?;
        self.add_table(&table.into(), options.clone());
        Ok(())
    }

    fn alter_table(&mut self, table: &str, options: &TableOptions) -> Result<(), Refusal> {
        let old = self.declared(table)?;
        if old.columns != options.columns {
            let problem = "whether it has columns cannot change: make another table".to_owned();
            return Err(Refusal::Columns { table: table.to_owned(), problem });
        }
        check_options(table, options)?;
        self.set_options(table, options.clone());
        Ok(())
    }

    fn load(
        &mut self,
        registry: &Registry,
        procedure: &str,
        module: &[u8],
        limits: ProcedureLimits,
    ) -> Result<(), Refusal> {
        let (namespace, _) = split_procedure(procedure)?;
        if module.len() > MODULE_BYTES_MAX {
            return Err(Refusal::too_large("module", module.len(), MODULE_BYTES_MAX));
        }
        for (what, value, limit) in [
            ("fuel", limits.fuel_max, FUEL_MAX),
            ("memory of a procedure", limits.memory_bytes_max, MEMORY_BYTES_MAX),
        ] {
            if value > limit {
                return Err(Refusal::TooLarge { what: what.to_owned(), value, limit });
            }
        }
        self.check_namespace(namespace)?;
        if !self.procedures.contains_key(procedure) {
            let (quota, used) = self.usage(namespace);
            quota_allows(namespace, "procedures", used.procedures_max + 1, quota.procedures_max)?;
        }
        let module = Module::new(self.next_version(), limits, module.to_vec());
        let loaded = registry.loaded(&module);
        loaded.map_err(|BadModule(problem)| Refusal::Module { procedure: procedure.to_owned(), problem })?;
        self.set_procedure(procedure, Some(Arc::new(module)));
        Ok(())
    }
}

fn quota_allows(namespace: &str, what: &str, value: u64, limit: u64) -> Result<(), Refusal> {
    if value <= limit {
        return Ok(());
    }
    Err(Refusal::Quota { scope: format!("namespace {namespace}"), what: what.to_owned(), value, limit })
}

fn check_options(table: &str, options: &TableOptions) -> Result<(), Refusal> {
    let references = &options.references;
    if references.len() > REFERENCES_MAX {
        return Err(Refusal::too_large("number of references", references.len(), REFERENCES_MAX));
    }
    if references.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return Err(Refusal::invalid(format!(
            "the references of '{table}' must ascend by column, each once"
        )));
    }
    for (column, to) in references {
        split_name(to)?;
        if !column.is_empty() {
            check_word(column)?;
            if !options.columns {
                let problem = format!("it has no columns, so column '{column}' cannot refer to '{to}'");
                return Err(Refusal::Columns { table: table.to_owned(), problem });
            }
        }
        if to.split_once('/').map(|name| name.0) != table.split_once('/').map(|name| name.0) {
            return Err(Refusal::invalid(format!(
                "'{table}' can refer to tables of its own namespace, not to '{to}'"
            )));
        }
    }
    Ok(())
}

/// The outcome of what was done at a version.
fn at(outcome: Outcome, version: Version) -> Outcome {
    match outcome {
        Outcome::Written { .. } => Outcome::Written { version },
        Outcome::Counted { before, .. } => Outcome::Counted { version, before },
        Outcome::Done { steps, .. } => Outcome::Done { version, steps },
        Outcome::Reply { reply, .. } => Outcome::Reply { version, reply },
        other => other,
    }
}

fn single(view: &mut View<'_>, meter: &mut Meter, write: &Write, now_ms: u64) -> Result<Outcome, Stop> {
    let version = Version::ZERO;
    Ok(match perform(view, meter, write, now_ms, 0)? {
        Some(before) => Outcome::Counted { version, before },
        None => Outcome::Written { version },
    })
}

fn transaction(view: &mut View<'_>, meter: &mut Meter, steps: &[Step], now_ms: u64) -> Result<Outcome, Stop> {
    if steps.len() > TRANSACTION_STEPS_MAX {
        let what = "number of steps of a transaction";
        return Err(Refusal::too_large(what, steps.len(), TRANSACTION_STEPS_MAX).into());
    }
    let mut outcomes = Vec::with_capacity(steps.len());
    for (number, step) in (0_u32..).zip(steps) {
        outcomes.push(match step {
            Step::Check { table, key, condition } => {
                writable(view, table, key)?;
                hold(view, meter, table, key, condition, number)?;
                StepOutcome::Done
            }
            Step::Read(query) => StepOutcome::Read(answer(view, meter, query)?),
            Step::Write(write) => match perform(view, meter, write, now_ms, number)? {
                Some(before) => StepOutcome::Counted { before },
                None => StepOutcome::Done,
            },
        });
    }
    Ok(Outcome::Done { version: Version::ZERO, steps: outcomes })
}

fn call(
    view: &mut View<'_>,
    registry: &Registry,
    meter: &mut Meter,
    procedure: &str,
    arguments: &[u8],
    now_ms: u64,
) -> Result<Outcome, Stop> {
    let reply = run(view, registry, meter, procedure, arguments, now_ms)?;
    Ok(Outcome::Reply { version: Version::ZERO, reply })
}

/// Does a write when its condition holds; gives what a counter was before.
fn perform(
    view: &mut View<'_>,
    meter: &mut Meter,
    write: &Write,
    now_ms: u64,
    step: u32,
) -> Result<Option<i64>, Stop> {
    let Write { table, key, condition, action } = write;
    writable(view, table, key)?;
    hold(view, meter, table, key, condition, step)?;
    match action {
        Action::Put { value, ttl_ms } => put(view, meter, table, key, value, expires(now_ms, *ttl_ms))?,
        Action::Remove => {
            meter.charge(What::Entries, 1)?;
            view.delete(table, key);
        }
        Action::Columns { set, remove } => set_columns(view, meter, table, key, set, remove)?,
        Action::Increment { column, by } => {
            return Ok(Some(increment(view, meter, table, key, column, *by)?));
        }
        Action::Touch { ttl_ms } => match view.get(table, key) {
            Some(value) => keep(view, meter, table, key, value, expires(now_ms, *ttl_ms))?,
            None => return Err(Stop::Conflict { step, found: Version::ZERO }),
        },
    }
    Ok(None)
}

fn expires(now_ms: u64, ttl_ms: u64) -> u64 {
    if ttl_ms == 0 { 0 } else { now_ms.saturating_add(ttl_ms) }
}

/// Whether a client may write there: the table is one of clients', and the key is none too long.
fn writable(view: &View<'_>, table: &str, key: &[u8]) -> Result<(), Refusal> {
    if view.store().options(table).is_none() {
        split_name(table)?;
        return Err(Refusal::NoTable { table: table.to_owned() });
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Refusal::too_large("key", key.len(), KEY_BYTES_MAX));
    }
    Ok(())
}

fn hold(
    view: &View<'_>,
    meter: &mut Meter,
    table: &str,
    key: &[u8],
    condition: &Condition,
    step: u32,
) -> Result<(), Stop> {
    meter.charge(What::Entries, 1)?;
    if *condition == Condition::Always {
        return Ok(());
    }
    let cell = view.cell(table, key);
    if let (Some(cell), Condition::Value(_) | Condition::Column { .. }) = (&cell, condition) {
        meter.charge(What::Bytes, cell.value.len() as u64)?;
    }
    let found = cell.as_ref().map_or(Version::ZERO, |cell| cell.version);
    let value = cell.as_ref().map(|cell| &cell.value[..]);
    let holds = match condition {
        Condition::Always => true,
        Condition::Absent => value.is_none(),
        Condition::Present => value.is_some(),
        Condition::Version(version) => found == *version,
        Condition::Value(wanted) => value == Some(wanted),
        Condition::Column { column: name, value: wanted } => {
            value.and_then(|value| column(value, name)) == wanted.as_deref()
        }
    };
    if holds { Ok(()) } else { Err(Stop::Conflict { step, found }) }
}
