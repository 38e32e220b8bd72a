//! Images of one to three dimensions, as the kernels of convolutions see them.

use plimsoll_cuda::ConvolutionPass;

use crate::cuda::Placed;

/// Sizes of a convolution; missing spatial dimensions come first, with size 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) pass: ConvolutionPass,
    /// Whether `float32` may be multiplied in TF32.
    pub(crate) tf32: bool,
    /// Spatial dimensions.
    pub(crate) rank: usize,
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    /// By depth, height and width: images, results, window, its stride, padding, dilation.
    pub(crate) axes: [[usize; 3]; 6],
}

/// Strides of a tensor `[batch, channels, …]` with three spatial dimensions: those that are missing come first.
pub(in crate::cuda) fn strides(x: &Placed<'_>) -> [u64; 5] {
    let strides = x.layout.strides();
    let missing = 5 - strides.len();
    std::array::from_fn(|i| match i {
        0 | 1 => strides[i] as u64,
        i if i - 2 < missing => 0,
        i => strides[i - missing] as u64,
    })
}
