//! What can be computed with tensors: one file for each operator or family, with what it infers, its derivative
//! and its cost.
//!
//! Users call methods of [`Tensor`](crate::Tensor), which are here too; `std::ops` work on references and give
//! a `Result`. Kernels on plain slices are the crate `plimsoll-kernels`. CONTRIBUTING.md walks through a new operator.

mod activation_backward;
mod activation_linear;
mod activations;
mod argmax;
mod arguments;
mod as_strided;
mod attention;
mod batch_norm;
mod bicubic;
mod binary;
mod bitwise;
mod bytes;
mod captured_step;
mod cat;
mod cdist;
mod clip;
mod close;
mod combine;
mod compare;
mod conv;
mod copy;
mod count;
mod create;
mod created;
mod cross_entropy;
mod ctc;
mod diagonals;
mod dims;
mod distances;
mod division;
mod dropout;
mod dual;
mod einsum;
mod elementwise;
mod extreme;
mod flip;
mod functions;
mod gamma;
mod gather;
mod gradient_in_place;
mod grid_sample;
mod group_norm;
mod hyperbolic;
mod in_place;
mod index;
mod index_select;
mod indices;
mod interpolate;
mod joined;
mod leaf;
mod linear;
mod logical;
mod logsumexp;
mod losses;
mod margin_losses;
mod masked;
mod math;
mod matmul;
mod memory_format;
mod mse;
mod multinomial;
mod nll;
mod norm;
mod one_by_one;
mod one_hot;
mod order_statistics;
mod pad;
mod pairs;
mod part;
mod pool;
mod prod;
mod products;
mod read;
mod real;
mod recurrent;
mod reduced;
mod repeat;
mod rotary;
mod row_norm;
mod running;
mod scalars;
mod scan;
mod scatter;
mod scatter_reduce;
mod scattered;
mod search;
mod selection;
mod short_products;
mod shuffle;
mod slope;
mod softmax;
mod sort;
mod special;
mod split;
mod statistics;
mod step;
mod sum;
mod swiglu_linear;
mod tensordot;
mod thresholds;
mod traced;
mod transfer;
mod tri;
mod unary;
mod unscale;
mod var;
mod view;
mod windows;

use crate::suite::Case;

/// What the suite runs of the operators of a file.
type Cases = fn() -> Vec<Case>;

/// All operators, by the files that they live in, with what the conformance suite runs of each: `suite/`.
pub static OPERATORS: &[(&str, Cases)] = &[
    ("activation_linear", activation_linear::cases),
    ("activations", activations::cases),
    ("argmax", argmax::cases),
    ("as_strided", as_strided::cases),
    ("attention", attention::cases),
    ("batch_norm", batch_norm::cases),
    ("cat", cat::cases),
    ("cdist", cdist::cases),
    ("clip", clip::cases),
    ("combine", combine::cases),
    ("compare", compare::cases),
    ("conv", conv::cases),
    ("copy", copy::cases),
    ("count", count::cases),
    ("create", create::cases),
    ("created", created::cases),
    ("cross_entropy", cross_entropy::cases),
    ("dims", dims::cases),
    ("division", division::cases),
    ("dropout", dropout::cases),
    ("einsum", einsum::cases),
    ("extreme", extreme::cases),
    ("flip", flip::cases),
    ("functions", functions::cases),
    ("gather", gather::cases),
    ("group_norm", group_norm::cases),
    ("hyperbolic", hyperbolic::cases),
    ("in_place", in_place::cases),
    ("index_select", index_select::cases),
    ("interpolate", interpolate::cases),
    ("layer_norm", row_norm::layer_norm_cases),
    ("linear", linear::cases),
    ("logical", logical::cases),
    ("logsumexp", logsumexp::cases),
    ("losses", losses::cases),
    ("masked", masked::cases),
    ("math", math::cases),
    ("matmul", matmul::cases),
    ("mse", mse::cases),
    ("multinomial", multinomial::cases),
    ("nll", nll::cases),
    ("norm", norm::cases),
    ("one_hot", one_hot::cases),
    ("pad", pad::cases),
    ("pairs", pairs::cases),
    ("part", part::cases),
    ("pool", pool::cases),
    ("prod", prod::cases),
    ("products", products::cases),
    ("recurrent", recurrent::cases),
    ("repeat", repeat::cases),
    ("rotary", rotary::cases),
    ("row_norm", row_norm::cases),
    ("scalars", scalars::cases),
    ("scan", scan::cases),
    ("scatter", scatter::cases),
    ("scatter_reduce", scatter_reduce::cases),
    ("search", search::cases),
    ("softmax", softmax::cases),
    ("sort", sort::cases),
    ("special", special::cases),
    ("split", split::cases),
    ("step", step::cases),
    ("sum", sum::cases),
    ("swiglu_linear", swiglu_linear::cases),
    ("thresholds", thresholds::cases),
    ("tri", tri::cases),
    ("unscale", unscale::cases),
    ("var", var::cases),
    ("view", view::cases),
];

pub use activation_linear::Activation;
pub use attention::AttentionOptions;
pub use batch_norm::{BatchNormArgs, BatchNormOptions};
pub(crate) use captured_step::{CapturedStep, take as take_captured_steps};
pub use clip::{clip_norm_, clip_value_};
pub use close::Tolerance;
pub use conv::{
    Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions, ConvPadding, ConvTranspose1dOptions,
    ConvTranspose2dOptions, ConvTranspose3dOptions, ConvTransposeOptions,
};
pub use cross_entropy::CrossEntropyOptions;
pub use grid_sample::{GridPadding, GridSampleMode, GridSampleOptions};
pub use interpolate::{InterpolateMode, ResizeTo};
pub use memory_format::MemoryFormat;
pub use order_statistics::Interpolation;
pub use pad::PadMode;
pub use pool::{
    AvgPool1dOptions, AvgPool2dOptions, AvgPool3dOptions, AvgPoolOptions, MaxPool1dOptions, MaxPool2dOptions,
    MaxPool3dOptions, MaxPoolOptions,
};
pub use recurrent::{Cell, RecurrentLayer, RecurrentState};
pub use rotary::Rotary;
pub use scatter_reduce::ScatterReduction;
pub use selection::BagMode;
pub use step::{Slot, optimizer_step, optimizer_step_rounded};
pub use unscale::unscale_;
pub use view::ReshapeTo;
pub use windows::WindowOptions;

pub(crate) use arguments::{
    dim_index, want_dtype, want_float, want_float32_or_short, want_number, want_same, want_values,
};
