use super::{Bucket, ICMP_ERRORS_PER_S, parse_arp};
use crate::flow::Ingress;
use crate::testing::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::headers::{ARP_REPLY, Arp};
use weir_packet::parse;

/// Port `a` (10.0.0.5, fd00::5) of network 1.
fn switch() -> Switch {
    let mut switch = Switch::new(resolver("192.0.2.1"));
    switch.apply_all(&[
        network(1, network_entry("red", false)),
        policy(1, 1, Vec::new()),
        port(1, "a", 5, &["10.0.0.5", "fd00::5"], &[]),
        gateways(&["192.0.2.100"]),
    ]);
    switch
}

fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn ask(sender: &str, target: &str) -> Event {
    switch().at_port(1, "a", &arp(mac(5), v4(sender), v4(target), 1))
}

fn dropped(reason: &str) -> Event {
    Event::Dropped(format!("drops{{reason=\"{reason}\"}}"))
}

fn reply(event: &Event) -> Arp {
    parse_arp(&event.frame()[14..]).unwrap()
}

#[test]
fn arp_is_answered_by_the_router_for_every_address_of_the_network() {
    for target in ["10.0.0.1", "10.0.0.77", "10.0.1.1", "10.0.1.9"] {
        let event = ask("10.0.0.5", target);
        let arp = reply(&event);
        assert_eq!(arp.operation, ARP_REPLY);
        assert_eq!(arp.sender_mac, weir_model::entry::Vni(1).router_mac().0);
        assert_eq!((arp.sender_ip, arp.target_ip), (v4(target).octets(), [10, 0, 0, 5]));
        assert_eq!(&event.frame()[..6], &mac(5).0);
    }
}

#[test]
fn arp_for_the_own_address_or_outside_of_the_network_stays_silent() {
    assert_eq!(ask("0.0.0.0", "10.0.0.5"), dropped("arp-own-address"));
    assert_eq!(ask("10.0.0.5", "10.0.0.5"), dropped("arp-own-address"));
    assert_eq!(ask("10.0.0.5", "172.16.0.1"), dropped("arp-outside"));
    assert_eq!(ask("10.0.0.5", "10.0.0.255"), dropped("arp-outside"));
}

#[test]
fn a_probe_for_an_address_of_somebody_else_is_answered() {
    assert_eq!(reply(&ask("0.0.0.0", "10.0.0.6")).sender_ip, [10, 0, 0, 6]);
}

#[test]
fn arp_that_lies_or_asks_nothing_is_dropped() {
    assert_eq!(ask("10.0.0.6", "10.0.0.1"), dropped("spoofed-source"));
    let mut switch = switch();
    let unsolicited = arp(mac(5), v4("10.0.0.5"), v4("10.0.0.6"), 2);
    assert_eq!(switch.at_port(1, "a", &unsolicited), dropped("arp-unsolicited"));
    let foreign = arp(mac(6), v4("10.0.0.5"), v4("10.0.0.6"), 1);
    assert_eq!(switch.at_port(1, "a", &foreign), dropped("spoofed-mac"));
}

#[test]
fn a_solicitation_is_answered_by_the_router() {
    let mut switch = switch();
    for (target, is_router) in [("fd00::1", true), ("fe80::1", true), ("fd00::77", false)] {
        let event = switch.at_port(1, "a", &solicitation(mac(5), v6("fd00::5"), v6(target)));
        let parsed = parse(event.frame()).unwrap();
        assert_eq!((parsed.icmp_type, parsed.ttl), (136, 255));
        assert_eq!(IpAddr::from(parsed.source), ip(target));
        assert_eq!(event.frame()[parsed.l4_offset + 4] & 0x80 != 0, is_router);
        weir_packet::checksum::verify(event.frame(), &parsed).unwrap();
    }
}

#[test]
fn duplicate_address_detection_finds_nobody_with_the_own_address() {
    let mut switch = switch();
    let mut probe = |target| switch.at_port(1, "a", &solicitation(mac(5), v6("::"), v6(target)));
    assert_eq!(probe("fd00::5"), dropped("neighbor-own-address"));
    assert_eq!(probe("fe80::aa"), dropped("neighbor-outside"));
    assert_eq!(probe("fd99::1"), dropped("neighbor-outside"));
    let taken = probe("fd00::6");
    let parsed = parse(taken.frame()).unwrap();
    assert_eq!(IpAddr::from(parsed.destination), ip("ff02::1"), "told to all nodes");
}

#[test]
fn a_router_solicitation_gets_an_advertisement_without_prefixes_on_the_link() {
    let mut switch = switch();
    let solicitation = Packet::new(ip("fe80::aa"), ip("ff02::2"), 58, vec![133, 0, 0, 0, 0, 0, 0, 0])
        .from(mac(5))
        .to(weir_model::MacAddr([0x33, 0x33, 0, 0, 0, 2]))
        .ttl(255)
        .build();
    let event = switch.at_port(1, "a", &solicitation);
    let frame = event.frame();
    let parsed = parse(frame).unwrap();
    weir_packet::checksum::verify(frame, &parsed).unwrap();
    assert_eq!((parsed.icmp_type, IpAddr::from(parsed.source)), (134, ip("fe80::1")));
    let message = &frame[parsed.l4_offset..];
    assert_eq!(message[5] & 0xc0, 0xc0, "addresses and all else by DHCPv6");
    assert_ne!(&message[6..8], &[0, 0], "it is a default router");
    let mut options = &message[16..];
    let (mut mtu, mut prefix_flags, mut dns) = (None, None, None);
    while !options.is_empty() {
        let length = usize::from(options[1]) * 8;
        match options[0] {
            3 => prefix_flags = Some(options[3]),
            5 => mtu = Some(u32::from_be_bytes(options[4..8].try_into().unwrap())),
            25 => dns = Some(v6_of(&options[8..24])),
            _ => {}
        }
        options = &options[length..];
    }
    assert_eq!((mtu, prefix_flags, dns), (Some(1400), Some(0), Some(ip("fd00::1"))));
}

