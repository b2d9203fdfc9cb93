use super::*;
use crate::testing::ip;
use proptest::prelude::*;
use std::collections::BTreeMap;
use weir_packet::headers::tcp_flags::{ACK, FIN, RST, SYN};
use weir_packet::key::NO_VLAN;

const UDP: u8 = 17;

const SIDES: Sides = Sides { egress: Some(true), ingress: None };

pub(super) fn key(protocol: u8, port: u16) -> FlowKey {
    FlowKey {
        source: ip("10.0.0.5").into(),
        destination: ip("10.0.0.6").into(),
        zone: 1,
        source_port: port,
        destination_port: 80,
        vlan: NO_VLAN,
        protocol,
        flags: 0,
    }
}

fn connection(key: FlowKey, owner: PortIndex) -> Connection {
    Connection::new(key, 1, SIDES, 0, Owner::Port(owner))
}

fn open(table: &mut Connections, now_ms: u64, protocol: u8, port: u16) -> ConnectionId {
    table.open(now_ms, connection(key(protocol, port), 0)).unwrap()
}

fn state(table: &Connections, id: ConnectionId) -> State {
    table.get(id).unwrap().state
}

fn seen(flags: u8) -> FlowUse {
    FlowUse { packets: 1, bytes: 60, tcp_flags: flags }
}

fn sweep(table: &mut Connections, now_ms: u64) {
    (0..SWEEP_PARTS).for_each(|_| table.tick(now_ms));
}

#[test]
fn both_ways_of_a_packet_find_the_connection() {
    let mut table = Connections::new(Limits::default());
    let id = open(&mut table, 0, TCP, 4000);
    assert_eq!(table.find(&key(TCP, 4000)), Some((id, Way::Opener)));
    assert_eq!(table.find(&key(TCP, 4000).reverse()), Some((id, Way::Reply)));
    assert_eq!(table.find(&key(TCP, 4001)), None);
    assert_eq!(table.find(&FlowKey { zone: 2, ..key(TCP, 4000) }), None, "another network");
}

#[test]
fn tcp_goes_from_opening_to_closed_and_opens_again() {
    let mut table = Connections::new(Limits::default());
    let id = open(&mut table, 0, TCP, 4000);
    let (opener, reply) = (id.number(Way::Opener), id.number(Way::Reply));
    table.used(1, opener, seen(SYN));
    assert_eq!(state(&table, id), State::Opening);
    table.used(2, reply, seen(SYN | ACK));
    assert_eq!(state(&table, id), State::Open);
    table.used(3, opener, seen(FIN | ACK));
    assert_eq!(state(&table, id), State::HalfClosed);
    table.used(4, reply, seen(ACK));
    assert_eq!(state(&table, id), State::HalfClosed);
    table.used(5, reply, seen(FIN | ACK));
    assert_eq!(state(&table, id), State::Closed);
    table.used(6, opener, seen(SYN));
    assert_eq!(state(&table, id), State::Opening);
    table.used(7, reply, seen(RST | ACK));
    assert_eq!(state(&table, id), State::Closed);
}

#[test]
fn only_the_opener_makes_no_open_connection() {
    let mut table = Connections::new(Limits::default());
    let id = open(&mut table, 0, TCP, 4000);
    table.used(1, id.number(Way::Opener), seen(SYN | ACK));
    assert_eq!(state(&table, id), State::Opening);
    let udp = open(&mut table, 0, UDP, 4000);
    table.used(1, udp.number(Way::Opener), seen(0));
    assert_eq!(state(&table, udp), State::Opening);
    table.used(1, udp.number(Way::Reply), seen(0));
    assert_eq!(state(&table, udp), State::Open);
}

#[test]
fn a_connection_ends_after_its_timeout_and_not_before() {
    for (protocol, state, flags) in [
        (TCP, State::Opening, [SYN, 0]),
        (TCP, State::Open, [SYN | ACK, SYN | ACK]),
        (TCP, State::HalfClosed, [FIN | ACK, ACK]),
        (TCP, State::Closed, [FIN | ACK, FIN | ACK]),
        (UDP, State::Open, [0, 0]),
        (1, State::Open, [0, 0]),
        (132, State::Open, [0, 0]),
    ] {
        let mut table = Connections::new(Limits::default());
        let id = open(&mut table, 0, protocol, 4000);
        table.used(1_000, id.number(Way::Opener), seen(flags[0]));
        if state != State::Opening {
            table.used(1_000, id.number(Way::Reply), seen(flags[1]));
        }
        assert_eq!(table.get(id).unwrap().state, state);
        let timeout = timeout_ms(protocol, state);
        assert!(timeout > u64::from(FLOW_IDLE_MS), "a connection outlives its flows");
        sweep(&mut table, 1_000 + timeout);
        assert_eq!(table.len(), 1);
        sweep(&mut table, 1_001 + timeout);
        assert_eq!((table.len(), table.counters.expired), (0, 1));
    }
}

