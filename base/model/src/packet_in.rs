//! Packet-ins: what a switch asks or tells of a packet that it has no rule for (Botelho et al. §VI; rows B10 and C8;
//! decisions 0019 and 0024).
//!
//! Only headers travel, never a payload: what the apps of packets decide on. The switch has checked that its port may
//! send under these addresses; the controller checks again that the port and the addresses are of an endpoint on that
//! host, for a host that lies must not move the endpoints of others.

use crate::vni::Vni;
use crate::{Label, MacAddr};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Most packets of one report.
pub const PACKETS_IN_MAX: usize = 64;

/// Why a packet is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Why {
    /// The port has begun to send, or was not told of for a while.
    Heard,
    /// Nobody has told this switch where the destination is: the packet waits for it.
    Unknown,
    /// The controller asked whether the endpoint is here: it is.
    Sought,
    /// It goes to a virtual address, and nobody has told this switch whose turn it is: the packet waits for it.
    Balanced,
}

/// The headers of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketIn {
    /// Name of the endpoint whose port it came in at.
    pub endpoint: Label,
    /// Why it is told of.
    pub why: Why,
    /// Its Ethernet source.
    pub source_mac: MacAddr,
    /// Its IP source, if it is one of the endpoint's own.
    pub source: Option<IpAddr>,
    /// Where it goes: for [`Why::Unknown`] whose place is asked for, which a route may have named; for
    /// [`Why::Balanced`] the virtual address.
    pub destination: Option<IpAddr>,
    /// IP protocol; 0 without IP.
    pub protocol: u8,
    /// Source and destination port; 0 without ports.
    pub ports: (u16, u16),
}

/// Packets of one network that a switch has no rules for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketInReport {
    /// The switch.
    pub actuator: Label,
    /// The network.
    pub vni: Vni,
    /// The packets in their order, 1 to [`PACKETS_IN_MAX`].
    pub packets: Vec<PacketIn>,
}

impl PacketInReport {
    /// What is wrong with it by itself, and what would be right.
    pub fn problem(&self) -> Option<String> {
        if self.packets.is_empty() || self.packets.len() > PACKETS_IN_MAX {
            return Some(format!("{} packets, 1 to {PACKETS_IN_MAX} are allowed", self.packets.len()));
        }
        self.packets.iter().find_map(|packet| {
            let endpoint = &packet.endpoint;
            if !packet.source_mac.is_unicast() || packet.source_mac == MacAddr::default() {
                return Some(format!("{endpoint} sends from {}, which is no station's", packet.source_mac));
            }
            if matches!(packet.why, Why::Unknown | Why::Balanced) && packet.destination.is_none() {
                return Some(format!("{endpoint} asks for a destination without naming one"));
            }
            if packet.why == Why::Balanced && packet.source.is_none() {
                return Some(format!(
                    "{endpoint} asks whose turn it is, and does not say under which address"
                ));
            }
            (packet.why == Why::Sought && packet.source.is_none())
                .then(|| format!("{endpoint} was sought, and does not say under which address"))
        })
    }
}

#[cfg(test)]
mod tests;
