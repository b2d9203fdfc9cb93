//! The book of flows: what is in the flow table, under which zones, and what must come out of it.
//!
//! Invariants
//! - A slot of the table has a note here as long as a flow is in it.
//! - A sender's zone is in the table as long as a flow has it, and its number is not given to another
//!   sender while it is.
//! - What a flow carried is told to the last packet, also of one that was taken out: the engine goes on with it until it has the new
//!   tables. So whoever judges a connection anew knows whether it was answered.

use super::mind::Mind;
use super::ports::PortBook;
use super::usage::UsageWindow;
use crate::engine::limits::EXTERNAL;
use crate::engine::path::{UNDERLAY_ZONES, port_zone};
use crate::flow::{Action, FlowUse, Hop, Ingress, Invalidate, NO_CONNECTION, PortIndex};
use crate::flowtable::{CompiledAction, FlowStore, Shadow, Tables, ZoneKey};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use weir_model::entry::Vni;
use weir_model::event::TurnUse;
use weir_packet::{FlowKey, IpAddress};

/// In `networks`: no flow.
const EMPTY: u32 = u32::MAX;
/// In `networks`: the network is not known, so every invalidation of a network or address may concern the flow.
const UNKNOWN: u32 = u32::MAX - 1;

/// What is noted of a flow.
struct Note {
    key: FlowKey,
    zone: Option<ZoneKey>,
    ports: [Option<PortIndex>; 2],
    /// Addresses that translation writes.
    translated: [Option<IpAddress>; 2],
    connection: u32,
    idle_ms: u32,
    packets: u32,
    bytes: u64,
    last_seen_ms: u32,
    /// Where a host sends it, for usage: the network, and whether a gateway stands in.
    destination: Option<(u32, bool)>,
    /// The turn that it uses.
    turn: Option<TurnUse>,
}

struct Zone {
    number: u32,
    flows: usize,
}

/// See the module.
pub struct FlowBook {
    store: Arc<FlowStore>,
    shadow: Shadow,
    notes: Vec<Option<Note>>,
    /// The network of each slot, apart from the notes so that a network's flows are found fast.
    networks: Vec<u32>,
    /// What was taken out, and the engine may still count under. No more than there are slots.
    leaving: Vec<(u32, Note)>,
    /// How many of these were told of, as far as it was known then.
    leaving_told: usize,
    zones: HashMap<ZoneKey, Zone>,
    zone_numbers: HashSet<u32>,
    zone_next: u32,
}

impl FlowBook {
    /// An empty book, and the tables for the engine to start with.
    pub fn new(store: Arc<FlowStore>) -> (FlowBook, Box<Tables>) {
        let (shadow, tables) = Shadow::new(Arc::clone(&store));
        let book = FlowBook {
            store,
            shadow,
            notes: Vec::new(),
            networks: Vec::new(),
            leaving: Vec::new(),
            leaving_told: 0,
            zones: HashMap::new(),
            zone_numbers: HashSet::new(),
            zone_next: UNDERLAY_ZONES,
        };
        (book, tables)
    }

    /// Whether changes can be made now: the shadow is here.
    pub fn is_ready(&self) -> bool {
        self.shadow.is_here()
    }

    /// Flows in the table.
    pub fn count(&self) -> usize {
        self.shadow.flows()
    }

    /// Bytes of the flow table, its two indices and the notes here.
    pub fn bytes(&self) -> usize {
        let noted = size_of::<Option<Note>>() + size_of::<u32>();
        self.shadow.bytes() + self.notes.len() * noted
    }

    /// Senders that have a zone.
    pub fn zone_count(&self) -> usize {
        self.zones.len()
    }

    /// The tables to publish, if there is anything new and the shadow is here.
    pub fn publish(&mut self) -> Option<Box<Tables>> {
        if self.shadow.is_changed() { self.shadow.publish() } else { None }
    }

    /// The tables to publish whether there is anything new or not, if the shadow is here: when they are back the engine has sent
    /// all that was decided before.
    pub fn publish_anyhow(&mut self) -> Option<Box<Tables>> {
        self.shadow.publish()
    }

    /// Takes the engine's old tables back, and tells the last of the flows that only those had.
    pub fn take_back(
        &mut self,
        tables: Box<Tables>,
        now_ms: u64,
        mind: &mut impl Mind,
        usage: &mut UsageWindow,
    ) {
        self.leaving_told = 0;
        self.tell_leaving(now_ms, mind, usage);
        self.take_back_untold(tables);
    }

    /// Takes the engine's old tables back where nobody wants to know what flows carried.
    pub fn take_back_untold(&mut self, tables: Box<Tables>) {
        self.leaving.clear();
        self.leaving_told = 0;
        self.shadow.take_back(tables);
    }

