//! This thread's current device.

use std::cell::Cell;

use super::setup;
use crate::error::Outcome;

thread_local! {
    /// This thread's current device.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// This thread's current device.
///
/// # Errors
///
/// `InvalidDevice` if there is no device.
pub(crate) fn current_device() -> Outcome<usize> {
    setup().device(i32::try_from(CURRENT.get()).unwrap_or(i32::MAX))
}

/// Sets this thread's current device to the one with this CUDA number.
///
/// # Errors
///
/// `InvalidDevice` if there is none with that number.
pub(crate) fn set_current_device(number: i32) -> Outcome {
    CURRENT.set(setup().device(number)?);
    Ok(())
}
