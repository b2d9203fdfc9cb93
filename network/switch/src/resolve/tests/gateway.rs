//! A gateway: between hosts, and to the outside and back.

use super::*;
use crate::flow::Ingress;
use crate::nat::NatPool;
use std::net::IpAddr;
use weir_model::entry::RouteHop;
use weir_model::resource::Encapsulation;
use weir_packet::encap::Half;
use weir_trust::token::TokenKey;

fn outwards(port: u16, flags: u8) -> Vec<u8> {
    tcp((ip("10.0.0.5"), port), (ip("8.8.8.8"), 443), flags).build()
}

/// A packet of the outside network.
fn from_outside(switch: &mut Switch, packet: Packet) -> Event {
    switch.take(&Ingress::External, &packet.build())
}

fn addresses(frame: &[u8]) -> ((IpAddr, u16), (IpAddr, u16)) {
    let parsed = weir_packet::parse(frame).unwrap();
    ((parsed.source.into(), parsed.source_port), (parsed.destination.into(), parsed.destination_port))
}

#[test]
fn what_a_host_has_no_place_for_is_taken_to_its_host() {
    let mut switch = gateway();
    let frame = udp((ip("10.0.0.5"), 1), (ip("10.0.0.9"), 2), 5).build();
    let event = switch.at_underlay(HOST, 1, &frame);
    let Event::Sent { receiver, by_gateway: false, frame, .. } = &event else { panic!("{event:?}") };
    assert_eq!((*receiver, ttl_of(frame)), (ip(OTHER_HOST), 64));
    assert!(switch.mind.connections().is_empty(), "the hosts judge");
    switch.apply(&location(1, "10.0.0.9", 9, "192.0.2.3"));
    let moved = switch.at_underlay(HOST, 1, &udp((ip("10.0.0.5"), 1), (ip("10.0.0.9"), 2), 5).build());
    assert!(matches!(moved, Event::Sent { receiver, .. } if receiver == ip("192.0.2.3")));
}

#[test]
fn an_address_of_the_network_that_nobody_has_is_unreachable() {
    let mut switch = gateway();
    let frame = udp((ip("10.0.0.5"), 1), (ip("10.0.0.77"), 2), 5).build();
    let event = switch.at_underlay(HOST, 1, &frame);
    let Event::Answered(answer) = &event else { panic!("{event:?}") };
    let parsed = weir_packet::parse(answer).unwrap();
    assert_eq!((parsed.icmp_type, parsed.icmp_code), (3, 1));
    assert_eq!(
        (IpAddr::from(parsed.source), IpAddr::from(parsed.destination)),
        (ip("10.0.0.1"), ip("10.0.0.5"))
    );
    assert_eq!(switch.at_underlay(HOST, 1, &frame), dropped("unknown-destination"));
    assert_eq!(switch.count("drops{reason=\"unknown-destination\"}"), 2);
    switch.apply(&location(1, "10.0.0.77", 77, OTHER_HOST));
    assert!(matches!(switch.at_underlay(HOST, 1, &frame), Event::Sent { .. }));
}

#[test]
fn the_answer_of_a_gateway_reaches_the_endpoint_through_its_hosts_firewall() {
    let (mut host, mut gateway) = (host(Vec::new()), gateway());
    let frame = udp((ip("10.0.0.5"), 1), (ip("10.0.0.77"), 2), 5).from(mac(5)).build();
    let Event::Sent { frame, by_gateway: true, .. } = host.at_port(1, "a", &frame) else { panic!() };
    let Event::Answered(answer) = gateway.at_underlay(HOST, 1, &frame) else { panic!() };
    assert!(matches!(host.at_underlay(GATEWAY, 1, &answer), Event::Delivered(..)));
}

