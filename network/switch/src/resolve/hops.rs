//! The stage `route`: where a packet of a network goes, and the action that takes it there.
//!
//! An address that an endpoint has leads to that endpoint; else the longest prefix wins, of routes and of subnets, which are connected
//! routes. Hosts know the places of some addresses and gateways know all: so where an address of a subnet also has a longer route, a host
//! that does not know its place leaves the answer to a gateway, and the answer is the same with a place in its tables and without.

use super::TableResolver;
use super::decision::{Arrival, Cause, Decision, Install, Observer, Stage, Step};
use crate::answer::{self, Reply, Service};
use crate::conntrack::{FLOW_IDLE_MS, Way};
use crate::counters::Reason;
use crate::flow::{About, Action, Hangs, Hop, NO_CONNECTION, PortIndex};
use crate::tables::network::{Location, Network};
use crate::tables::{Place, Port, gateways};
use std::net::IpAddr;
use weir_model::entry::RouteHop;
use weir_model::resource::Direction;
use weir_model::{Key, MacAddr};
use weir_packet::build::IcmpError;
use weir_packet::encap::Half;
use weir_packet::key::FlowKey;

/// How long a flow that drops stays in the flow table without a packet.
pub(super) const DROP_IDLE_MS: u32 = 10_000;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Port(PortIndex),
    Host(Location),
    /// To a gateway at this underlay address.
    Gateway(IpAddr),
    /// Outside; only at a gateway.
    External,
}

/// An IP header and a TCP header without options, bytes.
fn headers_bytes(key: &FlowKey) -> u16 {
    if key.source.is_v4() { 40 } else { 60 }
}

impl TableResolver {
    /// Refuses destinations that nobody can have.
    pub(super) fn check_destination(network: &Network, destination: IpAddr) -> Stage<()> {
        let reason = match destination {
            IpAddr::V4(v4) if v4.is_link_local() => Reason::LinkLocal,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Reason::LinkLocal,
            IpAddr::V4(v4) if v4.is_broadcast() => Reason::Broadcast,
            _ if network.is_subnet_broadcast(destination) => Reason::Broadcast,
            _ if destination.is_multicast() => Reason::Multicast,
            _ if destination.is_unspecified() || destination.is_loopback() => Reason::BadDestination,
            _ => return Ok(()),
        };
        Err(Decision::drop_flow(reason))
    }

    /// The stage `route`.
    pub(super) fn route<O: Observer>(
        &self,
        network: &Network,
        key: &FlowKey,
        observer: &mut O,
    ) -> Stage<Target> {
        let destination = IpAddr::from(key.destination);
        if let Some(place) = self.tables.place(network, destination) {
            return self.place_target(network, destination, place, observer);
        }
        let connected = network.subnet_of(destination).is_some();
        if let Some((prefix, route)) = network.route_of(destination) {
            if connected && !self.is_gateway() && !network.is_learned() {
                // An endpoint that has the address comes before any route, and whether there is one a gateway knows.
                observer.step(|| Step {
                    stage: "route",
                    detail: format!("{prefix} has a route, unless an endpoint has {destination}"),
                    rule: Some(route.name.to_string()),
                    key: Some(Key::Route { vni: network.vni, prefix }),
                });
                return self.to_gateway(network, key, observer);
            }
            observer.step(|| Step {
                stage: "route",
                detail: match route.hop {
                    RouteHop::Address(hop) => format!("{prefix} is reached through {hop}"),
                    RouteHop::External => format!("{prefix} is reached outside"),
                    RouteHop::Drop => format!("{prefix} is dropped"),
                },
                rule: Some(route.name.to_string()),
                key: Some(Key::Route { vni: network.vni, prefix }),
            });
            return match route.hop {
                RouteHop::Address(hop) => match self.tables.place_of_hop(network, hop) {
                    Some(place) => self.place_target(network, hop, place, observer),
                    None => self.elsewhere(network, hop, key, observer),
                },
                RouteHop::External => self.outside(network, key, observer),
                RouteHop::Drop => {
                    let cause = Cause::Route { vni: network.vni.0, prefix };
                    Err(Decision::Drop { cause, install: Install::Flow, revoke: None })
                }
            };
        }
        if connected {
            return self.elsewhere(network, destination, key, observer);
        }
        if network.entry.as_ref().is_some_and(|entry| entry.external_access) {
            return self.outside(network, key, observer);
        }
        observer.note("route", || Reason::NoRoute.text().to_string());
        Err(Decision::drop_flow(Reason::NoRoute))
    }

