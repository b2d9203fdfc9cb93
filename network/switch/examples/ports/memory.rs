//! What a million flows take: the flow table as the slow path keeps it with both copies of its index, and a connection for each
//! two flows, as the kernel counts the process's memory and as the switch counts its own.

use crate::flows;
use std::net::IpAddr;
use std::sync::Arc;
use weir_model::MacAddr;
use weir_packet::FlowKey;
use weir_switch::conntrack::{Connection, Connections, Limits, Owner, Sides, Way};
use weir_switch::engine::{RING_BYTES, RING_FRAMES};
use weir_switch::flow::{Action, Hop, Ingress};
use weir_switch::flowtable::FlowStore;
use weir_switch::slow::flows::FlowBook;

const FLOWS: u32 = 1_000_000;
/// Ports that the flows are of: one may have an eighth of all connections.
const PORTS: u32 = 16;
/// Flows between two publications.
const PUBLISHED: u32 = 4096;
const BUDGET_MIB: f64 = 1024.0;

fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1024.0
}

fn action(port: u16, connection: u32) -> Action {
    let to: IpAddr = [192, 0, 2, 2].into();
    Action {
        hop: Hop::Underlay {
            receiver: to,
            vni: 7,
            format: weir_model::resource::Encapsulation::Geneve,
            token: 9,
            half: weir_packet::encap::Half::Unsaid,
            by_gateway: false,
        },
        ethernet: Some((MacAddr([2, 0, 0, 0, 0, port as u8]), MacAddr([2; 6]))),
        nat: None,
        routed: true,
        mtu: 1500,
        mss_max: 1400,
        counter: 0,
        connection,
        idle_ms: 60_000,
        hangs: Default::default(),
    }
}

/// Fills the tables and prints what they take.
pub fn run() {
    let before = resident_bytes();
    let store = Arc::new(FlowStore::new([5, 6]));
    let (mut book, mut engine) = FlowBook::new(store);
    let mut connections = Connections::new(Limits::default());
    for flow in 0..FLOWS / 2 {
        let port = (flow % PORTS) as u16;
        let key = flows::key(0, flow);
        let sides = Sides { egress: Some(true), ingress: None };
        let connection = Connection::new(FlowKey { zone: 7, ..key }, 0, sides, 0, Owner::Port(port));
        let id = connections.open(0, connection).expect("room");
        // What waits for the journal is written once a turn.
        connections.take_changes();
        for (key, way) in [(key, Way::Opener), (key.reverse(), Way::Reply)] {
            let ingress = Ingress::Port(port);
            let action = action(port, id.number(way));
            assert!(book.install(&ingress, &key, &action, |_| Some(7), 0), "room");
        }
        if flow % PUBLISHED == 0
            && let Some(tables) = book.publish()
        {
            book.take_back_untold(std::mem::replace(&mut engine, tables));
        }
    }
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let fixed = 2 * (RING_BYTES + RING_FRAMES * 128);
    let all = mib(resident_bytes() - before + fixed as f64);
    let (table, tracked) = (mib(book.bytes() as f64), mib(connections.bytes() as f64));
    println!(
        "RESULT ports memory-{FLOWS} weir={all:.0}MiB budget={BUDGET_MIB:.0}MiB ratio={:.2}   \
         # counted: flow table {table:.0}MiB ({} bytes a flow, {} of them what it hangs on), connections {tracked:.0}MiB, rings {:.0}MiB",
        all / BUDGET_MIB,
        book.bytes() / FLOWS as usize,
        book.dependents_bytes() / FLOWS as usize,
        mib(fixed as f64)
    );
}
