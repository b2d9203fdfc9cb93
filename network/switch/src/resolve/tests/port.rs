//! Frames from an endpoint.

use super::*;
use weir_model::MacAddr;
use weir_model::entry::{RouteHop, Vni};
use weir_model::resource::Protocol;

fn any() -> Vec<weir_model::entry::Rule> {
    vec![allow_in("all", Protocol::Any, None)]
}

fn a_to(destination: &str) -> Packet {
    udp((ip("10.0.0.5"), 1000), (ip(destination), 2000), 10).from(mac(5))
}

#[test]
fn a_neighbour_here_gets_it_from_the_router_with_the_same_ttl() {
    let mut switch = host(any());
    let event = switch.at_port(1, "a", &a_to("10.0.0.6").build());
    let b = switch.port_index(1, "b");
    let Event::Delivered(port, frame) = &event else { panic!("{event:?}") };
    assert_eq!(*port, b);
    assert_eq!((&frame[..6], &frame[6..12]), (&mac(6).0[..], &Vni(1).router_mac().0[..]));
    assert_eq!(ttl_of(frame), 64);
    check(frame);
}

#[test]
fn the_way_back_to_a_neighbour_is_installed_as_it_would_be_resolved() {
    let mut switch = host(any());
    switch.at_port(1, "a", &a_to("10.0.0.6").build());
    switch.at_port(1, "a", &a_to("10.0.1.7").build());
    let back =
        |source: &str, last| udp((ip(source), 2000), (ip("10.0.0.5"), 1000), 10).from(mac(last)).build();
    let near = switch.at_port(1, "b", &back("10.0.0.6", 6));
    let far = switch.at_port(1, "c", &back("10.0.1.7", 7));
    assert_eq!((ttl_of(near.frame()), ttl_of(far.frame())), (64, 63));
    assert_eq!((&near.frame()[..6], switch.misses), (&mac(5).0[..], 2));
}

#[test]
fn the_peers_own_address_works_as_well_as_the_routers() {
    let mut switch = host(any());
    let event = switch.at_port(1, "a", &a_to("10.0.0.6").to(mac(6)).build());
    assert!(matches!(event, Event::Delivered(..)));
}

#[test]
fn between_subnets_the_ttl_goes_down_and_may_end() {
    let mut switch = host(any());
    let event = switch.at_port(1, "a", &a_to("10.0.1.7").build());
    assert_eq!(ttl_of(event.frame()), 63);
    check(event.frame());
    let event = switch.at_port(1, "a", &a_to("10.0.1.7").ttl(1).build());
    let Event::Answered(answer) = &event else { panic!("{event:?}") };
    let parsed = weir_packet::parse(answer).unwrap();
    assert_eq!((parsed.icmp_type, std::net::IpAddr::from(parsed.source)), (11, ip("10.0.0.1")));
    assert_eq!(switch.count("drops{reason=\"ttl-expired\"}"), 1);
    let event = switch.at_port(1, "a", &a_to("10.0.0.6").ttl(1).build());
    assert!(matches!(event, Event::Delivered(..)), "inside the subnet it does not");
}

#[test]
fn a_located_address_goes_to_its_host_and_others_to_the_gateway() {
    let mut switch = host(any());
    let event = switch.at_port(1, "a", &a_to("10.0.0.9").build());
    let Event::Sent { receiver, vni: 1, by_gateway: false, frame, token, .. } = &event else {
        panic!("{event:?}")
    };
    assert_eq!(*receiver, ip(OTHER_HOST));
    assert_eq!(&frame[..6], &mac(9).0);
    assert_eq!(*token, weir_trust::token::TokenKey::new(SECRET).token(1, ip(HOST)));
    for unknown in ["10.0.0.77", "10.0.1.77", "8.8.8.8"] {
        let event = switch.at_port(1, "a", &a_to(unknown).build());
        let Event::Sent { receiver, by_gateway: true, .. } = &event else { panic!("{event:?}") };
        assert_eq!(*receiver, ip(GATEWAY));
    }
}

#[test]
fn without_a_way_it_is_dropped_and_told() {
    let mut switch = host(any());
    switch.apply(&network(1, network_entry("red", false)));
    let frame = a_to("8.8.8.8").build();
    let event = switch.at_port(1, "a", &frame);
    let parsed = weir_packet::parse(event.frame()).unwrap();
    assert_eq!((parsed.icmp_type, parsed.icmp_code), (3, 0));
    assert_eq!(switch.at_port(1, "a", &frame), dropped("no-route"), "the next ones by the flow table");
    assert_eq!(switch.count("drops{reason=\"no-route\"}"), 2);
    switch.apply(&gateways(&[]));
    assert_eq!(switch.at_port(1, "a", &a_to("10.0.0.77").build()), dropped("no-gateway"));
    switch.apply(&location(1, "10.0.0.77", 77, OTHER_HOST));
    assert!(matches!(switch.at_port(1, "a", &a_to("10.0.0.77").build()), Event::Sent { .. }));
}