    fn place_target<O: Observer>(
        &self,
        network: &Network,
        address: IpAddr,
        place: Place,
        observer: &mut O,
    ) -> Stage<Target> {
        match place {
            Place::Port(index) => {
                let Some(port) = self.tables.port(index) else {
                    return Err(Decision::drop_packet(Reason::NoPort));
                };
                observer.step(|| Step {
                    stage: "route",
                    detail: format!("{address} is {} here", port.name),
                    rule: None,
                    key: Some(port.key()),
                });
                if !port.up {
                    observer.note("port", || format!("{} is down: {}", port.name, port.reason));
                    return Err(Decision::drop_packet(Reason::PortDown));
                }
                Ok(Target::Port(index))
            }
            Place::Host(location) => {
                observer.step(|| Step {
                    stage: "route",
                    detail: format!("{address} is at the host {}", location.underlay),
                    rule: None,
                    key: Some(Key::Location { vni: network.vni, address }),
                });
                if location.underlay == self.config.underlay {
                    observer.note("route", || "that is this host, but no port here has it".to_string());
                    return Err(Decision::drop_flow(Reason::NotHere));
                }
                Ok(Target::Host(location))
            }
        }
    }

    /// An address of the network without a place here.
    fn elsewhere<O: Observer>(
        &self,
        network: &Network,
        address: IpAddr,
        key: &FlowKey,
        observer: &mut O,
    ) -> Stage<Target> {
        if !network.is_learned() || self.is_gateway() {
            return self.to_gateway(network, key, observer);
        }
        observer.step(|| Step {
            stage: "route",
            detail: format!(
                "the network is learned and {address} is not known here: the controllers are asked"
            ),
            rule: None,
            key: Some(Key::Network { vni: network.vni }),
        });
        Err(Decision::Ask(About::Place(address)))
    }

    /// What no location is known for goes to a gateway, which knows them all (row A11).
    fn to_gateway<O: Observer>(&self, network: &Network, key: &FlowKey, observer: &mut O) -> Stage<Target> {
        if self.is_gateway() {
            observer.note("route", || Reason::UnknownDestination.text().to_string());
            return Err(Decision::drop_flow(Reason::UnknownDestination));
        }
        let (a, b) = (key.source.into(), key.destination.into());
        let Some(gateway) = gateways::choose(self.tables.usable_gateways(), network.vni.0, a, b) else {
            observer.note("route", || Reason::NoGateway.text().to_string());
            return Err(Decision::drop_flow(Reason::NoGateway));
        };
        observer.step(|| Step {
            stage: "route",
            detail: format!("no place of it is known here: to gateway {}", gateway.name),
            rule: None,
            key: Some(Key::Gateways),
        });
        Ok(Target::Gateway(gateway.underlay))
    }

    fn outside<O: Observer>(&self, network: &Network, key: &FlowKey, observer: &mut O) -> Stage<Target> {
        let allowed = network.entry.as_ref().is_some_and(|entry| entry.external_access);
        observer.step(|| Step {
            stage: "external-access",
            detail: if allowed { "the network may reach the outside" } else { "the network has no access" }
                .to_string(),
            rule: None,
            key: Some(Key::Network { vni: network.vni }),
        });
        if !allowed {
            return Err(Decision::drop_flow(Reason::NoExternalAccess));
        }
        if self.is_gateway() { Ok(Target::External) } else { self.to_gateway(network, key, observer) }
    }

