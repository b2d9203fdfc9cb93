//! The writer's side of the flow table: a shadow that is changed, published by message, and got back.

use super::action::{Brief, CompiledAction, CompiledHop};
use super::book::Book;
use super::index::{Index, ZoneKey, Zones};
use super::store::{Flow, FlowStore};
use super::tunnel::Tunnel;
use super::ways::{WAYS_MAX, Way};
use std::sync::Arc;
use weir_packet::FlowKey;

/// What the engine looks flows up in: one of the two copies.
#[derive(Debug, Default)]
pub struct Tables {
    /// Flows.
    pub index: Index,
    /// Zones of senders on the underlay.
    pub zones: Zones,
    /// Rises with each publication.
    pub generation: u64,
}

impl Tables {
    /// The dense index of a key and the action of its flow.
    #[inline]
    pub fn find<'a>(
        &'a self,
        store: &'a FlowStore,
        hash: u64,
        key: &FlowKey,
    ) -> Option<(u32, &'a CompiledAction)> {
        let slot = self.index.find(store, hash, key)?;
        Some((slot, self.action(store, slot)))
    }

    /// Has fetched what a look-up reads first. Look-ups of a batch wait together then, and not one after the other.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Has fetched what a look-up reads last, and what the engine then needs of the flow for a plain packet, or for any
    /// other. Returns the slot that the flow nearly certainly has, for [`Tables::find_near`].
    #[inline]
    pub fn prefetch_flow(&self, store: &FlowStore, hash: u64, is_plain: bool) -> Option<u32> {
        let slot = self.index.likely(hash)?;
        store.prefetch(slot, is_plain);
        Some(slot)
    }

    /// As [`Tables::find`], with what [`Tables::prefetch_flow`] of these very tables gave.
    #[inline]
    pub fn find_near<'a>(
        &'a self,
        store: &'a FlowStore,
        near: Option<u32>,
        hash: u64,
        key: &FlowKey,
    ) -> Option<(u32, &'a CompiledAction)> {
        if let Some(slot) = near
            && store.flow(slot).key == *key
        {
            return Some((slot, store.action(slot)));
        }
        self.find(store, hash, key)
    }

    /// The flow and brief action of a key, if they are where [`Tables::prefetch_flow`] of these very tables thought.
    #[inline]
    pub fn brief_near<'a>(
        &'a self,
        store: &'a FlowStore,
        near: Option<u32>,
        key: &FlowKey,
    ) -> Option<(&'a Flow, &'a Brief)> {
        let flow = store.flow(near?);
        (flow.key == *key).then(|| (flow, store.brief(flow)))
    }

    /// The action of a slot that [`Tables::find`] of these very tables gave.
    #[inline]
    pub(crate) fn action<'a>(&'a self, store: &'a FlowStore, slot: u32) -> &'a CompiledAction {
        store.action(slot)
    }
}

/// The table has as many flows as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

#[derive(Clone, Copy, Debug)]
enum Change {
    Insert(u64, u32),
    Remove(u64, u32),
    SetZone(ZoneKey, u32),
    RemoveZone(ZoneKey),
}

/// Makes a change. The same changes made on equal tables leave equal tables, so what succeeded on the
/// shadow succeeds on the other copy.
fn make(tables: &mut Tables, store: &FlowStore, change: Change) -> Result<(), TableFull> {
    match change {
        Change::Insert(hash, slot) => {
            if tables.index.count() >= tables.index.comfort()
                && let Some(grown) = tables.index.grown(store)
            {
                tables.index = grown;
            }
            while tables.index.insert(hash, slot).is_err() {
                tables.index = tables.index.grown(store).ok_or(TableFull)?;
            }
        }
        Change::Remove(hash, slot) => {
            let was_in = tables.index.remove(hash, slot);
            debug_assert!(was_in, "slot {slot} was removed twice");
        }
        Change::SetZone(key, zone) => {
            tables.zones.insert(key, zone);
        }
        Change::RemoveZone(key) => {
            tables.zones.remove(&key);
        }
    }
    Ok(())
}

/// The owner of the flow table. All methods but [`Shadow::publish`] and [`Shadow::take_back`] need the shadow to be
/// here ([`Shadow::is_here`]).
#[derive(Debug)]
pub struct Shadow {
    store: Arc<FlowStore>,
    tables: Option<Box<Tables>>,
    /// Changes that the shadow has and the engine's copy does not.
    pending: Vec<Change>,
    /// Changes that the copy that is on its way back does not have.
    in_flight: Vec<Change>,
    free: Vec<u32>,
    /// Slots above this were never used.
    used: u32,
    briefs: Book<Brief>,
    ways: Book<Tunnel>,
    generation: u64,
    flows: usize,
}

impl Shadow {
    /// An empty shadow, and the empty tables for the engine to start with.
    pub fn new(store: Arc<FlowStore>) -> (Shadow, Box<Tables>) {
        let briefs = Book::new(store.slots_max());
        let shadow = Shadow {
            store,
            tables: Some(Box::default()),
            pending: Vec::new(),
            in_flight: Vec::new(),
            free: Vec::new(),
            used: 0,
            briefs,
            ways: Book::new(WAYS_MAX),
            generation: 0,
            flows: 0,
        };
        (shadow, Box::default())
    }

