//! Virtual addresses: turns, translation both ways, errors, conflicts, and what ends connections.

use super::*;
use crate::conntrack::ConnectionRecord;
use std::net::IpAddr;
use weir_model::entry::{NetworkEntry, ServiceEntry, TurnEntry, VirtualEntry, Vni};
use weir_model::resource::{Action, Direction, Forwarding, Protocol};
use weir_model::{Entry, Key, Update};

const VIRTUAL: &str = "10.0.0.100";
const VIRTUAL6: &str = "fd00::100";

fn shop(version: u64, address: &str, members: &[&str]) -> Update {
    let services = vec![
        ServiceEntry { protocol: 6, port: 80, target_port: 8080 },
        ServiceEntry { protocol: 17, port: 53, target_port: 53 },
    ];
    let members = members.iter().map(|member| ip(member)).collect();
    let entry = VirtualEntry { name: label("shop"), services, members };
    put(version, Key::Virtual { vni: Vni(1), address: ip(address) }, Entry::Virtual(entry))
}

fn turn_key(client: &str, address: &str) -> Key {
    Key::Turn { vni: Vni(1), client: ip(client), address: ip(address) }
}

fn turn(version: u64, client: &str, address: &str, member: &str) -> Update {
    let entry = TurnEntry { endpoint: label("there"), member: ip(member) };
    put(version, turn_key(client, address), Entry::Turn(entry))
}

/// `a` (10.0.0.5) is the client; members are `b` here (10.0.0.6), `c` here in another subnet, and 10.0.0.9 elsewhere.
fn balanced(rules: Vec<weir_model::entry::Rule>) -> Switch {
    let mut switch = host(rules);
    switch.apply(&shop(2, VIRTUAL, &["10.0.0.6", "10.0.0.9", "10.0.1.7"]));
    switch.apply(&shop(2, VIRTUAL6, &["fd00::6", "fd00::9"]));
    switch
}

fn web() -> Vec<weir_model::entry::Rule> {
    vec![allow_in("web", Protocol::TCP, Some(8080)), allow_in("dns", Protocol::UDP, Some(53))]
}

fn from_a(port: u16, to: (&str, u16), flags: u8) -> Vec<u8> {
    let source = ip(if to.0.contains(':') { "fd00::5" } else { "10.0.0.5" });
    tcp((source, port), (ip(to.0), to.1), flags).from(mac(5)).build()
}

fn reply(from: (&str, u16, u8), to: (&str, u16), flags: u8) -> Vec<u8> {
    tcp((ip(from.0), from.1), (ip(to.0), to.1), flags).from(mac(from.2)).build()
}

fn ends(frame: &[u8]) -> ((IpAddr, u16), (IpAddr, u16)) {
    check(frame);
    let parsed = weir_packet::parse(frame).unwrap();
    (
        (IpAddr::from(parsed.source), parsed.source_port),
        (IpAddr::from(parsed.destination), parsed.destination_port),
    )
}

fn at(address: &str, port: u16) -> (IpAddr, u16) {
    (ip(address), port)
}

#[test]
fn a_first_connection_asks_whose_turn_it_is_and_later_ones_do_not() {
    let mut switch = balanced(web());
    let asked = Event::AskedTurn(ip("10.0.0.5"), ip(VIRTUAL));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), asked);
    assert!(switch.flows.is_empty() && switch.mind.connections().is_empty());
    switch.apply(&turn(3, "10.0.0.5", VIRTUAL, "10.0.0.9"));
    for port in [4000, 4001] {
        let sent = switch.at_port(1, "a", &from_a(port, (VIRTUAL, 80), SYN));
        let Event::Sent { receiver, ref frame, .. } = sent else { panic!("{sent:?}") };
        assert_eq!(receiver, ip(OTHER_HOST));
        assert_eq!(ends(frame), (at("10.0.0.5", port), at("10.0.0.9", 8080)));
    }
    let misses = switch.misses;
    switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), ACK));
    assert_eq!(switch.misses, misses, "a flow takes the rest");
    let back =
        switch.at_underlay(OTHER_HOST, 1, &reply(("10.0.0.9", 8080, 9), ("10.0.0.5", 4001), SYN | ACK));
    let Event::Delivered(_, ref frame) = back else { panic!("{back:?}") };
    assert_eq!(ends(frame), (at(VIRTUAL, 80), at("10.0.0.5", 4001)));
    // The turn expires: the connection does not.
    switch.apply(&delete(4, turn_key("10.0.0.5", VIRTUAL)));
    switch.flows.clear();
    let sent = switch.at_port(1, "a", &from_a(4001, (VIRTUAL, 80), ACK));
    assert_eq!(ends(sent.frame()).1, at("10.0.0.9", 8080));
    assert_eq!(switch.at_port(1, "a", &from_a(4002, (VIRTUAL, 80), SYN)), asked);
}