#[test]
fn a_connection_goes_out_translated_and_its_replies_come_back() {
    let mut switch = gateway();
    let event = switch.at_underlay(HOST, 1, &outwards(4000, SYN));
    let Event::External(frame) = &event else { panic!("{event:?}") };
    check(frame);
    assert_eq!(addresses(frame), ((ip("198.51.100.1"), 4000), (ip("8.8.8.8"), 443)));
    assert_eq!(ttl_of(frame), 63);
    let reply = tcp((ip("8.8.8.8"), 443), (ip("198.51.100.1"), 4000), SYN | ACK);
    let event = from_outside(&mut switch, reply.clone());
    let Event::Sent { receiver, vni: 1, frame, .. } = &event else { panic!("{event:?}") };
    check(frame);
    assert_eq!(*receiver, ip(HOST));
    assert_eq!(addresses(frame), ((ip("8.8.8.8"), 443), (ip("10.0.0.5"), 4000)));
    assert_eq!(&frame[..6], &mac(5).0);
    assert_eq!(switch.misses, 1, "both ways were installed at once");
    switch.apply(&location(1, "10.0.0.5", 5, "192.0.2.7"));
    let event = from_outside(&mut switch, reply);
    assert!(matches!(event, Event::Sent { receiver, .. } if receiver == ip("192.0.2.7")), "it moved");
    let status = switch.mind.connection_status(switch.now_ms, 10);
    assert_eq!(status[0].translated, Some((ip("198.51.100.1"), 4000)));
}

#[test]
fn udp_and_echo_of_both_families_are_translated() {
    let mut switch = gateway();
    for (inner, outer, remote) in
        [("10.0.0.5", "198.51.100.1", "8.8.8.8"), ("fd00::5", "2001:db8::1", "2001:4860::8888")]
    {
        let query = udp((ip(inner), 5000), (ip(remote), 53), 5).build();
        let event = switch.at_underlay(HOST, 1, &query);
        check(event.frame());
        assert_eq!(addresses(event.frame()).0, (ip(outer), 5000));
        let event = from_outside(&mut switch, udp((ip(remote), 53), (ip(outer), 5000), 5));
        check(event.frame());
        assert_eq!(addresses(event.frame()).1, (ip(inner), 5000));

        let event = switch.at_underlay(HOST, 1, &echo(ip(inner), ip(remote), 2000, true).build());
        check(event.frame());
        let parsed = weir_packet::parse(event.frame()).unwrap();
        assert_eq!((IpAddr::from(parsed.source), parsed.icmp_id), (ip(outer), 2000));
        let event = from_outside(&mut switch, echo(ip(remote), ip(outer), 2000, false));
        check(event.frame());
        assert_eq!(IpAddr::from(weir_packet::parse(event.frame()).unwrap().destination), ip(inner));
    }
}

/// The bytes behind the headers of a datagram, put together of its pieces.
fn joined(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = Vec::new();
    for frame in frames {
        let parsed = weir_packet::parse(frame).unwrap();
        assert_eq!(whole.len(), usize::from(parsed.fragment_offset));
        let bytes = usize::from(parsed.fragment_end - parsed.fragment_offset);
        whole.extend(&frame[parsed.end - bytes..parsed.end]);
    }
    whole
}

