//! One target a decoder. The input is either raw bytes or a list of changes to a real frame, so that the deep
//! paths are reached without coverage feedback too.

use crate::fixtures;
use weir_packet::build::{IcmpError, echo_reply, icmp_error, neighbor_advertisement, tcp_reset};
use weir_packet::coalesce::{Checksums, CoalesceConfig, Coalescer, Output, Place};
use weir_packet::encap::{Encapsulation, MAX_ENCAP_BYTES, decode_geneve, decode_vxlan};
use weir_packet::headers::{parse_arp, parse_neighbor};
use weir_packet::outer::{OuterHeader, open};
use weir_packet::rewrite::{
    ChecksumState, Endpoint, Rewrite, clamp_mss, decrement_ttl, parse_embedded, rewrite, rewrite_embedded,
};
use weir_packet::segment::Segmenter;
use weir_packet::virtio::{Offload, VirtioNetHeader};
use weir_packet::{FlowKey, IpAddress, Parsed, checksum, parse};

const ITERATIONS: usize = 20_000;

/// Turns fuzz input into a frame: the first byte chooses a fixture (or none), the second how much is cut off, then
/// come pairs of place and value.
fn frame_of(input: &[u8]) -> Vec<u8> {
    let Some((&choice, rest)) = input.split_first() else { return Vec::new() };
    let Some(hex) = fixtures::ALL.get(usize::from(choice) % (fixtures::ALL.len() + 1)) else {
        return rest.to_vec();
    };
    let mut frame = fixtures::bytes(hex);
    let Some((&shorter, changes)) = rest.split_first() else { return frame };
    if shorter & 3 == 0 {
        frame.truncate(frame.len().saturating_sub(usize::from(shorter >> 2)));
    }
    for change in changes.chunks_exact(2).take(usize::from(shorter & 0x1c)) {
        let length = frame.len().max(1);
        if let Some(byte) = frame.get_mut(usize::from(change[0]) % length) {
            *byte = change[1];
        }
    }
    frame
}

fn assert_ordered(frame: &[u8], parsed: &Parsed) {
    assert!(parsed.l3_offset <= parsed.l4_offset && parsed.l4_offset <= parsed.payload_offset);
    assert!(parsed.payload_offset <= parsed.payload_end && parsed.payload_end <= parsed.end);
    assert!(parsed.end <= frame.len());
}

fn translation(is_v6: bool, port: Option<u16>) -> Rewrite {
    let address = if is_v6 { IpAddress::v6([0xfd; 16]) } else { IpAddress::v4([10, 9, 8, 7]) };
    Rewrite { source: Some(Endpoint { address, port }), destination: Some(Endpoint { address, port }) }
}

#[test]
fn fuzz_parse() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut frame = frame_of(input);
        let Ok(parsed) = parse(&frame) else { return };
        assert_ordered(&frame, &parsed);
        let key = FlowKey::new(1, &parsed);
        assert_eq!(key.reverse().reverse(), key);
        let _ = parse_arp(&frame[parsed.l3_offset..]);
        checksum::fill_network(&mut frame, &parsed).unwrap();
        checksum::fill_transport(&mut frame, &parsed).unwrap();
        assert_eq!(checksum::verify_network(&frame, &parsed), Ok(()));
        assert_eq!(checksum::verify_transport(&frame, &parsed), Ok(()));
    });
}

#[test]
fn fuzz_answers() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let frame = frame_of(input);
        let Ok(parsed) = parse(&frame) else { return };
        let mut out = [0; 2048];
        let mac = [2, 0, 0, 0, 0, 9];
        let neighbor = parse_neighbor(&frame, &parsed).ok().flatten();
        let answers = [
            icmp_error(&mut out, &frame, &parsed, mac, parsed.destination, IcmpError::Prohibited).ok(),
            echo_reply(&mut out, &frame, &parsed, mac).ok(),
            tcp_reset(&mut out, &frame, &parsed, mac).ok(),
            neighbor.and_then(|message| neighbor_advertisement(&mut out, &parsed, &message, mac, true).ok()),
        ];
        // Only the last answer that could be given is still in the buffer.
        if let Some(length) = answers.into_iter().flatten().last() {
            let answer = parse(&out[..length]).unwrap();
            assert_eq!(checksum::verify(&out[..length], &answer), Ok(()));
        }
    });
}

