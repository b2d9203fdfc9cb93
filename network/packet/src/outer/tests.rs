use super::*;
use crate::checksum;
use proptest::prelude::*;

const ETHERNET: (Mac, Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Sender and receiver of a family.
fn pair(is_v6: bool) -> (IpAddr, IpAddr) {
    if is_v6 { (ip("2001:db8::1"), ip("2001:db8::2")) } else { (ip("192.0.2.1"), ip("192.0.2.2")) }
}

fn frame(is_v6: bool, ecn: u8, payload: &[&[u8]], with_checksum: bool) -> Vec<u8> {
    let (source, destination) = pair(is_v6);
    let header = OuterHeader::new(ETHERNET, source, destination, 64, 6081).unwrap();
    let bytes = header.of(50_000, ecn, payload, with_checksum);
    let mut frame = bytes[..header.length()].to_vec();
    payload.iter().for_each(|piece| frame.extend_from_slice(piece));
    frame
}

/// Whether a frame was made as it should be is for the parser of whole frames to say, which knows nothing of this module.
fn assert_whole(frame: &[u8], is_v6: bool, ecn: u8) {
    let parsed = crate::parse(frame).unwrap();
    assert_eq!(checksum::verify(frame, &parsed), Ok(()));
    assert_eq!((parsed.source_port, parsed.destination_port), (50_000, 6081));
    assert_eq!((parsed.ecn(), parsed.ttl, parsed.end), (ecn, 64, frame.len()));
    assert!(is_v6 || parsed.dont_fragment);
}

proptest! {
    /// Whatever the payload and how it is cut into pieces, the frame is right, and what is read of it is what was written.
    #[test]
    fn what_is_written_is_read(
        is_v6 in any::<bool>(),
        ecn in 0_u8..4,
        with_checksum in any::<bool>(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        cut in 0_usize..300,
    ) {
        let (first, second) = payload.split_at(cut.min(payload.len()));
        let frame = frame(is_v6, ecn, &[first, second], with_checksum);
        assert_whole(&frame, is_v6, ecn);
        let (source, destination) = pair(is_v6);
        let opened = open(&frame, &destination.into()).unwrap();
        prop_assert_eq!((opened.sender, opened.port, opened.ecn), (source, 6081, ecn));
        prop_assert_eq!(&frame[opened.start..opened.end], &payload[..]);
        // What the device pads a short frame with is no part of it.
        let padded = [&frame[..], &[0xaa; 20]].concat();
        prop_assert_eq!(open(&padded, &destination.into()), Ok(opened));
    }

    /// A changed bit behind the Ethernet addresses is noticed, or makes no difference to what is read, but for what no checksum covers.
    #[test]
    fn damage_is_noticed(
        is_v6 in any::<bool>(),
        payload in proptest::collection::vec(any::<u8>(), 1..100),
        at in 0_usize..1000,
        bit in 0_u8..8,
    ) {
        let whole = frame(is_v6, 0, &[&payload], true);
        let (_, destination) = pair(is_v6);
        let mut frame = whole.clone();
        let at = 12 + at % (frame.len() - 12);
        frame[at] ^= 1 << bit;
        // Over IPv6 nothing covers the traffic class, the flow label and the hop limit.
        let uncovered = is_v6 && ((14..18).contains(&at) || at == 21);
        prop_assert!(uncovered || open(&frame, &destination.into()).is_err());
    }
}

#[test]
fn two_families_make_no_header() {
    assert_eq!(OuterHeader::new(ETHERNET, ip("192.0.2.1"), ip("2001:db8::2"), 64, 6081), None);
}

#[test]
fn a_checksum_is_left_out_over_ipv4_alone() {
    let field = |is_v6, asked| {
        let at = if is_v6 { 60 } else { 40 };
        let frame = frame(is_v6, 0, &[&[1, 2, 3]], asked);
        get16(&frame, at)
    };
    assert_eq!(field(false, false), 0);
    assert_ne!(field(false, true), 0);
    assert_eq!(field(true, false), field(true, true));
    assert_ne!(field(true, false), 0);
}

/// What is refused, and why: a whole frame with one thing changed.
#[test]
fn each_refusal_has_its_reason() {
    let v4 = |change: fn(&mut Vec<u8>)| {
        let mut frame = frame(false, 0, &[&[7; 20]], true);
        change(&mut frame);
        // What follows the change is made right again, so that it alone decides.
        if frame.len() >= 34 {
            frame[24..26].fill(0);
            let sum = Sum::ZERO.bytes(&frame[14..34]).finish();
            put16(&mut frame, 24, sum);
        }
        open(&frame, &ip("192.0.2.2").into())
    };
    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, PacketError); 15] = [
        (|frame| frame.truncate(13), PacketError::EthernetTruncated),
        (|frame| frame.truncate(33), PacketError::Ipv4Truncated),
        (|frame| frame[13] = 6, PacketError::OuterUnwanted),
        (|frame| frame[14] = 0x55, PacketError::Ipv4Version),
        (|frame| frame[14] = 0x46, PacketError::OuterUnwanted),
        (|frame| frame[20] = 0x20, PacketError::OuterUnwanted),
        (|frame| frame[21] = 1, PacketError::OuterUnwanted),
        (|frame| frame[23] = 6, PacketError::OuterUnwanted),
        (|frame| frame[33] = 3, PacketError::OuterUnwanted),
        (|frame| frame[17] = 19, PacketError::Ipv4TotalLengthShort),
        (|frame| frame[17] = 200, PacketError::Ipv4TotalLengthLong),
        (|frame| frame[17] = 27, PacketError::UdpTruncated),
        (|frame| frame[39] = 7, PacketError::UdpLengthShort),
        (|frame| frame[39] = 29, PacketError::UdpLengthLong),
        (|frame| frame[45] ^= 1, PacketError::UdpChecksum),
    ];
    for (number, (change, reason)) in cases.into_iter().enumerate() {
        assert_eq!(v4(change), Err(reason), "case {number}");
    }
    for source in [[224, 0, 0, 1], [255; 4], [0; 4], [127, 0, 0, 1], [192, 0, 2, 2]] {
        let mut frame = frame(false, 0, &[&[7; 20]], false);
        put(&mut frame, 26, &source);
        frame[24..26].fill(0);
        let sum = Sum::ZERO.bytes(&frame[14..34]).finish();
        put16(&mut frame, 24, sum);
        assert_eq!(open(&frame, &ip("192.0.2.2").into()), Err(PacketError::SourceMulticast), "{source:?}");
    }
    let mut bad = frame(false, 0, &[&[7; 20]], true);
    bad[24] ^= 1;
    assert_eq!(open(&bad, &ip("192.0.2.2").into()), Err(PacketError::Ipv4Checksum));
}

