//! Changes cost what they touch, and leave the flow table as if every flow had been decided anew from nothing (rows A12, A14, A22).
//!
//! A host and a gateway take packets and changes from a seed, each with the book of flows as the slow thread has it. At each change:
//! - found are exactly the flows that a walk over all of them finds by the words of [`Invalidate`];
//! - what a packet of any other flow would get is the same before and after;
//! - each flow that was found then is what a real packet of it would get, or is out.

use super::properties::{arbitrary_packet, arbitrary_update};
use super::*;
use crate::flow::{Again, Hop, Ingress, MissReason, Resolver};
use crate::flowtable::{CompiledAction, CompiledHop, FlowStore, Tables};
use crate::resolve::decision::{Arrival, Decision, Install, Track};
use crate::slow::flows::FlowBook;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use weir_model::entry::{
    RouteHop, Rule, ServiceEntry, TurnEntry, UnderlaysEntry, VirtualEntry, Vni, member_bucket,
};
use weir_model::resource::{Action as RuleAction, Direction, Encapsulation, Protocol};
use weir_model::{Entry, Key, Update};
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;
use weir_trust::token::TokenKey;

type Flow = (Zone, FlowKey);

/// What a packet of a flow would get: of a way all but what it is counted under.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    Way(CompiledAction),
    Drop,
    /// No flow for it.
    Nothing,
}

struct Rig {
    switch: Switch,
    book: FlowBook,
    store: Arc<FlowStore>,
    engine: Option<Box<Tables>>,
    /// What the book has.
    noted: HashMap<Flow, crate::flow::Action>,
}

fn uncounted(action: &crate::flow::Action) -> CompiledAction {
    CompiledAction { counter: 0, ..CompiledAction::new(action).unwrap() }
}

/// A packet in the middle of a conversation.
fn frame_of(switch: &Switch, (zone, key): &Flow) -> Option<Vec<u8>> {
    let (source, destination) = (IpAddr::from(key.source), IpAddr::from(key.destination));
    let mac = match zone {
        Zone::Port(port) => switch.mind.tables().port(*port).map_or(mac(1), |port| port.entry.mac),
        _ => mac(1),
    };
    let packet = match key.protocol {
        6 => tcp((source, key.source_port), (destination, key.destination_port), ACK),
        17 => udp((source, key.source_port), (destination, key.destination_port), 0),
        1 if matches!(key.destination_port >> 8, 0 | 8) => {
            echo(source, destination, key.source_port, key.destination_port >> 8 == 8)
        }
        _ => return None,
    };
    Some(packet.from(mac).build())
}

fn with_token(zone: &Zone) -> Ingress {
    let mut ingress = ingress(zone);
    if let Ingress::Underlay { sender, vni, token, .. } = &mut ingress {
        *token = Some(TokenKey::new(SECRET).token(*vni, *sender));
    }
    ingress
}

impl Rig {
    fn new(switch: Switch) -> Rig {
        let store = Arc::new(FlowStore::with_flows_max([5, 6], 4096));
        let (book, engine) = FlowBook::new(Arc::clone(&store));
        Rig { switch, book, store, engine: Some(engine), noted: HashMap::new() }
    }

    fn publish(&mut self) {
        if let Some(tables) = self.book.publish() {
            let old = self.engine.replace(tables).unwrap();
            self.book.take_back_untold(old);
        }
    }

    fn install(&mut self, (zone, key): &Flow, action: &crate::flow::Action) {
        let ports = &self.switch.ports;
        let installed = self.book.install(&ingress(zone), key, action, |port| ports.get(&port).copied(), 0);
        assert!(installed);
    }

    /// Has the book get what the packets since the last time put into the switch's flows.
    fn follow(&mut self) {
        let new: Vec<(Flow, crate::flow::Action)> = self
            .switch
            .flows
            .iter()
            .filter(|(flow, action)| self.noted.get(*flow) != Some(*action))
            .map(|(flow, action)| (*flow, action.clone()))
            .collect();
        for (flow, action) in new {
            self.install(&flow, &action);
            self.noted.insert(flow, action);
        }
        self.publish();
    }

