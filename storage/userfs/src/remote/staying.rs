//! Names that stay while something is done by them.
//!
//! A protocol that has only paths makes, removes and puts up files by their names; and a store that renames a folder copies all that is in it, one
//! after the other. What is put up below an old name at that moment would come back there. So who does something by a path holds the
//! names of the file and of all folders above it together with others who do; who changes a name holds it alone.
//!
//! Invariants
//! - Locks are taken in the order of the files' numbers, and all at once, so that nobody waits in a circle.
//! - The root has no name.
//! - Whoever holds a name does not wait for another while [`Remote::nodes`] is locked.

use super::{Protocol, Remote};
use crate::backend::Inode;
use crate::error::{Errno, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Read by who does something by the name; written by who takes or changes it.
pub(super) type NameLock = Arc<RwLock<()>>;

/// How often names may change between finding out which they are and holding them; each time somebody else has renamed a folder.
const TRIES_MAX: usize = 64;

/// How a name is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Together,
    Alone,
}

/// By the numbers of the files.
pub(super) type Locks = BTreeMap<Inode, (How, NameLock)>;

/// Names that something needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Needed<'a> {
    /// Files whose paths must stay.
    pub(super) files: &'a [Inode],
    /// Names that are changed or taken, with their folders.
    pub(super) changed: &'a [(Inode, &'a OsStr)],
}

/// Let go when it is dropped.
enum Held<'a> {
    Together { _guard: RwLockReadGuard<'a, ()> },
    Alone { _guard: RwLockWriteGuard<'a, ()> },
}

impl Held<'_> {
    fn take((how, lock): &(How, NameLock)) -> Held<'_> {
        match how {
            How::Together => Held::Together { _guard: lock.read().unwrap_or_else(PoisonError::into_inner) },
            How::Alone => Held::Alone { _guard: lock.write().unwrap_or_else(PoisonError::into_inner) },
        }
    }
}

fn are_same(a: &Locks, b: &Locks) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && a.1.0 == b.1.0)
}

impl<P: Protocol> Remote<P> {
    /// Does `work` while these names are held: its paths are to be asked for inside.
    pub(super) fn holding<T>(&self, needed: Needed<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        for _ in 0..TRIES_MAX {
            let locks = self.nodes().name_locks(needed);
            let _held: Vec<Held<'_>> = locks.values().map(Held::take).collect();
            // A folder may lie elsewhere by now.
            if are_same(&locks, &self.nodes().name_locks(needed)) {
                return work();
            }
        }
        tracing::warn!("names of folders changed {TRIES_MAX} times before they could be used");
        Err(Errno(libc::EBUSY))
    }
}
