//! Listings that a thread has learnt from lately. A folder is listed again and again, and mostly says what it has said before:
//! then there is nothing to learn from its hundreds of entries.
//!
//! A listing is known by a hash of its folder and all its entries, under a secret seed. When something was forgotten meanwhile, or
//! policies have changed, it is another one. Two that were taken for one would cost no more than what is forgotten does: names
//! that must be looked up again.

use foldhash::quality::RandomState;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher};

/// Listings that a thread remembers: 8 KiB.
const SLOTS: usize = 1024;

/// The name of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing(u64);

struct Memo {
    seed: RandomState,
    slots: Vec<Listing>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::new(Memo {
        seed: RandomState::default(),
        slots: vec![Listing::default(); SLOTS],
    });
}

impl Listing {
    /// The listing of a folder. `state` is what makes the same entries mean something else.
    pub fn of(state: [u64; 3], folder: &[u8], entries: &[u8]) -> Listing {
        MEMO.with_borrow(|memo| {
            let mut hasher = memo.seed.build_hasher();
            state.into_iter().for_each(|word| hasher.write_u64(word));
            hasher.write_usize(folder.len());
            hasher.write(folder);
            hasher.write(entries);
            Listing(hasher.finish())
        })
    }

    fn place(self) -> usize {
        self.0 as usize % SLOTS
    }

    /// True if this thread has learnt from it.
    pub fn is_learnt(self) -> bool {
        MEMO.with_borrow(|memo| memo.slots[self.place()] == self)
    }

    /// This thread has learnt from it.
    pub fn learnt(self) {
        MEMO.with_borrow_mut(|memo| memo.slots[self.place()] = self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_learnt_once_and_any_difference_makes_another_one() {
        let listing = Listing::of([1, 2, 3], b"folder", b"entries");
        assert!(!listing.is_learnt());
        listing.learnt();
        assert!(Listing::of([1, 2, 3], b"folder", b"entries").is_learnt());
        for (state, folder, entries) in [
            ([1, 2, 4], &b"folder"[..], &b"entries"[..]),
            ([1, 2, 3], b"folde", b"rentries"),
            ([1, 2, 3], b"folder", b"entriez"),
        ] {
            assert!(!Listing::of(state, folder, entries).is_learnt());
        }
        // Places are taken over.
        for number in 0..64 * SLOTS as u64 {
            Listing::of([number, 0, 0], b"", b"").learnt();
        }
        assert!(!listing.is_learnt());
    }
}