#[test]
fn over_ipv6_a_checksum_must_be_there() {
    let mut bytes = frame(true, 0, &[&[7; 20]], true);
    put16(&mut bytes, 60, 0);
    assert_eq!(open(&bytes, &ip("2001:db8::2").into()), Err(PacketError::UdpChecksum));
    let mut bytes = frame(true, 0, &[&[7; 20]], true);
    bytes[20] = 44;
    assert_eq!(open(&bytes, &ip("2001:db8::2").into()), Err(PacketError::OuterUnwanted));
    let mut bytes = frame(true, 0, &[&[7; 20]], true);
    put16(&mut bytes, 18, 200);
    assert_eq!(open(&bytes, &ip("2001:db8::2").into()), Err(PacketError::Ipv6PayloadLength));
}

/// A frame of a veth pair whose sender left the checksum to a card that there is not.
#[test]
fn a_checksum_that_nobody_has_computed_is_taken() {
    for is_v6 in [false, true] {
        let (source, destination) = pair(is_v6);
        let mut bytes = frame(is_v6, 0, &[&[7; 21]], true);
        let sum = pseudo_header(&source.into(), &destination.into(), UDP, 29).partial();
        put16(&mut bytes, if is_v6 { 60 } else { 40 }, sum);
        assert!(open(&bytes, &destination.into()).is_ok());
        put16(&mut bytes, if is_v6 { 60 } else { 40 }, sum ^ 1);
        assert_eq!(open(&bytes, &destination.into()), Err(PacketError::UdpChecksum));
    }
}
