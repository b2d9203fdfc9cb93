//! Learned networks: packets in, locations and questions out.

use super::*;
use std::net::IpAddr;
use weir_model::MacAddr;
use weir_model::packet_in::{PACKETS_IN_MAX, PacketIn, PacketInReport, Why};

fn blue() -> Value {
    json!([with(network("blue"), json!({"forwarding": "learned"})), subnet("blue", "10.0.0.0/24")])
}

/// a (.2) on h1, b (.3) on h2, c (.4) on h3.
fn cloud_with_three() -> Cloud {
    let mut cloud = Cloud::with_switches();
    cloud.apply(blue());
    let three = [("a", "h1"), ("b", "h2"), ("c", "h3")];
    cloud.apply(Value::Array(three.map(|(name, host)| endpoint("blue", name, host)).to_vec()));
    cloud
}

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

impl Cloud {
    fn packet(&self, from: &str, why: Why, to: Option<u8>) -> PacketIn {
        let allocated = self.stored(&format!("endpoint/blue/{from}")).allocated;
        PacketIn {
            endpoint: label(from),
            why,
            source_mac: allocated.mac.unwrap(),
            source: Some(allocated.addresses[0]),
            destination: to.map(ip),
            protocol: 1,
            ports: (0, 0),
        }
    }

    fn tell(&mut self, host: &str, packets: Vec<PacketIn>) -> Result<Plan, Rejection> {
        self.decide(EventBody::PacketIn(PacketInReport { actuator: label(host), vni: Vni(1), packets }))
    }

    fn asks(&mut self, host: &str, from: &str, to: u8) -> Plan {
        let packet = self.packet(from, Why::Unknown, Some(to));
        self.tell(host, vec![packet]).unwrap()
    }

    fn heard(&mut self, host: &str, from: &str, why: Why) -> Plan {
        let packet = self.packet(from, why, None);
        self.tell(host, vec![packet]).unwrap()
    }
}

#[test]
fn nobody_is_told_of_a_place_before_a_packet_came_from_there() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(blue());
    let plan = cloud.apply(json!([endpoint("blue", "a", "h1"), endpoint("blue", "b", "h2")]));
    let ports =
        ["h1", "h2"].map(|host| ["network/1", "policy/1"].map(|key| format!("+{host} {key}"))).concat();
    let mut wanted = [ports, vec!["+h1 port/1/a".into(), "+h2 port/1/b".into()]].concat();
    wanted.sort();
    assert_eq!(lines(&plan), wanted, "no location, at no gateway either");
    let Some(Entry::Network(entry)) = cloud.entry("h1", Key::Network { vni: Vni(1) }) else { panic!() };
    assert_eq!(entry.forwarding, weir_model::resource::Forwarding::Learned);
}

#[test]
fn an_unknown_destination_is_sought_and_who_asked_is_told_when_it_is_heard() {
    let mut cloud = cloud_with_three();
    // The question teaches the place of a, and asks only the host that may have b.
    let plan = cloud.asks("h1", "a", 3);
    assert_eq!(lines(&plan), ["+g1 location/1/10.0.0.2", "+g2 location/1/10.0.0.2", "+h2 sought/1/10.0.0.3"]);
    // The same question, and that of another host, ask nobody else.
    assert_eq!(cloud.asks("h1", "a", 3), Plan::default());
    assert_eq!(lines(&cloud.asks("h3", "c", 3)), ["+g1 location/1/10.0.0.4", "+g2 location/1/10.0.0.4"]);
    let plan = cloud.heard("h2", "b", Why::Sought);
    assert_eq!(
        lines(&plan),
        [
            "+g1 location/1/10.0.0.3",
            "+g2 location/1/10.0.0.3",
            "+h1 location/1/10.0.0.3",
            "+h3 location/1/10.0.0.3",
            "-h2 sought/1/10.0.0.3"
        ]
    );
    assert!(after(&plan, "+h1 location/1/10.0.0.3")[0].starts_with("h2 port/1/b @"));
    // b answers: a was heard already.
    assert_eq!(lines(&cloud.asks("h2", "b", 2)), ["+h2 location/1/10.0.0.2"]);
    assert_eq!(cloud.asks("h2", "b", 2), Plan::default(), "it has it");
    assert_eq!(cloud.heard("h2", "b", Why::Sought), Plan::default(), "that was known");
}

