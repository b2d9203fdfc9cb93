//! What tables in memory cost by their size (decision 0022): time of a write, memory of an entry, and how long a snapshot takes to write
//! and to load.
//!
//!   cargo run --release -p weir-store --example size -- 1000000 100

#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Instant;
use weir_store::{Action, Batch, Condition, Operation, Outcome, Quota, Registry, Store, TableOptions, Write};

const IN_A_BATCH: usize = 64;
const TABLE: &str = "size/entries";

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").trim().parse::<f64>().unwrap_or(f64::NAN) / 1024.0
}

fn apply(store: &mut Store, operations: Vec<Operation>) {
    let applied = store.apply(&Registry::default(), 1, &Batch::once(operations));
    assert!(
        applied.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Written { .. })),
        "{:?}",
        applied.outcomes
    );
}

fn put(number: u64, bytes: usize) -> Operation {
    // Spread, as keys of hashes and addresses are.
    let key = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec();
    let action = Action::Put { value: vec![number as u8; bytes], ttl_ms: 0 };
    Operation::Write(Write { table: TABLE.into(), key, condition: Condition::Always, action })
}

fn main() {
    let number = |at: usize, default: u64| {
        std::env::args().nth(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(default)
    };
    let (entries, bytes) = (number(1, 1_000_000), number(2, 100) as usize);
    let mut store = Store::new();
    let quota = Quota { entries_max: u64::MAX, bytes_max: u64::MAX, ..Quota::default() };
    apply(&mut store, vec![Operation::SetQuota { namespace: "size".into(), quota }]);
    apply(&mut store, vec![Operation::CreateTable { table: TABLE.into(), options: TableOptions::default() }]);
    let before_mib = resident_mib();
    for what in ["new", "again"] {
        let mut taken_ns = 0;
        for from in (0..entries).step_by(IN_A_BATCH) {
            let operations =
                (from..entries.min(from + IN_A_BATCH as u64)).map(|one| put(one, bytes)).collect();
            let begun = Instant::now();
            apply(&mut store, operations);
            taken_ns += begun.elapsed().as_nanos();
        }
        let each = taken_ns as f64 / entries as f64;
        println!("{what}: {each:.0} ns a write, {:.0}/s", 1e9 / each);
    }
    let each = (resident_mib() - before_mib) * 1024.0 * 1024.0 / entries as f64;
    println!("memory: {each:.0} bytes an entry of 8 + {bytes}");
    let begun = Instant::now();
    let kept = store.clone();
    println!("a copy to read from: {:.1} us", begun.elapsed().as_secs_f64() * 1e6);
    let begun = Instant::now();
    let mut snapshot = Vec::new();
    kept.write_snapshot(&mut |part| {
        snapshot.extend_from_slice(part);
        Ok(())
    })
    .unwrap();
    let mib = snapshot.len() as f64 / 1024.0 / 1024.0;
    println!("snapshot: {mib:.0} MiB in {:.2} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let loaded = Store::from_snapshot(&snapshot).unwrap();
    assert_eq!(loaded.digest(), store.digest());
    println!("loaded in {:.2} s", begun.elapsed().as_secs_f64());
}
