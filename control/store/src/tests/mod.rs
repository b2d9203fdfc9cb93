#![allow(clippy::unwrap_used)]

mod clients;
mod columns;
mod fuzz;
mod meter;
mod model;
mod operations;
mod procedures;
mod queries;
mod time;
mod views;

use crate::*;

/// Applies operations of nobody in particular.
fn apply(store: &mut Store, now_ms: u64, operations: impl IntoIterator<Item = Operation>) -> Vec<Outcome> {
    store.apply(&Registry::new(), now_ms, &Batch::once(operations)).outcomes
}

fn one(store: &mut Store, operation: Operation) -> Outcome {
    let now_ms = store.now_ms();
    apply(store, now_ms, [operation]).remove(0)
}

fn table(name: &str, options: TableOptions) -> Operation {
    Operation::CreateTable { table: name.into(), options }
}

fn write(table: &str, key: &[u8], condition: Condition, action: Action) -> Operation {
    Operation::Write(step_write(table, key, condition, action))
}

fn step_write(table: &str, key: &[u8], condition: Condition, action: Action) -> Write {
    Write { table: table.into(), key: key.into(), condition, action }
}

fn value(bytes: &[u8]) -> Action {
    Action::Put { value: bytes.into(), ttl_ms: 0 }
}

fn put(table: &str, key: &[u8], bytes: &[u8]) -> Operation {
    write(table, key, Condition::Always, value(bytes))
}

/// A store with plain tables.
fn with_tables(names: &[&str]) -> Store {
    let mut store = Store::new();
    for name in names {
        assert!(matches!(one(&mut store, table(name, TableOptions::default())), Outcome::Written { .. }));
    }
    store
}

fn written(outcome: &Outcome) -> u64 {
    match outcome {
        Outcome::Written { version } => version.0,
        other => panic!("not written: {other:?}"),
    }
}

fn refusal(outcome: Outcome) -> Refusal {
    match outcome {
        Outcome::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

use weir_model::Version;