#[test]
fn an_address_that_no_endpoint_has_concerns_nobody() {
    let mut cloud = cloud_with_three();
    cloud.heard("h1", "a", Why::Heard);
    let rows = cloud.store.digest();
    assert_eq!(cloud.asks("h1", "a", 77), Plan::default());
    // Only who was seen when may have changed, and the ordered time has not.
    assert_eq!(cloud.store.digest(), rows);
}

#[test]
fn a_host_is_not_believed_about_what_is_not_its_own() {
    let mut cloud = cloud_with_three();
    cloud.apply(json!([network("red"), subnet("red", "10.0.0.0/24"), endpoint("red", "x", "h1")]));
    let before = cloud.store.digest();
    let own = cloud.packet("a", Why::Unknown, Some(3));
    let others = cloud.packet("b", Why::Heard, None);
    let refused = |cloud: &mut Cloud, host: &str, packets: Vec<PacketIn>| {
        let text = cloud.tell(host, packets).unwrap_err().to_string();
        assert_eq!(cloud.store.digest(), before);
        text
    };
    let text = refused(&mut cloud, "h1", vec![others.clone()]);
    assert!(text.contains("endpoint b is not on that host"), "{text}");
    // One that is not its own spoils the whole report.
    refused(&mut cloud, "h1", vec![own.clone(), others]);
    let stolen = PacketIn { source: Some(ip(3)), ..own.clone() };
    refused(&mut cloud, "h1", vec![stolen]);
    let forged = PacketIn { source_mac: MacAddr([2, 9, 9, 9, 9, 9]), ..own.clone() };
    refused(&mut cloud, "h1", vec![forged]);
    refused(&mut cloud, "h2", vec![own.clone()]);
    refused(&mut cloud, "g1", vec![own.clone()]);
    refused(&mut cloud, "h9", vec![own.clone()]);
    let text = refused(&mut cloud, "h1", vec![own.clone(); PACKETS_IN_MAX + 1]);
    assert!(text.contains("65 packets, 1 to 64 are allowed"), "{text}");
    refused(&mut cloud, "h1", Vec::new());
    let report = PacketInReport { actuator: label("h1"), vni: Vni(2), packets: vec![own] };
    let text = cloud.decide(EventBody::PacketIn(report)).unwrap_err().to_string();
    assert!(text.contains("no learned network"), "{text}");
    assert_eq!(cloud.store.digest(), before);
}

#[test]
fn an_endpoint_that_moves_is_unknown_until_it_is_heard_elsewhere() {
    let mut cloud = cloud_with_three();
    cloud.asks("h1", "a", 3);
    cloud.heard("h2", "b", Why::Sought);
    let plan = cloud.apply(json!([endpoint("blue", "b", "h3")]));
    let said = lines(&plan);
    for holder in ["g1", "g2", "h1"] {
        assert!(said.contains(&format!("-{holder} location/1/10.0.0.3")), "{said:?}");
    }
    assert!(after(&plan, "-h2 port/1/b").iter().any(|line| line.starts_with("h1 location/1/10.0.0.3")));
    // The old host is not believed any more.
    let packet = cloud.packet("b", Why::Heard, None);
    assert!(cloud.tell("h2", vec![packet]).is_err());
    assert_eq!(lines(&cloud.asks("h1", "a", 3)), ["+h3 sought/1/10.0.0.3"]);
    let said = lines(&cloud.heard("h3", "b", Why::Heard));
    assert!(said.contains(&"+h1 location/1/10.0.0.3".to_string()), "{said:?}");
    let Some(Entry::Location(location)) = cloud.entry("h1", Key::Location { vni: Vni(1), address: ip(3) })
    else {
        panic!("no location");
    };
    assert_eq!(location.host, label("h3"));
    assert_eq!(devices_seen(&cloud.store, Some(Vni(1)), 9).len(), 2, "it is the same device");
}

#[test]
fn a_location_that_is_not_used_goes_and_comes_again() {
    let mut cloud = cloud_with_three();
    cloud.asks("h1", "a", 3);
    cloud.heard("h2", "b", Why::Sought);
    let silent = || {
        EventBody::Usage(UsageReport {
            actuator: label("h1"),
            window_ms: 1000,
            through_gateway: vec![],
            direct: vec![],
            turns: Vec::new(),
        })
    };
    cloud.now_ms += 59_999;
    assert_eq!(cloud.decide(silent()).unwrap(), Plan::default());
    cloud.now_ms += 1;
    assert_eq!(lines(&cloud.decide(silent()).unwrap()), ["-h1 location/1/10.0.0.3"]);
    assert_eq!(lines(&cloud.asks("h1", "a", 3)), ["+h1 location/1/10.0.0.3"]);
}

