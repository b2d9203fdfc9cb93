//! The book of flows: what is in the flow table, under which zones, what each flow hangs on, and what must be decided again (rows A12, A22).
//!
//! A change costs what it touches: [`dependents`] leads from what changed to the flows that hang on it, and only these are decided again, each
//! in its place: the old action serves until the tables with the new one are published, and one that the change forbids ends there.
//!
//! Invariants
//! - A slot of the table has a note here as long as a flow is in it.
//! - A sender's zone is in the table as long as a flow has it, and its number is not given to another
//!   sender while it is.
//! - What a flow carried is told to the last packet, also of one that was taken out: the engine goes on with it until it has the new
//!   tables. So whoever judges a connection anew knows whether it was answered.
//! - After an update each flow that is in the table is what its next packet would get by a miss. So it hangs on every address that its decision
//!   asked the tables about ([`crate::tables::asked`]), and on the next hops of these. Not held yet for one that is dropped: when a packet
//!   the other way opens a connection in which it would pass, and there is no way for it at that moment (no gateway), it stays a drop for the
//!   old reason, and does not hang on the gateways that come. It fails closed, until it was idle or anything else that it hangs on changes.
//! - Decided again are only flows that hang on what changed, each once a change. To find those that a new gateway is to have, all that
//!   go to gateways are looked at: which is counted apart.

mod changes;
pub mod dependents;

pub use changes::{ChangeCounters, Decided};

use super::mind::Mind;
use super::usage::UsageWindow;
use crate::engine::limits::EXTERNAL;
use crate::engine::path::{UNDERLAY_ZONES, port_zone};
use crate::flow::{Action, FlowUse, Hop, Ingress, NO_CONNECTION, PortIndex};
use crate::flowtable::{CompiledAction, FlowStore, Shadow, Tables, ZoneKey};
use changes::NO_GATEWAY;
use dependents::{ANY, DESTINATION, Dependents, HOP, INGRESS, NEXT_HOP, OTHER, On, Row, SOURCE};
use std::collections::HashMap;
use std::sync::Arc;
use weir_model::entry::Vni;
use weir_model::event::TurnUse;
use weir_packet::{FlowKey, IpAddress};

/// The network of a flow that is of none.
const UNKNOWN: u32 = u32::MAX;

/// What is noted of a flow, besides what is in the table and in [`dependents`].
struct Note {
    bytes: u64,
    network: u32,
    connection: u32,
    idle_ms: u32,
    packets: u32,
    last_seen_ms: u32,
    /// The change after which it was decided.
    decided: u32,
    /// The change for which it was found.
    found: u32,
    /// Where a host sends it, for usage: whether a gateway stands in.
    destination: Option<bool>,
    /// Whether it uses a turn.
    turn: bool,
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
    dependents: Dependents,
    /// What was taken out, and the engine may still count under. No more than there are slots.
    leaving: Vec<(u32, Note)>,
    /// How many of these were told of, as far as it was known then.
    leaving_told: usize,
    zones: HashMap<ZoneKey, Zone>,
    zone_keys: HashMap<u32, ZoneKey>,
    zone_next: u32,
    /// Rises with each change that flows are looked for.
    change: u32,
    /// What changes have cost.
    pub changes: ChangeCounters,
}

