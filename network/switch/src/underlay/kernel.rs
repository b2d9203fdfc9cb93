//! What the kernel knows of ways and neighbours, by route netlink in the process's own namespace: asked for one receiver at a time, so that
//! rules, tables, metrics and what routers said of an MTU count as they do for a socket; and told when anything of it changes.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use weir_packet::Mac;

/// `RTNLGRP_…`: links, neighbours, and addresses, routes and rules of both families.
const GROUPS: [u32; 8] = [1, 3, 5, 7, 8, 9, 11, 19];
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Largest message of the kernel: it says so of its dumps.
const ANSWER_BYTES: usize = 64 * 1024;
/// Messages of one answer, and datagrams of notes in one look: who has more is looked at anew.
const MESSAGES_MAX: usize = 65_536;
const NOTES_MAX: usize = 256;
/// Neighbours that changed and are told one by one.
const NEIGHBOURS_MAX: usize = 64;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MTU, bytes.
    pub mtu: usize,
    /// Its Ethernet address; none of a device of another kind.
    pub mac: Option<Mac>,
    /// It leads to the host itself.
    pub is_loopback: bool,
    /// It is up, and has a carrier.
    pub is_running: bool,
}

/// The way to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Number of the device.
    pub device: u32,
    /// Who gets the frame.
    pub next_hop: IpAddr,
    /// The way's own MTU, if it has one, bytes.
    pub mtu: Option<usize>,
    /// Its own hop limit, if it has one.
    pub hop_limit: Option<u8>,
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its Ethernet address.
    pub mac: Mac,
    /// Nobody has heard of it for some time.
    pub is_stale: bool,
}

/// What has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Anything but neighbours; or too much to tell.
    pub all: bool,
    /// Neighbours.
    pub neighbours: Vec<IpAddr>,
}

/// See the module.
#[derive(Debug)]
pub struct Kernel {
    requests: OwnedFd,
    notes: OwnedFd,
    sequence: u32,
}

impl Kernel {
    /// Begins to be told.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> io::Result<Kernel> {
        use rustix::net::AddressFamily;
        let open =
            |flags| socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC | flags, None);
        let requests = open(SocketFlags::empty())?;
        sockopt::set_socket_timeout(&requests, sockopt::Timeout::Recv, Some(ANSWER_LIMIT))?;
        let notes = open(SocketFlags::NONBLOCK)?;
        let groups = GROUPS.iter().fold(0, |groups, group| groups | 1 << (group - 1));
        bind(&notes, &SocketAddrNetlink::new(0, groups))?;
        Ok(Kernel { requests, notes, sequence: 0 })
    }

    /// To wait for changes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notes.as_fd()
    }

    /// What has changed since the last time.
    pub fn changes(&self) -> Changes {
        let (mut changes, mut bytes) = (Changes::default(), vec![0; ANSWER_BYTES]);
        for _ in 0..NOTES_MAX {
            match recv(&self.notes, &mut bytes[..], RecvFlags::empty()) {
                Ok((read, _)) => note(&messages(&bytes[..read]), &mut changes),
                Err(rustix::io::Errno::WOULDBLOCK) => return changes,
                // There was more than it kept for us.
                Err(_) => changes.all = true,
            }
        }
        changes
    }

    /// The device that has an address.
    ///
    /// # Errors
    /// What the kernel says; `NotFound` if none has it.
    pub fn device_of(&mut self, address: IpAddr) -> io::Result<Link> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        let all = self.ask(RouteNetlinkMessage::GetAddress(message), NLM_F_DUMP)?;
        let index = all.iter().find_map(|message| {
            let RouteNetlinkMessage::NewAddress(found) = message else { return None };
            let has = |attribute: &AddressAttribute| match attribute {
                // Of a tunnel between two points `Address` is the other end's.
                AddressAttribute::Local(own) => *own == address,
                AddressAttribute::Address(own) => *own == address && address.is_ipv6(),
                _ => false,
            };
            found.attributes.iter().any(has).then_some(found.header.index)
        });
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, format!("no device has the address {address}"));
        self.link(index.ok_or_else(missing)?)
    }

    /// A device by its number.
    ///
    /// # Errors
    /// What the kernel says; `NotFound` if there is none.
    pub fn link(&mut self, index: u32) -> io::Result<Link> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let all = self.ask(RouteNetlinkMessage::GetLink(message), 0)?;
        let found = all.into_iter().find_map(|message| match message {
            RouteNetlinkMessage::NewLink(found) => Some(found),
            _ => None,
        });
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("there is no device {index}"));
        let found = found.ok_or_else(missing)?;
        let is_ethernet = found.header.link_layer_type == LinkLayerType::Ether;
        let running = LinkFlags::Up | LinkFlags::LowerUp;
        let mut link = Link {
            index,
            name: String::new(),
            mtu: 0,
            mac: None,
            is_loopback: found.header.flags.contains(LinkFlags::Loopback),
            is_running: found.header.flags.contains(running),
        };
        for attribute in found.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Mtu(mtu) => link.mtu = mtu as usize,
                LinkAttribute::Address(bytes) if is_ethernet => link.mac = Mac::try_from(bytes).ok(),
                _ => {}
            }
        }
        Ok(link)
    }

    /// The way from an address to a receiver; none if it is no way of frames by one device.
    ///
    /// # Errors
    /// What the kernel says: `ENETUNREACH` for one.
    pub fn route(&mut self, source: IpAddr, receiver: IpAddr) -> io::Result<Option<Route>> {
        let mut message = RouteMessage::default();
        let bits = if receiver.is_ipv6() { 128 } else { 32 };
        message.header.address_family = family(receiver);
        (message.header.destination_prefix_length, message.header.source_prefix_length) = (bits, bits);
        message.attributes = vec![
            RouteAttribute::Destination(RouteAddress::from(receiver)),
            RouteAttribute::Source(RouteAddress::from(source)),
        ];
        let all = self.ask(RouteNetlinkMessage::GetRoute(message), 0)?;
        let found = all.into_iter().find_map(|message| match message {
            RouteNetlinkMessage::NewRoute(found) => Some(found),
            _ => None,
        });
        Ok(found.and_then(|found| route_of(&found, receiver)))
    }

    /// What is known of a neighbour; none if its Ethernet address is not.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn neighbour(&mut self, device: u32, address: IpAddr) -> io::Result<Option<Neighbour>> {
        let asked = RouteNetlinkMessage::GetNeighbour(neighbour_message(device, address));
        let all = match self.ask(asked, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            all => all?,
        };
        Ok(all.iter().find_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(found) => neighbour_of(found),
            _ => None,
        }))
    }

    /// Has the kernel look for a neighbour, or look again whether it is still there.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn use_neighbour(&mut self, device: u32, address: IpAddr) -> io::Result<()> {
        let mut message = neighbour_message(device, address);
        message.header.flags = NeighbourFlags::Use;
        self.ask(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | netlink_packet_core::NLM_F_ACK)
            .map(drop)
    }

    /// Asks, and returns what comes.
    fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        send(&self.requests, &bytes, SendFlags::empty())?;
        let (mut all, mut bytes) = (Vec::new(), vec![0; ANSWER_BYTES]);
        while all.len() < MESSAGES_MAX {
            let (read, _) = recv(&self.requests, &mut bytes[..], RecvFlags::empty())?;
            for answer in messages(&bytes[..read]) {
                if answer.header.sequence_number != self.sequence {
                    // Of a question whose answer came too late.
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(all),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(all),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(message) => all.push(message),
                    _ => {}
                }
                if flags & NLM_F_DUMP != NLM_F_DUMP {
                    return Ok(all);
                }
            }
        }
        Ok(all)
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn neighbour_message(device: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = device;
    let to = match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    };
    message.attributes = vec![NeighbourAttribute::Destination(to)];
    message
}

