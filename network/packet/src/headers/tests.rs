use super::*;
use crate::fixtures::{self, bytes};
use crate::key::FlowKey;

fn fails(frame: &[u8], reason: PacketError) {
    assert_eq!(parse(frame), Err(reason));
}

/// `frame` with `value` at `at`.
fn with(hex: &str, at: usize, value: &[u8]) -> Vec<u8> {
    let mut frame = bytes(hex);
    frame[at..at + value.len()].copy_from_slice(value);
    frame
}

#[test]
fn reads_a_syn() {
    let frame = bytes(fixtures::TCP_SYN);
    let parsed = parse(&frame).unwrap();
    assert_eq!((parsed.network, parsed.transport), (Network::Ipv4, Transport::Tcp));
    assert_eq!((parsed.l3_offset, parsed.l4_offset, parsed.payload_offset, parsed.end), (14, 34, 74, 74));
    assert_eq!((parsed.source_port, parsed.destination_port), (0xcd38, 80));
    assert_eq!(parsed.source, IpAddress::v4([10, 1, 0, 1]));
    assert_eq!(parsed.tcp_flags, tcp_flags::SYN);
    assert!(parsed.dont_fragment && parsed.ttl == 64 && parsed.identification == 0xd641);
}

#[test]
fn every_fixture_parses_and_is_cut_short_into_an_error() {
    for hex in fixtures::ALL {
        let frame = bytes(hex);
        let parsed = parse(&frame).unwrap();
        for length in 0..parsed.end {
            assert!(parse(&frame[..length]).is_err(), "{length} bytes of {hex}");
        }
        let mut padded = frame.clone();
        padded.extend_from_slice(&[0xaa; 18]);
        assert_eq!(parse(&padded).unwrap().payload_end, parsed.payload_end);
    }
}

#[test]
fn reads_one_tag_and_no_second() {
    let mut frame = bytes(fixtures::UDP_V4);
    frame.splice(12..12, [0x81, 0, 0xa0, 7]);
    let parsed = parse(&frame).unwrap();
    assert_eq!((parsed.vlan_id(), parsed.vlan_tci, parsed.l3_offset), (Some(7), Some(0xa007), 18));
    assert_eq!(parsed.transport, Transport::Udp);
    fails(&frame[..17], PacketError::VlanTruncated);
    frame.splice(12..12, [0x81, 0, 0, 1]);
    let twice = parse(&frame).unwrap();
    assert_eq!((twice.network, twice.ethertype), (Network::Other, ETHERTYPE_VLAN));
}

#[test]
fn refuses_lying_ipv4() {
    let udp = fixtures::UDP_V4;
    fails(&with(udp, 14, &[0x65]), PacketError::Ipv4Version);
    fails(&with(udp, 14, &[0x44]), PacketError::Ipv4HeaderLength);
    fails(&with(udp, 16, &[0, 19]), PacketError::Ipv4TotalLengthShort);
    fails(&with(udp, 16, &[0, 35]), PacketError::Ipv4TotalLengthLong);
    fails(&with(udp, 14, &[0x46]), PacketError::Ipv4Options);
    fails(&with(udp, 20, &[0x3f, 0xff]), PacketError::FragmentLength);
    fails(&with(udp, 20, &[0x1f, 0xff]), PacketError::FragmentOverrun);
    fails(&with(udp, 26, &[224, 0, 0, 1]), PacketError::SourceMulticast);
    fails(&with(udp, 38, &[0, 15]), PacketError::UdpLengthLong);
    fails(&with(udp, 38, &[0, 7]), PacketError::UdpLengthShort);
    fails(&with(fixtures::TCP_DATA, 46, &[0x40]), PacketError::TcpDataOffset);
    fails(&with(fixtures::TCP_FIN, 46, &[0x90]), PacketError::TcpTruncated);
    fails(&with(fixtures::TCP_DATA, 20, &[0, 1]), PacketError::FragmentTiny);
}

#[test]
fn reads_fragments() {
    for (hex, offset, protocol) in
        [(fixtures::FRAGMENT_V4_LATER, 185 * 8, 17), (fixtures::FRAGMENT_V6_LATER, 0x5a8, 17)]
    {
        let parsed = parse(&bytes(hex)).unwrap();
        assert_eq!((parsed.fragment, parsed.protocol), (Fragment::Later, protocol));
        assert_eq!((parsed.fragment_offset, parsed.transport), (offset, Transport::Other));
        let key = FlowKey::new(1, &parsed);
        assert!(key.is_fragment() && key.source_port == 0);
    }
    let first = with(fixtures::TCP_DATA, 16, &[0, 68]);
    let first = [&first[..20], &[0x20, 0], &first[22..82]].concat();
    let parsed = parse(&first).unwrap();
    assert_eq!((parsed.fragment, parsed.destination_port), (Fragment::First, 80));
    assert_eq!((parsed.fragment_offset, parsed.fragment_end, parsed.more_fragments), (0, 48, true));
    let key = FlowKey::new(1, &parsed);
    assert_eq!((key.destination_port, key.is_fragment()), (80, false));
}

