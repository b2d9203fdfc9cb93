use super::*;
use crate::fixtures::{self, bytes};
use crate::headers::{ARP_REPLY, NeighborMessage, parse_arp, parse_neighbor, tcp_flags};

const MAC: Mac = [2, 0, 0, 0, 0, 0xfe];

/// The bytes of the first `length` of `out`, after checking that they parse and verify.
fn checked(out: &[u8], length: usize) -> (Vec<u8>, Parsed) {
    let frame = out[..length].to_vec();
    let parsed = parse(&frame).unwrap();
    checksum::verify(&frame, &parsed).unwrap();
    assert_eq!(parsed.end, length);
    (frame, parsed)
}

fn read(hex: &str) -> (Vec<u8>, Parsed) {
    let frame = bytes(hex);
    let parsed = parse(&frame).unwrap();
    (frame, parsed)
}

#[test]
fn answers_arp() {
    let mut frame = bytes(fixtures::VXLAN_ARP_REQUEST)[50..].to_vec();
    frame.splice(12..12, [0x81, 0, 0, 7]);
    let parsed = parse(&frame).unwrap();
    let arp = parse_arp(&frame[parsed.l3_offset..]).unwrap();
    let mut out = [0; 64];
    let length = arp_reply(&mut out, &parsed, &arp, MAC).unwrap();
    let answer = parse(&out[..length]).unwrap();
    assert_eq!((answer.destination_mac, answer.vlan_id()), ([2, 0, 0, 0, 1, 1], Some(7)));
    let answer = parse_arp(&out[answer.l3_offset..length]).unwrap();
    assert_eq!((answer.operation, answer.sender_mac, answer.sender_ip), (ARP_REPLY, MAC, [10, 2, 0, 2]));
    assert_eq!((answer.target_mac, answer.target_ip), ([2, 0, 0, 0, 1, 1], [10, 2, 0, 1]));
    assert_eq!(arp_reply(&mut out, &parsed, &answer, MAC), Err(PacketError::NotAnswerable));
    assert_eq!(arp_reply(&mut out[..45], &parsed, &arp, MAC), Err(PacketError::BufferTooSmall));
    let length = arp_request(&mut out, None, MAC, [10, 0, 0, 1], [10, 0, 0, 9]).unwrap();
    let asked = parse_arp(&out[14..length]).unwrap();
    assert_eq!(
        (asked.target_ip, asked.target_mac, out[..6].to_vec()),
        ([10, 0, 0, 9], [0; 6], vec![0xff; 6])
    );
}

#[test]
fn answers_neighbour_solicitations_as_the_kernel_does() {
    let (frame, parsed) = read(fixtures::NEIGHBOR_SOLICITATION);
    let message = parse_neighbor(&frame, &parsed).unwrap().unwrap();
    let mut out = [0; 128];
    let length = neighbor_advertisement(&mut out, &parsed, &message, [2, 0, 0, 0, 0, 2], false).unwrap();
    assert_eq!(out[..length], bytes(fixtures::NEIGHBOR_ADVERTISEMENT));
    let probe = Parsed { source: IpAddress::default(), ..parsed };
    let length = neighbor_advertisement(&mut out, &probe, &message, MAC, true).unwrap();
    let (_, answer) = checked(&out, length);
    assert_eq!((answer.destination_mac, answer.destination.0[0]), ([0x33, 0x33, 0, 0, 0, 1], 0xff));
    assert_eq!(out[58] >> 5, 0b101, "router, not solicited, override");
    let other = NeighborMessage::RouterSolicitation { source_mac: None };
    assert_eq!(neighbor_advertisement(&mut out, &parsed, &other, MAC, true), Err(PacketError::NotAnswerable));
}

