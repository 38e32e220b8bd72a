//! Sums, means, and where the largest value is.

use smallvec::{SmallVec, smallvec};

use super::{dim_index, want_float};
use crate::autograd::{Backward, Grads, link};
use crate::dispatch;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::op::Op;
use crate::tensor::Tensor;

/// Whether a reduced dimension stays, with size 1.
#[derive(Clone, Copy, PartialEq)]
enum Reduced {
    Dropped,
    Kept,
}

impl Tensor {
    /// The sum of all elements, a scalar.
    ///
    /// # Errors
    /// A type other than `float32`; out of memory: as for every reduction.
    pub fn sum(&self) -> Result<Tensor> {
        self.reduce("sum", &all(self), Reduced::Dropped, 1.0)
    }

    /// Sums over some dimensions, which go. As `torch.sum(dim=…)`.
    ///
    /// # Errors
    /// A dimension that is not there.
    pub fn sum_dims(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("sum", dims, Reduced::Dropped, 1.0)
    }

    /// Sums over some dimensions, which stay with size 1. As `torch.sum(dim=…, keepdim=True)`.
    ///
    /// # Errors
    /// A dimension that is not there.
    pub fn sum_keepdim(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("sum", dims, Reduced::Kept, 1.0)
    }

    /// The mean of all elements, a scalar; not a number where there are none.
    ///
    /// # Errors
    /// As [`Tensor::sum`].
    pub fn mean(&self) -> Result<Tensor> {
        self.mean_dims(&all(self))
    }

    /// Means over some dimensions, which go. As `torch.mean(dim=…)`.
    ///
    /// # Errors
    /// A dimension that is not there.
    pub fn mean_dims(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("mean", dims, Reduced::Dropped, 1.0 / self.count("mean", dims)? as f32)
    }

    /// Means over some dimensions, which stay with size 1.
    ///
    /// # Errors
    /// A dimension that is not there.
    pub fn mean_keepdim(&self, dims: &[isize]) -> Result<Tensor> {
        self.reduce("mean", dims, Reduced::Kept, 1.0 / self.count("mean", dims)? as f32)
    }

    /// Where the largest value along a dimension is, the first of equals, as 64-bit integers.
    ///
    /// # Errors
    /// A dimension that is not there or has no elements; a type other than `float32`; out of memory.
    pub fn argmax(&self, dim: isize) -> Result<Tensor> {
        want_float("argmax", self)?;
        let dim = dim_index("argmax", dim, self.rank())?;
        if self.shape()[dim] == 0 {
            return Err(Error::shape(
                "argmax",
                format!("dimension {dim} of {:?} has no elements", self.shape()),
            ));
        }
        // The kernel works on rows: the dimension goes last.
        let mut order: Vec<isize> = (0..self.rank() as isize).filter(|&d| d != dim as isize).collect();
        order.push(dim as isize);
        let rows = self.detach().permute(&order)?.contiguous()?;
        let shape = &rows.shape()[..rows.rank() - 1];
        dispatch::run(&Op::ArgMax, &[rows.data()], shape, DType::I64).map(Tensor::from_data)
    }

    fn count(&self, op: &'static str, dims: &[isize]) -> Result<usize> {
        dims.iter().map(|&dim| Ok(self.shape()[dim_index(op, dim, self.rank())?])).product()
    }

    fn reduce(&self, name: &'static str, dims: &[isize], reduced: Reduced, scale: f32) -> Result<Tensor> {
        want_float(name, self)?;
        let mut marks: Dims = smallvec![0; self.rank()];
        for &dim in dims {
            let dim = dim_index(name, dim, self.rank())?;
            if marks[dim] == 1 {
                return Err(Error::shape(name, format!("dimension {dim} is named twice in {dims:?}")));
            }
            marks[dim] = 1;
        }
        let kept: Dims =
            self.shape().iter().zip(&marks).map(|(&n, &mark)| if mark == 1 { 1 } else { n }).collect();
        let dropped: SmallVec<[usize; 6]> =
            self.shape().iter().zip(&marks).filter(|&(_, &mark)| mark == 0).map(|(&n, _)| n).collect();
        let shape = if reduced == Reduced::Kept { &kept } else { &dropped };
        let op = Op::Sum { reduced: marks, scale };
        let out = dispatch::run(&op, &[self.data()], shape, DType::F32)?;
        Ok(link(out, &[self], |_, _| SumBack { name, from: self.shape().into(), kept, scale }))
    }
}

fn all(tensor: &Tensor) -> Vec<isize> {
    (0..tensor.rank() as isize).collect()
}

struct SumBack {
    name: &'static str,
    from: Dims,
    /// The input's shape with reduced dimensions of size 1.
    kept: Dims,
    scale: f32,
}

impl Backward for SumBack {
    fn name(&self) -> &'static str {
        self.name
    }

    fn backward(&self, grads: &[Option<Tensor>], _: &[bool]) -> Result<Grads> {
        let Some(grad) = &grads[0] else { return Ok(smallvec![None]) };
        let grad = if self.scale == 1.0 { grad.clone() } else { grad.mul_scalar(self.scale)? };
        Ok(smallvec![Some(grad.reshape(self.kept.as_slice())?.expand(&self.from)?)])
    }
}
