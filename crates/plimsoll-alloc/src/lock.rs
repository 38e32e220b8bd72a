//! The lock that [`DeviceMemory`](crate::DeviceMemory) and [`PinnedMemory`](crate::PinnedMemory) hold while
//! they ask their allocator: [`Lock`].
//!
//! Note [Which lock]: `parking_lot`'s. Against the standard library's it saves 47 of 930 instructions in an
//! allocate-and-free pair, since it does not look for panics, and now and then it hands itself over to who
//! waited longest, so that nobody starves beside a thread that is in the driver again and again: driver calls
//! are made under the lock, as PyTorch makes them. A lock that is let go of by a plain store would save another
//! 10 ns of 75, but it cannot know whether anyone sleeps. With one thread in the driver for 3 ms at a time,
//! three others that napped between tries made a single pair each in 300 ms; with this lock, 16,000 to a million.
//!
//! An allocate+free pair that takes the lock once, or never, is hardly faster: docs/notes/0006 has the measurements.
//!
//! Note [Which model checker]: shuttle. In this crate's unit tests the lock is shuttle's, and so are the
//! threads that the pools tell apart: a scheduler decides who goes on at each lock and unlock, and
//! `schedules.rs` runs small programs under every schedule. All that threads share is behind this lock, so
//! schedules are all there is to explore; loom explores besides what atomics of weaker order may show, of
//! which the handle has none, and wants a build of its own (`--cfg loom`), where this runs in `cargo test`.
//! What is not explored is the lock itself.

#[cfg(not(test))]
use parking_lot::{Mutex, MutexGuard};

#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(test)]
pub(crate) use shuttle::thread;
#[cfg(not(test))]
pub(crate) use std::thread;

/// A value for one thread at a time. If a thread panics with it, the others go on.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

/// The right to the value, until it is dropped.
pub(crate) type Guard<'a, T> = MutexGuard<'a, T>;

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until no other thread has the value.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let value = self.0.lock();
        #[cfg(test)]
        let value = value.unwrap_or_else(PoisonError::into_inner);
        value
    }
}
