//! Frames from another switch, at a host.

use super::*;
use crate::flow::{Action, Hop, Ingress, Resolver};
use weir_model::entry::{NetworkEntry, RouteHop, UnderlaysEntry, Vni, member_bucket};
use weir_model::resource::{Encapsulation, Protocol};
use weir_model::{Entry, Key};

fn any() -> Vec<weir_model::entry::Rule> {
    vec![allow_in("all", Protocol::Any, None)]
}

fn to_a(source: &str) -> Vec<u8> {
    udp((ip(source), 1000), (ip("10.0.0.5"), 2000), 10).build()
}

fn underlay(sender: &str, token: Option<u64>, format: Encapsulation) -> Ingress {
    Ingress::Underlay { sender: ip(sender), vni: 1, token, format, half: weir_packet::encap::Half::Unsaid }
}

#[test]
fn what_proves_its_sender_is_delivered_with_the_ports_address() {
    let mut switch = host(any());
    let event = switch.at_underlay(OTHER_HOST, 1, &to_a("10.0.0.9"));
    let Event::Delivered(port, frame) = &event else { panic!("{event:?}") };
    assert_eq!(*port, switch.port_index(1, "a"));
    assert_eq!((&frame[..6], &frame[6..12]), (&mac(5).0[..], &Vni(1).router_mac().0[..]));
    assert_eq!(ttl_of(frame), 64);
}

#[test]
fn a_wrong_token_network_or_format_drops_the_packet_and_makes_no_flow() {
    let mut switch = host(any());
    let right = weir_trust::token::TokenKey::new(SECRET).token(1, ip(OTHER_HOST));
    let frame = to_a("10.0.0.9");
    let geneve = Encapsulation::Geneve;
    for token in [None, Some(right ^ 1)] {
        assert_eq!(switch.take(&underlay(OTHER_HOST, token, geneve), &frame), dropped("bad-token"));
    }
    let stolen = underlay("192.0.2.66", Some(right), geneve);
    assert_eq!(switch.take(&stolen, &frame), dropped("bad-token"), "the token is of another sender");
    let other_format = underlay(OTHER_HOST, Some(right), Encapsulation::Vxlan);
    assert_eq!(switch.take(&other_format, &frame), dropped("wrong-format"));
    let unknown = Ingress::Underlay {
        sender: ip(OTHER_HOST),
        vni: 9,
        token: Some(right),
        format: geneve,
        half: weir_packet::encap::Half::Unsaid,
    };
    assert_eq!(switch.take(&unknown, &frame), dropped("unknown-network"));
    assert!(switch.flows.is_empty());
}

#[test]
fn what_is_not_here_is_dropped_and_never_sent_on() {
    let mut switch = host(any());
    let mut drop = |packet: Packet, reason: &str| {
        assert_eq!(switch.at_underlay(GATEWAY, 1, &packet.build()), dropped(reason), "{packet:?}");
    };
    drop(udp((ip("10.0.0.9"), 1), (ip("10.0.0.77"), 2), 1), "not-here");
    drop(udp((ip("10.0.0.77"), 1), (ip("10.0.0.9"), 2), 1), "not-here");
    drop(udp((ip("10.0.0.9"), 1), (ip("8.8.8.8"), 2), 1), "not-here");
    drop(udp((ip("10.0.0.6"), 1), (ip("10.0.0.5"), 2), 1), "spoofed-source");
    drop(udp((ip("10.0.0.9"), 1), (ip("10.0.0.255"), 2), 1), "broadcast");
    drop(udp((ip("10.0.0.9"), 1), (ip("224.0.0.1"), 2), 1), "multicast");
    let arp = arp(mac(9), "10.0.0.9".parse().unwrap(), "10.0.0.5".parse().unwrap(), 1);
    assert_eq!(switch.at_underlay(GATEWAY, 1, &arp), dropped("not-ip"));
    assert!(switch.flows.values().all(|action| action.hop == Hop::Drop));
}

#[test]
fn an_address_that_arrives_is_found_by_the_flows_that_missed_it() {
    let mut switch = host(any());
    let frame = udp((ip("10.0.0.9"), 1), (ip("10.0.0.77"), 2), 1).build();
    assert_eq!(switch.at_underlay(GATEWAY, 1, &frame), dropped("not-here"));
    switch.apply(&port(1, "late", 77, &["10.0.0.77"], &[]));
    assert!(matches!(switch.at_underlay(GATEWAY, 1, &frame), Event::Delivered(..)));
    switch.apply(&delete(2, port_key(1, "late")));
    assert_eq!(switch.at_underlay(GATEWAY, 1, &frame), dropped("not-here"));
}

#[test]
fn a_router_endpoint_receives_for_the_prefixes_behind_it() {
    let mut switch = host(any());
    let frame = udp((ip("10.0.0.9"), 1), (ip("172.16.0.1"), 2), 1).build();
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &frame), dropped("not-here"));
    switch.apply(&route(1, "to-b", "172.16.0.0/16", RouteHop::Address(ip("10.0.0.6"))));
    let b = switch.port_index(1, "b");
    assert!(matches!(switch.at_underlay(OTHER_HOST, 1, &frame), Event::Delivered(port, _) if port == b));
}

