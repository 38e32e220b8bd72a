//! Views of the same storage in other shapes. None of them copies, except `reshape` and `flatten` if the strides require it.

use smallvec::smallvec;

use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::layout::{self, Dims};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::dim_index;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// A shape to view a tensor in. In the signed forms, one size may be -1, which is inferred from the others.
pub trait ReshapeTo {
    /// The sizes, with -1 for the inferred one.
    fn sizes(&self) -> Vec<i64>;
}

macro_rules! reshape_to {
    ($($int:ty),*) => {$(
        impl<const N: usize> ReshapeTo for &[$int; N] {
            fn sizes(&self) -> Vec<i64> {
                self.as_slice().sizes()
            }
        }
        impl ReshapeTo for &[$int] {
            fn sizes(&self) -> Vec<i64> {
                // A size beyond i64 is replaced by one that no tensor has.
                self.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect()
            }
        }
    )*};
}
reshape_to!(usize, i32, i64, isize);

impl Tensor {
    /// The same elements in row-major order in a different shape: a view if possible, otherwise a copy. One size may be -1.
    ///
    /// ```
    /// # use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::zeros(&[2, 3, 4], &Device::cpu())?;
    /// assert_eq!(x.reshape(&[-1, 4])?.shape(), [6, 4]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the shape has a different number of elements, or memory runs out for the copy.
    #[allow(clippy::needless_pass_by_value, reason = "what is passed is a reference already")]
    #[track_caller]
    pub fn reshape(&self, shape: impl ReshapeTo) -> Result<Tensor> {
        let shape = self.resolve(&shape.sizes())?;
        if shape.as_slice() == self.shape() {
            return Ok(self.clone());
        }
        match self.data().layout.reshape(&shape) {
            Some(_) => call_one(View::Reshape(shape), &[self]),
            None => self.copy()?.reshape(shape.as_slice()),
        }
    }

    /// The same elements in row-major order in a different shape, without a copy. One size may be -1. Like `Tensor.view`.
    ///
    /// # Errors
    /// If the shape has a different number of elements, or the strides would require a copy (use `reshape`).
    #[allow(clippy::needless_pass_by_value, reason = "what is passed is a reference already")]
    #[track_caller]
    pub fn view(&self, shape: impl ReshapeTo) -> Result<Tensor> {
        call_one(View::Reshape(self.resolve(&shape.sizes())?), &[self])
    }

    /// Merges dimensions `start` to `end`, both included, into one. Like `torch.flatten`.
    ///
    /// # Errors
    /// If a dimension is out of range, or memory runs out because the strides require a copy.
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> Result<Tensor> {
        if self.rank() == 0 {
            return self.reshape(&[1]);
        }
        let (start, end) =
            (dim_index("flatten", start, self.rank())?, dim_index("flatten", end, self.rank())?);
        if start > end {
            return Err(Error::shape(
                "flatten",
                format!("end dimension {end} is before start dimension {start}"),
            ));
        }
        let mut shape: Dims = self.shape().into();
        let merged = shape.drain(start..=end).product();
        shape.insert(start, merged);
        self.reshape(shape.as_slice())
    }

    /// Swaps two dimensions.
    ///
    /// # Errors
    /// If dimensions are out of range.
    #[track_caller]
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        if self.rank() == 0 && [a, b].iter().all(|dim| (-1..=0).contains(dim)) {
            return Ok(self.clone());
        }
        let (a, b) = (dim_index("transpose", a, self.rank())?, dim_index("transpose", b, self.rank())?);
        call_one(View::Transpose(a, b), &[self])
    }

    /// The transpose of a matrix. A vector or scalar is returned unchanged. Like `Tensor.t`.
    ///
    /// # Errors
    /// If there are more than two dimensions.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() < 2 {
            return Ok(self.clone());
        }
        if self.rank() != 2 {
            return Err(Error::shape("t", format!("{:?} is not a matrix", self.shape())));
        }
        self.transpose(0, 1)
    }

    /// Puts the dimensions into a different order; each must be listed once.
    ///
    /// # Errors
    /// If the order omits or repeats a dimension, or has one that is out of range.
    #[track_caller]
    pub fn permute(&self, dims: &[isize]) -> Result<Tensor> {
        let order: Dims =
            dims.iter().map(|&dim| dim_index("permute", dim, self.rank())).collect::<Result<_>>()?;
        if (0..self.rank()).any(|dim| order.iter().filter(|&&d| d == dim).count() != 1) {
            let message = format!("{dims:?} does not name each of {} dimensions once", self.rank());
            return Err(Error::shape("permute", message));
        }
        call_one(View::Permute(order), &[self])
    }

    /// Inserts a dimension of size 1 before `dim` (at the end for -1).
    ///
    /// # Errors
    /// If a position is out of range.
    #[track_caller]
    pub fn unsqueeze(&self, dim: isize) -> Result<Tensor> {
        let dim = dim_index("unsqueeze", dim, self.rank() + 1)?;
        call_one(View::Unsqueeze(dim), &[self])
    }

    /// Removes a dimension of size 1. If it has a different size, returns the tensor itself, as in PyTorch.
    ///
    /// # Errors
    /// If a dimension is out of range.
    #[track_caller]
    pub fn squeeze(&self, dim: isize) -> Result<Tensor> {
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return Ok(self.clone());
        }
        let dim = dim_index("squeeze", dim, self.rank())?;
        if self.shape()[dim] != 1 {
            return Ok(self.clone());
        }
        call_one(View::Squeeze(dim), &[self])
    }

    /// Broadcasts to `shape` without copying: dimensions of size 1 and missing leading ones repeat.
    ///
    /// # Errors
    /// If this shape does not broadcast to the new one.
    #[track_caller]
    pub fn expand(&self, shape: &[usize]) -> Result<Tensor> {
        call_one(View::Expand(shape.into()), &[self])
    }

    /// The sizes, with -1 replaced by the inferred size.
    fn resolve(&self, sizes: &[i64]) -> Result<Dims> {
        let misfit = || Error::shape("reshape", format!("{:?} into {sizes:?}", self.shape()));
        let product = |mut sizes: Box<dyn Iterator<Item = i64> + '_>| {
            sizes.try_fold(1usize, |n, size| n.checked_mul(usize::try_from(size).ok()?))
        };
        let known = product(Box::new(sizes.iter().copied().filter(|&n| n != -1))).ok_or_else(misfit)?;
        let rest = match sizes.iter().filter(|&&n| n == -1).count() {
            0 if known == self.numel() => 0,
            1 if known > 0 && self.numel().is_multiple_of(known) => self.numel() / known,
            _ => return Err(misfit()),
        };
        Ok(sizes.iter().map(|&n| usize::try_from(n).unwrap_or(rest)).collect())
    }
}

