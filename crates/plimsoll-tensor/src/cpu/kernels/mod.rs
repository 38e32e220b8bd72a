//! CPU kernels: functions from slices to slices.
//!
//! Nothing here knows tensors, and nothing allocates in proportion to data: outputs and scratch are the
//! caller's, and a kernel that needs scratch has a `*_scratch_len` to ask before (in floats). Strides are in
//! elements and 0 repeats. A slice too short is a bug and panics; weather, such as a target out of range, is a
//! `Result`.
//!
//! Results do not depend on the number of threads: what is added in which order is a matter of shapes. They may
//! differ in the last bits between processors, as products in matmul and convolution are fused with sums only
//! where there is an instruction for it.
//!
//! | file | kernels |
//! |---|---|
//! | [`parallel`], `region` | the one way to use more cores; one parallel loop |
//! | [`number`] | the types that kernels compute in |
//! | `simd`, `walk`, `transpose` | wide registers; strided operands; 8 x 8 blocks |
//! | [`convert`] | elements of any type in the three that kernels compute in, and back |
//! | [`elementwise`], [`combine`], [`strided`] | a function of each element, in place of two others; copies, fills |
//! | `exp` | exponential and tanh that vectorise |
//! | [`reduce`] | sum, argmax |
//! | [`matmul`] | strided, batched products |
//! | [`conv`] | convolution: its three passes over one `tile`, and as plain loops |
//! | [`attention`], [`philox`] | attention in blocks; the random bits of dropout |
//! | [`pool`], [`interpolate`] | windows' largest elements and means; images resampled |
//! | [`layer_norm`], [`row_norm`] | rows to mean 0 and deviation 1; also by their root mean square, and of sums |
//! | [`channel_norm`], [`group_norm`] | channels of a batch, and groups of channels, to mean 0 and deviation 1 |
//! | [`cross_entropy`], [`linear_cross_entropy`] | of logits; of a projection, some rows at a time |
//! | [`pair_loss`] | losses of an input and a target of one shape |
//! | [`softmax`], [`loss`] | softmax rows; negative log likelihood, squared error |
//! | [`index`] | elements by index: picked, put, added |
//! | [`fold`], [`folds`], [`scan`] | reductions over any dimensions; running sums and products |
//! | [`mask`], [`remap`] | elements by a condition; flips, rolls, reflections |
//! | [`sort`], [`search`], [`multinomial`] | rows in order; places in them; places drawn by weights |
//! | [`distance`] | distances of every pair of two sets of vectors |
//! | [`unfold`] | derivative of overlapping windows |
//! | [`recurrent`] | the steps of RNN, LSTM and GRU, forward and backward |
//! | [`rotary`] | pairs of elements turned by an angle |
//! | [`optim`], [`unscale`] | SGD and Adam steps; gradients of a scaled loss |

pub(crate) mod attention;
pub(crate) mod channel_norm;
pub(crate) mod combine;
pub(crate) mod conv;
pub(crate) mod convert;
pub(crate) mod cross_entropy;
pub(crate) mod distance;
pub(crate) mod elementwise;
pub(crate) mod exp;
pub(crate) mod fold;
pub(crate) mod folds;
pub(crate) mod group_norm;
pub(crate) mod group_norm_last;
pub(crate) mod index;
pub(crate) mod interpolate;
pub(crate) mod layer_norm;
pub(crate) mod linear_cross_entropy;
pub(crate) mod loss;
pub(crate) mod mask;
pub(crate) mod matmul;
pub(crate) mod multinomial;
pub(crate) mod number;
pub(crate) mod optim;
pub(crate) mod pair_loss;
pub(crate) mod parallel;
pub(crate) mod philox;
pub(crate) mod pool;
pub(crate) mod recurrent;
pub(crate) mod reduce;
mod region;
pub(crate) mod remap;
pub(crate) mod rotary;
pub(crate) mod row_norm;
pub(crate) mod scan;
pub(crate) mod search;
mod simd;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod strided;
#[cfg(test)]
mod testing;
mod tile;
mod transpose;
pub(crate) mod unfold;
pub(crate) mod unscale;
mod walk;
