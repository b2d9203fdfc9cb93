use super::*;
use crate::bytes::{get16, put16};
use crate::checksum::{fill_partial, verify};
use crate::fixtures::{self, bytes};
use crate::key::FlowKey;
use crate::parse;

fn read(hex: &str) -> (Vec<u8>, Parsed) {
    let frame = bytes(hex);
    let parsed = parse(&frame).unwrap();
    (frame, parsed)
}

fn endpoint(is_v6: bool, last: u8, port: Option<u16>) -> Option<Endpoint> {
    let address = if is_v6 {
        IpAddress::v6([0xfd, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, last])
    } else {
        IpAddress::v4([192, 168, 77, last])
    };
    Some(Endpoint { address, port })
}

#[test]
fn translates_there_and_back_with_right_checksums() {
    for hex in [
        fixtures::TCP_SYN,
        fixtures::TCP_DATA,
        fixtures::UDP_V4,
        fixtures::UDP_V6,
        fixtures::ICMP_ECHO_REQUEST,
        fixtures::FRAGMENT_V4_LATER,
        fixtures::FRAGMENT_V6_LATER,
    ] {
        let (mut frame, mut parsed) = read(hex);
        let (before, key) = (frame.clone(), FlowKey::new(1, &parsed));
        let back = Rewrite {
            source: Some(Endpoint {
                address: parsed.source,
                port: Some(if parsed.is_icmp_echo() { parsed.icmp_id } else { parsed.source_port }),
            }),
            destination: Some(Endpoint { address: parsed.destination, port: Some(parsed.destination_port) }),
        };
        let there = Rewrite {
            source: endpoint(parsed.is_v6(), 1, Some(40_000)),
            destination: endpoint(parsed.is_v6(), 2, Some(50_000)),
        };
        rewrite(&mut frame, &mut parsed, &there, ChecksumState::Full).unwrap();
        assert_eq!(parse(&frame), Ok(parsed), "the description stays true");
        verify(&frame, &parsed).unwrap();
        assert_ne!(FlowKey::new(1, &parsed), key);
        rewrite(&mut frame, &mut parsed, &back, ChecksumState::Full).unwrap();
        assert_eq!(frame, before);
    }
}

#[test]
fn keeps_an_absent_and_a_partial_checksum_what_they_are() {
    let change = Rewrite { source: endpoint(false, 1, Some(1)), destination: endpoint(false, 2, Some(2)) };
    let (mut frame, mut parsed) = read(fixtures::UDP_V4);
    put16(&mut frame, 40, 0);
    rewrite(&mut frame, &mut parsed, &change, ChecksumState::Full).unwrap();
    assert_eq!(get16(&frame, 40), 0);
    for hex in [fixtures::UDP_V4, fixtures::TCP_DATA] {
        let (mut frame, mut parsed) = read(hex);
        fill_partial(&mut frame, &parsed).unwrap();
        rewrite(&mut frame, &mut parsed, &change, ChecksumState::Partial).unwrap();
        let field = field_offset(&parsed).unwrap();
        let partial = get16(&frame, field);
        fill_partial(&mut frame, &parsed).unwrap();
        assert_eq!(get16(&frame, field), partial);
        crate::checksum::complete(&mut frame, parsed.l4_offset, field, parsed.end).unwrap();
        verify(&frame, &parsed).unwrap();
    }
}

#[test]
fn refuses_other_families_and_absent_ports_untouched() {
    let fails = |hex: &str, change: Rewrite| {
        let (mut frame, mut parsed) = read(hex);
        let before = frame.clone();
        let result = rewrite(&mut frame, &mut parsed, &change, ChecksumState::Full);
        assert_eq!((result, frame), (Err(PacketError::NotTranslatable), before));
    };
    fails(fixtures::UDP_V4, Rewrite { source: endpoint(true, 1, None), destination: None });
    fails(fixtures::UDP_V6, Rewrite { source: None, destination: endpoint(false, 1, None) });
    fails(
        fixtures::ICMP_PORT_UNREACHABLE,
        Rewrite { source: endpoint(false, 1, Some(5)), destination: None },
    );
}

