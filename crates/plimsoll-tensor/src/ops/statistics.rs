//! Statistics composed of others: two at once, without what is not a number, differences of neighbours, limits for each
//! element.

use super::dim_index;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    /// Variance and mean over some dimensions, which go; over all for none. As `torch.var_mean`.
    ///
    /// # Errors
    /// As [`Tensor::var_dims`].
    pub fn var_mean(&self, dims: &[isize], correction: f64) -> Result<(Tensor, Tensor)> {
        Ok((self.var_dims(dims, correction)?, self.mean_dim_or_all(dims)?))
    }

    /// Standard deviation and mean, as [`Tensor::var_mean`]. As `torch.std_mean`.
    ///
    /// # Errors
    /// As [`Tensor::std_dims`].
    pub fn std_mean(&self, dims: &[isize], correction: f64) -> Result<(Tensor, Tensor)> {
        Ok((self.std_dims(dims, correction)?, self.mean_dim_or_all(dims)?))
    }

    fn mean_dim_or_all(&self, dims: &[isize]) -> Result<Tensor> {
        if dims.is_empty() { self.mean() } else { self.mean_dims(dims) }
    }

    /// Smallest and largest element. As `torch.aminmax`.
    ///
    /// # Errors
    /// No elements; out of memory.
    pub fn aminmax(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.amin(&[])?, self.amax(&[])?))
    }

    /// With `nan` for what is not a number, and `posinf` and `neginf` for the infinite; without one of these, the largest and the
    /// lowest number of the type. As `torch.nan_to_num`.
    ///
    /// # Errors
    /// Out of memory.
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

    /// The sum over some dimensions, or over all for none, without what is not a number. As `torch.nansum`.
    ///
    /// # Errors
    /// As [`Tensor::sum_dims`].
    pub fn nansum(&self, dims: &[isize]) -> Result<Tensor> {
        let x = if self.dtype().is_float() {
            self.masked_fill(&self.detach().isnan()?, 0.0)?
        } else {
            self.clone()
        };
        if dims.is_empty() { x.sum() } else { x.sum_dims(dims) }
    }

    /// The mean over some dimensions, or over all for none, of what is a number. As `torch.nanmean`.
    ///
    /// # Errors
    /// As [`Tensor::nansum`].
    pub fn nanmean(&self, dims: &[isize]) -> Result<Tensor> {
        let numbers = self.detach().isnan()?.logical_not()?.to_dtype(self.dtype())?;
        self.nansum(dims)?.div(&numbers.nansum(dims)?)
    }

    /// The differences of neighbours along a dimension, `n` times. As `torch.diff`.
    ///
    /// # Errors
    /// A dimension that is not there; truth values; out of memory.
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

    /// Each element, but at least that of `low` and at most that of `high`, broadcast. As `torch.clamp` with tensors.
    ///
    /// # Errors
    /// No limit at all; shapes that do not broadcast; out of memory.
    pub fn clamp_tensors(&self, low: Option<&Tensor>, high: Option<&Tensor>) -> Result<Tensor> {
        match (low, high) {
            (Some(low), Some(high)) => self.maximum(low)?.minimum(high),
            (Some(low), None) => self.maximum(low),
            (None, Some(high)) => self.minimum(high),
            (None, None) => Err(Error::argument("clamp", "no limit: give `low`, `high` or both")),
        }
    }
}
