use super::*;
use crate::engine::Shared;
use crate::engine::path::UNDERLAY_ZONES;
use crate::engine::peers::Peers;
use crate::engine::ring::{FrameConsumer, frame_ring};
use crate::engine::sys::Poller;
use crate::engine::transmit::Transmit;
use crate::engine::wire::{Hop, Hops, Receiver, SharedHops, Wires};
use crate::flow::{Action, Hop as To, NO_CONNECTION};
use crate::flowtable::{CompiledAction, Shadow};
use crate::testing::{self, ACK, FrameWire, Packet, ip, outer_frame, tcp, udp};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use weir_packet::encap::MAX_ENCAP_BYTES;
use weir_packet::segment::Segmenter;
use weir_packet::virtio::{GSO_TCPV4, HEADER_BYTES, MAX_SEGMENT_HEADER_BYTES, Segmentation};

const OWN: &str = "192.0.2.1";
const RELAYED_TO: &str = "192.0.2.200";
const SENDERS: [&str; 3] = ["192.0.2.2", "192.0.2.3", "192.0.2.4"];
const VNIS: [u32; 3] = [7, 8, 9];
const PORTS: [u16; 2] = [6081, 4789];
/// Flows of each sender and network. What becomes of them is told by their number.
const FLOWS: u16 = 9;
const RULES: u32 = 40;

/// What becomes of a flow; `None` for one that is not known.
fn action_of(flow: u16) -> Option<Action> {
    let tunnel = |vni| To::Underlay {
        receiver: ip(RELAYED_TO),
        vni,
        format: Encapsulation::Geneve,
        token: 5,
        half: weir_packet::encap::Half::Unsaid,
        by_gateway: false,
    };
    let (hop, routed, mtu) = match flow {
        0 | 1 => (To::Port(flow % 2), false, 1500),
        2 => (To::Port(0), true, 1500),
        3 => (tunnel(11), false, 1500),
        4 => (To::Drop, false, 1500),
        5 => (To::Port(1), false, 200),
        6 => (tunnel(12), true, 1500),
        // A port that is not there.
        7 => (To::Port(9), false, 1500),
        _ => return None,
    };
    let counter = RULES + u32::from(flow) % 5;
    let (ethernet, nat, connection) = (None, None, NO_CONNECTION);
    let (mss_max, idle_ms, hangs) = (0, 1000, Default::default());
    Some(Action { hop, ethernet, nat, routed, mtu, mss_max, counter, connection, idle_ms, hangs })
}

/// A packet of a flow, which has the same addresses and ports in every network.
fn packet(flow: u16, is_tcp: bool, payload: usize) -> Packet {
    let ends = ((ip("10.0.0.1"), 1000 + flow), (ip("10.0.9.9"), 80));
    if !is_tcp {
        return udp(ends.0, ends.1, payload);
    }
    let mut packet = tcp(ends.0, ends.1, ACK);
    packet.transport.resize(20 + payload, 0x5a);
    packet
}

/// A datagram as it comes in.
#[derive(Clone, Debug)]
struct Sent {
    sender: usize,
    format: Encapsulation,
    ecn: u8,
    bytes: Vec<u8>,
}

/// What comes in, in one go.
#[derive(Clone, Debug)]
struct Item {
    sender: usize,
    vni: usize,
    is_vxlan: bool,
    ecn: u8,
    flow: u16,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Segments of one super-frame with partial checksums, of which some may be missing.
    Train {
        segments: usize,
        payload: usize,
        without: Option<usize>,
        sequence: u32,
    },
    /// A single packet.
    Single {
        is_tcp: bool,
        payload: usize,
        is_partial: bool,
        ttl: u8,
    },
    /// A datagram in pieces, the last first or last.
    Pieces {
        payload: usize,
        bytes: usize,
        identification: u16,
        is_turned: bool,
    },
    /// To everybody.
    Broadcast,
    /// Bytes that are nothing, or the beginning of something.
    Nonsense(Vec<u8>),
    Cut(usize),
    /// Geneve's control packet.
    Control,
}

