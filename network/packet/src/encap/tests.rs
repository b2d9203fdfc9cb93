use super::*;
use crate::fixtures::{self, bytes};
use crate::parse;

/// Geneve as RFC 8926 draws it: version 0, `options`, VNI 42.
fn geneve(options: &[u8]) -> Vec<u8> {
    [&[(options.len() / 4) as u8, 0, 0x65, 0x58, 0, 0, 42, 0], options, &[0xee; 14]].concat()
}

#[test]
fn reads_the_kernel_s_vxlan() {
    let frame = bytes(fixtures::VXLAN_ECHO_REQUEST);
    let outer = parse(&frame).unwrap();
    assert_eq!(outer.destination_port, VXLAN_PORT);
    let datagram = &frame[outer.payload_offset..outer.payload_end];
    let tunnel = Encapsulation::Vxlan.decode(datagram).unwrap();
    assert_eq!(
        tunnel,
        Decapsulated {
            vni: 42,
            inner_offset: 8,
            token: None,
            checksum: InnerChecksum::Full,
            half: Half::Unsaid,
            oam: false
        }
    );
    assert!(parse(&datagram[8..]).unwrap().is_icmp_echo());
    let mut written = [0; 8];
    assert_eq!(encode_vxlan(&mut written, 42), Ok(8));
    assert_eq!(written, datagram[..8]);
}

#[test]
fn vxlan_refuses_other_flags_and_vnis() {
    for flags in [0x00, 0x88, 0x0c, 0x09] {
        assert_eq!(decode_vxlan(&[flags, 0, 0, 0, 0, 0, 42, 0]), Err(PacketError::VxlanFlags));
    }
    assert_eq!(decode_vxlan(&[8, 0, 0, 0, 0, 0, 42]), Err(PacketError::VxlanTruncated));
    assert_eq!(encode_vxlan(&mut [0; 8], MAX_VNI + 1), Err(PacketError::VniRange));
    assert_eq!(encode_vxlan(&mut [0; 7], 1), Err(PacketError::BufferTooSmall));
}

#[test]
fn geneve_bytes_are_fixed_and_read_back() {
    let token = Some(0x0102_0304_0506_0708);
    let wire = [
        (InnerChecksum::Full, "03006558abcdef00ff5701020102030405060708"),
        (InnerChecksum::Accepts, "04006558abcdef00ff5701020102030405060708ff570200"),
        (InnerChecksum::Partial, "04406558abcdef00ff5701020102030405060708ff578300"),
    ];
    for (checksum, expected) in wire {
        let mut buffer = [0xaa; MAX_ENCAP_BYTES];
        let length = Encapsulation::Geneve.encode(&mut buffer, 0xabcdef, token, checksum).unwrap();
        assert_eq!(buffer[..length].to_vec(), bytes(expected));
        let half = Half::Unsaid;
        let read = Decapsulated { vni: 0xabcdef, inner_offset: length, token, checksum, half, oam: false };
        assert_eq!(Encapsulation::Geneve.decode(&buffer[..length]), Ok(read));
        let short = &mut buffer[..length - 1];
        assert_eq!(encode_geneve(short, 5, token, checksum), Err(PacketError::BufferTooSmall));
    }
    let mut buffer = [0; 8];
    assert_eq!(encode_geneve(&mut buffer, 5, None, InnerChecksum::Full), Ok(8));
    assert_eq!(buffer[..8], bytes("0000655800000500"));
}

#[test]
fn a_checksum_option_is_there_once_without_a_body() {
    let accepts = [0xff, 0x57, ACCEPTS_OPTION_TYPE, 0];
    let partial = [0xff, 0x57, PARTIAL_OPTION_TYPE, 0];
    let read = |options: &[u8]| decode_geneve(&geneve(options)).map(|tunnel| tunnel.checksum);
    assert_eq!(read(&[]), Ok(InnerChecksum::Full));
    assert_eq!(read(&accepts), Ok(InnerChecksum::Accepts));
    assert_eq!(read(&partial), Ok(InnerChecksum::Partial));
    assert_eq!(read(&[accepts, partial].concat()), Err(PacketError::GeneveChecksum));
    assert_eq!(read(&[&accepts[..3], &[1, 0, 0, 0, 0]].concat()), Err(PacketError::GeneveChecksum));
    // Of another class it is somebody else's; and the same types with the other critical bit are unknown ones.
    assert_eq!(read(&[0xff, 0x58, ACCEPTS_OPTION_TYPE, 0]), Ok(InnerChecksum::Full));
    assert_eq!(read(&[0xff, 0x57, PARTIAL_OPTION_TYPE & 0x7f, 0]), Ok(InnerChecksum::Full));
    assert_eq!(read(&[0xff, 0x57, ACCEPTS_OPTION_TYPE | 0x80, 0]), Err(PacketError::GeneveCritical));
}

