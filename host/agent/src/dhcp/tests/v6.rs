use super::{client_frame, parse_udp};
use crate::dhcp::NoAnswer;
use crate::dhcp::v6::{answer, server_duid};
use crate::frame::UdpFrame;
use crate::mirror::PortContext;
use crate::testing::{MAC, context, port_entry};
use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, IAPD, IATA, Message, MessageType, OptionCode, Status,
};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use std::net::Ipv6Addr;
use std::sync::Arc;
use weir_model::MacAddr;

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn ia(id: u32, addresses: &[&str]) -> DhcpOption {
    let opts = addresses
        .iter()
        .map(|a| {
            DhcpOption::IAAddr(IAAddr {
                addr: ip(a),
                preferred_life: 0,
                valid_life: 0,
                opts: DhcpOptions::default(),
            })
        })
        .collect();
    DhcpOption::IANA(IANA { id, t1: 0, t2: 0, opts })
}

fn message(kind: MessageType, with_server: bool, options: &[DhcpOption]) -> Message {
    let mut message = Message::new_with_id(kind, [1, 2, 3]);
    message.opts_mut().insert(DhcpOption::ClientId(vec![0, 3, 0, 1, 2, 0, 10, 0, 0, 5]));
    if with_server {
        message.opts_mut().insert(DhcpOption::ServerId(server_duid(&context())));
    }
    for option in options {
        message.opts_mut().insert(option.clone());
    }
    message
}

fn ask(port: &PortContext, message: &Message) -> Result<Message, NoAnswer> {
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).unwrap();
    let frame = client_frame("fe80::5", "ff02::1:2", (546, 547), &bytes);
    let reply = answer(port, &parse_udp(&frame).unwrap())?;
    let reply = parse_udp(&reply).unwrap();
    assert_eq!((reply.source_port, reply.destination_port), (547, 546));
    assert_eq!((reply.source, reply.destination), (ip("fe80::1").into(), ip("fe80::5").into()));
    Ok(Message::decode(&mut Decoder::new(reply.payload)).unwrap())
}

/// The addresses given, with their lifetimes, of each association.
fn given(message: &Message) -> Vec<(u32, Vec<(Ipv6Addr, u32)>)> {
    let lives = |opts: &DhcpOptions| {
        opts.iter()
            .filter_map(|o| match o {
                DhcpOption::IAAddr(a) => Some((a.addr, a.valid_life)),
                _ => None,
            })
            .collect()
    };
    message
        .opts()
        .iter()
        .filter_map(|o| match o {
            DhcpOption::IANA(ia) => Some((ia.id, lives(&ia.opts))),
            _ => None,
        })
        .collect()
}

fn status(options: &DhcpOptions) -> Option<Status> {
    match options.get(OptionCode::StatusCode) {
        Some(DhcpOption::StatusCode(code)) => Some(code.status),
        _ => None,
    }
}

#[test]
fn solicit_is_advertised_and_with_rapid_commit_replied() {
    let port = context();
    let advertise = ask(&port, &message(MessageType::Solicit, false, &[ia(9, &[])])).unwrap();
    assert_eq!((advertise.msg_type(), advertise.xid()), (MessageType::Advertise, [1, 2, 3]));
    assert_eq!(given(&advertise), [(9, vec![(ip("fd00:a::5"), 3600)])]);
    assert_eq!(
        advertise.opts().get(OptionCode::DomainNameServers),
        Some(&DhcpOption::DomainNameServers(vec![ip("fd00:a::1")]))
    );
    assert!(matches!(
        advertise.opts().get(OptionCode::DomainSearchList),
        Some(DhcpOption::DomainSearchList(names)) if names[0].to_string() == "red.weir.internal."
    ));
    let rapid =
        ask(&port, &message(MessageType::Solicit, false, &[ia(9, &[]), DhcpOption::RapidCommit])).unwrap();
    assert_eq!(rapid.msg_type(), MessageType::Reply);
    assert!(rapid.opts().get(OptionCode::RapidCommit).is_some());
}

#[test]
fn request_renew_and_rebind_give_the_one_address_and_end_others() {
    let port = context();
    for (kind, server) in
        [(MessageType::Request, true), (MessageType::Renew, true), (MessageType::Rebind, false)]
    {
        let reply = ask(&port, &message(kind, server, &[ia(1, &["fd00:a::5", "fd00:a::66"])])).unwrap();
        assert_eq!(reply.msg_type(), MessageType::Reply);
        let mut lives = given(&reply).remove(0).1;
        lives.sort();
        assert_eq!(lives, [(ip("fd00:a::5"), 3600), (ip("fd00:a::66"), 0)], "{kind:?}");
    }
}

#[test]
fn further_associations_are_told_that_there_is_nothing() {
    let wanted = [
        ia(1, &[]),
        ia(2, &[]),
        DhcpOption::IATA(IATA { id: 3, opts: DhcpOptions::default() }),
        DhcpOption::IAPD(IAPD { id: 4, t1: 0, t2: 0, opts: DhcpOptions::default() }),
    ];
    let reply = ask(&context(), &message(MessageType::Request, true, &wanted)).unwrap();
    let with_address: Vec<u32> =
        given(&reply).into_iter().filter(|(_, lives)| !lives.is_empty()).map(|(id, _)| id).collect();
    assert_eq!(with_address.len(), 1);
    let mut statuses = vec![];
    for option in reply.opts().iter() {
        match option {
            DhcpOption::IANA(ia) => statuses.extend(status(&ia.opts)),
            DhcpOption::IATA(ia) => statuses.extend(status(&ia.opts)),
            DhcpOption::IAPD(ia) => statuses.extend(status(&ia.opts)),
            _ => {}
        }
    }
    assert_eq!(statuses, [Status::NoAddrsAvail, Status::NoAddrsAvail, Status::NoPrefixAvail]);
}

