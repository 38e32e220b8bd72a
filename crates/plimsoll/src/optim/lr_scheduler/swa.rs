//! The curve to a constant learning rate, at which weights are averaged: [`SwaLr`].

use std::f64::consts::PI;

use plimsoll_tensor::{Error, Result};

use super::{Anneal, Curve};

/// Moves the learning rate to `swa_lr` in `anneal_epochs` steps, and keeps it there. For stochastic weight averaging with
/// [`AveragedModel`](crate::optim::swa_utils::AveragedModel). Like `torch.optim.swa_utils.SWALR`.
///
/// ```
/// use plimsoll::optim::lr_scheduler::{Anneal, Scheduler, SwaLr};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// let mut sgd = Sgd::new(vec![], SgdOptions { lr: 1.0, ..SgdOptions::default() });
/// let curve = SwaLr { anneal_epochs: 2, anneal_strategy: Anneal::Linear, ..SwaLr::new(vec![0.5]) };
/// let mut scheduler = Scheduler::new(curve, &mut sgd)?;
/// let mut lrs = Vec::new();
/// for _ in 0..3 {
///     scheduler.step(&mut sgd)?;
///     lrs.push(sgd.lrs()[0]);
/// }
/// assert_eq!(lrs, [0.75, 0.5, 0.5]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SwaLr {
    /// The final learning rate: one for each group, or a single one for all groups.
    pub swa_lr: Vec<f64>,
    /// The number of steps until the final learning rate; with 0, it applies at once. PyTorch's default is 10.
    pub anneal_epochs: u64,
    /// The shape of the transition.
    pub anneal_strategy: Anneal,
}

impl SwaLr {
    /// PyTorch's defaults: half a cosine in 10 steps.
    pub fn new(swa_lr: Vec<f64>) -> SwaLr {
        SwaLr { swa_lr, anneal_epochs: 10, anneal_strategy: Anneal::Cos }
    }

    /// The fraction of the transition that is done after a step.
    fn alpha(&self, step: u64) -> f64 {
        let done = (step as f64 / self.anneal_epochs.max(1) as f64).min(1.0);
        match self.anneal_strategy {
            Anneal::Cos => (1.0 - (PI * done).cos()) / 2.0,
            Anneal::Linear => done,
        }
    }

    fn to(&self, group: usize) -> Result<f64> {
        let all = &self.swa_lr;
        all.get(group).or(all.first().filter(|_| all.len() == 1)).copied().ok_or_else(|| {
            let message = format!("swa_lr has {} learning rates, but group {group} needs one", all.len());
            Error::Argument { op: "SwaLr", message }
        })
    }
}

impl Curve for SwaLr {
    fn start(&self, group: usize, lr: f64, _: f64) -> Result<f64> {
        let to = self.to(group)?;
        Ok(if self.anneal_epochs == 0 { to } else { lr })
    }

    /// Starts from the previous rate, which another scheduler may have changed, as in PyTorch.
    fn next(&self, step: u64, group: usize, lr: f64, _: f64) -> Result<f64> {
        let (to, before, now) = (self.to(group)?, self.alpha(step - 1), self.alpha(step));
        let from = if before >= 1.0 { to } else { (lr - before * to) / (1.0 - before) };
        Ok(to * now + from * (1.0 - now))
    }
}
