//! The Bernoulli distribution.

use plimsoll_tensor::{Reduction, Result, Tensor, no_grad};

use super::Distribution;
use super::shapes::{broadcast, within};

/// A distribution of 0 and 1. Like `torch.distributions.Bernoulli`.
///
/// ```
/// use plimsoll::distributions::{Bernoulli, Distribution};
/// use plimsoll::{Device, Tensor};
/// let coin = Bernoulli::from_probs(Tensor::full(&[1], 0.5, plimsoll::DType::F32, &Device::cpu())?)?;
/// assert!((coin.entropy()?.item::<f32>()? - 2.0_f32.ln()).abs() < 1e-6);
/// assert_eq!(coin.sample(&[10])?.shape(), [10, 1]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bernoulli {
    probs: Tensor,
    logits: Tensor,
}

impl Bernoulli {
    /// A distribution in which 1 has the probability `sigmoid(logits)`.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn from_logits(logits: impl AsRef<Tensor>) -> Result<Bernoulli> {
        let logits = logits.as_ref().clone();
        Ok(Bernoulli { probs: logits.sigmoid()?, logits })
    }

    /// A distribution in which 1 has this probability.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn from_probs(probs: impl AsRef<Tensor>) -> Result<Bernoulli> {
        let probs = probs.as_ref().clone();
        let inner = within(&probs)?;
        Ok(Bernoulli { logits: (inner.log()? - (-inner)?.log1p()?)?, probs })
    }

    /// The probability of 1.
    pub fn probs(&self) -> &Tensor {
        &self.probs
    }

    /// The log odds of 1: the logarithm of its probability divided by that of 0.
    pub fn logits(&self) -> &Tensor {
        &self.logits
    }

    /// The Kullback-Leibler divergence of this distribution from `other`: infinite where `other` excludes a value that
    /// this one does not. Like `torch.distributions.kl_divergence(self, other)`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn kl_divergence(&self, other: &Bernoulli) -> Result<Tensor> {
        let of_value = |own: &Tensor, theirs: &Tensor, gap: Tensor| {
            let part = (own * gap)?.masked_fill(theirs.eq_scalar(0.0)?, f64::INFINITY)?;
            part.masked_fill(own.eq_scalar(0.0)?, 0.0)
        };
        let one = ((-&other.logits)?.softplus()? - (-&self.logits)?.softplus()?)?;
        let zero = (other.logits.softplus()? - self.logits.softplus()?)?;
        let (own, theirs) = ((1.0 - &self.probs)?, (1.0 - &other.probs)?);
        of_value(&self.probs, &other.probs, one)? + of_value(&own, &theirs, zero)?
    }
}

impl Distribution for Bernoulli {
    fn batch_shape(&self) -> &[usize] {
        self.probs.shape()
    }

    #[track_caller]
    fn sample(&self, sample_shape: &[usize]) -> Result<Tensor> {
        let shape = [sample_shape, self.batch_shape()].concat();
        no_grad(|| self.probs.detach().expand(&shape)?.bernoulli())
    }

    #[track_caller]
    fn log_prob(&self, value: &Tensor) -> Result<Tensor> {
        let (logits, value) = broadcast(&self.logits, value)?;
        logits.binary_cross_entropy_with_logits(value, None, None, Reduction::None)?.neg()
    }

    #[track_caller]
    fn entropy(&self) -> Result<Tensor> {
        self.logits.binary_cross_entropy_with_logits(&self.probs, None, None, Reduction::None)
    }
}