    /// Tells what flows carried that were taken out since the last time, as far as it is known now.
    pub fn tell_leaving(&mut self, now_ms: u64, mind: &mut impl Mind, usage: &mut UsageWindow) {
        for (slot, note) in &mut self.leaving[self.leaving_told..] {
            if self.store.counters(*slot).packets() != note.packets {
                note.tell(&self.store, *slot, now_ms, mind, usage);
            }
        }
        self.leaving_told = self.leaving.len();
    }

    /// Number of the tables that have all changes so far, once they are published.
    pub fn next_generation(&self) -> u64 {
        self.shadow.generation() + u64::from(self.shadow.is_changed())
    }

    /// Whether a flow is in the table, or will be after the next publication.
    pub fn has(&self, ingress: &Ingress, key: &FlowKey) -> bool {
        let zone = match ingress {
            Ingress::Port(port) => Some(port_zone(usize::from(*port))),
            Ingress::External => Some(port_zone(EXTERNAL)),
            Ingress::Underlay { .. } => {
                zone_key(ingress).and_then(|key| self.zones.get(&key)).map(|zone| zone.number)
            }
        };
        zone.is_some_and(|zone| self.shadow.find(&FlowKey { zone, ..*key }).is_some())
    }

    /// Puts a flow in; false when there is no room or the action cannot be sent.
    pub fn install(
        &mut self,
        ingress: &Ingress,
        key: &FlowKey,
        action: &Action,
        ports: &PortBook,
        now_ms: u64,
    ) -> bool {
        let Some(compiled) = CompiledAction::new(action) else { return false };
        let zone_key = zone_key(ingress);
        let zone = match ingress {
            Ingress::Port(port) => port_zone(usize::from(*port)),
            Ingress::External => port_zone(EXTERNAL),
            Ingress::Underlay { .. } => match zone_key {
                Some(zone_key) => self.hold_zone(zone_key),
                None => return false,
            },
        };
        let key = FlowKey { zone, ..*key };
        let Ok((slot, replaced)) = self.shadow.insert(key, compiled, now_ms as u32) else {
            self.release_zone(zone_key);
            return false;
        };
        if let Some(old) = replaced {
            self.forget(old);
        }
        let network = network_of(ingress, action, ports);
        let note = note_of(ingress, key, zone_key, action, network, now_ms);
        let slot = slot as usize;
        if self.notes.len() <= slot {
            self.notes.resize_with(slot + 1, || None);
            self.networks.resize(slot + 1, EMPTY);
        }
        self.notes[slot] = Some(note);
        self.networks[slot] = network;
        true
    }

    fn hold_zone(&mut self, key: ZoneKey) -> u32 {
        if let Some(zone) = self.zones.get_mut(&key) {
            zone.flows += 1;
            return zone.number;
        }
        while !self.zone_numbers.insert(self.zone_next) {
            self.zone_next = UNDERLAY_ZONES | self.zone_next.wrapping_add(1);
        }
        let number = self.zone_next;
        self.zone_next = UNDERLAY_ZONES | number.wrapping_add(1);
        self.zones.insert(key, Zone { number, flows: 1 });
        self.shadow.set_zone(key, number);
        number
    }

    fn release_zone(&mut self, key: Option<ZoneKey>) {
        let Some(key) = key else { return };
        let Some(zone) = self.zones.get_mut(&key) else { return };
        zone.flows -= 1;
        if zone.flows == 0 {
            let number = zone.number;
            self.zones.remove(&key);
            self.zone_numbers.remove(&number);
            self.shadow.remove_zone(key);
        }
    }

    /// Drops the note of a slot that is out of the table.
    fn forget(&mut self, slot: u32) {
        self.networks[slot as usize] = EMPTY;
        if let Some(note) = self.notes[slot as usize].take() {
            self.release_zone(note.zone);
            self.leaving.push((slot, note));
        }
    }

    fn remove(&mut self, slot: u32) {
        self.shadow.remove(slot);
        self.forget(slot);
    }

    /// Takes flows out; returns how many.
    pub fn invalidate(&mut self, what: &Invalidate) -> usize {
        let network = match what {
            Invalidate::Nothing => return 0,
            Invalidate::Network(vni) | Invalidate::Address(vni, _) => Some(*vni),
            Invalidate::Port(_) | Invalidate::All => None,
        };
        let address = |ip: &IpAddr| IpAddress::from(*ip);
        let mut gone = Vec::new();
        for (slot, of) in self.networks.iter().enumerate() {
            let concerned = *of != EMPTY && network.is_none_or(|network| *of == network || *of == UNKNOWN);
            let Some(note) = self.notes[slot].as_ref().filter(|_| concerned) else { continue };
            let matches = match what {
                Invalidate::Port(port) => note.ports.contains(&Some(*port)),
                Invalidate::Address(_, ip) => note.has(address(ip)),
                Invalidate::Nothing | Invalidate::Network(_) | Invalidate::All => true,
            };
            if matches {
                gone.push(slot as u32);
            }
        }
        for slot in &gone {
            self.remove(*slot);
        }
        gone.len()
    }

