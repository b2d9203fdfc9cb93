use super::*;

fn found(answer: Answer) -> Found {
    match answer {
        Answer::Found(found) => found,
        other => panic!("not found: {other:?}"),
    }
}

fn follow(table: &str, key: &[u8], via: &[&str], select: Select) -> Query {
    let via = via.iter().map(|name| (*name).into()).collect();
    Query::Follow { table: table.into(), key: key.into(), via, select }
}

/// The paper's tables: addresses refer to devices by the whole value, devices to ports by a column.
fn devices() -> Store {
    let mut store = Store::new();
    let options = |columns, references: &[(&str, &str)]| TableOptions {
        columns,
        references: references.iter().map(|(column, to)| ((*column).into(), (*to).into())).collect(),
        ..TableOptions::default()
    };
    one(&mut store, table("n/ips", options(false, &[("", "n/macs")])));
    one(&mut store, table("n/macs", options(false, &[("", "n/devices")])));
    one(&mut store, table("n/devices", options(true, &[("port", "n/ports")])));
    one(&mut store, table("n/ports", options(false, &[])));
    one(&mut store, put("n/ips", b"10.0.0.1", b"mac1"));
    one(&mut store, put("n/macs", b"mac1", b"dev1"));
    let set = vec![("name".into(), b"web".into()), ("port".into(), b"p7".into())];
    let columns = Action::Columns { set, remove: vec![] };
    one(&mut store, write("n/devices", b"dev1", Condition::Always, columns));
    one(&mut store, put("n/ports", b"p7", b"up"));
    store
}

#[test]
fn references_are_followed_any_number_of_tables_in_one_read() {
    let store = devices();
    let name = Select::Columns(vec!["name".into()]);
    let device = found(store.query(&Registry::new(), &follow("n/ips", b"10.0.0.1", &[], name.clone())));
    assert_eq!(device.value, Selected::Columns(vec![("name".into(), b"web".to_vec())]));
    assert_eq!(device.version, store.get("n/devices", b"dev1").unwrap().version);
    let port =
        found(store.query(&Registry::new(), &follow("n/ips", b"10.0.0.1", &["", "", "port"], Select::Whole)));
    assert_eq!(port.value, Selected::Whole(b"up".into()));
    let mac = found(store.query(&Registry::new(), &follow("n/ips", b"10.0.0.1", &[""], Select::Whole)));
    assert_eq!(mac.value, Selected::Whole(b"dev1".into()));
}

#[test]
fn a_chain_that_breaks_says_where() {
    let mut store = devices();
    assert_eq!(
        store.query(&Registry::new(), &follow("n/ips", b"none", &[], Select::Whole)),
        Answer::Absent { hops: 0 }
    );
    one(&mut store, write("n/devices", b"dev1", Condition::Always, Action::Remove));
    assert_eq!(
        store.query(&Registry::new(), &follow("n/ips", b"10.0.0.1", &[], Select::Whole)),
        Answer::Absent { hops: 2 }
    );
    let wrong =
        store.query(&Registry::new(), &follow("n/ips", b"10.0.0.1", &["", "", "name"], Select::Whole));
    let column = "name".to_owned();
    assert_eq!(wrong, Answer::Refused(Refusal::NoReference { table: "n/devices".into(), column }));
    let deep = vec![""; query::HOPS_MAX + 1];
    let deep = store.query(&Registry::new(), &follow("n/ips", b"10.0.0.1", &deep, Select::Whole));
    assert!(matches!(deep, Answer::Refused(Refusal::TooLarge { .. })));
}

#[test]
fn a_circle_of_references_ends() {
    let mut store = Store::new();
    let to =
        |to: &str| TableOptions { references: vec![(String::new(), to.into())], ..TableOptions::default() };
    one(&mut store, table("c/a", to("c/b")));
    one(&mut store, table("c/b", to("c/a")));
    one(&mut store, put("c/a", b"x", b"y"));
    one(&mut store, put("c/b", b"y", b"x"));
    assert_eq!(
        found(store.query(&Registry::new(), &follow("c/a", b"x", &[], Select::Whole))).value,
        Selected::Whole(b"y".into())
    );
    let other = refusal(one(&mut store, table("c/c", to("d/a"))));
    assert!(matches!(other, Refusal::Invalid { .. }), "a reference out of the namespace: {other}");
}

#[test]
fn scans_go_page_by_page() {
    let mut store = with_tables(&["t/a"]);
    for n in 0..10_u8 {
        one(&mut store, put("t/a", &[n], &[n]));
    }
    let (mut from, mut seen) = (vec![2], Vec::new());
    loop {
        let query = Query::Scan { table: "t/a".into(), from, to: vec![9], limit: 3, select: Select::Nothing };
        let Answer::Page { entries, next } = store.query(&Registry::new(), &query) else { panic!() };
        assert!(entries.len() <= 3 && entries.iter().all(|(_, found)| found.value == Selected::Nothing));
        seen.extend(entries.into_iter().map(|(key, _)| key[0]));
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(seen, [2, 3, 4, 5, 6, 7, 8]);
    let query =
        Query::Scan { table: "t/none".into(), from: vec![], to: vec![], limit: 0, select: Select::Whole };
    assert!(matches!(store.query(&Registry::new(), &query), Answer::Refused(Refusal::NoTable { .. })));
}

#[test]
fn a_page_ends_by_its_bytes() {
    let mut store = with_tables(&["t/a"]);
    for n in 0..6_u8 {
        one(&mut store, put("t/a", &[n], &vec![0; VALUE_BYTES_MAX]));
    }
    let query =
        Query::Scan { table: "t/a".into(), from: vec![], to: vec![], limit: 0, select: Select::Whole };
    let Answer::Page { entries, next } = store.query(&Registry::new(), &query) else { panic!() };
    assert_eq!((entries.len(), next), (4, Some(vec![4])));
}
