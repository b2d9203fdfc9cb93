use super::*;
use crate::bytes::{put16, put32};
use crate::fixtures::{self, bytes};
use crate::parse;
use crate::virtio::{FLAG_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_UDP_L4};

/// A data segment of the fixture's connection: `index` is 10-byte pieces from its start.
fn segment(port: u16, index: u32, payload: &[u8], flags: u8) -> Vec<u8> {
    let mut frame = bytes(fixtures::TCP_DATA)[..66].to_vec();
    frame.extend_from_slice(payload);
    put16(&mut frame, 16, 52 + payload.len() as u16);
    put16(&mut frame, 34, port);
    put32(&mut frame, 38, 0xffff_fff0_u32.wrapping_add(index * 10));
    frame[47] = flags;
    seal(frame)
}

fn seal(mut frame: Vec<u8>) -> Vec<u8> {
    let parsed = parse(&frame).unwrap();
    checksum::fill_network(&mut frame, &parsed).unwrap();
    checksum::fill_transport(&mut frame, &parsed).unwrap();
    frame
}

/// A frame that left: its virtio header, its bytes, and how many parts it had.
type Left = (VirtioNetHeader, Vec<u8>, usize);

fn run(config: CoalesceConfig, frames: &[Vec<u8>]) -> (Vec<Left>, CoalesceCounters) {
    let mut coalescer = Coalescer::new(config);
    let mut left = Vec::new();
    let virtio_bytes = if config.mergeable_header { 12 } else { 10 };
    let mut sink = |output: Output<'_>| {
        let virtio = VirtioNetHeader::decode(output.header, virtio_bytes).unwrap();
        let mut frame = output.header[virtio_bytes..].to_vec();
        for part in output.parts {
            let start = part.start as usize - 100;
            frame.extend_from_slice(&frames[part.buffer as usize][start..start + part.length as usize]);
        }
        left.push((virtio, frame, output.parts.len()));
    };
    for (buffer, frame) in frames.iter().enumerate() {
        // Frames lie behind 100 bytes of outer headers.
        let place = Place { port: 1, buffer: buffer as u32, start: 100, checksums: Checksums::Unknown };
        coalescer.push(place, frame, &parse(frame).unwrap(), &mut sink);
    }
    coalescer.flush(&mut sink);
    assert_eq!(coalescer.open_flows(), 0);
    let counters = *coalescer.counters();
    assert_eq!(counters.frames, counters.merged_frames + counters.single_frames);
    (left, counters)
}

const ACK: u8 = tcp_flags::ACK;
const PSH: u8 = tcp_flags::PSH;
const TEN: &[u8] = b"0123456789";

fn flushes(counters: &CoalesceCounters, reason: FlushReason) -> u64 {
    counters.flushes[reason as usize]
}

#[test]
fn joins_contiguous_segments_across_the_sequence_wrap() {
    let frames: Vec<_> = (0..5).map(|index| segment(9, index, TEN, ACK)).collect();
    let (left, counters) = run(CoalesceConfig::default(), &frames);
    assert_eq!(left.len(), 1);
    let (virtio, frame, parts) = &left[0];
    assert_eq!((virtio.flags, virtio.gso_type, virtio.gso_size), (FLAG_NEEDS_CSUM, GSO_TCPV4, 10));
    assert_eq!((virtio.csum_start, virtio.csum_offset, virtio.hdr_len, *parts), (34, 16, 66, 5));
    let parsed = parse(frame).unwrap();
    assert_eq!(parsed.payload_length(), 50);
    checksum::verify_network(frame, &parsed).unwrap();
    virtio.validate(frame.len(), &parsed).unwrap();
    let mut completed = frame.clone();
    checksum::complete(&mut completed, 34, 50, parsed.end).unwrap();
    checksum::verify(&completed, &parsed).unwrap();
    assert_eq!((counters.super_frames, counters.merged_frames), (1, 5));
    assert_eq!(flushes(&counters, FlushReason::BatchEnd), 1);
}

#[test]
fn push_short_and_part_limit_close() {
    let config = CoalesceConfig { max_parts: 3, mergeable_header: true, ..CoalesceConfig::default() };
    let mut frames: Vec<_> = (0..5).map(|index| segment(9, index, TEN, ACK)).collect();
    frames.push(segment(9, 5, &TEN[..4], ACK));
    frames.push(segment(7, 0, TEN, ACK));
    frames.push(segment(7, 1, TEN, ACK | PSH));
    let (left, counters) = run(config, &frames);
    let lengths: Vec<_> = left.iter().map(|(_, frame, parts)| (frame.len() - 66, *parts)).collect();
    assert_eq!(lengths, [(30, 3), (24, 3), (20, 2)]);
    assert_eq!(left[2].1[47], ACK | PSH);
    assert_eq!(left[0].1[47], ACK);
    for reason in [FlushReason::Parts, FlushReason::Push] {
        assert_eq!(flushes(&counters, reason), 1);
    }
    // The short one was the third: the limit and the length say the same.
    assert_eq!(flushes(&counters, FlushReason::ShortSegment), 1);
}

