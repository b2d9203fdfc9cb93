//! Rules and connections.

use super::*;
use weir_model::entry::Rule;
use weir_model::resource::{Action, Direction, Protocol};

fn web() -> Rule {
    allow_in("web", Protocol::TCP, Some(80))
}

fn request(flags: u8) -> Vec<u8> {
    tcp((ip("10.0.0.9"), 4000), (ip("10.0.0.5"), 80), flags).build()
}

fn response(flags: u8) -> Vec<u8> {
    tcp((ip("10.0.0.5"), 80), (ip("10.0.0.9"), 4000), flags).from(mac(5)).build()
}

fn passes(event: &Event) -> bool {
    matches!(event, Event::Delivered(..) | Event::Sent { .. })
}

/// A policy that denies both ways but for the rules.
fn strict(version: u64, rules: Vec<Rule>) -> weir_model::Update {
    policy_with(1, version, Action::Deny, Action::Deny, rules)
}

#[test]
fn replies_pass_by_the_connection_and_nothing_else_does() {
    let mut switch = host(Vec::new());
    switch.apply(&strict(2, vec![web()]));
    assert_eq!(switch.at_port(1, "a", &response(SYN | ACK)), default_deny("egress"), "no connection yet");
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN))));
    assert!(passes(&switch.at_port(1, "a", &response(SYN | ACK))));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(ACK))));
    let other_port = tcp((ip("10.0.0.5"), 81), (ip("10.0.0.9"), 4000), ACK).from(mac(5)).build();
    assert_eq!(switch.at_port(1, "a", &other_port), default_deny("egress"));
    let status = switch.mind.connection_status(switch.now_ms, 10);
    assert_eq!(status.len(), 1);
    assert_eq!((status[0].source, status[0].destination), ((ip("10.0.0.9"), 4000), (ip("10.0.0.5"), 80)));
    assert_eq!(status[0].rule, "passed{network=\"red\",rule=\"web\"}");
    assert_eq!(status[0].state, "open");
}

#[test]
fn every_packet_is_counted_once_under_what_decided() {
    let mut switch = host(vec![web()]);
    for _ in 0..3 {
        switch.at_underlay(OTHER_HOST, 1, &request(ACK));
    }
    assert_eq!(switch.count("passed{network=\"red\",rule=\"web\"}"), 3);
    let ssh = tcp((ip("10.0.0.9"), 4000), (ip("10.0.0.5"), 22), SYN).build();
    for _ in 0..5 {
        assert_eq!(switch.at_underlay(OTHER_HOST, 1, &ssh), default_deny("ingress"));
    }
    assert_eq!(switch.count("drops{reason=\"default-deny\",network=\"red\",direction=\"ingress\"}"), 5);
    assert_eq!(switch.misses, 2, "a flood is dropped by the flow table");
    switch.apply(&policy(
        1,
        2,
        vec![Rule { action: Action::Deny, ..allow_in("no-ssh", Protocol::TCP, Some(22)) }],
    ));
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &ssh), dropped_by("no-ssh"));
}

#[test]
fn between_two_ports_here_both_sides_judge() {
    let mut switch = host(Vec::new());
    let syn = tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 80), SYN).from(mac(5)).build();
    let out = rule("out", Direction::Egress, Action::Allow);
    switch.apply(&strict(2, vec![web()]));
    assert_eq!(switch.at_port(1, "a", &syn), default_deny("egress"));
    switch.apply(&strict(3, vec![out.clone()]));
    assert_eq!(switch.at_port(1, "a", &syn), default_deny("ingress"));
    switch.apply(&strict(4, vec![out, web()]));
    assert!(passes(&switch.at_port(1, "a", &syn)));
    let reply = tcp((ip("10.0.0.6"), 80), (ip("10.0.0.5"), 4000), SYN | ACK).from(mac(6)).build();
    assert!(passes(&switch.at_port(1, "b", &reply)));
}

