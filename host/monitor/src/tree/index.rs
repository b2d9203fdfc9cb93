//! From a process to its node: open addressing, half empty, no allocation after the start.

use crate::resident::present;

/// The table.
#[derive(Debug)]
pub(super) struct Index {
    /// Process and node; process 0 is an empty place.
    slots: Box<[(u32, u32)]>,
    mask: usize,
    room: usize,
}

impl Index {
    pub(super) fn new(capacity: usize) -> Index {
        let size = (capacity * 2).next_power_of_two();
        let slots = present(vec![(0, 0); size]).into_boxed_slice();
        Index { slots, mask: size - 1, room: capacity }
    }

    fn home(&self, process: u32) -> usize {
        (process.wrapping_mul(0x9e37_79b1) >> 8) as usize & self.mask
    }

    fn at(&self, process: u32) -> Result<usize, usize> {
        let mut slot = self.home(process);
        loop {
            match self.slots[slot].0 {
                0 => return Err(slot),
                other if other == process => return Ok(slot),
                _ => slot = (slot + 1) & self.mask,
            }
        }
    }

    pub(super) fn get(&self, process: u32) -> Option<u32> {
        if process == 0 {
            return None;
        }
        self.at(process).ok().map(|slot| self.slots[slot].1)
    }

    /// Whether there was room; process 0 is none.
    pub(super) fn put(&mut self, process: u32, node: u32) -> bool {
        if process == 0 || self.room == 0 {
            return false;
        }
        match self.at(process) {
            Ok(_) => false,
            Err(slot) => {
                self.slots[slot] = (process, node);
                self.room -= 1;
                true
            }
        }
    }

    pub(super) fn remove(&mut self, process: u32) -> Option<u32> {
        if process == 0 {
            return None;
        }
        let mut hole = self.at(process).ok()?;
        let node = self.slots[hole].1;
        self.room += 1;
        // What follows moves up when the hole is on its way from home.
        let mut next = (hole + 1) & self.mask;
        while self.slots[next].0 != 0 {
            let home = self.home(self.slots[next].0);
            let from_home = next.wrapping_sub(home) & self.mask;
            if from_home >= next.wrapping_sub(hole) & self.mask {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & self.mask;
        }
        self.slots[hole] = (0, 0);
        Some(node)
    }
}
