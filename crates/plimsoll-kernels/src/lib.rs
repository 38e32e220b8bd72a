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
//! | `dtype.rs`, `region.rs`, `matrix.rs`, `walk.rs` | what elements are; one parallel loop; strides of matrices; strided operands |
//! | `simd.rs`, `exp.rs`, `transpose.rs` | wide registers; exponential and tanh that vectorise; 8 x 8 blocks |
//! | `parallel.rs` | the one way to use more cores |
//! | `number.rs` | the types that kernels compute in |
//! | `testing.rs` | what tests share |
//! | `random.rs`, `philox.rs` | random numbers into memory; the random bits of dropout |
//! | `convert.rs` | elements of any type in the three that kernels compute in, and back |
//! | `strided.rs`, `elementwise.rs`, `combine.rs` | copies, fills; a function of each element, in place of two others |
//! | `reduce.rs` | sum, argmax |
//! | `tile.rs` | the inner loop of convolution: rows of a tile times rows of columns |
//! | `packed_matmul.rs`, `matmul.rs`, `short_matmul.rs` | strided, batched products: large ones, any, those of 16-bit floats |
//! | `conv/` | convolution: its three passes over the tiles of `tile.rs`, and as plain loops |
//! | `attention/` | attention in blocks |
//! | `pool/`, `interpolate.rs` | windows' largest elements and means; images resampled |
//! | `softmax.rs`, `loss.rs` | softmax rows; negative log likelihood, squared error |
//! | `channel_norm.rs`, `group_norm.rs`, `group_norm_last.rs` | channels of a batch, and groups of channels, to mean 0 and deviation 1 |
//! | `row_norm.rs` | rows to mean 0 and deviation 1 or by their root mean square, also of sums |
//! | `cross_entropy.rs`, `linear_cross_entropy.rs` | of logits; of a projection, some rows at a time |
//! | `pair_loss.rs` | losses of an input and a target of one shape |
//! | `index.rs` | elements by index: picked, put, added |
//! | `fold.rs`, `folds.rs`, `scan.rs` | reductions over any dimensions; running sums and products |
//! | `remap.rs`, `mask.rs` | flips, rolls, reflections; elements by a condition |
//! | `sort.rs`, `search.rs`, `multinomial.rs` | rows in order; places in them; places drawn by weights |
//! | `distance.rs` | distances of every pair of two sets of vectors |
//! | `unfold.rs` | derivative of overlapping windows |
//! | `recurrent/` | the steps of RNN, LSTM and GRU, forward and backward |
//! | `rotary.rs` | pairs of elements turned by an angle |
//! | `optim/`, `unscale.rs` | SGD and Adam steps; gradients of a scaled loss |

#![allow(missing_docs, reason = "a kernel explains the fields of its arguments; users see `plimsoll-tensor`")]

pub mod attention;
pub mod channel_norm;
pub mod combine;
pub mod conv;
pub mod convert;
pub mod cross_entropy;
pub mod distance;
pub mod dtype;
pub mod elementwise;
pub mod exp;
pub mod fold;
pub mod folds;
pub mod group_norm;
pub mod group_norm_last;
pub mod index;
pub mod interpolate;
pub mod linear_cross_entropy;
pub mod loss;
pub mod mask;
pub mod matmul;
pub mod matrix;
pub mod multinomial;
pub mod number;
pub mod optim;
mod packed_matmul;
pub mod pair_loss;
pub mod parallel;
pub mod philox;
pub mod pool;
pub mod random;
pub mod recurrent;
pub mod reduce;
mod region;
pub mod remap;
pub mod rotary;
pub mod row_norm;
pub mod scan;
pub mod search;
pub mod short_matmul;
mod simd;
pub mod softmax;
pub mod sort;
pub mod strided;
#[cfg(test)]
mod testing;
mod tile;
mod transpose;
pub mod unfold;
pub mod unscale;
mod walk;
