use super::*;
use crate::build::Link;
use crate::headers::tcp_flags;
use crate::parse;
use crate::segment::Segmenter;
use crate::virtio::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, Segmentation};

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
