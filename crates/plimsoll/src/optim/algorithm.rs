//! The part of an optimizer that is specific to its algorithm: [`Algorithm`].

use std::fmt::Debug;

use plimsoll_tensor::op::Rule;
use plimsoll_tensor::{DType, Error, Result, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The options of an optimizer, with the state and the update rule that follow from them. Options serialize under PyTorch's
/// names. [`OptimizerOf`](super::OptimizerOf) of them provides the rest: groups, state, master weights, state dicts,
/// and steps in captured graphs and of sharded parameters.
///
/// ```
/// use plimsoll::optim::{Algorithm, Optimizer, OptimizerOf, StateTensor, Updating};
/// use plimsoll::{Device, Result, Tensor};
/// use serde::{Deserialize, Serialize};
///
/// /// Steps by the sign of the momentum.
/// #[derive(Clone, Debug, Default, Serialize, Deserialize)]
/// struct SignOptions {
///     lr: f64,
///     momentum: f64,
/// }
///
/// impl Algorithm for SignOptions {
///     const NAME: &'static str = "sign";
///     fn lr(&self) -> f64 {
///         self.lr
///     }
///     fn set_lr(&mut self, lr: f64) {
///         self.lr = lr;
///     }
///     fn state(&self, shape: &[usize]) -> Vec<StateTensor> {
///         vec![StateTensor::zeros("momentum_buffer", shape)]
///     }
///     fn numbers(&self, _step: u64) -> Vec<f64> {
///         vec![-self.lr]
///     }
///     fn update(&self, at: &Updating<'_>) -> Result<Tensor> {
///         let ([momentum], [minus_lr]) = (at.state()?, at.numbers()?);
///         momentum.lerp_scalar_(at.grad, 1.0 - self.momentum)?;
///         momentum.sign()? * minus_lr
///     }
/// }
///
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let mut sign = OptimizerOf::new(vec![w.clone()], SignOptions { lr: 0.25, momentum: 0.9 });
/// w.square()?.sum()?.backward()?;
/// sign.step()?;
/// assert_eq!(w.to_vec::<f32>()?, [0.75; 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub trait Algorithm: Clone + Debug + Default + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// Its name in errors: `adamw`.
    const NAME: &'static str;

    /// Whether PyTorch's state counts the steps of each parameter.
    const COUNTS_STEPS: bool = true;

    /// Whether an update needs the complete parameter, for a norm of it for example. Sharded parameters are then refused.
    const WHOLE: bool = false;

    /// Rejects options that PyTorch rejects. See Note [Options are checked at each step]. By default, options that are numbers must
    /// be finite and 0 or more, and those of `betas` also below 1.
    ///
    /// # Errors
    /// The first invalid option, with the requirement.
    fn check(&self) -> Result<()> {
        check_numbers(self)
    }

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

    /// Tensors that state dicts of a parameter of this shape have, by PyTorch's name, and that never change. The optimizer does not
    /// store them. A state dict with other values is rejected.
    fn constants(&self, shape: &[usize]) -> Vec<(&'static str, &'static [f32])> {
        let _ = shape;
        Vec::new()
    }

    /// The rule by which a step changes all parameters, if there is a kernel for it. Otherwise [`Algorithm::update`] is called for
    /// each parameter.
    fn rule(&self) -> Option<Rule> {
        None
    }

    /// The numbers that [`Algorithm::update`] reads and that change from step to step: the learning rate, corrections of averages.
    /// The step of a parameter is counted from 1. An update that read them elsewhere would be wrong in a captured graph, which
    /// repeats its operations.
    fn numbers(&self, step: u64) -> Vec<f64> {
        let _ = step;
        Vec::new()
    }

    /// Changes the state of a parameter, and returns what to add to the parameter. It is made of operations on tensors, which are
    /// not recorded. An algorithm with a [`Algorithm::rule`] needs none.
    ///
    /// # Errors
    /// The errors of its operations. On an error, the parameters before this one have already taken the step.
    fn update(&self, at: &Updating<'_>) -> Result<Tensor> {
        let _ = at;
        Err(Error::argument(Self::NAME, "the algorithm has neither a rule nor an update"))
    }
}

/// What an [`Algorithm::update`] reads and changes.
#[derive(Clone, Copy, Debug)]
pub struct Updating<'a> {
    /// The parameter, or its 32-bit master copy. The update is added to it; it must not be changed.
    pub parameter: &'a Tensor,
    /// Its gradient, in the same type.
    pub grad: &'a Tensor,
    pub(super) state: &'a [Tensor],
    pub(super) numbers: &'a [Tensor],
}

