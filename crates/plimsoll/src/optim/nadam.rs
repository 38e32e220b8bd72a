//! NAdam.

use plimsoll_tensor::{Result, Tensor};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, Updating, scheduled, update_means};
use super::optimizer_of::OptimizerOf;

/// The settings of [`NAdam`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NAdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running means of the gradients and of their squares; each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Weight decay: see `decoupled_weight_decay`.
    pub weight_decay: f64,
    /// How fast the momentum grows to its full value.
    pub momentum_decay: f64,
    /// Whether parameters shrink by `lr · weight_decay`, as in AdamW; otherwise decay is part of the gradient.
    pub decoupled_weight_decay: bool,
}

impl Default for NAdamOptions {
    fn default() -> NAdamOptions {
        let (lr, betas, eps, weight_decay, momentum_decay) = (2e-3, (0.9, 0.999), 1e-8, 0.0, 4e-3);
        NAdamOptions { lr, betas, eps, weight_decay, momentum_decay, decoupled_weight_decay: false }
    }
}

/// NAdam: Adam with Nesterov momentum. Like `torch.optim.NAdam`.
///
/// ```
/// use plimsoll::optim::{NAdam, NAdamOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut optimizer = NAdam::new(vec![w.clone()], NAdamOptions { lr: 0.1, ..NAdamOptions::default() });
/// w.square()?.sum()?.backward()?;
/// optimizer.step()?;
/// assert!(w.to_vec::<f32>()?[0] < 1.0);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type NAdam = OptimizerOf<NAdamOptions>;

impl Algorithm for NAdamOptions {
    const NAME: &'static str = "nadam";

    scheduled!(lr, betas.0);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        let product = StateTensor { start: Some(1.0), ..StateTensor::zeros("mu_product", &[]) };
        vec![product, StateTensor::zeros("exp_avg", shape), StateTensor::zeros("exp_avg_sq", shape)]
    }

    fn numbers(&self, step: u64) -> Vec<f64> {
        let mu = |step: f64| self.betas.0 * (1.0 - 0.5 * 0.96_f64.powf(step * self.momentum_decay));
        let step = step as f64;
        vec![-self.lr, mu(step), mu(step + 1.0), 1.0 - self.betas.1.powf(step)]
    }

    fn update(&self, at: &Updating<'_>) -> Result<Tensor> {
        let ([product, mean, square], [minus_lr, mu, next, correction]) = (at.state()?, at.numbers()?);
        let (grad, shrink) = at.decayed(self.weight_decay, self.decoupled_weight_decay)?;
        let new_product = (product * mu)?;
        update_means(&grad, mean, square, self.betas)?;
        let of_grad = ((1.0 - mu)? / (1.0 - &new_product)?)?;
        let of_mean = (next / (1.0 - (&new_product * next)?)?)?;
        let step = ((grad * of_grad)? + (mean * of_mean)?)?;
        let step = (step / ((square / correction)?.sqrt()? + self.eps)?)?;
        let update = ((step + (at.parameter * shrink)?)? * minus_lr)?;
        product.copy_(&new_product)?; // last, because a repeated step would multiply it twice
        Ok(update)
    }
}
