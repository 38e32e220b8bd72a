//! Opens NVIDIA's libraries at run time: a GPU's memory, streams, kernels from source text, matrix products.
//!
//! This crate is the interface between Plimsoll and CUDA. The build does not need CUDA: `libcuda`, NVRTC, cuBLASLt, cuDNN and
//! NCCL are looked for when a device is opened or first needs them. If one is missing, the error names it and every place that
//! was searched. It works with addresses and bytes; tensors and operators are in `plimsoll-tensor`.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `error.rs` | [`CudaError`]: what is missing, what a call returned, whether the context is lost |
//! | `search.rs`, `library.rs` | where to look for libraries; an open library |
//! | `driver.rs` | the calls of `libcuda` that are used, with error checks |
//! | `nvml.rs`, `probe.rs` | memory as NVML counts it; [`Probe`]: measures what a process takes on a GPU |
//! | `cubin.rs`, `nvrtc.rs` | the cache of machine code; the compiler from source text to machine code |
//! | `collective.rs` | what a collective moves |
//! | `nccl.rs` | collectives between GPUs with NCCL |
//! | `peers/` | collectives by copy engines, between GPUs of one host |
//! | `step.rs` | descriptions of work: launches, products, fills, collectives |
//! | `algorithm.rs`, `blas.rs` | the choice of cuBLASLt's algorithm for a product; products with cuBLASLt |
//! | `dnn/` | convolutions with cuDNN's graph API, with a plan for each shape |
//! | `streams.rs` | streams and events |
//! | `kernels.rs` | loaded kernels |
//! | `pinned.rs`, `faults.rs` | host memory that the device can access, for copies and for errors that kernels detect |
//! | `graph_functions.rs` | the driver's functions for graphs |
//! | `gpu.rs` | [`Gpu`]: a device with all of the above |
//! | `ranks.rs` | a GPU as one of several ranks |
//! | `graph.rs` | captured work: [`CapturedGraph`] |
//! | `memory.rs` | [`CudaMemory`]: the device's memory for the allocator |
//!
//! Unsafe code is in `library.rs`, `driver.rs`, `nvml.rs`, `nvrtc.rs`, `blas.rs`, `dnn/descriptor.rs`, `nccl.rs`, `peers/`, `pinned.rs`, `graph.rs` and
//! `graph_functions.rs`.

#![deny(unsafe_code)]

mod algorithm;
#[allow(unsafe_code)]
mod blas;
mod collective;
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
mod nccl;
#[allow(unsafe_code)]
mod nvml;
#[allow(unsafe_code)]
mod nvrtc;
#[allow(unsafe_code)]
mod peers;
#[allow(unsafe_code)]
mod pinned;
mod probe;
mod ranks;
mod search;
mod step;
mod streams;

pub use collective::Collective;
pub use error::{CudaError, Result};
pub use faults::Fault;
pub use gpu::{Gpu, GpuFacts, Libraries};
pub use graph::{CapturedGraph, GraphNode};
pub use memory::CudaMemory;
pub use nccl::{NcclCommunicator, NcclId};
pub use nvrtc::compile;
pub use peers::{Exported, PeerCopies};
pub use probe::{Probe, ProbedFacts};
pub use search::Search;
pub use step::{
    Args, Carrier, CollectiveStep, Convolution, ConvolutionPass, ConvolutionStep, Float, Laid, Launch,
    Matrix, Product, Source, Step,
};