#[test]
fn translates_the_packet_inside_an_error() {
    for (hex, is_v6) in [(fixtures::ICMP_PORT_UNREACHABLE, false), (fixtures::ICMPV6_PORT_UNREACHABLE, true)]
    {
        let (mut frame, mut parsed) = read(hex);
        let before = frame.clone();
        let mut embedded = parse_embedded(&frame, &parsed).unwrap();
        assert_eq!((embedded.destination_port, embedded.destination), (9, parsed.source));
        let back = Rewrite {
            source: Some(Endpoint { address: embedded.source, port: Some(embedded.source_port) }),
            destination: Some(Endpoint {
                address: embedded.destination,
                port: Some(embedded.destination_port),
            }),
        };
        let there = Rewrite { source: endpoint(is_v6, 1, Some(7)), destination: endpoint(is_v6, 2, Some(8)) };
        rewrite_embedded(&mut frame, &parsed, &mut embedded, &there).unwrap();
        assert_eq!(parse_embedded(&frame, &parsed), Ok(embedded));
        verify(&frame, &parsed).unwrap();
        // The embedded packet is whole here, so its own checksums can be checked too.
        let inner = [&frame[..12], &frame[12..14], &frame[embedded.l3_offset..]].concat();
        let inner_parsed = parse(&inner).unwrap();
        verify(&inner, &inner_parsed).unwrap();
        assert_eq!(FlowKey::new(3, &inner_parsed), embedded.key(3, &parsed));
        let outer = Rewrite { source: None, destination: endpoint(is_v6, 1, None) };
        rewrite(&mut frame, &mut parsed, &outer, ChecksumState::Full).unwrap();
        verify(&frame, &parsed).unwrap();
        let outer = Rewrite {
            source: None,
            destination: Some(Endpoint { address: back.source.unwrap().address, port: None }),
        };
        rewrite(&mut frame, &mut parsed, &outer, ChecksumState::Full).unwrap();
        rewrite_embedded(&mut frame, &parsed, &mut embedded, &back).unwrap();
        assert_eq!(frame, before);
    }
}

#[test]
fn the_packet_inside_an_error_may_be_a_fragment() {
    let (frame, parsed) = read(fixtures::ICMPV6_PORT_UNREACHABLE);
    let whole = parse_embedded(&frame, &parsed).unwrap();
    let l4 = whole.l4_offset;
    for (place, is_later) in [(1, false), (9, true)] {
        let header = [whole.protocol, 0, 0, place, 0, 0, 0, 1];
        let mut changed = [&frame[..l4], &header, &frame[l4..]].concat();
        changed[whole.l3_offset + 6] = 44;
        let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
        changed[18..20].copy_from_slice(&length.to_be_bytes());
        let parsed = parse(&changed).unwrap();
        let embedded = parse_embedded(&changed, &parsed).unwrap();
        let key = embedded.key(1, &parsed);
        assert_eq!((embedded.protocol, embedded.is_later_fragment), (whole.protocol, is_later));
        assert_eq!(key.is_fragment(), is_later);
        assert_eq!(key.destination_port, if is_later { 0 } else { whole.destination_port });
        changed.truncate(l4 + 7);
        changed[18..20].copy_from_slice(&((l4 + 7 - 54) as u16).to_be_bytes());
        let parsed = parse(&changed).unwrap();
        assert_eq!(parse_embedded(&changed, &parsed), Err(PacketError::IcmpEmbedded));
    }
}

#[test]
fn refuses_malformed_embedded_packets() {
    let fails = |at: usize, value: u8| {
        let (mut frame, parsed) = read(fixtures::ICMP_PORT_UNREACHABLE);
        frame[at] = value;
        assert_eq!(parse_embedded(&frame, &parsed), Err(PacketError::IcmpEmbedded));
    };
    fails(42, 0x65);
    fails(42, 0x44);
    fails(42, 0x4f);
    fails(42, 0x48);
    let (frame, parsed) = read(fixtures::ICMP_ECHO_REQUEST);
    assert_eq!(parse_embedded(&frame, &parsed), Err(PacketError::IcmpEmbedded));
}

#[test]
fn lowers_the_ttl_to_one_and_no_further() {
    for hex in [fixtures::UDP_V4, fixtures::UDP_V6] {
        let (mut frame, mut parsed) = read(hex);
        for ttl in (1..64).rev() {
            decrement_ttl(&mut frame, &mut parsed).unwrap();
            assert_eq!(parse(&frame).unwrap().ttl, ttl);
            verify(&frame, &parsed).unwrap();
        }
        let before = frame.clone();
        assert_eq!(decrement_ttl(&mut frame, &mut parsed), Err(PacketError::TtlExpired));
        assert_eq!(frame, before);
    }
}