#[test]
fn routes_lead_to_endpoints_outside_or_nowhere() {
    let mut switch = host(any());
    switch.apply_all(&[
        route(1, "to-b", "172.16.0.0/16", RouteHop::Address(ip("10.0.0.6"))),
        route(1, "far", "172.17.0.0/16", RouteHop::Address(ip("10.0.0.9"))),
        route(1, "unknown", "172.18.0.0/16", RouteHop::Address(ip("10.0.0.78"))),
        route(1, "out", "172.19.0.0/16", RouteHop::External),
        route(1, "hole", "172.16.9.0/24", RouteHop::Drop),
    ]);
    let b = switch.port_index(1, "b");
    assert!(matches!(switch.at_port(1, "a", &a_to("172.16.0.1").build()), Event::Delivered(p, _) if p == b));
    let far = switch.at_port(1, "a", &a_to("172.17.0.1").build());
    assert!(matches!(far, Event::Sent { receiver, by_gateway: false, .. } if receiver == ip(OTHER_HOST)));
    for gateway in ["172.18.0.1", "172.19.0.1"] {
        let event = switch.at_port(1, "a", &a_to(gateway).build());
        assert!(matches!(event, Event::Sent { by_gateway: true, .. }), "{event:?}");
    }
    let hole = Event::Dropped("drops{reason=\"route\",network=\"red\",route=\"hole\"}".to_string());
    assert_eq!(switch.at_port(1, "a", &a_to("172.16.9.1").build()), hole);
    assert_eq!(switch.at_port(1, "b", &a_to("172.16.0.1").from(mac(6)).build()), dropped("spoofed-source"));
    let back = udp((ip("10.0.0.6"), 1), (ip("172.16.0.1"), 2), 1).from(mac(6));
    assert_eq!(switch.at_port(1, "b", &back.build()), dropped("to-self"), "a route to itself");
}

#[test]
fn an_endpoint_that_routes_lead_to_may_speak_for_them() {
    let mut switch = host(any());
    let spoken = udp((ip("172.16.0.1"), 1), (ip("10.0.0.5"), 2), 1).from(mac(6)).build();
    assert_eq!(switch.at_port(1, "b", &spoken), dropped("spoofed-source"));
    switch.apply(&route(1, "to-b", "172.16.0.0/16", RouteHop::Address(ip("10.0.0.6"))));
    assert!(matches!(switch.at_port(1, "b", &spoken), Event::Delivered(..)));
    let by_another = udp((ip("172.16.0.1"), 1), (ip("10.0.0.6"), 2), 1).from(mac(5)).build();
    assert_eq!(switch.at_port(1, "a", &by_another), dropped("spoofed-source"));
    switch.apply(&route(1, "all-to-b", "0.0.0.0/0", RouteHop::Address(ip("10.0.0.6"))));
    let neighbour = udp((ip("10.0.0.5"), 1), (ip("10.0.1.7"), 2), 1).from(mac(6)).build();
    assert_eq!(switch.at_port(1, "b", &neighbour), dropped("spoofed-source"), "not for another port here");
    let router = udp((ip("10.0.0.1"), 1), (ip("10.0.1.7"), 2), 1).from(mac(6)).build();
    assert_eq!(switch.at_port(1, "b", &router), dropped("spoofed-source"), "not for the router");
}

