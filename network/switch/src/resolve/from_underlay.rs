//! The stages of a frame from another switch, at a host and at a gateway.
//!
//! Whatever the format, the sender is a switch of the list that the controllers tell ([`crate::tables::switches`]), once they do.
//!
//! A Geneve packet proves by its token that a switch of the domain sent it for this network (row A18).
//! VXLAN has no token. Then a sender is taken that the network's tables know as a gateway or a host. A
//! host also takes what an unknown sender says of an endpoint's source whose place it does not know, because hosts
//! know only the places they use themselves; a gateway knows all places and takes nothing else. What
//! needs proof uses Geneve.
//!
//! What fails here drops only the packet and never makes a flow: it proves nothing about the sender
//! whose flow it names.

use super::TableResolver;
use super::decision::{Arrival, Cause, Decision, Forward, Observer, Path, Stage, Step, Track};
use super::firewall::{Known, Passed};
use super::hops::Target;
use crate::conntrack::Sides;
use crate::counters::Reason;
use crate::flow::{Hop, Ingress};
use crate::tables::Port;
use crate::tables::network::Network;
use std::net::IpAddr;
use weir_model::Key;
use weir_model::entry::RouteHop;
use weir_model::resource::{Direction, Encapsulation};
use weir_packet::Network as Protocol;

/// Whether an endpoint may have an address or speak for it: what comes from outside comes by gateways, and the router is everywhere.
fn is_endpoint_s(network: &Network, source: IpAddr) -> bool {
    let is_routed = || {
        let route = network.route_of(source);
        route.is_some_and(|(_, route)| matches!(route.hop, RouteHop::Address(_)))
    };
    !network.is_router(source) && (network.subnet_of(source).is_some() || is_routed())
}

impl TableResolver {
    pub(super) fn frame_from_underlay<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Decision> {
        self.check_sender(at, network, observer)?;
        if at.parsed.vlan_tci.is_some() {
            return Err(Decision::drop_flow(Reason::VlanTagged));
        }
        if !matches!(at.parsed.network, Protocol::Ipv4 | Protocol::Ipv6) {
            return Err(Decision::drop_flow(Reason::NotIp));
        }
        Self::check_destination(network, at.destination())?;
        self.check_size_and_ttl(at, network, observer)?;
        if self.is_gateway() {
            self.gateway_from_underlay(at, network, observer)
        } else {
            self.host_from_underlay(at, network, observer)
        }
    }

    /// The stages `network` and `sender`.
    fn check_sender<O: Observer>(&self, at: &Arrival<'_>, network: &Network, observer: &mut O) -> Stage<()> {
        let Ingress::Underlay { sender, vni, token, format, .. } = *at.ingress else { return Ok(()) };
        let Some(entry) = &network.entry else {
            observer.note("network", || format!("network {vni} is not in force here"));
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        };
        observer.step(|| Step {
            stage: "network",
            detail: format!("network {}, identifier {vni}", entry.name),
            rule: None,
            key: Some(Key::Network { vni: network.vni }),
        });
        if let Some(problem) = self.unlisted(sender) {
            observer.note("sender", || format!("{sender}: {problem}"));
            return Err(Decision::drop_packet(Reason::UnknownSender));
        }
        if format != entry.encapsulation {
            observer.note("sender", || Reason::WrongFormat.text().to_string());
            return Err(Decision::drop_packet(Reason::WrongFormat));
        }
        let reason = match format {
            Encapsulation::Geneve => {
                let right = token.is_some_and(|token| self.config.token_key.check(vni, sender, token));
                (!right).then_some(Reason::BadToken)
            }
            Encapsulation::Vxlan => {
                (!self.is_known_sender(network, sender, at.source())).then_some(Reason::UnknownSender)
            }
        };
        observer.note("sender", || match reason {
            Some(reason) => format!("{sender}: {}", reason.text()),
            None => format!("{sender} may send for the network"),
        });
        reason.map_or(Ok(()), |reason| Err(Decision::drop_packet(reason)))
    }

