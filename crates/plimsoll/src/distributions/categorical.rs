//! The categorical distribution.

use plimsoll_tensor::{DType, Error, Result, Tensor, no_grad};

use super::Distribution;
use super::shapes::{broadcast, within};

/// A distribution of the numbers from 0 to `n - 1`; the parameters' last dimension has a number for each. Like
/// `torch.distributions.Categorical`.
///
/// ```
/// use plimsoll::distributions::{Categorical, Distribution};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let die = Categorical::from_logits(Tensor::zeros(&[6], &device)?)?;
/// assert_eq!(die.sample(&[100])?.shape(), [100]);
/// let log_prob = die.log_prob(&Tensor::from_slice(&[5i64], &[], &device)?)?;
/// assert!((log_prob.item::<f32>()? + 6.0_f32.ln()).abs() < 1e-6);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Categorical {
    probs: Tensor,
    logits: Tensor,
}

impl Categorical {
    /// A distribution with the probabilities `softmax(logits)`.
    ///
    /// # Errors
    /// If the logits have no dimensions, or memory runs out.
    pub fn from_logits(logits: impl AsRef<Tensor>) -> Result<Categorical> {
        let logits = want_numbers("logits", logits.as_ref())?.log_softmax(-1)?;
        Ok(Categorical { probs: logits.softmax(-1)?, logits })
    }

    /// A distribution with probabilities proportional to these.
    ///
    /// # Errors
    /// If probabilities have no dimensions, or memory runs out.
    pub fn from_probs(probs: impl AsRef<Tensor>) -> Result<Categorical> {
        let probs = want_numbers("probabilities", probs.as_ref())?;
        let probs = (probs / probs.sum_keepdim(&[-1])?)?;
        Ok(Categorical { logits: within(&probs)?.log()?, probs })
    }

    /// The probabilities, which add up to 1.
    pub fn probs(&self) -> &Tensor {
        &self.probs
    }

    /// Their logarithms.
    pub fn logits(&self) -> &Tensor {
        &self.logits
    }

    /// The divergence of `other` from this distribution: infinite where `other` excludes a number that this one does not. Like
    /// `torch.distributions.kl_divergence(self, other)`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn kl_divergence(&self, other: &Categorical) -> Result<Tensor> {
        let terms = (&self.probs * (&self.logits - &other.logits)?)?;
        let terms = terms.masked_fill(other.probs.eq_scalar(0.0)?, f64::INFINITY)?;
        terms.masked_fill(self.probs.eq_scalar(0.0)?, 0.0)?.sum_dims(&[-1])
    }
}

/// # Errors
/// If the tensor has no dimensions.
fn want_numbers<'a>(what: &str, parameters: &'a Tensor) -> Result<&'a Tensor> {
    match parameters.rank() {
        0 => Err(Error::argument("categorical", format!("{what} without dimensions: needs […, numbers]"))),
        _ => Ok(parameters),
    }
}

impl Distribution for Categorical {
    fn batch_shape(&self) -> &[usize] {
        &self.probs.shape()[..self.probs.rank() - 1]
    }

    /// Numbers, `int64`.
    #[track_caller]
    fn sample(&self, sample_shape: &[usize]) -> Result<Tensor> {
        let (batch, count) = (self.batch_shape(), sample_shape.iter().product::<usize>());
        let rows = batch.iter().product::<usize>();
        let shape = [sample_shape, batch].concat();
        if rows * count == 0 {
            return Tensor::empty(&shape, DType::I64, self.probs.device());
        }
        no_grad(|| {
            let numbers = self.probs.shape()[self.probs.rank() - 1];
            let probs = self.probs.detach().reshape(&[rows, numbers])?;
            probs.multinomial(count, true)?.t()?.reshape(shape.as_slice())
        })
    }

    /// `value` contains whole numbers of any type.
    #[track_caller]
    fn log_prob(&self, value: &Tensor) -> Result<Tensor> {
        let value = value.to_dtype(DType::I64)?.unsqueeze(-1)?;
        let numbers = self.logits.shape()[self.logits.rank() - 1];
        let one = self.logits.narrow(-1, 0, 1)?;
        let (value, one) = broadcast(&value, &one)?;
        let shape = [&one.shape()[..one.rank() - 1], &[numbers]].concat();
        self.logits.expand(&shape)?.gather(-1, value)?.squeeze(-1)
    }

    #[track_caller]
    fn entropy(&self) -> Result<Tensor> {
        // A number with probability 0 contributes 0, not 0 times minus infinity.
        let least = match self.logits.dtype() {
            DType::F64 => f64::MIN,
            DType::F16 => -65504.0,
            DType::BF16 => -3.389_531_389_251_535_5e38,
            _ => f64::from(f32::MIN),
        };
        (&self.probs * self.logits.clamp_min(least)?)?.sum_dims(&[-1])?.neg()
    }
}
