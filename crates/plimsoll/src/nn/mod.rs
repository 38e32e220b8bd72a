//! Layers: what a model is made of, with PyTorch's names, defaults and initialisation.
//!
//! A layer is built in a [`Scope`], which gives it its path. The path is the name of its parameters
//! (`fc1.weight`), the owner of its bytes, and the source of its random numbers. A model is a layer too.

mod activation;
mod conv;
mod init;
mod linear;
mod norm;
mod pool;
mod scope;
mod sequential;

pub use activation::{Flatten, ReLU};
pub use conv::Conv2d;
pub use init::Init;
pub use linear::Linear;
pub use norm::LayerNorm;
pub use pool::MaxPool2d;
pub use scope::Scope;
pub use sequential::Sequential;

use plimsoll_tensor::{Result, Tensor};

/// Something that turns a tensor into another and may have parameters. As `torch.nn.Module`.
pub trait Module: Send + Sync {
    /// The output for this input.
    ///
    /// # Errors
    /// What its operations report: sizes that do not fit together, out of memory.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// Handles of the parameters, in the order of construction. A parameter's name is its label.
    fn parameters(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// The parameters with their names, which are PyTorch's state-dict keys.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        self.parameters().into_iter().map(|parameter| (parameter.label(), parameter)).collect()
    }

    /// Drops every parameter's gradient, as PyTorch's `zero_grad(set_to_none=True)`.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(|parameter| parameter.set_grad(None));
    }
}
