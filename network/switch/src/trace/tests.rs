use super::*;
use crate::testing::*;
use weir_model::entry::Rule;
use weir_model::local::PortName;
use weir_model::resource::{Action, Protocol};
use weir_model::signed::{BatchHeader, GroupSignature, Signature};

fn header(index: u64) -> SignedHeader {
    let header = BatchHeader { domain: label("d"), epoch: 1, index: Version(index), count: 1, root: [0; 32] };
    let signature = GroupSignature::Single(Signature { r: [1; 32], s: [2; 32] });
    SignedHeader { header, signature }
}

fn proofs(key: &Key) -> Option<(Version, SignedHeader)> {
    let version = match key {
        Key::Policy { .. } => 7,
        Key::Port { .. } => 8,
        _ => 9,
    };
    Some((Version(version), header(version)))
}

fn switch() -> Switch {
    let mut switch = Switch::new(resolver("192.0.2.1"));
    let web = allow_in("web", weir_model::resource::Protocol::TCP, Some(80));
    switch.apply_all(&[
        network(1, network_entry("red", true)),
        policy(1, 7, vec![web]),
        port(1, "a", 5, &["10.0.0.5"], &[]),
        port(1, "b", 6, &["10.0.0.6"], &[]),
        location(1, "10.0.1.9", 9, "192.0.2.2"),
        gateways(&["192.0.2.100"]),
    ]);
    switch
}

fn from(name: &str) -> TraceFrom {
    TraceFrom::Port(PortName { network: label("red"), endpoint: label(name) })
}

fn trace(switch: &Switch, packet: &Packet) -> TraceReport {
    switch.mind.trace(0, &from("a"), &packet.build(), None, &proofs).unwrap()
}

fn stages(report: &TraceReport) -> Vec<&str> {
    report.steps.iter().map(|step| step.stage.as_str()).collect()
}

#[test]
fn a_trace_names_each_stage_the_rule_and_who_signed_it() {
    let switch = switch();
    let syn = tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 80), SYN).from(mac(5));
    let report = trace(&switch, &syn);
    let expected =
        ["port", "anti-spoofing", "connection", "egress-firewall", "route", "ingress-firewall", "tracking"];
    assert_eq!(stages(&report), expected);
    let firewall = &report.steps[5];
    assert_eq!(firewall.rule.as_deref(), Some("web"));
    assert_eq!(
        firewall.source,
        Some((Key::Policy { vni: weir_model::entry::Vni(1) }, Version(7), header(7)))
    );
    let port = PortName { network: label("red"), endpoint: label("b") };
    assert_eq!(report.verdict, TraceVerdict::Deliver { port });
    assert_eq!(report.actuator, label("host"));
}

#[test]
fn a_trace_changes_nothing() {
    let mut switch = switch();
    let syn = tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 80), SYN).from(mac(5));
    let before = format!("{:?}", switch.mind);
    trace(&switch, &syn);
    trace(&switch, &tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 81), SYN).from(mac(5)));
    assert_eq!(format!("{:?}", switch.mind), before);
    switch.at_port(1, "a", &syn.build());
    let reply = tcp((ip("10.0.0.6"), 80), (ip("10.0.0.5"), 4000), SYN | ACK).from(mac(6));
    let report = switch.mind.trace(0, &from("b"), &reply.build(), None, &proofs).unwrap();
    let step = report.steps.iter().find(|step| step.stage == "connection").unwrap();
    assert_eq!(step.rule.as_deref(), Some("web"), "{}", step.detail);
}

#[test]
fn a_trace_of_a_revoked_connection_says_what_revoked_it() {
    let mut switch = switch();
    let packet = |flags| tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 80), flags).from(mac(5));
    switch.at_port(1, "a", &packet(SYN).build());
    let denying =
        Rule { action: Action::Deny, name: label("no-web"), ..allow_in("web", Protocol::TCP, Some(80)) };
    for (version, rules, wanted) in [(8, vec![denying], "rule no-web"), (9, Vec::new(), "default-deny")] {
        switch.apply(&policy(1, version, rules));
        // Before a packet of it came, and behind one that ended it.
        for _ in 0..2 {
            let TraceVerdict::Drop { reason } = trace(&switch, &packet(ACK)).verdict else { panic!() };
            assert_eq!(reason, wanted);
            switch.at_port(1, "a", &packet(ACK).build());
        }
    }
}