#[test]
fn advertises_a_router() {
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let servers = [[0xfd; 16], [0xfc; 16]];
    let advertisement = RouterAdvertisement {
        mac: MAC,
        source: link_local,
        hop_limit: 64,
        managed: true,
        other: true,
        lifetime_s: 1800,
        mtu: Some(1450),
        prefix: Some(Prefix {
            address: [0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            length: 64,
            on_link: true,
            autonomous: false,
            valid_s: 3600,
            preferred_s: 1200,
        }),
        dns_servers: &servers,
        dns_lifetime_s: 600,
    };
    let mut out = [0xaa; 256];
    let length = router_advertisement(&mut out, None, None, &advertisement).unwrap();
    let (frame, parsed) = checked(&out, length);
    assert_eq!((parsed.ttl, parsed.icmp_type, parsed.destination.to_string()), (255, 134, "ff02::1".into()));
    let expected = [
        "40c007080000000000000000", // hop limit, flags M and O, lifetime, timers
        "01010200000000fe",         // source link-layer address
        "05010000000005aa",         // MTU
        "0304408000000e10000004b000000000fd000001000000000000000000000000",
        "1905000000000258fdfdfdfdfdfdfdfdfdfdfdfdfdfdfdfdfcfcfcfcfcfcfcfcfcfcfcfcfcfcfcfc",
    ];
    assert_eq!(frame[58..], bytes(&expected.concat()));
    let many = [[0xfd; 16]; MAX_DNS_SERVERS + 1];
    let too_many = RouterAdvertisement { dns_servers: &many, ..advertisement };
    assert_eq!(router_advertisement(&mut out, None, None, &too_many), Err(PacketError::PacketTooLarge));
    let bare = RouterAdvertisement { mtu: None, prefix: None, dns_servers: &[], ..advertisement };
    let host = (IpAddress::v6(link_local), [2, 0, 0, 0, 0, 9]);
    let length = router_advertisement(&mut out, Some(7), Some(host), &bare).unwrap();
    assert_eq!(checked(&out, length).1.l3_length(), 40 + 24);
}

#[test]
fn answers_echo() {
    let (frame, parsed) = read(fixtures::ICMP_ECHO_REQUEST);
    let mut out = [0; 128];
    let length = echo_reply(&mut out, &frame, &parsed, MAC).unwrap();
    let (answer, answered) = checked(&out, length);
    let expected = bytes(fixtures::ICMP_ECHO_REPLY);
    assert_eq!(answer[34..], expected[34..]);
    assert_eq!((answered.source, answered.destination), (parsed.destination, parsed.source));
    let (frame, parsed) = read(fixtures::ICMP_ECHO_REPLY);
    assert_eq!(echo_reply(&mut out, &frame, &parsed, MAC), Err(PacketError::NotAnswerable));
}

#[test]
fn reports_errors_as_the_kernel_does() {
    let (frame, parsed) = read(fixtures::UDP_V4);
    let mut out = [0; 2048];
    let router = parsed.destination;
    let length = icmp_error(&mut out, &frame, &parsed, MAC, router, IcmpError::PortUnreachable).unwrap();
    let (answer, _) = checked(&out, length);
    assert_eq!(answer[34..], bytes(fixtures::ICMP_PORT_UNREACHABLE)[34..]);
    let length = icmp_error(&mut out, &frame, &parsed, MAC, router, IcmpError::TooBig { mtu: 1450 }).unwrap();
    let (answer, _) = checked(&out, length);
    assert_eq!((answer[34], answer[35], &answer[38..42]), (3, 4, &[0, 0, 5, 0xaa][..]));
    let (frame, parsed) = read(fixtures::UDP_V6);
    let router = parsed.destination;
    let length = icmp_error(&mut out, &frame, &parsed, MAC, router, IcmpError::TooBig { mtu: 1400 }).unwrap();
    let (answer, answered) = checked(&out, length);
    assert_eq!((answered.icmp_type, &answer[58..62]), (2, &[0, 0, 5, 0x78][..]));
    assert_eq!(answer[62..], frame[14..]);
    let length = icmp_error(&mut out, &frame, &parsed, MAC, router, IcmpError::Prohibited).unwrap();
    assert_eq!((checked(&out, length).1.icmp_type, out[55]), (1, 1));
}

#[test]
fn errors_carry_a_bounded_piece_and_are_not_sent_for_everything() {
    let mut out = [0; 2048];
    let link = Link { source: [2, 0, 0, 0, 0, 1], destination: MAC, vlan_tci: None };
    let (v4, v6) = (IpAddress::v4([10, 0, 0, 1]), IpAddress::v6([0xfd; 16]));
    for (address, limit) in [(v4, 576), (v6, 1280)] {
        let length = udp_datagram(&mut out, &link, (address, 5), (address, 6), &[1; 1500]).unwrap();
        let (frame, parsed) = checked(&out, length);
        let length = icmp_error(&mut out, &frame, &parsed, MAC, address, IcmpError::TimeExceeded).unwrap();
        assert_eq!(checked(&out, length).1.l3_length(), limit);
    }
    for hex in [
        fixtures::ICMP_PORT_UNREACHABLE,
        fixtures::ICMPV6_PORT_UNREACHABLE,
        fixtures::FRAGMENT_V4_LATER,
        fixtures::MLD_REPORT,
        fixtures::ROUTER_SOLICITATION,
    ] {
        let (frame, parsed) = read(hex);
        let source = if parsed.is_v6() { v6 } else { v4 };
        let result = icmp_error(&mut out, &frame, &parsed, MAC, source, IcmpError::HostUnreachable);
        assert_eq!(result, Err(PacketError::NotAnswerable), "{hex}");
    }
    for (at, value) in [(0, 0xff), (6, 0x03), (30, 224), (26, 0)] {
        let mut frame = bytes(fixtures::UDP_V4);
        let length = if at < 12 { 1 } else { 4 };
        frame[at..at + length].fill(value);
        let parsed = parse(&frame).unwrap();
        let result = icmp_error(&mut out, &frame, &parsed, MAC, v4, IcmpError::HostUnreachable);
        assert_eq!(result, Err(PacketError::NotAnswerable), "{at}");
    }
    let (frame, parsed) = read(fixtures::UDP_V4);
    let result = icmp_error(&mut out, &frame, &parsed, MAC, v6, IcmpError::NetworkUnreachable);
    assert_eq!(result, Err(PacketError::NotAnswerable));
}

#[test]
fn resets_a_refused_connection() {
    let mut out = [0; 128];
    let (frame, parsed) = read(fixtures::TCP_SYN);
    let length = tcp_reset(&mut out, &frame, &parsed, MAC).unwrap();
    let (answer, answered) = checked(&out, length);
    assert_eq!(answered.tcp_flags, tcp_flags::RST | tcp_flags::ACK);
    assert_eq!((&answer[38..42], &answer[42..46]), (&[0; 4][..], &bytes("95ead915")[..]));
    let (frame, parsed) = read(fixtures::TCP_DATA);
    let length = tcp_reset(&mut out, &frame, &parsed, MAC).unwrap();
    let (answer, answered) = checked(&out, length);
    assert_eq!((answered.tcp_flags, &answer[38..42]), (tcp_flags::RST, &frame[42..46]));
    assert_eq!(tcp_reset(&mut [0; 128], &answer, &answered, MAC), Err(PacketError::NotAnswerable));
    let (frame, parsed) = read(fixtures::UDP_V4);
    assert_eq!(tcp_reset(&mut out, &frame, &parsed, MAC), Err(PacketError::NotAnswerable));
}

#[test]
fn wraps_udp() {
    let mut out = [0; 128];
    let link = Link { source: MAC, destination: [0xff; 6], vlan_tci: Some(3) };
    let (zero, all) = (IpAddress::v4([0; 4]), IpAddress::v4([255; 4]));
    let length = udp_datagram(&mut out, &link, (zero, 68), (all, 67), b"discover").unwrap();
    let (frame, parsed) = checked(&out, length);
    assert_eq!((&frame[parsed.payload_offset..], parsed.destination_port), (&b"discover"[..], 67));
    let v6 = IpAddress::v6([0xfd; 16]);
    assert_eq!(udp_datagram(&mut out, &link, (zero, 1), (v6, 1), b""), Err(PacketError::NotAnswerable));
    assert_eq!(udp_datagram(&mut out, &link, (v6, 1), (v6, 1), &[0; 70]), Err(PacketError::BufferTooSmall));
    assert_eq!(
        udp_datagram(&mut vec![0; 70_000], &link, (v6, 1), (v6, 1), &[0; 65_500]),
        Err(PacketError::PacketTooLarge)
    );
}