    /// Looks at one part of the flows: tells the mind and the usage window what they carried, takes out the idle ones.
    /// Returns how many those were.
    pub fn scan(
        &mut self,
        part: u64,
        parts: u64,
        now_ms: u64,
        mind: &mut impl Mind,
        usage: &mut UsageWindow,
    ) -> u64 {
        let bound = |part: u64| (self.notes.len() as u64 * part / parts) as usize;
        let mut idle = 0;
        for slot in bound(part)..bound(part + 1) {
            let Some(note) = &mut self.notes[slot] else { continue };
            note.tell(&self.store, slot as u32, now_ms, mind, usage);
            let silent_ms = (now_ms as u32).wrapping_sub(note.last_seen_ms);
            // The engine's time may be a little ahead of `now_ms`: a huge difference is none.
            if silent_ms > note.idle_ms && silent_ms < u32::MAX / 2 {
                self.remove(slot as u32);
                idle += 1;
            }
        }
        idle
    }
}

impl Note {
    /// Tells the mind and the usage window what the flow carried since the last time.
    fn tell(
        &mut self,
        store: &FlowStore,
        slot: u32,
        now_ms: u64,
        mind: &mut impl Mind,
        usage: &mut UsageWindow,
    ) {
        let counters = store.counters(slot);
        let (packets, bytes) = (counters.packets(), counters.bytes());
        let used = FlowUse {
            packets: packets.wrapping_sub(self.packets).into(),
            bytes: bytes - self.bytes,
            // Told twice they do no harm.
            tcp_flags: counters.take_tcp_flags(),
        };
        (self.packets, self.bytes) = (packets, bytes);
        if used.packets > 0 {
            self.last_seen_ms = counters.last_seen_ms(now_ms as u32);
        }
        if self.connection != NO_CONNECTION {
            mind.used(now_ms, self.connection, used);
        }
        if let Some((vni, by_gateway)) = self.destination {
            usage.add(vni, self.key.destination.into(), by_gateway, used.bytes);
        }
        if let Some(turn) = self.turn.filter(|_| used.packets > 0) {
            usage.use_turn(turn);
        }
    }

    fn has(&self, address: IpAddress) -> bool {
        self.key.source == address
            || self.key.destination == address
            || self.translated.contains(&Some(address))
    }
}

fn zone_key(ingress: &Ingress) -> Option<ZoneKey> {
    match *ingress {
        Ingress::Underlay { sender, vni, format, half, .. } => {
            Some(ZoneKey { sender: sender.into(), vni, format, half })
        }
        _ => None,
    }
}

fn note_of(
    ingress: &Ingress,
    key: FlowKey,
    zone: Option<ZoneKey>,
    action: &Action,
    network: u32,
    now_ms: u64,
) -> Note {
    let from = if let Ingress::Port(port) = *ingress { Some(port) } else { None };
    let to = if let Hop::Port(port) = action.hop { Some(port) } else { None };
    let side = |side: Option<(IpAddr, u16)>| side.map(|(ip, _)| ip.into());
    let destination = match action.hop {
        Hop::Underlay { vni, by_gateway, .. } if from.is_some() => Some((vni, by_gateway)),
        _ => None,
    };
    Note {
        key,
        zone,
        ports: [from, to],
        translated: action.nat.map_or([None; 2], |nat| [side(nat.source), side(nat.destination)]),
        connection: action.connection,
        idle_ms: action.idle_ms,
        packets: 0,
        bytes: 0,
        last_seen_ms: now_ms as u32,
        destination,
        turn: from.filter(|_| action.nat.is_some_and(|nat| nat.destination.is_some())).map(|_| TurnUse {
            vni: Vni(network),
            client: key.source.into(),
            address: key.destination.into(),
        }),
    }
}

fn network_of(ingress: &Ingress, action: &Action, ports: &PortBook) -> u32 {
    let of_port = |port: PortIndex| ports.vni(port);
    let of_ingress = match ingress {
        Ingress::Port(port) => of_port(*port),
        Ingress::Underlay { vni, .. } => Some(*vni),
        Ingress::External => None,
    };
    let of_hop = || match action.hop {
        Hop::Port(port) => of_port(port),
        Hop::Underlay { vni, .. } => Some(vni),
        Hop::External | Hop::Drop => None,
    };
    of_ingress.or_else(of_hop).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests;
