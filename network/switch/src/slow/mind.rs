//! What the slow thread asks of the slow path's mind, besides resolving: names, figures and what must
//! survive.

use crate::conntrack::{CarriedConnection, Changes};
use crate::counters::Reason;
use crate::flow::{CounterIndex, Ingress, Invalidate, PortIndex, Resolver};
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_model::Key;
use weir_model::entry::{GatewayEntry, Vni};
use weir_model::local::{ConnectionStatus, TraceFrom, TraceReport};
use weir_model::packet_in::PacketIn;
use weir_packet::FlowKey;
use weir_trust::gate::Gate;

/// See the module.
pub trait Mind: Resolver + Send {
    /// The key of a port.
    fn port_key(&self, port: PortIndex) -> Option<Key>;

    /// All counters: index, name with labels, and the packets that the mind itself counted.
    fn counters(&self) -> Vec<(CounterIndex, String, u64)>;

    /// Figures of the mind, by name.
    fn gauges(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Frames that are due by themselves, with the ports that they go to. Called about once a second.
    fn due_frames(&mut self, _now_ms: u64) -> Vec<(PortIndex, Vec<u8>)> {
        Vec::new()
    }

    /// What the controllers are to be told of a port that sent a frame, if anything.
    fn hear(&mut self, _now_ms: u64, _port: PortIndex, _frame: &[u8]) -> Option<(Vni, PacketIn)> {
        None
    }

    /// What the controllers asked for and is here. Called about once a second, and when they ask.
    fn found(&self) -> Vec<(Vni, PacketIn)> {
        Vec::new()
    }

    /// Whether there are locations or turns that go when nobody tells of their use.
    fn holds_locations(&self) -> bool {
        false
    }

    /// The gateways in force.
    fn gateways(&self) -> &[GatewayEntry] {
        &[]
    }

    /// Says which gateways do not answer this host; returns which flows are to be decided again.
    fn set_silent(&mut self, _silent: BTreeSet<IpAddr>) -> Vec<Invalidate> {
        Vec::new()
    }

    /// Connections, at most `limit`.
    fn connections(&self, now_ms: u64, limit: usize) -> Vec<ConnectionStatus>;

    /// Where a traced frame comes in.
    ///
    /// # Errors
    /// Why the question makes no sense, in words.
    fn ingress_of(&self, from: &TraceFrom) -> Result<Ingress, String>;

    /// What would happen to a frame. `fragment` is what would become of it if it is a fragment: the key of its flow, or
    /// why it would be dropped. `gate` tells who signed what decided.
    ///
    /// # Errors
    /// Why the question makes no sense, in words.
    fn trace(
        &mut self,
        now_ms: u64,
        from: &TraceFrom,
        frame: &[u8],
        fragment: Option<Result<FlowKey, Reason>>,
        gate: &Gate,
    ) -> Result<TraceReport, String>;

    /// Records of what changed since the last time and must survive, in this order.
    fn take_changes(&mut self) -> Vec<Vec<u8>>;

    /// Records of all that must survive.
    fn snapshot(&self) -> Vec<Vec<u8>>;

    /// Takes back what was recorded; returns how many connections there are then.
    fn restore(&mut self, now_ms: u64, records: &[Vec<u8>]) -> usize;

    /// Begins to note which connections change, or ends it (row A30).
    fn note_changes(&mut self, _wanted: bool) {}

    /// A part of all connections, from a place on, and the place to go on with, if there is more.
    fn connections_part(&self, _from: usize, _most: usize) -> (Vec<CarriedConnection>, Option<usize>) {
        (Vec::new(), None)
    }

    /// Connections that changed since the last time; nothing when too many did.
    fn changed_connections(&mut self) -> Option<Changes> {
        Some(Changes::default())
    }

    /// Takes connections over from the process that this one replaces.
    fn carry_connections(&mut self, _changes: &Changes) {}
}