#[test]
fn a_fragmented_datagram_is_translated_both_ways_and_keeps_its_checksum() {
    let mut switch = gateway();
    for (inner, outer, remote) in
        [("10.0.0.5", "198.51.100.1", "8.8.8.8"), ("fd00::5", "2001:db8::1", "2001:4860::8888")]
    {
        for packet in [udp((ip(inner), 500), (ip(remote), 53), 1000), echo(ip(inner), ip(remote), 500, true)]
        {
            let packet = Packet { transport: [packet.transport.clone(), vec![7; 24]].concat(), ..packet };
            let out: Vec<Vec<u8>> = packet
                .pieces(3, 16)
                .iter()
                .map(|piece| match switch.at_underlay(HOST, 1, &piece.build()) {
                    Event::External(frame) => frame,
                    event => panic!("{event:?}"),
                })
                .collect();
            for frame in &out {
                assert_eq!(addresses(frame).0.0, ip(outer));
            }
            // Port 500 is below the range: another was written, and the checksum over all pieces is right.
            let whole = Packet::new(ip(outer), ip(remote), packet.protocol, joined(&out));
            let said = whole.transport.clone();
            let built = whole.build();
            assert_eq!(built[built.len() - said.len()..], said);
            let port = if packet.protocol == 17 { &said[..2] } else { &said[4..6] };
            let port = u16::from_be_bytes([port[0], port[1]]);
            assert!(port >= 1024);

            let reply = match packet.protocol {
                17 => udp((ip(remote), 53), (ip(outer), port), 1000),
                _ => echo(ip(remote), ip(outer), port, false),
            };
            let reply = Packet { transport: [reply.transport.clone(), vec![9; 24]].concat(), ..reply };
            let mut back = Vec::new();
            for piece in reply.pieces(4, 16) {
                let event = from_outside(&mut switch, piece);
                let Event::Sent { receiver, frame, .. } = event else { panic!("{event:?}") };
                assert_eq!((receiver, addresses(&frame).1.0), (ip(HOST), ip(inner)));
                back.push(frame);
            }
            let whole = Packet::new(ip(remote), ip(inner), packet.protocol, joined(&back));
            let said = whole.transport.clone();
            let built = whole.build();
            assert_eq!(built[built.len() - said.len()..], said);
        }
    }
    let stray = udp((ip("8.8.8.8"), 53), (ip("198.51.100.1"), 9), 1000).pieces(9, 256);
    assert_eq!(from_outside(&mut switch, stray[0].clone()), dropped("no-connection"));
    assert_eq!(from_outside(&mut switch, stray[1].clone()), dropped("no-connection"));
    let early = udp((ip("8.8.8.8"), 53), (ip("198.51.100.1"), 9), 1000).pieces(10, 256);
    assert_eq!(from_outside(&mut switch, early[1].clone()), dropped("fragment-early"));
}

#[test]
fn two_tenants_with_the_same_addresses_stay_apart_outside() {
    let mut switch = gateway();
    switch.apply_all(&[network(2, network_entry("blue", true)), location(2, "10.0.0.5", 5, "192.0.2.22")]);
    let red = switch.at_underlay(HOST, 1, &outwards(4000, SYN));
    let blue = switch.at_underlay("192.0.2.22", 2, &outwards(4000, SYN));
    let (red, blue) = (addresses(red.frame()).0, addresses(blue.frame()).0);
    assert_ne!(red, blue);
    for (external, vni, host) in [(red, 1, HOST), (blue, 2, "192.0.2.22")] {
        let event = from_outside(&mut switch, tcp((ip("8.8.8.8"), 443), external, SYN | ACK));
        let Event::Sent { receiver, vni: of, .. } = &event else { panic!("{event:?}") };
        assert_eq!((*of, *receiver), (vni, ip(host)));
    }
}

#[test]
fn what_belongs_to_no_connection_does_not_come_in() {
    let mut switch = gateway();
    let stray = tcp((ip("8.8.8.8"), 443), (ip("198.51.100.1"), 4000), SYN);
    assert_eq!(from_outside(&mut switch, stray.clone()), dropped("no-connection"));
    switch.at_underlay(HOST, 1, &outwards(4000, SYN));
    assert!(matches!(from_outside(&mut switch, stray), Event::Sent { .. }), "the drop was replaced");
    let other = tcp((ip("8.8.4.4"), 443), (ip("198.51.100.1"), 4000), SYN);
    assert_eq!(from_outside(&mut switch, other), dropped("no-connection"));
    let ping = from_outside(&mut switch, echo(ip("8.8.8.8"), ip("198.51.100.1"), 5, true));
    assert!(matches!(ping, Event::Answered(_)));
    let elsewhere = from_outside(&mut switch, echo(ip("8.8.8.8"), ip("198.51.100.2"), 5, true));
    assert_eq!(elsewhere, dropped("no-connection"));
    assert_eq!(
        Switch::new(resolver(HOST)).take(&Ingress::External, &outwards(1, SYN)),
        dropped("no-external-access")
    );
}

