use super::*;
use crate::engine::peers::Peers;
use crate::engine::ring::{FrameConsumer, frame_ring};
use crate::engine::sys::Poller;
use crate::engine::transmit::Transmit;
use crate::engine::{Inject, Shared};
use crate::flow::{Action, Hop, Ingress, NO_CONNECTION};
use crate::flowtable::{CompiledAction, Shadow};
use crate::fragments::PIECES_MAX;
use crate::testing::{self, Packet, ip, udp};
use proptest::prelude::*;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use weir_packet::virtio::HEADER_BYTES;

const ALLOWED: u16 = 53;
const DENIED: u16 = 54;
const UNKNOWN: u16 = 55;

/// Two ports, and flows from the first to the second.
struct Rig {
    path: Path,
    shared: Arc<Shared>,
    shadow: Shadow,
    misses: (FrameProducer<Miss>, FrameConsumer<Miss>),
    endpoints: [OwnedFd; 2],
}

/// A datagram to a port, of so many bytes.
fn datagram(is_v6: bool, to: u16, bytes: usize) -> Packet {
    let (a, b) = if is_v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    let mut packet = udp((ip(a), 1000), (ip(b), to), bytes);
    for (at, byte) in packet.transport[8..].iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    packet
}

fn action(hop: Hop) -> CompiledAction {
    let (ethernet, nat, counter, connection) = (None, None, 0, NO_CONNECTION);
    let action = Action {
        hop,
        ethernet,
        nat,
        routed: false,
        mtu: 1500,
        mss_max: 0,
        counter,
        connection,
        idle_ms: 1000,
        hangs: Default::default(),
    };
    CompiledAction::new(&action).unwrap()
}

impl Rig {
    fn new() -> Rig {
        let shared = testing::shared();
        let (mut shadow, first) = Shadow::new(Arc::clone(&shared.store));
        for (is_v6, to) in [false, true].into_iter().flat_map(|v6| [ALLOWED, DENIED].map(|to| (v6, to))) {
            let parsed = weir_packet::parse(&datagram(is_v6, to, 8).build()).unwrap();
            let hop = if to == ALLOWED { Hop::Port(1) } else { Hop::Drop };
            shadow.insert(FlowKey::new(super::super::port_zone(0), &parsed), action(hop), 0).unwrap();
        }
        let transmit = Transmit::new(false, (vec![], 6081), (vec![], 4789), Arc::clone(&shared.counters));
        let (own, ports, tables) = (ip("192.0.2.1"), [6081, 4789], shadow.publish().unwrap());
        let mut path = Path::new(Arc::clone(&shared), transmit, own, ports, Peers::new(true), tables, 32);
        shadow.take_back(first);
        let poller = Poller::new().unwrap();
        let endpoints = [0, 1].map(|number| {
            let (port, endpoint) = testing::device();
            path.ports.set(number, port, &poller);
            endpoint
        });
        Rig { path, shared, shadow, misses: frame_ring(1024, 1 << 20), endpoints }
    }

