//! From messages.

use crate::error::ConvertError;
use crate::proto as p;
use weir_base::codec::decode;
use weir_model::Version;
use weir_store::{
    Action, Answer, Change, Changed, Condition, Found, Operation, Outcome, ProcedureInfo, ProcedureLimits,
    Query, Quota, Refusal, Select, Selected, Step, StepOutcome, TableInfo, TableOptions, Write,
};

type Result<T> = std::result::Result<T, ConvertError>;

fn needed<T>(value: Option<T>, what: &str) -> Result<T> {
    value.ok_or_else(|| ConvertError::missing(what))
}

fn all<A, B>(list: Vec<A>, one: impl FnMut(A) -> Result<B>) -> Result<Vec<B>> {
    list.into_iter().map(one).collect()
}

pub(crate) fn operation(operation: p::Operation) -> Result<Operation> {
    use p::operation::Operation as O;
    Ok(match needed(operation.operation, "an operation")? {
        O::Write(write) => Operation::Write(self::write(write)?),
        O::Transaction(transaction) => Operation::Transaction(all(transaction.steps, step)?),
        O::Call(call) => Operation::Call { procedure: call.procedure, arguments: call.arguments.into() },
        O::CreateTable(create) => Operation::CreateTable {
            table: create.table,
            options: options(create.options.unwrap_or_default()),
        },
        O::AlterTable(alter) => {
            Operation::AlterTable { table: alter.table, options: options(needed(alter.options, "options")?) }
        }
        O::DropTable(table) => Operation::DropTable { table },
        O::LoadProcedure(load) => {
            let default = ProcedureLimits::default();
            let or = |value: u64, default: u64| if value == 0 { default } else { value };
            let fuel_max = or(load.fuel_max, default.fuel_max);
            let memory_bytes_max = or(load.memory_bytes_max, default.memory_bytes_max);
            let limits = ProcedureLimits { fuel_max, memory_bytes_max };
            Operation::LoadProcedure { procedure: load.procedure, module: load.module.into(), limits }
        }
        O::RemoveProcedure(procedure) => Operation::RemoveProcedure { procedure },
        O::SetQuota(set) => {
            let quota = self::quota(needed(set.quota, "a quota")?);
            Operation::SetQuota { namespace: set.namespace, quota }
        }
        O::OpenClient(p::OpenClient {}) => Operation::OpenClient,
        O::CloseClient(client) => Operation::CloseClient { client },
    })
}

fn write(write: p::Write) -> Result<Write> {
    use p::write::Action as A;
    let action = match needed(write.action, "the action of a write")? {
        A::Put(put) => Action::Put { value: put.value.into(), ttl_ms: put.ttl_ms },
        A::Remove(p::Remove {}) => Action::Remove,
        A::Columns(columns) => Action::Columns {
            set: columns.set.into_iter().map(|cell| (cell.column, cell.value.into())).collect(),
            remove: columns.remove,
        },
        A::Increment(increment) => Action::Increment { column: increment.column, by: increment.by },
        A::Touch(touch) => Action::Touch { ttl_ms: touch.ttl_ms },
    };
    Ok(Write { table: write.table, key: write.key.into(), condition: condition(write.condition)?, action })
}

fn condition(condition: Option<p::Condition>) -> Result<Condition> {
    use p::condition::Condition as C;
    let Some(condition) = condition else { return Ok(Condition::Always) };
    Ok(match needed(condition.condition, "a condition")? {
        C::Absent(p::Nothing {}) => Condition::Absent,
        C::Present(p::Nothing {}) => Condition::Present,
        C::Version(version) => Condition::Version(Version(version)),
        C::Value(value) => Condition::Value(value.into()),
        C::Column(is) => Condition::Column { column: is.column, value: is.value.map(Into::into) },
    })
}

fn step(step: p::Step) -> Result<Step> {
    use p::step::Step as S;
    Ok(match needed(step.step, "a step")? {
        S::Check(check) => {
            Step::Check { table: check.table, key: check.key.into(), condition: condition(check.condition)? }
        }
        S::Read(query) => Step::Read(self::query(query)?),
        S::Write(write) => Step::Write(self::write(write)?),
    })
}

fn options(options: p::TableOptions) -> TableOptions {
    TableOptions {
        columns: options.columns,
        references: options.references.into_iter().map(|to| (to.column, to.table)).collect(),
        entries_max: options.entries_max,
        bytes_max: options.bytes_max,
    }
}

fn quota(quota: p::Quota) -> Quota {
    let p::Quota { tables_max, entries_max, bytes_max, procedures_max } = quota;
    Quota { tables_max, entries_max, bytes_max, procedures_max }
}

pub(crate) fn query(query: p::Query) -> Result<Query> {
    use p::query::Query as Q;
    Ok(match needed(query.query, "a query")? {
        Q::Get(get) => Query::Get { table: get.table, key: get.key.into(), select: select(get.select) },
        Q::Follow(follow) => {
            let (key, select) = (follow.key.into(), select(follow.select));
            Query::Follow { table: follow.table, key, via: follow.via, select }
        }
        Q::Scan(scan) => Query::Scan {
            table: scan.table,
            from: scan.from.into(),
            to: scan.to.into(),
            limit: scan.limit,
            select: select(scan.select),
        },
        Q::Tables(namespace) => Query::Tables { namespace },
        Q::Procedures(namespace) => Query::Procedures { namespace },
        Q::Usage(namespace) => Query::Usage { namespace },
        Q::Digest(p::Nothing {}) => Query::Digest,
        Q::Call(call) => Query::Call { procedure: call.procedure, arguments: call.arguments.into() },
    })
}

