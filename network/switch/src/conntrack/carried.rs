//! Connections on their way to another process of the switch (row A30).
//!
//! The process that is replaced gives all of them, part by part, while it goes on working; from then on it notes which
//! ones change, and gives these at last. Nothing is left out: also those that the journal does not keep, because nobody
//! answered them yet.

use super::{Connection, ConnectionRecord, Connections, State};
use crate::conntrack::record::RecordKey;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::net::IpAddr;
use weir_packet::key::FlowKey;

/// Most changed connections that are noted. When there are more, the hand-over fails and may be tried again.
pub const CHANGED_MAX: usize = 1 << 18;

/// A connection as it is carried over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedConnection {
    /// Its key.
    pub key: RecordKey,
    /// How far it is.
    pub state: State,
    /// Outside address and port of its source, or address and port of the member, if translated.
    pub external: Option<(IpAddr, u16)>,
    /// TCP flags seen from the opener and from the other side.
    pub flags: [u8; 2],
    /// Which sides were seen.
    pub seen: [bool; 2],
    /// Whether the journal has it.
    pub recorded: bool,
    /// When a packet was seen last, milliseconds of the switch's own clock, which is carried over too.
    pub last_ms: u64,
}

/// Which connections changed since their copying began.
#[derive(Debug, Default)]
pub(super) struct Changed {
    keys: HashSet<FlowKey, foldhash::quality::RandomState>,
    overflowed: bool,
}

impl Changed {
    pub(super) fn note(&mut self, key: &FlowKey) {
        if self.keys.len() < CHANGED_MAX {
            self.keys.insert(*key);
        } else {
            self.overflowed = true;
        }
    }
}

/// Changes of connections, to be carried over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New, or not as they were.
    pub put: Vec<CarriedConnection>,
    /// Over.
    pub gone: Vec<RecordKey>,
}

impl From<&Connection> for CarriedConnection {
    fn from(connection: &Connection) -> CarriedConnection {
        CarriedConnection {
            key: (&connection.key).into(),
            state: connection.state,
            external: connection.binding.map(|binding| binding.external),
            flags: connection.flags,
            seen: connection.seen,
            recorded: connection.recorded,
            last_ms: connection.last_ms,
        }
    }
}

impl Connections {
    /// Begins to note what changes, or ends it.
    pub fn note_changes(&mut self, wanted: bool) {
        self.changed = wanted.then(Changed::default);
    }

    /// A part of all connections, from a slot on: at most `most`, and the slot to go on with, if there is more.
    pub fn part(&self, from: usize, most: usize) -> (Vec<CarriedConnection>, Option<usize>) {
        let mut part = Vec::new();
        for (number, slot) in self.slots.iter().enumerate().skip(from) {
            if part.len() == most {
                return (part, Some(number));
            }
            part.extend(slot.connection.as_ref().map(CarriedConnection::from));
        }
        (part, None)
    }

    /// What changed since the last time; nothing when too much did.
    pub fn take_changed(&mut self) -> Option<Changes> {
        let changed = std::mem::take(self.changed.as_mut()?);
        if changed.overflowed {
            return None;
        }
        let mut changes = Changes::default();
        for key in &changed.keys {
            match self.by_key.get(key).and_then(|slot| self.slots[*slot as usize].connection.as_ref()) {
                Some(connection) => changes.put.push(connection.into()),
                None => changes.gone.push(key.into()),
            }
        }
        Some(changes)
    }

    /// Takes a connection over, in place of one that has its key. It is judged by the rules again with its first packet.
    /// Returns whether there was room.
    pub fn carry(&mut self, mut connection: Connection, carried: &CarriedConnection) -> bool {
        self.end_carried(&connection.key);
        connection.generation = 0;
        connection.state = carried.state;
        (connection.flags, connection.seen) = (carried.flags, carried.seen);
        connection.recorded = carried.recorded;
        let taken = connection.binding.is_some_and(|binding| self.by_inbound.contains_key(&binding.inbound));
        let waiting = self.changes.len();
        let carried = !taken && self.open(carried.last_ms, connection).is_some();
        self.changes.truncate(waiting);
        *(if carried { &mut self.counters.restored } else { &mut self.counters.not_restored }) += 1;
        carried
    }

    /// Ends a connection that ended in the other process, whose journal knows it.
    pub fn end_carried(&mut self, key: &FlowKey) {
        let waiting = self.changes.len();
        if let Some(slot) = self.by_key.get(key) {
            self.remove(self.id(*slot));
        }
        self.changes.truncate(waiting);
    }
}

/// What a journal would keep of a carried connection.
impl From<&CarriedConnection> for ConnectionRecord {
    fn from(carried: &CarriedConnection) -> ConnectionRecord {
        ConnectionRecord::Open { key: carried.key, state: carried.state, external: carried.external }
    }
}

#[cfg(test)]
mod tests;
