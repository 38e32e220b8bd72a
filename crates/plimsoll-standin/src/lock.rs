//! Locks: a call that panicked while it held one keeps no other from going on.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a mutex guards, until the guard is dropped.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
