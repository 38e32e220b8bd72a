//! NVIDIA's libraries, opened at run time: a GPU's memory, streams, kernels from text, matrix products.
//!
//! The edge between Plimsoll and CUDA. Nothing here is needed to build: `libcuda`, NVRTC and cuBLASLt are searched when a
//! device is opened or first needs them, and one that is missing gives an error that names it and every place that was
//! searched. This crate knows addresses and bytes; what a tensor or an operator is, only `plimsoll-tensor` knows.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | what it has |
//! |---|---|
//! | `error.rs` | [`CudaError`]: what is missing, what a call returned, whether the context is lost |
//! | `search.rs`, `library.rs` | where libraries are looked for; an open library |
//! | `driver.rs` | `libcuda`: the calls that are used, checked |
//! | `cubin.rs`, `nvrtc.rs` | the folder that keeps machine code; text to machine code |
//! | `step.rs` | what a device is asked to do: launches, products, fills |
//! | `algorithm.rs`, `blas.rs` | which of cuBLASLt's algorithms a product takes; cuBLASLt: products |
//! | `dnn/` | cuDNN's graph API: convolutions, their plans by shape |
//! | `streams.rs` | streams and events |
//! | `kernels.rs` | kernels that are loaded |
//! | `pinned.rs`, `faults.rs` | host memory that the device sees: for copies, and for errors that kernels find |
//! | `graph_functions.rs` | the driver's functions for graphs |
//! | `gpu.rs` | [`Gpu`]: a device with all of the above |
//! | `graph.rs` | captured work: [`CapturedGraph`] |
//! | `memory.rs` | [`CudaMemory`]: the device's memory for the allocator |
//!
//! Unsafe code is in `library.rs`, `driver.rs`, `nvrtc.rs`, `blas.rs`, `dnn/descriptor.rs`, `pinned.rs`, `graph.rs` and
//! `graph_functions.rs`.

#![deny(unsafe_code)]

mod algorithm;
#[allow(unsafe_code)]
mod blas;
mod cubin;
mod dnn;
#[allow(unsafe_code)]
mod driver;
mod error;
mod faults;
mod gpu;
#[allow(unsafe_code)]
mod graph;
#[allow(unsafe_code)]
mod graph_functions;
mod kernels;
#[allow(unsafe_code)]
mod library;
mod memory;
#[allow(unsafe_code)]
mod nvrtc;
#[allow(unsafe_code)]
mod pinned;
mod search;
mod step;
mod streams;

pub use error::{CudaError, Result};
pub use faults::Fault;
pub use gpu::{Gpu, GpuFacts, Libraries};
pub use graph::{CapturedGraph, GraphNode};
pub use memory::CudaMemory;
pub use nvrtc::compile;
pub use search::Search;
pub use step::{
    Args, Convolution, ConvolutionPass, ConvolutionStep, Float, Laid, Launch, Matrix, Product, Source, Step,
};
