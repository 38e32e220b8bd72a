//! Checks of the shapes and types of matrices, and errors that name a matrix of a batch.

use crate::cpu::kernels::linalg::Failure;
use crate::error::{Error, Result};
use crate::layout::broadcast;
use crate::operator::Meta;
use crate::ops::want_full;
use crate::tensor::Tensor;

/// The number of matrices, and the size of each.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub(super) count: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Batch {
    /// Reads a shape with at least two dimensions.
    pub(super) fn of(shape: &[usize]) -> Batch {
        let [lead @ .., rows, cols] = shape else { unreachable!("inferred") };
        Batch { count: lead.iter().product(), rows: *rows, cols: *cols }
    }
}

/// Fails unless the input is a batch of matrices.
pub(super) fn want_matrices(op: &'static str, a: Meta<'_>) -> Result<()> {
    want_full(op, a.dtype)?;
    if a.rank() < 2 {
        let message = format!("{:?}: needs a matrix, or a batch of them", a.shape());
        return Err(Error::shape(op, message));
    }
    Ok(())
}

/// Fails unless the input is a batch of square matrices.
pub(super) fn want_square(op: &'static str, a: Meta<'_>) -> Result<()> {
    want_matrices(op, a)?;
    let [.., rows, cols] = *a.shape() else { unreachable!("checked above") };
    if rows != cols {
        return Err(Error::shape(op, format!("{:?}: needs square matrices", a.shape())));
    }
    Ok(())
}

/// Fails unless `b` has the batch shape of the square matrices `a`, and as many rows as they have.
pub(super) fn want_right_sides(op: &'static str, a: Meta<'_>, b: Meta<'_>) -> Result<()> {
    want_square(op, a)?;
    want_matrices(op, b)?;
    let ([a_lead @ .., n, _], [b_lead @ .., rows, _]) = (a.shape(), b.shape()) else {
        unreachable!("checked above")
    };
    if a_lead != b_lead || n != rows {
        return Err(Error::shape(op, format!("{:?} with {:?}: the rows differ", a.shape(), b.shape())));
    }
    Ok(())
}

/// Expands both batches of matrices to a common one.
#[track_caller]
pub(super) fn expanded(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let (Some(a_lead), Some(b_lead)) = (a.rank().checked_sub(2), b.rank().checked_sub(2)) else {
        let message = format!("{:?} with {:?}: needs matrices, or batches of them", a.shape(), b.shape());
        return Err(Error::shape(op, message));
    };
    if a.shape()[..a_lead] == b.shape()[..b_lead] {
        return Ok((a.clone(), b.clone()));
    }
    let lead = broadcast(op, &a.shape()[..a_lead], &b.shape()[..b_lead])?;
    let a = a.expand(&[&lead[..], &a.shape()[a_lead..]].concat())?;
    Ok((a, b.expand(&[&lead[..], &b.shape()[b_lead..]].concat())?))
}

/// The error for a matrix of this shape, which names its place if there are several.
pub(super) fn failed(op: &'static str, shape: &[usize], failure: Failure, message: String) -> Error {
    let batch = (shape.len() > 2).then_some(failure.matrix);
    Error::LinAlg { op, batch, message }
}