#[test]
fn what_differs_is_not_joined() {
    let first = segment(9, 0, TEN, ACK);
    let changed = |at: usize, value: u8| {
        let mut frame = segment(9, 1, TEN, ACK);
        frame[at] = value;
        vec![first.clone(), seal(frame)]
    };
    let acknowledgement = changed(45, 1);
    let window = changed(49, 1);
    let timestamp = changed(65, 1);
    let (tos, ttl, mac) = (changed(15, 2), changed(22, 9), changed(11, 0x77));
    let ece = changed(47, ACK | tcp_flags::ECE);
    for frames in [acknowledgement, window, timestamp, tos, ttl, mac, ece] {
        let (left, counters) = run(CoalesceConfig::default(), &frames);
        assert_eq!((left.len(), flushes(&counters, FlushReason::Header)), (2, 1));
        assert_eq!((&left[0].1, &left[1].1), (&frames[0], &frames[1]));
        assert_eq!(left[0].0.gso_type, GSO_NONE);
    }
    let gap = [first.clone(), segment(9, 2, TEN, ACK)];
    assert_eq!(flushes(&run(CoalesceConfig::default(), &gap).1, FlushReason::Sequence), 1);
    let long = [first.clone(), segment(9, 1, b"0123456789+", ACK)];
    assert_eq!(flushes(&run(CoalesceConfig::default(), &long).1, FlushReason::LongSegment), 1);
}

#[test]
fn control_and_empty_segments_go_alone_and_keep_their_place() {
    for flags in
        [ACK | tcp_flags::FIN, tcp_flags::RST, ACK | tcp_flags::URG, ACK | tcp_flags::CWR, tcp_flags::SYN]
    {
        let frames = [
            segment(9, 0, TEN, ACK),
            segment(9, 1, TEN, ACK),
            segment(9, 2, TEN, flags),
            segment(9, 3, TEN, ACK),
        ];
        let (left, counters) = run(CoalesceConfig::default(), &frames);
        let parts: Vec<_> = left.iter().map(|(_, frame, _)| frame.len()).collect();
        assert_eq!(parts, [86, 76, 76], "{flags}");
        assert_eq!(flushes(&counters, FlushReason::Unmergeable), 1);
    }
    let frames = [segment(9, 0, TEN, ACK), segment(9, 1, b"", ACK), segment(9, 1, TEN, ACK)];
    let (left, _) = run(CoalesceConfig::default(), &frames);
    assert_eq!(left.iter().map(|(_, frame, _)| frame.clone()).collect::<Vec<_>>(), frames);
}

#[test]
fn a_wrong_checksum_is_never_made_right() {
    let mut frames: Vec<_> = (0..3).map(|index| segment(9, index, TEN, ACK)).collect();
    frames[1][70] ^= 1;
    let (left, counters) = run(CoalesceConfig::default(), &frames);
    assert_eq!(counters.bad_checksums, 1);
    assert_eq!(left.iter().map(|(_, frame, _)| frame.clone()).collect::<Vec<_>>(), frames);
    assert_eq!(left[1].0.flags, 0);
    assert_eq!(left[0].0.flags, FLAG_DATA_VALID);
}

#[test]
fn eight_interleaved_flows_are_joined_and_a_ninth_evicts_the_oldest() {
    let interleaved: Vec<_> =
        (0..4).flat_map(|index| (0..8).map(move |port| segment(port + 1, index, TEN, ACK))).collect();
    let (left, counters) = run(CoalesceConfig::default(), &interleaved);
    assert_eq!((left.len(), counters.merged_frames, flushes(&counters, FlushReason::Evicted)), (8, 32, 0));
    let nine: Vec<_> = (0..9).map(|port| segment(port + 1, 0, TEN, ACK)).collect();
    let (left, counters) = run(CoalesceConfig::default(), &nine);
    assert_eq!(flushes(&counters, FlushReason::Evicted), 1);
    // Oldest first, at eviction and at the end.
    assert_eq!(left.into_iter().map(|(_, frame, _)| frame).collect::<Vec<_>>(), nine);
}

#[test]
fn a_super_frame_stays_within_64_kib() {
    let piece = [7; 1448];
    let frames: Vec<_> = (0..60_u32)
        .map(|index| {
            let mut frame = segment(9, 0, &piece, ACK);
            put32(&mut frame, 38, index * 1448);
            seal(frame)
        })
        .collect();
    let (left, counters) = run(CoalesceConfig::default(), &frames);
    assert_eq!(flushes(&counters, FlushReason::Bytes), 1);
    assert!(left.iter().all(|(_, frame, _)| frame.len() <= MAX_SUPER_FRAME_BYTES));
    assert_eq!(left[0].2, (MAX_SUPER_FRAME_BYTES - 66) / 1448);
}