#[test]
fn a_trace_tells_how_the_frame_goes_on() {
    let switch = switch();
    let far = udp((ip("10.0.0.5"), 1), (ip("10.0.1.9"), 2), 5).from(mac(5));
    let TraceVerdict::Send { underlay, vni, frame } = trace(&switch, &far).verdict else { panic!() };
    assert_eq!(vni & 0xff_ffff, 1, "what this half decided is above");
    assert_eq!(underlay, ip("192.0.2.2"));
    assert_eq!((&frame[..6], weir_packet::parse(&frame).unwrap().ttl), (&mac(9).0[..], 63));
    let denied = tcp((ip("10.0.0.5"), 4000), (ip("10.0.0.6"), 81), SYN).from(mac(5));
    let TraceVerdict::Drop { reason } = trace(&switch, &denied).verdict else { panic!() };
    assert_eq!(reason, "default-deny");
    let expired = far.clone().ttl(1);
    assert_eq!(trace(&switch, &expired).verdict, TraceVerdict::Answered { by: "time-exceeded".to_string() });
    let large = udp((ip("10.0.0.5"), 1), (ip("10.0.1.9"), 2), 1400).from(mac(5));
    assert_eq!(trace(&switch, &large).verdict, TraceVerdict::Answered { by: "too-big".to_string() });
    let query = udp((ip("10.0.0.5"), 1), (ip("10.0.0.1"), 53), 5).from(mac(5));
    assert_eq!(trace(&switch, &query).verdict, TraceVerdict::Answered { by: "dns".to_string() });
    let TraceVerdict::Drop { reason } =
        switch.mind.trace(0, &from("a"), &[0; 5], None, &proofs).unwrap().verdict
    else {
        panic!()
    };
    assert!(reason.starts_with("malformed"), "{reason}");
}

#[test]
fn a_trace_goes_on_at_the_next_switch_and_outside() {
    let switch = switch();
    let out = tcp((ip("10.0.0.5"), 4000), (ip("8.8.8.8"), 80), SYN).from(mac(5));
    let TraceVerdict::Send { underlay, vni, frame } = trace(&switch, &out).verdict else { panic!() };
    assert_eq!(underlay, ip("192.0.2.100"));
    let mut gateway = Switch::new(gateway_resolver("192.0.2.100", nat_pool()));
    gateway.apply_all(&[network(1, network_entry("red", true)), location(1, "10.0.0.5", 5, "192.0.2.1")]);
    let from = TraceFrom::Underlay { sender: ip("192.0.2.1"), vni };
    let report = gateway.mind.trace(0, &from, &frame, None, &proofs).unwrap();
    assert_eq!(stages(&report), ["network", "sender", "external-access", "nat"]);
    let TraceVerdict::External { packet } = report.verdict else { panic!("{:?}", report.verdict) };
    assert_eq!(&packet[12..16], &[198, 51, 100, 1]);
    assert!(gateway.mind.connections().is_empty());
}

#[test]
fn a_trace_of_a_fragment_says_what_its_datagram_may() {
    let mut switch = switch();
    let pieces = udp((ip("10.0.0.5"), 1), (ip("10.0.1.9"), 2), 500).from(mac(5)).pieces(1, 256);
    let trace = |switch: &Switch, piece: &Packet| {
        let frame = piece.build();
        let parsed = weir_packet::parse(&frame).unwrap();
        let looked = switch.fragments.look(&Ingress::Port(0), &parsed, switch.now_ms as u32);
        let fragment = Some(looked.map(|followed| followed.key));
        switch.mind.trace(0, &from("a"), &frame, fragment, &proofs).unwrap()
    };
    let early = trace(&switch, &pieces[1]);
    assert_eq!(early.verdict, TraceVerdict::Drop { reason: "fragment-early".to_string() });
    assert_eq!(stages(&early), ["fragment"]);
    assert!(matches!(trace(&switch, &pieces[0]).verdict, TraceVerdict::Send { .. }));
    switch.at_port(1, "a", &pieces[0].build());
    let later = trace(&switch, &pieces[1]);
    assert!(matches!(later.verdict, TraceVerdict::Send { .. }));
    assert!(stages(&later).contains(&"connection"));
}

#[test]
fn a_place_that_is_not_there_is_said_in_words() {
    let switch = switch();
    let frame = udp((ip("10.0.0.5"), 1), (ip("10.0.1.9"), 2), 5).build();
    let error = switch.mind.trace(0, &from("z"), &frame, None, &proofs).unwrap_err();
    assert_eq!(error, "host has no port red/z");
    let from = TraceFrom::Underlay { sender: ip("192.0.2.2"), vni: 9 };
    assert!(switch.mind.trace(0, &from, &frame, None, &proofs).unwrap_err().contains("no network 9"));
}