#[test]
fn a_member_on_the_same_host_is_reached_and_answers_as_the_virtual_address() {
    let mut switch = balanced(web());
    switch.apply(&turn(3, "10.0.0.5", VIRTUAL, "10.0.0.6"));
    switch.apply(&turn(3, "fd00::5", VIRTUAL6, "fd00::6"));
    for (virtual_address, client, member) in
        [(VIRTUAL, "10.0.0.5", "10.0.0.6"), (VIRTUAL6, "fd00::5", "fd00::6")]
    {
        let there = switch.at_port(1, "a", &from_a(4000, (virtual_address, 80), SYN));
        assert_eq!(ends(there.frame()), (at(client, 4000), at(member, 8080)));
        let misses = switch.misses;
        let back = switch.at_port(1, "b", &reply((member, 8080, 6), (client, 4000), SYN | ACK));
        assert_eq!(ends(back.frame()), (at(virtual_address, 80), at(client, 4000)));
        assert_eq!(switch.misses, misses, "the way back was there already");
        // Without flows, the way back finds the connection, and makes both flows.
        switch.flows.clear();
        let back = switch.at_port(1, "b", &reply((member, 8080, 6), (client, 4000), ACK));
        assert_eq!(ends(back.frame()), (at(virtual_address, 80), at(client, 4000)));
        let misses = switch.misses;
        let there = switch.at_port(1, "a", &from_a(4000, (virtual_address, 80), ACK));
        assert_eq!(ends(there.frame()).1, at(member, 8080));
        assert_eq!(switch.misses, misses);
    }
    // Between subnets the TTL goes down, as for direct traffic.
    switch.apply(&turn(4, "10.0.0.5", VIRTUAL, "10.0.1.7"));
    let there = switch.at_port(1, "a", &from_a(5000, (VIRTUAL, 80), SYN));
    assert_eq!((ends(there.frame()).1, ttl_of(there.frame())), (at("10.0.1.7", 8080), 63));
}

#[test]
fn rules_judge_the_member_and_revoke_connections() {
    let mut switch = balanced(Vec::new());
    switch.apply(&turn(3, "10.0.0.5", VIRTUAL, "10.0.0.6"));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), default_deny("ingress"));
    switch.apply(&policy(1, 4, vec![allow_in("virtual", Protocol::TCP, Some(80))]));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), default_deny("ingress"));
    switch.apply(&policy(1, 5, web()));
    let there = switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN));
    assert_eq!(ends(there.frame()).1, at("10.0.0.6", 8080));
    switch.at_port(1, "b", &reply(("10.0.0.6", 8080, 6), ("10.0.0.5", 4000), SYN | ACK));
    let deny = weir_model::entry::Rule { priority: 1, ..rule("closed", Direction::Egress, Action::Deny) };
    switch.apply(&policy(1, 6, [web(), vec![deny]].concat()));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), ACK)), dropped_by("closed"));
    let back = switch.at_port(1, "b", &reply(("10.0.0.6", 8080, 6), ("10.0.0.5", 4000), ACK));
    assert!(back.is_drop(), "{back:?}");
}

