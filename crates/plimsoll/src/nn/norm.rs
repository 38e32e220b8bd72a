//! Normalization layers.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Rows along the last dimension brought to mean 0 and deviation 1, then scaled and shifted. As
/// `torch.nn.LayerNorm` over one dimension.
#[derive(Clone, Debug)]
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

/// Rows along the last dimension divided by the root of the mean of their squares, then scaled. As `torch.nn.RMSNorm` over
/// one dimension.
///
/// ```
/// use plimsoll::nn::{Module, RmsNorm, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let norm = RmsNorm::new(&Scope::new(&device, 1), 2)?;
/// let y = norm.forward(&Tensor::from_slice(&[3.0f32, 3.0], &[1, 2], &device)?)?;
/// assert!((y.to_vec::<f32>()?[0] - 1.0).abs() < 1e-5);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RmsNorm {
    label: LabelId,
    weight: Parameter,
    eps: f64,
}

impl RmsNorm {
    /// For rows of `size` numbers, with an `eps` of 1e-6.
    ///
    /// # Errors
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn new(scope: &Scope, size: usize) -> Result<RmsNorm> {
        let weight = scope.parameter("weight", &[size], Init::Ones)?;
        Ok(RmsNorm { label: scope.label(), weight, eps: 1e-6 })
    }

    /// The same layer with another number added to the mean square.
    pub fn eps(mut self, eps: f64) -> RmsNorm {
        self.eps = eps;
        self
    }
}

impl Module for RmsNorm {
    members!(weight);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.rms_norm(Some(&self.weight), self.eps)
    }
}

impl Module for LayerNorm {
    members!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.layer_norm(Some(&self.weight), Some(&self.bias), self.eps)
    }
}
