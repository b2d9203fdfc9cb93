//! To messages.

use crate::proto as p;
use crate::service::ServiceError;
use tonic::{Code, Status};
use weir_base::codec::encode;
use weir_store::{
    Action, Answer, Change, Condition, Found, HistoryError, Operation, Outcome, ProcedureInfo, Query, Quota,
    Refusal, Select, Selected, Step, StepOutcome, TableInfo, TableOptions, Write,
};

fn list<A, B>(list: Vec<A>, one: impl Fn(A) -> B) -> Vec<B> {
    list.into_iter().map(one).collect()
}

pub(crate) fn to_operation(operation: &Operation) -> p::Operation {
    use p::operation::Operation as O;
    let operation = match operation.clone() {
        Operation::Write(write) => O::Write(to_write(write)),
        Operation::Transaction(steps) => O::Transaction(p::Transaction { steps: list(steps, to_step) }),
        Operation::Call { procedure, arguments } => {
            O::Call(p::Call { procedure, arguments: arguments.into() })
        }
        Operation::CreateTable { table, options } => {
            O::CreateTable(p::CreateTable { table, options: Some(to_options(options)) })
        }
        Operation::AlterTable { table, options } => {
            O::AlterTable(p::CreateTable { table, options: Some(to_options(options)) })
        }
        Operation::DropTable { table } => O::DropTable(table),
        Operation::LoadProcedure { procedure, module, limits } => O::LoadProcedure(p::LoadProcedure {
            procedure,
            module: module.into(),
            fuel_max: limits.fuel_max,
            memory_bytes_max: limits.memory_bytes_max,
        }),
        Operation::RemoveProcedure { procedure } => O::RemoveProcedure(procedure),
        Operation::SetQuota { namespace, quota } => {
            O::SetQuota(p::SetQuota { namespace, quota: Some(to_quota(quota)) })
        }
        Operation::OpenClient => O::OpenClient(p::OpenClient {}),
        Operation::CloseClient { client } => O::CloseClient(client),
    };
    p::Operation { operation: Some(operation) }
}

fn to_write(write: Write) -> p::Write {
    use p::write::Action as A;
    let action = match write.action {
        Action::Put { value, ttl_ms } => A::Put(p::Put { value: value.into(), ttl_ms }),
        Action::Remove => A::Remove(p::Remove {}),
        Action::Columns { set, remove } => A::Columns(p::SetColumns { set: list(set, to_column), remove }),
        Action::Increment { column, by } => A::Increment(p::Increment { column, by }),
        Action::Touch { ttl_ms } => A::Touch(p::Touch { ttl_ms }),
    };
    let condition = to_condition(write.condition);
    p::Write { table: write.table, key: write.key.into(), condition, action: Some(action) }
}

fn to_column((column, value): (String, Vec<u8>)) -> p::Column {
    p::Column { column, value: value.into() }
}

fn to_condition(condition: Condition) -> Option<p::Condition> {
    use p::condition::Condition as C;
    let condition = match condition {
        Condition::Always => return None,
        Condition::Absent => C::Absent(p::Nothing {}),
        Condition::Present => C::Present(p::Nothing {}),
        Condition::Version(version) => C::Version(version.0),
        Condition::Value(value) => C::Value(value.into()),
        Condition::Column { column, value } => {
            C::Column(p::ColumnIs { column, value: value.map(Into::into) })
        }
    };
    Some(p::Condition { condition: Some(condition) })
}

fn to_step(step: Step) -> p::Step {
    use p::step::Step as S;
    let step = match step {
        Step::Check { table, key, condition } => {
            let condition = to_condition(condition);
            S::Check(p::Check { table, key: key.into(), condition })
        }
        Step::Read(query) => S::Read(to_query(&query)),
        Step::Write(write) => S::Write(to_write(write)),
    };
    p::Step { step: Some(step) }
}

fn to_options(options: TableOptions) -> p::TableOptions {
    p::TableOptions {
        columns: options.columns,
        references: list(options.references, |(column, table)| p::Reference { column, table }),
        entries_max: options.entries_max,
        bytes_max: options.bytes_max,
    }
}

