use super::*;
use proptest::prelude::*;

fn address_pairs() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
    ]
}

proptest! {
    #[test]
    fn what_is_built_is_read_back(
        (source, destination) in address_pairs(),
        macs in any::<([u8; 6], [u8; 6])>(),
        ports in any::<(u16, u16)>(),
        payload in proptest::collection::vec(any::<u8>(), 0..2000),
        padding in 0_usize..30,
    ) {
        let wanted = UdpFrame {
            source_mac: MacAddr(macs.0),
            destination_mac: MacAddr(macs.1),
            source,
            destination,
            source_port: ports.0,
            destination_port: ports.1,
            payload: &payload,
        };
        let mut frame = wanted.build().unwrap();
        frame.extend(vec![0xee; padding]);
        prop_assert_eq!(parse_udp(&frame).unwrap(), wanted);
    }

    #[test]
    fn one_changed_payload_bit_is_noticed(bit in 0_usize..800) {
        let payload = [0x5a; 100];
        let frame = UdpFrame {
            source_mac: MacAddr([2; 6]),
            destination_mac: MacAddr([4; 6]),
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
            source_port: 1,
            destination_port: 2,
            payload: &payload,
        };
        let mut bytes = frame.build().unwrap();
        bytes[42 + bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(parse_udp(&bytes), Err(FrameError::Wrong));
    }
}

#[test]
fn a_checksum_left_to_the_device_is_taken() {
    for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fe80::1", "fe80::2")] {
        let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
        let wanted = UdpFrame {
            source_mac: MacAddr([2; 6]),
            destination_mac: MacAddr([4; 6]),
            source,
            destination,
            source_port: 1000,
            destination_port: 53,
            payload: b"question",
        };
        let mut bytes = wanted.build().unwrap();
        let at = bytes.len() - 8 - 2;
        let partial = fold(pseudo_sum(source, destination, PROTOCOL_UDP, 16));
        bytes[at..at + 2].copy_from_slice(&partial.to_be_bytes());
        assert_eq!(parse_udp(&bytes), Ok(wanted));
        bytes[at] ^= 1;
        assert_eq!(parse_udp(&bytes), Err(FrameError::Wrong));
        bytes[at..at + 2].copy_from_slice(&[0, 0]);
        assert_eq!(parse_udp(&bytes).is_ok(), source.is_ipv4());
    }
}

#[test]
fn fragments_and_other_protocols_are_refused() {
    let frame = UdpFrame {
        source_mac: MacAddr([2; 6]),
        destination_mac: MacAddr([4; 6]),
        source: "10.0.0.1".parse().unwrap(),
        destination: "10.0.0.2".parse().unwrap(),
        source_port: 1,
        destination_port: 2,
        payload: b"x",
    };
    let good = frame.build().unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes[24..26].copy_from_slice(&[0, 0]);
        let sum = !fold(add(0, &bytes[14..34]));
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        parse_udp(&bytes).unwrap_err()
    };
    assert_eq!(with(20, 0x20), FrameError::Fragment);
    assert_eq!(with(21, 0x01), FrameError::Fragment);
    assert_eq!(with(23, 6), FrameError::OtherProtocol);
    assert_eq!(with(14, 0x65), FrameError::Wrong);
    assert_eq!(parse_udp(&good[..good.len() - 1]), Err(FrameError::Short));
    assert_eq!(parse_udp(&[]), Err(FrameError::Short));
}

#[test]
fn any_bytes_are_read_or_refused() {
    bolero::check!().for_each(|bytes: &[u8]| {
        if let Ok(frame) = parse_udp(bytes) {
            assert!(frame.payload.len() <= bytes.len());
            assert_eq!(parse_udp(&frame.build().unwrap()).unwrap(), frame);
        }
    });
}