#[test]
fn a_sender_without_tokens_must_be_known_unless_nothing_contradicts_it() {
    let mut switch = host(any());
    switch.apply(&network(
        1,
        NetworkEntry { encapsulation: Encapsulation::Vxlan, ..network_entry("red", true) },
    ));
    let mut take = |sender: &str, source: &str| {
        switch.take(&underlay(sender, None, Encapsulation::Vxlan), &to_a(source))
    };
    assert!(matches!(take(OTHER_HOST, "10.0.0.9"), Event::Delivered(..)), "a host with a location");
    assert!(matches!(take(GATEWAY, "10.0.0.9"), Event::Delivered(..)), "a gateway");
    assert!(matches!(take("192.0.2.66", "10.0.0.70"), Event::Delivered(..)), "nothing is known of it");
    assert_eq!(take("192.0.2.66", "10.0.0.9"), dropped("unknown-sender"), "its place is known, elsewhere");
}

#[test]
fn the_way_back_is_installed_for_the_port_but_not_for_the_underlay() {
    let mut switch = host(vec![allow_in("web", Protocol::TCP, Some(80))]);
    let syn = tcp((ip("10.0.0.9"), 4000), (ip("10.0.0.5"), 80), SYN).build();
    assert!(matches!(switch.at_underlay(OTHER_HOST, 1, &syn), Event::Delivered(..)));
    assert_eq!((switch.flows.len(), switch.misses), (2, 1));
    let reply = tcp((ip("10.0.0.5"), 80), (ip("10.0.0.9"), 4000), SYN | ACK).from(mac(5)).build();
    let event = switch.at_port(1, "a", &reply);
    assert!(matches!(event, Event::Sent { receiver, .. } if receiver == ip(OTHER_HOST)));
    assert_eq!(switch.misses, 1, "the way back was there");
    let out = tcp((ip("10.0.0.5"), 5000), (ip("10.0.0.9"), 80), SYN).from(mac(5)).build();
    switch.at_port(1, "a", &out);
    let from_underlay = |(zone, _): &(Zone, _), action: &Action| {
        matches!(zone, Zone::Underlay(..)) && action.hop != Hop::Drop
    };
    assert_eq!(switch.flows.iter().filter(|(key, action)| from_underlay(key, action)).count(), 1);
    let back = tcp((ip("10.0.0.9"), 80), (ip("10.0.0.5"), 5000), SYN | ACK).build();
    let forged = switch.take(&underlay(OTHER_HOST, None, Encapsulation::Geneve), &back);
    assert_eq!(forged, dropped("bad-token"));
    assert!(matches!(switch.at_underlay(OTHER_HOST, 1, &back), Event::Delivered(..)));
}

#[test]
fn with_a_list_of_switches_nothing_is_taken_from_elsewhere() {
    use weir_model::resource::Encapsulation;
    for format in [Encapsulation::Geneve, Encapsulation::Vxlan] {
        let mut switch = host(vec![allow_in("all", weir_model::resource::Protocol::Any, None)]);
        switch.apply(&network(
            1,
            weir_model::entry::NetworkEntry { encapsulation: format, ..network_entry("red", true) },
        ));
        switch.mind.config.underlay_from = vec!["192.0.2.0/28".parse().unwrap()];
        let frame = udp((ip("10.0.0.44"), 7), (ip("10.0.0.5"), 8), 5).build();
        let from = |sender: &str| {
            let token = Some(weir_trust::token::TokenKey::new(SECRET).token(1, ip(sender)));
            Ingress::Underlay {
                sender: ip(sender),
                vni: 1,
                token,
                format,
                half: weir_packet::encap::Half::Unsaid,
            }
        };
        assert!(matches!(switch.take(&from("192.0.2.9"), &frame), Event::Delivered(..)));
        assert!(matches!(switch.take(&from(GATEWAY), &frame), Event::Delivered(..)), "gateways are known");
        for stranger in ["192.0.2.77", "203.0.113.10", "198.51.100.2"] {
            assert_eq!(switch.take(&from(stranger), &frame), dropped("unknown-sender"));
        }
    }
}

/// Switches of one bucket, as an update.
fn switches(version: u64, addresses: &[&str]) -> Vec<weir_model::Update> {
    let mut buckets = std::collections::BTreeMap::<u8, std::collections::BTreeSet<_>>::new();
    for address in addresses {
        buckets.entry(member_bucket(ip(address))).or_default().insert(ip(address));
    }
    let entry = |addresses: std::collections::BTreeSet<_>| Entry::Switches(addresses.into_iter().collect());
    let all = buckets.into_iter();
    all.map(|(bucket, addresses)| put(version, Key::Switches { bucket }, entry(addresses))).collect()
}

fn underlays(version: u64, switches: &[&str]) -> weir_model::Update {
    let switches = switches.iter().map(|net| net.parse().unwrap()).collect();
    put(version, Key::Underlays, Entry::Underlays(UnderlaysEntry { switches, guarded: Vec::new() }))
}

