//! A lock that may be taken inside `malloc`: [`Spin`]. It allocates nothing, and can be held across a fork.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

pub(crate) struct Spin<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Spin<T> {}

pub(crate) struct Guard<'lock, T>(&'lock Spin<T>);

impl<T> Spin<T> {
    pub(crate) const fn new(value: T) -> Spin<T> {
        Spin { is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        (!self.is_taken.swap(true, Ordering::Acquire)).then_some(Guard(self))
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            sys::give_way();
        }
    }

    /// Takes the lock until [`Spin::release`], for a fork.
    pub(crate) fn hold(&self) {
        std::mem::forget(self.lock());
    }

    /// Ends [`Spin::hold`].
    pub(crate) fn release(&self) {
        self.is_taken.store(false, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.release();
    }
}
