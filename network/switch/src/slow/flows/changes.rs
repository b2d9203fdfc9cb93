//! What a change costs: which flows hang on it, and each decided again in its place.

use super::dependents::{DESTINATION, NEXT_HOP, On, SOURCE};
use super::{FlowBook, Note, UNKNOWN, network_of, row_of};
use crate::engine::limits::EXTERNAL;
use crate::engine::path::{UNDERLAY_ZONES, port_zone};
use crate::flow::{Action, Again, ChangeCause, CounterIndex, Ingress, Invalidate, PortIndex, Resolver};
use crate::flowtable::{CompiledAction, CompiledHop, FlowStore, ZoneKey};
use crate::slow::mind::Mind;
use crate::slow::usage::UsageWindow;
use crate::tables::gateways;
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use weir_packet::{FlowKey, IpAddress};

/// What changes have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounters {
    /// Flows that were looked at to find those below, by [`ChangeCause`].
    pub looked_at: [u64; ChangeCause::ALL.len()],
    /// Flows that were decided again.
    pub again: [u64; ChangeCause::ALL.len()],
    /// Of these, flows that got another action in their place.
    pub replaced: u64,
    /// And flows that were taken out, for their next packet to decide.
    pub taken_out: u64,
}

/// What became of a flow that was decided again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It was as it is to be, or is not there any more.
    Same,
    /// It has another action, whose packets are counted under this.
    Replaced(CounterIndex),
    /// It is out.
    Out,
}

const ALL_ADDRESSES: RangeInclusive<IpAddress> = IpAddress([0; 16])..=IpAddress([0xff; 16]);
/// What a flow hangs on that is dropped because there is no gateway.
pub(super) const NO_GATEWAY: IpAddress = IpAddress([0; 16]);

/// The addresses of a prefix, as they are in order. All of IPv6 has those of IPv4 among them.
fn range_of(prefix: &IpNet) -> RangeInclusive<IpAddress> {
    match prefix {
        IpNet::V4(net) => IpAddress::v4(net.network().octets())..=IpAddress::v4(net.broadcast().octets()),
        IpNet::V6(net) => IpAddress::v6(net.network().octets())..=IpAddress::v6(net.broadcast().octets()),
    }
}

/// The conversation for which a gateway was chosen: network and addresses.
fn conversation(store: &FlowStore, slot: u32) -> (u32, IpAddr, IpAddr) {
    let (key, action) = (store.key(slot), store.action_of(slot));
    let vni = if let CompiledHop::Underlay(tunnel) = &action.hop { tunnel.vni() } else { UNKNOWN };
    let translated = action.rewrite.and_then(|rewrite| rewrite.destination).map(|to| to.address);
    (vni, key.source.into(), translated.unwrap_or(key.destination).into())
}

impl FlowBook {
    /// The slots of the flows that hang on what changed, each once. The mind has the changes already.
    pub fn dependents(&mut self, changes: &[Invalidate], mind: &impl Resolver) -> Vec<u32> {
        self.change = self.change.wrapping_add(1);
        let mut found = Vec::new();
        if self.count() == 0 {
            return found;
        }
        for change in changes {
            let (mut looked_at, from) = (0, found.len());
            let (notes, this) = (&mut self.notes, self.change);
            let mut take = |slot: u32| {
                if let Some(note) = notes[slot as usize].as_mut().filter(|note| note.found != this) {
                    note.found = this;
                    found.push(slot);
                }
            };
            let (dependents, store, zones) = (&self.dependents, &self.store, &self.zones);
            let mut take_of = |on: &On, wanted: &dyn Fn(u32, usize) -> bool| {
                for (slot, place) in dependents.of(on) {
                    looked_at += 1;
                    if wanted(slot, place) {
                        take(slot);
                    }
                }
            };
            match change {
                Invalidate::Nothing => {}
                Invalidate::Network(vni) => {
                    for address in dependents.addresses(*vni, ALL_ADDRESSES) {
                        take_of(&On::Address(*vni, address), &|_, place| place == SOURCE);
                    }
                }
                Invalidate::Denied(vni) => {
                    let is_denied = |slot: u32| {
                        store.key(slot).zone & UNDERLAY_ZONES != 0
                            && store.action_of(slot).hop == CompiledHop::Drop
                    };
                    for address in dependents.addresses(*vni, ALL_ADDRESSES) {
                        let on = On::Address(*vni, address);
                        take_of(&on, &|slot, place| place == SOURCE && is_denied(slot));
                    }
                }
                Invalidate::Port(port) => take_of(&On::Port(*port), &|_, _| true),
                Invalidate::Address(vni, ip) => {
                    take_of(&On::Address(*vni, (*ip).into()), &|_, _| true);
                    take_of(&On::Any(*vni), &|_, _| true);
                }
                Invalidate::Route(vni, prefix) => {
                    for address in dependents.addresses(*vni, range_of(prefix)) {
                        let ip = IpAddr::from(address);
                        let is_covered = mind.route_bits(*vni, ip).unwrap_or(0) > prefix.prefix_len();
                        if ip.is_ipv4() == prefix.addr().is_ipv4() && !is_covered {
                            // What leads to a next hop is another route.
                            take_of(&On::Address(*vni, address), &|_, place| !NEXT_HOP.contains(&place));
                        }
                    }
                    take_of(&On::Any(*vni), &|_, _| true);
                }
                Invalidate::Gateways { come, gone } => {
                    for gateway in gone {
                        take_of(&On::Gateway((*gateway).into()), &|_, _| true);
                    }
                    if !come.is_empty() {
                        take_of(&On::Gateway(NO_GATEWAY), &|_, _| true);
                        for from in dependents.gateways().filter(|from| *from != NO_GATEWAY) {
                            let is_taken = |slot: u32, _: usize| {
                                let (vni, a, b) = conversation(store, slot);
                                gateways::is_taken(come, from.into(), vni, a, b)
                            };
                            take_of(&On::Gateway(from), &is_taken);
                        }
                    }
                }
                Invalidate::Sender(vni, sender) => {
                    let is_of = |zone: &ZoneKey| {
                        IpAddr::from(zone.sender) == *sender && vni.is_none_or(|vni| vni == zone.vni)
                    };
                    for (_, zone) in zones.iter().filter(|(key, _)| is_of(key)) {
                        take_of(&On::Zone(zone.number), &|_, _| true);
                    }
                }
                Invalidate::Outside(address) => {
                    for vni in dependents.networks() {
                        let on = On::Address(vni, (*address).into());
                        take_of(&on, &|_, place| place == DESTINATION);
                    }
                }
                Invalidate::All => {
                    for (slot, note) in notes.iter_mut().enumerate() {
                        let Some(note) = note else { continue };
                        looked_at += 1;
                        if note.found != this {
                            note.found = this;
                            found.push(slot as u32);
                        }
                    }
                }
            }
            let cause = change.cause() as usize;
            self.changes.looked_at[cause] += looked_at;
            self.changes.again[cause] += (found.len() - from) as u64;
        }
        found
    }

