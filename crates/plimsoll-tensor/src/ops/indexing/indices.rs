//! Code that operators with an index share: its dtypes, its bounds check, and how it is read.

use crate::cpu::kernels::index::first_outside;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::operator::Meta;
use crate::view::In;

/// Evaluates a body with a name bound to the indices, as a slice of their type.
macro_rules! by_index {
    ($index:expr, $strides:expr, $indices:ident => $body:expr) => {
        match $index.dtype() {
            crate::dtype::DType::I32 => {
                let $indices = crate::cpu::kernels::index::Indices {
                    elements: $index.elements::<i32>(),
                    strides: $strides,
                };
                $body
            }
            _ => {
                let $indices = crate::cpu::kernels::index::Indices {
                    elements: $index.elements::<i64>(),
                    strides: $strides,
                };
                $body
            }
        }
    };
}
pub(crate) use by_index;

/// Fails unless the dtype is `int64` or `int32`.
pub(crate) fn want_index(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::I64 | DType::I32 => Ok(()),
        got => Err(Error::DType { op, expected: "int64 or int32 indices", got }),
    }
}

/// Fails unless the index is a vector or a scalar. Returns its number of elements.
pub(crate) fn vector_len(op: &'static str, index: &Meta<'_>) -> Result<usize> {
    want_index(op, index.dtype)?;
    match index.shape() {
        [] => Ok(1),
        [len] => Ok(*len),
        shape => Err(Error::shape(op, format!("an index {shape:?}: needs a vector"))),
    }
}

/// The stride of an index that is a vector or a scalar.
pub(crate) fn vector_stride(index: &In<'_>) -> usize {
    index.strides().first().copied().unwrap_or(1)
}

/// Fails if an index is out of range for its dimension.
pub(crate) fn check(op: &'static str, index: &In<'_>, dim: usize, size: usize) -> Result<()> {
    let bad = by_index!(index, index.strides(), indices => first_outside(index.shape(), indices, size));
    let Some((position, value)) = bad else { return Ok(()) };
    let at = place(position, index.shape());
    let message = match size {
        0 => format!("index {value} at {at:?} is out of range: dimension {dim} has no elements"),
        _ => format!(
            "index {value} at {at:?} is out of range for dimension {dim} of size {size}: use 0 to {}",
            size - 1
        ),
    };
    Err(Error::argument(op, message))
}

/// The coordinates of a row-major position.
pub(crate) fn place(mut position: usize, shape: &[usize]) -> Dims {
    let mut at = Dims::from_elem(0, shape.len());
    for (at, &size) in at.iter_mut().zip(shape).rev() {
        *at = position % size;
        position /= size;
    }
    at
}

/// Strides of an index along one dimension of a tensor of `rank` dimensions.
pub(crate) fn along(rank: usize, dim: usize, stride: usize) -> Dims {
    let mut strides = Dims::from_elem(0, rank);
    strides[dim] = stride;
    strides
}

/// Strides with that of `dim` set to 0: the index determines the offset along it.
pub(crate) fn without(strides: &[usize], dim: usize) -> Dims {
    let mut strides = Dims::from_slice(strides);
    strides[dim] = 0;
    strides
}
