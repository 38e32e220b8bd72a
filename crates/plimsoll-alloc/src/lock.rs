//! The lock that [`DeviceMemory`](crate::DeviceMemory) and [`PinnedMemory`](crate::PinnedMemory) hold while
//! they call the allocator: [`Lock`].
//!
//! Note [Which lock]: `parking_lot`'s. Against the standard library's it saves 47 of 930 instructions in an
//! allocate-and-free pair, because it does not check for panics, and it is eventually fair: it hands over to
//! the thread that waited longest, so that no thread starves next to one that calls the driver repeatedly
//! (driver calls are made under the lock, as in PyTorch). A lock released by a plain store would save another
//! 10 ns of 75, but it cannot wake a sleeping thread. With one thread in the driver for 3 ms at a time,
//! three others that slept between tries completed one pair each in 300 ms; with this lock, 16,000 to a million.
//!
//! An allocate+free pair that takes the lock once, or never, is hardly faster: docs/notes/0006 has the measurements.
//!
//! Note [Which model checker]: shuttle. In this crate's unit tests the lock is shuttle's, and so are the
//! threads that the pools distinguish: a scheduler picks the next thread at each lock and unlock, and
//! `schedules.rs` runs small programs under every schedule. All shared state is behind this lock, so
//! exploring schedules is enough; loom also explores weak memory orderings, which
//! the handle does not use, and needs a separate build (`--cfg loom`), while this runs in `cargo test`.
//! The lock itself is not explored.

#[cfg(not(test))]
use parking_lot::{Mutex, MutexGuard};

#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(test)]
pub(crate) use shuttle::thread;
#[cfg(not(test))]
pub(crate) use std::thread;

/// A mutex without poisoning: if a thread panics while it holds the lock, the others continue.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

/// Access to the value, until it is dropped.
pub(crate) type Guard<'a, T> = MutexGuard<'a, T>;

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Acquires the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let value = self.0.lock();
        #[cfg(test)]
        let value = value.unwrap_or_else(PoisonError::into_inner);
        value
    }
}
