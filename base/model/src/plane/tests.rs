use super::*;
use crate::event::{Apply, EventBody, SourceId, Transaction};
use crate::{Entry, Key};

fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

#[test]
fn bounds_are_told_with_what_is_right() {
    let order = |name: &str, bytes| PlaneOrder {
        plane: label("echo"),
        actuator: label("h1"),
        name: name.into(),
        spec: Some(vec![b' '; bytes]),
    };
    assert_eq!(order(&"x".repeat(NAME_BYTES_MAX), SPEC_BYTES_MAX).problem(), None);
    for (name, bytes) in [("", 0), (&"x".repeat(256), 0), ("two\nlines", 0), ("x", SPEC_BYTES_MAX + 1)] {
        assert!(order(name, bytes).problem().is_some(), "{name:?} {bytes}");
    }
    let report = |bytes| PlaneReport {
        plane: label("echo"),
        actuator: label("h1"),
        name: "x".into(),
        bytes: vec![0; bytes],
    };
    assert_eq!(report(REPORT_BYTES_MAX).problem(), None);
    assert!(report(REPORT_BYTES_MAX + 1).problem().is_some());
}

#[test]
fn an_entry_at_its_bounds_fits_and_one_beyond_does_not() {
    let key = |name: String| Key::Plane { plane: label("echo"), name };
    assert!(Entry::Plane(vec![0; SPEC_BYTES_MAX]).fits(&key("x".repeat(NAME_BYTES_MAX))));
    assert!(!Entry::Plane(vec![0; SPEC_BYTES_MAX + 1]).fits(&key("x".into())));
    assert!(!Entry::Plane(vec![]).fits(&key(String::new())));
    assert!(!Entry::Sought.fits(&key("x".into())));
    assert_eq!(key("a b".into()).to_string(), "plane/echo/a b");
}

#[test]
fn a_plane_is_a_source_of_its_own() {
    let source = SourceId::of_plane(&label("h1"), &label("echo"));
    assert_eq!(source.plane(), Some((label("h1"), label("echo"))));
    assert_eq!(source.short(), "h1/echo");
    for other in [SourceId::of_actuator(&label("h1")), SourceId::of_controller(&label("c1"))] {
        assert_eq!(other.plane(), None);
    }
    assert_eq!(SourceId("actuator/h1/echo/more".into()).plane(), None);
    assert_eq!(SourceId("actuator//echo".into()).plane(), None);
}

#[test]
fn orders_and_reports_survive_the_wire() {
    let order = PlaneOrder {
        plane: label("echo"),
        actuator: label("h1"),
        name: "n".into(),
        spec: Some(b"{}".to_vec()),
    };
    let report =
        PlaneReport { plane: label("echo"), actuator: label("h1"), name: "n".into(), bytes: b"1".to_vec() };
    let change = OrderChange { order: order.clone(), expected: Some(Version(7)) };
    let apply =
        Apply { resources: Transaction { mutations: Vec::new(), replace_all: true }, orders: vec![change] };
    for body in [EventBody::Order(order), EventBody::Report(report), EventBody::Apply(apply)] {
        let bytes = weir_base::codec::encode(&body);
        assert_eq!(weir_base::codec::decode::<EventBody>(&bytes).unwrap(), body);
    }
}

#[test]
fn an_apply_keeps_its_bytes() {
    let order = PlaneOrder {
        plane: label("echo"),
        actuator: label("h1"),
        name: "n".into(),
        spec: Some(b"{}".to_vec()),
    };
    let apply = Apply {
        resources: Transaction { mutations: Vec::new(), replace_all: true },
        orders: vec![OrderChange { order, expected: Some(Version(7)) }],
    };
    // The place of the variant, no mutations, all is replaced, one order.
    let bytes = b"\x0f\x00\x01\x01\x04echo\x02h1\x01n\x01\x02{}\x01\x07";
    assert_eq!(weir_base::codec::encode(&EventBody::Apply(apply)), bytes);
}
