//! Adagrad.

use plimsoll_tensor::Result;
use plimsoll_tensor::op::{AdagradStep, Rule};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Adagrad`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdagradOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the learning rate, which is divided by `1 + (step - 1) * lr_decay`.
    pub lr_decay: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// The sum of squares before the first step.
    pub initial_accumulator_value: f64,
    /// Epsilon added to the denominator.
    pub eps: f64,
    /// Whether to step along the gradient instead of against it.
    #[serde(default)]
    pub maximize: bool,
}

impl Default for AdagradOptions {
    fn default() -> AdagradOptions {
        AdagradOptions {
            lr: 1e-2,
            lr_decay: 0.0,
            weight_decay: 0.0,
            initial_accumulator_value: 0.0,
            eps: 1e-10,
            maximize: false,
        }
    }
}

/// Adagrad. Like `torch.optim.Adagrad`, except that the state is allocated in the first step instead of at construction.
///
/// ```
/// use plimsoll::optim::{Adagrad, AdagradOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut adagrad = Adagrad::new(vec![w.clone()], AdagradOptions { lr: 0.5, ..AdagradOptions::default() });
/// w.square()?.sum()?.backward()?;
/// adagrad.step()?;
/// assert_eq!(w.to_vec::<f32>()?, [0.5; 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Adagrad = OptimizerOf<AdagradOptions>;

impl Algorithm for AdagradOptions {
    const NAME: &'static str = "adagrad";

    fn check(&self) -> Result<()> {
        let AdagradOptions { lr, lr_decay, weight_decay, initial_accumulator_value, eps, .. } = *self;
        let options = [
            ("lr", lr),
            ("lr_decay", lr_decay),
            ("weight_decay", weight_decay),
            ("initial_accumulator_value", initial_accumulator_value),
            ("eps", eps),
        ];
        options.into_iter().try_for_each(|(name, value)| require_not_negative("adagrad", name, value))
    }

    scheduled!(lr);

    fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
        let start = Some(self.initial_accumulator_value);
        vec![StateTensor { start, ..StateTensor::zeros("sum", shape) }]
    }

    fn rule(&self) -> Option<Rule> {
        let AdagradOptions { lr, lr_decay, weight_decay, eps, maximize, .. } = *self;
        Some(Rule::Adagrad(AdagradStep { lr, lr_decay, weight_decay, eps, maximize }))
    }
}
