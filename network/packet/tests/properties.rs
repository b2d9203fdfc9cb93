//! Agreement with etherparse, and the identities that must hold for every packet.

use crate::generate::{Kind, Recipe, build, recipe};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use weir_packet::coalesce::{Checksums, CoalesceConfig, Coalescer, Output, Place};
use weir_packet::headers::tcp_flags;
use weir_packet::rewrite::{ChecksumState, Endpoint, Rewrite, clamp_mss, decrement_ttl, rewrite, set_ecn};
use weir_packet::segment::Segmenter;
use weir_packet::virtio::{
    FLAG_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, HEADER_BYTES, Offload, VirtioNetHeader,
};
use weir_packet::{FlowKey, IpAddress, Network, Parsed, Transport, checksum, parse};

/// The payload as etherparse finds it, and its view of ports.
fn independent(frame: &[u8]) -> (Vec<u8>, u16, u16) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    match sliced.transport.unwrap() {
        TransportSlice::Tcp(tcp) => (tcp.payload().to_vec(), tcp.source_port(), tcp.destination_port()),
        TransportSlice::Udp(udp) => (udp.payload().to_vec(), udp.source_port(), udp.destination_port()),
        TransportSlice::Icmpv4(icmp) => (icmp.payload().to_vec(), 0, 0),
        TransportSlice::Icmpv6(icmp) => (icmp.payload().to_vec(), 0, 0),
        TransportSlice::Igmp(_) => panic!("no IGMP is generated"),
    }
}

fn assert_addresses(frame: &[u8], parsed: &Parsed) {
    match SlicedPacket::from_ethernet(frame).unwrap().net.unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!(parsed.network, Network::Ipv4);
            assert_eq!(IpAddress::from(header.source_addr()), parsed.source);
            assert_eq!(IpAddress::from(header.destination_addr()), parsed.destination);
            assert_eq!((header.ttl(), header.protocol().0), (parsed.ttl, parsed.protocol));
            assert_eq!(u32::from(header.identification()), parsed.identification);
            assert_eq!(header.dcp().value() << 2 | header.ecn().value(), parsed.tos);
            assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum());
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            assert_eq!(parsed.network, Network::Ipv6);
            assert_eq!(IpAddress::from(header.source_addr()), parsed.source);
            assert_eq!(IpAddress::from(header.destination_addr()), parsed.destination);
            assert_eq!((header.hop_limit(), header.traffic_class()), (parsed.ttl, parsed.tos));
        }
        NetSlice::Arp(_) => panic!("no ARP is generated"),
    }
}

/// Cuts a super-frame as its virtio header says.
fn cut(frame: &[u8], header: &VirtioNetHeader) -> Vec<Vec<u8>> {
    let parsed = parse(frame).unwrap();
    let Offload::Segment(segmentation) = header.validate(frame.len(), &parsed).unwrap() else {
        return vec![frame.to_vec()];
    };
    let mut segmenter = Segmenter::new(frame, &parsed, &segmentation).unwrap();
    let mut buffer = [0; 256];
    let mut segments = Vec::new();
    while let Some(range) = segmenter.next_into(&mut buffer) {
        segments.push([&buffer[..segmenter.header_bytes()], &frame[range]].concat());
    }
    assert_eq!(segments.len(), segmentation.segments);
    segments
}

/// Joins the frames of one batch.
fn join(frames: &[Vec<u8>], config: CoalesceConfig) -> Vec<(VirtioNetHeader, Vec<u8>)> {
    let mut coalescer = Coalescer::new(config);
    let mut left = Vec::new();
    let mut sink = |output: Output<'_>| {
        let mut frame = output.header[HEADER_BYTES..].to_vec();
        for part in output.parts {
            let from = part.start as usize;
            frame.extend_from_slice(&frames[part.buffer as usize][from..from + part.length as usize]);
        }
        left.push((VirtioNetHeader::decode(output.header, HEADER_BYTES).unwrap(), frame));
    };
    for (buffer, frame) in frames.iter().enumerate() {
        let place = Place { port: 0, buffer: buffer as u32, start: 0, checksums: Checksums::Unknown };
        coalescer.push(place, frame, &parse(frame).unwrap(), &mut sink);
    }
    coalescer.flush(&mut sink);
    left
}

