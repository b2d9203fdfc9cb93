//! Learned networks (decision 0019): what the controllers are told of packets and ports.
//!
//! A port is told of with its first frame, and with later ones that no flow takes, after a second, two, four and so on up
//! to [`HEARD_AGAIN_MS`]: what was lost on the way is said once more, and the device manager knows who is still there. Only what the port may say is told: its own Ethernet address
//! and its own IP addresses.

use super::TableResolver;
use super::decision::Arrival;
use crate::flow::{About, Asked, Ingress, PortIndex};
use crate::tables::Port;
use std::net::IpAddr;
use weir_model::entry::Vni;
use weir_model::packet_in::{PacketIn, Why};
use weir_packet::Network as Protocol;
use weir_packet::headers::parse_arp;
use weir_packet::key::FlowKey;

/// A port that sends is told of again after so long at most, milliseconds.
pub const HEARD_AGAIN_MS: u64 = 60_000;
/// And after so long the first time.
const HEARD_FIRST_MS: u64 = 1_000;

fn packet(port: &Port, why: Why, source: Option<IpAddr>, destination: Option<IpAddr>) -> PacketIn {
    PacketIn {
        endpoint: port.name.clone(),
        why,
        source_mac: port.entry.mac,
        source: source.filter(|source| port.has(*source)),
        destination,
        protocol: 0,
        ports: (0, 0),
    }
}

impl TableResolver {
    /// The question about a frame from a port.
    pub(super) fn asked(&self, at: &Arrival<'_>, about: About) -> Option<Asked> {
        let Ingress::Port(index) = *at.ingress else { return None };
        let port = self.tables.port(index)?;
        let (why, source, address) = match about {
            About::Place(address) => (Why::Unknown, at.source(), address),
            About::Turn { client, address } => (Why::Balanced, client, address),
        };
        let packet = PacketIn {
            protocol: at.key.protocol,
            ports: (at.key.source_port, at.key.destination_port),
            ..packet(port, why, Some(source), Some(address))
        };
        Some(Asked { port: index, vni: port.vni.0, about, packet })
    }

    /// What is to be told of a port that sent a frame, if anything.
    pub(crate) fn hear(&mut self, now_ms: u64, index: PortIndex, frame: &[u8]) -> Option<(Vni, PacketIn)> {
        let port = self.tables.port(index).filter(|port| port.up)?;
        if !self.tables.network(port.vni.0)?.is_learned() {
            return None;
        }
        let told = self.heard.get(&index).copied();
        if told.is_some_and(|(told_ms, pause_ms)| now_ms.saturating_sub(told_ms) < pause_ms) {
            return None;
        }
        let parsed = weir_packet::parse(frame).ok()?;
        if parsed.source_mac != port.entry.mac.0 {
            return None;
        }
        let source = match parsed.network {
            Protocol::Arp => {
                parse_arp(&frame[parsed.l3_offset..]).ok().map(|arp| IpAddr::from(arp.sender_ip))
            }
            Protocol::Other => None,
            _ => Some(FlowKey::new(0, &parsed).source.into()),
        };
        let heard = packet(port, Why::Heard, source, None);
        let vni = port.vni;
        let pause_ms = told.map_or(HEARD_FIRST_MS, |(_, pause_ms)| (2 * pause_ms).min(HEARD_AGAIN_MS));
        self.heard.insert(index, (now_ms, pause_ms));
        Some((vni, heard))
    }

    /// What the controllers asked for and is here.
    pub(crate) fn found(&self) -> Vec<(Vni, PacketIn)> {
        let networks = self.tables.networks().filter(|network| network.is_learned());
        let found = networks.flat_map(|network| {
            network.sought.iter().filter_map(|address| {
                let port = self.tables.port(network.port_of(*address)?).filter(|port| port.up)?;
                Some((network.vni, packet(port, Why::Sought, Some(*address), None)))
            })
        });
        found.collect()
    }
}
