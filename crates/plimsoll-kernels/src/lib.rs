//! CPU kernels: functions from slices to slices.
//!
//! ```
//! use plimsoll_kernels::dtype::DType;
//! use plimsoll_kernels::random::{Distribution, RandomStream, fill};
//! let mut drawn = [0.0f32; 4];
//! fill(Distribution::Normal { mean: 0.0, std: 1.0 }, RandomStream { seed: 7, stream: 0 }, &mut drawn);
//! assert!(drawn.iter().all(|x| x.is_finite()));
//! assert_eq!(DType::BF16.accumulator(), DType::F32);
//! ```
//!
//! The kernels do not depend on tensors, and never allocate memory in proportion to the data: the caller
//! provides outputs and scratch memory. A kernel that needs scratch memory has a `*_scratch_len` function
//! that returns its length in floats. Strides are in elements; a stride of 0 repeats an element. A slice
//! that is too short is a bug, and the kernel panics. An error that a user's data may cause, such as a
//! target out of range, is returned as a `Result`.
//!
//! Results do not depend on the number of threads: the order of additions depends only on shapes. Results may
//! differ in the last bits between processors, since matmul and convolution use fused multiply-adds only on
//! processors that have them.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | kernels |
//! |---|---|
//! | `parallel.rs`, `region.rs` | parallel loops over chunks; one parallel loop |
//! | `dtype.rs`, `number.rs`, `exp.rs` | element types; compute types; exponential and tanh that vectorise |
//! | `simd.rs`, `walk.rs`, `transpose.rs`, `tile.rs`, `testing.rs`, `amx.rs` | SIMD registers; strided operands; transposing 8 x 8 blocks; tiles of products; helpers for tests; tile registers |
//! | `convert.rs` | conversion of elements of any type to the three compute types, and back |
//! | `elementwise/` | elementwise functions; in-place updates; copies and fills |
//! | `reduce/` | sums, other reductions and argmax; cumulative sums and products |
//! | `shape/` | flips, rolls, padding; the derivative of overlapping windows |
//! | `matmul/` | strided, batched, large and 16-bit float products; distances between all pairs of vectors |
//! | `linalg/` | factorizations of matrices, systems of equations, determinants |
//! | `fft/` | Fourier transforms of complex and real rows |
//! | `convolution/` | convolution: its three passes, with `tile.rs` and as plain loops; pooling; resampling |
//! | `normalization/` | normalization of rows, channels and groups of channels; softmax |
//! | `random/` | random numbers; the random bits of dropout; weighted sampling |
//! | `attention/` | attention in blocks; rotary embedding |
//! | `loss/` | cross entropy, also of a projection; negative log likelihood; elementwise losses |
//! | `optimizer/` | steps of SGD, Adam and others; gradient norms; unscaling of gradients |
//! | `indexing/` | elements by index and by a condition; sorting rows and searching them |
//! | `recurrent/` | the steps of RNN, LSTM and GRU, forward and backward |
//!
//! The folders correspond to the families of `plimsoll-tensor`'s operators and of its GPU kernels.

#![allow(missing_docs, reason = "a kernel explains the fields of its arguments; users see `plimsoll-tensor`")]

mod amx;
pub mod attention;
pub mod convert;
pub mod convolution;
pub mod dtype;
pub mod elementwise;
pub mod exp;
pub mod fft;
pub mod indexing;
pub mod linalg;
pub mod loss;
pub mod matmul;
pub mod normalization;
pub mod number;
pub mod optimizer;
pub mod parallel;
pub mod random;
pub mod recurrent;
pub mod reduce;
mod region;
pub mod shape;
mod simd;
#[cfg(test)]
mod testing;
mod tile;
mod transpose;
mod walk;

pub use attention::rotary;
pub use convolution::{conv, interpolate, pool};
pub use elementwise::{combine, strided};
pub use indexing::{index, mask, search, sort};
pub use loss::{cross_entropy, linear_cross_entropy, pair_loss};
pub use matmul::{distance, short_matmul};
pub use normalization::{channel_norm, group_norm, group_norm_last, row_norm, softmax};
pub use optimizer as optim;
pub use optimizer::unscale;
pub use random::{multinomial, philox};
pub use reduce::{fold, folds, scan};
pub use shape::{remap, unfold};
