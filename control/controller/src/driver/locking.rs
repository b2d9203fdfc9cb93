//! The one way in which the driver takes a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes a lock, also after a panic.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves maps and queues that are each whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