#[test]
fn confirm_says_whether_the_link_is_right() {
    let port = context();
    let on = ask(&port, &message(MessageType::Confirm, false, &[ia(1, &["fd00:a::5"])])).unwrap();
    assert_eq!(status(on.opts()), Some(Status::Success));
    let off = ask(&port, &message(MessageType::Confirm, false, &[ia(1, &["fd00:b::5"])])).unwrap();
    assert_eq!(status(off.opts()), Some(Status::NotOnLink));
    let none = ask(&port, &message(MessageType::Confirm, false, &[ia(1, &[])]));
    assert!(matches!(none, Err(NoAnswer::Ignored(_))));
}

#[test]
fn information_and_release_are_answered_without_addresses() {
    let port = context();
    let information = ask(&port, &message(MessageType::InformationRequest, false, &[])).unwrap();
    assert!(information.opts().get(OptionCode::DomainNameServers).is_some());
    assert_eq!(given(&information), []);
    let with_ia = ask(&port, &message(MessageType::InformationRequest, false, &[ia(1, &[])]));
    assert!(matches!(with_ia, Err(NoAnswer::Malformed(_))));
    let release = ask(&port, &message(MessageType::Release, true, &[ia(1, &["fd00:a::5"])])).unwrap();
    assert_eq!(status(release.opts()), Some(Status::Success));
}

#[test]
fn identifiers_are_demanded_as_the_kind_says() {
    let port = context();
    let wrong = [
        message(MessageType::Solicit, true, &[ia(1, &[])]),
        message(MessageType::Rebind, true, &[ia(1, &[])]),
        message(MessageType::Request, false, &[ia(1, &[])]),
        message(MessageType::Renew, false, &[ia(1, &[])]),
    ];
    for message in wrong {
        assert!(matches!(ask(&port, &message), Err(NoAnswer::Malformed(_))), "{message:?}");
    }
    let mut elsewhere = message(MessageType::Request, false, &[ia(1, &[])]);
    elsewhere.opts_mut().insert(DhcpOption::ServerId(vec![0, 3, 0, 1, 9, 9, 9, 9, 9, 9]));
    assert!(matches!(ask(&port, &elsewhere), Err(NoAnswer::Ignored(_))));
    let mut nobody = Message::new(MessageType::Solicit);
    nobody.opts_mut().insert(ia(1, &[]));
    assert!(matches!(ask(&port, &nobody), Err(NoAnswer::Malformed(_))));
    let v4_only = PortContext { port: Arc::new(port_entry(&["10.0.0.5"])), ..context() };
    let solicit = message(MessageType::Solicit, false, &[ia(1, &[])]);
    assert!(matches!(ask(&v4_only, &solicit), Err(NoAnswer::Ignored(_))));
}

#[test]
fn an_advertisement_is_the_same_bytes_for_ever() {
    let advertise = ask(&context(), &message(MessageType::Solicit, false, &[ia(9, &[])])).unwrap();
    let mut bytes = Vec::new();
    advertise.encode(&mut Encoder::new(&mut bytes)).unwrap();
    assert_eq!(
        weir_model::join::to_hex(&bytes),
        concat!(
            "02010203",
            "0001000a0003000102000a000005",
            "0002000a00030001025752000007",
            "000300280000000900000708",
            "00000c4e",
            "00050018fd00000a000000000000000000000005",
            "00000e1000000e10",
            "00070001ff",
            "00170010fd00000a000000000000000000000001",
            "0018001303726564047765697208696e7465726e616c00",
        )
    );
}

#[test]
fn any_payload_is_answered_or_refused() {
    let port = context();
    let mut seed = Vec::new();
    message(MessageType::Request, true, &[ia(9, &["fd00:a::9"])])
        .encode(&mut Encoder::new(&mut seed))
        .unwrap();
    bolero::check!().for_each(|bytes: &[u8]| {
        let mutated: Vec<u8> =
            seed.iter().zip(bytes.iter().chain(std::iter::repeat(&0))).map(|(a, b)| a ^ b).collect();
        for payload in [bytes, &mutated, &[&seed[..], bytes].concat()] {
            let frame = UdpFrame {
                source_mac: MAC,
                destination_mac: MacAddr::BROADCAST,
                source: ip("fe80::5").into(),
                destination: ip("ff02::1:2").into(),
                source_port: 546,
                destination_port: 547,
                payload,
            };
            if let Ok(reply) = answer(&port, &frame) {
                assert!(parse_udp(&reply).is_ok());
            }
        }
    });
}

#[test]
fn deep_nesting_is_survived() {
    // Identity associations inside each other, as deep as a punted frame allows.
    let mut payload = vec![1, 0, 0, 1];
    let mut left = 9000_u16;
    while left > 16 {
        left -= 16;
        payload.extend_from_slice(&[0, 3]);
        payload.extend_from_slice(&(left + 12 - 12).to_be_bytes());
        payload.extend_from_slice(&[0; 12]);
    }
    payload.resize(4 + 9000 - 12, 0);
    let frame = UdpFrame {
        source_mac: MAC,
        destination_mac: MacAddr::BROADCAST,
        source: ip("fe80::5").into(),
        destination: ip("ff02::1:2").into(),
        source_port: 546,
        destination_port: 547,
        payload: &payload,
    };
    assert!(answer(&context(), &frame).is_err());
}