#[test]
fn a_revoked_rule_ends_connections_and_spares_others() {
    let mut switch = host(vec![web(), allow_in("dns", Protocol::UDP, Some(53))]);
    let query = udp((ip("10.0.0.9"), 4000), (ip("10.0.0.5"), 53), 5).build();
    let answer = udp((ip("10.0.0.5"), 53), (ip("10.0.0.9"), 4000), 5).from(mac(5)).build();
    switch.apply(&strict(2, vec![web(), allow_in("dns", Protocol::UDP, Some(53))]));
    for (there, back) in [(request(SYN), response(SYN | ACK)), (query.clone(), answer.clone())] {
        assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &there)));
        assert!(passes(&switch.at_port(1, "a", &back)));
    }
    let no_web = Rule { action: Action::Deny, ..web() };
    let no_web = Rule { name: label("no-web"), ..no_web };
    switch.apply(&strict(3, vec![no_web, allow_in("dns", Protocol::UDP, Some(53))]));
    assert_eq!(switch.at_port(1, "a", &response(ACK)), dropped_by("no-web"), "the reply first");
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &request(ACK)), dropped_by("no-web"));
    assert!(passes(&switch.at_port(1, "a", &answer)), "the other connection goes on, its reply first");
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &query)));
    assert_eq!(switch.mind.connections().counters.revoked, 1);
    switch.apply(&strict(4, vec![allow_in("dns", Protocol::UDP, Some(53))]));
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &request(ACK)), default_deny("ingress"));
}

#[test]
fn a_member_that_leaves_its_tag_loses_its_connections() {
    let mut switch = host(Vec::new());
    switch.apply_all(&[strict(2, vec![from_tag(web(), "clients")]), members(1, "clients", 1, &["10.0.0.9"])]);
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN))));
    assert!(passes(&switch.at_port(1, "a", &response(SYN | ACK))));
    switch.apply(&members(1, "clients", 1, &["10.0.0.8"]));
    assert_eq!(switch.at_port(1, "a", &response(ACK)), default_deny("ingress"));
    switch.apply(&members(1, "clients", 1, &["10.0.0.8", "10.0.0.9"]));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(ACK))));
}

#[test]
fn a_tag_that_a_port_loses_takes_its_rules_along() {
    let mut switch = host(Vec::new());
    switch.apply(&strict(2, vec![Rule { targets: vec![label("app")], ..web() }]));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN))));
    switch.apply(&port(1, "a", 5, &["10.0.0.5", "fd00::5"], &[]));
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &request(ACK)), default_deny("ingress"));
}

#[test]
fn a_revoked_connection_of_tcp_stays_dead_whoever_sends_next() {
    {
        let (there, back) = (request(ACK), response(ACK));
        // What goes out is allowed by default, so the rules allow the replies by themselves; only a SYN opens anything.
        let mut switch = host(vec![allow_in("all", Protocol::Any, None)]);
        assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &there)));
        assert!(passes(&switch.at_port(1, "a", &back)));
        switch.apply(&policy(1, 2, Vec::new()));
        for _ in 0..3 {
            assert_eq!(switch.at_port(1, "a", &back), default_deny("ingress"));
            assert_eq!(switch.at_underlay(OTHER_HOST, 1, &there), default_deny("ingress"));
            switch.pass(8_000);
        }
        assert_eq!(switch.mind.connection_status(switch.now_ms, 9)[0].state, "revoked");
        for _ in 0..12 {
            switch.pass(8_000);
            assert_eq!(switch.at_port(1, "a", &back), default_deny("ingress"), "as long as it tries");
        }
        switch.apply(&policy(1, 3, vec![allow_in("all", Protocol::Any, None)]));
        assert!(passes(&switch.at_port(1, "a", &back)), "allowed again, it goes on");
        assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &there)));
        assert_eq!((switch.mind.connections().len(), switch.mind.connections().counters.revoked), (1, 1));
        switch.apply(&policy(1, 4, Vec::new()));
        assert_eq!(switch.at_underlay(OTHER_HOST, 1, &there), default_deny("ingress"));
        switch.pass(70_000);
        assert!(switch.mind.connections().is_empty());
        assert!(passes(&switch.at_port(1, "a", &back)), "forgotten, it is a conversation of the other side");
    }
}

/// What a SYN opened that came through is revoked before it was answered: the answer opens nothing in its stead.
#[test]
fn the_answer_to_what_is_revoked_opens_no_connection_of_its_own() {
    let mut switch = host(vec![web()]);
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN))));
    switch.apply(&policy(1, 2, Vec::new()));
    assert_eq!(switch.at_port(1, "a", &response(SYN | ACK)), default_deny("ingress"));
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &request(ACK)), default_deny("ingress"));
    assert_eq!(switch.at_port(1, "a", &response(SYN | ACK)), default_deny("ingress"), "nor later");
    assert_eq!(switch.mind.connections().counters.opened, 1);
    assert!(passes(&switch.at_port(1, "a", &response(SYN))), "its own SYN does");
}

