//! DHCPv4 (RFC 2131, 2132, 3397, 3442): one server, whose address is the router's.

use super::{CLIENT_PORT_V4, NoAnswer, SERVER_PORT_V4, from_endpoint, payload_max, renewal_times_s};
use crate::frame::UdpFrame;
use crate::mirror::PortContext;
use dhcproto::v4::{DhcpOption, HType, Message, MessageType, Opcode, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable, Encoder};
use ipnet::Ipv4Net;
use std::net::{IpAddr, Ipv4Addr};
use weir_model::MacAddr;

/// Bytes before the options: the BOOTP header and the magic cookie.
const FIXED_BYTES: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// The fields that may hold options when option overload says so.
const SERVER_NAME: std::ops::Range<usize> = 44..108;
const BOOT_FILE: std::ops::Range<usize> = 108..236;
const OVERLOAD: u8 = 52;
/// Smallest message that old relays and clients take, bytes.
const MESSAGE_BYTES_MIN: usize = 300;
/// Largest IP datagram that every client takes, bytes.
const DATAGRAM_BYTES_MIN: usize = 576;
/// IPv4 and UDP headers, bytes.
const HEADER_BYTES: usize = 28;

/// What a port's endpoint is told, from the directory.
struct Binding<'a> {
    port: &'a PortContext,
    address: Ipv4Addr,
    prefix: Ipv4Net,
    router: Ipv4Addr,
}

impl Binding<'_> {
    fn of(port: &PortContext) -> Option<Binding<'_>> {
        let subnet = port.subnet()?;
        let address = port.port.addresses.iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })?;
        Some(Binding { port, address, prefix: subnet.v4?, router: subnet.router_v4? })
    }
}

/// The frame that answers a frame of a port's endpoint.
///
/// # Errors
/// Why there is none.
pub fn answer(port: &PortContext, frame: &UdpFrame<'_>) -> Result<Vec<u8>, NoAnswer> {
    from_endpoint(port, frame)?;
    if frame.source_port != CLIENT_PORT_V4 {
        return Err(NoAnswer::Malformed("not from a client's port"));
    }
    let request = decode(frame.payload)?;
    if request.chaddr() != port.port.mac.0 {
        return Err(NoAnswer::Ignored("another client's hardware address"));
    }
    let binding = Binding::of(port).ok_or(NoAnswer::Ignored("the port has no IPv4 address"))?;
    let (kind, text) = decide(&binding, &request)?;
    let reply = reply(&binding, &request, kind, text);
    let payload = encode(reply, &request, payload_max(port, HEADER_BYTES))?;
    let (mac, destination) = receiver(&binding, &request, kind);
    UdpFrame {
        source_mac: port.vni.router_mac(),
        destination_mac: mac,
        source: binding.router.into(),
        destination: destination.into(),
        source_port: SERVER_PORT_V4,
        destination_port: CLIENT_PORT_V4,
        payload: &payload,
    }
    .build()
    .ok_or(NoAnswer::Ignored("the answer does not fit a packet"))
}

/// Decodes strictly. Only the options that matter reach the library's decoder, their lengths
/// checked: on others it stops silently at a bad one, or panics.
fn decode(payload: &[u8]) -> Result<Message, NoAnswer> {
    let options = payload.get(FIXED_BYTES..).ok_or(NoAnswer::Malformed("too short"))?;
    if payload[0] != 1 || payload[1] != 1 || payload[2] != 6 {
        return Err(NoAnswer::Malformed("not a request of an Ethernet client"));
    }
    if payload[236..FIXED_BYTES] != MAGIC {
        return Err(NoAnswer::Malformed("no DHCP cookie"));
    }
    let mut wanted = payload[..FIXED_BYTES].to_vec();
    // The server's name and the boot file mean nothing in a request, but for options in them (RFC 2131 §4.1).
    wanted[44..236].fill(0);
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    let overload = wanted_options(options, &mut found, &mut seen)?;
    if !(0..=3).contains(&overload) {
        return Err(NoAnswer::Malformed("option overload of a kind that there is not"));
    }
    // In this order.
    for (bit, place) in [(1, BOOT_FILE), (2, SERVER_NAME)] {
        if overload & bit != 0 && wanted_options(&payload[place], &mut found, &mut seen)? != 0 {
            return Err(NoAnswer::Malformed("option overload inside of what is overloaded"));
        }
    }
    wanted.extend(found);
    wanted.push(255);
    let message =
        Message::decode(&mut Decoder::new(&wanted)).map_err(|_| NoAnswer::Malformed("cannot be decoded"))?;
    if message.giaddr() != Ipv4Addr::UNSPECIFIED {
        return Err(NoAnswer::Malformed("relayed, but a port has no relay"));
    }
    Ok(message)
}

