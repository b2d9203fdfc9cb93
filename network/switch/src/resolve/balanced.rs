//! Virtual addresses (Botelho et al. §VI-C; rows B10 and A25; decision 0024): the client's switch writes the member's
//! address over the virtual one, and back in the replies.
//!
//! A connection is kept under the key that the client uses, with the key of the member's replies beside it
//! ([`crate::conntrack::Binding`]). Routes and rules are asked about the packet as the member gets it, so policies see
//! what they would see of direct traffic, and the member's host knows nothing of all this.
//!
//! Invariants
//! - A connection keeps to its member as long as the virtual address has it: turns are asked for by new ones only.
//! - Between a client and a member the same ports are never those of two conversations: the later one is refused and
//!   counted, for its replies could not be told apart. A closed one counts until it is forgotten, for until then there
//!   may be flows of it.
//! - Nobody sends from a virtual address but a switch.

use super::TableResolver;
use super::decision::{
    Arrival, Budget, Cause, Decision, Forward, Install, Observer, Path, Stage, Step, Track,
};
use super::firewall::{Known, Passed, denied};
use super::hops::Target;
use super::perform;
use crate::answer::{self, Reply, Service};
use crate::conntrack::{Binding, Connection, ConnectionId, Sides, Way};
use crate::counters::Reason;
use crate::flow::{About, Action, Ingress, Nat, PortIndex};
use crate::tables::Port;
use crate::tables::network::Network;
use std::net::IpAddr;
use weir_model::Key;
use weir_model::entry::VirtualEntry;
use weir_model::resource::Direction;
use weir_packet::build::IcmpError;
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;
use weir_packet::rewrite::{Endpoint, Rewrite, parse_embedded};

type Flow = (Ingress, FlowKey, Action);

fn endpoint((address, port): (IpAddr, u16)) -> Endpoint {
    Endpoint { address: address.into(), port: Some(port) }
}

fn bare(address: IpAddr) -> Endpoint {
    Endpoint { address: address.into(), port: None }
}

/// The key of the opener's packets as the member gets them.
fn towards(key: &FlowKey, (member, port): (IpAddr, u16)) -> FlowKey {
    FlowKey { destination: member.into(), destination_port: port, ..*key }
}

/// The binding of a connection that `key` (zone: the network) opens to a virtual address.
pub(super) fn binding(key: &FlowKey, member: (IpAddr, u16)) -> Binding {
    Binding { external: member, inbound: towards(key, member).reverse() }
}

/// Whether a member serves what a key asks of a virtual address.
pub(super) fn serves(network: &Network, key: &FlowKey, (member, port): (IpAddr, u16)) -> bool {
    let Some(entry) = network.virtual_of(key.destination.into()) else { return false };
    target_port(entry, key) == Some(port) && entry.members.contains(&member)
}

fn target_port(entry: &VirtualEntry, key: &FlowKey) -> Option<u16> {
    let asked = (key.protocol, key.destination_port);
    entry.services.iter().find(|of| (of.protocol, of.port) == asked).map(|of| of.target_port)
}