/// The other order of a denied packet and an acknowledgement of those before it, when the answer went by the flow table.
#[test]
fn an_acknowledgement_brings_no_revoked_connection_back() {
    for first in [true, false] {
        let mut switch = host(vec![web()]);
        assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN))));
        assert!(passes(&switch.at_port(1, "a", &response(SYN | ACK))));
        assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(ACK))));
        switch.apply(&policy(1, 2, Vec::new()));
        for turn in [first, !first, first] {
            let event = match turn {
                true => switch.at_underlay(OTHER_HOST, 1, &request(ACK)),
                false => switch.at_port(1, "a", &response(ACK)),
            };
            assert_eq!(event, default_deny("ingress"));
        }
        assert_eq!(switch.mind.connections().counters.opened, 1);
    }
}

#[test]
fn the_other_side_may_open_its_own_connection_with_the_ports_of_a_revoked_one() {
    let mut switch = host(vec![web()]);
    switch.at_underlay(OTHER_HOST, 1, &request(SYN));
    switch.apply(&policy(1, 2, Vec::new()));
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &request(ACK)), default_deny("ingress"));
    assert!(passes(&switch.at_port(1, "a", &response(SYN))));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN | ACK))));
    let status = switch.mind.connection_status(switch.now_ms, 9);
    assert_eq!((status.len(), status[0].source), (1, (ip("10.0.0.5"), 80)));
    switch.apply(&policy_with(1, 3, Action::Deny, Action::Deny, Vec::new()));
    assert_eq!(switch.at_port(1, "a", &response(ACK)), default_deny("egress"));
    assert_eq!(
        switch.at_underlay(OTHER_HOST, 1, &request(SYN)),
        default_deny("egress"),
        "under what revoked it"
    );
}

#[test]
fn a_rule_that_is_not_stateful_passes_one_way_only() {
    let mut switch = host(Vec::new());
    switch.apply(&strict(2, vec![Rule { stateful: false, ..web() }]));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN))));
    assert_eq!(switch.at_port(1, "a", &response(SYN | ACK)), default_deny("egress"));
    assert!(switch.mind.connections().is_empty());
    let back = Rule { stateful: false, ..rule("back", Direction::Egress, Action::Allow) };
    switch.apply(&strict(3, vec![Rule { stateful: false, ..web() }, back]));
    assert!(passes(&switch.at_port(1, "a", &response(SYN | ACK))));
}

#[test]
fn between_two_ports_a_reply_passes_only_the_stateful_side() {
    let mut switch = host(Vec::new());
    let out = rule("out", Direction::Egress, Action::Allow);
    let out_of_a = Rule { targets: vec![label("app")], ..out };
    switch.apply(&strict(2, vec![out_of_a.clone(), Rule { stateful: false, ..web() }]));
    let syn = tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 80), SYN).from(mac(5)).build();
    let reply = tcp((ip("10.0.0.6"), 80), (ip("10.0.0.5"), 4000), SYN | ACK).from(mac(6)).build();
    assert!(passes(&switch.at_port(1, "a", &syn)));
    assert_eq!(switch.at_port(1, "b", &reply), default_deny("egress"));
    switch.apply(&strict(3, vec![out_of_a, web()]));
    assert!(passes(&switch.at_port(1, "a", &syn)));
    assert!(passes(&switch.at_port(1, "b", &reply)));
}

#[test]
fn a_denied_flow_is_allowed_by_a_connection_that_is_opened_the_other_way() {
    let mut switch = host(Vec::new());
    let inwards = udp((ip("10.0.0.9"), 7), (ip("10.0.0.5"), 8), 5).build();
    let outwards = udp((ip("10.0.0.5"), 8), (ip("10.0.0.9"), 7), 5).from(mac(5)).build();
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &inwards), default_deny("ingress"));
    assert_eq!(switch.at_underlay(GATEWAY, 1, &inwards), default_deny("ingress"));
    assert!(passes(&switch.at_port(1, "a", &outwards)));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &inwards)));
    assert!(passes(&switch.at_underlay(GATEWAY, 1, &inwards)));
}

#[test]
fn more_denied_flows_than_are_remembered_stay_exact() {
    use crate::tables::network::DENIED_MAX;
    let mut switch = host(Vec::new());
    let attack = |number: usize| {
        let port = (number % 60_000) as u16 + 1;
        udp((ip("10.0.0.9"), port), (ip("10.0.0.5"), (number / 60_000) as u16 + 1), 1).build()
    };
    for number in 0..DENIED_MAX + 10 {
        assert_eq!(switch.at_underlay(OTHER_HOST, 1, &attack(number)), default_deny("ingress"));
    }
    assert_eq!(switch.flows.len(), DENIED_MAX);
    let name = "drops{reason=\"default-deny\",network=\"red\",direction=\"ingress\"}";
    assert_eq!(switch.count(name), DENIED_MAX as u64 + 10);
    // Those that nobody sends in any more make room for others; those that are left are remembered anew.
    switch.pass(11_000);
    assert!(switch.flows.is_empty());
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &attack(DENIED_MAX)), default_deny("ingress"));
    assert_eq!(switch.flows.len(), 1);
    let outwards = udp((ip("10.0.0.5"), 1), (ip("10.0.0.9"), 1), 5).from(mac(5)).build();
    assert!(passes(&switch.at_port(1, "a", &outwards)));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &attack(0))));
}

