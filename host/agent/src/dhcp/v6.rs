//! DHCPv6 (RFC 8415, 3646, 5908): one server, whose DUID is made of the router's Ethernet address.
//!
//! The endpoint's first identity association gets its address; further ones get the status that
//! there is none. Prefixes and temporary addresses are not given.
//!
//! Requests are read here and not by the library, whose decoder panics on short options.

use super::{CLIENT_PORT_V6, NoAnswer, SERVER_PORT_V6, from_endpoint, payload_max, renewal_times_s};
use crate::frame::UdpFrame;
use crate::mirror::PortContext;
use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, IAPD, IATA, Message, MessageType, NtpSuboption, Status, StatusCode,
};
use dhcproto::{Encodable, Encoder};
use ipnet::Ipv6Net;
use std::net::{IpAddr, Ipv6Addr};

/// Most identity associations of one message that are answered.
pub const ASSOCIATIONS_MAX: usize = 16;
/// Most addresses of one identity association that are told to be over.
pub const ADDRESSES_MAX: usize = 16;
/// All DHCP servers and relays of a link.
const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// IPv6 and UDP headers, bytes.
const HEADER_BYTES: usize = 48;

struct Binding<'a> {
    port: &'a PortContext,
    address: Ipv6Addr,
    prefix: Ipv6Net,
    router: Ipv6Addr,
}

impl Binding<'_> {
    fn of(port: &PortContext) -> Option<Binding<'_>> {
        let subnet = port.subnet()?;
        let address = port.port.addresses.iter().find_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        })?;
        Some(Binding { port, address, prefix: subnet.v6?, router: subnet.router_v6? })
    }
}

/// The server's DUID: of the kind "link-layer address" (RFC 8415 11.4).
pub fn server_duid(port: &PortContext) -> Vec<u8> {
    [&[0, 3, 0, 1], port.vni.router_mac().0.as_slice()].concat()
}

/// The frame that answers a frame of a port's endpoint.
///
/// # Errors
/// Why there is none.
pub fn answer(port: &PortContext, frame: &UdpFrame<'_>) -> Result<Vec<u8>, NoAnswer> {
    from_endpoint(port, frame)?;
    let (IpAddr::V6(client), IpAddr::V6(server)) = (frame.source, frame.destination) else {
        return Err(NoAnswer::Malformed("not IPv6"));
    };
    if !client.is_unicast_link_local() {
        return Err(NoAnswer::Malformed("not from a link-local address"));
    }
    let request = decode(frame.payload)?;
    let binding = Binding::of(port).ok_or(NoAnswer::Ignored("the port has no IPv6 address"))?;
    if server != ALL_SERVERS {
        // RFC 8415 16: unicast only when the server offered it, and this one never does.
        return Err(NoAnswer::Ignored("sent to one server only"));
    }
    let reply = reply(&binding, &request)?;
    let mut payload = Vec::new();
    reply
        .encode(&mut Encoder::new(&mut payload))
        .map_err(|_| NoAnswer::Ignored("the answer has no encoding"))?;
    if payload.len() > payload_max(port, HEADER_BYTES) {
        return Err(NoAnswer::Ignored("the answer does not fit a packet"));
    }
    UdpFrame {
        source_mac: port.vni.router_mac(),
        destination_mac: port.port.mac,
        source: port.vni.router_link_local().into(),
        destination: client.into(),
        source_port: SERVER_PORT_V6,
        destination_port: CLIENT_PORT_V6,
        payload: &payload,
    }
    .build()
    .ok_or(NoAnswer::Ignored("the answer does not fit a packet"))
}

/// What an answer depends on.
struct Request {
    kind: MessageType,
    transaction: [u8; 3],
    client: Option<Vec<u8>>,
    server: Option<Vec<u8>>,
    rapid_commit: bool,
    associations: Vec<Association>,
}

