//! Flows that are in the table, decided again because something changed that they hang on (rows A12, A22).
//!
//! There is no packet then, so one is made up that has the flow's key: of TCP one in the middle of a conversation. It takes the same walk as
//! any other, and what comes of it is made true where that is for the flow alone: a way, or a drop. Whatever hangs on the packet itself (a connection
//! that opens, an answer, a question to the controllers, a packet by which another host is told something) is left to the flow's next packet,
//! and the flow leaves the table.
//!
//! Invariants
//! - A flow gets what its next packet would have got by a miss, or goes.
//! - No counter of packets moves, and no connection lives longer for it.

use super::TableResolver;
use super::decision::{Arrival, Cause, Decision, Forward, Install, Track};
use super::key_of;
use crate::conntrack::{Connection, State, Way};
use crate::flow::{Action, Again, Hop, Ingress, MissReason, NO_CONNECTION};
use std::net::IpAddr;
use weir_packet::headers::tcp_flags::ACK;
use weir_packet::key::{FlowKey, NO_VLAN};
use weir_packet::{checksum, parse};

const ETHERNET_BYTES: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Ethernet and the longest IP header here, and a TCP header.
const STAND_IN_BYTES: usize = ETHERNET_BYTES + 40 + 20;
const HOP_LIMIT: u8 = 64;
/// A station that nobody is: what a packet is sent to does not decide.
const SOME_STATION: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A packet of a key, and its length; `None` if its key does not say enough.
fn stand_in(key: &FlowKey, source_mac: [u8; 6]) -> Option<([u8; STAND_IN_BYTES], usize)> {
    if key.is_ethernet() || key.is_fragment() || key.vlan != NO_VLAN {
        return None;
    }
    let mut frame = [0; STAND_IN_BYTES];
    let mut transport = [0_u8; 20];
    let is_v4 = key.source.is_v4();
    let transport_bytes = match (key.protocol, is_v4) {
        (TCP, _) => {
            (transport[12], transport[13]) = (5 << 4, ACK);
            20
        }
        (UDP, _) => {
            transport[5] = 8;
            8
        }
        (1, true) | (58, false) => 8,
        _ => 0,
    };
    if matches!(key.protocol, TCP | UDP) {
        transport[..2].copy_from_slice(&key.source_port.to_be_bytes());
        transport[2..4].copy_from_slice(&key.destination_port.to_be_bytes());
    } else if transport_bytes > 0 {
        transport[..2].copy_from_slice(&key.destination_port.to_be_bytes());
        transport[4..6].copy_from_slice(&key.source_port.to_be_bytes());
    }
    frame[..6].copy_from_slice(&SOME_STATION);
    frame[6..12].copy_from_slice(&source_mac);
    let l3 = &mut frame[ETHERNET_BYTES..];
    let header_bytes = match (IpAddr::from(key.source), IpAddr::from(key.destination)) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            l3[0] = 0x45;
            l3[2..4].copy_from_slice(&((20 + transport_bytes) as u16).to_be_bytes());
            (l3[8], l3[9]) = (HOP_LIMIT, key.protocol);
            l3[12..16].copy_from_slice(&source.octets());
            l3[16..20].copy_from_slice(&destination.octets());
            20
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            l3[0] = 0x60;
            l3[4..6].copy_from_slice(&(transport_bytes as u16).to_be_bytes());
            (l3[6], l3[7]) = (key.protocol, HOP_LIMIT);
            l3[8..24].copy_from_slice(&source.octets());
            l3[24..40].copy_from_slice(&destination.octets());
            40
        }
        _ => return None,
    };
    l3[header_bytes..header_bytes + transport_bytes].copy_from_slice(&transport[..transport_bytes]);
    frame[12..14].copy_from_slice(if is_v4 { &[8, 0] } else { &[0x86, 0xdd] });
    let length = ETHERNET_BYTES + header_bytes + transport_bytes;
    if is_v4 {
        let parsed = parse(&frame[..length]).ok()?;
        checksum::fill_network(&mut frame[..length], &parsed).ok()?;
    }
    Some((frame, length))
}