impl TableResolver {
    /// The stages of a frame to a virtual address.
    pub(super) fn to_virtual<O: Observer>(
        &self,
        at: &Arrival<'_>,
        port: &Port,
        network: &Network,
        entry: &VirtualEntry,
        observer: &mut O,
    ) -> Stage<Decision> {
        let found = self.connections.find(&at.key);
        let found = found.and_then(|(id, way)| Some((id, way, self.connections.get(id)?)));
        let bound = found.and_then(|(_, way, connection)| {
            connection.binding.filter(|_| way == Way::Opener && connection.inside().is_some())
        });
        if let Some(bound) = bound {
            let (member, target) = bound.external;
            self.show(network, at.destination(), observer, || {
                format!("its connection is with {member} port {target}")
            });
            let Known::Passed(passed) = self.known(at, network, observer)? else {
                return Err(Decision::drop_packet(Reason::NoConnection));
            };
            return self.forward_to_member(at, port, network, (bound.external, passed), None, observer);
        }
        // What was tracked under the address before it was virtual is over.
        let stale = found.map(|(id, ..)| id);
        let member = self.choose(at, port, network, (entry, stale), observer)?;
        let inside = towards(&at.key, member);
        let stale = stale.or_else(|| self.left_over(&inside));
        let (stateful, mut cause) = self
            .judge_side(network, Direction::Egress, port, &inside, observer)
            .map_err(|by| denied(at, by))?;
        let mut sides = Sides { egress: Some(stateful), ingress: None };
        if let Some(receiver) =
            self.tables.receiver(network, member.0).and_then(|index| self.tables.port(index))
        {
            let (stateful, by) = self
                .judge_side(network, Direction::Ingress, receiver, &inside, observer)
                .map_err(|by| denied(at, by))?;
            (sides.ingress, cause) = (Some(stateful), by);
        }
        if !self.connections.has_room(self.owner(network, &at.key)) {
            observer.note("tracking", || Reason::ConnectionsFull.text().to_string());
            return Err(Decision::drop_packet(Reason::ConnectionsFull));
        }
        observer.note("tracking", || "a connection opens".to_string());
        let track = Track::New { sides, binding: Some(binding(&at.key, member)) };
        self.forward_to_member(at, port, network, (member, Passed { cause, track }), stale, observer)
    }

    fn show<O: Observer>(
        &self,
        network: &Network,
        address: IpAddr,
        observer: &mut O,
        detail: impl FnOnce() -> String,
    ) {
        observer.step(|| Step {
            stage: "balancer",
            detail: detail(),
            rule: None,
            key: Some(Key::Virtual { vni: network.vni, address }),
        });
    }

    /// The stage `balancer`: who serves a new connection.
    fn choose<O: Observer>(
        &self,
        at: &Arrival<'_>,
        port: &Port,
        network: &Network,
        (entry, stale): (&VirtualEntry, Option<ConnectionId>),
        observer: &mut O,
    ) -> Stage<(IpAddr, u16)> {
        let address = at.destination();
        let Some(target) = target_port(entry, &at.key) else {
            self.show(network, address, observer, || {
                format!("{} does not offer this at {address}", entry.name)
            });
            return Err(self.not_served(at, network));
        };
        let client = client_of(port, at.source());
        if entry.members.iter().all(|member| port.has(*member))
            || client.is_none_or(|of| of.is_ipv4() != address.is_ipv4())
        {
            self.show(network, address, observer, || format!("{}: {}", entry.name, Reason::NoMember.text()));
            return Err(self.unreachable(at, network, Reason::NoMember));
        }
        let client = client.unwrap_or(at.source());
        let turn = network.turn_of(client, address);
        let Some(member) = turn.filter(|member| entry.members.contains(member) && !port.has(*member)) else {
            self.show(network, address, observer, || {
                let name = &entry.name;
                format!("{address} is {name}, and whose turn it is for {client} is not known here: the controllers are asked")
            });
            return Err(Decision::Ask(About::Turn { client, address }));
        };
        observer.step(|| Step {
            stage: "balancer",
            detail: format!(
                "{address} is {}: the turn of {client} is that of {member} port {target}",
                entry.name
            ),
            rule: None,
            key: Some(Key::Turn { vni: network.vni, client, address }),
        });
        if self.conflicts(&towards(&at.key, (member, target)), stale) {
            observer.note("balancer", || Reason::BalancerConflict.text().to_string());
            return Err(Decision::drop_packet(Reason::BalancerConflict));
        }
        Ok((member, target))
    }

    /// Whether a conversation with these ports goes on, or ended so lately that its flows may still be there.
    fn conflicts(&self, inside: &FlowKey, stale: Option<ConnectionId>) -> bool {
        let direct = self.connections.find(inside).map(|(id, _)| id);
        let bound = self.connections.find_inbound(&inside.reverse());
        let stale = stale.or_else(|| self.left_over(inside));
        direct.into_iter().chain(bound).any(|id| Some(id) != stale)
    }

