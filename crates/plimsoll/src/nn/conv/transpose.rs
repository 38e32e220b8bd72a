//! The transposed convolution layers.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{ConvTransposeOptions, Result, Tensor};

use super::{Extent, divides};
use crate::members;
use crate::nn::{Init, Module, Parameter, Scope, Weighted};

/// The options of a transposed convolution layer other than its channels, with PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct ConvTransposeConfig<const N: usize> {
    kernel: [usize; N],
    options: ConvTransposeOptions<N>,
    bias: bool,
}

/// The options of [`ConvTranspose1d`].
pub type ConvTranspose1dConfig = ConvTransposeConfig<1>;
/// The options of [`ConvTranspose2d`].
pub type ConvTranspose2dConfig = ConvTransposeConfig<2>;
/// The options of [`ConvTranspose3d`].
pub type ConvTranspose3dConfig = ConvTransposeConfig<3>;

impl<const N: usize> ConvTransposeConfig<N> {
    /// Defaults for a kernel of this size: stride 1, no padding, no dilation, one group, a bias.
    pub fn new(kernel: impl Into<Extent<N>>) -> ConvTransposeConfig<N> {
        ConvTransposeConfig { kernel: kernel.into().0, options: ConvTransposeOptions::default(), bias: true }
    }

    /// Sets the stride: the distance in the output between the windows of neighbouring inputs.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<Extent<N>>) -> ConvTransposeConfig<N> {
        self.options.stride = stride.into().0;
        self
    }

    /// Sets how many elements are removed on both sides of the output.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Extent<N>>) -> ConvTransposeConfig<N> {
        self.options.padding = padding.into().0;
        self
    }

    /// Sets how many elements are added at the end of the output.
    #[must_use]
    pub fn output_padding(mut self, padding: impl Into<Extent<N>>) -> ConvTransposeConfig<N> {
        self.options.output_padding = padding.into().0;
        self
    }

    /// Sets the dilation: the distance between the kernel's elements.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Into<Extent<N>>) -> ConvTransposeConfig<N> {
        self.options.dilation = dilation.into().0;
        self
    }

    /// Divides the channels into this many groups that are convolved separately.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> ConvTransposeConfig<N> {
        self.options.groups = groups;
        self
    }

    /// Leaves out the bias; `bias=False` in PyTorch.
    #[must_use]
    pub fn without_bias(mut self) -> ConvTransposeConfig<N> {
        self.bias = false;
        self
    }
}

/// Transposed convolution of `[batch, channels, …]` with `N` spatial dimensions. Like `torch.nn.ConvTranspose1d`,
/// `ConvTranspose2d` and `ConvTranspose3d`.
///
/// ```
/// use plimsoll::nn::{ConvTranspose2d, ConvTranspose2dConfig, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let scope = Scope::new(&Device::cpu(), 1);
/// let double = ConvTranspose2d::with(&scope, 4, 2, ConvTranspose2dConfig::new(2).stride(2))?;
/// let images = Tensor::zeros(&[1, 4, 8, 8], &Device::cpu())?;
/// assert_eq!(double.forward(&images)?.shape(), [1, 2, 16, 16]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConvTranspose<const N: usize> {
    label: LabelId,
    weight: Parameter,
    bias: Option<Parameter>,
    options: ConvTransposeOptions<N>,
}

/// Transposed convolution of `[batch, channels, length]`.
pub type ConvTranspose1d = ConvTranspose<1>;
/// Transposed convolution of `[batch, channels, height, width]`.
pub type ConvTranspose2d = ConvTranspose<2>;
/// Transposed convolution of `[batch, channels, depth, height, width]`.
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const N: usize> ConvTranspose<N> {
    /// A layer from `inputs` to `outputs` channels with a kernel of this size in each dimension, stride 1, no padding, and a
    /// bias.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        kernel: impl Into<Extent<N>>,
    ) -> Result<ConvTranspose<N>> {
        ConvTranspose::with(scope, inputs, outputs, ConvTransposeConfig::new(kernel))
    }

    /// A layer from `inputs` to `outputs` channels with all of PyTorch's options.
    ///
    /// # Errors
    /// If the groups do not divide the channels, the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn with(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        config: ConvTransposeConfig<N>,
    ) -> Result<ConvTranspose<N>> {
        let ConvTransposeConfig { kernel, options, bias } = config;
        divides("ConvTranspose", options.groups, inputs, outputs)?;
        let shape: Vec<usize> = [inputs, outputs / options.groups].into_iter().chain(kernel).collect();
        // PyTorch computes a weight's fan-in as its second dimension times the kernel size, for transposed convolutions as well.
        let init = Init::default_for(shape[1..].iter().product());
        let weight = scope.parameter("weight", &shape, init)?;
        let bias = if bias { Some(scope.parameter("bias", &[outputs], init)?) } else { None };
        Ok(ConvTranspose { label: scope.label(), weight, bias, options })
    }

    /// The weight, `[inputs, outputs / groups, …]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }
}

impl<const N: usize> Module for ConvTranspose<N> {
    members!(weight, bias);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_with(input, &self.weight)
    }
}

impl<const N: usize> Weighted for ConvTranspose<N> {
    fn weight(&self) -> &Parameter {
        &self.weight
    }

    #[track_caller]
    fn forward_with(&self, input: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.convolution_transposed(weight, self.bias.as_deref(), self.options)
    }

    fn output_dim(&self) -> isize {
        1
    }
}