impl Item {
    fn encapsulated(&self, frame: &[u8], checksum: InnerChecksum) -> Sent {
        let format = if self.is_vxlan { Encapsulation::Vxlan } else { Encapsulation::Geneve };
        let token = (!self.is_vxlan).then_some(9);
        let checksum = if self.is_vxlan { InnerChecksum::Full } else { checksum };
        let tunnel = Tunnel::new(ip(OWN), VNIS[self.vni], format, token).unwrap();
        let mut bytes = vec![0; MAX_ENCAP_BYTES];
        let from = tunnel.header(checksum).write_before(&mut bytes, MAX_ENCAP_BYTES);
        bytes.extend(frame);
        Sent { sender: self.sender, format, ecn: self.ecn, bytes: bytes.split_off(from) }
    }

    fn single(&self, packet: &Packet, is_partial: bool) -> Sent {
        let mut frame = packet.build();
        if is_partial && !self.is_vxlan {
            let parsed = weir_packet::parse(&frame).unwrap();
            checksum::fill_partial(&mut frame, &parsed).unwrap();
            return self.encapsulated(&frame, InnerChecksum::Partial);
        }
        self.encapsulated(&frame, InnerChecksum::Accepts)
    }

    fn datagrams(&self) -> Vec<Sent> {
        match &self.kind {
            Kind::Train { segments, payload, without, sequence } => {
                let mut whole = packet(self.flow, true, segments * payload);
                whole.transport[4..8].copy_from_slice(&sequence.to_be_bytes());
                for (at, byte) in whole.transport[20..].iter_mut().enumerate() {
                    *byte = (at % 251) as u8;
                }
                let frame = whole.build();
                let parsed = weir_packet::parse(&frame).unwrap();
                let cut = Segmentation { gso_type: GSO_TCPV4, payload_bytes: *payload, segments: *segments };
                let segmenter = Segmenter::new(&frame, &parsed, &cut).unwrap();
                let pieces = segments_of(
                    if self.is_vxlan { segmenter } else { segmenter.leave_partial(&parsed) },
                    &frame,
                );
                let numbered = pieces.iter().enumerate().filter(|(number, _)| Some(*number) != *without);
                numbered.map(|(_, frame)| self.encapsulated(frame, InnerChecksum::Partial)).collect()
            }
            Kind::Single { is_tcp, payload, is_partial, ttl } => {
                vec![self.single(&packet(self.flow, *is_tcp, *payload).ttl(*ttl), *is_partial)]
            }
            Kind::Pieces { payload, bytes, identification, is_turned } => {
                let pieces = packet(self.flow, false, *payload).pieces(*identification, *bytes);
                let mut pieces: Vec<_> = pieces.iter().map(|piece| self.single(piece, false)).collect();
                if *is_turned {
                    pieces.reverse();
                }
                pieces
            }
            Kind::Broadcast => {
                let packet = packet(self.flow, false, 9).to(weir_model::MacAddr([0xff; 6]));
                vec![self.single(&packet, false)]
            }
            Kind::Nonsense(bytes) => {
                vec![Sent { bytes: bytes.clone(), ..self.single(&packet(self.flow, false, 0), false) }]
            }
            Kind::Cut(length) => {
                let mut sent = self.single(&packet(self.flow, true, 30), true);
                sent.bytes.truncate(*length);
                vec![sent]
            }
            Kind::Control => {
                let mut sent = self.single(&packet(self.flow, false, 0), false);
                sent.bytes[1] |= 0x80;
                vec![sent]
            }
        }
    }
}

fn segments_of(mut segmenter: Segmenter<'_>, frame: &[u8]) -> Vec<Vec<u8>> {
    let (mut header, mut all) = ([0; MAX_SEGMENT_HEADER_BYTES], Vec::new());
    while let Some(payload) = segmenter.next_into(&mut header) {
        all.push([&header[..segmenter.header_bytes()], &frame[payload]].concat());
    }
    all
}

