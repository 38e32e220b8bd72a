//! Checks of operator arguments: that a dimension exists, that values are available, that a dtype is supported. A failure is a
//! typed error with the operator's name.

use smallvec::SmallVec;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::operator::Meta;
use crate::tensor::Tensor;

/// A list of owned or borrowed tensors, borrowed.
#[track_caller]
pub(crate) fn borrowed(tensors: &[impl AsRef<Tensor>]) -> SmallVec<[&Tensor; 4]> {
    tensors.iter().map(AsRef::as_ref).collect()
}

/// Resolves a dimension, counted from the back if negative, to an index below `rank`.
pub(crate) fn dim_index(op: &'static str, dim: isize, rank: usize) -> Result<usize> {
    let at = if dim < 0 { dim + rank as isize } else { dim };
    if rank == 0 {
        return Err(Error::shape(op, format!("dimension {dim} of a scalar, which has no dimensions")));
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

/// Fails if values of a device cannot be read and the size of the result depends on the values of `what`.
pub(crate) fn want_values(op: &'static str, what: &str, device: &Device) -> Result<()> {
    if device.has_readable_values() {
        return Ok(());
    }
    let message = format!(
        "the size of the result depends on {what}, and {} computes no values: call `Device::rehearse` to take them as zeros",
        device.name()
    );
    Err(Error::argument(op, message))
}

/// Fails unless the dtype is a floating-point one.
pub(crate) fn want_float(op: &'static str, dtype: DType) -> Result<()> {
    match dtype.is_float() {
        true => Ok(()),
        false => Err(Error::DType { op, expected: "a floating-point type", got: dtype }),
    }
}

/// Fails unless the compute type of the dtype is 32-bit floating point.
pub(crate) fn want_float32_or_short(op: &'static str, dtype: DType) -> Result<()> {
    match dtype.is_float() && dtype.accumulator() == DType::F32 {
        true => Ok(()),
        false => Err(Error::DType { op, expected: "float32, float16 or bfloat16", got: dtype }),
    }
}

/// Fails unless the dtype is numeric.
pub(crate) fn want_number(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::Bool => Err(Error::DType { op, expected: "a numeric type", got: dtype }),
        _ => Ok(()),
    }
}

/// Fails unless the dtype is `float32` or `float64`.
pub(crate) fn want_full(op: &'static str, dtype: DType) -> Result<()> {
    match dtype {
        DType::F32 | DType::F64 => Ok(()),
        _ => Err(Error::DType { op, expected: "float32 or float64", got: dtype }),
    }
}

/// The bytes of this many floats of scratch memory.
pub(crate) fn scratch_bytes(floats: usize) -> u64 {
    (floats * size_of::<f32>()) as u64
}

/// Fails unless all tensors have the same dtype.
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
