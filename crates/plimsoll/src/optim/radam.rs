//! RAdam.

use plimsoll_tensor::{Result, Tensor};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, Updating, scheduled, update_means};
use super::optimizer_of::OptimizerOf;

/// The settings of [`RAdam`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RAdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running means of the gradients and of their squares; each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// Weight decay: see `decoupled_weight_decay`.
    pub weight_decay: f64,
    /// Whether parameters shrink by `lr · weight_decay`, as in AdamW; otherwise decay is part of the gradient.
    pub decoupled_weight_decay: bool,
}

impl Default for RAdamOptions {
    fn default() -> RAdamOptions {
        let decoupled_weight_decay = false;
        RAdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, decoupled_weight_decay }
    }
}

/// RAdam: Adam that begins with steps by the running mean alone, until the variance of the mean square is small enough.
/// Like `torch.optim.RAdam`.
///
/// ```
/// use plimsoll::optim::{RAdam, RAdamOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut optimizer = RAdam::new(vec![w.clone()], RAdamOptions { lr: 0.1, ..RAdamOptions::default() });
/// w.square()?.sum()?.backward()?;
/// optimizer.step()?;
/// assert!(w.to_vec::<f32>()?[0] < 1.0);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type RAdam = OptimizerOf<RAdamOptions>;

impl Algorithm for RAdamOptions {
    const NAME: &'static str = "radam";

    scheduled!(lr, betas.0);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        vec![StateTensor::zeros("exp_avg", shape), StateTensor::zeros("exp_avg_sq", shape)]
    }

    /// The learning rate, the factor of a step by the mean alone, and the factor of an adaptive step; one of the two
    /// factors is 0. The last number is added to the root of the mean square: it is 1 in a step by the mean alone,
    /// which therefore never divides by 0.
    fn numbers(&self, step: u64) -> Vec<f64> {
        let (step, (beta1, beta2)) = (step as f64, self.betas);
        let (of_mean, of_square) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let most = 2.0 / (1.0 - beta2) - 1.0;
        let rho = most - 2.0 * step * beta2.powf(step) / of_square;
        let rate = (rho - 4.0) * (rho - 2.0) * most / ((most - 4.0) * (most - 2.0) * rho);
        let (plain, adaptive) = if rho > 5.0 { (0.0, (rate * of_square).sqrt()) } else { (1.0, 0.0) };
        vec![-self.lr, plain / of_mean, adaptive / of_mean, plain]
    }

    fn update(&self, at: &Updating<'_>) -> Result<Tensor> {
        let ([mean, square], [minus_lr, plain, adaptive, one]) = (at.state()?, at.numbers()?);
        let (grad, shrink) = at.decayed(self.weight_decay, self.decoupled_weight_decay)?;
        update_means(&grad, mean, square, self.betas)?;
        let step = (mean * ((adaptive / ((square.sqrt()? + self.eps)? + one)?)? + plain)?)?;
        (step + (at.parameter * shrink)?)? * minus_lr
    }
}