/// What a sender of the underlay gets through, in both encapsulations.
fn from_of(format: Encapsulation, sender: &str) -> Ingress {
    let token = Some(weir_trust::token::TokenKey::new(SECRET).token(1, ip(sender)));
    let half = weir_packet::encap::Half::Unsaid;
    Ingress::Underlay { sender: ip(sender), vni: 1, token, format, half }
}

#[test]
fn only_switches_that_the_controllers_tell_are_heard_once_they_tell() {
    for format in [Encapsulation::Geneve, Encapsulation::Vxlan] {
        let mut switch = host(any());
        switch.apply(&network(1, NetworkEntry { encapsulation: format, ..network_entry("red", true) }));
        let frame = |port: u16| udp((ip("10.0.0.44"), port), (ip("10.0.0.5"), 8), 5).build();
        let (member, other, stranger) = ("192.0.2.66", "198.18.2.9", "203.0.113.10");
        let takes = |switch: &mut Switch, sender: &str, port: u16| {
            let event = switch.take(&from_of(format, sender), &frame(port));
            match &event {
                Event::Delivered(..) => true,
                dropped if *dropped == super::dropped("unknown-sender") => false,
                other => panic!("{other:?}"),
            }
        };
        for update in switches(1, &[member]) {
            switch.apply(&update);
        }
        assert!(takes(&mut switch, stranger, 1), "a list that is not whole does not count");
        switch.apply(&underlays(1, &["198.18.2.0/24"]));
        assert!(!takes(&mut switch, stranger, 1), "and ends what was taken before");
        assert!(takes(&mut switch, member, 2) && takes(&mut switch, other, 3));
        assert!(takes(&mut switch, GATEWAY, 4), "gateways are known");
        // Another domain is forgotten, a host is: nothing of either comes any more, of flows that were there neither.
        switch.apply(&underlays(2, &[]));
        assert!(!takes(&mut switch, other, 3) && takes(&mut switch, member, 2));
        let bucket = member_bucket(ip(member));
        switch.apply(&delete(3, Key::Switches { bucket }));
        assert!(!takes(&mut switch, member, 2));
        // A setting narrows.
        for update in switches(4, &[member, "192.0.2.200"]) {
            switch.apply(&update);
        }
        switch.mind.config.underlay_from =
            vec!["192.0.2.64/26".parse().unwrap(), "203.0.113.0/24".parse().unwrap()];
        assert!(takes(&mut switch, member, 5) && !takes(&mut switch, "192.0.2.200", 6));
        assert!(!takes(&mut switch, stranger, 7), "and adds nobody");
        switch.apply(&delete(5, Key::Underlays));
        assert!(takes(&mut switch, stranger, 8), "without a list the setting stands alone");
    }
}

#[test]
fn a_list_of_switches_that_is_none_is_refused() {
    let mut switch = host(any());
    let bucket = member_bucket(ip("192.0.2.66"));
    let list = |bucket: u8, addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| ip(address)).collect();
        put(1, Key::Switches { bucket }, Entry::Switches(addresses))
    };
    let mut refused = |update: weir_model::Update| switch.mind.apply(0, &update).unwrap_err().to_string();
    assert!(refused(list(bucket + 1, &["192.0.2.66"])).contains("another one"));
    assert!(refused(list(64, &[])).contains("another one"));
    assert!(refused(list(bucket, &["192.0.2.66", "192.0.2.66"])).contains("ascending"));
    let multicast = list(member_bucket(ip("224.0.0.1")), &["224.0.0.1"]);
    assert!(refused(multicast).contains("no host's"));
    let many = (0..=weir_model::entry::UNDERLAY_PREFIXES_MAX as u32)
        .map(|n| ipnet::IpNet::from(std::net::IpAddr::from(n.to_be_bytes())));
    let entry = UnderlaysEntry { switches: many.collect(), guarded: Vec::new() };
    assert!(refused(put(1, Key::Underlays, Entry::Underlays(entry))).contains("full"));
}

#[test]
fn an_unknown_sender_of_vxlan_speaks_for_no_router_and_not_for_the_outside() {
    let mut switch = host(any());
    let vxlan = Encapsulation::Vxlan;
    switch.apply(&network(1, NetworkEntry { encapsulation: vxlan, ..network_entry("red", true) }));
    let from = |sender: &str| underlay(sender, None, vxlan);
    for source in ["10.0.0.1", "10.0.1.1", "8.8.8.8"] {
        assert_eq!(switch.take(&from("192.0.2.77"), &to_a(source)), dropped("unknown-sender"), "{source}");
    }
    assert!(matches!(switch.take(&from(GATEWAY), &to_a("8.8.8.8")), Event::Delivered(..)));
    assert!(matches!(switch.take(&from("192.0.2.77"), &to_a("10.0.0.44")), Event::Delivered(..)));
    switch.apply(&route(1, "behind", "172.16.0.0/16", RouteHop::Address(ip("10.0.0.44"))));
    assert!(matches!(switch.take(&from("192.0.2.77"), &to_a("172.16.0.9")), Event::Delivered(..)));
}
