//! What the tests of several modules share: frames, entries, and a naive switch that obeys a resolver
//! with a plain map for a flow table.

use crate::engine::counters::Counters;
use crate::engine::forward::is_special;
use crate::engine::port::{Device, Port};
use crate::engine::sys::Wakeup;
use crate::engine::wire::Wire;
use crate::engine::{MissLoad, Shared};
use crate::flow::{
    About, Action, Again, CounterIndex, FlowUse, Hop, Ingress, Invalidate, MissReason, Outcome, PortIndex,
};
use crate::flow::{NO_CONNECTION, Resolver};
use crate::flowtable::FlowStore;
use crate::fragments::Fragments;
use crate::nat::NatPool;
use crate::resolve::{ResolverConfig, TableResolver, perform};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use weir_model::entry::{
    GatewayEntry, LocationEntry, NetworkEntry, PolicyEntry, PortEntry, RouteEntry, RouteHop, Rule,
    SubnetEntry, Vni,
};
use weir_model::resource::{
    Action as RuleAction, DhcpOptions, Direction, Encapsulation, Peer, PortRange, PortState, Protocol,
};
use weir_model::{Change, Entry, Key, Label, MacAddr, Update, Version};
use weir_packet::encap::Half;
use weir_packet::headers::tcp_flags;
use weir_packet::key::FlowKey;
use weir_packet::outer::OuterHeader;
use weir_packet::{Fragment, checksum, parse};
use weir_trust::token::TokenKey;

pub(crate) const SECRET: [u8; 16] = [9; 16];
pub(crate) const SYN: u8 = tcp_flags::SYN;
pub(crate) const ACK: u8 = tcp_flags::ACK;
pub(crate) const RST: u8 = tcp_flags::RST;

pub(crate) fn label(text: &str) -> Label {
    Label::new(text).unwrap()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

// ---- frames ----

/// A packet to build.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub source_mac: MacAddr,
    pub destination_mac: MacAddr,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    pub protocol: u8,
    pub transport: Vec<u8>,
    /// IPv4's word of flags and offset, in units of 8 bytes; makes a fragment header of IPv6 if it is not zero.
    pub fragment: u16,
    pub identification: u16,
}

impl Packet {
    pub(crate) fn new(source: IpAddr, destination: IpAddr, protocol: u8, transport: Vec<u8>) -> Packet {
        Packet {
            source_mac: mac(1),
            destination_mac: Vni(1).router_mac(),
            source,
            destination,
            ttl: 64,
            protocol,
            transport,
            fragment: 0,
            identification: 7,
        }
    }

    pub(crate) fn from(mut self, mac: MacAddr) -> Packet {
        self.source_mac = mac;
        self
    }

    pub(crate) fn to(mut self, mac: MacAddr) -> Packet {
        self.destination_mac = mac;
        self
    }

    pub(crate) fn ttl(mut self, ttl: u8) -> Packet {
        self.ttl = ttl;
        self
    }

    pub(crate) fn fragment(mut self, word: u16) -> Packet {
        self.fragment = word;
        self
    }

