//! Lion.

use plimsoll_tensor::Result;
use plimsoll_tensor::op::{LionStep, Rule};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require_betas, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Lion`], with its authors' defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LionOptions {
    /// Learning rate; usually about a tenth of AdamW's.
    pub lr: f64,
    /// Weight of the running mean in the update, and decay of the running mean; each in [0, 1).
    pub betas: (f64, f64),
    /// Share of the learning rate by which parameters shrink at each step; usually about ten times AdamW's.
    pub weight_decay: f64,
}

impl Default for LionOptions {
    fn default() -> LionOptions {
        LionOptions { lr: 1e-4, betas: (0.9, 0.99), weight_decay: 0.0 }
    }
}

/// Lion: steps by the sign of a running mean of the gradients, with half of Adam's state (Chen and others, 2023). PyTorch does
/// not have it.
///
/// ```
/// use plimsoll::optim::{Lion, LionOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut lion = Lion::new(vec![w.clone()], LionOptions { lr: 0.25, ..LionOptions::default() });
/// w.square()?.sum()?.backward()?;
/// lion.step()?;
/// assert_eq!(w.to_vec::<f32>()?, [0.75; 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Lion = OptimizerOf<LionOptions>;

impl Algorithm for LionOptions {
    const NAME: &'static str = "lion";
    const COUNTS_STEPS: bool = false;

    fn check(&self) -> Result<()> {
        require_not_negative("lion", "lr", self.lr)?;
        require_not_negative("lion", "weight_decay", self.weight_decay)?;
        require_betas("lion", self.betas)
    }

    scheduled!(lr, betas.0);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        vec![StateTensor::zeros("exp_avg", shape)]
    }

    fn rule(&self) -> Option<Rule> {
        let LionOptions { lr, betas: (beta1, beta2), weight_decay } = *self;
        Some(Rule::Lion(LionStep { lr, beta1, beta2, weight_decay }))
    }
}
