//! The convolution layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Conv2dOptions, Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Convolution of `[batch, channels, height, width]` with square filters. As `torch.nn.Conv2d`.
#[derive(Debug)]
pub struct Conv2d {
    label: LabelId,
    weight: Parameter,
    bias: Option<Parameter>,
    options: Conv2dOptions,
}

impl Conv2d {
    /// From `inputs` to `outputs` channels with filters of `kernel` × `kernel`, stride 1, no padding, and
    /// a bias.
    ///
    /// # Errors
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn new(scope: &Scope, inputs: usize, outputs: usize, kernel: usize) -> Result<Conv2d> {
        let layer = Conv2d::without_bias(scope, inputs, outputs, kernel)?;
        let bias = scope.parameter("bias", &[outputs], Init::default_for(inputs * kernel * kernel))?;
        Ok(Conv2d { bias: Some(bias), ..layer })
    }

    /// [`Conv2d::new`] without the bias; `bias=False` in PyTorch.
    ///
    /// # Errors
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn without_bias(scope: &Scope, inputs: usize, outputs: usize, kernel: usize) -> Result<Conv2d> {
        let init = Init::default_for(inputs * kernel * kernel);
        let weight = scope.parameter("weight", &[outputs, inputs, kernel, kernel], init)?;
        Ok(Conv2d { label: scope.label(), weight, bias: None, options: Conv2dOptions::default() })
    }

    /// The same layer with windows this far apart in both directions.
    pub fn stride(mut self, stride: usize) -> Conv2d {
        self.options.stride = [stride; 2];
        self
    }

    /// The same layer with this many zeros on every side.
    pub fn padding(mut self, padding: usize) -> Conv2d {
        self.options.padding = [padding; 2];
        self
    }

    /// The weight, `[outputs, inputs, kernel, kernel]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }
}

impl Module for Conv2d {
    members!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.conv2d(&self.weight, self.bias.as_deref(), self.options)
    }
}
