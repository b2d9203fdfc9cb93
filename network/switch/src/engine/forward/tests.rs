use super::plain::{Tally, alter_plain, encapsulate_plain, judge_plain, way_of};
use super::*;
use crate::flow::{Action, Hop, NO_CONNECTION, Nat};
use crate::flowtable::Shadow;
use crate::flowtable::tunnel::Tunnel;
use std::net::IpAddr;
use std::sync::Arc;
use weir_model::MacAddr;
use weir_model::resource::Encapsulation;
use weir_packet::build::{Link, udp_datagram};
use weir_packet::encap::{InnerChecksum, MAX_ENCAP_BYTES};
use weir_packet::headers::tcp_flags::ACK;
use weir_packet::segment::Segmenter;
use weir_packet::virtio::HEADER_BYTES;
use weir_packet::{Plain, checksum};

fn action() -> Action {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    Action {
        hop: Hop::External,
        ethernet: Some((MacAddr([2; 6]), MacAddr([4; 6]))),
        nat: Some(Nat { source: Some((ip("203.0.113.7"), 4000)), destination: None }),
        routed: true,
        mtu: 1500,
        mss_max: 1200,
        counter: 0,
        connection: NO_CONNECTION,
        idle_ms: 1000,
        hangs: Default::default(),
    }
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let link = Link { source: [6; 6], destination: [2, 0, 0, 0, 0, 1], vlan_tci: None };
    let mut out = vec![0; 2000];
    let from = ("10.0.0.1".parse::<IpAddr>().unwrap().into(), 1000);
    let to = ("198.51.100.2".parse::<IpAddr>().unwrap().into(), 53);
    let length = udp_datagram(&mut out, &link, from, to, payload).unwrap();
    out.truncate(length);
    out
}

struct World {
    store: Arc<FlowStore>,
    tables: Box<Tables>,
    counters: Counters,
}

fn world(action: &Action, key: FlowKey) -> World {
    let store = Arc::new(FlowStore::new([5, 6]));
    let (mut shadow, _) = Shadow::new(Arc::clone(&store));
    shadow.insert(key, CompiledAction::new(action).unwrap(), 0).unwrap();
    let tables = shadow.publish().unwrap();
    let counters = Counters::default();
    counters.prepare_rule(action.counter);
    World { store, tables, counters }
}

impl World {
    fn judge(&self, zone: Option<u32>, packet: &Checked, bytes: usize) -> Verdict<'_> {
        let (tables, store, counters) = (&*self.tables, &*self.store, &self.counters);
        let lookup = Lookup { tables, store, counters, now_ms: 9 };
        let mut last = LastFlow::default();
        let key = FlowKey::new(zone.unwrap_or_default(), &packet.parsed);
        // The second look-up is the remembered one, and must say the same.
        let first = judge(&lookup, &mut last, zone, &key, packet, bytes);
        let kind = std::mem::discriminant(&first);
        let rule = counters.rule(0).map(|pair| (pair.packets.get(), pair.bytes.get()));
        assert_eq!(kind, std::mem::discriminant(&judge(&lookup, &mut last, zone, &key, packet, bytes)));
        if let (Some(pair), Some((packets, bytes))) = (counters.rule(0), rule) {
            pair.packets.set(packets);
            pair.bytes.set(bytes);
        }
        first
    }
}

#[test]
fn a_known_packet_is_counted_and_changed_right() {
    let mut frame = frame(b"hello");
    let mut packet = Checked::new(&frame, &VirtioNetHeader::default()).unwrap();
    let world = world(&action(), FlowKey::new(3, &packet.parsed));
    let Verdict::Forward { action, .. } = world.judge(Some(3), &packet, frame.len()) else { panic!() };
    alter(&mut frame, &mut packet, action).unwrap();
    let after = weir_packet::parse(&frame).unwrap();
    assert_eq!(checksum::verify(&frame, &after), Ok(()));
    assert_eq!((after.source.to_string().as_str(), after.source_port, after.ttl), ("203.0.113.7", 4000, 63));
    assert_eq!((after.destination_mac, after.source_mac), ([2; 6], [4; 6]));
    let rule = world.counters.rule(0).unwrap();
    assert_eq!((rule.packets.get(), rule.bytes.get()), (1, frame.len() as u64));
}

