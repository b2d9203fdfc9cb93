//! From a key's hash to a dense index: buckets of eight tags, two buckets a key.
//!
//! A bucket is one cache line. A key may be in either of two buckets, and goes into its first one as long as that has room:
//! a look-up of a batch has only the first one fetched ahead, and whoever is in the second is waited for. (A key that goes into
//! the emptier one, as is usual, is in its second in three of ten cases; so it is in one of a hundred at half full, in six
//! at three quarters.) Where both are full an entry of theirs goes to its own other bucket, and only when none can the insert
//! reports failure, and the owner doubles the index. So no insert is ever lost, and a lookup reads two lines of the index at most.

use super::store::FlowStore;
use super::zeroed::{Zeroable, Zeroed, prefetch};
use std::collections::HashMap;
use weir_model::resource::Encapsulation;
use weir_packet::encap::Half;
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
        let first = hash as usize & (self.buckets.len() - 1);
        (first, self.other_place(first, tag))
    }

    /// The other place of a tag that is, or could be, in a bucket: from either it is an exclusive or with the same.
    #[inline(always)]
    fn other_place(&self, place: usize, tag: u16) -> usize {
        (place ^ usize::from(tag).wrapping_mul(0x9e37_79b1)) & (self.buckets.len() - 1)
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
                if store.flow(slot).key == *key {
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
        let (place, way) = match (self.free_way(first), self.free_way(second)) {
            (Some(way), _) => (first, way),
            (None, Some(way)) => (second, way),
            (None, None) => self.make_room(first, second).ok_or(Crowded)?,
        };
        self.put(place, way, tag, slot);
        self.count += 1;
        Ok(())
    }

    /// Has an entry of one of two full buckets go to its other bucket; returns the place that is free then.
    #[cold]
    fn make_room(&mut self, first: usize, second: usize) -> Option<(usize, usize)> {
        for place in [first, second] {
            for way in 0..WAYS {
                let (tag, slot) = (self.buckets[place].tags[way], self.buckets[place].slots[way]);
                let other = self.other_place(place, tag);
                if let Some(free) = self.free_way(other) {
                    self.put(other, free, tag, slot);
                    return Some((place, way));
                }
            }
        }
        None
    }

    #[inline]
    fn free_way(&self, place: usize) -> Option<usize> {
        let free = self.buckets[place].matches(EMPTY_TAG);
        (free != 0).then_some(free.trailing_zeros() as usize)
    }

    #[inline]
    fn put(&mut self, place: usize, way: usize, tag: u16, slot: u32) {
        self.buckets[place].tags[way] = tag;
        self.buckets[place].slots[way] = slot;
    }

    /// Share of the keys that are in the bucket which is looked at first.
    #[cfg(test)]
    pub fn share_in_first(&self, store: &FlowStore) -> f64 {
        let is_first = |place: usize, slot: u32| {
            let hash = store.hash(&store.flow(slot).key);
            self.places(hash, tag_of(hash)).0 == place
        };
        let ways = |place: usize| (0..WAYS).map(move |way| (place, way));
        let taken = (0..self.buckets.len())
            .flat_map(ways)
            .filter(|(place, way)| self.buckets[*place].tags[*way] != EMPTY_TAG)
            .filter(|(place, way)| is_first(*place, self.buckets[*place].slots[*way]));
        taken.count() as f64 / self.count as f64
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
                let hash = store.hash(&store.flow(slot).key);
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
    /// What the sender's half of the firewall decided.
    pub half: Half,
}

/// Zones of senders.
pub type Zones = HashMap<ZoneKey, u32, foldhash::fast::RandomState>;
