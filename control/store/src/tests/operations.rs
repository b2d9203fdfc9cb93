use super::*;

#[test]
fn conditions_hold_or_tell_the_version_that_is_there() {
    let mut store = with_tables(&["t/a"]);
    let mut act = |condition, action| one(&mut store, write("t/a", b"k", condition, action));
    assert_eq!(act(Condition::Present, value(b"0")), Outcome::Conflict { step: 0, found: Version(0) });
    let first = written(&act(Condition::Absent, value(b"1")));
    assert_eq!(act(Condition::Absent, value(b"2")), Outcome::Conflict { step: 0, found: Version(first) });
    let second = written(&act(Condition::Version(Version(first)), value(b"2")));
    assert!(second > first);
    let stale = act(Condition::Version(Version(first)), value(b"3"));
    assert_eq!(stale, Outcome::Conflict { step: 0, found: Version(second) });
    written(&act(Condition::Value(b"2".into()), value(b"3")));
    assert!(matches!(act(Condition::Value(b"2".into()), Action::Remove), Outcome::Conflict { .. }));
    written(&act(Condition::Value(b"3".into()), Action::Remove));
    assert_eq!(written(&act(Condition::Version(Version(0)), value(b"4"))), second + 3);
}

#[test]
fn every_write_of_a_client_has_a_version_even_of_the_same_value() {
    let mut store = with_tables(&["t/a"]);
    let first = written(&one(&mut store, put("t/a", b"k", b"1")));
    assert_eq!(written(&one(&mut store, put("t/a", b"k", b"1"))), first + 1);
    assert_eq!(store.get("t/a", b"k").unwrap().version, Version(first + 1));
    let nothing = one(&mut store, write("t/a", b"absent", Condition::Always, Action::Remove));
    assert_eq!((written(&nothing), store.version()), (0, Version(first + 1)));
}

#[test]
fn counters_count_and_stay_in_range() {
    let mut store = with_tables(&["t/a"]);
    let mut add = |key: &[u8], by| {
        let action = Action::Increment { column: String::new(), by };
        one(&mut store, write("t/a", key, Condition::Always, action))
    };
    assert!(matches!(add(b"n", 5), Outcome::Counted { before: 0, .. }));
    assert!(matches!(add(b"n", -7), Outcome::Counted { before: 5, .. }));
    assert!(matches!(add(b"n", i64::MIN), Outcome::Refused(Refusal::Counter { .. })));
    assert!(matches!(add(b"n", 2), Outcome::Counted { before: -2, .. }));
    one(&mut store, put("t/a", b"text", b"x"));
    let action = Action::Increment { column: String::new(), by: 1 };
    let refused = one(&mut store, write("t/a", b"text", Condition::Always, action));
    assert!(matches!(refusal(refused), Refusal::Counter { .. }));
}

#[test]
fn a_transaction_is_done_whole_or_not_at_all() {
    let mut store = with_tables(&["t/a", "u/b"]);
    one(&mut store, put("t/a", b"k", b"1"));
    let (before, digest) = (store.version(), store.digest());
    let read =
        |table: &str| Step::Read(Query::Get { table: table.into(), key: b"k".into(), select: Select::Whole });
    let steps = |wanted: &[u8]| {
        Operation::Transaction(vec![
            Step::Write(step_write("u/b", b"k", Condition::Absent, value(b"2"))),
            read("u/b"),
            Step::Check { table: "t/a".into(), key: b"k".into(), condition: Condition::Value(wanted.into()) },
            Step::Write(step_write("t/a", b"k", Condition::Always, Action::Remove)),
        ])
    };
    assert_eq!(one(&mut store, steps(b"other")), Outcome::Conflict { step: 2, found: before });
    assert_eq!((store.version(), store.digest()), (before, digest));
    let Outcome::Done { version, steps } = one(&mut store, steps(b"1")) else { panic!() };
    assert_eq!(version, store.version());
    let StepOutcome::Read(Answer::Found(found)) = &steps[1] else { panic!() };
    assert_eq!((&found.value, found.version), (&Selected::Whole(b"2".into()), version));
    assert!(store.get("t/a", b"k").is_none());
    assert_eq!(store.get("u/b", b"k").unwrap().version, version);
}