#[test]
fn what_is_no_service_is_refused_and_echo_is_answered() {
    let mut switch = balanced(web());
    let refused = switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 81), SYN));
    let Event::Answered(ref frame) = refused else { panic!("{refused:?}") };
    assert_eq!(ends(frame).1.0, ip("10.0.0.5"));
    assert_eq!(switch.count("drops{reason=\"no-service\"}"), 1);
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 81), SYN)), dropped("no-service"));
    for (from, to) in [("10.0.0.5", VIRTUAL), ("fd00::5", VIRTUAL6)] {
        let answer = switch.at_port(1, "a", &echo(ip(from), ip(to), 7, true).from(mac(5)).build());
        let Event::Answered(ref frame) = answer else { panic!("{answer:?}") };
        assert_eq!((ends(frame).0.0, ends(frame).1.0), (ip(to), ip(from)));
    }
    let asked = arp(mac(5), "10.0.0.5".parse().unwrap(), VIRTUAL.parse().unwrap(), 1);
    assert!(matches!(switch.at_port(1, "a", &asked), Event::Answered(_)), "the router answers for it");
}

#[test]
fn without_a_member_that_can_serve_it_is_unreachable() {
    let mut switch = balanced(web());
    for members in [&[][..], &["10.0.0.5"][..]] {
        switch.apply(&shop(3, VIRTUAL, members));
        let before = switch.count("drops{reason=\"no-member\"}");
        let answer = switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN));
        assert!(matches!(answer, Event::Answered(_)), "{answer:?}");
        assert_eq!(switch.count("drops{reason=\"no-member\"}"), before + 1);
    }
    // A member that comes is asked for at once.
    switch.apply(&shop(5, VIRTUAL, &["10.0.0.5", "10.0.0.9"]));
    let asked = Event::AskedTurn(ip("10.0.0.5"), ip(VIRTUAL));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), asked);
    // A turn that leads to the client itself, or to one that serves no more, is none.
    switch.apply(&turn(6, "10.0.0.5", VIRTUAL, "10.0.0.5"));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), asked);
    switch.apply(&turn(7, "10.0.0.5", VIRTUAL, "10.0.0.77"));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), asked);
}

#[test]
fn connections_end_with_their_member_and_the_next_packet_asks_anew() {
    let mut switch = balanced(web());
    switch.apply(&turn(3, "10.0.0.5", VIRTUAL, "10.0.0.9"));
    switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN));
    switch.apply(&shop(4, VIRTUAL, &["10.0.0.6", "10.0.0.9"]));
    assert_eq!(switch.mind.connections().len(), 1, "another member's going is none of its business");
    switch.apply(&shop(5, VIRTUAL, &["10.0.0.6"]));
    assert!(switch.mind.connections().is_empty());
    let asked = Event::AskedTurn(ip("10.0.0.5"), ip(VIRTUAL));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), ACK)), asked);
    switch.apply(&turn(6, "10.0.0.5", VIRTUAL, "10.0.0.6"));
    let there = switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN));
    assert_eq!(ends(there.frame()).1, at("10.0.0.6", 8080));
    switch.apply(&delete(7, Key::Virtual { vni: Vni(1), address: ip(VIRTUAL) }));
    assert!(switch.mind.connections().is_empty());
    let there = switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), ACK));
    assert!(matches!(there, Event::Sent { by_gateway: true, .. }), "an address as any other: {there:?}");
    switch.apply(&delete(8, turn_key("10.0.0.5", VIRTUAL)));
    assert_eq!(switch.mind.tables().turns(), 0);
}

#[test]
fn the_same_ports_are_never_those_of_two_conversations() {
    let mut switch = balanced(web());
    switch.apply(&turn(3, "10.0.0.5", VIRTUAL, "10.0.0.9"));
    switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN));
    let direct = switch.at_port(1, "a", &from_a(4000, ("10.0.0.9", 8080), SYN));
    assert_eq!(direct, dropped("balancer-conflict"));
    // The other way round.
    assert!(matches!(switch.at_port(1, "a", &from_a(4001, ("10.0.0.9", 8080), SYN)), Event::Sent { .. }));
    assert_eq!(switch.at_port(1, "a", &from_a(4001, (VIRTUAL, 80), SYN)), dropped("balancer-conflict"));
    // What is over gives its ports free when its flows are gone.
    switch.at_port(1, "a", &from_a(4001, ("10.0.0.9", 8080), RST));
    assert_eq!(switch.at_port(1, "a", &from_a(4001, (VIRTUAL, 80), SYN)), dropped("balancer-conflict"));
    switch.pass(31_000);
    let there = switch.at_port(1, "a", &from_a(4001, (VIRTUAL, 80), SYN));
    assert!(matches!(there, Event::Sent { .. }), "{there:?}");
    let back =
        switch.at_underlay(OTHER_HOST, 1, &reply(("10.0.0.9", 8080, 9), ("10.0.0.5", 4001), SYN | ACK));
    assert_eq!(ends(back.frame()).0, at(VIRTUAL, 80));
}

