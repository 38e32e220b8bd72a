//! The table of GPUs: [`GPUS`], one [`Gpu`] per row; and what a process takes of a GPU outside PyTorch's allocator.
//!
//! It has two users: the stand-in device answers CUDA's queries from it and charges what [`outside`] and [`nccl`] compute, and a simulated
//! device computes times from its bandwidths and FLOP/s. The crate holds data, look-ups and pure functions, and depends on no other
//! crate.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `gpu.rs` | [`Gpu`], its [`Bandwidth`] and [`FlopRates`] |
//! | `vendor.rs` | GPUs of other vendors, for the error message |
//! | `table.rs`, `table/` | the rows, one file per generation |
//! | `lookup.rs` | [`named`], [`of_capability`], [`nearest`], [`nearest_of`], and [`UnknownGpu`] |
//! | `outside.rs`, `outside/` | [`outside`]: context, local memory, pages, libraries |
//! | `nccl.rs`, `nccl/` | [`nccl`]: communicators |
//!
//! To add a GPU, add a constant to its generation's file and list it in `GPUS` there.

#![forbid(unsafe_code)]

mod gpu;
mod lookup;
mod table;
mod vendor;

pub mod nccl;
pub mod outside;

pub use gpu::{Bandwidth, FlopRates, Gpu};
pub use lookup::{UnknownGpu, named, nearest, nearest_of, of_capability};
pub use table::GPUS;
