//! What can be computed with tensors: one file for each operator or family, with what it infers, its derivative
//! and its cost.
//!
//! Users call methods of [`Tensor`](crate::Tensor), which are here too; `std::ops` work on references and give
//! a `Result`. Kernels on plain slices are in `cpu/kernels/`. CONTRIBUTING.md walks through a new operator.

mod activation_linear;
mod activations;
mod argmax;
mod attention;
mod batch_norm;
mod binary;
mod bytes;
mod cat;
mod clip;
mod compare;
mod conv;
mod copy;
mod create;
mod cross_entropy;
mod dims;
mod dropout;
mod einsum;
mod elementwise;
mod extreme;
mod flip;
mod gather;
mod group_norm;
mod in_place;
mod index_select;
mod indices;
mod layer_norm;
mod leaf;
mod linear;
mod logical;
mod logsumexp;
mod losses;
mod masked;
mod matmul;
mod mse;
mod multinomial;
mod nll;
mod norm;
mod one_hot;
mod pad;
mod part;
mod pool;
mod prod;
mod products;
mod read;
mod real;
mod reduced;
mod repeat;
mod rotary;
mod row_norm;
mod scan;
mod scatter;
mod softmax;
mod sort;
mod split;
mod step;
mod sum;
mod swiglu_linear;
mod traced;
mod transfer;
mod tri;
mod unary;
mod unscale;
mod var;
mod view;

use crate::suite::Case;

/// What the suite runs of the operators of a file.
type Cases = fn() -> Vec<Case>;

/// All operators, by the files that they live in, with what the conformance suite runs of each: `suite.rs`.
pub static OPERATORS: &[(&str, Cases)] = &[
    ("activation_linear", activation_linear::cases),
    ("activations", activations::cases),
    ("argmax", argmax::cases),
    ("attention", attention::cases),
    ("batch_norm", batch_norm::cases),
    ("binary", binary::cases),
    ("cat", cat::cases),
    ("clip", clip::cases),
    ("compare", compare::cases),
    ("conv", conv::cases),
    ("copy", copy::cases),
    ("create", create::cases),
    ("cross_entropy", cross_entropy::cases),
    ("dims", dims::cases),
    ("dropout", dropout::cases),
    ("einsum", einsum::cases),
    ("extreme", extreme::cases),
    ("flip", flip::cases),
    ("gather", gather::cases),
    ("group_norm", group_norm::cases),
    ("in_place", in_place::cases),
    ("index_select", index_select::cases),
    ("layer_norm", layer_norm::cases),
    ("linear", linear::cases),
    ("logical", logical::cases),
    ("logsumexp", logsumexp::cases),
    ("losses", losses::cases),
    ("masked", masked::cases),
    ("matmul", matmul::cases),
    ("mse", mse::cases),
    ("multinomial", multinomial::cases),
    ("nll", nll::cases),
    ("norm", norm::cases),
    ("one_hot", one_hot::cases),
    ("pad", pad::cases),
    ("part", part::cases),
    ("pool", pool::cases),
    ("prod", prod::cases),
    ("products", products::cases),
    ("repeat", repeat::cases),
    ("rotary", rotary::cases),
    ("row_norm", row_norm::cases),
    ("scan", scan::cases),
    ("scatter", scatter::cases),
    ("softmax", softmax::cases),
    ("sort", sort::cases),
    ("split", split::cases),
    ("step", step::cases),
    ("sum", sum::cases),
    ("swiglu_linear", swiglu_linear::cases),
    ("tri", tri::cases),
    ("unary", unary::cases),
    ("unscale", unscale::cases),
    ("var", var::cases),
    ("view", view::cases),
];

pub use activation_linear::Activation;
pub use attention::AttentionOptions;
pub use batch_norm::BatchNormOptions;
pub use clip::{clip_norm_, clip_value_};
pub use conv::Conv2dOptions;
pub use cross_entropy::CrossEntropyOptions;
pub use pad::PadMode;
pub use pool::MaxPool2dOptions;
pub use rotary::Rotary;
pub use step::{Slot, optimizer_step};
pub use unscale::unscale_;
pub use view::ReshapeTo;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::operator::Meta;

/// A dimension counted from the front, or from the back where negative, as an index below `rank`.
pub(crate) fn dim_index(op: &'static str, dim: isize, rank: usize) -> Result<usize> {
    let at = if dim < 0 { dim + rank as isize } else { dim };
    if rank == 0 {
        return Err(Error::shape(op, format!("dimension {dim} of a scalar, which has none")));
    }
    usize::try_from(at).ok().filter(|&at| at < rank).ok_or_else(|| {
        Error::shape(
            op,
            format!(
                "dimension {dim} of a tensor with {rank} dimensions: use -{rank} to {}",
                rank as isize - 1
            ),
        )
    })
}

/// An error where a device computes no values and the size of the result depends on those of `what`.
pub(crate) fn want_values(op: &'static str, what: &str, device: &Device) -> Result<()> {
    if device.has_values() {
        return Ok(());
    }
    let message =
        format!("the size of the result depends on {what}, and {} computes no values", device.name());
    Err(Error::argument(op, message))
}

/// An error unless the type is of floating point.
pub(crate) fn want_float(op: &'static str, dtype: DType) -> Result<()> {
    match dtype.is_float() {
        true => Ok(()),
        false => Err(Error::DType { op, expected: "a type of floating point", got: dtype }),
    }
}

/// An error unless the type is computed with in 32-bit floating point.
pub(crate) fn want_float32_or_short(op: &'static str, dtype: DType) -> Result<()> {
    match dtype.is_float() && dtype.accumulator() == DType::F32 {
        true => Ok(()),
        false => Err(Error::DType { op, expected: "float32, float16 or bfloat16", got: dtype }),
    }
}

/// An error unless the type is of numbers.
pub(crate) fn want_number(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::Bool => Err(Error::DType { op, expected: "a type of numbers", got: dtype }),
        _ => Ok(()),
    }
}

/// An error unless all tensors are of one type.
pub(crate) fn want_same(op: &'static str, ins: &[Meta<'_>]) -> Result<()> {
    let [first, rest @ ..] = ins else { return Ok(()) };
    match rest.iter().find(|other| other.dtype != first.dtype) {
        None => Ok(()),
        Some(other) => Err(Error::DType { op, expected: first.dtype.name(), got: other.dtype }),
    }
}

pub(crate) fn want_dtype(op: &'static str, got: DType, expected: DType) -> Result<()> {
    if got == expected {
        return Ok(());
    }
    Err(Error::DType { op, expected: expected.name(), got })
}