    /// An endpoint sends frames, in turns of so many.
    fn send(&mut self, frames: &[Vec<u8>], per_turn: usize) {
        for some in frames.chunks(per_turn) {
            for frame in some {
                rustix::io::write(&self.endpoints[0], &[&[0; HEADER_BYTES], &**frame].concat()).unwrap();
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.path.serve_port(0, &mut self.misses.0);
        self.end();
    }

    fn end(&mut self) {
        if self.path.holds() {
            self.path.serve_held(&mut self.misses.0);
        }
        self.path.end_turn();
    }

    /// What the slow path has to do: there is a flow now, and all that missed is put back.
    fn slow_path(&mut self, hop: &Hop) {
        while let Some((miss, frame)) = self.misses.1.peek() {
            let frame = frame.to_vec();
            self.shared.load.done(miss.class);
            self.misses.1.pop();
            let zone = super::super::port_zone(0);
            if self.shadow.find(&FlowKey { zone, ..miss.key }).is_none() {
                self.shadow.insert(FlowKey { zone, ..miss.key }, action(hop.clone()), 0).unwrap();
                let tables = self.shadow.publish().unwrap();
                let old = self.path.swap(tables);
                self.shadow.take_back(old);
            }
            let Miss { ingress, key, virtio, .. } = miss;
            self.path.inject(
                &Inject::Again { ingress, key, virtio, generation: 0 },
                &frame,
                &mut self.misses.0,
            );
        }
        self.end();
    }

    /// Fragments that arrived, by offset, with what is behind their IP headers.
    fn arrived(&self) -> Vec<(u16, Vec<u8>)> {
        let (mut bytes, mut all) = (vec![0; 70_000], Vec::new());
        while let Ok(read) = rustix::io::read(&self.endpoints[1], &mut bytes[..]) {
            all.push(content(&bytes[HEADER_BYTES..read]));
        }
        all.sort();
        all
    }

    fn early(&self) -> u64 {
        self.shared.counters.rule(Reason::FragmentEarly as CounterIndex).unwrap().packets.get()
    }

    fn event(&self, event: EngineEvent) -> u64 {
        self.shared.counters.event(event).get()
    }
}

/// Offset and bytes of a fragment.
fn content(frame: &[u8]) -> (u16, Vec<u8>) {
    let parsed = weir_packet::parse(frame).unwrap();
    let length = usize::from(parsed.fragment_end - parsed.fragment_offset);
    (parsed.fragment_offset, frame[parsed.payload_end - length..parsed.payload_end].to_vec())
}

fn shuffled(mut frames: Vec<Vec<u8>>, order: &[u16]) -> Vec<Vec<u8>> {
    for (at, other) in order.iter().enumerate().take(frames.len()) {
        let other = usize::from(*other) % frames.len();
        frames.swap(at, other);
    }
    frames
}

fn pieces(packet: &Packet, identification: u16, bytes: usize) -> Vec<Vec<u8>> {
    packet.pieces(identification, bytes).iter().map(Packet::build).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// The fragments of a datagram that the rules allow arrive in any order, all of them; of one that they deny none does, and the
    /// slow path changes nothing of that.
    #[test]
    fn any_order_arrives_whole_where_the_first_fragment_may_pass(
        is_v6 in any::<bool>(),
        to in prop_oneof![Just(ALLOWED), Just(DENIED), Just(UNKNOWN)],
        count in 2..=2 * PIECES_MAX - 1,
        order in proptest::collection::vec(any::<u16>(), 2 * PIECES_MAX),
        per_turn in 1_usize..50,
        is_denied_later in any::<bool>(),
    ) {
        let mut rig = Rig::new();
        let sent = pieces(&datagram(is_v6, to, count * 64 - 8), 7, 64);
        prop_assert_eq!(sent.len(), count);
        rig.send(&shuffled(sent.clone(), &order), per_turn);
        for _ in 0..3 {
            rig.slow_path(&if is_denied_later { Hop::Drop } else { Hop::Port(1) });
        }
        let passes = to == ALLOWED || (to == UNKNOWN && !is_denied_later);
        let mut wanted: Vec<_> = sent.iter().map(|frame| content(frame)).collect();
        wanted.sort();
        prop_assert_eq!(rig.arrived(), if passes { wanted } else { Vec::new() });
        prop_assert!(!rig.path.holds());
        prop_assert_eq!(rig.early(), 0);
        prop_assert_eq!(rig.shared.counters.port(0).rx.packets.get(), count as u64, "each is counted once");
    }
}

#[test]
fn lone_fragments_are_dropped_and_counted_and_pass_nothing() {
    let mut rig = Rig::new();
    let mine = pieces(&datagram(false, ALLOWED, 300), 60_000, 64);
    for identification in 0..500 {
        let lone = pieces(&datagram(identification % 2 == 0, ALLOWED, 300), identification, 64);
        rig.send(&lone[1..], 64);
    }
    assert_eq!(rig.arrived(), []);
    assert!(rig.path.following.held.len() <= crate::fragments::held::SHARE_FRAMES);
    assert_eq!(rig.event(EngineEvent::FragmentsHeld), 500 * 4);
    assert_eq!(rig.early() + rig.path.following.held.len() as u64, 500 * 4);
    // A datagram of the same sender goes on: the oldest made room.
    rig.send(&[&mine[1..], &mine[..1]].concat(), 64);
    assert_eq!(rig.arrived().len(), mine.len());
    let late = rig.shared.start + Duration::from_millis(u64::from(crate::fragments::held::WAIT_MS) + 10);
    rig.path.set_now(late);
    rig.end();
    assert!(!rig.path.holds());
    assert_eq!(rig.early(), 500 * 4);
    assert_eq!(rig.early(), rig.event(EngineEvent::FragmentsHeldLost));
}

/// A sender on the underlay of whom no flow is known has proved nothing.
#[test]
fn strangers_on_the_underlay_get_no_room() {
    let rig = Rig::new();
    let (format, half) = (weir_model::resource::Encapsulation::Geneve, weir_packet::encap::Half::Unsaid);
    let ingress = Ingress::Underlay { sender: ip("192.0.2.9"), vni: 1, token: None, format, half };
    let early = weir_packet::parse(&pieces(&datagram(false, ALLOWED, 300), 7, 64)[1]).unwrap();
    let mut following = Following::default();
    for (zone, stopped, dropped) in [(None, Stopped::Dropped, 1), (Some(5), Stopped::Early, 1)] {
        let origin = || Origin::underlay(ingress, ip("192.0.2.9"), zone);
        let result = key_of(&mut following, &rig.shared.counters, 0, zone, &early, 100, origin);
        assert_eq!((result, rig.early()), (Err(stopped), dropped));
    }
}

/// An overlap is refused whatever came first.
#[test]
fn what_is_held_is_not_laid_over_the_first_fragment() {
    let mut rig = Rig::new();
    let whole = pieces(&datagram(false, ALLOWED, 300), 7, 64);
    let over = pieces(&datagram(false, DENIED, 300), 7, 32);
    rig.send(&[over[1].clone(), whole[0].clone(), whole[1].clone()], 1);
    let arrived = rig.arrived();
    assert_eq!(arrived, [content(&whole[0])], "the rest of the datagram is refused");
    let overlaps = rig.shared.counters.rule(Reason::FragmentOverlap as CounterIndex).unwrap();
    assert_eq!(overlaps.packets.get(), 2);
}
