//! The fully connected layer.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Init, Module, Scope};

/// `x · weightᵀ + bias` on the last dimension. As `torch.nn.Linear`.
#[derive(Debug)]
pub struct Linear {
    label: LabelId,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// From `inputs` to `outputs` features, with a bias.
    ///
    /// # Errors
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<Linear> {
        let layer = Linear::without_bias(scope, inputs, outputs)?;
        let bias = scope.parameter("bias", &[outputs], Init::default_for(inputs))?;
        Ok(Linear { bias: Some(bias), ..layer })
    }

    /// From `inputs` to `outputs` features; `bias=False` in PyTorch.
    ///
    /// # Errors
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn without_bias(scope: &Scope, inputs: usize, outputs: usize) -> Result<Linear> {
        let weight = scope.parameter("weight", &[outputs, inputs], Init::default_for(inputs))?;
        Ok(Linear { label: scope.label(), weight, bias: None })
    }

    /// The weight, `[outputs, inputs]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }
}

impl Module for Linear {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.linear(&self.weight, self.bias.as_ref())
    }

    fn parameters(&self) -> Vec<Tensor> {
        [Some(&self.weight), self.bias.as_ref()].into_iter().flatten().cloned().collect()
    }
}
