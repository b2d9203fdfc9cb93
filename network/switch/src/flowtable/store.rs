//! The flat arrays behind the index: flows, and what is to be done with them.
//!
//! They have room for the most flows that there may be; memory comes when a slot is first used ([`super::zeroed`]), and is kept
//! while the process lives. All that a plain packet needs of its flow alone is one cache line ([`Flow`]): the key, what the flow has carried,
//! and the number of its [`Brief`]. Briefs are shared: a million flows lead to some thousand endpoints, by as many rules. Lines that
//! follow one another are of flows, so those of a million lie in as few pages as can be. A flow's whole action, which other packets need, is
//! apart, two lines a flow.
//!
//! Who may touch what (the proof that the `unsafe` here is sound):
//! - A slot is *private* from the moment that the shadow's owner takes it off the free list until it
//!   publishes an index that names it. Only then it is written.
//! - It is *shared* from then until the owner has got back the last index that named it. Nobody
//!   writes it then, but for its statistics.
//! - Publishing and getting back go through channels, whose send happens before the receive.
//! - A brief or a way is written when the first slot that names it is private, and not again before the last slot that names it is.
//!
//! Statistics are atomics with one writer each: no ordering is needed, a reader may be a little late.

use super::action::{Brief, CompiledAction};
use super::book::Book;
use super::tunnel::Tunnel;
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

/// Number of a brief.
pub type BriefIndex = u32;

/// A flow, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Flow {
    /// Its key, zone included.
    pub key: FlowKey,
    brief: BriefIndex,
    /// What the engine has seen of it.
    pub counters: FlowCounters,
}

impl Flow {
    pub(super) fn brief_number(&self) -> BriefIndex {
        self.brief
    }
}

const _: () = assert!(size_of::<Flow>() == LINE_BYTES);

/// A flow's action, which begins a line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Whole(CompiledAction);

const _: () = assert!(size_of::<Whole>() == 2 * LINE_BYTES);

/// A brief, which lies in one line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Common(Brief);

struct Cell<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: what may be uninitialised may be zero.
#[allow(unsafe_code)]
unsafe impl<T> Zeroable for Cell<T> {}

impl<T> Cell<T> {
    /// What is in it.
    ///
    /// # Safety
    /// It was written before, and is not written again while the borrow lives.
    #[allow(unsafe_code)]
    #[inline(always)]
    unsafe fn get(&self) -> &T {
        // SAFETY: the caller's promise.
        unsafe { (*self.0.get()).assume_init_ref() }
    }

    /// Writes it.
    ///
    /// # Safety
    /// No reference to what is in it exists, and nobody else writes.
    #[allow(unsafe_code)]
    unsafe fn write(&self, value: T) {
        // SAFETY: the caller's promise.
        unsafe {
            (*self.0.get()).write(value);
        }
    }
}

/// What the engine has seen of a flow: 16 bytes. Whoever reads it once an hour at least, and once in four thousand million packets, misses
/// nothing.
#[derive(Debug, Default)]
#[repr(C)]
pub struct FlowCounters {
    bytes: AtomicU64,
    packets: AtomicU32,
    /// Time of the last packet, milliseconds since the start of the process, all but its highest 8 bits; below it the TCP flags, or-ed.
    seen: AtomicU32,
}

/// Bits of TCP flags in [`FlowCounters`].
const FLAG_BITS: u32 = 8;
const FLAGS: u32 = (1 << FLAG_BITS) - 1;

impl FlowCounters {
    fn new(now_ms: u32) -> FlowCounters {
        FlowCounters { seen: AtomicU32::new(now_ms << FLAG_BITS), ..FlowCounters::default() }
    }

    /// Counts packets. For the engine, the only writer.
    #[inline]
    pub fn count(&self, packets: u32, bytes: u64, now_ms: u32, tcp_flags: u8) {
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
        self.packets.store(self.packets.load(Relaxed).wrapping_add(packets), Relaxed);
        let flags = self.seen.load(Relaxed) & FLAGS | u32::from(tcp_flags);
        self.seen.store(now_ms << FLAG_BITS | flags, Relaxed);
    }

    /// Bytes of the inner frames.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Packets, wrapping; segments of a large one count each.
    #[inline]
    pub fn packets(&self) -> u32 {
        self.packets.load(Relaxed)
    }

    /// TCP flags, or-ed.
    #[inline]
    pub fn tcp_flags(&self) -> u8 {
        self.seen.load(Relaxed) as u8
    }

    /// TCP flags since the last time, or-ed. The engine may write the old ones back: they are told twice then.
    pub fn take_tcp_flags(&self) -> u8 {
        // Without any there is nothing to write: the line stays with the engine's processor.
        if self.tcp_flags() == 0 { 0 } else { self.seen.fetch_and(!FLAGS, Relaxed) as u8 }
    }

    /// Time of the last packet, if it was less than two hours before `now_ms`, or a little after it.
    pub fn last_seen_ms(&self, now_ms: u32) -> u32 {
        let seen = self.seen.load(Relaxed) & !FLAGS;
        let silent = ((now_ms << FLAG_BITS).wrapping_sub(seen)) as i32 >> FLAG_BITS;
        now_ms.wrapping_sub(silent as u32)
    }
}

/// The arrays. Shared by the engine and the slow thread.
pub struct FlowStore {
    flows: Zeroed<Cell<Flow>>,
    actions: Zeroed<Cell<Whole>>,
    /// As many as slots: at worst each flow has its own.
    briefs: Zeroed<Cell<Common>>,
    ways: Zeroed<Cell<Way>>,
    /// Slots below this were written at least once.
    slots: AtomicUsize,
    flows_max: usize,
    seed: HashSeed,
}

