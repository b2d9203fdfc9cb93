use super::*;
use crate::bytes::put16;
use crate::fixtures::{self, bytes};
use crate::parse;

/// The definition, word by word.
fn plain(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn agrees_with_the_definition_at_every_length() {
    let data: Vec<u8> = (0..200_u32).map(|n| (n * 151 % 256) as u8).collect();
    for length in 0..data.len() {
        assert_eq!(checksum(&data[..length]), plain(&data[..length]), "{length}");
    }
    assert_eq!(checksum(&[0xff; 65535]), plain(&[0xff; 65535]));
    let split =
        Sum::ZERO.bytes(&data[..34]).word(0x1234).double(0xffff_ffff).join(Sum::ZERO.bytes(&data[34..71]));
    let joined = [&data[..34], &[0x12, 0x34, 0xff, 0xff, 0xff, 0xff], &data[34..71]].concat();
    assert_eq!(split.finish(), plain(&joined));
}

#[test]
fn the_kernel_s_packets_verify_and_damaged_ones_do_not() {
    for hex in fixtures::ALL {
        let mut frame = bytes(hex);
        let parsed = parse(&frame).unwrap();
        assert_eq!(verify(&frame, &parsed), Ok(()), "{hex}");
        let before = frame.clone();
        fill_network(&mut frame, &parsed).unwrap();
        fill_transport(&mut frame, &parsed).unwrap();
        assert_eq!(frame, before);
        if parsed.network == Network::Ipv4 {
            frame[parsed.l3_offset + 8] ^= 0x10;
            assert_eq!(verify(&frame, &parsed), Err(PacketError::Ipv4Checksum));
            frame[parsed.l3_offset + 8] ^= 0x10;
        }
        if parsed.transport != Transport::Other {
            frame[parsed.payload_end - 1] ^= 1;
            assert!(verify(&frame, &parsed).is_err());
        }
    }
}

#[test]
fn an_absent_udp_checksum_is_fine_over_ipv4_only() {
    for (hex, result) in [(fixtures::UDP_V4, Ok(())), (fixtures::UDP_V6, Err(PacketError::UdpChecksum))] {
        let mut frame = bytes(hex);
        let parsed = parse(&frame).unwrap();
        put16(&mut frame, parsed.l4_offset + 6, 0);
        assert_eq!(verify(&frame, &parsed), result);
    }
}

#[test]
fn a_partial_checksum_completes_to_the_full_one() {
    for hex in [fixtures::TCP_SYN, fixtures::TCP_DATA, fixtures::UDP_V4, fixtures::UDP_V6] {
        let mut frame = bytes(hex);
        let parsed = parse(&frame).unwrap();
        let before = frame.clone();
        fill_partial(&mut frame, &parsed).unwrap();
        assert_ne!(frame, before);
        let field = field_offset(&parsed).unwrap();
        complete(&mut frame, parsed.l4_offset, field, parsed.end).unwrap();
        assert_eq!(frame, before);
        assert_eq!(complete(&mut frame, 40, 39, 48), Err(PacketError::VirtioChecksum));
        assert_eq!(complete(&mut frame, 40, 47, 48), Err(PacketError::VirtioChecksum));
        let beyond = frame.len() + 1;
        assert_eq!(complete(&mut frame, 40, 41, beyond), Err(PacketError::VirtioChecksum));
    }
}

#[test]
fn a_shorter_frame_than_was_parsed_is_refused() {
    let frame = bytes(fixtures::TCP_DATA);
    let parsed = parse(&frame).unwrap();
    assert_eq!(verify(&frame[..60], &parsed), Err(PacketError::FrameMismatch));
}

#[test]
fn vector_instructions_and_the_plain_loop_agree() {
    let mut state = 1_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    // The last is longer than what the vector's lanes hold at once.
    for length in [255, 256, 257, 319, 320, 1448, 9000, 65_535, 1_200_001] {
        let random: Vec<u8> = (0..length).map(|_| noise()).collect();
        let extremes = [0x00, 0x7f, 0x80, 0xff].map(|byte| vec![byte; length]);
        for bytes in std::iter::once(random).chain(extremes) {
            for skew in 0..3 {
                let bytes = &bytes[skew..];
                let narrow = Sum::ZERO.narrow(bytes).finish();
                assert_eq!(Sum::ZERO.bytes(bytes).finish(), narrow, "{length} from {skew}");
            }
        }
    }
}