fn to_quota(quota: Quota) -> p::Quota {
    let Quota { tables_max, entries_max, bytes_max, procedures_max } = quota;
    p::Quota { tables_max, entries_max, bytes_max, procedures_max }
}

pub(crate) fn to_query(query: &Query) -> p::Query {
    use p::query::Query as Q;
    let query = match query.clone() {
        Query::Get { table, key, select } => {
            Q::Get(p::Get { table, key: key.into(), select: to_select(select) })
        }
        Query::Follow { table, key, via, select } => {
            Q::Follow(p::Follow { table, key: key.into(), via, select: to_select(select) })
        }
        Query::Scan { table, from, to, limit, select } => {
            Q::Scan(p::Scan { table, from: from.into(), to: to.into(), limit, select: to_select(select) })
        }
        Query::Tables { namespace } => Q::Tables(namespace),
        Query::Procedures { namespace } => Q::Procedures(namespace),
        Query::Usage { namespace } => Q::Usage(namespace),
        Query::Digest => Q::Digest(p::Nothing {}),
        Query::Call { procedure, arguments } => Q::Call(p::Call { procedure, arguments: arguments.into() }),
    };
    p::Query { query: Some(query) }
}

fn to_select(select: Select) -> Option<p::Select> {
    match select {
        Select::Whole => None,
        Select::Columns(columns) => Some(p::Select { columns, nothing: false }),
        Select::Nothing => Some(p::Select { columns: Vec::new(), nothing: true }),
    }
}

pub(crate) fn to_outcome(outcome: Outcome) -> p::Outcome {
    use p::outcome::Outcome as O;
    let outcome = match outcome {
        Outcome::Written { version } => O::Written(version.0),
        Outcome::Counted { version, before } => O::Counted(p::Counted { version: version.0, before }),
        Outcome::Conflict { step, found } => O::Conflict(p::Conflict { step, found: found.0 }),
        Outcome::Done { version, steps } => {
            O::Done(p::Done { version: version.0, steps: list(steps, to_step_outcome) })
        }
        Outcome::Reply { version, reply } => O::Reply(p::Reply { version: version.0, reply: reply.into() }),
        Outcome::Opened { client } => O::Opened(client),
        Outcome::Refused(refusal) => O::Refused(to_refused(&refusal)),
    };
    p::Outcome { outcome: Some(outcome) }
}

fn to_step_outcome(outcome: StepOutcome) -> p::StepOutcome {
    use p::step_outcome::Outcome as S;
    let outcome = match outcome {
        StepOutcome::Done => S::Done(p::Nothing {}),
        StepOutcome::Counted { before } => S::Counted(before),
        StepOutcome::Read(answer) => S::Read(to_answer(answer)),
    };
    p::StepOutcome { outcome: Some(outcome) }
}

fn to_refused(refusal: &Refusal) -> p::Refused {
    use p::refused::Kind;
    let kind = match refusal {
        Refusal::NoTable { .. } => Kind::NoTable,
        Refusal::TableExists { .. } => Kind::TableExists,
        Refusal::ReadOnly { .. } => Kind::ReadOnly,
        Refusal::Name { .. } => Kind::Name,
        Refusal::TooLarge { .. } => Kind::TooLarge,
        Refusal::Quota { .. } => Kind::Quota,
        Refusal::Columns { .. } => Kind::Columns,
        Refusal::Counter { .. } => Kind::Counter,
        Refusal::NoReference { .. } => Kind::NoReference,
        Refusal::NoProcedure { .. } => Kind::NoProcedure,
        Refusal::Procedure { .. } => Kind::Procedure,
        Refusal::Module { .. } => Kind::Module,
        Refusal::UnknownClient { .. } => Kind::UnknownClient,
        Refusal::Settled { .. } => Kind::Settled,
        Refusal::Unsettled { .. } => Kind::Unsettled,
        Refusal::Invalid { .. } => Kind::Other,
    };
    p::Refused { kind: kind.into(), message: refusal.to_string(), detail: encode(refusal).into() }
}

