//! Learned networks: what is not known here is asked, and ports are told of.

use super::*;
use crate::flow::{About, Ingress, MissReason, Outcome, Resolver};
use std::net::IpAddr;
use weir_model::Key;
use weir_model::entry::{NetworkEntry, RouteHop, Vni};
use weir_model::packet_in::{PacketIn, Why};
use weir_model::resource::Forwarding;

/// As [`host`], learned, and nothing known of other hosts.
fn learned_host() -> Switch {
    let mut switch = Switch::new(resolver(HOST));
    switch.apply_all(&[
        network(1, NetworkEntry { forwarding: Forwarding::Learned, ..network_entry("blue", true) }),
        policy(1, 1, Vec::new()),
        port(1, "a", 5, &["10.0.0.5", "fd00::5"], &[]),
        port(1, "b", 6, &["10.0.0.6"], &[]),
        gateways(&[GATEWAY]),
    ]);
    switch
}

fn port_of(switch: &Switch, name: &str) -> u16 {
    switch.mind.tables().port_named(1, &label(name)).unwrap().index
}

fn frame(last: u8, to: &str) -> Vec<u8> {
    let from: IpAddr = if to.contains(':') { ip("fd00::5") } else { IpAddr::from([10, 0, 0, last]) };
    udp((from, 4000), (ip(to), 53), 10).from(mac(last)).to(Vni(1).router_mac()).build()
}

fn ask(switch: &mut Switch, frame: &[u8]) -> Option<crate::flow::Asked> {
    let parsed = weir_packet::parse(frame).unwrap();
    let key = weir_packet::FlowKey::new(0, &parsed);
    let ingress = Ingress::Port(port_of(switch, "a"));
    let now_ms = switch.now_ms;
    match switch.mind.resolve(now_ms, &ingress, &key, MissReason::NoFlow, frame).outcome {
        Outcome::Ask(asked) => Some(*asked),
        _ => None,
    }
}

#[test]
fn an_unknown_destination_of_the_network_is_asked_for_and_known_ones_are_not() {
    let mut switch = learned_host();
    let asked = ask(&mut switch, &frame(5, "10.0.0.9")).unwrap();
    assert_eq!((asked.vni, asked.about), (1, About::Place(ip("10.0.0.9"))));
    let packet = PacketIn {
        endpoint: label("a"),
        why: Why::Unknown,
        source_mac: mac(5),
        source: Some(ip("10.0.0.5")),
        destination: Some(ip("10.0.0.9")),
        protocol: 17,
        ports: (4000, 53),
    };
    assert_eq!(asked.packet, packet);
    assert_eq!(ask(&mut switch, &frame(5, "fd00::9")).unwrap().about, About::Place(ip("fd00::9")));
    // A port here, and the outside, which is for a gateway.
    assert_eq!(ask(&mut switch, &frame(5, "10.0.0.6")), None);
    assert_eq!(ask(&mut switch, &frame(5, "8.8.8.8")), None);
    switch.apply(&location(1, "10.0.0.9", 9, OTHER_HOST));
    assert_eq!(ask(&mut switch, &frame(5, "10.0.0.9")), None);
    // Behind a route it is the next hop whose place is asked for.
    switch.apply(&route(1, "far", "172.16.0.0/12", RouteHop::Address(ip("10.0.0.77"))));
    assert_eq!(ask(&mut switch, &frame(5, "172.16.1.1")).unwrap().about, About::Place(ip("10.0.0.77")));
}

#[test]
fn what_the_firewall_denies_or_a_port_may_not_say_is_no_question() {
    let mut switch = learned_host();
    assert_eq!(ask(&mut switch, &frame(99, "10.0.0.9")), None, "a spoofed source asks nothing");
    let deny = weir_model::resource::Action::Deny;
    switch.apply(&policy_with(1, 2, deny, deny, Vec::new()));
    assert_eq!(ask(&mut switch, &frame(5, "10.0.0.9")), None);
}

#[test]
fn a_routed_network_and_a_gateway_ask_nobody() {
    let mut switch = host(Vec::new());
    assert_eq!(ask(&mut switch, &frame(5, "10.0.0.200")), None);
    let entry = NetworkEntry { forwarding: Forwarding::Learned, ..network_entry("red", true) };
    let mut gateway = gateway();
    gateway.apply(&network(1, entry));
    let token = gateway.mind.config.token_key.token(1, ip(HOST));
    let format = weir_model::resource::Encapsulation::Geneve;
    let ingress = Ingress::Underlay {
        sender: ip(HOST),
        vni: 1,
        token: Some(token),
        format,
        half: weir_packet::encap::Half::Unsaid,
    };
    let frame = frame(5, "10.0.0.200");
    let key = weir_packet::FlowKey::new(0, &weir_packet::parse(&frame).unwrap());
    let outcome = gateway.mind.resolve(1, &ingress, &key, MissReason::NoFlow, &frame).outcome;
    assert!(!matches!(outcome, Outcome::Ask(_)), "{outcome:?}");
}

#[test]
fn a_port_is_told_of_with_its_first_frame_and_then_ever_less_often() {
    let mut switch = learned_host();
    let own = port_of(&switch, "a");
    let first = arp(mac(5), "10.0.0.5".parse().unwrap(), "10.0.0.1".parse().unwrap(), 1);
    let (vni, packet) = switch.mind.hear(0, own, &first).unwrap();
    assert_eq!((vni, packet.why, packet.source), (Vni(1), Why::Heard, Some(ip("10.0.0.5"))));
    assert_eq!(switch.mind.hear(999, own, &first), None);
    let (_, packet) = switch.mind.hear(1_000, own, &frame(5, "10.0.0.9")).unwrap();
    assert_eq!(packet.source, Some(ip("10.0.0.5")));
    let told =
        (1_001..3_600_000).step_by(100).filter(|now_ms| switch.mind.hear(*now_ms, own, &first).is_some());
    assert!((59..70).contains(&told.count()), "sooner at first, then once a minute");
    // Nothing of a frame that is not the port's own, and no address that is another's.
    let other = port_of(&switch, "b");
    assert_eq!(switch.mind.hear(0, other, &first), None);
    let lie = arp(mac(6), "10.0.0.5".parse().unwrap(), "10.0.0.1".parse().unwrap(), 1);
    assert_eq!(switch.mind.hear(0, other, &lie).unwrap().1.source, None);
    // A port that goes and comes is a new one.
    switch.apply(&delete(2, port_key(1, "a")));
    switch.apply(&port(1, "a", 5, &["10.0.0.5"], &[]));
    assert!(switch.mind.hear(3_600_001, port_of(&switch, "a"), &first).is_some());
    let mut routed = host(Vec::new());
    assert_eq!(routed.mind.hear(0, port_of(&routed, "a"), &first), None);
}

#[test]
fn what_is_sought_and_here_is_told_until_the_question_ends() {
    let mut switch = learned_host();
    let sought = |address: &str| Key::Sought { vni: Vni(1), address: ip(address) };
    for address in ["10.0.0.6", "10.0.0.9"] {
        switch.apply(&put(3, sought(address), weir_model::Entry::Sought));
    }
    let found = switch.mind.found();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (found[0].1.why, found[0].1.source, found[0].1.source_mac),
        (Why::Sought, Some(ip("10.0.0.6")), mac(6))
    );
    switch.apply(&port(1, "c", 9, &["10.0.0.9"], &[]));
    assert_eq!(switch.mind.found().len(), 2, "it has come");
    switch.apply(&delete(4, sought("10.0.0.6")));
    switch.apply(&delete(4, sought("10.0.0.9")));
    assert!(switch.mind.found().is_empty());
}
