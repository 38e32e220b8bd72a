//! Adamax.

use plimsoll_tensor::{Result, Tensor};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, Updating, scheduled};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Adamax`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamaxOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean and of the largest gradient; each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the size of each gradient.
    pub eps: f64,
    /// The multiple of a parameter that is added to its gradient.
    pub weight_decay: f64,
}

impl Default for AdamaxOptions {
    fn default() -> AdamaxOptions {
        AdamaxOptions { lr: 2e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

/// Adamax: Adam with the largest recent gradient in place of the mean square. Like `torch.optim.Adamax`.
///
/// ```
/// use plimsoll::optim::{Adamax, AdamaxOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut optimizer = Adamax::new(vec![w.clone()], AdamaxOptions { lr: 0.1, ..AdamaxOptions::default() });
/// w.square()?.sum()?.backward()?;
/// optimizer.step()?;
/// assert!(w.to_vec::<f32>()?[0] < 1.0);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Adamax = OptimizerOf<AdamaxOptions>;

impl Algorithm for AdamaxOptions {
    const NAME: &'static str = "adamax";

    scheduled!(lr, betas.0);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        vec![StateTensor::zeros("exp_avg", shape), StateTensor::zeros("exp_inf", shape)]
    }

    fn numbers(&self, step: u64) -> Vec<f64> {
        vec![-self.lr / (1.0 - self.betas.0.powf(step as f64))]
    }

    fn update(&self, at: &Updating<'_>) -> Result<Tensor> {
        let ([mean, largest], [size]) = (at.state()?, at.numbers()?);
        let grad = at.grad_with_decay(self.weight_decay)?;
        mean.lerp_scalar_(&grad, 1.0 - self.betas.0)?;
        largest.copy_((largest * self.betas.1)?.maximum((grad.abs()? + self.eps)?)?)?;
        (mean / largest)? * size
    }
}
