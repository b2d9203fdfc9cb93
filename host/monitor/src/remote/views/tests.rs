use super::*;

const MS: u64 = 1_000_000;

fn views(directory: &Directory) -> Views {
    let file = |host: &str| ViewFile {
        host: host.into(),
        sensor_box: "web".into(),
        sensors: vec!["requests".into(), "errors".into()],
        every_ms: 100,
    };
    let names = ["a", "b", "c"].map(String::from);
    Views::new(&[file("b"), file("c")], &names, directory, 0).unwrap()
}

fn due(views: &mut Views, now_ns: u64) -> Vec<Ask> {
    let mut asks = Vec::new();
    views.due(now_ns, |ask| asks.push(ask));
    asks
}

#[test]
fn each_sensor_is_asked_for_once_a_period() {
    let folder = tempfile::tempdir().unwrap();
    let mut views = views(&Directory::new(folder.path()));
    let asks = due(&mut views, 0);
    let asked: Vec<(Host, u64)> = asks.iter().map(|ask| (ask.host, ask.key)).collect();
    let keys = [key("web", "requests"), key("web", "errors")];
    assert_eq!(asked, [(1, keys[0]), (1, keys[1]), (2, keys[0]), (2, keys[1])]);
    assert!(due(&mut views, 99 * MS).is_empty());
    let again = due(&mut views, 100 * MS);
    assert_eq!(again.len(), 4);
    assert!(again.iter().all(|ask| asks.iter().all(|before| before.nonce != ask.nonce)));
}

#[test]
fn only_the_newest_read_of_the_host_that_was_asked_counts_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let directory = Directory::new(folder.path());
    let mut views = views(&directory);
    let old = due(&mut views, 0)[0];
    let new = due(&mut views, 100 * MS)[0];
    views.take(old.host, old.nonce, Reading::Value(1));
    views.take(2, new.nonce, Reading::Value(2));
    assert!(directory.discover("b.web").is_err() && directory.discover("c.web").is_err());
    views.take(new.host, new.nonce, Reading::Value(3));
    let copy = directory.discover("b.web").unwrap();
    assert_eq!(copy.value_of("requests"), Some(3));
    views.take(new.host, new.nonce, Reading::Value(4));
    assert_eq!(copy.value_of("requests"), Some(3), "it was replayed");
    // Not to know is not to be gone: a responder that began anew looks for the box first.
    let next = due(&mut views, 200 * MS)[0];
    views.take(next.host, next.nonce, Reading::Unknown);
    assert!(!copy.closed());
    let last = due(&mut views, 300 * MS)[0];
    views.take(last.host, last.nonce, Reading::Closed);
    assert!(copy.closed());
}

#[test]
fn names_that_no_box_can_have_are_told_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = |host: &str, sensor: &str| ViewFile {
        host: host.into(),
        sensor_box: "web".into(),
        sensors: vec![sensor.into()],
        every_ms: 100,
    };
    let names = ["a", "7"].map(String::from);
    let made = |file: ViewFile| Views::new(&[file], &names, &Directory::new(folder.path()), 0);
    assert!(made(file("a", "fine")).is_ok());
    assert!(matches!(made(file("7", "fine")), Err(crate::Error::Sensor(_))), "no name begins with a digit");
    assert!(matches!(made(file("a", "not fine")), Err(crate::Error::Sensor(_))));
}