    /// What late replies of a member left that had gone and came back: a conversation in which the client itself sent nothing. It
    /// makes room, else a client that keeps to one port would be shut out until it is forgotten. Departure: late replies that pass only as
    /// replies leave a flow for a quarter of a minute, by which the member's next ones go until then.
    fn left_over(&self, inside: &FlowKey) -> Option<ConnectionId> {
        let (id, way) = self.connections.find(inside)?;
        self.connections.get(id).filter(|connection| connection.is_left_over(way)).map(|_| id)
    }

    /// What the virtual address itself makes of a packet that is for none of its services.
    fn not_served(&self, at: &Arrival<'_>, network: &Network) -> Decision {
        if at.parsed.is_icmp_error() {
            return Decision::drop_packet(Reason::IcmpUnrelated);
        }
        let mac = network.vni.router_mac().0;
        if at.parsed.is_icmp_echo()
            && let Reply::Frame(service, frame) = answer::echo(at.frame, at.parsed, mac)
        {
            let install = Install::Nothing;
            return Decision::Answer { service, frame, budget: Budget::Free, cause: None, install };
        }
        self.unreachable(at, network, Reason::NoService)
    }

    fn unreachable(&self, at: &Arrival<'_>, network: &Network, reason: Reason) -> Decision {
        let (what, service) = match reason {
            Reason::NoMember => (IcmpError::HostUnreachable, Service::HostUnreachable),
            _ => (IcmpError::PortUnreachable, Service::PortUnreachable),
        };
        self.icmp_error(at, network, what, service, Cause::Reason(reason), Install::Flow)
    }

    /// The stage `route`, and the flows of both ways.
    fn forward_to_member<O: Observer>(
        &self,
        at: &Arrival<'_>,
        port: &Port,
        network: &Network,
        (member, passed): ((IpAddr, u16), Passed),
        revoke: Option<ConnectionId>,
        observer: &mut O,
    ) -> Stage<Decision> {
        let inside = towards(&at.key, member);
        let target = self
            .route(network, &inside, observer)
            .map_err(|decision| self.with_unreachable(at, network, decision))?;
        if target == Target::Port(port.index) {
            return Err(Decision::drop_packet(Reason::ToSelf));
        }
        let routed = !network.same_subnet(at.source(), member.0);
        let Some(mut action) = self.action(network, &inside, target, routed, port.entry.mac) else {
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        };
        action.nat = Some(Nat { source: None, destination: Some(member) });
        let Passed { cause, track } = passed;
        let replies = match track {
            Track::New { sides, .. } => sides.egress != Some(false) && sides.ingress != Some(false),
            Track::Known { replies, .. } => replies,
            _ => false,
        };
        let reverse =
            if replies { self.replies(network, &at.key, &inside, target, port.index) } else { Vec::new() };
        Ok(Decision::Forward(Box::new(Forward { action, cause, track, reverse, revoke })))
    }

    /// The flows of a member's replies, where they are known now: a member here, and senders whose replies were denied
    /// until now.
    fn replies(
        &self,
        network: &Network,
        opener: &FlowKey,
        inside: &FlowKey,
        target: Target,
        client: PortIndex,
    ) -> Vec<Flow> {
        let key = inside.reverse();
        let nat = Some(Nat {
            source: Some((opener.destination.into(), opener.destination_port)),
            destination: None,
        });
        if let Target::Port(index) = target {
            let port = self.tables.port(index);
            let action = port.and_then(|port| self.action_from_port(network, &key, port));
            return action
                .map(|action| (Ingress::Port(index), key, Action { nat, ..action }))
                .into_iter()
                .collect();
        }
        let Some(entry) = &network.entry else { return Vec::new() };
        let router = network.vni.router_mac();
        let of = |&(sender, half): &(IpAddr, Half)| {
            let (vni, format) = (network.vni.0, entry.encapsulation);
            let ingress = Ingress::Underlay { sender, vni, token: None, format, half };
            let action = self.action(network, &key, Target::Port(client), false, router)?;
            Some((ingress, key, Action { nat, ..action }))
        };
        network.denied(&key).iter().filter(|(_, half)| half.accepts()).filter_map(of).collect()
    }

    /// The connection whose member replies, if the packet belongs to one.
    pub(super) fn balanced_reply(&self, track: Track) -> Option<&Connection> {
        let Track::Known { id, way: Way::Reply, .. } = track else { return None };
        self.connections.get(id).filter(|connection| connection.inside().is_some())
    }

