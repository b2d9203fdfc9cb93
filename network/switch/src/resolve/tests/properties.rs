//! What holds for all tables and all frames.

use super::*;
use crate::engine::forward::is_special;
use crate::flow::{Hop, Ingress, MissReason, Outcome, PortIndex, Resolver};
use crate::resolve::TableResolver;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use weir_model::entry::{RouteHop, Rule, Vni};
use weir_model::local::{PortName, TraceFrom, TraceVerdict};
use weir_model::resource::{Action, Direction, Encapsulation, Peer, PortRange, Protocol};
use weir_model::{Key, Update};
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;

/// Addresses that both tenants use alike.
const ADDRESSES: [&str; 6] = ["10.0.0.5", "10.0.0.6", "10.0.1.7", "10.0.0.9", "172.16.0.1", "8.8.8.8"];

fn arbitrary_rule() -> impl Strategy<Value = Rule> {
    (
        any::<[bool; 4]>(),
        prop_oneof![Just(Protocol::Any), Just(Protocol::TCP), Just(Protocol::UDP), Just(Protocol::Icmp)],
        prop::option::of(78_u16..82),
        prop::option::of(0..4_usize),
        0_u32..1000,
    )
        .prop_map(|([ingress, allow, stateful, tagged], protocol, port, peer, name)| {
            let direction = if ingress { Direction::Ingress } else { Direction::Egress };
            let action = if allow { Action::Allow } else { Action::Deny };
            let port = port.filter(|_| matches!(protocol, Protocol::TCP | Protocol::UDP));
            Rule {
                protocol,
                stateful,
                ports: port.map(|port| PortRange { first: port, last: port + 1 }).into_iter().collect(),
                peers: peer
                    .map(|peer| match peer {
                        0 => Peer::Tag(label("web")),
                        peer => Peer::Prefix(format!("{}/32", ADDRESSES[peer]).parse().unwrap()),
                    })
                    .into_iter()
                    .collect(),
                targets: if tagged { vec![label("web")] } else { Vec::new() },
                ..rule(&format!("r{name}"), direction, action)
            }
        })
}

fn arbitrary_policy(vni: u32) -> impl Strategy<Value = Update> {
    (proptest::collection::vec(arbitrary_rule(), 0..5), any::<[bool; 2]>(), 2_u64..9).prop_map(
        move |(rules, allow, version)| {
            let of = |allow| if allow { Action::Allow } else { Action::Deny };
            policy_with(vni, version, of(allow[0]), of(allow[1]), rules)
        },
    )
}

/// A change of one network.
pub(super) fn arbitrary_update(vni: u32) -> impl Strategy<Value = Update> {
    let hop = prop_oneof![
        Just(RouteHop::Drop),
        Just(RouteHop::External),
        (0..5_usize).prop_map(|n| RouteHop::Address(ip(ADDRESSES[n]))),
    ];
    prop_oneof![
        4 => arbitrary_policy(vni),
        2 => (3..6_usize, 2..5_u8).prop_map(move |(n, host)| location(vni, ADDRESSES[n], 9, &format!("192.0.2.{host}"))),
        1 => (3..6_usize).prop_map(move |n| delete(9, Key::Location { vni: Vni(vni), address: ip(ADDRESSES[n]) })),
        2 => hop.prop_map(move |hop| route(vni, "r", "172.16.0.0/12", hop)),
        1 => any::<bool>().prop_map(move |access| network(vni, network_entry(&format!("n{vni}"), access))),
        1 => (0..4_usize, any::<bool>()).prop_map(move |(n, there)| {
            members(vni, "web", 1, if there { &ADDRESSES[n..=n] } else { &[] })
        }),
        1 => any::<bool>().prop_map(move |web| port(vni, "b", 6, &["10.0.0.6"], if web { &["web"] } else { &[] })),
        1 => Just(delete(9, port_key(vni, "c"))),
        1 => Just(port(vni, "c", 7, &["10.0.1.7"], &["web"])),
    ]
}

/// Two tenants with the same addresses on one host.
fn two_tenants() -> Switch {
    let mut switch = Switch::new(resolver(HOST));
    for vni in [1, 2] {
        switch.apply_all(&[
            network(vni, network_entry(&format!("n{vni}"), true)),
            policy(vni, 1, vec![allow_in("all", Protocol::Any, None)]),
            port(vni, "a", 5, &["10.0.0.5"], &[]),
            port(vni, "b", 6, &["10.0.0.6"], &["web"]),
            port(vni, "c", 7, &["10.0.1.7"], &["web"]),
            gateways(&[GATEWAY]),
        ]);
    }
    switch
}

