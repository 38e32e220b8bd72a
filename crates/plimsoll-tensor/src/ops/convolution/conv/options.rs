//! The options of convolutions.

/// Zeros around the images of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvPadding<const N: usize> {
    /// This many zeros on both sides of each dimension.
    Zeros([usize; N]),
    /// As many zeros as needed to make the output as large as the input; requires a stride of 1. PyTorch's `"same"`.
    Same,
    /// None. PyTorch's `"valid"`.
    Valid,
}

impl<const N: usize> From<[usize; N]> for ConvPadding<N> {
    fn from(zeros: [usize; N]) -> ConvPadding<N> {
        ConvPadding::Zeros(zeros)
    }
}

/// The options of a convolution of `N` spatial dimensions. The defaults are stride 1, no padding, no dilation and one group.
///
/// ```
/// use plimsoll_tensor::{Conv2dOptions, ConvPadding};
///
/// let halves = Conv2dOptions { stride: [2, 2], padding: [1, 1].into(), ..Default::default() };
/// let keeps_sizes = Conv2dOptions { padding: ConvPadding::Same, ..Default::default() };
/// assert_eq!(halves.groups, keeps_sizes.groups);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions<const N: usize> {
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; N],
    /// Zeros around the images.
    pub padding: ConvPadding<N>,
    /// Distance between neighbouring elements of a window; at least 1.
    pub dilation: [usize; N],
    /// The number of groups of channels that are convolved separately; as many groups as channels make it depthwise.
    pub groups: usize,
}

impl<const N: usize> Default for ConvOptions<N> {
    fn default() -> ConvOptions<N> {
        ConvOptions { stride: [1; N], padding: ConvPadding::Valid, dilation: [1; N], groups: 1 }
    }
}

/// Options of [`Tensor::conv1d`](crate::Tensor::conv1d).
pub type Conv1dOptions = ConvOptions<1>;
/// Options of [`Tensor::conv2d`](crate::Tensor::conv2d), as `[vertical, horizontal]`.
pub type Conv2dOptions = ConvOptions<2>;
/// Options of [`Tensor::conv3d`](crate::Tensor::conv3d).
pub type Conv3dOptions = ConvOptions<3>;

/// The options of a transposed convolution. They describe the convolution whose derivative it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTransposeOptions<const N: usize> {
    /// Distance in the output between the windows of neighbouring inputs; at least 1.
    pub stride: [usize; N],
    /// Elements cropped from both sides of the output.
    pub padding: [usize; N],
    /// Elements added at the end of the output. A strided convolution maps several input sizes to one output size; this selects
    /// a larger one. Smaller than the stride or the dilation.
    pub output_padding: [usize; N],
    /// Distance between neighbouring elements of a window; at least 1.
    pub dilation: [usize; N],
    /// The number of groups of channels that are convolved separately.
    pub groups: usize,
}

impl<const N: usize> Default for ConvTransposeOptions<N> {
    fn default() -> ConvTransposeOptions<N> {
        let (zeros, ones) = ([0; N], [1; N]);
        ConvTransposeOptions {
            stride: ones,
            padding: zeros,
            output_padding: zeros,
            dilation: ones,
            groups: 1,
        }
    }
}

/// Options of [`Tensor::conv_transpose1d`](crate::Tensor::conv_transpose1d).
pub type ConvTranspose1dOptions = ConvTransposeOptions<1>;
/// Options of [`Tensor::conv_transpose2d`](crate::Tensor::conv_transpose2d), as `[vertical, horizontal]`.
pub type ConvTranspose2dOptions = ConvTransposeOptions<2>;
/// Options of [`Tensor::conv_transpose3d`](crate::Tensor::conv_transpose3d).
pub type ConvTranspose3dOptions = ConvTransposeOptions<3>;
