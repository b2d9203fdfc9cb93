//! The slow path's decisions (rows A11, A14, A17, A18, A22, A24, A25; pains 8 to 12): what becomes of a
//! frame that the flow table does not know.
//!
//! A frame walks through named stages, each a small function:
//! - from an endpoint: `port`, `anti-spoofing`, `arp`, `neighbor`, `router`, `balancer`, `connection`,
//!   `egress-firewall`, `route`, `ingress-firewall`, `tracking`;
//! - from another switch: `network`, `sender`, then at a host `route`, `connection`, `ingress-firewall`,
//!   `tracking`, and at a gateway `route`, `external-access`, `nat`;
//! - from outside, at a gateway: `nat`, `network`, `route`.
//! - of a probe from another switch: `sender`, `probe`.
//!
//! The walk changes nothing: it ends in a decision, which is then committed. A trace is the same walk
//! without the commit, so the two cannot differ (pain 10).
//!
//! Invariants
//! - A packet of one network never leads to a port or identifier of another.
//! - A flow is installed only where the verdict holds for every packet of its key until something
//!   changes that [`Effects`] names. What fails to prove its sender makes no flow.
//! - Denied flows are installed as drops, so that floods cost little and are counted exactly.
//! - TTL goes down between subnets, and at a gateway towards the outside; nowhere else.
//!
//! An IPv4 packet that is too large is answered with "too big" even if it may be fragmented: hosts
//! lower their path MTU all the same, and the switch does not fragment. A first fragment is judged as a
//! whole packet would be; later ones come with the key of its flow, from [`crate::fragments`].

mod again;
mod balanced;
mod commit;
mod decision;
mod external;
mod firewall;
mod from_port;
mod from_underlay;
mod hops;
mod learned;
mod perform;
mod probe;
mod related;

use crate::answer::{Bucket, Service, router_advertisement};
use crate::conntrack::{
    Binding, CarriedConnection, Connection, ConnectionRecord, Connections, Limits, Owner, RecordKey, Sides,
    connection_key,
};
use crate::counters::{Counters, Reason};
use crate::flow::{
    Again, CounterIndex, Effects, FlowUse, Ingress, Invalidate, MissReason, PortEffect, PortIndex,
    Resolution, Resolver,
};
use crate::nat::{NatPool, inbound_key};
use crate::slow::probes::PROBE_VNI;
use crate::tables::{Role, Tables};
use ipnet::IpNet;
use std::net::IpAddr;
use weir_model::local::{ConnectionStatus, PortName, PortStatus};
use weir_model::update::Refusal;
use weir_model::{Key, Label, Update};
use weir_packet::headers::tcp_flags;
use weir_packet::key::FlowKey;
use weir_packet::{PacketError, Parsed, Transport};
use weir_trust::token::TokenKey;

pub(crate) use decision::{Arrival, Cause, Decision, Observer, Step};
use decision::{Budget, Install, Path};
pub(crate) use perform::perform;

const SOURCE_QUENCH: u8 = 4;
const REDIRECT: u8 = 5;
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT_V6: u8 = 137;

/// How often an endpoint with IPv6 is told of its router without asking, milliseconds.
pub const ADVERTISEMENT_INTERVAL_MS: u64 = 600_000;

/// What a resolver must know besides what the controller tells it.
#[derive(Debug)]
pub struct ResolverConfig {
    /// Name of the switch.
    pub name: Label,
    /// What it is.
    pub role: Role,
    /// Its own address on the underlay.
    pub underlay: IpAddr,
    /// The domain's dataplane secret.
    pub token_key: TokenKey,
    /// Outside addresses of a gateway; [`NatPool::none`] at a host.
    pub nat: NatPool,
    /// MTU of the outside, bytes.
    pub external_mtu: u16,
    /// Destinations outside that no tenant reaches, besides those of [`crate::tables::Tables::is_underlay`].
    pub guarded: Vec<IpNet>,
    /// Of all those, the ones that tenants may reach.
    pub reachable: Vec<IpNet>,
    /// Where other switches are, of those that the controllers tell; empty: wherever these are.
    pub underlay_from: Vec<IpNet>,
    /// Limits of the connection table.
    pub limits: Limits,
}

