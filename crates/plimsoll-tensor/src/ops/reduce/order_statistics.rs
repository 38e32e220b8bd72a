//! Elements by their rank along a dimension: `median`, `kthvalue`, `quantile`. All of them sort. The gradient goes to the
//! selected elements.

use smallvec::smallvec;

use super::extreme::{Share, Shared};
use crate::caller::Entry;
use crate::dispatch::{Tensors, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::ops::{dim_index, want_full};
use crate::tensor::{Grads, Tensor};

/// The value of a quantile between two elements. Like PyTorch's `interpolation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// Linear interpolation of the two.
    #[default]
    Linear,
    /// The lower element.
    Lower,
    /// The higher element.
    Higher,
    /// The nearer element; ties go to the even index.
    Nearest,
    /// The midpoint of the two.
    Midpoint,
}

/// `x -> median` of all elements.
struct Median;

impl Function for Median {
    fn name(&self) -> &'static str {
        "median"
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let median = ins[0].reshape(&[-1])?.median_dim(0)?.0;
        save.tensor(ins[0])?;
        save.tensor(&median)?;
        Ok(smallvec![median])
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let (x, median) = (at.saved(0)?.detach(), at.saved(1)?.detach());
        let equal = x.eq(&median)?.logical_or(&x.isnan()?.logical_and(&median.isnan()?)?)?;
        // 16-bit floats cannot count far.
        let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let count = equal.count_nonzero()?.to_dtype(wide)?;
        let share = grad.to_dtype(wide)?.div(&count)?.to_dtype(x.dtype())?;
        let [share, median] = [share, median].map(|one| one.expand(x.shape()));
        Ok(smallvec![Some(call_one(Share { of: Shared::All }, &[&share?, &x, &median?])?)])
    }
}

impl Tensor {
    /// The median of all elements: for an even count, the lower of the middle two; NaN if any is NaN. Equal elements share the
    /// gradient. Like `torch.median`.
    ///
    /// # Errors
    /// If the tensor is an empty integer tensor (an empty floating-point one gives NaN), or memory runs out.
    #[track_caller]
    pub fn median(&self) -> Result<Tensor> {
        let _entry = Entry::here();
        if self.numel() == 0 && self.dtype().is_float() {
            return self.sum()?.affine(0.0, f64::NAN);
        }
        Ok(apply(Median, &[self])?.remove(0))
    }

    /// The medians along a dimension, which is removed, and their indices (`int64`). Among equal elements, the index may differ
    /// from PyTorch's. Like `torch.median(dim)`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0, 9.0], &[4], &Device::cpu())?;
    /// let (value, place) = x.median_dim(0)?;
    /// assert_eq!((value.item::<f32>()?, place.item::<i64>()?), (2.0, 2));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the dimension is out of range or has no elements, or memory runs out.
    #[track_caller]
    pub fn median_dim(&self, dim: isize) -> Result<(Tensor, Tensor)> {
        let _entry = Entry::here();
        let size = self.want_ranked("median", dim)?;
        if size == 0 {
            return Ok((self.clone(), Tensor::full(&[], 0.0, DType::I64, self.device())?));
        }
        let (values, places) = self.sort(dim, false)?;
        let middle = (size - 1) as isize / 2;
        let (value, place) = (values.select(dim, middle)?, places.select(dim, middle)?);
        if !self.dtype().is_float() {
            return Ok((value, place));
        }
        // NaN sorts last, and is the median if present.
        let none = values.isnan()?.to_dtype(DType::I64)?.sum_dims(&[dim])?;
        let first = none.affine_index(-1, size as i64)?.clamp(0.0, (size - 1) as f64)?;
        let (last, at) = (values.select(dim, -1)?, places.gather(dim, &first.unsqueeze(dim)?)?.squeeze(dim)?);
        let any = last.isnan()?;
        Ok((any.where_cond(&last, &value)?, any.where_cond(&at, &place)?))
    }

