use super::*;
use proptest::prelude::*;
use std::io::Write;
use std::os::fd::AsFd;
use weir_packet::Parsed;
use weir_packet::build::{Link, udp_datagram};
use weir_packet::virtio::Segmentation;

/// What a super-frame of `length` bytes with these headers and segments would be parsed to.
fn packet(headers: usize, payload: usize, length: usize) -> Checked {
    let segmentation = Segmentation {
        gso_type: weir_packet::virtio::GSO_TCPV4,
        payload_bytes: payload,
        segments: (length - headers).div_ceil(payload),
    };
    let mut frame = [0; 200];
    let link = Link { source: [6; 6], destination: [2, 0, 0, 0, 0, 1], vlan_tci: None };
    let address = |text: &str| text.parse::<std::net::IpAddr>().unwrap().into();
    let (from, to) = ((address("10.0.0.1"), 1000), (address("10.0.0.2"), 53));
    let bytes = udp_datagram(&mut frame, &link, from, to, &[0; 8]).unwrap();
    let parsed = weir_packet::parse(&frame[..bytes]).unwrap();
    let parsed = Parsed { payload_offset: headers, payload_end: length, ..parsed };
    Checked { parsed, offload: Offload::Segment(segmentation) }
}

/// Reads what a device gives in one read, here a pipe.
fn read(shape: &Shape, memory: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    let (reader, mut writer) = std::io::pipe().unwrap();
    // A pipe holds this much by default.
    assert!(bytes.len() <= 65_536);
    writer.write_all(bytes).unwrap();
    shape.read(reader.as_fd(), memory, at).unwrap()
}

const AT: usize = 128;

proptest! {
    /// Wherever a frame ends, what was read with gaps lies where they say, and closed up is what was written.
    #[test]
    fn closed_up_a_frame_is_what_was_read(
        tunnel in 8_u16..60,
        headers in 42_u16..160,
        payload in PAYLOAD_BYTES_MIN as u16..9000,
        length in 1_usize..65_536 - HEADER_BYTES,
    ) {
        let shape = Shape { tunnel, headers, payload };
        let mut memory = vec![0xee; AT + SPREAD_BYTES_MAX];
        let bytes: Vec<u8> = (0..length + HEADER_BYTES).map(|at| (at % 251) as u8).collect();
        let read = read(&shape, &mut memory, AT, &bytes);
        prop_assert_eq!(read, bytes.len());
        prop_assert!(memory[..AT - HEADER_BYTES].iter().all(|byte| *byte == 0xee));
        // Each datagram's payload is behind a gap.
        let (mut at, mut done) = (AT + shape.first(), HEADER_BYTES + shape.first());
        while done < read {
            prop_assert!(memory[at..at + shape.gap()].iter().all(|byte| *byte == 0xee), "a gap is not written");
            at += shape.gap();
            let piece = shape.payload().min(read - done);
            prop_assert_eq!(&memory[at..at + piece], &bytes[done..done + piece]);
            (at, done) = (at + piece, done + piece);
        }
        prop_assert!(memory[at.max(AT + length)..].iter().all(|byte| *byte == 0xee));
        shape.close(&mut memory, AT, length);
        prop_assert_eq!(&memory[AT - HEADER_BYTES..AT + length], &bytes[..]);
    }
}

#[test]
fn only_what_is_cut_alike_fits() {
    let shape = Shape::of(&packet(66, 1348, 60_000), 32).unwrap();
    assert_eq!((shape.tunnel(), shape.gap(), shape.first(), shape.datagram()), (32, 98, 1414, 1446));
    assert!(shape.fits(&packet(66, 1348, 5000), 5000));
    assert!(!shape.fits(&packet(66, 1300, 5000), 5000), "another segment size");
    assert!(!shape.fits(&packet(54, 1348, 5000), 5000), "other headers");
    assert!(!shape.fits(&packet(66, 1348, 4998), 5000), "bytes behind the packet");
    let whole = Checked { offload: Offload::Complete, ..packet(66, 1348, 5000) };
    assert!(!shape.fits(&whole, 5000));
    assert_eq!(Shape::of(&whole, 32), None);
    assert_eq!(Shape::of(&packet(66, PAYLOAD_BYTES_MIN - 1, 60_000), 32), None, "too many datagrams");
    assert_eq!(Shape::of(&packet(200, 1348, 60_000), 32), None, "too long headers");
}

#[test]
fn a_port_must_agree_with_itself_before_it_is_foretold() {
    let (one, other) = (Shape::of(&packet(66, 1348, 9000), 32), Shape::of(&packet(66, 1336, 9000), 32));
    let mut shapes = Shapes::default();
    for _ in 0..AGREED {
        shapes.saw(7, one);
        assert_eq!(shapes.of_port(7), None);
    }
    shapes.saw(7, one);
    assert_eq!(shapes.of_port(7), one);
    assert_eq!(shapes.of_port(8), None);
    // Small frames alone make it be read plainly, until the next super-frame.
    for _ in 1..SMALL_MAX {
        shapes.small(7);
        assert_eq!(shapes.of_port(7), one);
    }
    shapes.small(7);
    assert_eq!(shapes.of_port(7), None);
    shapes.saw(7, one);
    assert_eq!(shapes.of_port(7), one);
    shapes.saw(7, other);
    assert_eq!(shapes.of_port(7), None);
    for _ in 0..=AGREED {
        shapes.saw(7, other);
    }
    assert_eq!(shapes.of_port(7), other);
    shapes.forget(7);
    assert_eq!(shapes.of_port(7), None);
    for _ in 0..9 {
        shapes.saw(7, None);
    }
    assert_eq!(shapes.of_port(7), None, "what cannot be spread is never foretold");
}
