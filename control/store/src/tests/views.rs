use crate::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use weir_model::Version;

const TABLES: [TableName; 2] = ["a", "b"];

#[derive(Clone, Debug)]
struct Write {
    table: usize,
    key: u8,
    value: Option<u8>,
}

fn writes() -> impl Strategy<Value = Vec<Vec<Write>>> {
    let write = (0..2_usize, 0..6_u8, proptest::option::of(0..4_u8)).prop_map(|(table, key, value)| Write {
        table,
        key,
        value,
    });
    proptest::collection::vec(proptest::collection::vec(write, 0..5), 0..12)
}

fn apply(store: &mut Store, version: u64, writes: &[Write]) {
    let mut view = store.view();
    for write in writes {
        match write.value {
            Some(value) => view.put(TABLES[write.table], &[write.key], vec![value]).unwrap(),
            None => view.delete(TABLES[write.table], &[write.key]),
        }
    }
    let changed = view.into_writes();
    store.commit(Version(version), changed);
}

proptest! {
    #[test]
    fn behaves_as_a_map_and_survives_a_snapshot(batches in writes()) {
        let mut store = Store::new();
        let mut model: BTreeMap<(usize, u8), u8> = BTreeMap::new();
        for (number, batch) in batches.iter().enumerate() {
            apply(&mut store, number as u64 + 1, batch);
            for write in batch {
                match write.value {
                    Some(value) => drop(model.insert((write.table, write.key), value)),
                    None => drop(model.remove(&(write.table, write.key))),
                }
            }
        }
        for (table, name) in TABLES.iter().enumerate() {
            let found: Vec<(u8, u8)> = store.scan(name, b"").map(|(k, c)| (k[0], c.value[0])).collect();
            let wanted: Vec<(u8, u8)> = model.iter().filter(|((t, _), _)| *t == table).map(|((_, k), v)| (*k, *v)).collect();
            prop_assert_eq!(found, wanted);
        }
        let again = Store::from_snapshot(&store.to_snapshot()).unwrap();
        prop_assert_eq!((again.digest(), again.version(), again.bytes()), (store.digest(), store.version(), store.bytes()));
    }
}

#[test]
fn a_view_sees_its_writes_and_a_dropped_view_leaves_nothing() {
    let mut store = Store::new();
    apply(
        &mut store,
        1,
        &[Write { table: 0, key: 1, value: Some(1) }, Write { table: 0, key: 2, value: Some(2) }],
    );
    let digest = store.digest();
    let mut view = store.view();
    view.put("a", &[3], vec![3]).unwrap();
    view.delete("a", &[1]);
    let keys: Vec<u8> = view.scan("a", b"").iter().map(|(key, _)| key[0]).collect();
    assert_eq!(keys, [2, 3]);
    let mark = view.mark();
    view.delete("a", &[2]);
    assert_eq!(view.get("a", &[2]), None);
    view.rollback(mark);
    assert_eq!(view.get("a", &[2]).as_deref(), Some(&[2_u8][..]));
    drop(view);
    assert_eq!(store.digest(), digest);
    assert_eq!(store.get("a", &[1]).unwrap().version, Version(1));
}

#[test]
fn writing_the_same_value_again_changes_nothing() {
    let mut store = Store::new();
    apply(&mut store, 1, &[Write { table: 0, key: 1, value: Some(1) }]);
    apply(&mut store, 2, &[Write { table: 0, key: 1, value: Some(1) }]);
    assert_eq!(store.get("a", &[1]).unwrap().version, Version(1));
}

#[test]
fn a_snapshot_does_not_follow_the_store() {
    let mut store = Store::new();
    apply(&mut store, 1, &[Write { table: 0, key: 1, value: Some(1) }]);
    let snapshot = store.clone();
    apply(&mut store, 2, &[Write { table: 0, key: 1, value: None }]);
    assert!(snapshot.get("a", &[1]).is_some() && store.get("a", &[1]).is_none());
}

#[test]
fn limits_are_rejections() {
    let store = Store::new();
    let mut view = store.view();
    assert!(matches!(view.put("a", &[0; KEY_BYTES_MAX + 1], vec![]), Err(Rejection::Limit { .. })));
    assert!(matches!(view.put("a", &[0], vec![0; VALUE_BYTES_MAX + 1]), Err(Rejection::Limit { .. })));
}
