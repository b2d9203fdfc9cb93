use super::*;
use weir_sensor::{SensorBox, Shape};

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not come about");
}

#[test]
fn keys_are_what_the_documentation_says() {
    // printf web/requests | sha256sum
    assert_eq!(key("web", "requests"), 0xbd17_7feb_183b_d50a);
    assert_ne!(key("web", "requests"), key("web", "errors"));
}

#[test]
fn a_sensor_is_unknown_then_read_then_closed() {
    let folder = tempfile::tempdir().unwrap();
    let sensors = Directory::new(folder.path());
    let mut shelf = Shelf::open(&sensors).unwrap();
    let asked = key("web", "requests");
    assert_eq!(shelf.read(asked), Reading::Unknown);
    let web = SensorBox::create("web", Shape { sensors: 2, records: 16 }, 1).unwrap();
    web.export(&sensors).unwrap();
    let requests = web.add("requests", Kind::Counter).unwrap();
    until("the box", || shelf.read(asked) == Reading::Value(0));
    web.count(requests, 3);
    assert_eq!(shelf.read(asked), Reading::Value(3));
    drop(web);
    assert_eq!(shelf.read(asked), Reading::Closed);
}

#[test]
fn a_reference_is_not_followed_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let sensors = Directory::new(folder.path());
    let mut shelf = Shelf::open(&sensors).unwrap();
    let web = SensorBox::create("web", Shape { sensors: 2, records: 16 }, 1).unwrap();
    let word = 5_u64;
    web.refer("word", &raw const word as u64).unwrap();
    web.add("other", Kind::Gauge).unwrap();
    web.export(&sensors).unwrap();
    assert_eq!(shelf.read(key("web", "word")), Reading::Unknown);
    until("the other sensor", || shelf.read(key("web", "other")) == Reading::Value(0));
    assert_eq!(shelf.read(key("web", "word")), Reading::Unknown);
}

#[test]
fn more_than_the_limit_stay_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let sensors = Directory::new(folder.path());
    let mut shelf = Shelf::open(&sensors).unwrap();
    let many = SENSORS_MAX + 8;
    let web = SensorBox::create("web", Shape { sensors: many as u64, records: 16 }, 1).unwrap();
    let names: Vec<String> = (0..many).map(|at| format!("s{at}")).collect();
    for name in &names {
        web.add(name, Kind::Gauge).unwrap();
    }
    web.export(&sensors).unwrap();
    let known = |shelf: &mut Shelf| {
        names.iter().filter(|name| shelf.read(key("web", name)) == Reading::Value(0)).count()
    };
    until("as many as there is room for", || known(&mut shelf) == SENSORS_MAX);
    std::thread::sleep(REFRESH * 2);
    assert_eq!(known(&mut shelf), SENSORS_MAX);
}