impl ResolverConfig {
    /// A host.
    pub fn host(name: Label, underlay: IpAddr, token_key: TokenKey) -> ResolverConfig {
        ResolverConfig {
            name,
            role: Role::Host,
            underlay,
            token_key,
            nat: NatPool::none(),
            external_mtu: 1500,
            guarded: Vec::new(),
            reachable: Vec::new(),
            underlay_from: Vec::new(),
            limits: Limits::default(),
        }
    }

    /// A gateway with its outside addresses.
    pub fn gateway(
        name: Label,
        underlay: IpAddr,
        token_key: TokenKey,
        nat: NatPool,
        external_mtu: u16,
    ) -> ResolverConfig {
        ResolverConfig {
            nat,
            external_mtu,
            role: Role::Gateway,
            ..ResolverConfig::host(name, underlay, token_key)
        }
    }
}

/// The resolver: tables, connections and counters.
#[derive(Debug)]
pub struct TableResolver {
    pub(crate) config: ResolverConfig,
    pub(crate) tables: Tables,
    pub(crate) connections: Connections,
    counters: Counters,
    path_counters: Vec<CounterIndex>,
    answer_counters: Vec<CounterIndex>,
    external_bucket: Bucket,
    /// Ports of learned networks of which the controllers were told: when, and how long not again, milliseconds.
    heard: std::collections::BTreeMap<PortIndex, (u64, u64)>,
    /// Ports whose endpoint was told of its router, and when.
    advertised: std::collections::BTreeMap<PortIndex, u64>,
}

impl TableResolver {
    /// A resolver with nothing in force.
    pub fn new(config: ResolverConfig) -> TableResolver {
        let mut counters = Counters::default();
        let path_counters =
            Path::ALL.iter().map(|path| counters.register("passed", &[("path", path.as_str())])).collect();
        let answer_counters =
            Service::ALL.iter().map(|by| counters.register("answers", &[("by", by.as_str())])).collect();
        TableResolver {
            tables: Tables::new(config.role),
            connections: Connections::new(config.limits),
            config,
            counters,
            path_counters,
            answer_counters,
            external_bucket: Bucket::default(),
            heard: std::collections::BTreeMap::new(),
            advertised: std::collections::BTreeMap::new(),
        }
    }

    fn is_gateway(&self) -> bool {
        self.config.role == Role::Gateway
    }

    /// What is in force.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Names of the counters, and what the resolver itself counted under them. What the engine counted
    /// under the same index is to be added.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The connections.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Figures of the tables and of the connections, by name.
    pub fn gauges(&self) -> Vec<(&'static str, u64)> {
        let c = self.connections.counters;
        vec![
            ("connections", self.connections.len() as u64),
            ("connections_bytes", self.connections.bytes() as u64),
            ("connections_opened", c.opened),
            ("connections_expired", c.expired),
            ("connections_evicted", c.evicted),
            ("connections_refused", c.refused),
            ("connections_revoked", c.revoked),
            ("connections_restored", c.restored),
            ("connections_not_restored", c.not_restored),
            ("connection_journal_overflows", c.changes_overflowed),
            ("turns", self.tables.turns() as u64),
            ("switches_listed", self.tables.switches().len() as u64),
            ("switches_list_told", self.tables.switches().is_told().into()),
            ("counters", self.counters.len() as u64),
        ]
    }

    /// Ports as they are, without frame counters.
    pub fn port_status(&self) -> Vec<PortStatus> {
        let status = |port: &crate::tables::Port| PortStatus {
            key: port.key(),
            name: self.port_name(port),
            version: port.version,
            up: port.up,
            reason: port.reason.clone(),
            rx_frames: 0,
            rx_bytes: 0,
            tx_frames: 0,
            tx_bytes: 0,
        };
        self.tables.ports().map(status).collect()
    }

    /// Name of a port. While its network is not in force, the network's name is `vni-<identifier>`.
    pub fn port_name(&self, port: &crate::tables::Port) -> PortName {
        let network = self.tables.network(port.vni.0).and_then(|network| network.entry.as_ref());
        let stand_in = || Label::new(format!("vni-{}", port.vni)).unwrap_or_else(|_| port.name.clone());
        PortName {
            network: network.map_or_else(stand_in, |entry| entry.name.clone()),
            endpoint: port.name.clone(),
        }
    }