/// `x -> view`: the same elements in a different shape or order.
#[derive(Clone, Debug)]
enum View {
    /// Reshapes to this shape.
    Reshape(Dims),
    Transpose(usize, usize),
    Permute(Dims),
    Unsqueeze(usize),
    Squeeze(usize),
    /// Expands to this shape.
    Expand(Dims),
}

impl Kernel for View {
    fn name(&self) -> &'static str {
        match self {
            View::Reshape(_) => "reshape",
            View::Transpose(..) => "transpose",
            View::Permute(_) => "permute",
            View::Unsqueeze(_) => "unsqueeze",
            View::Squeeze(_) => "squeeze",
            View::Expand(_) => "expand",
        }
    }
}

impl Operator for View {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = crate::ops::elementwise::operands::inputs(self.name(), ins)?;
        let misfit = |message: String| Error::shape(self.name(), message);
        let layout = match self {
            View::Reshape(shape) => x.layout.reshape(shape).ok_or_else(|| {
                let (from, strides) = (x.shape(), x.layout.strides());
                misfit(format!(
                    "{from:?} with strides {strides:?} into {shape:?} needs a copy: use `reshape`"
                ))
            })?,
            View::Transpose(a, b) => x.layout.transpose(*a, *b),
            View::Permute(order) => x.layout.permute(order),
            View::Unsqueeze(dim) => x.layout.unsqueeze(*dim),
            View::Squeeze(dim) => x.layout.squeeze(*dim),
            View::Expand(shape) => {
                layout::checked_len(shape)?;
                let wide = x.layout.expand(shape);
                wide.ok_or_else(|| misfit(format!("{:?} does not broadcast to {shape:?}", x.shape())))?
            }
        };
        Ok(smallvec![Output::view(0, layout, x.dtype)])
    }

    fn cost(&self, _: &[Meta<'_>], _: &[Meta<'_>]) -> Cost {
        Cost::default()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let result = match self {
            View::Reshape(_) | View::Unsqueeze(_) | View::Squeeze(_) => grad.reshape(at.shape(0))?,
            View::Transpose(a, b) => grad.transpose(*a as isize, *b as isize)?,
            View::Permute(order) => {
                let mut inverse = vec![0; order.len()];
                order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to as isize);
                grad.permute(&inverse)?
            }
            View::Expand(_) => grad.sum_to(at.shape(0))?,
        };
        Ok(smallvec![Some(result)])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |op: View, order: fn(usize) -> usize, len: usize| {
        let values = move |ins: &[Vec<f64>]| vec![(0..len).map(|i| ins[0][order(i)]).collect()];
        Case::new(format!("{op:?}"), &[&[3, 4]], move |ins| match &op {
            View::Reshape(shape) => Ok(smallvec![ins[0].reshape(shape.as_slice())?]),
            op => call(op.clone(), ins),
        })
        .expect(values)
    };
    vec![
        case(View::Reshape(Dims::from_slice(&[2, 6])), |i| i, 12),
        case(View::Transpose(0, 1), |i| i % 3 * 4 + i / 3, 12),
        case(View::Permute(Dims::from_slice(&[1, 0])), |i| i % 3 * 4 + i / 3, 12),
        case(View::Unsqueeze(1), |i| i, 12),
        case(View::Expand(Dims::from_slice(&[2, 3, 4])), |i| i % 12, 24),
        Case::new("squeeze", &[&[3, 1]], |ins| call(View::Squeeze(1), ins)),
    ]
}
