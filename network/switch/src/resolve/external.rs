//! The stages between a gateway and the outside: source translation (row A25 in a first form).

use super::TableResolver;
use super::decision::{
    Arrival, Budget, Cause, Decision, Forward, Install, Observer, Path, Stage, Step, Track,
};
use super::hops::Target;
use super::perform;
use crate::answer::{self, Reply, Service};
use crate::conntrack::{Binding, Connection, Owner, Sides, Way};
use crate::counters::Reason;
use crate::flow::{Action, Hop, Ingress, MissReason, Nat};
use crate::nat;
use crate::tables::network::Network;
use ipnet::IpNet;
use std::net::IpAddr;
use weir_packet::build::IcmpError;
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;
use weir_packet::rewrite::{Endpoint, Rewrite, parse_embedded};
use weir_packet::{IpAddress, Network as Protocol};

const NO_SIDES: Sides = Sides { egress: None, ingress: None };

fn endpoint((address, port): (IpAddr, u16)) -> Endpoint {
    Endpoint { address: address.into(), port: Some(port) }
}

/// Whether an address is nobody's by its kind: "this" network, loopback, link-local, multicast and what is behind it.
fn is_no_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            first == 0 || first >= 224 || v4.is_loopback() || v4.is_link_local()
        }
        IpAddr::V6(v6) => {
            v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() || v6.is_unicast_link_local()
        }
    }
}

fn bare(address: impl Into<IpAddress>) -> Endpoint {
    Endpoint { address: address.into(), port: None }
}

impl TableResolver {
    /// The stage `nat` for what goes out.
    pub(super) fn to_outside<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Decision> {
        if self.is_guarded(at.destination()) {
            observer.note("guard", || Reason::Guarded.text().to_string());
            return Err(Decision::drop_flow(Reason::Guarded));
        }
        let known = self.connections.find(&at.key).and_then(|(id, way)| {
            let binding = self.connections.get(id)?.binding?;
            (way == Way::Opener).then_some((id, binding))
        });
        let inwards = self.action_inwards(network, &at.key, &mut ());
        let (track, binding) = match known {
            Some((id, binding)) => {
                (Track::Known { id, way: Way::Opener, judged: None, replies: true }, binding)
            }
            None if inwards.is_none() && !at.parsed.is_icmp_error() => {
                // It is tried again; what was dropped of the outside's packets until then goes when the flow of its replies comes.
                observer.note("nat", || {
                    format!("where {} is is not known: no reply would reach it", at.source())
                });
                return Err(Decision::drop_packet(Reason::UnknownDestination));
            }
            None => {
                let binding = self.new_binding(at, network, observer)?;
                (Track::New { sides: NO_SIDES, binding: Some(binding) }, binding)
            }
        };
        let (address, port) = binding.external;
        observer.note("nat", || format!("the source becomes {address} port {port}"));
        let router = network.vni.router_mac();
        let Some(mut action) = self.action(network, &at.key, Target::External, true, router) else {
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        };
        action.nat = Some(Nat { source: Some(binding.external), destination: None });
        let reverse =
            inwards.map(|action| (Ingress::External, binding.inbound, action)).into_iter().collect();
        let cause = Cause::Path(Path::External);
        Ok(Decision::Forward(Box::new(Forward { reverse, ..Forward::plain(action, cause, track) })))
    }

    /// Whether no tenant may reach a destination from here: what carries the tenants' packets and decides about them, and what is
    /// no host's address (RFC 6890), which a machine may take for its own or for all.
    fn is_guarded(&self, to: IpAddr) -> bool {
        let within = |list: &[IpNet]| list.iter().any(|net| net.contains(&to));
        let is_of_us = to == self.config.underlay || self.tables.is_underlay(to);
        (is_of_us || is_no_host(to) || within(&self.config.guarded)) && !within(&self.config.reachable)
    }