fn v6_of(bytes: &[u8]) -> IpAddr {
    IpAddr::from(<[u8; 16]>::try_from(bytes).unwrap())
}

#[test]
fn advertisements_are_due_when_a_port_comes_up_and_from_time_to_time() {
    let mut switch = switch();
    let due = switch.mind.advertisements(1_000);
    assert_eq!(due.len(), 1);
    assert!(switch.mind.advertisements(2_000).is_empty());
    assert_eq!(switch.mind.advertisements(1_000 + crate::resolve::ADVERTISEMENT_INTERVAL_MS).len(), 1);
    switch.apply(&delete(2, port_key(1, "a")));
    assert!(switch.mind.advertisements(10_000_000).is_empty());
}

#[test]
fn the_router_answers_echo_in_both_families() {
    let mut switch = switch();
    for (own, router) in [("10.0.0.5", "10.0.0.1"), ("10.0.0.5", "10.0.1.1"), ("fd00::5", "fd00::1")] {
        let request = echo(ip(own), ip(router), 7, true).from(mac(5)).build();
        let event = switch.at_port(1, "a", &request);
        let parsed = parse(event.frame()).unwrap();
        assert!(matches!(event, Event::Answered(_)) && parsed.is_icmp_echo());
        assert_eq!((IpAddr::from(parsed.source), parsed.icmp_id), (ip(router), 7));
        weir_packet::checksum::verify(event.frame(), &parsed).unwrap();
    }
    let link_local = echo(ip("fe80::aa"), ip("fe80::1"), 7, true).from(mac(5)).build();
    assert!(matches!(switch.at_port(1, "a", &link_local), Event::Answered(_)));
}

#[test]
fn dhcp_and_dns_go_to_the_agent_and_all_else_to_the_router_is_refused() {
    let mut switch = switch();
    let broadcast = weir_model::MacAddr::BROADCAST;
    let discover = udp((ip("0.0.0.0"), 68), (ip("255.255.255.255"), 67), 240).from(mac(5)).to(broadcast);
    assert_eq!(switch.at_port(1, "a", &discover.build()), Event::Punted);
    let renew = udp((ip("10.0.0.5"), 68), (ip("10.0.0.1"), 67), 240).from(mac(5));
    assert_eq!(switch.at_port(1, "a", &renew.build()), Event::Punted);
    let solicit = udp((ip("fe80::aa"), 546), (ip("ff02::1:2"), 547), 20).from(mac(5));
    let solicit = solicit.to(weir_model::MacAddr([0x33, 0x33, 0, 1, 0, 2]));
    assert_eq!(switch.at_port(1, "a", &solicit.build()), Event::Punted);
    let query = udp((ip("10.0.0.5"), 999), (ip("10.0.0.1"), 53), 30).from(mac(5));
    assert_eq!(switch.at_port(1, "a", &query.build()), Event::Punted);

    let over_tcp = tcp((ip("10.0.0.5"), 999), (ip("10.0.0.1"), 53), SYN).from(mac(5));
    assert_eq!(switch.at_port(1, "a", &over_tcp.build()), Event::Punted);

    let web = tcp((ip("10.0.0.5"), 999), (ip("10.0.0.1"), 80), SYN).from(mac(5));
    let event = switch.at_port(1, "a", &web.build());
    assert_eq!(parse(event.frame()).unwrap().tcp_flags, RST | ACK);
    let other = udp((ip("10.0.0.5"), 999), (ip("10.0.0.1"), 123), 30).from(mac(5));
    let event = switch.at_port(1, "a", &other.build());
    let parsed = parse(event.frame()).unwrap();
    assert_eq!((parsed.icmp_type, parsed.icmp_code), (3, 3));
    let gre = Packet::new(ip("10.0.0.5"), ip("10.0.0.1"), 47, vec![0; 8]).from(mac(5));
    assert_eq!(switch.at_port(1, "a", &gre.build()), dropped("to-router"));
}

#[test]
fn dhcp_from_the_unspecified_address_is_the_only_use_of_it() {
    let mut switch = switch();
    let other = udp((ip("0.0.0.0"), 68), (ip("10.0.0.9"), 67), 240).from(mac(5));
    assert_eq!(switch.at_port(1, "a", &other.build()), dropped("spoofed-source"));
    let wrong_port = udp((ip("0.0.0.0"), 69), (ip("255.255.255.255"), 67), 240).from(mac(5));
    let event = switch.at_port(1, "a", &wrong_port.to(weir_model::MacAddr::BROADCAST).build());
    assert_eq!(event, dropped("spoofed-source"));
}

#[test]
fn icmp_errors_have_a_budget() {
    let mut bucket = Bucket::default();
    for _ in 0..ICMP_ERRORS_PER_S {
        assert!(bucket.has(5_000));
        bucket.take(5_000);
    }
    assert!(!bucket.has(5_500));
    assert!(bucket.has(6_000));

    let mut switch = switch();
    let index = switch.port_index(1, "a");
    let refused = udp((ip("10.0.0.5"), 999), (ip("10.0.0.1"), 123), 30).from(mac(5)).build();
    let answered = (0..ICMP_ERRORS_PER_S + 50)
        .filter(|_| matches!(switch.take(&Ingress::Port(index), &refused), Event::Answered(_)))
        .count();
    assert_eq!(answered, ICMP_ERRORS_PER_S as usize);
    assert_eq!(switch.count("drops{reason=\"icmp-limited\"}"), 50);
}
