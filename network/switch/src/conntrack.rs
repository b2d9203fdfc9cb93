//! Connections: conversations whose replies pass although no rule allows them, or that are translated
//! (rows A17, A24, A30; pain 2 and 8).
//!
//! The resolver owns them; the engine only tells what flows carried. A connection is keyed by the flow
//! key of its opener, with the network's identifier as zone. Its number is in the actions of its flows:
//! 20 bits of slot, 11 of generation so that a late report finds nobody, and one of direction.
//!
//! States and how long they last without a packet (at least [`FLOW_IDLE_MS`] longer than a flow stays
//! in the table, so that a connection ends after its flows):
//! - TCP: opening 60 s; open, when both sides were seen, 2 h; half closed, after one FIN, 10 min;
//!   closed, after both or an RST, 30 s. A SYN on a closed one opens it again. Sequence numbers are not
//!   followed. A TCP packet in the middle of an unknown conversation counts as its opening, so that
//!   conversations survive when tracking begins late; the rules still judge it in its own direction.
//! - UDP: unanswered 30 s, answered 180 s. ICMP echo: 30 s. Other protocols: 600 s.
//! - Revoked, of any protocol: 60 s. Who opened a conversation is what a revoked rule is about: were the
//!   connection forgotten at once, the next packet of the other side would open it anew in its own
//!   direction, and the revoked one would pass as its reply.
//!
//! Departure from row A24: the paper tracks nothing when the rules allow both ways, to spare its fast
//! path. Here the fast path does nothing for a connection, and without the record nobody would know
//! which way to judge when a rule is revoked. So all is tracked that a stateful rule allows; only what
//! the rules allow both ways goes on untracked when there is no room.
//!
//! Limits: [`Limits`] for all and for each owner (the endpoint here, or at a gateway the network), so
//! that no tenant takes all. When a port's share is full its oldest connection that was never answered
//! makes room, else the new one is refused. Translated connections never make room: their ports must
//! not be given away while flows use them.
//!
//! What must survive a crash (answered connections and all translations) is told as
//! [`ConnectionRecord`]s to be journaled, and taken back by [`Connections::restore`]. Restored
//! connections are judged by the rules again with their first packet.

mod carried;
mod connection;
mod record;

use crate::flow::{CounterIndex, FlowUse, PortIndex};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::net::IpAddr;
use weir_packet::IpAddress;
use weir_packet::key::FlowKey;

pub use carried::{CHANGED_MAX, CarriedConnection, Changes};
pub use connection::{Binding, Connection, Sides, State, Way, timeout_ms};
pub use record::{ConnectionRecord, RecordKey};

use connection::{TCP, restored_flags};

/// Most connections of a switch.
pub const CONNECTIONS_MAX: usize = 1 << 20;
/// Most records that wait to be journaled; beyond, the whole is told anew.
pub const CHANGES_MAX: usize = 1 << 16;
/// How long a flow of a connection stays in the flow table without a packet.
pub const FLOW_IDLE_MS: u32 = 15_000;
/// The part of the translated ports towards one destination that an endpoint, and that a network may have.
const ENDPOINT_PORTS_PART: usize = 4;
const NETWORK_PORTS_PART: usize = 2;
/// A tick looks at one of so many parts of the table.
const SWEEP_PARTS: usize = 8;

const SLOT_BITS: u32 = 20;
const GENERATION_MAX: u32 = (1 << 11) - 2;
const REPLY_BIT: u32 = 1 << 31;

type Hasher = foldhash::quality::RandomState;

/// Limits of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections; at most [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// Most connections of a port, or at a gateway of one address.
    pub port_share: usize,
    /// At a gateway most connections of one network.
    pub network_share: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: CONNECTIONS_MAX,
            port_share: CONNECTIONS_MAX / 8,
            network_share: CONNECTIONS_MAX / 4,
        }
    }
}

/// Who is charged for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A port here: the opener's, else the receiver's.
    Port(PortIndex),
    /// At a gateway: an address of a network.
    Address(u32, IpAddr),
    /// At a gateway: a network. Charged along with the address.
    Network(u32),
}