#[test]
fn icmp_errors_pass_when_they_are_about_a_connection() {
    let mut switch = host(Vec::new());
    let sent = udp((ip("10.0.0.5"), 8), (ip("10.0.0.9"), 7), 5).from(mac(5)).build();
    let error = unreachable(ip("10.0.0.9"), ip("10.0.0.5"), &sent).build();
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &error), default_deny("ingress"));
    assert!(passes(&switch.at_port(1, "a", &sent)));
    let event = switch.at_underlay(OTHER_HOST, 1, &error);
    assert!(matches!(&event, Event::Delivered(_, frame) if frame[..6] == mac(5).0), "{event:?}");
    assert_eq!(switch.count("passed{path=\"related\"}"), 1);
    let from_a_router = unreachable(ip("10.0.1.1"), ip("10.0.0.5"), &sent).build();
    assert!(passes(&switch.at_underlay(GATEWAY, 1, &from_a_router)));
    let about_another = udp((ip("10.0.0.5"), 9), (ip("10.0.0.9"), 7), 5).from(mac(5)).build();
    let unrelated = unreachable(ip("10.0.0.9"), ip("10.0.0.5"), &about_another).build();
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &unrelated), default_deny("ingress"));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &error)), "which is judged one by one");
    let to_another = unreachable(ip("10.0.0.9"), ip("10.0.0.6"), &sent).build();
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &to_another), default_deny("ingress"));
}

#[test]
fn an_endpoint_may_send_errors_about_what_it_received() {
    let mut switch = host(Vec::new());
    switch.apply(&strict(2, vec![allow_in("udp", Protocol::UDP, None)]));
    let received = udp((ip("10.0.0.9"), 7), (ip("10.0.0.5"), 8), 5).build();
    let error = unreachable(ip("10.0.0.5"), ip("10.0.0.9"), &received).from(mac(5)).build();
    assert_eq!(switch.at_port(1, "a", &error), default_deny("egress"));
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &received)));
    assert!(passes(&switch.at_port(1, "a", &error)));
}

#[test]
fn fragments_pass_as_their_first_one_does() {
    for (far, near) in [("10.0.0.9", "10.0.0.5"), ("fd00::9", "fd00::5")] {
        let mut switch = host(vec![allow_in("dns", Protocol::UDP, Some(53))]);
        let datagram =
            |port, identification| udp((ip(far), 7), (ip(near), port), 1000).pieces(identification, 256);
        for piece in datagram(53, 1) {
            assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &piece.build())));
        }
        for piece in datagram(54, 2) {
            assert_eq!(switch.at_underlay(OTHER_HOST, 1, &piece.build()), default_deny("ingress"));
        }
        for piece in &datagram(53, 3)[1..] {
            assert_eq!(switch.at_underlay(OTHER_HOST, 1, &piece.build()), dropped("fragment-early"));
        }
        assert_eq!(switch.count("drops{reason=\"fragment-early\"}"), 3);
        // The other way they are replies.
        for piece in udp((ip(near), 53), (ip(far), 7), 1000).from(mac(5)).pieces(1, 256) {
            assert!(matches!(switch.at_port(1, "a", &piece.build()), Event::Sent { .. }));
        }
    }
}

#[test]
fn a_revoked_rule_ends_a_datagram_in_its_middle() {
    let mut switch = host(vec![allow_in("dns", Protocol::UDP, Some(53))]);
    let pieces = udp((ip("10.0.0.9"), 7), (ip("10.0.0.5"), 53), 1000).pieces(1, 256);
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &pieces[0].build())));
    switch.apply(&policy(1, 2, Vec::new()));
    assert!(switch.at_underlay(OTHER_HOST, 1, &pieces[1].build()).is_drop());
}