    /// The `k`-th smallest elements (from 1) along a dimension, which is removed, and their indices (`int64`). Like
    /// `torch.kthvalue`.
    ///
    /// # Errors
    /// If a dimension is out of range, a `k` is outside 1 to its size, or memory runs out.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, dim: isize) -> Result<(Tensor, Tensor)> {
        let _entry = Entry::here();
        let size = self.want_ranked("kthvalue", dim)?.max(1);
        if k == 0 || k > size {
            return Err(Error::argument("kthvalue", format!("k is {k}: needs 1 to {size}")));
        }
        if self.rank() == 0 {
            return self.median_dim(0);
        }
        let (values, places) = self.sort(dim, false)?;
        Ok((values.select(dim, k as isize - 1)?, places.select(dim, k as isize - 1)?))
    }

    /// The `q`-quantile of the elements along a dimension, which is removed, or of all elements if `None`; NaN if any is NaN.
    /// Like `torch.quantile` with a number.
    ///
    /// # Errors
    /// The same errors as [`Tensor::quantiles`].
    #[track_caller]
    pub fn quantile(&self, q: f64, dim: impl Into<Option<isize>>, between: Interpolation) -> Result<Tensor> {
        self.quantiles(&[q], dim, between)?.squeeze(0)
    }

    /// Several quantiles, along the first dimension of the result. Like `torch.quantile` with a vector.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Interpolation, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0, 4.0], &[4], &Device::cpu())?;
    /// assert_eq!(x.quantiles(&[0.0, 0.5], 0, Interpolation::Linear)?.to_vec::<f32>()?, [1.0, 2.5]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a number is outside 0 to 1, the dtype is neither `float32` nor `float64`, the dimension is out of range or
    /// has no elements, or memory runs out.
    #[track_caller]
    pub fn quantiles(
        &self,
        q: &[f64],
        dim: impl Into<Option<isize>>,
        between: Interpolation,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        const NAME: &str = "quantile";
        if let Some(bad) = q.iter().find(|q| !(0.0..=1.0).contains(*q)) {
            return Err(Error::argument(NAME, format!("q is {bad}: needs 0 to 1")));
        }
        want_full(NAME, self.dtype())?;
        let (x, dim) = match dim.into() {
            Some(dim) => (self.clone(), dim),
            None => (self.reshape(&[-1])?, 0),
        };
        let x = if x.rank() == 0 { x.unsqueeze(0)? } else { x };
        let size = x.want_ranked(NAME, dim)?;
        let (sorted, _) = x.sort(dim, false)?;
        let last = sorted.select(dim, -1)?;
        let none = last.isnan()?;
        let at = |q: f64| -> Result<Tensor> {
            let rank = q * (size - 1) as f64;
            let (low, high) = (sorted.select(dim, rank.floor() as isize)?, rank.ceil() as isize);
            let value = match between {
                Interpolation::Lower => low,
                Interpolation::Higher => sorted.select(dim, high)?,
                Interpolation::Nearest => sorted.select(dim, rank.round_ties_even() as isize)?,
                Interpolation::Linear => low.lerp_scalar(&sorted.select(dim, high)?, rank.fract())?,
                Interpolation::Midpoint => low.lerp_scalar(&sorted.select(dim, high)?, 0.5)?,
            };
            none.where_cond(&last, &value)
        };
        let found: Vec<Tensor> = q.iter().map(|&q| at(q)).collect::<Result<_>>()?;
        Tensor::stack(&found.iter().collect::<Vec<_>>(), 0)
    }

    /// The size of a dimension with at least one element; 0 for a scalar, which is its own median.
    fn want_ranked(&self, op: &'static str, dim: isize) -> Result<usize> {
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return Ok(0);
        }
        let at = dim_index(op, dim, self.rank())?;
        match self.shape()[at] {
            0 => Err(Error::shape(op, format!("dimension {at} of {:?} has no elements", self.shape()))),
            size => Ok(size),
        }
    }

    /// `mul · self + add`, for integers.
    #[track_caller]
    fn affine_index(&self, mul: i64, add: i64) -> Result<Tensor> {
        self.mul_scalar(mul)?.add_scalar(add)
    }
}
