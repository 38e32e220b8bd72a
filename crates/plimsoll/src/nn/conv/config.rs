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

/// What a convolution layer is made of besides its channels: PyTorch's options with its defaults.
#[derive(Clone, Copy, Debug)]
pub struct ConvConfig<const N: usize> {
    pub(super) kernel: [usize; N],
    pub(super) options: ConvOptions<N>,
    pub(super) bias: bool,
    pub(super) padding_mode: PadMode,
}

/// Of [`Conv1d`](super::Conv1d).
pub type Conv1dConfig = ConvConfig<1>;
/// Of [`Conv2d`](super::Conv2d).
pub type Conv2dConfig = ConvConfig<2>;
/// Of [`Conv3d`](super::Conv3d).
pub type Conv3dConfig = ConvConfig<3>;

impl<const N: usize> ConvConfig<N> {
    /// Windows of `kernel` elements, stride 1, no padding, no dilation, one group, a bias.
    pub fn new(kernel: impl Into<Extent<N>>) -> ConvConfig<N> {
        let options = ConvOptions::default();
        ConvConfig { kernel: kernel.into().0, options, bias: true, padding_mode: PadMode::Constant(0.0) }
    }

    /// Windows this far apart.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<Extent<N>>) -> ConvConfig<N> {
        self.options.stride = stride.into().0;
        self
    }

    /// This much padding on both sides of each dimension.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<Extent<N>>) -> ConvConfig<N> {
        self.options.padding = ConvPadding::Zeros(padding.into().0);
        self
    }

    /// As much padding as keeps sizes; `padding='same'` in PyTorch.
    #[must_use]
    pub fn same_padding(mut self) -> ConvConfig<N> {
        self.options.padding = ConvPadding::Same;
        self
    }

    /// What the padding holds, where not zeros.
    #[must_use]
    pub fn padding_mode(mut self, mode: PadMode) -> ConvConfig<N> {
        self.padding_mode = mode;
        self
    }

    /// The elements of a window this far apart.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Into<Extent<N>>) -> ConvConfig<N> {
        self.options.dilation = dilation.into().0;
        self
    }

    /// Channels in this many parts that are convolved apart.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> ConvConfig<N> {
        self.options.groups = groups;
        self
    }

    /// Without a bias; `bias=False` in PyTorch.
    #[must_use]
    pub fn without_bias(mut self) -> ConvConfig<N> {
        self.bias = false;
        self
    }
}
