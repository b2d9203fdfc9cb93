use super::*;
use crate::fixtures::{self, bytes};
use crate::parse;

fn tcp() -> (Vec<u8>, Parsed) {
    let frame = bytes(fixtures::TCP_DATA);
    let parsed = parse(&frame).unwrap();
    (frame, parsed)
}

fn request() -> VirtioNetHeader {
    VirtioNetHeader {
        flags: FLAG_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 66,
        gso_size: 10,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    }
}

#[test]
fn is_little_endian_and_reads_back() {
    let mut header = request();
    let mut buffer = [0; 12];
    header.encode(&mut buffer, HEADER_BYTES).unwrap();
    assert_eq!(buffer[..10].to_vec(), bytes("010142000a0022001000"));
    assert_eq!(VirtioNetHeader::decode(&buffer, 10), Ok(header));
    header.num_buffers = 3;
    header.encode(&mut buffer, MERGEABLE_HEADER_BYTES).unwrap();
    assert_eq!(VirtioNetHeader::decode(&buffer, 12), Ok(header));
    assert_eq!(VirtioNetHeader::decode(&buffer[..9], 10), Err(PacketError::VirtioTruncated));
    assert_eq!(VirtioNetHeader::decode(&buffer, 11), Err(PacketError::VirtioTruncated));
    assert_eq!(header.encode(&mut buffer[..9], 10), Err(PacketError::BufferTooSmall));
}

#[test]
fn accepts_what_fits_and_writes_a_clean_header() {
    let (frame, parsed) = tcp();
    let offload = request().validate(frame.len(), &parsed).unwrap();
    let segmentation = Segmentation { gso_type: GSO_TCPV4, payload_bytes: 10, segments: 2 };
    assert_eq!(offload, Offload::Segment(segmentation));
    assert_eq!(offload.header(&parsed), VirtioNetHeader { num_buffers: 1, ..request() });
    let checksum = VirtioNetHeader { gso_type: GSO_NONE, gso_size: 0, ..request() };
    let offload = checksum.validate(frame.len(), &parsed).unwrap();
    assert_eq!(offload, Offload::Checksum { start: 34, field: 50 });
    assert_eq!(offload.header(&parsed).csum_start, 34);
    let plain = VirtioNetHeader { flags: FLAG_DATA_VALID, ..VirtioNetHeader::default() };
    assert_eq!(plain.validate(frame.len(), &parsed), Ok(Offload::Complete));
    assert_eq!(Offload::Complete.header(&parsed).flags, 0);
}

#[test]
fn refuses_what_does_not_fit() {
    let (frame, parsed) = tcp();
    let fails =
        |header: VirtioNetHeader, reason| assert_eq!(header.validate(frame.len(), &parsed), Err(reason));
    fails(VirtioNetHeader { flags: 0x81, ..request() }, PacketError::VirtioFlags);
    fails(VirtioNetHeader { flags: 0, ..request() }, PacketError::VirtioGsoChecksum);
    fails(VirtioNetHeader { hdr_len: 85, ..request() }, PacketError::VirtioHeaderLength);
    fails(VirtioNetHeader { csum_start: 33, ..request() }, PacketError::VirtioChecksum);
    fails(VirtioNetHeader { csum_start: u16::MAX, ..request() }, PacketError::VirtioChecksum);
    fails(VirtioNetHeader { csum_offset: 2, ..request() }, PacketError::VirtioChecksum);
    fails(VirtioNetHeader { gso_type: GSO_TCPV6, ..request() }, PacketError::VirtioGsoType);
    fails(VirtioNetHeader { gso_type: GSO_UDP_L4, ..request() }, PacketError::VirtioGsoType);
    fails(VirtioNetHeader { gso_type: 3, ..request() }, PacketError::VirtioGsoType);
    fails(VirtioNetHeader { gso_type: GSO_ECN, ..request() }, PacketError::VirtioGsoType);
    fails(VirtioNetHeader { gso_size: 0, ..request() }, PacketError::VirtioGsoSize);
}

#[test]
fn bounds_the_number_of_segments_and_refuses_control_segments() {
    let mut frame = tcp().0;
    frame.resize(66 + MAX_SEGMENTS + 1, 0);
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    let parsed = parse(&frame).unwrap();
    let header = VirtioNetHeader { gso_size: 1, ..request() };
    assert_eq!(header.validate(frame.len(), &parsed), Err(PacketError::VirtioGsoSize));
    let header = VirtioNetHeader { gso_size: 2, ..request() };
    assert!(header.validate(frame.len(), &parsed).is_ok());
    let syn = bytes(fixtures::TCP_SYN);
    let parsed = parse(&syn).unwrap();
    assert_eq!(request().validate(syn.len(), &parsed), Err(PacketError::VirtioGsoFlags));
    let echo = bytes(fixtures::ICMP_ECHO_REQUEST);
    let header = VirtioNetHeader { gso_type: 0, hdr_len: 0, csum_offset: 2, ..request() };
    assert_eq!(header.validate(echo.len(), &parse(&echo).unwrap()), Err(PacketError::VirtioChecksum));
}

#[test]
fn what_asks_for_nothing_is_told_from_two_words() {
    let (frame, parsed) = tcp();
    for bits in 0..=u16::MAX {
        let [flags, gso_type] = bits.to_le_bytes();
        for hdr_len in [0, 1, frame.len() as u16, frame.len() as u16 + 1, u16::MAX] {
            let header = VirtioNetHeader { flags, gso_type, hdr_len, ..request() };
            let mut buffer = [0; HEADER_BYTES];
            header.encode(&mut buffer, HEADER_BYTES).unwrap();
            let is_complete = header.validate(frame.len(), &parsed) == Ok(Offload::Complete);
            assert_eq!(asks_nothing(&buffer, frame.len()), is_complete, "{header:?}");
        }
    }
}