pub(super) fn arbitrary_packet() -> impl Strategy<Value = Packet> {
    let address = || (0..ADDRESSES.len()).prop_map(|n| ip(ADDRESSES[n]));
    // First, later and last fragments of few datagrams, so that some belong together.
    let fragment = || prop_oneof![Just(0x2000_u16), Just(0x2002), Just(2), Just(0x2001), Just(4)];
    let packet = (address(), address(), 78_u16..83, 78_u16..83, 0..6_u8, any::<u8>(), fragment());
    packet.prop_map(|(source, destination, from, to, kind, flags, place)| match kind {
        0 => tcp((source, from), (destination, to), flags),
        1 => udp((source, from), (destination, to), 8),
        2 => echo(source, destination, from, flags & 1 == 0),
        3 => unreachable(source, destination, &udp((destination, from), (source, to), 8).build()),
        _ => {
            let datagram = udp((source, from), (destination, to), 8).fragment(place);
            Packet { identification: u16::from(flags & 3), ..datagram }
        }
    })
}

#[derive(Clone, Debug)]
enum Input {
    Update(Update),
    Port(u32, &'static str, u8, Packet),
    Underlay(u32, u8, Packet),
    Pass(u64),
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let vni = || 1_u32..=2;
    let port = prop_oneof![Just(("a", 5_u8)), Just(("b", 6)), Just(("c", 7))];
    let input = prop_oneof![
        2 => vni().prop_flat_map(arbitrary_update).prop_map(Input::Update),
        6 => (vni(), port, arbitrary_packet()).prop_map(|(vni, (name, last), packet)| {
            Input::Port(vni, name, last, packet)
        }),
        4 => (vni(), 2..5_u8, arbitrary_packet()).prop_map(|(vni, host, packet)| Input::Underlay(vni, host, packet)),
        1 => (0_u64..40_000).prop_map(Input::Pass),
    ];
    proptest::collection::vec(input, 1..60)
}

/// Where a packet that goes on ends, without its bytes.
fn way(event: &Event) -> String {
    match event {
        Event::Delivered(port, _) => format!("port {port}"),
        Event::Sent { receiver, vni, .. } => format!("{receiver} {vni}"),
        Event::External(_) => "external".to_string(),
        Event::Answered(_) => "answered".to_string(),
        Event::Punted => "punted".to_string(),
        Event::Dropped(_) => "dropped".to_string(),
        Event::Asked(_) | Event::AskedTurn(..) => "asked".to_string(),
    }
}

fn traced_way(mind: &TableResolver, verdict: &TraceVerdict) -> String {
    match verdict {
        TraceVerdict::Deliver { port } => {
            let network = mind.tables().network_named(&port.network).unwrap();
            format!("port {}", mind.tables().port_named(network.vni.0, &port.endpoint).unwrap().index)
        }
        TraceVerdict::Send { underlay, vni, .. } => format!("{underlay} {}", vni & 0xff_ffff),
        TraceVerdict::External { .. } => "external".to_string(),
        TraceVerdict::Answered { by } if by == "dhcp" || by == "dns" => "punted".to_string(),
        TraceVerdict::Answered { .. } => "answered".to_string(),
        TraceVerdict::Drop { .. } => "dropped".to_string(),
    }
}

fn no_proofs(_: &Key) -> Option<(weir_model::Version, weir_model::signed::SignedHeader)> {
    None
}

/// Takes an input; returns what became of it, and what a trace and a switch without a flow table said before.
fn run(switch: &mut Switch, input: &Input) -> Option<(u32, Event, String, String)> {
    let (vni, ingress, from, frame) = match input {
        Input::Update(update) => {
            switch.apply(update);
            return None;
        }
        Input::Pass(ms) => {
            switch.pass(*ms);
            return None;
        }
        Input::Port(vni, name, last, packet) => {
            let index = switch.mind.tables().port_named(*vni, &label(name))?.index;
            let network = switch.mind.tables().network(*vni).unwrap().entry.as_ref().unwrap().name.clone();
            let from = TraceFrom::Port(PortName { network, endpoint: label(name) });
            (*vni, Ingress::Port(index), from, packet.clone().from(mac(*last)).build())
        }
        Input::Underlay(vni, host, packet) => {
            let sender = IpAddr::from([192, 0, 2, *host]);
            let token = Some(weir_trust::token::TokenKey::new(SECRET).token(*vni, sender));
            let ingress = Ingress::Underlay {
                sender,
                vni: *vni,
                token,
                format: Encapsulation::Geneve,
                half: Half::Unsaid,
            };
            (*vni, ingress, TraceFrom::Underlay { sender, vni: *vni }, packet.build())
        }
    };
    let parsed = weir_packet::parse(&frame).unwrap();
    let fragments = switch.fragments.clone();
    let looked = fragments.look(&ingress, &parsed, switch.now_ms as u32).map(|followed| followed.key);
    let is_fragment = parsed.fragment != weir_packet::Fragment::Whole && !is_special(&parsed);
    let looked = is_fragment.then_some(looked);
    let report = switch.mind.trace(switch.now_ms, &from, &frame, looked, &no_proofs).unwrap();
    let traced = traced_way(&switch.mind, &report.verdict);
    let event = switch.take(&ingress, &frame);
    // The same frame once more, with a flow table that has lost all its flows.
    let kept = (std::mem::take(&mut switch.flows), std::mem::replace(&mut switch.fragments, fragments));
    let again = way(&switch.take(&ingress, &frame));
    (switch.flows, switch.fragments) = kept;
    Some((vni, event, traced, again))
}

fn ports_of(switch: &Switch, vni: u32) -> BTreeSet<PortIndex> {
    switch.mind.tables().ports().filter(|port| port.vni.0 == vni).map(|port| port.index).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Isolation: no resolution of one tenant's packet names a port or identifier of another, whatever
    /// is in force. Equivalence: what the flow table says is what the tables say. Trace: what a trace
    /// says is what happens.
    #[test]
    fn tenants_are_apart_flows_are_true_and_traces_are_right(inputs in inputs()) {
        let mut switch = two_tenants();
        for input in &inputs {
            let Some((vni, event, traced, again)) = run(&mut switch, input) else { continue };
            match &event {
                Event::Delivered(port, _) => prop_assert!(ports_of(&switch, vni).contains(port)),
                Event::Sent { vni: of, .. } => prop_assert_eq!(*of, vni),
                _ => {}
            }
            // An answer with a budget is given once and then left to a flow that drops.
            let same = |a: &str, b: &str| a == b || (a, b) == ("dropped", "answered") || (a, b) == ("answered", "dropped");
            prop_assert!(same(&way(&event), &traced), "{:?}: {:?}, traced {}", input, event, traced);
            prop_assert!(same(&way(&event), &again), "{:?}: {:?}, without flows {}", input, event, again);
        }
        for ((zone, _), action) in &switch.flows {
            let vni = match zone {
                Zone::Port(port) => switch.mind.tables().port(*port).map(|port| port.vni.0),
                Zone::Underlay(_, vni, ..) => Some(*vni),
                Zone::External => None,
            };
            match &action.hop {
                Hop::Port(port) => prop_assert!(vni.is_some_and(|vni| ports_of(&switch, vni).contains(port))),
                Hop::Underlay { vni: of, .. } => prop_assert_eq!(Some(*of), vni),
                Hop::External | Hop::Drop => {}
            }
        }
    }
}

/// A naive stateful firewall of one port: a list of rules, a set of open conversations.
#[derive(Default)]
struct Model {
    allowed_in: BTreeSet<u16>,
    egress: bool,
    /// Conversations by opener's port and the server's port, and who opened them.
    open: BTreeMap<(u16, u16), bool>,
}

#[derive(Clone, Copy, Debug)]
enum Talk {
    In(u16, u16),
    Out(u16, u16),
    Allow(u16, bool),
    Egress(bool),
}

fn talks() -> impl Strategy<Value = Vec<Talk>> {
    let port = || 1_u16..4;
    let talk = prop_oneof![
        5 => (port(), port()).prop_map(|(far, near)| Talk::In(far, near)),
        5 => (port(), port()).prop_map(|(far, near)| Talk::Out(far, near)),
        2 => (port(), any::<bool>()).prop_map(|(port, allow)| Talk::Allow(port, allow)),
        1 => any::<bool>().prop_map(Talk::Egress),
    ];
    proptest::collection::vec(talk, 1..80)
}

impl Model {
    /// Whether a packet passes. `inwards` and the ports of the far and the near side.
    fn takes(&mut self, inwards: bool, far: u16, near: u16) -> bool {
        let rule =
            |opened_inwards: bool| if opened_inwards { self.allowed_in.contains(&near) } else { self.egress };
        // A conversation is judged the way it was opened, as long as it is remembered; what the other side sends in a dead one is
        // judged for itself.
        if let Some(&opened_inwards) = self.open.get(&(far, near))
            && (opened_inwards == inwards || rule(opened_inwards))
        {
            return rule(opened_inwards);
        }
        let here = rule(inwards);
        if here {
            self.open.insert((far, near), inwards);
        }
        here
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn connections_are_those_of_a_naive_firewall(talks in talks()) {
        let mut switch = host(Vec::new());
        let mut model = Model { egress: true, ..Model::default() };
        let mut version = 2;
        for talk in talks {
            let (inwards, far, near) = match talk {
                Talk::In(far, near) => (true, far, near),
                Talk::Out(far, near) => (false, far, near),
                Talk::Allow(port, allow) => {
                    if allow { model.allowed_in.insert(port); } else { model.allowed_in.remove(&port); }
                    (true, 0, 0)
                }
                Talk::Egress(allow) => {
                    model.egress = allow;
                    (true, 0, 0)
                }
            };
            if far == 0 {
                let rules = model.allowed_in.iter().map(|port| allow_in(&format!("in{port}"), Protocol::UDP, Some(*port)));
                let egress = if model.egress { Action::Allow } else { Action::Deny };
                switch.apply(&policy_with(1, version, Action::Deny, egress, rules.collect()));
                version += 1;
                continue;
            }
            let expected = model.takes(inwards, far, near);
            let event = if inwards {
                switch.at_underlay(OTHER_HOST, 1, &udp((ip("10.0.0.9"), far), (ip("10.0.0.5"), near), 1).build())
            } else {
                let out = udp((ip("10.0.0.5"), near), (ip("10.0.0.9"), far), 1).from(mac(5));
                switch.at_port(1, "a", &out.build())
            };
            prop_assert_eq!(!event.is_drop(), expected, "{:?}: {:?}", talk, event);
            prop_assert_eq!(switch.mind.connections().len(), model.open.len());
        }
    }
}

#[test]
fn no_bytes_make_the_resolver_panic() {
    bolero::check!().with_type::<(u8, u8, u16, Vec<u8>)>().with_iterations(4000).for_each(
        |(ingress, reason, limit, bytes)| {
            let mut minds = [host(vec![allow_in("all", Protocol::Any, None)]).mind, gateway().mind];
            let sender = ip(OTHER_HOST);
            let ingress = match ingress % 4 {
                0 => Ingress::Port(0),
                1 => Ingress::Port(u16::from(*ingress)),
                2 => {
                    let token = Some(weir_trust::token::TokenKey::new(SECRET).token(1, sender));
                    Ingress::Underlay {
                        sender,
                        vni: 1,
                        token,
                        format: Encapsulation::Geneve,
                        half: Half::Unsaid,
                    }
                }
                _ => Ingress::External,
            };
            let reason = match reason % 4 {
                0 => MissReason::NoFlow,
                1 => MissReason::TooBig(*limit),
                2 => MissReason::TtlExpired,
                _ => MissReason::Special,
            };
            // A whole frame now and then: the bytes as the payload of one that the port may send.
            let mut framed = udp((ip("10.0.0.5"), 1), (ip("10.0.0.9"), 2), 0).from(mac(5)).build();
            for (at, byte) in bytes.iter().enumerate() {
                if let Some(place) = framed.get_mut(usize::from(*byte) % 42) {
                    *place ^= at as u8;
                }
            }
            let key = FlowKey::new(
                0,
                &weir_packet::parse(&udp((ip("10.0.0.5"), 1), (ip("10.0.0.9"), 2), 0).build()).unwrap(),
            );
            for mind in &mut minds {
                for frame in [bytes, &framed] {
                    let resolution = mind.resolve(1, &ingress, &key, reason, frame);
                    if resolution.outcome == Outcome::Reinject {
                        assert!(resolution.install.iter().any(|(of, _, _)| *of == ingress));
                    }
                    let from = TraceFrom::Underlay { sender, vni: 1 };
                    assert!(mind.trace(1, &from, frame, None, &no_proofs).is_ok());
                }
            }
        },
    );
}
