//! Stochastic gradient descent.

use plimsoll_tensor::op::SgdStep;
use plimsoll_tensor::{Result, Tensor};

use super::{Optimizer, require, require_not_negative, state};

/// The settings of [`Sgd`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// Learning rate.
    pub lr: f64,
    /// Momentum factor; 0 keeps no state.
    pub momentum: f64,
    /// Dampening of the gradient that enters the momentum buffer.
    pub dampening: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Nesterov momentum; requires momentum and no dampening.
    pub nesterov: bool,
}

impl Default for SgdOptions {
    fn default() -> SgdOptions {
        SgdOptions { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

impl SgdOptions {
    /// See Note [Options are checked at each step] in `optim/mod.rs`.
    fn check(&self) -> Result<()> {
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov } = *self;
        require_not_negative("sgd", "lr", lr)?;
        require_not_negative("sgd", "momentum", momentum)?;
        require_not_negative("sgd", "weight_decay", weight_decay)?;
        require("sgd", !dampening.is_nan(), "dampening", dampening, "a number")?;
        require("sgd", !nesterov || momentum > 0.0, "momentum", momentum, "above 0 for nesterov")?;
        require("sgd", !nesterov || dampening == 0.0, "dampening", dampening, "0 for nesterov")
    }
}

/// Stochastic gradient descent, optionally with momentum. As `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd {
    /// May be changed between steps.
    pub options: SgdOptions,
    parameters: Vec<Tensor>,
    momentum_buffers: Vec<Option<Tensor>>,
}

impl Sgd {
    /// An optimizer of these parameters. State is allocated at the first step.
    pub fn new(parameters: Vec<Tensor>, options: SgdOptions) -> Sgd {
        let momentum_buffers = vec![None; parameters.len()];
        Sgd { options, parameters, momentum_buffers }
    }

    /// Allocates an uninitialised buffer for each parameter that needs one and has none.
    fn missing_buffers(&self) -> Result<Vec<Option<Tensor>>> {
        let slots = self.parameters.iter().zip(&self.momentum_buffers);
        slots
            .map(|(parameter, buffer)| {
                let missing = self.options.momentum != 0.0 && buffer.is_none() && parameter.grad().is_some();
                missing.then(|| state(parameter, "momentum_buffer")).transpose()
            })
            .collect()
    }
}

impl Optimizer for Sgd {
    fn step(&mut self) -> Result<()> {
        self.options.check()?;
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov } = self.options;
        let fresh = self.missing_buffers()?;
        for ((parameter, slot), fresh) in self.parameters.iter().zip(&mut self.momentum_buffers).zip(fresh) {
            let Some(grad) = parameter.grad() else { continue };
            let first = fresh.is_some();
            let buffer = slot.clone().or(fresh).filter(|_| momentum != 0.0);
            let step = SgdStep { lr, momentum, dampening, weight_decay, nesterov, first };
            parameter.sgd_step_(&grad, buffer.as_ref(), step)?;
            // Stored only now: the next step must not find a buffer that this one did not fill.
            *slot = slot.take().or(buffer);
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