/// Adds the options that an answer depends on to `wanted`; returns the value of option overload, 0 without. All options must be whole
/// and end.
fn wanted_options(mut options: &[u8], wanted: &mut Vec<u8>, seen: &mut Vec<u8>) -> Result<u8, NoAnswer> {
    let mut overload = 0;
    loop {
        match options {
            [255, ..] => return Ok(overload),
            [OVERLOAD, 1, value, rest @ ..] => {
                if *value == 0 || overload != 0 {
                    return Err(NoAnswer::Malformed("option overload twice, or of nothing"));
                }
                (overload, options) = (*value, rest);
            }
            [0, rest @ ..] => options = rest,
            [code, length, rest @ ..] if rest.len() >= usize::from(*length) => {
                let (value, rest) = rest.split_at(usize::from(*length));
                if let Some(lengths) = option_lengths(OptionCode::from(*code)) {
                    if !lengths.contains(length) {
                        return Err(NoAnswer::Malformed("an option has a wrong length"));
                    }
                    if seen.contains(code) {
                        return Err(NoAnswer::Malformed("an option is there twice"));
                    }
                    seen.push(*code);
                    wanted.extend_from_slice(&[*code, *length]);
                    wanted.extend_from_slice(value);
                }
                options = rest;
            }
            _ => return Err(NoAnswer::Malformed("the options do not end")),
        }
    }
}

/// Lengths that an option may have, if an answer depends on it.
fn option_lengths(code: OptionCode) -> Option<std::ops::RangeInclusive<u8>> {
    match code {
        OptionCode::MessageType => Some(1..=1),
        OptionCode::MaxMessageSize => Some(2..=2),
        OptionCode::RequestedIpAddress | OptionCode::ServerIdentifier => Some(4..=4),
        OptionCode::ClientIdentifier => Some(2..=255),
        _ => None,
    }
}

/// Kind of the answer, and the text of a refusal.
fn decide(binding: &Binding<'_>, request: &Message) -> Result<(MessageType, Option<&'static str>), NoAnswer> {
    let ack = Ok((MessageType::Ack, None));
    match request.opts().msg_type() {
        Some(MessageType::Discover) => Ok((MessageType::Offer, None)),
        Some(MessageType::Inform) if request.ciaddr() == binding.address => ack,
        Some(MessageType::Inform) => Err(NoAnswer::Ignored("INFORM from another address")),
        Some(MessageType::Request) => {
            if let Some(DhcpOption::ServerIdentifier(server)) =
                request.opts().get(OptionCode::ServerIdentifier)
                && *server != binding.router
            {
                return Err(NoAnswer::Ignored("the client chose another server"));
            }
            let wanted = match request.opts().get(OptionCode::RequestedIpAddress) {
                Some(DhcpOption::RequestedIpAddress(wanted)) => *wanted,
                _ if request.ciaddr() != Ipv4Addr::UNSPECIFIED => request.ciaddr(),
                _ => return Err(NoAnswer::Malformed("REQUEST names no address")),
            };
            if wanted == binding.address {
                ack
            } else {
                Ok((MessageType::Nak, Some("this endpoint has another address")))
            }
        }
        Some(MessageType::Release) => Err(NoAnswer::Ignored("RELEASE wants no answer")),
        Some(MessageType::Decline) => {
            tracing::warn!(port = %binding.port, address = %binding.address, "the endpoint declines its address");
            Err(NoAnswer::Ignored("DECLINE wants no answer"))
        }
        Some(_) => Err(NoAnswer::Ignored("not a client's message")),
        None => Err(NoAnswer::Malformed("no message type")),
    }
}

