use super::*;
use crate::engine::polling::Polling;
use crate::engine::ring::{FrameConsumer, FrameProducer, frame_ring};
use crate::engine::transmit::Transmit;
use crate::engine::{Channels, Command, Inject, Miss, POLL_PERIOD, Shared, Underlay};
use crate::flowtable::Shadow;
use crate::testing::{self, Packet, ip};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;
use weir_packet::virtio::HEADER_BYTES;

/// The UDP port of frames whose handling fails.
const TRAP: u16 = 666;

/// An engine with two ports whose other ends are here, and no slow path but this.
struct Rig {
    engine: Engine,
    shared: Arc<Shared>,
    commands: SyncSender<Command>,
    returned: Receiver<Returned>,
    misses: FrameConsumer<Miss>,
    endpoints: Vec<OwnedFd>,
    injects: FrameProducer<Inject>,
}

fn is_trap(frame: &[u8]) -> bool {
    frame.get(36..38) == Some(&TRAP.to_be_bytes()[..])
}

impl Rig {
    fn new() -> Rig {
        let shared = testing::shared();
        let (_, tables) = Shadow::new(Arc::clone(&shared.store));
        let (commands, for_engine) = sync_channel(8);
        let (for_back, returned) = sync_channel(64);
        let (for_misses, misses) = frame_ring(1024, 1 << 20);
        let (injects, for_injects) = frame_ring(1024, 1 << 20);
        let channels =
            Channels { commands: for_engine, returned: for_back, misses: for_misses, injects: for_injects };
        let counters = Arc::clone(&shared.counters);
        let underlay = Underlay {
            receivers: vec![],
            transmit: Transmit::new(false, (vec![], 6081), (vec![], 4789), counters),
            address: ip("127.0.0.1"),
            ports: [6081, 4789],
            partial_checksums: true,
        };
        let polling = Polling::always(Instant::now());
        let mut engine = Engine::new(Arc::clone(&shared), channels, underlay, tables, polling, 32).unwrap();
        engine.path.trap = Some(is_trap);
        let mut rig = Rig { engine, shared, commands, returned, misses, endpoints: Vec::new(), injects };
        for number in 0..2 {
            let (port, endpoint) = testing::device();
            rig.endpoints.push(endpoint);
            rig.command(Command::SetPort(number, port));
        }
        rig.turns(1);
        rig
    }

    fn command(&self, command: Command) {
        self.commands.send(command).unwrap();
        self.shared.engine_wake.wake();
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            // So that it asks the kernel in each.
            std::thread::sleep(POLL_PERIOD);
            self.engine.turn().unwrap();
        }
    }

    fn send(&self, endpoint: usize, port: u16) {
        let [high, low] = port.to_be_bytes();
        let frame =
            Packet::new(ip("10.0.0.1"), ip("10.0.0.2"), 17, vec![4, 0, high, low, 0, 8, 0, 0]).build();
        rustix::io::write(&self.endpoints[endpoint], &[&[0; HEADER_BYTES], &*frame].concat()).unwrap();
    }

    /// Ports and quarantine of the faults that were told of.
    fn faults(&self) -> Vec<(usize, bool)> {
        let faults = self.returned.try_iter().filter_map(|returned| match returned {
            Returned::Fault(fault) => {
                assert!(is_trap(&fault.frame), "the frame is kept");
                assert!(fault.message.contains("trap"), "{}", fault.message);
                Some((fault.class, fault.quarantined))
            }
            _ => None,
        });
        faults.collect()
    }

    /// Frames that came through to the slow path, by port.
    fn came(&mut self) -> Vec<usize> {
        let mut ports = Vec::new();
        while let Some((miss, _)) = self.misses.peek() {
            self.misses.pop();
            self.shared.load.done(miss.class);
            ports.push(miss.class);
        }
        ports
    }

    fn event(&self, event: EngineEvent) -> u64 {
        self.shared.counters.event(event).get()
    }
}

#[test]
fn a_fault_costs_its_frame_and_a_second_one_its_port() {
    let mut rig = Rig::new();
    rig.send(0, 9);
    rig.send(0, TRAP);
    rig.send(0, 9);
    rig.send(1, 9);
    rig.turns(3);
    assert_eq!(rig.faults(), [(0, false)]);
    let mut came = rig.came();
    came.sort_unstable();
    assert_eq!(came, [0, 0, 1], "all others came through");
    rig.send(0, TRAP);
    rig.turns(2);
    assert_eq!(rig.faults(), [(0, true)]);
    rig.send(0, 9);
    rig.send(1, 9);
    rig.turns(3);
    assert_eq!(rig.came(), [1], "the quarantined one is not read, the other is");
    assert_eq!((rig.event(EngineEvent::Contained), rig.event(EngineEvent::Quarantines)), (2, 1));
    assert_eq!(rig.shared.counters.dropped(EngineDrop::Fault).packets.get(), 2);
    // Set anew it is read again, and its next fault is one too many.
    rig.command(Command::SetUp(0, true));
    rig.turns(3);
    assert_eq!(rig.came(), [0]);
    rig.send(0, TRAP);
    rig.turns(2);
    assert_eq!(rig.faults(), [(0, true)]);
}

#[test]
fn a_port_s_fault_is_not_another_s() {
    let mut rig = Rig::new();
    rig.send(0, TRAP);
    rig.send(1, TRAP);
    rig.turns(3);
    let mut faults = rig.faults();
    faults.sort_unstable();
    assert_eq!(faults, [(0, false), (1, false)]);
    rig.send(0, 9);
    rig.send(1, 9);
    rig.turns(3);
    assert_eq!(rig.came().len(), 2);
}

#[test]
fn a_frame_of_the_slow_path_that_fails_is_taken_out() {
    let mut rig = Rig::new();
    let (high, low) = ((TRAP >> 8) as u8, TRAP as u8);
    let frame = Packet::new(ip("10.0.0.1"), ip("10.0.0.2"), 17, vec![4, 0, high, low, 0, 8, 0, 0]).build();
    let key = weir_packet::FlowKey::new(0, &weir_packet::parse(&frame).unwrap());
    let inject = Inject::Again {
        ingress: crate::flow::Ingress::Port(1),
        key,
        virtio: weir_packet::virtio::VirtioNetHeader::default(),
        generation: 0,
    };
    assert!(rig.injects.push(inject, &[&frame]).is_ok());
    rig.shared.engine_wake.wake();
    rig.turns(3);
    assert_eq!(rig.faults(), [(1, false)]);
    rig.send(1, 9);
    rig.turns(2);
    assert_eq!(rig.came(), [1]);
}

#[test]
fn the_outside_is_not_quarantined() {
    let mut rig = Rig::new();
    let (port, endpoint) = testing::device();
    rig.endpoints.push(endpoint);
    rig.command(Command::SetPort(EXTERNAL, port));
    rig.turns(1);
    for _ in 0..5 {
        rig.send(2, TRAP);
    }
    rig.send(2, 9);
    rig.turns(8);
    assert_eq!(rig.faults(), [(EXTERNAL, false); 5]);
    assert_eq!(rig.came(), [EXTERNAL]);
}
