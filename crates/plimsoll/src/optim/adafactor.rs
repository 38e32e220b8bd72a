//! Adafactor.

use plimsoll_tensor::Result;
use plimsoll_tensor::op::{AdafactorStep, Rule};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Adafactor`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdafactorOptions {
    /// The largest relative step.
    pub lr: f64,
    /// Exponent of the decay of the variances; 0 or less.
    pub beta2_decay: f64,
    /// The square root of the smallest variance (`None`: the machine epsilon of the type), and the smallest parameter scale that
    /// a step is relative to.
    pub eps: (Option<f64>, f64),
    /// The largest size of an update; 1 or more.
    pub d: f64,
    /// Decoupled weight decay: each step shrinks parameters by this multiple of the learning rate.
    pub weight_decay: f64,
    /// Whether to step along the gradient instead of against it.
    #[serde(default)]
    pub maximize: bool,
}

impl Default for AdafactorOptions {
    fn default() -> AdafactorOptions {
        AdafactorOptions {
            lr: 1e-2,
            beta2_decay: -0.8,
            eps: (None, 1e-3),
            d: 1.0,
            weight_decay: 0.0,
            maximize: false,
        }
    }
}

/// Adafactor: a row and a column of state for each matrix. Like `torch.optim.Adafactor`.
///
/// ```
/// use plimsoll::optim::{Adafactor, AdafactorOptions, Optimizer};
/// use plimsoll::{Category, Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let w = Tensor::ones(&[1024, 1024], &device)?.requires_grad_(true)?;
/// w.square()?.sum()?.backward()?;
/// let mut adafactor = Adafactor::new(vec![w], AdafactorOptions::default());
/// adafactor.step()?;
/// assert_eq!(device.memory_by_category()[Category::OptimizerState], 2 * 4096);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Adafactor = OptimizerOf<AdafactorOptions>;

impl Algorithm for AdafactorOptions {
    const NAME: &'static str = "adafactor";

    fn check(&self) -> Result<()> {
        let AdafactorOptions { lr, beta2_decay, eps: (eps1, eps2), d, weight_decay, .. } = *self;
        let eps1 = eps1.unwrap_or(0.0);
        for (name, value) in [("lr", lr), ("eps.0", eps1), ("eps.1", eps2), ("weight_decay", weight_decay)] {
            require_not_negative("adafactor", name, value)?;
        }
        require("adafactor", beta2_decay <= 0.0, "beta2_decay", beta2_decay, "0 or less")?;
        require("adafactor", d >= 1.0, "d", d, "1 or more")
    }

    scheduled!(lr);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        let Some(rows) = shape.len().checked_sub(2) else {
            return vec![StateTensor::zeros("variance", shape)];
        };
        let without = |name, dim: usize| {
            let mut state = StateTensor::zeros(name, shape);
            state.shape[dim] = 1;
            state
        };
        vec![without("row_var", rows + 1), without("col_var", rows)]
    }

    fn rule(&self) -> Option<Rule> {
        let AdafactorOptions { lr, beta2_decay, eps: (eps1, eps2), d, weight_decay, maximize } = *self;
        Some(Rule::Adafactor(AdafactorStep { lr, beta2_decay, eps1, eps2, d, weight_decay, maximize }))
    }
}