#[test]
fn errors_from_outside_reach_the_endpoint_translated() {
    let mut switch = gateway();
    let Event::External(sent) = switch.at_underlay(HOST, 1, &outwards(4000, SYN)) else { panic!() };
    let error = unreachable(ip("9.9.9.9"), ip("198.51.100.1"), &sent);
    let event = from_outside(&mut switch, error);
    let Event::Sent { receiver, frame, .. } = &event else { panic!("{event:?}") };
    check(frame);
    assert_eq!(*receiver, ip(HOST));
    let parsed = weir_packet::parse(frame).unwrap();
    assert_eq!(
        (IpAddr::from(parsed.source), IpAddr::from(parsed.destination)),
        (ip("9.9.9.9"), ip("10.0.0.5"))
    );
    let embedded = weir_packet::rewrite::parse_embedded(frame, &parsed).unwrap();
    assert_eq!((IpAddr::from(embedded.source), embedded.source_port), (ip("10.0.0.5"), 4000));
    assert_eq!((IpAddr::from(embedded.destination), embedded.destination_port), (ip("8.8.8.8"), 443));

    let mut host = host(Vec::new());
    let syn = tcp((ip("10.0.0.5"), 4000), (ip("8.8.8.8"), 443), SYN).from(mac(5)).build();
    assert_eq!(host.at_underlay(GATEWAY, 1, frame), default_deny("ingress"));
    host.at_port(1, "a", &syn);
    assert!(matches!(host.at_underlay(GATEWAY, 1, frame), Event::Delivered(..)));

    let to_another = unreachable(ip("9.9.9.9"), ip("198.51.100.2"), &sent);
    assert_eq!(from_outside(&mut switch, to_another), dropped("icmp-unrelated"));
    let about_nothing = tcp((ip("198.51.100.1"), 4001), (ip("8.8.8.8"), 443), SYN).build();
    let unrelated = unreachable(ip("9.9.9.9"), ip("198.51.100.1"), &about_nothing);
    assert_eq!(from_outside(&mut switch, unrelated), dropped("icmp-unrelated"));
}

#[test]
fn errors_of_an_endpoint_go_out_translated() {
    let mut switch = gateway();
    switch.at_underlay(HOST, 1, &udp((ip("10.0.0.5"), 4000), (ip("8.8.8.8"), 53), 5).build());
    let reply = udp((ip("8.8.8.8"), 53), (ip("198.51.100.1"), 4000), 5);
    let Event::Sent { frame: received, .. } = from_outside(&mut switch, reply) else { panic!() };
    let error = unreachable(ip("10.0.0.5"), ip("8.8.8.8"), &received).build();
    let event = switch.at_underlay(HOST, 1, &error);
    let Event::External(frame) = &event else { panic!("{event:?}") };
    check(frame);
    let parsed = weir_packet::parse(frame).unwrap();
    assert_eq!(IpAddr::from(parsed.source), ip("198.51.100.1"));
    let embedded = weir_packet::rewrite::parse_embedded(frame, &parsed).unwrap();
    assert_eq!((IpAddr::from(embedded.destination), embedded.destination_port), (ip("198.51.100.1"), 4000));
    let about_nothing = udp((ip("8.8.8.8"), 54), (ip("10.0.0.5"), 4000), 5).build();
    let unrelated = unreachable(ip("10.0.0.5"), ip("8.8.8.8"), &about_nothing).build();
    assert_eq!(switch.at_underlay(HOST, 1, &unrelated), dropped("icmp-unrelated"));
}

#[test]
fn the_outside_is_for_networks_that_may_and_packets_that_can() {
    let mut switch = gateway();
    let gre = Packet::new(ip("10.0.0.5"), ip("8.8.8.8"), 47, vec![0; 8]).build();
    assert_eq!(switch.at_underlay(HOST, 1, &gre), dropped("nat-protocol"));
    switch.at_underlay(HOST, 1, &outwards(4000, SYN));
    assert_eq!(switch.mind.connections().len(), 1);
    switch.apply(&network(1, network_entry("red", false)));
    assert!(switch.mind.connections().is_empty(), "access is revoked for connections too");
    let event = switch.at_underlay(HOST, 1, &outwards(4000, ACK));
    assert!(matches!(event, Event::Answered(_)));
    assert_eq!(switch.at_underlay(HOST, 1, &outwards(4000, ACK)), dropped("no-route"));
    let reply = tcp((ip("8.8.8.8"), 443), (ip("198.51.100.1"), 4000), ACK);
    assert_eq!(from_outside(&mut switch, reply), dropped("no-connection"));
    switch.apply(&route(1, "out", "8.0.0.0/8", RouteHop::External));
    assert!(matches!(switch.at_underlay(HOST, 1, &outwards(4001, SYN)), Event::Answered(_)));
    assert_eq!(switch.at_underlay(HOST, 1, &outwards(4001, SYN)), dropped("no-external-access"));
}

