//! A flow's action in the form that the engine obeys: everything that can be worked out once a flow
//! is not worked out once a packet.

use crate::flow::{Action, CounterIndex, Hop, Nat, PortIndex};
use std::net::IpAddr;
use weir_model::resource::Encapsulation;
use weir_packet::address::Mac;
use weir_packet::encap::{self, MAX_ENCAP_BYTES};
use weir_packet::rewrite::{Endpoint, Rewrite};

/// Where a flow goes, compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompiledHop {
    /// To an endpoint here.
    Port(PortIndex),
    /// To another switch.
    Underlay(Tunnel),
    /// Outside.
    External,
    /// Nowhere.
    Drop,
}

/// The way to another switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Its address.
    pub receiver: IpAddr,
    /// Format of the tunnel header, which says the UDP port.
    pub format: Encapsulation,
    header: [u8; MAX_ENCAP_BYTES],
    header_bytes: u8,
}

impl Tunnel {
    /// The way to `receiver` for a network; VXLAN has no place for the token.
    /// `None` when the network's identifier is over 24 bits.
    pub fn new(receiver: IpAddr, vni: u32, format: Encapsulation, token: Option<u64>) -> Option<Tunnel> {
        let mut header = [0; MAX_ENCAP_BYTES];
        let header_bytes = wire_format(format).encode(&mut header, vni, token).ok()? as u8;
        Some(Tunnel { receiver, format, header, header_bytes })
    }

    /// The tunnel header, the same for every packet.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_bytes)]
    }
}

/// The packet crate's name of a format.
#[inline]
pub fn wire_format(format: Encapsulation) -> encap::Encapsulation {
    match format {
        Encapsulation::Geneve => encap::Encapsulation::Geneve,
        Encapsulation::Vxlan => encap::Encapsulation::Vxlan,
    }
}

/// What the engine does with every packet of a flow; see [`Action`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompiledAction {
    /// Where it goes.
    pub hop: CompiledHop,
    /// New Ethernet addresses: destination, source.
    pub ethernet: Option<(Mac, Mac)>,
    /// Addresses and ports to write.
    pub rewrite: Option<Rewrite>,
    /// Whether TTL or hop limit goes down.
    pub routed: bool,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Largest MSS of a SYN; zero leaves it.
    pub mss_max: u16,
    /// Rule counter.
    pub counter: CounterIndex,
}

impl CompiledAction {
    /// Compiles an action. `None` when its network's identifier is over 24 bits.
    pub fn new(action: &Action) -> Option<CompiledAction> {
        let hop = match &action.hop {
            Hop::Port(port) => CompiledHop::Port(*port),
            Hop::Underlay { receiver, vni, format, token, .. } => {
                CompiledHop::Underlay(Tunnel::new(*receiver, *vni, *format, Some(*token))?)
            }
            Hop::External => CompiledHop::External,
            Hop::Drop => CompiledHop::Drop,
        };
        Some(CompiledAction {
            hop,
            ethernet: action.ethernet.map(|(destination, source)| (destination.0, source.0)),
            rewrite: action.nat.as_ref().map(translation),
            routed: action.routed,
            mtu: action.mtu,
            mss_max: action.mss_max,
            counter: action.counter,
        })
    }
}

fn translation(nat: &Nat) -> Rewrite {
    let endpoint = |side: Option<(IpAddr, u16)>| {
        side.map(|(ip, port)| Endpoint { address: ip.into(), port: Some(port) })
    };
    Rewrite { source: endpoint(nat.source), destination: endpoint(nat.destination) }
}
