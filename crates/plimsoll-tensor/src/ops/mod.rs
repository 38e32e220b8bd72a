//! The operations on tensors: one file for each operator or table of operators, with its shape inference, its derivative and
//! its cost.
//!
//! | folder | operators |
//! |---|---|
//! | `elementwise/` | functions of each element, and changes in place |
//! | `reduce/` | sums and other reductions, cumulative ones, statistics |
//! | `shape/` | views; joining, repeating, flipping and padding |
//! | `creation/` | creating and copying tensors, and reading their values |
//! | `matmul/` | matrix products, linear layers, distances of vectors |
//! | `linalg/` | norms, factorizations, systems of equations, determinants |
//! | `fft/` | Fourier transforms |
//! | `convolution/` | convolution, pooling, resampling |
//! | `normalization/` | normalization of rows, batches and groups; softmax |
//! | `attention/` | attention, rotary embedding |
//! | `loss/` | losses |
//! | `random/` | dropout, weighted sampling of indices |
//! | `optimizer/` | optimizer steps, and gradient clipping and unscaling before them |
//! | `indexing/` | selecting elements by index, by mask and by order |
//! | `recurrent/` | RNN, LSTM and GRU |
//!
//! `arguments.rs` has checks that all of them share. `cuda/` and the crate `plimsoll-kernels` are organized in the same
//! families, except `creation`, whose kernels are in `elementwise` and `random`.
//!
//! Users call methods of [`Tensor`](crate::Tensor), which are here too; `std::ops` are implemented for references and return a
//! `Result`. Kernels on plain slices are in the crate `plimsoll-kernels`. CONTRIBUTING.md walks through adding an operator.

mod arguments;
mod attention;
mod convolution;
mod creation;
mod elementwise;
pub mod fft;
mod indexing;
pub mod linalg;
mod loss;
mod matmul;
mod normalization;
mod optimizer;
mod random;
mod recurrent;
mod reduce;
mod shape;

use std::sync::LazyLock;

use crate::suite::Cases;

/// All operators by file, each with its cases for the conformance suite (`suite/`). Each family lists its own.
pub static OPERATORS: LazyLock<Vec<(&str, Cases)>> = LazyLock::new(|| {
    [
        elementwise::CASES,
        reduce::CASES,
        shape::CASES,
        creation::CASES,
        matmul::CASES,
        linalg::CASES,
        fft::CASES,
        convolution::CASES,
        normalization::CASES,
        attention::CASES,
        loss::CASES,
        random::CASES,
        optimizer::CASES,
        indexing::CASES,
        recurrent::CASES,
    ]
    .concat()
});

pub use attention::AttentionOptions;
pub use attention::rotary::Rotary;
pub use convolution::conv::{
    Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions, ConvPadding, ConvTranspose1dOptions,
    ConvTranspose2dOptions, ConvTranspose3dOptions, ConvTransposeOptions,
};
pub use convolution::grid_sample::{GridPadding, GridSampleMode, GridSampleOptions};
pub use convolution::interpolate::{InterpolateMode, ResizeTo};
pub use convolution::pool::{
    AvgPool1dOptions, AvgPool2dOptions, AvgPool3dOptions, AvgPoolOptions, MaxPool1dOptions, MaxPool2dOptions,
    MaxPool3dOptions, MaxPoolOptions,
};
pub use convolution::windows::WindowOptions;
pub use elementwise::close::Tolerance;
pub use indexing::masked::WhereValue;
pub use indexing::scatter_reduce::ScatterReduction;
pub use indexing::selection::BagMode;
pub use loss::cross_entropy::CrossEntropyOptions;
pub use matmul::activation_linear::Activation;
pub use normalization::batch_norm::{BatchNormArgs, BatchNormOptions};
pub(crate) use optimizer::captured_step::{CapturedStep, take as take_captured_steps};
pub use optimizer::captured_step::{CapturedUpdate, capture_update, captured_updates};
pub use optimizer::clip::{clip_norm_, clip_value_};
pub use optimizer::foreach_copy::foreach_copy_;
pub use optimizer::step::{Slot, optimizer_step, optimizer_step_rounded, optimizer_step_stochastic};
pub use optimizer::unscale::unscale_;
pub use recurrent::{Cell, RecurrentLayer, RecurrentState};
pub use reduce::order_statistics::Interpolation;
pub(crate) use reduce::ordered_sum::ordered_sum_into;
pub use shape::memory_format::MemoryFormat;
pub use shape::pad::PadMode;
pub use shape::view::ReshapeTo;

pub(crate) use arguments::{
    borrowed, dim_index, scratch_bytes, want_dtype, want_float, want_float32_or_short, want_full,
    want_number, want_same, want_values,
};