#[test]
fn what_the_flow_does_not_cover_misses_with_its_reason() {
    let mut small = action();
    small.mtu = 100;
    let fits = frame(&[0; 20]);
    let packet = Checked::new(&fits, &VirtioNetHeader::default()).unwrap();
    let world = world(&small, FlowKey::new(3, &packet.parsed));
    let reason = |zone, frame: &[u8]| {
        let packet = Checked::new(frame, &VirtioNetHeader::default()).unwrap();
        match world.judge(zone, &packet, frame.len()) {
            Verdict::Miss(reason, key) => {
                assert_eq!(key.zone, 0);
                Some(reason)
            }
            _ => None,
        }
    };
    assert_eq!(reason(Some(3), &fits), None);
    assert_eq!(reason(Some(4), &fits), Some(MissReason::NoFlow));
    assert_eq!(reason(None, &fits), Some(MissReason::NoFlow));
    assert_eq!(reason(Some(3), &frame(&[0; 200])), Some(MissReason::TooBig(100)));
    let mut last_hop = fits.clone();
    last_hop[22] = 1;
    assert_eq!(reason(Some(3), &last_hop), Some(MissReason::TtlExpired));
    let mut group = fits;
    group[0] |= 1;
    assert_eq!(reason(Some(3), &group), Some(MissReason::Special));
}

#[test]
fn segments_are_measured_and_not_the_whole() {
    let mut big = action();
    big.nat = None;
    let payload = [7; 1900];
    let bytes = frame(&payload);
    let parsed = weir_packet::parse(&bytes).unwrap();
    let virtio = |gso_size| VirtioNetHeader {
        flags: weir_packet::virtio::FLAG_NEEDS_CSUM,
        gso_type: weir_packet::virtio::GSO_UDP_L4,
        gso_size,
        csum_start: parsed.l4_offset as u16,
        csum_offset: 6,
        ..VirtioNetHeader::default()
    };
    let world = world(&big, FlowKey::new(3, &parsed));
    let packet = Checked::new(&bytes, &virtio(600)).unwrap();
    assert!(matches!(world.judge(Some(3), &packet, bytes.len()), Verdict::Forward { .. }));
    assert_eq!(world.counters.rule(0).unwrap().packets.get(), 4);
    let packet = Checked::new(&bytes, &virtio(1500)).unwrap();
    let verdict = world.judge(Some(3), &packet, bytes.len());
    assert!(matches!(verdict, Verdict::Miss(MissReason::TooBig(1500), _)));
}

/// A SYN or a segment that offers an MSS of 1,460.
fn tcp(flags: u8) -> Vec<u8> {
    let mut frame = frame(&[0; 16]);
    // The datagram's 8 bytes and 16 more are room for a header with one option.
    frame[23] = 6;
    frame[38..58].copy_from_slice(&[0, 0, 0, 7, 0, 0, 0, 9, 0x60, flags, 8, 0, 0, 0, 0, 0, 2, 4, 5, 180]);
    let parsed = weir_packet::parse(&frame).unwrap();
    checksum::fill_partial(&mut frame, &parsed).unwrap();
    checksum::complete(&mut frame, parsed.l4_offset, checksum::field_offset(&parsed).unwrap(), parsed.end)
        .unwrap();
    frame
}

/// What becomes of a packet: its bytes and the port or the way to another switch, if it goes to one and nothing else is to be done.
type Went = (Vec<u8>, Result<u16, Tunnel>);

