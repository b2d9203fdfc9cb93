use super::*;
use crate::build::Link;
use crate::coalesce::{Checksums, CoalesceConfig, Coalescer, Output, Part, Place};
use crate::headers::tcp_flags;
use crate::parse;
use crate::segment::Segmenter;
use crate::virtio::{
    GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HEADER_BYTES, MAX_SEGMENT_HEADER_BYTES, Offload, Segmentation,
    VirtioNetHeader,
};
use proptest::prelude::*;

const TUNNEL: [u8; 24] = [7; 24];
const SEGMENT_BYTES: usize = 100;

/// The datagrams of a super-frame of 10 segments and a short one, with partial checksums.
fn datagrams(v6: bool, udp: bool) -> Vec<Vec<u8>> {
    let link = Link { source: [6; 6], destination: [2; 6], vlan_tci: None };
    let address = |last| if v6 { format!("fd00::{last}") } else { format!("10.0.0.{last}") };
    let address = |last| address(last).parse::<std::net::IpAddr>().unwrap().into();
    let mut frame = vec![0; 2000];
    let payload: Vec<u8> = (0..10 * SEGMENT_BYTES as u32 + 30).map(|byte| byte as u8).collect();
    let length =
        crate::build::udp_datagram(&mut frame, &link, (address(1), 1), (address(2), 2), &payload).unwrap();
    frame.truncate(length);
    let mut parsed = parse(&frame).unwrap();
    let mut gso_type = GSO_UDP_L4;
    if !udp {
        frame = to_tcp(&frame, &parsed, &payload);
        parsed = parse(&frame).unwrap();
        gso_type = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
    }
    // So that the identification and its checksum roll over inside the train.
    if !v6 {
        put16(&mut frame, parsed.l3_offset + 4, 0xfffa);
        checksum::fill_network(&mut frame, &parsed).unwrap();
        parsed = parse(&frame).unwrap();
    }
    let cut = Segmentation { gso_type, payload_bytes: SEGMENT_BYTES, segments: 11 };
    let mut segmenter = Segmenter::new(&frame, &parsed, &cut).unwrap().leave_partial(&parsed);
    let mut out = Vec::new();
    let mut header = vec![0; segmenter.header_bytes()];
    while let Some(range) = segmenter.next_into(&mut header) {
        out.push([&TUNNEL[..], &header, &frame[range]].concat());
    }
    out
}

/// The same payload over TCP, sequence near its end.
fn to_tcp(frame: &[u8], parsed: &Parsed, payload: &[u8]) -> Vec<u8> {
    let mut tcp = [0; 20];
    put32(&mut tcp, 4, u32::MAX - 300);
    tcp[12] = 5 << 4;
    tcp[13] = tcp_flags::ACK;
    let mut out = [&frame[..parsed.l4_offset], &tcp, payload].concat();
    let l3 = parsed.l3_offset;
    if parsed.is_v6() {
        out[l3 + 6] = crate::headers::PROTOCOL_TCP;
        put16(&mut out, l3 + 4, (20 + payload.len()) as u16);
    } else {
        out[l3 + 9] = crate::headers::PROTOCOL_TCP;
        put16(&mut out, l3 + 2, (40 + payload.len()) as u16);
    }
    out
}

fn train_of(datagram: &[u8]) -> Option<Train> {
    Train::new(datagram, TUNNEL.len(), &parse(&datagram[TUNNEL.len()..]).unwrap())
}

#[test]
fn all_equal_segments_of_a_super_frame_are_one_train() {
    for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let datagrams = datagrams(v6, udp);
        assert_eq!(datagrams.len(), 11);
        let mut train = train_of(&datagrams[0]).unwrap();
        assert_eq!(train.header_bytes() + SEGMENT_BYTES, datagrams[0].len());
        for (number, datagram) in datagrams[1..10].iter().enumerate() {
            assert!(train.takes(datagram), "{v6} {udp} {number}");
        }
        assert!(!train.takes(&datagrams[10]), "the last is shorter");
    }
}

#[test]
fn a_difference_in_any_bit_of_the_header_ends_the_train() {
    for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
        let datagrams = datagrams(v6, udp);
        let first = train_of(&datagrams[0]).unwrap();
        for bit in 0..first.header_bytes() * 8 {
            let mut next = datagrams[1].clone();
            next[bit / 8] ^= 1 << (bit % 8);
            let mut train = first;
            assert!(!train.takes(&next), "{v6} {udp} {bit}");
        }
    }
}

#[test]
fn a_lost_or_repeated_segment_ends_the_train() {
    let datagrams = datagrams(false, false);
    let first = train_of(&datagrams[0]).unwrap();
    for other in [0, 2, 9] {
        let mut train = first;
        assert!(!train.takes(&datagrams[other]), "{other}");
    }
}

