//! Packets that no honest sender makes.

use super::*;
use weir_model::resource::{Action, Protocol};
use weir_packet::headers::tcp_flags::{FIN, PSH, URG};

fn open_host() -> Switch {
    let mut switch = host(vec![allow_in("all", Protocol::Any, None)]);
    switch.apply(&policy_with(1, 2, Action::Allow, Action::Allow, Vec::new()));
    switch
}

fn malformed(error: &str) -> Event {
    Event::Dropped(format!("drops{{reason=\"malformed\",error=\"{error}\"}}"))
}

#[test]
fn tcp_flags_that_no_connection_has_open_none() {
    let mut switch = open_host();
    let out = |flags| tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.9"), 80), flags).from(mac(5)).build();
    let odd = [0, FIN, FIN | PSH | URG, SYN | FIN, SYN | RST, 0xff];
    for flags in odd {
        assert_eq!(switch.at_port(1, "a", &out(flags)), malformed("tcp_flags"), "{flags:#x}");
        let inwards = tcp((ip("10.0.0.9"), 4000), (ip("10.0.0.5"), 80), flags).build();
        assert_eq!(switch.at_underlay(OTHER_HOST, 1, &inwards), malformed("tcp_flags"), "{flags:#x}");
    }
    assert!(switch.mind.connections().is_empty());
    for flags in [SYN, SYN | ACK, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK] {
        assert!(matches!(switch.at_port(1, "a", &out(flags)), Event::Sent { .. }), "{flags:#x}");
    }
    // Also when a flow is there already.
    assert_eq!(switch.at_port(1, "a", &out(0)), malformed("tcp_flags"));
}

#[test]
fn a_ttl_of_zero_and_a_wrong_header_checksum_open_nothing() {
    let mut switch = open_host();
    let packet = udp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 53), 1).from(mac(5));
    for end in ["10.0.0.5", "fd00::5"].into_iter().zip(["10.0.0.6", "fd00::6"]) {
        let gone = udp((ip(end.0), 4000), (ip(end.1), 53), 1).from(mac(5)).ttl(0).build();
        assert_eq!(switch.at_port(1, "a", &gone), malformed("ttl_zero"));
    }
    let mut wrong = packet.build();
    wrong[24] ^= 0x10;
    assert_eq!(switch.at_port(1, "a", &wrong), malformed("ipv4_checksum"));
    assert!(switch.mind.connections().is_empty());
    assert!(matches!(switch.at_port(1, "a", &packet.build()), Event::Delivered(..)));
    assert_eq!(switch.at_port(1, "a", &packet.ttl(0).build()), malformed("ttl_zero"), "with a flow too");
}

#[test]
fn only_the_network_s_router_redirects_and_advertises() {
    let mut switch = open_host();
    let sent = udp((ip("10.0.0.5"), 8), (ip("10.0.0.9"), 7), 5).from(mac(5)).build();
    assert!(matches!(switch.at_port(1, "a", &sent), Event::Sent { .. }));
    for kind in [4, 5] {
        let mut message = vec![kind, 0, 0, 0, 10, 0, 0, 77];
        message.extend(&sent[14..]);
        let frame = Packet::new(ip("10.0.0.9"), ip("10.0.0.5"), 1, message.clone()).build();
        assert_eq!(switch.at_underlay(OTHER_HOST, 1, &frame), dropped("icmp-forbidden"));
        let frame = Packet::new(ip("10.0.0.6"), ip("10.0.0.5"), 1, message).from(mac(6)).build();
        assert_eq!(switch.at_port(1, "b", &frame), dropped("icmp-forbidden"));
    }
    for (kind, bytes) in [(134, 16), (137, 40)] {
        let mut message = vec![0; bytes];
        message[0] = kind;
        let frame = Packet::new(ip("fd00::6"), ip("fd00::5"), 58, message).from(mac(6)).ttl(255);
        let frame = frame.to(mac(5)).build();
        assert_eq!(switch.at_port(1, "b", &frame), dropped("icmp-forbidden"));
    }
}

#[test]
fn errors_about_nothing_pass_between_no_guests_whatever_the_rules_say() {
    let mut switch = open_host();
    let never = udp((ip("10.0.0.5"), 8), (ip("10.0.0.9"), 7), 5).from(mac(5)).build();
    let forged = unreachable(ip("10.0.0.9"), ip("10.0.0.5"), &never).build();
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &forged), dropped("icmp-unrelated"));
    let here = unreachable(ip("10.0.0.6"), ip("10.0.0.5"), &never).from(mac(6)).build();
    assert_eq!(switch.at_port(1, "b", &here), dropped("icmp-unrelated"));
    assert!(matches!(switch.at_port(1, "a", &never), Event::Sent { .. }));
    assert!(
        matches!(switch.at_underlay(OTHER_HOST, 1, &forged), Event::Delivered(..)),
        "about something now"
    );
}

#[test]
fn what_an_answer_was_to_tell_is_what_is_counted_when_too_many_were_sent() {
    let mut switch = open_host();
    let frame = udp((ip("10.0.0.5"), 8), (ip("10.0.1.7"), 7), 5).from(mac(5)).ttl(1).build();
    let mut events = (0..400).map(|_| switch.at_port(1, "a", &frame));
    assert!(matches!(events.next(), Some(Event::Answered(_))));
    let late = events.find(Event::is_drop);
    assert_eq!(late, Some(dropped("ttl-expired")));
}

#[test]
fn one_name_is_one_count() {
    use crate::slow::requests::merged;
    let pair = |name: &str, value| (name.to_string(), value);
    let counted =
        vec![pair("a", 1), pair("drops{reason=\"port-down\"}", 2), pair("drops{reason=\"port-down\"}", 3)];
    assert_eq!(merged(counted), [pair("a", 1), pair("drops{reason=\"port-down\"}", 5)]);
}
