//! The lock that [`DeviceMemory`](crate::DeviceMemory) and [`PinnedMemory`](crate::PinnedMemory) hold while
//! they ask their allocator: [`Lock`].
//!
//! Note [Which lock]: the standard library's. It takes an atomic exchange to lock and another to unlock, and
//! puts to sleep who has to wait. A spin lock unlocks by a plain store, which saved 6 to 10 ns of 72 in an
//! allocate-and-free pair; but then it cannot wake anyone. With one thread in the driver for 3 ms at a time,
//! three others that spun, yielded and then slept 50 µs between tries made 1 to 38,000 pairs each in 150 ms;
//! with this lock, 28,000 to 302,000. Two to eight threads at once were slower with it too: 215 to 311 ns a
//! pair, here 184 to 201. (Two busy cores, two runs each.) Driver calls are made under the lock, as PyTorch
//! makes them, so waiting well is worth those 10 ns.
//!
//! Note [Which model checker]: shuttle. In this crate's unit tests the lock is shuttle's, and so are the
//! threads that the pools tell apart: a scheduler decides who goes on at each lock and unlock, and
//! `schedules.rs` runs small programs under every schedule. All that threads share is behind this lock, so
//! schedules are all there is to explore; loom explores besides what atomics of weaker order may show, of
//! which the handle has none, and wants a build of its own (`--cfg loom`), where this runs in `cargo test`.
//! What is not explored is the lock itself.

#[cfg(not(test))]
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(test)]
pub(crate) use shuttle::thread;
#[cfg(not(test))]
pub(crate) use std::thread;

/// A value for one thread at a time.
#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

/// The right to the value, until it is dropped.
pub(crate) type Guard<'a, T> = MutexGuard<'a, T>;

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until no other thread has the value. A thread that panicked with it has told its story already;
    /// the others go on rather than panic again.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
