//! `libcudart`: the calls that begin with `cuda`, by what they are about.
//!
//! Where CUDA 12 and 13 differ in a call's arguments they differ in its symbol, too
//! (`cudaGetDeviceProperties_v2` and `cudaGetDeviceProperties`), so that both are answered here side by side.
//! Versions and names of errors need no device and are left to NVIDIA's library.

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
    /// The device that this thread's calls are for.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The device that this thread's calls are for.
///
/// # Errors
///
/// `InvalidDevice` if there is none at all.
pub(crate) fn current_device() -> Outcome<usize> {
    setup().device(i32::try_from(CURRENT.get()).unwrap_or(i32::MAX))
}

/// Makes this thread's calls be for a device, by CUDA's number.
///
/// # Errors
///
/// `InvalidDevice` if there are not so many.
pub(crate) fn set_current_device(number: i32) -> Outcome {
    CURRENT.set(setup().device(number)?);
    Ok(())
}
