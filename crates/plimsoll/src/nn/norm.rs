//! Normalization layers.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Rows along the last dimension brought to mean 0 and deviation 1, then scaled and shifted. As
/// `torch.nn.LayerNorm` over one dimension.
#[derive(Debug)]
pub struct LayerNorm {
    label: LabelId,
    weight: Parameter,
    bias: Parameter,
    eps: f64,
}

impl LayerNorm {
    /// For rows of `size` numbers, with PyTorch's `eps` of 1e-5.
    ///
    /// # Errors
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn new(scope: &Scope, size: usize) -> Result<LayerNorm> {
        Ok(LayerNorm {
            label: scope.label(),
            weight: scope.parameter("weight", &[size], Init::Ones)?,
            bias: scope.parameter("bias", &[size], Init::Zeros)?,
            eps: 1e-5,
        })
    }

    /// The same layer with another number added to the variance.
    pub fn eps(mut self, eps: f64) -> LayerNorm {
        self.eps = eps;
        self
    }
}

impl Module for LayerNorm {
    members!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.layer_norm(Some(&self.weight), Some(&self.bias), self.eps)
    }
}
