use super::{client_frame, parse_udp};
use crate::dhcp::NoAnswer;
use crate::dhcp::v4::answer;
use crate::frame::UdpFrame;
use crate::mirror::PortContext;
use crate::testing::{MAC, context, port_entry};
use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::sync::Arc;
use weir_model::MacAddr;

fn message(kind: MessageType, options: &[DhcpOption]) -> Message {
    let mut message = Message::default();
    message.set_xid(0x1234_5678).set_chaddr(&MAC.0);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    for option in options {
        message.opts_mut().insert(option.clone());
    }
    message
}

fn ask(port: &PortContext, message: &Message) -> Result<(Message, Vec<u8>), NoAnswer> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).unwrap();
    let frame = client_frame("0.0.0.0", "255.255.255.255", (68, 67), &bytes);
    let reply = answer(port, &parse_udp(&frame).unwrap())?;
    let payload = parse_udp(&reply).unwrap().payload.to_vec();
    Ok((Message::decode(&mut Decoder::new(&payload)).unwrap(), reply))
}

fn kind(message: &Message) -> MessageType {
    message.opts().msg_type().unwrap()
}

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

#[test]
fn discover_gets_the_one_address_and_all_that_the_endpoint_needs() {
    let (offer, frame) = ask(&context(), &message(MessageType::Discover, &[])).unwrap();
    assert_eq!(kind(&offer), MessageType::Offer);
    assert_eq!(offer.xid(), 0x1234_5678);
    assert_eq!(offer.yiaddr(), ip("10.0.0.5"));
    let has = |option: DhcpOption| {
        assert_eq!(offer.opts().get(OptionCode::from(&option)), Some(&option));
    };
    has(DhcpOption::ServerIdentifier(ip("10.0.0.1")));
    has(DhcpOption::SubnetMask(ip("255.255.255.0")));
    has(DhcpOption::Router(vec![ip("10.0.0.1")]));
    has(DhcpOption::DomainNameServer(vec![ip("10.0.0.1")]));
    has(DhcpOption::DomainName("red.weir.internal".into()));
    has(DhcpOption::Hostname("web".into()));
    has(DhcpOption::InterfaceMtu(1400));
    has(DhcpOption::AddressLeaseTime(3600));
    has(DhcpOption::Renewal(1800));
    has(DhcpOption::Rebinding(3150));
    assert_eq!(offer.opts().get(OptionCode::ClasslessStaticRoute), None);
    let frame = parse_udp(&frame).unwrap();
    assert_eq!((frame.source_port, frame.destination_port), (67, 68));
    assert_eq!((frame.destination, frame.destination_mac), (ip("10.0.0.5").into(), MAC));
    assert_eq!(frame.source_mac, MacAddr([0x02, 0x57, 0x52, 0, 0, 7]));
    assert!(frame.payload.len() >= 300);
}

#[test]
fn an_offer_is_the_same_bytes_for_ever() {
    let (_, frame) = ask(&context(), &message(MessageType::Discover, &[])).unwrap();
    let text = weir_model::join::to_hex(&frame);
    let (headers, options) = (&text[..84], &text[84 + 480..]);
    assert_eq!(
        headers,
        "02000a00000502575200000708004500017100000000401165770a0000010a00000500430044015dd725"
    );
    assert_eq!(
        options.trim_end_matches('0').trim_end_matches("ff"),
        concat!(
            "0104ffffff00",
            "03040a000001",
            "06040a000001",
            "0c03776562",
            "0f117265642e776569722e696e7465726e616c",
            "1a020578",
            "1c040a0000ff",
            "330400000e10",
            "350102",
            "36040a000001",
            "3a0400000708",
            "3b0400000c4e",
            "771303726564047765697208696e7465726e616c00",
        )
    );
}