#[test]
fn nobody_sends_from_a_virtual_address() {
    let mut switch = balanced(web());
    let own = tcp(at(VIRTUAL, 80), at("10.0.0.6", 4000), SYN).from(mac(5)).build();
    assert_eq!(switch.at_port(1, "a", &own), dropped("spoofed-source"));
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &own), dropped("spoofed-source"));
    let route = weir_model::entry::RouteHop::Address(ip("10.0.0.5"));
    switch.apply(&super::route(1, "all", "10.0.0.0/16", route));
    assert_eq!(switch.at_port(1, "a", &own), dropped("spoofed-source"), "a route changes nothing");
}

#[test]
fn errors_about_a_connection_are_translated_both_ways() {
    let mut switch = balanced(web());
    for (virtual_address, client, member, far) in
        [(VIRTUAL, "10.0.0.5", "10.0.0.9", "10.0.0.1"), (VIRTUAL6, "fd00::5", "fd00::9", "fd00::1")]
    {
        switch.apply(&turn(3, client, virtual_address, member));
        let there = switch.at_port(1, "a", &from_a(4000, (virtual_address, 80), SYN));
        // The member's port is closed, and something on the way has something to say.
        for (from, wanted) in [(member, virtual_address), (far, far)] {
            let error = unreachable(ip(from), ip(client), there.frame()).from(mac(9)).build();
            let told = switch.at_underlay(OTHER_HOST, 1, &error);
            let Event::Delivered(_, ref frame) = told else { panic!("{told:?}") };
            let (outer, inner) = (ends(frame), embedded(frame));
            assert_eq!((outer.0.0, outer.1.0), (ip(wanted), ip(client)));
            assert_eq!(inner, (at(client, 4000), at(virtual_address, 80)));
        }
        let back = switch.at_underlay(OTHER_HOST, 1, &reply((member, 8080, 9), (client, 4000), SYN | ACK));
        let error = unreachable(ip(client), ip(virtual_address), back.frame()).from(mac(5)).build();
        let told = switch.at_port(1, "a", &error);
        let Event::Sent { ref frame, .. } = told else { panic!("{told:?}") };
        assert_eq!(ends(frame).1.0, ip(member));
        assert_eq!(embedded(frame), (at(member, 8080), at(client, 4000)));
        // About nothing that it knows.
        let other = reply((member, 8080, 9), (client, 4999), ACK);
        let about = unreachable(ip(client), ip(virtual_address), &other).from(mac(5)).build();
        assert_eq!(switch.at_port(1, "a", &about), dropped("icmp-unrelated"));
    }
}

fn embedded(frame: &[u8]) -> ((IpAddr, u16), (IpAddr, u16)) {
    let parsed = weir_packet::parse(frame).unwrap();
    let inside = weir_packet::rewrite::parse_embedded(frame, &parsed).unwrap();
    let key = inside.key(0, &parsed);
    ((key.source.into(), key.source_port), (key.destination.into(), key.destination_port))
}

#[test]
fn established_connections_survive_a_crash_with_their_member() {
    let mut switch = balanced(web());
    let mut records: Vec<ConnectionRecord> = Vec::new();
    switch.apply(&turn(3, "10.0.0.5", VIRTUAL, "10.0.0.9"));
    switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN));
    switch.at_underlay(OTHER_HOST, 1, &reply(("10.0.0.9", 8080, 9), ("10.0.0.5", 4000), SYN | ACK));
    switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), ACK));
    records.extend(switch.mind.take_connection_changes());
    let mut again = balanced(web());
    assert_eq!(again.mind.restore_connections(again.now_ms, records.clone()), 1);
    // Neither needs a turn: the way there, and the way back.
    let there = again.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), ACK));
    assert_eq!(ends(there.frame()).1, at("10.0.0.9", 8080));
    let mut again = balanced(web());
    again.mind.restore_connections(again.now_ms, records.clone());
    let back = again.at_underlay(OTHER_HOST, 1, &reply(("10.0.0.9", 8080, 9), ("10.0.0.5", 4000), ACK));
    assert_eq!(ends(back.frame()).0, at(VIRTUAL, 80));
    // Its member serves no more: then it is over.
    let mut without = host(web());
    without.apply(&shop(9, VIRTUAL, &["10.0.0.6"]));
    assert_eq!(without.mind.restore_connections(without.now_ms, records), 0);
}