fn select(select: Option<p::Select>) -> Select {
    match select {
        None => Select::Whole,
        Some(p::Select { nothing: true, .. }) => Select::Nothing,
        Some(p::Select { columns, .. }) if columns.is_empty() => Select::Whole,
        Some(p::Select { columns, .. }) => Select::Columns(columns),
    }
}

pub(crate) fn outcome(outcome: p::Outcome) -> Result<Outcome> {
    use p::outcome::Outcome as O;
    Ok(match needed(outcome.outcome, "an outcome")? {
        O::Written(version) => Outcome::Written { version: Version(version) },
        O::Counted(counted) => Outcome::Counted { version: Version(counted.version), before: counted.before },
        O::Conflict(conflict) => Outcome::Conflict { step: conflict.step, found: Version(conflict.found) },
        O::Done(done) => {
            Outcome::Done { version: Version(done.version), steps: all(done.steps, step_outcome)? }
        }
        O::Reply(reply) => Outcome::Reply { version: Version(reply.version), reply: reply.reply.into() },
        O::Opened(client) => Outcome::Opened { client },
        O::Refused(refused) => Outcome::Refused(refusal(refused)),
    })
}

fn step_outcome(outcome: p::StepOutcome) -> Result<StepOutcome> {
    use p::step_outcome::Outcome as S;
    Ok(match needed(outcome.outcome, "the outcome of a step")? {
        S::Done(p::Nothing {}) => StepOutcome::Done,
        S::Counted(before) => StepOutcome::Counted { before },
        S::Read(answer) => StepOutcome::Read(self::answer(answer)?),
    })
}

/// A refusal of another release may have a detail that this one does not know; kind and words stay.
pub(crate) fn refusal(refused: p::Refused) -> Refusal {
    use p::refused::Kind;
    match (decode(&refused.detail), refused.kind()) {
        (Ok(refusal), _) => refusal,
        (Err(_), Kind::UnknownClient) => Refusal::UnknownClient { client: 0 },
        (Err(_), _) => Refusal::Invalid { problem: refused.message },
    }
}

pub(crate) fn answer(answer: p::Answer) -> Result<Answer> {
    use p::answer::Answer as A;
    Ok(match needed(answer.answer, "an answer")? {
        A::Found(found) => Answer::Found(self::found(found)),
        A::Absent(absent) => Answer::Absent { hops: absent.hops },
        A::Page(page) => Answer::Page {
            entries: all(page.entries, |entry| {
                Ok((entry.key.into(), found(needed(entry.found, "an entry of a page")?)))
            })?,
            next: page.next.map(Into::into),
        },
        A::Tables(tables) => Answer::Tables(tables.tables.into_iter().map(table_info).collect()),
        A::Procedures(list) => Answer::Procedures(all(list.procedures, procedure_info)?),
        A::Usage(usage) => Answer::Usage {
            quota: quota(usage.quota.unwrap_or_default()),
            used: quota(usage.used.unwrap_or_default()),
        },
        A::Digest(digest) => Answer::Digest {
            version: Version(digest.version),
            now_ms: digest.time_ms,
            digest: u128::from_le_bytes(
                digest.digest[..].try_into().map_err(|_| ConvertError("a digest has 16 bytes".into()))?,
            ),
        },
        A::Refused(refused) => Answer::Refused(refusal(refused)),
        A::Reply(reply) => Answer::Reply(reply.into()),
        A::Writes(p::Nothing {}) => Answer::Writes,
    })
}

fn found(found: p::Found) -> Found {
    let columns =
        || found.columns.into_iter().map(|cell| (cell.column, cell.value.into())).collect::<Vec<_>>();
    let value = match found.value {
        Some(value) => Selected::Whole(value.into()),
        None => match columns() {
            none if none.is_empty() => Selected::Nothing,
            columns => Selected::Columns(columns),
        },
    };
    Found { version: Version(found.version), expires_ms: found.expires_ms, value }
}

fn table_info(info: p::TableInfo) -> TableInfo {
    let options = options(info.options.unwrap_or_default());
    TableInfo { table: info.table, options, entries: info.entries, bytes: info.bytes }
}

fn procedure_info(info: p::ProcedureInfo) -> Result<ProcedureInfo> {
    let hash = info.hash[..].try_into().map_err(|_| ConvertError("a hash has 32 bytes".into()))?;
    Ok(ProcedureInfo { procedure: info.procedure, version: Version(info.version), bytes: info.bytes, hash })
}

pub(crate) fn change(change: p::Change) -> Change {
    let entry = |entry: p::ChangedEntry| Changed {
        table: entry.table.into(),
        key: entry.key[..].into(),
        value: entry.value.map(|value| value[..].into()),
        expires_ms: entry.expires_ms,
    };
    Change {
        version: Version(change.version),
        now_ms: change.time_ms,
        writes: change.entries.into_iter().map(entry).collect(),
        dropped: Some(change.dropped_table).filter(|table| !table.is_empty()).map(Into::into),
    }
}
