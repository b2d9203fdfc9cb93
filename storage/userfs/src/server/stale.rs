//! What the kernel must be told to forget.

use crate::backend::Inode;
use fuser::{INodeNo, Notifier};
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Inodes whose pages and attributes the kernel must drop. Another thread tells it: the kernel may hold a page locked
/// that waits for a reply of ours. No more entries than there are inodes.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    inodes: Mutex<(HashSet<Inode>, bool)>,
    changed: Condvar,
    notifier: OnceLock<Notifier>,
}

impl Stale {
    pub(crate) fn push(&self, inode: Inode) {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner).0.insert(inode);
        self.changed.notify_one();
    }

    /// By this the kernel is told at once.
    pub(crate) fn tell_by(&self, notifier: Notifier) {
        let _ = self.notifier.set(notifier);
    }

    /// The kernel forgets the attributes, and keeps the pages: so this waits for no page, and a request may be answered after it.
    pub(crate) fn tell_attributes(&self, inode: Inode) {
        match self.notifier.get() {
            // An inode that the kernel no longer knows needs nothing.
            Some(notifier) => drop(notifier.inval_inode(INodeNo(inode), -1, 0)),
            None => self.push(inode),
        }
    }

    /// Lets [`Stale::take`] end.
    pub(crate) fn close(&self) {
        self.inodes.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_one();
    }

    /// Waits for inodes, not longer than this, and then gives none; nothing once closed.
    pub(crate) fn take(&self, most: Duration) -> Option<HashSet<Inode>> {
        let waiting = self.inodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = self
            .changed
            .wait_timeout_while(waiting, most, |(inodes, closed)| inodes.is_empty() && !*closed)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        (!found.1).then(|| std::mem::take(&mut found.0))
    }
}
