//! Normalization layers without running statistics; `batch_norm.rs` has the layers with running statistics.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{AvgPool1dOptions, Error, PadMode, Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Layer normalization: elements along the last dimension, or the last few, are normalized to mean 0 and standard deviation 1,
/// then scaled and shifted. Like `torch.nn.LayerNorm`.
///
/// ```
/// use plimsoll::nn::{LayerNorm, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let norm = LayerNorm::over(&Scope::new(&device, 1), &[3, 4, 4])?; // whole images
/// assert_eq!(norm.parameters()[0].shape(), [3, 4, 4]);
/// let y = norm.forward(&Tensor::randn(&[2, 3, 4, 4], &device)?)?;
/// assert!(y.mean()?.item::<f32>()?.abs() < 1e-6);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    label: LabelId,
    shape: Vec<usize>,
    weight: Option<Parameter>,
    bias: Option<Parameter>,
    eps: f64,
}

impl LayerNorm {
    /// A layer for rows of `size` numbers, with PyTorch's `eps` of 1e-5.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, size: usize) -> Result<LayerNorm> {
        LayerNorm::over(scope, &[size])
    }

    /// A layer that normalizes over the last dimensions, which have these sizes: PyTorch's `normalized_shape`.
    ///
    /// # Errors
    /// The same errors as [`LayerNorm::new`].
    pub fn over(scope: &Scope, normalized_shape: &[usize]) -> Result<LayerNorm> {
        Ok(LayerNorm {
            weight: Some(scope.parameter("weight", normalized_shape, Init::Ones)?),
            bias: Some(scope.parameter("bias", normalized_shape, Init::Zeros)?),
            ..LayerNorm::without_affine(scope, normalized_shape)?
        })
    }

    /// The same layer without scale and shift; `elementwise_affine=False` in PyTorch.
    ///
    /// # Errors
    /// None today; it returns a `Result` so that all layers are constructed in the same way.
    pub fn without_affine(scope: &Scope, normalized_shape: &[usize]) -> Result<LayerNorm> {
        let shape = normalized_shape.to_vec();
        Ok(LayerNorm { label: scope.label(), shape, weight: None, bias: None, eps: 1e-5 })
    }

    /// Reshapes a tensor so that the normalized elements are in one dimension.
    fn rows(&self, input: &Tensor) -> Result<Tensor> {
        let dims = self.shape.len();
        if dims == 0 || !input.shape().ends_with(&self.shape) {
            let message = format!("input {:?}: its last sizes must be {:?}", input.shape(), self.shape);
            return Err(Error::Shape { op: "layer_norm", message });
        }
        if dims == 1 { Ok(input.clone()) } else { input.flatten(-(dims as isize), -1) }
    }

    /// Scale and shift in one dimension.
    fn scale(&self) -> Result<[Option<Tensor>; 2]> {
        let flat = |parameter: &Option<Parameter>| match parameter {
            Some(parameter) if self.shape.len() > 1 => parameter.flatten(0, -1).map(Some),
            Some(parameter) => Ok(Some(parameter.tensor().clone())),
            None => Ok(None),
        };
        Ok([flat(&self.weight)?, flat(&self.bias)?])
    }

    /// Returns the layer with this epsilon, which is added to the variance.
    pub fn eps(mut self, eps: f64) -> LayerNorm {
        self.eps = eps;
        self
    }
}

/// RMS normalization: rows along the last dimension are divided by the root of the mean of their squares, then scaled. Like
/// `torch.nn.RMSNorm` over one dimension.
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
    /// A layer for rows of `size` numbers, with an `eps` of 1e-6.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, size: usize) -> Result<RmsNorm> {
        let weight = scope.parameter("weight", &[size], Init::Ones)?;
        Ok(RmsNorm { label: scope.label(), weight, eps: 1e-6 })
    }

    /// Returns the layer with this epsilon, which is added to the mean square.
    pub fn eps(mut self, eps: f64) -> RmsNorm {
        self.eps = eps;
        self
    }
}

/// Group normalization: each group of channels of `[batch, channels, …]` is normalized to mean 0 and standard deviation 1, then
/// scaled and shifted by channel. Like `torch.nn.GroupNorm`.
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
    /// A layer for this many channels in this many groups, with PyTorch's `eps` of 1e-5.
    ///
    /// # Errors
    /// If the channels are not a multiple of the groups, the path is already in use ([`Scope::parameter`]), or memory
    /// runs out.
    pub fn new(scope: &Scope, groups: usize, channels: usize) -> Result<GroupNorm> {
        let layer = GroupNorm::without_affine(scope, groups, channels)?;
        let weight = scope.parameter("weight", &[channels], Init::Ones)?;
        let bias = scope.parameter("bias", &[channels], Init::Zeros)?;
        Ok(GroupNorm { weight: Some(weight), bias: Some(bias), ..layer })
    }

    /// [`GroupNorm::new`] without weight and bias; `affine=False` in PyTorch.
    ///
    /// # Errors
    /// If the channels are not a multiple of the groups.
    pub fn without_affine(scope: &Scope, groups: usize, channels: usize) -> Result<GroupNorm> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message = format!("{channels} channels do not divide into {groups} groups");
            return Err(Error::Argument { op: "group_norm", message });
        }
        Ok(GroupNorm { label: scope.label(), groups, weight: None, bias: None, eps: 1e-5 })
    }

    /// Returns the layer with this epsilon, which is added to the variance.
    pub fn eps(mut self, eps: f64) -> GroupNorm {
        self.eps = eps;
        self
    }
}