fn kinds() -> impl Strategy<Value = Kind> {
    let train = (
        2_usize..20,
        prop_oneof![Just(100_usize), 60..400_usize],
        proptest::option::of(1_usize..20),
        any::<u32>(),
    )
        .prop_map(|(segments, payload, without, sequence)| Kind::Train {
            segments,
            payload,
            without,
            sequence,
        });
    let single = (
        any::<bool>(),
        prop_oneof![Just(30_usize), 0..300_usize],
        any::<bool>(),
        prop_oneof![Just(64_u8), Just(1)],
    )
        .prop_map(|(is_tcp, payload, is_partial, ttl)| Kind::Single { is_tcp, payload, is_partial, ttl });
    let pieces = (100_usize..300, prop_oneof![Just(64_usize), Just(104)], 0_u16..4, any::<bool>()).prop_map(
        |(payload, bytes, identification, is_turned)| Kind::Pieces {
            payload,
            bytes,
            identification,
            is_turned,
        },
    );
    prop_oneof![
        3 => train,
        8 => single,
        2 => pieces,
        1 => Just(Kind::Broadcast),
        1 => proptest::collection::vec(any::<u8>(), 0..80).prop_map(Kind::Nonsense),
        1 => (1_usize..100).prop_map(Kind::Cut),
        1 => Just(Kind::Control),
    ]
}

fn items() -> impl Strategy<Value = Item> {
    // A few senders, networks and flows are nearly all of it, so that there are neighbours of one kind.
    let often = |count: usize| prop_oneof![4 => Just(0), 1 => 0..count];
    let ecn = prop_oneof![8 => Just(0_u8), 1 => Just(1), 1 => Just(3)];
    let is_vxlan = prop_oneof![5 => Just(false), 1 => Just(true)];
    (often(SENDERS.len()), often(VNIS.len()), is_vxlan, ecn, 0..FLOWS, kinds())
        .prop_map(|(sender, vni, is_vxlan, ecn, flow, kind)| Item { sender, vni, is_vxlan, ecn, flow, kind })
}

/// Everything that can be told of what was done with datagrams. Whole packets: what was joined is cut again, and
/// checksums are complete.
#[derive(Debug, Default, PartialEq)]
struct Done {
    /// Of each port, by flow.
    at_ports: HashMap<(usize, Option<FlowKey>), Vec<Vec<u8>>>,
    /// Network and packet.
    relayed: Vec<(u32, Vec<u8>)>,
    misses: Vec<(String, Vec<u8>)>,
    /// Who was heard to take partial checksums.
    heard: BTreeSet<IpAddr>,
    counts: Vec<(String, u64, u64)>,
}

struct Rig {
    path: Path,
    shared: Arc<Shared>,
    wire: FrameWire,
    misses: (FrameProducer<Miss>, FrameConsumer<Miss>),
    endpoints: Vec<OwnedFd>,
    done: Done,
}