fn long_way(world: &World, frame: &[u8]) -> Option<Went> {
    let mut packet = Checked::new(frame, &VirtioNetHeader::default()).unwrap();
    let Verdict::Forward { action, .. } = world.judge(Some(3), &packet, frame.len()) else { return None };
    let mut frame = frame.to_vec();
    alter(&mut frame, &mut packet, action).unwrap();
    match action.hop {
        CompiledHop::Port(port) => Some((frame, Ok(port))),
        CompiledHop::Underlay(tunnel) => {
            Some(([&tunnel.header(InnerChecksum::Accepts)[..], &frame].concat(), Err(tunnel)))
        }
        CompiledHop::External | CompiledHop::Drop => None,
    }
}

fn short_way(world: &World, frame: &[u8]) -> Option<Went> {
    let (tables, store, counters) = (&*world.tables, &*world.store, &world.counters);
    let lookup = Lookup { tables, store, counters, now_ms: 9 };
    let mut plain = Plain::new(3, frame).unwrap();
    let near = tables.prefetch_flow(store, store.hash(&plain.key), true);
    let (flow, brief) = judge_plain(&lookup, near, &plain)?;
    Tally::new(&lookup).count(flow, brief, &plain, frame.len());
    if let Some(way) = way_of(&lookup, brief) {
        let mut buffer = [&[0; MAX_ENCAP_BYTES], frame].concat();
        let place = (MAX_ENCAP_BYTES, frame.len());
        let from =
            encapsulate_plain(&mut buffer, place, &mut plain, brief, way.header(InnerChecksum::Accepts))?;
        return Some((buffer[from..].to_vec(), Err(way.tunnel)));
    }
    let mut frame = frame.to_vec();
    let (ethernet, rest) = alter_plain(&mut frame, &mut plain, brief)?;
    Some(([&ethernet[..], rest].concat(), Ok(brief.port())))
}

#[test]
fn the_short_way_leads_where_the_long_one_does_or_is_not_gone() {
    use weir_packet::headers::tcp_flags::{ACK, SYN};
    let to = |format| Hop::Underlay {
        receiver: [192, 0, 2, 9].into(),
        vni: 77,
        format,
        token: 0x0102_0304_0506_0708,
        half: weir_packet::encap::Half::Mutual,
        by_gateway: false,
    };
    let hops = [Hop::Port(7), Hop::External, Hop::Drop, to(Encapsulation::Geneve), to(Encapsulation::Vxlan)];
    let (mut gone, mut left) = (0, 0);
    for variant in 0..5 * 2 * 2 * 2 * 2 * 3 {
        let mut rest = variant;
        let mut choose = |count: usize| {
            let chosen = rest % count;
            rest /= count;
            chosen
        };
        let mut of = action();
        of.hop = hops[choose(5)].clone();
        of.nat = of.nat.filter(|_| choose(2) == 1);
        of.routed = choose(2) == 1;
        of.mtu = [50, 1500][choose(2)];
        of.mss_max = [0, 1200][choose(2)];
        of.ethernet = of.ethernet.filter(|_| choose(3) > 0);
        for (frame, ttl) in [frame(&[1; 18]), frame(&[1; 40]), tcp(SYN), tcp(ACK)]
            .into_iter()
            .flat_map(|frame| [1, 2, 64].map(|ttl| (frame.clone(), ttl)))
        {
            let mut frame = frame;
            let mut parsed = weir_packet::parse(&frame).unwrap();
            while parsed.ttl > ttl {
                weir_packet::rewrite::decrement_ttl(&mut frame, &mut parsed).unwrap();
            }
            let key = FlowKey::new(3, &parsed);
            let (short, long) = (world(&of, key), world(&of, key));
            let Some(went) = short_way(&short, &frame) else {
                left += 1;
                assert_eq!(short.counters.rule(0).unwrap().packets.get(), 0, "nothing has become of it");
                continue;
            };
            gone += 1;
            assert_eq!(Some(went), long_way(&long, &frame), "{of:?}");
            let counted = |world: &World| {
                let rule = world.counters.rule(0).unwrap();
                (rule.packets.get(), rule.bytes.get())
            };
            assert_eq!(counted(&short), counted(&long));
            assert!(matches!(of.hop, Hop::Port(7) | Hop::Underlay { .. }) && of.nat.is_none());
        }
    }
    assert!(gone > 100 && left > gone, "{gone} went, {left} did not");
}

