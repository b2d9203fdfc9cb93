use super::*;
use crate::testing::{MAC, VNI, label, network, port_entry};
use weir_model::entry::Vni;
use weir_model::event::Role;
use weir_model::{Entry, MacAddr, Version};

fn answerer() -> Answerer {
    let shared = Shared::new(label("host-1"));
    shared.change_mirror(|mirror| {
        mirror.apply(&Key::Network { vni: VNI }, Version(1), Some(&Entry::Network(network("red"))));
        mirror.apply(&key(), Version(1), Some(&Entry::Port(port_entry(&["10.0.0.5", "fd00:a::5"]))));
    });
    shared.set_synced();
    let settings = dns::Settings { role: Role::Host, gateway_port: 4053, underlay: None, upstream: vec![] };
    Answerer::new(Arc::new(shared), settings)
}

fn key() -> Key {
    Key::Port { vni: VNI, endpoint: label("web") }
}

/// A query for `web.red.weir.internal`.
const QUERY: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03web\x03red\x04weir\x08internal\x00\x00\x01\x00\x01";

fn query_frame(source: &str, destination: &str) -> Vec<u8> {
    UdpFrame {
        source_mac: MAC,
        destination_mac: VNI.router_mac(),
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        source_port: 4000,
        destination_port: 53,
        payload: QUERY,
    }
    .build()
    .unwrap()
}

#[test]
fn a_query_to_any_of_the_routers_addresses_is_answered_from_there() {
    let answerer = answerer();
    for (source, destination) in
        [("10.0.0.5", "10.0.0.1"), ("fd00:a::5", "fd00:a::1"), ("fe80::5", "fe80::1")]
    {
        let Outcome::Answer(frame) = answerer.answer(&key(), &query_frame(source, destination)) else {
            panic!("{destination}")
        };
        let reply = parse_udp(&frame).unwrap();
        assert_eq!(
            (reply.source.to_string(), reply.destination.to_string()),
            (destination.into(), source.into())
        );
        assert_eq!((reply.source_port, reply.destination_port), (53, 4000));
        assert_eq!((reply.source_mac, reply.destination_mac), (VNI.router_mac(), MAC));
    }
}

#[test]
fn what_is_not_the_endpoints_or_not_for_us_is_dropped_and_counted() {
    let answerer = answerer();
    let nothing = |key: &Key, frame: &[u8]| assert!(matches!(answerer.answer(key, frame), Outcome::Nothing));
    nothing(&key(), &query_frame("10.0.0.6", "10.0.0.1"));
    nothing(&key(), &query_frame("10.0.0.5", "10.0.0.9"));
    nothing(&key(), b"short");
    nothing(&Key::Port { vni: Vni(9), endpoint: label("web") }, &query_frame("10.0.0.5", "10.0.0.1"));
    nothing(&Key::Gateways, &query_frame("10.0.0.5", "10.0.0.1"));
    let metrics = &answerer.shared.metrics;
    let counted = [
        &metrics.punt_spoofed,
        &metrics.punt_unknown_service,
        &metrics.punt_malformed,
        &metrics.punt_unknown_port,
    ];
    assert_eq!(counted.map(|number| number.get()), [1, 1, 1, 2]);
}

#[test]
fn any_datagram_and_any_frame_is_survived() {
    // A panic ends the test, so nobody sees what it left.
    let answerer = std::panic::AssertUnwindSafe(answerer());
    let seed = query_frame("10.0.0.5", "10.0.0.1");
    bolero::check!().for_each(|bytes: &[u8]| {
        let answerer = &answerer;
        let _ = decode::<Punt>(bytes);
        let _ = answerer.answer(&key(), bytes);
        let mutated: Vec<u8> =
            seed.iter().zip(bytes.iter().chain(std::iter::repeat(&0))).map(|(a, b)| a ^ b).collect();
        let _ = answerer.answer(&key(), &mutated);
        for (port, family) in [(67, "10.0.0.5"), (547, "fe80::5"), (53, "10.0.0.5")] {
            let frame = UdpFrame {
                source_mac: MAC,
                destination_mac: MacAddr::BROADCAST,
                source: family.parse().unwrap(),
                destination: if family.contains(':') { "ff02::1:2" } else { "10.0.0.1" }.parse().unwrap(),
                source_port: if port == 67 { 68 } else { 546 },
                destination_port: port,
                payload: bytes,
            };
            if let Outcome::Answer(reply) = answerer.answer(&key(), &frame.build().unwrap()) {
                assert!(parse_udp(&reply).is_ok());
            }
        }
    });
}