#[test]
fn identifications_count_up_without_dont_fragment() {
    let numbered = |index: u32, identification: u16| {
        let mut frame = segment(9, index, TEN, ACK);
        put16(&mut frame, 18, identification);
        put16(&mut frame, 20, 0);
        seal(frame)
    };
    let (left, _) = run(CoalesceConfig::default(), &[numbered(0, 0xffff), numbered(1, 0), numbered(2, 1)]);
    assert_eq!(left.len(), 1);
    let (left, _) = run(CoalesceConfig::default(), &[numbered(0, 5), numbered(1, 5)]);
    assert_eq!(left.len(), 2);
}

#[test]
fn udp_is_joined_only_where_asked_and_with_a_checksum() {
    let datagram = |payload: &[u8]| {
        let mut frame = bytes(fixtures::UDP_V4)[..42].to_vec();
        frame.extend_from_slice(payload);
        put16(&mut frame, 16, 28 + payload.len() as u16);
        put16(&mut frame, 20, 0x4000);
        put16(&mut frame, 38, 8 + payload.len() as u16);
        seal(frame)
    };
    let frames = [datagram(TEN), datagram(TEN), datagram(&TEN[..3]), datagram(TEN)];
    let (left, _) = run(CoalesceConfig::default(), &frames);
    assert_eq!(left.len(), 4);
    let joining = CoalesceConfig { join_udp: true, ..CoalesceConfig::default() };
    let (left, _) = run(joining, &frames);
    assert_eq!(left.len(), 2);
    assert_eq!((left[0].0.gso_type, left[0].0.gso_size, left[0].1.len()), (GSO_UDP_L4, 10, 42 + 23));
    let parsed = parse(&left[0].1).unwrap();
    assert!(left[0].0.validate(left[0].1.len(), &parsed).is_ok());
    let mut unsummed = frames.clone();
    for frame in &mut unsummed {
        put16(frame, 40, 0);
    }
    assert_eq!(run(joining, &unsummed).0.len(), 4);
}

#[test]
fn frames_for_different_ports_are_never_joined() {
    let frames: Vec<_> = (0..4).map(|index| segment(9, index / 2, TEN, ACK)).collect();
    let mut coalescer = Coalescer::new(CoalesceConfig::default());
    let mut left = Vec::new();
    let mut sink = |output: Output<'_>| left.push((output.port, output.parts.to_vec()));
    for (buffer, frame) in frames.iter().enumerate() {
        let place =
            Place { port: buffer as u32 % 2, buffer: buffer as u32, start: 0, checksums: Checksums::Unknown };
        coalescer.push(place, frame, &parse(frame).unwrap(), &mut sink);
    }
    coalescer.flush(&mut sink);
    let part = |buffer| Part { buffer, start: 66, length: 10 };
    assert_eq!(left, [(0, vec![part(0), part(2)]), (1, vec![part(1), part(3)])]);
}

#[test]
fn a_full_super_frame_leaves_at_once_and_one_part_is_never_joined() {
    for (max_parts, open) in [(2, 0), (1, 1), (3, 1)] {
        let mut coalescer = Coalescer::new(CoalesceConfig { max_parts, ..CoalesceConfig::default() });
        for index in 0..2 {
            let frame = segment(9, index, TEN, ACK);
            let place = Place { port: 0, buffer: index, start: 0, checksums: Checksums::Verified };
            coalescer.push(place, &frame, &parse(&frame).unwrap(), &mut |_: Output<'_>| {});
        }
        assert_eq!(coalescer.open_flows(), open, "{max_parts}");
        coalescer.flush(&mut |_: Output<'_>| {});
        assert_eq!(coalescer.counters().super_frames, u64::from(max_parts > 1));
    }
}

#[test]
fn ipv6_segments_join_unless_hop_limit_or_flow_label_differ() {
    let segment = |index: u32, at: usize, value: u8| {
        let mut frame = bytes(fixtures::UDP_V6)[..54].to_vec();
        frame[20] = 6;
        frame[19] = 30;
        frame.extend_from_slice(&[
            0,
            1,
            0,
            2,
            0,
            0,
            0,
            (index * 10) as u8,
            0,
            0,
            0,
            0,
            0x50,
            ACK,
            1,
            0,
            0,
            0,
            0,
            0,
        ]);
        frame.extend_from_slice(TEN);
        frame[at] = value;
        seal(frame)
    };
    let joined = [segment(0, 21, 64), segment(1, 21, 64)];
    let (left, _) = run(CoalesceConfig::default(), &joined);
    assert_eq!((left.len(), left[0].0.gso_type), (1, crate::virtio::GSO_TCPV6));
    assert!(left[0].0.validate(left[0].1.len(), &parse(&left[0].1).unwrap()).is_ok());
    for (at, value) in [(21, 63), (17, 1), (15, 1)] {
        let (left, counters) = run(CoalesceConfig::default(), &[segment(0, 21, 64), segment(1, at, value)]);
        assert_eq!((left.len(), flushes(&counters, FlushReason::Header)), (2, 1));
    }
}

#[test]
fn labels_are_unique() {
    let labels: std::collections::HashSet<_> =
        FlushReason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(labels.len(), FlushReason::ALL.len());
    for (position, reason) in FlushReason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, position);
    }
}
