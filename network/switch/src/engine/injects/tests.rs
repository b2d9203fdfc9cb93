use super::*;
use crate::engine::polling::Polling;
use crate::engine::ring::{FrameConsumer, FrameProducer, frame_ring};
use crate::engine::transmit::Transmit;
use crate::engine::{Channels, Command, Miss, POLL_PERIOD, Returned, Shared, Underlay};
use crate::flow::{Action, Hop, NO_CONNECTION};
use crate::flowtable::{CompiledAction, Shadow};
use crate::testing::{self, ip, udp};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;
use weir_model::resource::Encapsulation;
use weir_packet::FlowKey;
use weir_packet::encap::Half;
use weir_packet::virtio::{HEADER_BYTES, VirtioNetHeader};

/// An engine with a port, a flow from it to another switch, which is a socket here, and no slow path but this.
struct Rig {
    engine: Engine,
    shared: Arc<Shared>,
    shadow: Shadow,
    commands: SyncSender<Command>,
    returned: Receiver<Returned>,
    misses: FrameConsumer<Miss>,
    injects: FrameProducer<Inject>,
    endpoint: OwnedFd,
    other: UdpSocket,
}

fn frame() -> Vec<u8> {
    udp((ip("10.0.0.1"), 1000), (ip("10.0.0.2"), 53), 100).build()
}

fn key() -> FlowKey {
    FlowKey::new(0, &weir_packet::parse(&frame()).unwrap())
}

impl Rig {
    fn new() -> Rig {
        let shared = testing::shared();
        let (mut shadow, first) = Shadow::new(Arc::clone(&shared.store));
        let hop = Hop::Underlay {
            receiver: ip("127.0.0.1"),
            vni: 7,
            format: Encapsulation::Geneve,
            token: 1,
            half: Half::Unsaid,
            by_gateway: false,
        };
        let (ethernet, nat, counter, connection) = (None, None, 0, NO_CONNECTION);
        let (routed, mtu, mss_max, idle_ms) = (false, 1500, 0, 1000);
        let hangs = Default::default();
        let action = Action { hop, ethernet, nat, routed, mtu, mss_max, counter, connection, idle_ms, hangs };
        shadow.insert(key(), CompiledAction::new(&action).unwrap(), 0).unwrap();
        let tables = shadow.publish().unwrap();
        shadow.take_back(first);
        let (commands, for_engine) = sync_channel(8);
        let (for_back, returned) = sync_channel(64);
        let (for_misses, misses) = frame_ring(1024, 1 << 20);
        let (injects, for_injects) = frame_ring(1024, 1 << 20);
        let channels =
            Channels { commands: for_engine, returned: for_back, misses: for_misses, injects: for_injects };
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        other.set_nonblocking(true).unwrap();
        let port = other.local_addr().unwrap().port();
        let own = UdpSocket::bind("127.0.0.1:0").unwrap();
        let counters = Arc::clone(&shared.counters);
        let underlay = Underlay {
            receivers: vec![],
            transmit: Transmit::new(false, (vec![own.into()], port), (vec![], 4789), counters),
            address: ip("127.0.0.1"),
            ports: [6081, 4789],
            partial_checksums: false,
        };
        let polling = Polling::always(Instant::now());
        let engine = Engine::new(Arc::clone(&shared), channels, underlay, tables, polling, 32).unwrap();
        let (port, endpoint) = testing::device();
        let mut rig = Rig { engine, shared, shadow, commands, returned, misses, injects, endpoint, other };
        rig.command(Command::SetPort(0, port));
        rig.turn();
        rig
    }

    fn command(&self, command: Command) {
        self.commands.send(command).unwrap();
        self.shared.engine_wake.wake();
    }

    fn turn(&mut self) {
        // So that it asks the kernel.
        std::thread::sleep(POLL_PERIOD);
        self.engine.turn().unwrap();
    }

    /// Gives tables without the flow.
    fn revoke(&mut self) {
        let slot = self.shadow.find(&key()).unwrap();
        self.shadow.remove(slot);
        let tables = self.shadow.publish().unwrap();
        self.command(Command::Tables(tables));
    }

    /// Whether the old tables are back.
    fn is_acked(&self) -> bool {
        self.returned.try_iter().any(|returned| matches!(returned, Returned::Tables(_)))
    }

    fn send(&self) {
        rustix::io::write(&self.endpoint, &[&[0; HEADER_BYTES], &*frame()].concat()).unwrap();
    }

    /// Datagrams that came to the other switch since the last time.
    fn sent(&self) -> usize {
        let mut bytes = [0; 2048];
        std::iter::from_fn(|| self.other.recv(&mut bytes).ok()).count()
    }

    /// Frames that came to the endpoint.
    fn answers(&self) -> usize {
        let mut bytes = [0; 2048];
        std::iter::from_fn(|| rustix::io::read(&self.endpoint, &mut bytes).ok()).count()
    }
}

#[test]
fn what_was_judged_by_old_tables_is_sent_before_they_go_back_and_nothing_after() {
    let mut rig = Rig::new();
    // Two, for the one after a single one is sent at once.
    rig.send();
    rig.send();
    rig.turn();
    assert_eq!(rig.sent(), 2, "the flow is there");
    // The command comes between a frame's judgement and the end of the turn in which that is sent.
    rig.send();
    rig.engine.serve_port(0);
    assert_eq!(rig.sent(), 0, "it is gathered");
    rig.revoke();
    rig.engine.take_commands();
    assert!(rig.is_acked());
    assert_eq!(rig.sent(), 1, "it is out when the old tables are back");
    rig.send();
    rig.engine.serve_port(0);
    rig.turn();
    assert_eq!(rig.sent(), 0, "what comes later is not sent");
    assert!(rig.misses.peek().is_some(), "it is asked about");
}

#[test]
fn what_the_slow_path_had_decided_is_sent_before_old_tables_go_back() {
    let mut rig = Rig::new();
    let count = 4 * INJECTS_PER_TURN;
    for _ in 0..count {
        rig.injects.push(Inject::Port(0), &[&frame()]).unwrap();
    }
    rig.revoke();
    rig.turn();
    assert!(rig.is_acked());
    assert_eq!(rig.answers(), count);
}

#[test]
fn what_is_put_back_is_judged_by_the_new_tables() {
    let mut rig = Rig::new();
    let (ingress, virtio) = (crate::flow::Ingress::Port(0), VirtioNetHeader::default());
    // Given for the tables in use, and for those that come.
    for generation in [1, 2] {
        let again = Inject::Again { ingress, key: key(), virtio, generation };
        rig.injects.push(again, &[&frame()]).unwrap();
    }
    rig.revoke();
    rig.turn();
    assert!(rig.is_acked());
    assert!(rig.injects.is_empty());
    assert_eq!(rig.sent(), 0);
}