#[test]
fn a_flow_that_carried_nothing_keeps_nothing_alive() {
    let mut table = Connections::new(Limits::default());
    let id = open(&mut table, 0, UDP, 4000);
    table.used(29_000, id.number(Way::Reply), FlowUse::default());
    assert_eq!(state(&table, id), State::Opening);
    sweep(&mut table, 30_001);
    assert!(table.is_empty());
}

#[test]
fn a_late_report_finds_nobody_else() {
    let mut table = Connections::new(Limits::default());
    let mut numbers = std::collections::HashSet::new();
    for round in 0..3 * GENERATION_MAX {
        let id = open(&mut table, 0, UDP, 1);
        assert_ne!(id.number(Way::Reply), crate::flow::NO_CONNECTION);
        if round < GENERATION_MAX {
            assert!(numbers.insert(id));
        }
        table.remove(id);
        assert!(table.get(id).is_none());
    }
    let new = open(&mut table, 0, UDP, 2);
    let old = numbers.iter().find(|id| **id != new).unwrap();
    table.used(5, old.number(Way::Reply), seen(0));
    assert_eq!(state(&table, new), State::Opening);
}

#[test]
fn one_port_cannot_take_all_and_its_unanswered_ones_make_room() {
    let limits = Limits { connections_max: 8, port_share: 4, network_share: 8 };
    let mut table = Connections::new(limits);
    let ids: Vec<ConnectionId> = (0..4).map(|port| open(&mut table, 0, UDP, port)).collect();
    table.used(1, ids[0].number(Way::Reply), seen(0));
    assert!(table.has_room(Owner::Port(1)));
    let fifth = table.open(2, connection(key(UDP, 5), 0)).unwrap();
    assert_eq!((table.len(), table.counters.evicted), (4, 1));
    assert!(table.get(ids[0]).is_some(), "the answered one stays");
    assert!(table.get(ids[1]).is_none(), "the oldest unanswered one goes");
    for id in [ids[2], ids[3], fifth] {
        table.used(3, id.number(Way::Reply), seen(0));
    }
    assert!(!table.has_room(Owner::Port(0)));
    assert_eq!(table.open(4, connection(key(UDP, 6), 0)), None);
    assert_eq!(table.counters.refused, 1);
    assert!(table.open(4, connection(key(UDP, 7), 1)).is_some(), "another port has its own share");
}

#[test]
fn the_whole_table_has_a_limit() {
    let limits = Limits { connections_max: 3, port_share: 8, network_share: 8 };
    let mut table = Connections::new(limits);
    for port in 0..3 {
        let id = table.open(0, connection(key(UDP, port), port)).unwrap();
        table.used(1, id.number(Way::Reply), seen(0));
    }
    assert_eq!(table.open(2, connection(key(UDP, 9), 9)), None);
}

#[test]
fn a_network_has_a_share_of_a_gateway() {
    let limits = Limits { connections_max: 100, port_share: 2, network_share: 3 };
    let mut table = Connections::new(limits);
    let at = |last: u8, vni| Owner::Address(vni, IpAddr::from([10, 0, 0, last]));
    let mut open = |owner, vni, port| {
        let key = FlowKey { zone: vni, ..key(UDP, port) };
        table.open(0, Connection::new(key, 1, SIDES, 0, owner)).is_some()
    };
    assert!(open(at(1, 1), 1, 1) && open(at(1, 1), 1, 2));
    assert!(!open(at(1, 1), 1, 3), "the share of an address");
    assert!(open(at(2, 1), 1, 4));
    assert!(!open(at(3, 1), 1, 5), "the share of a network");
    assert!(open(at(3, 2), 2, 5));
}

