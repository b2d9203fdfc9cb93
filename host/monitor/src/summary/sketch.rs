//! Bloom filter, Count-Min sketch (Cormode and Muthukrishnan), and the heaviest keys by it.

use crate::resident::present;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A key: a number or a text of up to 16 bytes.
pub type Key = [u8; 16];

/// The key of a number.
pub fn key_of_number(number: u64) -> Key {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// The key of a text; of a longer one, of its first 15 bytes, as the kernel keeps names.
pub fn key_of_text(text: &str) -> Key {
    let mut key = [0; 16];
    let length = text.len().min(15);
    key[..length].copy_from_slice(&text.as_bytes()[..length]);
    key
}

/// Makes hashes of keys.
#[derive(Clone, Debug, Default)]
pub struct Keys(RandomState);

impl Keys {
    /// A place in each row of a sketch, each from bits of its own: two keys meet in all rows once in `ROW` to the power of `ROWS`.
    /// Places from two halves ([`Keys::places`]) would meet in all as soon as they meet in two.
    fn parts(&self, key: &Key) -> impl Iterator<Item = usize> {
        const BITS: usize = u64::BITS as usize / ROWS;
        const { assert!(ROW <= 1 << BITS && ROW.is_power_of_two()) };
        let hash = self.hash(key);
        (0..ROWS).map(move |row| (hash >> (row * BITS)) as usize % ROW)
    }

    fn hash(&self, key: &Key) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Two independent halves, from which as many hashes are made as are needed (Kirsch and Mitzenmacher).
    fn halves(&self, key: &Key) -> (u64, u64) {
        let hash = self.hash(key);
        (hash & 0xffff_ffff, hash >> 32 | 1)
    }

    fn places(&self, key: &Key, count: usize, size: usize) -> impl Iterator<Item = usize> {
        let (first, second) = self.halves(key);
        (0..count as u64).map(move |n| (first.wrapping_add(n.wrapping_mul(second)) % size as u64) as usize)
    }
}

/// Bits of a Bloom filter: 1 % false "yes" after some 6,800 keys.
const BLOOM_BITS: usize = 1 << 16;
const BLOOM_HASHES: usize = 6;

/// A set that forgets nothing and now and then believes too much.
#[derive(Clone, Debug)]
pub struct Bloom {
    keys: Keys,
    words: Box<[u64]>,
}

impl Default for Bloom {
    fn default() -> Bloom {
        Bloom { keys: Keys::default(), words: present(vec![0; BLOOM_BITS / 64]).into_boxed_slice() }
    }
}

impl Bloom {
    /// Bytes that it takes.
    pub const BYTES: usize = BLOOM_BITS / 8;

    /// Adds a key.
    pub fn add(&mut self, key: &Key) {
        for place in self.keys.places(key, BLOOM_HASHES, BLOOM_BITS) {
            self.words[place / 64] |= 1 << (place % 64);
        }
    }

    /// Whether it was added, perhaps.
    pub fn seen(&self, key: &Key) -> bool {
        self.keys
            .places(key, BLOOM_HASHES, BLOOM_BITS)
            .all(|place| self.words[place / 64] >> (place % 64) & 1 == 1)
    }
}

/// Counters of a row: the error is at most `e / ROW` of all that was counted, with probability `1 - e^-ROWS`.
const ROW: usize = 2048;
const ROWS: usize = 4;

/// Frequencies that are never too low.
#[derive(Clone, Debug)]
pub struct CountMin {
    keys: Keys,
    counters: Box<[u32]>,
}

impl Default for CountMin {
    fn default() -> CountMin {
        CountMin { keys: Keys::default(), counters: present(vec![0; ROW * ROWS]).into_boxed_slice() }
    }
}

impl CountMin {
    /// Bytes that it takes.
    pub const BYTES: usize = ROW * ROWS * 4;

    /// Counts a key, conservatively: only the counters that are lowest grow. Returns its frequency now.
    pub fn add(&mut self, key: &Key) -> u32 {
        let now = self.frequency(key).saturating_add(1);
        for (row, place) in self.keys.parts(key).enumerate() {
            let counter = &mut self.counters[row * ROW + place];
            *counter = (*counter).max(now);
        }
        now
    }

    /// How often it was counted, or more.
    pub fn frequency(&self, key: &Key) -> u32 {
        let places = self.keys.parts(key).enumerate();
        places.map(|(row, place)| self.counters[row * ROW + place]).min().unwrap_or(0)
    }
}

/// Most keys that are kept as the heaviest.
pub const TOP_MAX: usize = 16;

/// The most frequent keys.
#[derive(Clone, Debug, Default)]
pub struct Heaviest {
    counts: CountMin,
    rows: [(Key, u32); TOP_MAX],
}

impl Heaviest {
    /// Bytes that it takes.
    pub const BYTES: usize = CountMin::BYTES + TOP_MAX * 20;

    /// Counts a key.
    pub fn add(&mut self, key: &Key) {
        let count = self.counts.add(key);
        let known = self.rows.iter().position(|(other, count)| *count > 0 && other == key);
        let at = known.unwrap_or(TOP_MAX - 1);
        if known.is_some() || count > self.rows[at].1 {
            self.rows[at] = (*key, count);
            // It moves up to its place; the rows stay sorted.
            let mut at = at;
            while at > 0 && self.rows[at - 1].1 < self.rows[at].1 {
                self.rows.swap(at - 1, at);
                at -= 1;
            }
        }
    }

    /// The heaviest, at most [`TOP_MAX`], heaviest first.
    pub fn rows(&self) -> impl Iterator<Item = (Key, u32)> {
        self.rows.iter().copied().filter(|(_, count)| *count > 0)
    }
}
