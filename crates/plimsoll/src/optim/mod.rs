//! Optimizers: in place on parameter and state, one pass, without temporaries. PyTorch's names and
//! defaults.

mod adam;
mod sgd;

pub use adam::{Adam, AdamOptions};
pub use sgd::{Sgd, SgdOptions};

use plimsoll_tensor::label::{self, Category, Owner};
use plimsoll_tensor::{DType, Result, Tensor};

/// Something that changes parameters by their gradients. As `torch.optim.Optimizer`.
pub trait Optimizer {
    /// One step for every parameter that has a gradient. State that is missing is allocated for all of
    /// them first, so running out of memory leaves every parameter as it was.
    ///
    /// # Errors
    /// Out of memory, at the first step.
    fn step(&mut self) -> Result<()>;

    /// The learning rate of the next step; a schedule sets it before each.
    fn set_lr(&mut self, lr: f64);

    /// The parameters that it changes.
    fn parameters(&self) -> &[Tensor];

    /// Drops every gradient, as PyTorch's `zero_grad(set_to_none=True)`.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(|parameter| parameter.set_grad(None));
    }
}

/// Room for one piece of a parameter's state, named after both: `conv2.weight exp_avg`.
fn state(parameter: &Tensor, name: &str) -> Result<Tensor> {
    let label = label::intern(&format!("{} {name}", parameter.label()));
    let _owner = Owner::of(Category::OptimizerState, label);
    Tensor::empty(parameter.shape(), DType::F32, parameter.device())
}