#[test]
fn an_exhausted_pool_is_counted_and_recovers() {
    let pool = NatPool { ports: 5000..=5001, ..nat_pool() };
    let mut switch = Switch::new(gateway_resolver(GATEWAY, pool));
    for vni in 1..=3 {
        let entry = network_entry(&format!("net-{vni}"), true);
        switch.apply_all(&[network(vni, entry), location(vni, "10.0.0.5", 5, HOST)]);
    }
    for vni in [1, 2] {
        assert!(matches!(switch.at_underlay(HOST, vni, &outwards(1, SYN)), Event::External(_)));
    }
    for _ in 0..3 {
        assert_eq!(switch.at_underlay(HOST, 3, &outwards(3, SYN)), dropped("nat-exhausted"));
    }
    assert_eq!(switch.count("drops{reason=\"nat-exhausted\"}"), 3);
    switch.pass(61_000);
    assert!(matches!(switch.at_underlay(HOST, 3, &outwards(3, SYN)), Event::External(_)));
}

#[test]
fn large_and_old_packets_from_outside_are_answered() {
    let mut switch = gateway();
    switch.at_underlay(HOST, 1, &outwards(4000, SYN));
    let mut large = tcp((ip("8.8.8.8"), 443), (ip("198.51.100.1"), 4000), ACK);
    large.transport.extend(vec![0; 1400]);
    let event = from_outside(&mut switch, large);
    let parsed = weir_packet::parse(event.frame()).unwrap();
    assert_eq!((parsed.icmp_type, parsed.icmp_code), (3, 4));
    assert_eq!(IpAddr::from(parsed.source), ip("198.51.100.1"));
    let old = tcp((ip("8.8.8.8"), 443), (ip("198.51.100.1"), 4000), ACK).ttl(1);
    let event = from_outside(&mut switch, old);
    assert_eq!(weir_packet::parse(event.frame()).unwrap().icmp_type, 11);
}

#[test]
fn a_gateway_takes_unproven_packets_only_from_known_hosts() {
    use weir_model::resource::Encapsulation;
    let mut switch = gateway();
    let vxlan =
        weir_model::entry::NetworkEntry { encapsulation: Encapsulation::Vxlan, ..network_entry("red", true) };
    switch.apply(&network(1, vxlan));
    let frame = udp((ip("10.0.0.5"), 1), (ip("10.0.0.9"), 2), 5).build();
    let from = |sender: &str| Ingress::Underlay {
        sender: ip(sender),
        vni: 1,
        token: None,
        format: Encapsulation::Vxlan,
        half: weir_packet::encap::Half::Unsaid,
    };
    assert!(matches!(switch.take(&from(HOST), &frame), Event::Sent { .. }));
    assert_eq!(switch.take(&from("192.0.2.66"), &frame), dropped("unknown-sender"));
}