impl Owner {
    fn chain(self) -> impl Iterator<Item = Owner> {
        let second = match self {
            Owner::Address(vni, _) => Some(Owner::Network(vni)),
            _ => None,
        };
        std::iter::once(self).chain(second)
    }
}

/// Number of a connection while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(u32);

impl ConnectionId {
    fn new(slot: u32, generation: u32) -> ConnectionId {
        ConnectionId(generation << SLOT_BITS | slot)
    }

    /// The number for an action of one direction.
    pub fn number(self, way: Way) -> u32 {
        self.0 | if way == Way::Reply { REPLY_BIT } else { 0 }
    }

    fn from_number(number: u32) -> (ConnectionId, Way) {
        let way = if number & REPLY_BIT == 0 { Way::Opener } else { Way::Reply };
        (ConnectionId(number & !REPLY_BIT), way)
    }

    fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    fn generation(self) -> u32 {
        self.0 >> SLOT_BITS
    }
}

#[derive(Debug, Default)]
struct Share {
    count: usize,
    /// Connections in the order in which they opened; some may have gone on or ended.
    opened: VecDeque<ConnectionId>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

/// What the table has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounters {
    /// Connections opened.
    pub opened: u64,
    /// Connections that ended by time.
    pub expired: u64,
    /// Connections that made room for another.
    pub evicted: u64,
    /// Connections that were refused for want of room.
    pub refused: u64,
    /// Connections that the rules no longer allow.
    pub revoked: u64,
    /// Connections restored.
    pub restored: u64,
    /// Records that could not be restored.
    pub not_restored: u64,
    /// Times that too many records waited and the whole was told anew.
    pub changes_overflowed: u64,
}

/// The table.
#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    count: usize,
    by_key: HashMap<FlowKey, u32, Hasher>,
    by_inbound: HashMap<FlowKey, u32, Hasher>,
    shares: HashMap<Owner, Share, Hasher>,
    /// Translated connections of an owner towards one destination.
    towards: HashMap<(Owner, Towards), u32, Hasher>,
    sweep: usize,
    changes: Vec<ConnectionRecord>,
    overflowed: bool,
    /// What changed, while another process takes over.
    changed: Option<carried::Changed>,
    /// Counters.
    pub counters: ConnectionCounters,
}

/// A destination, towards which a translated port is taken: address, port and protocol.
type Towards = (IpAddress, u16, u8);

fn towards(key: &FlowKey) -> Towards {
    (key.destination, key.destination_port, key.protocol)
}

/// A flow key without what does not name the connection.
pub fn connection_key(key: &FlowKey, vni: u32) -> FlowKey {
    FlowKey { zone: vni, ..*key }
}

