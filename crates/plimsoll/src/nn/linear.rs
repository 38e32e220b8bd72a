//! The fully connected layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// `x · weightᵀ + bias` on the last dimension. Like `torch.nn.Linear`.
#[derive(Clone, Debug)]
pub struct Linear {
    label: LabelId,
    weight: Parameter,
    bias: Option<Parameter>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features, with a bias.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<Linear> {
        let layer = Linear::without_bias(scope, inputs, outputs)?;
        let bias = scope.parameter("bias", &[outputs], Init::default_for(inputs))?;
        Ok(Linear { bias: Some(bias), ..layer })
    }

    /// A layer from `inputs` to `outputs` features without a bias; `bias=False` in PyTorch.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn without_bias(scope: &Scope, inputs: usize, outputs: usize) -> Result<Linear> {
        let weight = scope.parameter("weight", &[outputs, inputs], Init::default_for(inputs))?;
        Ok(Linear { label: scope.label(), weight, bias: None })
    }

    /// A layer with these parameters, `[outputs, inputs]` and `[outputs]`, which other layers may share.
    pub fn of(scope: &Scope, weight: Parameter, bias: impl Into<Option<Parameter>>) -> Linear {
        Linear { label: scope.label(), weight, bias: bias.into() }
    }

    /// The label of the layer's allocations.
    pub fn label(&self) -> LabelId {
        self.label
    }

    /// The weight, `[outputs, inputs]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    members!(weight, bias);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.linear(&self.weight, self.bias.as_deref())
    }
}