/// An identity association of a request.
struct Association {
    kind: AssociationKind,
    id: u32,
    addresses: Vec<Ipv6Addr>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AssociationKind {
    Addresses,
    Temporary,
    Prefixes,
}

/// Splits options: code and value, all of them whole.
fn options(mut bytes: &[u8]) -> Result<Vec<(u16, &[u8])>, NoAnswer> {
    let mut options = Vec::new();
    while let [a, b, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if rest.len() < length {
            return Err(NoAnswer::Malformed("an option passes the end"));
        }
        let (value, rest) = rest.split_at(length);
        options.push((u16::from_be_bytes([*a, *b]), value));
        bytes = rest;
    }
    if bytes.is_empty() { Ok(options) } else { Err(NoAnswer::Malformed("an option is cut off")) }
}

fn decode(payload: &[u8]) -> Result<Request, NoAnswer> {
    let [kind, a, b, c, rest @ ..] = payload else {
        return Err(NoAnswer::Malformed("too short"));
    };
    let mut request = Request {
        kind: MessageType::from(*kind),
        transaction: [*a, *b, *c],
        client: None,
        server: None,
        rapid_commit: false,
        associations: Vec::new(),
    };
    for (code, value) in options(rest)? {
        let identifier = match code {
            1 => &mut request.client,
            2 => &mut request.server,
            14 => {
                request.rapid_commit = true;
                continue;
            }
            3 | 4 | 25 if request.associations.len() < ASSOCIATIONS_MAX => {
                request.associations.push(association(code, value)?);
                continue;
            }
            _ => continue,
        };
        // RFC 8415 11.1: a type of two bytes and 1 to 128 bytes more.
        if !(3..=130).contains(&value.len()) || identifier.is_some() {
            return Err(NoAnswer::Malformed("an identifier is wrong or there twice"));
        }
        *identifier = Some(value.to_vec());
    }
    Ok(request)
}

fn association(code: u16, value: &[u8]) -> Result<Association, NoAnswer> {
    let (kind, fixed_bytes) = match code {
        3 => (AssociationKind::Addresses, 12),
        4 => (AssociationKind::Temporary, 4),
        _ => (AssociationKind::Prefixes, 12),
    };
    let (Some(&id), Some(inner)) = (value.first_chunk::<4>(), value.get(fixed_bytes..)) else {
        return Err(NoAnswer::Malformed("an identity association is too short"));
    };
    let mut addresses = Vec::new();
    for (code, value) in options(inner)? {
        if code == 5 && addresses.len() < ADDRESSES_MAX {
            // An address, two lifetimes, and options that mean nothing to us.
            match value.first_chunk::<16>() {
                Some(&address) if value.len() >= 24 => addresses.push(Ipv6Addr::from(address)),
                _ => return Err(NoAnswer::Malformed("an address is too short")),
            }
        }
    }
    Ok(Association { kind, id: u32::from_be_bytes(id), addresses })
}

/// What the kind of a message demands of its identifiers (RFC 8415 16).
fn check_identifiers(binding: &Binding<'_>, request: &Request) -> Result<(), NoAnswer> {
    use MessageType as M;
    if request.client.is_none() && request.kind != M::InformationRequest {
        return Err(NoAnswer::Malformed("no client identifier"));
    }
    match (request.kind, &request.server) {
        (M::Solicit | M::Confirm | M::Rebind, Some(_)) => {
            Err(NoAnswer::Malformed("a server identifier where none may be"))
        }
        (M::Request | M::Renew | M::Release | M::Decline, None) => {
            Err(NoAnswer::Malformed("no server identifier"))
        }
        (_, Some(server)) if *server != server_duid(binding.port) => {
            Err(NoAnswer::Ignored("for another server"))
        }
        _ => Ok(()),
    }
}

fn reply(binding: &Binding<'_>, request: &Request) -> Result<Message, NoAnswer> {
    use MessageType as M;
    check_identifiers(binding, request)?;
    let rapid = request.rapid_commit;
    let kind = match request.kind {
        M::Solicit if !rapid => M::Advertise,
        M::Solicit | M::Request | M::Renew | M::Rebind | M::Confirm => M::Reply,
        M::Release | M::Decline | M::InformationRequest => M::Reply,
        _ => return Err(NoAnswer::Ignored("not a client's message")),
    };
    let mut reply = Message::new_with_id(kind, request.transaction);
    let options = reply.opts_mut();
    options.insert(DhcpOption::ServerId(server_duid(binding.port)));
    if let Some(client) = &request.client {
        options.insert(DhcpOption::ClientId(client.clone()));
    }
    match request.kind {
        M::Confirm => confirm(binding, request, options)?,
        M::Release => options.insert(status(Status::Success, "released")),
        M::Decline => {
            tracing::warn!(port = %binding.port, address = %binding.address, "the endpoint declines its address");
            options.insert(status(Status::Success, "noted"));
        }
        M::InformationRequest => {
            if !request.associations.is_empty() {
                return Err(NoAnswer::Malformed("INFORMATION-REQUEST asks for addresses"));
            }
            configuration(binding, options);
        }
        other => {
            if other == M::Solicit {
                options.insert(DhcpOption::Preference(255));
                if rapid {
                    options.insert(DhcpOption::RapidCommit);
                }
            }
            assign(binding, request, options);
            configuration(binding, options);
        }
    }
    Ok(reply)
}

fn status(status: Status, text: &str) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: text.to_string() })
}

