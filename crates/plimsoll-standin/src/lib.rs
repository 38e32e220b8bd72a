//! A CUDA device that computes nothing: the calls that PyTorch makes of NVIDIA's libraries, answered without
//! a GPU.
//!
//! PyTorch's own allocator, autograd and optimizers run on it unchanged, so that their memory figures are
//! exact. Device memory is address space that is never touched, kernels do nothing, copies to the host give
//! zeros (or what it has just sent: `memory/recent.rs`), and time does not pass. Calls that are not imitated
//! name themselves, once, and answer "not supported"; [`notice`] has what else limits the figures.
//!
//! The crate is a shared library, which the loader puts in front of NVIDIA's ([`place`] says how); as a Rust
//! library it has what a launcher needs: the names of the settings, the library's folder
//! and version. Anything that needs no device stays NVIDIA's own: version numbers, names of errors, NVRTC.
//!
//! | file | what it holds |
//! |---|---|
//! | `settings.rs`, `version.rs`, `place.rs` | for the launcher: the environment, the versions, the folder |
//! | `notice.rs` | what was taken to be so, and what was refused, for whoever judges the figures |
//! | `share.rs`, `process.rs` | what several processes have of one device; whether a process has ended |
//! | `gpu.rs`, `gpu/` | the devices of this process, and what each says of itself |
//! | `call.rs`, `argument.rs`, `error.rs`, `fault.rs`, `lock.rs` | how every call is made: arguments, outcome, injected faults, locks |
//! | `memory.rs`, `memory/` | what is held of the devices; address space; stray accesses; copies |
//! | `stream.rs` | streams, events, captures |
//! | `runtime.rs`, `runtime/` | `libcudart`: `cuda…` |
//! | `driver.rs`, `driver/` | `libcuda`: `cu…` |
//! | `nvml.rs`, `nvml/` | `libnvidia-ml` |
//! | `blas.rs`, `dnn.rs`, `dnn/`, `nccl.rs`, `nccl/` | cuBLAS and cuBLASLt, cuDNN, NCCL |
//! | `sparse.rs`, `sparse/` | cuSPARSE |
//! | `solver.rs`, `fft.rs` | cuSOLVER, as if it needed no workspace; cuFFT |
//! | `workspace.rs` | workspaces that are not documented: none, or by a model; what is asked for, for whoever judges |
//! | `planner.rs`, `planner/` | cuDNN's own plans, asked in a process of their own with a description of the GPU |
//! | `structured.rs`, `jpeg.rs` | cuSPARSELt, as if it needed no workspace; nvJPEG, which reads headers only |
//! | `cupti.rs` | CUPTI: profilers start, and record nothing |
//! | `smi.rs` | what `nvidia-smi` prints |
//! | `unknown.rs` | what PyTorch may call and is not imitated: multicast, memory shared by file descriptors, … |
//!
//! Note [How exact]: a GPU's compute capability, multiprocessors and threads per multiprocessor decide sizes
//! of scratch in PyTorch's own kernels, and come from the table. What depends on the kernels themselves is
//! one fixed answer: 32 registers, two blocks per multiprocessor. cuDNN and cuFFT ask for no workspace, or for that of a
//! model, which is near and not exact (`dnn/workspace.rs` and the files beside it, `fft.rs`); what is taken to be so of any
//! library is told ([`notice`]).

// CUDA's names are CUDA's.
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
mod cupti;
mod dnn;
mod driver;
mod error;
mod fault;
mod fft;
mod gpu;
mod jpeg;
mod lock;
mod memory;
mod nccl;
mod nvml;
mod runtime;
mod solver;
mod sparse;
mod stream;
mod structured;
mod unknown;