#[test]
fn no_tenant_reaches_switches_controllers_or_the_machine_of_a_gateway() {
    let mut switch = gateway();
    switch.mind.config.guarded = vec!["198.51.100.9/32".parse().unwrap(), "2001:db8:9::/64".parse().unwrap()];
    let guarded = |switch: &Switch| switch.count("drops{reason=\"guarded\"}");
    let v4 = [
        HOST,
        OTHER_HOST,
        GATEWAY,
        "198.51.100.9",
        "240.0.0.1",
        "255.255.255.254",
        "0.1.2.3",
        "127.0.0.1",
        "169.254.169.254",
    ];
    let mut dropped_before = 0;
    for to in v4 {
        for port in [4789, 6081, 7445, 53, 22] {
            let frame = udp((ip("10.0.0.5"), 4000), (ip(to), port), 1).build();
            let event = switch.at_underlay(HOST, 1, &frame);
            assert!(event.is_drop(), "{to} port {port}: {event:?}");
        }
        let syn = tcp((ip("10.0.0.5"), 4000), (ip(to), 443), SYN).build();
        assert!(switch.at_underlay(HOST, 1, &syn).is_drop());
        assert!(switch.at_underlay(HOST, 1, &echo(ip("10.0.0.5"), ip(to), 1, true).build()).is_drop());
        assert!(guarded(&switch) >= dropped_before, "{to}");
        dropped_before = guarded(&switch);
    }
    assert!(dropped_before >= 5 * 7, "what may be sent at all is counted as guarded: {dropped_before}");
    let v6 = udp((ip("fd00::5"), 1), (ip("2001:db8:9::7"), 2), 1).build();
    assert_eq!(switch.at_underlay(HOST, 1, &v6), dropped("guarded"));
    // All others are reached as ever, and a setting opens single ones.
    let out = |to: &str| udp((ip("10.0.0.5"), 4000), (ip(to), 53), 1).build();
    assert!(matches!(switch.at_underlay(HOST, 1, &out("203.0.113.53")), Event::External(_)));
    let mut open = gateway();
    open.mind.config.reachable = vec![format!("{OTHER_HOST}/32").parse().unwrap()];
    assert!(matches!(open.at_underlay(HOST, 1, &out(OTHER_HOST)), Event::External(_)));
    assert_eq!(open.at_underlay(HOST, 1, &out(GATEWAY)), dropped("guarded"));
}

#[test]
fn a_host_that_becomes_known_is_guarded_from_then_on() {
    let mut switch = gateway();
    let new = "192.0.2.77";
    let frame = udp((ip("10.0.0.5"), 4000), (ip(new), 4789), 1).build();
    assert!(matches!(switch.at_underlay(HOST, 1, &frame), Event::External(_)));
    switch.apply(&location(1, "10.0.0.88", 88, new));
    assert_eq!(switch.at_underlay(HOST, 1, &frame), dropped("guarded"), "also the flow that was there");
    switch.apply(&delete(
        2,
        weir_model::Key::Location { vni: weir_model::entry::Vni(1), address: ip("10.0.0.88") },
    ));
    let other = udp((ip("10.0.0.5"), 4001), (ip(new), 4789), 1).build();
    assert!(matches!(switch.at_underlay(HOST, 1, &other), Event::External(_)));
}

#[test]
fn what_the_controllers_tell_of_the_underlay_is_guarded_from_then_on() {
    let mut switch = gateway();
    let (own, other, controller) = ("192.0.2.201", "198.18.2.9", "2001:db8:7::1");
    let out = |to: &str| match to.contains(':') {
        true => udp((ip("fd00::5"), 4000), (ip(to), 4789), 1).build(),
        false => udp((ip("10.0.0.5"), 4000), (ip(to), 4789), 1).build(),
    };
    for to in [own, other, controller] {
        assert!(matches!(switch.at_underlay(HOST, 1, &out(to)), Event::External(_)), "{to}");
    }
    let bucket = weir_model::entry::member_bucket(ip(own));
    let key = weir_model::Key::Switches { bucket };
    switch.apply(&put(1, key, weir_model::Entry::Switches(vec![ip(own)])));
    assert_eq!(switch.at_underlay(HOST, 1, &out(own)), dropped("guarded"), "also the flow that was there");
    for host in [HOST, OTHER_HOST] {
        let key = weir_model::Key::Switches { bucket: weir_model::entry::member_bucket(ip(host)) };
        switch.apply(&put(1, key, weir_model::Entry::Switches(vec![ip(host)])));
    }
    let entry = weir_model::entry::UnderlaysEntry {
        switches: vec!["198.18.2.0/24".parse().unwrap()],
        guarded: vec![format!("{controller}/128").parse().unwrap()],
    };
    switch.apply(&put(2, weir_model::Key::Underlays, weir_model::Entry::Underlays(entry)));
    for to in [own, other, controller] {
        assert_eq!(switch.at_underlay(HOST, 1, &out(to)), dropped("guarded"), "{to}");
    }
    switch.mind.config.reachable = vec![format!("{other}/32").parse().unwrap()];
    let again = udp((ip("10.0.0.5"), 4001), (ip(other), 53), 1).build();
    assert!(matches!(switch.at_underlay(HOST, 1, &again), Event::External(_)), "opened by the setting");
}

