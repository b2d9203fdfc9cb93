use super::*;
use crate::counters::Reason;
use crate::flow::{Again, ChangeCause, Invalidate};
use crate::flow::{CounterIndex, Effects, MissReason, Nat, Outcome, Resolution, Resolver};
use crate::tables::gateways;
use std::net::IpAddr;
use weir_model::local::{ConnectionStatus, TraceFrom, TraceReport};
use weir_model::resource::Encapsulation;
use weir_model::update::Refusal;
use weir_model::{Key, Label, Update};
use weir_packet::encap::Half;
use weir_trust::gate::Gate;

/// Remembers what it is told of flows.
#[derive(Default)]
struct Listener {
    used: Vec<(u32, FlowUse)>,
}

impl Resolver for Listener {
    fn resolve(&mut self, _: u64, _: &Ingress, _: &FlowKey, _: MissReason, _: &[u8]) -> Resolution {
        Resolution { install: Vec::new(), outcome: Outcome::Drop }
    }
    fn decide_again(&mut self, _: u64, _: &Ingress, _: &FlowKey) -> Again {
        Again::Ask
    }
    fn route_bits(&self, _: u32, address: IpAddr) -> Option<u8> {
        (address == ip("203.0.113.7")).then_some(24)
    }
    fn apply(&mut self, _: u64, _: &Update) -> Result<Effects, Refusal> {
        Ok(Effects::default())
    }
    fn used(&mut self, _: u64, connection: u32, use_: FlowUse) {
        self.used.push((connection, use_));
    }
    fn tick(&mut self, _: u64) -> Vec<Invalidate> {
        Vec::new()
    }
}

