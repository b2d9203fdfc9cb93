//! Planes whose specifications are ordered as they are.

use super::*;
use crate::fabric::orders::PLANES_MAX;
use weir_model::plane::{NAME_BYTES_MAX, ORDERS_MAX, PlaneOrder, PlaneReport, REPORTS_MAX, SPEC_BYTES_MAX};
use weir_model::session::PLANES_SINCE;

fn order(host: &str, plane: &str, name: &str, spec: Option<&[u8]>) -> EventBody {
    let spec = spec.map(<[u8]>::to_vec);
    EventBody::Order(PlaneOrder { plane: label(plane), actuator: label(host), name: name.into(), spec })
}

fn report(host: &str, plane: &str, name: &str) -> EventBody {
    let (plane, actuator) = (label(plane), label(host));
    EventBody::Report(PlaneReport { plane, actuator, name: name.into(), bytes: b"{}".to_vec() })
}

fn key(name: &str) -> Key {
    Key::Plane { plane: label("echo"), name: name.into() }
}

/// Hosts that speak the protocol with planes.
fn cloud() -> Cloud {
    let mut cloud = Cloud::with_switches();
    for name in ["h1", "h2"] {
        cloud.speaks(name, PLANES_SINCE);
    }
    cloud
}

#[test]
fn each_host_has_what_is_ordered_for_it_and_the_newest_stands() {
    let mut cloud = cloud();
    for text in [b"1", b"2"] {
        let plan = cloud.decide(order("h1", "echo", "n", Some(text))).unwrap();
        assert_eq!(lines(&plan), ["+h1 plane/echo/n"]);
        assert_eq!(cloud.entry("h1", key("n")), Some(Entry::Plane(text.to_vec())));
    }
    // The same name at another host is another thing.
    cloud.decide(order("h2", "echo", "n", Some(b"3"))).unwrap();
    assert_eq!(cloud.entry("h1", key("n")), Some(Entry::Plane(b"2".to_vec())));
    assert_eq!(cloud.entry("h2", key("n")), Some(Entry::Plane(b"3".to_vec())));
    let found = orders_of(&cloud.store, &label("h1"));
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0.as_str(), found[0].1.as_str(), &found[0].2.spec[..]), ("echo", "n", &b"2"[..]));
    assert_eq!(order_of(&cloud.store, &label("h1"), &label("echo"), "n").as_ref(), Some(&found[0].2));
    assert_eq!(lines(&cloud.decide(order("h1", "echo", "n", None)).unwrap()), ["-h1 plane/echo/n"]);
    let said = cloud.decide(order("h1", "echo", "n", None)).unwrap_err().to_string();
    assert!(said.contains("nothing is ordered under this name"), "{said}");
}

#[test]
fn who_cannot_read_it_is_not_told_until_it_can() {
    let mut cloud = cloud();
    let plan = cloud.decide(order("h3", "echo", "n", Some(b"1"))).unwrap();
    assert_eq!(lines(&plan), Vec::<String>::new());
    cloud.speaks("h3", PLANES_SINCE - 1);
    assert_eq!(cloud.entry("h3", key("n")), None);
    let plan = cloud.speaks("h3", PLANES_SINCE);
    assert!(lines(&plan).contains(&"+h3 plane/echo/n".to_string()), "{:?}", lines(&plan));
    // An older release is there again: it is asked for nothing that it cannot read.
    let plan = cloud.speaks("h3", PLANES_SINCE - 1);
    assert!(lines(&plan).contains(&"-h3 plane/echo/n".to_string()), "{:?}", lines(&plan));
}

#[test]
fn what_cannot_be_ordered_is_refused_and_orders_go_with_their_host() {
    let mut cloud = cloud();
    let said = |cloud: &mut Cloud, body| cloud.decide(body).unwrap_err().to_string();
    assert!(said(&mut cloud, order("h9", "echo", "n", Some(b"1"))).contains("no actuator of this name"));
    assert!(said(&mut cloud, order("h1", "echo", "", Some(b"1"))).contains("1 to 255 bytes"));
    assert!(said(&mut cloud, order("h1", "echo", "a\0b", Some(b"1"))).contains("no control characters"));
    let large = vec![b' '; SPEC_BYTES_MAX + 1];
    assert!(said(&mut cloud, order("h1", "echo", "n", Some(&large))).contains("131072"));
    // At its bounds it is taken.
    cloud.decide(order("h1", "echo", &"n".repeat(NAME_BYTES_MAX), Some(&large[1..]))).unwrap();
    for number in 1..ORDERS_MAX {
        cloud.decide(order("h1", "echo", &number.to_string(), Some(b"1"))).unwrap();
    }
    assert!(said(&mut cloud, order("h1", "echo", "one more", Some(b"1"))).contains("orders of echo at h1"));
    cloud.decide(order("h1", "echo", "1", Some(b"2"))).unwrap();
    for number in 1..PLANES_MAX {
        cloud.decide(order("h1", &format!("plane-{number}"), "n", Some(b"1"))).unwrap();
    }
    assert!(said(&mut cloud, order("h1", "one-more", "n", Some(b"1"))).contains("planes of h1"));
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(orders_of(&cloud.store, &label("h1")), Vec::new());
}

#[test]
fn the_newest_report_is_kept_within_bounds() {
    let mut cloud = cloud();
    cloud.now_ms = 7_000;
    cloud.decide(report("h1", "echo", "n")).unwrap();
    cloud.now_ms = 8_000;
    cloud.decide(report("h1", "echo", "n")).unwrap();
    let kept = reports_of(&cloud.store, &label("h1"));
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].2, Reported { bytes: b"{}".to_vec(), told_ms: 8_000 });
    for number in 1..REPORTS_MAX {
        cloud.decide(report("h1", "echo", &number.to_string())).unwrap();
    }
    let said = cloud.decide(report("h1", "echo", "more")).unwrap_err().to_string();
    assert!(said.contains("names of echo that h1 reports of"), "{said}");
    for number in 1..PLANES_MAX {
        cloud.decide(report("h1", &format!("plane-{number}"), "n")).unwrap();
    }
    assert!(cloud.decide(report("h1", "one-more", "n")).unwrap_err().to_string().contains("planes of h1"));
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(reports_of(&cloud.store, &label("h1")), Vec::new());
    assert!(cloud.decide(report("h1", "echo", "n")).is_err());
}
