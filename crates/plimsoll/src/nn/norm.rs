//! Normalization layers without running statistics; `batch_norm.rs` has those with them.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Error, Result, Tensor};

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

/// Each of some groups of channels of `[batch, channels, …]` brought to mean 0 and deviation 1, then scaled and shifted by
/// channel. As `torch.nn.GroupNorm`.
///
/// ```
/// use plimsoll::nn::{GroupNorm, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let norm = GroupNorm::new(&Scope::new(&device, 1), 2, 6)?;
/// assert_eq!(norm.forward(&Tensor::randn(&[4, 6, 5], &device)?)?.shape(), [4, 6, 5]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupNorm {
    label: LabelId,
    groups: usize,
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    eps: f64,
}

impl GroupNorm {
    /// For so many channels in so many groups, with PyTorch's `eps` of 1e-5.
    ///
    /// # Errors
    /// Channels that are no multiple of the groups; a path that is taken ([`Scope::parameter`]); out of memory.
    pub fn new(scope: &Scope, groups: usize, channels: usize) -> Result<GroupNorm> {
        let layer = GroupNorm::without_affine(scope, groups, channels)?;
        let weight = scope.parameter("weight", &[channels], Init::Ones)?;
        let bias = scope.parameter("bias", &[channels], Init::Zeros)?;
        Ok(GroupNorm { weight: Some(weight), bias: Some(bias), ..layer })
    }

    /// [`GroupNorm::new`] without weight and bias; `affine=False` in PyTorch.
    ///
    /// # Errors
    /// Channels that are no multiple of the groups.
    pub fn without_affine(scope: &Scope, groups: usize, channels: usize) -> Result<GroupNorm> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message = format!("{channels} channels do not divide into {groups} groups");
            return Err(Error::Argument { op: "group_norm", message });
        }
        Ok(GroupNorm { label: scope.label(), groups, weight: None, bias: None, eps: 1e-5 })
    }

    /// The same layer with another number added to the variance.
    pub fn eps(mut self, eps: f64) -> GroupNorm {
        self.eps = eps;
        self
    }
}

impl Module for GroupNorm {
    members!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.group_norm(self.groups, self.weight.as_deref(), self.bias.as_deref(), self.eps)
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
