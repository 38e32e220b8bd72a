//! RMSprop.

use plimsoll_tensor::Result;
use plimsoll_tensor::op::{RmsPropStep, Rule};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// The settings of [`RmsProp`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsPropOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running mean of the square.
    pub alpha: f64,
    /// Epsilon added to the denominator.
    pub eps: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Momentum factor; with 0 there is no momentum buffer.
    pub momentum: f64,
    /// Whether to divide by the root of the variance instead of the mean square.
    pub centered: bool,
    /// Whether to step along the gradient instead of against it.
    #[serde(default)]
    pub maximize: bool,
}

impl Default for RmsPropOptions {
    fn default() -> RmsPropOptions {
        RmsPropOptions {
            lr: 1e-2,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
            maximize: false,
        }
    }
}

/// RMSprop. Like `torch.optim.RMSprop`.
///
/// ```
/// use plimsoll::optim::{Optimizer, RmsProp, RmsPropOptions};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut rmsprop = RmsProp::new(vec![w.clone()], RmsPropOptions::default());
/// w.square()?.sum()?.backward()?;
/// rmsprop.step()?; // one over the root of 1 - alpha, times the learning rate
/// assert!(w.to_vec::<f32>()?.iter().all(|x| (x - 0.9).abs() < 1e-5));
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type RmsProp = OptimizerOf<RmsPropOptions>;

impl Algorithm for RmsPropOptions {
    const NAME: &'static str = "rmsprop";

    fn check(&self) -> Result<()> {
        let RmsPropOptions { lr, alpha, eps, weight_decay, momentum, .. } = *self;
        let options = [
            ("lr", lr),
            ("eps", eps),
            ("momentum", momentum),
            ("weight_decay", weight_decay),
            ("alpha", alpha),
        ];
        options.into_iter().try_for_each(|(name, value)| require_not_negative("rmsprop", name, value))
    }

    scheduled!(lr, momentum);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        let buffer = (self.momentum > 0.0).then_some("momentum_buffer");
        let mean = self.centered.then_some("grad_avg");
        let names = [Some("square_avg"), buffer, mean].into_iter().flatten();
        names.map(|name| StateTensor::zeros(name, shape)).collect()
    }

    fn rule(&self) -> Option<Rule> {
        let RmsPropOptions { lr, alpha, eps, weight_decay, momentum, centered, maximize } = *self;
        Some(Rule::RmsProp(RmsPropStep { lr, alpha, eps, weight_decay, momentum, centered, maximize }))
    }
}