    /// Why nothing is taken from a place of the underlay, in any encapsulation: the controllers tell where switches are, and a setting may
    /// narrow that. Gateways are taken in any case.
    pub(super) fn unlisted(&self, sender: IpAddr) -> Option<&'static str> {
        let from = &self.config.underlay_from;
        if self.tables.gateways().iter().any(|gateway| gateway.underlay == sender) {
            None
        } else if !self.tables.switches().takes(sender) {
            Some("no switch of this domain or of one that is known, by the controllers' list")
        } else if !from.is_empty() && !from.iter().any(|net| net.contains(&sender)) {
            Some("not within the setting switch.underlayFrom")
        } else {
            None
        }
    }

    fn is_known_sender(&self, network: &Network, sender: IpAddr, source: IpAddr) -> bool {
        network.hosts.contains_key(&sender)
            || self.tables.gateways().iter().any(|gateway| gateway.underlay == sender)
            || (!self.is_gateway() && !network.is_located(source) && is_endpoint_s(network, source))
    }

    fn host_from_underlay<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Decision> {
        if network.port_of(at.source()).is_some() || network.virtual_of(at.source()).is_some() {
            observer.note("anti-spoofing", || format!("{} is here, not elsewhere", at.source()));
            return Err(Decision::drop_flow(Reason::SpoofedSource));
        }
        let receiver = self.tables.receiver(network, at.destination());
        let Some(receiver) = receiver.and_then(|index| self.tables.port(index)) else {
            observer.note("route", || format!("{} is not here", at.destination()));
            return Err(Decision::drop_flow(Reason::NotHere));
        };
        observer.step(|| Step {
            stage: "route",
            detail: format!("{} is {} here", at.destination(), receiver.name),
            rule: None,
            key: Some(receiver.key()),
        });
        if !receiver.up {
            observer.note("port", || format!("{} is down: {}", receiver.name, receiver.reason));
            return Err(Decision::drop_packet(Reason::PortDown));
        }
        if at.parsed.is_icmp_error()
            && let Some(decision) = self.error_about_balanced(at, network, observer)
        {
            return Ok(decision);
        }
        let known = self.known(at, network, observer)?;
        let passed = match known {
            Known::Passed(passed) => passed,
            Known::Nothing | Known::Reopened { .. } => {
                self.judge_arrival(at, network, receiver, &known, observer)?
            }
        };
        let target = Target::Port(receiver.index);
        let router = network.vni.router_mac();
        let Some(mut action) = self.action(network, &at.key, target, false, router) else {
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        };
        if passed.track == Track::Alone {
            return Ok(self.send_alone(at, &action, passed.cause));
        }
        let reverse = match self.balanced_reply(passed.track) {
            Some(connection) => self.as_virtual(network, connection, &mut action),
            None => self.reverse(at, network, target, passed.track, None),
        };
        let (Passed { cause, track }, revoke) = (passed, known.replaced());
        Ok(Decision::Forward(Box::new(Forward { action, cause, track, reverse, revoke })))
    }

    /// Judges a packet that is of no connection which lives here: as an answer to what its receiver opened, if its sender's switch
    /// remembers that, else as an opening, if its sender's rules allow that.
    fn judge_arrival<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        receiver: &Port,
        known: &Known,
        observer: &mut O,
    ) -> Stage<Passed> {
        let half = at.half();
        let is_error = at.parsed.is_icmp_error();
        let related = || is_error && self.is_related(at, network);
        let mut opens = half.opens();
        let is_outdated = self.is_outdated(at, known);
        let mut may_resume = false;
        if half.remembers() && half.accepts() && !is_error {
            let back = at.key.reverse();
            let judged =
                self.judge_side(network, Direction::Egress, receiver, &back, observer).and_then(|of| {
                    // Who replies is elsewhere, unless a route says that only somebody here can be it.
                    let side = (Direction::Ingress, at.source(), true);
                    Ok((
                        of,
                        self.judge_side_of(network, side, &back, observer)?.map(|(stateful, _)| stateful),
                    ))
                });
            match judged {
                Ok(_) if is_outdated => may_resume = true,
                Ok(((true, cause), ingress)) if ingress != Some(false) => {
                    observer.note("connection", || "its sender's switch knows it as a reply".to_string());
                    let sides = Sides { egress: Some(true), ingress };
                    let has_room = self.connections.has_room(self.owner(network, &back));
                    let track = if has_room { Track::Resumed { sides } } else { Track::Untracked };
                    return Ok(Passed { cause, track });
                }
                // The rule lets no replies pass by themselves, so the packet is judged for itself.
                Ok(_) => opens = true,
                Err(_) => {}
            }
        }
        if !opens && !is_error {
            observer.note("connection", || {
                "its sender's rules let it pass only as a reply, and nobody here may open what it replies to".to_string()
            });
            let denied = known.denied(at, Cause::Reason(Reason::NoConnection));
            // What its receiver sends next may have it pass.
            return Err(if may_resume { denied.for_this_alone() } else { denied });
        }
        // Who opens it is elsewhere, too.
        let side = (Direction::Egress, at.source(), true);
        let judged = self.judge_side_of(network, side, &at.key, observer).and_then(|egress| {
            let ingress = self.judge_side(network, Direction::Ingress, receiver, &at.key, observer)?;
            Ok((egress.map(|(stateful, _)| stateful), ingress))
        });
        match judged {
            Ok(_) | Err(_) if related() => Ok(self.related_passes(observer)),
            Ok(_) if is_error => Err(self.unrelated(at, observer)),
            Ok((egress, (stateful, cause))) => {
                let sides = Sides { egress, ingress: Some(stateful) };
                Ok(Passed { cause, track: self.track(at, network, sides, observer)? })
            }
            Err(cause) => Err(known.denied(at, cause)),
        }
    }

    /// Whether what the sender's switch remembers is older than the connection here, which it takes for replies in that.
    fn is_outdated(&self, at: &Arrival<'_>, known: &Known) -> bool {
        let connection = known.replaced().and_then(|id| self.connections.get(id));
        at.half().remembers()
            && connection.is_some_and(|connection| connection.key == at.key && connection.is_untold())
    }

    /// A gateway takes a packet to where its destination is (row A11), without a firewall of its own:
    /// the hosts judge. What is outside it translates.
    fn gateway_from_underlay<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Decision> {
        let target = self
            .route(network, &at.key, observer)
            .map_err(|decision| self.with_unreachable(at, network, decision))?;
        if target == Target::External {
            return self.to_outside(at, network, observer);
        }
        let router = network.vni.router_mac();
        let Some(mut action) = self.action(network, &at.key, target, false, router) else {
            return Err(Decision::drop_packet(Reason::UnknownNetwork));
        };
        // The hosts judge, each by what the other says.
        if let Hop::Underlay { half, .. } = &mut action.hop {
            *half = at.half();
        }
        let cause = Cause::Path(Path::Hoverboard);
        Ok(Decision::Forward(Box::new(Forward::plain(action, cause, Track::Untracked))))
    }
}