impl Connections {
    /// An empty table.
    pub fn new(limits: Limits) -> Connections {
        let connections_max = limits.connections_max.min(CONNECTIONS_MAX);
        Connections {
            limits: Limits { connections_max, ..limits },
            slots: Vec::new(),
            free: VecDeque::new(),
            count: 0,
            by_key: HashMap::default(),
            by_inbound: HashMap::default(),
            shares: HashMap::default(),
            towards: HashMap::default(),
            sweep: 0,
            changes: Vec::new(),
            overflowed: false,
            changed: None,
            counters: ConnectionCounters::default(),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Bytes of the table, without what waits to be journaled.
    pub fn bytes(&self) -> usize {
        let queued: usize = self.shares.values().map(|share| share.opened.capacity()).sum();
        self.slots.len() * size_of::<Slot>()
            + self.by_key.allocation_size()
            + self.by_inbound.allocation_size()
            + self.towards.allocation_size()
            + queued * size_of::<ConnectionId>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A connection by its number.
    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        let slot = self.slots.get(id.slot())?;
        slot.connection.as_ref().filter(|_| slot.generation == id.generation())
    }

    fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(id.slot())?;
        slot.connection.as_mut().filter(|_| slot.generation == id.generation())
    }

    fn id(&self, slot: u32) -> ConnectionId {
        ConnectionId::new(slot, self.slots[slot as usize].generation)
    }

    /// The connection of a packet of a network (`key.zone` is its identifier), and which way it goes.
    pub fn find(&self, key: &FlowKey) -> Option<(ConnectionId, Way)> {
        if let Some(&slot) = self.by_key.get(key) {
            return Some((self.id(slot), Way::Opener));
        }
        let slot = *self.by_key.get(&key.reverse())?;
        Some((self.id(slot), Way::Reply))
    }

    /// The translated connection of a reply: from outside (`key.zone` is zero), or from a member of a virtual address.
    pub fn find_inbound(&self, key: &FlowKey) -> Option<ConnectionId> {
        self.by_inbound.get(key).map(|&slot| self.id(slot))
    }

    /// Most translated ports that an owner, or whom it is charged along with, has towards the destination of a key, as parts of what each
    /// may have: the endpoint a quarter of `ports`, its network half of them.
    pub fn has_ports_left(&self, owner: Owner, key: &FlowKey, ports: usize) -> bool {
        owner.chain().all(|owner| {
            let share = match owner {
                Owner::Network(_) => ports / NETWORK_PORTS_PART,
                Owner::Port(_) | Owner::Address(..) => ports / ENDPOINT_PORTS_PART,
            };
            let count = self.towards.get(&(owner, towards(key))).copied().unwrap_or_default();
            (count as usize) < share.max(1)
        })
    }

    /// All, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(number, slot)| {
            Some((ConnectionId::new(number as u32, slot.generation), slot.connection.as_ref()?))
        })
    }

    fn share_limit(&self, owner: Owner) -> usize {
        match owner {
            Owner::Port(_) | Owner::Address(..) => self.limits.port_share,
            Owner::Network(_) => self.limits.network_share,
        }
    }

    /// Whether `owner` may open one more, if need be by letting an expendable one of its own go.
    pub fn has_room(&self, owner: Owner) -> bool {
        let share_full = |owner: &Owner| {
            self.shares.get(owner).is_some_and(|share| share.count >= self.share_limit(*owner))
        };
        let full = self.count >= self.limits.connections_max || owner.chain().any(|o| share_full(&o));
        !full || self.expendable(owner).is_some()
    }

    /// The oldest expendable connection of an owner. Looks at a bounded number.
    fn expendable(&self, owner: Owner) -> Option<ConnectionId> {
        const LOOKED_AT_MAX: usize = 64;
        let share = self.shares.get(&owner)?;
        let mut oldest = share.opened.iter().take(LOOKED_AT_MAX);
        oldest.find(|id| self.get(**id).is_some_and(Connection::is_expendable)).copied()
    }

    /// Opens a connection; `None` when there is no room.
    pub fn open(&mut self, now_ms: u64, mut connection: Connection) -> Option<ConnectionId> {
        let owner = connection.owner;
        if !self.has_room(owner) {
            self.counters.refused += 1;
            return None;
        }
        let full = self.count >= self.limits.connections_max
            || owner.chain().any(|o| self.shares.get(&o).is_some_and(|s| s.count >= self.share_limit(o)));
        if full && let Some(old) = self.expendable(owner) {
            self.counters.evicted += 1;
            self.remove(old);
        }
        debug_assert!(!self.by_key.contains_key(&connection.key));
        connection.last_ms = now_ms;
        let slot = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        self.by_key.insert(connection.key, slot);
        if let Some(binding) = &connection.binding {
            self.by_inbound.insert(binding.inbound, slot);
            for owner in owner.chain() {
                *self.towards.entry((owner, towards(&connection.key))).or_default() += 1;
            }
        }
        let id = self.id(slot);
        for owner in owner.chain() {
            let share = self.shares.entry(owner).or_default();
            share.count += 1;
            if matches!(owner, Owner::Port(_)) {
                share.opened.push_back(id);
                if share.opened.len() > 2 * share.count + 64 {
                    let slots = &self.slots;
                    share.opened.retain(|id| {
                        let slot = &slots[id.slot()];
                        *id == ConnectionId::new(id.slot() as u32, slot.generation)
                    });
                }
            }
        }
        self.slots[slot as usize].connection = Some(connection);
        self.count += 1;
        self.counters.opened += 1;
        self.note(&connection.key);
        if connection.binding.is_some() || connection.state != State::Opening {
            self.record(id);
        }
        Some(id)
    }

    /// Ends a connection.
    pub fn remove(&mut self, id: ConnectionId) {
        if self.get(id).is_none() {
            return;
        }
        let slot = &mut self.slots[id.slot()];
        let Some(connection) = slot.connection.take() else { return };
        slot.generation = if slot.generation >= GENERATION_MAX { 0 } else { slot.generation + 1 };
        self.free.push_back(id.slot() as u32);
        self.count -= 1;
        self.note(&connection.key);
        self.by_key.remove(&connection.key);
        if let Some(binding) = &connection.binding {
            self.by_inbound.remove(&binding.inbound);
            for owner in connection.owner.chain() {
                let place = (owner, towards(&connection.key));
                if let Some(count) = self.towards.get_mut(&place) {
                    *count -= 1;
                    if *count == 0 {
                        self.towards.remove(&place);
                    }
                }
            }
        }
        for owner in connection.owner.chain() {
            if let Some(share) = self.shares.get_mut(&owner) {
                share.count -= 1;
                if share.count == 0 {
                    self.shares.remove(&owner);
                }
            }
        }
        if connection.recorded {
            self.change(ConnectionRecord::closed(&connection.key));
        }
    }

    /// Ends those that `gone` says.
    pub fn remove_if(&mut self, gone: impl Fn(&Connection) -> bool) -> usize {
        let ids: Vec<ConnectionId> = self.iter().filter(|(_, c)| gone(c)).map(|(id, _)| id).collect();
        ids.iter().for_each(|id| self.remove(*id));
        ids.len()
    }

    /// Whether anybody is charged as this owner.
    pub fn has_owner(&self, owner: Owner) -> bool {
        self.shares.contains_key(&owner)
    }

    /// Notes a packet that the resolver itself saw, with its TCP flags.
    pub fn touch(&mut self, now_ms: u64, id: ConnectionId, way: Way, flags: u8) {
        let Some(connection) = self.get_mut(id) else { return };
        connection.last_ms = connection.last_ms.max(now_ms);
        let before = (connection.flags, connection.seen);
        let changed = connection.see(way, flags);
        let differs = changed || before != (connection.flags, connection.seen);
        if changed {
            self.record(id);
        }
        if differs {
            self.note_id(id);
        }
    }

    /// Notes that a packet was sent back in a connection which may open one the other way at its opener's host.
    pub fn told(&mut self, id: ConnectionId) {
        if let Some(connection) = self.get_mut(id) {
            connection.untold = false;
        }
    }

    /// Notes that the rules, asked anew, allow a connection. A revoked one goes on, and what was answered in it stays so.
    pub fn judged(&mut self, id: ConnectionId, generation: u64, sides: Sides, counter: CounterIndex) {
        let Some(connection) = self.get_mut(id) else { return };
        (connection.generation, connection.sides, connection.counter) = (generation, sides, counter);
        if connection.state == State::Revoked {
            (connection.state, connection.flags, connection.seen[0]) = (State::Opening, [0; 2], true);
            self.record(id);
            self.note_id(id);
        }
    }

    /// Notes that the rules, asked anew, do not allow a connection, and what denies it.
    pub fn revoke(&mut self, now_ms: u64, id: ConnectionId, generation: u64, counter: CounterIndex) {
        let Some(connection) = self.get_mut(id) else { return };
        (connection.generation, connection.counter) = (generation, counter);
        connection.last_ms = connection.last_ms.max(now_ms);
        if connection.state != State::Revoked {
            connection.state = State::Revoked;
            self.counters.revoked += 1;
            self.record(id);
            self.note_id(id);
        }
    }

    /// Takes in what a flow carried; `number` is that of its action.
    pub fn used(&mut self, now_ms: u64, number: u32, use_: FlowUse) {
        let (id, way) = ConnectionId::from_number(number);
        if use_.packets > 0 {
            self.touch(now_ms, id, way, use_.tcp_flags);
        }
    }

    /// Ends what was idle too long, in one part of the table.
    pub fn tick(&mut self, now_ms: u64) {
        let part = self.slots.len().div_ceil(SWEEP_PARTS).max(1);
        let start = self.sweep * part;
        self.sweep = (self.sweep + 1) % SWEEP_PARTS;
        let end = (start + part).min(self.slots.len());
        for number in start..end {
            let Some(connection) = &self.slots[number].connection else { continue };
            let idle_ms = now_ms.saturating_sub(connection.last_ms);
            if idle_ms > timeout_ms(connection.key.protocol, connection.state) {
                self.counters.expired += 1;
                self.remove(self.id(number as u32));
            }
        }
    }

    /// Notes for a process that takes over that a connection changed.
    fn note(&mut self, key: &FlowKey) {
        if let Some(changed) = &mut self.changed {
            changed.note(key);
        }
    }

    fn note_id(&mut self, id: ConnectionId) {
        if self.changed.is_some()
            && let Some(key) = self.get(id).map(|connection| connection.key)
        {
            self.note(&key);
        }
    }

    /// Tells the journal of a connection that must survive.
    fn record(&mut self, id: ConnectionId) {
        let Some(connection) = self.get_mut(id) else { return };
        // A revoked one that never was answered kept nobody out, and must not after a crash.
        let lived = match connection.state {
            State::Opening => false,
            State::Revoked => connection.is_answered(),
            State::Open | State::HalfClosed | State::Closed => true,
        };
        if connection.binding.is_some() || lived || connection.recorded {
            connection.recorded = true;
            let record = ConnectionRecord::open(connection);
            self.change(record);
        }
    }

    fn change(&mut self, record: ConnectionRecord) {
        if self.overflowed {
            return;
        }
        if self.changes.len() >= CHANGES_MAX {
            self.changes = Vec::new();
            self.overflowed = true;
            self.counters.changes_overflowed += 1;
            return;
        }
        self.changes.push(record);
    }

    /// What changed since the last time, to be journaled in this order.
    pub fn take_changes(&mut self) -> Vec<ConnectionRecord> {
        if std::mem::take(&mut self.overflowed) {
            return self.snapshot();
        }
        std::mem::take(&mut self.changes)
    }

    /// All that must survive, beginning with [`ConnectionRecord::Reset`]: what a journal is compacted to.
    pub fn snapshot(&self) -> Vec<ConnectionRecord> {
        let recorded = self.iter().filter(|(_, connection)| connection.recorded);
        std::iter::once(ConnectionRecord::Reset)
            .chain(recorded.map(|(_, connection)| ConnectionRecord::open(connection)))
            .collect()
    }

    /// Takes back a connection of the journal, to be judged again with its first packet.
    pub fn restore(&mut self, now_ms: u64, mut connection: Connection, state: State) -> bool {
        let taken = self.by_key.contains_key(&connection.key)
            || connection.binding.is_some_and(|binding| self.by_inbound.contains_key(&binding.inbound));
        connection.generation = 0;
        connection.state = state;
        connection.seen = [true, state != State::Opening];
        connection.flags = if connection.key.protocol == TCP { restored_flags(state) } else { [0; 2] };
        // What the journal has already need not be told again.
        connection.recorded = true;
        let waiting = self.changes.len();
        let restored = !taken && self.open(now_ms, connection).is_some();
        self.changes.truncate(waiting);
        *(if restored { &mut self.counters.restored } else { &mut self.counters.not_restored }) += 1;
        restored
    }
}

#[cfg(test)]
mod tests;