#[test]
fn sets_ecn_and_ethernet_addresses() {
    for hex in [fixtures::UDP_V4, fixtures::UDP_V6] {
        let (mut frame, mut parsed) = read(hex);
        for ecn in [3, 1, 2, 0] {
            set_ecn(&mut frame, &mut parsed, ecn).unwrap();
            assert_eq!(parse(&frame), Ok(parsed));
            assert_eq!(parsed.ecn(), ecn);
            verify(&frame, &parsed).unwrap();
        }
        assert_eq!(frame, bytes(hex));
        set_macs(&mut frame, &mut parsed, [4; 6], [6; 6]).unwrap();
        assert_eq!(parse(&frame), Ok(parsed));
        assert_eq!((frame[0], frame[6]), (6, 4));
    }
}

#[test]
fn clamps_the_mss_wherever_it_lies() {
    let options: [&[u8]; 3] =
        [&[2, 4, 5, 0xb4, 1, 1, 1, 0], &[1, 2, 4, 5, 0xb4, 1, 1, 0], &[4, 2, 1, 2, 4, 5, 0xb4, 0]];
    for list in options {
        let (mut frame, _) = read(fixtures::TCP_SYN);
        frame[54..62].copy_from_slice(list);
        frame[62..74].fill(0);
        let parsed = parse(&frame).unwrap();
        crate::checksum::fill_transport(&mut frame, &parsed).unwrap();
        assert_eq!(clamp_mss(&mut frame, &parsed, 1460, ChecksumState::Full), Ok(false));
        assert_eq!(clamp_mss(&mut frame, &parsed, 1298, ChecksumState::Full), Ok(true));
        verify(&frame, &parsed).unwrap();
        assert!(frame[54..62].windows(2).any(|pair| pair == 1298_u16.to_be_bytes()));
        assert_eq!(clamp_mss(&mut frame, &parsed, 1298, ChecksumState::Full), Ok(false));
    }
    let (mut frame, parsed) = read(fixtures::TCP_DATA);
    assert_eq!(clamp_mss(&mut frame, &parsed, 1, ChecksumState::Full), Ok(false));
    let (mut frame, parsed) = read(fixtures::TCP_SYN);
    frame[55] = 0;
    assert_eq!(clamp_mss(&mut frame, &parsed, 1, ChecksumState::Full), Ok(false));
}

#[test]
fn a_udp_checksum_of_zero_is_written_as_all_ones() {
    for hex in [fixtures::UDP_V4, fixtures::UDP_V6] {
        let (mut frame, mut parsed) = read(hex);
        let checksum = get16(&frame, parsed.l4_offset + 6);
        // The port that brings the sum to 0xffff, whose complement is zero.
        let (sum, carry) = parsed.source_port.overflowing_add(checksum);
        let port = Some(sum + u16::from(carry));
        let change = Rewrite { source: Some(Endpoint { address: parsed.source, port }), destination: None };
        rewrite(&mut frame, &mut parsed, &change, ChecksumState::Full).unwrap();
        assert_eq!(get16(&frame, parsed.l4_offset + 6), 0xffff);
        verify(&frame, &parsed).unwrap();
    }
}

#[test]
fn translates_an_echo_inside_an_error() {
    let (mut v6, _) = read(fixtures::UDP_V6);
    v6[20] = 58;
    v6[54..62].copy_from_slice(&[128, 0, 0, 0, 0, 77, 0, 1]);
    for cause in [bytes(fixtures::ICMP_ECHO_REQUEST), v6] {
        let mut cause = cause;
        let cause_parsed = parse(&cause).unwrap();
        crate::checksum::fill_transport(&mut cause, &cause_parsed).unwrap();
        let is_v6 = cause_parsed.is_v6();
        let (mut frame, from) = ([0; 256], cause_parsed.destination);
        let kind = crate::build::IcmpError::HostUnreachable;
        let length = crate::build::icmp_error(&mut frame, &cause, &cause_parsed, [2; 6], from, kind).unwrap();
        let frame = &mut frame[..length];
        let parsed = parse(frame).unwrap();
        let mut embedded = parse_embedded(frame, &parsed).unwrap();
        assert_eq!(embedded.key(1, &parsed), FlowKey::new(1, &cause_parsed));
        let change =
            Rewrite { source: endpoint(is_v6, 1, Some(0xbeef)), destination: endpoint(is_v6, 2, None) };
        rewrite_embedded(frame, &parsed, &mut embedded, &change).unwrap();
        verify(frame, &parsed).unwrap();
        let inner = [&frame[..14], &frame[embedded.l3_offset..]].concat();
        let inner_parsed = parse(&inner).unwrap();
        verify(&inner, &inner_parsed).unwrap();
        assert_eq!(inner_parsed.icmp_id, 0xbeef);
        assert_eq!(embedded.key(1, &parsed), FlowKey::new(1, &inner_parsed));
    }
}
