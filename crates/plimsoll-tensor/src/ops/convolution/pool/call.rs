//! The methods, and their options.

use super::average::AvgPool;
use super::max::MaxPool;
use super::places;
use super::spec::{Kind, Spec};
use crate::cpu::kernels::pool::average::Divisor;
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Windows of max pooling, for each dimension of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolOptions<const D: usize> {
    /// Size of the window.
    pub kernel: [usize; D],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; D],
    /// Places outside the image on both sides, never the largest; at most half the window.
    pub padding: [usize; D],
    /// Distance between neighbouring places of a window; at least 1.
    pub dilation: [usize; D],
    /// Whether what is left over at the end has a window, too.
    pub ceil_mode: bool,
}

/// Of `[batch, channels, length]`.
pub type MaxPool1dOptions = MaxPoolOptions<1>;
/// Of `[batch, channels, h, w]`.
pub type MaxPool2dOptions = MaxPoolOptions<2>;
/// Of `[batch, channels, d, h, w]`.
pub type MaxPool3dOptions = MaxPoolOptions<3>;

impl<const D: usize> MaxPoolOptions<D> {
    /// Windows side by side, without padding: `nn.MaxPool2d(kernel)`.
    pub fn new(kernel: [usize; D]) -> Self {
        MaxPoolOptions { kernel, stride: kernel, padding: [0; D], dilation: [1; D], ceil_mode: false }
    }

    /// [`MaxPoolOptions::new`] of as many places in each dimension.
    pub fn square(size: usize) -> Self {
        MaxPoolOptions::new([size; D])
    }
}

/// Windows of average pooling, for each dimension of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolOptions<const D: usize> {
    /// Size of the window.
    pub kernel: [usize; D],
    /// Distance between neighbouring windows; at least 1.
    pub stride: [usize; D],
    /// Zeros on both sides of the image; at most half the window.
    pub padding: [usize; D],
    /// Whether what is left over at the end has a window, too.
    pub ceil_mode: bool,
    /// Whether the mean divides by the padding's places, too.
    pub count_include_pad: bool,
    /// What sums are divided by, whatever the windows' sizes.
    pub divisor_override: Option<usize>,
}

/// Of `[batch, channels, length]`.
pub type AvgPool1dOptions = AvgPoolOptions<1>;
/// Of `[batch, channels, h, w]`.
pub type AvgPool2dOptions = AvgPoolOptions<2>;
/// Of `[batch, channels, d, h, w]`.
pub type AvgPool3dOptions = AvgPoolOptions<3>;

impl<const D: usize> AvgPoolOptions<D> {
    /// Windows side by side, without padding: `nn.AvgPool2d(kernel)`.
    pub fn new(kernel: [usize; D]) -> Self {
        AvgPoolOptions {
            kernel,
            stride: kernel,
            padding: [0; D],
            ceil_mode: false,
            count_include_pad: true,
            divisor_override: None,
        }
    }

    /// [`AvgPoolOptions::new`] of as many places in each dimension.
    pub fn square(size: usize) -> Self {
        AvgPoolOptions::new([size; D])
    }
}

/// `D` values as those of the last of three dimensions; the first ones get `other`.
fn three<const D: usize>(values: [usize; D], other: usize) -> [usize; 3] {
    let mut all = [other; 3];
    all[3 - D..].copy_from_slice(&values);
    all
}

fn sliding<const D: usize>(options: MaxPoolOptions<D>) -> Spec {
    let MaxPoolOptions { kernel, stride, padding, dilation, ceil_mode } = options;
    let (kernel, stride) = (three(kernel, 1), three(stride, 1));
    let (padding, dilation) = (three(padding, 0), three(dilation, 1));
    Spec { spatial: D, kind: Kind::Sliding { kernel, stride, padding, dilation, ceil_mode } }
}

fn max_pool(x: &Tensor, spec: Spec) -> Result<Tensor> {
    Ok(call(MaxPool(spec), &[x])?.remove(0))
}

fn max_pool_with_indices(x: &Tensor, spec: Spec) -> Result<(Tensor, Tensor)> {
    let mut outs = call(MaxPool(spec), &[x])?;
    let index = outs.remove(1);
    Ok((outs.remove(0), places::of_image(spec, x, &index)?))
}