    /// Whether changes can be made now.
    pub fn is_here(&self) -> bool {
        self.tables.is_some()
    }

    /// Whether there is anything to publish.
    pub fn is_changed(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Number of the newest publication.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Bytes of the table as it is: both copies of the index, the slots that were ever used, and what they share.
    pub fn bytes(&self) -> usize {
        // The engine's copy is as large, or smaller by what was not published yet.
        let index = self.tables.as_ref().map_or(0, |tables| tables.index.bytes());
        let shared = FlowStore::shared_bytes(self.briefs.peak(), self.ways.peak());
        let notes = self.briefs.bytes() + self.ways.bytes();
        2 * index + self.store.slots() * FlowStore::slot_bytes() + shared + notes
    }

    /// Flows in the shadow.
    pub fn flows(&self) -> usize {
        self.flows
    }

    fn tables(&mut self) -> &mut Tables {
        match &mut self.tables {
            Some(tables) => tables,
            None => unreachable!("the shadow is with the engine"),
        }
    }

    fn change(&mut self, change: Change) -> Result<(), TableFull> {
        let store = Arc::clone(&self.store);
        make(self.tables(), &store, change)?;
        self.pending.push(change);
        Ok(())
    }

    fn change_surely(&mut self, change: Change) {
        let made = self.change(change);
        debug_assert!(made.is_ok(), "only an insert can fail");
    }

    /// The slot of a key, as it will be after the next publication.
    pub fn find(&self, key: &FlowKey) -> Option<u32> {
        let tables = self.tables.as_ref()?;
        tables.index.find(&self.store, self.store.hash(key), key)
    }

    /// Adds a flow, or replaces the one that has the key; returns its slot and that of the replaced flow.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert(
        &mut self,
        key: FlowKey,
        action: CompiledAction,
        now_ms: u32,
    ) -> Result<(u32, Option<u32>), TableFull> {
        let replaced = self.find(&key);
        if replaced.is_none() && self.flows >= self.store.flows_max() {
            return Err(TableFull);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if (self.used as usize) < self.store.slots_max() => {
                self.used += 1;
                self.used - 1
            }
            None => return Err(TableFull),
        };
        if let Some(old) = replaced {
            self.remove(old);
        }
        // There are as many as slots, so one is left.
        let Some(brief) = self.take_brief(&action) else {
            self.free.push(slot);
            return Err(TableFull);
        };
        self.store.write(slot, key, brief, action, now_ms);
        if let Err(full) = self.change(Change::Insert(self.store.hash(&key), slot)) {
            self.set_free(slot);
            return Err(full);
        }
        self.flows += 1;
        Ok((slot, replaced))
    }

    /// The number of an action's brief, for one more slot.
    fn take_brief(&mut self, action: &CompiledAction) -> Option<u32> {
        let store = &*self.store;
        let way = match &action.hop {
            CompiledHop::Underlay(tunnel) => {
                // There are as many as the type of their numbers has.
                self.ways
                    .take(tunnel, |way| store.write_way(way as u16, Way::new(tunnel)))
                    .map(|way| way as u16)
            }
            CompiledHop::Port(_) | CompiledHop::External | CompiledHop::Drop => None,
        };
        let brief = Brief::new(action, way);
        self.briefs.take(&brief, |number| store.write_brief(number, brief))
    }

    /// Removes a flow by its slot.
    pub fn remove(&mut self, slot: u32) {
        let hash = self.store.hash(&self.store.flow(slot).key);
        self.change_surely(Change::Remove(hash, slot));
        self.flows -= 1;
    }

    /// Gives a sender of a network its zone.
    pub fn set_zone(&mut self, key: ZoneKey, zone: u32) {
        self.change_surely(Change::SetZone(key, zone));
    }

    /// Takes a zone away.
    pub fn remove_zone(&mut self, key: ZoneKey) {
        self.change_surely(Change::RemoveZone(key));
    }

    /// The tables to send to the engine; the caller sends back what the engine had with
    /// [`Shadow::take_back`].
    pub fn publish(&mut self) -> Option<Box<Tables>> {
        let mut tables = self.tables.take()?;
        self.generation += 1;
        tables.generation = self.generation;
        self.in_flight = std::mem::take(&mut self.pending);
        Some(tables)
    }

    /// Takes the copy that the engine no longer reads, brings it up to date and frees what was removed.
    pub fn take_back(&mut self, mut tables: Box<Tables>) {
        debug_assert!(self.tables.is_none());
        let mut freed = Vec::new();
        for change in self.in_flight.drain(..) {
            let made = make(&mut tables, &self.store, change);
            debug_assert!(made.is_ok(), "the two copies differ");
            if let Change::Remove(_, slot) = change {
                freed.push(slot);
            }
        }
        self.tables = Some(tables);
        for slot in freed {
            self.set_free(slot);
        }
    }

    /// A slot that no index names may be written again.
    fn set_free(&mut self, slot: u32) {
        let flow = self.store.flow(slot);
        let brief = *self.store.brief(flow);
        if let Some(way) = brief.way() {
            self.ways.give_back(u32::from(way), &self.store.way(way).tunnel);
        }
        self.briefs.give_back(flow.brief_number(), &brief);
        self.free.push(slot);
    }
}
