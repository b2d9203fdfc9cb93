//! The stages of a frame from an endpoint.

use super::TableResolver;
use super::decision::{Arrival, Budget, Cause, Decision, Forward, Install, Observer, Stage, Step, Track};
use super::firewall::{Known, Passed};
use super::hops::Target;
use crate::answer::{self, Reply};
use crate::conntrack::{Connection, Sides};
use crate::counters::Reason;
use crate::flow::{Hop, Ingress, MissReason, PortIndex};
use crate::tables::Port;
use crate::tables::network::Network;
use std::net::IpAddr;
use weir_model::resource::Direction;
use weir_packet::encap::Half;
use weir_packet::{Network as Protocol, Transport};

impl TableResolver {
    pub(super) fn frame_from_port<O: Observer>(
        &self,
        at: &Arrival<'_>,
        port: &Port,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Decision> {
        self.check_port(port, network, observer)?;
        if at.parsed.vlan_tci.is_some() {
            return Err(Decision::drop_flow(Reason::VlanTagged));
        }
        if at.parsed.network == Protocol::Arp {
            let reply = answer::arp(network, port, at.frame, at.parsed);
            return self.replied("arp", reply, at, observer);
        }
        if at.parsed.network == Protocol::Other {
            return Err(Decision::drop_flow(Reason::NotIp));
        }
        self.anti_spoofing(at, port, network, observer)?;
        self.router_services(at, port, network, observer)?;
        self.check_unicast(at, port, network)?;
        self.check_size_and_ttl(at, network, observer)?;
        self.forward_from_port(at, port, network, observer)
    }

    fn check_port<O: Observer>(&self, port: &Port, network: &Network, observer: &mut O) -> Stage<()> {
        observer.step(|| Step {
            stage: "port",
            detail: if port.up {
                format!("from {}", port.name)
            } else {
                format!("from {}, which is down: {}", port.name, port.reason)
            },
            rule: None,
            key: Some(port.key()),
        });
        if network.entry.is_none() {
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        }
        if port.up { Ok(()) } else { Err(Decision::drop_packet(Reason::PortDown)) }
    }

    /// A frame carries the port's Ethernet address and one of its IP addresses, or one that a route
    /// leads to it. Exceptions are what an endpoint without an address must do: DHCP and neighbour
    /// discovery from the unspecified address, and talk to the router from a link-local one.
    ///
    /// A wrong Ethernet address drops only the frame: it is not in the key of the flow, and is never
    /// carried on, because actions write both addresses.
    fn anti_spoofing<O: Observer>(
        &self,
        at: &Arrival<'_>,
        port: &Port,
        network: &Network,
        observer: &mut O,
    ) -> Stage<()> {
        let source = at.source();
        let step = |observer: &mut O, detail: String| {
            observer.step(|| Step { stage: "anti-spoofing", detail, rule: None, key: Some(port.key()) });
        };
        if at.parsed.source_mac != port.entry.mac.0 {
            step(observer, Reason::SpoofedMac.text().to_string());
            return Err(Decision::drop_packet(Reason::SpoofedMac));
        }
        let fine = if answer::may_speak_for(network, port, source) {
            true
        } else if source.is_unspecified() {
            answer::is_dhcp(network, at.parsed)
                || (at.parsed.transport == Transport::Icmpv6 && at.destination().is_multicast())
        } else {
            matches!(source, IpAddr::V6(v6) if v6.is_unicast_link_local())
                && v6_source_is_not_the_router(network, source)
        };
        if !fine {
            step(observer, format!("{source}: {}", Reason::SpoofedSource.text()));
            return Err(Decision::drop_flow(Reason::SpoofedSource));
        }
        step(observer, format!("{source} may be sent from here"));
        let link_local = matches!(source, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let destination = at.destination();
        if link_local && !destination.is_multicast() && !network.is_router(destination) {
            return Err(Decision::drop_flow(Reason::LinkLocal));
        }
        Ok(())
    }

    /// Neighbour discovery, DHCP, DNS and what else is for the router itself.
    fn router_services<O: Observer>(
        &self,
        at: &Arrival<'_>,
        port: &Port,
        network: &Network,
        observer: &mut O,
    ) -> Stage<()> {
        for (stage, reply) in [
            ("neighbor", answer::neighbor(network, port, at.frame, at.parsed)),
            ("router", answer::router(network, at.frame, at.parsed)),
        ] {
            if reply != Reply::NotMine {
                return Err(self.replied(stage, reply, at, observer)?);
            }
        }
        Ok(())
    }

    fn replied<O: Observer>(
        &self,
        stage: &'static str,
        reply: Reply,
        at: &Arrival<'_>,
        observer: &mut O,
    ) -> Stage<Decision> {
        Ok(match reply {
            Reply::Frame(service, frame) => {
                observer.note(stage, || format!("answered by {}", service.as_str()));
                let is_error = service == answer::Service::PortUnreachable;
                let budget = if is_error { self.budget(at) } else { Budget::Free };
                Decision::Answer { service, frame, budget, cause: None, install: Install::Nothing }
            }
            Reply::Punt(service) => {
                observer.note(stage, || format!("given to {} of the agent", service.as_str()));
                Decision::Punt(service)
            }
            Reply::Silent(reason) => {
                observer.note(stage, || reason.text().to_string());
                Decision::drop_packet(reason)
            }
            Reply::Malformed(error) => {
                observer.note(stage, || error.to_string());
                Decision::Drop { cause: Cause::Malformed(error), install: Install::Nothing, revoke: None }
            }
            Reply::NotMine => Decision::drop_packet(Reason::ToRouter),
        })
    }

    /// Only unicast goes on.
    fn check_unicast(&self, at: &Arrival<'_>, port: &Port, network: &Network) -> Stage<()> {
        let destination = at.destination();
        Self::check_destination(network, destination)?;
        if at.parsed.destination_mac[0] & 1 != 0 {
            return Err(Decision::drop_packet(Reason::Broadcast));
        }
        if port.has(destination) {
            return Err(Decision::drop_flow(Reason::ToSelf));
        }
        Ok(())
    }

    /// The stages `balancer`, `connection`, `egress-firewall`, `route`, `ingress-firewall` and `tracking`.
    fn forward_from_port<O: Observer>(
        &self,
        at: &Arrival<'_>,
        port: &Port,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Decision> {
        if at.parsed.is_icmp_error()
            && let Some(decision) = self.error_about_balanced(at, network, observer)
        {
            return Ok(decision);
        }
        if let Some(entry) = network.virtual_of(at.destination()) {
            return self.to_virtual(at, port, network, entry, observer);
        }
        let is_error = at.parsed.is_icmp_error();
        let related = || is_error && self.is_related(at, network);
        let known = self.known(at, network, observer)?;
        let mut passed = if let Known::Passed(passed) = known { Some(passed) } else { None };
        let mut sides = Sides { egress: None, ingress: None };
        let mut cause = None;
        if passed.is_none() {
            match self.judge_side(network, Direction::Egress, port, &at.key, observer) {
                Ok(_) | Err(_) if related() => passed = Some(self.related_passes(observer)),
                Ok(_) if is_error => return Err(self.unrelated(at, observer)),
                Ok((stateful, by)) => (sides.egress, cause) = (Some(stateful), Some(by)),
                Err(by) => return Err(known.denied(at, by)),
            }
        }
        let target = self
            .route(network, &at.key, observer)
            .map_err(|decision| self.with_unreachable(at, network, decision))?;
        if target == Target::Port(port.index) {
            return Err(Decision::drop_flow(Reason::ToSelf));
        }
        if passed.is_none()
            && let Target::Port(index) = target
            && let Some(receiver) = self.tables.port(index)
        {
            match self.judge_side(network, Direction::Ingress, receiver, &at.key, observer) {
                Ok((stateful, by)) => (sides.ingress, cause) = (Some(stateful), Some(by)),
                Err(by) => return Err(known.denied(at, by)),
            }
        }
        let passed = match (passed, cause) {
            (Some(passed), _) => passed,
            (None, Some(cause)) => Passed { cause, track: self.track(at, network, sides, observer)? },
            (None, None) => return Err(Decision::drop_packet(Reason::NoPolicy)),
        };
        let routed = !network.same_subnet(at.source(), at.destination());
        let Some(mut action) = self.action(network, &at.key, target, routed, port.entry.mac) else {
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        };
        if let (Some(_), Hop::Underlay { half, .. }) = (known.replaced(), &mut action.hop) {
            // What is remembered now ends with this packet.
            *half = self.half(network, &at.key, false);
        }
        if passed.track == Track::Alone {
            return Ok(self.send_alone(at, &action, passed.cause));
        }
        let reverse = match self.balanced_reply(passed.track) {
            Some(connection) => self.as_virtual(network, connection, &mut action),
            None => self.reverse(at, network, target, passed.track, Some(port.index)),
        };
        let (Passed { cause, track }, revoke) = (passed, known.replaced());
        Ok(Decision::Forward(Box::new(Forward { action, cause, track, reverse, revoke })))
    }

    /// The flows of the other way, where they are known now. One that comes in from the underlay is
    /// left to its own miss, where its token is checked, unless its sender was checked already.
    pub(super) fn reverse(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        target: Target,
        track: Track,
        from: Option<PortIndex>,
    ) -> Vec<(Ingress, weir_packet::FlowKey, crate::flow::Action)> {
        use crate::conntrack::Way;
        let wanted = match track {
            Track::BothWays => true,
            Track::New { sides, .. } => sides.egress != Some(false) && sides.ingress != Some(false),
            Track::Known { way, replies, .. } => replies || way == Way::Reply,
            Track::Resumed { .. } => true,
            Track::Untracked | Track::Alone => false,
        };
        let key = at.key.reverse();
        if !wanted {
            return Vec::new();
        }
        if let Target::Port(index) = target {
            let Some(port) = self.tables.port(index) else { return Vec::new() };
            let Some(mut action) = self.action_from_port(network, &key, port) else { return Vec::new() };
            // Of replies it is remembered by then whose they are.
            let of_opener = matches!(track, Track::Resumed { .. } | Track::Known { way: Way::Reply, .. });
            if let Hop::Underlay { half, .. } = &mut action.hop {
                *half = self.half(network, &key, !of_opener);
                if half.opens() && self.is_untold(track) {
                    // The first of them is to come here: it tells.
                    return Vec::new();
                }
            }
            return vec![(Ingress::Port(index), key, action)];
        }
        let (Some(index), Some(entry)) = (from, &network.entry) else { return Vec::new() };
        // What its opener's host remembers the other way passes only where that is the older one.
        let is_reply = matches!(track, Track::Known { way: Way::Reply, .. });
        let may_pass = |half: Half| match is_reply {
            true => half.opens() && (!half.remembers() || self.is_untold(track)),
            false => half.accepts(),
        };
        let senders = network.denied(&key).iter();
        senders
            .filter(|(_, half)| may_pass(*half))
            .filter_map(|&(sender, half)| {
                let ingress = Ingress::Underlay {
                    sender,
                    vni: network.vni.0,
                    token: None,
                    format: entry.encapsulation,
                    half,
                };
                let router = network.vni.router_mac();
                let action = self.action(network, &key, Target::Port(index), false, router)?;
                Some((ingress, key, action))
            })
            .collect()
    }

    fn is_untold(&self, track: Track) -> bool {
        let Track::Known { id, .. } = track else { return false };
        self.connections.get(id).is_some_and(Connection::is_untold)
    }

    /// Answers about a packet whose flow exists but that is too large, or has lived too long.
    pub(super) fn check_size_and_ttl<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Stage<()> {
        use crate::answer::Service;
        use weir_packet::build::IcmpError;
        let (what, service, reason) = match at.reason {
            MissReason::TooBig(mtu) => {
                observer.note("size", || format!("larger than the {mtu} bytes that the way allows"));
                (IcmpError::TooBig { mtu: mtu.into() }, Service::TooBig, Reason::TooBig)
            }
            MissReason::TtlExpired => {
                observer.note("ttl", || Reason::TtlExpired.text().to_string());
                (IcmpError::TimeExceeded, Service::TimeExceeded, Reason::TtlExpired)
            }
            MissReason::NoFlow | MissReason::Special => return Ok(()),
        };
        Err(self.icmp_error(at, network, what, service, Cause::Reason(reason), Install::Nothing))
    }
}

fn v6_source_is_not_the_router(network: &Network, source: IpAddr) -> bool {
    !network.is_router(source)
}