#[test]
fn plain_packets_are_counted_under_their_flows_and_rules_whatever_follows_what() {
    let store = Arc::new(FlowStore::new([5, 6]));
    let (mut shadow, _) = Shadow::new(Arc::clone(&store));
    let counters = Counters::default();
    let plains: Vec<Plain> = (0..4_u16)
        .map(|flow| {
            let mut frame = tcp(ACK | 1 << flow);
            frame[34..36].copy_from_slice(&flow.to_be_bytes());
            Plain::new(3, &frame).unwrap()
        })
        .collect();
    for (flow, plain) in plains.iter().enumerate() {
        let action =
            Action { hop: Hop::Port(7), nat: None, mss_max: 0, counter: flow as u32 / 2, ..action() };
        shadow.insert(plain.key, CompiledAction::new(&action).unwrap(), 0).unwrap();
    }
    let tables = shadow.publish().unwrap();
    let lookup = Lookup { tables: &tables, store: &store, counters: &counters, now_ms: 9 };
    let order = [3, 3, 0, 1, 0, 2, 2, 2, 1, 3];
    {
        let mut tally = Tally::new(&lookup);
        for flow in order {
            let near = tables.prefetch_flow(&store, store.hash(&plains[flow].key), true);
            let (found, brief) = judge_plain(&lookup, near, &plains[flow]).unwrap();
            tally.count(found, brief, &plains[flow], 100 + flow);
        }
    }
    for (flow, plain) in plains.iter().enumerate() {
        let (slot, _) = tables.find(&store, store.hash(&plain.key), &plain.key).unwrap();
        let (seen, times) = (store.counters(slot), order.iter().filter(|of| **of == flow).count());
        assert_eq!(seen.packets() as usize, times);
        assert_eq!(seen.bytes() as usize, times * (100 + flow));
        assert_eq!((seen.last_seen_ms(9), seen.tcp_flags()), (9, ACK | 1 << flow));
    }
    let rules = [0, 1].map(|rule| counters.rule(rule).unwrap());
    assert_eq!(rules.map(|rule| (rule.packets.get(), rule.bytes.get())), [(4, 402), (6, 615)]);
}

/// An endpoint may write anything into its device.
#[test]
fn any_frame_with_any_virtio_header_is_taken_or_refused() {
    let compiled = CompiledAction::new(&action()).unwrap();
    let real = frame(&[1; 64]);
    bolero::check!().for_each(|bytes: &[u8]| {
        let Ok(virtio) = VirtioNetHeader::decode(bytes, HEADER_BYTES) else { return };
        // Half of the runs change a real frame, for more depth.
        let mut frame = bytes[HEADER_BYTES..].to_vec();
        if bytes[0] & 0x80 != 0 {
            let changes = std::mem::replace(&mut frame, real.clone());
            for change in changes.chunks_exact(2) {
                let at = usize::from(change[0]) % frame.len();
                frame[at] ^= change[1];
            }
        }
        let virtio = VirtioNetHeader { flags: virtio.flags & 3, ..virtio };
        let Ok(mut packet) = Checked::new(&frame, &virtio) else { return };
        let (packets, weight) = packet.weight(frame.len());
        assert!(packets > 0 && weight >= frame.len() as u64);
        let _ = alter(&mut frame, &mut packet, &compiled);
        if let Offload::Segment(cut) = packet.offload
            && let Ok(mut segmenter) = Segmenter::new(&frame, &packet.parsed, &cut)
        {
            let mut header = [0; 256];
            while segmenter.next_into(&mut header).is_some() {}
        }
    });
}
