//! The uniform distribution.

use plimsoll_tensor::{Result, Tensor, no_grad};

use super::shapes::broadcast;
use super::{Distribution, Divergence};

/// A uniform distribution between two numbers; the upper one is excluded. Like `torch.distributions.Uniform`.
///
/// ```
/// use plimsoll::distributions::{Distribution, Uniform};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let angle = Uniform::new(Tensor::zeros(&[1], &device)?, Tensor::full(&[1], 2.0, plimsoll::DType::F32, &device)?)?;
/// assert_eq!(angle.entropy()?.item::<f32>()?, 2.0f32.ln());
/// assert!(angle.sample(&[100])?.max()?.item::<f32>()? < 2.0);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Uniform {
    low: Tensor,
    high: Tensor,
}

impl Uniform {
    /// A distribution between these bounds, which are broadcast.
    ///
    /// # Errors
    /// If the shapes do not broadcast.
    pub fn new(low: impl AsRef<Tensor>, high: impl AsRef<Tensor>) -> Result<Uniform> {
        let (low, high) = broadcast(low.as_ref(), high.as_ref())?;
        Ok(Uniform { low, high })
    }

    /// The lower bound.
    pub fn low(&self) -> &Tensor {
        &self.low
    }

    /// The upper bound.
    pub fn high(&self) -> &Tensor {
        &self.high
    }

    /// Draws samples that pass gradients on to the bounds: `low + (high - low) · noise`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn rsample(&self, sample_shape: &[usize]) -> Result<Tensor> {
        let shape = [sample_shape, self.batch_shape()].concat();
        let noise = Tensor::empty(&shape, self.low.dtype(), self.low.device())?;
        noise.uniform_(0.0, 1.0, None)?;
        &self.low + (self.width()? * noise)?
    }

    #[track_caller]
    fn width(&self) -> Result<Tensor> {
        &self.high - &self.low
    }
}

impl Distribution for Uniform {
    fn batch_shape(&self) -> &[usize] {
        self.low.shape()
    }

    #[track_caller]
    fn sample(&self, sample_shape: &[usize]) -> Result<Tensor> {
        no_grad(|| self.rsample(sample_shape))
    }

    /// Minus infinity outside the bounds.
    #[track_caller]
    fn log_prob(&self, value: &Tensor) -> Result<Tensor> {
        let inside = value.ge(&self.low)?.logical_and(value.lt(&self.high)?)?;
        let density = self.width()?.log()?.neg()?;
        inside.where_cond(density, f64::NEG_INFINITY)
    }

    #[track_caller]
    fn entropy(&self) -> Result<Tensor> {
        self.width()?.log()
    }
}

impl Divergence for Uniform {
    /// Infinite where `other` excludes numbers that this distribution does not.
    #[track_caller]
    fn divergence(&self, other: &Uniform) -> Result<Tensor> {
        let ratio = (other.width()? / self.width()?)?.log()?;
        let excluded = other.low.gt(&self.low)?.logical_or(other.high.lt(&self.high)?)?;
        excluded.where_cond(f64::INFINITY, ratio)
    }
}