/// RFC 8415 18.3.3: are the addresses right for the link?
fn confirm(binding: &Binding<'_>, request: &Request, reply: &mut DhcpOptions) -> Result<(), NoAnswer> {
    let mut claimed = request.associations.iter().flat_map(|association| &association.addresses).peekable();
    if claimed.peek().is_none() {
        return Err(NoAnswer::Ignored("CONFIRM names no address"));
    }
    reply.insert(match claimed.all(|address| binding.prefix.contains(address)) {
        true => status(Status::Success, "all addresses are right for this link"),
        false => status(Status::NotOnLink, "an address is not of this link"),
    });
    Ok(())
}

fn assign(binding: &Binding<'_>, request: &Request, reply: &mut DhcpOptions) {
    let mut given = false;
    for wanted in &request.associations {
        let id = wanted.id;
        reply.insert(match wanted.kind {
            AssociationKind::Addresses if !given => {
                given = true;
                DhcpOption::IANA(assign_one(binding, wanted))
            }
            AssociationKind::Addresses => DhcpOption::IANA(IANA {
                id,
                t1: 0,
                t2: 0,
                opts: only(status(Status::NoAddrsAvail, "this endpoint has one address")),
            }),
            AssociationKind::Temporary => DhcpOption::IATA(IATA {
                id,
                opts: only(status(Status::NoAddrsAvail, "there are no temporary addresses")),
            }),
            AssociationKind::Prefixes => DhcpOption::IAPD(IAPD {
                id,
                t1: 0,
                t2: 0,
                opts: only(status(Status::NoPrefixAvail, "there are no prefixes to delegate")),
            }),
        });
    }
}

fn only(option: DhcpOption) -> DhcpOptions {
    std::iter::once(option).collect()
}

/// The endpoint's address, and the end of every other one that the client still holds.
fn assign_one(binding: &Binding<'_>, wanted: &Association) -> IANA {
    let lease_s = binding.port.port.dhcp.lease_s;
    let address = |addr, life| {
        DhcpOption::IAAddr(IAAddr {
            addr,
            preferred_life: life,
            valid_life: life,
            opts: DhcpOptions::default(),
        })
    };
    let mut opts = only(address(binding.address, lease_s));
    for &other in wanted.addresses.iter().filter(|&&other| other != binding.address) {
        opts.insert(address(other, 0));
    }
    let (t1, t2) = renewal_times_s(lease_s);
    IANA { id: wanted.id, t1, t2, opts }
}

fn only_v6(addresses: &[IpAddr]) -> Vec<Ipv6Addr> {
    addresses
        .iter()
        .filter_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        })
        .collect()
}

fn configuration(binding: &Binding<'_>, reply: &mut DhcpOptions) {
    let dhcp = &binding.port.port.dhcp;
    let servers = match dhcp.dns_servers.as_slice() {
        [] => vec![binding.router],
        told => only_v6(told),
    };
    if !servers.is_empty() {
        reply.insert(DhcpOption::DomainNameServers(servers));
    }
    reply.insert(DhcpOption::DomainSearchList(super::search_domains(binding.port)));
    let ntp = only_v6(&dhcp.ntp_servers);
    if !ntp.is_empty() {
        reply.insert(DhcpOption::NtpServer(ntp.into_iter().map(NtpSuboption::ServerAddress).collect()));
    }
}
