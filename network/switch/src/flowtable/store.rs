//! The flat arrays behind the index: keys with actions, and statistics.
//!
//! Memory comes in chunks of [`CHUNK_SLOTS`], made when first needed and kept while the process lives.
//!
//! Who may touch what (the proof that the `unsafe` here is sound):
//! - A slot is *private* from the moment that the shadow's owner takes it off the free list until it
//!   publishes an index that names it. Only then it is written.
//! - It is *shared* from then until the owner has got back the last index that named it. Nobody
//!   writes it then.
//! - Publishing and getting back go through channels, whose send happens before the receive.
//!
//! Statistics are atomics with one writer each: no ordering is needed, a reader may be a little late.

use super::action::CompiledAction;
use crate::flow::FLOWS_MAX;
use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use weir_packet::{FlowKey, HashSeed};

/// Slots of one chunk.
pub const CHUNK_SLOTS: usize = 4096;
/// Most slots. More than flows, because a replaced flow's slot is free only after the next swap.
pub const SLOTS_MAX: usize = FLOWS_MAX + 2 * CHUNK_SLOTS;
const CHUNKS_MAX: usize = SLOTS_MAX / CHUNK_SLOTS;

/// Key and action of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its key, zone included.
    pub key: FlowKey,
    /// What to do with its packets.
    pub action: CompiledAction,
}

/// What the engine has seen of a flow.
#[derive(Debug, Default)]
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

struct Chunk {
    entries: Box<[UnsafeCell<Option<Entry>>]>,
    counters: Box<[FlowCounters]>,
}

/// The arrays. Shared by the engine and the slow thread.
pub struct FlowStore {
    chunks: Box<[OnceLock<Chunk>]>,
    seed: HashSeed,
}

// SAFETY: entries are reached only under the rules in the module's text; all else is `Sync`.
#[allow(unsafe_code)]
unsafe impl Sync for FlowStore {}

impl std::fmt::Debug for FlowStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowStore").field("slots", &self.slots()).finish()
    }
}

impl FlowStore {
    /// An empty store; `random` seeds the hash and must be secret.
    pub fn new(random: [u64; 2]) -> FlowStore {
        FlowStore { chunks: (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect(), seed: HashSeed::new(random) }
    }

    /// Hash of a key.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        key.hash(&self.seed)
    }

    /// Slots that have memory.
    pub fn slots(&self) -> usize {
        self.chunks.iter().take_while(|chunk| chunk.get().is_some()).count() * CHUNK_SLOTS
    }

    /// Bytes of one slot: entry and statistics.
    pub const fn slot_bytes() -> usize {
        size_of::<UnsafeCell<Option<Entry>>>() + size_of::<FlowCounters>()
    }

    #[inline]
    fn chunk(&self, slot: u32) -> &Chunk {
        match self.chunks[slot as usize / CHUNK_SLOTS].get() {
            Some(chunk) => chunk,
            None => unreachable!("slot {slot} was never written"),
        }
    }

    /// Key and action of a slot.
    ///
    /// The caller must be the engine with an index that names the slot, or the shadow's owner.
    #[inline]
    pub(super) fn entry(&self, slot: u32) -> &Entry {
        let cell = &self.chunk(slot).entries[slot as usize % CHUNK_SLOTS];
        // SAFETY: the slot is named by a published index or owned by the caller (see the module's
        // text), so it was written before and nobody writes it while this borrow of the index lives.
        #[allow(unsafe_code)]
        let entry = unsafe { &*cell.get() };
        match entry {
            Some(entry) => entry,
            None => unreachable!("slot {slot} is named by an index and empty"),
        }
    }

    /// Statistics of a slot.
    #[inline]
    pub fn counters(&self, slot: u32) -> &FlowCounters {
        &self.chunk(slot).counters[slot as usize % CHUNK_SLOTS]
    }

    /// Writes a private slot. Only for the shadow's owner, with a slot off its free list.
    pub(super) fn write(&self, slot: u32, entry: Entry, now_ms: u32) {
        let chunk = self.chunks[slot as usize / CHUNK_SLOTS].get_or_init(|| Chunk {
            entries: (0..CHUNK_SLOTS).map(|_| UnsafeCell::new(None)).collect(),
            counters: (0..CHUNK_SLOTS).map(|_| FlowCounters::default()).collect(),
        });
        chunk.counters[slot as usize % CHUNK_SLOTS].reset(now_ms);
        let cell = chunk.entries[slot as usize % CHUNK_SLOTS].get();
        // SAFETY: the slot is private (see the module's text): no index names it, so no reference
        // to it exists, and this thread is the only owner of the free list.
        #[allow(unsafe_code)]
        unsafe {
            *cell = Some(entry);
        }
    }
}