    /// Makes a member's reply one of the virtual address, and gives the flow of the opener.
    pub(super) fn as_virtual(
        &self,
        network: &Network,
        connection: &Connection,
        action: &mut Action,
    ) -> Vec<Flow> {
        let key = connection.key;
        action.nat =
            Some(Nat { source: Some((key.destination.into(), key.destination_port)), destination: None });
        let port = self.tables.receiver(network, key.source.into()).and_then(|index| self.tables.port(index));
        let (Some(port), Some(inside), Some(binding)) = (port, connection.inside(), connection.binding)
        else {
            return Vec::new();
        };
        let nat = Some(Nat { source: None, destination: Some(binding.external) });
        let opener = self.action_from_port(network, &inside, port);
        opener.map(|action| (Ingress::Port(port.index), key, Action { nat, ..action })).into_iter().collect()
    }

    /// An ICMP error about a packet of a connection with a virtual address: the packet in it, and the member's own
    /// address, are translated. None when it is about something else.
    pub(super) fn error_about_balanced<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Option<Decision> {
        let embedded = parse_embedded(at.frame, at.parsed).ok()?;
        if embedded.source != at.key.destination {
            return None;
        }
        let about = embedded.key(network.vni.0, at.parsed);
        let to_client = self.connections.find_inbound(&about.reverse());
        let to_member =
            || self.connections.find(&about).filter(|(_, way)| *way == Way::Reply).map(|(id, _)| id);
        let connection = self.connections.get(to_client.or_else(to_member)?)?;
        let inside = connection.inside()?;
        let key = &connection.key;
        let (address, member): (IpAddr, IpAddr) = (key.destination.into(), inside.destination.into());
        observer.note("balancer", || "an ICMP error about a connection with a virtual address".to_string());
        if self.judge_known(network, connection).is_err() {
            return Some(Decision::drop_packet(Reason::IcmpUnrelated));
        }
        let (inner, outer, target) = if to_client.is_some() {
            let inner =
                Rewrite { source: None, destination: Some(endpoint((address, key.destination_port))) };
            let source = (at.source() == member).then(|| bare(address));
            let target = self.tables.receiver(network, key.source.into()).map(Target::Port);
            (inner, Rewrite { source, destination: None }, target)
        } else {
            let inner =
                Rewrite { source: Some(endpoint((member, inside.destination_port))), destination: None };
            let way = FlowKey { destination: inside.destination, ..at.key };
            let target = match self.route(network, &way, &mut ()) {
                Ok(target) => Some(target),
                Err(decision) => return Some(decision),
            };
            (inner, Rewrite { source: None, destination: Some(bare(member)) }, target)
        };
        let sent = target.and_then(|target| {
            let action = self.action(network, &at.key, target, false, network.vni.router_mac())?;
            let frame = perform::translate_error(at.frame, &inner, &outer)?;
            Some((action.hop.clone(), perform::perform(&frame, &action)?))
        });
        Some(match sent {
            Some((hop, frame)) => Decision::Send { hop, frame, cause: Cause::Path(Path::Related) },
            None => Decision::drop_packet(Reason::IcmpUnrelated),
        })
    }

    /// Ends the connections to members that do not serve at a virtual address any more.
    pub(super) fn end_balanced(&mut self, vni: u32, address: IpAddr) {
        let network = self.tables.network(vni);
        self.connections.remove_if(|connection| {
            let of = connection.vni() == vni && IpAddr::from(connection.key.destination) == address;
            let bound = connection.binding.filter(|_| of && connection.inside().is_some());
            bound.is_some_and(|bound| {
                !network.is_some_and(|network| serves(network, &connection.key, bound.external))
            })
        });
    }
}

/// Under which of its addresses the endpoint of a port is a client: the source, or where that is one of somebody behind
/// it, its own of the same family.
fn client_of(port: &Port, source: IpAddr) -> Option<IpAddr> {
    let own = port.entry.addresses.iter().find(|own| own.is_ipv4() == source.is_ipv4());
    if port.has(source) { Some(source) } else { own.copied() }
}
