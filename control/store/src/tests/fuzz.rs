//! Every decoder on noise and on damaged good bytes, and the fixtures of what is on wire and disk.

use super::*;
use sha2::{Digest as _, Sha256};
use weir_base::codec::{decode, encode};

/// One of every operation.
fn batch() -> Batch {
    let condition = Condition::Column { column: "c".into(), value: Some(b"v".into()) };
    let set = vec![("c".into(), b"v".into())];
    let query =
        Query::Follow { table: "t/a".into(), key: b"k".into(), via: vec!["c".into()], select: Select::Whole };
    let operations = [
        put("t/a", b"k", b"v"),
        write("t/a", b"k", Condition::Version(Version(7)), Action::Remove),
        write("t/a", b"k", condition, Action::Columns { set, remove: vec!["d".into()] }),
        write("t/a", b"k", Condition::Value(b"v".into()), Action::Increment { column: "c".into(), by: -3 }),
        write("t/a", b"k", Condition::Present, Action::Touch { ttl_ms: 1_000 }),
        Operation::Transaction(vec![
            Step::Check { table: "t/a".into(), key: b"k".into(), condition: Condition::Absent },
            Step::Read(query),
            Step::Write(step_write("t/a", b"k", Condition::Always, value(b"v"))),
        ]),
        Operation::Call { procedure: "t/f".into(), arguments: b"x".into() },
        table(
            "t/a",
            TableOptions {
                columns: true,
                references: vec![("c".into(), "t/b".into())],
                entries_max: 9,
                bytes_max: 99,
            },
        ),
        Operation::AlterTable { table: "t/a".into(), options: TableOptions::default() },
        Operation::DropTable { table: "t/a".into() },
        Operation::LoadProcedure {
            procedure: "t/f".into(),
            module: b"m".into(),
            limits: ProcedureLimits::default(),
        },
        Operation::RemoveProcedure { procedure: "t/f".into() },
        Operation::SetQuota { namespace: "t".into(), quota: Quota::default() },
        Operation::OpenClient,
        Operation::CloseClient { client: 5 },
    ];
    let request = |(sequence, operation)| Request { sequence, operation };
    let requests = (1..).zip(operations).map(request).collect();
    Batch { client: 5, principal: 77, settled_below: 1, requests }
}

fn outcomes() -> Vec<Outcome> {
    let found = Found { version: Version(3), expires_ms: 4, value: Selected::Whole(b"v".into()) };
    let steps =
        vec![StepOutcome::Done, StepOutcome::Counted { before: -1 }, StepOutcome::Read(Answer::Found(found))];
    vec![
        Outcome::Written { version: Version(1) },
        Outcome::Counted { version: Version(2), before: -9 },
        Outcome::Conflict { step: 1, found: Version(2) },
        Outcome::Done { version: Version(3), steps },
        Outcome::Reply { version: Version(4), reply: b"r".into() },
        Outcome::Opened { client: 5 },
        Outcome::Refused(Refusal::NoTable { table: "t/a".into() }),
    ]
}

fn full_store() -> Store {
    let mut store = with_tables(&["t/plain"]);
    let options = TableOptions {
        columns: true,
        references: vec![("c".into(), "t/plain".into())],
        ..TableOptions::default()
    };
    one(&mut store, table("t/a", options));
    one(&mut store, Operation::SetQuota { namespace: "t".into(), quota: Quota::default() });
    let opened = one(&mut store, Operation::OpenClient);
    let Outcome::Opened { client } = opened else { panic!() };
    let set = vec![("c".into(), b"v".into())];
    let requests = vec![
        Request {
            sequence: 1,
            operation: write("t/a", b"k", Condition::Always, Action::Columns { set, remove: vec![] }),
        },
        Request {
            sequence: 2,
            operation: write(
                "t/plain",
                b"k",
                Condition::Always,
                Action::Put { value: b"w".into(), ttl_ms: 50 },
            ),
        },
    ];
    store.apply(&Registry::new(), 1_000, &Batch { client, principal: 0, settled_below: 0, requests });
    let mut view = store.view();
    view.put("resource", b"k", *b"1").unwrap();
    let (version, writes) = (view.version(), view.into_writes());
    store.commit(version, writes);
    store
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_on_wire_and_disk_do_not_change_unnoticed() {
    let found = [hash(&encode(&batch())), hash(&encode(&outcomes())), hash(&full_store().to_snapshot())];
    assert_eq!(found, ["f7cb288289c8ef77", "d644123c7310903e", "4842844cdf5be3f0"]);
    assert_eq!(decode::<Batch>(&encode(&batch())).unwrap(), batch());
    assert_eq!(decode::<Vec<Outcome>>(&encode(&outcomes())).unwrap(), outcomes());
}

#[test]
fn fuzz_operations() {
    let good = encode(&batch());
    let store = full_store();
    bolero::check!().with_iterations(20_000).with_type::<(usize, u8, Vec<u8>)>().for_each(
        |(at, flip, noise)| {
            let mut bytes = good.clone();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            for bytes in [&bytes, noise] {
                // Whatever can be decoded can be applied: the outcome says what is wrong with it.
                if let Ok(batch) = decode::<Batch>(bytes) {
                    let applied = store.clone().apply(&Registry::new(), 0, &batch);
                    assert_eq!(applied.outcomes.len(), batch.requests.len());
                }
                if let Ok(query) = decode::<Query>(bytes) {
                    store.query(&Registry::new(), &query);
                }
                let _ = (
                    decode::<Vec<Outcome>>(bytes),
                    decode::<Answer>(bytes),
                    crate::columns::Columns::read(bytes),
                );
            }
        },
    );
}

#[test]
fn fuzz_snapshot_decoding() {
    let store = full_store();
    let good = store.to_snapshot();
    let again = Store::from_snapshot(&good).unwrap();
    assert_eq!(
        (again.digest(), again.version(), again.bytes()),
        (store.digest(), store.version(), store.bytes())
    );
    assert_eq!(again.to_snapshot(), good);
    bolero::check!().with_iterations(10_000).with_type::<(usize, u8, Vec<u8>)>().for_each(
        |(at, flip, noise)| {
            let mut bytes = good.clone();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            assert_eq!(Store::from_snapshot(&bytes).is_ok(), bytes == good, "byte {at} is {:#x}", bytes[at]);
            let _ = Store::from_snapshot(noise);
            let _ = Store::from_snapshot(&[&good[..4], noise].concat());
        },
    );
}