    /// Connections, at most `limit`.
    pub fn connection_status(&self, now_ms: u64, limit: usize) -> Vec<ConnectionStatus> {
        let status = |connection: &Connection| ConnectionStatus {
            vni: connection.vni(),
            protocol: connection.key.protocol,
            source: (connection.key.source.into(), connection.key.source_port),
            destination: (connection.key.destination.into(), connection.key.destination_port),
            translated: connection.binding.map(|binding| binding.external),
            state: connection.state.as_str().to_string(),
            rule: self.counters.get(connection.counter).map(|(name, _)| name.to_string()).unwrap_or_default(),
            idle_ms: now_ms.saturating_sub(connection.last_ms),
        };
        self.connections.iter().take(limit).map(|(_, connection)| status(connection)).collect()
    }

    /// What changed of the connections that must survive a crash, to be journaled in this order.
    pub fn take_connection_changes(&mut self) -> Vec<ConnectionRecord> {
        self.connections.take_changes()
    }

    /// All connections that must survive a crash: what their journal is compacted to.
    pub fn connection_snapshot(&self) -> Vec<ConnectionRecord> {
        self.connections.snapshot()
    }

    /// Takes back the connections of a journal, after all updates were applied. Each is judged by the
    /// rules again with its first packet. Returns how many were taken back.
    pub fn restore_connections(
        &mut self,
        now_ms: u64,
        records: impl IntoIterator<Item = ConnectionRecord>,
    ) -> usize {
        let mut kept = std::collections::HashMap::new();
        for record in records {
            match record {
                ConnectionRecord::Reset => kept.clear(),
                ConnectionRecord::Open { key, state, external } => {
                    kept.insert(key, (state, external));
                }
                ConnectionRecord::Closed { key } => {
                    kept.remove(&key);
                }
            }
        }
        let mut restored = 0;
        for (key, (state, external)) in kept {
            let Some(connection) = self.brought_back(&key, external) else { continue };
            restored += usize::from(self.connections.restore(now_ms, connection, state));
        }
        restored
    }

    /// A connection that an earlier process had, not judged yet. None if it cannot go on here: a binding that this gateway
    /// has no address for any more, or whose member serves no more.
    fn brought_back(&self, key: &RecordKey, external: Option<(IpAddr, u16)>) -> Option<Connection> {
        let key = FlowKey::from(key);
        let network = self.tables.network(key.zone)?;
        let gateway = self.is_gateway();
        let goes_on = |to: (IpAddr, u16)| match gateway {
            true => self.config.nat.has(to.0),
            false => balanced::serves(network, &key, to),
        };
        if external.is_some_and(|to| !goes_on(to)) {
            return None;
        }
        let owner = self.owner(network, &key);
        let path = if external.is_some() && gateway { Path::External } else { Path::Restored };
        let counter = self.path_counters[path as usize];
        let mut connection = Connection::new(key, 0, Sides { egress: None, ingress: None }, counter, owner);
        connection.binding = external.map(|external| match gateway {
            true => Binding { external, inbound: inbound_key(&key, external.0, external.1) },
            false => balanced::binding(&key, external),
        });
        Some(connection)
    }

    /// Takes connections over from the process that this one replaces (row A30), after all updates were applied; each is
    /// judged by the rules again with its first packet. `gone` are those that ended there.
    pub fn carry_connections(&mut self, put: &[CarriedConnection], gone: &[RecordKey]) {
        for key in gone {
            self.connections.end_carried(&key.into());
        }
        for carried in put {
            match self.brought_back(&carried.key, carried.external) {
                Some(connection) => {
                    self.connections.carry(connection, carried);
                }
                None => self.connections.counters.not_restored += 1,
            }
        }
    }

    /// The connections, for a process that takes over.
    pub fn connections_mut(&mut self) -> &mut Connections {
        &mut self.connections
    }

    /// Router advertisements that are due: to each port with IPv6 when it has come up, and every
    /// [`ADVERTISEMENT_INTERVAL_MS`]. To be called about once a second.
    pub fn advertisements(&mut self, now_ms: u64) -> Vec<(PortIndex, Vec<u8>)> {
        const AT_ONCE_MAX: usize = 64;
        let (tables, advertised) = (&self.tables, &mut self.advertised);
        advertised.retain(|index, _| tables.port(*index).is_some_and(|port| port.up));
        let mut due = Vec::new();
        for port in tables.ports().filter(|port| port.up) {
            let last = advertised.get(&port.index);
            if due.len() >= AT_ONCE_MAX
                || last.is_some_and(|last| now_ms.saturating_sub(*last) < ADVERTISEMENT_INTERVAL_MS)
            {
                continue;
            }
            advertised.insert(port.index, now_ms);
            let network = tables.network(port.vni.0);
            if let Some(frame) = network.and_then(|network| router_advertisement(network, port)) {
                due.push((port.index, frame));
            }
        }
        due
    }

