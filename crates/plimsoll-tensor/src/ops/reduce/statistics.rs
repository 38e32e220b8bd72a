//! Statistics composed of other operations: two at once, without NaN, differences of neighbours, elementwise clamping.

use smallvec::smallvec;

use crate::caller::Entry;
use crate::dispatch::Tensors;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::ops::dim_index;
use crate::ops::elementwise::real::Real;
use crate::ops::elementwise::traced::Traced;
use crate::tensor::{Grads, Tensor};

/// `x, low, high -> x` clamped between the bounds.
struct Between;

impl Function for Between {
    fn name(&self) -> &'static str {
        "clamp"
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        ins.iter().try_for_each(|tensor| save.tensor(tensor))?;
        Ok(smallvec![ins[0].maximum(ins[1])?.minimum(ins[2])?])
    }

    /// As in PyTorch 2.11: at a bound, the element gets the complete gradient; a lower bound above the upper one gets none.
    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None, None]) };
        let saved = [at.saved(0)?, at.saved(1)?, at.saved(2)?];
        let gradient = |side: usize| {
            let wide = |i: usize| saved[i].to_dtype(grad.dtype());
            let [x, low, high] = &[wide(0)?, wide(1)?, wide(2)?];
            let to_side = Traced::evaluate([grad, x, low, high], |[g, x, a, b]| share(side, g, x, a, b))?;
            to_side.sum_to(saved[side].shape())?.to_dtype(saved[side].dtype())
        };
        (0..3).map(|side| at.wants(side).then(|| gradient(side)).transpose()).collect()
    }
}

/// The part of the gradient that goes to `x` (side 0), to its lower bound `a` (1) or to its upper bound `b` (2).
fn share<R: Real>(side: usize, g: R, x: R, a: R, b: R) -> R {
    let zero = R::of(0.0);
    let crossed = b.at_most(a, b.equals(a, zero, g), zero);
    match side {
        0 => a.at_most(x, x.at_most(b, g, zero), zero),
        1 => a.at_most(b, a.equals(b, zero, x.at_most(a, x.equals(a, zero, g), zero)), zero),
        _ => b.at_most(x, b.equals(x, crossed, g), crossed),
    }
}

impl Tensor {
    /// Variance and mean over some dimensions, which are removed; over all if the list is empty. Like `torch.var_mean`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::var_dims`].
    #[track_caller]
    pub fn var_mean(&self, dims: &[isize], correction: f64) -> Result<(Tensor, Tensor)> {
        Ok((self.var_dims(dims, correction)?, self.mean_dim_or_all(dims)?))
    }

    /// Standard deviation and mean; the arguments are those of [`Tensor::var_mean`]. Like `torch.std_mean`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::std_dims`].
    #[track_caller]
    pub fn std_mean(&self, dims: &[isize], correction: f64) -> Result<(Tensor, Tensor)> {
        Ok((self.std_dims(dims, correction)?, self.mean_dim_or_all(dims)?))
    }

    #[track_caller]
    fn mean_dim_or_all(&self, dims: &[isize]) -> Result<Tensor> {
        if dims.is_empty() { self.mean() } else { self.mean_dims(dims) }
    }

    /// The smallest and the largest element. Like `torch.aminmax`.
    ///
    /// # Errors
    /// If there are no elements, or memory runs out.
    #[track_caller]
    pub fn aminmax(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.amin(&[])?, self.amax(&[])?))
    }

    /// Replaces NaN by `nan` and the infinities by `posinf` and `neginf`, which default to the largest and the lowest finite
    /// number of the dtype. Like `torch.nan_to_num`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn nan_to_num(
        &self,
        nan: f64,
        posinf: impl Into<Option<f64>>,
        neginf: impl Into<Option<f64>>,
    ) -> Result<Tensor> {
        let largest = match self.dtype() {
            DType::F64 => f64::MAX,
            DType::F16 => 65504.0,
            DType::BF16 => 3.389_531_389_251_535_5e38,
            DType::F32 => f64::from(f32::MAX),
            _ => return Ok(self.clone()),
        };
        let infinite = self.detach().isinf()?;
        let above = infinite.logical_and(&self.detach().gt_scalar(0.0)?)?;
        let below = infinite.logical_and(&self.detach().lt_scalar(0.0)?)?;
        self.masked_fill(&self.detach().isnan()?, nan)?
            .masked_fill(&above, posinf.into().unwrap_or(largest))?
            .masked_fill(&below, neginf.into().unwrap_or(-largest))
    }

    /// The sum over these dimensions, or over all if empty, ignoring NaN. Like `torch.nansum`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::sum_dims`].
    #[track_caller]
    pub fn nansum(&self, dims: &[isize]) -> Result<Tensor> {
        let x = if self.dtype().is_float() {
            self.masked_fill(&self.detach().isnan()?, 0.0)?
        } else {
            self.clone()
        };
        if dims.is_empty() { x.sum() } else { x.sum_dims(dims) }
    }

    /// The mean over these dimensions, or over all if empty, ignoring NaN. Like `torch.nanmean`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::nansum`].
    #[track_caller]
    pub fn nanmean(&self, dims: &[isize]) -> Result<Tensor> {
        let numbers = self.detach().isnan()?.logical_not()?.to_dtype(self.dtype())?;
        self.nansum(dims)?.div(&numbers.nansum(dims)?)
    }

    /// The differences of neighbours along a dimension, computed `n` times. Like `torch.diff`.
    ///
    /// # Errors
    /// If the dimension is out of range, the tensor is `bool`, or memory runs out.
    #[track_caller]
    pub fn diff(&self, n: usize, dim: isize) -> Result<Tensor> {
        let at = dim_index("diff", dim, self.rank())?;
        let mut x = self.clone();
        for _ in 0..n {
            let size = x.shape()[at];
            let rest = size.saturating_sub(1);
            let (later, earlier) = (x.narrow(dim, size - rest, rest)?, x.narrow(dim, 0, rest)?);
            x = if x.dtype() == DType::Bool { later.ne(&earlier)? } else { later.sub(&earlier)? };
        }
        Ok(x)
    }

    /// Clamps each element between the elements of `low` and `high`, broadcast. An element that equals a bound shares the
    /// gradient with it. Like `torch.clamp` with tensors.
    ///
    /// # Errors
    /// If there is no bound at all, the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn clamp_tensors<'a>(
        &self,
        low: impl Into<Option<&'a Tensor>>,
        high: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (low, high) = (low.into(), high.into());
        match (low, high) {
            (Some(low), Some(high))
                if self.requires_grad() || low.requires_grad() || high.requires_grad() =>
            {
                Ok(apply(Between, &[self, low, high])?.remove(0))
            }
            (Some(low), Some(high)) => self.maximum(low)?.minimum(high),
            (Some(low), None) => self.maximum(low),
            (None, Some(high)) => self.minimum(high),
            (None, None) => Err(Error::argument("clamp", "no limit: give `low`, `high` or both")),
        }
    }
}