    /// What this half of the firewall says of a packet that an endpoint here sends; nothing of one that is only passed on.
    pub(super) fn half(&self, network: &Network, key: &FlowKey, remembers: bool) -> Half {
        let port = self.tables.receiver(network, key.source.into()).and_then(|index| self.tables.port(index));
        let Some(port) = port else { return Half::Unsaid };
        let allows = |direction, key| self.judge_side(network, direction, port, key, &mut ()).is_ok();
        let opens = allows(Direction::Egress, key);
        Half::new(opens, allows(Direction::Ingress, &key.reverse()), remembers)
    }

    /// Whether a connection is remembered that the receiver of a packet opened.
    fn remembers(&self, key: &FlowKey) -> bool {
        matches!(self.connections.find(key), Some((_, Way::Reply)))
    }

    /// The action that takes a flow to its target. `sender` is the Ethernet address that a gateway sees.
    pub(super) fn action(
        &self,
        network: &Network,
        key: &FlowKey,
        target: Target,
        routed: bool,
        sender: MacAddr,
    ) -> Option<Action> {
        let entry = network.entry.as_ref()?;
        let router = network.vni.router_mac();
        let underlay = |receiver, by_gateway| Hop::Underlay {
            receiver,
            vni: network.vni.0,
            format: entry.encapsulation,
            token: self.config.token_key.token(network.vni.0, self.config.underlay),
            half: self.half(network, key, self.remembers(key)),
            by_gateway,
        };
        let (hop, ethernet) = match target {
            Target::Port(index) => (Hop::Port(index), Some((self.tables.port(index)?.entry.mac, router))),
            Target::Host(location) => (underlay(location.underlay, false), Some((location.mac, router))),
            Target::Gateway(receiver) => (underlay(receiver, true), Some((router, sender))),
            Target::External => (Hop::External, None),
        };
        let mtu = if target == Target::External { self.config.external_mtu } else { entry.mtu };
        let is_tcp = key.protocol == 6;
        Some(Action {
            hop,
            ethernet,
            nat: None,
            routed,
            mtu,
            mss_max: if is_tcp { mtu.min(entry.mtu).saturating_sub(headers_bytes(key)) } else { 0 },
            counter: 0,
            connection: NO_CONNECTION,
            idle_ms: FLOW_IDLE_MS,
            hangs: Hangs::default(),
        })
    }

    /// The action of what a port sends under a key, past anti-spoofing and firewall; `None` if it would
    /// not be forwarded.
    pub(super) fn action_from_port(&self, network: &Network, key: &FlowKey, port: &Port) -> Option<Action> {
        let (source, destination) = (key.source.into(), key.destination.into());
        Self::check_destination(network, destination).ok()?;
        if network.is_router(destination) || !answer::may_speak_for(network, port, source) || !port.up {
            return None;
        }
        let target = self.route(network, key, &mut ()).ok()?;
        if target == Target::Port(port.index) {
            return None;
        }
        let routed = !network.same_subnet(source, destination);
        self.action(network, key, target, routed, port.entry.mac)
    }

    /// Turns a drop into an answer with an ICMP error, where one is due.
    pub(super) fn with_unreachable(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        decision: Decision,
    ) -> Decision {
        let Decision::Drop { cause, install, revoke: None } = decision else { return decision };
        let (what, service) = match cause {
            Cause::Reason(Reason::NoRoute | Reason::NoExternalAccess) => {
                (IcmpError::NetworkUnreachable, Service::NetworkUnreachable)
            }
            Cause::Reason(Reason::UnknownDestination) => {
                (IcmpError::HostUnreachable, Service::HostUnreachable)
            }
            _ => return decision,
        };
        self.icmp_error(at, network, what, service, cause, install)
    }

    /// An ICMP error from the network's router to the sender of a frame; a drop where none may be sent.
    pub(super) fn icmp_error(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        what: IcmpError,
        service: Service,
        cause: Cause,
        install: Install,
    ) -> Decision {
        let mac = network.vni.router_mac().0;
        let drop = Decision::Drop { cause, install, revoke: None };
        let Some(source) = network.router_address(at.source()) else { return drop };
        match answer::error(at.frame, at.parsed, mac, source, what, service) {
            Reply::Frame(service, frame) => {
                let budget = self.budget(at);
                Decision::Answer { service, frame, budget, cause: Some(cause), install }
            }
            _ => drop,
        }
    }
}