    /// What the tables in force make of a real packet of a flow.
    fn fate(&self, flow: &Flow) -> Option<Fate> {
        let frame = frame_of(&self.switch, flow)?;
        let parsed = weir_packet::parse(&frame).unwrap();
        let key = FlowKey::new(0, &parsed);
        assert_eq!(key, flow.1);
        let ingress = with_token(&flow.0);
        let (now_ms, reason) = (self.switch.now_ms, MissReason::NoFlow);
        let mut at = Arrival { now_ms, ingress: &ingress, key, reason, frame: &frame, parsed: &parsed };
        Some(match self.switch.mind.decide(&mut at, &mut ()) {
            Decision::Forward(forward) => match forward.track {
                Track::Known { .. } | Track::Untracked | Track::BothWays if forward.revoke.is_none() => {
                    Fate::Way(uncounted(&forward.action))
                }
                _ => Fate::Nothing,
            },
            Decision::Drop { install: Install::Nothing, .. } => Fate::Nothing,
            Decision::Drop { .. } => Fate::Drop,
            _ => Fate::Nothing,
        })
    }

    fn update(&mut self, update: &Update) -> Result<(), TestCaseError> {
        let before: HashMap<Flow, Option<Fate>> =
            self.noted.keys().map(|flow| (*flow, self.fate(flow))).collect();
        let Ok(effects) = self.switch.mind.apply(self.switch.now_ms, update) else { return Ok(()) };
        for port in self.switch.mind.tables().ports() {
            self.switch.ports.insert(port.index, port.vni.0);
        }
        let changes = &effects.invalidate;
        let (mind, ports) = (&self.switch.mind, &self.switch.ports);
        let hang = |(zone, key): &Flow, action| {
            changes.iter().any(|change| hangs_on(mind, ports, (zone, key), action, change))
        };
        let walked: BTreeSet<String> = self
            .noted
            .iter()
            .filter(|(flow, action)| hang(flow, action))
            .map(|(flow, _)| format!("{flow:?}"))
            .collect();
        let slots = self.book.dependents(changes, &self.switch.mind);
        let flow_of = |book: &FlowBook, slot: u32| {
            let (ingress, key) = book.flow(slot).unwrap();
            (zone(&ingress), key)
        };
        let found: Vec<(u32, Flow)> = slots.iter().map(|slot| (*slot, flow_of(&self.book, *slot))).collect();
        let named: BTreeSet<String> = found.iter().map(|(_, flow)| format!("{flow:?}")).collect();
        prop_assert_eq!(named.len(), found.len(), "each once");
        prop_assert_eq!(&named, &walked, "after {:?}, which says {:?}", update, changes);
        for (flow, fate) in &before {
            if !named.contains(&format!("{flow:?}")) {
                prop_assert_eq!(
                    &self.fate(flow),
                    fate,
                    "{:?} hangs on {:?}, and {:?} does not say so",
                    flow,
                    update,
                    changes
                );
            }
        }
        for (slot, flow) in found {
            self.decide_again(slot, &flow)?;
        }
        self.publish();
        prop_assert_eq!(self.book.count(), self.noted.len());
        self.switch.flows.clone_from(&self.noted);
        Ok(())
    }

    fn decide_again(&mut self, slot: u32, flow: &Flow) -> Result<(), TestCaseError> {
        let fate = self.fate(flow);
        self.noted.remove(flow).unwrap();
        let ports = self.switch.ports.clone();
        self.book.decide_again(slot, 0, &mut self.switch.mind, |port| ports.get(&port).copied());
        self.publish();
        let slot = self.book.slot_of(&ingress(&flow.0), &flow.1);
        // Asked once more it says the same; nothing has changed by the first time.
        let now = match self.switch.mind.decide_again(self.switch.now_ms, &ingress(&flow.0), &flow.1) {
            Again::Action(action) => Some(action),
            Again::Ask => None,
        };
        prop_assert_eq!(now.is_some(), slot.is_some(), "{:?}", flow);
        let Some(now) = now else {
            let goes = matches!(fate, None | Some(Fate::Nothing)) || is_left_to_a_packet(&self.switch, flow);
            prop_assert!(goes, "{:?} is out, and a packet gets {:?}", flow, fate);
            return Ok(());
        };
        prop_assert_eq!(slot.map(|slot| *self.store.action_of(slot)), CompiledAction::new(&now));
        match fate {
            Some(Fate::Way(way)) => prop_assert_eq!(uncounted(&now), way, "{:?}", flow),
            Some(Fate::Drop) => {
                prop_assert_eq!(uncounted(&now).hop, CompiledHop::Drop, "{:?}", flow)
            }
            Some(Fate::Nothing) => {
                prop_assert!(false, "{:?} stays, and a packet of it would get no flow", flow)
            }
            None => {}
        }
        self.noted.insert(*flow, now);
        Ok(())
    }
}

