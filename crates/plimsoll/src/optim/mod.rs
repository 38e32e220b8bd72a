//! Optimizers: in place on parameter and state, one pass, without temporaries. PyTorch's names and
//! defaults.

mod adam;
mod sgd;

pub use adam::{Adam, AdamOptions};
pub use sgd::{Sgd, SgdOptions};

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::{DType, Error, Result, Tensor};

/// Updates parameters from their gradients. As `torch.optim.Optimizer`.
pub trait Optimizer {
    /// Updates every parameter that has a gradient. Missing state is allocated for all of
    /// them first, so running out of memory leaves every parameter as it was.
    ///
    /// # Errors
    /// An option that PyTorch rejects, before anything changes; out of memory, at the first step.
    fn step(&mut self) -> Result<()>;

    /// The learning rate of the next step; a scheduler sets it before each step.
    fn set_lr(&mut self, lr: f64);

    /// The parameters that it updates.
    fn parameters(&self) -> &[Tensor];

    /// Drops every gradient, as PyTorch's `zero_grad(set_to_none=True)`.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(|parameter| parameter.set_grad(None));
    }
}

// Note [Options are checked at each step]
// Options are public and may change between steps, so they are checked when they are used. The rules
// are those of PyTorch's constructors; NaN, which passes PyTorch's comparisons, is also rejected.

/// Rejects an option for which `holds` is false; `rule` is the requirement.
fn require(op: &'static str, holds: bool, option: &str, value: f64, rule: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::Argument { op, message: format!("{option} is {value}; it must be {rule}") })
}

/// Rejects an option that is negative or NaN.
fn require_not_negative(op: &'static str, option: &str, value: f64) -> Result<()> {
    require(op, value >= 0.0, option, value, "0 or more")
}

/// Allocates one state tensor of a parameter, named after both: `conv2.weight exp_avg`.
fn state(parameter: &Tensor, name: &str) -> Result<Tensor> {
    let label = label::intern(&format!("{} {name}", parameter.label()));
    let _owner = Span::of(Category::OptimizerState, label);
    Tensor::empty(parameter.shape(), DType::F32, parameter.device())
}
