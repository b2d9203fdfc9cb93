use super::*;
use crate::columns::{COLUMNS_MAX, Columns, column};
use proptest::prelude::*;
use std::collections::BTreeMap;

proptest! {
    #[test]
    fn columns_are_a_map_in_bytes(
        cells in proptest::collection::btree_map("[a-z]{1,4}", proptest::collection::vec(any::<u8>(), 0..9), 0..8)
    ) {
        let cells: BTreeMap<String, Vec<u8>> = cells;
        let mut columns = Columns::new();
        for (name, bytes) in &cells {
            columns.set(name, bytes).unwrap();
        }
        let bytes = columns.to_value();
        let again = Columns::read(&bytes).unwrap();
        prop_assert_eq!(&again, &columns);
        prop_assert_eq!(again.to_value(), bytes.clone());
        for (name, wanted) in &cells {
            prop_assert_eq!(column(&bytes, name), Some(&wanted[..]));
        }
        prop_assert_eq!(column(&bytes, "zzzzz"), None);
    }
}

#[test]
fn only_the_one_encoding_of_a_set_is_read() {
    let cell = |name: &str, bytes: &[u8]| {
        let mut cell = vec![name.len() as u8];
        cell.extend_from_slice(name.as_bytes());
        cell.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        cell.extend_from_slice(bytes);
        cell
    };
    let value = |cells: &[Vec<u8>]| [vec![0xC1], cells.concat()].concat();
    assert!(Columns::read(&value(&[])).unwrap().is_empty());
    assert!(Columns::read(&value(&[cell("a", b"1"), cell("b", b"2")])).is_some());
    assert!(Columns::read(&value(&[cell("b", b"1"), cell("a", b"2")])).is_none(), "not ascending");
    assert!(Columns::read(&value(&[cell("a", b"1"), cell("a", b"1")])).is_none(), "twice");
    assert!(Columns::read(&value(&[cell("", b"1")])).is_none(), "no name");
    assert!(Columns::read(&value(&[cell("A", b"1")])).is_none(), "a bad name");
    assert!(Columns::read(&value(&[cell("a", b"12")])[..6]).is_none(), "cut");
    assert!(Columns::read(b"").is_none() && Columns::read(b"x").is_none());
    let mut columns = Columns::new();
    let names: Vec<String> = (0..=COLUMNS_MAX).map(|n| format!("c{n}")).collect();
    let set: Result<Vec<()>, Refusal> = names.iter().map(|name| columns.set(name, b"")).collect();
    assert!(matches!(set, Err(Refusal::TooLarge { .. })));
}

#[test]
fn a_column_is_read_and_written_alone_and_the_whole_stays_bytes() {
    let mut store = Store::new();
    one(&mut store, table("t/devices", TableOptions { columns: true, ..TableOptions::default() }));
    let set = |cells: &[(&str, &str)], remove: &[&str]| Action::Columns {
        set: cells.iter().map(|(name, bytes)| ((*name).into(), (*bytes).into())).collect(),
        remove: remove.iter().map(|name| (*name).into()).collect(),
    };
    let act = |store: &mut Store, condition, action| one(store, write("t/devices", b"k", condition, action));
    written(&act(&mut store, Condition::Always, set(&[("port", "7"), ("seen", "1")], &[])));
    written(&act(&mut store, Condition::Present, set(&[("seen", "2"), ("vlan", "9")], &["port"])));
    let select = Select::Columns(vec!["vlan".into(), "port".into(), "seen".into()]);
    let found =
        store.query(&Registry::new(), &Query::Get { table: "t/devices".into(), key: b"k".into(), select });
    let Answer::Found(Found { value: Selected::Columns(cells), .. }) = found else { panic!("{found:?}") };
    assert_eq!(cells, [("vlan".into(), b"9".to_vec()), ("seen".into(), b"2".to_vec())]);

    // Whoever does not know the columns copies the value as bytes.
    let whole = store.get("t/devices", b"k").unwrap().value.to_vec();
    written(&one(&mut store, put("t/devices", b"copy", &whole)));
    assert_eq!(store.get("t/devices", b"copy").unwrap().value[..], whole[..]);
    assert!(matches!(refusal(one(&mut store, put("t/devices", b"k", b"opaque"))), Refusal::Columns { .. }));

    // Two writers of different columns do not hinder each other; two of the same do.
    let was = |bytes: &str| Condition::Column { column: "seen".into(), value: Some(bytes.into()) };
    written(&act(&mut store, was("2"), set(&[("seen", "3")], &[])));
    assert!(matches!(act(&mut store, was("2"), set(&[("seen", "4")], &[])), Outcome::Conflict { .. }));
    let none = Condition::Column { column: "port".into(), value: None };
    written(&act(&mut store, none, set(&[("port", "8")], &[])));

    let mut plain = with_tables(&["t/plain"]);
    let refused = one(&mut plain, write("t/plain", b"k", Condition::Always, set(&[("a", "1")], &[])));
    assert!(matches!(refusal(refused), Refusal::Columns { .. }));
}
