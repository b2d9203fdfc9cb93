//! The stages `connection`, `egress-firewall` and `ingress-firewall` (rows A17, A24; pain 8).
//!
//! Each host judges its own side: egress where the sender is, ingress where the receiver is. A packet
//! of a known connection passes as long as the rules allow the connection's opening; they are asked
//! again when anything that a verdict depends on has changed since. A connection that they no longer
//! allow is dead both ways, until they allow it again or it is forgotten; what the other side sends then
//! is judged for itself, as an opening. Of TCP only a SYN opens anything while the dead one is remembered.
//!
//! What one host's rules make dead is dead at the other too: each says of its packets what its half decided
//! ([`Half`]: whether its rules let the packet open a conversation, let the receiver open one, and whether the
//! receiver did). A packet passes as a reply if its sender's half accepts what its receiver opened and the
//! receiver's rules allow that now; else if both its sender's egress and its receiver's ingress allow it by itself.
//!
//! The two ends may remember connections of the same addresses and ports that go opposite ways: a packet that one end sends as a
//! reply is judged as an opening at the other, where what it replies to is dead, and nobody tells the sender. Then the younger
//! counts, and which that is follows from how they came about: the one that was made of somebody's reply is younger than what it
//! was a reply to (`untold`), until something was sent back in it that could have made another at the other end. In any other such
//! case the sender's is the younger one. So a reply never passes by a connection whose place another has taken here.
//!
//! VXLAN has no place for that: there each host judges by what it knows, as of switches of older releases.

use super::TableResolver;
use super::decision::{Arrival, Cause, Decision, Install, Observer, Stage, Step, Track};
use crate::conntrack::{Connection, ConnectionId, Owner, Sides, State, Way};
use crate::counters::Reason;
use crate::flow::Ingress;
use crate::tables::Port;
use crate::tables::network::Network;
use std::net::IpAddr;
use weir_model::Key;
use weir_model::resource::{Action, Direction};
use weir_packet::encap::Half;
use weir_packet::headers::tcp_flags::{ACK, RST, SYN};
use weir_packet::key::FlowKey;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;

/// What the stage `connection` finds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known {
    /// No connection: the packet opens a conversation.
    Nothing,
    /// A dead connection whose addresses and ports the other side uses to open one of its own. What denies that
    /// is what made the old one dead.
    Reopened {
        /// The dead one.
        id: ConnectionId,
        /// Why it is.
        cause: Cause,
        /// The rules here do not allow it any more; else those of the other side do not.
        here: bool,
    },
    /// A connection, in which it passes.
    Passed(Passed),
}

impl Known {
    /// The drop of a packet that `by` denies.
    pub(super) fn denied(&self, at: &Arrival<'_>, by: Cause) -> Decision {
        match *self {
            Known::Reopened { id, cause, here: true } => revoked(at, id, cause),
            Known::Reopened { .. } | Known::Nothing | Known::Passed(_) => denied(at, by),
        }
    }

    /// The connection that ends when this packet passes.
    pub(super) fn replaced(&self) -> Option<ConnectionId> {
        if let Known::Reopened { id, .. } = self { Some(*id) } else { None }
    }
}

/// A drop because the rules do not allow the packet's connection any more.
fn revoked(at: &Arrival<'_>, id: ConnectionId, cause: Cause) -> Decision {
    match denied(at, cause) {
        Decision::Drop { cause, install, .. } => Decision::Drop { cause, install, revoke: Some(id) },
        other => other,
    }
}

/// The drop of a packet of a dead connection: of TCP for this packet alone, for a SYN has the same key and may open one.
fn unless_opening(at: &Arrival<'_>, way: Way, decision: Decision) -> Decision {
    if at.key.protocol == TCP && way == Way::Reply { decision.for_this_alone() } else { decision }
}

/// Whether the packet may open a conversation in place of a dead one with the same addresses and ports: any that cannot be told
/// from an opening.
fn is_opening(at: &Arrival<'_>) -> bool {
    match (at.key.protocol, at.key.destination_port >> 8) {
        (TCP, _) => at.parsed.tcp_flags & (SYN | ACK | RST) == SYN,
        // Of echo the request.
        (ICMP, kind) if at.key.source.is_v4() => kind == 8,
        (ICMPV6, kind) if !at.key.source.is_v4() => kind == 128,
        _ => true,
    }
}

/// Whether the packet can only be a reply, whatever was seen of its connection: that of TCP to a SYN.
fn is_answer(at: &Arrival<'_>) -> bool {
    at.key.protocol == TCP && at.parsed.tcp_flags & (SYN | ACK) == SYN | ACK
}