/// The attacks of RFC 1858 and RFC 3128: ports that are allowed in front, others laid over them.
#[test]
fn no_fragment_is_laid_over_the_ports_that_were_judged() {
    let mut switch = host(vec![allow_in("web", Protocol::TCP, Some(80))]);
    let segment = |port, flags| {
        let packet = tcp((ip("10.0.0.9"), 7), (ip("10.0.0.5"), port), flags);
        Packet { transport: [packet.transport.clone(), vec![0; 4]].concat(), ..packet }
    };
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &segment(80, ACK).fragment(0x2000).build())));
    let hidden = segment(22, SYN).fragment(0x2000).build();
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &hidden), dropped("fragment-overlap"));
    // At offset 8 of TCP it would overwrite the flags: refused by its form alone.
    let mut tiny = segment(80, ACK).fragment(0x2002).build();
    tiny[21] = 1;
    let tiny = switch.at_underlay(OTHER_HOST, 1, &tiny);
    assert_eq!(tiny, Event::Dropped("drops{reason=\"malformed\",error=\"fragment_tiny\"}".to_string()));
}

#[test]
fn the_share_of_a_port_is_a_limit_with_a_reason() {
    let limits = crate::conntrack::Limits { connections_max: 100, port_share: 3, network_share: 100 };
    let config = crate::resolve::ResolverConfig {
        limits,
        ..crate::resolve::ResolverConfig::host(label("h"), ip(HOST), weir_trust::token::TokenKey::new(SECRET))
    };
    let mut switch = Switch::new(crate::resolve::TableResolver::new(config));
    switch.apply_all(&[
        network(1, network_entry("red", false)),
        policy(1, 1, Vec::new()),
        port(1, "a", 5, &["10.0.0.5"], &[]),
        location(1, "10.0.0.9", 9, OTHER_HOST),
    ]);
    let out = |port| tcp((ip("10.0.0.5"), port), (ip("10.0.0.9"), 80), SYN).from(mac(5)).build();
    let back = |port| tcp((ip("10.0.0.9"), 80), (ip("10.0.0.5"), port), SYN | ACK).build();
    for port in 1..=3 {
        assert!(passes(&switch.at_port(1, "a", &out(port))));
        assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &back(port))));
    }
    assert_eq!(switch.at_port(1, "a", &out(4)), dropped("connections-full"));
    switch.pass(3 * 3600 * 1000);
    assert!(switch.mind.connections().is_empty());
    assert!(passes(&switch.at_port(1, "a", &out(4))));
}

#[test]
fn without_room_what_the_rules_allow_both_ways_goes_on_untracked() {
    let limits = crate::conntrack::Limits { connections_max: 0, ..Default::default() };
    let config = crate::resolve::ResolverConfig {
        limits,
        ..crate::resolve::ResolverConfig::host(label("h"), ip(HOST), weir_trust::token::TokenKey::new(SECRET))
    };
    let mut switch = Switch::new(crate::resolve::TableResolver::new(config));
    switch.apply_all(&[
        network(1, network_entry("red", false)),
        policy(1, 1, vec![web()]),
        port(1, "a", 5, &["10.0.0.5"], &[]),
        location(1, "10.0.0.9", 9, OTHER_HOST),
    ]);
    assert!(passes(&switch.at_underlay(OTHER_HOST, 1, &request(SYN))));
    assert!(passes(&switch.at_port(1, "a", &response(SYN | ACK))));
    assert_eq!(switch.misses, 1, "both ways were installed");
    let out = tcp((ip("10.0.0.5"), 5000), (ip("10.0.0.9"), 443), SYN).from(mac(5)).build();
    assert_eq!(switch.at_port(1, "a", &out), dropped("connections-full"));
}

#[test]
fn without_a_policy_nothing_passes() {
    let mut switch = host(vec![allow_in("all", Protocol::Any, None)]);
    switch.apply(&put(
        9,
        port_key(1, "a"),
        weir_model::Entry::Port(weir_model::entry::PortEntry {
            policy_min: weir_model::Version::ZERO,
            ..port_entry(5, "a-1", &["10.0.0.5", "fd00::5"], &["app"])
        }),
    ));
    switch.apply(&delete(9, weir_model::Key::Policy { vni: weir_model::entry::Vni(1) }));
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &request(SYN)), dropped("no-policy"));
    assert_eq!(switch.at_port(1, "a", &response(SYN)), dropped("no-policy"));
}

#[test]
fn a_deleted_port_takes_its_connections_along() {
    let mut switch = host(vec![web()]);
    switch.apply(&strict(2, vec![web()]));
    switch.at_underlay(OTHER_HOST, 1, &request(SYN));
    assert_eq!(switch.mind.connections().len(), 1);
    switch.apply(&delete(3, port_key(1, "a")));
    assert!(switch.mind.connections().is_empty());
    assert_eq!(switch.at_underlay(OTHER_HOST, 1, &request(ACK)), dropped("not-here"));
}
