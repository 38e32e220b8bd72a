//! The part of an optimizer that is specific to its algorithm: [`Algorithm`].

use std::fmt::Debug;

use plimsoll_tensor::op::Rule;
use plimsoll_tensor::{Error, Result, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The options of an optimizer, with the state and the update rule that follow from them. Options serialize under PyTorch's
/// names.
pub trait Algorithm: Clone + Debug + Default + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// Its name in errors: `adamw`.
    const NAME: &'static str;

    /// Whether PyTorch's state counts the steps of each parameter.
    const COUNTS_STEPS: bool = true;

    /// Rejects options that PyTorch rejects. See Note [Options are checked at each step].
    ///
    /// # Errors
    /// The first invalid option, with the requirement.
    fn check(&self) -> Result<()>;

    /// Rejects a parameter that the algorithm cannot update.
    ///
    /// # Errors
    /// The reason why the algorithm cannot update the parameter.
    fn check_parameter(&self, parameter: &Tensor) -> Result<()> {
        let _ = parameter;
        Ok(())
    }

    /// The learning rate.
    fn lr(&self) -> f64;

    /// Sets the learning rate.
    fn set_lr(&mut self, lr: f64);

    /// The momentum or the first beta.
    fn momentum(&self) -> Option<f64> {
        None
    }

    /// Sets the momentum or the first beta.
    fn set_momentum(&mut self, momentum: f64) {
        let _ = momentum;
    }

    /// The state tensors of a parameter of this shape, in the order in which the rule takes them.
    fn state(&self, shape: &[usize]) -> Vec<StateTensor>;

    /// The rule by which a step changes parameters.
    fn rule(&self) -> Rule;
}

/// Implements the methods of [`Algorithm`] for the options that schedulers change: the field `lr`, and the momentum or first
/// beta.
macro_rules! scheduled {
    (lr $(, $($momentum:tt)+)?) => {
        fn lr(&self) -> f64 {
            self.lr
        }

        fn set_lr(&mut self, lr: f64) {
            self.lr = lr;
        }
        $(
            fn momentum(&self) -> Option<f64> {
                Some(self.$($momentum)+)
            }

            fn set_momentum(&mut self, momentum: f64) {
                self.$($momentum)+ = momentum;
            }
        )?
    };
}
pub(super) use scheduled;

/// A state tensor of a parameter, kept between steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StateTensor {
    /// PyTorch's name for it.
    pub name: &'static str,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its initial value; `None` if the first step overwrites it.
    pub start: Option<f64>,
}

impl StateTensor {
    /// A state tensor that is initially zero.
    pub fn zeros(name: &'static str, shape: &[usize]) -> StateTensor {
        StateTensor { name, shape: shape.to_vec(), start: Some(0.0) }
    }
}

// Note [Options are checked at each step]
// Options are public and may change between steps, so they are checked when they are used. The rules
// are those of PyTorch's constructors; NaN, which passes PyTorch's comparisons, is also rejected.

/// Rejects an option for which `holds` is false; `rule` is the requirement.
pub(super) fn require(op: &'static str, holds: bool, option: &str, value: f64, rule: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Argument { op, message: format!("{option} is {value}; it must be {rule}") })
}

/// Rejects an option that is negative or NaN.
pub(super) fn require_not_negative(op: &'static str, option: &str, value: f64) -> Result<()> {
    require(op, value >= 0.0, option, value, "0 or more")
}

/// Rejects betas outside [0, 1).
pub(super) fn require_betas(op: &'static str, betas: (f64, f64)) -> Result<()> {
    for (name, beta) in [("betas.0", betas.0), ("betas.1", betas.1)] {
        require(op, (0.0..1.0).contains(&beta), name, beta, "at least 0 and below 1")?;
    }
    Ok(())
}
