//! The map of pending calls of a session (paper 4.3.2, figure 4.4).
//!
//! A forwarded call gets a transaction number of ours, which names its place in the map and how often that place was used. So
//! a reply finds its call without a search, and a reply that comes too late finds nothing.
//!
//! Invariants
//! - A transaction number of ours is given out once in the life of a session (until 2^22 uses of one place, when a reply would
//!   have to be that late to be mistaken).
//! - Of one number of the client's one call is pending. A copy of it has its answer; another call of that number waits, for the client
//!   could not tell two answers apart, and a call that is never answered is one that the client waits for in vain.
//! - At most [`PENDING_MAX`] calls are pending; when the map is full the session stops reading.

use super::compound::asked::{CompoundAsked, Question4};
use super::retransmit;
use crate::identity::Principal;
use crate::message::{Asked, Call, Probe};
use crate::policy::Chain;
use crate::wire::call::Arguments;
use crate::wire::nfs3::{Handle, Status};
use hashbrown::HashMap;
use std::sync::Arc;

/// Most calls that are pending on one session.
pub const PENDING_MAX: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// What a forwarded call asks.
#[derive(Debug)]
pub enum Question {
    /// A call of NFSv3, and the policies that let it go on, as bits.
    Call(Asked, u64),
    /// A COMPOUND of NFSv4.
    Compound(Box<CompoundAsked>),
    /// What a policy must know before it decides on the client's call of the same number, which is held.
    Own(Box<Probe>),
    /// What must be known before it is decided on the client's COMPOUND of the same number, which is held.
    Own4(Box<Question4>),
    /// Whether a call has happened whose copy the server has answered as if it had.
    Overtaken(Box<Overtaken>),
}

/// A copy of a call with unknown fate, answered by the server as if the first one had happened.
#[derive(Debug)]
pub struct Overtaken {
    /// The call.
    pub asked: Asked,
    /// The policies that let it go on, as bits.
    pub handled: u64,
    /// What the server answered.
    pub status: Status,
    /// What it is asked now.
    pub probe: Probe,
}

/// What tells calls of one number apart: the length and the beginning of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Print {
    record_bytes: usize,
    bytes: usize,
    hash: u64,
}

/// Bytes of a record that tell it apart.
const PRINT_BYTES_MAX: usize = 4096;

impl Print {
    fn first(record: &[u8], record_bytes: usize, bytes: usize) -> Option<Print> {
        use std::hash::BuildHasher;
        let hash = foldhash::quality::FixedState::default().hash_one(record.get(..bytes)?);
        Some(Print { record_bytes, bytes, hash })
    }

    /// Of a record as far as it is there.
    pub fn of(record: &[u8], record_bytes: usize) -> Print {
        let bytes = record.len().min(PRINT_BYTES_MAX);
        Print::first(record, record_bytes, bytes).unwrap_or(Print { record_bytes, bytes: 0, hash: 0 })
    }

    /// True unless a record is another one: of one that is not there as far as that, it is not known yet.
    fn may_be(&self, record: &[u8], record_bytes: usize) -> bool {
        let same = Print::first(record, record_bytes, self.bytes);
        record_bytes == self.record_bytes && same.is_none_or(|same| same == *self)
    }
}

/// What a call meets that has come now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// No call of its number.
    Nobody,
    /// The same call.
    Copy,
    /// Another call of its number.
    Another,
}

/// A forwarded call.
#[derive(Debug)]
pub struct Entry {
    /// The client's transaction number.
    pub client_xid: u32,
    /// What tells it apart from others of that number, if it is a call of the client's.
    pub print: Option<Print>,
    /// What was asked.
    pub asked: Question,
    /// It was sent to the server before, and nobody knows what became of it; that shows in a folder.
    pub resent: bool,
    /// The chain that they belong to.
    pub chain: Arc<Chain>,
    /// When it was forwarded, µs.
    pub since_us: u64,
    /// Under which key retransmissions on other sessions are recognised, for operations that must happen once.
    pub once: Option<retransmit::Key>,
}

