//! A CUDA device that computes nothing: it answers PyTorch's calls to NVIDIA's libraries without a GPU.
//!
//! PyTorch's own allocator, autograd and optimizers run on it unchanged, so their memory figures are exact. Device memory
//! is address space that is never accessed, kernels do nothing, copies to the host yield zeros (or values that the host
//! has just sent: `memory/recent.rs`), and time does not pass. An unsupported call is reported once and returns "not
//! supported"; [`notice`] reports everything else that limits the figures.
//!
//! The crate is a shared library that takes precedence over NVIDIA's ([`place`] describes how). As a Rust library it
//! provides launchers with the names of the settings, the library's folder and its version. Calls that need no device are
//! left to NVIDIA's libraries: version numbers, error names, NVRTC.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `settings.rs`, `process.rs` | the environment, also for the launcher; whether a process has ended |
//! | `lock.rs`, `error.rs` | locks; the outcome of a call |
//! | `notice.rs` | assumptions and unsupported calls, which limit the figures |
//! | `share.rs`, `exchange.rs` | devices that several processes use; messages between ranks |
//! | `argument.rs`, `fault.rs`, `call.rs` | every call: arguments, injected faults, the common path |
//! | `version.rs`, `place.rs` | for the launcher: the versions, the folder |
//! | `gpu.rs`, `gpu/` | the devices of this process, and their properties |
//! | `workspace.rs` | undocumented workspaces: none, or a model's; a record of the requests for them |
//! | `ledger.rs` | the memory that the process uses outside its requests, as rows that add up to the total |
//! | `comm.rs` | NCCL's communicators; a copy to the host waits for their collectives |
//! | `memory.rs`, `memory/` | memory in use, address space, stray accesses, copies |
//! | `stream.rs` | streams, events, captures |
//! | `outside.rs` | the memory that kernels, libraries, streams and graphs take at their first use |
//! | `nccl.rs`, `nccl/` | NCCL |
//! | `runtime.rs`, `runtime/` | `libcudart`: `cuda…` |
//! | `driver.rs`, `driver/` | `libcuda`: `cu…` |
//! | `nvml.rs`, `nvml/` | `libnvidia-ml` |
//! | `planner.rs`, `planner/` | cuDNN's own plans, from a separate process with a description of the GPU |
//! | `blas.rs`, `dnn.rs`, `dnn/` | cuBLAS and cuBLASLt, cuDNN |
//! | `sparse.rs`, `sparse/` | cuSPARSE |
//! | `solver.rs`, `solver/`, `fft.rs` | cuSOLVER with the workspaces of the most common factorizations; cuFFT |
//! | `structured.rs`, `jpeg.rs` | cuSPARSELt, as if it needed no workspace; nvJPEG, which reads only headers |
//! | `cupti.rs` | CUPTI: profilers start, and record nothing |
//! | `smi.rs` | the output of `nvidia-smi` |
//! | `lines.rs` | which lines of a Python program ran |
//! | `unknown.rs` | unsupported calls that PyTorch may make: multicast, memory shared by file descriptors, … |
//!
//! Note [How exact]: a GPU's compute capability, multiprocessors and threads per multiprocessor set the scratch sizes of
//! PyTorch's own kernels, and come from the table. Properties of the kernels themselves have one fixed value: 32 registers,
//! two blocks per multiprocessor. cuDNN's workspaces are none, a model's, or cuDNN's own (`planner.rs`); cuFFT's are none or
//! a model's. A model is close, but not exact (`dnn/workspace.rs` and the files next to it, `fft.rs`). Every assumption about
//! a library is reported ([`notice`]).

// Exported functions have CUDA's names.
#![allow(non_snake_case)]

pub mod notice;
pub mod place;
pub mod planner;
pub mod process;
pub mod settings;
pub mod share;
pub mod smi;
pub mod version;
pub mod workspace;

mod argument;
mod blas;
mod call;
mod comm;
mod cupti;
mod dnn;
mod driver;
mod error;
mod exchange;
mod fault;
mod fft;
mod gpu;
mod jpeg;
mod ledger;
mod lines;
mod lock;
mod memory;
mod nccl;
mod nvml;
mod outside;
mod runtime;
mod solver;
mod sparse;
mod stream;
mod structured;
mod unknown;
