//! `libcudart`: the calls that begin with `cuda`, by subject.
//!
//! If a call's arguments differ between CUDA 12 and 13, so does its symbol (`cudaGetDeviceProperties_v2` and
//! `cudaGetDeviceProperties`), so both are defined here. Versions and error names need no device: NVIDIA's library
//! provides them.

mod allocation;
mod device;
mod entry;
mod graph;
mod images;
mod ipc;
mod kernel;
mod streams;

use std::cell::Cell;

use crate::error::Outcome;
use crate::gpu::setup;

pub(crate) use entry::{Symbol, address_of};
pub(crate) use kernel::{BLOCKS_PER_MULTIPROCESSOR, REGISTERS, THREADS_PER_BLOCK};

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

/// Sets this thread's current device, by CUDA's number.
///
/// # Errors
///
/// `InvalidDevice` if there is none with that number.
pub(crate) fn set_current_device(number: i32) -> Outcome {
    CURRENT.set(setup().device(number)?);
    Ok(())
}
