use super::*;
use crate::clients::{OUTCOMES_BYTES_MAX, PRINCIPAL_BYTES_MAX, PRINCIPAL_CLIENTS_MAX, ROOM_IDLE_MS};
use crate::meter::{BATCH, ENTRY, FLOOR};

/// Applies a batch as an entry of its own, bounded.
fn bounded(store: &mut Store, now_ms: u64, batch: &Batch) -> (Vec<Outcome>, Meter) {
    let mut meter = Meter::new();
    let applied = store.apply_on(&Registry::new(), Terms { meter: &mut meter, who: None }, now_ms, batch);
    (applied.outcomes, meter)
}

fn ask(store: &mut Store, client: u64, principal: u64, sequence: u64, operation: Operation) -> Outcome {
    let requests = vec![Request { sequence, operation }];
    let now_ms = store.now_ms();
    bounded(store, now_ms, &Batch { client, principal, settled_below: 0, requests }).0.remove(0)
}

fn open(store: &mut Store, principal: u64) -> Result<u64, Refusal> {
    match ask(store, 0, principal, 0, Operation::OpenClient) {
        Outcome::Opened { client } => Ok(client),
        Outcome::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

fn too_large(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Refused(Refusal::TooLarge { .. }))
}

fn get(key: &[u8]) -> Operation {
    let query = Query::Get { table: "t/a".into(), key: key.into(), select: Select::Whole };
    Operation::Transaction(vec![Step::Read(query)])
}

fn with_a_mebibyte() -> Store {
    let mut store = with_tables(&["t/a"]);
    written(&one(&mut store, put("t/a", b"v", &vec![7; VALUE_BYTES_MAX])));
    store
}

#[test]
fn what_is_answered_is_bounded_and_the_rest_of_the_batch_too() {
    let mut store = with_a_mebibyte();
    let (outcomes, meter) = bounded(&mut store, 0, &Batch::once(vec![get(b"v"); 64]));
    let done = outcomes.iter().take_while(|outcome| matches!(outcome, Outcome::Done { .. })).count();
    assert_eq!(done as u64, BATCH.answered / (VALUE_BYTES_MAX as u64 + 96));
    assert!(outcomes[done..].iter().all(too_large));
    assert!(meter.used().answered <= BATCH.answered);
}

#[test]
fn small_requests_about_large_values_are_bounded() {
    let mut store = Store::new();
    one(&mut store, table("t/c", TableOptions { columns: true, ..TableOptions::default() }));
    let set = vec![("large".to_owned(), vec![1; VALUE_BYTES_MAX / 2])];
    written(&one(&mut store, write("t/c", b"k", Condition::Always, Action::Columns { set, remove: vec![] })));
    let action = Action::Increment { column: "n".into(), by: 1 };
    let count = write("t/c", b"k", Condition::Always, action);
    let (outcomes, meter) = bounded(&mut store, 0, &Batch::once(vec![count; 4_096]));
    assert!(too_large(&outcomes[4_095]));
    assert!(matches!(outcomes[0], Outcome::Counted { .. }), "the first are done");
    assert!(meter.used().bytes <= BATCH.bytes);
    let touch = write("t/c", b"k", Condition::Always, Action::Touch { ttl_ms: 0 });
    let (outcomes, _) = bounded(&mut store, 0, &Batch::once(vec![touch; 4_096]));
    assert!(too_large(&outcomes[4_095]));
}

#[test]
fn outcomes_that_are_asked_for_again_are_bounded() {
    let mut store = with_a_mebibyte();
    let client = open(&mut store, 7).unwrap();
    assert!(matches!(ask(&mut store, client, 7, 1, get(b"v")), Outcome::Done { .. }));
    let requests = vec![Request { sequence: 1, operation: get(b"v") }; 4_096];
    let (outcomes, _) = bounded(&mut store, 0, &Batch { client, principal: 7, settled_below: 0, requests });
    assert!(matches!(outcomes[0], Outcome::Done { .. }));
    assert!(too_large(&outcomes[4_095]));
}

#[test]
fn outcomes_that_clients_do_not_settle_are_bounded_by_principal_and_in_all() {
    let mut store = with_a_mebibyte();
    let (each, mut kept) = (3, 0);
    for principal in 1..=4 {
        let mut refused = None;
        for _ in 0..40 {
            let client = open(&mut store, principal).unwrap();
            for sequence in 1..=each {
                match ask(&mut store, client, principal, sequence, get(b"v")) {
                    Outcome::Done { .. } => kept += VALUE_BYTES_MAX as u64,
                    Outcome::Refused(refusal) => refused = Some(refusal),
                    other => panic!("{other:?}"),
                }
            }
        }
        let refused = refused.expect("one principal has not so much");
        assert!(
            matches!(&refused, Refusal::TooLarge { limit, .. } if [PRINCIPAL_BYTES_MAX, OUTCOMES_BYTES_MAX].contains(limit))
        );
    }
    assert!(kept <= OUTCOMES_BYTES_MAX + VALUE_BYTES_MAX as u64, "{kept}");
    // A replica that begins from a snapshot counts the same.
    let mut other = Store::from_snapshot(&store.to_snapshot()).unwrap();
    for store in [&mut store, &mut other] {
        let client = open(store, 9).unwrap();
        assert!(too_large(&ask(store, client, 9, 1, get(b"v"))));
    }
    assert_eq!(store.digest(), other.digest());
    // Clients that nobody uses any more make room.
    let now_ms = store.now_ms() + ROOM_IDLE_MS;
    bounded(&mut store, now_ms, &Batch::once([]));
    let client = open(&mut store, 9).unwrap();
    assert!(matches!(ask(&mut store, client, 9, 1, get(b"v")), Outcome::Done { .. }));
}

#[test]
fn who_opens_many_clients_evicts_nobody_who_is_at_work() {
    let mut store = with_tables(&["t/a"]);
    let first = open(&mut store, 7).unwrap();
    let increment = write("t/a", b"n", Condition::Always, Action::Increment { column: String::new(), by: 1 });
    let done = ask(&mut store, first, 7, 1, increment.clone());
    let mut refused = 0;
    for principal in [8, 7] {
        for _ in 0..=PRINCIPAL_CLIENTS_MAX {
            refused += u32::from(open(&mut store, principal).is_err());
        }
    }
    assert_eq!(refused, 1 + 2, "each is stopped at its own bound");
    assert_eq!(ask(&mut store, first, 7, 1, increment), done, "it is still known");
}

#[test]
fn reads_that_are_asked_together_are_bounded() {
    let store = with_a_mebibyte();
    let scan = Query::Scan {
        table: "t/a".into(),
        from: Vec::new(),
        to: Vec::new(),
        limit: 0,
        select: Select::Whole,
    };
    let answers = store.queries(&Registry::new(), &vec![scan; 4_096]);
    assert!(matches!(answers[0], Answer::Page { .. }));
    let refused = |answer: &&Answer| matches!(answer, Answer::Refused(Refusal::TooLarge { .. }));
    assert!(answers.iter().filter(|answer| !refused(answer)).count() as u64 <= BATCH.answered >> 20);
}

/// An entry of many batches is bounded as a whole, and each has its floor.
#[test]
fn an_entry_of_many_batches_is_bounded() {
    let mut store = with_a_mebibyte();
    let mut meter = Meter::new();
    let greedy = Batch::once(vec![get(b"v"); 16]);
    let small = Batch::once([put("t/a", b"k", b"v")]);
    let mut answered = 0;
    for _ in 0..32 {
        let mut apply = |batch: &Batch| {
            let terms = Terms { meter: &mut meter, who: None };
            store.apply_on(&Registry::new(), terms, 0, batch).outcomes
        };
        answered += apply(&greedy).iter().filter(|outcome| !too_large(outcome)).count() as u64;
        assert!(matches!(apply(&small)[0], Outcome::Written { .. }));
    }
    assert!(answered <= ENTRY.answered >> 20, "{answered}");
}

/// One operation that somebody who wants to hold up the group might send.
fn hostile(rng: &mut weir_base::world::Rng) -> Operation {
    let key = [rng.below(4) as u8];
    let table = ["t/a", "t/c", "t/none"][rng.below(3) as usize];
    let scan = |limit| Query::Scan {
        table: table.into(),
        from: Vec::new(),
        to: Vec::new(),
        limit,
        select: Select::Whole,
    };
    match rng.below(9) {
        0 => put(table, &key, &vec![7; 1 << rng.below(21)]),
        1 => get(b"v"),
        2 => Operation::Transaction(vec![Step::Read(scan(0)); 1 + rng.below(64) as usize]),
        3 => write(table, b"k", Condition::Always, Action::Increment { column: "n".into(), by: 1 }),
        4 => write(table, b"v", Condition::Value(vec![7; VALUE_BYTES_MAX]), Action::Touch { ttl_ms: 1 }),
        5 => {
            let set = vec![("large".to_owned(), vec![1; 1 << rng.below(20)])];
            write("t/c", &key, Condition::Always, Action::Columns { set, remove: Vec::new() })
        }
        6 => {
            let step = Step::Write(step_write(table, &key, Condition::Always, value(&[7; 4_096])));
            Operation::Transaction(vec![step; 1 + rng.below(256) as usize])
        }
        7 => write(table, &key, Condition::Always, Action::Remove),
        _ => Operation::Transaction(vec![
            Step::Check {
                table: table.into(),
                key: b"v".to_vec(),
                condition: Condition::Present
            };
            256
        ]),
    }
}

/// Whatever is in an entry: what carrying it out costs is within the bounds of an entry and the floors of its batches, by what was charged and by
/// what is seen from outside.
#[test]
fn what_random_and_hostile_entries_cost_is_within_the_stated_bounds() {
    let mut passed = 0;
    for seed in 0..12 {
        let mut rng = weir_base::world::Rng::new(seed);
        let mut store = with_a_mebibyte();
        one(&mut store, table("t/c", TableOptions { columns: true, ..TableOptions::default() }));
        for number in 0..2_000_u32 {
            one(&mut store, put("t/a", &number.to_be_bytes(), b"small"));
        }
        let (mut meter, mut answered) = (Meter::new(), 0);
        let batches = 1 + rng.below(12);
        for _ in 0..batches {
            // The same again and again, or one of each, in as many bytes as an entry may have.
            let kinds: Vec<Operation> = (0..1 + rng.below(4)).map(|_| hostile(&mut rng)).collect();
            let bytes: usize = kinds.iter().map(|kind| weir_base::codec::encode(kind).len()).sum();
            let repeats =
                (1 + rng.below(4_096) as usize).min(kinds.len() * (8 << 20) / bytes).max(kinds.len());
            let operations: Vec<Operation> = kinds.iter().cycle().take(repeats).cloned().collect();
            let terms = Terms { meter: &mut meter, who: None };
            let outcomes = store.apply_on(&Registry::new(), terms, 0, &Batch::once(operations)).outcomes;
            passed += outcomes.iter().filter(|outcome| !too_large(outcome)).count();
            answered +=
                outcomes.iter().map(|outcome| weir_base::codec::encode(outcome).len() as u64).sum::<u64>();
            let used = meter.used();
            for (what, used, most) in [
                ("fuel", used.fuel, ENTRY.fuel),
                ("bytes", used.bytes, ENTRY.bytes),
                ("answered", used.answered, ENTRY.answered),
                ("entries", used.entries, ENTRY.entries),
            ] {
                assert!(used <= most, "seed {seed}: {used} {what} of {most}");
            }
        }
        // Each outcome has some words of its own.
        let most = ENTRY.answered + batches * (FLOOR.answered + 4_096 * 200);
        assert!(answered <= most, "seed {seed}: {answered} bytes answered of {most}");
    }
    assert!(passed > 500, "{passed}: nothing was tried");
}