impl Rig {
    /// A switch that works on so many datagrams at once.
    fn new(batch: usize) -> Rig {
        let shared = testing::shared();
        shared.counters.prepare_rule(RULES);
        let (mut shadow, _) = Shadow::new(Arc::clone(&shared.store));
        fill(&mut shadow);
        let own_socket = || vec![OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap())];
        let counters = Arc::clone(&shared.counters);
        let transmit = Transmit::new(false, (own_socket(), PORTS[0]), (own_socket(), PORTS[1]), counters);
        let tables = shadow.publish().unwrap();
        let mut path = Path::new(Arc::clone(&shared), transmit, ip(OWN), PORTS, Peers::new(true), tables, 32);
        path.opened = Stage::new(batch);
        let hop = Hop::new(([2; 6], [4; 6]), ip(OWN), ip(RELAYED_TO), 64, PORTS, 1600).unwrap();
        let way = Receiver { way: Ok(Arc::new(hop)), used: Arc::default() };
        let hops: SharedHops =
            Arc::new(arc_swap::ArcSwap::from_pointee(Hops::new(1, [(ip(RELAYED_TO), way)])));
        let wire = FrameWire::default();
        path.set_wires(Some(Box::new(Wires::new(vec![Box::new(wire.clone())], hops, None))));
        let poller = Poller::new().unwrap();
        let endpoint = |number| {
            let (port, endpoint) = testing::device();
            path.ports.set(number, port, &poller);
            endpoint
        };
        let endpoints = [0, 1].map(endpoint).into();
        let misses = frame_ring(1024, 1 << 20);
        Rig { path, shared, wire, misses, endpoints, done: Done::default() }
    }

    /// Takes these datagrams in one look, or as few as it takes.
    fn take(&mut self, datagrams: &[Sent]) {
        self.wire.come(datagrams.iter().map(|sent| {
            let port = PORTS[usize::from(sent.format == Encapsulation::Vxlan)];
            outer_frame(SENDERS[sent.sender], OWN, port, sent.ecn, &sent.bytes)
        }));
        while self.path.serve_wires(&mut self.misses.0) > 0 {
            self.collect();
        }
        assert!(self.wire.is_empty());
    }

    /// Takes what came out.
    fn collect(&mut self) {
        let mut bytes = vec![0; 70_000];
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            while let Ok(read) = rustix::io::read(endpoint, &mut bytes[..]) {
                for frame in whole_packets(&bytes[..read]) {
                    let parsed = weir_packet::parse(&frame).unwrap();
                    let key = (parsed.fragment == Fragment::Whole).then(|| FlowKey::new(0, &parsed));
                    self.done.at_ports.entry((number, key)).or_default().push(frame);
                }
            }
        }
        for frame in self.wire.take_sent() {
            let outer = weir_packet::parse(&frame).unwrap();
            let datagram = &frame[outer.payload_offset..outer.payload_end];
            let tunnel = wire_format(Encapsulation::Geneve).decode(datagram).unwrap();
            let mut inner = datagram[tunnel.inner_offset..].to_vec();
            complete(&mut inner);
            self.done.relayed.push((tunnel.vni, inner));
        }
        while let Some((miss, frame)) = self.misses.1.peek() {
            let mut frame = frame.to_vec();
            complete(&mut frame);
            self.done.misses.push((format!("{:?} {:?} {:?}", miss.ingress, miss.key, miss.reason), frame));
            self.shared.load.done(miss.class);
            self.misses.1.pop();
        }
    }

    /// All that was done.
    fn end(mut self) -> Done {
        self.collect();
        self.done.heard = self.path.peers.carried().into_iter().map(|(address, _)| address).collect();
        let counters = &self.shared.counters;
        let mut count = |name: String, packets, bytes| self.done.counts.push((name, packets, bytes));
        for reason in EngineDrop::ALL {
            let pair = counters.dropped(*reason);
            count(format!("{reason:?}"), pair.packets.get(), pair.bytes.get());
        }
        for reason in weir_packet::PacketError::ALL {
            let pair = counters.parse_error(*reason);
            count(format!("{reason:?}"), pair.packets.get(), pair.bytes.get());
        }
        for number in (0..2).chain([9]) {
            let pair = &counters.port(number).tx;
            count(format!("port {number}"), pair.packets.get(), pair.bytes.get());
        }
        for number in RULES..RULES + 5 {
            let pair = counters.rule(number).unwrap();
            count(format!("rule {number}"), pair.packets.get(), pair.bytes.get());
        }
        for slot in 0..self.shared.store.slots() as u32 {
            let flow = self.shared.store.counters(slot);
            count(format!("flow {slot}"), flow.packets().into(), flow.bytes());
        }
        use EngineEvent::{Fragments, Misses, UnderlayDatagrams, UnderlaySegments};
        for event in [Fragments, Misses, UnderlayDatagrams, UnderlaySegments] {
            count(format!("{event:?}"), counters.event(event).get(), 0);
        }
        self.done
    }
}

