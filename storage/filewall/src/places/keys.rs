//! Keys of handles: their hashes under a secret seed (SipHash of 128 bits), so that maps need not hold handles of up to 128 bytes, and
//! nobody can make two handles that are taken for one.
//!
//! A thread remembers the keys of the handles that it has seen lately, for the same ones come again and again. A key is a
//! function of the handle, and a place is compared as a whole, so a remembered one is as good as a new one.

use siphasher::sip128::SipHasher13;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// A handle's key.
pub type Key = (u64, u64);

/// Handles whose keys a thread remembers: about 0.4 MB.
const SLOTS: usize = 4096;
/// Longer handles are not remembered.
const BYTES_MAX: usize = 64;

/// What makes keys.
#[derive(Debug)]
pub struct Keys {
    /// A number that no other of this process has, never 0.
    pub number: u64,
    seed: Seed,
}

/// What keys are made under.
pub type Seed = [u8; 16];

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A seed that nobody knows.
pub fn seed() -> Seed {
    let mut seed = Seed::default();
    if getrandom::fill(&mut seed).is_err() {
        // The library has its own way to some.
        seed[..8].copy_from_slice(&std::hash::RandomState::new().hash_one(0u8).to_ne_bytes());
    }
    seed
}

impl Default for Keys {
    fn default() -> Self {
        Self::under(seed())
    }
}

#[derive(Clone)]
struct Slot {
    keys: u64,
    key: Key,
    length: u8,
    handle: [u8; BYTES_MAX],
}

struct Memo {
    hasher: foldhash::fast::RandomState,
    slots: Vec<Slot>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::new(Memo {
        hasher: foldhash::fast::RandomState::default(),
        slots: vec![Slot { keys: 0, key: (0, 0), length: 0, handle: [0; BYTES_MAX] }; SLOTS],
    });
}

impl Keys {
    /// Those that a seed makes.
    pub fn under(seed: Seed) -> Keys {
        Keys { number: NEXT.fetch_add(1, Ordering::Relaxed), seed }
    }

    /// What they are made under.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    fn make(&self, handle: &[u8]) -> Key {
        SipHasher13::new_with_key(&self.seed).hash(handle).as_u64()
    }

    /// The key of a handle.
    pub fn of(&self, handle: &[u8]) -> Key {
        if handle.len() > BYTES_MAX {
            return self.make(handle);
        }
        MEMO.with_borrow_mut(|memo| {
            let mut hasher = memo.hasher.build_hasher();
            hasher.write(handle);
            let place = hasher.finish() as usize % SLOTS;
            let slot = &mut memo.slots[place];
            if slot.keys == self.number && slot.handle.get(..usize::from(slot.length)) == Some(handle) {
                return slot.key;
            }
            *slot = Slot { keys: self.number, key: self.make(handle), length: 0, handle: [0; BYTES_MAX] };
            slot.length = handle.len() as u8;
            slot.handle[..handle.len()].copy_from_slice(handle);
            slot.key
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remembered_key_is_the_one_that_is_made() {
        let (one, other) = (Keys::default(), Keys::default());
        // More handles than are remembered, so that places are taken over; twice, so that some are found.
        for _ in 0..2 {
            for number in 0..2 * SLOTS {
                let handle = [&number.to_le_bytes()[..], &[7; BYTES_MAX]].concat();
                for bytes in [8, 28, BYTES_MAX, BYTES_MAX + 1] {
                    assert_eq!(one.of(&handle[..bytes]), one.make(&handle[..bytes]));
                }
            }
            assert_ne!(one.of(b"handle"), other.of(b"handle"), "seeds of their own");
            assert_ne!(one.of(b"handle"), one.of(b"handle\0"), "the length counts");
        }
    }
}