impl TableResolver {
    /// See [`crate::flow::Resolver::decide_again`].
    pub(super) fn again(&mut self, now_ms: u64, ingress: &Ingress, key: &FlowKey) -> Again {
        let port = if let Ingress::Port(index) = *ingress { self.tables.port(index) } else { None };
        let mac = port.map_or(SOME_STATION, |port| port.entry.mac.0);
        let Some((frame, length)) = stand_in(key, mac) else { return Again::Ask };
        let frame = &frame[..length];
        let Ok(parsed) = parse(frame) else { return Again::Ask };
        let made = key_of(&parsed, None);
        if made != (FlowKey { zone: 0, ..*key }) {
            return Again::Ask;
        }
        let mut ingress = *ingress;
        if let Ingress::Underlay { sender, vni, token, half, .. } = &mut ingress {
            // It was right when the flow was made, and says nothing of what has changed.
            *token = Some(self.config.token_key.token(*vni, *sender));
            let of = FlowKey { zone: *vni, ..made };
            if let Some(network) = self.tables.network_mut(*vni) {
                network.forgive_of(&of, (*sender, *half));
            }
        }
        let reason = MissReason::NoFlow;
        let mut at = Arrival { now_ms, ingress: &ingress, key: made, reason, frame, parsed: &parsed };
        let decision = self.decide(&mut at, &mut ());
        self.commit_again(&at, decision)
    }

    fn commit_again(&mut self, at: &Arrival<'_>, decision: Decision) -> Again {
        match decision {
            Decision::Forward(forward) => self.forward_again(at, *forward),
            Decision::Drop { cause, install, revoke } => {
                if let Some(id) = revoke {
                    let known = self.connections.get(id).map(|connection| connection.state);
                    // As long as it tries it stays revoked; this is no try, but the first time is the time that counts from.
                    let seen_ms = if known == Some(State::Revoked) { 0 } else { at.now_ms };
                    let counter = self.counter(&cause);
                    let generation = self.tables.network(at.key.zone).map_or(0, |network| network.generation);
                    self.connections.revoke(seen_ms, id, generation, counter);
                }
                if install == Install::Nothing || !self.remember_denied(at, install) {
                    return Again::Ask;
                }
                let action = self.drop_flow(at, &cause);
                let connection = revoke.map_or(NO_CONNECTION, |id| id.number(Way::Opener));
                Again::Action(Action { connection, ..action })
            }
            Decision::Send { .. } | Decision::Answer { .. } | Decision::Punt(_) | Decision::Ask(_) => {
                Again::Ask
            }
        }
    }

    fn forward_again(&mut self, at: &Arrival<'_>, forward: Forward) -> Again {
        let Forward { action, cause, track, revoke, .. } = forward;
        if revoke.is_some() {
            return Again::Ask;
        }
        let counter = self.counter(&cause);
        let connection = match track {
            Track::New { .. } | Track::Resumed { .. } | Track::Alone => return Again::Ask,
            Track::Untracked | Track::BothWays => NO_CONNECTION,
            Track::Known { id, way, judged, .. } => {
                let untold = self.connections.get(id).is_some_and(Connection::is_untold);
                let opens = matches!(action.hop, Hop::Underlay { half, .. } if half.opens());
                if untold && way == Way::Reply && opens && matches!(at.ingress, Ingress::Port(_)) {
                    // The first of them is to come here: it tells.
                    return Again::Ask;
                }
                if let Some((generation, sides)) = judged {
                    let accepts = |connection: &Connection| {
                        !connection.is_answered()
                            && connection.sides.ingress.is_none()
                            && sides.ingress.is_some()
                    };
                    if self.connections.get(id).is_some_and(accepts) {
                        // Its receiver has come here since, and accepts it with a packet that reaches it, not before.
                        return Again::Ask;
                    }
                    self.connections.judged(id, generation, sides, counter);
                }
                id.number(way)
            }
        };
        Again::Action(self.hanging(&at.key, Action { counter, connection, ..action }))
    }

    /// An action with what it hangs on besides what it says. The zone of the key is the network's identifier, or of what comes from outside zero.
    pub(super) fn hanging(&self, key: &FlowKey, mut action: Action) -> Action {
        let vni = match action.hop {
            Hop::Underlay { vni, .. } if key.zone == 0 => vni,
            _ => key.zone,
        };
        if let Some(network) = self.tables.network(vni) {
            let (source, destination) = (key.source.into(), key.destination.into());
            let written =
                action.nat.and_then(|nat| nat.destination.or(nat.source)).map(|(address, _)| address);
            let hangs = &mut action.hangs;
            written.into_iter().for_each(|address| hangs.on_other([source, destination], address));
            network.asked.each(|address| hangs.on_other([source, destination], address));
            for address in [Some(source), Some(destination)].into_iter().chain(hangs.others).flatten() {
                let hop = network.next_hop_of(address);
                hop.into_iter().for_each(|hop| hangs.on_next_hop([source, destination], hop));
            }
        }
        action
    }

    /// The action of a flow that drops.
    pub(super) fn drop_flow(&mut self, at: &Arrival<'_>, cause: &Cause) -> Action {
        use crate::counters::Reason;
        let mut action = super::commit::drop_action(self.counter(cause));
        action.hangs.no_gateway = *cause == Cause::Reason(Reason::NoGateway);
        self.hanging(&at.key, action)
    }
}