impl Mind for Listener {
    fn port_key(&self, _: PortIndex) -> Option<Key> {
        None
    }
    fn counters(&self) -> Vec<(CounterIndex, String, u64)> {
        Vec::new()
    }
    fn connections(&self, _: u64, _: usize) -> Vec<ConnectionStatus> {
        Vec::new()
    }
    fn ingress_of(&self, _: &TraceFrom) -> Result<Ingress, String> {
        Err("not here".into())
    }
    fn trace(
        &mut self,
        _: u64,
        _: &TraceFrom,
        _: &[u8],
        _: Option<Result<FlowKey, Reason>>,
        _: &Gate,
    ) -> Result<TraceReport, String> {
        Err("not here".into())
    }
    fn take_changes(&mut self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    fn snapshot(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
    fn restore(&mut self, _: u64, _: &[Vec<u8>]) -> usize {
        0
    }
}

struct World {
    book: FlowBook,
    engine: Option<Box<Tables>>,
    store: Arc<FlowStore>,
    mind: Listener,
    usage: UsageWindow,
}

fn world() -> World {
    let store = Arc::new(FlowStore::new([3, 4]));
    let (book, engine) = FlowBook::new(Arc::clone(&store));
    let usage = UsageWindow::new(Label::new("h1").unwrap());
    World { book, engine: Some(engine), store, mind: Listener::default(), usage }
}

/// Ports of a number are in the network of that number; the third is in none that is known.
fn vni_of(port: PortIndex) -> Option<u32> {
    (port < 3).then_some(port.into())
}

impl World {
    fn install(&mut self, ingress: &Ingress, key: &FlowKey, action: &Action) -> bool {
        self.book.install(ingress, key, action, vni_of, 0)
    }

    fn swap(&mut self) {
        if let Some(tables) = self.book.publish() {
            let old = self.engine.replace(tables).unwrap();
            self.book.take_back(old, 0, &mut self.mind, &mut self.usage);
        }
    }

    /// Slot of a flow in the engine's tables.
    fn slot(&self, zone: u32, key: &FlowKey) -> Option<u32> {
        let key = FlowKey { zone, ..*key };
        self.engine.as_ref().unwrap().find(&self.store, self.store.hash(&key), &key).map(|(slot, _)| slot)
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(source: &str, destination: &str) -> FlowKey {
    FlowKey {
        source: ip(source).into(),
        destination: ip(destination).into(),
        zone: 0,
        source_port: 1,
        destination_port: 2,
        vlan: 0xffff,
        protocol: 17,
        flags: 0,
    }
}

fn from(sender: &str, vni: u32) -> Ingress {
    Ingress::Underlay {
        sender: ip(sender),
        vni,
        token: None,
        format: Encapsulation::Geneve,
        half: Half::Unsaid,
    }
}

fn action(hop: Hop) -> Action {
    Action {
        hop,
        ethernet: None,
        nat: None,
        routed: false,
        mtu: 1500,
        mss_max: 0,
        counter: 0,
        connection: 5,
        idle_ms: 1000,
        hangs: Default::default(),
    }
}

fn to(vni: u32) -> Hop {
    let (receiver, format) = (ip("192.0.2.9"), Encapsulation::Geneve);
    Hop::Underlay { receiver, vni, format, token: 1, half: Half::Unsaid, by_gateway: true }
}

#[test]
fn equal_flows_of_two_networks_are_two_flows() {
    let mut world = world();
    let same = key("10.0.0.1", "10.0.0.2");
    assert!(world.install(&from("192.0.2.1", 1), &same, &action(Hop::Port(1))));
    assert!(world.install(&from("192.0.2.1", 2), &same, &action(Hop::Port(2))));
    assert!(world.install(&Ingress::Port(3), &same, &action(to(1))));
    assert!(world.install(&Ingress::External, &same, &action(Hop::Drop)));
    assert_eq!((world.book.count(), world.book.zone_count()), (4, 2));
    assert!(world.book.has(&from("192.0.2.1", 2), &same));
    assert!(!world.book.has(&from("192.0.2.2", 2), &same));
    world.swap();
    assert!(world.slot(3, &same).is_some());
    assert!(world.slot(EXTERNAL as u32, &same).is_some());
}

#[test]
fn what_hangs_on_a_change_is_found_and_decided_again_once() {
    let mut world = world();
    let (a, b) = (key("10.0.0.1", "10.0.0.2"), key("10.0.0.3", "10.0.0.4"));
    let mut translated = action(Hop::External);
    translated.hangs.others[1] = Some(ip("203.0.113.7"));
    translated.nat = Some(Nat { source: Some((ip("203.0.113.7"), 99)), destination: None });
    let mut behind = action(to(1));
    behind.hangs.next_hops[2] = Some(ip("10.0.0.9"));
    let fill = |world: &mut World| {
        world.install(&from("192.0.2.1", 1), &a, &action(Hop::Port(1)));
        world.install(&from("192.0.2.1", 1), &b, &translated);
        world.install(&from("192.0.2.1", 2), &a, &action(Hop::Port(2)));
        world.install(&Ingress::Port(2), &b, &action(Hop::Drop));
        world.install(&Ingress::Port(1), &a, &behind);
    };
    let gateway = ip("192.0.2.9");
    let gateways =
        |come: &[IpAddr], gone: &[IpAddr]| Invalidate::Gateways { come: come.to_vec(), gone: gone.to_vec() };
    let route = |prefix: &str| Invalidate::Route(1, prefix.parse().unwrap());
    let cases = [
        (Invalidate::Nothing, 0),
        (Invalidate::Network(1), 3),
        (Invalidate::Network(2), 2),
        (Invalidate::Network(3), 0),
        (Invalidate::Port(1), 2),
        (Invalidate::Port(2), 2),
        (Invalidate::Address(1, ip("10.0.0.1")), 2),
        (Invalidate::Address(1, ip("10.0.0.4")), 1),
        (Invalidate::Address(1, ip("203.0.113.7")), 1),
        (Invalidate::Address(1, ip("10.0.0.9")), 1),
        (Invalidate::Address(1, ip("10.9.9.9")), 0),
        (route("10.0.0.4/32"), 1),
        (route("10.0.0.0/30"), 3),
        // Nothing goes to the next hop itself.
        (route("10.0.0.8/31"), 0),
        (route("10.0.0.4/31"), 1),
        // The mind of these tests has a longer route to every address of this one.
        (route("203.0.0.0/8"), 0),
        (route("fd00::/8"), 0),
        (route("::/0"), 0),
        (gateways(&[], &[gateway]), 1),
        (gateways(&[], &[ip("192.0.2.8")]), 0),
        (Invalidate::Sender(None, ip("192.0.2.1")), 3),
        (Invalidate::Sender(Some(2), ip("192.0.2.1")), 1),
        (Invalidate::Outside(ip("10.0.0.2")), 3),
        (Invalidate::Denied(2), 0),
        (Invalidate::All, 5),
    ];
    for (what, hang) in cases {
        fill(&mut world);
        assert_eq!(world.book.count(), 5);
        // Said twice it is done once.
        let slots = world.book.dependents(&[what.clone(), what.clone()], &world.mind);
        assert_eq!(slots.len(), hang, "{what:?}");
        for slot in slots {
            let decided = world.book.decide_again(slot, 0, &mut world.mind, vni_of);
            assert_eq!(decided, Decided::Out, "this mind knows nothing");
        }
        assert_eq!(world.book.count(), 5 - hang, "{what:?}");
        world.swap();
    }
    assert_eq!(world.book.zone_count(), 0, "no flow, no zone");
    assert!(world.engine.unwrap().zones.is_empty());
    assert_eq!(world.book.dependents.networks().count() + world.book.dependents.gateways().count(), 0);
}

/// A gateway that comes takes only the conversations that rendezvous hashing gives it, and one that goes only its own.
#[test]
fn only_the_share_of_a_gateway_moves() {
    let mut world = world();
    let entry = |last: u8| weir_model::entry::GatewayEntry {
        name: Label::new("g").unwrap(),
        underlay: IpAddr::from([192, 0, 2, last]),
    };
    let (three, four) = ([1, 2, 3].map(entry), [1, 2, 3, 4].map(entry));
    let chosen = |of: &[weir_model::entry::GatewayEntry], key: &FlowKey| {
        gateways::choose(of, 1, key.source.into(), key.destination.into()).unwrap().underlay
    };
    let flows: Vec<FlowKey> =
        (0..1000).map(|n| key("10.0.0.1", &format!("10.1.{}.{}", n / 250, n % 250))).collect();
    for flow in &flows {
        let mut hop = to(1);
        if let Hop::Underlay { receiver, .. } = &mut hop {
            *receiver = chosen(&three, flow);
        }
        assert!(world.install(&Ingress::Port(1), flow, &action(hop)));
    }
    let moved = |change: Invalidate, world: &mut World| -> std::collections::BTreeSet<IpAddr> {
        let slots = world.book.dependents(&[change], &world.mind);
        slots.iter().map(|slot| world.book.flow(*slot).unwrap().1.destination.into()).collect()
    };
    let come = Invalidate::Gateways { come: vec![four[3].underlay], gone: vec![] };
    let wanted = flows.iter().filter(|flow| chosen(&four, flow) != chosen(&three, flow));
    let wanted: std::collections::BTreeSet<IpAddr> = wanted.map(|flow| flow.destination.into()).collect();
    assert!((150..350).contains(&wanted.len()), "about a quarter: {}", wanted.len());
    assert_eq!(moved(come, &mut world), wanted);
    let gone = Invalidate::Gateways { come: vec![], gone: vec![three[0].underlay] };
    let of_it = flows.iter().filter(|flow| chosen(&three, flow) == three[0].underlay);
    let of_it: std::collections::BTreeSet<IpAddr> = of_it.map(|flow| flow.destination.into()).collect();
    assert_eq!(moved(gone, &mut world), of_it);
    let cause = ChangeCause::Gateways as usize;
    assert_eq!(world.book.changes.again[cause], (wanted.len() + of_it.len()) as u64);
    assert_eq!(world.book.changes.looked_at[cause], (flows.len() + of_it.len()) as u64);
}

#[test]
fn what_flows_carried_is_told_and_idle_ones_leave() {
    let mut world = world();
    let (mut mind, mut usage) = (Listener::default(), UsageWindow::new(Label::new("h1").unwrap()));
    let (busy, idle) = (key("10.0.0.1", "10.0.0.2"), key("10.0.0.3", "10.0.0.4"));
    world.install(&Ingress::Port(3), &busy, &action(to(1)));
    world.install(&Ingress::Port(3), &idle, &action(to(1)));
    world.swap();
    let slot = world.slot(3, &busy).unwrap();
    world.store.counters(slot).count(2, 300, 900, 0x02);
    let mut scan = |world: &mut World, now_ms| -> u64 {
        (0..4).map(|part| world.book.scan(part, 4, now_ms, &mut mind, &mut usage)).sum()
    };
    assert_eq!(scan(&mut world, 950), 0);
    world.store.counters(slot).count(1, 50, 1500, 0x10);
    assert_eq!(scan(&mut world, 1600), 1);
    assert_eq!(world.book.count(), 1);
    let told: Vec<FlowUse> =
        mind.used.iter().map(|(_, used)| *used).filter(|used| used.packets > 0).collect();
    let wanted = |packets, bytes, tcp_flags| FlowUse { packets, bytes, tcp_flags };
    assert_eq!(told, [wanted(2, 300, 0x02), wanted(1, 50, 0x10)]);
    assert_eq!(mind.used.len(), 4, "each flow is told of each time");
    let report = usage.close(1000, false).unwrap();
    assert_eq!((report.through_gateway[0].bytes, report.through_gateway.len()), (350, 1));
}

/// Who judges a connection anew must know whether it was answered: a flow that is taken out is told of before.
#[test]
fn what_a_flow_carried_to_its_last_packet_is_told_before_its_connection_is_judged_anew() {
    for replaced in [false, true] {
        let mut world = world();
        let key = key("10.0.0.1", "10.0.0.2");
        world.install(&Ingress::Port(3), &key, &action(to(1)));
        world.swap();
        let slot = world.slot(3, &key).unwrap();
        world.store.counters(slot).count(2, 300, 900, 0x12);
        if replaced {
            world.install(&Ingress::Port(3), &key, &action(Hop::Drop));
        } else {
            let slots = world.book.dependents(&[Invalidate::Port(3)], &world.mind);
            assert_eq!(slots.len(), 1);
            world.book.decide_again(slots[0], 0, &mut world.mind, vni_of);
        }
        world.book.tell_leaving(900, &mut world.mind, &mut world.usage);
        // The engine goes on with the old tables for a moment.
        world.store.counters(slot).count(1, 50, 901, 0x10);
        world.swap();
        let wanted = |packets, bytes, tcp_flags| (5, FlowUse { packets, bytes, tcp_flags });
        assert_eq!(world.mind.used, [wanted(2, 300, 0x12), wanted(1, 50, 0x10)], "replaced: {replaced}");
        let report = world.usage.close(1000, false).unwrap();
        assert_eq!(report.through_gateway[0].bytes, 350, "nothing is charged to nobody");
        world.mind.used.clear();
        world.install(&Ingress::Port(3), &key, &action(to(1)));
        world.swap();
        assert!(world.mind.used.iter().all(|(_, used)| used.packets == 0), "it is told of once");
    }
}

#[test]
fn a_flow_may_be_silent_for_longer_than_its_counters_tell_time() {
    let mut world = world();
    let (mut mind, mut usage) = (Listener::default(), UsageWindow::new(Label::new("h1").unwrap()));
    const HOUR_MS: u64 = 3_600_000;
    let long = Action { idle_ms: 10 * HOUR_MS as u32, ..action(to(1)) };
    world.install(&Ingress::Port(3), &key("10.0.0.1", "10.0.0.2"), &long);
    world.swap();
    let mut scan = |world: &mut World, now_ms| world.book.scan(0, 1, now_ms, &mut mind, &mut usage);
    let slot = world.slot(3, &key("10.0.0.1", "10.0.0.2")).unwrap();
    world.store.counters(slot).count(1, 60, HOUR_MS as u32, 0);
    for hour in 1..=10 {
        assert_eq!(scan(&mut world, hour * HOUR_MS + 100), 0, "{hour}");
    }
    assert_eq!(scan(&mut world, 11 * HOUR_MS + 100), 1);
}

#[test]
fn an_action_that_no_header_can_carry_is_refused() {
    let mut world = world();
    assert!(!world.install(&Ingress::Port(3), &key("10.0.0.1", "10.0.0.2"), &action(to(1 << 24))));
    assert_eq!(world.book.count(), 0);
}