/// The messages of a datagram; those that make no sense to us are left out.
fn messages(mut bytes: &[u8]) -> Vec<NetlinkMessage<RouteNetlinkMessage>> {
    let mut all = Vec::new();
    while let Some(length) = bytes.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        if length < NETLINK_HEADER_BYTES || length > bytes.len() {
            break;
        }
        all.extend(NetlinkMessage::deserialize(&bytes[..length]).ok());
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

const NETLINK_HEADER_BYTES: usize = 16;

fn note(messages: &[NetlinkMessage<RouteNetlinkMessage>], changes: &mut Changes) {
    for message in messages {
        let NetlinkPayload::InnerMessage(message) = &message.payload else { continue };
        let (RouteNetlinkMessage::NewNeighbour(of) | RouteNetlinkMessage::DelNeighbour(of)) = message else {
            changes.all = true;
            continue;
        };
        let address = of.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
            _ => None,
        });
        match address {
            Some(address) if changes.neighbours.len() < NEIGHBOURS_MAX => changes.neighbours.push(address),
            Some(_) => changes.all = true,
            None => {}
        }
    }
}

fn route_of(found: &RouteMessage, receiver: IpAddr) -> Option<Route> {
    let mut route = Route { device: 0, next_hop: receiver, mtu: None, hop_limit: None };
    if found.header.kind != RouteType::Unicast {
        return None;
    }
    for attribute in &found.attributes {
        match attribute {
            RouteAttribute::Oif(device) => route.device = *device,
            RouteAttribute::Gateway(RouteAddress::Inet(v4)) => route.next_hop = (*v4).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6)) => route.next_hop = (*v6).into(),
            RouteAttribute::Via(netlink_packet_route::route::RouteVia::Inet6(v6)) => {
                route.next_hop = (*v6).into();
            }
            // The kernel puts something around the packet, or somebody else is to look at it.
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::Encap(_) => return None,
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => route.mtu = Some(*mtu as usize),
                        RouteMetric::Hoplimit(limit) => route.hop_limit = u8::try_from(*limit).ok(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(route)
}

fn neighbour_of(found: &NeighbourMessage) -> Option<Neighbour> {
    let state = found.header.state;
    let is_known = matches!(
        state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp
    );
    let mac = found.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Mac::try_from(bytes.as_slice()).ok(),
        _ => None,
    });
    mac.filter(|_| is_known).map(|mac| Neighbour { mac, is_stale: state == NeighbourState::Stale })
}

#[cfg(test)]
mod tests;
