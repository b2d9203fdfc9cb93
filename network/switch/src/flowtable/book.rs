//! What many flows share: each value once, with a number, as long as a slot names it.
//!
//! A value is written when the first slot that names it is, by the same owner, before any published index names that slot. It is free again
//! when the last slot that names it is: nobody else can read one of them then.

use std::collections::HashMap;
use std::hash::Hash;

/// Which values there are, for the owner of the flow table.
#[derive(Debug)]
pub(super) struct Book<V> {
    numbers: HashMap<V, u32, foldhash::quality::RandomState>,
    /// Slots that name each value that ever was.
    uses: Vec<u32>,
    free: Vec<u32>,
    most: usize,
}

impl<V: Copy + Eq + Hash> Book<V> {
    /// Empty, for at most so many values.
    pub(super) fn new(most: usize) -> Book<V> {
        Book { numbers: HashMap::default(), uses: Vec::new(), free: Vec::new(), most }
    }

    /// The number of a value, for one more slot. Where it has none yet, `write` is called with the one that it gets. `None` when there
    /// are too many.
    pub(super) fn take(&mut self, value: &V, write: impl FnOnce(u32)) -> Option<u32> {
        if let Some(number) = self.numbers.get(value) {
            self.uses[*number as usize] += 1;
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.uses.len() < self.most => {
                self.uses.push(0);
                self.uses.len() as u32 - 1
            }
            None => return None,
        };
        write(number);
        self.uses[number as usize] = 1;
        self.numbers.insert(*value, number);
        Some(number)
    }

    /// A slot that named a value is free.
    pub(super) fn give_back(&mut self, number: u32, value: &V) {
        let uses = &mut self.uses[number as usize];
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(value);
            self.free.push(number);
        }
    }

    /// Values that ever were at once.
    pub(super) fn peak(&self) -> usize {
        self.uses.len()
    }

    /// Bytes of it.
    pub(super) fn bytes(&self) -> usize {
        let noted = self.uses.capacity() + self.free.capacity();
        self.numbers.capacity() * Self::NUMBERED_BYTES + noted * size_of::<u32>()
    }

    /// Most bytes of one for so many values.
    pub(super) fn bytes_max(values: usize) -> usize {
        // A map that is to grow is a little less than half full of what it grows to; so is a vector.
        2 * values * (Self::NUMBERED_BYTES + 2 * size_of::<u32>())
    }

    /// Of a value with its number in the map.
    const NUMBERED_BYTES: usize = size_of::<(V, u32)>() + 1;
}
