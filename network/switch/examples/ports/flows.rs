//! An engine with flows that were written by hand: two ports, and between them as many flows as wanted.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;
use weir_model::resource::Encapsulation;
use weir_packet::{FlowKey, parse};
use weir_switch::engine::counters::Counters;
use weir_switch::engine::path::port_zone;
use weir_switch::engine::polling::Polling;
use weir_switch::engine::ring::{FrameConsumer, FrameProducer, frame_ring};
use weir_switch::engine::sys::Wakeup;
use weir_switch::engine::transmit::Transmit;
use weir_switch::engine::wire::Wires;
use weir_switch::engine::{Channels, Command, Engine, Inject, Miss, MissLoad, Returned, Shared, Underlay};
use weir_switch::flow::FLOWS_LIMIT;
use weir_switch::flowtable::tunnel::Tunnel;
use weir_switch::flowtable::{CompiledAction, CompiledHop, FlowStore, Shadow, Tables};

/// Ethernet addresses that are written: destination and source.
pub const ETHERNET: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 8], [2, 0, 0, 0, 0, 9]);

/// A 64-byte frame (60 bytes without its checksum): UDP from 198.18.0.1 to 198.18.0.2, port 9.
pub fn frame() -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    frame[34..42].copy_from_slice(&[0, 9, 0, 9, 0, 26, 0, 0]);
    frame
}

/// Place of the source address in [`frame`].
pub const SOURCE_AT: usize = 26;
/// Place of the source port in [`frame`].
pub const SOURCE_PORT_AT: usize = 34;

/// Source address and port of a flow: what distinguishes flows.
pub fn source(flow: u32) -> ([u8; 4], u16) {
    let [_, a, b, _] = (flow & 0x00ff_ff00).to_be_bytes();
    ([198, 18, a, b], 1024 + (flow & 0xff) as u16)
}

/// The key of a flow that comes in from a port.
pub fn key(port: usize, flow: u32) -> FlowKey {
    key_in(port_zone(port), flow)
}

/// The key of a flow of a zone.
pub fn key_in(zone: u32, flow: u32) -> FlowKey {
    let mut frame = frame();
    let (address, source_port) = source(flow);
    frame[SOURCE_AT..SOURCE_AT + 4].copy_from_slice(&address);
    frame[SOURCE_PORT_AT..SOURCE_PORT_AT + 2].copy_from_slice(&source_port.to_be_bytes());
    FlowKey::new(zone, &parse(&frame).expect("a frame"))
}

/// To a port, with new Ethernet addresses.
pub fn action(port: u16) -> CompiledAction {
    CompiledAction {
        hop: CompiledHop::Port(port),
        ethernet: Some(ETHERNET),
        rewrite: None,
        routed: false,
        mtu: 1500,
        mss_max: 0,
        counter: 0,
    }
}

/// To another switch on this host, with new Ethernet addresses.
pub fn action_to_underlay(format: Encapsulation) -> CompiledAction {
    let to = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let tunnel = Tunnel::new(to, 7, format, Some(9)).expect("a network");
    CompiledAction { hop: CompiledHop::Underlay(tunnel), ..action(0) }
}

/// Numbers that look random: the same in every run.
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// What the engine and the other threads share.
pub fn shared() -> Arc<Shared> {
    let wakeup = || Wakeup::new().expect("a wakeup");
    Arc::new(Shared {
        store: Arc::new(FlowStore::with_flows_max([0x5eed, 0xf00d], FLOWS_LIMIT)),
        counters: Arc::new(Counters::default()),
        load: MissLoad::default(),
        engine_wake: wakeup(),
        slow_wake: wakeup(),
        start: Instant::now(),
        stop: std::sync::atomic::AtomicBool::new(false),
        mark: weir_switch::mark::Mark::none(),
    })
}

/// The other ends of an engine's channels.
pub struct Link {
    /// Commands to it.
    pub commands: SyncSender<Command>,
    /// What it gives back.
    pub returned: Receiver<Returned>,
    /// What misses.
    pub misses: FrameConsumer<Miss>,
    /// What is put back into it.
    pub injects: FrameProducer<Inject>,
}

fn socket() -> OwnedFd {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket").into()
}

/// An engine with the flows that `fill` writes, which takes `batch` frames of a guest at once.
pub fn engine(
    shared: &Arc<Shared>,
    polling: Polling,
    batch: usize,
    fill: impl FnOnce(&mut Shadow),
) -> (Engine, Link) {
    engine_to(shared, polling, batch, To::Ports([6081, 4789]), fill)
}

/// An engine that does not sleep.
pub fn always() -> Polling {
    Polling::always(Instant::now())
}

/// Where what is for other switches goes.
pub enum To {
    /// By the kernel to these UDP ports (Geneve, VXLAN).
    Ports([u16; 2]),
    /// Without it.
    Wire(Box<Wires>),
}

/// The same, with another way to other switches.
pub fn engine_to(
    shared: &Arc<Shared>,
    polling: Polling,
    batch: usize,
    to: To,
    fill: impl FnOnce(&mut Shadow),
) -> (Engine, Link) {
    let (mut shadow, _) = Shadow::new(Arc::clone(&shared.store));
    fill(&mut shadow);
    let tables: Box<Tables> = shadow.publish().expect("tables");
    let (commands, for_engine) = sync_channel(64);
    let (returned, back) = sync_channel(64);
    let (miss_producer, misses) = frame_ring(1024, 1 << 20);
    let (injects, for_inject) = frame_ring(64, 1 << 20);
    let channels = Channels { commands: for_engine, returned, misses: miss_producer, injects: for_inject };
    let ports = if let To::Ports(ports) = &to { *ports } else { [6081, 4789] };
    let transmit = Transmit::new(
        false,
        (vec![socket()], ports[0]),
        (vec![socket()], ports[1]),
        Arc::clone(&shared.counters),
    );
    let mut transmit = transmit;
    if let To::Wire(wires) = to {
        transmit.set_wires(Some(wires)).expect("bound sockets");
    }
    let underlay = Underlay {
        receivers: vec![],
        transmit,
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        ports,
        partial_checksums: true,
    };
    let engine = Engine::new(Arc::clone(shared), channels, underlay, tables, polling, batch);
    (engine.expect("an engine"), Link { commands, returned: back, misses, injects })
}
