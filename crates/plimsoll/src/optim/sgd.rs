//! Stochastic gradient descent.

use plimsoll_tensor::Result;
use plimsoll_tensor::op::{Rule, SgdStep};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Sgd`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdOptions {
    /// Learning rate.
    pub lr: f64,
    /// Momentum factor; with 0 there is no state.
    pub momentum: f64,
    /// Dampening of the gradient that enters the momentum buffer.
    pub dampening: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum, which requires momentum and no dampening.
    pub nesterov: bool,
    /// Whether to step along the gradient instead of against it.
    #[serde(default)]
    pub maximize: bool,
}

impl Default for SgdOptions {
    fn default() -> SgdOptions {
        SgdOptions {
            lr: 1e-3,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            maximize: false,
        }
    }
}

/// Stochastic gradient descent, optionally with momentum. Like `torch.optim.SGD`.
///
/// ```
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut sgd = Sgd::new(vec![w.clone()], SgdOptions { lr: 0.25, ..SgdOptions::default() });
/// w.square()?.sum()?.backward()?;
/// sgd.step()?;
/// assert_eq!(w.to_vec::<f32>()?, [0.5; 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Sgd = OptimizerOf<SgdOptions>;

impl Algorithm for SgdOptions {
    const NAME: &'static str = "sgd";
    const COUNTS_STEPS: bool = false;

    fn check(&self) -> Result<()> {
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov, .. } = *self;
        require_not_negative("sgd", "lr", lr)?;
        require_not_negative("sgd", "momentum", momentum)?;
        require_not_negative("sgd", "weight_decay", weight_decay)?;
        require("sgd", !dampening.is_nan(), "dampening", dampening, "a number")?;
        require("sgd", !nesterov || momentum > 0.0, "momentum", momentum, "above 0 for nesterov")?;
        require("sgd", !nesterov || dampening == 0.0, "dampening", dampening, "0 for nesterov")
    }

    scheduled!(lr, momentum);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        let buffer = StateTensor { start: None, ..StateTensor::zeros("momentum_buffer", shape) };
        if self.momentum == 0.0 { Vec::new() } else { vec![buffer] }
    }

    fn rule(&self) -> Option<Rule> {
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov, maximize } = *self;
        Some(Rule::Sgd(SgdStep { lr, momentum, dampening, weight_decay, nesterov, first: false, maximize }))
    }
}
