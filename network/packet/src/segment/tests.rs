use super::*;
use crate::checksum::verify;
use crate::fixtures::{self, bytes};
use crate::parse;
use crate::virtio::{GSO_TCPV4, GSO_TCPV6};

/// Cuts `frame` and returns the segments as whole frames.
fn cut(frame: &[u8], gso_type: u8, payload_bytes: usize) -> Vec<Vec<u8>> {
    let parsed = parse(frame).unwrap();
    let segmentation = Segmentation { gso_type, payload_bytes, segments: 0 };
    let mut segmenter = Segmenter::new(frame, &parsed, &segmentation).unwrap();
    let mut header = [0; MAX_SEGMENT_HEADER_BYTES];
    let mut segments = Vec::new();
    let (count, header_bytes) = (segmenter.count(), segmenter.header_bytes());
    while let Some(range) = segmenter.next_into(&mut header) {
        segments.push([&header[..header_bytes], &frame[range]].concat());
    }
    assert_eq!(segments.len(), count);
    for segment in &segments {
        let parsed = parse(segment).unwrap();
        assert_eq!(parsed.end, segment.len());
        verify(segment, &parsed).unwrap();
    }
    segments
}

#[test]
fn flags_identification_and_sequence_follow_the_rules() {
    let mut frame = bytes(fixtures::TCP_DATA);
    frame[47] |= tcp_flags::FIN | tcp_flags::CWR;
    frame[18..20].copy_from_slice(&[0xff, 0xff]);
    frame[38..42].copy_from_slice(&[0xff, 0xff, 0xff, 0xfb]);
    let segments = cut(&frame, GSO_TCPV4, 7);
    let read = |segment: &Vec<u8>| {
        let parsed = parse(segment).unwrap();
        (parsed.identification, get32(segment, 38), parsed.tcp_flags, parsed.payload_length())
    };
    let (ack, psh, fin, cwr) = (tcp_flags::ACK, tcp_flags::PSH, tcp_flags::FIN, tcp_flags::CWR);
    assert_eq!(read(&segments[0]), (0xffff, 0xffff_fffb, ack | cwr, 7));
    assert_eq!(read(&segments[1]), (0, 2, ack, 7));
    assert_eq!(read(&segments[2]), (1, 9, ack | psh | fin, 4));
    assert_eq!(segments.len(), 3);
}

#[test]
fn one_segment_is_the_frame_itself() {
    for hex in [fixtures::TCP_DATA, fixtures::TCP_FIN] {
        let frame = bytes(hex);
        assert_eq!(cut(&frame, GSO_TCPV4, 1448), [frame]);
    }
}

#[test]
fn cuts_udp_over_both_families() {
    for hex in [fixtures::UDP_V4, fixtures::UDP_V6] {
        let frame = bytes(hex);
        let whole = parse(&frame).unwrap();
        let segments = cut(&frame, GSO_UDP_L4, 2);
        let payload: Vec<u8> =
            segments.iter().flat_map(|segment| segment[whole.payload_offset..].to_vec()).collect();
        assert_eq!(payload, frame[whole.payload_offset..whole.payload_end]);
        assert_eq!(segments.len(), whole.payload_length().div_ceil(2));
    }
}

#[test]
fn refuses_what_cannot_be_cut() {
    let frame = bytes(fixtures::UDP_V4);
    let parsed = parse(&frame).unwrap();
    let new = |gso_type, payload_bytes| {
        let segmentation = Segmentation { gso_type, payload_bytes, segments: 1 };
        Segmenter::new(&frame, &parsed, &segmentation).map(|_| ())
    };
    assert_eq!(new(GSO_TCPV6, 5), Err(PacketError::VirtioGsoType));
    assert_eq!(new(GSO_UDP_L4, 0), Err(PacketError::VirtioGsoSize));
    let segmentation = Segmentation { gso_type: GSO_UDP_L4, payload_bytes: 5, segments: 1 };
    assert!(Segmenter::new(&frame[..40], &parsed, &segmentation).is_err());
    let mut segmenter = Segmenter::new(&frame, &parsed, &segmentation).unwrap();
    assert_eq!(segmenter.next_into(&mut [0; 41]), None);
}

/// With the headers alone, the same segments come out as with the whole frame, checksums left partial.
#[test]
fn headers_alone_are_enough_for_partial_checksums() {
    let kinds = [
        (fixtures::TCP_DATA, GSO_TCPV4, 7),
        (fixtures::UDP_V4, GSO_UDP_L4, 2),
        (fixtures::UDP_V6, GSO_UDP_L4, 3),
    ];
    for (hex, gso_type, payload_bytes) in kinds {
        let frame = bytes(hex);
        let parsed = parse(&frame).unwrap();
        let segmentation = Segmentation { gso_type, payload_bytes, segments: 1 };
        let headers = &frame[..parsed.payload_offset];
        let mut short = Segmenter::of_header(headers, &parsed, &segmentation).unwrap();
        let mut whole = Segmenter::new(&frame, &parsed, &segmentation).unwrap().leave_partial(&parsed);
        let mut rooms = [[0; MAX_SEGMENT_HEADER_BYTES]; 2];
        loop {
            let range = whole.next_into(&mut rooms[0]);
            assert_eq!(short.next_into(&mut rooms[1]), range);
            assert_eq!(rooms[0], rooms[1]);
            if range.is_none() {
                break;
            }
        }
        let missing = Segmenter::of_header(&headers[1..], &parsed, &segmentation);
        assert_eq!(missing.map(|_| ()), Err(PacketError::FrameMismatch));
    }
}
