//! The tables as the slow thread's mind.

use super::mind::Mind;
use crate::config::SwitchConfig;
use crate::conntrack::{CarriedConnection, Changes, ConnectionRecord, Limits};
use crate::counters::Reason;
use crate::flow::{CounterIndex, Ingress, Invalidate, PortIndex};
use crate::nat::NatPool;
use crate::resolve::{ResolverConfig, TableResolver};
use crate::tables::Role;
use std::collections::BTreeSet;
use std::net::IpAddr;
use weir_base::codec::{decode, encode};
use weir_model::Key;
use weir_model::entry::{GatewayEntry, Vni};
use weir_model::event;
use weir_model::local::{ConnectionStatus, TraceFrom, TraceReport};
use weir_model::packet_in::PacketIn;
use weir_packet::FlowKey;
use weir_trust::gate::Gate;
use weir_trust::token::TokenKey;

/// The mind of a switch with these settings.
pub fn make(config: &SwitchConfig, token_key: TokenKey) -> TableResolver {
    let mut resolver = ResolverConfig::host(config.name.clone(), config.underlay, token_key);
    resolver.limits = Limits::default();
    if config.role == event::Role::Gateway {
        resolver.role = Role::Gateway;
    }
    resolver.underlay_from.clone_from(&config.underlay_from);
    if let Some(external) = &config.external {
        resolver.guarded.clone_from(&external.guarded);
        resolver.reachable.clone_from(&external.reachable);
        let v4 = external.addresses.iter().filter_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
        let v6 = external.addresses.iter().filter_map(|address| match address {
            IpAddr::V6(v6) => Some(*v6),
            IpAddr::V4(_) => None,
        });
        resolver.nat =
            NatPool { v4: v4.collect(), v6: v6.collect(), ports: external.first_port..=external.last_port };
        resolver.external_mtu = external.mtu;
    }
    TableResolver::new(resolver)
}

impl Mind for TableResolver {
    fn port_key(&self, port: PortIndex) -> Option<Key> {
        self.tables().port(port).map(crate::tables::Port::key)
    }

    fn counters(&self) -> Vec<(CounterIndex, String, u64)> {
        TableResolver::counters(self)
            .iter()
            .map(|(index, name, count)| (index, name.to_string(), count))
            .collect()
    }

    fn gauges(&self) -> Vec<(&'static str, u64)> {
        TableResolver::gauges(self)
    }

    fn connections(&self, now_ms: u64, limit: usize) -> Vec<ConnectionStatus> {
        self.connection_status(now_ms, limit)
    }

    fn ingress_of(&self, from: &TraceFrom) -> Result<Ingress, String> {
        TableResolver::ingress_of(self, from)
    }

    fn trace(
        &mut self,
        now_ms: u64,
        from: &TraceFrom,
        frame: &[u8],
        fragment: Option<Result<FlowKey, Reason>>,
        gate: &Gate,
    ) -> Result<TraceReport, String> {
        let proof = |key: &Key| gate.get(key).map(|in_force| (in_force.version, in_force.header.clone()));
        TableResolver::trace(self, now_ms, from, frame, fragment, &proof)
    }

    fn take_changes(&mut self) -> Vec<Vec<u8>> {
        self.take_connection_changes().iter().map(encode).collect()
    }

    fn snapshot(&self) -> Vec<Vec<u8>> {
        self.connection_snapshot().iter().map(encode).collect()
    }

    fn restore(&mut self, now_ms: u64, records: &[Vec<u8>]) -> usize {
        // A record of another release is left out: its connection is judged anew, as after a reboot.
        self.restore_connections(
            now_ms,
            records.iter().filter_map(|record| decode::<ConnectionRecord>(record).ok()),
        )
    }

    fn note_changes(&mut self, wanted: bool) {
        self.connections_mut().note_changes(wanted);
    }

    fn connections_part(&self, from: usize, most: usize) -> (Vec<CarriedConnection>, Option<usize>) {
        TableResolver::connections(self).part(from, most)
    }

    fn changed_connections(&mut self) -> Option<Changes> {
        self.connections_mut().take_changed()
    }

    fn carry_connections(&mut self, changes: &Changes) {
        TableResolver::carry_connections(self, &changes.put, &changes.gone);
    }

    fn hear(&mut self, now_ms: u64, port: PortIndex, frame: &[u8]) -> Option<(Vni, PacketIn)> {
        TableResolver::hear(self, now_ms, port, frame)
    }

    fn found(&self) -> Vec<(Vni, PacketIn)> {
        TableResolver::found(self)
    }

    fn holds_locations(&self) -> bool {
        self.tables().role() == Role::Host && self.tables().locations() + self.tables().turns() > 0
    }

    fn gateways(&self) -> &[GatewayEntry] {
        self.tables().gateways()
    }

    fn set_silent(&mut self, silent: BTreeSet<IpAddr>) -> Vec<Invalidate> {
        self.tables.set_silent(silent)
    }

    fn due_frames(&mut self, now_ms: u64) -> Vec<(PortIndex, Vec<u8>)> {
        self.advertisements(now_ms)
    }
}
