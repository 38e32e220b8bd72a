//! The lock that [`DeviceMemory`](crate::DeviceMemory) and [`PinnedMemory`](crate::PinnedMemory) hold while
//! they call the allocator: [`Lock`].
//!
//! Note [Which lock]: `parking_lot`'s. Compared with the standard library's lock, it saves 47 of 930 instructions in
//! an allocate-and-free pair, because it does not check for panics. It is also eventually fair: it passes the lock to the
//! thread that has waited longest, so a thread that calls the driver repeatedly does not starve the others (driver
//! calls are made under the lock, as in PyTorch). A lock that is released by a plain store would save another 10 of 75
//! ns, but it cannot wake a sleeping thread. In a test, one thread spent 3 ms at a time in the driver. Three other
//! threads, which slept between attempts to take such a lock, completed one pair each in 300 ms; with this lock, 16,000
//! to a million.
//!
//! Taking the lock once per allocate-and-free pair, or never, is hardly faster: docs/notes/0006 has the measurements.
//!
//! Note [Which model checker]: shuttle. In this crate's unit tests, the lock is shuttle's, and so are the threads that
//! redirects to pools refer to. A scheduler picks the next thread at each lock and unlock, and `schedules.rs`
//! runs small programs under every schedule. All shared state is behind this lock, so exploring schedules is enough.
//! loom also explores weak memory orderings, which the handle does not use, and needs a separate build (`--cfg loom`),
//! while shuttle runs in `cargo test`. The lock itself is not explored.

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