    fn new_binding<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Binding> {
        if at.parsed.is_icmp_error() {
            return Err(self.error_to_outside(at, observer));
        }
        let refuse = |observer: &mut O, decision, reason: Reason| {
            observer.note("nat", || reason.text().to_string());
            Err(decision)
        };
        if !nat::is_translatable(&at.key) {
            return refuse(observer, Decision::drop_flow(Reason::NatProtocol), Reason::NatProtocol);
        }
        if !self.connections.has_room(Owner::Address(network.vni.0, at.source())) {
            let reason = Reason::ConnectionsFull;
            return refuse(observer, Decision::drop_packet(reason), reason);
        }
        let ports = self.config.nat.ports_of(at.key.source.is_v4());
        if !self.connections.has_ports_left(Owner::Address(network.vni.0, at.source()), &at.key, ports) {
            return refuse(observer, Decision::drop_packet(Reason::NatShare), Reason::NatShare);
        }
        match self.config.nat.find(&at.key, &self.connections) {
            Some(binding) => Ok(binding),
            None => refuse(observer, Decision::drop_packet(Reason::NatExhausted), Reason::NatExhausted),
        }
    }

    /// The action for replies to a translated connection that `opener` began.
    fn action_inwards<O: Observer>(
        &self,
        network: &Network,
        opener: &FlowKey,
        observer: &mut O,
    ) -> Option<Action> {
        let key = opener.reverse();
        let target = self.route(network, &key, observer).ok()?;
        if !matches!(target, Target::Host(_)) {
            return None;
        }
        let mut action = self.action(network, &key, target, true, network.vni.router_mac())?;
        // What comes from outside opens nothing.
        if let Hop::Underlay { half, .. } = &mut action.hop {
            *half = Half::Replies;
        }
        let destination = Some((opener.source.into(), opener.source_port));
        action.nat = Some(Nat { source: None, destination });
        Some(action)
    }

    /// The stages of a packet from outside.
    pub(super) fn frame_from_external<O: Observer>(
        &self,
        at: &Arrival<'_>,
        observer: &mut O,
    ) -> Stage<Decision> {
        if !matches!(at.parsed.network, Protocol::Ipv4 | Protocol::Ipv6) {
            return Err(Decision::drop_packet(Reason::NotIp));
        }
        if at.destination().is_multicast() || at.parsed.destination_mac[0] & 1 != 0 {
            return Err(Decision::drop_packet(Reason::Multicast));
        }
        self.check_external(at, observer)?;
        if at.parsed.is_icmp_error() {
            return self.error_from_outside(at, observer);
        }
        let found = self.connections.find_inbound(&at.key);
        let Some((id, connection)) = found.and_then(|id| Some((id, self.connections.get(id)?))) else {
            return self.unknown_from_outside(at, observer);
        };
        let action = self.inwards(connection, observer)?;
        let way = Way::Reply;
        let track = Track::Known { id, way, judged: None, replies: true };
        let cause = Cause::Path(Path::External);
        Ok(Decision::Forward(Box::new(Forward::plain(action, cause, track))))
    }

    fn unknown_from_outside<O: Observer>(&self, at: &Arrival<'_>, observer: &mut O) -> Stage<Decision> {
        if at.parsed.is_icmp_echo()
            && self.config.nat.has(at.destination())
            && let Reply::Frame(service, frame) = answer::echo(at.frame, at.parsed, at.parsed.destination_mac)
        {
            observer.note("nat", || "an echo request to the gateway itself".to_string());
            let install = Install::Nothing;
            return Ok(Decision::Answer { service, frame, budget: Budget::Free, cause: None, install });
        }
        observer.note("nat", || Reason::NoConnection.text().to_string());
        Err(Decision::drop_flow(Reason::NoConnection))
    }

    /// The way back into the network of a translated connection.
    fn inwards<O: Observer>(&self, connection: &Connection, observer: &mut O) -> Stage<Action> {
        let (source, port) = (connection.key.source, connection.key.source_port);
        observer.note("nat", || format!("a reply: the destination becomes {source} port {port}"));
        let Some(network) = self.tables.begin_walk(connection.vni()).filter(|n| n.entry.is_some()) else {
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        };
        observer.step(|| Step {
            stage: "network",
            detail: format!("network identifier {}", network.vni),
            rule: None,
            key: Some(weir_model::Key::Network { vni: network.vni }),
        });
        match self.action_inwards(network, &connection.key, observer) {
            Some(action) => Ok(action),
            None => Err(Decision::drop_packet(Reason::UnknownDestination)),
        }
    }