#[test]
fn geneve_skips_unknown_options_and_refuses_critical_ones() {
    let unknown = [1, 0x29, 0x05, 1, 9, 9, 9, 9];
    let token = [0xff, 0x57, 1, 2, 0, 0, 0, 0, 0, 0, 0, 7];
    let both = [&unknown[..], &token[..]].concat();
    assert_eq!(decode_geneve(&geneve(&both)).unwrap().token, Some(7));
    assert_eq!(decode_geneve(&geneve(&unknown)).unwrap().token, None);
    let mut critical = unknown;
    critical[2] |= 0x80;
    assert_eq!(decode_geneve(&geneve(&critical)), Err(PacketError::GeneveCritical));
    let mut critical_token = token;
    critical_token[2] |= 0x80;
    assert_eq!(decode_geneve(&geneve(&critical_token)).unwrap().token, Some(7));
    assert_eq!(decode_geneve(&geneve(&[token, token].concat())), Err(PacketError::GeneveToken));
    assert_eq!(decode_geneve(&geneve(&[0xff, 0x57, 1, 1, 0, 0, 0, 7])), Err(PacketError::GeneveToken));
    assert_eq!(decode_geneve(&geneve(&[1, 0x29, 5, 2, 0, 0, 0, 7])), Err(PacketError::GeneveOption));
}

#[test]
fn geneve_refuses_what_it_does_not_speak() {
    let mut datagram = geneve(&[]);
    datagram[1] = 0x80;
    assert!(decode_geneve(&datagram).unwrap().oam);
    datagram[0] = 0x40;
    assert_eq!(decode_geneve(&datagram), Err(PacketError::GeneveVersion));
    datagram[0] = 63;
    assert_eq!(decode_geneve(&datagram), Err(PacketError::GeneveTruncated));
    datagram[0] = 0;
    datagram[3] = 0x59;
    assert_eq!(decode_geneve(&datagram), Err(PacketError::GeneveProtocol));
    assert_eq!(decode_geneve(&datagram[..7]), Err(PacketError::GeneveTruncated));
}

#[test]
fn ports_and_ecn_follow_their_rfcs() {
    assert_eq!(source_port(0), 49152);
    assert_eq!(source_port(u64::MAX), 65535);
    // RFC 6040, figure 4: rows inner (Not-ECT, ECT(0), ECT(1), CE), columns outer in the same order.
    let (not, ect0, ect1, ce) = (0, 2, 1, 3);
    let table = [
        (not, [Some(not), Some(not), Some(not), None]),
        (ect0, [Some(ect0), Some(ect0), Some(ect1), Some(ce)]),
        (ect1, [Some(ect1), Some(ect1), Some(ect1), Some(ce)]),
        (ce, [Some(ce), Some(ce), Some(ce), Some(ce)]),
    ];
    for (inner, row) in table {
        for (outer, expected) in [not, ect0, ect1, ce].into_iter().zip(row) {
            assert_eq!(ecn_inner(inner, outer), expected, "{inner} {outer}");
        }
        assert_eq!(ecn_outer(inner), inner);
    }
}

#[test]
fn what_a_half_decided_is_in_the_reserved_byte() {
    let token = Some(0x0102_0304_0506_0708);
    let wire = [
        (Half::Unsaid, 0),
        (Half::Opens, 0x10),
        (Half::Mutual, 0x11),
        (Half::Answers, 0x12),
        (Half::Replies, 0x13),
    ];
    for (half, byte) in wire {
        let mut buffer = [0; MAX_ENCAP_BYTES];
        let length = encode_geneve(&mut buffer, 0xabcdef, token, InnerChecksum::Accepts).unwrap();
        write_half(&mut buffer[..length], half);
        assert_eq!(buffer[7], byte);
        let read = decode_geneve(&buffer[..length]).unwrap();
        assert_eq!((read.half, read.vni, read.token), (half, 0xabcdef, token));
        if half != Half::Unsaid {
            assert_eq!(Half::new(half.opens(), half.accepts(), half.remembers()), half);
        }
    }
    // Of another version, and with bits that mean nothing yet, nothing is said.
    for byte in (0..=255).filter(|byte| !(0x10..=0x13).contains(byte)) {
        let mut datagram = geneve(&[]);
        datagram[7] = byte;
        assert_eq!(decode_geneve(&datagram).unwrap().half, Half::Unsaid);
    }
    // A packet that may open nothing passes only as a reply.
    assert_eq!(Half::new(false, false, false), Half::Replies);
}
