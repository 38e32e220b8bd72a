//! The pooling layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{MaxPool2dOptions, Result, Tensor};

use super::{Module, Scope};

/// The largest value of each window. As `torch.nn.MaxPool2d`.
#[derive(Debug)]
pub struct MaxPool2d {
    label: LabelId,
    options: MaxPool2dOptions,
}

impl MaxPool2d {
    /// Square windows of `kernel` × `kernel`, side by side.
    ///
    /// # Errors
    /// None today; a `Result` like every layer's, so that all are built alike.
    pub fn new(scope: &Scope, kernel: usize) -> Result<MaxPool2d> {
        Ok(MaxPool2d { label: scope.label(), options: MaxPool2dOptions::square(kernel) })
    }

    /// The same layer with windows this far apart in both directions.
    pub fn stride(mut self, stride: usize) -> MaxPool2d {
        self.options.stride = [stride; 2];
        self
    }

    /// The same layer with this many places outside the image on every side.
    pub fn padding(mut self, padding: usize) -> MaxPool2d {
        self.options.padding = [padding; 2];
        self
    }
}

impl Module for MaxPool2d {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.max_pool2d(self.options)
    }
}
