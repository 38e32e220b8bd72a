//! Layers that change only the shape, or nothing.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Module, Scope};

/// All dimensions but the first as one; a view. As `torch.nn.Flatten`.
#[derive(Clone, Debug)]
pub struct Flatten {
    label: LabelId,
    start: isize,
    end: isize,
}

impl Flatten {
    /// The layer, from dimension 1 to the last.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope) -> Result<Flatten> {
        Ok(Flatten { label: scope.label(), start: 1, end: -1 })
    }

    /// The same layer for these dimensions, the last included; negative ones count from the end.
    pub fn dims(mut self, start: isize, end: isize) -> Flatten {
        (self.start, self.end) = (start, end);
        self
    }
}

impl Module for Flatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.flatten(self.start, self.end)
    }
}

/// Its input, unchanged. As `torch.nn.Identity`: takes the place of a layer that is left out.
#[derive(Clone, Debug)]
pub struct Identity;

impl Identity {
    /// The layer; it has nothing to configure.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(_: &Scope) -> Result<Identity> {
        Ok(Identity)
    }
}

impl Module for Identity {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}
