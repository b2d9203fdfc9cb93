//! What is kept of ordered policies.

use super::*;
use weir_filewall::policy;
use weir_model::Version;

fn orders(folder: &Path) -> Orders {
    Orders { wall: Label::new("wall").unwrap(), folder: folder.join("policies") }
}

fn set(version: u64, files: &[(&str, &str)]) -> PolicySet {
    let files = files.iter().map(|(name, text)| PolicyFile { name: (*name).into(), text: (*text).into() });
    PolicySet { version: Version(version), files: files.collect() }
}

fn names(orders: &Orders) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(&orders.folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

#[test]
fn wrong_policies_leave_the_last_good_ones_and_the_machines_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let orders = orders(folder.path());
    std::fs::create_dir(&orders.folder).unwrap();
    std::fs::write(orders.folder.join("key"), "secret").unwrap();
    let load = || policy::load(&orders.folder, None).map(drop);
    let good = set(7, &[("a.yaml", "kind: statistics"), ("b.yaml", "kind: read-only")]);
    orders.take(&good, load).unwrap();
    assert_eq!(names(&orders), ["a.yaml", "b.yaml", "key"]);
    for wrong in [
        set(8, &[("a.yaml", "kind: read-only"), ("c.yaml", "kind: nonsense")]),
        set(9, &[("../a.yaml", "kind: read-only")]),
    ] {
        assert!(orders.take(&wrong, load).is_err());
        assert_eq!(names(&orders), ["a.yaml", "b.yaml", "key"]);
        assert_eq!(std::fs::read_to_string(orders.folder.join("a.yaml")).unwrap(), "kind: statistics");
    }
    // A kill in the middle of a change: the folder is mended at the next start, without a switch.
    std::fs::write(orders.folder.join("a.yaml"), "kind: nonsense").unwrap();
    std::fs::remove_file(orders.folder.join("b.yaml")).unwrap();
    std::fs::write(orders.folder.join("d.yaml"), "kind: read-only").unwrap();
    let next = PolicyFile { name: "d.yaml".into(), text: "kind: read-only".into() };
    orders.keep(NEXT_FILE, &Kept { version: 11, files: vec![next] }).unwrap();
    assert_eq!(orders.mend().unwrap(), Some(7));
    load().unwrap();
    assert_eq!(names(&orders), ["a.yaml", "b.yaml", "key"]);
    let fewer = set(10, &[("b.yaml", "kind: read-only")]);
    orders.take(&fewer, load).unwrap();
    assert_eq!(
        (names(&orders), orders.mend().unwrap()),
        (vec!["b.yaml".to_string(), "key".to_string()], Some(10))
    );
}

#[test]
fn an_order_neither_opens_everything_nor_touches_what_is_the_owners() {
    let folder = tempfile::tempdir().unwrap();
    let orders = orders(folder.path());
    std::fs::create_dir(&orders.folder).unwrap();
    let load = || policy::load(&orders.folder, None).map(drop);
    std::fs::write(orders.folder.join("own.yaml"), "kind: read-only").unwrap();
    let take = |version: u64, files: &[(&str, &str)]| orders.take(&set(version, files), load);
    let refused = take(1, &[("own.yaml", "kind: statistics")]).unwrap_err();
    assert!(refused.contains("own.yaml"), "{refused}");
    take(2, &[("a.yaml", "kind: statistics")]).unwrap();
    // Neither a later order nor one that leaves a name out changes it.
    assert!(take(3, &[("a.yaml", "kind: statistics"), ("own.yaml", "kind: rate")]).is_err());
    take(4, &[("b.yaml", "kind: statistics")]).unwrap();
    assert_eq!(names(&orders), ["b.yaml", "own.yaml"]);
    assert_eq!(std::fs::read_to_string(orders.folder.join("own.yaml")).unwrap(), "kind: read-only");
    std::fs::remove_file(orders.folder.join("own.yaml")).unwrap();
    // Without policies nothing is left that says who may do what.
    for nothing in ["kind: identities\n", "# nothing\n", ""] {
        assert!(take(5, &[("b.yaml", nothing)]).is_err(), "{nothing:?}");
        assert_eq!(std::fs::read_to_string(orders.folder.join("b.yaml")).unwrap(), "kind: statistics");
    }
    take(6, &[("b.yaml", "kind: none\n")]).unwrap();
}

#[test]
fn an_order_waits_for_an_owners_file_that_is_being_written() {
    let folder = tempfile::tempdir().unwrap();
    let orders = orders(folder.path());
    std::fs::create_dir(&orders.folder).unwrap();
    let own = orders.folder.join("own.yaml");
    let tries = std::cell::Cell::new(0);
    let load = |done_at: u32| {
        let (tries, own, folder) = (&tries, &own, &orders.folder);
        move || {
            tries.set(tries.get() + 1);
            // Its writer has emptied it, and is done later, or never.
            let text = if tries.get() >= done_at { "kind: read-only\n" } else { "" };
            std::fs::write(own, text).unwrap();
            policy::load(folder, None).map(drop)
        }
    };
    orders.take(&set(1, &[("a.yaml", "kind: statistics")]), load(3)).unwrap();
    assert_eq!((tries.replace(0), names(&orders)), (3, vec!["a.yaml".to_string(), "own.yaml".to_string()]));
    let refused = orders.take(&set(2, &[("b.yaml", "kind: statistics")]), load(u32::MAX)).unwrap_err();
    assert!(refused.contains("own.yaml"), "{refused}");
    assert_eq!(
        (tries.replace(0), names(&orders)),
        (TRIES, vec!["a.yaml".to_string(), "own.yaml".to_string()])
    );
    // Its own fault is said at once.
    assert!(orders.take(&set(3, &[("b.yaml", "kind: nonsense")]), load(0)).is_err());
    assert_eq!(tries.get(), 1);
}