/// What must be known of a call when its reply comes.
pub(super) fn remember(
    call: &Call<'_>,
    caller: Arc<Principal>,
    maxcount: u32,
    datagram: bool,
    names: bool,
) -> Asked {
    let Arguments { op, handle_count, name_count, .. } = call.arguments;
    let name = |number: usize| (names && number < name_count).then(|| Box::from(call.name(number)));
    let handle = |number: usize| Handle::new(call.handle(number));
    Asked {
        op,
        caller,
        handle: handle(0).unwrap_or(Handle::EMPTY),
        handle_to: if handle_count > 1 { handle(1) } else { None },
        place: None,
        name: name(0),
        name_to: name(1),
        maxcount,
        datagram,
        note: call.note,
        counted: call.counted,
        seen: call.seen,
    }
}

#[derive(Debug)]
struct Slot {
    uses: u32,
    entry: Option<Entry>,
}

/// The map.
#[derive(Debug, Default)]
pub struct Pending {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_client: HashMap<u32, u32, foldhash::fast::RandomState>,
    first_use: u32,
}

impl Pending {
    /// An empty map; `seed` makes the transaction numbers of sessions differ.
    pub fn new(seed: u32) -> Self {
        Self { first_use: seed, ..Self::default() }
    }

    /// Number of calls.
    pub fn len(&self) -> usize {
        self.by_client.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }

    /// True if there is no place for one more.
    pub fn is_full(&self) -> bool {
        self.len() == PENDING_MAX
    }

    /// What a call of the client's meets: its number, and its record as far as it is there.
    pub fn meets(&self, client_xid: u32, record: &[u8], record_bytes: usize) -> Met {
        let Some(number) = self.by_client.get(&client_xid) else { return Met::Nobody };
        let print = self.slots[*number as usize].entry.as_ref().and_then(|entry| entry.print);
        match print.is_none_or(|print| print.may_be(record, record_bytes)) {
            true => Met::Copy,
            false => Met::Another,
        }
    }

    /// Puts a call in and returns its number of ours. The map must not be full, nor the client's number pending.
    pub fn insert(&mut self, entry: Entry) -> u32 {
        assert!(!self.is_full(), "no place in the pending map");
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(Slot { uses: self.first_use, entry: None });
                self.slots.len() as u32 - 1
            }
        };
        let before = self.by_client.insert(entry.client_xid, number);
        assert!(before.is_none(), "a client's number is pending twice");
        let slot = &mut self.slots[number as usize];
        slot.uses = slot.uses.wrapping_add(1);
        slot.entry = Some(entry);
        slot.uses << SLOT_BITS | number
    }

    fn slot_of(&self, xid: u32) -> Option<u32> {
        let number = xid & SLOT_MASK;
        let slot = self.slots.get(number as usize)?;
        (slot.uses << SLOT_BITS == xid & !SLOT_MASK && slot.entry.is_some()).then_some(number)
    }

    /// The call of a number of ours.
    pub fn get(&self, xid: u32) -> Option<&Entry> {
        self.slots[self.slot_of(xid)? as usize].entry.as_ref()
    }

    /// Takes a call out.
    pub fn take(&mut self, xid: u32) -> Option<Entry> {
        let number = self.slot_of(xid)?;
        self.take_slot(number)
    }

    fn take_slot(&mut self, number: u32) -> Option<Entry> {
        let entry = self.slots[number as usize].entry.take()?;
        self.by_client.remove(&entry.client_xid);
        self.free.push(number);
        Some(entry)
    }

    /// Takes out the calls that were forwarded before `before_us`.
    pub fn expire(&mut self, before_us: u64) -> Vec<Entry> {
        let late = |slot: &Slot| slot.entry.as_ref().is_some_and(|entry| entry.since_us < before_us);
        let numbers: Vec<u32> = (0..self.slots.len())
            .filter(|number| late(&self.slots[*number]))
            .map(|number| number as u32)
            .collect();
        numbers.into_iter().filter_map(|number| self.take_slot(number)).collect()
    }

    /// Takes out all calls.
    pub fn drain(&mut self) -> Vec<Entry> {
        self.expire(u64::MAX)
    }

    /// True if a pending call must happen once.
    pub fn any_once(&self) -> bool {
        self.slots.iter().any(|slot| slot.entry.as_ref().is_some_and(|entry| entry.once.is_some()))
    }
}

#[cfg(test)]
mod tests;
