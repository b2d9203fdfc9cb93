//! How long the worst entries of the order take: each kind of request that costs much for its size, as many as one entry may have.
//!
//!   cargo run --release -p weir-store --example worst_entries

#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Instant;
use weir_store::{
    Action, Batch, Condition, Meter, Operation, Outcome, Query, Refusal, Registry, Select, Step, Store,
    TableOptions, Terms, Write,
};

/// Clients whose requests are in one entry, and requests of each.
const CLIENTS: usize = 8;
const REQUESTS: usize = 4_096;
const VALUE_BYTES: usize = 1 << 20;

fn write(table: &str, key: &[u8], action: Action) -> Operation {
    Operation::Write(Write { table: table.into(), key: key.into(), condition: Condition::Always, action })
}

fn put(key: &[u8], bytes: usize) -> Operation {
    write("worst/plain", key, Action::Put { value: vec![7; bytes], ttl_ms: 0 })
}

fn store() -> Store {
    let mut store = Store::new();
    let columns = TableOptions { columns: true, ..TableOptions::default() };
    let tables = [("worst/plain", TableOptions::default()), ("worst/columns", columns)];
    let mut operations: Vec<Operation> = tables
        .into_iter()
        .map(|(table, options)| Operation::CreateTable { table: table.into(), options })
        .collect();
    operations.push(put(b"large", VALUE_BYTES));
    let set = vec![("large".to_owned(), vec![1; VALUE_BYTES / 2])];
    operations.push(write("worst/columns", b"k", Action::Columns { set, remove: Vec::new() }));
    for operation in operations {
        let outcomes = store.apply(&Registry::new(), 0, &Batch::once([operation])).outcomes;
        assert!(matches!(outcomes[0], Outcome::Written { .. }), "{outcomes:?}");
    }
    for chunk in 0..100_u32 {
        let batch =
            Batch::once((0..1_000_u32).map(|number| put(&(chunk * 1_000 + number).to_be_bytes(), 16)));
        store.apply(&Registry::new(), 0, &batch);
    }
    store
}

fn main() {
    let get = Query::Get { table: "worst/plain".into(), key: b"large".to_vec(), select: Select::Whole };
    let scan = Query::Scan {
        table: "worst/plain".into(),
        from: Vec::new(),
        to: Vec::new(),
        limit: 0,
        select: Select::Whole,
    };
    let check = Step::Check {
        table: "worst/plain".into(),
        key: b"large".to_vec(),
        condition: Condition::Value(vec![7; 1_024]),
    };
    let kinds = [
        ("small puts", put(b"key", 16)),
        ("reads of a large value", Operation::Transaction(vec![Step::Read(get)])),
        ("scans", Operation::Transaction(vec![Step::Read(scan)])),
        (
            "counts beside a large column",
            write("worst/columns", b"k", Action::Increment { column: "n".into(), by: 1 }),
        ),
        ("touches of a large value", write("worst/plain", b"large", Action::Touch { ttl_ms: 0 })),
        ("checks of a large value", Operation::Transaction(vec![check])),
    ];
    println!(
        "{CLIENTS} clients of {REQUESTS} requests each in one entry; 100,000 small entries, one of 1 MiB"
    );
    for (name, operation) in kinds {
        let (mut store, mut meter, mut refused) = (store(), Meter::new(), 0);
        let batch = Batch::once(vec![operation; REQUESTS]);
        let begun = Instant::now();
        for _ in 0..CLIENTS {
            let terms = Terms { meter: &mut meter, who: None };
            let outcomes = store.apply_on(&Registry::new(), terms, 0, &batch).outcomes;
            let too_large =
                |outcome: &&Outcome| matches!(outcome, Outcome::Refused(Refusal::TooLarge { .. }));
            refused += outcomes.iter().filter(too_large).count();
        }
        let used = meter.used();
        println!(
            "RESULT worst_entries {} weir={:.1}ms refused={refused} bytes={} answered={} entries={}",
            name.replace(' ', "_"),
            begun.elapsed().as_secs_f64() * 1_000.0,
            used.bytes,
            used.answered,
            used.entries
        );
    }
}