#[test]
fn a_journal_brings_back_what_must_survive() {
    let mut table = Connections::new(Limits::default());
    let answered = open(&mut table, 0, TCP, 1);
    table.used(1, answered.number(Way::Opener), seen(SYN));
    table.used(1, answered.number(Way::Reply), seen(SYN | ACK));
    open(&mut table, 0, TCP, 2);
    let over = open(&mut table, 0, UDP, 3);
    table.used(1, over.number(Way::Reply), seen(0));
    let changes = table.take_changes();
    assert_eq!(changes.len(), 2, "{changes:?}");
    table.remove(over);
    let last = table.take_changes();
    assert_eq!(last, vec![ConnectionRecord::closed(&key(UDP, 3))]);
    assert!(table.take_changes().is_empty());
    let snapshot = table.snapshot();
    assert_eq!(snapshot[0], ConnectionRecord::Reset);
    assert_eq!(snapshot[1..], [ConnectionRecord::open(table.get(answered).unwrap())]);
    let bytes = weir_base::codec::encode(&snapshot);
    assert_eq!(weir_base::codec::decode::<Vec<ConnectionRecord>>(&bytes).unwrap(), snapshot);
}

#[test]
fn too_many_waiting_records_become_a_snapshot() {
    let mut table = Connections::new(Limits::default());
    let id = open(&mut table, 0, TCP, 1);
    table.used(1, id.number(Way::Reply), seen(ACK));
    for _ in 0..CHANGES_MAX {
        table.used(2, id.number(Way::Opener), seen(RST));
        table.used(2, id.number(Way::Opener), seen(SYN));
    }
    assert_eq!(table.counters.changes_overflowed, 1);
    let told = table.take_changes();
    assert_eq!((told.len(), &told[0]), (2, &ConnectionRecord::Reset));
    assert!(table.take_changes().is_empty());
}

#[test]
fn a_restored_connection_goes_on_in_its_state() {
    for before in [State::Opening, State::Open, State::HalfClosed, State::Closed] {
        let mut table = Connections::new(Limits::default());
        assert!(table.restore(5, connection(key(TCP, 1), 0), before));
        assert!(!table.restore(5, connection(key(TCP, 1), 0), before), "twice");
        assert!(table.take_changes().is_empty());
        let (id, _) = table.find(&key(TCP, 1)).unwrap();
        assert_eq!(table.snapshot().len(), 2);
        assert_eq!((state(&table, id), table.get(id).unwrap().generation), (before, 0));
        if before == State::Open {
            table.used(6, id.number(Way::Opener), seen(ACK));
            assert_eq!(state(&table, id), State::Open);
        }
        table.remove(id);
        assert_eq!(
            table.take_changes(),
            [ConnectionRecord::closed(&key(TCP, 1))],
            "the journal learns its end"
        );
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Open(u16),
    Reply(u16),
    Remove(u16),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0_u16..12).prop_map(Step::Open),
        2 => (0_u16..12).prop_map(Step::Reply),
        1 => (0_u16..12).prop_map(Step::Remove),
        1 => (0_u64..60_000).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    /// The table against a plain map of UDP connections without limits.
    #[test]
    fn the_table_is_a_map_with_timeouts(steps in steps()) {
        let mut table = Connections::new(Limits::default());
        let mut model: BTreeMap<u16, (u64, bool)> = BTreeMap::new();
        let mut now_ms = 0;
        for step in steps {
            match step {
                Step::Open(port) => {
                    model.entry(port).or_insert_with(|| {
                        open(&mut table, now_ms, UDP, port);
                        (now_ms, false)
                    });
                }
                Step::Reply(port) => {
                    if let Some((id, way)) = table.find(&key(UDP, port).reverse()) {
                        prop_assert_eq!(way, Way::Reply);
                        table.used(now_ms, id.number(way), seen(0));
                        model.insert(port, (now_ms, true));
                    } else {
                        prop_assert!(!model.contains_key(&port));
                    }
                }
                Step::Remove(port) => {
                    if let Some((id, _)) = table.find(&key(UDP, port)) {
                        table.remove(id);
                    }
                    model.remove(&port);
                }
                Step::Pass(ms) => {
                    now_ms += ms;
                    sweep(&mut table, now_ms);
                    model.retain(|_, (last, open)| {
                        now_ms - *last <= timeout_ms(UDP, if *open { State::Open } else { State::Opening })
                    });
                }
            }
            prop_assert_eq!(table.len(), model.len());
            let recorded = table.snapshot().len() - 1;
            prop_assert_eq!(recorded, model.values().filter(|(_, open)| *open).count());
        }
    }
}
