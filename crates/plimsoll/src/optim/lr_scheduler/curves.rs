//! Curves that depend only on the step's number: steps, exponential, cosine, linear, constant, user-defined.

use std::f64::consts::PI;

use plimsoll_tensor::Result;

use super::{Curve, require};

/// Multiplies the learning rate by `gamma` every `step_size` steps. Like `torch.optim.lr_scheduler.StepLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLr {
    /// Steps from one change to the next; 1 or more.
    pub step_size: u64,
    /// The factor; PyTorch's default is 0.1.
    pub gamma: f64,
}

impl Curve for StepLr {
    fn start(&self, _: usize, lr: f64, _: f64) -> Result<f64> {
        require("StepLr", self.step_size > 0, "step_size is 0; it must be 1 or more")?;
        Ok(lr)
    }

    fn next(&self, step: u64, _: usize, lr: f64, _: f64) -> Result<f64> {
        Ok(if step.is_multiple_of(self.step_size) { lr * self.gamma } else { lr })
    }
}

/// Multiplies the learning rate by `gamma` at each milestone. Like `torch.optim.lr_scheduler.MultiStepLR`.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiStepLr {
    /// The milestones' steps; a repeated step counts twice.
    pub milestones: Vec<u64>,
    /// The factor; PyTorch's default is 0.1.
    pub gamma: f64,
}

impl Curve for MultiStepLr {
    fn start(&self, _: usize, lr: f64, _: f64) -> Result<f64> {
        Ok(lr)
    }

    fn next(&self, step: u64, _: usize, lr: f64, _: f64) -> Result<f64> {
        let times = self.milestones.iter().filter(|&&milestone| milestone == step).count();
        Ok(lr * self.gamma.powf(times as f64))
    }
}

/// Multiplies the learning rate by `gamma` at every step. Like `torch.optim.lr_scheduler.ExponentialLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialLr {
    /// The factor.
    pub gamma: f64,
}

impl Curve for ExponentialLr {
    fn start(&self, _: usize, lr: f64, _: f64) -> Result<f64> {
        Ok(lr)
    }

    fn next(&self, _: u64, _: usize, lr: f64, _: f64) -> Result<f64> {
        Ok(lr * self.gamma)
    }
}

/// Lowers the learning rate to `eta_min` along half a cosine, and raises it again. Like
/// `torch.optim.lr_scheduler.CosineAnnealingLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineAnnealingLr {
    /// Steps down: half a period; 1 or more.
    pub t_max: u64,
    /// The smallest learning rate; PyTorch's default is 0.
    pub eta_min: f64,
}

impl Curve for CosineAnnealingLr {
    fn start(&self, _: usize, lr: f64, _: f64) -> Result<f64> {
        require("CosineAnnealingLr", self.t_max > 0, "t_max is 0; it must be 1 or more")?;
        Ok(lr)
    }

    fn next(&self, step: u64, _: usize, lr: f64, base_lr: f64) -> Result<f64> {
        let (t_max, eta_min) = (self.t_max as f64, self.eta_min);
        // Half a period after the minimum, the quotient below is 0 over 0.
        if step > self.t_max && (step - 1 - self.t_max).is_multiple_of(2 * self.t_max) {
            return Ok(lr + (base_lr - eta_min) * (1.0 - (PI / t_max).cos()) / 2.0);
        }
        let height = |step: f64| 1.0 + (PI * step / t_max).cos();
        Ok(height(step as f64) / height(step as f64 - 1.0) * (lr - eta_min) + eta_min)
    }
}

/// Multiplies the learning rate by a factor that changes linearly from `start_factor` to `end_factor`: a warm-up. Like
/// `torch.optim.lr_scheduler.LinearLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearLr {
    /// The factor at the beginning, above 0 and at most 1.
    pub start_factor: f64,
    /// The factor at the end, 0 to 1.
    pub end_factor: f64,
    /// Steps from one to the other.
    pub total_iters: u64,
}

impl Default for LinearLr {
    fn default() -> LinearLr {
        LinearLr { start_factor: 1.0 / 3.0, end_factor: 1.0, total_iters: 5 }
    }
}

impl Curve for LinearLr {
    fn start(&self, _: usize, lr: f64, _: f64) -> Result<f64> {
        let &LinearLr { start_factor: start, end_factor: end, .. } = self;
        require(
            "LinearLr",
            start > 0.0 && start <= 1.0,
            format!("start_factor is {start}; it must be above 0 and at most 1"),
        )?;
        require("LinearLr", (0.0..=1.0).contains(&end), format!("end_factor is {end}; it must be 0 to 1"))?;
        Ok(lr * start)
    }

    fn next(&self, step: u64, _: usize, lr: f64, _: f64) -> Result<f64> {
        if step > self.total_iters {
            return Ok(lr);
        }
        let rise = self.end_factor - self.start_factor;
        let before = self.total_iters as f64 * self.start_factor + (step as f64 - 1.0) * rise;
        Ok(lr * (1.0 + rise / before))
    }
}

/// Multiplies the learning rate by a factor for some steps, then uses the full rate. Like `torch.optim.lr_scheduler.ConstantLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConstantLr {
    /// The factor, above 0 and at most 1.
    pub factor: f64,
    /// The number of steps for which the factor applies.
    pub total_iters: u64,
}

impl Default for ConstantLr {
    fn default() -> ConstantLr {
        ConstantLr { factor: 1.0 / 3.0, total_iters: 5 }
    }
}

impl Curve for ConstantLr {
    fn start(&self, _: usize, lr: f64, _: f64) -> Result<f64> {
        let factor = self.factor;
        require(
            "ConstantLr",
            factor > 0.0 && factor <= 1.0,
            format!("factor is {factor}; it must be above 0 and at most 1"),
        )?;
        Ok(lr * factor)
    }

    fn next(&self, step: u64, _: usize, lr: f64, _: f64) -> Result<f64> {
        Ok(if step == self.total_iters { lr * (1.0 / self.factor) } else { lr })
    }
}

/// The initial learning rate times a function of the step. Like `torch.optim.lr_scheduler.LambdaLR`.
///
/// ```
/// use plimsoll::optim::lr_scheduler::{LambdaLr, Scheduler};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// let mut sgd = Sgd::new(vec![], SgdOptions { lr: 0.5, ..SgdOptions::default() });
/// let mut scheduler = Scheduler::new(LambdaLr(|step: u64| 1.0 / (step + 1) as f64), &mut sgd)?;
/// scheduler.step(&mut sgd)?;
/// assert_eq!(sgd.lrs(), [0.25]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LambdaLr<F>(pub F);

impl<F: Fn(u64) -> f64 + Send> Curve for LambdaLr<F> {
    fn start(&self, _: usize, _: f64, base_lr: f64) -> Result<f64> {
        Ok(base_lr * (self.0)(0))
    }

    fn next(&self, step: u64, _: usize, _: f64, base_lr: f64) -> Result<f64> {
        Ok(base_lr * (self.0)(step))
    }
}
