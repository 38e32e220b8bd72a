//! What can be computed with tensors: each operation's shape rules, and its derivative right below it.
//!
//! All are methods of [`Tensor`]; `std::ops` work on references and give a `Result`. A new operation is
//! a variant of `Op` (`op.rs`), a kernel (`cpu/run.rs`, `cpu/kernels/`) and a method with its derivative
//! here; CONTRIBUTING.md walks through it.

mod arith;
mod conv;
mod in_place;
mod linear;
mod loss;
mod pool;
mod reduce;
mod softmax;
mod step;
mod unary;
mod view;

pub use conv::Conv2dOptions;
pub use pool::MaxPool2dOptions;
pub use view::ReshapeTo;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

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

/// An error unless the tensor is of 32-bit floating point.
pub(crate) fn want_float(op: &'static str, tensor: &Tensor) -> Result<()> {
    want_dtype(op, tensor, DType::F32)
}

pub(crate) fn want_dtype(op: &'static str, tensor: &Tensor, dtype: DType) -> Result<()> {
    if tensor.dtype() == dtype {
        return Ok(());
    }
    Err(Error::DType { op, expected: dtype.name(), got: tensor.dtype() })
}
