//! Learning-rate schedulers, with PyTorch's names, formulas and defaults.
//!
//! A curve ([`StepLr`], [`CosineAnnealingLr`], …) says how a learning rate changes. A [`Scheduler`] applies a curve to the groups
//! of an optimizer, step by step, starting from their current rates, so schedulers can be chained, as in PyTorch.
//! [`SequentialLr`] combines several curves, for example for a warm-up. [`ReduceLrOnPlateau`] follows a metric instead.

mod curves;
mod cycles;
mod one_cycle;
mod plateau;
mod sequential;
mod swa;

pub use curves::{ConstantLr, CosineAnnealingLr, ExponentialLr, LambdaLr, LinearLr, MultiStepLr, StepLr};
pub use cycles::{CosineAnnealingWarmRestarts, Cycles, CyclicLr, PolynomialLr};
pub use one_cycle::{Anneal, OneCycleLr};
pub use plateau::{Better, PlateauOptions, ReduceLrOnPlateau, Threshold};
pub use sequential::SequentialLr;
pub use swa::SwaLr;

use plimsoll_tensor::{Error, Result};
use serde_json::{Value, json};

use super::Optimizer;

/// How the learning rate of a group changes over time.
pub trait Curve: Send {
    /// The learning rate at step 0, given the current rate and the initial rate, which is the rate before the
    /// optimizer's first scheduler.
    ///
    /// # Errors
    /// Settings that PyTorch rejects.
    fn start(&self, group: usize, lr: f64, base_lr: f64) -> Result<f64>;

    /// Whether the curve has a separate setting for its first learning rate. If so, that rate becomes the initial rate
    /// of an optimizer that had no scheduler before, as in PyTorch.
    fn has_own_start(&self) -> bool {
        false
    }

    /// The learning rate at a step, counted from 1, given the previous step's.
    ///
    /// # Errors
    /// A step beyond the last.
    fn next(&self, step: u64, group: usize, lr: f64, base_lr: f64) -> Result<f64>;

    /// The momentum at a step, if the curve changes it.
    fn momentum(&self, step: u64, group: usize) -> Option<f64> {
        let _ = (step, group);
        None
    }
}

impl<C: Curve + ?Sized> Curve for Box<C> {
    fn start(&self, group: usize, lr: f64, base_lr: f64) -> Result<f64> {
        (**self).start(group, lr, base_lr)
    }

    fn has_own_start(&self) -> bool {
        (**self).has_own_start()
    }

    fn next(&self, step: u64, group: usize, lr: f64, base_lr: f64) -> Result<f64> {
        (**self).next(step, group, lr, base_lr)
    }

    fn momentum(&self, step: u64, group: usize) -> Option<f64> {
        (**self).momentum(step, group)
    }
}

/// Sets the learning rates of an optimizer along a curve. Like `torch.optim.lr_scheduler.LRScheduler`.
///
/// ```
/// use plimsoll::optim::lr_scheduler::{Scheduler, StepLr};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// use plimsoll::{Device, Tensor};
/// let weight = Tensor::from_slice(&[1.0f32], &[1], &Device::cpu())?.requires_grad_(true)?;
/// let mut sgd = Sgd::new(vec![weight], SgdOptions { lr: 0.5, ..SgdOptions::default() });
/// let mut scheduler = Scheduler::new(StepLr { step_size: 2, gamma: 0.5 }, &mut sgd)?;
/// let mut lrs = Vec::new();
/// for _ in 0..5 {
///     sgd.step()?;
///     scheduler.step(&mut sgd)?;
///     lrs.push(sgd.lrs()[0]);
/// }
/// assert_eq!(lrs, [0.5, 0.25, 0.25, 0.125, 0.125]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scheduler<C> {
    /// The curve.
    pub curve: C,
    base_lrs: Vec<f64>,
    last_step: u64,
}

impl<C: Curve> Scheduler<C> {
    /// Makes a scheduler for this optimizer, and sets its learning rates to the start of the curve.
    ///
    /// # Errors
    /// Settings that PyTorch rejects.
    pub fn new(curve: C, optimizer: &mut dyn Optimizer) -> Result<Scheduler<C>> {
        let lrs = optimizer.lrs();
        let started = |base_lrs: &[f64]| -> Result<Vec<f64>> {
            let groups = lrs.iter().zip(base_lrs).enumerate();
            groups.map(|(group, (&lr, &base_lr))| curve.start(group, lr, base_lr)).collect()
        };
        let base_lrs = if curve.has_own_start() {
            optimizer.set_lrs(&started(&lrs)?);
            optimizer.initial_lrs()
        } else {
            let base_lrs = optimizer.initial_lrs();
            optimizer.set_lrs(&started(&base_lrs)?);
            base_lrs
        };
        let scheduler = Scheduler { curve, base_lrs, last_step: 0 };
        scheduler.set_momenta(optimizer);
        Ok(scheduler)
    }

    /// Advances to the next step, usually once an epoch, after the optimizer's step.
    ///
    /// # Errors
    /// A step beyond the curve's last; groups added to the optimizer since the scheduler was made. In either case nothing has
    /// changed.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let (lrs, step) = (optimizer.lrs(), self.last_step + 1);
        if lrs.len() != self.base_lrs.len() {
            let message =
                format!("the optimizer had {} groups, and now has {}", self.base_lrs.len(), lrs.len());
            return Err(Error::Argument { op: "scheduler", message });
        }
        let groups = lrs.iter().zip(&self.base_lrs).enumerate();
        let next: Result<Vec<f64>> =
            groups.map(|(group, (&lr, &base_lr))| self.curve.next(step, group, lr, base_lr)).collect();
        optimizer.set_lrs(&next?);
        self.last_step = step;
        self.set_momenta(optimizer);
        Ok(())
    }

    fn set_momenta(&self, optimizer: &mut dyn Optimizer) {
        let Some(mut momenta) = optimizer.momenta() else { return };
        for (group, momentum) in momenta.iter_mut().enumerate() {
            *momentum = self.curve.momentum(self.last_step, group).unwrap_or(*momentum);
        }
        optimizer.set_momenta(&momenta);
    }

    /// The number of steps made so far.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The scheduler's position, for a checkpoint. The learning rates themselves are in the optimizer's state dict; the curve is
    /// not saved.
    pub fn state_dict(&self) -> Value {
        json!({ "last_epoch": self.last_step, "base_lrs": self.base_lrs })
    }

    /// Sets the position to that of another scheduler with the same curve.
    ///
    /// # Errors
    /// A value that [`Scheduler::state_dict`] did not make, or of another number of groups.
    pub fn load_state_dict(&mut self, state: &Value) -> Result<()> {
        let base_lrs = state["base_lrs"].as_array().and_then(|lrs| lrs.iter().map(Value::as_f64).collect());
        let (Some(last_step), Some::<Vec<f64>>(base_lrs)) = (state["last_epoch"].as_u64(), base_lrs) else {
            let message = "load_state_dict: needs `last_epoch` and `base_lrs`".to_owned();
            return Err(Error::Argument { op: "scheduler", message });
        };
        if base_lrs.len() != self.base_lrs.len() {
            let (there, here) = (base_lrs.len(), self.base_lrs.len());
            let message =
                format!("load_state_dict: saved with {there} parameter groups, but there are {here} now");
            return Err(Error::Argument { op: "scheduler", message });
        }
        (self.last_step, self.base_lrs) = (last_step, base_lrs);
        Ok(())
    }
}

/// Rejects a curve's settings unless `holds`; `rule` is the requirement.
fn require(op: &'static str, holds: bool, rule: impl Into<String>) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Argument { op, message: rule.into() }) }
}