    /// Walks a frame through the stages. Changes nothing.
    pub(crate) fn decide<O: Observer>(&self, at: &mut Arrival<'_>, observer: &mut O) -> Decision {
        if at.key.is_fragment() {
            return Decision::drop_packet(Reason::FragmentEarly);
        }
        if let Some(cause) = odd(at) {
            observer.note("parse", || match cause {
                Cause::Malformed(error) => error.to_string(),
                _ => Reason::IcmpForbidden.text().to_string(),
            });
            return Decision::Drop { cause, install: Install::Nothing, revoke: None };
        }
        let result = match *at.ingress {
            Ingress::Port(index) => {
                let Some(port) = self.tables.port(index) else {
                    return Decision::drop_packet(Reason::NoPort);
                };
                let Some(network) = self.tables.begin_walk(port.vni.0) else {
                    return Decision::drop_packet(Reason::UnknownNetwork);
                };
                at.key = connection_key(&at.key, port.vni.0);
                self.frame_from_port(at, port, network, observer)
            }
            Ingress::Underlay { vni: PROBE_VNI, .. } => {
                at.key = connection_key(&at.key, PROBE_VNI);
                self.probe_from_underlay(at, observer)
            }
            Ingress::Underlay { vni, .. } => {
                let Some(network) = self.tables.begin_walk(vni) else {
                    observer.note("network", || format!("network {vni} is not in force here"));
                    return Decision::drop_packet(Reason::UnknownNetwork);
                };
                at.key = connection_key(&at.key, vni);
                self.frame_from_underlay(at, network, observer)
            }
            Ingress::External => {
                at.key = connection_key(&at.key, 0);
                if !self.is_gateway() {
                    return Decision::drop_packet(Reason::NoExternalAccess);
                }
                self.frame_from_external(at, observer)
            }
        };
        let decision = result.unwrap_or_else(|decision| decision);
        self.within_budget(at, decision, observer)
    }

    /// An ICMP error for which there is no budget is a drop, for the reason that it was to tell.
    fn within_budget<O: Observer>(&self, at: &Arrival<'_>, decision: Decision, observer: &mut O) -> Decision {
        let Decision::Answer { budget, install, cause, .. } = decision else { return decision };
        let bucket = match budget {
            Budget::Free => return decision,
            Budget::Port(index) => self.tables.port(index).map(|port| &port.bucket),
            Budget::Network(vni) => self.tables.network(vni).map(|network| &network.bucket),
            Budget::External => Some(&self.external_bucket),
        };
        if bucket.is_some_and(|bucket| bucket.has(at.now_ms)) {
            return decision;
        }
        observer.note("answer", || Reason::IcmpLimited.text().to_string());
        let cause = cause.unwrap_or(Cause::Reason(Reason::IcmpLimited));
        // The reason is this packet's alone, so the flow is not made of it.
        debug_assert!(install != Install::Denied);
        Decision::Drop { cause, install: Install::Nothing, revoke: None }
    }

    /// Who pays for an ICMP error about this frame.
    fn budget(&self, at: &Arrival<'_>) -> Budget {
        match *at.ingress {
            Ingress::Port(index) => Budget::Port(index),
            Ingress::Underlay { vni, .. } => Budget::Network(vni),
            Ingress::External => Budget::External,
        }
    }

    /// Name of the rule behind a cause, if a rule decided.
    pub(crate) fn rule_name(&self, cause: &Cause) -> Option<String> {
        match *cause {
            Cause::Rule { vni, direction, rule } => {
                let policy = self.tables.network(vni)?.policy.as_ref()?;
                Some(policy.rules(direction).list.get(rule as usize)?.name.to_string())
            }
            Cause::Route { vni, prefix } => Some(self.tables.network(vni)?.route(prefix)?.name.to_string()),
            Cause::Counter(counter) => {
                let (name, _) = self.counters.get(counter)?;
                name.labels.iter().find(|(label, _)| *label == "rule").map(|(_, rule)| rule.clone())
            }
            _ => None,
        }
    }

