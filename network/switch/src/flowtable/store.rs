//! The flat arrays behind the index: keys with actions, and statistics.
//!
//! They have room for the most flows that there may be; memory comes when a slot is first used ([`super::zeroed`]), and is kept
//! while the process lives. An entry is three cache lines, of which a plain packet needs the first, and a flow without
//! address translation two.
//!
//! Who may touch what (the proof that the `unsafe` here is sound):
//! - A slot is *private* from the moment that the shadow's owner takes it off the free list until it
//!   publishes an index that names it. Only then it is written.
//! - It is *shared* from then until the owner has got back the last index that named it. Nobody
//!   writes it then.
//! - Publishing and getting back go through channels, whose send happens before the receive.
//!
//! Statistics are atomics with one writer each: no ordering is needed, a reader may be a little late.

use super::action::{Brief, CompiledAction};
use super::ways::{WAYS_MAX, Way, WayIndex};
use super::zeroed::{Zeroable, Zeroed, prefetch};
use crate::flow::FLOWS_MAX;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use weir_packet::{FlowKey, HashSeed};

/// Slots beyond the most flows, because a replaced flow's slot is free only after the next swap.
pub const SLOTS_SPARE: usize = 8192;
const LINE_BYTES: usize = 64;

/// Key and action of a flow.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Entry {
    /// Its key, zone included.
    pub key: FlowKey,
    /// The beginning of what to do with its packets.
    pub brief: Brief,
    /// What to do with its packets.
    pub action: CompiledAction,
}

impl Entry {
    /// A flow, with the number of its way if it goes to another switch.
    pub fn new(key: FlowKey, action: CompiledAction, way: Option<WayIndex>) -> Entry {
        Entry { key, brief: Brief::new(&action, way), action }
    }
}

const _: () = assert!(size_of::<Entry>() == 3 * LINE_BYTES);
const _: () = assert!(std::mem::offset_of!(Entry, action) == LINE_BYTES);

struct Cell<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: what may be uninitialised may be zero.
#[allow(unsafe_code)]
unsafe impl<T: Copy> Zeroable for Cell<T> {}
// SAFETY: atomics of integers may be zero.
#[allow(unsafe_code)]
unsafe impl Zeroable for FlowCounters {}

/// What the engine has seen of a flow. Aligned so that it is in one line.
#[derive(Debug, Default)]
#[repr(align(32))]
pub struct FlowCounters {
    /// Packets; segments of a large one count each.
    pub packets: AtomicU64,
    /// Bytes of the inner frames.
    pub bytes: AtomicU64,
    /// Time of the last packet, milliseconds since the start of the process, wrapping.
    pub last_seen_ms: AtomicU32,
    /// TCP flags, or-ed.
    pub tcp_flags: AtomicU32,
}

impl FlowCounters {
    /// Counts packets. For the engine, the only writer.
    #[inline]
    pub fn count(&self, packets: u64, bytes: u64, now_ms: u32, tcp_flags: u8) {
        self.packets.store(self.packets.load(Relaxed) + packets, Relaxed);
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
        self.last_seen_ms.store(now_ms, Relaxed);
        let flags = self.tcp_flags.load(Relaxed);
        if flags | u32::from(tcp_flags) != flags {
            self.tcp_flags.store(flags | u32::from(tcp_flags), Relaxed);
        }
    }

    fn reset(&self, now_ms: u32) {
        self.packets.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.last_seen_ms.store(now_ms, Relaxed);
        self.tcp_flags.store(0, Relaxed);
    }
}

/// The arrays. Shared by the engine and the slow thread.
pub struct FlowStore {
    entries: Zeroed<Cell<Entry>>,
    ways: Zeroed<Cell<Way>>,
    counters: Zeroed<FlowCounters>,
    /// Slots below this were written at least once.
    slots: AtomicUsize,
    flows_max: usize,
    seed: HashSeed,
}

// SAFETY: entries are reached only under the rules in the module's text; all else is `Sync`.
#[allow(unsafe_code)]
unsafe impl Sync for FlowStore {}
// SAFETY: as above; entries are plain data.
#[allow(unsafe_code)]
unsafe impl Send for FlowStore {}