#[test]
fn nobody_takes_all_translated_ports_towards_a_destination() {
    let pool = crate::nat::NatPool { ports: 20_000..=20_049, ..nat_pool() };
    let mut switch = Switch::new(gateway_resolver(GATEWAY, pool));
    for vni in [1, 2] {
        let name = if vni == 1 { "red" } else { "blue" };
        switch.apply(&network(vni, network_entry(name, true)));
        switch.apply(&location(vni, "10.0.0.5", 5, HOST));
        switch.apply(&location(vni, "10.0.0.9", 9, OTHER_HOST));
        for n in 0..12 {
            switch.apply(&location(vni, &format!("10.0.0.{}", 20 + n), 20 + n, HOST));
        }
    }
    let mut out = |vni: u32, source: &str, port: u16, to: u16| {
        let frame = udp((ip(source), port), (ip("203.0.113.2"), to), 1).build();
        switch.at_underlay(HOST, vni, &frame)
    };
    let got = |count: u16| 0..count;
    assert!(got(12).all(|n: u16| matches!(out(1, "10.0.0.5", 4000 + n, 9000), Event::External(_))));
    assert_eq!(out(1, "10.0.0.5", 4900, 9000), dropped("nat-share"), "a quarter of 50");
    assert!(matches!(out(1, "10.0.0.5", 4900, 9001), Event::External(_)), "another destination");
    assert!(got(12).all(|n: u16| matches!(out(1, "10.0.0.9", 4000 + n, 9000), Event::External(_))));
    for n in 0..12 {
        assert!(matches!(out(1, &format!("10.0.0.{}", 20 + n), 4000, 9000), Event::External(_)) == (n == 0));
    }
    assert_eq!(out(2, "10.0.0.77", 4000, 9000), dropped("unknown-destination"), "no reply would reach it");
    assert!(matches!(out(2, "10.0.0.5", 4000, 9000), Event::External(_)), "another tenant gets through");
    assert!(matches!(out(1, "10.0.0.5", 4000, 9000), Event::External(_)), "what is open goes on");
}

/// A gateway sends back what a host asks by, as it forwards anything, and once; a host counts it. Who proves nothing hears nothing.
#[test]
fn a_probe_goes_back_once_and_is_counted_where_it_came_from() {
    use crate::slow::probes::{PROBE_VNI, frame};
    let mut switch = gateway();
    let event = switch.at_underlay(HOST, PROBE_VNI, &frame());
    let Event::Sent { receiver, vni, token, by_gateway: false, frame: back, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!((receiver, vni, ttl_of(&back)), (ip(HOST), PROBE_VNI, 1));
    check(&back);
    assert!(TokenKey::new(SECRET).check(PROBE_VNI, ip(GATEWAY), token));
    let misses = switch.misses;
    assert!(matches!(switch.at_underlay(HOST, PROBE_VNI, &frame()), Event::Sent { .. }));
    assert_eq!(switch.misses, misses, "the flow table sends it back");
    assert_eq!(switch.at_underlay(HOST, PROBE_VNI, &back), dropped("ttl-expired"), "and not for ever");
    let ingress = |token| Ingress::Underlay {
        sender: ip(OTHER_HOST),
        vni: PROBE_VNI,
        token,
        format: Encapsulation::Geneve,
        half: Half::Unsaid,
    };
    assert_eq!(switch.take(&ingress(None), &frame()), dropped("bad-token"));
    let of_another = TokenKey::new(SECRET).token(PROBE_VNI, ip(HOST));
    assert_eq!(switch.take(&ingress(Some(of_another)), &frame()), dropped("bad-token"));

    let mut asks = host(Vec::new());
    let counted = Event::Dropped("passed{path=\"probe\"}".to_string());
    assert_eq!(asks.at_underlay(GATEWAY, PROBE_VNI, &back), counted);
    let misses = asks.misses;
    assert_eq!(asks.at_underlay(GATEWAY, PROBE_VNI, &back), counted);
    assert_eq!(asks.misses, misses, "the flow table counts it");
}