fn reply(binding: &Binding<'_>, request: &Message, kind: MessageType, text: Option<&str>) -> Message {
    let mut reply = Message::default();
    reply
        .set_opcode(Opcode::BootReply)
        .set_htype(HType::Eth)
        .set_xid(request.xid())
        .set_flags(request.flags())
        .set_chaddr(request.chaddr());
    let options = reply.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(binding.router));
    if let Some(client) = request.opts().get(OptionCode::ClientIdentifier) {
        options.insert(client.clone());
    }
    if let Some(text) = text {
        options.insert(DhcpOption::Message(text.to_string()));
        return reply;
    }
    configuration(binding, &mut reply);
    if request.opts().has_msg_type(MessageType::Inform) {
        reply.set_ciaddr(request.ciaddr());
    } else {
        let lease_s = binding.port.port.dhcp.lease_s;
        let (t1, t2) = renewal_times_s(lease_s);
        if kind == MessageType::Ack {
            reply.set_ciaddr(request.ciaddr());
        }
        reply.set_yiaddr(binding.address);
        let options = reply.opts_mut();
        options.insert(DhcpOption::AddressLeaseTime(lease_s));
        options.insert(DhcpOption::Renewal(t1));
        options.insert(DhcpOption::Rebinding(t2));
    }
    reply
}

fn only_v4(addresses: &[IpAddr]) -> Vec<Ipv4Addr> {
    addresses
        .iter()
        .filter_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
        .collect()
}

fn configuration(binding: &Binding<'_>, reply: &mut Message) {
    let port = binding.port;
    let options = reply.opts_mut();
    options.insert(DhcpOption::SubnetMask(binding.prefix.netmask()));
    options.insert(DhcpOption::Router(vec![binding.router]));
    options.insert(DhcpOption::InterfaceMtu(port.network.mtu));
    options.insert(DhcpOption::Hostname(port.endpoint.to_string()));
    options.insert(DhcpOption::DomainName(port.zone()));
    options.insert(DhcpOption::DomainSearch(super::search_domains(port)));
    let servers = match port.port.dhcp.dns_servers.as_slice() {
        [] => vec![binding.router],
        told => only_v4(told),
    };
    if !servers.is_empty() {
        options.insert(DhcpOption::DomainNameServer(servers));
    }
    let ntp = only_v4(&port.port.dhcp.ntp_servers);
    if !ntp.is_empty() {
        options.insert(DhcpOption::NtpServers(ntp));
    }
    if binding.prefix.prefix_len() < 31 {
        options.insert(DhcpOption::BroadcastAddr(binding.prefix.broadcast()));
    }
    if !binding.prefix.contains(&binding.router) || binding.prefix.prefix_len() == 32 {
        // The router is not on the link as the mask says it: a route to it first.
        options.insert(DhcpOption::ClasslessStaticRoute(vec![
            (Ipv4Net::from(binding.router), Ipv4Addr::UNSPECIFIED),
            (Ipv4Net::default(), binding.router),
        ]));
    }
}

/// Encodes, leaving out what clients can do without when the message passes what the client takes.
fn encode(mut reply: Message, request: &Message, port_max: usize) -> Result<Vec<u8>, NoAnswer> {
    let client_max = match request.opts().get(OptionCode::MaxMessageSize) {
        Some(DhcpOption::MaxMessageSize(size)) => usize::from(*size).max(DATAGRAM_BYTES_MIN) - HEADER_BYTES,
        _ => DATAGRAM_BYTES_MIN - HEADER_BYTES,
    };
    let spare = [OptionCode::DomainSearch, OptionCode::NtpServers, OptionCode::BroadcastAddr];
    for code in spare.map(Some).into_iter().chain([None]) {
        let mut bytes = Vec::new();
        reply
            .encode(&mut Encoder::new(&mut bytes))
            .map_err(|_| NoAnswer::Ignored("the answer has no encoding"))?;
        if bytes.len() <= client_max.min(port_max) || code.is_none() {
            bytes.resize(bytes.len().max(MESSAGE_BYTES_MIN), 0);
            return Ok(bytes);
        }
        if let Some(code) = code {
            reply.opts_mut().remove(code);
        }
    }
    Err(NoAnswer::Ignored("the answer does not fit"))
}

/// Where the answer goes (RFC 2131 4.1): to the address that the client says it uses, else by
/// broadcast if it asks for that or is refused, else to the address that it gets.
fn receiver(binding: &Binding<'_>, request: &Message, kind: MessageType) -> (MacAddr, Ipv4Addr) {
    let client = binding.port.port.mac;
    if kind == MessageType::Nak {
        (MacAddr::BROADCAST, Ipv4Addr::BROADCAST)
    } else if request.ciaddr() != Ipv4Addr::UNSPECIFIED {
        (client, request.ciaddr())
    } else if request.flags().broadcast() {
        (MacAddr::BROADCAST, Ipv4Addr::BROADCAST)
    } else {
        (client, binding.address)
    }
}
