//! What the slow thread asks of the slow path's mind, besides resolving: names, figures and what must
//! survive.

use crate::conntrack::ConnectionRecord;
use crate::flow::{CounterIndex, PortIndex, Resolver};
use crate::resolve::TableResolver;
use weir_base::codec::{decode, encode};
use weir_model::Key;
use weir_model::local::{ConnectionStatus, TraceFrom, TraceReport};
use weir_trust::gate::Gate;

/// See the module.
pub trait Mind: Resolver + Send {
    /// The key of a port.
    fn port_key(&self, port: PortIndex) -> Option<Key>;

    /// All counters: index, name with labels, and the packets that the mind itself counted.
    fn counters(&self) -> Vec<(CounterIndex, String, u64)>;

    /// Figures of the mind itself, by name.
    fn gauges(&self) -> Vec<(&'static str, u64)>;

    /// Frames that are due for ports without having been asked for. Called about once a second.
    fn advertisements(&mut self, now_ms: u64) -> Vec<(PortIndex, Vec<u8>)>;

    /// Connections, at most `limit`.
    fn connections(&self, now_ms: u64, limit: usize) -> Vec<ConnectionStatus>;

    /// What would happen to a frame. `gate` tells who signed what decided.
    ///
    /// # Errors
    /// Why the question makes no sense, in words.
    fn trace(
        &mut self,
        now_ms: u64,
        from: &TraceFrom,
        frame: &[u8],
        gate: &Gate,
    ) -> Result<TraceReport, String>;

    /// Records of what changed since the last time and must survive, in this order.
    fn take_changes(&mut self) -> Vec<Vec<u8>>;

    /// Records of all that must survive.
    fn snapshot(&self) -> Vec<Vec<u8>>;

    /// Takes back what was recorded; returns how many connections there are then.
    fn restore(&mut self, now_ms: u64, records: &[Vec<u8>]) -> usize;
}

impl Mind for TableResolver {
    fn port_key(&self, port: PortIndex) -> Option<Key> {
        self.tables().port(port).map(crate::tables::Port::key)
    }

    fn counters(&self) -> Vec<(CounterIndex, String, u64)> {
        TableResolver::counters(self)
            .iter()
            .map(|(index, name, own)| (index, name.to_string(), own))
            .collect()
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        TableResolver::gauges(self)
    }

    fn advertisements(&mut self, now_ms: u64) -> Vec<(PortIndex, Vec<u8>)> {
        TableResolver::advertisements(self, now_ms)
    }

    fn connections(&self, now_ms: u64, limit: usize) -> Vec<ConnectionStatus> {
        self.connection_status(now_ms, limit)
    }

    fn trace(
        &mut self,
        now_ms: u64,
        from: &TraceFrom,
        frame: &[u8],
        gate: &Gate,
    ) -> Result<TraceReport, String> {
        let proofs = |key: &Key| gate.get(key).map(|in_force| (in_force.version, in_force.header.clone()));
        TableResolver::trace(self, now_ms, from, frame, &proofs)
    }

    fn take_changes(&mut self) -> Vec<Vec<u8>> {
        self.take_connection_changes().iter().map(encode).collect()
    }

    fn snapshot(&self) -> Vec<Vec<u8>> {
        self.connection_snapshot().iter().map(encode).collect()
    }

    fn restore(&mut self, now_ms: u64, records: &[Vec<u8>]) -> usize {
        // A record that another release wrote in another form is left out: its connection is judged anew.
        let records = records.iter().filter_map(|record| decode::<ConnectionRecord>(record).ok());
        self.restore_connections(now_ms, records)
    }
}
