use super::*;

fn lasting(ttl_ms: u64) -> Action {
    Action::Put { value: b"v".into(), ttl_ms }
}

fn keys(store: &Store) -> Vec<u8> {
    store.scan("t/a", b"").map(|(key, _)| key[0]).collect()
}

#[test]
fn entries_go_by_ordered_time_before_anything_else() {
    let mut store = with_tables(&["t/a"]);
    let at = |key: u8, ttl_ms| write("t/a", &[key], Condition::Always, lasting(ttl_ms));
    apply(&mut store, 1_000, [at(1, 10), at(2, 20), at(3, 0)]);
    assert_eq!((keys(&store), store.next_expiry_ms()), (vec![1, 2, 3], Some(1_010)));
    apply(&mut store, 1_009, []);
    assert_eq!(keys(&store), [1, 2, 3]);
    // The entry that goes now is gone for the request that comes now.
    let absent = write("t/a", &[1], Condition::Absent, lasting(0));
    let applied = store.apply(&Registry::new(), 1_010, &Batch::once([absent]));
    written(&applied.outcomes[0]);
    assert_eq!(applied.changes.len(), 2);
    assert!(applied.changes[0].writes[0].value.is_none());
    assert!(applied.changes[0].version < applied.changes[1].version);
    // Time does not go back, and a write without time to live stays for ever.
    apply(&mut store, 5, [write("t/a", &[2], Condition::Always, lasting(0))]);
    assert_eq!(store.now_ms(), 1_010);
    apply(&mut store, 10_000_000, []);
    assert_eq!((keys(&store), store.next_expiry_ms()), (vec![1, 2, 3], None));
}

#[test]
fn a_touch_begins_the_time_anew_and_other_writes_of_columns_leave_it() {
    let mut store = with_tables(&["t/a"]);
    let act = |action| write("t/a", &[1], Condition::Always, action);
    apply(&mut store, 100, [act(lasting(10))]);
    apply(&mut store, 105, [act(Action::Touch { ttl_ms: 10 })]);
    apply(&mut store, 114, []);
    assert_eq!(keys(&store), [1]);
    apply(&mut store, 115, []);
    assert!(keys(&store).is_empty());
    let gone = apply(&mut store, 115, [act(Action::Touch { ttl_ms: 10 })]);
    assert_eq!(gone, [Outcome::Conflict { step: 0, found: Version(0) }]);

    let options = TableOptions { columns: true, ..TableOptions::default() };
    apply(&mut store, 115, [table("t/c", options)]);
    let set = Action::Columns { set: vec![("a".into(), vec![1])], remove: vec![] };
    let act = |action| write("t/c", &[1], Condition::Always, action);
    apply(&mut store, 115, [act(set.clone()), act(Action::Touch { ttl_ms: 5 }), act(set)]);
    assert_eq!(store.get("t/c", &[1]).unwrap().expires_ms, 120);
}

#[test]
fn a_dropped_table_leaves_nothing_that_expires() {
    let mut store = with_tables(&["t/a"]);
    apply(&mut store, 100, [write("t/a", &[1], Condition::Always, lasting(10))]);
    apply(&mut store, 101, [Operation::DropTable { table: "t/a".into() }]);
    assert_eq!(store.next_expiry_ms(), None);
}

#[test]
fn many_entries_go_in_several_batches() {
    let mut store = with_tables(&["t/a"]);
    let count = apply::EXPIRED_MAX + 10;
    for n in 0..count as u32 {
        apply(&mut store, 0, [write("t/a", &n.to_be_bytes(), Condition::Always, lasting(10))]);
    }
    apply(&mut store, 10, []);
    assert_eq!(store.count("t/a"), 10);
    apply(&mut store, 10, []);
    assert_eq!(store.count("t/a"), 0);
}

#[test]
fn a_history_resumes_and_says_what_it_has_not() {
    let settings = HistorySettings { changes_max: 3, bytes_max: 1_000_000 };
    let mut store = with_tables(&["t/a"]);
    let start = store.version().0;
    let mut history = History::new(settings, store.version());
    for n in 0..5 {
        let applied = store.apply(&Registry::new(), 0, &Batch::once([put("t/a", &[n], b"v")]));
        applied.changes.into_iter().for_each(|change| history.push(change.into()));
    }
    let after = |from, limit| {
        history
            .after(Version(from), limit)
            .map(|changes| changes.iter().map(|c| c.writes[0].key[0]).collect::<Vec<_>>())
    };
    assert_eq!(after(start + 2, 9).unwrap(), [2, 3, 4]);
    assert_eq!(after(start + 2, 1).unwrap(), [2]);
    assert_eq!(after(start + 5, 9).unwrap(), Vec::<u8>::new());
    let (from, oldest) = (Version(start + 1), Version(start + 2));
    assert_eq!(after(start + 1, 9).unwrap_err(), HistoryError::TooOld { from, oldest });
    let (from, last) = (Version(start + 6), Version(start + 5));
    assert_eq!(after(start + 6, 9).unwrap_err(), HistoryError::Ahead { from, last });
    assert_eq!(history.dropped, 2);
}
