//! The normal distribution.

use std::f64::consts::TAU;

use plimsoll_tensor::{Result, Tensor, no_grad};

use super::Distribution;
use super::shapes::broadcast;

/// A normal distribution. Like `torch.distributions.Normal`.
///
/// ```
/// use plimsoll::distributions::{Distribution, Normal};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let (loc, scale) = (Tensor::zeros(&[2], &device)?, Tensor::ones(&[2], &device)?);
/// let latent = Normal::new(&loc, &scale)?;
/// assert_eq!(latent.rsample(&[5])?.shape(), [5, 2]);
/// assert_eq!(latent.kl_divergence(&Normal::new(&loc, &scale)?)?.to_vec::<f32>()?, [0.0; 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Normal {
    loc: Tensor,
    scale: Tensor,
}

impl Normal {
    /// A distribution with these means and standard deviations, which are broadcast.
    ///
    /// # Errors
    /// If the shapes do not broadcast.
    pub fn new(loc: impl AsRef<Tensor>, scale: impl AsRef<Tensor>) -> Result<Normal> {
        let (loc, scale) = broadcast(loc.as_ref(), scale.as_ref())?;
        Ok(Normal { loc, scale })
    }

    /// The mean.
    pub fn mean(&self) -> &Tensor {
        &self.loc
    }

    /// The standard deviation.
    pub fn stddev(&self) -> &Tensor {
        &self.scale
    }

    /// Draws samples that pass gradients on to the parameters: `loc + scale · noise`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn rsample(&self, sample_shape: &[usize]) -> Result<Tensor> {
        let shape = [sample_shape, self.batch_shape()].concat();
        let noise = Tensor::empty(&shape, self.loc.dtype(), self.loc.device())?;
        noise.normal_(0.0, 1.0, None)?;
        &self.loc + (&self.scale * noise)?
    }

    /// The Kullback-Leibler divergence of this distribution from `other`. Like
    /// `torch.distributions.kl_divergence(self, other)`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn kl_divergence(&self, other: &Normal) -> Result<Tensor> {
        let ratio = (&self.scale / &other.scale)?.square()?;
        let distance = ((&self.loc - &other.loc)? / &other.scale)?.square()?;
        (((&ratio + distance)? - 1.0)? - ratio.log()?)? * 0.5
    }
}

impl Distribution for Normal {
    fn batch_shape(&self) -> &[usize] {
        self.loc.shape()
    }

    #[track_caller]
    fn sample(&self, sample_shape: &[usize]) -> Result<Tensor> {
        no_grad(|| self.rsample(sample_shape))
    }

    #[track_caller]
    fn log_prob(&self, value: &Tensor) -> Result<Tensor> {
        let distance = ((value - &self.loc)? / &self.scale)?.square()?;
        ((distance * -0.5)? - self.scale.log()?)? - 0.5 * TAU.ln()
    }

    #[track_caller]
    fn entropy(&self) -> Result<Tensor> {
        self.scale.log()? + (0.5 + 0.5 * TAU.ln())
    }
}
