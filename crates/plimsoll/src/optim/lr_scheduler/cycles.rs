//! Curves that repeat: cosines with restarts, triangles; and a polynomial.

use std::f64::consts::PI;

use plimsoll_tensor::{Error, Result};

use super::{Curve, require};

/// Lowers the learning rate to `eta_min` along half a cosine, and restarts at the top. Like
/// `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineAnnealingWarmRestarts {
    /// Steps to the first restart; 1 or more.
    pub t_0: u64,
    /// The factor from the length of one cycle to that of the next; 1 or more. PyTorch's default is 1.
    pub t_mult: u64,
    /// The smallest learning rate; PyTorch's default is 0.
    pub eta_min: f64,
}

impl Curve for CosineAnnealingWarmRestarts {
    fn start(&self, _: usize, _: f64, base_lr: f64) -> Result<f64> {
        const NAME: &str = "CosineAnnealingWarmRestarts";
        require(NAME, self.t_0 > 0, "t_0 is 0; it must be 1 or more")?;
        require(NAME, self.t_mult > 0, "t_mult is 0; it must be 1 or more")?;
        Ok(base_lr)
    }

    fn next(&self, step: u64, _: usize, _: f64, base_lr: f64) -> Result<f64> {
        let (mut at, mut length) = (step, self.t_0);
        if self.t_mult == 1 {
            at %= length;
        }
        while at >= length {
            at -= length;
            length = length.saturating_mul(self.t_mult);
        }
        let done = PI * at as f64 / length as f64;
        Ok(self.eta_min + (base_lr - self.eta_min) * (1.0 + done.cos()) / 2.0)
    }
}

/// Lowers the learning rate to 0 along a polynomial, in `total_iters` steps. Like `torch.optim.lr_scheduler.PolynomialLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolynomialLr {
    /// Steps down to 0.
    pub total_iters: u64,
    /// The polynomial's power; 1 is a straight line.
    pub power: f64,
}

impl Default for PolynomialLr {
    fn default() -> PolynomialLr {
        PolynomialLr { total_iters: 5, power: 1.0 }
    }
}

impl Curve for PolynomialLr {
    fn start(&self, _: usize, lr: f64, _: f64) -> Result<f64> {
        Ok(lr)
    }

    fn next(&self, step: u64, _: usize, lr: f64, _: f64) -> Result<f64> {
        if step > self.total_iters {
            return Ok(lr);
        }
        let left = |step: u64| 1.0 - step as f64 / self.total_iters as f64;
        Ok(lr * (left(step) / left(step - 1)).powf(self.power))
    }
}

/// How the height of the triangles of a [`CyclicLr`] changes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Cycles {
    /// It stays the same; `mode="triangular"` in PyTorch.
    #[default]
    Triangular,
    /// It is halved from cycle to cycle; `mode="triangular2"`.
    Triangular2,
    /// It is multiplied by this number at every step; `mode="exp_range"`.
    ExpRange(f64),
}

/// Raises the learning rate from `base_lr` to `max_lr` and lowers it again, in cycles. If the optimizer has a momentum, it moves the
/// other way. Like `torch.optim.lr_scheduler.CyclicLR`.
///
/// ```
/// use plimsoll::optim::lr_scheduler::{CyclicLr, Scheduler};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// let mut sgd = Sgd::new(vec![], SgdOptions::default());
/// let mut scheduler = Scheduler::new(CyclicLr::new(vec![0.0], vec![1.0], 2), &mut sgd)?;
/// let mut lrs = Vec::new();
/// for _ in 0..4 {
///     scheduler.step(&mut sgd)?;
///     lrs.push(sgd.lrs()[0]);
/// }
/// assert_eq!(lrs, [0.5, 1.0, 0.5, 0.0]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CyclicLr {
    /// The learning rate at the bottom: one for each group, or a single one for all groups.
    pub base_lr: Vec<f64>,
    /// The learning rate at the top.
    pub max_lr: Vec<f64>,
    /// Steps up; 1 or more. PyTorch's default is 2000.
    pub step_size_up: u64,
    /// Steps down; `None` for as many as up.
    pub step_size_down: Option<u64>,
    /// How the height of the triangles changes.
    pub mode: Cycles,
    /// Whether momenta move from `max_momentum` at the bottom to `base_momentum` at the top.
    pub cycle_momentum: bool,
    /// The smallest momentum.
    pub base_momentum: f64,
    /// The largest momentum.
    pub max_momentum: f64,
}

impl CyclicLr {
    /// Cycles with PyTorch's defaults.
    pub fn new(base_lr: Vec<f64>, max_lr: Vec<f64>, step_size_up: u64) -> CyclicLr {
        CyclicLr {
            base_lr,
            max_lr,
            step_size_up,
            step_size_down: None,
            mode: Cycles::Triangular,
            cycle_momentum: true,
            base_momentum: 0.8,
            max_momentum: 0.9,
        }
    }

    /// The share of the way up at a step, times the height of its triangle.
    fn height(&self, step: u64) -> f64 {
        let up = self.step_size_up as f64;
        let total = up + self.step_size_down.unwrap_or(self.step_size_up) as f64;
        let cycle = (1.0 + step as f64 / total).floor();
        let (at, top) = (1.0 + step as f64 / total - cycle, up / total);
        let share = if at <= top { at / top } else { (at - 1.0) / (top - 1.0) };
        share
            * match self.mode {
                Cycles::Triangular => 1.0,
                Cycles::Triangular2 => 0.5_f64.powf(cycle - 1.0),
                Cycles::ExpRange(gamma) => gamma.powf(step as f64),
            }
    }

    fn lr(&self, step: u64, group: usize) -> Result<f64> {
        let of = |name: &str, all: &[f64]| {
            all.get(group).or(all.first().filter(|_| all.len() == 1)).copied().ok_or_else(|| {
                let message = format!("{name} has {} learning rates, but group {group} needs one", all.len());
                Error::Argument { op: "CyclicLr", message }
            })
        };
        let (base, max) = (of("base_lr", &self.base_lr)?, of("max_lr", &self.max_lr)?);
        Ok(base + (max - base) * self.height(step))
    }
}

impl Curve for CyclicLr {
    fn start(&self, group: usize, _: f64, _: f64) -> Result<f64> {
        require("CyclicLr", self.step_size_up > 0, "step_size_up is 0; it must be 1 or more")?;
        self.lr(0, group)
    }

    fn has_own_start(&self) -> bool {
        true
    }

    fn next(&self, step: u64, group: usize, _: f64, _: f64) -> Result<f64> {
        self.lr(step, group)
    }

    fn momentum(&self, step: u64, _: usize) -> Option<f64> {
        let range = self.max_momentum - self.base_momentum;
        self.cycle_momentum.then(|| self.max_momentum - range * self.height(step))
    }
}
