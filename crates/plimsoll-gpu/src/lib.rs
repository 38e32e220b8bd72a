//! The table of GPUs: [`GPUS`], one [`Gpu`] per row.
//!
//! Two readers share it: the stand-in device, which answers CUDA's queries from it, and a simulated device, which
//! computes times from its bandwidths and FLOP/s. The crate holds data and look-ups only; it uses no other crate.
//!
//! | file | what it holds |
//! |---|---|
//! | `gpu.rs` | [`Gpu`], its [`Bandwidth`] and [`FlopRates`] |
//! | `lookup.rs` | [`named`], [`of_capability`], [`nearest`], and [`UnknownGpu`] |
//! | `vendor.rs` | GPUs of other vendors, which are refused by name |
//! | `table.rs`, `table/` | the rows, a file per generation |
//!
//! To add a GPU, add a constant to its generation's file and name it in `table.rs`.

#![forbid(unsafe_code)]

mod gpu;
mod lookup;
mod table;
mod vendor;

pub use gpu::{Bandwidth, FlopRates, Gpu};
pub use lookup::{UnknownGpu, named, nearest, of_capability};
pub use table::GPUS;
