//! Norms of vectors and matrices, composed of other operations.

use super::svd::svdvals;
use crate::error::{Error, Result};
use crate::ops::dim_index;
use crate::tensor::Tensor;

/// The order of a norm: a number, or one of two names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MatrixNorm {
    /// The Euclidean norm of all elements; PyTorch's `"fro"`.
    Fro,
    /// The sum of the singular values; PyTorch's `"nuc"`.
    Nuc,
    /// Of a matrix: 1 and -1 for the largest and smallest sum of a column's magnitudes, infinities for those of rows, 2 and -2 for the largest
    /// and smallest singular value. Of a vector: any order.
    P(f64),
}

impl From<f64> for MatrixNorm {
    fn from(order: f64) -> MatrixNorm {
        MatrixNorm::P(order)
    }
}

/// The norm of order `ord` of the elements along some dimensions; of all elements if `dim` is empty. Like `torch.linalg.vector_norm`, and
/// [`Tensor::norm_dims`] under PyTorch's newer name.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, linalg};
/// let x = Tensor::from_slice(&[3.0f32, -4.0, 0.0, 1.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(linalg::vector_norm(&x, 2.0, &[-1], false)?.to_vec::<f32>()?, [5.0, 1.0]);
/// assert_eq!(linalg::vector_norm(&x, 1.0, &[], true)?.shape(), [1, 1]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If there are no elements, for an infinite or negative order; if a dimension is out of range or listed twice; if the dtype is not floating-point; or
/// if memory runs out.
#[track_caller]
pub fn vector_norm(x: impl AsRef<Tensor>, ord: f64, dim: &[isize], keepdim: bool) -> Result<Tensor> {
    let x = x.as_ref();
    if dim.is_empty() {
        let all: Vec<isize> = (0..x.rank() as isize).collect();
        return if keepdim && x.rank() > 0 { x.norm_keepdim(ord, &all) } else { x.norm(ord) };
    }
    if keepdim { x.norm_keepdim(ord, dim) } else { x.norm_dims(ord, dim) }
}

/// The norm of the matrices in two dimensions, usually `[-2, -1]`. Like `torch.linalg.matrix_norm`. The orders `Nuc`, 2 and -2 need singular
/// values, which only the CPU computes; the others run on every device.
///
/// ```
/// use plimsoll_tensor::linalg::{MatrixNorm, matrix_norm};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::from_slice(&[3.0f32, 0.0, 0.0, -4.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(matrix_norm(&x, MatrixNorm::Fro, [-2, -1], false)?.item::<f32>()?, 5.0);
/// assert_eq!(matrix_norm(&x, MatrixNorm::Nuc, [-2, -1], false)?.item::<f32>()?, 7.0);
/// assert_eq!(matrix_norm(&x, -1.0, [-2, -1], false)?.item::<f32>()?, 3.0);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If there is no norm of this order, or, for a negative one, no element; if a dimension is out of range, or both are the same; if the dtype is not floating-point, or is 16-bit
/// and singular values are needed; or if memory runs out. Also the errors of [`svdvals`].
#[track_caller]
pub fn matrix_norm(
    x: impl AsRef<Tensor>,
    ord: impl Into<MatrixNorm>,
    dim: [isize; 2],
    keepdim: bool,
) -> Result<Tensor> {
    const NAME: &str = "linalg_matrix_norm";
    let (x, ord) = (x.as_ref(), ord.into());
    let rank = x.rank();
    let rows = dim_index(NAME, dim[0], rank)? as isize;
    let cols = dim_index(NAME, dim[1], rank)? as isize;
    if rows == cols {
        let message = format!("dimensions {dim:?} of a tensor with {rank} dimensions are the same");
        return Err(Error::shape(NAME, message));
    }
    if !x.dtype().is_float() {
        return Err(Error::DType { op: NAME, expected: "a floating-point type", got: x.dtype() });
    }
    let kept = match ord {
        MatrixNorm::Fro => x.norm_keepdim(2.0, &[rows, cols])?,
        MatrixNorm::P(1.0) => largest(&x.abs()?.sum_keepdim(&[rows])?, cols)?,
        MatrixNorm::P(-1.0) => x.abs()?.sum_keepdim(&[rows])?.amin_keepdim(&[cols])?,
        MatrixNorm::P(f64::INFINITY) => largest(&x.abs()?.sum_keepdim(&[cols])?, rows)?,
        MatrixNorm::P(f64::NEG_INFINITY) => x.abs()?.sum_keepdim(&[cols])?.amin_keepdim(&[rows])?,
        MatrixNorm::Nuc | MatrixNorm::P(2.0 | -2.0) => {
            let values = svdvals(x.movedim(&[rows, cols], &[-2, -1])?)?;
            let norm = match ord {
                MatrixNorm::Nuc => values.sum_dims(&[-1])?,
                MatrixNorm::P(2.0) => largest(&values, -1)?.squeeze(-1)?,
                _ => values.amin(&[-1])?,
            };
            let (first, second) = (rows.min(cols), rows.max(cols));
            norm.unsqueeze(first)?.unsqueeze(second)?
        }
        MatrixNorm::P(order) => {
            let message =
                format!("matrices have no norm of order {order}: use Fro, Nuc, ±1, ±2 or ±infinity");
            return Err(Error::argument(NAME, message));
        }
    };
    if keepdim { Ok(kept) } else { kept.squeeze_dims(&[rows, cols]) }
}

/// The largest of numbers that are not negative, along a dimension that is kept; 0 if there are none.
#[track_caller]
fn largest(x: &Tensor, dim: isize) -> Result<Tensor> {
    let at = dim_index("linalg_matrix_norm", dim, x.rank())?;
    if x.shape()[at] == 0 { x.sum_keepdim(&[dim]) } else { x.amax_keepdim(&[dim]) }
}

/// The norm of a vector or a matrix, as `ord` and `dim` say; an empty `dim` is PyTorch's `None`. Like `torch.linalg.norm`:
///
/// - without `ord`: the Euclidean norm of the elements along `dim`, or of all elements;
/// - with `ord` and one dimension: [`vector_norm`]; with two: [`matrix_norm`];
/// - with `ord` only: the norm of a tensor with one or two dimensions.
///
/// ```
/// use plimsoll_tensor::linalg::{MatrixNorm, norm};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 2.0, 4.0], &[2, 2], &Device::cpu())?;
/// assert_eq!(norm(&x, None, &[], false)?.item::<f32>()?, 5.0);
/// assert_eq!(norm(&x, MatrixNorm::P(1.0), &[], false)?.item::<f32>()?, 6.0);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If `ord` does not suit the number of dimensions; also the errors of [`vector_norm`] and [`matrix_norm`].
#[track_caller]
pub fn norm(
    x: impl AsRef<Tensor>,
    ord: impl Into<Option<MatrixNorm>>,
    dim: &[isize],
    keepdim: bool,
) -> Result<Tensor> {
    let x = x.as_ref();
    let Some(ord) = ord.into() else { return vector_norm(x, 2.0, dim, keepdim) };
    let dims: &[isize] = match (dim, x.rank()) {
        ([], 1) => &[0],
        ([], 2) => &[0, 1],
        _ => dim,
    };
    match (dims, ord) {
        (&[rows, cols], ord) => matrix_norm(x, ord, [rows, cols], keepdim),
        (&[_], MatrixNorm::P(order)) => vector_norm(x, order, dims, keepdim),
        _ => {
            let message = format!(
                "the order {ord:?} over dimensions {dim:?} of {:?}: needs a matrix, or a number and a vector",
                x.shape()
            );
            Err(Error::argument("linalg_norm", message))
        }
    }
}
