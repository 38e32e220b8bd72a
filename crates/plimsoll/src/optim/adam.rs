//! Adam.

use plimsoll_tensor::op::{AdamStep, Decay};
use plimsoll_tensor::{Result, Tensor};

use super::{Optimizer, require, require_not_negative, state};

/// The settings of [`Adam`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the running averages of the gradient and of its square; each in [0, 1).
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
    /// L2 penalty.
    pub weight_decay: f64,
}

impl Default for AdamOptions {
    fn default() -> AdamOptions {
        AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

impl AdamOptions {
    /// See Note [Options are checked at each step] in `optim/mod.rs`.
    fn check(&self) -> Result<()> {
        let AdamOptions { lr, betas: (beta1, beta2), eps, weight_decay } = *self;
        require_not_negative("adam", "lr", lr)?;
        require_not_negative("adam", "eps", eps)?;
        require_not_negative("adam", "weight_decay", weight_decay)?;
        for (name, beta) in [("betas.0", beta1), ("betas.1", beta2)] {
            require("adam", (0.0..1.0).contains(&beta), name, beta, "at least 0 and below 1")?;
        }
        Ok(())
    }
}

/// Adam. As `torch.optim.Adam`; two buffers per parameter, nothing else.
#[derive(Debug)]
pub struct Adam {
    /// May be changed between steps.
    pub options: AdamOptions,
    parameters: Vec<Tensor>,
    moments: Vec<Option<Moments>>,
}

#[derive(Debug)]
struct Moments {
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    steps: u64,
}

impl Moments {
    fn new(parameter: &Tensor) -> Result<Moments> {
        let (exp_avg, exp_avg_sq) = (state(parameter, "exp_avg")?, state(parameter, "exp_avg_sq")?);
        exp_avg.zero_()?;
        exp_avg_sq.zero_()?;
        Ok(Moments { exp_avg, exp_avg_sq, steps: 0 })
    }
}

impl Adam {
    /// An optimizer of these parameters. State is allocated at the first step.
    pub fn new(parameters: Vec<Tensor>, options: AdamOptions) -> Adam {
        let moments = parameters.iter().map(|_| None).collect();
        Adam { options, parameters, moments }
    }

    /// Allocates moments for each parameter that has a gradient and no moments yet: all or none.
    fn missing_moments(&self) -> Result<Vec<Option<Moments>>> {
        let slots = self.parameters.iter().zip(&self.moments);
        slots
            .map(|(parameter, moments)| {
                let missing = moments.is_none() && parameter.grad().is_some();
                missing.then(|| Moments::new(parameter)).transpose()
            })
            .collect()
    }
}

impl Optimizer for Adam {
    fn step(&mut self) -> Result<()> {
        self.options.check()?;
        let AdamOptions { lr, betas: (beta1, beta2), eps, weight_decay } = self.options;
        let fresh = self.missing_moments()?;
        for (slot, moments) in self.moments.iter_mut().zip(fresh) {
            *slot = slot.take().or(moments);
        }
        for (parameter, moments) in self.parameters.iter().zip(&mut self.moments) {
            let (Some(grad), Some(moments)) = (parameter.grad(), moments) else { continue };
            moments.steps += 1;
            let (step, decay) = (moments.steps, Decay::InGradient);
            let step = AdamStep { lr, beta1, beta2, eps, weight_decay, decay, step };
            parameter.adam_step_(&grad, &moments.exp_avg, &moments.exp_avg_sq, step)?;
        }
        Ok(())
    }

    fn set_lr(&mut self, lr: f64) {
        self.options.lr = lr;
    }

    fn parameters(&self) -> &[Tensor] {
        &self.parameters
    }
}
