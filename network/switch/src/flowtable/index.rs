//! From a key's hash to a dense index: buckets of eight tags, two buckets a key.
//!
//! A bucket is one cache line. A key may be in either of two buckets, and goes into the emptier one; an
//! insert into two full buckets reports failure, and the owner doubles the index. So no insert is
//! ever lost, and a lookup reads one line of the index nearly always, two at most.

use super::store::FlowStore;
use super::zeroed::{Zeroable, Zeroed, prefetch};
use std::collections::HashMap;
use weir_model::resource::Encapsulation;
use weir_packet::{FlowKey, IpAddress};

const WAYS: usize = 8;
const BUCKETS_MIN: usize = 64;
const EMPTY_TAG: u16 = 0;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u16; WAYS],
    slots: [u32; WAYS],
}

// SAFETY: plain numbers; zeros are an empty bucket.
#[allow(unsafe_code)]
unsafe impl Zeroable for Bucket {}

/// Most buckets: twice what so many keys need at three quarters full, rounded up.
fn buckets_max(flows_max: usize) -> usize {
    ((flows_max / WAYS * 4 / 3).next_power_of_two() * 2).max(BUCKETS_MIN)
}

impl Bucket {
    /// One bit a way whose tag is `tag`.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    fn matches(&self, tag: u16) -> u32 {
        use std::arch::x86_64::{
            _mm_cmpeq_epi16, _mm_load_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
            _mm_setzero_si128,
        };
        // SAFETY: the tags are 16 bytes at the start of an aligned line; every processor of this kind has these
        // instructions.
        #[allow(unsafe_code)]
        unsafe {
            let equal =
                _mm_cmpeq_epi16(_mm_load_si128(self.tags.as_ptr().cast()), _mm_set1_epi16(tag as i16));
            _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u32
        }
    }

    /// One bit a way whose tag is `tag`.
    #[inline(always)]
    #[cfg(not(target_arch = "x86_64"))]
    fn matches(&self, tag: u16) -> u32 {
        let mut bits = 0;
        for way in 0..WAYS {
            bits |= u32::from(self.tags[way] == tag) << way;
        }
        bits
    }
}

/// The two tables could not take the key: double the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded;

/// See the module.
pub struct Index {
    buckets: Zeroed<Bucket>,
    count: usize,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("buckets", &self.buckets.len()).field("count", &self.count).finish()
    }
}

#[inline(always)]
fn tag_of(hash: u64) -> u16 {
    ((hash >> 48) as u16).max(1)
}

impl Default for Index {
    fn default() -> Index {
        Index::with_buckets(BUCKETS_MIN)
    }
}

impl Index {
    fn with_buckets(buckets: usize) -> Index {
        Index { buckets: Zeroed::new(buckets), count: 0 }
    }

    /// Keys in it.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Keys that it has room for before it should grow: three quarters.
    pub fn comfort(&self) -> usize {
        self.buckets.len() * WAYS / 4 * 3
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// Most bytes of one for so many flows.
    pub fn bytes_max(flows_max: usize) -> usize {
        buckets_max(flows_max) * size_of::<Bucket>()
    }

    /// Has the line fetched that a key is looked for in first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (first, _) = self.places(hash, tag_of(hash));
        prefetch(&raw const self.buckets[first]);
    }

    /// The first slot whose tag is that of a key: nearly always the key's, if it has one.
    #[inline]
    pub fn likely(&self, hash: u64) -> Option<u32> {
        let tag = tag_of(hash);
        let (first, second) = self.places(hash, tag);
        [first, second].into_iter().find_map(|place| {
            let bucket = &self.buckets[place];
            let bits = bucket.matches(tag);
            (bits != 0).then(|| bucket.slots[bits.trailing_zeros() as usize])
        })
    }

    #[inline(always)]
    fn places(&self, hash: u64, tag: u16) -> (usize, usize) {
        let mask = self.buckets.len() - 1;
        let first = hash as usize & mask;
        // The other place must be computable from either: exclusive or with a function of the tag.
        let second = (first ^ (usize::from(tag).wrapping_mul(0x9e37_79b1))) & mask;
        (first, second)
    }

    /// The dense index of a key.
    #[inline]
    pub fn find(&self, store: &FlowStore, hash: u64, key: &FlowKey) -> Option<u32> {
        let tag = tag_of(hash);
        let (first, second) = self.places(hash, tag);
        for place in [first, second] {
            let bucket = &self.buckets[place];
            let mut bits = bucket.matches(tag);
            while bits != 0 {
                let slot = bucket.slots[bits.trailing_zeros() as usize];
                if store.entry(slot).key == *key {
                    return Some(slot);
                }
                bits &= bits - 1;
            }
        }
        None
    }

    /// Puts a slot in. The key must not be in yet.
    ///
    /// # Errors
    /// [`Crowded`]; nothing has changed then.
    pub fn insert(&mut self, hash: u64, slot: u32) -> Result<(), Crowded> {
        let tag = tag_of(hash);
        let (first, second) = self.places(hash, tag);
        let free = |place: usize| self.buckets[place].matches(EMPTY_TAG);
        let (in_first, in_second) = (free(first), free(second));
        let (place, bits) = if in_first.count_ones() >= in_second.count_ones() {
            (first, in_first)
        } else {
            (second, in_second)
        };
        if bits == 0 {
            return Err(Crowded);
        }
        let way = bits.trailing_zeros() as usize;
        self.buckets[place].tags[way] = tag;
        self.buckets[place].slots[way] = slot;
        self.count += 1;
        Ok(())
    }

    /// Takes a slot out; tells whether it was in.
    pub fn remove(&mut self, hash: u64, slot: u32) -> bool {
        let tag = tag_of(hash);
        let (first, second) = self.places(hash, tag);
        for place in [first, second] {
            let bucket = &mut self.buckets[place];
            for way in 0..WAYS {
                if bucket.tags[way] == tag && bucket.slots[way] == slot {
                    bucket.tags[way] = EMPTY_TAG;
                    self.count -= 1;
                    return true;
                }
            }
        }
        false
    }

    /// The same keys with twice the buckets, or more where that is still crowded; `None` when that would
    /// be more than the store's flows can need.
    pub fn grown(&self, store: &FlowStore) -> Option<Index> {
        let mut buckets = self.buckets.len() * 2;
        while buckets <= buckets_max(store.flows_max()) {
            let mut grown = Index::with_buckets(buckets);
            let fits = self.slots().all(|slot| {
                let hash = store.hash(&store.entry(slot).key);
                grown.insert(hash, slot).is_ok()
            });
            if fits {
                return Some(grown);
            }
            buckets *= 2;
        }
        None
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        self.buckets.iter().flat_map(|bucket| {
            (0..WAYS).filter(|&way| bucket.tags[way] != EMPTY_TAG).map(|way| bucket.slots[way])
        })
    }
}

/// What the zone of a packet from the underlay hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZoneKey {
    /// Outer source address.
    pub sender: IpAddress,
    /// Identifier of the network.
    pub vni: u32,
    /// Format of the outer headers.
    pub format: Encapsulation,
}

/// Zones of senders.
pub type Zones = HashMap<ZoneKey, u32, foldhash::fast::RandomState>;