/// The flows of all senders and networks but the last of each, which nobody knows.
fn fill(shadow: &mut Shadow) {
    let mut zone = UNDERLAY_ZONES;
    for (sender, vni, format) in SENDERS[..2].iter().flat_map(|sender| {
        VNIS[..2].iter().flat_map(move |vni| {
            [Encapsulation::Geneve, Encapsulation::Vxlan].map(|format| (*sender, *vni, format))
        })
    }) {
        zone += 1;
        let half = weir_packet::encap::Half::Unsaid;
        shadow.set_zone(ZoneKey { sender: ip(sender).into(), vni, format, half }, zone);
        for (flow, is_tcp) in (0..FLOWS).flat_map(|flow| [(flow, false), (flow, true)]) {
            let Some(action) = action_of(flow) else { continue };
            let parsed = weir_packet::parse(&packet(flow, is_tcp, 4).build()).unwrap();
            let action = CompiledAction::new(&action).unwrap();
            shadow.insert(FlowKey::new(zone, &parsed), action, 0).unwrap();
        }
    }
}

/// What a read of a port gave: each packet for itself, with its checksum.
fn whole_packets(read: &[u8]) -> Vec<Vec<u8>> {
    let (header, frame) = read.split_at(HEADER_BYTES);
    let virtio = VirtioNetHeader::decode(header, HEADER_BYTES).unwrap();
    let checked = Checked::new(frame, &virtio).unwrap();
    if let Offload::Segment(cut) = checked.offload {
        let mut all = segments_of(Segmenter::new(frame, &checked.parsed, &cut).unwrap(), frame);
        all.iter_mut().for_each(|frame| complete(frame));
        return all;
    }
    let mut frame = frame.to_vec();
    complete(&mut frame);
    vec![frame]
}

/// Writes the transport checksum, of which zero may be written in two ways.
fn complete(frame: &mut [u8]) {
    if let Ok(parsed) = weir_packet::parse(frame)
        && parsed.fragment == Fragment::Whole
    {
        let _ = checksum::fill_transport(frame, &parsed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Whatever comes in at once, and however many are worked on at once, becomes what it would become alone.
    #[test]
    fn at_once_is_one_by_one(
        items in proptest::collection::vec(items(), 1..40),
        batch in prop_oneof![Just(BATCH_MAX), 1..=BATCH_MAX],
    ) {
        let datagrams: Vec<Sent> = items.iter().flat_map(Item::datagrams).collect();
        let (mut at_once, mut alone) = (Rig::new(batch), Rig::new(1));
        at_once.take(&datagrams);
        for datagram in &datagrams {
            alone.take(std::slice::from_ref(datagram));
        }
        let (at_once, alone) = (at_once.end(), alone.end());
        for (one, other) in at_once.counts.iter().zip(&alone.counts) {
            prop_assert_eq!(one, other);
        }
        prop_assert_eq!(&at_once.misses, &alone.misses);
        prop_assert_eq!(&at_once.relayed, &alone.relayed);
        for (flow, frames) in &alone.at_ports {
            prop_assert_eq!(at_once.at_ports.get(flow), Some(frames));
        }
        prop_assert_eq!(at_once, alone);
    }
}

/// The property says something only of what comes to pass: each fate is met by some datagram, and trains are followed.
#[test]
fn every_fate_is_met() {
    let mut rig = Rig::new(BATCH_MAX);
    let item = |flow, kind| Item { sender: 0, vni: 0, is_vxlan: false, ecn: 0, flow, kind };
    let train = || Kind::Train { segments: 10, payload: 100, without: None, sequence: 1 };
    for flow in 0..FLOWS {
        rig.take(&item(flow, train()).datagrams());
    }
    let super_frames = rig.shared.counters.event(EngineEvent::SuperFrames).get();
    assert!(super_frames >= 3, "{super_frames}");
    let done = rig.end();
    assert_eq!(done.heard, BTreeSet::from([ip(SENDERS[0])]));
    assert_eq!(done.relayed.len(), 2 * 10);
    assert_eq!(done.misses.len(), 10);
    let at_port = |port| {
        done.at_ports.iter().filter(|(at, _)| at.0 == port).map(|(_, frames)| frames.len()).sum::<usize>()
    };
    assert_eq!([0, 1].map(at_port), [20, 20]);
    let absent = done.counts.iter().find(|(name, ..)| name == "PortDown").unwrap();
    assert_eq!(absent.1, 10);
}
