//! One curve after another: [`SequentialLr`].

use plimsoll_tensor::Result;

use super::{Curve, require};

/// Applies curves one after another; each starts at its milestone. Like `torch.optim.lr_scheduler.SequentialLR`.
///
/// ```
/// use plimsoll::optim::lr_scheduler::{CosineAnnealingLr, LinearLr, Scheduler, SequentialLr};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// let mut sgd = Sgd::new(vec![], SgdOptions { lr: 1.0, ..SgdOptions::default() });
/// // Two steps of warm-up, then a cosine.
/// let warm_up = LinearLr { start_factor: 0.5, total_iters: 2, ..LinearLr::default() };
/// let curve = SequentialLr::new(warm_up).then(2, CosineAnnealingLr { t_max: 4, eta_min: 0.0 });
/// let mut scheduler = Scheduler::new(curve, &mut sgd)?;
/// let mut lrs = sgd.lrs();
/// for _ in 0..6 {
///     scheduler.step(&mut sgd)?;
///     lrs.extend(sgd.lrs());
/// }
/// assert_eq!(lrs[..3], [0.5, 0.75, 1.0]);
/// assert!(lrs[6].abs() < 1e-12);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct SequentialLr {
    /// Each curve, with the step that it starts at.
    curves: Vec<(u64, Box<dyn Curve>)>,
}

impl SequentialLr {
    /// A sequence that starts with this curve.
    pub fn new(first: impl Curve + 'static) -> SequentialLr {
        SequentialLr { curves: vec![(0, Box::new(first))] }
    }

    /// Adds a curve that applies from step `milestone` on and starts with the initial learning rate.
    #[must_use]
    pub fn then(mut self, milestone: u64, curve: impl Curve + 'static) -> SequentialLr {
        self.curves.push((milestone, Box::new(curve)));
        self
    }

    /// The curve that applies at a step, and the step that it starts at.
    fn at(&self, step: u64) -> &(u64, Box<dyn Curve>) {
        let begun = self.curves.iter().rev().find(|(milestone, _)| *milestone <= step);
        begun.unwrap_or(&self.curves[0])
    }
}

impl Curve for SequentialLr {
    fn start(&self, group: usize, lr: f64, base_lr: f64) -> Result<f64> {
        let milestones = || self.curves.iter().map(|(milestone, _)| milestone);
        let rising = milestones().zip(milestones().skip(1)).all(|(a, b)| a < b);
        require("SequentialLr", rising, "milestones must increase, and be 1 or more")?;
        self.curves[0].1.start(group, lr, base_lr)
    }

    fn has_own_start(&self) -> bool {
        self.curves[0].1.has_own_start()
    }

    fn next(&self, step: u64, group: usize, lr: f64, base_lr: f64) -> Result<f64> {
        let (milestone, curve) = self.at(step);
        if step == *milestone {
            curve.start(group, base_lr, base_lr)
        } else {
            curve.next(step - milestone, group, lr, base_lr)
        }
    }

    fn momentum(&self, step: u64, group: usize) -> Option<f64> {
        let (milestone, curve) = self.at(step);
        curve.momentum(step - milestone, group)
    }
}
