//! Normalization layers without running statistics; `batch_norm.rs` has those with them.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{AvgPool1dOptions, Error, PadMode, Result, Tensor};

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

impl RmsNorm {
    /// What owns its tensors.
    pub(crate) fn label(&self) -> LabelId {
        self.label
    }

    /// The sum `input + residual`, and that sum normalized: one pass forward and one backward.
    ///
    /// # Errors
    /// Shapes or types that differ; out of memory.
    pub fn forward_add(&self, input: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let _owner = Span::layer(self.label);
        input.add_rms_norm(residual, Some(&self.weight), self.eps)
    }
}

impl Module for RmsNorm {
    members!(weight);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.rms_norm(Some(&self.weight), self.eps)
    }
}

impl LayerNorm {
    /// What owns its tensors.
    pub(crate) fn label(&self) -> LabelId {
        self.label
    }

    /// The sum `input + residual`, and that sum normalized: one pass forward and one backward.
    ///
    /// # Errors
    /// Shapes or types that differ; out of memory.
    pub fn forward_add(&self, input: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let _owner = Span::layer(self.label);
        input.add_layer_norm(residual, Some(&self.weight), Some(&self.bias), self.eps)
    }
}

impl Module for LayerNorm {
    members!(weight, bias);

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.layer_norm(Some(&self.weight), Some(&self.bias), self.eps)
    }
}

/// Each element divided by a root of the squares of `size` neighbouring channels: `x / (k + alpha · mean of squares)^beta`, for
/// `[batch, channels, …]`. As `torch.nn.LocalResponseNorm`.
#[derive(Clone, Debug)]
pub struct LocalResponseNorm {
    label: LabelId,
    size: usize,
    alpha: f64,
    beta: f64,
    k: f64,
}

impl LocalResponseNorm {
    /// Over so many channels, with PyTorch's other defaults.
    ///
    /// # Errors
    /// A size of 0.
    pub fn new(scope: &Scope, size: usize) -> Result<LocalResponseNorm> {
        if size == 0 {
            let message = "a size of 0: needs 1 channel at least".to_owned();
            return Err(Error::Argument { op: "local_response_norm", message });
        }
        Ok(LocalResponseNorm { label: scope.label(), size, alpha: 1e-4, beta: 0.75, k: 1.0 })
    }

    /// The same layer with these numbers.
    pub fn with(mut self, alpha: f64, beta: f64, k: f64) -> LocalResponseNorm {
        (self.alpha, self.beta, self.k) = (alpha, beta, k);
        self
    }
}

impl Module for LocalResponseNorm {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        if input.rank() < 3 {
            let message = format!("{:?}: needs [batch, channels, …]", input.shape());
            return Err(Error::Shape { op: "local_response_norm", message });
        }
        // Each place's channels are a row, over which a window slides.
        let squares = input.square()?.movedim(&[1], &[-1])?;
        let rows = squares.reshape(&[-1, 1, squares.shape()[squares.rank() - 1] as isize])?;
        let (before, after) = (self.size / 2, (self.size - 1) / 2);
        let padded = rows.pad(&[before as isize, after as isize], PadMode::Constant(0.0))?;
        let window = AvgPool1dOptions { stride: [1], ..AvgPool1dOptions::new([self.size]) };
        let means = padded.avg_pool1d(window)?.reshape(squares.shape())?.movedim(&[-1], &[1])?;
        input.div(&means.affine(self.alpha, self.k)?.pow_scalar(self.beta)?)
    }
}