/// Outer headers: raw bytes, or a datagram of ours with some bytes changed and its IPv4 checksum made right again.
#[test]
fn fuzz_outer() {
    let own = ["192.0.2.2", "2001:db8::2"].map(|text| text.parse::<std::net::IpAddr>().unwrap());
    let from = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse::<std::net::IpAddr>().unwrap());
    let headers =
        [0, 1].map(|family| OuterHeader::new(([2; 6], [4; 6]), from[family], own[family], 64, 6081));
    let headers = headers.map(Option::unwrap);
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let Some((&choice, rest)) = input.split_first() else { return };
        let family = usize::from(choice >> 1 & 1);
        let mut frame = rest.to_vec();
        if choice & 1 == 0 {
            let (changes, payload) = rest.split_at(rest.len().min(usize::from(choice >> 2 & 6)));
            let header = headers[family].of(50_000, choice >> 4, &[payload], choice & 8 != 0);
            frame = [&header[..headers[family].length()], payload].concat();
            for change in changes.chunks_exact(2) {
                let at = usize::from(change[0]) % frame.len();
                frame[at] = change[1];
            }
            if family == 0 {
                frame[24..26].fill(0);
                let sum = checksum::checksum(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
        }
        if let Ok(opened) = open(&frame, &own[family].into()) {
            assert!(opened.start <= opened.end && opened.end <= frame.len() && opened.ecn < 4);
            // The parser of whole frames sees the same in it.
            let parsed = parse(&frame).unwrap();
            assert_eq!((parsed.destination_port, parsed.payload_offset), (opened.port, opened.start));
            assert_eq!((parsed.payload_end, parsed.ecn()), (opened.end, opened.ecn));
            assert_eq!(std::net::IpAddr::from(parsed.source), opened.sender);
        }
    });
}

#[test]
fn fuzz_vxlan() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        if let Ok(tunnel) = decode_vxlan(input) {
            let mut again = [0; 8];
            assert_eq!(
                Encapsulation::Vxlan.encode(&mut again, tunnel.vni, None, tunnel.checksum),
                Ok(tunnel.inner_offset)
            );
            assert_eq!(decode_vxlan(&again), Ok(tunnel));
        }
    });
}

#[test]
fn fuzz_geneve() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        // Steer half of the inputs behind the checks of version, length and protocol.
        let mut datagram = input.to_vec();
        if datagram.len() > 8 && datagram[4] & 1 == 0 {
            datagram[0] = ((datagram.len() - 8) / 4).min(usize::from(datagram[0] & 0x3f)) as u8;
            datagram[2..4].copy_from_slice(&[0x65, 0x58]);
            if datagram.len() >= 20 && datagram[4] & 2 == 0 {
                datagram[8..12].copy_from_slice(&[0xff, 0x57, 1, 2]);
            }
            if datagram.len() >= 24 && datagram[4] & 4 == 0 {
                let (kind, length) = (if datagram[5] & 1 == 0 { 0x02 } else { 0x83 }, datagram[23] & 0x11);
                datagram[20..24].copy_from_slice(&[0xff, 0x57, kind, length]);
            }
        }
        if let Ok(tunnel) = decode_geneve(&datagram) {
            assert!(tunnel.inner_offset <= datagram.len() && tunnel.vni <= 0xff_ffff);
            let (vni, token, checksum) = (tunnel.vni, tunnel.token, tunnel.checksum);
            let mut again = [0; MAX_ENCAP_BYTES];
            let length = Encapsulation::Geneve.encode(&mut again, vni, token, checksum).unwrap();
            let read = decode_geneve(&again[..length]).unwrap();
            assert_eq!((read.vni, read.token, read.checksum), (vni, token, checksum));
        }
    });
}

#[test]
fn fuzz_virtio() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        if input.len() < 12 {
            return;
        }
        let mut frame = frame_of(&input[12..]);
        let Ok(parsed) = parse(&frame) else { return };
        let mut header = VirtioNetHeader::decode(input, 12).unwrap();
        if header.num_buffers & 1 == 0 {
            // Mostly right: only type and size are the guest's whim.
            header.flags = 1;
            header.gso_type = [1, 4, 5, 0][usize::from(header.gso_type & 3)];
            header.hdr_len = 0;
            header.gso_size &= 0xff;
            header.csum_start = parsed.l4_offset as u16;
            header.csum_offset = if parsed.protocol == 17 { 6 } else { 16 };
        }
        match header.validate(frame.len(), &parsed) {
            Err(_) | Ok(Offload::Complete) => {}
            Ok(Offload::Checksum { start, field }) => {
                checksum::complete(&mut frame, start, field, parsed.end).unwrap();
                assert_eq!(parse(&frame), Ok(parsed), "completing must not change what was parsed");
            }
            Ok(offload @ Offload::Segment(segmentation)) => {
                let clean = offload.header(&parsed);
                assert_eq!(clean.validate(frame.len(), &parsed), Ok(offload));
                let mut segmenter = Segmenter::new(&frame, &parsed, &segmentation).unwrap();
                let (mut buffer, mut bytes, mut count) = ([0; 256], 0, 0);
                while let Some(range) = segmenter.next_into(&mut buffer) {
                    let segment = [&buffer[..segmenter.header_bytes()], &frame[range.clone()]].concat();
                    let piece = parse(&segment).unwrap();
                    if !parsed.has_options {
                        assert_eq!(checksum::verify(&segment, &piece), Ok(()));
                    }
                    bytes += range.len();
                    count += 1;
                }
                assert_eq!((bytes, count), (parsed.payload_length(), segmentation.segments));
            }
        }
    });
}