#[test]
fn a_member_whose_place_is_not_known_is_asked_for_in_a_learned_network() {
    let mut switch = balanced(web());
    switch.apply(&network(1, NetworkEntry { forwarding: Forwarding::Learned, ..network_entry("red", true) }));
    switch.apply(&shop(3, VIRTUAL, &["10.0.0.77"]));
    let asked = Event::AskedTurn(ip("10.0.0.5"), ip(VIRTUAL));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), asked);
    switch.apply(&turn(4, "10.0.0.5", VIRTUAL, "10.0.0.77"));
    assert_eq!(switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN)), Event::Asked(ip("10.0.0.77")));
    switch.apply(&location(1, "10.0.0.77", 77, OTHER_HOST));
    let there = switch.at_port(1, "a", &from_a(4000, (VIRTUAL, 80), SYN));
    assert_eq!(ends(there.frame()).1, at("10.0.0.77", 8080));
}

#[test]
fn entries_that_make_no_sense_are_refused() {
    let mut switch = balanced(web());
    let mut refused = |update: &Update| {
        let now_ms = switch.now_ms;
        use crate::flow::Resolver as _;
        switch.mind.apply(now_ms, update).unwrap_err().to_string()
    };
    assert!(refused(&shop(3, VIRTUAL, &["fd00::6"])).contains("no endpoint's address"));
    assert!(refused(&shop(3, "224.0.0.9", &[])).contains("no endpoint's address"));
    assert!(refused(&turn(3, "10.0.0.5", VIRTUAL6, "fd00::6")).contains("family"));
    assert!(refused(&turn(3, "10.0.0.5", VIRTUAL, "fd00::6")).contains("family"));
}

#[test]
fn a_client_that_keeps_to_one_port_is_served_by_a_member_that_comes_back() {
    use weir_packet::encap::Half;
    // Late replies that the rules allow by themselves, of a member that remembers and of one that does not.
    for half in [Half::Mutual, Half::Answers] {
        let mut switch = balanced(vec![allow_in("all", Protocol::Any, None)]);
        let ask = udp((ip("10.0.0.5"), 4000), (ip(VIRTUAL), 53), 1).from(mac(5)).build();
        let answer = udp((ip("10.0.0.9"), 53), (ip("10.0.0.5"), 4000), 1).build();
        switch.apply(&turn(3, "10.0.0.5", VIRTUAL, "10.0.0.9"));
        assert!(matches!(switch.at_port(1, "a", &ask), Event::Sent { .. }));
        let served = switch.at_underlay_with(OTHER_HOST, 1, Half::Replies, &answer);
        assert_eq!(ends(served.frame()).0, at(VIRTUAL, 53));
        switch.apply(&shop(4, VIRTUAL, &["10.0.0.6"]));
        switch.apply(&turn(5, "10.0.0.5", VIRTUAL, "10.0.0.6"));
        assert!(
            matches!(switch.at_underlay_with(OTHER_HOST, 1, half, &answer), Event::Delivered(..)),
            "late"
        );
        assert!(matches!(switch.at_port(1, "a", &ask), Event::Delivered(..)), "another serves");
        switch.apply(&shop(6, VIRTUAL, &["10.0.0.9"]));
        switch.apply(&turn(7, "10.0.0.5", VIRTUAL, "10.0.0.9"));
        let again = switch.at_port(1, "a", &ask);
        assert_eq!(ends(again.frame()).1, at("10.0.0.9", 53), "{half:?}");
        let served = switch.at_underlay_with(OTHER_HOST, 1, Half::Replies, &answer);
        assert_eq!(ends(served.frame()).0, at(VIRTUAL, 53), "{half:?}");
    }
}