    /// Answers about packets from outside that are too large or too old, from the address they went to.
    fn check_external<O: Observer>(&self, at: &Arrival<'_>, observer: &mut O) -> Stage<()> {
        let (what, service, reason) = match at.reason {
            MissReason::TooBig(mtu) => {
                (IcmpError::TooBig { mtu: mtu.into() }, Service::TooBig, Reason::TooBig)
            }
            MissReason::TtlExpired => (IcmpError::TimeExceeded, Service::TimeExceeded, Reason::TtlExpired),
            MissReason::NoFlow | MissReason::Special => return Ok(()),
        };
        observer.note("size", || reason.text().to_string());
        let mac = at.parsed.destination_mac;
        let cause = Cause::Reason(reason);
        Err(match answer::error(at.frame, at.parsed, mac, at.destination(), what, service) {
            Reply::Frame(service, frame) if self.config.nat.has(at.destination()) => {
                let (budget, install) = (Budget::External, Install::Nothing);
                Decision::Answer { service, frame, budget, cause: Some(cause), install }
            }
            _ => Decision::Drop { cause, install: Install::Nothing, revoke: None },
        })
    }

    /// An ICMP error of an endpoint about a packet that came from outside: the packet in it and its own
    /// source are translated.
    fn error_to_outside<O: Observer>(&self, at: &Arrival<'_>, observer: &mut O) -> Decision {
        let sent = (|| {
            let embedded = parse_embedded(at.frame, at.parsed).ok()?;
            let key = embedded.key(at.key.zone, at.parsed);
            let (id, _) = self.connections.find(&key)?;
            let connection = self.connections.get(id)?;
            let binding = connection.binding?;
            if embedded.source != at.key.destination || embedded.destination != connection.key.source {
                return None;
            }
            let inner = Rewrite { source: None, destination: Some(endpoint(binding.external)) };
            let outer = Rewrite { source: Some(bare(binding.external.0)), destination: None };
            let frame = perform::translate_error(at.frame, &inner, &outer)?;
            Some(Decision::Send { hop: Hop::External, frame, cause: Cause::Path(Path::Related) })
        })();
        observer.note("nat", || match &sent {
            Some(_) => "an ICMP error about a translated connection".to_string(),
            None => Reason::IcmpUnrelated.text().to_string(),
        });
        sent.unwrap_or_else(|| Decision::drop_packet(Reason::IcmpUnrelated))
    }

    /// An ICMP error from outside about a packet of a translated connection.
    fn error_from_outside<O: Observer>(&self, at: &Arrival<'_>, observer: &mut O) -> Stage<Decision> {
        let found = (|| {
            let embedded = parse_embedded(at.frame, at.parsed).ok()?;
            let id = self.connections.find_inbound(&embedded.key(0, at.parsed).reverse())?;
            let connection = self.connections.get(id)?;
            (embedded.source == at.key.destination).then_some(connection)
        })();
        let Some(connection) = found else {
            observer.note("nat", || Reason::IcmpUnrelated.text().to_string());
            return Err(Decision::drop_packet(Reason::IcmpUnrelated));
        };
        let action = self.inwards(connection, observer)?;
        let source = (connection.key.source.into(), connection.key.source_port);
        let inner = Rewrite { source: Some(endpoint(source)), destination: None };
        let outer = Rewrite { source: None, destination: Some(bare(connection.key.source)) };
        let plain = Action { nat: None, ..action };
        let sent = perform::translate_error(at.frame, &inner, &outer)
            .and_then(|frame| perform::perform(&frame, &plain));
        Ok(match sent {
            Some(frame) => Decision::Send { hop: plain.hop, frame, cause: Cause::Path(Path::Related) },
            None => Decision::drop_packet(Reason::TtlExpired),
        })
    }
}