#[test]
fn who_waits_too_long_is_forgotten_and_the_search_ends() {
    let mut cloud = cloud_with_three();
    cloud.asks("h1", "a", 3);
    cloud.now_ms += 29_000;
    assert_eq!(cloud.heard("h1", "a", Why::Heard), Plan::default());
    cloud.now_ms += 1_000;
    assert_eq!(lines(&cloud.heard("h1", "a", Why::Heard)), ["-h2 sought/1/10.0.0.3"]);
    assert_eq!(
        lines(&cloud.heard("h2", "b", Why::Heard)),
        ["+g1 location/1/10.0.0.3", "+g2 location/1/10.0.0.3"]
    );
}

#[test]
fn those_who_wait_are_bounded() {
    let mut cloud = cloud_with_three();
    cloud.app = Deciders::new(FabricSettings { waiting_per_network_max: 1, ..FabricSettings::default() });
    cloud.asks("h1", "a", 3);
    let packet = cloud.packet("a", Why::Unknown, Some(4));
    let text = cloud.tell("h1", vec![packet]).unwrap_err().to_string();
    assert!(text.contains("of 2 is over the limit of 1"), "{text}");
    cloud.heard("h2", "b", Why::Heard);
    assert_eq!(lines(&cloud.asks("h1", "a", 4)), ["+h3 sought/1/10.0.0.4"]);
}

#[test]
fn devices_are_seen_with_place_and_times() {
    let mut cloud = cloud_with_three();
    cloud.heard("h1", "a", Why::Heard);
    cloud.now_ms += 5_000;
    cloud.asks("h1", "a", 3);
    let seen = devices_seen(&cloud.store, Some(Vni(1)), 9);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].first_ms, seen[0].device.seen_ms), (1_000, 6_000));
    assert_eq!(seen[0].host, Some(label("h1")));
    assert_eq!(seen[0].device.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.2"]);
    assert!(devices_seen(&cloud.store, Some(Vni(2)), 9).is_empty());
    cloud.decide(EventBody::Removed { actuator: label("h1") }).unwrap();
    assert_eq!(devices_seen(&cloud.store, None, 9)[0].host, None);
}

#[test]
fn what_was_learned_goes_with_its_endpoint_and_network() {
    let mut cloud = Cloud::with_switches();
    cloud.apply(blue());
    cloud.apply(json!([endpoint("blue", "a", "h1"), endpoint("blue", "b", "h2")]));
    cloud.asks("h1", "a", 3);
    let rows = |cloud: &Cloud| {
        let of = [
            tables::LEARNED,
            tables::WAITING,
            tables::SOUGHT,
            tables::DEVICES_SEEN,
            tables::DEVICE_MACS,
            tables::DEVICE_ADDRESSES,
            tables::DEVICE_FIRST,
            tables::OFFLOADS,
            tables::HOST_OFFLOADS,
        ];
        of.map(|table| cloud.store.scan(table, b"").count())
    };
    assert_eq!(rows(&cloud), [1, 1, 1, 1, 1, 1, 1, 0, 0]);
    let plan = cloud.try_delete(&["endpoint/blue/b"]).unwrap();
    assert!(lines(&plan).contains(&"-h2 sought/1/10.0.0.3".to_string()), "{:?}", lines(&plan));
    assert_eq!(rows(&cloud), [1, 0, 0, 1, 1, 1, 1, 0, 0]);
    cloud.try_delete(&["endpoint/blue/a"]).unwrap();
    assert_eq!(rows(&cloud), [0; 9]);
    cloud.try_delete(&["subnet/blue/main", "network/blue"]).unwrap();
    assert_eq!(cloud.store.scan(tables::DEVICE_COUNTERS, b"").count(), 0);
}

#[test]
fn forwarding_changes_only_while_no_endpoint_is_there() {
    let mut cloud = cloud_with_three();
    let text = cloud.rejected(json!([network("blue")]));
    assert!(text.contains("its forwarding changes only while no endpoint is in it"), "{text}");
    cloud.try_delete(&["endpoint/blue/a", "endpoint/blue/b", "endpoint/blue/c"]).unwrap();
    cloud.apply(json!([network("blue")]));
    cloud.apply(blue());
}