impl Module for GroupNorm {
    members!(weight, bias);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.group_norm(self.groups, self.weight.as_deref(), self.bias.as_deref(), self.eps)
    }
}

impl RmsNorm {
    /// The label of the layer's tensors.
    pub(crate) fn label(&self) -> LabelId {
        self.label
    }

    /// Returns the sum `input + residual` and the normalized sum, with one pass forward and one backward.
    ///
    /// # Errors
    /// If the shapes or types differ, or memory runs out.
    #[track_caller]
    pub fn forward_add(&self, input: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let _owner = Span::layer(self.label);
        input.add_rms_norm(residual, &self.weight, self.eps)
    }
}

impl Module for RmsNorm {
    members!(weight);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.rms_norm(&self.weight, self.eps)
    }
}

impl LayerNorm {
    /// The label of the layer's tensors.
    pub(crate) fn label(&self) -> LabelId {
        self.label
    }

    /// Returns the sum `input + residual` and the normalized sum, with one pass forward and one backward.
    ///
    /// # Errors
    /// If the shapes or types differ, or memory runs out.
    #[track_caller]
    pub fn forward_add(&self, input: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        let _owner = Span::layer(self.label);
        let [weight, bias] = self.scale()?;
        let (input_rows, residual) = (self.rows(input)?, self.rows(residual)?);
        let (y, sum) = input_rows.add_layer_norm(&residual, weight.as_ref(), bias.as_ref(), self.eps)?;
        if self.shape.len() == 1 { Ok((y, sum)) } else { Ok((y.view_as(input)?, sum.view_as(input)?)) }
    }
}

impl Module for LayerNorm {
    members!(weight, bias);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        let [weight, bias] = self.scale()?;
        let y = self.rows(input)?.layer_norm(weight.as_ref(), bias.as_ref(), self.eps)?;
        if self.shape.len() == 1 { Ok(y) } else { y.view_as(input) }
    }
}

/// Local response normalization: each element is divided by a power of the mean square of `size` neighbouring channels: `x / (k +
/// alpha · mean of squares)^beta`, for `[batch, channels, …]`. Like `torch.nn.LocalResponseNorm`.
#[derive(Clone, Debug)]
pub struct LocalResponseNorm {
    label: LabelId,
    size: usize,
    alpha: f64,
    beta: f64,
    k: f64,
}

impl LocalResponseNorm {
    /// A layer over this many channels, with PyTorch's other defaults.
    ///
    /// # Errors
    /// If a size is 0.
    pub fn new(scope: &Scope, size: usize) -> Result<LocalResponseNorm> {
        if size == 0 {
            let message = "a size of 0: needs at least 1 channel".to_owned();
            return Err(Error::Argument { op: "local_response_norm", message });
        }
        Ok(LocalResponseNorm { label: scope.label(), size, alpha: 1e-4, beta: 0.75, k: 1.0 })
    }

    /// Returns the layer with these parameters.
    pub fn with(mut self, alpha: f64, beta: f64, k: f64) -> LocalResponseNorm {
        (self.alpha, self.beta, self.k) = (alpha, beta, k);
        self
    }
}

impl Module for LocalResponseNorm {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        if input.rank() < 3 {
            let message = format!("{:?}: needs [batch, channels, …]", input.shape());
            return Err(Error::Shape { op: "local_response_norm", message });
        }
        // The channels of each position are a row, over which a window slides.
        let squares = input.square()?.movedim(&[1], &[-1])?;
        let rows = squares.reshape(&[-1, 1, squares.shape()[squares.rank() - 1] as isize])?;
        let (before, after) = (self.size / 2, (self.size - 1) / 2);
        let padded = rows.pad(&[before as isize, after as isize], PadMode::Constant(0.0))?;
        let window = AvgPool1dOptions { stride: [1], ..AvgPool1dOptions::new([self.size]) };
        let means = padded.avg_pool1d(window)?.reshape(squares.shape())?.movedim(&[-1], &[1])?;
        input.div(&means.affine(self.alpha, self.k)?.pow_scalar(self.beta)?)
    }
}
