//! Images of one to three dimensions, in the form used by the convolution kernels.

use plimsoll_cuda::ConvolutionPass;

use crate::cuda::Placed;

/// The sizes of a convolution; missing spatial dimensions come first, with size 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) pass: ConvolutionPass,
    /// Whether `float32` may be multiplied in TF32.
    pub(crate) tf32: bool,
    /// The number of spatial dimensions.
    pub(crate) rank: usize,
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    /// For depth, height and width: the sizes of images, results and window, then stride, padding and
    /// dilation.
    pub(crate) axes: [[usize; 3]; 6],
}

/// Strides of a tensor `[batch, channels, …]` with three spatial dimensions; missing ones come first.
pub(in crate::cuda) fn strides(x: &Placed<'_>) -> [u64; 5] {
    let strides = x.layout.strides();
    let missing = 5 - strides.len();
    std::array::from_fn(|i| match i {
        0 | 1 => strides[i] as u64,
        i if i - 2 < missing => 0,
        i => strides[i - missing] as u64,
    })
}