/// Whether the next packet has to come to the slow path, though it passes: the first reply that tells the other end something, and the first packet that
/// a receiver accepts which has come here since.
fn is_left_to_a_packet(switch: &Switch, (zone, key): &Flow) -> bool {
    let vni = match zone {
        Zone::Port(port) => switch.mind.tables().port(*port).map(|port| port.vni.0),
        Zone::Underlay(_, vni, ..) => Some(*vni),
        Zone::External => None,
    };
    let found = vni.and_then(|vni| switch.mind.connections.find(&FlowKey { zone: vni, ..*key }));
    let connection = found.and_then(|(id, _)| switch.mind.connections.get(id));
    connection.is_some_and(|connection| {
        connection.is_untold() || !connection.is_answered() && connection.sides.ingress.is_none()
    })
}

#[derive(Clone, Debug)]
enum Input {
    Update(Update),
    Port(&'static str, u8, Packet),
    Underlay(u8, Half, Packet),
    /// To a gateway, whose outside answers.
    Out(u8, Packet),
}

fn switches(address: &str, there: bool) -> Update {
    let key = Key::Switches { bucket: member_bucket(ip(address)) };
    if there { put(7, key, Entry::Switches(vec![ip(address)])) } else { delete(7, key) }
}

/// What hosts and gateways get besides what [`arbitrary_update`] has.
fn more_updates() -> impl Strategy<Value = Update> {
    let hop = prop_oneof![
        Just(RouteHop::Drop),
        Just(RouteHop::External),
        prop_oneof![Just("10.0.0.6"), Just("10.0.1.7"), Just("10.0.0.9"), Just("172.16.0.1")]
            .prop_map(|hop| RouteHop::Address(ip(hop))),
    ];
    let prefix = prop_oneof![
        Just("0.0.0.0/0"),
        Just("8.0.0.0/8"),
        Just("8.8.8.8/32"),
        Just("172.16.0.0/30"),
        Just("172.0.0.0/8"),
        Just("10.0.0.8/29"),
        Just("10.0.1.0/24"),
    ];
    let gateway_sets =
        proptest::sample::subsequence(vec!["192.0.2.100", "192.0.2.101", "192.0.2.102", "192.0.2.2"], 0..=4);
    prop_oneof![
        4 => (prefix, prop::option::of(hop)).prop_map(|(prefix, hop)| match hop {
            Some(hop) => route(1, "q", prefix, hop),
            None => delete(9, Key::Route { vni: Vni(1), prefix: prefix.parse().unwrap() }),
        }),
        4 => gateway_sets.prop_map(|of| gateways(&of)),
        1 => any::<bool>().prop_map(|web| port(1, "a", 5, &["10.0.0.5"], if web { &["web"] } else { &[] })),
        1 => any::<bool>().prop_map(|moves| {
            put(2, port_key(1, "b"), Entry::Port(port_entry(6, "b-1", if moves { &["10.0.0.9"] } else { &["10.0.0.6"] }, &["web"])))
        }),
        1 => (0..4_usize).prop_map(|n| {
            let members = ["10.0.0.6", "10.0.1.7", "10.0.0.9"][..n.min(3)].iter().map(|member| ip(member)).collect();
            let service = |protocol| ServiceEntry { protocol, port: 79, target_port: 80 };
            let entry = VirtualEntry { name: label("shop"), services: vec![service(6), service(17)], members };
            let key = Key::Virtual { vni: Vni(1), address: ip("8.8.8.8") };
            if n == 0 { delete(9, key) } else { put(2, key, Entry::Virtual(entry)) }
        }),
        2 => prop_oneof![Just("10.0.0.6"), Just("10.0.1.7"), Just("10.0.0.9")].prop_map(|member| {
            let entry = TurnEntry { endpoint: label("there"), member: ip(member) };
            put(2, Key::Turn { vni: Vni(1), client: ip("10.0.0.5"), address: ip("8.8.8.8") }, Entry::Turn(entry))
        }),
        1 => (2..5_u8, any::<bool>()).prop_map(|(host, there)| switches(&format!("192.0.2.{host}"), there)),
        1 => any::<bool>().prop_map(|told| {
            let entry = UnderlaysEntry { switches: vec!["192.0.2.4/32".parse().unwrap()], guarded: vec!["8.8.0.0/16".parse().unwrap()] };
            if told { put(7, Key::Underlays, Entry::Underlays(entry)) } else { delete(7, Key::Underlays) }
        }),
        1 => Just(delete(9, Key::Network { vni: Vni(1) })),
        1 => Just(delete(9, Key::Policy { vni: Vni(1) })),
        1 => (any::<bool>(), 1300..1400_u16).prop_map(|(vxlan, mtu)| {
            let encapsulation = if vxlan { Encapsulation::Vxlan } else { Encapsulation::Geneve };
            network(1, weir_model::entry::NetworkEntry { encapsulation, mtu, ..network_entry("n1", true) })
        }),
    ]
}

/// Conversations of few ports, so that both ways of some are seen.
fn talk() -> impl Strategy<Value = Packet> {
    const ENDS: [&str; 6] = ["10.0.0.5", "10.0.0.6", "10.0.1.7", "10.0.0.9", "172.16.0.1", "8.8.8.8"];
    let end = || (0..ENDS.len()).prop_map(|n| (ip(ENDS[n]), 79 + n as u16 % 2));
    let flags = prop_oneof![Just(SYN), Just(ACK), Just(SYN | ACK), Just(RST)];
    (end(), end(), any::<bool>(), flags)
        .prop_map(|(from, to, stream, flags)| if stream { tcp(from, to, flags) } else { udp(from, to, 4) })
}

fn host_inputs() -> impl Strategy<Value = Vec<Input>> {
    let port = prop_oneof![Just(("a", 5_u8)), Just(("b", 6)), Just(("c", 7))];
    let half = prop_oneof![Just(Half::Unsaid), (any::<[bool; 3]>()).prop_map(|[a, b, c]| Half::new(a, b, c))];
    let packet = || prop_oneof![3 => talk(), 1 => arbitrary_packet()];
    let input = prop_oneof![
        3 => arbitrary_update(1).prop_map(Input::Update),
        4 => more_updates().prop_map(Input::Update),
        12 => (port, packet()).prop_map(|((name, last), packet)| Input::Port(name, last, packet)),
        8 => (2..5_u8, half, packet()).prop_map(|(host, half, packet)| Input::Underlay(host, half, packet)),
    ];
    proptest::collection::vec(input, 1..80)
}

fn gateway_inputs() -> impl Strategy<Value = Vec<Input>> {
    let update = prop_oneof![
        3 => arbitrary_update(1).prop_filter("no port at a gateway", |update| !matches!(update.key, Key::Port { .. })),
        4 => more_updates().prop_filter("no port at a gateway", |update| !matches!(update.key, Key::Port { .. })),
        2 => (0..6_usize, prop::option::of(2..6_u8)).prop_map(|(n, host)| {
            let address = ["10.0.0.5", "10.0.0.6", "10.0.1.7", "10.0.0.9", "10.0.0.5", "10.0.0.9"][n];
            match host {
                Some(5) => location(1, address, 9, "8.8.8.8"),
                Some(host) => location(1, address, 9, &format!("192.0.2.{host}")),
                None => delete(9, Key::Location { vni: Vni(1), address: ip(address) }),
            }
        }),
    ];
    let input = prop_oneof![
        4 => update.prop_map(Input::Update),
        10 => (2..5_u8, talk()).prop_map(|(host, packet)| Input::Out(host, packet)),
    ];
    proptest::collection::vec(input, 1..80)
}

/// Takes inputs, each change as the slow thread does.
fn run(rig: &mut Rig, inputs: &[Input]) -> Result<(), TestCaseError> {
    for input in inputs {
        match input {
            Input::Update(update) => rig.update(update)?,
            Input::Port(name, last, packet) => {
                let Some(index) = rig.switch.mind.tables().port_named(1, &label(name)).map(|port| port.index)
                else {
                    continue;
                };
                rig.switch.take(&Ingress::Port(index), &packet.clone().from(mac(*last)).build());
            }
            Input::Underlay(host, half, packet) => {
                rig.switch.at_underlay_with(&format!("192.0.2.{host}"), 1, *half, &packet.build());
            }
            Input::Out(host, packet) => {
                let event = rig.switch.at_underlay(&format!("192.0.2.{host}"), 1, &packet.build());
                if let Event::External(frame) = event {
                    let parsed = weir_packet::parse(&frame).unwrap();
                    let (from, to) = (
                        (parsed.destination.into(), parsed.destination_port),
                        (parsed.source.into(), parsed.source_port),
                    );
                    let answer =
                        if parsed.protocol == 6 { tcp(from, to, SYN | ACK) } else { udp(from, to, 4) };
                    rig.switch.take(&Ingress::External, &answer.build());
                }
            }
        }
        rig.follow();
    }
    Ok(())
}

fn host_rig() -> Rig {
    let mut switch = Switch::new(resolver(HOST));
    switch.apply_all(&[
        network(1, network_entry("n1", true)),
        policy(1, 1, vec![allow_in("all", Protocol::Any, None)]),
        port(1, "a", 5, &["10.0.0.5"], &[]),
        port(1, "b", 6, &["10.0.0.6"], &["web"]),
        port(1, "c", 7, &["10.0.1.7"], &["web"]),
        gateways(&["192.0.2.100", "192.0.2.101"]),
    ]);
    Rig::new(switch)
}

fn gateway_rig() -> Rig {
    let mut switch = Switch::new(gateway_resolver("192.0.2.100", nat_pool()));
    switch.apply_all(&[
        network(1, network_entry("n1", true)),
        location(1, "10.0.0.5", 5, "192.0.2.2"),
        location(1, "10.0.0.6", 6, "192.0.2.3"),
        gateways(&["192.0.2.100", "192.0.2.101"]),
    ]);
    Rig::new(switch)
}

/// Ways, not drops, of the flows that are there.
fn ways(rig: &Rig, of: impl Fn(&Zone) -> bool) -> usize {
    rig.noted.iter().filter(|((zone, _), action)| of(zone) && action.hop != Hop::Drop).count()
}

#[test]
fn a_flow_from_behind_a_next_hop_hangs_on_the_hop() {
    let mut rig = host_rig();
    let silent =
        Rule { targets: vec![label("web")], ..rule("no-web-out", Direction::Egress, RuleAction::Deny) };
    let from_behind = udp((ip("172.16.0.1"), 79), (ip("10.0.0.5"), 80), 4);
    let before = [
        Input::Update(policy(1, 2, vec![allow_in("all", Protocol::Any, None), silent])),
        Input::Update(route(1, "r", "172.16.0.0/12", RouteHop::Address(ip("10.0.0.9")))),
        Input::Underlay(2, Half::Unsaid, from_behind),
    ];
    run(&mut rig, &before).unwrap();
    let from_underlay = |zone: &Zone| matches!(zone, Zone::Underlay(..));
    assert_eq!(ways(&rig, from_underlay), 1);
    // Whom it comes from is here now, and may send nothing.
    let comes = port(1, "b", 6, &["10.0.0.6", "10.0.0.9"], &["web"]);
    run(&mut rig, &[Input::Update(comes)]).unwrap();
    assert_eq!(ways(&rig, from_underlay), 0);
}

#[test]
fn what_a_member_denies_hangs_on_the_member() {
    let mut rig = host_rig();
    let closed =
        Rule { targets: vec![label("web")], ..rule("no-web-in", Direction::Ingress, RuleAction::Deny) };
    let service = ServiceEntry { protocol: 17, port: 79, target_port: 80 };
    let shop = VirtualEntry { name: label("shop"), services: vec![service], members: vec![ip("10.0.0.6")] };
    let turn = TurnEntry { endpoint: label("b"), member: ip("10.0.0.6") };
    let address = ip("8.8.8.8");
    let before = [
        Input::Update(policy(1, 2, vec![closed, allow_in("all", Protocol::Any, None)])),
        Input::Update(put(2, Key::Virtual { vni: Vni(1), address }, Entry::Virtual(shop))),
        Input::Update(put(2, Key::Turn { vni: Vni(1), client: ip("10.0.0.5"), address }, Entry::Turn(turn))),
        Input::Port("a", 5, udp((ip("10.0.0.5"), 79), (address, 79), 4)),
    ];
    run(&mut rig, &before).unwrap();
    assert_eq!((rig.noted.len(), ways(&rig, |_| true)), (1, 0));
    run(&mut rig, &[Input::Update(port(1, "b", 6, &["10.0.0.6"], &[]))]).unwrap();
    assert!(rig.noted.is_empty(), "its next packet opens a connection");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn at_a_host_changes_touch_what_hangs_on_them_and_leave_the_truth(inputs in host_inputs()) {
        run(&mut host_rig(), &inputs)?;
    }

    #[test]
    fn at_a_gateway_changes_touch_what_hangs_on_them_and_leave_the_truth(inputs in gateway_inputs()) {
        run(&mut gateway_rig(), &inputs)?;
    }
}