    /// Ends the connections that an update makes pointless.
    fn end_connections(&mut self, update: &Update, effects: &Effects) {
        for effect in &effects.ports {
            if let PortEffect::Remove { port } = effect {
                let owner = Owner::Port(*port);
                if self.connections.has_owner(owner) {
                    self.connections.remove_if(|connection| connection.owner == owner);
                }
                self.advertised.remove(port);
                self.heard.remove(port);
            }
        }
        if let Key::Network { vni } = update.key {
            let entry = self.tables.network(vni.0).and_then(|network| network.entry.as_ref());
            let (exists, outside) = (entry.is_some(), entry.is_some_and(|entry| entry.external_access));
            self.connections.remove_if(|connection| {
                let outwards = connection.binding.is_some() && connection.inside().is_none();
                connection.vni() == vni.0 && (!exists || (outwards && !outside))
            });
        }
        if let Key::Virtual { vni, address } = update.key {
            self.end_balanced(vni.0, address);
        }
    }
}

/// Why a packet is refused that no honest sender makes, if it is one.
fn odd(at: &Arrival<'_>) -> Option<Cause> {
    let parsed = at.parsed;
    if !parsed.is_ip() {
        return None;
    }
    let malformed = |error| Some(Cause::Malformed(error));
    if parsed.ttl == 0 {
        return malformed(PacketError::TtlZero);
    }
    if parsed.transport == Transport::Tcp && tcp_flags::is_odd(parsed.tcp_flags) {
        return malformed(PacketError::TcpFlags);
    }
    if let Err(error) = weir_packet::checksum::verify_network(at.frame, parsed) {
        return malformed(error);
    }
    // Who sends them has others' traffic go elsewhere, or stand still (RFC 6633).
    let forbidden = match parsed.transport {
        Transport::Icmpv4 => matches!(parsed.icmp_type, SOURCE_QUENCH | REDIRECT),
        Transport::Icmpv6 => matches!(parsed.icmp_type, ROUTER_ADVERTISEMENT | REDIRECT_V6),
        _ => false,
    };
    forbidden.then_some(Cause::Reason(Reason::IcmpForbidden))
}

/// The key of a frame. It is made anew, for what is installed must be what the frame says; only what a later fragment
/// does not say, ports and protocol, is taken from `known`.
pub(crate) fn key_of(parsed: &Parsed, known: Option<&FlowKey>) -> FlowKey {
    let key = FlowKey::new(0, parsed);
    match known {
        Some(known) if key.is_fragment() && known.flags == 0 => FlowKey {
            source_port: known.source_port,
            destination_port: known.destination_port,
            protocol: known.protocol,
            flags: 0,
            ..key
        },
        _ => key,
    }
}

impl Resolver for TableResolver {
    fn resolve(
        &mut self,
        now_ms: u64,
        ingress: &Ingress,
        key: &FlowKey,
        reason: MissReason,
        frame: &[u8],
    ) -> Resolution {
        let parsed = match weir_packet::parse(frame) {
            Ok(parsed) => parsed,
            Err(error) => {
                let counter = self.counters.malformed(error);
                self.counters.count(counter, 1);
                return Resolution { install: Vec::new(), outcome: crate::flow::Outcome::Drop };
            }
        };
        let key = key_of(&parsed, Some(key));
        let mut at = Arrival { now_ms, ingress, key, reason, frame, parsed: &parsed };
        let decision = self.decide(&mut at, &mut ());
        self.commit(&at, decision)
    }

    fn decide_again(&mut self, now_ms: u64, ingress: &Ingress, key: &FlowKey) -> Again {
        self.again(now_ms, ingress, key)
    }

    fn route_bits(&self, vni: u32, address: IpAddr) -> Option<u8> {
        Some(self.tables.network(vni)?.longest_route(address)?.prefix_len())
    }

    fn apply(&mut self, _now_ms: u64, update: &Update) -> Result<Effects, Refusal> {
        let effects = self.tables.apply(update)?;
        self.end_connections(update, &effects);
        Ok(effects)
    }

    fn used(&mut self, now_ms: u64, connection: u32, use_: FlowUse) {
        self.connections.used(now_ms, connection, use_);
    }

    fn tick(&mut self, now_ms: u64) -> Vec<Invalidate> {
        self.connections.tick(now_ms);
        let full = self.tables.networks_mut().filter(|network| network.denied_full);
        full.map(|network| {
            network.forgive_all();
            Invalidate::Denied(network.vni.0)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