impl FlowBook {
    /// An empty book, and the tables for the engine to start with.
    pub fn new(store: Arc<FlowStore>) -> (FlowBook, Box<Tables>) {
        let (shadow, tables) = Shadow::new(Arc::clone(&store));
        let book = FlowBook {
            store,
            shadow,
            notes: Vec::new(),
            dependents: Dependents::default(),
            leaving: Vec::new(),
            leaving_told: 0,
            zones: HashMap::new(),
            zone_keys: HashMap::new(),
            zone_next: UNDERLAY_ZONES,
            change: 0,
            changes: ChangeCounters::default(),
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

    /// Bytes of the flow table, its two indices, the notes here and what they hang on.
    pub fn bytes(&self) -> usize {
        self.shadow.bytes() + self.notes.len() * size_of::<Option<Note>>() + self.dependents.bytes()
    }

    /// Bytes of what leads from a change to the flows that hang on it.
    pub fn dependents_bytes(&self) -> usize {
        self.dependents.bytes()
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
        self.slot_of(ingress, key).is_some()
    }

    /// The slot of a flow that is in the table, or will be after the next publication.
    pub fn slot_of(&self, ingress: &Ingress, key: &FlowKey) -> Option<u32> {
        let zone = match ingress {
            Ingress::Port(port) => Some(port_zone(usize::from(*port))),
            Ingress::External => Some(port_zone(EXTERNAL)),
            Ingress::Underlay { .. } => {
                zone_key(ingress).and_then(|key| self.zones.get(&key)).map(|zone| zone.number)
            }
        };
        self.shadow.find(&FlowKey { zone: zone?, ..*key })
    }

    /// Puts a flow in; false when there is no room or the action cannot be sent. `vni_of` tells the network of a port.
    pub fn install(
        &mut self,
        ingress: &Ingress,
        key: &FlowKey,
        action: &Action,
        vni_of: impl Fn(PortIndex) -> Option<u32>,
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
        let network = network_of(ingress, action, vni_of);
        let note = Note { decided: self.change, ..note_of(ingress, action, network, now_ms) };
        self.dependents.put(slot, &row_of(ingress, &key, action, network));
        let slot = slot as usize;
        if self.notes.len() <= slot {
            self.notes.resize_with(slot + 1, || None);
        }
        self.notes[slot] = Some(note);
        true
    }

    fn hold_zone(&mut self, key: ZoneKey) -> u32 {
        if let Some(zone) = self.zones.get_mut(&key) {
            zone.flows += 1;
            return zone.number;
        }
        while self.zone_keys.contains_key(&self.zone_next) {
            self.zone_next = UNDERLAY_ZONES | self.zone_next.wrapping_add(1);
        }
        let number = self.zone_next;
        self.zone_keys.insert(number, key);
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
            self.zone_keys.remove(&number);
            self.shadow.remove_zone(key);
        }
    }

    /// Drops the note of a slot that is out of the table.
    fn forget(&mut self, slot: u32) {
        if let Some(note) = self.notes[slot as usize].take() {
            self.dependents.take(slot);
            let zone = self.zone_keys.get(&self.store.key(slot).zone).copied();
            self.release_zone(zone);
            self.leaving.push((slot, note));
        }
    }

    fn remove(&mut self, slot: u32) {
        self.shadow.remove(slot);
        self.forget(slot);
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
        let key = store.key(slot);
        if let Some(by_gateway) = self.destination {
            usage.add(self.network, key.destination.into(), by_gateway, used.bytes);
        }
        if self.turn && used.packets > 0 {
            let (client, address) = (key.source.into(), key.destination.into());
            usage.use_turn(TurnUse { vni: Vni(self.network), client, address });
        }
    }
}

/// What the zone of a flow from the underlay hangs on.
fn zone_key(ingress: &Ingress) -> Option<ZoneKey> {
    match *ingress {
        Ingress::Underlay { sender, vni, format, half, .. } => {
            Some(ZoneKey { sender: sender.into(), vni, format, half })
        }
        _ => None,
    }
}

fn note_of(ingress: &Ingress, action: &Action, network: u32, now_ms: u64) -> Note {
    let is_from_port = matches!(ingress, Ingress::Port(_));
    Note {
        bytes: 0,
        network,
        connection: action.connection,
        idle_ms: action.idle_ms,
        packets: 0,
        last_seen_ms: now_ms as u32,
        decided: 0,
        found: 0,
        destination: match action.hop {
            Hop::Underlay { by_gateway, .. } if is_from_port => Some(by_gateway),
            _ => None,
        },
        turn: is_from_port && action.nat.is_some_and(|nat| nat.destination.is_some()),
    }
}

/// What a flow hangs on. Its key has the zone that it has in the table.
fn row_of(ingress: &Ingress, key: &FlowKey, action: &Action, network: u32) -> Row {
    let address = |address: IpAddress| Some(On::Address(network, address));
    let mut row = Row::default();
    row[INGRESS] = match *ingress {
        Ingress::Port(port) => Some(On::Port(port)),
        Ingress::Underlay { .. } => Some(On::Zone(key.zone)),
        Ingress::External => None,
    };
    row[HOP] = match action.hop {
        Hop::Port(port) => Some(On::Port(port)),
        Hop::Underlay { receiver, by_gateway: true, .. } => Some(On::Gateway(receiver.into())),
        Hop::Drop if action.hangs.no_gateway => Some(On::Gateway(NO_GATEWAY)),
        Hop::Underlay { .. } | Hop::External | Hop::Drop => None,
    };
    row[SOURCE] = address(key.source);
    row[DESTINATION] = address(key.destination);
    let hangs = &action.hangs;
    for (on, other) in row[OTHER].iter_mut().zip(hangs.others) {
        *on = other.and_then(|other| address(other.into()));
    }
    for (on, hop) in row[NEXT_HOP].iter_mut().zip(hangs.next_hops) {
        *on = hop.and_then(|hop| address(hop.into()));
    }
    row[ANY] = hangs.any.then_some(On::Any(network));
    row
}

fn network_of(ingress: &Ingress, action: &Action, vni_of: impl Fn(PortIndex) -> Option<u32>) -> u32 {
    let of_ingress = match ingress {
        Ingress::Port(port) => vni_of(*port),
        Ingress::Underlay { vni, .. } => Some(*vni),
        Ingress::External => None,
    };
    let of_hop = || match action.hop {
        Hop::Port(port) => vni_of(port),
        Hop::Underlay { vni, .. } => Some(vni),
        Hop::External | Hop::Drop => None,
    };
    of_ingress.or_else(of_hop).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests;