#[test]
fn what_cannot_be_foretold_begins_no_train() {
    let whole = datagrams(false, false).remove(0);
    let mut fragment = whole.clone();
    fragment[TUNNEL.len() + 14 + 6] |= 0x20;
    let mut other = whole.clone();
    other[TUNNEL.len() + 14 + 9] = 132;
    let mut padded = whole.clone();
    padded.push(0);
    let mut empty = whole[..TUNNEL.len() + 54].to_vec();
    put16(&mut empty, TUNNEL.len() + 14 + 2, 40);
    assert!(train_of(&whole).is_some());
    for datagram in [fragment, other, padded, empty] {
        assert!(train_of(&datagram).is_none());
    }
    let parsed = parse(&whole[TUNNEL.len()..]).unwrap();
    let long = [&[0; MAX_TRAIN_HEADER_BYTES][..], &whole].concat();
    assert!(Train::new(&long, TUNNEL.len() + MAX_TRAIN_HEADER_BYTES, &parsed).is_none());
}

/// Takes datagrams as a receiver does: the first of a train is parsed and pushed, those that the train takes extend it.
/// Returns what leaves, cut into segments again, and how many datagrams were taken by trains.
fn receive(datagrams: &[Vec<u8>]) -> (Vec<Vec<u8>>, usize) {
    let mut coalescer = Coalescer::new(CoalesceConfig { join_udp: true, ..CoalesceConfig::default() });
    let mut left = Vec::new();
    let mut sink = |output: Output<'_>| {
        let virtio = VirtioNetHeader::decode(output.header, HEADER_BYTES).unwrap();
        let mut frame = output.header[HEADER_BYTES..].to_vec();
        for part in output.parts {
            let start = part.start as usize;
            frame.extend_from_slice(&datagrams[part.buffer as usize][start..start + part.length as usize]);
        }
        let parsed = parse(&frame).unwrap();
        match virtio.validate(frame.len(), &parsed).unwrap() {
            Offload::Segment(cut) => {
                let mut segmenter = Segmenter::new(&frame, &parsed, &cut).unwrap().leave_partial(&parsed);
                let mut header = [0; MAX_SEGMENT_HEADER_BYTES];
                let header_bytes = segmenter.header_bytes();
                while let Some(range) = segmenter.next_into(&mut header) {
                    left.push([&header[..header_bytes], &frame[range]].concat());
                }
            }
            Offload::Checksum { .. } => left.push(frame),
            Offload::Complete => panic!("the checksum is partial"),
        }
    };
    let (mut train, mut taken): (Option<Train>, usize) = (None, 0);
    for (buffer, datagram) in datagrams.iter().enumerate() {
        if let Some(train) = &mut train
            && train.takes(datagram)
        {
            let start = train.header_bytes() as u32;
            let length = (datagram.len() - train.header_bytes()) as u32;
            if coalescer.extend(Part { buffer: buffer as u32, start, length }) {
                taken += 1;
                continue;
            }
        }
        let frame = &datagram[TUNNEL.len()..];
        let parsed = parse(frame).unwrap();
        let offset = checksum::field_offset(&parsed).unwrap() - parsed.l4_offset;
        let checksums = Checksums::Partial { start: parsed.l4_offset as u16, offset: offset as u16 };
        let place = Place { port: 0, buffer: buffer as u32, start: TUNNEL.len() as u32, checksums };
        coalescer.push(place, frame, &parsed, &mut sink);
        train = train_of(datagram).filter(|_| coalescer.holds_last());
    }
    coalescer.flush(&mut sink);
    (left, taken)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Whatever is lost, repeated or late, of two flows whose datagrams mix: what leaves is what came, segment by segment and
    /// byte by byte, in the order in which it came within each flow.
    #[test]
    fn lost_and_late_segments_never_yield_other_bytes(
        kind in (any::<bool>(), any::<bool>()),
        order in proptest::collection::vec((0_usize..11, any::<bool>()), 0..40),
        runs in any::<bool>(),
    ) {
        let one = datagrams(kind.0, kind.1);
        // The other flow differs in its source port.
        let other: Vec<Vec<u8>> = one.iter().map(|datagram| {
            let mut datagram = datagram.clone();
            let port = TUNNEL.len() + parse(&datagram[TUNNEL.len()..]).unwrap().l4_offset;
            put16(&mut datagram, port, 9);
            datagram
        }).collect();
        // Half of the time whole runs, so that trains form; else any segment behind any other.
        let came: Vec<Vec<u8>> = order.iter().flat_map(|(number, second)| {
            let flow = if *second { &other } else { &one };
            let end = if runs { (number + 5).min(flow.len()) } else { number + 1 };
            flow[*number..end].to_vec()
        }).collect();
        let (left, taken) = receive(&came);
        prop_assert!(!runs || order.iter().all(|(number, _)| *number > 7) || taken > 0);
        let of = |frames: &[Vec<u8>], skip: usize, second: bool| -> Vec<Vec<u8>> {
            let wanted = frames.iter().map(|frame| frame[skip..].to_vec())
                .filter(|frame| (parse(frame).unwrap().source_port == 9) == second);
            // Datagrams that must not be fragmented may get other identifications (RFC 6864): they have no sequence.
            wanted.map(|mut frame| {
                if kind == (false, true) {
                    put16(&mut frame, 14 + IPV4_IDENTIFICATION, 0);
                    put16(&mut frame, 14 + IPV4_CHECKSUM, 0);
                }
                frame
            }).collect()
        };
        for second in [false, true] {
            prop_assert_eq!(of(&left, 0, second), of(&came, TUNNEL.len(), second));
        }
    }
}