/// Whether the connection that a packet is of lives at the other end too, as the packet says: the rules there allow it, and what was opened
/// here came through.
fn lives_there(half: Half, way: Way, connection: &Connection) -> bool {
    match (half, way) {
        (Half::Unsaid, _) => true,
        (half, Way::Opener) => half.opens(),
        (half, Way::Reply) => half.accepts() && (half.remembers() || connection.is_answered()),
    }
}

/// What the rules say of a connection that they allow: its sides, what it is counted under, and its new
/// judgement if there is one.
pub(super) type Allowed = (Sides, Cause, Option<(u64, Sides)>);

/// A packet that the firewall lets pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) cause: Cause,
    pub(super) track: Track,
}

fn stage_of(direction: Direction) -> &'static str {
    if direction == Direction::Ingress { "ingress-firewall" } else { "egress-firewall" }
}

/// A drop by the firewall. What comes from the underlay may be allowed later by a connection that is
/// opened the other way, so its flow is remembered. ICMP errors are judged one by one, since the next
/// may be about something else.
pub(super) fn denied(at: &Arrival<'_>, cause: Cause) -> Decision {
    let install = match at.ingress {
        _ if at.parsed.is_icmp_error() => Install::Nothing,
        Ingress::Underlay { .. } => Install::Denied,
        _ => Install::Flow,
    };
    Decision::Drop { cause, install, revoke: None }
}

impl TableResolver {
    /// Asks the rules of one side: whether replies pass by themselves, or what denies.
    pub(super) fn judge_side<O: Observer>(
        &self,
        network: &Network,
        direction: Direction,
        port: &Port,
        key: &FlowKey,
        observer: &mut O,
    ) -> Result<(bool, Cause), Cause> {
        let vni = network.vni.0;
        let Some(judgement) = network.judge(direction, &port.tags, key) else {
            observer.note(stage_of(direction), || "no policy is in force, so nothing may pass".to_string());
            return Err(Cause::Reason(Reason::NoPolicy));
        };
        let cause = match judgement.rule {
            Some(rule) => Cause::Rule { vni, direction, rule },
            None => Cause::Default { vni, direction },
        };
        observer.step(|| {
            let rule = judgement.rule.and_then(|rule| {
                let rules = network.policy.as_ref()?.rules(direction);
                Some(rules.list.get(rule as usize)?.name.to_string())
            });
            let verdict = if judgement.action == Action::Allow { "allows" } else { "denies" };
            let replies = match (judgement.action, judgement.stateful) {
                (Action::Allow, true) => ", and its replies",
                _ => "",
            };
            let detail = match &rule {
                Some(rule) => format!("rule {rule} {verdict} it at {}{replies}", port.name),
                None => format!("no rule matches at {}; the default {verdict} it{replies}", port.name),
            };
            Step { stage: stage_of(direction), detail, rule, key: Some(Key::Policy { vni: network.vni }) }
        });
        if judgement.action == Action::Allow { Ok((judgement.stateful, cause)) } else { Err(cause) }
    }

    /// Whether an endpoint elsewhere may have an address that a route leads to one here: hosts know the places of some addresses, and
    /// an endpoint that has it comes before any route.
    fn may_be_elsewhere(&self, network: &Network, address: IpAddr) -> bool {
        !network.is_learned()
            && network.subnet_of(address).is_some()
            && self.tables.place(network, address).is_none()
    }

    /// Asks the rules of the side that an address is at, if that is here. `is_elsewhere`: where it cannot be known it is not.
    pub(super) fn judge_side_of<O: Observer>(
        &self,
        network: &Network,
        (direction, address, is_elsewhere): (Direction, IpAddr, bool),
        key: &FlowKey,
        observer: &mut O,
    ) -> Result<Option<(bool, Cause)>, Cause> {
        let Some(index) = self.tables.receiver(network, address) else { return Ok(None) };
        let Some(port) = self.tables.port(index) else { return Ok(None) };
        if is_elsewhere && self.may_be_elsewhere(network, address) {
            return Ok(None);
        }
        self.judge_side(network, direction, port, key, observer).map(Some)
    }

    /// Asks the rules about the opening packet of a conversation, at each side that is here. `before` is what was judged of it: where it
    /// cannot be known whether an address is here, it is where it was found then.
    pub(super) fn judge_opening(
        &self,
        network: &Network,
        key: &FlowKey,
        before: Option<Sides>,
    ) -> Result<(Sides, Cause), Cause> {
        let was_elsewhere =
            |side: fn(Sides) -> Option<bool>| before.is_some_and(|sides| side(sides).is_none());
        let source = (Direction::Egress, key.source.into(), was_elsewhere(|sides| sides.egress));
        let destination = (Direction::Ingress, key.destination.into(), was_elsewhere(|sides| sides.ingress));
        let egress = self.judge_side_of(network, source, key, &mut ())?;
        let ingress = self.judge_side_of(network, destination, key, &mut ())?;
        let sides = Sides { egress: egress.map(|e| e.0), ingress: ingress.map(|i| i.0) };
        match ingress.or(egress) {
            Some((_, cause)) => Ok((sides, cause)),
            None => Err(Cause::Reason(Reason::Revoked)),
        }
    }