/// The request for segmentation that fits the frame.
fn gso(frame: &[u8], gso_size: u16) -> VirtioNetHeader {
    let parsed = parse(frame).unwrap();
    let is_udp = parsed.transport == Transport::Udp;
    let gso_type = match (is_udp, parsed.is_v6()) {
        (true, _) => GSO_UDP_L4,
        (false, true) => GSO_TCPV6,
        (false, false) => GSO_TCPV4,
    };
    VirtioNetHeader {
        flags: FLAG_NEEDS_CSUM,
        gso_type,
        hdr_len: parsed.payload_offset as u16,
        gso_size,
        csum_start: parsed.l4_offset as u16,
        csum_offset: if is_udp { 6 } else { 16 },
        num_buffers: 0,
    }
}

fn is_control(recipe: &Recipe) -> bool {
    match recipe.kind {
        Kind::Tcp { flags, .. } => flags & (tcp_flags::SYN | tcp_flags::RST) != 0,
        Kind::Udp { .. } => false,
        Kind::Echo { .. } => true,
    }
}

fn other(address: [u8; 16], is_v6: bool) -> IpAddress {
    if is_v6 { IpAddress::v6(address) } else { IpAddress::v4([10, address[1], address[2], address[3]]) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parsing_and_checksums_agree_with_etherparse(recipe in recipe(300)) {
        let frame = build(&recipe);
        let parsed = parse(&frame).unwrap();
        let (payload, source_port, destination_port) = independent(&frame);
        prop_assert_eq!(&frame[parsed.payload_offset..parsed.payload_end], &payload[..]);
        prop_assert_eq!((parsed.source_port, parsed.destination_port), (source_port, destination_port));
        prop_assert_eq!(parsed.vlan_id(), recipe.vlan);
        assert_addresses(&frame, &parsed);
        if let Kind::Tcp { flags, .. } = recipe.kind {
            prop_assert_eq!(parsed.tcp_flags, flags);
        }
        prop_assert_eq!(checksum::verify(&frame, &parsed), Ok(()));
        let mut filled = frame.clone();
        checksum::fill_network(&mut filled, &parsed).unwrap();
        checksum::fill_transport(&mut filled, &parsed).unwrap();
        prop_assert_eq!(filled, frame);
    }

    #[test]
    fn what_etherparse_refuses_in_a_cut_frame_we_refuse(recipe in recipe(60), cut in any::<prop::sample::Index>()) {
        let frame = build(&recipe);
        let piece = &frame[..cut.index(frame.len())];
        if SlicedPacket::from_ethernet(piece).is_err() {
            prop_assert!(parse(piece).is_err());
        }
    }

    #[test]
    fn keys_reverse(recipe in recipe(0), zone in any::<u32>()) {
        let key = FlowKey::new(zone, &parse(&build(&recipe)).unwrap());
        prop_assert_eq!(key.reverse().reverse(), key);
        prop_assert_eq!(key.reverse().source, key.destination);
    }

    #[test]
    fn segments_are_right_and_join_again(recipe in recipe(4000), gso_size in 70..1500_u16) {
        prop_assume!(!is_control(&recipe));
        let frame = build(&recipe);
        let segments = cut(&frame, &gso(&frame, gso_size));
        let mut payload = Vec::new();
        for segment in &segments {
            let parsed = parse(segment).unwrap();
            prop_assert_eq!(checksum::verify(segment, &parsed), Ok(()));
            prop_assert_eq!(parsed.end, segment.len());
            payload.extend(independent(segment).0);
        }
        prop_assert_eq!(&payload, &recipe.payload);

        let config = CoalesceConfig { join_udp: true, ..CoalesceConfig::default() };
        let joined = join(&segments, config);
        let mut again = Vec::new();
        for (header, joined_frame) in &joined {
            again.extend(cut(joined_frame, header));
        }
        // FIN, URG and CWR segments stay alone; identifications of atomic packets may be numbered anew, but here
        // they count up already.
        prop_assert_eq!(&again, &segments);
        let unusual = match recipe.kind {
            Kind::Tcp { flags, .. } => {
                let alone = tcp_flags::FIN | tcp_flags::URG | tcp_flags::CWR;
                flags & alone != 0 || flags & tcp_flags::ACK == 0
            }
            _ => false,
        };
        if !unusual && !recipe.payload.is_empty() {
            prop_assert_eq!(joined.len(), 1);
            let (header, joined_frame) = &joined[0];
            let mut completed = joined_frame.clone();
            let parsed = parse(joined_frame).unwrap();
            if header.flags & FLAG_NEEDS_CSUM != 0 {
                let start = usize::from(header.csum_start);
                let field = start + usize::from(header.csum_offset);
                checksum::complete(&mut completed, start, field, parsed.end).unwrap();
            }
            prop_assert_eq!(completed, frame);
        }
    }

    #[test]
    fn translation_there_and_back_is_the_identity(
        recipe in recipe(200), first in any::<[u8; 16]>(), second in any::<[u8; 16]>(), ports in any::<(u16, u16)>(),
    ) {
        let frame = build(&recipe);
        let mut changed = frame.clone();
        let mut parsed = parse(&frame).unwrap();
        let is_echo = parsed.is_icmp_echo();
        let original = parsed;
        let end = |address, port| Some(Endpoint { address, port: Some(port) });
        let mut unicast = (first, second);
        (unicast.0[0], unicast.1[0]) = (0x20, 0x20);
        let there = Rewrite {
            source: end(other(unicast.0, recipe.is_v6), ports.0),
            destination: end(other(unicast.1, recipe.is_v6), ports.1),
        };
        rewrite(&mut changed, &mut parsed, &there, ChecksumState::Full).unwrap();
        prop_assert_eq!(parse(&changed), Ok(parsed));
        // The incremental checksum is the one computed anew.
        let mut filled = changed.clone();
        checksum::fill_network(&mut filled, &parsed).unwrap();
        checksum::fill_transport(&mut filled, &parsed).unwrap();
        prop_assert_eq!(checksum::verify(&changed, &parsed), Ok(()));
        let back = Rewrite {
            source: end(original.source, if is_echo { original.icmp_id } else { original.source_port }),
            destination: end(original.destination, original.destination_port),
        };
        prop_assert_eq!(&filled, &changed);
        rewrite(&mut changed, &mut parsed, &back, ChecksumState::Full).unwrap();
        prop_assert_eq!(changed, frame);
        prop_assert_eq!(parsed, original);
    }

    #[test]
    fn small_changes_keep_the_checksums_right(recipe in recipe(100), ecn in 0..4_u8, mss in any::<u16>()) {
        let mut frame = build(&recipe);
        let mut parsed = parse(&frame).unwrap();
        decrement_ttl(&mut frame, &mut parsed).unwrap();
        set_ecn(&mut frame, &mut parsed, ecn).unwrap();
        clamp_mss(&mut frame, &parsed, mss, ChecksumState::Full).unwrap();
        prop_assert_eq!(parse(&frame), Ok(parsed));
        prop_assert_eq!((parsed.ttl, parsed.ecn()), (recipe.ttl - 1, ecn));
        prop_assert_eq!(checksum::verify(&frame, &parsed), Ok(()));
    }

    #[test]
    fn incremental_updates_equal_full_ones(
        mut data in prop::collection::vec(any::<u8>(), 20..80), at in 0..8_usize, new in any::<[u8; 4]>(),
    ) {
        let before = checksum::checksum(&data);
        let old = data[2 * at..2 * at + 4].to_vec();
        data[2 * at..2 * at + 4].copy_from_slice(&new);
        // Something that is not zero must remain: else 0x0000 and 0xffff name the same sum.
        prop_assume!(data.iter().any(|&byte| byte != 0) && before != 0xffff);
        prop_assert_eq!(checksum::update_bytes(before, &old, &new), checksum::checksum(&data));
    }
}

#[test]
fn many_interleaved_connections_are_joined_in_order() {
    let piece = vec![7; 1000];
    let mut frames = Vec::new();
    for index in 0..6_u32 {
        for connection in 0..8_u16 {
            let kind = Kind::Tcp {
                source: 1000 + connection,
                destination: 80,
                sequence: index * 1000,
                acknowledgement: 1,
                flags: tcp_flags::ACK,
                window: 100,
                options: vec![1; 12],
            };
            let (source, destination) = ([0x20; 16], [0x21; 16]);
            frames.push(build(&Recipe {
                is_v6: connection % 2 == 0,
                vlan: None,
                source,
                destination,
                ttl: 64,
                tos: 0,
                identification: index as u16,
                dont_fragment: true,
                flow_label: 5,
                kind,
                payload: piece.clone(),
            }));
        }
    }
    let joined = join(&frames, CoalesceConfig::default());
    assert_eq!(joined.len(), 8);
    for (header, frame) in &joined {
        let segments = cut(frame, header);
        assert_eq!(segments.len(), 6);
        assert!(segments.iter().all(|segment| frames.contains(segment)));
    }
}
