//! LAMB.

use plimsoll_tensor::{Result, Tensor};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, Updating, scheduled, update_means};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Lamb`], with its authors' defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LambOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running means of the gradients and of their squares; each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the root of the mean square.
    pub eps: f64,
    /// The multiple of a parameter that is part of its update.
    pub weight_decay: f64,
}

impl Default for LambOptions {
    fn default() -> LambOptions {
        LambOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-6, weight_decay: 0.01 }
    }
}

/// LAMB: AdamW's update of each parameter, scaled to the parameter's norm, for large batches (You and others, 2019). PyTorch does
/// not have it. Sharded parameters are refused, because each update needs two norms.
///
/// ```
/// use plimsoll::optim::{Lamb, LambOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut optimizer = Lamb::new(vec![w.clone()], LambOptions { lr: 0.1, ..LambOptions::default() });
/// w.square()?.sum()?.backward()?;
/// optimizer.step()?;
/// assert!(w.to_vec::<f32>()?[0] < 1.0);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Lamb = OptimizerOf<LambOptions>;

impl Algorithm for LambOptions {
    const NAME: &'static str = "lamb";
    const WHOLE: bool = true;

    scheduled!(lr, betas.0);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        vec![StateTensor::zeros("exp_avg", shape), StateTensor::zeros("exp_avg_sq", shape)]
    }

    fn numbers(&self, step: u64) -> Vec<f64> {
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        vec![-self.lr, correction(self.betas.0), correction(self.betas.1)]
    }

    fn update(&self, at: &Updating<'_>) -> Result<Tensor> {
        let ([mean, square], [minus_lr, of_mean, of_square]) = (at.state()?, at.numbers()?);
        update_means(at.grad, mean, square, self.betas)?;
        let step = ((mean / of_mean)? / ((square / of_square)?.sqrt()? + self.eps)?)?;
        let step = (step + (at.parameter * self.weight_decay)?)?;
        let (of_parameter, of_step) = (at.parameter.norm(2.0)?, step.norm(2.0)?);
        // A parameter or an update of 0 has no direction: its ratio is 1.
        let none = (of_parameter.eq_scalar(0.0)? | of_step.eq_scalar(0.0)?)?;
        step * ((of_parameter / of_step)?.masked_fill(none, 1.0)? * minus_lr)?
    }
}