    /// The packet in pieces, each of `bytes` at most, a multiple of 8, behind the IP header.
    pub(crate) fn pieces(&self, identification: u16, bytes: usize) -> Vec<Packet> {
        let whole = self.build();
        let transport = &whole[whole.len() - self.transport.len()..];
        let last = transport.len().div_ceil(bytes) - 1;
        let piece = |(number, part): (usize, &[u8])| Packet {
            transport: part.to_vec(),
            fragment: (number * bytes / 8) as u16 | if number == last { 0 } else { 0x2000 },
            identification,
            ..self.clone()
        };
        transport.chunks(bytes).enumerate().map(piece).collect()
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.extend(self.destination_mac.0);
        frame.extend(self.source_mac.0);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend(((20 + self.transport.len()) as u16).to_be_bytes());
                frame.extend(self.identification.to_be_bytes());
                frame.extend(self.fragment.to_be_bytes());
                frame.extend([self.ttl, self.protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                let header = if self.fragment == 0 { 0 } else { 8 };
                frame.extend(((header + self.transport.len()) as u16).to_be_bytes());
                frame.extend([if header == 0 { self.protocol } else { 44 }, self.ttl]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
                if header > 0 {
                    frame.extend([self.protocol, 0]);
                    frame.extend((self.fragment << 3 | self.fragment >> 13 & 1).to_be_bytes());
                    frame.extend(u32::from(self.identification).to_be_bytes());
                }
            }
            _ => panic!("families differ"),
        }
        frame.extend(&self.transport);
        let parsed = parse(&frame).unwrap();
        if self.source.is_ipv4() {
            checksum::fill_network(&mut frame, &parsed).unwrap();
        }
        if self.fragment & 0x3fff == 0 {
            checksum::fill_transport(&mut frame, &parsed).unwrap();
        }
        frame
    }
}

pub(crate) fn tcp(source: (IpAddr, u16), destination: (IpAddr, u16), flags: u8) -> Packet {
    let mut segment = vec![0; 20];
    segment[..2].copy_from_slice(&source.1.to_be_bytes());
    segment[2..4].copy_from_slice(&destination.1.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = flags;
    Packet::new(source.0, destination.0, 6, segment)
}

pub(crate) fn udp(source: (IpAddr, u16), destination: (IpAddr, u16), payload: usize) -> Packet {
    let mut datagram = vec![0; 8 + payload];
    datagram[..2].copy_from_slice(&source.1.to_be_bytes());
    datagram[2..4].copy_from_slice(&destination.1.to_be_bytes());
    datagram[4..6].copy_from_slice(&((8 + payload) as u16).to_be_bytes());
    Packet::new(source.0, destination.0, 17, datagram)
}

pub(crate) fn echo(source: IpAddr, destination: IpAddr, id: u16, request: bool) -> Packet {
    let v4 = source.is_ipv4();
    let kind = match (v4, request) {
        (true, true) => 8,
        (true, false) => 0,
        (false, true) => 128,
        (false, false) => 129,
    };
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 1];
    message[4..6].copy_from_slice(&id.to_be_bytes());
    Packet::new(source, destination, if v4 { 1 } else { 58 }, message)
}

/// An ICMP "port unreachable" about the IP packet of `cause`.
pub(crate) fn unreachable(source: IpAddr, destination: IpAddr, cause: &[u8]) -> Packet {
    let v4 = source.is_ipv4();
    let mut message = vec![if v4 { 3 } else { 1 }, if v4 { 3 } else { 4 }, 0, 0, 0, 0, 0, 0];
    message.extend(&cause[14..]);
    Packet::new(source, destination, if v4 { 1 } else { 58 }, message)
}

pub(crate) fn arp(sender_mac: MacAddr, sender: Ipv4Addr, target: Ipv4Addr, operation: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(sender_mac.0);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(sender_mac.0);
    frame.extend(sender.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

pub(crate) fn solicitation(source_mac: MacAddr, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(target.octets());
    if !source.is_unspecified() {
        message.extend([1, 1]);
        message.extend(source_mac.0);
    }
    let node = Ipv6Addr::from(0xff02_0000_0000_0000_0000_0001_ff00_0000 | (u128::from(target) & 0xff_ffff));
    Packet::new(source.into(), node.into(), 58, message)
        .from(source_mac)
        .to(MacAddr([0x33, 0x33, 0xff, 0, 0, 1]))
        .ttl(255)
        .build()
}

// ---- entries ----

pub(crate) fn put(version: u64, key: Key, entry: Entry) -> Update {
    Update {
        target: label("switch"),
        key,
        version: Version(version),
        expected: Version::ZERO,
        change: Change::Put(entry),
    }
}

pub(crate) fn delete(version: u64, key: Key) -> Update {
    Update { change: Change::Delete, ..put(version, key, Entry::Members(Vec::new())) }
}

pub(crate) fn subnet(name: &str, v4: Option<&str>, v6: Option<&str>) -> SubnetEntry {
    let v4: Option<ipnet::Ipv4Net> = v4.map(|net| net.parse().unwrap());
    let v6: Option<ipnet::Ipv6Net> = v6.map(|net| net.parse().unwrap());
    SubnetEntry {
        name: label(name),
        v4,
        router_v4: v4.map(|net| Ipv4Addr::from(u32::from(net.network()) + 1)),
        v6,
        router_v6: v6.map(|net| Ipv6Addr::from(u128::from(net.network()) + 1)),
    }
}

/// Two subnets of both families, Geneve, MTU 1400.
pub(crate) fn network_entry(name: &str, external_access: bool) -> NetworkEntry {
    NetworkEntry {
        name: label(name),
        mtu: 1400,
        encapsulation: Encapsulation::Geneve,
        external_access,
        subnets: vec![
            subnet("front", Some("10.0.0.0/24"), Some("fd00::/64")),
            subnet("back", Some("10.0.1.0/24"), Some("fd00:0:0:1::/64")),
        ],
        forwarding: weir_model::resource::Forwarding::Routed,
    }
}

pub(crate) fn network(vni: u32, entry: NetworkEntry) -> Update {
    put(1, Key::Network { vni: Vni(vni) }, Entry::Network(entry))
}

pub(crate) fn port_entry(last: u8, device: &str, addresses: &[&str], tags: &[&str]) -> PortEntry {
    PortEntry {
        mac: mac(last),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        tags: tags.iter().map(|text| label(text)).collect(),
        state: PortState::Up,
        netns: None,
        device: device.to_string(),
        kind: weir_model::resource::AttachmentKind::Tap,
        queue_pairs: 1,
        subnet: label("front"),
        dhcp: DhcpOptions::default(),
        policy_min: Version(1),
    }
}

pub(crate) fn port_key(vni: u32, name: &str) -> Key {
    Key::Port { vni: Vni(vni), endpoint: label(name) }
}

pub(crate) fn port(vni: u32, name: &str, last: u8, addresses: &[&str], tags: &[&str]) -> Update {
    let device = format!("{name}-{vni}");
    put(1, port_key(vni, name), Entry::Port(port_entry(last, &device, addresses, tags)))
}

pub(crate) fn location(vni: u32, address: &str, last: u8, underlay: &str) -> Update {
    let entry =
        LocationEntry { endpoint: label("there"), mac: mac(last), host: label("h"), underlay: ip(underlay) };
    put(1, Key::Location { vni: Vni(vni), address: ip(address) }, Entry::Location(entry))
}

pub(crate) fn gateways(underlays: &[&str]) -> Update {
    let of = |(number, underlay): (usize, &&str)| GatewayEntry {
        name: label(&format!("gateway-{number}")),
        underlay: ip(underlay),
    };
    put(1, Key::Gateways, Entry::Gateways(underlays.iter().enumerate().map(of).collect()))
}

pub(crate) fn route(vni: u32, name: &str, prefix: &str, next_hop: RouteHop) -> Update {
    let entry = RouteEntry { name: label(name), version: Version(1), next_hop };
    put(1, Key::Route { vni: Vni(vni), prefix: prefix.parse().unwrap() }, Entry::Route(entry))
}

pub(crate) fn rule(name: &str, direction: Direction, action: RuleAction) -> Rule {
    Rule {
        name: label(name),
        version: Version(1),
        direction,
        priority: 100,
        action,
        protocol: Protocol::Any,
        ports: Vec::new(),
        peers: Vec::new(),
        targets: Vec::new(),
        stateful: true,
    }
}

pub(crate) fn allow_in(name: &str, protocol: Protocol, port: Option<u16>) -> Rule {
    let ports = port.map(|port| PortRange { first: port, last: port }).into_iter().collect();
    Rule { protocol, ports, ..rule(name, Direction::Ingress, RuleAction::Allow) }
}

pub(crate) fn from_tag(rule: Rule, tag: &str) -> Rule {
    Rule { peers: vec![Peer::Tag(label(tag))], ..rule }
}

/// Deny in, allow out, and these rules.
pub(crate) fn policy(vni: u32, version: u64, rules: Vec<Rule>) -> Update {
    policy_with(vni, version, RuleAction::Deny, RuleAction::Allow, rules)
}

pub(crate) fn policy_with(
    vni: u32,
    version: u64,
    default_ingress: RuleAction,
    default_egress: RuleAction,
    rules: Vec<Rule>,
) -> Update {
    let entry = PolicyEntry { default_ingress, default_egress, rules };
    put(version, Key::Policy { vni: Vni(vni) }, Entry::Policy(entry))
}

pub(crate) fn members(vni: u32, tag: &str, bucket: u8, addresses: &[&str]) -> Update {
    let mut addresses: Vec<IpAddr> = addresses.iter().map(|text| ip(text)).collect();
    addresses.sort_unstable();
    put(1, Key::Members { vni: Vni(vni), tag: label(tag), bucket }, Entry::Members(addresses))
}

pub(crate) fn resolver(underlay: &str) -> TableResolver {
    TableResolver::new(ResolverConfig::host(label("host"), ip(underlay), TokenKey::new(SECRET)))
}

pub(crate) fn gateway_resolver(underlay: &str, nat: NatPool) -> TableResolver {
    let key = TokenKey::new(SECRET);
    TableResolver::new(ResolverConfig::gateway(label("gateway"), ip(underlay), key, nat, 1500))
}

pub(crate) fn nat_pool() -> NatPool {
    NatPool {
        v4: vec!["198.51.100.1".parse().unwrap()],
        v6: vec!["2001:db8::1".parse().unwrap()],
        ports: 1024..=65535,
    }
}

// ---- a naive switch ----

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Delivered(PortIndex, Vec<u8>),
    Sent {
        receiver: IpAddr,
        vni: u32,
        token: u64,
        half: Half,
        by_gateway: bool,
        frame: Vec<u8>,
    },
    External(Vec<u8>),
    Answered(Vec<u8>),
    Punted,
    /// Waits until the controllers say where this address is.
    Asked(IpAddr),
    /// Waits until the controllers say whose turn it is: for a client, at a virtual address.
    AskedTurn(IpAddr, IpAddr),
    /// Dropped, under the name of this counter.
    Dropped(String),
}

impl Event {
    pub(crate) fn is_drop(&self) -> bool {
        matches!(self, Event::Dropped(_))
    }

    pub(crate) fn frame(&self) -> &[u8] {
        match self {
            Event::Delivered(_, frame)
            | Event::Sent { frame, .. }
            | Event::External(frame)
            | Event::Answered(frame) => frame,
            Event::Punted | Event::Asked(_) | Event::AskedTurn(..) | Event::Dropped(_) => {
                panic!("{self:?} has no frame")
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Zone {
    Port(PortIndex),
    Underlay(IpAddr, u32, Encapsulation, Half),
    External,
}

pub(crate) fn zone(ingress: &Ingress) -> Zone {
    match *ingress {
        Ingress::Port(port) => Zone::Port(port),
        Ingress::Underlay { sender, vni, format, half, .. } => Zone::Underlay(sender, vni, format, half),
        Ingress::External => Zone::External,
    }
}

/// Where packets of a zone come in; without a token.
pub(crate) fn ingress(zone: &Zone) -> Ingress {
    match *zone {
        Zone::Port(port) => Ingress::Port(port),
        Zone::Underlay(sender, vni, format, half) => {
            Ingress::Underlay { sender, vni, token: None, format, half }
        }
        Zone::External => Ingress::External,
    }
}

/// Whether a flow hangs on what changed, from the words of [`Invalidate`]; `ports` are the networks of ports.
pub(crate) fn hangs_on(
    mind: &TableResolver,
    ports: &HashMap<PortIndex, u32>,
    (zone, key): (&Zone, &FlowKey),
    action: &Action,
    change: &Invalidate,
) -> bool {
    let network = match (zone, &action.hop) {
        (Zone::Port(port), _) => ports.get(port).copied(),
        (Zone::Underlay(_, vni, ..), _) | (_, Hop::Underlay { vni, .. }) => Some(*vni),
        (_, Hop::Port(port)) => ports.get(port).copied(),
        _ => None,
    };
    let (source, destination) = (IpAddr::from(key.source), IpAddr::from(key.destination));
    let hangs = &action.hangs;
    let mut sides = vec![source, destination];
    sides.extend(hangs.others.iter().flatten());
    let by_gateway = match action.hop {
        Hop::Underlay { receiver, by_gateway: true, .. } => Some(receiver),
        _ => None,
    };
    match change {
        Invalidate::Nothing => false,
        Invalidate::All => true,
        Invalidate::Network(vni) => network == Some(*vni),
        Invalidate::Denied(vni) => {
            network == Some(*vni) && matches!(zone, Zone::Underlay(..)) && action.hop == Hop::Drop
        }
        Invalidate::Port(port) => *zone == Zone::Port(*port) || action.hop == Hop::Port(*port),
        Invalidate::Address(vni, address) => {
            network == Some(*vni)
                && (hangs.any || sides.contains(address) || hangs.next_hops.contains(&Some(*address)))
        }
        Invalidate::Route(vni, prefix) => {
            let longest = |address: &IpAddr| {
                let network = mind.tables().network(*vni);
                network.and_then(|network| network.longest_route(*address))
            };
            let takes = |address: &IpAddr| {
                let is_longer = |longest: ipnet::IpNet| longest.prefix_len() > prefix.prefix_len();
                prefix.contains(address) && !longest(address).is_some_and(is_longer)
            };
            network == Some(*vni) && (hangs.any || sides.iter().any(takes))
        }
        Invalidate::Gateways { come, gone } => {
            let to = action.nat.and_then(|nat| nat.destination).map_or(destination, |(to, _)| to);
            let chosen = |from: IpAddr| {
                let all: Vec<GatewayEntry> = std::iter::once(from)
                    .chain(come.iter().copied())
                    .map(|underlay| GatewayEntry { name: label("g"), underlay })
                    .collect();
                let vni = network.unwrap_or_default();
                crate::tables::gateways::choose(&all, vni, source, to).map(|chosen| chosen.underlay)
            };
            by_gateway.is_some_and(|from| gone.contains(&from) || chosen(from) != Some(from))
                || action.hangs.no_gateway && !come.is_empty()
        }
        Invalidate::Sender(vni, sender) => {
            let is_of = |of: u32| vni.is_none_or(|vni| vni == of);
            matches!(zone, Zone::Underlay(from, of, ..) if from == sender && is_of(*of))
        }
        Invalidate::Outside(address) => destination == *address,
    }
}

/// A resolver and a plain map for a flow table.
pub(crate) struct Switch {
    pub mind: TableResolver,
    pub flows: HashMap<(Zone, FlowKey), Action>,
    /// When each flow carried a packet last.
    pub last_ms: HashMap<(Zone, FlowKey), u64>,
    pub fragments: Fragments,
    pub ports: HashMap<PortIndex, u32>,
    pub counts: BTreeMap<CounterIndex, u64>,
    pub now_ms: u64,
    pub misses: u64,
}

impl Switch {
    pub(crate) fn new(mind: TableResolver) -> Switch {
        let (flows, ports, counts) = (HashMap::new(), HashMap::new(), BTreeMap::new());
        let (last_ms, fragments) = (HashMap::new(), Fragments::with_limit(64));
        Switch { mind, flows, last_ms, fragments, ports, counts, now_ms: 1_000_000, misses: 0 }
    }

    pub(crate) fn apply(&mut self, update: &Update) -> Vec<Invalidate> {
        let effects = self.mind.apply(self.now_ms, update).unwrap();
        for port in self.mind.tables().ports() {
            self.ports.insert(port.index, port.vni.0);
        }
        self.decide_again(&effects.invalidate);
        effects.invalidate
    }

    pub(crate) fn apply_all(&mut self, updates: &[Update]) {
        for update in updates {
            self.apply(update);
        }
    }

    /// Decides again on the flows that a walk over all of them finds.
    pub(crate) fn decide_again(&mut self, changes: &[Invalidate]) {
        let hang = |flow: &(&(Zone, FlowKey), &Action)| {
            let ((zone, key), action) = flow;
            changes.iter().any(|change| hangs_on(&self.mind, &self.ports, (zone, key), action, change))
        };
        let found: Vec<(Zone, FlowKey)> = self.flows.iter().filter(hang).map(|(flow, _)| *flow).collect();
        for (zone, key) in found {
            match self.mind.decide_again(self.now_ms, &ingress(&zone), &key) {
                Again::Action(action) => drop(self.flows.insert((zone, key), action)),
                Again::Ask => drop(self.flows.remove(&(zone, key))),
            }
        }
    }

    pub(crate) fn port_index(&self, vni: u32, name: &str) -> PortIndex {
        self.mind.tables().port_named(vni, &label(name)).unwrap().index
    }

    /// Takes a frame from a port.
    pub(crate) fn at_port(&mut self, vni: u32, name: &str, frame: &[u8]) -> Event {
        let index = self.port_index(vni, name);
        self.take(&Ingress::Port(index), frame)
    }

    /// Takes a frame from another switch, with its right token.
    pub(crate) fn at_underlay(&mut self, sender: &str, vni: u32, frame: &[u8]) -> Event {
        self.at_underlay_with(sender, vni, Half::Unsaid, frame)
    }

    /// The same, with what the sender's half decided.
    pub(crate) fn at_underlay_with(&mut self, sender: &str, vni: u32, half: Half, frame: &[u8]) -> Event {
        let token = Some(TokenKey::new(SECRET).token(vni, ip(sender)));
        let (sender, format) = (ip(sender), Encapsulation::Geneve);
        self.take(&Ingress::Underlay { sender, vni, token, format, half }, frame)
    }

    /// Takes a frame through the flow table, and through the resolver on a miss.
    pub(crate) fn take(&mut self, ingress: &Ingress, frame: &[u8]) -> Event {
        let some = arp(mac(1), Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 1);
        let Ok(parsed) = parse(frame) else {
            let key = FlowKey::new(0, &parse(&some).unwrap());
            return self.miss(ingress, MissReason::NoFlow, key, frame);
        };
        if is_special(&parsed) {
            return self.miss(ingress, MissReason::Special, FlowKey::new(0, &parsed), frame);
        }
        let key = match self.fragments.take(ingress, 0, &parsed, self.now_ms as u32) {
            Ok(followed) => followed.key,
            Err(reason) => return self.dropped(reason as CounterIndex),
        };
        let misses = self.misses;
        let event = match self.flows.get(&(zone(ingress), key)).cloned() {
            Some(action) => self.obey(ingress, &action, key, frame),
            None => self.miss(ingress, MissReason::NoFlow, key, frame),
        };
        if parsed.fragment == Fragment::First && matches!(event, Event::Answered(_)) && self.misses > misses {
            self.fragments.first_ended(ingress, &parsed, self.now_ms as u32);
        }
        event
    }

    fn obey(&mut self, ingress: &Ingress, action: &Action, key: FlowKey, frame: &[u8]) -> Event {
        let parsed = parse(frame).unwrap();
        self.last_ms.insert((zone(ingress), key), self.now_ms);
        let seen = FlowUse { packets: 1, bytes: frame.len() as u64, tcp_flags: parsed.tcp_flags };
        if action.hop == Hop::Drop {
            self.used(action, seen);
            return self.dropped(action.counter);
        }
        if parsed.l3_length() > usize::from(action.mtu) {
            return self.miss(ingress, MissReason::TooBig(action.mtu), key, frame);
        }
        if action.routed && parsed.ttl <= 1 {
            return self.miss(ingress, MissReason::TtlExpired, key, frame);
        }
        *self.counts.entry(action.counter).or_default() += 1;
        self.used(action, seen);
        let sent = perform(frame, action).unwrap();
        self.hop(&action.hop, sent)
    }

    fn used(&mut self, action: &Action, seen: FlowUse) {
        if action.connection != NO_CONNECTION {
            self.mind.used(self.now_ms, action.connection, seen);
        }
    }

    fn hop(&mut self, hop: &Hop, frame: Vec<u8>) -> Event {
        match hop {
            Hop::Port(port) => Event::Delivered(*port, frame),
            Hop::Underlay { receiver, vni, token, half, by_gateway, .. } => {
                let (receiver, vni, token) = (*receiver, *vni, *token);
                Event::Sent { receiver, vni, token, half: *half, by_gateway: *by_gateway, frame }
            }
            Hop::External => Event::External(frame),
            Hop::Drop => panic!("a frame cannot be sent nowhere"),
        }
    }

    fn dropped(&mut self, counter: CounterIndex) -> Event {
        *self.counts.entry(counter).or_default() += 1;
        Event::Dropped(self.mind.counters().get(counter).unwrap().0.to_string())
    }

    fn miss(&mut self, ingress: &Ingress, reason: MissReason, key: FlowKey, frame: &[u8]) -> Event {
        self.misses += 1;
        let before: Vec<u64> = self.mind.counters().iter().map(|(_, _, count)| count).collect();
        let resolution = self.mind.resolve(self.now_ms, ingress, &key, reason, frame);
        for (ingress, key, action) in resolution.install {
            assert_eq!(key.zone, 0);
            self.last_ms.insert((zone(&ingress), key), self.now_ms);
            self.flows.insert((zone(&ingress), key), action);
        }
        match resolution.outcome {
            Outcome::Reinject => {
                let action =
                    self.flows.get(&(zone(ingress), key)).cloned().expect("a flow to put it back to");
                self.obey(ingress, &action, key, frame)
            }
            Outcome::Answer(answer) => {
                parse(&answer).unwrap();
                Event::Answered(answer)
            }
            Outcome::Punt => Event::Punted,
            Outcome::Ask(asked) => match asked.about {
                About::Place(address) => Event::Asked(address),
                About::Turn { client, address } => Event::AskedTurn(client, address),
            },
            Outcome::Forward { hop, frame } => self.hop(&hop, frame),
            Outcome::Drop => {
                let mut counted = self.mind.counters().iter().filter(|(index, _, count)| {
                    *count > before.get(*index as usize).copied().unwrap_or_default()
                });
                let (_, name, _) = counted.next().expect("a drop that nobody counted");
                Event::Dropped(name.to_string())
            }
        }
    }

    /// Packets counted under a name, by the switch and by the resolver.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let all = self.mind.counters().iter().filter(|(_, n, _)| n.to_string() == name);
        all.map(|(index, _, own)| own + self.counts.get(&index).copied().unwrap_or_default()).sum()
    }

    /// Lets time pass, and with it idle flows.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        let (now_ms, last_ms) = (self.now_ms, &self.last_ms);
        self.flows.retain(|key, action| now_ms - last_ms[key] <= u64::from(action.idle_ms));
        for _ in 0..8 {
            let changes = self.mind.tick(self.now_ms);
            self.decide_again(&changes);
        }
    }
}

// ---- engines ----

/// What an engine and its other threads share, with room for 1,024 flows.
pub(crate) fn shared() -> Arc<Shared> {
    let wakeup = || Wakeup::new().unwrap();
    Arc::new(Shared {
        store: Arc::new(FlowStore::with_flows_max([1, 2], 1024)),
        counters: Arc::new(Counters::default()),
        load: MissLoad::default(),
        engine_wake: wakeup(),
        slow_wake: wakeup(),
        start: Instant::now(),
        stop: std::sync::atomic::AtomicBool::new(false),
        mark: crate::mark::Mark::none(),
    })
}

/// A port that works as one with a TAP, and its other end, which has room for all frames of a test.
pub(crate) fn device() -> (Box<Port>, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (device, endpoint) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    for end in [&device, &endpoint] {
        // The kernel doubles it.
        rustix::net::sockopt::set_socket_send_buffer_size(end, 200 * 1024).unwrap();
    }
    (Box::new(Port { device: Device::Tap(Arc::new(device)), up: true, ethernet: None }), endpoint)
}

/// A wire that gives the frames that wait in it, and keeps those that are put.
#[derive(Clone, Default)]
pub(crate) struct FrameWire(Arc<Mutex<WireFrames>>);

#[derive(Default)]
struct WireFrames {
    waiting: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl FrameWire {
    pub(crate) fn come(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.0.lock().unwrap().waiting.extend(frames);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().waiting.is_empty()
    }

    pub(crate) fn take_sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.0.lock().unwrap().sent)
    }
}

impl Wire for FrameWire {
    fn put(&mut self, pieces: &[&[u8]]) -> bool {
        self.0.lock().unwrap().sent.push(pieces.concat());
        true
    }

    fn show(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn take(&mut self, most: usize, each: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let waiting = &mut self.0.lock().unwrap().waiting;
        let mut taken = 0;
        while taken < most && waiting.front().is_some_and(|frame| each(frame)) {
            waiting.pop_front();
            taken += 1;
        }
        taken
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn settle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A datagram on the wire, with its outer headers.
pub(crate) fn outer_frame(sender: &str, receiver: &str, port: u16, ecn: u8, datagram: &[u8]) -> Vec<u8> {
    let header = OuterHeader::new(([2; 6], [4; 6]), ip(sender), ip(receiver), 64, port).unwrap();
    [&header.of(50_000, ecn, &[datagram], false)[..header.length()], datagram].concat()
}