#[test]
fn walks_ipv6_extensions_within_bounds() {
    let frame = bytes(fixtures::MLD_REPORT);
    let parsed = parse(&frame).unwrap();
    assert_eq!((parsed.transport, parsed.icmp_type, parsed.l4_offset), (Transport::Icmpv6, 143, 62));
    assert!(parsed.has_options && !parsed.is_icmp_error());
    let chain = |kinds: &[u8], last: u8| {
        let mut frame = bytes(fixtures::UDP_V6)[..54].to_vec();
        frame[20] = kinds.first().copied().unwrap_or(last);
        for position in 0..kinds.len() {
            let next = kinds.get(position + 1).copied().unwrap_or(last);
            frame.extend_from_slice(&[next, 0, if kinds[position] == 43 { 4 } else { 0 }, 0, 0, 0, 0, 0]);
        }
        frame.extend_from_slice(&[0, 1, 0, 2, 0, 8, 0, 0]);
        let length = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame
    };
    assert_eq!(parse(&chain(&[0, 60, 43, 44, 60], 17)).unwrap().destination_port, 2);
    assert_eq!(parse(&chain(&[60; 8], 17)).unwrap().destination_port, 2);
    fails(&chain(&[60; 9], 17), PacketError::Ipv6ExtensionChain);
    fails(&chain(&[60, 0], 17), PacketError::Ipv6ExtensionOrder);
    fails(&chain(&[44, 44], 17), PacketError::Ipv6ExtensionOrder);
    assert_eq!(parse(&chain(&[44], 59)).unwrap().fragment, Fragment::Whole);
    let mut routing_zero = chain(&[43], 17);
    routing_zero[56] = 0;
    fails(&routing_zero, PacketError::Ipv6RoutingType);
    let mut long = chain(&[60], 17);
    long[55] = 200;
    fails(&long, PacketError::Ipv6ExtensionTruncated);
}

#[test]
fn refuses_lying_ipv6() {
    let udp = fixtures::UDP_V6;
    fails(&with(udp, 14, &[0x40]), PacketError::Ipv6Version);
    fails(&with(udp, 18, &[0, 12]), PacketError::Ipv6PayloadLength);
    fails(&with(udp, 22, &[0xff, 2]), PacketError::SourceMulticast);
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    fails(&with(udp, 22, &mapped), PacketError::Ipv6MappedAddress);
    fails(&with(udp, 38, &mapped), PacketError::Ipv6MappedAddress);
}

#[test]
fn reads_arp_and_refuses_other_hardware() {
    let frame = bytes(fixtures::VXLAN_ARP_REQUEST)[50..].to_vec();
    let parsed = parse(&frame).unwrap();
    assert_eq!(parsed.network, Network::Arp);
    let arp = parse_arp(&frame[parsed.l3_offset..]).unwrap();
    assert_eq!((arp.operation, arp.sender_ip, arp.target_ip), (ARP_REQUEST, [10, 2, 0, 1], [10, 2, 0, 2]));
    let mut token_ring = frame.clone();
    token_ring[15] = 6;
    fails(&token_ring, PacketError::ArpFormat);
    fails(&frame[..41], PacketError::ArpTruncated);
}

#[test]
fn reads_neighbour_discovery() {
    let read = |hex: &str| {
        let frame = bytes(hex);
        parse_neighbor(&frame, &parse(&frame).unwrap())
    };
    let target = [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let first = Some([2, 0, 0, 0, 0, 1]);
    assert_eq!(
        read(fixtures::NEIGHBOR_SOLICITATION),
        Ok(Some(NeighborMessage::Solicitation { target, source_mac: first }))
    );
    assert_eq!(
        read(fixtures::NEIGHBOR_ADVERTISEMENT),
        Ok(Some(NeighborMessage::Advertisement {
            target,
            target_mac: Some([2, 0, 0, 0, 0, 2]),
            solicited: true,
            replaces: true,
        }))
    );
    assert!(matches!(
        read(fixtures::ROUTER_SOLICITATION),
        Ok(Some(NeighborMessage::RouterSolicitation { source_mac: Some(_) }))
    ));
    assert_eq!(read(fixtures::UDP_V6), Ok(None));
    let bad = |at: usize, value: u8| {
        let frame = with(fixtures::NEIGHBOR_SOLICITATION, at, &[value]);
        parse_neighbor(&frame, &parse(&frame).unwrap())
    };
    assert_eq!(bad(21, 64), Err(PacketError::NeighborHopLimit));
    assert_eq!(bad(79, 0), Err(PacketError::NeighborOption));
    assert_eq!(bad(79, 2), Err(PacketError::NeighborOption));
    assert_eq!(bad(62, 0xff), Err(PacketError::NeighborTarget));
}