pub(crate) fn to_answer(answer: Answer) -> p::Answer {
    use p::answer::Answer as A;
    let answer = match answer {
        Answer::Found(found) => A::Found(to_found(found)),
        Answer::Absent { hops } => A::Absent(p::Absent { hops }),
        Answer::Page { entries, next } => A::Page(p::Page {
            entries: list(entries, |(key, found)| p::PageEntry {
                key: key.into(),
                found: Some(to_found(found)),
            }),
            next: next.map(Into::into),
        }),
        Answer::Tables(tables) => A::Tables(p::Tables { tables: list(tables, to_table_info) }),
        Answer::Procedures(procedures) => {
            A::Procedures(p::Procedures { procedures: list(procedures, to_procedure_info) })
        }
        Answer::Usage { quota, used } => {
            A::Usage(p::Usage { quota: Some(to_quota(quota)), used: Some(to_quota(used)) })
        }
        Answer::Digest { version, now_ms, digest } => A::Digest(p::Digest {
            version: version.0,
            time_ms: now_ms,
            digest: digest.to_le_bytes().to_vec().into(),
        }),
        Answer::Refused(refusal) => A::Refused(to_refused(&refusal)),
        Answer::Reply(reply) => A::Reply(reply.into()),
        Answer::Writes => A::Writes(p::Nothing {}),
    };
    p::Answer { answer: Some(answer) }
}

fn to_found(found: Found) -> p::Found {
    let (value, columns) = match found.value {
        Selected::Whole(value) => (Some(value.into()), Vec::new()),
        Selected::Columns(columns) => (None, list(columns, to_column)),
        Selected::Nothing => (None, Vec::new()),
    };
    p::Found { version: found.version.0, expires_ms: found.expires_ms, value, columns }
}

fn to_table_info(info: TableInfo) -> p::TableInfo {
    let options = Some(to_options(info.options));
    p::TableInfo { table: info.table, options, entries: info.entries, bytes: info.bytes }
}

fn to_procedure_info(info: ProcedureInfo) -> p::ProcedureInfo {
    p::ProcedureInfo {
        procedure: info.procedure,
        version: info.version.0,
        bytes: info.bytes,
        hash: info.hash.to_vec().into(),
    }
}

/// A change, as much of it as `wanted` says; `None` when that is nothing.
pub(crate) fn to_change(change: &Change, wanted: impl Fn(&str, &[u8]) -> bool) -> Option<p::Change> {
    let writes = change.writes.iter().filter(|write| wanted(&write.table, &write.key));
    let entries: Vec<p::ChangedEntry> = writes
        .map(|write| p::ChangedEntry {
            table: write.table.to_string(),
            key: write.key.to_vec().into(),
            value: write.value.as_ref().map(|value| value.to_vec().into()),
            expires_ms: write.expires_ms,
        })
        .collect();
    let dropped = change.dropped.as_deref().filter(|table| wanted(table, b""));
    if entries.is_empty() && dropped.is_none() {
        return None;
    }
    let dropped_table = dropped.unwrap_or_default().to_owned();
    Some(p::Change { version: change.version.0, time_ms: change.now_ms, entries, dropped_table })
}

pub(crate) fn to_problem(error: &ServiceError) -> p::Problem {
    use p::problem::Code;
    let (code, leader) = match error {
        ServiceError::NotLeader { leader } => (Code::NotLeader, leader.clone().unwrap_or_default()),
        ServiceError::Overloaded { .. } => (Code::Overloaded, String::new()),
        ServiceError::Uncertain { .. } => (Code::Uncertain, String::new()),
        ServiceError::Unavailable { .. } | ServiceError::History(_) => (Code::Unavailable, String::new()),
    };
    p::Problem { code: code.into(), message: error.to_string(), leader }
}

/// A problem as the status of a unary call or of a watch.
pub(crate) fn to_status(error: &ServiceError) -> Status {
    let code = match error {
        ServiceError::NotLeader { .. } => Code::FailedPrecondition,
        ServiceError::Overloaded { .. } => Code::ResourceExhausted,
        ServiceError::Uncertain { .. } => Code::Unknown,
        ServiceError::Unavailable { .. } => Code::Unavailable,
        ServiceError::History(HistoryError::TooOld { .. }) => Code::OutOfRange,
        // Another server, or this one in a moment, is as far.
        ServiceError::History(HistoryError::Ahead { .. }) => Code::FailedPrecondition,
    };
    Status::new(code, error.to_string())
}
