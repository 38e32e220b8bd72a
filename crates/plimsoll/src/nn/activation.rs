//! Layers without parameters that change each element, or only the shape.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Module, Scope};

/// `max(x, 0)`. As `torch.nn.ReLU`.
#[derive(Debug)]
pub struct ReLU {
    label: LabelId,
}

impl ReLU {
    /// The layer; it has nothing to configure.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope) -> Result<ReLU> {
        Ok(ReLU { label: scope.label() })
    }
}

impl Module for ReLU {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.relu()
    }
}

/// All dimensions but the first as one; a view. As `torch.nn.Flatten`.
#[derive(Debug)]
pub struct Flatten {
    label: LabelId,
}

impl Flatten {
    /// The layer; it has nothing to configure.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope) -> Result<Flatten> {
        Ok(Flatten { label: scope.label() })
    }
}

impl Module for Flatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.flatten(1, -1)
    }
}
