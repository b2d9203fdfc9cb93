//! A flow's action in the form that the engine obeys: everything that can be worked out once a flow
//! is not worked out once a packet.

use super::tunnel::Tunnel;
use super::ways::WayIndex;
use crate::engine::limits::RULE_COUNTERS_MAX;
use crate::flow::{Action, CounterIndex, Hop, Nat, PortIndex};
use std::net::IpAddr;
use weir_packet::address::Mac;
use weir_packet::headers::tcp_flags;
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

/// What the engine does with every packet of a flow; see [`Action`].
///
/// In this order: what every packet needs is in one line behind that of the key, translation comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CompiledAction {
    /// Where it goes.
    pub hop: CompiledHop,
    /// Rule counter.
    pub counter: CounterIndex,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Largest MSS of a SYN; zero leaves it.
    pub mss_max: u16,
    /// New Ethernet addresses: destination, source.
    pub ethernet: Option<(Mac, Mac)>,
    /// Whether TTL or hop limit goes down.
    pub routed: bool,
    /// Addresses and ports to write.
    pub rewrite: Option<Rewrite>,
}

impl CompiledAction {
    /// Compiles an action. `None` when its network's identifier is over 24 bits.
    pub fn new(action: &Action) -> Option<CompiledAction> {
        let hop = match &action.hop {
            Hop::Port(port) => CompiledHop::Port(*port),
            Hop::Underlay { receiver, vni, format, token, half, .. } => {
                CompiledHop::Underlay(Tunnel::new(*receiver, *vni, *format, Some(*token))?.saying(*half))
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

/// As much of an action as a plain packet needs that is not translated and goes to a port here, or to another switch: what is the same for
/// all flows of one rule to one endpoint. Of other flows it only says that they are others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Brief {
    /// New Ethernet addresses as they are on the wire: destination, source.
    ethernet: [u8; 12],
    /// The port that it goes to, or the number of its way to another switch.
    to: u16,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Rule counter, and the bits below.
    word: u32,
}

impl Brief {
    const COUNTER: u32 = RULE_COUNTERS_MAX as u32 - 1;
    /// The flow goes to a port here or to another switch, and is not translated.
    const IS_ALL: u32 = 1 << 31;
    const HAS_ETHERNET: u32 = 1 << 30;
    const ROUTED: u32 = 1 << 29;
    /// The MSS of a SYN may have to be lowered.
    const CLAMPS: u32 = 1 << 28;
    /// The flow goes to another switch.
    const TUNNELLED: u32 = 1 << 27;

    /// Of an action. Of one that leads to another switch, `way` is the number of the way there, if it has one.
    pub fn new(action: &CompiledAction, way: Option<WayIndex>) -> Brief {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let is_tunnelled = matches!(action.hop, CompiledHop::Underlay(_));
        let to = match action.hop {
            CompiledHop::Port(port) => Some(port),
            CompiledHop::Underlay(_) => way,
            CompiledHop::External | CompiledHop::Drop => None,
        };
        let mut ethernet = [0; 12];
        if let Some((destination, source)) = action.ethernet {
            ethernet[..6].copy_from_slice(&destination);
            ethernet[6..].copy_from_slice(&source);
        }
        // A counter that is over the most is counted under the last.
        let word = action.counter.min(Brief::COUNTER)
            | bit(to.is_some() && action.rewrite.is_none(), Brief::IS_ALL)
            | bit(to.is_some() && is_tunnelled, Brief::TUNNELLED)
            | bit(action.ethernet.is_some(), Brief::HAS_ETHERNET)
            | bit(action.routed, Brief::ROUTED)
            | bit(action.mss_max != 0, Brief::CLAMPS);
        Brief { ethernet, to: to.unwrap_or(0), mtu: action.mtu, word }
    }

    /// Whether it says all that is to be done with a plain packet of this TTL and these TCP flags.
    #[inline(always)]
    pub fn is_all(&self, ttl: u8, tcp_flags: u8) -> bool {
        let asks = self.word & (Brief::IS_ALL | Brief::ROUTED | Brief::CLAMPS);
        asks == Brief::IS_ALL || self.is_all_of(ttl, tcp_flags)
    }

    #[inline]
    fn is_all_of(&self, ttl: u8, tcp_flags: u8) -> bool {
        let clamps = self.word & Brief::CLAMPS != 0 && tcp_flags & tcp_flags::SYN != 0;
        self.word & Brief::IS_ALL != 0 && (!self.is_routed() || ttl > 1) && !clamps
    }

    /// Rule counter.
    #[inline]
    pub fn counter(&self) -> CounterIndex {
        self.word & Brief::COUNTER
    }

    /// The port that the flow goes to, unless it goes to another switch.
    #[inline(always)]
    pub fn port(&self) -> PortIndex {
        self.to
    }

    /// The number of the flow's way, if it goes to another switch.
    #[inline(always)]
    pub fn way(&self) -> Option<WayIndex> {
        (self.word & Brief::TUNNELLED != 0).then_some(self.to)
    }

    /// Whether TTL or hop limit goes down.
    #[inline]
    pub fn is_routed(&self) -> bool {
        self.word & Brief::ROUTED != 0
    }

    /// New Ethernet addresses: destination, source.
    #[inline]
    pub fn ethernet(&self) -> Option<&[u8; 12]> {
        (self.word & Brief::HAS_ETHERNET != 0).then_some(&self.ethernet)
    }
}

const _: () = assert!(RULE_COUNTERS_MAX.is_power_of_two() && RULE_COUNTERS_MAX <= 1 << 27);

fn translation(nat: &Nat) -> Rewrite {
    let endpoint = |side: Option<(IpAddr, u16)>| {
        side.map(|(ip, port)| Endpoint { address: ip.into(), port: Some(port) })
    };
    Rewrite { source: endpoint(nat.source), destination: endpoint(nat.destination) }
}
