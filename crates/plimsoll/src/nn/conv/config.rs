//! The options of a convolution layer.

use plimsoll_tensor::{ConvOptions, ConvPadding, PadMode};

/// A size in each of `N` dimensions: one number for all, or an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<const N: usize>(pub [usize; N]);

impl<const N: usize> From<usize> for Extent<N> {
    fn from(size: usize) -> Extent<N> {
        Extent([size; N])
    }
}

impl<const N: usize> From<[usize; N]> for Extent<N> {
    fn from(sizes: [usize; N]) -> Extent<N> {
        Extent(sizes)
    }
}

/// The options of a convolution layer other than its channels, with PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
pub struct ConvConfig<const N: usize> {
    pub(super) kernel: [usize; N],
    pub(super) options: ConvOptions<N>,
    pub(super) bias: bool,
    pub(super) padding_mode: PadMode,
}

/// The options of [`Conv1d`](super::Conv1d).
pub type Conv1dConfig = ConvConfig<1>;
/// The options of [`Conv2d`](super::Conv2d).
pub type Conv2dConfig = ConvConfig<2>;
/// The options of [`Conv3d`](super::Conv3d).
pub type Conv3dConfig = ConvConfig<3>;

impl<const N: usize> ConvConfig<N> {
    /// Defaults for a kernel of this size: stride 1, no padding, no dilation, one group, a bias.
    pub fn new(kernel: impl Into<Extent<N>>) -> ConvConfig<N> {
        let options = ConvOptions::default();
        ConvConfig { kernel: kernel.into().0, options, bias: true, padding_mode: PadMode::Constant(0.0) }
    }

    /// Sets the stride.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<Extent<N>>) -> ConvConfig<N> {
        self.options.stride = stride.into().0;
        self
    }

    /// Sets the padding on both sides of each dimension.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Extent<N>>) -> ConvConfig<N> {
        self.options.padding = ConvPadding::Zeros(padding.into().0);
        self
    }

    /// Sets the padding so that the output has the size of the input; `padding='same'` in PyTorch.
    #[must_use]
    pub fn same_padding(mut self) -> ConvConfig<N> {
        self.options.padding = ConvPadding::Same;
        self
    }

    /// Sets how the padding is filled, by default with zeros.
    #[must_use]
    pub fn padding_mode(mut self, mode: PadMode) -> ConvConfig<N> {
        self.padding_mode = mode;
        self
    }

    /// Sets the dilation: the distance between the kernel's elements.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Into<Extent<N>>) -> ConvConfig<N> {
        self.options.dilation = dilation.into().0;
        self
    }

    /// Divides the channels into this many groups that are convolved separately.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> ConvConfig<N> {
        self.options.groups = groups;
        self
    }

    /// Leaves out the bias; `bias=False` in PyTorch.
    #[must_use]
    pub fn without_bias(mut self) -> ConvConfig<N> {
        self.bias = false;
        self
    }
}