fn avg_pool<const D: usize>(x: &Tensor, options: AvgPoolOptions<D>) -> Result<Tensor> {
    let AvgPoolOptions { kernel, stride, padding, ceil_mode, .. } = options;
    let (kernel, stride, padding) = (three(kernel, 1), three(stride, 1), three(padding, 0));
    let spec =
        Spec { spatial: D, kind: Kind::Sliding { kernel, stride, padding, dilation: [1; 3], ceil_mode } };
    let divisor = match (options.divisor_override, options.count_include_pad) {
        (Some(0), _) => return Err(Error::argument("avg_pool", "divisor_override must not be 0")),
        (Some(n), _) => Divisor::Fixed(n),
        (None, true) => Divisor::Padded,
        (None, false) => Divisor::Inside,
    };
    call_one(AvgPool { spec, divisor }, &[x])
}

fn adaptive_avg<const D: usize>(x: &Tensor, out: [usize; D]) -> Result<Tensor> {
    let is_image = x.rank() == D + 1 || x.rank() == D + 2;
    if out == [1; D] && is_image && x.dtype().is_float() && x.numel() > 0 {
        // The mean over whole images, which adds up in blocks.
        let dims: Vec<isize> = (1..=D as isize).map(|dim| -dim).collect();
        return x.mean_keepdim(&dims);
    }
    let spec = Spec { spatial: D, kind: Kind::Adaptive(three(out, 1)) };
    call_one(AvgPool { spec, divisor: Divisor::Inside }, &[x])
}

fn adaptive<const D: usize>(out: [usize; D]) -> Spec {
    Spec { spatial: D, kind: Kind::Adaptive(three(out, 1)) }
}

/// The methods for one, two and three dimensions.
macro_rules! methods {
    ($($d:literal $shape:literal: $max:ident $with:ident $avg:ident $adaptive_avg:ident $adaptive_max:ident $adaptive_with:ident)*) => {
        impl Tensor {$(
            #[doc = concat!("The largest value of each window of ", $shape, ", or of images without a batch. As `torch.nn.functional.", stringify!($max), "`: of equal values the first counts, not a number wins.")]
            ///
            /// # Errors
            /// Sizes that do not fit together; out of memory.
            pub fn $max(&self, options: MaxPoolOptions<$d>) -> Result<Tensor> {
                max_pool(self, sliding(options))
            }

            #[doc = concat!("[`Tensor::", stringify!($max), "`], and where the largest values are in each image seen as one row (`int64`). As `torch.nn.functional.", stringify!($max), "(return_indices=True)`.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($max), "`].")]
            pub fn $with(&self, options: MaxPoolOptions<$d>) -> Result<(Tensor, Tensor)> {
                max_pool_with_indices(self, sliding(options))
            }

            #[doc = concat!("[`Tensor::", stringify!($adaptive_max), "`], and where the largest values are. As `torch.nn.functional.", stringify!($adaptive_max), "(return_indices=True)`.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($adaptive_max), "`].")]
            pub fn $adaptive_with(&self, output_size: [usize; $d]) -> Result<(Tensor, Tensor)> {
                max_pool_with_indices(self, adaptive(output_size))
            }

            #[doc = concat!("The mean of each window of ", $shape, ", or of images without a batch. As `torch.nn.functional.", stringify!($avg), "`.")]
            ///
            /// # Errors
            /// Sizes that do not fit together; a type that has no means; out of memory.
            pub fn $avg(&self, options: AvgPoolOptions<$d>) -> Result<Tensor> {
                avg_pool(self, options)
            }

            #[doc = concat!("Images ", $shape, " of any size brought to a size by means of windows. As `torch.nn.functional.", stringify!($adaptive_avg), "`.")]
            ///
            /// # Errors
            /// Images without places; a type that is not of floating point; out of memory.
            pub fn $adaptive_avg(&self, output_size: [usize; $d]) -> Result<Tensor> {
                adaptive_avg(self, output_size)
            }

            #[doc = concat!("Images ", $shape, " of any size brought to a size by the largest values of windows. As `torch.nn.functional.", stringify!($adaptive_max), "`.")]
            ///
            /// # Errors
            /// Images without places; out of memory.
            pub fn $adaptive_max(&self, output_size: [usize; $d]) -> Result<Tensor> {
                max_pool(self, adaptive(output_size))
            }
        )*}
    };
}

methods! {
    1 "`[batch, channels, length]`": max_pool1d max_pool1d_with_indices avg_pool1d
        adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices
    2 "`[batch, channels, h, w]`": max_pool2d max_pool2d_with_indices avg_pool2d
        adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices
    3 "`[batch, channels, d, h, w]`": max_pool3d max_pool3d_with_indices avg_pool3d
        adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices
}
