//! Cumulative maxima, minima and log-sum-exp along a dimension: `cummax`, `cummin`, `logcumsumexp`. Composed of other
//! operations: in each of `log2 n` rounds, the distance over which elements are combined doubles.

use crate::autograd::is_grad_enabled;
use crate::caller::Entry;
use crate::dispatch::Tensors;
use crate::dtype::DType;
use crate::error::Result;
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::operator::Autocast;
use crate::ops::{dim_index, want_float};
use crate::tensor::{Grads, Tensor};

/// A running reduction (scan) along `dim`: each result combines all elements up to its own. `combine` takes the
/// earlier and the later part, and must be associative.
#[track_caller]
fn running(
    x: Vec<Tensor>,
    dim: usize,
    combine: impl Fn(&[Tensor], &[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let (size, dim) = (x[0].shape()[dim], dim as isize);
    let mut so_far = x;
    let mut distance = 1;
    while distance < size {
        let part = |start: usize, len: usize| -> Result<Vec<Tensor>> {
            so_far.iter().map(|x| x.narrow(dim, start, len)).collect()
        };
        let (early, late) = (part(0, size - distance)?, part(distance, size - distance)?);
        let first = part(0, distance)?;
        let combined = combine(&early, &late)?;
        so_far =
            first.iter().zip(&combined).map(|(a, b)| Tensor::cat(&[a, b], dim)).collect::<Result<_>>()?;
        distance *= 2;
    }
    Ok(so_far)
}

impl Tensor {
    /// The cumulative maximum along a dimension and its index (`int64`), which is the last one if several are equal. NaN counts
    /// as larger than everything. Like `torch.cummax`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 3.0], &[4], &Device::cpu())?;
    /// let (largest, place) = x.cummax(0)?;
    /// assert_eq!(largest.to_vec::<f32>()?, [1.0, 3.0, 3.0, 3.0]);
    /// assert_eq!(place.to_vec::<i64>()?, [0, 1, 1, 3]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a dimension is out of range, or memory runs out.
    #[track_caller]
    pub fn cummax(&self, dim: isize) -> Result<(Tensor, Tensor)> {
        let _entry = Entry::here();
        self.running_extreme("cummax", dim, |a, b| a.ge(b))
    }

    /// The cumulative minimum along a dimension and its index (`int64`), which is the last one if several are equal. NaN counts
    /// as smaller than everything. Like `torch.cummin`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cummax`].
    #[track_caller]
    pub fn cummin(&self, dim: isize) -> Result<(Tensor, Tensor)> {
        let _entry = Entry::here();
        self.running_extreme("cummin", dim, |a, b| a.le(b))
    }

    #[track_caller]
    fn running_extreme(
        &self,
        op: &'static str,
        dim: isize,
        follows: fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            let (value, place) = self.unsqueeze(0)?.running_extreme(op, 0, follows)?;
            return Ok((value.squeeze(0)?, place.squeeze(0)?));
        }
        let at = dim_index(op, dim, self.rank())?;
        let mut sizes = vec![1; self.rank()];
        sizes[at] = self.shape()[at];
        let places = Tensor::arange(self.shape()[at], self.device())?.reshape(sizes.as_slice())?;
        let places = places.expand(self.shape())?.contiguous()?;
        let later = |early: &[Tensor], late: &[Tensor]| {
            let later = follows(&late[0], &early[0])?.logical_or(&late[0].isnan()?)?;
            early.iter().zip(late).map(|(early, late)| later.where_cond(late, early)).collect()
        };
        let found = running(vec![self.detach(), places], at, later)?;
        Ok((self.gather(dim, &found[1])?, found[1].clone()))
    }

    /// The cumulative log-sum-exp along a dimension, without overflow. Like `torch.logcumsumexp`.
    ///
    /// # Errors
    /// If a dimension is out of range, the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn logcumsumexp(&self, dim: isize) -> Result<Tensor> {
        let _entry = Entry::here();
        const NAME: &str = "logcumsumexp";
        want_float(NAME, self.dtype())?;
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return self.mul_scalar(1.0);
        }
        Ok(apply(LogCumSumExp { dim: dim_index(NAME, dim, self.rank())? }, &[self])?.remove(0))
    }
}

/// `x -> out`
struct LogCumSumExp {
    dim: usize,
}

impl LogCumSumExp {
    #[track_caller]
    fn of(&self, x: &Tensor) -> Result<Tensor> {
        // 16-bit floats are summed in a wider dtype.
        let wide = x.detach().to_dtype(x.dtype().accumulator())?;
        let sums = running(vec![wide], self.dim, |early, late| Ok(vec![early[0].logaddexp(&late[0])?]))?;
        sums[0].to_dtype(x.dtype())
    }
}

impl LogCumSumExp {
    /// The gradient of each element, summed over all later outputs: `grad · e^(x - out)` of every pair, as differentiable
    /// operations. It materializes a matrix for each row.
    #[track_caller]
    fn by_pairs(&self, grad: &Tensor, x: &Tensor, out: &Tensor) -> Result<Tensor> {
        let (dim, size) = (self.dim as isize, x.shape()[self.dim]);
        let rows = |x: &Tensor| x.transpose(dim, -1);
        let shares = rows(x)?.unsqueeze(-1)?.sub(&rows(out)?.unsqueeze(-2)?)?;
        let place = Tensor::arange(size, x.device())?;
        let earlier = place.unsqueeze(0)?.lt(&place.unsqueeze(1)?)?;
        let shares = shares.masked_fill(&earlier, f64::NEG_INFINITY)?.exp()?;
        shares.mul(&rows(grad)?.unsqueeze(-2)?)?.sum_dims(&[-1])?.transpose(dim, -1)
    }
}

impl Function for LogCumSumExp {
    fn name(&self) -> &'static str {
        "logcumsumexp"
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let out = self.of(ins[0])?;
        save.tensor(ins[0])?;
        save.tensor(&out)?;
        Ok(vec![out].into())
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(vec![None].into()) };
        if is_grad_enabled() {
            return Ok(vec![Some(self.by_pairs(grad, &at.saved(0)?, &at.saved(1)?)?)].into());
        }
        let (x, out, dim) = (at.saved(0)?, at.saved(1)?, [self.dim as isize]);
        // The sum over all later elements of grad · e^(x - out), in log space, separately for positive and negative gradients.
        let lowest = match x.dtype() {
            DType::F64 => f64::MIN,
            DType::F16 => -65504.0,
            DType::BF16 => -3.389_531_389_251_535_5e38,
            _ => f64::from(f32::MIN),
        };
        let logarithm = grad.abs()?.log()?;
        let part = |counts: Tensor| -> Result<Tensor> {
            let log = logarithm.masked_fill(&counts.logical_not()?, lowest)?.sub(&out)?;
            self.of(&log.flip(&dim)?)?.flip(&dim)?.add(&x)?.exp()
        };
        let grad = part(grad.gt_scalar(0.0)?)?.sub(&part(grad.lt_scalar(0.0)?)?)?;
        Ok(vec![Some(grad)].into())
    }
}
