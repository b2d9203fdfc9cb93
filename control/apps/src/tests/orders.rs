//! Planes whose specifications are ordered as they are.

use super::*;
use weir_model::entry::member_bucket;
use weir_model::event::Apply;
use weir_model::plane::{
    NAME_BYTES_MAX, ORDERS_MAX, OrderChange, PlaneOrder, PlaneReport, REPORTS_MAX, SPEC_BYTES_MAX,
};
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

/// A host without a switch has what is ordered of its planes and nothing else, and no switch is told of it.
#[test]
fn a_host_without_a_switch_is_told_of_planes_alone() {
    let mut cloud = cloud();
    for name in ["g1", "g2"] {
        cloud.speaks(name, PLANES_SINCE);
    }
    assert_eq!(cloud.join("h9", Role::Planes, 9), Plan::default());
    assert_eq!(cloud.speaks("h9", PLANES_SINCE), Plan::default());
    let address = [10, 0, 0, 9].into();
    let listed = cloud.entry("h1", Key::Switches { bucket: member_bucket(address) });
    assert!(!matches!(listed, Some(Entry::Switches(all)) if all.contains(&address)));
    assert_eq!(lines(&cloud.decide(order("h9", "echo", "n", Some(b"1"))).unwrap()), ["+h9 plane/echo/n"]);
    let others =
        |plan: &Plan| lines(plan).into_iter().filter(|line| line.contains("h9 ")).collect::<Vec<_>>();
    let plan =
        cloud.apply(json!([network("red"), subnet("red", "10.0.0.0/24"), endpoint("red", "web", "h9")]));
    assert_eq!(others(&plan), Vec::<String>::new());
    assert_eq!(others(&cloud.join("g3", Role::Gateway, 103)), Vec::<String>::new());
    let other = cloud.decide(EventBody::Joined(ActuatorFacts {
        name: label("h9"),
        role: Role::Host,
        identity: [9; 32],
        underlay: [10, 0, 0, 9].into(),
    }));
    assert!(other.unwrap_err().to_string().contains("in another role"));
    let gone = cloud.decide(EventBody::Removed { actuator: label("h9") }).unwrap();
    assert_eq!(lines(&gone), Vec::<String>::new());
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

/// Orders at hosts with the versions that they expect, beside resources.
fn apply(resources: Vec<Mutation>, orders: &[(EventBody, Option<u64>)], replace_all: bool) -> EventBody {
    let changes = orders.iter().map(|(body, expected)| match body {
        EventBody::Order(order) => OrderChange { order: order.clone(), expected: expected.map(Version) },
        other => panic!("{other:?}"),
    });
    let orders = changes.collect();
    EventBody::Apply(Apply { resources: Transaction { mutations: resources, replace_all }, orders })
}

/// What is ordered at all hosts: host, name and specification.
fn standing(cloud: &Cloud) -> Vec<String> {
    let line = |(host, _, name, ordered): (Label, Label, String, Ordered)| {
        format!("{host} {name} {}", String::from_utf8(ordered.spec).unwrap())
    };
    all_orders(&cloud.store).into_iter().map(line).collect()
}

#[test]
fn resources_and_orders_change_together_or_not_at_all() {
    let mut cloud = cloud();
    let network = || mutation(&json!({"kind": "network", "name": "red"}));
    let orders =
        [(order("h1", "echo", "a", Some(b"1")), Some(0)), (order("h2", "echo", "a", Some(b"2")), None)];
    let plan = cloud.decide(apply(vec![network()], &orders, false)).unwrap();
    let made = lines(&plan);
    for line in ["+h1 plane/echo/a", "+h2 plane/echo/a"] {
        assert!(made.contains(&line.to_string()), "{made:?}");
    }
    assert_eq!(standing(&cloud), ["h1 a 1", "h2 a 2"]);
    assert!(resource(&cloud.store, &network().id).is_some());
    let before = order_of(&cloud.store, &label("h1"), &label("echo"), "a").unwrap();
    // What is as it is wanted keeps its version, and leads to nothing.
    let plan = cloud.decide(apply(vec![network()], &orders[1..], false)).unwrap();
    assert_eq!(lines(&plan), Vec::<String>::new());
    let same = [(order("h1", "echo", "a", Some(b"1")), Some(before.version.0))];
    cloud.decide(apply(Vec::new(), &same, false)).unwrap();
    assert_eq!(order_of(&cloud.store, &label("h1"), &label("echo"), "a"), Some(before.clone()));
    // One thing is wrong, and nothing is done.
    let absent = || Mutation { id: network().id, expected: None, wanted: Wanted::Absent };
    let other = order("h1", "echo", "b", Some(b"3"));
    let cases = [
        (order("h1", "echo", "a", Some(b"9")), Some(0), "echo/h1/a"),
        (order("h1", "echo", "a", None), Some(before.version.0 + 1), "echo/h1/a"),
        (order("h9", "echo", "a", Some(b"9")), None, "no host or gateway 'h9' has joined"),
        (order("h1", "echo", "b", Some(b"9")), None, "it is named twice"),
        (order("h1", "echo", "", Some(b"9")), None, "1 to 255 bytes"),
    ];
    for (wrong, expected, said) in cases {
        let orders = [(other.clone(), None), (wrong, expected)];
        let told = cloud.decide(apply(vec![absent()], &orders, false)).unwrap_err().to_string();
        assert!(told.contains(said), "{told}");
        assert_eq!(standing(&cloud), ["h1 a 1", "h2 a 2"]);
        assert!(resource(&cloud.store, &network().id).is_some());
    }
    // So it is the other way round.
    let route =
        json!({"kind": "route", "network": "blue", "name": "r", "prefix": "10.0.0.0/8", "nextHop": "drop"});
    let unplaced = mutation(&route);
    assert!(cloud.decide(apply(vec![unplaced], &[(other, None)], false)).is_err());
    assert_eq!(standing(&cloud), ["h1 a 1", "h2 a 2"]);
    // To withdraw what nobody has is done, also at a host that is gone.
    let gone = [(order("h1", "echo", "a", None), None), (order("h9", "echo", "a", None), Some(0))];
    assert_eq!(lines(&cloud.decide(apply(Vec::new(), &gone, false)).unwrap()), ["-h1 plane/echo/a"]);
    assert_eq!(standing(&cloud), ["h2 a 2"]);
}

#[test]
fn a_full_update_withdraws_what_it_does_not_name_and_an_old_one_does_not() {
    let mut cloud = cloud();
    for (host, name) in [("h1", "a"), ("h1", "b"), ("h2", "a")] {
        cloud.decide(order(host, "echo", name, Some(b"1"))).unwrap();
    }
    cloud.decide(order("h2", "other", "a", Some(b"1"))).unwrap();
    // As it is in logs: of networks alone.
    cloud.decide(EventBody::Intent(Transaction { mutations: Vec::new(), replace_all: true })).unwrap();
    assert_eq!(standing(&cloud).len(), 4);
    let kept = [(order("h1", "echo", "b", Some(b"2")), None)];
    let mut gone = lines(&cloud.decide(apply(Vec::new(), &kept, true)).unwrap());
    gone.sort_unstable();
    assert_eq!(gone, ["+h1 plane/echo/b", "-h1 plane/echo/a", "-h2 plane/echo/a", "-h2 plane/other/a"]);
    assert_eq!(standing(&cloud), ["h1 b 2"]);
}

#[test]
fn what_goes_makes_room_for_what_comes() {
    let mut cloud = cloud();
    let all = |from: usize| -> Vec<(EventBody, Option<u64>)> {
        (from..from + ORDERS_MAX).map(|n| (order("h1", "echo", &n.to_string(), Some(b"1")), None)).collect()
    };
    cloud.decide(apply(Vec::new(), &all(0), false)).unwrap();
    let said = cloud.decide(apply(Vec::new(), &all(1), false)).unwrap_err().to_string();
    assert!(said.contains("orders of echo at h1"), "{said}");
    let mut moved = all(1);
    moved.push((order("h1", "echo", "0", None), None));
    cloud.decide(apply(Vec::new(), &moved, false)).unwrap();
    cloud.decide(apply(Vec::new(), &all(ORDERS_MAX), true)).unwrap();
    assert_eq!(standing(&cloud).len(), ORDERS_MAX);
    let many = vec![(order("h1", "echo", "x", None), None); weir_model::event::MUTATIONS_MAX + 1];
    assert!(
        cloud
            .decide(apply(Vec::new(), &many, false))
            .unwrap_err()
            .to_string()
            .contains("changes of a request")
    );
}
