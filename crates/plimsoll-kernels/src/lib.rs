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
//! Nothing here knows tensors, and nothing allocates in proportion to data: outputs and scratch are the
//! caller's, and a kernel that needs scratch has a `*_scratch_len` to ask before (in floats). Strides are in
//! elements and 0 repeats. A slice that is too short is a bug, and the kernel
//! panics. What a user's data may cause, such as a target out of range, is a `Result`.
//!
//! Results do not depend on the number of threads: what is added in which order is a matter of shapes. They may
//! differ in the last bits between processors, as products in matmul and convolution are fused with sums only
//! where there is an instruction for it.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | kernels |
//! |---|---|
//! | `parallel.rs`, `region.rs` | the one way to use more cores; one parallel loop |
//! | `dtype.rs`, `number.rs`, `exp.rs` | what elements are; the types that kernels compute in; exponential and tanh that vectorise |
//! | `simd.rs`, `walk.rs`, `transpose.rs`, `tile.rs`, `testing.rs` | wide registers; strided operands; 8 x 8 blocks; tiles of products; what tests share |
//! | `convert.rs` | elements of any type in the three that kernels compute in, and back |
//! | `elementwise/` | a function of each element, in place of two others; copies, fills |
//! | `reduce/` | sums, other reductions and the place of the largest over any dimensions; running sums and products |
//! | `shape/` | flips, rolls, reflections; the derivative of overlapping windows |
//! | `matmul/` | strided, batched products; large ones; those of 16-bit floats; distances of every pair of two sets of vectors |
//! | `convolution/` | convolution: its three passes over the tiles of `tile.rs`, and as plain loops; pooling; images resampled |
//! | `normalization/` | rows, channels and groups of channels to mean 0 and deviation 1; softmax |
//! | `random/` | random numbers into memory; the random bits of dropout; places drawn by weights |
//! | `attention/` | attention in blocks; pairs of elements turned by an angle |
//! | `loss/` | cross entropy of logits, and of a projection, some rows at a time; likelihoods; losses of an input and a target of one shape |
//! | `optimizer/` | steps of SGD, Adam and others; norms of gradients; gradients of a scaled loss |
//! | `indexing/` | elements by index and by a condition; rows in order, and places in them |
//! | `recurrent/` | the steps of RNN, LSTM and GRU, forward and backward |
//!
//! The folders are the families of `plimsoll-tensor`'s operators and of its kernels for GPUs, too.

#![allow(missing_docs, reason = "a kernel explains the fields of its arguments; users see `plimsoll-tensor`")]

pub mod attention;
pub mod convert;
pub mod convolution;
pub mod dtype;
pub mod elementwise;
pub mod exp;
pub mod indexing;
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
