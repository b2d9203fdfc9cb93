#![allow(clippy::unwrap_used)]

use super::*;
use crate::proto as p;
use prost::Message as _;
use weir_model::Version;
use weir_store::*;

fn write(condition: Condition, action: Action) -> Write {
    Write { table: "t/a".into(), key: b"k".into(), condition, action }
}

fn queries() -> Vec<Query> {
    let table = || "t/a".to_owned();
    let columns = Select::Columns(vec!["a".into(), "b".into()]);
    vec![
        Query::Get { table: table(), key: b"k".into(), select: Select::Whole },
        Query::Get { table: table(), key: b"".into(), select: Select::Nothing },
        Query::Follow { table: table(), key: b"k".into(), via: vec!["".into(), "c".into()], select: columns },
        Query::Scan { table: table(), from: b"a".into(), to: b"b".into(), limit: 9, select: Select::Whole },
        Query::Tables { namespace: "t".into() },
        Query::Procedures { namespace: "t".into() },
        Query::Usage { namespace: "t".into() },
        Query::Digest,
    ]
}

fn operations() -> Vec<Operation> {
    let conditions = [
        Condition::Always,
        Condition::Absent,
        Condition::Present,
        Condition::Version(Version(0)),
        Condition::Value(vec![]),
        Condition::Column { column: "c".into(), value: None },
        Condition::Column { column: "c".into(), value: Some(vec![]) },
    ];
    let put = || Action::Put { value: b"v".into(), ttl_ms: 3 };
    let mut operations: Vec<Operation> =
        conditions.iter().map(|condition| Operation::Write(write(condition.clone(), put()))).collect();
    let set = vec![("c".into(), b"v".into())];
    for action in [
        Action::Remove,
        Action::Columns { set, remove: vec!["d".into()] },
        Action::Increment { column: String::new(), by: i64::MIN },
        Action::Touch { ttl_ms: 0 },
    ] {
        operations.push(Operation::Write(write(Condition::Always, action)));
    }
    let mut steps: Vec<Step> = queries().into_iter().map(Step::Read).collect();
    steps.push(Step::Write(write(Condition::Present, put())));
    steps.extend(conditions.map(|condition| Step::Check {
        table: "t/a".into(),
        key: b"k".into(),
        condition,
    }));
    let references = vec![("".into(), "t/b".into())];
    let options = TableOptions { columns: true, references, entries_max: 1, bytes_max: 2 };
    let limits = ProcedureLimits { fuel_max: 1, memory_bytes_max: 2 };
    let quota = Quota { tables_max: 1, entries_max: 2, bytes_max: 3, procedures_max: 4 };
    operations.extend([
        Operation::Transaction(steps),
        Operation::Call { procedure: "t/f".into(), arguments: b"x".into() },
        Operation::CreateTable { table: "t/a".into(), options: options.clone() },
        Operation::AlterTable { table: "t/a".into(), options },
        Operation::DropTable { table: "t/a".into() },
        Operation::LoadProcedure { procedure: "t/f".into(), module: b"m".into(), limits },
        Operation::RemoveProcedure { procedure: "t/f".into() },
        Operation::SetQuota { namespace: "t".into(), quota },
        Operation::OpenClient,
        Operation::CloseClient { client: 7 },
    ]);
    operations
}

fn answers() -> Vec<Answer> {
    let found = |value| Found { version: Version(5), expires_ms: 6, value };
    let quota = Quota::default();
    let table = TableInfo { table: "t/a".into(), options: TableOptions::default(), entries: 1, bytes: 2 };
    let procedure = ProcedureInfo { procedure: "t/f".into(), version: Version(1), bytes: 2, hash: [3; 32] };
    vec![
        Answer::Found(found(Selected::Whole(vec![]))),
        Answer::Found(found(Selected::Columns(vec![("c".into(), b"v".into())]))),
        Answer::Found(found(Selected::Nothing)),
        Answer::Absent { hops: 2 },
        Answer::Page { entries: vec![(b"k".into(), found(Selected::Nothing))], next: Some(vec![]) },
        Answer::Tables(vec![table]),
        Answer::Procedures(vec![procedure]),
        Answer::Usage { quota, used: quota },
        Answer::Digest { version: Version(1), now_ms: 2, digest: u128::MAX - 5 },
        Answer::Refused(Refusal::NoTable { table: "t/a".into() }),
    ]
}

#[test]
fn everything_comes_back_from_the_wire_as_it_was() {
    for wanted in operations() {
        let bytes = to_operation(&wanted).encode_to_vec();
        assert_eq!(operation(p::Operation::decode(&bytes[..]).unwrap()).unwrap(), wanted);
    }
    for wanted in queries() {
        assert_eq!(query(to_query(&wanted)).unwrap(), wanted);
    }
    for wanted in answers() {
        assert_eq!(answer(to_answer(wanted.clone())).unwrap(), wanted);
    }
    let steps = answers().into_iter().map(StepOutcome::Read).chain([StepOutcome::Counted { before: -1 }]);
    for wanted in [
        Outcome::Written { version: Version(1) },
        Outcome::Counted { version: Version(1), before: -2 },
        Outcome::Conflict { step: 1, found: Version(2) },
        Outcome::Done { version: Version(3), steps: steps.collect() },
        Outcome::Reply { version: Version(4), reply: b"r".into() },
        Outcome::Opened { client: 5 },
        Outcome::Refused(Refusal::UnknownClient { client: 5 }),
    ] {
        assert_eq!(outcome(to_outcome(wanted.clone())).unwrap(), wanted);
    }
}

#[test]
fn what_is_missing_is_an_error_and_what_another_release_says_stays_words() {
    assert!(operation(p::Operation { operation: None }).is_err());
    assert!(query(p::Query { query: None }).is_err());
    let write = p::Write { table: "t/a".into(), ..p::Write::default() };
    let write = p::Operation { operation: Some(p::operation::Operation::Write(write)) };
    assert_eq!(
        operation(write).unwrap_err().to_string(),
        "the action of a write is missing, or newer than this release"
    );
    let refused = |kind: p::refused::Kind| {
        refusal(p::Refused { kind: kind.into(), message: "so".into(), detail: b"\xff\xff"[..].into() })
    };
    assert_eq!(refused(p::refused::Kind::Quota).to_string(), "so");
    assert!(matches!(refused(p::refused::Kind::UnknownClient), Refusal::UnknownClient { .. }));
}

#[test]
fn fuzz_messages() {
    let good: Vec<Vec<u8>> = operations().iter().map(|one| to_operation(one).encode_to_vec()).collect();
    bolero::check!().with_iterations(20_000).with_type::<(usize, usize, u8, Vec<u8>)>().for_each(
        |(which, at, flip, noise)| {
            let mut bytes = good[which % good.len()].clone();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            for bytes in [&bytes, noise] {
                if let Ok(message) = p::Operation::decode(&bytes[..]) {
                    let _ = operation(message);
                }
                if let Ok(message) = p::Query::decode(&bytes[..]) {
                    let _ = query(message);
                }
                if let Ok(message) = p::Outcome::decode(&bytes[..]) {
                    let _ = outcome(message);
                }
                if let Ok(message) = p::Change::decode(&bytes[..]) {
                    let _ = change(message);
                }
            }
        },
    );
}
