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

pub(crate) use entry::{Symbol, address_of};
pub(crate) use kernel::{BLOCKS_PER_MULTIPROCESSOR, REGISTERS, THREADS_PER_BLOCK};
