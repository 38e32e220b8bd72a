//! The table of GPUs ([`GPUS`], one [`Gpu`] per row), and the GPU memory that a process uses outside PyTorch's allocator.
//!
//! It has two users. The stand-in device answers CUDA's queries from the table, and charges the bytes that [`outside`] and
//! [`nccl`] compute. Simulated devices compute times from the table's bandwidths and FLOP/s. The crate holds data, lookups and
//! pure functions, and depends on no other crate.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `figure.rs` | a number of bytes, and whether it is measured, derived, given or assumed |
//! | `gpu.rs` | [`Gpu`], its [`Bandwidth`] and [`FlopRates`], its [`Pool`] of memory, its [`KnownBytes`] |
//! | `vendor.rs` | GPUs of other vendors, for the error message |
//! | `table.rs`, `table/` | the rows, one file per generation |
//! | `lookup.rs` | [`named`], [`of_capability`], [`nearest`], [`nearest_of`], and [`UnknownGpu`] |
//! | `outside.rs`, `outside/` | [`outside`]: memory of contexts, kernels' stacks, libraries, streams and graphs |
//! | `nccl.rs`, `nccl/` | [`nccl`]: memory of NCCL's communicators |
//! | `mig.rs` | [`slice()`]: a MIG slice of a GPU |
//! | `described.rs`, `described/` | [`described`]: a GPU by its properties, or one of the above by its name |
//!
//! To add a GPU, add a constant to its generation's file and list it in `GPUS` there.

#![forbid(unsafe_code)]

mod described;
mod figure;
mod gpu;
mod lookup;
mod mig;
mod table;
mod vendor;

pub mod nccl;
pub mod outside;

pub use described::{Described, NotDescribed, described, text};
pub use gpu::{Bandwidth, FlopRates, Gpu, KnownBytes, Pool};
pub use lookup::{UnknownGpu, named, nearest, nearest_of, of_capability};
pub use mig::slice;
pub use table::GPUS;
