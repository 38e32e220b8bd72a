//! The convolution layers, and their transposed forms (`transpose.rs`).
//!
//! A layer is one type for all numbers of spatial dimensions: [`Conv1d`], [`Conv2d`] and [`Conv3d`] are [`Conv`] of 1, 2 and 3.
//! Options that determine the parameters (groups, bias) are chosen before the layer is made, in a [`ConvConfig`].

mod config;
mod transpose;

pub use config::{Conv1dConfig, Conv2dConfig, Conv3dConfig, ConvConfig, Extent};
pub use transpose::{
    ConvTranspose, ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig,
    ConvTranspose3d, ConvTranspose3dConfig, ConvTransposeConfig,
};

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{ConvOptions, ConvPadding, Error, PadMode, Result, Tensor};

use super::{Init, Module, Parameter, Scope, Weighted};
use crate::members;

/// Convolution of `[batch, channels, …]` with `N` spatial dimensions. Like `torch.nn.Conv1d`, `Conv2d` and `Conv3d`.
///
/// ```
/// use plimsoll::nn::{Conv2d, Conv2dConfig, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let scope = Scope::new(&Device::cpu(), 1);
/// let halve = Conv2dConfig::new(3).stride(2).padding(1).groups(4).without_bias();
/// let depthwise = Conv2d::with(&scope, 4, 4, halve)?;
/// let images = Tensor::zeros(&[1, 4, 8, 8], &Device::cpu())?;
/// assert_eq!(depthwise.forward(&images)?.shape(), [1, 4, 4, 4]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv<const N: usize> {
    label: LabelId,
    weight: Parameter,
    bias: Option<Parameter>,
    config: ConvConfig<N>,
}

/// Convolution of `[batch, channels, length]`.
pub type Conv1d = Conv<1>;
/// Convolution of `[batch, channels, height, width]`.
pub type Conv2d = Conv<2>;
/// Convolution of `[batch, channels, depth, height, width]`.
pub type Conv3d = Conv<3>;

impl<const N: usize> Conv<N> {
    /// A convolution from `inputs` to `outputs` channels with a kernel of this size in each dimension, stride 1, no padding, and
    /// a bias.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Extent<N>>,
    ) -> Result<Conv<N>> {
        Conv::with(scope, inputs, outputs, ConvConfig::new(kernel))
    }

    /// [`Conv::new`] without the bias; `bias=False` in PyTorch.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn without_bias(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Extent<N>>,
    ) -> Result<Conv<N>> {
        Conv::with(scope, inputs, outputs, ConvConfig::new(kernel).without_bias())
    }

    /// A convolution from `inputs` to `outputs` channels with all of PyTorch's options.
    ///
    /// # Errors
    /// If the groups do not divide the channels, the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn with(scope: &Scope, inputs: usize, outputs: usize, config: ConvConfig<N>) -> Result<Conv<N>> {
        let groups = config.options.groups;
        divides("Conv", groups, inputs, outputs)?;
        let shape: Vec<usize> = [outputs, inputs / groups].into_iter().chain(config.kernel).collect();
        let init = Init::default_for(shape[1..].iter().product());
        let weight = scope.parameter("weight", &shape, init)?;
        let bias = if config.bias { Some(scope.parameter("bias", &[outputs], init)?) } else { None };
        Ok(Conv { label: scope.label(), weight, bias, config })
    }

    /// Returns the layer with this stride.
    pub fn stride(mut self, stride: impl Into<Extent<N>>) -> Conv<N> {
        self.config = self.config.stride(stride);
        self
    }

    /// Returns the layer with this many zeros of padding on both sides of each dimension.
    pub fn padding(mut self, padding: impl Into<Extent<N>>) -> Conv<N> {
        self.config = self.config.padding(padding);
        self
    }

    /// Returns the layer with this dilation: the distance between the kernel's elements.
    pub fn dilation(mut self, dilation: impl Into<Extent<N>>) -> Conv<N> {
        self.config = self.config.dilation(dilation);
        self
    }

    /// The weight, `[outputs, inputs / groups, …]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }

    /// Pads the input if the padding is not zeros. Returns it with the remaining options.
    fn padded(&self, input: &Tensor) -> Result<(Tensor, ConvOptions<N>)> {
        let ConvConfig { kernel, options, padding_mode, .. } = self.config;
        if matches!(padding_mode, PadMode::Constant(value) if value == 0.0) {
            return Ok((input.clone(), options));
        }
        // Starts with the last dimension, as `pad` expects.
        let both = |dim: usize| match options.padding {
            ConvPadding::Zeros(zeros) => [zeros[dim], zeros[dim]],
            ConvPadding::Same => {
                let all = options.dilation[dim] * kernel[dim].saturating_sub(1);
                [all / 2, all - all / 2]
            }
            ConvPadding::Valid => [0, 0],
        };
        let pads: Vec<isize> = (0..N).rev().flat_map(both).map(|pad| pad as isize).collect();
        Ok((input.pad(&pads, padding_mode)?, ConvOptions { padding: ConvPadding::Valid, ..options }))
    }
}

impl<const N: usize> Module for Conv<N> {
    members!(weight, bias);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_with(input, &self.weight)
    }
}

impl<const N: usize> Weighted for Conv<N> {
    fn weight(&self) -> &Parameter {
        &self.weight
    }

    #[track_caller]
    fn forward_with(&self, input: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        let (input, options) = self.padded(input)?;
        input.convolution(weight, self.bias.as_deref(), options)
    }
}

/// Returns an error unless the number of groups divides both numbers of channels.
fn divides(op: &'static str, groups: usize, inputs: usize, outputs: usize) -> Result<()> {
    if groups > 0 && inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups) {
        return Ok(());
    }
    let message =
        format!("{groups} groups must divide {inputs} input channels and {outputs} output channels");
    Err(Error::argument(op, message))
}
