//! A learning rate that rises to a maximum and falls again, with momentum moving the opposite way: [`OneCycleLr`].

use std::f64::consts::PI;

use plimsoll_tensor::{Error, Result};

use super::{Curve, require};

/// The shape of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine.
    #[default]
    Cos,
    /// A straight line.
    Linear,
}

/// One cycle of the learning rate over the complete training, with a step for each batch. Like
/// `torch.optim.lr_scheduler.OneCycleLR`.
///
/// ```
/// use plimsoll::optim::lr_scheduler::{OneCycleLr, Scheduler};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// let mut sgd = Sgd::new(vec![], SgdOptions { momentum: 0.9, ..SgdOptions::default() });
/// let mut scheduler = Scheduler::new(OneCycleLr::new(vec![0.5], 20), &mut sgd)?;
/// assert_eq!(sgd.momenta(), Some(vec![0.95]));
/// (0..5).try_for_each(|_| scheduler.step(&mut sgd))?;
/// assert_eq!((sgd.lrs(), sgd.momenta()), (vec![0.5], Some(vec![0.85])));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct OneCycleLr {
    /// The largest learning rate of each group; a single value applies to all groups.
    pub max_lr: Vec<f64>,
    /// The total number of steps of the cycle.
    pub total_steps: u64,
    /// The fraction of steps in which the learning rate rises.
    pub pct_start: f64,
    /// The shape of the phases.
    pub anneal_strategy: Anneal,
    /// Whether momentum, or the first beta, falls while the learning rate rises.
    pub cycle_momentum: bool,
    /// Momentum when the learning rate is largest.
    pub base_momentum: f64,
    /// Momentum when the learning rate is smallest.
    pub max_momentum: f64,
    /// The largest learning rate divided by the first.
    pub div_factor: f64,
    /// The first learning rate divided by the last.
    pub final_div_factor: f64,
    /// Whether the learning rate first falls back to its initial value, as steeply as it rose, and then to the last.
    pub three_phase: bool,
}

impl OneCycleLr {
    /// A cycle with PyTorch's defaults.
    pub fn new(max_lr: Vec<f64>, total_steps: u64) -> OneCycleLr {
        OneCycleLr {
            max_lr,
            total_steps,
            pct_start: 0.3,
            anneal_strategy: Anneal::Cos,
            cycle_momentum: true,
            base_momentum: 0.85,
            max_momentum: 0.95,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }

    /// The value at a step, given the values at the start, at the top and at the end.
    fn at(&self, step: u64, [start, top, end]: [f64; 3], falls_back: [f64; 2]) -> f64 {
        let (total, step) = (self.total_steps as f64, step as f64);
        let rise = (self.pct_start * total - 1.0, start, top);
        let phases: &[(f64, f64, f64)] = if self.three_phase {
            &[
                rise,
                (2.0 * self.pct_start * total - 2.0, top, start),
                (total - 1.0, falls_back[0], falls_back[1]),
            ]
        } else {
            &[rise, (total - 1.0, top, end)]
        };
        let mut begin = 0.0;
        for (i, &(last, from, to)) in phases.iter().enumerate() {
            if step <= last || i + 1 == phases.len() {
                let done = (step - begin) / (last - begin);
                return match self.anneal_strategy {
                    Anneal::Cos => to + (from - to) / 2.0 * ((PI * done).cos() + 1.0),
                    Anneal::Linear => (to - from) * done + from,
                };
            }
            begin = last;
        }
        end
    }

    fn lr(&self, step: u64, group: usize) -> Result<f64> {
        if step > self.total_steps {
            let message = format!("step {step} is beyond the cycle of {} steps", self.total_steps);
            return Err(Error::Argument { op: "OneCycleLr", message });
        }
        let max = self.max_lr.get(group).or(self.max_lr.first().filter(|_| self.max_lr.len() == 1));
        let Some(&max) = max else {
            let message =
                format!("max_lr has {} learning rates, but group {group} needs one", self.max_lr.len());
            return Err(Error::Argument { op: "OneCycleLr", message });
        };
        let first = max / self.div_factor;
        let last = first / self.final_div_factor;
        Ok(self.at(step, [first, max, last], [first, last]))
    }
}

impl Curve for OneCycleLr {
    fn start(&self, group: usize, _: f64, _: f64) -> Result<f64> {
        require("OneCycleLr", self.total_steps > 0, "total_steps is 0; it must be 1 or more")?;
        let share = self.pct_start;
        require(
            "OneCycleLr",
            (0.0..=1.0).contains(&share),
            format!("pct_start is {share}; it must be 0 to 1"),
        )?;
        self.lr(0, group)
    }

    fn has_own_start(&self) -> bool {
        true
    }

    fn next(&self, step: u64, group: usize, _: f64, _: f64) -> Result<f64> {
        self.lr(step, group)
    }

    fn momentum(&self, step: u64, _: usize) -> Option<f64> {
        let (base, max) = (self.base_momentum, self.max_momentum);
        self.cycle_momentum.then(|| self.at(step, [max, base, max], [max, max]))
    }
}
