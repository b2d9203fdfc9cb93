//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex holds. A panic elsewhere leaves plain values that are each whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