#[test]
fn request_is_acked_for_the_own_address_and_refused_for_another() {
    let port = context();
    let own = DhcpOption::RequestedIpAddress(ip("10.0.0.5"));
    let other = DhcpOption::RequestedIpAddress(ip("10.0.0.6"));
    let server = DhcpOption::ServerIdentifier(ip("10.0.0.1"));
    let selecting = message(MessageType::Request, &[own.clone(), server.clone()]);
    assert_eq!(kind(&ask(&port, &selecting).unwrap().0), MessageType::Ack);
    let rebooting = message(MessageType::Request, &[own]);
    assert_eq!(kind(&ask(&port, &rebooting).unwrap().0), MessageType::Ack);
    let (nak, frame) = ask(&port, &message(MessageType::Request, &[other, server])).unwrap();
    assert_eq!(kind(&nak), MessageType::Nak);
    assert_eq!(nak.yiaddr(), Ipv4Addr::UNSPECIFIED);
    assert_eq!(nak.opts().get(OptionCode::AddressLeaseTime), None);
    assert_eq!(parse_udp(&frame).unwrap().destination_mac, MacAddr::BROADCAST);
    let elsewhere = DhcpOption::ServerIdentifier(ip("10.0.0.9"));
    let chosen = message(MessageType::Request, &[elsewhere, DhcpOption::RequestedIpAddress(ip("10.0.0.5"))]);
    assert!(matches!(ask(&port, &chosen), Err(NoAnswer::Ignored(_))));
    assert!(matches!(ask(&port, &message(MessageType::Request, &[])), Err(NoAnswer::Malformed(_))));
}

#[test]
fn renewing_is_answered_to_the_address_in_use() {
    let mut renewing = message(MessageType::Request, &[]);
    renewing.set_ciaddr(ip("10.0.0.5")).set_flags(Flags::default().set_broadcast());
    let (ack, frame) = ask(&context(), &renewing).unwrap();
    assert_eq!((kind(&ack), ack.ciaddr(), ack.yiaddr()), (MessageType::Ack, ip("10.0.0.5"), ip("10.0.0.5")));
    assert_eq!(parse_udp(&frame).unwrap().destination_mac, MAC);
}

#[test]
fn a_client_that_asks_for_broadcast_gets_it() {
    let mut discover = message(MessageType::Discover, &[]);
    discover.set_flags(Flags::default().set_broadcast());
    let (_, frame) = ask(&context(), &discover).unwrap();
    let frame = parse_udp(&frame).unwrap();
    assert_eq!((frame.destination_mac, frame.destination), (MacAddr::BROADCAST, Ipv4Addr::BROADCAST.into()));
}

#[test]
fn inform_gets_configuration_and_no_address() {
    let mut inform = message(MessageType::Inform, &[]);
    inform.set_ciaddr(ip("10.0.0.5"));
    let (ack, _) = ask(&context(), &inform).unwrap();
    assert_eq!((kind(&ack), ack.yiaddr()), (MessageType::Ack, Ipv4Addr::UNSPECIFIED));
    assert!(ack.opts().get(OptionCode::DomainNameServer).is_some());
    assert_eq!(ack.opts().get(OptionCode::AddressLeaseTime), None);
}

#[test]
fn what_wants_no_answer_gets_none() {
    let port = context();
    for quiet in [MessageType::Release, MessageType::Decline, MessageType::Offer, MessageType::Ack] {
        assert!(matches!(ask(&port, &message(quiet, &[])), Err(NoAnswer::Ignored(_))), "{quiet:?}");
    }
    let mut other = message(MessageType::Discover, &[]);
    other.set_chaddr(&[2, 0, 0, 0, 0, 1]);
    assert!(matches!(ask(&port, &other), Err(NoAnswer::Ignored(_))));
    let mut relayed = message(MessageType::Discover, &[]);
    relayed.set_giaddr(ip("10.0.0.9"));
    assert!(matches!(ask(&port, &relayed), Err(NoAnswer::Malformed(_))));
    let v6_only = PortContext { port: Arc::new(port_entry(&["fd00:a::5"])), ..context() };
    assert!(matches!(ask(&v6_only, &message(MessageType::Discover, &[])), Err(NoAnswer::Ignored(_))));
}