#[test]
fn fuzz_rewrite() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut frame = frame_of(input);
        let Ok(mut parsed) = parse(&frame) else { return };
        let before = checksum::verify(&frame, &parsed);
        let port = input.last().filter(|byte| **byte & 1 == 0).map(|byte| u16::from(*byte));
        let _ = clamp_mss(&mut frame, &parsed, 500, ChecksumState::Full);
        let _ = decrement_ttl(&mut frame, &mut parsed);
        let change = translation(parsed.is_v6(), port);
        if rewrite(&mut frame, &mut parsed, &change, ChecksumState::Full).is_ok() {
            assert_eq!(parse(&frame), Ok(parsed));
            assert_eq!(checksum::verify(&frame, &parsed), before);
        }
    });
}

#[test]
fn fuzz_embedded() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        // Two of the fixtures are errors: take one, and change it.
        let error = match input.first() {
            Some(byte) if byte & 1 == 0 => 6,
            _ => 7,
        };
        let mut changed = input.to_vec();
        if let Some(first) = changed.first_mut() {
            *first = error;
        }
        let mut frame = frame_of(&changed);
        let Ok(parsed) = parse(&frame) else { return };
        if checksum::fill_transport(&mut frame, &parsed).is_err() {
            return;
        }
        let Ok(mut embedded) = parse_embedded(&frame, &parsed) else { return };
        let port = input.last().filter(|byte| **byte & 1 == 0).map(|byte| u16::from(*byte));
        if rewrite_embedded(&mut frame, &parsed, &mut embedded, &translation(parsed.is_v6(), port)).is_ok() {
            assert_eq!(parse(&frame), Ok(parsed));
            assert_eq!(parse_embedded(&frame, &parsed), Ok(embedded));
            assert_eq!(checksum::verify_transport(&frame, &parsed), Ok(()));
        }
    });
}

/// Turns each four bytes of fuzz input into a segment of one of ten connections: which one, length, flags, and
/// a change that may break anything. Sequence numbers go on unless that changes them.
fn segments_of(input: &[u8]) -> Vec<Vec<u8>> {
    let mut sent = [0_u32; 10];
    let header = fixtures::bytes(fixtures::TCP_DATA)[..66].to_vec();
    let segment = |chunk: &[u8]| {
        let (connection, length) =
            (usize::from(chunk[0] % 10), if chunk[1] < 192 { 8 } else { chunk[1] & 15 });
        let mut frame = [&header[..], &vec![chunk[3]; usize::from(length)]].concat();
        frame[17] = 52 + length;
        frame[34] = connection as u8;
        frame[38..42].copy_from_slice(&sent[connection].to_be_bytes());
        frame[47] = if chunk[2] < 200 { 0x10 } else { chunk[2] };
        sent[connection] += u32::from(length);
        if chunk[3] < 32 {
            let at = usize::from(chunk[2] ^ chunk[1]) % frame.len();
            frame[at] = frame[at].wrapping_add(chunk[3]);
        }
        if let Ok(parsed) = parse(&frame) {
            checksum::fill_network(&mut frame, &parsed).unwrap();
            checksum::fill_transport(&mut frame, &parsed).unwrap();
        }
        if chunk[3] == 255 {
            frame[65] ^= 1;
        }
        frame
    };
    input.chunks_exact(4).map(segment).collect()
}

#[test]
fn fuzz_coalesce() {
    bolero::check!().with_iterations(ITERATIONS / 4).for_each(|input: &[u8]| {
        let frames = if input.first().is_some_and(|byte| byte & 3 == 0) {
            input.chunks(16).map(frame_of).collect()
        } else {
            segments_of(input)
        };
        let config = CoalesceConfig { join_udp: true, max_parts: 4, ..CoalesceConfig::default() };
        let mut coalescer = Coalescer::new(config);
        let (mut payload_bytes, mut pushed_bytes, mut left) = (0, 0, 0);
        let mut sink = |output: Output<'_>| {
            let mut frame = output.header[10..].to_vec();
            for part in output.parts {
                let from = part.start as usize;
                frame.extend_from_slice(&frames[part.buffer as usize][from..from + part.length as usize]);
            }
            let header = VirtioNetHeader::decode(output.header, 10).unwrap();
            let parsed = parse(&frame).unwrap();
            assert!(header.validate(frame.len(), &parsed).is_ok());
            payload_bytes += parsed.payload_length();
            left += output.parts.len();
        };
        let mut pushed = 0;
        for (buffer, frame) in frames.iter().enumerate() {
            if let Ok(parsed) = parse(frame) {
                // A caller that lies about checksums must not bring us down either.
                let checksums = if buffer % 8 == 0 { Checksums::Verified } else { Checksums::Unknown };
                let place = Place { port: 0, buffer: buffer as u32, start: 0, checksums };
                coalescer.push(place, frame, &parsed, &mut sink);
                pushed += 1;
                pushed_bytes += parsed.payload_length();
            }
        }
        coalescer.flush(&mut sink);
        assert_eq!((payload_bytes, left), (pushed_bytes, pushed));
        let counters = coalescer.counters();
        assert_eq!(counters.frames, counters.merged_frames + counters.single_frames);
    });
}