impl<'a> Updating<'a> {
    /// The tensors of [`Algorithm::state`], to be changed in place.
    ///
    /// # Errors
    /// Another number of them.
    pub fn state<const N: usize>(&self) -> Result<[&'a Tensor; N]> {
        listed("state tensors", self.state)
    }

    /// The numbers of [`Algorithm::numbers`], as tensors without dimensions.
    ///
    /// # Errors
    /// Another number of them.
    pub fn numbers<const N: usize>(&self) -> Result<[&'a Tensor; N]> {
        listed("numbers", self.numbers)
    }

    /// The gradient of a loss with `weight_decay / 2` times the square of the parameter: the weight decay of all optimizers whose
    /// decay is not decoupled.
    ///
    /// # Errors
    /// Out of memory.
    pub fn grad_with_decay(&self, weight_decay: f64) -> Result<Tensor> {
        if weight_decay == 0.0 { Ok(self.grad.clone()) } else { self.grad + (self.parameter * weight_decay)? }
    }
}

impl Updating<'_> {
    /// The gradient, and the multiple of the parameter by which it shrinks in addition to the step: one of the two
    /// includes the decay.
    pub(super) fn decayed(&self, weight_decay: f64, is_decoupled: bool) -> Result<(Tensor, f64)> {
        match is_decoupled {
            true => Ok((self.grad.clone(), weight_decay)),
            false => Ok((self.grad_with_decay(weight_decay)?, 0.0)),
        }
    }
}

fn listed<'a, const N: usize>(what: &str, tensors: &'a [Tensor]) -> Result<[&'a Tensor; N]> {
    let all: Vec<&Tensor> = tensors.iter().collect();
    all.try_into().map_err(|all: Vec<_>| {
        let message = format!("the algorithm declares {} {what}, and its update takes {N}", all.len());
        Error::argument("update", message)
    })
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
    /// PyTorch's name for the state.
    pub name: &'static str,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its initial value; `None` if the first step overwrites it.
    pub start: Option<f64>,
    /// Its type, with its elements in row-major order; `None` for the parameter's type (32 bits with master weights) and order.
    pub dtype: Option<DType>,
}

impl StateTensor {
    /// A state tensor that is initially zero.
    pub fn zeros(name: &'static str, shape: &[usize]) -> StateTensor {
        StateTensor { name, shape: shape.to_vec(), start: Some(0.0), dtype: None }
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

/// Rejects options that are negative or not finite, and betas outside [0, 1).
pub(super) fn check_numbers<O: Algorithm>(options: &O) -> Result<()> {
    let Ok(Value::Object(all)) = serde_json::to_value(options) else { return Ok(()) };
    for (name, value) in &all {
        match value {
            Value::Number(number) => {
                require_not_negative(O::NAME, name, number.as_f64().unwrap_or(f64::NAN))?;
            }
            Value::Array(pair) if name == "betas" => {
                let beta = |i: usize| pair.get(i).and_then(Value::as_f64).unwrap_or(f64::NAN);
                require_betas(O::NAME, (beta(0), beta(1)))?;
            }
            _ => {}
        }
        if has_null(value) && !accepts::<O>(name, value) {
            return Err(Error::argument(O::NAME, format!("{name} must be a finite number, 0 or more")));
        }
    }
    require_not_negative(O::NAME, "lr", options.lr())
}

/// Whether JSON shows an option as `null`: it is NaN, infinite or `None`.
fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(all) => all.iter().any(has_null),
        _ => false,
    }
}

/// Whether an option of this name can have this value: `null` fits an `Option`, but not a number.
fn accepts<O: Algorithm>(name: &str, value: &Value) -> bool {
    let Ok(Value::Object(mut all)) = serde_json::to_value(O::default()) else { return true };
    all.insert(name.to_owned(), value.clone());
    serde_json::from_value::<O>(Value::Object(all)).is_ok()
}

/// Updates the running means of Adam (of the gradients, and of their squares) with a gradient.
pub(super) fn update_means(grad: &Tensor, mean: &Tensor, square: &Tensor, betas: (f64, f64)) -> Result<()> {
    mean.lerp_scalar_(grad, 1.0 - betas.0)?;
    update_square(grad, square, betas.1)
}

/// Updates a running mean of squares with a tensor. The square itself, which may overflow in 16 bits, is never rounded.
pub(super) fn update_square(tensor: &Tensor, square: &Tensor, beta: f64) -> Result<()> {
    square.mul_scalar_(beta)?;
    square.addcmul_(tensor, tensor, 1.0 - beta)
}
