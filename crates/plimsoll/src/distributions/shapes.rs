//! Parameters of distributions: in their common shape, and within their bounds.

use plimsoll_tensor::{DType, Error, Result, Tensor};

/// Both tensors in their common shape.
#[track_caller]
pub(super) fn broadcast(a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let (x, y) = (a.shape(), b.shape());
    let rank = x.len().max(y.len());
    let size = |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    let common = |dim: usize| match (size(x, dim), size(y, dim)) {
        (1, other) | (other, 1) => Ok(other),
        (own, other) if own == other => Ok(own),
        _ => Err(Error::argument("distribution", format!("the shapes {x:?} and {y:?} do not broadcast"))),
    };
    let shape = (0..rank).map(common).collect::<Result<Vec<usize>>>()?;
    Ok((a.expand(&shape)?, b.expand(&shape)?))
}

/// Probabilities, at least one rounding error away from 0 and 1, so that their logarithms are finite. As PyTorch's `clamp_probs`.
#[track_caller]
pub(super) fn within(probs: &Tensor) -> Result<Tensor> {
    let eps = match probs.dtype() {
        DType::F64 => f64::EPSILON,
        DType::F16 => 0.000_976_562_5,
        DType::BF16 => 0.007_812_5,
        _ => f64::from(f32::EPSILON),
    };
    probs.clamp(eps, 1.0 - eps)
}