#[test]
fn what_an_endpoint_must_not_send_is_dropped_under_its_reason() {
    let mut switch = host(any());
    let mut drop = |packet: Packet, reason: &str| {
        assert_eq!(switch.at_port(1, "a", &packet.build()), dropped(reason), "{packet:?}");
    };
    drop(a_to("10.0.0.6").from(mac(6)), "spoofed-mac");
    drop(udp((ip("10.0.0.6"), 1), (ip("10.0.0.9"), 2), 1).from(mac(5)), "spoofed-source");
    drop(udp((ip("fd00::6"), 1), (ip("fd00::9"), 2), 1).from(mac(5)), "spoofed-source");
    drop(udp((ip("fe80::1"), 1), (ip("fd00::9"), 2), 1).from(mac(5)), "spoofed-source");
    drop(udp((ip("fe80::aa"), 1), (ip("fd00::9"), 2), 1).from(mac(5)), "link-local");
    drop(udp((ip("fd00::5"), 1), (ip("fe80::bb"), 2), 1).from(mac(5)), "link-local");
    drop(a_to("169.254.169.254"), "link-local");
    drop(a_to("224.0.0.251").to(MacAddr([1, 0, 0x5e, 0, 0, 0xfb])), "multicast");
    drop(a_to("255.255.255.255").to(MacAddr::BROADCAST), "broadcast");
    drop(a_to("10.0.0.255").to(MacAddr::BROADCAST), "broadcast");
    drop(a_to("10.0.0.6").to(MacAddr::BROADCAST), "broadcast");
    drop(a_to("127.0.0.1"), "bad-destination");
    drop(a_to("10.0.0.5"), "to-self");
    let mut tagged = a_to("10.0.0.6").build();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(switch.at_port(1, "a", &tagged), dropped("vlan-tagged"));
    let mut other = a_to("10.0.0.6").build();
    other[12..14].copy_from_slice(&[0x88, 0xcc]);
    assert_eq!(switch.at_port(1, "a", &other), dropped("not-ip"));
    let event = switch.at_port(1, "a", &a_to("10.0.0.6").build()[..30]);
    assert_eq!(event, Event::Dropped("drops{reason=\"malformed\",error=\"ipv4_truncated\"}".to_string()));
}

#[test]
fn a_spoofed_ethernet_address_does_not_poison_the_flow() {
    let mut switch = host(any());
    switch.at_port(1, "a", &a_to("10.0.0.6").from(mac(6)).build());
    assert!(matches!(switch.at_port(1, "a", &a_to("10.0.0.6").build()), Event::Delivered(..)));
}

#[test]
fn too_large_packets_are_answered_with_the_size_that_fits() {
    let mut switch = host(any());
    for (source, destination, kind) in
        [("10.0.0.5", "10.0.0.9", 3), ("fd00::5", "fd00::9", 2), ("10.0.0.5", "10.0.0.6", 3)]
    {
        let large = udp((ip(source), 1), (ip(destination), 2), 1373).from(mac(5));
        let event = switch.at_port(1, "a", &large.build());
        let Event::Answered(answer) = &event else { panic!("{event:?}") };
        let parsed = weir_packet::parse(answer).unwrap();
        check(answer);
        assert_eq!(parsed.icmp_type, kind);
        let mtu = u16::from_be_bytes(answer[parsed.l4_offset + 6..parsed.l4_offset + 8].try_into().unwrap());
        assert_eq!(mtu, 1400);
    }
    let fits = udp((ip("10.0.0.5"), 1), (ip("10.0.0.9"), 2), 1372).from(mac(5));
    assert!(matches!(switch.at_port(1, "a", &fits.build()), Event::Sent { .. }));
}

#[test]
fn the_mss_of_a_syn_fits_the_network() {
    let mut switch = host(any());
    for (source, destination, mss) in [("10.0.0.5", "10.0.0.6", 1360), ("fd00::5", "fd00::6", 1340)] {
        switch.at_port(1, "a", &tcp((ip(source), 1), (ip(destination), 2), SYN).from(mac(5)).build());
        let of = |a: &crate::flow::Action| a.mss_max;
        assert!(switch.flows.iter().any(|((_, key), a)| key.source == ip(source).into() && of(a) == mss));
    }
}

#[test]
fn a_port_that_is_down_neither_sends_nor_receives() {
    let mut switch = host(any());
    let frame = a_to("10.0.0.6").build();
    switch.at_port(1, "a", &frame);
    let mut entry = port_entry(6, "b-1", &["10.0.0.6", "fd00::6"], &["web"]);
    entry.policy_min = weir_model::Version(9);
    switch.apply(&put(2, port_key(1, "b"), weir_model::Entry::Port(entry)));
    assert_eq!(switch.at_port(1, "a", &frame), dropped("port-down"));
    let from_b = udp((ip("10.0.0.6"), 1), (ip("10.0.0.5"), 2), 1).from(mac(6)).build();
    assert_eq!(switch.at_port(1, "b", &from_b), dropped("port-down"));
    switch.apply(&policy(1, 9, any()));
    assert!(matches!(switch.at_port(1, "a", &frame), Event::Delivered(..)));
}

#[test]
fn a_location_that_names_this_host_without_a_port_is_not_here() {
    let mut switch = host(any());
    switch.apply(&location(1, "10.0.0.80", 80, HOST));
    assert_eq!(switch.at_port(1, "a", &a_to("10.0.0.80").build()), dropped("not-here"));
    switch.apply(&port(1, "late", 80, &["10.0.0.80"], &[]));
    assert!(matches!(switch.at_port(1, "a", &a_to("10.0.0.80").build()), Event::Delivered(..)));
}