// SAFETY: cells are reached only under the rules in the module's text; all else is `Sync`.
#[allow(unsafe_code)]
unsafe impl Sync for FlowStore {}
// SAFETY: as above; what is in them is plain data.
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
            flows: Zeroed::new(slots),
            actions: Zeroed::new(slots),
            briefs: Zeroed::new(slots),
            ways: Zeroed::new(WAYS_MAX),
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
        self.flows.len()
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

    /// Bytes of one slot, without what it may share with others.
    pub const fn slot_bytes() -> usize {
        size_of::<Cell<Flow>>() + size_of::<Cell<Whole>>()
    }

    /// Bytes of so many briefs and ways.
    pub(super) const fn shared_bytes(briefs: usize, ways: usize) -> usize {
        briefs * size_of::<Cell<Common>>() + ways * size_of::<Cell<Way>>()
    }

    /// Most bytes for so many flows: that each has a brief of its own, of which the shadow's owner has notes, too.
    pub fn bytes_max(flows: usize) -> usize {
        let notes = Book::<Brief>::bytes_max(flows) + Book::<Tunnel>::bytes_max(WAYS_MAX);
        flows * Self::slot_bytes() + Self::shared_bytes(flows, WAYS_MAX) + notes
    }

    /// Has fetched what a packet of a flow needs: a plain one, or any other.
    #[inline]
    pub(super) fn prefetch(&self, slot: u32, is_plain: bool) {
        prefetch(self.flows.as_ptr().wrapping_add(slot as usize));
        if !is_plain {
            prefetch(self.actions.as_ptr().wrapping_add(slot as usize));
        }
    }

    /// The flow of a slot.
    ///
    /// The caller must be the engine with an index that names the slot, or the shadow's owner.
    #[inline]
    pub(super) fn flow(&self, slot: u32) -> &Flow {
        // SAFETY: the slot is named by a published index or owned by the caller (see the module's
        // text), so it was written before and nobody writes it while this borrow of the index lives.
        #[allow(unsafe_code)]
        unsafe {
            self.flows[slot as usize].get()
        }
    }

    /// The action of a slot. The caller as of [`FlowStore::flow`].
    #[inline]
    pub(super) fn action(&self, slot: u32) -> &CompiledAction {
        // SAFETY: as of `flow`: both are written together.
        #[allow(unsafe_code)]
        unsafe {
            &self.actions[slot as usize].get().0
        }
    }

    /// The beginning of what to do with a flow's packets, of one that the caller may read.
    #[inline]
    pub(super) fn brief(&self, flow: &Flow) -> &Brief {
        // SAFETY: a flow that may be read names it, so it was written before that flow, and it is not written again before the last
        // slot that names it is private (see the module's text and `book`).
        #[allow(unsafe_code)]
        unsafe {
            &self.briefs[flow.brief as usize].get().0
        }
    }

    /// Writes a brief that no slot names. Only for the shadow's owner, with a number off its free list.
    pub(super) fn write_brief(&self, number: BriefIndex, brief: Brief) {
        // SAFETY: no slot names it that anybody else may read, so no reference to it exists; the caller is the only owner of the
        // free list.
        #[allow(unsafe_code)]
        unsafe {
            self.briefs[number as usize].write(Common(brief));
        }
    }

    /// A way that a flow names which the caller may read.
    #[inline]
    pub fn way(&self, way: WayIndex) -> &Way {
        // SAFETY: a brief that may be read names it, so it was written before that, and it is not written again before the last
        // slot that names it is private (see the module's text and `book`). There are as many as the type has numbers.
        #[allow(unsafe_code)]
        unsafe {
            self.ways[usize::from(way)].get()
        }
    }

    /// Writes a way that no slot names. Only for the shadow's owner, with a number off its free list.
    pub(super) fn write_way(&self, number: WayIndex, way: Way) {
        // SAFETY: no slot names it that anybody else may read, so no reference to it exists; the caller is the only owner of the
        // free list.
        #[allow(unsafe_code)]
        unsafe {
            self.ways[usize::from(number)].write(way);
        }
    }

    /// What the engine has seen of a slot's flow. The caller as of [`FlowStore::flow`].
    #[inline]
    pub fn counters(&self, slot: u32) -> &FlowCounters {
        &self.flow(slot).counters
    }

    /// The key of a slot's flow. The caller as of [`FlowStore::flow`].
    #[inline]
    pub(crate) fn key(&self, slot: u32) -> &FlowKey {
        &self.flow(slot).key
    }

    /// The action of a slot's flow. The caller as of [`FlowStore::flow`].
    #[inline]
    pub(crate) fn action_of(&self, slot: u32) -> &CompiledAction {
        self.action(slot)
    }

    /// Writes a private slot. Only for the shadow's owner, with a slot off its free list.
    pub(super) fn write(
        &self,
        slot: u32,
        key: FlowKey,
        brief: BriefIndex,
        action: CompiledAction,
        now_ms: u32,
    ) {
        // SAFETY: the slot is private (see the module's text): no index names it, so no reference
        // to it exists, and this thread is the only owner of the free list.
        #[allow(unsafe_code)]
        unsafe {
            self.flows[slot as usize].write(Flow { key, brief, counters: FlowCounters::new(now_ms) });
            self.actions[slot as usize].write(Whole(action));
        }
        self.slots.fetch_max(slot as usize + 1, Relaxed);
    }
}
