//! Adadelta.

use plimsoll_tensor::{Result, Tensor};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, Updating, check_numbers, require, scheduled, update_square};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Adadelta`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdadeltaOptions {
    /// A factor of each update.
    pub lr: f64,
    /// Decay of the mean squares, 0 to 1.
    pub rho: f64,
    /// Added to both mean squares.
    pub eps: f64,
    /// The multiple of a parameter that is added to its gradient.
    pub weight_decay: f64,
}

impl Default for AdadeltaOptions {
    fn default() -> AdadeltaOptions {
        AdadeltaOptions { lr: 1.0, rho: 0.9, eps: 1e-6, weight_decay: 0.0 }
    }
}

/// Adadelta: the size of an update follows from the mean squares of gradients and of past updates. Like `torch.optim.Adadelta`.
///
/// ```
/// use plimsoll::optim::{Adadelta, AdadeltaOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut optimizer = Adadelta::new(vec![w.clone()], AdadeltaOptions { lr: 0.1, ..AdadeltaOptions::default() });
/// w.square()?.sum()?.backward()?;
/// optimizer.step()?;
/// assert!(w.to_vec::<f32>()?[0] < 1.0);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Adadelta = OptimizerOf<AdadeltaOptions>;

impl Algorithm for AdadeltaOptions {
    const NAME: &'static str = "adadelta";

    fn check(&self) -> Result<()> {
        check_numbers(self)?;
        require("adadelta", (0.0..=1.0).contains(&self.rho), "rho", self.rho, "0 to 1")
    }

    scheduled!(lr);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        vec![StateTensor::zeros("square_avg", shape), StateTensor::zeros("acc_delta", shape)]
    }

    fn numbers(&self, _: u64) -> Vec<f64> {
        vec![-self.lr]
    }

    fn update(&self, at: &Updating<'_>) -> Result<Tensor> {
        let ([of_grads, of_updates], [minus_lr]) = (at.state()?, at.numbers()?);
        let grad = at.grad_with_decay(self.weight_decay)?;
        update_square(&grad, of_grads, self.rho)?;
        let root = |mean: &Tensor| (mean + self.eps)?.sqrt();
        let update = ((root(of_updates)? / root(of_grads)?)? * &grad)?;
        update_square(&update, of_updates, self.rho)?;
        update * minus_lr
    }
}