impl std::fmt::Debug for FlowStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowStore").field("slots", &self.slots()).finish()
    }
}

impl FlowStore {
    /// An empty store for [`FLOWS_MAX`] flows; `random` seeds the hash and must be secret.
    pub fn new(random: [u64; 2]) -> FlowStore {
        FlowStore::with_flows_max(random, FLOWS_MAX)
    }

    /// An empty store for so many flows.
    pub fn with_flows_max(random: [u64; 2], flows_max: usize) -> FlowStore {
        let slots = flows_max + SLOTS_SPARE;
        FlowStore {
            entries: Zeroed::new(slots),
            ways: Zeroed::new(WAYS_MAX),
            counters: Zeroed::new(slots),
            slots: AtomicUsize::new(0),
            flows_max,
            seed: HashSeed::new(random),
        }
    }

    /// Most flows.
    pub fn flows_max(&self) -> usize {
        self.flows_max
    }

    /// Most slots.
    pub fn slots_max(&self) -> usize {
        self.entries.len()
    }

    /// Hash of a key.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        key.hash(&self.seed)
    }

    /// What keys are hashed with.
    #[inline]
    pub fn seed(&self) -> &HashSeed {
        &self.seed
    }

    /// Slots that have memory.
    pub fn slots(&self) -> usize {
        self.slots.load(Relaxed)
    }

    /// Bytes of one slot: entry and statistics.
    pub const fn slot_bytes() -> usize {
        size_of::<Cell<Entry>>() + size_of::<FlowCounters>()
    }

    /// Has fetched what a packet of a flow needs: a plain one, or one that is not translated.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32, is_plain: bool) {
        let entry: *const u8 = self.entries.as_ptr().wrapping_add(slot as usize).cast();
        prefetch(entry);
        if !is_plain {
            prefetch(entry.wrapping_add(LINE_BYTES));
        }
    }

    /// Has fetched what a packet of a flow is counted in.
    #[inline]
    pub fn prefetch_counters(&self, slot: u32) {
        prefetch(self.counters.as_ptr().wrapping_add(slot as usize));
    }

    /// Key and action of a slot.
    ///
    /// The caller must be the engine with an index that names the slot, or the shadow's owner.
    #[inline]
    pub(super) fn entry(&self, slot: u32) -> &Entry {
        let cell = &self.entries[slot as usize];
        // SAFETY: the slot is named by a published index or owned by the caller (see the module's
        // text), so it was written before and nobody writes it while this borrow of the index lives.
        #[allow(unsafe_code)]
        unsafe {
            (*cell.0.get()).assume_init_ref()
        }
    }

    /// A way that a slot names which the caller may read.
    #[inline]
    pub fn way(&self, way: WayIndex) -> &Way {
        let cell = &self.ways[usize::from(way)];
        // SAFETY: an entry that may be read names it, so it was written before that entry, and it is not written again before the last
        // slot that names it is private (see the module's text and `ways`). There are as many as the type has numbers.
        #[allow(unsafe_code)]
        unsafe {
            (*cell.0.get()).assume_init_ref()
        }
    }

    /// Writes a way that no slot names. Only for the shadow's owner, with a number off its free list.
    pub(super) fn write_way(&self, number: WayIndex, way: Way) {
        let cell = self.ways[usize::from(number)].0.get();
        // SAFETY: no slot names it that anybody else may read, so no reference to it exists; the caller is the only owner of the
        // free list.
        #[allow(unsafe_code)]
        unsafe {
            (*cell).write(way);
        }
    }

    /// Statistics of a slot.
    #[inline]
    pub fn counters(&self, slot: u32) -> &FlowCounters {
        &self.counters[slot as usize]
    }

    /// Writes a private slot. Only for the shadow's owner, with a slot off its free list.
    pub(super) fn write(&self, slot: u32, entry: Entry, now_ms: u32) {
        self.counters[slot as usize].reset(now_ms);
        let cell = self.entries[slot as usize].0.get();
        // SAFETY: the slot is private (see the module's text): no index names it, so no reference
        // to it exists, and this thread is the only owner of the free list.
        #[allow(unsafe_code)]
        unsafe {
            (*cell).write(entry);
        }
        self.slots.fetch_max(slot as usize + 1, Relaxed);
    }
}
