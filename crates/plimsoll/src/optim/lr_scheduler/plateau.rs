//! Lowers the learning rate when a metric stops improving: [`ReduceLrOnPlateau`].

use plimsoll_tensor::{Error, Result};
use serde_json::{Value, json};

use crate::optim::Optimizer;

/// Which metrics are better: PyTorch's `mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Better {
    /// A smaller metric, such as a loss.
    #[default]
    Min,
    /// A larger metric, such as accuracy.
    Max,
}

/// The smallest improvement that counts: PyTorch's `threshold` and `threshold_mode`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// This fraction of the best metric.
    Rel(f64),
    /// This absolute difference.
    Abs(f64),
}

/// The settings of [`ReduceLrOnPlateau`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlateauOptions {
    /// Whether a smaller or a larger metric is better.
    pub mode: Better,
    /// The factor that multiplies the learning rate, below 1.
    pub factor: f64,
    /// The number of steps without improvement before the learning rate is reduced.
    pub patience: u64,
    /// The smallest improvement that counts.
    pub threshold: Threshold,
    /// The number of steps after a reduction in which steps without improvement are not counted.
    pub cooldown: u64,
    /// The smallest learning rate.
    pub min_lr: f64,
    /// The learning rate is not changed if the change would be smaller than this.
    pub eps: f64,
}

impl Default for PlateauOptions {
    /// PyTorch's defaults.
    fn default() -> PlateauOptions {
        PlateauOptions {
            mode: Better::Min,
            factor: 0.1,
            patience: 10,
            threshold: Threshold::Rel(1e-4),
            cooldown: 0,
            min_lr: 0.0,
            eps: 1e-8,
        }
    }
}

/// Multiplies the learning rates by a factor when a metric has not improved for some steps. Like
/// `torch.optim.lr_scheduler.ReduceLROnPlateau`.
///
/// ```
/// use plimsoll::optim::lr_scheduler::{PlateauOptions, ReduceLrOnPlateau};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// let mut sgd = Sgd::new(vec![], SgdOptions { lr: 1.0, ..SgdOptions::default() });
/// let mut plateau = ReduceLrOnPlateau::new(PlateauOptions { patience: 1, ..PlateauOptions::default() });
/// for loss in [3.0, 2.0, 2.0, 2.0] {
///     plateau.step(loss, &mut sgd)?;
/// }
/// assert_eq!(sgd.lrs(), [0.1]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceLrOnPlateau {
    /// May be changed between steps.
    pub options: PlateauOptions,
    best: Option<f64>,
    bad_steps: u64,
    cooldown_left: u64,
}

impl ReduceLrOnPlateau {
    /// A scheduler that has seen no metric.
    pub fn new(options: PlateauOptions) -> ReduceLrOnPlateau {
        ReduceLrOnPlateau { options, best: None, bad_steps: 0, cooldown_left: 0 }
    }

    fn is_better(&self, metric: f64) -> bool {
        let best = self.best.unwrap_or(if self.options.mode == Better::Min {
            f64::INFINITY
        } else {
            f64::NEG_INFINITY
        });
        match (self.options.mode, self.options.threshold) {
            (Better::Min, Threshold::Rel(share)) => metric < best * (1.0 - share),
            (Better::Min, Threshold::Abs(much)) => metric < best - much,
            (Better::Max, Threshold::Rel(share)) => metric > best * (share + 1.0),
            (Better::Max, Threshold::Abs(much)) => metric > best + much,
        }
    }

    /// Records a metric, usually the validation loss of an epoch, and reduces the learning rates if it is time to.
    ///
    /// # Errors
    /// A factor that is not below 1.
    pub fn step(&mut self, metric: f64, optimizer: &mut dyn Optimizer) -> Result<()> {
        if self.options.factor.is_nan() || self.options.factor >= 1.0 {
            let message = format!("factor is {}; it must be below 1", self.options.factor);
            return Err(Error::Argument { op: "ReduceLrOnPlateau", message });
        }
        if self.is_better(metric) {
            self.best = Some(metric);
            self.bad_steps = 0;
        } else {
            self.bad_steps += 1;
        }
        if self.cooldown_left > 0 {
            self.cooldown_left -= 1;
            self.bad_steps = 0;
        }
        if self.bad_steps > self.options.patience {
            let reduced = |lr: f64| {
                let new = (lr * self.options.factor).max(self.options.min_lr);
                if lr - new > self.options.eps { new } else { lr }
            };
            let lrs: Vec<f64> = optimizer.lrs().into_iter().map(reduced).collect();
            optimizer.set_lrs(&lrs);
            self.cooldown_left = self.options.cooldown;
            self.bad_steps = 0;
        }
        Ok(())
    }

    /// The state, for a checkpoint.
    pub fn state_dict(&self) -> Value {
        json!({ "best": self.best, "num_bad_epochs": self.bad_steps, "cooldown_counter": self.cooldown_left })
    }

    /// Restores the state of another scheduler.
    ///
    /// # Errors
    /// A value that [`ReduceLrOnPlateau::state_dict`] did not make.
    pub fn load_state_dict(&mut self, state: &Value) -> Result<()> {
        let (Some(bad_steps), Some(cooldown_left)) =
            (state["num_bad_epochs"].as_u64(), state["cooldown_counter"].as_u64())
        else {
            let message = "load_state_dict: needs `best`, `num_bad_epochs` and `cooldown_counter`".to_owned();
            return Err(Error::Argument { op: "ReduceLrOnPlateau", message });
        };
        (self.best, self.bad_steps, self.cooldown_left) = (state["best"].as_f64(), bad_steps, cooldown_left);
        Ok(())
    }
}