#[test]
fn tables_come_and_go_and_the_apps_tables_are_out_of_reach() {
    let mut store = Store::new();
    let mut view = store.view();
    view.put("resource", b"k", *b"1").unwrap();
    let writes = view.into_writes();
    store.commit(Version(1), writes);
    let empty = store.digest();
    for operation in [
        put("resource", b"k", b"2"),
        table("resource", TableOptions::default()),
        Operation::DropTable { table: "resource".into() },
        Operation::Transaction(vec![Step::Write(step_write(
            "resource",
            b"k",
            Condition::Always,
            Action::Remove,
        ))]),
    ] {
        assert!(matches!(refusal(one(&mut store, operation)), Refusal::ReadOnly { .. }));
    }
    assert!(matches!(refusal(one(&mut store, put("t/a", b"k", b"1"))), Refusal::NoTable { .. }));
    written(&one(&mut store, table("t/a", TableOptions::default())));
    let again = refusal(one(&mut store, table("t/a", TableOptions::default())));
    assert!(matches!(again, Refusal::TableExists { .. }));
    one(&mut store, put("t/a", b"k", b"1"));
    let applied =
        store.apply(&Registry::new(), 0, &Batch::once([Operation::DropTable { table: "t/a".into() }]));
    assert_eq!(applied.changes[0].dropped.as_deref(), Some("t/a"));
    assert_eq!(store.digest(), empty, "nothing of the table is left");
    for name in ["", "a/", "/a", "A/b", "a/b/c", "a b/c"] {
        let refused = refusal(one(&mut store, table(name, TableOptions::default())));
        assert!(matches!(refused, Refusal::Name { .. }), "{name}: {refused}");
    }
}

#[test]
fn quotas_of_tables_and_namespaces_are_refused_with_their_numbers() {
    let mut store = Store::new();
    one(&mut store, table("t/a", TableOptions { entries_max: 2, ..TableOptions::default() }));
    one(&mut store, put("t/a", b"1", b"x"));
    one(&mut store, put("t/a", b"2", b"x"));
    let Refusal::Quota { scope, what, value, limit } = refusal(one(&mut store, put("t/a", b"3", b"x")))
    else {
        panic!()
    };
    assert_eq!((&scope[..], &what[..], value, limit), ("table t/a", "entries", 3, 2));
    written(&one(&mut store, put("t/a", b"2", b"y")));

    let quota = Quota { tables_max: 2, entries_max: 100, bytes_max: 10, procedures_max: 0 };
    written(&one(&mut store, Operation::SetQuota { namespace: "t".into(), quota }));
    written(&one(&mut store, table("t/b", TableOptions::default())));
    let third = refusal(one(&mut store, table("t/c", TableOptions::default())));
    assert!(matches!(third, Refusal::Quota { value: 3, limit: 2, .. }), "{third}");
    written(&one(&mut store, put("t/b", b"k", b"12345")));
    let refused = refusal(one(&mut store, put("t/b", b"k", b"1234567")));
    assert!(matches!(&refused, Refusal::Quota { scope, .. } if scope == "namespace t"), "{refused}");
    // Below a lowered quota again only by deleting, which is always allowed.
    let quota = Quota { bytes_max: 1, ..quota };
    written(&one(&mut store, Operation::SetQuota { namespace: "t".into(), quota }));
    written(&one(&mut store, put("t/b", b"k", b"1")));
    written(&one(&mut store, write("t/b", b"k", Condition::Always, Action::Remove)));
    let Answer::Usage { used, .. } = store.query(&Registry::new(), &Query::Usage { namespace: "t".into() })
    else {
        panic!()
    };
    assert_eq!((used.tables_max, used.entries_max, used.bytes_max), (2, 2, 4));
}

#[test]
fn too_much_of_anything_is_refused() {
    let mut store = with_tables(&["t/a"]);
    let mut too_large =
        |operation| assert!(matches!(refusal(one(&mut store, operation)), Refusal::TooLarge { .. }));
    too_large(put("t/a", &[0; KEY_BYTES_MAX + 1], b""));
    too_large(put("t/a", b"k", &vec![0; VALUE_BYTES_MAX + 1]));
    let check = Step::Check { table: "t/a".into(), key: vec![], condition: Condition::Always };
    too_large(Operation::Transaction(vec![check; operation::TRANSACTION_STEPS_MAX + 1]));
    let many = vec![put("t/a", b"k", b"v"); operation::BATCH_REQUESTS_MAX + 1];
    let outcomes = apply(&mut store, 0, many);
    assert!(outcomes.into_iter().all(|outcome| matches!(refusal(outcome), Refusal::TooLarge { .. })));
}
