//! In which order changes reach servers, and which replies may still teach.
//!
//! Invariants
//! - Changes of one object, or of one name, are made one after another, so all replicas see them in the same order. Objects that may have
//!   several names share one lock: nobody knows which of them are the same.
//! - A reply teaches what a name leads to only if no change of that name was under way, or began, between question and lesson.

use super::names::Number;
use hashbrown::HashSet;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks of objects; the first one is that of all objects that may have several names.
const STRIPES: usize = 256;
/// Slots of names: two names in one slot cost a question more, no more.
const SLOTS: usize = 4096;
/// Most objects that are known to have one name; then it is found out anew.
const SINGLE_MAX: usize = 1 << 20;
const SEED: u64 = 0x6c6f_636b;

/// The locks.
#[derive(Debug)]
pub(super) struct Locks {
    stripes: Vec<Mutex<()>>,
    single: Mutex<HashSet<Number, foldhash::fast::RandomState>>,
}

impl Default for Locks {
    fn default() -> Self {
        Locks { stripes: (0..STRIPES).map(|_| Mutex::default()).collect(), single: Mutex::default() }
    }
}

impl Locks {
    fn single(&self) -> MutexGuard<'_, HashSet<Number, foldhash::fast::RandomState>> {
        self.single.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how many names an object has, as a server has just said under its lock.
    pub(super) fn has_names(&self, number: Number, one: bool) {
        let mut single = self.single();
        if !one {
            single.remove(&number);
            return;
        }
        if single.len() >= SINGLE_MAX {
            single.clear();
        }
        single.insert(number);
    }

    /// Locks objects, in an order that is the same for all. `folders` cannot have several names.
    pub(super) fn lock(&self, folders: &[Number], objects: &[Number]) -> Vec<MutexGuard<'_, ()>> {
        let own = |number: &Number| 1 + usize::try_from(*number).unwrap_or(0) % (STRIPES - 1);
        let mut stripes: Vec<usize> = folders.iter().map(own).collect();
        {
            let single = self.single();
            stripes
                .extend(objects.iter().map(|number| if single.contains(number) { own(number) } else { 0 }));
        }
        stripes.sort_unstable();
        stripes.dedup();
        stripes
            .into_iter()
            .map(|at| self.stripes[at].lock().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    /// True if an object is locked by what [`Locks::lock`] has chosen for it still.
    pub(super) fn is_single(&self, number: Number) -> bool {
        self.single().contains(&number)
    }
}

#[derive(Debug, Default)]
struct Slot {
    open: AtomicU32,
    last: AtomicU64,
}

/// Changes of names: which are under way, and when each name was changed last.
#[derive(Debug)]
pub(super) struct NameChanges {
    sequence: AtomicU64,
    slots: Vec<Slot>,
    hasher: foldhash::quality::FixedState,
}

impl Default for NameChanges {
    fn default() -> Self {
        NameChanges {
            sequence: AtomicU64::new(1),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            hasher: foldhash::quality::FixedState::with_seed(SEED),
        }
    }
}

impl NameChanges {
    fn slot(&self, folder: Number, name: &[u8]) -> usize {
        self.hasher.hash_one((folder, name)) as usize % SLOTS
    }

    /// When it is, for [`NameChanges::quiet`].
    pub(super) fn now(&self) -> u64 {
        self.sequence.load(Ordering::SeqCst)
    }

    /// Changes of names begin; they end with what comes back.
    pub(super) fn begin<'n>(&self, names: impl Iterator<Item = (Number, &'n [u8])>) -> NameChange<'_> {
        let slots: Vec<usize> = names.map(|(folder, name)| self.slot(folder, name)).collect();
        for slot in &slots {
            let slot = &self.slots[*slot];
            slot.open.fetch_add(1, Ordering::SeqCst);
            slot.last.store(self.sequence.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        NameChange { changes: self, slots }
    }

    /// True if no change of a name was under way at `since` or later.
    pub(super) fn quiet(&self, folder: Number, name: &[u8], since: u64) -> bool {
        let slot = &self.slots[self.slot(folder, name)];
        slot.open.load(Ordering::SeqCst) == 0 && slot.last.load(Ordering::SeqCst) <= since
    }
}

/// A change of names that is under way.
#[derive(Debug)]
pub(super) struct NameChange<'t> {
    changes: &'t NameChanges,
    slots: Vec<usize>,
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        for slot in &self.slots {
            let slot = &self.changes.slots[*slot];
            slot.last.store(self.changes.sequence.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            slot.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_change_has_overtaken_teaches_nothing() {
        let changes = NameChanges::default();
        let before = changes.now();
        assert!(changes.quiet(1, b"a", before));
        let change = changes.begin([(1, &b"a"[..]), (2, b"b")].into_iter());
        let during = changes.now();
        assert!(!changes.quiet(1, b"a", before) && !changes.quiet(2, b"b", during));
        assert!(changes.quiet(1, b"c", before), "another name");
        drop(change);
        assert!(!changes.quiet(1, b"a", before) && !changes.quiet(1, b"a", during));
        assert!(changes.quiet(1, b"a", changes.now()));
    }

    #[test]
    fn objects_that_may_have_several_names_share_a_lock() {
        let locks = Locks::default();
        let held = locks.lock(&[], &[7]);
        assert!(locks.stripes[0].try_lock().is_err());
        drop(held);
        locks.has_names(7, true);
        let held = locks.lock(&[8], &[7]);
        assert!(locks.stripes[0].try_lock().is_ok());
        assert_eq!(held.len(), 2);
        drop(held);
        locks.has_names(7, false);
        assert!(!locks.is_single(7));
    }
}
