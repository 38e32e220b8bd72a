//! Adam and AdamW.

use plimsoll_tensor::Result;
use plimsoll_tensor::op::{AdamStep, Decay, Rule};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require_betas, require_not_negative};
use super::optimizer_of::OptimizerOf;

/// The settings of [`Adam`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running averages of the gradient and of its square; each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Whether the divisor is the largest second moment so far: a third buffer.
    #[serde(default)]
    pub amsgrad: bool,
    /// Along the gradient instead of against it.
    #[serde(default)]
    pub maximize: bool,
}

impl Default for AdamOptions {
    fn default() -> AdamOptions {
        AdamOptions {
            lr: 1e-3,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.0,
            amsgrad: false,
            maximize: false,
        }
    }
}

/// Adam. As `torch.optim.Adam`; two buffers per parameter, with `amsgrad` three.
///
/// ```
/// use plimsoll::optim::{Adam, AdamOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut adam = Adam::new(vec![w.clone()], AdamOptions { lr: 0.5, ..AdamOptions::default() });
/// w.square()?.sum()?.backward()?;
/// adam.step()?; // the first step is one learning rate long
/// assert!(w.to_vec::<f32>()?.iter().all(|x| (x - 0.5).abs() < 1e-6));
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type Adam = OptimizerOf<AdamOptions>;

/// The settings of [`AdamW`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running averages of the gradient and of its square; each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
    /// Share of the learning rate by which parameters shrink at each step.
    pub weight_decay: f64,
    /// Whether the divisor is the largest second moment so far: a third buffer.
    #[serde(default)]
    pub amsgrad: bool,
    /// Along the gradient instead of against it.
    #[serde(default)]
    pub maximize: bool,
}

impl Default for AdamWOptions {
    fn default() -> AdamWOptions {
        AdamWOptions {
            lr: 1e-3,
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 1e-2,
            amsgrad: false,
            maximize: false,
        }
    }
}

/// Adam with decoupled weight decay. As `torch.optim.AdamW`.
///
/// ```
/// use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
/// use plimsoll::{Device, Tensor};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut adamw = AdamW::new(vec![w.clone()], AdamWOptions { lr: 0.5, weight_decay: 0.1, ..AdamWOptions::default() });
/// w.square()?.sum()?.backward()?;
/// adamw.step()?; // shrinks to 0.95, then moves by the learning rate
/// assert!(w.to_vec::<f32>()?.iter().all(|x| (x - 0.45).abs() < 1e-6));
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub type AdamW = OptimizerOf<AdamWOptions>;

fn check(op: &'static str, lr: f64, betas: (f64, f64), eps: f64, weight_decay: f64) -> Result<()> {
    require_not_negative(op, "lr", lr)?;
    require_not_negative(op, "eps", eps)?;
    require_not_negative(op, "weight_decay", weight_decay)?;
    require_betas(op, betas)
}

fn state(amsgrad: bool, shape: &[usize]) -> Vec<StateTensor> {
    let names = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];
    names[..2 + usize::from(amsgrad)].iter().map(|name| StateTensor::zeros(name, shape)).collect()
}

/// Both are one rule; only where the weight decay goes differs.
macro_rules! adam {
    ($options:ident, $name:literal, $decay:ident) => {
        impl Algorithm for $options {
            const NAME: &'static str = $name;

            fn check(&self) -> Result<()> {
                let $options { lr, betas, eps, weight_decay, .. } = *self;
                check($name, lr, betas, eps, weight_decay)
            }

            fn lr(&self) -> f64 {
                self.lr
            }

            fn set_lr(&mut self, lr: f64) {
                self.lr = lr;
            }

            fn momentum(&self) -> Option<f64> {
                Some(self.betas.0)
            }

            fn set_momentum(&mut self, momentum: f64) {
                self.betas.0 = momentum;
            }

            fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
                state(self.amsgrad, shape)
            }

            fn rule(&self) -> Rule {
                let $options { lr, betas: (beta1, beta2), eps, weight_decay, amsgrad, maximize } = *self;
                Rule::Adam(AdamStep {
                    lr,
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    decay: Decay::$decay,
                    amsgrad,
                    maximize,
                    step: 0,
                })
            }
        }
    };
}

adam!(AdamOptions, "adam", InGradient);
adam!(AdamWOptions, "adamw", Decoupled);
