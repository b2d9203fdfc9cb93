use super::*;
use crate::counters::Reason;
use crate::flow::{CounterIndex, Effects, MissReason, Nat, Outcome, Resolution, Resolver};
use crate::ports::attach::Attacher;
use std::sync::mpsc::channel;
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
    ports: PortBook,
    store: Arc<FlowStore>,
    mind: Listener,
    usage: UsageWindow,
}

fn world() -> World {
    let store = Arc::new(FlowStore::new([3, 4]));
    let (book, engine) = FlowBook::new(Arc::clone(&store));
    let (sender, arrived) = channel();
    let tell = sender.clone();
    let attacher = Attacher::start(move |result| drop(sender.send(result.into()))).unwrap();
    let ports = PortBook::new(attacher, Arc::new(move |what| drop(tell.send(what))), arrived);
    let usage = UsageWindow::new(Label::new("h1").unwrap());
    World { book, engine: Some(engine), ports, store, mind: Listener::default(), usage }
}

impl World {
    fn install(&mut self, ingress: &Ingress, key: &FlowKey, action: &Action) -> bool {
        self.book.install(ingress, key, action, &self.ports, 0)
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
fn invalidation_takes_out_what_is_concerned() {
    let mut world = world();
    let (a, b) = (key("10.0.0.1", "10.0.0.2"), key("10.0.0.3", "10.0.0.4"));
    let mut translated = action(Hop::External);
    translated.nat = Some(Nat { source: Some((ip("203.0.113.7"), 99)), destination: None });
    let fill = |world: &mut World| {
        world.install(&from("192.0.2.1", 1), &a, &action(Hop::Port(1)));
        world.install(&from("192.0.2.1", 1), &b, &translated);
        world.install(&from("192.0.2.1", 2), &a, &action(Hop::Port(2)));
        world.install(&Ingress::Port(2), &b, &action(Hop::Drop));
    };
    let cases = [
        (Invalidate::Nothing, 0),
        // A flow of a port whose network is not known may belong to it.
        (Invalidate::Network(1), 3),
        (Invalidate::Network(2), 2),
        (Invalidate::Network(3), 1),
        (Invalidate::Port(1), 1),
        (Invalidate::Port(2), 2),
        (Invalidate::Address(1, ip("10.0.0.1")), 1),
        (Invalidate::Address(1, ip("10.0.0.4")), 2),
        (Invalidate::Address(1, ip("203.0.113.7")), 1),
        (Invalidate::Address(1, ip("10.9.9.9")), 0),
        (Invalidate::All, 4),
    ];
    for (what, gone) in cases {
        fill(&mut world);
        assert_eq!(world.book.count(), 4);
        assert_eq!(world.book.invalidate(&what), gone, "{what:?}");
        assert_eq!(world.book.count(), 4 - gone, "{what:?}");
        world.swap();
    }
    assert_eq!(world.book.zone_count(), 0, "no flow, no zone");
    assert!(world.engine.unwrap().zones.is_empty());
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
            assert_eq!(world.book.invalidate(&Invalidate::Network(1)), 1);
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