#[test]
fn a_router_off_the_link_gets_a_route_of_its_own() {
    let mut port = context();
    let mut network = (*port.network).clone();
    network.subnets[0].v4 = Some("10.0.0.5/32".parse().unwrap());
    port.network = Arc::new(network);
    let (offer, _) = ask(&port, &message(MessageType::Discover, &[])).unwrap();
    assert_eq!(
        offer.opts().get(OptionCode::ClasslessStaticRoute),
        Some(&DhcpOption::ClasslessStaticRoute(vec![
            ("10.0.0.1/32".parse().unwrap(), Ipv4Addr::UNSPECIFIED),
            ("0.0.0.0/0".parse().unwrap(), ip("10.0.0.1")),
        ]))
    );
}

#[test]
fn told_servers_replace_our_own_and_a_small_client_gets_a_small_answer() {
    let mut port = context();
    let mut entry = (*port.port).clone();
    entry.dhcp.dns_servers = vec!["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()];
    entry.dhcp.ntp_servers = vec!["192.0.2.123".parse().unwrap()];
    entry.dhcp.search = (0..15).map(|n| format!("a-rather-long-domain-{n}.corporation.example")).collect();
    port.port = Arc::new(entry);
    let (offer, frame) = ask(&port, &message(MessageType::Discover, &[])).unwrap();
    assert!(parse_udp(&frame).unwrap().payload.len() <= 576 - 28);
    assert_eq!(offer.opts().get(OptionCode::DomainSearch), None);
    assert_eq!(
        offer.opts().get(OptionCode::DomainNameServer),
        Some(&DhcpOption::DomainNameServer(vec![ip("192.0.2.53")]))
    );
    let roomy = message(MessageType::Discover, &[DhcpOption::MaxMessageSize(1400)]);
    let (offer, _) = ask(&port, &roomy).unwrap();
    assert!(offer.opts().get(OptionCode::DomainSearch).is_some());
    assert_eq!(
        offer.opts().get(OptionCode::NtpServers),
        Some(&DhcpOption::NtpServers(vec![ip("192.0.2.123")]))
    );
}

#[test]
fn a_wrong_option_makes_the_message_malformed() {
    let mut bytes = Vec::new();
    message(MessageType::Discover, &[]).encode(&mut Encoder::new(&mut bytes)).unwrap();
    let with = |tail: &[u8]| {
        let mut bytes = bytes[..240].to_vec();
        bytes.extend_from_slice(tail);
        let frame = client_frame("0.0.0.0", "255.255.255.255", (68, 67), &bytes);
        answer(&context(), &parse_udp(&frame).unwrap()).map(|_| ())
    };
    assert_eq!(with(&[53, 1, 1, 255]), Ok(()));
    assert_eq!(with(&[0, 53, 1, 1, 0, 255, 9, 9]), Ok(()));
    for wrong in [&[53, 1, 1][..], &[53, 2, 1], &[53, 1, 1, 50, 3, 1, 1, 1, 255], &[53], &[]] {
        assert!(matches!(with(wrong), Err(NoAnswer::Malformed(_))), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn an_answer_never_names_another_address(
        kind in 1_u8..9,
        ciaddr in any::<u32>(),
        requested in proptest::option::of(any::<u32>()),
        broadcast in any::<bool>(),
        size in proptest::option::of(any::<u16>()),
    ) {
        let mut request = message(MessageType::from(kind), &[]);
        request.set_ciaddr(ciaddr);
        if broadcast {
            request.set_flags(Flags::default().set_broadcast());
        }
        if let Some(requested) = requested {
            request.opts_mut().insert(DhcpOption::RequestedIpAddress(requested.into()));
        }
        if let Some(size) = size {
            request.opts_mut().insert(DhcpOption::MaxMessageSize(size));
        }
        if let Ok((reply, _)) = ask(&context(), &request) {
            let given = reply.yiaddr();
            prop_assert!(given == ip("10.0.0.5") || given == Ipv4Addr::UNSPECIFIED);
            prop_assert_eq!(reply.opts().get(OptionCode::ServerIdentifier),
                Some(&DhcpOption::ServerIdentifier(ip("10.0.0.1"))));
        }
    }
}

#[test]
fn any_payload_is_answered_or_refused() {
    let port = context();
    let mut seed = Vec::new();
    message(MessageType::Discover, &[]).encode(&mut Encoder::new(&mut seed)).unwrap();
    bolero::check!().for_each(|bytes: &[u8]| {
        let mutated: Vec<u8> =
            seed.iter().zip(bytes.iter().chain(std::iter::repeat(&0))).map(|(a, b)| a ^ b).collect();
        for payload in [bytes, &mutated, &[&seed[..240], bytes].concat()] {
            let frame = UdpFrame {
                source_mac: MAC,
                destination_mac: MacAddr::BROADCAST,
                source: Ipv4Addr::UNSPECIFIED.into(),
                destination: Ipv4Addr::BROADCAST.into(),
                source_port: 68,
                destination_port: 67,
                payload,
            };
            if let Ok(reply) = answer(&port, &frame) {
                assert!(parse_udp(&reply).is_ok());
            }
        }
    });
}

#[test]
fn options_in_the_fields_of_name_and_file_are_read() {
    let reply_to = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        message(MessageType::Discover, &[]).encode(&mut Encoder::new(&mut bytes)).unwrap();
        bytes.truncate(240);
        edit(&mut bytes);
        let frame = client_frame("0.0.0.0", "255.255.255.255", (68, 67), &bytes);
        answer(&context(), &parse_udp(&frame).unwrap()).map(|reply| {
            let payload = parse_udp(&reply).unwrap().payload.to_vec();
            Message::decode(&mut Decoder::new(&payload)).unwrap()
        })
    };
    let put = |bytes: &mut Vec<u8>, at: usize, options: &[u8]| {
        bytes[at..at + options.len()].copy_from_slice(options);
    };
    // A DISCOVER whose kind is in the file and whose client identifier is in the name.
    let offer = reply_to(&|bytes| {
        bytes.extend([52, 1, 3, 255]);
        put(bytes, 108, &[53, 1, 1, 255]);
        put(bytes, 44, &[61, 3, 7, 8, 9, 255]);
    })
    .unwrap();
    assert_eq!(kind(&offer), MessageType::Offer);
    let identifier = offer.opts().get(OptionCode::ClientIdentifier);
    assert_eq!(identifier, Some(&DhcpOption::ClientIdentifier(vec![7, 8, 9])));
    // What is not said to hold options holds none.
    let without = reply_to(&|bytes| {
        bytes.extend([53, 1, 1, 52, 1, 1, 255]);
        put(bytes, 108, &[255]);
        put(bytes, 44, &[61, 3, 7, 8, 9, 255]);
    })
    .unwrap();
    assert_eq!(without.opts().get(OptionCode::ClientIdentifier), None);
    type Edit<'a> = &'a dyn Fn(&mut Vec<u8>);
    let malformed: [Edit<'_>; 5] = [
        // Does not end, is of no kind, is there twice, an option twice, overload inside.
        &|bytes| {
            bytes.extend([53, 1, 1, 52, 1, 1, 255]);
            put(bytes, 108, &[12, 126]);
        },
        &|bytes| bytes.extend([53, 1, 1, 52, 1, 4, 255]),
        &|bytes| bytes.extend([53, 1, 1, 52, 1, 1, 52, 1, 1, 255]),
        &|bytes| {
            bytes.extend([53, 1, 1, 52, 1, 1, 255]);
            put(bytes, 108, &[53, 1, 3, 255]);
        },
        &|bytes| {
            bytes.extend([53, 1, 1, 52, 1, 1, 255]);
            put(bytes, 108, &[52, 1, 2, 255]);
        },
    ];
    for edit in malformed {
        assert!(matches!(reply_to(edit), Err(NoAnswer::Malformed(_))));
    }
}
