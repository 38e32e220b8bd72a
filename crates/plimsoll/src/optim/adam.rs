//! Adam and AdamW.

use plimsoll_tensor::Result;
use plimsoll_tensor::op::{AdamStep, Decay, Rule};
use serde::{Deserialize, Serialize};

use super::algorithm::{Algorithm, StateTensor, require_betas, require_not_negative, scheduled};
use super::optimizer_of::OptimizerOf;

/// Adam. Like `torch.optim.Adam`; two buffers per parameter, with `amsgrad` three.
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

/// Adam with decoupled weight decay. Like `torch.optim.AdamW`.
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

/// Both use one rule. They differ only in where the weight decay is applied, and in its default.
macro_rules! adam {
    ($(#[$doc:meta])* $options:ident, $name:literal, $decay:ident, $(#[$decays:meta])* $weight_decay:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $options {
            /// Learning rate.
            pub lr: f64,
            /// Decay of the running averages of the gradient and of its square; each in [0, 1).
            pub betas: (f64, f64),
            /// Epsilon added to the denominator.
            pub eps: f64,
            $(#[$decays])*
            pub weight_decay: f64,
            /// Whether to divide by the largest second moment so far, which takes a third buffer.
            #[serde(default)]
            pub amsgrad: bool,
            /// Whether to step along the gradient instead of against it.
            #[serde(default)]
            pub maximize: bool,
        }

        impl Default for $options {
            fn default() -> $options {
                $options {
                    lr: 1e-3,
                    betas: (0.9, 0.999),
                    eps: 1e-8,
                    weight_decay: $weight_decay,
                    amsgrad: false,
                    maximize: false,
                }
            }
        }

        impl Algorithm for $options {
            const NAME: &'static str = $name;

            fn check(&self) -> Result<()> {
                require_not_negative($name, "lr", self.lr)?;
                require_not_negative($name, "eps", self.eps)?;
                require_not_negative($name, "weight_decay", self.weight_decay)?;
                require_betas($name, self.betas)
            }

            scheduled!(lr, betas.0);

            fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
                let names = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];
                let names = &names[..2 + usize::from(self.amsgrad)];
                names.iter().map(|name| StateTensor::zeros(name, shape)).collect()
            }

            fn rule(&self) -> Option<Rule> {
                let $options { lr, betas: (beta1, beta2), eps, weight_decay, amsgrad, maximize } = *self;
                Some(Rule::Adam(AdamStep {
                    lr,
                    beta1,
                    beta2,
                    eps,
                    weight_decay,
                    decay: Decay::$decay,
                    amsgrad,
                    maximize,
                    step: 0,
                }))
            }
        }
    };
}

adam! {
    /// The settings of [`Adam`], with PyTorch's defaults.
    AdamOptions, "adam", InGradient,
    /// L2 penalty.
    0.0
}
adam! {
    /// The settings of [`AdamW`], with PyTorch's defaults.
    AdamWOptions, "adamw", Decoupled,
    /// Decoupled weight decay: each step shrinks parameters by this multiple of the learning rate.
    1e-2
}