    /// Where a flow comes in, and its key without the zone.
    pub fn flow(&self, slot: u32) -> Option<(Ingress, FlowKey)> {
        self.notes.get(slot as usize)?.as_ref()?;
        let key = *self.store.key(slot);
        let ingress = match self.zone_keys.get(&key.zone) {
            Some(&ZoneKey { sender, vni, format, half }) => {
                Ingress::Underlay { sender: sender.into(), vni, token: None, format, half }
            }
            None if key.zone == port_zone(EXTERNAL) => Ingress::External,
            None => Ingress::Port(key.zone as PortIndex),
        };
        Some((ingress, FlowKey { zone: 0, ..key }))
    }

    /// Tells the mind and the usage window what these flows carried, as far as it is known now.
    pub fn tell(&mut self, slots: &[u32], now_ms: u64, mind: &mut impl Mind, usage: &mut UsageWindow) {
        for slot in slots {
            if let Some(note) = &mut self.notes[*slot as usize] {
                note.tell(&self.store, *slot, now_ms, mind, usage);
            }
        }
    }

    /// Decides again on a flow that [`FlowBook::dependents`] found, unless a packet of it did since.
    pub fn decide_again(
        &mut self,
        slot: u32,
        now_ms: u64,
        mind: &mut impl Resolver,
        vni_of: impl Fn(PortIndex) -> Option<u32>,
    ) -> Decided {
        let this = self.change;
        let is_due = |note: &Note| note.found == this && note.decided != this;
        if !self.notes[slot as usize].as_ref().is_some_and(is_due) {
            return Decided::Same;
        }
        let Some((ingress, key)) = self.flow(slot) else { return Decided::Same };
        let decided = match mind.decide_again(now_ms, &ingress, &key) {
            Again::Action(action) => self.replace(slot, (&ingress, &key), &action, vni_of),
            Again::Ask => Decided::Out,
        };
        match decided {
            Decided::Same => {}
            Decided::Replaced(_) => self.changes.replaced += 1,
            Decided::Out => {
                self.changes.taken_out += 1;
                if self.shadow.find(self.store.key(slot)) == Some(slot) {
                    self.remove(slot);
                } else {
                    // It made room for one that found none.
                    self.forget(slot);
                }
            }
        }
        decided
    }

    /// Takes a flow out whose decision failed.
    pub fn take_out(&mut self, slot: u32) {
        if self.notes[slot as usize].is_some() && self.shadow.find(self.store.key(slot)) == Some(slot) {
            self.remove(slot);
            self.changes.taken_out += 1;
        }
    }

    fn replace(
        &mut self,
        slot: u32,
        (ingress, key): (&Ingress, &FlowKey),
        action: &Action,
        vni_of: impl Fn(PortIndex) -> Option<u32>,
    ) -> Decided {
        let Some(note) = &mut self.notes[slot as usize] else { return Decided::Same };
        let network = network_of(ingress, action, &vni_of);
        let is_noted = (note.connection, note.idle_ms, note.network)
            == (action.connection, action.idle_ms, network)
            && self.dependents.row(slot) == row_of(ingress, self.store.key(slot), action, network);
        if is_noted && CompiledAction::new(action).as_ref() == Some(self.store.action_of(slot)) {
            note.decided = self.change;
            return Decided::Same;
        }
        let last_seen_ms = note.last_seen_ms;
        if self.install(ingress, key, action, vni_of, u64::from(last_seen_ms)) {
            Decided::Replaced(action.counter)
        } else {
            Decided::Out
        }
    }
}