    /// The stage `connection`: whether the packet belongs to one that may go on.
    pub(super) fn known<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        observer: &mut O,
    ) -> Stage<Known> {
        let reply = || self.connections.find_inbound(&at.key).map(|id| (id, Way::Reply));
        let Some((id, way)) = self.connections.find(&at.key).or_else(reply) else {
            observer.note("connection", || "it belongs to no connection known here".to_string());
            return Ok(Known::Nothing);
        };
        let Some(connection) = self.connections.get(id) else { return Ok(Known::Nothing) };
        // What it was judged by counts until something changes that it hangs on, also where it is not judged again now.
        for key in [connection.key, connection.judged_key()] {
            network.asked.note(key.source.into());
            network.asked.note(key.destination.into());
        }
        self.note_owner(network, connection);
        // Whoever replies remembers what the one who opened it may not know any more.
        let half = at.half();
        let may_differ = match way {
            // What never was answered the other side's packets cannot be of.
            Way::Reply => is_opening(at) || (!connection.is_answered() && !is_answer(at)),
            Way::Opener => half.accepts() && half.remembers(),
        };
        if way == Way::Opener && half.remembers() && !connection.is_untold() {
            observer.note("connection", || {
                "its sender's host remembers a younger connection the other way".to_string()
            });
            return Ok(Known::Reopened { id, cause: Cause::Reason(Reason::Revoked), here: false });
        }
        let (sides, cause, judged) = match self.judge_known(network, connection) {
            Ok(allowed) => allowed,
            Err(cause) => {
                observer.note("connection", || "the rules no longer allow its connection".to_string());
                self.show_opening(network, connection, observer);
                return if may_differ {
                    Ok(Known::Reopened { id, cause, here: true })
                } else {
                    Err(unless_opening(at, way, revoked(at, id, cause)))
                };
            }
        };
        // Whoever moved here has accepted nothing that was opened towards its old place and not answered.
        let moved_here = matches!(at.ingress, Ingress::Port(_))
            && way == Way::Reply
            && connection.generation != 0
            && !connection.is_answered()
            && connection.sides.ingress.is_none();
        if moved_here || !lives_there(half, way, connection) {
            observer.note("connection", || {
                "its connection does not live at its sender's host: the rules there do not allow it"
                    .to_string()
            });
            let cause = Cause::Reason(Reason::Revoked);
            return if may_differ {
                Ok(Known::Reopened { id, cause, here: false })
            } else {
                Err(unless_opening(at, way, denied(at, cause)))
            };
        }
        observer.step(|| Step {
            stage: "connection",
            detail: format!("{}, which the rules allow", describe(connection, way)),
            rule: self.rule_name(&cause),
            key: Some(Key::Policy { vni: network.vni }),
        });
        if way == Way::Reply {
            self.judge_reply(at, network, sides, observer)?;
        }
        let replies = sides.egress != Some(false) && sides.ingress != Some(false);
        Ok(Known::Passed(Passed { cause, track: Track::Known { id, way, judged, replies } }))
    }

    /// A connection ends with the port that is charged for it, which a route may have led to when it opened: then it hangs on that port's
    /// address, too.
    fn note_owner(&self, network: &Network, connection: &Connection) {
        let Owner::Port(index) = connection.owner else { return };
        let Some(port) = self.tables.port(index) else { return };
        let ends = [connection.key.source, connection.key.destination].map(IpAddr::from);
        if !ends.iter().any(|end| port.has(*end))
            && let Some(address) = port.entry.addresses.first()
        {
            network.asked.note(*address);
        }
    }

    /// Whether the rules allow a connection: as they said when they were asked last, unless anything has
    /// changed since.
    pub(super) fn judge_known(&self, network: &Network, connection: &Connection) -> Result<Allowed, Cause> {
        let cause = Cause::Counter(connection.counter);
        match (connection.generation == network.generation, connection.state) {
            (true, State::Revoked) => Err(cause),
            (true, _) => Ok((connection.sides, cause, None)),
            (false, _) => {
                // Of one that was brought back nothing is known.
                let before = (connection.generation != 0).then_some(connection.sides);
                let (sides, cause) = self.judge_opening(network, &connection.judged_key(), before)?;
                Ok((sides, cause, Some((network.generation, sides))))
            }
        }
    }

    /// Judges again for a watcher.
    fn show_opening<O: Observer>(&self, network: &Network, connection: &Connection, observer: &mut O) {
        let key = &connection.judged_key();
        let sides = [(Direction::Egress, key.source), (Direction::Ingress, key.destination)];
        for (direction, address) in sides {
            let port =
                self.tables.receiver(network, address.into()).and_then(|index| self.tables.port(index));
            if let Some(port) = port
                && self.judge_side(network, direction, port, key, observer).is_err()
            {
                return;
            }
        }
    }

    /// A reply passes the sides whose rule is stateful; the others judge it for itself.
    fn judge_reply<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        sides: Sides,
        observer: &mut O,
    ) -> Stage<()> {
        let own = [
            (sides.ingress, Direction::Egress, at.source()),
            (sides.egress, Direction::Ingress, at.destination()),
        ];
        for (stateful, direction, address) in own {
            if stateful != Some(false) {
                continue;
            }
            let port = self.tables.receiver(network, address).and_then(|index| self.tables.port(index));
            if let Some(port) = port {
                self.judge_side(network, direction, port, &at.key, observer)
                    .map_err(|cause| denied(at, cause))?;
            }
        }
        Ok(())
    }

    /// What to track of a conversation that opens and that the rules allow at `sides`.
    pub(super) fn track<O: Observer>(
        &self,
        at: &Arrival<'_>,
        network: &Network,
        sides: Sides,
        observer: &mut O,
    ) -> Stage<Track> {
        if at.parsed.is_icmp_error() {
            return Ok(Track::Untracked);
        }
        if self.connections.find_inbound(&at.key.reverse()).is_some() {
            observer.note("tracking", || Reason::BalancerConflict.text().to_string());
            return Err(Decision::drop_packet(Reason::BalancerConflict));
        }
        if sides.egress != Some(true) && sides.ingress != Some(true) {
            observer.note("tracking", || "the rule is not stateful, so nothing is tracked".to_string());
            return Ok(Track::Untracked);
        }
        if !self.connections.has_room(self.owner(network, &at.key)) {
            if self.allowed_back(network, &at.key) {
                observer.note("tracking", || "there is no room, but the rules allow both ways".to_string());
                return Ok(Track::BothWays);
            }
            observer.note("tracking", || Reason::ConnectionsFull.text().to_string());
            return Err(Decision::drop_packet(Reason::ConnectionsFull));
        }
        observer.note("tracking", || "a connection opens".to_string());
        Ok(Track::New { sides, binding: None })
    }

    /// Whether the rules allow the replies to `key` by themselves at each side that is here (row A24).
    fn allowed_back(&self, network: &Network, key: &FlowKey) -> bool {
        let back = key.reverse();
        let allows = |direction, address| {
            let port = self.tables.receiver(network, address).and_then(|index| self.tables.port(index));
            port.is_none_or(|port| self.judge_side(network, direction, port, &back, &mut ()).is_ok())
        };
        allows(Direction::Ingress, key.source.into()) && allows(Direction::Egress, key.destination.into())
    }

    /// Whether packets of this key, and the answers to them, may pass here: by a connection that is
    /// still allowed, or where none is tracked by the rules both ways.
    pub(super) fn is_conversation(&self, network: &Network, key: &FlowKey) -> bool {
        let connection = self.connections.find(key).and_then(|(id, _)| self.connections.get(id));
        let goes_on = connection.is_some_and(|connection| self.judge_known(network, connection).is_ok());
        goes_on || self.is_untracked(network, key) && self.allowed_back(network, key)
    }

    /// Whether the rules allow packets of this key and there is no connection of them: their rules are not stateful, or there is no room.
    fn is_untracked(&self, network: &Network, key: &FlowKey) -> bool {
        let Ok((sides, _)) = self.judge_opening(network, key, None) else { return false };
        let is_stateful = sides.egress == Some(true) || sides.ingress == Some(true);
        !is_stateful || !self.connections.has_room(self.owner(network, key))
    }

    /// Who is charged for a connection: the opener's port, else the receiver's, at a gateway the opener.
    pub(super) fn owner(&self, network: &Network, key: &FlowKey) -> Owner {
        let source = key.source.into();
        let port = self
            .tables
            .receiver(network, source)
            .or_else(|| self.tables.receiver(network, key.destination.into()));
        port.map_or(Owner::Address(network.vni.0, source), Owner::Port)
    }
}

fn describe(connection: &Connection, way: Way) -> String {
    let what = if way == Way::Opener { "it belongs to" } else { "it is a reply in" };
    let key = &connection.key;
    let (a, b) = (key.source, key.destination);
    format!("{what} the connection from {a} to {b}, {}", connection.state.as_str())
}
